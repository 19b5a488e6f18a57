//! Where the last layer looks, head by head, and what anchor-token-aware pooling makes of it
//! (Negative Matters, figures 4 and 7).

use anyhow::Result;
use serde_json::json;

use super::{Inputs, Picture, TextView, View, not_here};
use crate::report::{HeatMap, HeatStyle, heat_maps, token_weights};

/// Tokens that are drawn; the rest of a longer text is in the numbers only.
const TOKENS: usize = 48;
/// A token with this many times the mean anchor weight is an anchor.
const ANCHOR: f32 = 1.5;
/// Heads beside each other.
const ACROSS: usize = 4;

/// The tokens that draw much more attention than the mean token; at least the one that draws most.
fn anchor_tokens(text: &TextView) -> Vec<usize> {
    let weights = &text.anchors[0];
    let count = text.pooled.iter().filter(|&&pooled| pooled).count().max(1);
    let bar = ANCHOR / count as f32;
    let largest = (0..weights.len()).max_by(|&a, &b| weights[a].total_cmp(&weights[b]));
    (0..weights.len()).filter(|&i| weights[i] > bar || Some(i) == largest).collect()
}

fn cut(tokens: usize) -> String {
    match tokens > TOKENS {
        true => format!(" The first {TOKENS} of {tokens} tokens."),
        false => String::new(),
    }
}

pub(super) fn maps(view: &dyn View, inputs: &Inputs) -> Result<Vec<Picture>> {
    if inputs.texts.is_empty() {
        return not_here("no texts");
    }
    let picture = |(i, text): (usize, &String)| -> Result<Picture> {
        let seen = view.look(text, &inputs.prompt_text)?;
        let shown = seen.tokens.len().min(TOKENS);
        let anchors = anchor_tokens(&seen);
        let labels = seen.tokens[..shown].to_vec();
        // What the queries give to anchors, the mean over queries.
        let share = |head: &Vec<Vec<f32>>| -> f64 {
            let given = head.iter().flat_map(|row| anchors.iter().map(|&key| f64::from(row[key])));
            given.sum::<f64>() / head.len().max(1) as f64
        };
        let shares: Vec<f64> = seen.attention.iter().map(share).collect();
        let map = |(head, weights): (usize, &Vec<Vec<f32>>)| HeatMap {
            title: format!("head {}: {:.0} % to anchors", head + 1, 100.0 * shares[head]),
            rows: labels.clone(),
            columns: labels.clone(),
            values: weights[..shown]
                .iter()
                .map(|row| row[..shown].iter().map(|&weight| f64::from(weight)).collect())
                .collect(),
            marked: anchors.iter().copied().filter(|&key| key < shown).collect(),
        };
        let maps: Vec<HeatMap> = seen.attention.iter().enumerate().map(map).collect();
        let most = seen.attention.iter().flatten().flatten().fold(0.0f32, |a, &b| a.max(b));
        let style = HeatStyle {
            across: ACROSS,
            unit: "attention (row: the token that looks)".into(),
            range: Some((0.0, f64::from(most))),
            numbers: false,
        };
        let names: Vec<&str> = anchors.iter().map(|&key| seen.tokens[key].as_str()).collect();
        Ok(Picture {
            name: format!("attention-{}", i + 1),
            title: "Attention of the last layer".into(),
            caption: format!(
                "“{text}” Each row is a token that looks, each column a token that is looked at. \
                 Orange columns are anchors (over {ANCHOR} times the mean anchor weight): {}.{}",
                names.join(", "),
                cut(seen.tokens.len())
            ),
            svg: heat_maps(&maps, &style)?,
            data: json!({
                "text": text, "tokens": seen.tokens, "attention": seen.attention,
                "anchors": anchors, "share_to_anchors": shares,
            }),
        })
    };
    inputs.texts.iter().enumerate().map(picture).collect()
}

fn weights_picture(i: usize, text: &str, seen: &TextView, own: &str) -> Result<Picture> {
    let doubles = |weights: &[f32]| weights.iter().map(|&weight| f64::from(weight)).collect();
    let count = seen.pooled.iter().filter(|&&pooled| pooled).count().max(1) as f64;
    let mean = seen.pooled.iter().map(|&pooled| f64::from(u8::from(pooled)) / count).collect();
    let mut lists: Vec<(String, Vec<f64>)> = vec![
        ("anchor-token-aware, log(1 + L A)".into(), doubles(&seen.anchors[0])),
        ("anchor-token-aware, column sum of A".into(), doubles(&seen.anchors[1])),
        ("mean".into(), mean),
    ];
    if let Some(weights) = &seen.explanation.token_weights
        && own != "mean"
    {
        lists.push((format!("the model's own head: {own}"), doubles(weights)));
    }
    let shown = seen.tokens.len().min(2 * TOKENS);
    let drawn: Vec<(String, Vec<f64>)> =
        lists.iter().map(|(name, list)| (name.clone(), list[..shown].to_vec())).collect();
    let data = json!({
        "text": text, "tokens": seen.tokens,
        "weights": lists.iter().map(|(name, list)| json!({ "name": name, "weights": list })).collect::<Vec<_>>(),
    });
    Ok(Picture {
        name: format!("anchors-{}", i + 1),
        title: "Weights of the tokens".into(),
        caption: format!(
            "“{text}” Percent of the vector that comes from each token, under several ways of \
             pooling; four times the mean is darkest."
        ),
        svg: token_weights(&seen.tokens[..shown], &drawn)?,
        data,
    })
}

pub(super) fn anchors(view: &dyn View, inputs: &Inputs) -> Result<Vec<Picture>> {
    if inputs.texts.is_empty() {
        return not_here("no texts");
    }
    let own = view.pooling().name();
    let picture = |(i, text): (usize, &String)| {
        weights_picture(i, text, &view.look(text, &inputs.prompt_text)?, own)
    };
    inputs.texts.iter().enumerate().map(picture).collect()
}

//! What attending heads look at: latents for texts of two groups (NV-Embed, figure 2), latents and
//! tokens, and the weight of each layer.

use std::collections::BTreeMap;

use anyhow::Result;
use kiln_embed::pooling::PoolingConfig;
use serde_json::json;

use super::{Inputs, Picture, TextView, View, not_here};
use crate::report::{HeatMap, HeatStyle, heat_maps};

/// Texts of each group (the paper's figure has 10).
const TEXTS: usize = 10;
/// Heads whose map is drawn.
const HEADS: usize = 8;
/// Heads beside each other.
const ACROSS: usize = 4;

/// The first texts of each of two labels.
fn groups(inputs: &Inputs) -> Result<[(String, Vec<String>); 2]> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    inputs.labelled.iter().for_each(|(_, label)| *counts.entry(label).or_default() += 1);
    let names = match &inputs.groups {
        Some(names) => names.clone(),
        None => {
            let mut sorted: Vec<(&str, usize)> = counts.into_iter().collect();
            sorted.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
            match sorted[..] {
                [(a, _), (b, _), ..] => [a.to_string(), b.to_string()],
                _ => return not_here("two labels are needed, the texts have fewer"),
            }
        }
    };
    let texts = |name: &String| -> Vec<String> {
        let of = inputs.labelled.iter().filter(|(_, label)| label == name);
        of.take(TEXTS).map(|(text, _)| text.clone()).collect()
    };
    let result = names.map(|name| (name.clone(), texts(&name)));
    match result.iter().find(|(_, texts)| texts.is_empty()) {
        Some((name, _)) => not_here(format!("no text has the label {name:?}")),
        None => Ok(result),
    }
}

/// Attention to the latents, the mean over pooled tokens: `[heads][latents]`.
fn mean_over_tokens(seen: &TextView) -> Vec<Vec<f64>> {
    let count = seen.pooled.iter().filter(|&&pooled| pooled).count().max(1) as f64;
    let of_head = |tokens: &Vec<Vec<f32>>| {
        let mut sums = vec![0.0; tokens.first().map_or(0, Vec::len)];
        for (token, _) in tokens.iter().zip(&seen.pooled).filter(|(_, pooled)| **pooled) {
            sums.iter_mut().zip(token).for_each(|(sum, &weight)| *sum += f64::from(weight) / count);
        }
        sums
    };
    seen.explanation.latents.iter().flatten().map(of_head).collect()
}

/// How far two samples' means are apart, in standard deviations.
fn separation(a: &[f64], b: &[f64]) -> f64 {
    let mean = |x: &[f64]| x.iter().sum::<f64>() / x.len() as f64;
    let variance = |x: &[f64]| {
        let mean = mean(x);
        x.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / x.len() as f64
    };
    let spread = ((variance(a) + variance(b)) / 2.0).sqrt();
    (mean(a) - mean(b)) / (spread + 1e-12)
}

pub(super) fn latents(view: &dyn View, inputs: &Inputs) -> Result<Vec<Picture>> {
    match view.pooling() {
        PoolingConfig::LatentAttention(_) => {
            let mut pictures = vec![two_groups(view, inputs)?];
            pictures.extend(over_tokens(view, inputs)?);
            Ok(pictures)
        }
        // Here each latent's attention over the tokens sums to 1, so there is no mean to compare.
        PoolingConfig::LastLayerTrainable(_) => over_tokens(view, inputs),
        other => not_here(format!("{} pooling has no latents that meet tokens", other.name())),
    }
}

fn two_groups(view: &dyn View, inputs: &Inputs) -> Result<Picture> {
    let groups = groups(inputs)?;
    let (mut rows, mut maps_of_text) = (Vec::new(), Vec::new());
    for (name, texts) in &groups {
        for (i, text) in texts.iter().enumerate() {
            rows.push(format!("{name} {}", i + 1));
            maps_of_text.push(mean_over_tokens(&view.look(text, &inputs.prompt_text)?));
        }
    }
    let first = groups[0].1.len();
    let heads = maps_of_text[0].len();
    let latents = maps_of_text[0].first().map_or(0, Vec::len);
    // The latent that tells the groups apart best, in all heads.
    let apart = |head: usize, latent: usize| {
        let all: Vec<f64> = maps_of_text.iter().map(|map| map[head][latent]).collect();
        separation(&all[..first], &all[first..])
    };
    let each = (0..heads).flat_map(|head| (0..latents).map(move |latent| (head, latent)));
    let best = each.max_by(|&a, &b| apart(a.0, a.1).abs().total_cmp(&apart(b.0, b.1).abs()));
    let Some((best_head, best_latent)) = best else {
        return not_here("the head has no latents");
    };
    let drawn: Vec<usize> = match heads <= HEADS {
        true => (0..heads).collect(),
        false => (0..HEADS - 1).filter(|&head| head != best_head).chain([best_head]).collect(),
    };
    let map = |&head: &usize| HeatMap {
        title: format!("head {}", head + 1),
        rows: rows.clone(),
        columns: (1..=latents).map(|latent| latent.to_string()).collect(),
        values: maps_of_text.iter().map(|map| map[head].clone()).collect(),
        marked: if head == best_head { vec![best_latent] } else { Vec::new() },
    };
    let maps: Vec<HeatMap> = drawn.iter().map(map).collect();
    let style = HeatStyle {
        across: ACROSS,
        unit: "attention, mean over the tokens".into(),
        range: None,
        numbers: false,
    };
    let gap = apart(best_head, best_latent);
    let more = if gap > 0.0 { &groups[0].0 } else { &groups[1].0 };
    Ok(Picture {
        name: "latents".into(),
        title: "Latents for two groups of texts".into(),
        caption: format!(
            "Attention over {latents} latents for texts labelled {} and {} (rows), head by head. \
             The marked latent {} of head {} tells them apart best: {:.1} standard deviations \
             more on {more}.",
            groups[0].0,
            groups[1].0,
            best_latent + 1,
            best_head + 1,
            gap.abs()
        ),
        svg: heat_maps(&maps, &style)?,
        data: json!({
            "groups": groups.iter().map(|(name, texts)| json!({ "label": name, "texts": texts })).collect::<Vec<_>>(),
            "rows": rows, "attention": maps_of_text,
            "best": { "head": best_head, "latent": best_latent, "standard_deviations": gap },
        }),
    })
}

/// Tokens by latents, the mean over heads, of each text.
fn over_tokens(view: &dyn View, inputs: &Inputs) -> Result<Vec<Picture>> {
    let picture = |(i, text): (usize, &String)| -> Result<Picture> {
        let seen = view.look(text, &inputs.prompt_text)?;
        let Some(heads) = &seen.explanation.latents else {
            return not_here("the head gives no map of its latents");
        };
        let latents = heads.first().and_then(|head| head.first()).map_or(0, Vec::len);
        let mean = |token: usize, latent: usize| {
            let sum: f32 = heads.iter().map(|head| head[token][latent]).sum();
            f64::from(sum) / heads.len() as f64
        };
        let values: Vec<Vec<f64>> = (0..seen.tokens.len())
            .map(|token| (0..latents).map(|latent| mean(token, latent)).collect())
            .collect();
        let map = HeatMap {
            rows: seen.tokens.clone(),
            columns: (1..=latents).map(|latent| latent.to_string()).collect(),
            values: values.clone(),
            ..HeatMap::default()
        };
        let style = HeatStyle {
            across: 1,
            unit: "attention, mean over the heads".into(),
            range: None,
            numbers: false,
        };
        Ok(Picture {
            name: format!("latent-tokens-{}", i + 1),
            title: "Latents and tokens".into(),
            caption: format!("“{text}” Tokens (rows) and the latents that they meet (columns)."),
            svg: heat_maps(&[map], &style)?,
            data: json!({ "text": text, "tokens": seen.tokens, "attention": values }),
        })
    };
    inputs.texts.iter().enumerate().map(picture).collect()
}

pub(super) fn layer_weights(view: &dyn View, inputs: &Inputs) -> Result<Vec<Picture>> {
    if !matches!(view.pooling(), PoolingConfig::MultiLayerTrainable(_)) {
        let name = view.pooling().name();
        return not_here(format!("{name} pooling reads one layer; multi_layer_trainable all"));
    }
    let texts: Vec<&String> =
        inputs.labelled.iter().take(2 * TEXTS).map(|(text, _)| text).collect();
    let mut weights = Vec::new();
    for text in &texts {
        let seen = view.look(text, &inputs.prompt_text)?;
        let layers = seen.explanation.layers.unwrap_or_default();
        weights.push(layers.into_iter().map(f64::from).collect::<Vec<f64>>());
    }
    let layers = weights.first().map_or(0, Vec::len);
    if layers == 0 {
        return not_here("no texts");
    }
    let mean: Vec<f64> = (0..layers)
        .map(|i| weights.iter().map(|text| text[i]).sum::<f64>() / weights.len() as f64)
        .collect();
    let shown = |text: &str| format!("“{text}”");
    let map = HeatMap {
        rows: ["mean".into()].into_iter().chain(texts.iter().map(|text| shown(text))).collect(),
        columns: (1..=layers).map(|layer| layer.to_string()).collect(),
        values: [mean.clone()].into_iter().chain(weights.clone()).collect(),
        ..HeatMap::default()
    };
    let style =
        HeatStyle { across: 1, unit: "weight of the layer".into(), range: None, numbers: true };
    let largest = (0..layers).max_by(|&a, &b| mean[a].total_cmp(&mean[b])).unwrap_or(0);
    Ok(vec![Picture {
        name: "layer-weights".into(),
        title: "Weights of the layers".into(),
        caption: format!(
            "Attention of the latents to the layers, mean over latents and heads, for {} texts. \
             Layer {} weighs most: {:.1} %.",
            texts.len(),
            largest + 1,
            100.0 * mean[largest]
        ),
        svg: heat_maps(&[map], &style)?,
        data: json!({ "texts": texts, "weights": weights, "mean": mean }),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separation_counts_standard_deviations() {
        assert!((separation(&[1.0, 3.0], &[-1.0, 1.0]) - 2.0).abs() < 1e-9);
        assert_eq!(separation(&[1.0, 1.0], &[1.0, 1.0]), 0.0);
    }
}

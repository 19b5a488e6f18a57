//! What the layers hold: how alike their states are, and what each scores (Pooling and Attention,
//! figures 1 and 2).

use anyhow::Result;
use kiln_embed::pooling::LayerState;
use kiln_metrics::spearman;
use rayon::prelude::*;
use serde_json::json;

use super::{Inputs, LayerStates, Picture, View, not_here};
use crate::data::corpus::RetrievalSet;
use crate::embedding::BLOCK;
use crate::eval::{
    Cache, Evaluation, PromptChoice, Task, TaskSource, TextEncoder, checked, dense_rankings,
    evaluate, key, ndcg,
};
use crate::interrupt;
use crate::report::{HeatMap, HeatStyle, Series, heat_maps, line_chart};
use crate::search::normalize;
use crate::terminal::{Terminal, counted};

/// Texts whose layers are compared.
const TEXTS: usize = 200;
/// Rank down to which the made-up questions count.
const DEPTH: usize = 10;

/// What each layer is scored on.
#[expect(clippy::large_enum_variant, reason = "there is one")]
pub enum LayerTask {
    /// A task with its data.
    Task(Task, TaskSource),
    /// The made-up questions and passages.
    MadeUp(RetrievalSet),
}

/// Spearman's correlation between layers' states, the mean over texts: `[layers + 1][layers + 1]`.
pub fn layer_correlations(states: &[LayerStates]) -> Vec<Vec<f64>> {
    let of_text = |layers: &LayerStates| -> Vec<Vec<f64>> {
        let layers: Vec<Vec<f64>> =
            layers.iter().map(|layer| layer.iter().map(|&x| f64::from(x)).collect()).collect();
        layers.iter().map(|a| layers.iter().map(|b| spearman(a, b)).collect()).collect()
    };
    let all: Vec<Vec<Vec<f64>>> = states.par_iter().map(of_text).collect();
    let layers = states.first().map_or(0, Vec::len);
    // A state of equal numbers (a dead layer) has no correlation; such texts are left out.
    let mean = |a: usize, b: usize| {
        let result = all.iter().map(|text| text[a][b]).filter(|value| !value.is_nan());
        let (sum, count) = result.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
        sum / count
    };
    (0..layers).map(|a| (0..layers).map(|b| mean(a, b)).collect()).collect()
}

fn names(layers: usize) -> Vec<String> {
    let name = |layer: usize| if layer == 0 { "emb".into() } else { layer.to_string() };
    (0..layers).map(name).collect()
}

fn state_name(state: LayerState) -> &'static str {
    match state {
        LayerState::LastToken => "state of the last token",
        LayerState::Mean => "mean of the tokens' states",
    }
}

pub(super) fn correlations(view: &dyn View, inputs: &Inputs) -> Result<Vec<Picture>> {
    let texts: Vec<String> =
        inputs.labelled.iter().take(TEXTS).map(|(text, _)| text.clone()).collect();
    if texts.is_empty() {
        return not_here("no texts");
    }
    let result =
        layer_correlations(&view.layer_states(&texts, &inputs.prompt_text, inputs.state)?);
    let names = names(result.len());
    let map = HeatMap {
        rows: names.clone(),
        columns: names.clone(),
        values: result.clone(),
        ..HeatMap::default()
    };
    let style =
        HeatStyle { across: 1, unit: "Spearman correlation".into(), range: None, numbers: true };
    let caption = format!(
        "Spearman's correlation between the states of two layers ({}), mean over {}. \
         Pale cells off the diagonal: those layers hold different things.",
        state_name(inputs.state),
        counted(texts.len(), "text", "texts")
    );
    Ok(vec![Picture {
        name: "layers".into(),
        title: "Correlation between layers".into(),
        caption,
        svg: heat_maps(&[map], &style)?,
        data: json!({ "layers": names, "spearman": result, "texts": texts.len() }),
    }])
}

/// A layer of a model as if it were the model's vector.
struct LayerEncoder<'a> {
    view: &'a dyn View,
    cache: &'a Cache,
    state: LayerState,
    layer: usize,
}

impl TextEncoder for LayerEncoder<'_> {
    fn encode(&self, texts: &[String], prompt_text: &str) -> Result<Vec<Vec<f32>>> {
        let key_of = |layer: usize, text: &str| {
            key(&format!("{prompt_text}\0layer {layer} {:?}", self.state), text)
        };
        let mut vectors = Vec::with_capacity(texts.len());
        for block in texts.chunks(BLOCK) {
            let keys: Vec<u128> = block.iter().map(|text| key_of(self.layer, text)).collect();
            let mut kept = self.cache.get(&keys)?;
            let missing: Vec<usize> = (0..block.len()).filter(|&row| kept[row].is_none()).collect();
            if !missing.is_empty() {
                // One pass gives all layers.
                let texts: Vec<String> = missing.iter().map(|&row| block[row].clone()).collect();
                let states = self.view.layer_states(&texts, prompt_text, self.state)?;
                self.cache.put(texts.iter().zip(&states).flat_map(|(text, layers)| {
                    let each = layers.iter().enumerate();
                    each.map(|(layer, state)| (key_of(layer, text), state))
                }))?;
                for (row, mut layers) in missing.into_iter().zip(states) {
                    kept[row] = Some(layers.swap_remove(self.layer));
                }
            }
            vectors.extend(kept.into_iter().flatten());
        }
        Ok(vectors)
    }

    fn own_prompt(&self, names: &[&str]) -> String {
        self.view.own_prompt(names)
    }
}

impl LayerTask {
    /// Name of what is scored, and of the score.
    fn names(&self) -> (String, String) {
        match self {
            Self::Task(task, _) => (task.name.clone(), task.main_score().into()),
            Self::MadeUp(_) => ("made-up questions".into(), format!("ndcg_at_{DEPTH}")),
        }
    }

    fn score(&self, encoder: &dyn TextEncoder, terminal: Terminal) -> Result<f64> {
        match self {
            Self::Task(task, source) => {
                let prompts = PromptChoice::Model.prompts(task, encoder)?;
                let evaluation = Evaluation {
                    encoder,
                    prompts,
                    reduce: &Ok,
                    run_files: None,
                    reranker: None,
                    terminal,
                };
                let outcome = evaluate(task, source, &evaluation)?;
                let score = outcome.scores.get(task.main_score()).copied().unwrap_or(f64::NAN);
                Ok(checked(&task.name, task.main_score(), score)?.unwrap_or(f64::NAN))
            }
            Self::MadeUp(set) => {
                let encode = |texts: &[String], name: &str| -> Result<Vec<Vec<f32>>> {
                    let mut vectors = encoder.encode(texts, &encoder.own_prompt(&[name]))?;
                    vectors.iter_mut().for_each(|vector| normalize(vector));
                    Ok(vectors)
                };
                let queries = encode(&set.queries, "query")?;
                let corpus = encode(&set.corpus, "document")?;
                let rankings = dense_rankings(&queries, &corpus, DEPTH)?;
                let of_query = |(ranking, &row): (&Vec<usize>, &usize)| {
                    ndcg(ranking, &[(row, 1.0)].into(), &[], DEPTH)
                };
                let scores = rankings.iter().zip(&set.relevant).map(of_query);
                Ok(scores.sum::<f64>() / set.queries.len().max(1) as f64)
            }
        }
    }
}

pub(super) fn scores(
    view: &dyn View,
    inputs: &Inputs,
    cache: &Cache,
    terminal: Terminal,
) -> Result<Vec<Picture>> {
    let (task, score) = inputs.task.names();
    let layers = view.states();
    let bar = terminal.progress(layers as u64 + 1, "layers");
    let mut result = Vec::with_capacity(layers);
    // The same data is read for every layer, and what is to be said of it once is enough.
    let quiet = Terminal { quiet: true, ..terminal };
    let each = |encoder: &dyn TextEncoder| -> Result<f64> {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        let score = inputs.task.score(encoder, quiet)?;
        bar.inc(1);
        Ok(score)
    };
    for layer in 0..layers {
        result.push(each(&LayerEncoder { view, cache, state: inputs.state, layer })?);
    }
    let whole = each(view)?;
    bar.finish_and_clear();
    let defined: Vec<usize> = (0..layers).filter(|&layer| result[layer].is_finite()).collect();
    let best = defined.iter().copied().max_by(|&a, &b| result[a].total_cmp(&result[b]));
    let Some(best) = best else {
        return not_here(format!("{score} of {task} is not defined for any layer"));
    };
    let layer_points = defined.iter().map(|&layer| (layer as f64, result[layer])).collect();
    let series = [
        Series { name: format!("layer ({})", state_name(inputs.state)), points: layer_points },
        Series {
            name: "the model's own vector".into(),
            points: vec![(0.0, whole), ((layers - 1) as f64, whole)],
        },
    ];
    let caption = format!(
        "{score} on {task} by each layer's state ({}), 0 being the embeddings. Best: layer {best} \
         with {:.4}; the model's own vector has {whole:.4}.",
        state_name(inputs.state),
        result[best]
    );
    Ok(vec![Picture {
        name: "layer-scores".into(),
        title: "Score of each layer".into(),
        caption,
        svg: line_chart("layer", &score, &series)?,
        data: json!({ "task": task, "score": score, "layers": result, "model": whole }),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_are_means_over_texts() {
        let text = |order: [f32; 3]| vec![vec![1.0, 2.0, 3.0], order.to_vec(), vec![5.0; 3]];
        let actual = layer_correlations(&[text([1.0, 2.0, 3.0]), text([3.0, 2.0, 1.0])]);
        for (actual, expected) in [(actual[0][0], 1.0), (actual[0][1], 0.0), (actual[1][1], 1.0)] {
            assert!((actual - expected).abs() < 1e-12);
        }
        assert!(actual[0][2].is_nan());
    }
}

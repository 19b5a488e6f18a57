//! What a model holds on the way to a vector: states of all layers, attention, explanations.

use burn::tensor::Tensor;
use kiln_embed::embedder::{EmbedOptions, Embedder, Progress, Prompt};
use kiln_embed::explanation::TextExplanation;
use kiln_embed::kernels::Kernels;
use kiln_embed::model::ModelInput;
use kiln_embed::pooling::{AnchorScore, LayerState, anchor_weights, layer_states as pooled_layers};
use kiln_embed::tokenizer::TokenBatch;

use super::OnProgress;
use crate::interrupt;

/// A state a layer, the embeddings first: `[layers + 1][hidden]`.
pub type LayerStates = Vec<Vec<f32>>;

/// One text, token by token.
#[derive(Debug, Clone, PartialEq)]
pub struct TextView {
    /// The tokens, as people read them.
    pub tokens: Vec<String>,
    /// True at tokens that pooling uses.
    pub pooled: Vec<bool>,
    /// Attention of the last layer: `[heads][query][key]`.
    pub attention: Vec<Vec<Vec<f32>>>,
    /// Anchor weights: eq. 3 with the logarithm, and the plain column sum.
    pub anchors: [Vec<f32>; 2],
    /// How the model's own head pooled.
    pub explanation: TextExplanation,
}

fn values<B: Kernels, const D: usize>(tensor: Tensor<B, D>) -> kiln_embed::Result<Vec<f32>> {
    let data = tensor.into_data().convert::<f32>().into_vec();
    data.map_err(|e| kiln_embed::Error::invalid(format!("values could not be read back: {e:?}")))
}

/// `values` in pieces of a length.
fn pieces(values: &[f32], length: usize) -> Vec<Vec<f32>> {
    values.chunks(length).map(<[f32]>::to_vec).collect()
}

/// A token without the signs by which tokenizers mark spaces.
fn readable(token: &str) -> String {
    match token.replace(['Ġ', '▁'], "").replace('Ċ', "⏎") {
        empty if empty.is_empty() => "␣".into(),
        token => token,
    }
}

/// What stands for each layer of each text.
pub(super) fn layer_states<B: Kernels>(
    embedder: &Embedder<B>,
    texts: &[String],
    prompt_text: &str,
    options: &EmbedOptions,
    state: LayerState,
    progress: OnProgress<'_>,
) -> kiln_embed::Result<Vec<LayerStates>> {
    let tokens = embedder.tokenizer().encode_all(prompt_text, texts)?;
    let of_batch = |batch: &TokenBatch, _: &[usize]| {
        let input = ModelInput::new(batch, embedder.device());
        let states = embedder.model().states(&input);
        let (states, _) = pooled_layers(&states.layers, &input, state);
        let [_, layers, hidden] = states.dims();
        let texts = pieces(&values(states)?, layers * hidden);
        Ok(texts.iter().map(|text| pieces(text, hidden)).collect())
    };
    let progress = |done: Progress| {
        progress(done);
        interrupt::flow()
    };
    embedder.each_batch(tokens, options, progress, of_batch)
}

/// One text, token by token.
pub(super) fn look<B: Kernels>(
    embedder: &Embedder<B>,
    text: &str,
    prompt_text: &str,
    options: &EmbedOptions,
) -> kiln_embed::Result<TextView> {
    let tokens = embedder.tokenizer().encode(prompt_text, text)?;
    let batch = embedder.tokenizer().pad(&[&tokens]);
    let input = ModelInput::new(&batch, embedder.device());
    let states = embedder.model().states(&input);
    let attention = states.attention.ok_or_else(|| {
        kiln_embed::Error::invalid("the model gave no attention weights; please report it")
    })?;
    let anchors = |score| values(anchor_weights(&attention, &input, score));
    let anchors = [anchors(AnchorScore::Log1p)?, anchors(AnchorScore::Linear)?];
    let [_, _, queries, keys] = attention.dims();
    let heads = pieces(&values(attention)?, queries * keys);
    let options = EmbedOptions { prompt: Prompt::Text(prompt_text.into()), ..options.clone() };
    let explanation = embedder.explain(text, &options)?;
    Ok(TextView {
        tokens: explanation.tokens.iter().map(|token| readable(token)).collect(),
        pooled: tokens.pooling,
        attention: heads.iter().map(|head| pieces(head, keys)).collect(),
        anchors,
        explanation,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_readable() {
        assert_eq!(["Ġsea", "▁", "##ing"].map(readable), ["sea", "␣", "##ing"]);
    }
}

//! The one decoder: RMS norms, rotary positions, grouped queries, gated feed-forward, and the
//! options that tell Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 3 and EmbeddingGemma 2 apart.

use burn::module::{Module, Param};
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::{Tensor, backend::Backend};

use super::attention::{Attention, AttentionOptions};
use super::block;
use super::embedding::Embedding;
use super::feed_forward::FeedForward;
use super::input::{BlockInputs, ModelInput};
use super::linear::Linear;
use super::per_layer::{PerLayerBranch, PerLayerInputs};
use super::views::LayerViews;
use crate::config::{AttentionMode, DecoderConfig, Gate, ModelConfig};
use crate::kernels::{BlockOf, Branch, Kernels, Seen};

/// Token embeddings, pre-norm blocks, final norm.
#[derive(Module, Debug)]
pub struct Decoder<B: Backend> {
    /// `[vocab, hidden]`.
    pub token_embedding: Embedding<B>,
    /// The N blocks.
    pub blocks: Vec<DecoderBlock<B>>,
    /// Norm of the last block's output.
    pub norm: RmsNorm<B>,
    /// What each block gets of the embeddings beside the states (EmbeddingGemma 2).
    pub per_layer_inputs: Option<PerLayerInputs<B>>,
    /// Projection of the normed states (EmbeddingGemma 2).
    pub output_projection: Option<Linear<B>>,
    views: LayerViews,
    /// What embeddings are multiplied with.
    #[module(skip)]
    embedding_scale: Option<f64>,
}

/// Norm, attention, residual; norm, feed-forward, residual; and in EmbeddingGemma 2 a third branch and a factor.
#[derive(Module, Debug)]
pub struct DecoderBlock<B: Backend> {
    /// Norm before the attention.
    pub attention_norm: RmsNorm<B>,
    /// Self-attention.
    pub attention: Attention<B>,
    /// Norm of the attention's output, before the residual sum (Gemma).
    pub attention_output_norm: Option<RmsNorm<B>>,
    /// Norm before the feed-forward block.
    pub feed_forward_norm: RmsNorm<B>,
    /// Gated feed-forward block.
    pub feed_forward: FeedForward<B>,
    /// Norm of its output, likewise.
    pub feed_forward_output_norm: Option<RmsNorm<B>>,
    /// What mixes in the block's own input of each token.
    pub per_layer: Option<PerLayerBranch<B>>,
    /// What the block's output is multiplied with `[1]`. It never trains, as it is no parameter in transformers.
    pub scale: Option<Param<Tensor<B, 1>>>,
}

impl<B: Kernels> Decoder<B> {
    pub(super) fn new(
        config: &ModelConfig,
        decoder: &DecoderConfig,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let hidden = config.hidden_size;
        let norm = || RmsNormConfig::new(hidden).with_epsilon(config.norm_eps).init(device);
        let block = |layer| DecoderBlock {
            attention_norm: norm(),
            attention: Attention::new(
                &AttentionOptions {
                    hidden,
                    heads: config.num_heads,
                    kv_heads: config.heads_of(layer).kv_heads,
                    head_dim: config.heads_of(layer).head_dim,
                    qkv_bias: decoder.qkv_bias,
                    output_bias: decoder.output_bias,
                    qk_norm: decoder.qk_norm.then_some(config.norm_eps),
                    value_norm: decoder.value_norm.then_some(config.norm_eps),
                    names: ["q_proj", "k_proj", "v_proj", "o_proj"],
                },
                init,
                device,
            ),
            attention_output_norm: decoder.sandwich_norms.then(norm),
            feed_forward_output_norm: decoder.sandwich_norms.then(norm),
            feed_forward_norm: norm(),
            feed_forward: FeedForward::new(
                [hidden, config.intermediate_size],
                Gate::Apart,
                ["gate_proj", "up_proj", "down_proj"],
                [decoder.mlp_bias; 2],
                config.activation,
                init,
                device,
            ),
            per_layer: decoder
                .per_layer_input
                .map(|width| PerLayerBranch::new(config, width, init, device)),
            scale: decoder.layer_scales.then(|| {
                let one: Param<Tensor<B, 1>> = Initializer::Ones.init([1], device);
                one.set_require_grad(false)
            }),
        };
        Self {
            token_embedding: Embedding::new([config.vocab_size, hidden], init, device),
            blocks: (0..config.num_layers).map(block).collect(),
            norm: norm(),
            per_layer_inputs: decoder
                .per_layer_input
                .map(|width| PerLayerInputs::new(config, width, init, device)),
            output_projection: decoder.output_size.map(|width| {
                Linear::new(hidden, &[("embedding_projection", width)], false, init, device)
            }),
            views: LayerViews::new(config),
            embedding_scale: decoder.embedding_scale,
        }
    }

    /// Input embeddings `[batch, seq, hidden]` of token ids.
    pub(super) fn embed_tokens(&self, input: &ModelInput<B>) -> Tensor<B, 3> {
        let x = self.token_embedding.forward(input.ids.clone());
        match self.embedding_scale {
            Some(scale) => x.mul_scalar(scale),
            None => x,
        }
    }

    /// Keeps only some blocks, in the order given.
    pub(super) fn keep_blocks(&mut self, keep: &[usize]) {
        self.blocks = keep.iter().map(|&block| self.blocks[block].clone()).collect();
        self.views.keep(keep);
        if let Some(inputs) = &mut self.per_layer_inputs {
            inputs.keep(keep);
        }
    }

    /// What the blocks share, the first of which gets `embeddings` `[batch, seq, hidden]`.
    pub(super) fn prepare(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        embeddings: &Tensor<B, 3>,
    ) -> BlockInputs<B> {
        let shared = self.views.prepare(input, mode, embeddings.dtype().into(), None);
        BlockInputs { per_layer: self.per_layer(embeddings), ..shared }
    }

    /// Each block's own input `[batch, seq, width]`, of embeddings `[batch, seq, hidden]`.
    pub(super) fn per_layer(&self, embeddings: &Tensor<B, 3>) -> Vec<Tensor<B, 3>> {
        let inputs = self.per_layer_inputs.as_ref();
        inputs.map(|inputs| inputs.forward(embeddings)).unwrap_or_default()
    }

    /// The final norm, and the projection where there is one.
    pub(super) fn finish(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = B::rms_norm(x, &self.norm);
        match &self.output_projection {
            Some(projection) => projection.forward(x),
            None => x,
        }
    }
}

impl<B: Kernels> DecoderBlock<B> {
    /// `own` is the block's own input `[batch, seq, width]`, where it has one.
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        seen: Seen<'_, B>,
        own: Option<&Tensor<B, 3>>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let (mut x, weights) = self.attend_and_feed(x, seen, want_weights);
        if let (Some(branch), Some(own)) = (&self.per_layer, own) {
            x = branch.forward(x, own.clone());
        }
        if let Some(scale) = &self.scale {
            x = scaled(x, scale.val());
        }
        (x, weights)
    }

    /// Attention and feed-forward.
    fn attend_and_feed(
        &self,
        x: Tensor<B, 3>,
        seen: Seen<'_, B>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let describe = |rows| self.described(seen, rows);
        if let Some(y) = block::at_once(&x, seen, want_weights, describe) {
            return (y, None);
        }
        let normed = B::rms_norm(x.clone(), &self.attention_norm);
        let (attended, weights) = self.attention.forward(normed, seen, want_weights);
        let x = x + normed_by(attended, self.attention_output_norm.as_ref());
        let normed = B::rms_norm(x.clone(), &self.feed_forward_norm);
        let fed = self.feed_forward.forward(normed);
        (x + normed_by(fed, self.feed_forward_output_norm.as_ref()), weights)
    }

    fn described(&self, seen: Seen<'_, B>, rows: usize) -> Option<BlockOf<B>> {
        let norms = [
            (&self.attention_norm, &self.attention_output_norm),
            (&self.feed_forward_norm, &self.feed_forward_output_norm),
        ];
        let norms = norms.map(|(before, inside)| Branch {
            before: Some(block::rms_norm(before)),
            inside: inside.as_ref().map(block::rms_norm),
            after: None,
        });
        block::described(&self.attention, &self.feed_forward, norms, seen, rows)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        let mut all = self.attention.projections_mut();
        all.extend(self.feed_forward.projections_mut("feed_forward"));
        if let Some(branch) = &mut self.per_layer {
            let own = branch.projections_mut();
            all.extend(own.map(|(name, linear)| (name.to_string(), linear)));
        }
        all
    }
}

/// States times a number `[1]`, which gets no gradient.
fn scaled<B: Kernels>(x: Tensor<B, 3>, scale: Tensor<B, 1>) -> Tensor<B, 3> {
    let scale = scale.detach();
    match B::HOST {
        // Burn's CPU backend broadcasts over inner dimensions one value at a time.
        true => x.mul_scalar(scale.into_scalar()),
        false => x * scale.reshape([1, 1, 1]),
    }
}

fn normed_by<B: Kernels>(x: Tensor<B, 3>, norm: Option<&RmsNorm<B>>) -> Tensor<B, 3> {
    match norm {
        Some(norm) => B::rms_norm(x, norm),
        None => x,
    }
}

//! The one decoder: RMS norms, rotary positions, grouped queries, gated feed-forward, and the
//! options that tell Llama, Mistral, Qwen2, Qwen3 and Gemma 3 apart.

use burn::module::Module;
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::{FloatDType, Tensor, backend::Backend};

use super::attention::{Attention, AttentionOptions};
use super::block;
use super::embedding::Embedding;
use super::feed_forward::FeedForward;
use super::input::{BlockInputs, ModelInput};
use super::linear::Linear;
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
    views: LayerViews,
    /// What embeddings are multiplied with.
    #[module(skip)]
    embedding_scale: Option<f64>,
}

/// Norm, attention, residual; norm, feed-forward, residual.
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
        let block = |_| DecoderBlock {
            attention_norm: norm(),
            attention: Attention::new(
                &AttentionOptions {
                    hidden,
                    heads: config.num_heads,
                    kv_heads: config.num_kv_heads,
                    head_dim: config.head_dim,
                    qkv_bias: decoder.qkv_bias,
                    output_bias: decoder.output_bias,
                    qk_norm: decoder.qk_norm.then_some(config.norm_eps),
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
        };
        Self {
            token_embedding: Embedding::new([config.vocab_size, hidden], init, device),
            blocks: (0..config.num_layers).map(block).collect(),
            norm: norm(),
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
    }

    /// What the blocks share.
    pub(super) fn prepare(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        dtype: FloatDType,
    ) -> BlockInputs<B> {
        self.views.prepare(input, mode, dtype, None)
    }
}

impl<B: Kernels> DecoderBlock<B> {
    pub(super) fn forward(
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
    pub(super) fn projections_mut(&mut self) -> Vec<(&'static str, &mut Linear<B>)> {
        let mut all: Vec<_> = self.attention.projections_mut().into();
        all.extend(self.feed_forward.projections_mut());
        all
    }
}

fn normed_by<B: Kernels>(x: Tensor<B, 3>, norm: Option<&RmsNorm<B>>) -> Tensor<B, 3> {
    match norm {
        Some(norm) => B::rms_norm(x, norm),
        None => x,
    }
}

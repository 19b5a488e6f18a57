//! The one decoder: RMS norms, rotary positions, grouped queries, gated feed-forward, and the
//! options that tell Llama, Mistral, Qwen2 and Qwen3 apart.

use burn::module::Module;
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::{FloatDType, Tensor, backend::Backend};

use super::attention::{Attention, AttentionOptions};
use super::block;
use super::embedding::Embedding;
use super::feed_forward::FeedForward;
use super::input::{BlockInputs, ModelInput};
use super::linear::Linear;
use super::mask::attention_mask;
use super::rotary::Rotary;
use crate::config::{AttentionMode, DecoderConfig, ModelConfig};
use crate::kernels::{BlockOf, Kernels, Seen};

/// Token embeddings, pre-norm blocks, final norm.
#[derive(Module, Debug)]
pub struct Decoder<B: Backend> {
    /// `[vocab, hidden]`.
    pub token_embedding: Embedding<B>,
    /// The N blocks.
    pub blocks: Vec<DecoderBlock<B>>,
    /// Norm of the last block's output.
    pub norm: RmsNorm<B>,
    #[module(skip)]
    rotary: Rotary,
    /// Sliding window of each layer in tokens.
    #[module(skip)]
    windows: Vec<Option<usize>>,
}

/// Norm, attention, residual; norm, feed-forward, residual.
#[derive(Module, Debug)]
pub struct DecoderBlock<B: Backend> {
    /// Norm before the attention.
    pub attention_norm: RmsNorm<B>,
    /// Self-attention.
    pub attention: Attention<B>,
    /// Norm before the feed-forward block.
    pub feed_forward_norm: RmsNorm<B>,
    /// Gated feed-forward block.
    pub feed_forward: FeedForward<B>,
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
            feed_forward_norm: norm(),
            feed_forward: FeedForward::new(
                [hidden, config.intermediate_size],
                (Some("gate_proj"), "up_proj", "down_proj"),
                decoder.mlp_bias,
                config.activation,
                init,
                device,
            ),
        };
        Self {
            token_embedding: Embedding::new([config.vocab_size, hidden], init, device),
            blocks: (0..config.num_layers).map(block).collect(),
            norm: norm(),
            rotary: Rotary::new(&decoder.rope, config.head_dim),
            windows: decoder.windows.clone(),
        }
    }

    /// Input embeddings `[batch, seq, hidden]` of token ids.
    pub(super) fn embed_tokens(&self, input: &ModelInput<B>) -> Tensor<B, 3> {
        self.token_embedding.forward(input.ids.clone())
    }

    /// Keeps only some blocks, in the order given.
    pub(super) fn keep_blocks(&mut self, keep: &[usize]) {
        self.blocks = keep.iter().map(|&block| self.blocks[block].clone()).collect();
        self.windows = keep.iter().map(|&block| self.windows[block]).collect();
    }

    /// Rotary tables, and one mask for each distinct window rather than for each layer.
    pub(super) fn prepare(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        dtype: FloatDType,
    ) -> BlockInputs<B> {
        let [_, seq] = input.attention_mask.dims();
        let (cos, sin) = self.rotary.angles(seq, &input.attention_mask.device());
        let mut shared = BlockInputs {
            rows: input.rows.clone(),
            angles: Some((cos.cast(dtype), sin.cast(dtype))),
            masks: Vec::new(),
            mask_of_layer: Vec::new(),
        };
        let mut windows: Vec<Option<usize>> = Vec::new();
        for window in &self.windows {
            let i = windows.iter().position(|known| known == window).unwrap_or_else(|| {
                windows.push(*window);
                shared.masks.push(attention_mask(input, mode, *window));
                windows.len() - 1
            });
            shared.mask_of_layer.push(i);
        }
        shared
    }
}

impl<B: Kernels> DecoderBlock<B> {
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        seen: Seen<'_, B>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let describe = |rows| self.described(rows);
        if let Some(y) = block::at_once(&x, seen, want_weights, describe) {
            return (y, None);
        }
        let normed = B::rms_norm(x.clone(), &self.attention_norm);
        let (attended, weights) = self.attention.forward(normed, seen, want_weights);
        let x = x + attended;
        let normed = B::rms_norm(x.clone(), &self.feed_forward_norm);
        let x = x + self.feed_forward.forward(normed);
        (x, weights)
    }

    fn described(&self, rows: usize) -> Option<BlockOf<B>> {
        let norms = [&self.attention_norm, &self.feed_forward_norm];
        let norms = norms.map(|norm| block::before(block::rms_norm(norm)));
        block::described(&self.attention, &self.feed_forward, norms, rows)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(&'static str, &mut Linear<B>)> {
        let mut all: Vec<_> = self.attention.projections_mut().into();
        all.extend(self.feed_forward.projections_mut());
        all
    }
}

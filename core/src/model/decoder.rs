//! The one decoder: RMS norms, rotary positions, grouped queries, gated feed-forward, and the
//! options that tell Llama, Mistral, Qwen2 and Qwen3 apart.

use burn::module::{Module, Param};
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::{Bool, Tensor, backend::Backend, module};

use super::attention::{Attention, AttentionOptions};
use super::feed_forward::FeedForward;
use super::linear::Linear;
use super::mask::attention_mask;
use super::rotary::{Angles, Rotary};
use super::{ModelInput, States, Want};
use crate::config::{AttentionMode, DecoderConfig, ModelConfig};

/// `[batch, 1, query, key]`, true where a query must not look.
type Mask<B> = Tensor<B, 4, Bool>;

/// Token embeddings, pre-norm blocks, final norm.
#[derive(Module, Debug)]
pub struct Decoder<B: Backend> {
    /// `[vocab, hidden]`.
    pub token_embedding: Param<Tensor<B, 2>>,
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

impl<B: Backend> Decoder<B> {
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
            token_embedding: init.init([config.vocab_size, hidden], device),
            blocks: (0..config.num_layers).map(block).collect(),
            norm: norm(),
            rotary: Rotary::new(&decoder.rope, config.head_dim),
            windows: decoder.windows.clone(),
        }
    }

    /// One forward pass from token ids.
    pub fn forward(&self, input: &ModelInput<B>, mode: AttentionMode, want: Want) -> States<B> {
        let x = module::embedding(self.token_embedding.val(), input.ids.clone());
        self.forward_embeddings(x, input, mode, want)
    }

    /// One forward pass from input embeddings `[batch, seq, hidden]`; of `input` only the
    /// attention mask is used.
    pub fn forward_embeddings(
        &self,
        x: Tensor<B, 3>,
        input: &ModelInput<B>,
        mode: AttentionMode,
        want: Want,
    ) -> States<B> {
        let [_, seq, _] = x.dims();
        let angles = self.rotary.angles(seq, &x.device());
        // One mask a distinct window, not one a layer.
        let mut masks: Vec<(Option<usize>, Option<Mask<B>>)> = Vec::new();
        let mut states = States { last: x.clone(), layers: Vec::new(), attention: None };
        let mut x = x;
        for (index, (block, window)) in self.blocks.iter().zip(&self.windows).enumerate() {
            if want.layers {
                states.layers.push(x.clone());
            }
            let at = masks.iter().position(|(known, _)| known == window).unwrap_or_else(|| {
                masks.push((*window, attention_mask(input, mode, *window)));
                masks.len() - 1
            });
            let last = index + 1 == self.blocks.len();
            (x, states.attention) =
                block.forward(x, masks[at].1.as_ref(), &angles, want.attention && last);
        }
        states.last = self.norm.forward(x);
        if want.layers {
            states.layers.push(states.last.clone());
        }
        states
    }
}

impl<B: Backend> DecoderBlock<B> {
    fn forward(
        &self,
        x: Tensor<B, 3>,
        mask: Option<&Tensor<B, 4, Bool>>,
        angles: &Angles<B>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let normed = self.attention_norm.forward(x.clone());
        let (attended, weights) = self.attention.forward(normed, mask, Some(angles), want_weights);
        let x = x + attended;
        let x = x.clone() + self.feed_forward.forward(self.feed_forward_norm.forward(x));
        (x, weights)
    }

    pub(super) fn projections_mut(&mut self) -> Vec<&mut Linear<B>> {
        let mut all: Vec<_> = self.attention.projections_mut().into_iter().collect();
        all.extend(self.feed_forward.projections_mut());
        all
    }
}

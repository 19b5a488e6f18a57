//! The post-norm encoder of BERT (arXiv:1810.04805) and its relatives.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig};
use burn::tensor::{Tensor, backend::Backend};

use super::attention::{Attention, AttentionOptions};
use super::block;
use super::embedding::Embedding;
use super::feed_forward::FeedForward;
use super::input::ModelInput;
use super::linear::Linear;
use crate::config::{EncoderConfig, ModelConfig};
use crate::kernels::{BlockOf, Kernels, Seen};

/// Token, position and type embeddings, then post-norm blocks.
#[derive(Module, Debug)]
pub struct Encoder<B: Backend> {
    /// `[vocab, hidden]`.
    pub token_embedding: Embedding<B>,
    /// `[position_rows, hidden]`.
    pub position_embedding: Embedding<B>,
    /// `[types, hidden]`; every token is of type 0.
    pub type_embedding: Option<Param<Tensor<B, 2>>>,
    /// Norm of the embedding sum.
    pub norm: LayerNorm<B>,
    /// The N blocks.
    pub blocks: Vec<EncoderBlock<B>>,
    position_offset: usize,
}

/// Attention and feed-forward, each followed by a residual sum and a norm.
#[derive(Module, Debug)]
pub struct EncoderBlock<B: Backend> {
    /// Self-attention.
    pub attention: Attention<B>,
    /// Norm after the attention's residual sum.
    pub attention_norm: LayerNorm<B>,
    /// Feed-forward block.
    pub feed_forward: FeedForward<B>,
    /// Norm after the feed-forward's residual sum.
    pub feed_forward_norm: LayerNorm<B>,
    /// Epsilon of both norms.
    epsilon: f64,
}

impl<B: Kernels> Encoder<B> {
    pub(super) fn new(
        config: &ModelConfig,
        encoder: &EncoderConfig,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let hidden = config.hidden_size;
        let norm = || LayerNormConfig::new(hidden).with_epsilon(config.norm_eps).init(device);
        let block = |_| EncoderBlock {
            attention: Attention::new(
                &AttentionOptions {
                    hidden,
                    heads: config.num_heads,
                    kv_heads: config.num_kv_heads,
                    head_dim: config.head_dim,
                    qkv_bias: true,
                    output_bias: true,
                    qk_norm: None,
                    names: ["query", "key", "value", "attention.output.dense"],
                },
                init,
                device,
            ),
            attention_norm: norm(),
            feed_forward: FeedForward::new(
                [hidden, config.intermediate_size],
                (None, "intermediate.dense", "output.dense"),
                true,
                config.activation,
                init,
                device,
            ),
            feed_forward_norm: norm(),
            epsilon: config.norm_eps,
        };
        Self {
            token_embedding: Embedding::new([config.vocab_size, hidden], init, device),
            position_embedding: Embedding::new([encoder.position_rows, hidden], init, device),
            type_embedding: (encoder.type_vocab_size > 0)
                .then(|| init.init([encoder.type_vocab_size, hidden], device)),
            norm: norm(),
            blocks: (0..config.num_layers).map(block).collect(),
            position_offset: encoder.position_offset,
        }
    }

    /// Sum of the token, position and type embeddings, normed: `[batch, seq, hidden]`. A token's
    /// position counts the tokens before it, so padding on either side changes nothing.
    pub(super) fn embed_tokens(&self, input: &ModelInput<B>) -> Tensor<B, 3> {
        let positions = input.positions.clone().add_scalar(self.position_offset as i64);
        let mut x = self.token_embedding.forward(input.ids.clone())
            + self.position_embedding.forward(positions);
        if let Some(types) = &self.type_embedding {
            x = x + types.val().narrow(0, 0, 1).unsqueeze::<3>();
        }
        self.norm.forward(x)
    }
}

impl<B: Kernels> EncoderBlock<B> {
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
        let (attended, weights) = self.attention.forward(x.clone(), seen, want_weights);
        let x = B::add_and_norm(x, attended, &self.attention_norm, self.epsilon);
        let x = B::add_and_norm(
            x.clone(),
            self.feed_forward.forward(x),
            &self.feed_forward_norm,
            self.epsilon,
        );
        (x, weights)
    }

    fn described(&self, rows: usize) -> Option<BlockOf<B>> {
        let norms = [&self.attention_norm, &self.feed_forward_norm];
        let norms = norms.map(|norm| block::after(block::layer_norm(norm, self.epsilon)));
        block::described(&self.attention, &self.feed_forward, norms, rows)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(&'static str, &mut Linear<B>)> {
        let mut all: Vec<_> = self.attention.projections_mut().into();
        all.extend(self.feed_forward.projections_mut());
        all
    }
}

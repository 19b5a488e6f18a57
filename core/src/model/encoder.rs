//! The one encoder: layer norms, and the options that tell BERT (arXiv:1810.04805), RoBERTa, MPNet, ModernBERT
//! and the others apart: where positions come from, where the norms are, whether the feed-forward has a gate or experts.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig};
use burn::tensor::{Tensor, backend::Backend, module};

use super::attention::{Attention, AttentionOptions};
use super::block;
use super::embedding::Embedding;
use super::experts::{BlockFeedForward, Experts};
use super::families::encoder_modules;
use super::feed_forward::FeedForward;
use super::input::{BlockInputs, ModelInput};
use super::linear::Linear;
use super::score_bias;
use super::views::LayerViews;
use crate::config::{AttentionMode, EncoderConfig, ModelConfig, ScoreBias};
use crate::kernels::{BlockOf, Kernels, Seen};

/// Token, position and type embeddings, then blocks.
#[derive(Module, Debug)]
pub struct Encoder<B: Backend> {
    /// `[vocab, hidden]`.
    pub token_embedding: Embedding<B>,
    /// `[positions, hidden]`, where positions are learned.
    pub position_embedding: Option<Embedding<B>>,
    /// `[types, hidden]`; every token of a single text is of type 0.
    pub type_embedding: Option<Param<Tensor<B, 2>>>,
    /// `[buckets, heads]`: what all blocks add to scores for each bucket of distances (MPNet).
    pub relative_bias: Option<Param<Tensor<B, 2>>>,
    /// Norm of the embedding sum; static embeddings and XLM-RoBERTa-XL have none.
    pub norm: Option<LayerNorm<B>>,
    /// The N blocks.
    pub blocks: Vec<EncoderBlock<B>>,
    /// Norm of the last block's output, where the blocks norm their inputs.
    pub final_norm: Option<LayerNorm<B>>,
    position_offset: usize,
    views: LayerViews,
    #[module(skip)]
    score_bias: Option<ScoreBias>,
    heads: usize,
}

/// Attention and feed-forward, each with a norm before it or after its residual sum.
#[derive(Module, Debug)]
pub struct EncoderBlock<B: Backend> {
    /// Self-attention.
    pub attention: Attention<B>,
    /// Norm of the attention; where norms come before, the first block's is that of the embeddings, if they have one.
    pub attention_norm: Option<LayerNorm<B>>,
    /// Feed-forward block.
    pub feed_forward: BlockFeedForward<B>,
    /// Norm of the feed-forward block.
    pub feed_forward_norm: LayerNorm<B>,
    /// Whether the norms come before rather than after the residual sums.
    pre_norm: bool,
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
        let norm = || {
            let norm = LayerNormConfig::new(hidden).with_epsilon(config.norm_eps);
            norm.with_bias(encoder.norm_bias).init(device)
        };
        let modules = encoder_modules(config);
        let shape = [hidden, config.intermediate_size];
        let feed_forward = |layer| match encoder.experts.filter(|experts| experts.are_in(layer)) {
            Some(experts) => {
                let (router, activation) = (modules.router, config.activation);
                BlockFeedForward::Experts(Experts::new(
                    shape, experts, router, activation, init, device,
                ))
            }
            None => BlockFeedForward::One(FeedForward::new(
                shape,
                encoder.gate,
                [modules.gate, modules.up, modules.down],
                [encoder.up_bias, encoder.down_bias],
                config.activation,
                init,
                device,
            )),
        };
        let normed_already =
            |layer: usize| encoder.pre_norm && encoder.embedding_norm && layer == 0;
        let block = |layer| EncoderBlock {
            attention: Attention::new(
                &AttentionOptions {
                    hidden,
                    heads: config.num_heads,
                    kv_heads: config.num_kv_heads,
                    head_dim: config.head_dim,
                    qkv_bias: encoder.qkv_bias,
                    output_bias: encoder.output_bias,
                    qk_norm: None,
                    value_norm: None,
                    names: modules.attention,
                },
                init,
                device,
            ),
            attention_norm: (!normed_already(layer)).then(norm),
            feed_forward: feed_forward(layer),
            feed_forward_norm: norm(),
            pre_norm: encoder.pre_norm,
            epsilon: config.norm_eps,
        };
        let table = |rows: usize| Embedding::new([rows, hidden], init, device);
        let buckets = match encoder.score_bias {
            Some(ScoreBias::Buckets { buckets, .. }) => Some(buckets),
            Some(ScoreBias::Alibi) | None => None,
        };
        Self {
            token_embedding: table(config.vocab_size),
            position_embedding: encoder.positions.map(|positions| table(positions.rows)),
            type_embedding: (encoder.type_vocab_size > 0)
                .then(|| init.init([encoder.type_vocab_size, hidden], device)),
            relative_bias: buckets.map(|buckets| init.init([buckets, config.num_heads], device)),
            norm: encoder.embedding_norm.then(norm),
            blocks: (0..config.num_layers).map(block).collect(),
            final_norm: encoder.pre_norm.then(norm),
            position_offset: encoder.positions.map_or(0, |positions| positions.offset),
            views: LayerViews::new(config),
            score_bias: encoder.score_bias,
            heads: config.num_heads,
        }
    }

    /// Sum of the token, position and type embeddings, normed: `[batch, seq, hidden]`. A token's
    /// position counts the tokens before it, so padding on either side changes nothing.
    pub(super) fn embed_tokens(&self, input: &ModelInput<B>) -> Tensor<B, 3> {
        let mut x = self.token_embedding.forward(input.ids.clone());
        if let Some(table) = &self.position_embedding {
            let positions = input.positions.clone().add_scalar(self.position_offset as i64);
            x = x + table.forward(positions);
        }
        if let Some(table) = &self.type_embedding {
            x = x + match &input.types {
                Some(types) => module::embedding(table.val(), types.clone()),
                None => table.val().narrow(0, 0, 1).unsqueeze::<3>(),
            };
        }
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }

    /// Keeps only some blocks, in the order given.
    pub(super) fn keep_blocks(&mut self, keep: &[usize]) {
        self.blocks = keep.iter().map(|&block| self.blocks[block].clone()).collect();
        self.views.keep(keep);
    }

    /// What the blocks share; the states are in the numbers of `embeddings`.
    pub(super) fn prepare(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        embeddings: &Tensor<B, 3>,
    ) -> BlockInputs<B> {
        let [_, seq] = input.attention_mask.dims();
        let bias = match (self.score_bias, &self.relative_bias) {
            (Some(ScoreBias::Buckets { max_distance, .. }), Some(table)) => {
                Some(score_bias::bucketed(table.val(), seq, max_distance))
            }
            (Some(ScoreBias::Alibi), _) => {
                Some(score_bias::alibi(self.heads, seq, &input.attention_mask.device()))
            }
            _ => None,
        };
        self.views.prepare(input, mode, embeddings.dtype().into(), bias)
    }

    /// The final norm, where there is one.
    pub(super) fn finish(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match &self.final_norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

impl<B: Kernels> EncoderBlock<B> {
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
        if self.pre_norm {
            let normed = match &self.attention_norm {
                Some(norm) => norm.forward(x.clone()),
                None => x.clone(),
            };
            let (attended, weights) = self.attention.forward(normed, seen, want_weights);
            let x = x + attended;
            let normed = self.feed_forward_norm.forward(x.clone());
            return (x + self.feed_forward.forward(normed, seen.rows), weights);
        }
        let (attended, weights) = self.attention.forward(x.clone(), seen, want_weights);
        let x = match &self.attention_norm {
            Some(norm) => B::add_and_norm(x, attended, norm, self.epsilon),
            None => x + attended,
        };
        let x = B::add_and_norm(
            x.clone(),
            self.feed_forward.forward(x, seen.rows),
            &self.feed_forward_norm,
            self.epsilon,
        );
        (x, weights)
    }

    /// `None` where it has experts.
    fn described(&self, seen: Seen<'_, B>, rows: usize) -> Option<BlockOf<B>> {
        let BlockFeedForward::One(feed_forward) = &self.feed_forward else {
            return None;
        };
        let place = if self.pre_norm { block::before } else { block::after };
        let branch = |norm| place(block::layer_norm(norm, self.epsilon));
        let norms = [
            self.attention_norm.as_ref().map_or_else(block::bare, branch),
            branch(&self.feed_forward_norm),
        ];
        block::described(&self.attention, feed_forward, norms, seen, rows)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        let mut all = self.attention.projections_mut();
        all.extend(self.feed_forward.projections_mut());
        all
    }
}

//! Trainable pooling (Pooling and Attention, arXiv:2409.02727): trainable latents are the queries of
//! the block, and the vector is the mean over latents.
//!
//! * last-layer (section 4.1, models 2 and 4): keys and values are the last layer's token states
//!   `[batch, seq, hidden]`, padding and instruction masked;
//! * multi-layer (section 3.2): one state a layer, the EOS state of a causal model or the mean of a
//!   bidirectional one, `M` `[batch, layers, hidden]`; keys and values are `M + W_layer` with
//!   trainable `W_layer` `[layers, hidden]`.
//!
//! Latents `[r, latent width]`, vector `[batch, latent width]`. The embedding output is not a layer.

use burn::nn::Initializer;
use burn::tensor::{Bool, Tensor};

use super::block::{
    BlockConfig, CrossAttention, LatentFeedForward, PoolingBlock, few_at_a_time, latents, part,
    texts_at_once,
};
use super::explanation::Explanation;
use super::token;
use crate::Result;
use crate::config::AttentionMode;
use crate::kernels::Kernels;
use crate::model::ModelInput;

/// Which state stands for a layer in multi-layer pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerState {
    /// The last pooled token's (causal models).
    LastToken,
    /// The mean over pooled tokens (bidirectional models).
    Mean,
}

impl LayerState {
    /// The paper's choice for an attention mode.
    pub fn of(mode: AttentionMode) -> Self {
        match mode {
            AttentionMode::Causal => LayerState::LastToken,
            AttentionMode::Bidirectional => LayerState::Mean,
        }
    }
}

impl<B: Kernels> PoolingBlock<B> {
    /// A fresh block; `layers` is their number in multi-layer pooling.
    pub(super) fn trainable(
        config: &BlockConfig,
        hidden: usize,
        layers: Option<usize>,
        device: &B::Device,
    ) -> Self {
        let width = config.latent_size.unwrap_or(hidden);
        let of_layers = match config.layer_std {
            0.0 => Initializer::Zeros,
            std => Initializer::Normal { mean: 0.0, std },
        };
        Self {
            latents: Some(latents(config.latents, width, device)),
            layer_embedding: layers.map(|layers| of_layers.init([layers, hidden], device)),
            attention: CrossAttention::new(config, width, hidden, hidden, device),
            feed_forward: LatentFeedForward::new(config.feed_forward, width, device),
        }
    }

    /// Last-layer trainable pooling: states `[batch, seq, hidden]` to `[batch, latent width]`.
    ///
    /// # Errors
    /// A block without latents.
    pub(super) fn latents_over_tokens(
        &self,
        x: &Tensor<B, 3>,
        input: &ModelInput<B>,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let hidden = input.pooling_mask.clone().bool_not();
        let (pooled, attention) = self.pool_latents(x.clone(), Some(hidden), false)?;
        // [batch, heads, latents, tokens] -> [batch, tokens]
        let tokens = attention.clone().mean_dim(1).squeeze_dim::<3>(1).mean_dim(1).squeeze_dim(1);
        let latents = Some(attention.swap_dims(2, 3));
        Ok((pooled, Explanation { tokens: Some(tokens), latents, layers: None }))
    }

    /// Multi-layer trainable pooling over the states `[batch, seq, hidden]` of layers 1 to N.
    ///
    /// # Errors
    /// A block without latents.
    pub(super) fn latents_over_layers(
        &self,
        layers: &[Tensor<B, 3>],
        input: &ModelInput<B>,
        state: LayerState,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let (states, weights) = layer_states(layers, input, state);
        let mut states = states.cast(layers[0].dtype());
        if let Some(embedding) = &self.layer_embedding {
            states = states + embedding.val().unsqueeze::<3>();
        }
        let (pooled, attention) = self.pool_latents(states, None, true)?;
        // [batch, heads, latents, layers] -> [batch, layers]
        let by_layer = attention.mean_dim(1).squeeze_dim::<3>(1).mean_dim(1).squeeze_dim(1);
        Ok((pooled, Explanation { tokens: Some(weights), latents: None, layers: Some(by_layer) }))
    }

    /// Latents attend over a context; the mean over latents `[batch, width]` and the weights.
    fn pool_latents(
        &self,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
        fixed: bool,
    ) -> Result<(Tensor<B, 2>, Tensor<B, 4>)> {
        let latents = self.latent_batch()?;
        let ([batch, keys, _], [_, count, width]) = (context.dims(), latents.dims());
        let CrossAttention { heads, head_dim, .. } = self.attention;
        // Of a latent its context or, where that is folded away, its weights; or what is between the projections of the
        // feed-forward part.
        let folded = fixed && self.attention.folds(count, keys, width);
        let of_latent = (heads * if folded { keys } else { head_dim }).max(8 * width);
        let at_once = texts_at_once::<B>(batch, [count, of_latent], &context.device());
        Ok(self.pool_latents_by(at_once, latents, context, hidden, fixed))
    }

    /// The same, of `at_once` texts after the others.
    pub(super) fn pool_latents_by(
        &self,
        at_once: usize,
        latents: Tensor<B, 3>,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
        fixed: bool,
    ) -> (Tensor<B, 2>, Tensor<B, 4>) {
        let queries = self.attention.queries(latents.clone());
        few_at_a_time(context.dims()[0], at_once, |first, texts| {
            let (latents, queries) = (latents.clone(), queries.clone());
            let context = part(context.clone(), first, texts);
            let hidden = hidden.clone().map(|hidden| part(hidden, first, texts));
            let (x, weights) = self.attention.of_latents(latents, queries, context, hidden, fixed);
            (self.feed_forward.forward(x).mean_dim(1).squeeze_dim(1), weights)
        })
    }
}

/// One state a layer, `[batch, layers, hidden]` from tensors `[batch, seq, hidden]`, and the
/// weights of the tokens in it, `[batch, seq]`.
pub fn layer_states<B: Kernels>(
    layers: &[Tensor<B, 3>],
    input: &ModelInput<B>,
    state: LayerState,
) -> (Tensor<B, 3>, Tensor<B, 2>) {
    let weights = match state {
        LayerState::LastToken => token::last(input),
        LayerState::Mean => token::mean(input),
    };
    let states = layers.iter().map(|layer| token::pool(layer, weights.clone()).0).collect();
    (Tensor::stack::<3>(states, 1), weights)
}

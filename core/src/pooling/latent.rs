//! Heads that attend: one cross-attention block and one feed-forward block, used four ways.
//!
//! | head | queries | keys and values | pooled |
//! |---|---|---|---|
//! | self-attention | tokens | tokens | mean over tokens |
//! | latent attention | tokens | latents | mean over tokens |
//! | last-layer trainable | latents | tokens | mean over latents |
//! | multi-layer trainable | latents | one state a layer | mean over latents |

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig};
use burn::tensor::{Bool, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use super::{Explanation, token};
use crate::config::AttentionMode;
use crate::kernels::{Kernels, weighted_scaled_dot_product};
use crate::model::{Linear, ModelInput};
use crate::{Error, Result};

/// Sizes of an attending head. The defaults are small; the papers' are in the recipes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockConfig {
    /// Number of latents r (NV-Embed: 512).
    #[serde(default = "default_latents")]
    pub latents: usize,
    /// Width of a latent where the latents are the queries; `None`: the hidden width.
    #[serde(default)]
    pub latent_size: Option<usize>,
    /// Attention heads (NV-Embed: 8).
    #[serde(default = "default_heads")]
    pub heads: usize,
    /// Width of a head; `None`: hidden width / heads (NV-Embed: 4096, Pooling and Attention: 2048 / 32).
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Kind of feed-forward block.
    #[serde(default)]
    pub feed_forward: FeedForwardKind,
}

fn default_latents() -> usize {
    64
}
fn default_heads() -> usize {
    8
}

impl Default for BlockConfig {
    fn default() -> Self {
        Self {
            latents: default_latents(),
            latent_size: None,
            heads: default_heads(),
            head_dim: None,
            feed_forward: FeedForwardKind::default(),
        }
    }
}

/// Feed-forward block of an attending head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForwardKind {
    /// `Linear(d, 8d)`, first half times gelu of the second, `Linear(4d, d)`: NV-Embed's weights.
    #[default]
    Geglu,
    /// `Linear(d, 4d)`, gelu, `Linear(4d, d)`: NV-Embed's text.
    Gelu,
}

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

/// `x + Wo MHA(LN(x) Wq, LN_c(context) Wkv)`, then `x + FF(LN(x))`.
#[derive(Module, Debug)]
pub struct PoolingBlock<B: Backend> {
    /// Trainable latents `[r, width]`, N(0, 1) at the start.
    pub latents: Option<Param<Tensor<B, 2>>>,
    /// Trainable layer embedding `[layers, hidden]`, zero at the start.
    pub layer_embedding: Option<Param<Tensor<B, 2>>>,
    /// The attention.
    pub attention: CrossAttention<B>,
    /// The feed-forward block.
    pub feed_forward: LatentFeedForward<B>,
}

/// Pre-norm cross-attention without biases.
#[derive(Module, Debug)]
pub struct CrossAttention<B: Backend> {
    norm: LayerNorm<B>,
    norm_context: LayerNorm<B>,
    to_q: Linear<B>,
    to_kv: Linear<B>,
    to_out: Linear<B>,
    heads: usize,
    head_dim: usize,
}

/// Pre-norm feed-forward block with biases.
#[derive(Module, Debug)]
pub struct LatentFeedForward<B: Backend> {
    norm: LayerNorm<B>,
    up: Linear<B>,
    down: Linear<B>,
    #[module(skip)]
    kind: FeedForwardKind,
}

/// LayerNorm epsilon, as PyTorch's default in the released code.
const EPSILON: f64 = 1e-5;

fn norm<B: Kernels>(size: usize, device: &B::Device) -> LayerNorm<B> {
    LayerNormConfig::new(size).with_epsilon(EPSILON).init(device)
}

/// PyTorch's default for `nn.Linear`: uniform within `1/sqrt(in)`.
fn linear<B: Kernels>(input: usize, output: usize, bias: bool, device: &B::Device) -> Linear<B> {
    let init = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
    Linear::new(input, &[("", output)], bias, &init, device)
}

impl<B: Kernels> CrossAttention<B> {
    fn new(
        config: &BlockConfig,
        query: usize,
        context: usize,
        hidden: usize,
        device: &B::Device,
    ) -> Self {
        let head_dim = config.head_dim.unwrap_or((hidden / config.heads).max(1));
        let inner = head_dim * config.heads;
        Self {
            norm: norm(query, device),
            norm_context: norm(context, device),
            to_q: linear(query, inner, false, device),
            to_kv: linear(context, 2 * inner, false, device),
            to_out: linear(inner, query, false, device),
            heads: config.heads,
            head_dim,
        }
    }

    /// Queries `[batch, q, dq]` over a context `[batch or 1, k, dk]`; `hidden` `[batch, k]` is
    /// true at context positions that must not be seen. Returns `[batch, q, dq]` (the residual
    /// added) and weights `[batch, heads, q, k]`.
    fn forward(
        &self,
        x: Tensor<B, 3>,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
    ) -> (Tensor<B, 3>, Tensor<B, 4>) {
        let ([batch, queries, _], [contexts, keys, _]) = (x.dims(), context.dims());
        let Self { heads, head_dim, .. } = *self;
        let inner = heads * head_dim;
        let split = |x: Tensor<B, 3>, rows: usize, length: usize| {
            x.reshape([rows, length, heads, head_dim]).swap_dims(1, 2)
        };
        let q = split(self.to_q.forward(self.norm.forward(x.clone())), batch, queries);
        let kv = self.to_kv.forward(self.norm_context.forward(context));
        let k = split(kv.clone().narrow(2, 0, inner), contexts, keys)
            .expand([batch, heads, keys, head_dim]);
        let v = split(kv.narrow(2, inner, inner), contexts, keys)
            .expand([batch, heads, keys, head_dim]);
        let mask = hidden
            .map(|hidden| hidden.reshape([batch, 1, 1, keys]).expand([batch, 1, queries, keys]));
        let (context, weights) = weighted_scaled_dot_product(q, k, v, mask.as_ref());
        let context = context.swap_dims(1, 2).reshape([batch, queries, inner]);
        (x + self.to_out.forward(context), weights)
    }
}

impl<B: Kernels> LatentFeedForward<B> {
    fn new(kind: FeedForwardKind, size: usize, device: &B::Device) -> Self {
        let up = match kind {
            FeedForwardKind::Geglu => 8 * size,
            FeedForwardKind::Gelu => 4 * size,
        };
        Self {
            norm: norm(size, device),
            up: linear(size, up, true, device),
            down: linear(4 * size, size, true, device),
            kind,
        }
    }

    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let up = self.up.forward(self.norm.forward(x.clone()));
        let inner = match self.kind {
            FeedForwardKind::Gelu => B::exact_gelu(up),
            FeedForwardKind::Geglu => {
                let half = up.dims()[2] / 2;
                up.clone().narrow(2, 0, half) * B::exact_gelu(up.narrow(2, half, half))
            }
        };
        x + self.down.forward(inner)
    }
}

impl<B: Kernels> PoolingBlock<B> {
    pub(super) fn self_attention(config: &BlockConfig, hidden: usize, device: &B::Device) -> Self {
        Self {
            latents: None,
            layer_embedding: None,
            attention: CrossAttention::new(config, hidden, hidden, hidden, device),
            feed_forward: LatentFeedForward::new(config.feed_forward, hidden, device),
        }
    }

    pub(super) fn latent_attention(
        config: &BlockConfig,
        hidden: usize,
        device: &B::Device,
    ) -> Self {
        Self {
            latents: Some(latents(config.latents, hidden, device)),
            ..Self::self_attention(config, hidden, device)
        }
    }

    pub(super) fn trainable(
        config: &BlockConfig,
        hidden: usize,
        layers: Option<usize>,
        device: &B::Device,
    ) -> Self {
        let width = config.latent_size.unwrap_or(hidden);
        Self {
            latents: Some(latents(config.latents, width, device)),
            layer_embedding: layers.map(|layers| Initializer::Zeros.init([layers, hidden], device)),
            attention: CrossAttention::new(config, width, hidden, hidden, device),
            feed_forward: LatentFeedForward::new(config.feed_forward, width, device),
        }
    }

    /// The latents `[1, r, width]`.
    ///
    /// # Errors
    /// The head has none.
    fn latent_batch(&self) -> Result<Tensor<B, 3>> {
        let latents = self.latents.as_ref();
        let latents = latents.ok_or_else(|| Error::invalid("the pooling head has no latents"))?;
        Ok(latents.val().unsqueeze::<3>())
    }

    /// Self-attention pooling.
    pub(super) fn over_itself(
        &self,
        x: &Tensor<B, 3>,
        input: &ModelInput<B>,
    ) -> (Tensor<B, 2>, Explanation<B>) {
        let hidden = input.padded.then(|| input.attention_mask.clone().bool_not());
        let (x, attention) = self.attention.forward(x.clone(), x.clone(), hidden);
        let mean = token::mean(input);
        let (pooled, _) = token::pool(&self.feed_forward.forward(x), mean.clone());
        // Attention that the pooled tokens give each token: [batch, 1, query] x [batch, query, key]
        let attention = attention.mean_dim(1).squeeze_dim::<3>(1).cast(mean.dtype());
        let given = mean.unsqueeze_dim::<3>(1).matmul(attention);
        (pooled, Explanation::tokens(given.squeeze_dim(1)))
    }

    /// Latent-attention pooling.
    pub(super) fn over_latents(
        &self,
        x: &Tensor<B, 3>,
        input: &ModelInput<B>,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let latents = self.latent_batch()?;
        let (x, attention) = self.attention.forward(x.clone(), latents, None);
        let (pooled, mut explanation) =
            token::pool(&self.feed_forward.forward(x), token::mean(input));
        explanation.latents = Some(attention);
        Ok((pooled, explanation))
    }

    /// Last-layer trainable pooling.
    pub(super) fn latents_over_tokens(
        &self,
        x: &Tensor<B, 3>,
        input: &ModelInput<B>,
    ) -> Result<(Tensor<B, 2>, Explanation<B>)> {
        let hidden = input.pooling_mask.clone().bool_not();
        let (pooled, attention) = self.pool_latents(x.clone(), Some(hidden))?;
        // [batch, heads, latents, tokens] -> [batch, tokens]
        let tokens = attention.clone().mean_dim(1).squeeze_dim::<3>(1).mean_dim(1).squeeze_dim(1);
        let latents = Some(attention.swap_dims(2, 3));
        Ok((pooled, Explanation { tokens: Some(tokens), latents, layers: None }))
    }

    /// Multi-layer trainable pooling over the states of layers 1 to N.
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
        let (pooled, attention) = self.pool_latents(states, None)?;
        // [batch, heads, latents, layers] -> [batch, layers]
        let by_layer = attention.mean_dim(1).squeeze_dim::<3>(1).mean_dim(1).squeeze_dim(1);
        Ok((pooled, Explanation { tokens: Some(weights), latents: None, layers: Some(by_layer) }))
    }

    /// Latents attend over a context; the mean over latents `[batch, width]` and the weights.
    fn pool_latents(
        &self,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
    ) -> Result<(Tensor<B, 2>, Tensor<B, 4>)> {
        let [batch, _, _] = context.dims();
        let latents = self.latent_batch()?;
        let [_, count, width] = latents.dims();
        let (x, attention) =
            self.attention.forward(latents.expand([batch, count, width]), context, hidden);
        Ok((self.feed_forward.forward(x).mean_dim(1).squeeze_dim(1), attention))
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

fn latents<B: Kernels>(count: usize, width: usize, device: &B::Device) -> Param<Tensor<B, 2>> {
    Initializer::Normal { mean: 0.0, std: 1.0 }.init([count, width], device)
}

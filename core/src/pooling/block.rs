//! The cross-attention block of the heads with parameters, in Perceiver's form (arXiv:2103.03206) as
//! NV-Embed (arXiv:2405.17428, section 3.2, equation 1 and figure 1) and Pooling and Attention
//! (arXiv:2409.02727, section 3.2) use it:
//!
//! ```text
//! X1 = X + Wo MHA(q = Wq LN(X), k = Wk LN_c(C), v = Wv LN_c(C))    scale 1 / sqrt(head_dim)
//! X2 = X1 + FF(LN(X1))
//! ```
//!
//! Queries `X` `[batch, q, width]`, context `C` `[batch or 1, k, context width]`, `X2`
//! `[batch, q, width]`. The equation leaves out norms, residuals and head width; they, the attention
//! without biases and the feed-forward block with them are those of NV-Embed's released code.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig};
use burn::tensor::{Bool, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::kernels::{Kernels, weighted_scaled_dot_product};
use crate::model::Linear;
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
    /// Width of a head; `None`: hidden width / heads (NV-Embed: 4096, Pooling and Attention: 2048).
    #[serde(default)]
    pub head_dim: Option<usize>,
    /// Kind of feed-forward block.
    #[serde(default)]
    pub feed_forward: FeedForwardKind,
    /// Spread of `W_layer` at the start of multi-layer pooling, from a normal distribution (Pooling and
    /// Attention's public code: 1); 0 starts from zeros.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub layer_std: f64,
}

fn is_zero(number: &f64) -> bool {
    *number == 0.0
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
            layer_std: 0.0,
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

/// Cross-attention and a feed-forward block, with latents where the head has some.
#[derive(Module, Debug)]
pub struct PoolingBlock<B: Backend> {
    /// Trainable latents `[r, width]`, N(0, 1) at the start.
    pub latents: Option<Param<Tensor<B, 2>>>,
    /// Trainable layer embedding `[layers, hidden]`, zero at the start.
    pub layer_embedding: Option<Param<Tensor<B, 2>>>,
    /// Cross-attention, pre-norm.
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
    pub(super) fn new(
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
    /// true at context positions that are masked. Returns `[batch, q, dq]` (the residual
    /// added) and weights `[batch, heads, q, k]`.
    pub(super) fn forward(
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
        let (context, weights) = weighted_scaled_dot_product(q, k, v, mask.as_ref(), None);
        let context = context.swap_dims(1, 2).reshape([batch, queries, inner]);
        (x + self.to_out.forward(context), weights)
    }
}

impl<B: Kernels> LatentFeedForward<B> {
    pub(super) fn new(kind: FeedForwardKind, size: usize, device: &B::Device) -> Self {
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

    pub(super) fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
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
    /// The latents `[1, r, width]`.
    ///
    /// # Errors
    /// The head has none.
    pub(super) fn latent_batch(&self) -> Result<Tensor<B, 3>> {
        let latents = self.latents.as_ref();
        let latents = latents.ok_or_else(|| Error::invalid("the pooling head has no latents"))?;
        Ok(latents.val().unsqueeze::<3>())
    }
}

/// Fresh latents `[count, width]`, N(0, 1).
pub(super) fn latents<B: Kernels>(
    count: usize,
    width: usize,
    device: &B::Device,
) -> Param<Tensor<B, 2>> {
    Initializer::Normal { mean: 0.0, std: 1.0 }.init([count, width], device)
}

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
use burn::tensor::activation::softmax;
use burn::tensor::{BasicOps, Bool, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::kernels::{Kernels, softmax_where, weighted_scaled_dot_product};
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

impl BlockConfig {
    /// Channels of a head, over states that are `hidden` wide.
    pub fn width_of_head(&self, hidden: usize) -> usize {
        self.head_dim.unwrap_or((hidden / self.heads.max(1)).max(1))
    }

    /// Whether it takes fewer products for so many queries of a width to fold as many `keys` as all of them see into the
    /// projections around these, so that nothing as wide as all heads is held for each query. Training does.
    pub fn folds(&self, queries: usize, keys: usize, width: usize, hidden: usize) -> bool {
        folds([queries, keys, width], self.heads, self.width_of_head(hidden))
    }
}

fn folds(sizes: [usize; 3], heads: usize, head_dim: usize) -> bool {
    // In a page numbers of 32 bits are too small for products of these.
    let [queries, keys, width] = sizes.map(|size| size as u64);
    let (heads, inner) = (heads as u64, heads as u64 * head_dim as u64);
    keys * inner * width + queries * heads * keys * width < queries * inner * (width + keys)
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
    pub(super) heads: usize,
    pub(super) head_dim: usize,
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

/// How many values of queries are held at once where nothing trains; a text's are in any case.
const QUERIES_AT_ONCE: usize = 1 << 26;

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
        let head_dim = config.width_of_head(hidden);
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

    /// Queries `[batch, q, width]` over a context `[batch or 1, k, context width]`; `hidden` `[batch, k]` is
    /// true at context positions that are masked. Returns `[batch, q, width]` (the residual added) and weights
    /// `[batch, heads, q, k]`.
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
    ) -> (Tensor<B, 3>, Tensor<B, 4>) {
        let [batch, queries, _] = x.dims();
        let at_once = texts_at_once::<B>(batch, [queries, self.heads * self.head_dim], &x.device());
        self.forward_by(at_once, x, context, hidden)
    }

    /// As [`Self::forward`], of `at_once` texts after the others.
    pub(super) fn forward_by(
        &self,
        at_once: usize,
        x: Tensor<B, 3>,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
    ) -> (Tensor<B, 3>, Tensor<B, 4>) {
        let ([batch, queries, _], [contexts, keys, _]) = (x.dims(), context.dims());
        let Self { heads, head_dim, .. } = *self;
        let split = |x: Tensor<B, 3>, length: usize| {
            let [texts, _, _] = x.dims();
            x.reshape([texts, length, heads, head_dim]).swap_dims(1, 2)
        };
        let [k, v] = self.keys_and_values(context).map(|each| split(each, keys));
        let mask = hidden.map(|hidden| over_scores(hidden, queries));
        let attended = |first: usize, texts: usize| {
            let x = part(x.clone(), first, texts);
            let of_these = |each: &Tensor<B, 4>| match contexts {
                1 => each.clone().expand([texts, heads, keys, head_dim]),
                _ => part(each.clone(), first, texts),
            };
            let mask = mask.clone().map(|mask| part(mask, first, texts));
            let q = split(self.to_q.forward(self.norm.forward(x.clone())), queries);
            let (k, v) = (of_these(&k), of_these(&v));
            let (context, weights) = weighted_scaled_dot_product(q, k, v, mask.as_ref(), None);
            (x + self.joined(context), weights)
        };
        few_at_a_time(batch, at_once, attended)
    }

    /// As [`Self::forward`], over latents `[1, k, context width]` that every text has.
    ///
    /// In training `(x Wq) k^T = x (Wq k^T)` and `(a v) Wo = a (v Wo)`, where the right sides take fewer products: NV-Embed's
    /// queries of `heads * head_dim` = 32,768 values for each token are never held then. Inference differs by the order of
    /// sums alone, which must not depend there on how many texts a batch has.
    pub(super) fn over_latents(
        &self,
        x: Tensor<B, 3>,
        latents: Tensor<B, 3>,
    ) -> (Tensor<B, 3>, Tensor<B, 4>) {
        let ([batch, queries, width], [_, keys, _]) = (x.dims(), latents.dims());
        let Self { heads, head_dim, .. } = *self;
        let rows = batch * queries;
        let saves = B::ad_enabled(&x.device()) && self.folds(rows, keys, width);
        let (Some(to_q), Some(to_out), true) = (self.to_q.dense(), self.to_out.dense(), saves)
        else {
            return self.forward(x, latents, None);
        };
        let [k, v] = self.keys_and_values(latents).map(|each| {
            each.reshape([keys, heads, head_dim]).swap_dims(0, 1) // [heads, keys, head_dim]
        });
        let to_q = to_q.reshape([width, heads, head_dim]).swap_dims(0, 1);
        let to_scores = to_q.matmul(k.swap_dims(1, 2)).swap_dims(0, 1);
        let to_scores = to_scores.mul_scalar(self.scale()).reshape([width, heads * keys]);
        let to_out = v.matmul(to_out.reshape([heads, head_dim, width]));
        let scores = self.norm.forward(x.clone()).reshape([rows, width]).matmul(to_scores);
        let weights = softmax(scores.reshape([rows, heads, keys]), 2);
        let out = weights.clone().reshape([rows, heads * keys]);
        let out = out.matmul(to_out.reshape([heads * keys, width]));
        let weights = weights.reshape([batch, queries, heads, keys]).swap_dims(1, 2);
        (x + out.reshape([batch, queries, width]), weights)
    }

    /// The queries `[1, heads, q, head_dim]` of latents `[1, q, width]`.
    pub(super) fn queries(&self, latents: Tensor<B, 3>) -> Tensor<B, 4> {
        let [_, queries, _] = latents.dims();
        let of_all = self.to_q.forward(self.norm.forward(latents));
        of_all.reshape([1, queries, self.heads, self.head_dim]).swap_dims(1, 2)
    }

    /// As [`Self::forward`], of latents `[1, q, width]` that every text has, with their [`Self::queries`]. Where
    /// the context is of a `fixed` length, or in training, `(a v) Wo = a (v Wo)` if the right side takes fewer products:
    /// over one state a layer, contexts of `heads * head_dim` = 65,536 values for each latent are never held then.
    pub(super) fn of_latents(
        &self,
        latents: Tensor<B, 3>,
        q: Tensor<B, 4>,
        context: Tensor<B, 3>,
        hidden: Option<Tensor<B, 2, Bool>>,
        fixed: bool,
    ) -> (Tensor<B, 3>, Tensor<B, 4>) {
        let ([_, queries, width], [batch, keys, _]) = (latents.dims(), context.dims());
        let Self { heads, head_dim, .. } = *self;
        // In training all texts are one product, as a gradient would be held for each of several. In inference a text is
        // one by itself, whose sums do not depend on the others.
        let trains = B::ad_enabled(&context.device());
        let (products, texts) = if trains { (1, batch) } else { (batch, 1) };
        let [k, v] = self
            .keys_and_values(context)
            .map(|each| each.reshape([products, texts * keys, heads, head_dim]).swap_dims(1, 2));
        let scores = q.expand([products, heads, queries, head_dim]).matmul(k.swap_dims(2, 3));
        let scores = scores.mul_scalar(self.scale());
        let scores = scores.reshape([products, heads, queries, texts, keys]);
        let scores = scores.permute([0, 3, 1, 2, 4]).reshape([batch, heads, queries, keys]);
        let weights =
            softmax_where(scores, hidden.map(|hidden| over_scores(hidden, queries)).as_ref());
        let saves = (trains || fixed) && self.folds(queries, keys, width);
        let out = match self.to_out.dense().filter(|_| saves) {
            Some(to_out) => {
                let to_out = to_out.reshape([1, heads, head_dim, width]);
                let to_out = v.matmul(to_out.expand([products, heads, head_dim, width]));
                let to_out = to_out.reshape([products, heads, texts, keys, width]).swap_dims(1, 2);
                let of_each = weights.clone().swap_dims(1, 2);
                let of_each = of_each.reshape([batch, queries, heads * keys]);
                of_each.matmul(to_out.reshape([batch, heads * keys, width]))
            }
            None => {
                let v = v.reshape([products, heads, texts, keys, head_dim]).swap_dims(1, 2);
                self.joined(weights.clone().matmul(v.reshape([batch, heads, keys, head_dim])))
            }
        };
        (latents + out, weights)
    }

    /// As [`BlockConfig::folds`].
    pub(super) fn folds(&self, queries: usize, keys: usize, width: usize) -> bool {
        folds([queries, keys, width], self.heads, self.head_dim)
    }

    /// What scores are multiplied with.
    fn scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }

    /// Keys and values of a context, each `[batch, k, heads * head_dim]`.
    fn keys_and_values(&self, context: Tensor<B, 3>) -> [Tensor<B, 3>; 2] {
        let inner = self.heads * self.head_dim;
        let both = self.to_kv.forward(self.norm_context.forward(context));
        [both.clone().narrow(2, 0, inner), both.narrow(2, inner, inner)]
    }

    /// The output of each head's context `[batch, heads, q, head_dim]`.
    fn joined(&self, context: Tensor<B, 4>) -> Tensor<B, 3> {
        let [batch, heads, queries, head_dim] = context.dims();
        self.to_out.forward(context.swap_dims(1, 2).reshape([batch, queries, heads * head_dim]))
    }
}

/// How many texts of a batch are computed at once, of which each has so many queries with so many values: all in training,
/// whose gradient needs them all.
pub(super) fn texts_at_once<B: Kernels>(
    batch: usize,
    [queries, values]: [usize; 2],
    device: &B::Device,
) -> usize {
    match B::ad_enabled(device) {
        true => batch,
        false => (QUERIES_AT_ONCE / queries.saturating_mul(values).max(1)).max(1),
    }
}

/// What is made of a batch's texts, of `at_once` of them after the others: of the first one's number and how many there are.
pub(super) fn few_at_a_time<B: Backend, const D: usize, const E: usize>(
    batch: usize,
    at_once: usize,
    of: impl Fn(usize, usize) -> (Tensor<B, D>, Tensor<B, E>),
) -> (Tensor<B, D>, Tensor<B, E>) {
    if at_once >= batch {
        return of(0, batch);
    }
    let parts = (0..batch).step_by(at_once).map(|first| of(first, at_once.min(batch - first)));
    let (one, other) = parts.unzip();
    (Tensor::cat(one, 0), Tensor::cat(other, 0))
}

/// So many texts of a batch, from the first of them.
pub(super) fn part<B: Backend, const D: usize, K: BasicOps<B>>(
    batch: Tensor<B, D, K>,
    first: usize,
    texts: usize,
) -> Tensor<B, D, K> {
    if batch.dims()[0] == texts { batch } else { batch.narrow(0, first, texts) }
}

/// What of a context `[batch, k]` is hidden from all of so many queries.
fn over_scores<B: Backend>(hidden: Tensor<B, 2, Bool>, queries: usize) -> Tensor<B, 4, Bool> {
    let [batch, keys] = hidden.dims();
    hidden.reshape([batch, 1, 1, keys]).expand([batch, 1, queries, keys])
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

#[cfg(test)]
#[cfg(feature = "autodiff")]
mod tests;

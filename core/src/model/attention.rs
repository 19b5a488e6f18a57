//! Multi-head attention with grouped queries, as encoder and decoder use it.

use burn::module::Module;
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::activation::softmax;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, FloatDType, Tensor, backend::Backend, module};

use super::linear::Linear;
use super::rotary::{Angles, Rotary};
use crate::host::{self, Heads};

/// Sizes and options of an [`Attention`] block.
pub(super) struct AttentionOptions<'a> {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Epsilon of the RMS norms on q's and k's heads, where there are some.
    pub qk_norm: Option<f64>,
    /// What the family calls q, k, v and the output projection.
    pub names: [&'a str; 4],
}

/// q, k and v in one product, attention, and the output projection.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// `[hidden, (heads + 2 kv_heads) head_dim]`: q, k, v side by side.
    pub qkv: Linear<B>,
    /// `[heads head_dim, hidden]`.
    pub output: Linear<B>,
    query_norm: Option<RmsNorm<B>>,
    key_norm: Option<RmsNorm<B>>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl<B: Backend> Attention<B> {
    pub(super) fn new(
        options: &AttentionOptions<'_>,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let &AttentionOptions { hidden, heads, kv_heads, head_dim, names, .. } = options;
        let [query, key, value, output] = names;
        let parts =
            [(query, heads * head_dim), (key, kv_heads * head_dim), (value, kv_heads * head_dim)];
        let norm = || {
            options.qk_norm.map(|eps| RmsNormConfig::new(head_dim).with_epsilon(eps).init(device))
        };
        Self {
            qkv: Linear::new(hidden, &parts, options.qkv_bias, init, device),
            output: Linear::new(
                heads * head_dim,
                &[(output, hidden)],
                options.output_bias,
                init,
                device,
            ),
            query_norm: norm(),
            key_norm: norm(),
            heads,
            kv_heads,
            head_dim,
        }
    }

    /// `[batch, seq, hidden]` to the same; with the weights `[batch, heads, seq, seq]` on demand.
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        mask: Option<&Tensor<B, 4, Bool>>,
        angles: Option<&Angles<B>>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let [batch, seq, _] = x.dims();
        let Self { heads, kv_heads, head_dim, .. } = *self;
        let mut qkv = self.qkv.forward(x);
        if self.query_norm.is_none() && self.key_norm.is_none() && !want_weights {
            let shape = Heads { queries: heads, keys: kv_heads, width: head_dim };
            match host::attention(qkv, shape, angles, mask) {
                Ok(context) => return (self.output.forward(context), None),
                Err(same) => qkv = same,
            }
        }
        // [batch, seq, heads, head_dim]
        let part = |from: usize, count: usize| {
            let part = qkv.clone().narrow(2, from * head_dim, count * head_dim);
            part.reshape([batch, seq, count, head_dim])
        };
        let mut query = part(0, heads);
        let mut key = part(heads, kv_heads);
        let value = part(heads + kv_heads, kv_heads).swap_dims(1, 2);
        if let Some(norm) = &self.query_norm {
            query = norm.forward(query);
        }
        if let Some(norm) = &self.key_norm {
            key = norm.forward(key);
        }
        if let Some(angles) = angles {
            query = Rotary::rotate(query, angles);
            key = Rotary::rotate(key, angles);
        }
        // [batch, heads, seq, head_dim], views.
        let (query, key) = (query.swap_dims(1, 2), key.swap_dims(1, 2));
        let key = repeat_heads(key, heads / kv_heads);
        let value = repeat_heads(value, heads / kv_heads);
        let (context, weights) = match want_weights {
            true => {
                let (context, weights) = weighted_scaled_dot_product(query, key, value, mask);
                (context, Some(weights))
            }
            false => (scaled_dot_product(query, key, value, mask), None),
        };
        // [batch, heads, seq, head_dim] -> [batch, seq, heads * head_dim]
        let context = host::merge_heads(context);
        (self.output.forward(context), weights)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> [(&'static str, &mut Linear<B>); 2] {
        [("attention.qkv", &mut self.qkv), ("attention.output", &mut self.output)]
    }
}

/// `[batch, kv_heads, seq, dim]` to `[batch, kv_heads * times, seq, dim]`, each head repeated.
fn repeat_heads<B: Backend>(x: Tensor<B, 4>, times: usize) -> Tensor<B, 4> {
    if times == 1 {
        return x;
    }
    let [batch, heads, seq, dim] = x.dims();
    x.reshape([batch, heads, 1, seq, dim]).expand([batch, heads, times, seq, dim]).reshape([
        batch,
        heads * times,
        seq,
        dim,
    ])
}

/// Longest text whose `[query, key]` scores are held at once; beyond it the backend's fused
/// product is used, which needs less memory and more time.
const LONGEST_HELD: usize = 512;

/// `softmax(q k^T / sqrt(dim)) v` over `[batch, heads, seq, dim]` tensors.
///
/// `mask` is `[batch, 1, query, key]`, true where a query must not look.
pub fn scaled_dot_product<B: Backend>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
    mask: Option<&Tensor<B, 4, Bool>>,
) -> Tensor<B, 4> {
    let ([batch, heads, queries, _], keys) = (query.dims(), key.dims()[2]);
    if keys > LONGEST_HELD {
        let mask = mask.cloned().map(|mask| mask.expand([batch, heads, queries, keys]));
        return module::attention(query, key, value, mask, None, AttentionModuleOptions::default());
    }
    weighted_scaled_dot_product(query, key, value, mask).0
}

/// As [`scaled_dot_product`], with the weights `[batch, heads, query, key]`.
pub fn weighted_scaled_dot_product<B: Backend>(
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
    mask: Option<&Tensor<B, 4, Bool>>,
) -> (Tensor<B, 4>, Tensor<B, 4>) {
    let [_, heads, _, dim] = query.dims();
    let mut scores = query.matmul(key.swap_dims(2, 3)).mul_scalar((dim as f64).powf(-0.5));
    if let Some(mask) = mask {
        // Added, not filled in, so that there is no pass over it backwards; so large that every
        // score is lost in it. Finite, because some shader compilers assume that infinities do not
        // occur.
        let dtype: FloatDType = scores.dtype().into();
        let hidden = if dtype == FloatDType::F16 { -3e4 } else { -1e30 };
        let mask = mask.clone().float().cast(dtype).mul_scalar(hidden);
        scores = scores + host::each_head(mask, heads);
    }
    let weights = softmax(scores, 3);
    (weights.clone().matmul(value), weights)
}

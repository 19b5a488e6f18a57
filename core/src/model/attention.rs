//! Multi-head attention with grouped queries, as encoder and decoder use it.

use burn::module::Module;
use burn::nn::{Initializer, RmsNorm, RmsNormConfig};
use burn::tensor::{Tensor, backend::Backend};

use super::linear::Linear;
use crate::kernels::{Heads, Kernels, Seen, by_head, rotated, weighted_scaled_dot_product};

/// Sizes and options of an [`Attention`] block.
pub(super) struct AttentionOptions<'a> {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub qkv_bias: bool,
    pub output_bias: bool,
    /// Epsilon of the RMS norms on the heads of q and k, where the family has them.
    pub qk_norm: Option<f64>,
    /// Epsilon of RMS norms without factors on the heads of v, where the family has them.
    pub value_norm: Option<f64>,
    /// What the family calls q, k, v and the output projection; all three by the first name where it has but
    /// one projection for them.
    pub names: [&'a str; 4],
}

/// q, k and v in one product, attention, and the output projection.
#[derive(Module, Debug)]
pub struct Attention<B: Backend> {
    /// `[hidden, (heads + 2 kv_heads) head_dim]`: q, k, v side by side.
    pub qkv: Linear<B>,
    /// `[heads head_dim, hidden]`.
    pub output: Linear<B>,
    pub(super) query_norm: Option<RmsNorm<B>>,
    pub(super) key_norm: Option<RmsNorm<B>>,
    /// Epsilon of the norm of the heads of v.
    #[module(skip)]
    value_epsilon: Option<f64>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

impl<B: Kernels> Attention<B> {
    pub(super) fn new(
        options: &AttentionOptions<'_>,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let &AttentionOptions { hidden, heads, kv_heads, head_dim, names, .. } = options;
        let [query, key, value, output] = names;
        let apart =
            [(query, heads * head_dim), (key, kv_heads * head_dim), (value, kv_heads * head_dim)];
        let joined = [(query, (heads + 2 * kv_heads) * head_dim)];
        let parts = if key.is_empty() { &joined[..] } else { &apart };
        let norm = || {
            options.qk_norm.map(|eps| RmsNormConfig::new(head_dim).with_epsilon(eps).init(device))
        };
        Self {
            qkv: Linear::new(hidden, parts, options.qkv_bias, init, device),
            output: Linear::new(
                heads * head_dim,
                &[(output, hidden)],
                options.output_bias,
                init,
                device,
            ),
            query_norm: norm(),
            key_norm: norm(),
            value_epsilon: options.value_norm,
            heads,
            kv_heads,
            head_dim,
        }
    }

    /// Widths of the heads.
    pub(super) fn heads(&self) -> Heads {
        Heads { queries: self.heads, keys: self.kv_heads, width: self.head_dim }
    }

    /// `[batch, seq, hidden]` to the same, and the weights `[batch, heads, seq, seq]` on demand.
    pub(super) fn forward(
        &self,
        x: Tensor<B, 3>,
        seen: Seen<'_, B>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let [batch, seq, _] = x.dims();
        let Self { heads, kv_heads, head_dim, .. } = *self;
        let qkv = self.normed(self.qkv.forward(x));
        if !want_weights {
            let context = B::self_attention(qkv, self.heads(), seen);
            return (self.output.forward(context), None);
        }
        // [batch, seq, heads, head_dim]
        let part = |from: usize, count: usize| {
            let part = qkv.clone().narrow(2, from * head_dim, count * head_dim);
            part.reshape([batch, seq, count, head_dim])
        };
        let (mut query, mut key) = (part(0, heads), part(heads, kv_heads));
        if let Some(angles) = seen.angles {
            query = rotated(query, angles);
            key = rotated(key, angles);
        }
        let [query, key, value] = by_head(query, key, part(heads + kv_heads, kv_heads));
        let (context, weights) =
            weighted_scaled_dot_product(query, key, value, seen.mask, seen.bias);
        (self.output.forward(B::merge_heads(context)), Some(weights))
    }

    /// Queries, keys and values side by side; the heads of queries and keys normed where the family
    /// does so (Qwen3), and those of values too (EmbeddingGemma 2).
    fn normed(&self, qkv: Tensor<B, 3>) -> Tensor<B, 3> {
        let (Some(query_norm), Some(key_norm)) = (&self.query_norm, &self.key_norm) else {
            return qkv;
        };
        let [batch, seq, _] = qkv.dims();
        let part = |from: usize, count: usize| {
            qkv.clone().narrow(2, from * self.head_dim, count * self.head_dim)
        };
        let by_head = |from: usize, count: usize, norm| {
            let heads = part(from, count).reshape([batch, seq, count, self.head_dim]);
            B::rms_norm(heads, norm).reshape([batch, seq, count * self.head_dim])
        };
        let (queries, keys) = (self.heads, self.kv_heads);
        let query = by_head(0, queries, query_norm);
        let key = by_head(queries, keys, key_norm);
        let value = match self.value_norm() {
            Some(norm) => by_head(queries + keys, keys, &norm),
            None => part(queries + keys, keys),
        };
        Tensor::cat(vec![query, key, value], 2)
    }

    /// The norm of the heads of v, whose factors are one and learn nothing.
    pub(super) fn value_norm(&self) -> Option<RmsNorm<B>> {
        let mut norm = self.query_norm.clone()?;
        norm.epsilon = self.value_epsilon?;
        norm.gamma = norm.gamma.map(|gamma| gamma.ones_like());
        Some(norm)
    }

    /// The projections with their paths inside the block.
    pub(super) fn projections_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        let all = [("attention.qkv", &mut self.qkv), ("attention.output", &mut self.output)];
        all.map(|(path, linear)| (path.to_string(), linear)).into()
    }
}

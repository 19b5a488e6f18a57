//! Attention of texts and its gradient, some texts or some queries at a time.
//!
//! The weights of attention are computed again on the way back, so that no matrix of all scores is kept (FlashAttention,
//! arXiv:2205.14135, section 3.1); products of scores are the backend's, on tensor cores where there are any.

use std::ops::Range;

use burn::tensor::{Bool, DType, FloatDType, IndexingUpdateOp, Int, Tensor};

use super::norm::{self, OfNorm};
use super::{Sides, joined, whole};
use crate::kernels::plain::{by_pair, pairs_by_distance};
use crate::kernels::{
    BlockOf, Heads, Kernels, MatmulPrecision, Norm, RotaryTables, SCORES_AT_ONCE,
};

/// Scores that are held at once. Tests have several tiles.
pub(super) const AT_ONCE: usize = if cfg!(test) { 100 } else { SCORES_AT_ONCE };

/// Queries, keys and values `[batch, heads, seq, width]`, as attention takes them.
pub(super) struct Attended<'a, B: Kernels> {
    heads: Heads,
    precision: MatmulPrecision,
    /// Factors of products.
    query: Tensor<B, 4>,
    key: Tensor<B, 4>,
    value: Tensor<B, 4>,
    mask: Option<&'a Tensor<B, 4, Bool>>,
    /// `[1, heads, seq, seq]`.
    bias: Option<Tensor<B, 4>>,
}

impl<'a, B: Kernels> Attended<'a, B> {
    /// Of the sides of a projection: normed and rotated.
    pub(super) fn new(
        sides: &Sides<B>,
        [batch, seq]: [usize; 2],
        block: &BlockOf<B>,
        angles: Option<&RotaryTables<B>>,
        mask: Option<&'a Tensor<B, 4, Bool>>,
    ) -> Self {
        let heads = block.heads;
        let side = |side: usize| {
            let projected = match sides {
                Sides::Projected(sides) => &sides[side],
                Sides::Attended(sides) => return sides[side].clone(),
            };
            let count = if side == 0 { heads.queries } else { heads.keys };
            let mut x = projected.clone();
            if let Some(norm) = block.head_norms.get(side) {
                let rows = batch * seq * count;
                x = B::norm_rows(x.reshape([rows, heads.width]), norm, FloatDType::F32);
                x = x.reshape([batch * seq, count * heads.width]);
            }
            let angles = angles.filter(|_| side < 2);
            B::split_heads(x, [batch, seq], heads.width, angles, block.precision.dtype())
        };
        let bias = block.score_bias.as_ref();
        Self {
            heads,
            precision: block.precision,
            query: side(0),
            key: side(1),
            value: side(2),
            mask,
            bias: bias.map(|bias| by_pair(&super::tensor(bias), FloatDType::F32)),
        }
    }

    /// Queries, keys and values, as attention takes them.
    pub(super) fn sides(&self) -> [Tensor<B, 4>; 3] {
        [&self.query, &self.key, &self.value].map(Tensor::clone)
    }

    /// What attention gives `[rows, queries width]`.
    pub(super) fn forward(&self) -> Tensor<B, 2> {
        let [_, heads, _, width] = self.query.dims();
        let [context] = self.by_tile(|tile| {
            let weights = self.weights(tile, self.precision.dtype());
            let value = texts(&self.value, tile);
            let context = self.grouped(weights).matmul(value);
            [context.reshape([tile.texts.len(), heads, tile.queries.len(), width])]
        });
        B::join_heads(context, None, self.precision.dtype())
    }

    /// From the gradient of what [`Attended::forward`] gives to those of the three sides as attention takes them
    /// `[batch, heads, seq, width]`, and of the bias by distance `[heads, 2 seq - 1]`, where there is one.
    pub(super) fn backward(
        &self,
        gradient: &Tensor<B, 2>,
        wants_bias: bool,
    ) -> ([Tensor<B, 4>; 3], Option<Tensor<B, 2>>) {
        let [batch, heads, seq, width] = self.query.dims();
        let device = self.query.device();
        let gradient =
            B::split_heads(gradient.clone(), [batch, seq], width, None, self.precision.dtype());
        // Queries of the same texts add to the same keys.
        let mut of_keys: Vec<[Tensor<B, 4>; 2]> = Vec::new();
        let mut of_bias: Option<Tensor<B, 4>> = None;
        let [of_query] = self.by_tile(|tile| {
            let [texts_at_once, queries] = [tile.texts.len(), tile.queries.len()];
            let by_query = [texts_at_once, heads, queries, seq];
            let weights = self.weights(tile, FloatDType::F32);
            let own = self.grouped(part(&gradient, tile));
            let (key, value) = (texts(&self.key, tile), texts(&self.value, tile));
            let of_value = self
                .grouped(self.precision.factor(weights.clone()))
                .swap_dims(2, 3)
                .matmul(own.clone());
            let of_weights = own.matmul(value.swap_dims(2, 3)).reshape(by_query);
            let factor = self.precision.dtype();
            if wants_bias {
                let (weights, of_weights) = (weights.clone(), of_weights.clone());
                let of_scores =
                    B::attention_scores_gradient(weights, of_weights, 1.0, FloatDType::F32);
                let sum = of_scores.sum_dim(0);
                let zeros = |rows: usize| {
                    Tensor::<B, 4>::zeros([1, heads, rows, seq], (&device, DType::F32))
                };
                let (before, after) = (tile.queries.start, seq - tile.queries.end);
                let sum = match (before, after) {
                    (0, 0) => sum,
                    _ => Tensor::cat(vec![zeros(before), sum, zeros(after)], 2),
                };
                of_bias = Some(match of_bias.take() {
                    Some(known) => known + sum,
                    None => sum,
                });
            }
            let of_scores = B::attention_scores_gradient(weights, of_weights, self.scale(), factor);
            let of_scores = self.grouped(of_scores);
            let query = self.grouped(part(&self.query, tile));
            let of_key = of_scores.clone().swap_dims(2, 3).matmul(query);
            let of_query = of_scores.matmul(key);
            // What is summed is so in f32.
            let of_texts = match of_keys.pop_if(|_| tile.queries.start > 0) {
                Some([key, value]) => [whole(key) + whole(of_key), whole(value) + whole(of_value)],
                None => [of_key, of_value],
            };
            of_keys.push(of_texts);
            [of_query.reshape([texts_at_once, heads, queries, width])]
        });
        let (of_key, of_value): (Vec<_>, Vec<_>) =
            of_keys.into_iter().map(|[of_key, of_value]| (of_key, of_value)).unzip();
        let sides = [of_query, joined(of_key, 0), joined(of_value, 0)];
        let of_bias = of_bias.map(|sum| {
            let index: Tensor<B, 1, Int> = pairs_by_distance(seq, &device);
            let zeros = Tensor::<B, 2>::zeros([heads, 2 * seq - 1], (&device, DType::F32));
            let values = sum.reshape([heads, seq * seq]);
            zeros.select_assign(1, index, values, IndexingUpdateOp::Add)
        });
        (sides, of_bias)
    }

    /// Results of all tiles `[texts, heads, queries, width]` side by side.
    fn by_tile<const N: usize>(
        &self,
        mut of_tile: impl FnMut(&Tile) -> [Tensor<B, 4>; N],
    ) -> [Tensor<B, 4>; N] {
        let [batch, heads, seq, _] = self.query.dims();
        let mut all = std::array::from_fn(|_| Vec::new());
        for texts in tiles(batch, heads * seq * seq) {
            let mut of_texts: [Vec<Tensor<B, 4>>; N] = std::array::from_fn(|_| Vec::new());
            for queries in tiles(seq, texts.len() * heads * seq) {
                let results = of_tile(&Tile { texts: texts.clone(), queries });
                of_texts.iter_mut().zip(results).for_each(|(all, one)| all.push(one));
            }
            all.iter_mut().zip(of_texts).for_each(|(all, one)| all.push(joined(one, 2)));
        }
        all.map(|tiles| joined(tiles, 0))
    }

    /// The weights of attention `[texts, heads, queries, seq]`.
    fn weights(&self, tile: &Tile, dtype: FloatDType) -> Tensor<B, 4> {
        let [_, heads, seq, _] = self.query.dims();
        let query = self.grouped(part(&self.query, tile));
        let scores = query.matmul(texts(&self.key, tile).swap_dims(2, 3));
        let shape = [tile.texts.len(), heads, tile.queries.len(), seq];
        let (first, count) = (tile.queries.start, tile.queries.len());
        let bias = self.bias.as_ref().map(|bias| bias.clone().narrow(2, first, count));
        let mask = self.mask.map(|mask| {
            let mask = mask.clone().narrow(0, tile.texts.start, tile.texts.len());
            mask.narrow(2, first, count)
        });
        B::attention_weights(scores.reshape(shape), self.scale(), bias, mask, dtype)
    }

    /// Factor of the scores.
    fn scale(&self) -> f32 {
        (self.heads.width as f32).powf(-0.5)
    }

    /// `[texts, queries' heads, rows, width]` to `[texts, keys' heads, heads of each times rows, width]`: heads that share
    /// keys are rows of one product.
    fn grouped(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let Heads { queries, keys, .. } = self.heads;
        let [texts, _, rows, width] = x.dims();
        x.reshape([texts, keys, queries / keys * rows, width])
    }
}

/// From the gradient of a side as attention takes it to that of what the projection gave `[rows, heads width]`, in the
/// numbers given, and those of the norm of its heads. `projected` is what it gave.
pub(super) fn side_backward<B: Kernels>(
    (projected, side): (&Tensor<B, 2>, usize),
    gradient: Tensor<B, 4>,
    block: &BlockOf<B>,
    angles: Option<&RotaryTables<B>>,
    wanted: Option<&Norm<bool>>,
    dtype: FloatDType,
) -> (Tensor<B, 2>, Option<OfNorm<B>>) {
    let angles = angles.filter(|_| side < 2);
    let (Some(norm), Some(wanted)) = (block.head_norms.get(side), wanted) else {
        return (B::join_heads(gradient, angles, dtype), None);
    };
    let gradient = B::join_heads(gradient, angles, FloatDType::F32);
    let shape @ [rows, width] = gradient.dims();
    let heads = rows * width / block.heads.width;
    let by_head = |x: Tensor<B, 2>| x.reshape([heads, block.heads.width]);
    let input = by_head(projected.clone());
    let (gradient, of_norm) = norm::backward(&input, by_head(gradient), norm, wanted, None);
    (gradient.reshape(shape).cast(dtype), Some(of_norm))
}

/// What is computed at once.
struct Tile {
    texts: Range<usize>,
    queries: Range<usize>,
}

/// Ranges of `0..count`, each of `AT_ONCE` pairs at most where one has `pairs`, and of one at least.
pub(super) fn tiles(count: usize, pairs: usize) -> impl Iterator<Item = Range<usize>> {
    let each = (AT_ONCE / pairs.max(1)).max(1);
    (0..count).step_by(each).map(move |start| start..(start + each).min(count))
}

/// Some texts of `[batch, heads, seq, width]`.
fn texts<B: Kernels>(x: &Tensor<B, 4>, tile: &Tile) -> Tensor<B, 4> {
    x.clone().narrow(0, tile.texts.start, tile.texts.len())
}

/// Some queries of some texts.
fn part<B: Kernels>(x: &Tensor<B, 4>, tile: &Tile) -> Tensor<B, 4> {
    texts(x, tile).narrow(2, tile.queries.start, tile.queries.len())
}

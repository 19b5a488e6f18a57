//! Products with weights, adapters included.

use std::ops::Range;

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::{Low, columns, primitive, tensor, whole};
use crate::kernels::{Kernels, LowRank, MatmulPrecision, Projection};

/// What a projection gives, of which any columns can be had.
pub(super) struct Projected<B: Kernels> {
    /// The weight's part `[rows, outputs]`.
    base: Tensor<B, 2>,
    pub(super) lows: Vec<Low<B>>,
}

/// `x` `[rows, inputs]` is a factor already.
pub(super) fn forward<B: Kernels>(
    x: &Tensor<B, 2>,
    projection: &Projection<FloatTensor<B>>,
    precision: MatmulPrecision,
) -> Projected<B> {
    let mut base = x.clone().matmul(precision.factor(tensor(&projection.weight)));
    if let Some(bias) = &projection.bias {
        base = base + precision.factor(tensor::<B, 1>(bias)).unsqueeze();
    }
    let low = |low: &LowRank<FloatTensor<B>>| {
        let a = precision.factor(tensor::<B, 2>(&low.a));
        let b = precision.factor(tensor::<B, 2>(&low.b).mul_scalar(low.scale));
        Low { first: low.first, low: dropped(x, low).matmul(a.clone()), a, b }
    };
    Projected { base, lows: projection.adapters.iter().map(low).collect() }
}

impl<B: Kernels> Projected<B> {
    /// All columns `[rows, outputs]`.
    pub(super) fn all(&self) -> Tensor<B, 2> {
        let borders = self.borders(self.base.dims()[1]);
        let mut parts: Vec<_> =
            borders.windows(2).map(|pair| self.columns(pair[0]..pair[1])).collect();
        match parts.len() {
            1 => parts.remove(0),
            _ => Tensor::cat(parts, 1),
        }
    }

    /// Where adapters begin and end, with both ends of a row.
    fn borders(&self, width: usize) -> Vec<usize> {
        let of_adapters = self.lows.iter().flat_map(|low| [low.first, low.first + low.b.dims()[1]]);
        let mut borders: Vec<usize> = of_adapters.chain([0, width]).collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// Some columns; an adapter adds to all of them, or to none.
    pub(super) fn columns(&self, range: Range<usize>) -> Tensor<B, 2> {
        let mut y = columns(&self.base, range.clone());
        for Low { first, low, b, .. } in &self.lows {
            let own = *first..first + b.dims()[1];
            if own.start <= range.start && range.end <= own.end {
                let b = columns(b, range.start - first..range.end - first);
                y = y + low.clone().matmul(b);
            }
        }
        y
    }
}

/// Gradients of a projection of `x` `[rows, inputs]`, a factor already, for that of its outputs `[rows, outputs]`, f32; that
/// of `x`, f32, and those of the projection's own.
pub(super) fn backward<B: Kernels>(
    x: &Tensor<B, 2>,
    lows: &[Low<B>],
    gradient: Tensor<B, 2>,
    projection: &Projection<FloatTensor<B>>,
    wanted: &Projection<bool>,
    precision: MatmulPrecision,
) -> (Tensor<B, 2>, Projection<Option<FloatTensor<B>>>) {
    let bias = projection.bias.as_ref().map(|_| {
        (wanted.bias == Some(true))
            .then(|| primitive(gradient.clone().sum_dim(0).squeeze_dim::<1>(0)))
    });
    let gradient = precision.factor(gradient);
    let weight = precision.factor(tensor::<B, 2>(&projection.weight));
    let mut of_x = whole(gradient.clone().matmul(weight.transpose()));
    let of_weight =
        wanted.weight.then(|| primitive(whole(x.clone().transpose().matmul(gradient.clone()))));
    let mut adapters = Vec::new();
    for ((low, adapter), wanted) in lows.iter().zip(&projection.adapters).zip(&wanted.adapters) {
        let own = columns(&gradient, low.first..low.first + low.b.dims()[1]);
        let b = wanted.b.then(|| {
            let of_b = whole(low.low.clone().transpose().matmul(own.clone()));
            primitive(of_b.mul_scalar(adapter.scale))
        });
        let into_low = own.matmul(low.b.clone().transpose());
        let a = wanted.a.then(|| {
            let x = dropped(x, adapter).transpose();
            primitive(whole(x.matmul(into_low.clone())))
        });
        let more = into_low.matmul(low.a.clone().transpose());
        of_x = of_x + whole(dropped(&more, adapter));
        let &LowRank { first, scale, dropout, .. } = adapter;
        adapters.push(LowRank { a, b, first, scale, dropout });
    }
    let of_projection = Projection {
        weight: of_weight,
        matrix: None,
        bias,
        adapters,
        prepared: Default::default(),
    };
    (of_x, of_projection)
}

/// What an adapter computes with of `x`; of a gradient, what of it flows on.
fn dropped<B: Kernels>(x: &Tensor<B, 2>, low: &LowRank<FloatTensor<B>>) -> Tensor<B, 2> {
    match low.dropout {
        Some(mask) => B::drop_out(x.clone(), mask),
        None => x.clone(),
    }
}

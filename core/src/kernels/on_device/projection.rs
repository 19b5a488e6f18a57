//! Products with weights, adapters included.

use std::ops::Range;

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::{columns, primitive, tensor, whole};
use crate::kernels::{Kernels, LowRank, MatmulPrecision, Projection};

/// What a projection gives, of which any columns can be had.
pub(super) struct Projected<B: Kernels> {
    /// The weight's part `[rows, outputs]`.
    base: Tensor<B, 2>,
    /// Each adapter's input times its `A` `[rows, rank]`.
    pub(super) lows: Vec<Tensor<B, 2>>,
    /// First column, and `B` `[rank, width]` times the adapter's factor.
    ups: Vec<(usize, Tensor<B, 2>)>,
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
        dropped(x, low).matmul(precision.factor(tensor::<B, 2>(&low.a)))
    };
    let up = |low: &LowRank<FloatTensor<B>>| (low.first, scaled(low, precision));
    Projected {
        base,
        lows: projection.adapters.iter().map(low).collect(),
        ups: projection.adapters.iter().map(up).collect(),
    }
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
        let of_adapters = self.ups.iter().flat_map(|(first, up)| [*first, first + up.dims()[1]]);
        let mut borders: Vec<usize> = of_adapters.chain([0, width]).collect();
        borders.sort_unstable();
        borders.dedup();
        borders
    }

    /// Some columns; an adapter adds to all of them, or to none.
    pub(super) fn columns(&self, range: Range<usize>) -> Tensor<B, 2> {
        let mut y = columns(&self.base, range.clone());
        for (low, (first, up)) in self.lows.iter().zip(&self.ups) {
            let own = *first..first + up.dims()[1];
            if own.start <= range.start && range.end <= own.end {
                let up = columns(up, range.start - first..range.end - first);
                y = y + low.clone().matmul(up);
            }
        }
        y
    }
}

/// Gradients of a projection of `x` `[rows, inputs]`, a factor already, for that of its outputs `[rows, outputs]`, f32; that
/// of `x`, f32, and those of the projection's own.
pub(super) fn backward<B: Kernels>(
    x: &Tensor<B, 2>,
    lows: &[Tensor<B, 2>],
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
    for ((low, of_low), wanted) in lows.iter().zip(&projection.adapters).zip(&wanted.adapters) {
        let up = scaled(of_low, precision);
        let own = columns(&gradient, of_low.first..of_low.first + up.dims()[1]);
        let scale = f64::from(of_low.scale);
        let b = wanted.b.then(|| {
            primitive(whole(low.clone().transpose().matmul(own.clone())).mul_scalar(scale))
        });
        let into_low = own.matmul(up.transpose());
        let a = wanted
            .a
            .then(|| primitive(whole(dropped(x, of_low).transpose().matmul(into_low.clone()))));
        let down = precision.factor(tensor::<B, 2>(&of_low.a));
        let more = into_low.matmul(down.transpose());
        of_x = of_x + whole(dropped(&more, of_low));
        let &LowRank { first, scale, dropout, .. } = of_low;
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

/// `B` times the adapter's factor.
fn scaled<B: Kernels>(low: &LowRank<FloatTensor<B>>, precision: MatmulPrecision) -> Tensor<B, 2> {
    precision.factor(tensor::<B, 2>(&low.b).mul_scalar(low.scale))
}

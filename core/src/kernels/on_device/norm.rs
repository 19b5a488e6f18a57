//! Norms over the last dimension, in f32.

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::{primitive, tensor, whole};
use crate::kernels::{Kernels, Norm};

/// Gradients of a norm's own.
pub(super) type OfNorm<B> = Norm<Option<FloatTensor<B>>>;

/// `[rows, width]` to the same.
pub(super) fn normed<B: Kernels>(x: &Tensor<B, 2>, norm: &Norm<FloatTensor<B>>) -> Tensor<B, 2> {
    let Parts { unit, .. } = Parts::new(x, norm);
    let y = unit * row(&norm.gamma);
    match &norm.beta {
        Some(beta) => y + row(beta),
        None => y,
    }
}

/// From the gradient of what [`normed`] gives to that of `x`, and those of the norm's own.
pub(super) fn backward<B: Kernels>(
    x: &Tensor<B, 2>,
    gradient: Tensor<B, 2>,
    norm: &Norm<FloatTensor<B>>,
    wanted: &Norm<bool>,
) -> (Tensor<B, 2>, OfNorm<B>) {
    let Parts { unit, scale } = Parts::new(x, norm);
    let sum = |rows: Tensor<B, 2>| primitive(rows.sum_dim(0).squeeze_dim::<1>(0));
    let of_norm = Norm {
        gamma: wanted.gamma.then(|| sum(gradient.clone() * unit.clone())),
        beta: norm
            .beta
            .as_ref()
            .map(|_| (wanted.beta == Some(true)).then(|| sum(gradient.clone()))),
        centred: norm.centred,
        epsilon: norm.epsilon,
    };
    let of_unit = gradient * row(&norm.gamma);
    let along = (of_unit.clone() * unit.clone()).mean_dim(1);
    let mut of_x = of_unit.clone() - unit * along;
    if norm.centred {
        of_x = of_x - of_unit.mean_dim(1);
    }
    (of_x * scale, of_norm)
}

/// What both passes compute.
struct Parts<B: Kernels> {
    /// The rows with a variance of one.
    unit: Tensor<B, 2>,
    /// What they were multiplied with `[rows, 1]`.
    scale: Tensor<B, 2>,
}

impl<B: Kernels> Parts<B> {
    fn new(x: &Tensor<B, 2>, norm: &Norm<FloatTensor<B>>) -> Self {
        let x = whole(x.clone());
        let centred = match norm.centred {
            true => x.clone() - x.mean_dim(1),
            false => x,
        };
        let variance = (centred.clone() * centred.clone()).mean_dim(1);
        let scale = (variance + norm.epsilon).sqrt().recip();
        Self { unit: centred * scale.clone(), scale }
    }
}

/// A vector beside all rows `[1, width]`.
fn row<B: Kernels>(vector: &FloatTensor<B>) -> Tensor<B, 2> {
    whole(tensor::<B, 1>(vector)).unsqueeze()
}

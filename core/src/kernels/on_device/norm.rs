//! Norms over the last dimension, in f32.

use burn::tensor::Tensor;
use burn::tensor::ops::FloatTensor;

use super::primitive;
use crate::kernels::plain::unit_rows;
use crate::kernels::{Kernels, Norm};

/// Gradients of a norm's own.
pub(super) type OfNorm<B> = Norm<Option<FloatTensor<B>>>;

/// From the gradient `[rows, width]` of what a norm gives to that of `x`, plus `more`, and those of the norm's own.
pub(super) fn backward<B: Kernels>(
    x: &Tensor<B, 2>,
    gradient: Tensor<B, 2>,
    norm: &Norm<FloatTensor<B>>,
    wanted: &Norm<bool>,
    more: Option<Tensor<B, 2>>,
) -> (Tensor<B, 2>, OfNorm<B>) {
    let sum = |rows: Tensor<B, 2>| primitive(rows.sum_dim(0).squeeze_dim::<1>(0));
    let gamma = wanted.gamma.then(|| {
        let [unit, _] = unit_rows(x.clone(), norm);
        sum(gradient.clone() * unit)
    });
    let wants_beta = wanted.beta == Some(true);
    let beta = norm.beta.as_ref().map(|_| wants_beta.then(|| sum(gradient.clone())));
    let of_norm = Norm { gamma, beta, centred: norm.centred, epsilon: norm.epsilon };
    (B::norm_rows_gradient(x.clone(), gradient, norm, more), of_norm)
}

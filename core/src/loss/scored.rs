//! Losses of pairs that have scores: CoSENT, AnglE, and the margins of a cross-encoder.

use burn::tensor::activation::relu;
use burn::tensor::{Tensor, TensorData, backend::Backend};

/// Cosines of pairs `[n]` from normalised vectors `[n, dim]`.
pub fn cosines<B: Backend>(a: Tensor<B, 2>, b: Tensor<B, 2>) -> Tensor<B, 1> {
    let [n, _] = a.dims();
    (a * b).sum_dim(1).reshape([n])
}

/// AnglE's similarity of pairs `[n]` from normalised vectors `[n, dim]`: `|cos + sin|`, where the halves of a
/// vector are the real and the imaginary parts of complex numbers (arXiv:2309.12871, section 3.3).
pub fn angle_similarities<B: Backend>(a: Tensor<B, 2>, b: Tensor<B, 2>) -> Tensor<B, 1> {
    let [n, dim] = a.dims();
    // An odd width is as if a zero stood at the end.
    let half = dim.div_ceil(2);
    let parts = |x: Tensor<B, 2>| {
        let last = x.clone().narrow(1, half, dim - half);
        let last = match dim % 2 {
            0 => last,
            _ => Tensor::cat(vec![last, Tensor::zeros([n, 1], &x.device())], 1),
        };
        (x.narrow(1, 0, half), last)
    };
    let cosines = cosines(a.clone(), b.clone());
    let ((first_a, last_a), (first_b, last_b)) = (parts(a), parts(b));
    let sines = (last_a * first_b - first_a * last_b).sum_dim(1).reshape([n]);
    (cosines + sines).abs()
}

/// CoSENT (Su 2022, and sentence-transformers' `CoSENTLoss`): `log(1 + sum exp(scale (s_i - s_j)))` over all
/// pairs of pairs of which `i` has the lower score. With [`angle_similarities`] it is AnglE's loss.
///
/// `similarities` `[n]`; `scores` are what people or a model say of the same pairs. 0 where all scores are equal.
pub fn cosent<B: Backend>(similarities: Tensor<B, 1>, scores: &[f64], scale: f64) -> Tensor<B, 1> {
    let n = scores.len();
    let device = similarities.device();
    let scaled = similarities.mul_scalar(scale);
    let (rows, columns) = (scaled.clone().reshape([n, 1]), scaled.reshape([1, n]));
    let differences = rows.expand([n, n]) - columns.expand([n, n]);
    let counts: Vec<bool> =
        scores.iter().flat_map(|a| scores.iter().map(move |b| a >= b)).collect();
    let hidden = Tensor::from_data(TensorData::new(counts, [n, n]), &device);
    // Far below all others, and finite, as some shader compilers want it.
    let differences = differences.mask_fill(hidden, -1e4).reshape([n * n]);
    let top = relu(differences.clone().max()).detach();
    let sum = (differences - top.clone().expand([n * n])).exp().sum() + top.clone().neg().exp();
    sum.log() + top
}

/// Margin MSE (arXiv:2010.02666): mean of `((q p - q n) - margin)^2` over queries and their negatives.
///
/// `queries` and `positives` `[n, dim]`, `negatives` `[n, k, dim]`; `margins` `[n * k]`, query by query: how much
/// the teacher scores the positive above each negative. Products, not cosines, unless vectors are normalised.
pub fn margin_mse<B: Backend>(
    queries: Tensor<B, 2>,
    positives: Tensor<B, 2>,
    negatives: Tensor<B, 3>,
    margins: &[f64],
) -> Tensor<B, 1> {
    let [n, k, dim] = negatives.dims();
    let device = queries.device();
    let of_positives = (queries.clone() * positives).sum_dim(1);
    let of_negatives = (queries.reshape([n, 1, dim]).expand([n, k, dim]) * negatives).sum_dim(2);
    let margins: Vec<f32> = margins.iter().map(|&margin| margin as f32).collect();
    let margins = Tensor::<B, 2>::from_data(TensorData::new(margins, [n, k]), &device);
    let found = of_positives.expand([n, k]) - of_negatives.reshape([n, k]);
    (found - margins).powf_scalar(2.0).mean()
}

//! What calibrated pruning and quantization compute from the inputs of a projection.

use anyhow::{Result, bail};
use kiln_embed::model::Gram;
use linfa_linalg::cholesky::CholeskyInplace as _;
use linfa_linalg::triangular::{SolveTriangularInplace as _, UPLO};
use ndarray::{Array2, ArrayView2, s};
use rayon::prelude::*;

/// The upper Cholesky factor `U` of the inverse of a Hessian `H = 2 X^T X / rows`, dampened:
/// `H^-1 = U^T U`, `[inputs, inputs]`. Its rows say how the error of one weight is made good by the
/// weights after it (GPTQ, arXiv:2210.17323, section 3.3; SparseGPT, arXiv:2301.00774, section 3.2).
pub(super) struct InverseFactor {
    pub(super) inputs: usize,
    /// Row by row; zero below the diagonal.
    pub(super) upper: Vec<f64>,
    /// Inputs that were always zero; their weights do nothing.
    pub(super) dead: Vec<bool>,
}

impl InverseFactor {
    /// `order` gives the place of each row and column among the inputs; `damping` is a share of the
    /// diagonal's mean that is added to it.
    ///
    /// # Errors
    /// A Hessian that is singular in spite of a hundred times the damping.
    pub(super) fn new(gram: &Gram, order: &[usize], damping: f64) -> Result<Self> {
        let inputs = gram.inputs;
        let at = |row: usize, column: usize| {
            2.0 * gram.sum[order[row] * inputs + order[column]] / gram.rows as f64
        };
        let dead: Vec<bool> = (0..inputs).map(|input| at(input, input) == 0.0).collect();
        let mean = (0..inputs).map(|input| at(input, input)).sum::<f64>() / inputs.max(1) as f64;
        if mean == 0.0 {
            bail!("every calibration text gives zeros here; use other texts");
        }
        for factor in [1.0, 10.0, 100.0] {
            // H turned round by 180 degrees is L L^T; turned back, L is an upper factor of H itself,
            // and its inverse the upper factor of H's inverse.
            let mut turned = Array2::<f64>::zeros((inputs, inputs));
            for row in 0..inputs {
                for column in 0..inputs {
                    turned[(inputs - 1 - row, inputs - 1 - column)] = at(row, column);
                }
                let place = inputs - 1 - row;
                turned[(place, place)] += damping * factor * mean;
                if dead[row] {
                    turned[(place, place)] += 1.0;
                }
            }
            let Some(inverse) = inverse_factor(turned) else {
                continue;
            };
            let mut upper = vec![0.0; inputs * inputs];
            for row in 0..inputs {
                for column in row..inputs {
                    upper[row * inputs + column] = inverse[(inputs - 1 - row, inputs - 1 - column)];
                }
            }
            if upper.iter().all(|value| value.is_finite()) {
                return Ok(Self { inputs, upper, dead });
            }
        }
        bail!(
            "the inputs of this projection are singular even with {} of their mean added; give more or \
             more varied calibration texts, or raise --damping",
            100.0 * damping
        )
    }

    /// A row of the factor, from the diagonal on.
    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.upper[row * self.inputs + row..(row + 1) * self.inputs]
    }
}

/// Rows below which the library factors a matrix as it is.
const LEAF: usize = 64;

/// `L^-1` of a symmetric matrix `L L^T`; absent where it has none. By halves, so that nearly all of
/// the work is in products of matrices:
///
/// ```text
/// A = | A1  .  |   L = | L1  0  |   L^-1 = | L1^-1               0     |
///     | B   A2 |       | M   L2 |          | -L2^-1 M L1^-1      L2^-1 |
/// M = B L1^-T   L2 L2^T = A2 - M M^T
/// ```
fn inverse_factor(mut matrix: Array2<f64>) -> Option<Array2<f64>> {
    let rows = matrix.nrows();
    if rows <= LEAF {
        let lower = matrix.cholesky_into().ok()?;
        let mut inverse = Array2::eye(rows);
        lower.solve_triangular_inplace(&mut inverse, UPLO::Lower).ok()?;
        return Some(inverse);
    }
    let half = rows / 2;
    let first = inverse_factor(matrix.slice(s![..half, ..half]).to_owned())?;
    let between = matrix.slice(s![half.., ..half]).dot(&first.t());
    let rest = &matrix.slice(s![half.., half..]) - &between.dot(&between.t());
    let second = inverse_factor(rest)?;
    matrix.fill(0.0);
    matrix.slice_mut(s![half.., ..half]).assign(&-second.dot(&between).dot(&first));
    matrix.slice_mut(s![..half, ..half]).assign(&first);
    matrix.slice_mut(s![half.., half..]).assign(&second);
    Some(matrix)
}

/// Rows of weights whose outputs are summed up together.
const ROWS: usize = 128;

/// `|(W - V) X|^2 / |W X|^2` for weights `[out, in]` before and after, by the inputs' Gram matrix: how
/// much of the output is lost.
///
/// # Errors
/// A Gram matrix of another width.
pub(super) fn output_error(before: &[f32], after: &[f32], gram: &Gram) -> Result<f64> {
    let inputs = gram.inputs;
    let gram = ArrayView2::from_shape((inputs, inputs), &gram.sum)?;
    // The trace of `W X X^T W^T`.
    let energy = |rows: ArrayView2<'_, f64>| (&rows.dot(&gram) * &rows).sum();
    let of_rows = |(before, after): (&[f32], &[f32])| -> Result<(f64, f64)> {
        let matrix = |values: &[f32]| {
            let wide = values.iter().copied().map(f64::from).collect();
            Array2::from_shape_vec((values.len() / inputs, inputs), wide)
        };
        let (before, after) = (matrix(before)?, matrix(after)?);
        Ok((energy((&before - &after).view()), energy(before.view())))
    };
    let parts = before.par_chunks(ROWS * inputs).zip(after.par_chunks(ROWS * inputs));
    let (lost, whole) =
        parts.map(of_rows).try_reduce(|| (0.0, 0.0), |a, b| Ok((a.0 + b.0, a.1 + b.1)))?;
    Ok(if whole > 0.0 { lost / whole } else { 0.0 })
}

/// `|W - V|^2 / |W|^2`.
pub(super) fn weight_error(before: &[f32], after: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value).powi(2);
    let lost: f64 = before.iter().zip(after).map(|(a, b)| square(a - b)).sum();
    let whole: f64 = before.iter().map(|value| square(*value)).sum();
    if whole > 0.0 { lost / whole } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A Gram matrix of correlated rows.
    pub(in crate::compress) fn gram(
        inputs: usize,
        rows: usize,
        seed: u64,
    ) -> (Gram, Vec<Vec<f64>>) {
        let mut state = seed;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        let lines: Vec<Vec<f64>> = (0..rows)
            .map(|_| {
                let shared = random();
                (0..inputs).map(|i| random() + shared * (1.0 + i as f64 / 8.0)).collect()
            })
            .collect();
        let mut sum = vec![0.0; inputs * inputs];
        for line in &lines {
            for (a, row) in line.iter().zip(sum.chunks_exact_mut(inputs)) {
                row.iter_mut().zip(line).for_each(|(sum, b)| *sum += a * b);
            }
        }
        (Gram::new(inputs, sum, rows).unwrap(), lines)
    }

    #[test]
    fn the_factor_is_that_of_the_inverse() {
        // The last ones are factored by halves, and by halves of these.
        for inputs in [12, LEAF, LEAF + 1, 3 * LEAF - 5] {
            let rows = 4 * inputs;
            let (gram, _) = gram(inputs, rows, 3);
            let order: Vec<usize> = (0..inputs).rev().collect();
            let factor = InverseFactor::new(&gram, &order, 0.01).unwrap();
            let u = Array2::from_shape_vec((inputs, inputs), factor.upper).unwrap();
            let twice = 2.0 / rows as f64;
            let trace: f64 = (0..inputs).map(|i| twice * gram.sum[i * (inputs + 1)]).sum();
            let h = Array2::from_shape_fn((inputs, inputs), |(a, b)| {
                let damping = if a == b { 0.01 * trace / inputs as f64 } else { 0.0 };
                twice * gram.sum[order[a] * inputs + order[b]] + damping
            });
            let identity = u.t().dot(&u).dot(&h);
            for ((a, b), value) in identity.indexed_iter() {
                assert!((value - f64::from(u8::from(a == b))).abs() < 1e-8, "{a} {b} {value}");
            }
        }
    }

    #[test]
    fn what_is_not_positive_has_no_factor() {
        for rows in [3, 2 * LEAF] {
            let mut matrix = Array2::<f64>::eye(rows);
            matrix[(rows - 1, rows - 1)] = -1.0;
            assert!(inverse_factor(matrix).is_none());
        }
    }

    #[test]
    fn the_lost_output_is_what_it_says() {
        let (gram, lines) = gram(8, 20, 5);
        let before: Vec<f32> = (0..24).map(|i| (i as f32).sin()).collect();
        let after: Vec<f32> = before.iter().map(|weight| (weight * 4.0).round() / 4.0).collect();
        let (mut lost, mut whole) = (0.0, 0.0);
        for x in &lines {
            for (a, b) in before.chunks(8).zip(after.chunks(8)) {
                let dot =
                    |w: &[f32]| -> f64 { w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum() };
                lost += (dot(a) - dot(b)).powi(2);
                whole += dot(a).powi(2);
            }
        }
        assert!((output_error(&before, &after, &gram).unwrap() - lost / whole).abs() < 1e-6);
    }

    #[test]
    fn inputs_that_are_always_zero_do_no_harm() {
        let (mut gram, _) = gram(6, 30, 1);
        for i in 0..6 {
            gram.sum[i * 6 + 2] = 0.0;
            gram.sum[2 * 6 + i] = 0.0;
        }
        let factor = InverseFactor::new(&gram, &[0, 1, 2, 3, 4, 5], 0.01).unwrap();
        assert!(factor.dead[2] && !factor.dead[1]);
        gram.sum.fill(0.0);
        assert!(InverseFactor::new(&gram, &[0, 1, 2, 3, 4, 5], 0.01).is_err());
    }
}

//! Layer and RMS norms of rows, and their gradients.

use multiversion::multiversion;

use super::{Primitive, floats};
use crate::kernels::Norm;
use crate::parallel::each_part;

/// Rows of a core; a gradient of factors is summed in these parts, whatever the number of cores.
const PART: usize = 128;
/// Partial sums, so that loops are SIMD.
const LANES: usize = 16;

/// Of rows as wide as the norm.
pub(super) fn normed(values: &[f32], norm: &Norm<Primitive>) -> Vec<f32> {
    let mut to = values.to_vec();
    norm_in_place(&mut to, norm);
    to
}

pub(super) fn norm_in_place(values: &mut [f32], norm: &Norm<Primitive>) {
    let (gamma, beta) = (floats(&norm.gamma), norm.beta.as_ref().map(floats));
    each_part(values, PART * gamma.len(), |_, rows| {
        norm_rows(rows, gamma, beta, norm.centred, norm.epsilon);
    });
}

/// What a row is multiplied with after its mean is subtracted, and that mean.
#[inline(always)]
fn statistics(row: &[f32], centred: bool, epsilon: f32) -> (f32, f32) {
    let width = row.len() as f32;
    let mean = if centred { sum(row, |x| x) / width } else { 0.0 };
    let variance = sum(row, |x| (x - mean) * (x - mean)) / width;
    (1.0 / (variance + epsilon).sqrt(), mean)
}

#[inline(always)]
fn sum(row: &[f32], of: impl Fn(f32) -> f32) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += of(*value);
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|value| of(*value)).sum::<f32>()
}

#[inline(always)]
fn sum_of_two(left: &[f32], right: &[f32], of: impl Fn(f32, f32) -> f32) -> f32 {
    let (chunks, rest) = left.as_chunks::<LANES>();
    let (others, other_rest) = right.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for (chunk, other) in chunks.iter().zip(others) {
        for ((sum, left), right) in sums.iter_mut().zip(chunk).zip(other) {
            *sum += of(*left, *right);
        }
    }
    let rest = rest.iter().zip(other_rest).map(|(left, right)| of(*left, *right));
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn norm_rows(rows: &mut [f32], gamma: &[f32], beta: Option<&[f32]>, centred: bool, epsilon: f32) {
    for row in rows.chunks_exact_mut(gamma.len()) {
        let (scale, mean) = statistics(row, centred, epsilon);
        match beta {
            Some(beta) => {
                for ((value, gamma), beta) in row.iter_mut().zip(gamma).zip(beta) {
                    *value = (*value - mean) * scale * gamma + beta;
                }
            }
            None => {
                for (value, gamma) in row.iter_mut().zip(gamma) {
                    *value = (*value - mean) * scale * gamma;
                }
            }
        }
    }
}

/// Turns the gradient of a norm's output into that of its `input`; gives that of its factors, and of
/// what it adds, where they are wanted.
pub(super) fn backward(
    input: &[f32],
    gradient: &mut [f32],
    norm: &Norm<Primitive>,
    wanted: &Norm<bool>,
) -> Norm<Option<Vec<f32>>> {
    let gamma = floats(&norm.gamma);
    let width = gamma.len();
    let wants_beta = wanted.beta.unwrap_or(false);
    let sums = if wanted.gamma || wants_beta { 2 * width } else { 0 };
    // Parts of rows with the sums of their gradients.
    let mut parts: Vec<(&mut [f32], Vec<f32>)> =
        gradient.chunks_mut(PART * width).map(|rows| (rows, vec![0.0; sums])).collect();
    each_part(&mut parts, 1, |number, part| {
        for (gradient, sums) in part {
            let input = &input[number * PART * width..][..gradient.len()];
            backward_rows(input, gradient, gamma, norm.centred, norm.epsilon, sums);
        }
    });
    let mut total = vec![0.0; sums];
    for (_, sums) in &parts {
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    let of_beta = wants_beta.then(|| total[width..].to_vec());
    total.truncate(width);
    Norm {
        gamma: wanted.gamma.then_some(total),
        beta: wanted.beta.map(|_| of_beta),
        centred: norm.centred,
        epsilon: norm.epsilon,
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
fn backward_rows(
    input: &[f32],
    gradient: &mut [f32],
    gamma: &[f32],
    centred: bool,
    epsilon: f32,
    sums: &mut [f32],
) {
    let width = gamma.len();
    for (x, gradient) in input.chunks_exact(width).zip(gradient.chunks_exact_mut(width)) {
        let (scale, mean) = statistics(x, centred, epsilon);
        if !sums.is_empty() {
            let (of_gamma, of_beta) = sums.split_at_mut(width);
            for ((sum, x), gradient) in of_gamma.iter_mut().zip(x).zip(&*gradient) {
                *sum += (x - mean) * scale * gradient;
            }
            for (sum, gradient) in of_beta.iter_mut().zip(&*gradient) {
                *sum += gradient;
            }
        }
        for (gradient, gamma) in gradient.iter_mut().zip(gamma) {
            *gradient *= gamma;
        }
        let along = sum_of_two(gradient, x, |gradient, x| gradient * ((x - mean) * scale));
        let along = along / width as f32;
        let level = if centred { sum(gradient, |x| x) / width as f32 } else { 0.0 };
        for (gradient, x) in gradient.iter_mut().zip(x) {
            *gradient = scale * (*gradient - level - (x - mean) * scale * along);
        }
    }
}

//! The inside of a feed-forward block, `act(gate) * up` or `act(up)`, and its gradient.

use multiversion::multiversion;

use crate::config::Activation;
use crate::kernels::host::elementwise::{erf, exp, fuses};
use crate::parallel::each_part;

/// Values of a core.
const PART: usize = 1 << 14;

/// Turns `up` into `act(gate) * up`, or into `act(up)` without a gate.
pub(super) fn activate(activation: Activation, gate: Option<&[f32]>, up: &mut [f32]) {
    each_part(up, PART, |number, up| {
        let gate = gate.map(|gate| &gate[number * PART..][..up.len()]);
        match activation {
            Activation::Gelu => gelu(gate, up),
            Activation::GeluTanh => gelu_tanh(gate, up),
            Activation::Silu => silu(gate, up),
            Activation::Relu => relu(gate, up),
        }
    });
}

/// Turns the gradient of what [`activate`] makes of `up` into that of `up`; gives that of the gate.
pub(super) fn backward(
    activation: Activation,
    gate: Option<&[f32]>,
    up: &[f32],
    gradient: &mut [f32],
) -> Option<Vec<f32>> {
    let mut of_gate = gate.map(|gate| vec![0.0; gate.len()]);
    let empty: &mut [f32] = &mut [];
    let of_gates = of_gate.as_deref_mut().unwrap_or(empty);
    let mut gates = of_gates.chunks_mut(PART);
    let mut parts: Vec<_> =
        gradient.chunks_mut(PART).map(|part| (part, gates.next().unwrap_or_default())).collect();
    each_part(&mut parts, 1, |number, parts| {
        for (gradient, of_gate) in parts {
            let part = number * PART..number * PART + gradient.len();
            let (up, gate) = (&up[part.clone()], gate.map(|gate| &gate[part]));
            match activation {
                Activation::Gelu => gelu_backward(gate, up, gradient, of_gate),
                Activation::GeluTanh => gelu_tanh_backward(gate, up, gradient, of_gate),
                Activation::Silu => silu_backward(gate, up, gradient, of_gate),
                Activation::Relu => relu_backward(gate, up, gradient, of_gate),
            }
        }
    });
    of_gate
}

/// The two halves of each row.
pub(super) fn halves(rows: &[f32], width: usize) -> (Vec<f32>, Vec<f32>) {
    let half = |second: bool| {
        let mut to = Vec::with_capacity(rows.len() / 2);
        for row in rows.chunks_exact(width.max(1)) {
            let (first, last) = row.split_at(width / 2);
            to.extend_from_slice(if second { last } else { first });
        }
        to
    };
    (half(false), half(true))
}

/// Rows `[first, second]` of two of `width`.
pub(super) fn side_by_side(first: &[f32], second: &[f32], width: usize) -> Vec<f32> {
    let mut to = Vec::with_capacity(2 * first.len());
    let rows = first.chunks_exact(width.max(1)).zip(second.chunks_exact(width.max(1)));
    for (first, second) in rows {
        to.extend_from_slice(first);
        to.extend_from_slice(second);
    }
    to
}

/// The versions of an activation for whole rows, from its value and its derivative.
macro_rules! rows {
    ($forward:ident, $backward:ident, $value:expr, $both:expr) => {
        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
        fn $forward(gate: Option<&[f32]>, up: &mut [f32]) {
            let fused = fuses!();
            match gate {
                Some(gate) => {
                    for (up, gate) in up.iter_mut().zip(gate) {
                        *up *= $value(*gate, fused);
                    }
                }
                None => {
                    for up in up {
                        *up = $value(*up, fused);
                    }
                }
            }
        }

        #[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
        fn $backward(gate: Option<&[f32]>, up: &[f32], gradient: &mut [f32], of_gate: &mut [f32]) {
            let fused = fuses!();
            match gate {
                Some(gate) => {
                    let inputs = gate.iter().zip(up);
                    for ((gradient, of_gate), (gate, up)) in
                        gradient.iter_mut().zip(of_gate).zip(inputs)
                    {
                        let (value, slope) = $both(*gate, fused);
                        *of_gate = *gradient * up * slope;
                        *gradient *= value;
                    }
                }
                None => {
                    for (gradient, up) in gradient.iter_mut().zip(up) {
                        let (_, slope) = $both(*up, fused);
                        *gradient *= slope;
                    }
                }
            }
        }
    };
}

rows!(gelu, gelu_backward, gelu_of, gelu_and_slope);
rows!(gelu_tanh, gelu_tanh_backward, gelu_tanh_of, gelu_tanh_and_slope);
rows!(silu, silu_backward, silu_of, silu_and_slope);
rows!(relu, relu_backward, relu_of, relu_and_slope);

/// The normal distribution's share below a number.
#[inline(always)]
fn below(x: f32, fused: bool) -> f32 {
    0.5 * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2, fused))
}

#[inline(always)]
fn gelu_of(x: f32, fused: bool) -> f32 {
    x * below(x, fused)
}

#[inline(always)]
fn gelu_and_slope(x: f32, fused: bool) -> (f32, f32) {
    let (share, density) = (below(x, fused), 0.398_942_3 * exp(-0.5 * x * x, fused));
    (x * share, share + x * density)
}

/// tanh, without a branch.
#[inline(always)]
fn tanh(x: f32, fused: bool) -> f32 {
    let power = exp(-2.0 * x.abs(), fused);
    ((1.0 - power) / (1.0 + power)).copysign(x)
}

const TANH_SCALE: f32 = 0.797_884_6;
const TANH_CUBE: f32 = 0.044_715;

#[inline(always)]
fn gelu_tanh_of(x: f32, fused: bool) -> f32 {
    0.5 * x * (1.0 + tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x), fused))
}

#[inline(always)]
fn gelu_tanh_and_slope(x: f32, fused: bool) -> (f32, f32) {
    let tanh = tanh(TANH_SCALE * (x + TANH_CUBE * x * x * x), fused);
    let inner = TANH_SCALE * (1.0 + 3.0 * TANH_CUBE * x * x);
    (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner)
}

/// The logistic function; exp of -|x| cannot overflow.
#[inline(always)]
fn logistic(x: f32, fused: bool) -> f32 {
    let power = exp(-x.abs(), fused);
    (if x < 0.0 { power } else { 1.0 }) / (1.0 + power)
}

#[inline(always)]
fn silu_of(x: f32, fused: bool) -> f32 {
    x * logistic(x, fused)
}

#[inline(always)]
fn silu_and_slope(x: f32, fused: bool) -> (f32, f32) {
    let share = logistic(x, fused);
    (x * share, share * (1.0 + x * (1.0 - share)))
}

#[inline(always)]
fn relu_of(x: f32, _: bool) -> f32 {
    if x > 0.0 || x.is_nan() { x } else { 0.0 }
}

#[inline(always)]
fn relu_and_slope(x: f32, fused: bool) -> (f32, f32) {
    (relu_of(x, fused), if x > 0.0 { 1.0 } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_the_differences_of_values() {
        let step = 1e-3f64;
        for activation in
            [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu]
        {
            let x: Vec<f32> = (-700..700).map(|i| i as f32 * 0.01 + 0.003).collect();
            let moved = |by: f64| {
                let mut values: Vec<f32> = x.iter().map(|x| x + by as f32).collect();
                activate(activation, None, &mut values);
                values
            };
            let (above, below) = (moved(step), moved(-step));
            let mut slopes = vec![1.0; x.len()];
            assert!(backward(activation, None, &x, &mut slopes).is_none());
            let (ones, mut of_up) = (vec![1.0; x.len()], vec![2.0; x.len()]);
            let of_gate = backward(activation, Some(&x), &ones, &mut of_up).unwrap();
            let values = moved(0.0);
            for i in 0..x.len() {
                let difference = f64::from(above[i] - below[i]) / (2.0 * step);
                assert!(
                    (f64::from(slopes[i]) - difference).abs() < 2e-3,
                    "{activation:?} {}",
                    x[i]
                );
                assert!((of_gate[i] - 2.0 * slopes[i]).abs() < 1e-6);
                assert!((of_up[i] - 2.0 * values[i]).abs() < 1e-5);
            }
            let mut odd = [f32::NAN];
            activate(activation, None, &mut odd);
            assert!(odd[0].is_nan(), "{activation:?}");
        }
    }
}

//! Activations, value by value.

use multiversion::multiversion;

/// Whether the version of a `#[multiversion]` function that is being compiled has an instruction for `a b + c`, to be handed
/// on to what is inlined into it: without one it is a call for each number.
macro_rules! fuses {
    () => {
        multiversion::target::target_cfg_f!(any(
            target_feature = "fma",
            target_feature = "avx512f",
            target_arch = "aarch64"
        ))
    };
}
pub(super) use fuses;

/// `a b + c`, rounded once where `fused`.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32, fused: bool) -> f32 {
    if fused { a.mul_add(b, c) } else { a * b + c }
}

/// Exact GELU, in place.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn gelu(values: &mut [f32]) {
    let fused = fuses!();
    for value in values {
        *value = 0.5 * *value * (1.0 + erf(*value * std::f32::consts::FRAC_1_SQRT_2, fused));
    }
}

/// The error function as x times a rational function of x^2, accurate to a few units in the last
/// place of f32; beyond 3.8325 it rounds to 1 (the coefficients are those of Eigen and XLA).
#[inline(always)]
pub(super) fn erf(x: f32, fused: bool) -> f32 {
    let x2 = x * x;
    let mut p = -2.726_142_3e-10f32;
    p = multiply_add(p, x2, 2.770_681_4e-8, fused);
    p = multiply_add(p, x2, -2.101_024e-6, fused);
    p = multiply_add(p, x2, -5.692_506_4e-5, fused);
    p = multiply_add(p, x2, -7.349_906_3e-4, fused);
    p = multiply_add(p, x2, -2.954_6e-3, fused);
    p = multiply_add(p, x2, -1.609_603_3e-2, fused);
    let mut q = -1.456_607_2e-5f32;
    q = multiply_add(q, x2, -2.133_740_6e-4, fused);
    q = multiply_add(q, x2, -1.682_827e-3, fused);
    q = multiply_add(q, x2, -7.373_329_2e-3, fused);
    q = multiply_add(q, x2, -1.426_474e-2, fused);
    // A select, not a branch, so that the loop stays SIMD.
    if x.abs() >= 3.832_5 { 1f32.copysign(x) } else { x * p / q }
}

/// `silu(gate) * up`, in place of `gate`; both have the same length.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2+fma"))]
pub(super) fn silu_product(gate: &mut [f32], up: &[f32]) {
    let fused = fuses!();
    for (gate, up) in gate.iter_mut().zip(up) {
        // exp of -|x|, which cannot overflow.
        let power = exp(-gate.abs(), fused);
        let share = if *gate < 0.0 { power } else { 1.0 };
        *gate = *gate * share / (1.0 + power) * up;
    }
}

/// `e^x` for `x` up to 0, to a few units in the last place: `2^n` times a polynomial in the
/// remainder (coefficients of the Cephes library). NaN stays NaN.
#[inline(always)]
pub(super) fn exp(x: f32, fused: bool) -> f32 {
    // Below this the result is subnormal.
    let x = if x < -87.0 { -87.0 } else { x };
    // Adding 1.5 * 2^23 rounds to an integer, which then sits in the lowest bits.
    let magic = 12_582_912.0f32;
    let shifted = multiply_add(x, std::f32::consts::LOG2_E, magic, fused);
    let n = shifted - magic;
    let r = multiply_add(n, 2.121_944_4e-4, multiply_add(n, -0.693_359_4, x, fused), fused);
    let mut p = 1.987_569_1e-4f32;
    p = multiply_add(p, r, 1.398_199_9e-3, fused);
    p = multiply_add(p, r, 8.333_452e-3, fused);
    p = multiply_add(p, r, 4.166_579_6e-2, fused);
    p = multiply_add(p, r, 0.166_666_66, fused);
    p = multiply_add(p, r, 0.5, fused);
    p = multiply_add(p * r, r, r, fused) + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    p * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_to_some_units() {
        for fused in [false, true] {
            let exp = |x| exp(x, fused);
            for i in 0..197_000 {
                let x = -(i as f32) * 4.4e-4;
                let exact = f64::from(x).exp();
                assert!((f64::from(exp(x)) - exact).abs() <= 3e-7 * exact, "{x}");
            }
            assert!(exp(f32::NAN).is_nan());
            assert!(exp(-1e30) < 1e-37 && exp(f32::NEG_INFINITY) < 1e-37);
        }
    }

    #[test]
    fn silu_is_exact_to_some_units() {
        let x: Vec<f32> = (-90_000..=90_000).map(|i| i as f32 / 1000.0).collect();
        let up: Vec<f32> = (0..x.len()).map(|i| (i as f32 * 0.7).sin()).collect();
        let mut actual = x.clone();
        silu_product(&mut actual, &up);
        for ((x, up), actual) in x.iter().zip(&up).zip(actual) {
            let (wide, up) = (f64::from(*x), f64::from(*up));
            let exact = wide / (1.0 + (-wide).exp()) * up;
            assert!(
                (f64::from(actual) - exact).abs() <= 6e-7 * exact.abs() + 1e-30,
                "{x} {actual}"
            );
        }
        let mut odd = [f32::NAN, 1e30, -1e30, f32::INFINITY];
        silu_product(&mut odd, &[1.0; 4]);
        assert!(
            odd[0].is_nan() && odd[1] == 1e30 && odd[2].abs() < 1e-5 && odd[3] == f32::INFINITY
        );
    }
}

//! GPTQ (arXiv:2210.17323): rounds one input after another, and lets the inputs after it make good
//! what each rounding costs.

use anyhow::Result;
use kiln_embed::model::Gram;
use kiln_embed::quant::{Quantized, Scheme, block_scale};
use rayon::prelude::*;

use super::linear_algebra::InverseFactor;

/// Settings of GPTQ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gptq {
    /// Share of the Hessian's mean diagonal that is added to it.
    pub damping: f64,
    /// Inputs with the largest activations first. Scales are then those of the weights before
    /// anything is rounded.
    pub act_order: bool,
}

/// Rounds weights `[out, in]`, and leaves in their place what the codes stand for.
///
/// # Errors
/// Inputs that the block does not divide, or a singular Hessian.
pub fn gptq(
    weights: &mut [f32],
    shape: [usize; 2],
    scheme: Scheme,
    gram: &Gram,
    settings: Gptq,
) -> Result<Quantized> {
    let [_, inputs] = shape;
    scheme.check(inputs)?;
    let block = scheme.block_in(inputs);
    let mut order: Vec<usize> = (0..inputs).collect();
    if settings.act_order {
        let energy = |input: &usize| gram.sum[input * inputs + input];
        order.sort_by(|a, b| energy(b).total_cmp(&energy(a)));
    }
    let factor = InverseFactor::new(gram, &order, settings.damping)?;
    let number = scheme.number;
    let scales: Vec<f32> = weights
        .par_chunks_exact_mut(inputs)
        .flat_map_iter(|row| {
            // Weights of inputs that are always zero would only widen their block's range.
            for (place, &input) in order.iter().enumerate() {
                if factor.dead[place] {
                    row[input] = 0.0;
                }
            }
            let mut scales: Vec<f32> =
                row.chunks_exact(block).map(|block| block_scale(block, number)).collect();
            let mut left: Vec<f64> = order.iter().map(|&input| f64::from(row[input])).collect();
            for (place, &input) in order.iter().enumerate() {
                let of_block = input / block;
                // In the inputs' own order the scale can wait for what the block has become.
                if !settings.act_order && input.is_multiple_of(block) {
                    let now: Vec<f32> =
                        left[place..place + block].iter().map(|&weight| weight as f32).collect();
                    scales[of_block] = block_scale(&now, number);
                }
                let scale = scales[of_block];
                let weight = left[place];
                let rounded = match scale {
                    0.0 => 0.0,
                    scale => {
                        number.decode(number.encode((weight / f64::from(scale)) as f32)) * scale
                    }
                };
                let line = factor.row(place);
                let error = (weight - f64::from(rounded)) / line[0];
                for (later, value) in left[place..].iter_mut().zip(line) {
                    *later -= error * value;
                }
                row[input] = rounded;
            }
            scales
        })
        .collect();
    let quantized = Quantized::round_with(weights, shape, scheme, scales)?;
    weights.copy_from_slice(&quantized.values());
    Ok(quantized)
}

#[cfg(test)]
mod tests {
    use super::super::linear_algebra::output_error;
    use super::super::linear_algebra::tests::gram;
    use super::*;

    #[test]
    fn it_loses_less_than_rounding() {
        let (gram, _) = gram(64, 200, 9);
        let before: Vec<f32> = (0..64 * 20).map(|i| (i as f32 * 1.7).sin()).collect();
        for text in ["int4:32", "int4:channel", "int8:32"] {
            let scheme: Scheme = text.parse().unwrap();
            let plain = Quantized::round(&before, [20, 64], scheme).unwrap().values();
            let plain = output_error(&before, &plain, &gram).unwrap();
            for act_order in [false, true] {
                let mut after = before.clone();
                let settings = Gptq { damping: 0.01, act_order };
                let quantized = gptq(&mut after, [20, 64], scheme, &gram, settings).unwrap();
                assert_eq!(quantized.values(), after);
                let actual = output_error(&before, &after, &gram).unwrap();
                assert!(actual < 0.7 * plain, "{text} {act_order}: {actual} {plain}");
            }
        }
    }

    #[test]
    fn independent_inputs_leave_nothing_to_make_good() {
        let (mut gram, _) = gram(32, 50, 2);
        gram.sum.fill(0.0);
        (0..32).for_each(|i| gram.sum[i * 33] = 1.0);
        let before: Vec<f32> = (0..64).map(|i| (i as f32 * 0.9).cos()).collect();
        let scheme: Scheme = "int4:32".parse().unwrap();
        let plain = Quantized::round(&before, [2, 32], scheme).unwrap();
        let mut after = before.clone();
        let settings = Gptq { damping: 0.01, act_order: false };
        assert_eq!(gptq(&mut after, [2, 32], scheme, &gram, settings).unwrap(), plain);
    }
}

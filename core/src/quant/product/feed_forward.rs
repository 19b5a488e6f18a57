//! A feed-forward network of packed weights in one go: its inside, several times as wide as what goes in
//! and comes out, never leaves the cache.

use super::super::activations::Activations;
use super::super::packed::{LANES, PackedMatrix};
use super::{Unset, rows_of_part, written};
use crate::parallel::{cores, each_part};

/// Columns of the inside that are computed, activated and rounded at a time, as far as blocks allow.
const STRIP: usize = 128;

/// Weights `[inputs, outputs]` and their bias.
#[derive(Clone, Copy)]
pub(crate) struct Biased<'a> {
    pub(crate) weights: &'a PackedMatrix,
    pub(crate) bias: Option<&'a [f32]>,
}

/// What the inside is multiplied with.
#[derive(Clone, Copy)]
pub(crate) enum Gate<'a> {
    /// Nothing.
    None,
    /// A projection of its own.
    Apart(Biased<'a>),
    /// The first half of the outputs of `up`.
    Joined,
}

/// `act(x gate) (x up) down`, or `act(x up) down` without a gate: `[rows, inputs]` to `[rows, outputs]`, with the
/// very bits that the products have one after the other. `activate` turns `up` into `act(gate) up`.
///
/// `None` where the products do not follow from one another or cannot be cut into strips, and where there are too
/// few rows to keep all cores busy.
pub(crate) fn feed_forward(
    x: &[f32],
    up: Biased<'_>,
    gate: Gate<'_>,
    down: Biased<'_>,
    activate: impl Fn(Option<&[f32]>, &mut [f32]) + Sync,
) -> Option<Vec<f32>> {
    let (inputs, inner, outputs) = (up.weights.inputs, down.weights.inputs, down.weights.outputs);
    let strip = strip(inner, down.weights.block)?;
    let (joined, wide) = match gate {
        Gate::Joined => (inner, 2 * inner),
        _ => (0, inner),
    };
    let is_wide = |of: Biased<'_>, shape: [usize; 2]| {
        of.weights.shape() == shape && of.bias.is_none_or(|bias| bias.len() == shape[1])
    };
    let fits = inputs > 0
        && outputs > 0
        && x.len().is_multiple_of(inputs)
        && is_wide(up, [inputs, wide])
        && is_wide(down, [inner, outputs])
        && joined.is_multiple_of(LANES)
        && match gate {
            Gate::Apart(gate) => is_wide(gate, [inputs, inner]),
            _ => true,
        };
    let rows = x.len() / inputs.max(1);
    // Activations of both products in bytes, and two strips in f32.
    let part = rows_of_part(rows, rows * ((inputs + inner) / 4 + 2 * strip));
    if !fits || rows == 0 || rows.div_ceil(part) < cores() {
        return None;
    }
    let multiply = |y: &mut [Unset]| {
        each_part(y, part * outputs, |number, y| {
            let rows = y.len() / outputs;
            let x = &x[number * part * inputs..][..rows * inputs];
            let rounded = Activations::quantize(x, up.weights);
            let inside = Inside { rows, first: joined, up, gate, x, rounded };
            let mut inner = Activations::zeros(rows, down.weights);
            inside.fill(&mut inner, strip, &activate);
            down.weights.outputs(0..outputs).product(&inner, down.bias, y);
        });
    };
    // SAFETY: the parts are all of `y`, and the product of a part writes every output of its rows.
    Some(unsafe { written(rows * outputs, multiply) })
}

/// Columns of a strip: whole blocks of the product that takes them and pairs of groups of the one that makes them.
fn strip(inner: usize, block: usize) -> Option<usize> {
    (block..=inner.min(4 * STRIP))
        .step_by(block)
        .find(|strip| strip.is_multiple_of(2 * LANES) && (*strip >= STRIP || *strip == inner))
}

/// Some rows on their way into the inside.
struct Inside<'a> {
    rows: usize,
    /// First output of `up` behind a gate in the same matrix.
    first: usize,
    up: Biased<'a>,
    gate: Gate<'a>,
    x: &'a [f32],
    /// As the product with `up` takes them.
    rounded: Activations,
}

impl Inside<'_> {
    /// Rounds the activated inside strip by strip.
    fn fill(
        &self,
        to: &mut Activations,
        strip: usize,
        activate: impl Fn(Option<&[f32]>, &mut [f32]),
    ) {
        let inner = self.up.weights.outputs - self.first;
        let own = match self.gate {
            Gate::Apart(gate) if !self.rounded.are_for(gate.weights) => {
                Some(Activations::quantize(self.x, gate.weights))
            }
            _ => None,
        };
        let of_gate = match self.gate {
            Gate::None => None,
            Gate::Apart(gate) => Some((gate, own.as_ref().unwrap_or(&self.rounded))),
            Gate::Joined => Some((self.up, &self.rounded)),
        };
        for first in (0..inner).step_by(strip) {
            let width = strip.min(inner - first);
            let of = |of: Biased<'_>, x: &Activations, first: usize| {
                let range = first..first + width;
                let multiply = |y: &mut [Unset]| {
                    let bias = of.bias.map(|bias| &bias[range.clone()]);
                    of.weights.outputs(range.clone()).product(x, bias, y);
                };
                // SAFETY: the product writes every output of its rows.
                unsafe { written(self.rows * width, multiply) }
            };
            let gate = of_gate.map(|(gate, x)| of(gate, x, first));
            let mut up = of(self.up, &self.rounded, self.first + first);
            activate(gate.as_deref(), &mut up);
            to.set(first, &up, width);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{Quantized, Scheme};
    use proptest::prelude::*;

    fn numbers(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + 31 * seed) as f32 * 0.737).sin()).collect()
    }

    fn packed(shape @ [outputs, inputs]: [usize; 2], scheme: &str, seed: usize) -> PackedMatrix {
        let scheme: Scheme = scheme.parse().unwrap();
        let weights = numbers(outputs * inputs, seed);
        PackedMatrix::new(&[Quantized::round(&weights, shape, scheme).unwrap()]).unwrap()
    }

    fn activate(gate: Option<&[f32]>, up: &mut [f32]) {
        match gate {
            Some(gate) => up.iter_mut().zip(gate).for_each(|(up, gate)| *up *= gate.max(0.0)),
            None => up.iter_mut().for_each(|up| *up = up.max(0.0)),
        }
    }

    /// As one of many workers, which has no cores besides its own.
    fn alone<R: Send>(run: impl FnOnce() -> R + Send) -> R {
        rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap().install(run)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn the_bits_are_those_of_one_product_after_the_other(
            rows in prop_oneof![Just(1usize), 20usize..90], hidden in 1usize..4, strips in 1usize..4, last in 0usize..2,
            outputs in 1usize..40, kind in 0usize..3, biased in prop::bool::ANY, seed in 0usize..1000,
            schemes in prop::sample::select(vec![
                ["int8:32", "int8:32"], ["int4:32", "int8:64"], ["int8:64", "int8:64"], ["int8:channel", "int4:32"],
            ]),
        ) {
            let (inputs, inner) = (64 * hidden, STRIP * strips + 64 * last);
            let wide = if kind == 2 { 2 * inner } else { inner };
            let up = packed([wide, inputs], schemes[0], seed);
            // Rounds what goes in its own way.
            let gate = packed([inner, inputs], schemes[1], seed + 1);
            let down = packed([outputs, inner], schemes[1], seed + 2);
            let (x, bias) = (numbers(rows * inputs, seed + 3), numbers(wide.max(outputs), seed + 4));
            let bias_of = |width: usize| biased.then(|| &bias[..width]);
            let of = |weights, width| Biased { weights, bias: bias_of(width) };
            let how = match kind {
                0 => Gate::None,
                1 => Gate::Apart(of(&gate, inner)),
                _ => Gate::Joined,
            };
            let whole = alone(|| feed_forward(&x, of(&up, wide), how, of(&down, outputs), activate));

            let both = up.product(&x, bias_of(wide)).unwrap();
            let mut inside: Vec<f32> =
                both.chunks_exact(wide).flat_map(|row| row[wide - inner..].to_vec()).collect();
            let gate = match kind {
                0 => None,
                1 => Some(gate.product(&x, bias_of(inner)).unwrap()),
                _ => Some(both.chunks_exact(wide).flat_map(|row| row[..inner].to_vec()).collect()),
            };
            activate(gate.as_deref(), &mut inside);
            let expected = down.product(&inside, bias_of(outputs)).unwrap();
            prop_assert_eq!(whole.as_deref().map(bits), Some(bits(&expected)));
            // Of few rows each core takes some of the outputs.
            let together = feed_forward(&x, of(&up, wide), how, of(&down, outputs), activate);
            prop_assert!(together.is_none_or(|together| bits(&together) == bits(&expected)));
        }
    }

    #[test]
    fn what_does_not_follow_from_one_another_is_left_to_the_products() {
        let (up, down) = (packed([128, 64], "int8:32", 1), packed([64, 160], "int8:32", 2));
        let (x, of) = (numbers(200 * 64, 3), |weights| Biased { weights, bias: None });
        assert!(feed_forward(&x, of(&up), Gate::None, of(&down), activate).is_none());
        // A strip is whole blocks, and so are the columns that make it.
        assert_eq!(strip(1536, 32), Some(128));
        assert_eq!(strip(1200, 100), None);
        assert_eq!(strip(3072, 3072), None);
        assert_eq!(strip(64, 32), Some(64));
        assert_eq!(strip(48, 16), None);
    }
}

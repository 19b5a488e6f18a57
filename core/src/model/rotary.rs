//! Rotary position embedding (RoFormer, arXiv:2104.09864) with the llama3, linear, proportional, NTK and YaRN scalings.

use std::f64::consts::PI;

use burn::module::Module;
use burn::tensor::{Tensor, TensorData, backend::Backend};

use crate::config::{Rope, RopeScaling};
use crate::kernels::RotaryTables;

/// Rotates the heads of queries and keys by angles that grow with the position.
#[derive(Module, Clone, Debug, Default)]
pub struct Rotary {
    /// Radians per position for each pair of dimensions: `[head_dim / 2]`.
    #[module(skip)]
    inverse_frequencies: Vec<f32>,
    /// Factor on cos and sin (YaRN's attention temperature).
    #[module(skip)]
    scale: f32,
}

impl Rotary {
    /// Frequencies for heads of the given width.
    pub fn new(rope: &Rope, head_dim: usize) -> Self {
        let scale = match rope.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor as f32,
            _ => 1.0,
        };
        Self { inverse_frequencies: inverse_frequencies(rope, head_dim), scale }
    }

    /// Tables for positions `0..seq`; only the distance of two positions matters, so padding
    /// on the left needs no shift.
    pub(super) fn angles<B: Backend>(&self, seq: usize, device: &B::Device) -> RotaryTables<B> {
        let half = self.inverse_frequencies.len();
        let table = |f: fn(f32) -> f32| {
            let mut values = Vec::with_capacity(seq * half * 2);
            for position in 0..seq {
                for _ in 0..2 {
                    values.extend(
                        self.inverse_frequencies
                            .iter()
                            .map(|w| f(position as f32 * w) * self.scale),
                    );
                }
            }
            Tensor::from_data(TensorData::new(values, [1, 1, seq, half * 2]), device)
        };
        (table(f32::cos), table(f32::sin))
    }
}

/// Radians per position for each pair of dimensions, `[head_dim / 2]`.
pub fn inverse_frequencies(rope: &Rope, head_dim: usize) -> Vec<f32> {
    let pairs = head_dim / 2;
    let plain = |pair: usize| rope.theta.powf(-2.0 * pair as f64 / head_dim as f64);
    let frequency = |pair: usize| -> f64 {
        let frequency = plain(pair);
        match rope.scaling {
            RopeScaling::Default => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Proportional { factor, partial_rotary_factor } => {
                let turning = (partial_rotary_factor * head_dim as f64 / 2.0) as usize;
                if pair < turning { frequency / factor } else { 0.0 }
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
            } => {
                let wavelength = 2.0 * PI / frequency;
                let original = original as f64;
                if wavelength > original / low {
                    frequency / factor
                } else if wavelength < original / high {
                    frequency
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                // The dimension that makes `rotations` turns over the original context.
                let dimension = |rotations: f64| {
                    head_dim as f64 * (original as f64 / (rotations * 2.0 * PI)).ln()
                        / (2.0 * rope.theta.ln())
                };
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let ramp = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
                frequency / factor * ramp + frequency * (1.0 - ramp)
            }
        }
    };
    (0..pairs).map(|pair| frequency(pair) as f32).collect()
}

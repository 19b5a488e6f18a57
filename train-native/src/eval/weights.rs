//! Evaluation at few bits a weight (Linq-Embed-Mistral, section 7.2): what a model scores once its
//! weights are rounded, before any packed file of it exists.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Tensor, backend::Backend};
use clap::ValueEnum;

/// Weights that share one scale.
const BLOCK: usize = 32;

/// How weights are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum WeightBits {
    /// Not at all.
    #[default]
    Full,
    /// To 8 bits.
    Int8,
    /// To 4 bits.
    Int4,
}

impl WeightBits {
    /// Name as part of a folder's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Rounds every matrix of a module, embedding tables included, to the nearest of the symmetric
    /// levels of its block of 32 weights, and puts it back as floating point. Vectors (biases,
    /// norms) and matrices that no blocks of 32 fill stay as they are.
    pub fn round<B: Backend, M: Module<B>>(self, module: M) -> M {
        let levels = match self {
            Self::Full => return module,
            Self::Int8 => 127.0,
            Self::Int4 => 7.0,
        };
        module.map(&mut Rounding { levels })
    }
}

struct Rounding {
    levels: f64,
}

impl<B: Backend> ModuleMapper<B> for Rounding {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let shape = param.val().shape();
        if D != 2 || !shape.num_elements().is_multiple_of(BLOCK) {
            return param;
        }
        param.map(|weights| {
            let blocks = weights.reshape([shape.num_elements() / BLOCK, BLOCK]);
            let scale = blocks.clone().abs().max_dim(1).div_scalar(self.levels).clamp_min(1e-30);
            let rounded = (blocks / scale.clone()).round() * scale;
            rounded.reshape(shape.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Cpu;
    use burn::nn::{Linear, LinearConfig};

    #[test]
    fn weights_take_few_values_and_keep_their_size() {
        let linear: Linear<Cpu> = LinearConfig::new(64, 32).init(&Default::default());
        let before: Vec<f32> = linear.weight.val().into_data().into_vec().unwrap();
        let int4 = WeightBits::Int4.round(linear);
        let after: Vec<f32> = int4.weight.val().into_data().into_vec().unwrap();
        for (before, after) in before.chunks(BLOCK).zip(after.chunks(BLOCK)) {
            let largest = before.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            for (x, y) in before.iter().zip(after) {
                assert!((x - y).abs() <= largest / 14.0 + 1e-6, "{x} {y}");
                let level = y / (largest / 7.0);
                assert!((level - level.round()).abs() < 1e-3, "{level}");
            }
        }
    }
}

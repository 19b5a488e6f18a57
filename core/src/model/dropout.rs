//! Dropout with reproducible masks.
//!
//! GradCache and recomputed blocks run the same forward pass twice and must drop the same values,
//! and training resumed from a checkpoint must drop what an uninterrupted run would have. So no
//! random state is saved: it is set from the step's number before each pass.

use std::cell::Cell;

use crate::kernels::{DropoutMask, Kernels};
use burn::module::Module;
use burn::tensor::{Distribution, Tensor, TensorData};

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Seeds the masks of the next passes on this thread.
///
/// Burn's CPU backend has one generator for all threads, so draws would depend on the order of
/// threads; there the masks come from a generator of this thread.
pub fn seed_dropout<B: Kernels>(device: &B::Device, seed: u64) {
    STATE.set(seed);
    if !B::HOST {
        B::seed(device, seed);
    }
}

/// Zeroes values at random in training and scales the others by `1 / (1 - probability)`.
#[derive(Module, Clone, Debug)]
pub struct Dropout {
    /// Probability that a value is dropped, at least 0 and below 1.
    pub probability: f64,
}

impl Dropout {
    /// Any shape to the same; unchanged outside training (a backend without autodiff).
    pub fn forward<B: Kernels, const D: usize>(&self, x: Tensor<B, D>) -> Tensor<B, D> {
        let device = x.device();
        if !B::ad_enabled(&device) || self.probability == 0.0 {
            return x;
        }
        let kept = 1.0 - self.probability;
        let mask = if B::HOST {
            let shape = x.shape();
            let count = shape.num_elements();
            let Some(mask) = self.draw::<B>(count, &device) else { return x };
            let values = mask.factors(count);
            Tensor::from_data(TensorData::new(values, shape), (&device, x.dtype()))
        } else {
            x.random_like(Distribution::Bernoulli(kept)).div_scalar(kept)
        };
        x * mask
    }

    /// The mask of the next tensor of so many values on the host, if anything drops out of it.
    pub(super) fn draw<B: Kernels>(
        &self,
        values: usize,
        device: &B::Device,
    ) -> Option<DropoutMask> {
        if !B::ad_enabled(device) || self.probability == 0.0 {
            return None;
        }
        let mask = DropoutMask { seed: STATE.get(), kept: 1.0 - self.probability };
        STATE.set(mask.after(values));
        Some(mask)
    }
}

#[cfg(all(test, feature = "autodiff"))]
mod tests {
    use super::*;
    use burn::backend::{Autodiff, Flex};

    type B = Autodiff<Flex>;

    #[test]
    fn masks_repeat_with_their_seed_and_keep_the_mean() {
        let device = Default::default();
        let ones = || Tensor::<B, 2>::ones([200, 250], &device);
        let draw = |seed| {
            seed_dropout::<B>(&device, seed);
            let dropout = Dropout { probability: 0.1 };
            let first = dropout.forward(ones());
            (
                first.into_data().to_vec::<f32>().unwrap(),
                dropout.forward(ones()).into_data().to_vec::<f32>().unwrap(),
            )
        };
        let (first, second) = draw(7);
        assert_eq!((first.clone(), second.clone()), draw(7));
        assert_ne!(first, second);
        assert_ne!(first, draw(8).0);
        let mean = first.iter().sum::<f32>() / first.len() as f32;
        assert!((mean - 1.0).abs() < 0.01, "{mean}");
        assert!(first.iter().all(|&x| x == 0.0 || (x - 1.0 / 0.9).abs() < 1e-6));
    }

    #[test]
    fn nothing_is_dropped_outside_training() {
        let x = Tensor::<Flex, 1>::ones([64], &Default::default());
        let y = Dropout { probability: 0.5 }.forward(x);
        assert_eq!(y.into_data().to_vec::<f32>().unwrap(), vec![1.0; 64]);
    }
}

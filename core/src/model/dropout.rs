//! Dropout with reproducible masks.
//!
//! GradCache and recomputed blocks run the same forward pass twice and must drop the same values,
//! and training resumed from a checkpoint must drop what an uninterrupted run would have. So no
//! random state is saved: it is set from the step's number before each pass.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};

use crate::kernels::{DropoutMask, Kernels};
use burn::module::Module;
use burn::tensor::{Distribution, Tensor, TensorData};

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0) };
}

/// Burn's devices share one generator: one thread at a time seeds it and draws.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Seeds the masks of the next passes on this thread.
///
/// Burn's backends have one generator for all threads, so draws would depend on the order of
/// threads; the masks come from a generator of this thread, or from seeds that it gives.
pub fn seed_dropout<B: Kernels>(_device: &B::Device, seed: u64) {
    STATE.set(seed);
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
        let (shape, device) = (x.shape(), x.device());
        let count = shape.num_elements();
        let Some(mask) = self.draw::<B>(count, &device) else { return x };
        let factors = if B::HOST {
            let values = mask.factors(count);
            Tensor::from_data(TensorData::new(values, shape), (&device, x.dtype()))
        } else {
            drawn_there(&x, mask)
        };
        x * factors
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

/// What the values of a tensor are multiplied with, drawn by the backend where the tensor is.
fn drawn_there<B: Kernels, const D: usize>(x: &Tensor<B, D>, mask: DropoutMask) -> Tensor<B, D> {
    let device = x.device();
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    B::seed(&device, mask.seed);
    let kept = x.random_like(Distribution::Bernoulli(mask.kept));
    // Operations that are to be fused draw when they are computed, and a seed waits for that.
    B::seed(&device, mask.seed);
    kept.div_scalar(mask.kept)
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
    fn threads_draw_what_they_would_alone() {
        let draw = || -> Vec<f32> {
            let x = Tensor::<Flex, 1>::ones([64], &Default::default());
            let mask = |seed| drawn_there(&x, DropoutMask { seed, kept: 0.5 });
            (0..50).flat_map(|seed| mask(seed).into_data().to_vec::<f32>().unwrap()).collect()
        };
        // Other tests draw from the same generator, and may come between.
        let same = (0..5).any(|_| {
            let alone = draw();
            assert!(alone.contains(&0.0) && alone.contains(&2.0));
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
                threads.into_iter().all(|thread| thread.join().unwrap() == alone)
            })
        });
        assert!(same);
    }

    #[test]
    fn nothing_is_dropped_outside_training() {
        let x = Tensor::<Flex, 1>::ones([64], &Default::default());
        let y = Dropout { probability: 0.5 }.forward(x);
        assert_eq!(y.into_data().to_vec::<f32>().unwrap(), vec![1.0; 64]);
    }
}

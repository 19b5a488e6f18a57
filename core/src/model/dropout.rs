//! Dropout with reproducible masks.
//!
//! GradCache and recomputed blocks run the same forward pass twice and must drop the same values,
//! and training resumed from a checkpoint must drop what an uninterrupted run would have. So no
//! random state is saved: it is set from the step's number before each pass.

use std::cell::Cell;

use crate::kernels::Kernels;
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

/// Runs a pass that seeds its own masks and leaves those of the pass around it as they were.
///
/// A thread that waits for others inside a pass may take up another pass meanwhile; without this, the
/// first would go on with the masks of the second.
pub fn with_own_dropout<R>(pass: impl FnOnce() -> R) -> R {
    struct Restore(u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            STATE.set(self.0);
        }
    }
    let _restore = Restore(STATE.get());
    pass()
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
            let threshold = (kept * u32::MAX as f64) as u32;
            let scale = (1.0 / kept) as f32;
            let mut draw = SplitMix(STATE.get());
            let values: Vec<f32> = (0..shape.num_elements().div_ceil(2))
                .flat_map(|_| {
                    let bits = draw.next();
                    [bits as u32, (bits >> 32) as u32]
                })
                .map(|bits| if bits < threshold { scale } else { 0.0 })
                .take(shape.num_elements())
                .collect();
            STATE.set(draw.0);
            Tensor::from_data(TensorData::new(values, shape), (&device, x.dtype()))
        } else {
            x.random_like(Distribution::Bernoulli(kept)).div_scalar(kept)
        };
        x * mask
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): one addition and a hash a draw.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
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
    fn a_pass_within_a_pass_changes_no_mask() {
        let device = Default::default();
        let draw = || {
            let ones = Tensor::<B, 1>::ones([256], &device);
            Dropout { probability: 0.5 }.forward(ones).into_data().to_vec::<f32>().unwrap()
        };
        seed_dropout::<B>(&device, 7);
        let expected = [draw(), draw()];
        seed_dropout::<B>(&device, 7);
        let first = draw();
        with_own_dropout(|| {
            seed_dropout::<B>(&device, 8);
            assert_ne!(draw(), first);
        });
        assert_eq!([first, draw()], expected);
    }

    #[test]
    fn nothing_is_dropped_outside_training() {
        let x = Tensor::<Flex, 1>::ones([64], &Default::default());
        let y = Dropout { probability: 0.5 }.forward(x);
        assert_eq!(y.into_data().to_vec::<f32>().unwrap(), vec![1.0; 64]);
    }
}

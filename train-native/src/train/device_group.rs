//! Several devices in one machine that train one model together (data parallel).
//!
//! Each device runs the same loop over the same batches and computes its share of the chunks.
//! Vectors and gradients are summed over the devices by Burn's collective, so that each query
//! meets the negatives of all devices, and every copy of the model takes the same step.

use anyhow::Result;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{ElementConversion as _, Tensor};
use kiln_embed::kernels::TrainingBackend;

use super::collective;

/// This device among those that train together.
#[derive(Debug)]
pub struct DeviceGroup<B: AutodiffBackend> {
    rank: usize,
    world: usize,
    backend: std::marker::PhantomData<B>,
}

impl<B: TrainingBackend> DeviceGroup<B> {
    /// One device alone.
    pub fn single() -> Self {
        Self { rank: 0, world: 1, backend: std::marker::PhantomData }
    }

    /// Joins `world` devices as number `rank`; each calls this from a thread of its own.
    ///
    /// # Errors
    /// What the collective refuses.
    pub fn join(rank: usize, world: usize, device: &B::Device) -> Result<Self> {
        if world > 1 {
            collective::join::<B::InnerBackend>(rank, world, device)?;
        }
        Ok(Self { rank, world, backend: std::marker::PhantomData })
    }

    /// Whether there is no other device.
    pub fn is_single(&self) -> bool {
        self.world == 1
    }

    /// Whether this device writes the files and talks to the user.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// Which of `count` pieces of work are this device's.
    pub fn share(&self, count: usize) -> Vec<usize> {
        (self.rank..count).step_by(self.world).collect()
    }

    /// The sum over the devices, on each of them.
    ///
    /// # Errors
    /// A device that has gone away.
    pub fn sum<const D: usize>(
        &self,
        tensor: Tensor<B::InnerBackend, D>,
    ) -> Result<Tensor<B::InnerBackend, D>> {
        if self.is_single() {
            return Ok(tensor);
        }
        collective::sum(self.rank, tensor)
    }

    /// The sum of a number over the devices.
    ///
    /// # Errors
    /// A device that has gone away.
    pub fn sum_number(&self, number: f64, device: &B::Device) -> Result<f64> {
        if self.is_single() {
            return Ok(number);
        }
        let sum = self.sum(Tensor::<B::InnerBackend, 1>::from_data([number as f32], device))?;
        Ok(sum.into_scalar().elem())
    }

    /// The sums of all gradients over the devices, in one exchange.
    ///
    /// # Errors
    /// A device that has gone away.
    pub fn sum_gradients<M: Module<B>>(
        &self,
        module: &M,
        mut grads: GradientsParams,
    ) -> Result<GradientsParams> {
        if self.is_single() {
            return Ok(grads);
        }
        struct Flatten<'a, B: AutodiffBackend>(
            &'a mut GradientsParams,
            Vec<Tensor<B::InnerBackend, 1>>,
        );
        impl<B: TrainingBackend> ModuleVisitor<B> for Flatten<'_, B> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                if !param.is_require_grad() {
                    return;
                }
                let shape = param.shape();
                let count = shape.num_elements();
                // A device without a chunk has no gradient, and takes part all the same.
                let flat = match self.0.remove::<B::InnerBackend, D>(param.id) {
                    Some(grad) => grad.reshape([count as i32]),
                    None => Tensor::zeros([count], &param.device()),
                };
                self.1.push(flat);
            }
        }
        struct Unflatten<'a, B: AutodiffBackend> {
            into: &'a mut GradientsParams,
            sum: Tensor<B::InnerBackend, 1>,
            offset: usize,
        }
        impl<B: TrainingBackend> ModuleVisitor<B> for Unflatten<'_, B> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
                if param.is_require_grad() {
                    let shape = param.shape();
                    let count = shape.num_elements();
                    let grad = self.sum.clone().narrow(0, self.offset, count).reshape(shape);
                    self.into.register::<B::InnerBackend, D>(param.id, grad);
                    self.offset += count;
                }
            }
        }
        let mut flatten = Flatten::<B>(&mut grads, Vec::new());
        module.visit(&mut flatten);
        let sum = self.sum(Tensor::cat(flatten.1, 0))?;
        let mut summed = GradientsParams::new();
        module.visit(&mut Unflatten::<B> { into: &mut summed, sum, offset: 0 });
        Ok(summed)
    }
}

impl<B: AutodiffBackend> Drop for DeviceGroup<B> {
    fn drop(&mut self) {
        if self.world > 1 {
            collective::leave::<B::InnerBackend>(self.rank);
        }
    }
}

/// A copy of a module on another device, with the same parameter ids.
pub(super) fn copied<B: TrainingBackend, M: Module<B>>(module: &M, device: &B::Device) -> M {
    struct Copy<'a, B: AutodiffBackend>(&'a B::Device);
    impl<B: TrainingBackend> ModuleMapper<B> for Copy<'_, B> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let trains = param.is_require_grad();
            let (id, tensor, mapper) = param.consume();
            let inner = tensor.inner().to_device(self.0);
            let tensor = Tensor::from_inner(inner).set_require_grad(trains);
            Param::from_mapped_value(id, tensor, mapper)
        }
    }
    module.clone().map(&mut Copy::<B>(device))
}

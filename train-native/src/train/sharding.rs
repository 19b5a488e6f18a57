//! The optimizer's state, shared out over the devices that train together (ZeRO's first stage, arXiv:1910.02054,
//! section 5.1): each keeps that of its parameters, takes their step, and gives the others their new values.
//!
//! Every device has all gradients, as their norm wants them, so that the numbers are those without it.

use std::collections::HashMap;

use anyhow::Result;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Shape, Tensor};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::train::{Optimizer, TrainModel, parameters, partition};

use super::device_group::{BUCKET, DeviceGroup};

/// Which device steps which of the parameters that train.
pub(super) struct Owners {
    rank: usize,
    /// Of each parameter, in the model's order, its id, its size and its device.
    of: Vec<(ParamId, usize, usize)>,
}

impl Owners {
    /// As many values for each as can be. All devices find the same.
    pub(super) fn new<B: TrainingBackend>(
        train_model: &TrainModel<B>,
        group: &DeviceGroup<B>,
    ) -> Self {
        let trained: Vec<(ParamId, usize)> = parameters(train_model)
            .into_iter()
            .filter(|param| param.trains)
            .map(|param| (param.id, param.size))
            .collect();
        let sizes: Vec<usize> = trained.iter().map(|(_, size)| *size).collect();
        let mut owners = vec![0; sizes.len()];
        for (rank, share) in group.shares(&sizes).into_iter().enumerate() {
            share.into_iter().for_each(|i| owners[i] = rank);
        }
        let of = trained.into_iter().zip(owners).map(|((id, size), owner)| (id, size, owner));
        Self { rank: group.rank(), of: of.collect() }
    }

    /// Whether a parameter is this device's. One that does not train is everybody's: a stage that begins later may
    /// train it.
    pub(super) fn own(&self, id: ParamId) -> bool {
        let owner = self.of.iter().find(|(other, ..)| *other == id);
        owner.is_none_or(|(_, _, owner)| *owner == self.rank)
    }

    /// Parameters that are sent together.
    fn pieces(&self) -> impl Iterator<Item = &[(ParamId, usize, usize)]> {
        let mut rest = &self.of[..];
        std::iter::from_fn(move || {
            let mut sum = 0;
            let fit = rest.iter().take_while(|(_, size, _)| {
                sum += size;
                sum <= BUCKET
            });
            let count = fit.count().max(1);
            let (piece, after) = rest.split_at_checked(count)?;
            rest = after;
            Some(piece)
        })
    }
}

/// A step of this device's parameters, and the values that the others' have after theirs.
///
/// # Errors
/// A device that has gone away.
pub(super) fn step<B: TrainingBackend>(
    group: &DeviceGroup<B>,
    optimizer: &mut Optimizer<B>,
    lr: f64,
    train_model: TrainModel<B>,
    gradients: GradientsParams,
    device: &B::Device,
) -> Result<TrainModel<B>> {
    let owners = Owners::new(&train_model, group);
    let [own, _] = partition::<B, _>(&train_model, gradients, |id| owners.own(id));
    let train_model = optimizer.step(lr, train_model, own);
    let mut read = Read::<B>(HashMap::new());
    train_model.visit(&mut read);
    let mut own = read.0;
    let mut others = HashMap::new();
    for piece in owners.pieces() {
        let mut rows = vec![0; group.world()];
        piece.iter().for_each(|(_, size, owner)| rows[*owner] += size);
        let of_rank = |rank: usize| piece.iter().filter(move |(.., owner)| *owner == rank);
        let values: Vec<_> = of_rank(owners.rank).filter_map(|(id, ..)| own.remove(id)).collect();
        let values = (!values.is_empty()).then(|| Tensor::cat(values, 0).unsqueeze_dim(1));
        let all = group.all_gather(values, &rows, 1, device)?.squeeze_dim::<1>(1);
        let mut start = 0;
        for rank in 0..group.world() {
            for (id, size, _) in of_rank(rank) {
                if rank != owners.rank {
                    others.insert(*id, all.clone().narrow(0, start, *size));
                }
                start += size;
            }
        }
    }
    Ok(train_model.map(&mut Put::<B>(others)))
}

type Values<B> = HashMap<ParamId, Tensor<<B as AutodiffBackend>::InnerBackend, 1>>;

/// The values of the parameters that train.
struct Read<B: AutodiffBackend>(Values<B>);

impl<B: TrainingBackend> ModuleVisitor<B> for Read<B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad() {
            let flat = Shape::new([param.shape().num_elements()]);
            self.0.insert(param.id, param.val().inner().reshape(flat));
        }
    }
}

/// Gives parameters other values.
struct Put<B: AutodiffBackend>(Values<B>);

impl<B: TrainingBackend> ModuleMapper<B> for Put<B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let Some(values) = self.0.remove(&param.id) else { return param };
        let (id, tensor, mapper) = param.consume();
        let tensor = Tensor::from_inner(values.reshape(tensor.shape())).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

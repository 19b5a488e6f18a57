//! Gradient checkpointing: a pass through the blocks of which only their inputs are kept, and the way back
//! through it, block by block.

use crate::config::AttentionMode;
use crate::kernels::TrainingBackend;
use crate::model::{BlockInputs, ModelInput, seed_dropout};
use crate::seed::mixed;
use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{ElementConversion as _, FloatDType, Tensor};

use super::gradients::add;
use super::train_model::{TrainModel, parameters};

/// The gradients of a replica's parameters, gathered from one graph after another.
pub struct Gathered<'a, B: AutodiffBackend> {
    replica: &'a TrainModel<B>,
    total: GradientsParams,
    /// Whether the embedding step has anything to learn.
    learns_embeddings: bool,
}

impl<'a, B: TrainingBackend> Gathered<'a, B> {
    /// None yet.
    pub fn new(replica: &'a TrainModel<B>) -> Self {
        let learns_embeddings = parameters(replica.backbone())
            .iter()
            .any(|parameter| parameter.trains && !parameter.path.contains("blocks"));
        Self { replica, total: GradientsParams::new(), learns_embeddings }
    }

    /// Adds those of one graph.
    pub fn take(&mut self, grads: &B::Gradients) {
        let part = of_parameters(grads, self.replica);
        add::<B, _>(self.replica, &mut self.total, part, 1.0);
    }

    /// Adds those of the embedding step, from the gradient `[batch, tokens, hidden]` of the embeddings of
    /// each row's first columns; dropout starts from `seed`, as it did on the way there.
    pub fn take_embeddings(
        &mut self,
        input: &ModelInput<B>,
        gradient: Tensor<B, 3>,
        seed: u64,
        device: &B::Device,
    ) {
        let [_, columns, _] = gradient.dims();
        if !self.learns_embeddings || columns == 0 {
            return;
        }
        seed_dropout::<B>(device, seed);
        let embedded = self.replica.backbone().embed_tokens(input).narrow(1, 0, columns);
        self.take(&(embedded * gradient).sum().backward());
    }

    /// All of them.
    pub fn into_total(self) -> GradientsParams {
        self.total
    }
}

/// The gradients of all parameters. `grads` stay as they are, for the leaves that are no parameters.
fn of_parameters<B: TrainingBackend>(
    grads: &B::Gradients,
    replica: &TrainModel<B>,
) -> GradientsParams {
    struct Collect<'a, B: AutodiffBackend>(&'a B::Gradients, GradientsParams);
    impl<B: TrainingBackend> ModuleVisitor<B> for Collect<'_, B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if param.is_require_grad()
                && let Some(grad) = param.val().grad(self.0)
            {
                self.1.register::<B::InnerBackend, D>(param.id, grad);
            }
        }
    }
    let mut collected = Collect::<B>(grads, GradientsParams::new());
    replica.visit(&mut collected);
    collected.1
}

/// A pass through the blocks of which only the blocks' inputs are kept, and the way back through it,
/// with memory for one block's graph.
pub struct BlockPass<'a, B: AutodiffBackend> {
    replica: &'a TrainModel<B>,
    input: &'a ModelInput<B>,
    mode: AttentionMode,
    shared: BlockInputs<B>,
    /// What goes into each block `[batch, seq, hidden]`.
    pub inputs: Vec<Tensor<B::InnerBackend, 3>>,
    seed: u64,
    device: &'a B::Device,
}

impl<'a, B: TrainingBackend> BlockPass<'a, B> {
    /// The way there, from the first block's input `x` `[batch, seq, hidden]`. `frozen` is the replica
    /// without gradients; dropout starts from `seed` in each block anew.
    pub fn new(
        replica: &'a TrainModel<B>,
        frozen: &TrainModel<B>,
        input: &'a ModelInput<B>,
        mode: AttentionMode,
        x: Tensor<B::InnerBackend, 3>,
        seed: u64,
        device: &'a B::Device,
    ) -> Self {
        let dtype: FloatDType = x.dtype().into();
        let shared = replica.backbone().prepare(input, mode, dtype);
        let mut pass = Self { replica, input, mode, shared, inputs: vec![x], seed, device };
        for block in 0..frozen.backbone().layers().saturating_sub(1) {
            let x = Tensor::from_inner(pass.inputs[block].clone());
            pass.inputs.push(pass.layer(frozen, block, x).inner());
        }
        pass
    }

    fn layer(&self, of: &TrainModel<B>, block: usize, x: Tensor<B, 3>) -> Tensor<B, 3> {
        seed_dropout::<B>(self.device, block_seed(self.seed, block));
        // What learns belongs to each block's graph.
        let own = self
            .shared
            .learns()
            .then(|| of.backbone().prepare(self.input, self.mode, x.dtype().into()));
        of.backbone().layer(block, x, own.as_ref().unwrap_or(&self.shared), false).0
    }

    /// The last states `[batch, seq, hidden]`, final-normed, made from the last block's input.
    pub fn last(&self, of: &TrainModel<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
        of.backbone().finish(self.layer(of, self.inputs.len() - 1, x))
    }

    /// The input of the last block `[batch, seq, hidden]`.
    pub fn before_last(&self) -> Tensor<B, 3> {
        Tensor::from_inner(self.inputs[self.inputs.len() - 1].clone())
    }

    /// A loss on the last states, and its gradients: those of parameters are gathered, and that of the
    /// first block's input is returned.
    ///
    /// # Errors
    /// A block that the loss does not depend on.
    pub fn loss(
        &self,
        of_states: impl FnOnce(Tensor<B, 3>) -> Tensor<B, 1>,
        gathered: &mut Gathered<'_, B>,
    ) -> Result<(f64, Option<Tensor<B::InnerBackend, 3>>)> {
        let leaf = self.before_last().require_grad();
        let loss = of_states(self.last(self.replica, leaf.clone()));
        let value = loss.clone().into_scalar().elem::<f64>();
        let grads = loss.backward();
        gathered.take(&grads);
        let mut owed = vec![None; self.inputs.len() - 1];
        owed.push(leaf.grad(&grads));
        drop(grads);
        Ok((value, self.backward(owed, gathered)?))
    }

    /// Back through all blocks but the last, from what each block's input is `owed` by what comes after
    /// it: the gradient of the first block's input.
    ///
    /// # Errors
    /// A block whose input is owed nothing.
    pub fn backward(
        &self,
        mut owed: Vec<Option<Tensor<B::InnerBackend, 3>>>,
        gathered: &mut Gathered<'_, B>,
    ) -> Result<Option<Tensor<B::InnerBackend, 3>>> {
        for block in (0..self.inputs.len() - 1).rev() {
            let Some(gradient) = owed.pop().flatten() else {
                return Err(Error::invalid(format!("block {block} got no gradient")));
            };
            let leaf = Tensor::<B, 3>::from_inner(self.inputs[block].clone()).require_grad();
            let y = self.layer(self.replica, block, leaf.clone());
            let grads = (y * Tensor::from_inner(gradient)).sum().backward();
            gathered.take(&grads);
            if let (Some(more), Some(last)) = (leaf.grad(&grads), owed.last_mut()) {
                *last = Some(match last.take() {
                    Some(known) => known + more,
                    None => more,
                });
            }
        }
        Ok(owed.pop().flatten())
    }
}

/// State of dropout at the start of a block of a pass that starts from `seed`.
pub(super) fn block_seed(seed: u64, block: usize) -> u64 {
    mixed(&[seed, block as u64])
}

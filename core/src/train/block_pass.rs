//! Gradient checkpointing: a pass through the blocks of which only their inputs are kept, and the way back
//! through it, block by block.

use crate::config::AttentionMode;
use crate::kernels::TrainingBackend;
use crate::model::{BlockInputs, ModelInput, seed_dropout};
use crate::seed::mixed;
use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;

use super::gradients::add;
use super::train_model::{TrainModel, parameters};

/// A tensor outside any graph.
type Inner<B, const D: usize> = Tensor<<B as AutodiffBackend>::InnerBackend, D>;

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
            .any(|parameter| parameter.trains && !is_of_blocks(&parameter.path));
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
    /// What goes into each block `[batch, seq, hidden]`, besides what it gets of the first one's input.
    pub inputs: Vec<Inner<B, 3>>,
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
        x: Inner<B, 3>,
        seed: u64,
        device: &'a B::Device,
    ) -> Self {
        let inputs = vec![x];
        let mut pass = Self::from_inputs(replica, frozen, input, mode, inputs, seed, device);
        for block in 0..frozen.backbone().layers().saturating_sub(1) {
            let x = Tensor::from_inner(pass.inputs[block].clone());
            pass.inputs.push(pass.layer(frozen, block, x, false).0.inner());
        }
        pass
    }

    /// As [`BlockPass::new`], where the way there has been gone: `inputs` are those of all blocks.
    pub fn from_inputs(
        replica: &'a TrainModel<B>,
        frozen: &TrainModel<B>,
        input: &'a ModelInput<B>,
        mode: AttentionMode,
        inputs: Vec<Inner<B, 3>>,
        seed: u64,
        device: &'a B::Device,
    ) -> Self {
        seed_dropout::<B>(device, seed);
        let embeddings = Tensor::from_inner(inputs[0].clone());
        let shared = frozen.backbone().prepare(input, mode, &embeddings);
        Self { replica, input, mode, shared, inputs, seed, device }
    }

    /// A block, and the leaf that stands for what it gets of the embeddings, where it gets something. `unread`: what the block
    /// gives is of no use but for its gradients.
    fn layer(
        &self,
        of: &TrainModel<B>,
        block: usize,
        x: Tensor<B, 3>,
        unread: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 3>>) {
        seed_dropout::<B>(self.device, block_seed(self.seed, block));
        // What learns belongs to each block's graph.
        let mut own = match self.shared.learns() {
            true => of.backbone().prepare(self.input, self.mode, &x),
            false => self.shared.clone(),
        };
        if unread {
            own.leave_unread();
        }
        let leaf = own.cut(block);
        (of.backbone().layer(block, x, &own, false).0, leaf)
    }

    /// The last states `[batch, seq, hidden]`, final-normed, made from the last block's input.
    pub fn last(&self, of: &TrainModel<B>, x: Tensor<B, 3>) -> Tensor<B, 3> {
        of.backbone().finish(self.layer(of, self.inputs.len() - 1, x, false).0)
    }

    /// The input of the last block `[batch, seq, hidden]`.
    pub fn before_last(&self) -> Tensor<B, 3> {
        self.input_of(self.inputs.len() - 1)
    }

    /// The input of a block in the numbers of the first one's.
    fn input_of(&self, block: usize) -> Tensor<B, 3> {
        Tensor::from_inner(self.inputs[block].clone().cast(self.inputs[0].dtype()))
    }

    /// A loss `[1]` on the last states, and its gradients: those of parameters are gathered, and that of the
    /// first block's input is returned.
    ///
    /// # Errors
    /// A block that the loss does not depend on.
    pub fn loss(
        &self,
        of_states: impl FnOnce(Tensor<B, 3>) -> Tensor<B, 1>,
        gathered: &mut Gathered<'_, B>,
    ) -> Result<(Inner<B, 1>, Option<Inner<B, 3>>)> {
        let leaf = self.before_last().require_grad();
        let last = self.inputs.len() - 1;
        let (x, of_embeddings) = self.layer(self.replica, last, leaf.clone(), false);
        let loss = of_states(self.replica.backbone().finish(x));
        let value = loss.clone().inner();
        let grads = loss.backward();
        gathered.take(&grads);
        let mut owed = vec![None; last];
        owed.push(leaf.grad(&grads));
        let of_embeddings = of_embeddings.and_then(|leaf| leaf.grad(&grads));
        drop(grads);
        Ok((value, self.back(owed, of_embeddings, gathered)?))
    }

    /// Back through all blocks but the last, from what each block's input is `owed` by what comes after
    /// it: the gradient of the first block's input. What the last block gets of the first one's input is in `owed`.
    ///
    /// # Errors
    /// A block whose input is owed nothing.
    pub fn backward(
        &self,
        owed: Vec<Option<Inner<B, 3>>>,
        gathered: &mut Gathered<'_, B>,
    ) -> Result<Option<Inner<B, 3>>> {
        self.back(owed, None, gathered)
    }

    /// As `backward`, with the gradient of what the last block gets of the embeddings.
    fn back(
        &self,
        mut owed: Vec<Option<Inner<B, 3>>>,
        of_last: Option<Inner<B, 3>>,
        gathered: &mut Gathered<'_, B>,
    ) -> Result<Option<Inner<B, 3>>> {
        let mut of_embeddings = vec![of_last];
        for block in (0..self.inputs.len() - 1).rev() {
            let Some(gradient) = owed.pop().flatten() else {
                return Err(Error::invalid(format!("block {block} got no gradient")));
            };
            let leaf = self.input_of(block).require_grad();
            let (y, more) = self.layer(self.replica, block, leaf.clone(), true);
            let grads = B::owed(y, Tensor::from_inner(gradient)).backward();
            gathered.take(&grads);
            of_embeddings.push(more.and_then(|leaf| leaf.grad(&grads)));
            if let (Some(more), Some(last)) = (leaf.grad(&grads), owed.last_mut()) {
                *last = Some(match last.take() {
                    Some(known) => known + more,
                    None => more,
                });
            }
        }
        of_embeddings.reverse();
        let first = owed.pop().flatten();
        Ok(match (first, self.through_embeddings(of_embeddings, gathered)) {
            (Some(first), Some(more)) => Some(first + more),
            (first, more) => first.or(more),
        })
    }

    /// The gradient of the first block's input for those of what the blocks get of it beside the states, the first
    /// block's first; `None` where they get nothing.
    fn through_embeddings(
        &self,
        gradients: Vec<Option<Inner<B, 3>>>,
        gathered: &mut Gathered<'_, B>,
    ) -> Option<Inner<B, 3>> {
        if gradients.iter().all(Option::is_none) {
            return None;
        }
        seed_dropout::<B>(self.device, self.seed);
        let leaf = Tensor::<B, 3>::from_inner(self.inputs[0].clone()).require_grad();
        let made = self.replica.backbone().per_layer_inputs(&leaf);
        let each = made.into_iter().zip(gradients);
        let each = each.filter_map(|(y, gradient)| Some((y * Tensor::from_inner(gradient?)).sum()));
        let grads = each.reduce(|sum, more| sum + more)?.backward();
        gathered.take(&grads);
        leaf.grad(&grads)
    }
}

/// Whether a parameter of a backbone is of no use for its embeddings.
fn is_of_blocks(path: &str) -> bool {
    ["blocks.", "per_layer_inputs.", "output_projection."].iter().any(|part| path.starts_with(part))
}

/// State of dropout at the start of a block of a pass that starts from `seed`.
pub(super) fn block_seed(seed: u64, block: usize) -> u64 {
    mixed(&[seed, block as u64])
}

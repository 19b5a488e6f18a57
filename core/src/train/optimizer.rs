//! The optimizer: its parameter groups, its steps, its state on disk and its memory.
//!
//! To add one, give it a variant in [`OptimizerKind`], an arm in [`group`] and one in
//! [`state_bytes`]. The rule itself is Burn's, or implements [`SimpleOptimizer`] as [`Lion`] does.
//! Of Burn's own, L-BFGS wants a closure that evaluates the loss, Muon takes matrices alone, and
//! RMSProp and Adan bring little that Adam does not.

use std::collections::HashSet;

use crate::kernels::TrainingBackend;
use burn::module::ParamId;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdaGradConfig, AdamConfig, AdamWConfig, GradientsParams, LearningRate, Optimizer as _,
    SgdConfig, SimpleOptimizer,
};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::gradients::{by_shape, partition};
use super::settings::OptimizerKind;
use super::train_model::{TrainModel, parameters};
use crate::{Error, Result};

/// Added to a divisor, so that it is never zero; PyTorch's value for Adam and AdamW.
const EPSILON: f32 = 1e-8;
/// PyTorch's value for AdaGrad.
const ADAGRAD_EPSILON: f32 = 1e-10;
/// The usual momentum of SGD; PyTorch's documentation has it in its example.
const SGD_MOMENTUM: f64 = 0.9;

type Bytes = BinBytesRecorder<FullPrecisionSettings>;

// ------------------------------------------------------------------------------------- the kinds

/// An optimizer of the given kind for one group of parameters.
fn group<B: TrainingBackend>(kind: OptimizerKind, weight_decay: f64) -> Box<dyn Group<B>> {
    let decay = weight_decay as f32;
    // Adam, SGD and AdaGrad add the decay to the gradient, so zero is no penalty at all.
    let penalty = (decay != 0.0).then(|| WeightDecayConfig::new(decay));
    match kind {
        OptimizerKind::AdamW => Box::new(
            AdamWConfig::new()
                .with_epsilon(EPSILON)
                .with_weight_decay(decay)
                .init::<B, TrainModel<B>>(),
        ),
        OptimizerKind::Adam => Box::new(
            AdamConfig::new()
                .with_epsilon(EPSILON)
                .with_weight_decay(penalty)
                .init::<B, TrainModel<B>>(),
        ),
        OptimizerKind::Sgd => {
            let momentum = MomentumConfig::new().with_momentum(SGD_MOMENTUM).with_dampening(0.0);
            let config = SgdConfig::new().with_momentum(Some(momentum));
            Box::new(config.with_weight_decay(penalty).init::<B, TrainModel<B>>())
        }
        OptimizerKind::AdaGrad => Box::new(
            AdaGradConfig::new()
                .with_epsilon(ADAGRAD_EPSILON)
                .with_weight_decay(penalty)
                .init::<B, TrainModel<B>>(),
        ),
        OptimizerKind::Lion => {
            Box::new(OptimizerAdaptor::<_, TrainModel<B>, B>::from(Lion { decay: weight_decay }))
        }
    }
}

/// Bytes of f32 state that an optimizer keeps of each trained value.
pub fn state_bytes(kind: OptimizerKind) -> usize {
    let values = match kind {
        // The mean of the gradients and of their squares.
        OptimizerKind::AdamW | OptimizerKind::Adam => 2,
        // The momentum.
        OptimizerKind::Sgd | OptimizerKind::Lion => 1,
        // The sum of the squares.
        OptimizerKind::AdaGrad => 1,
    };
    values * size_of::<f32>()
}

/// Lion (arXiv:2302.06675, algorithm 2): every value moves by the learning rate, in the direction
/// of the sign of an average of momentum and gradient. It wants a learning rate three to ten times
/// lower than AdamW's, and a weight decay as many times higher (section 5).
#[derive(Debug, Clone)]
struct Lion {
    decay: f64,
}

impl Lion {
    /// Share of the momentum in the step.
    const BETA_1: f64 = 0.9;
    /// Share of the momentum in the next momentum.
    const BETA_2: f64 = 0.99;
}

/// Lion's state of one parameter.
#[derive(Record, Clone)]
struct LionState<B: Backend, const D: usize> {
    momentum: Tensor<B, D>,
}

impl<B: Backend> SimpleOptimizer<B> for Lion {
    type State<const D: usize> = LionState<B, D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<B, D>, Option<Self::State<D>>) {
        let momentum = state.map_or_else(|| grad.zeros_like(), |state| state.momentum);
        let mix =
            |beta: f64| momentum.clone().mul_scalar(beta) + grad.clone().mul_scalar(1.0 - beta);
        let step = mix(Self::BETA_1).sign().mul_scalar(lr);
        let tensor = tensor.mul_scalar(1.0 - lr * self.decay) - step;
        (tensor, Some(LionState { momentum: mix(Self::BETA_2) }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &B::Device) -> Self::State<D> {
        LionState { momentum: state.momentum.to_device(device) }
    }
}

// --------------------------------------------------------------------------------- the optimizer

/// An optimizer in two groups of parameters: those that decay, and norms, biases and latents, which
/// do not.
pub struct Optimizer<B: AutodiffBackend> {
    groups: [Box<dyn Group<B>>; 2],
}

impl<B: TrainingBackend> Optimizer<B> {
    /// A new one of a kind; `weight_decay` is for the group that decays.
    pub fn new(kind: OptimizerKind, weight_decay: f64) -> Self {
        Self { groups: [weight_decay, 0.0].map(|decay| group(kind, decay)) }
    }

    /// One step of every parameter that has a gradient.
    pub fn step(
        &mut self,
        lr: LearningRate,
        model: TrainModel<B>,
        gradients: GradientsParams,
    ) -> TrainModel<B> {
        let undecayed: HashSet<ParamId> = parameters(&model)
            .into_iter()
            .filter(|param| !param.decays)
            .map(|param| param.id)
            .collect();
        let parts = partition::<B, _>(&model, gradients, |id| !undecayed.contains(&id));
        self.groups.iter_mut().zip(parts).fold(model, |model, (group, gradients)| {
            // One shape after the other: a device's fusion then makes one kernel of the steps of several parameters.
            let parts = match B::HOST {
                true => vec![gradients],
                false => by_shape::<B, _>(&model, gradients),
            };
            parts.into_iter().fold(model, |model, gradients| group.step(lr, model, gradients))
        })
    }

    /// The state of the group that decays and of the one that does not.
    ///
    /// # Errors
    /// What the encoder refuses.
    pub fn state(&self) -> Result<[Vec<u8>; 2]> {
        let [decayed, undecayed] = &self.groups;
        Ok([decayed.to_bytes()?, undecayed.to_bytes()?])
    }

    /// Takes one group's state (0: that decays, 1: that does not), which [`Optimizer::state`] gave, beside what it has:
    /// that of the parameters that `keep` chooses. Burn's decoder panics on bytes that are no state of this kind of
    /// optimizer, so the caller has to know that they are.
    ///
    /// # Errors
    /// What the decoder refuses.
    pub fn restore(
        &mut self,
        group: usize,
        bytes: Vec<u8>,
        keep: impl Fn(ParamId) -> bool,
        device: &B::Device,
    ) -> Result<()> {
        match self.groups.get_mut(group) {
            Some(group) => group.load(bytes, &keep, device),
            None => Err(Error::invalid(format!("an optimizer has two groups, not group {group}"))),
        }
    }
}

/// What a group of parameters asks of its optimizer, whatever the state is made of.
trait Group<B: AutodiffBackend> {
    fn step(
        &mut self,
        lr: LearningRate,
        model: TrainModel<B>,
        gradients: GradientsParams,
    ) -> TrainModel<B>;

    fn to_bytes(&self) -> Result<Vec<u8>>;

    fn load(
        &mut self,
        bytes: Vec<u8>,
        keep: &dyn Fn(ParamId) -> bool,
        device: &B::Device,
    ) -> Result<()>;
}

impl<B, O> Group<B> for OptimizerAdaptor<O, TrainModel<B>, B>
where
    B: TrainingBackend,
    O: SimpleOptimizer<B::InnerBackend>,
{
    fn step(
        &mut self,
        lr: LearningRate,
        model: TrainModel<B>,
        gradients: GradientsParams,
    ) -> TrainModel<B> {
        burn::optim::Optimizer::step(self, lr, model, gradients)
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        <Bytes as Recorder<B>>::record(&Bytes::default(), self.to_record(), ())
            .map_err(|error| Error::invalid(format!("cannot encode the optimizer: {error}")))
    }

    fn load(
        &mut self,
        bytes: Vec<u8>,
        keep: &dyn Fn(ParamId) -> bool,
        device: &B::Device,
    ) -> Result<()> {
        let mut record = self.to_record();
        let mut loaded: <Self as burn::optim::Optimizer<TrainModel<B>, B>>::Record =
            <Bytes as Recorder<B>>::load(&Bytes::default(), bytes, device).map_err(|error| {
                Error::invalid(format!("cannot read the optimizer's state: {error}"))
            })?;
        loaded.retain(|id, _| keep(*id));
        record.extend(loaded);
        *self = self.clone().load_record(record);
        Ok(())
    }
}

//! Parameters of a run as tensors with names, and back.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};

use super::train_model::{ParameterPath, TrainModel};
use crate::checkpoint::Weights;
use crate::kernels::{Kernels, TrainingBackend};
use crate::{Error, Result};

/// Parameters that were read back from the device.
#[derive(Debug, Clone, Default)]
pub struct SavedParameters {
    /// Name, shape and values of each.
    pub tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
    /// Their ids by their names: the optimizer's state knows them by these.
    pub ids: BTreeMap<String, String>,
}

impl SavedParameters {
    /// Those that train, or `everything`.
    ///
    /// # Errors
    /// Values that cannot be read back.
    pub fn of<B: TrainingBackend>(train_model: &TrainModel<B>, everything: bool) -> Result<Self> {
        let mut collected = Collect {
            path: ParameterPath::default(),
            everything,
            saved: Self::default(),
            failure: None,
        };
        train_model.visit(&mut collected);
        match collected.failure {
            None => Ok(collected.saved),
            Some(failure) => Err(Error::invalid(format!(
                "the parameters could not be read back from the device: {failure}"
            ))),
        }
    }
}

/// Puts saved parameters, of which `ids` are the names and ids, into a model of the same structure.
///
/// # Errors
/// A tensor that is missing or of another shape; more of them than the model takes.
pub fn put_parameters<B: TrainingBackend>(
    train_model: TrainModel<B>,
    ids: &BTreeMap<String, String>,
    weights: Weights,
    device: &B::Device,
) -> Result<TrainModel<B>> {
    let mut put =
        Put::<B> { path: ParameterPath::default(), ids, weights, device, placed: 0, failure: None };
    let train_model = train_model.map(&mut put);
    match put.failure {
        Some(failure) => Err(failure),
        None if put.placed != ids.len() => Err(Error::invalid(format!(
            "it has {} parameters, of which the model takes {}",
            ids.len(),
            put.placed
        ))),
        None => Ok(train_model),
    }
}

/// Reads parameters back from the device.
struct Collect {
    path: ParameterPath,
    everything: bool,
    saved: SavedParameters,
    failure: Option<String>,
}

impl<B: Kernels> ModuleVisitor<B> for Collect {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.path.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if !(self.everything || param.is_require_grad()) {
            return;
        }
        let path = self.path.dotted();
        match param.val().into_data().convert::<f32>().into_vec::<f32>() {
            Ok(values) => {
                self.saved.ids.insert(path.clone(), param.id.serialize());
                self.saved.tensors.push((path, param.shape().to_vec(), values));
            }
            Err(error) => self.failure = Some(format!("{path}: {error:?}")),
        }
    }
}

/// Puts saved parameters into a model.
struct Put<'a, B: AutodiffBackend> {
    path: ParameterPath,
    ids: &'a BTreeMap<String, String>,
    weights: Weights,
    device: &'a B::Device,
    placed: usize,
    failure: Option<Error>,
}

impl<B: TrainingBackend> Put<'_, B> {
    fn read<const D: usize>(&mut self, path: &str, shape: [usize; D]) -> Result<Tensor<B, D>> {
        let saved = self.weights.tensors().get(path).map(|info| info.shape.clone());
        let values = self.weights.read(path)?;
        match values {
            Some(values) if saved.as_deref() == Some(&shape[..]) => {
                Ok(Tensor::from_data(TensorData::new(values, shape), self.device))
            }
            _ => Err(Error::invalid(format!("{path} is {saved:?}, expected {shape:?}"))),
        }
    }
}

impl<B: TrainingBackend> ModuleMapper<B> for Put<'_, B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.path.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let path = self.path.dotted();
        let Some(id) = self.ids.get(&path) else {
            return param;
        };
        match self.read(&path, param.shape().dims()) {
            Ok(tensor) => {
                self.placed += 1;
                let trains = param.is_require_grad();
                let (_, before, mapper) = param.consume();
                let dtype = before.dtype();
                let tensor = match dtype {
                    DType::BF16 if !trains => as_before(tensor),
                    _ => tensor,
                };
                let tensor = tensor.set_require_grad(trains);
                Param::from_mapped_value(ParamId::deserialize(id), tensor, mapper)
            }
            Err(error) => {
                self.failure.get_or_insert(error);
                param
            }
        }
    }
}

/// What a device keeps in bf16, in bf16 again; merged adapters have made other numbers of it, which stay in f32.
fn as_before<B: TrainingBackend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    let rounded = tensor.clone().cast(FloatDType::BF16);
    let same = rounded.clone().cast(FloatDType::F32).equal(tensor.clone()).all();
    if same.into_data().iter::<bool>().all(|same| same) { rounded } else { tensor }
}

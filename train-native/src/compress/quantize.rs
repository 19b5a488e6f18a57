//! Quantizes a whole model: rounding or GPTQ, tensor by tensor, with what each loses.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use burn::module::Module as _;
use kiln_embed::checkpoint::{Files, StoredTensor, save_as};
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::{Reranker, save_reranker_as};
use serde::Serialize;

use super::linear_algebra::{output_error, weight_error};
use super::plan::{stored, values};
use super::{Calibration, Gptq, Storage, StoragePlan, gptq};
use crate::interrupt;
use crate::terminal::{ProgressBar, Terminal};

/// How a model is quantized.
pub struct Quantization<'a> {
    /// Which tensor is kept how.
    pub plan: &'a StoragePlan,
    /// GPTQ, where it is used; else rounding to the nearest.
    pub gptq: Option<Gptq>,
    /// Texts, for GPTQ and for the outputs' errors.
    pub calibration: Option<&'a Calibration>,
}

/// What became of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorLine {
    /// Its name.
    pub tensor: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How it is kept.
    pub storage: Storage,
    /// Bytes that it takes, scales included.
    pub bytes: usize,
    /// Share of its square that is lost.
    pub weight_error: f64,
    /// Share of its output's square that is lost on the calibration texts.
    pub output_error: Option<f64>,
}

/// A quantized model.
pub struct QuantizedModel {
    /// Its files.
    pub files: Files,
    /// What became of each matrix.
    pub lines: Vec<TensorLine>,
}

/// Quantizes a model with full weights.
///
/// # Errors
/// A block that does not divide a matrix, weights that are not finite, a singular Hessian, Ctrl-C.
pub fn quantize<B: Kernels>(
    mut embedder: Embedder<B>,
    how: &Quantization<'_>,
    terminal: Terminal,
) -> Result<QuantizedModel> {
    let plan = how.plan;
    let mut done: BTreeMap<String, (StoredTensor, TensorLine)> = BTreeMap::new();
    if let Some(calibration) = how.calibration {
        calibration.walk(&mut embedder, terminal, |name, weights, shape, gram| {
            let before = weights.to_vec();
            let mut last = None;
            for storage in plan.ladder(plan.of(name, &shape)?, shape[1]) {
                let mut after = before.clone();
                let tensor = match (storage, how.gptq) {
                    (Storage::Quantized(scheme), Some(settings)) => {
                        StoredTensor::Quantized(gptq(&mut after, shape, scheme, gram, settings)?)
                    }
                    _ => stored(storage, &shape, &before)?,
                };
                after = values(&tensor);
                let lost = output_error(&before, &after, gram)?;
                let line = TensorLine {
                    output_error: Some(lost),
                    ..line_of(name, &shape, &tensor, weight_error(&before, &after))
                };
                weights.copy_from_slice(&after);
                last = Some((tensor, line));
                if plan.budget.is_none_or(|budget| lost <= budget) {
                    break;
                }
            }
            done.extend(last.map(|result| (name.to_string(), result)));
            Ok(())
        })?;
    }
    let mut lines = Lines::default();
    let bar = terminal.progress(embedder.model().num_params() as u64, "quantizing");
    let files = save_as(&embedder, |file, name, shape, values| {
        let calibrated = if file == "model.safetensors" { done.remove(name) } else { None };
        lines.take(&bar, plan, name, (&shape, &values), calibrated)
    })?;
    bar.finish_and_clear();
    Ok(QuantizedModel { files, lines: lines.0 })
}

/// Rounds a cross-encoder with full weights, or a decoder that ranks, to the nearest; its head stays as it is.
///
/// # Errors
/// As [`quantize`], and as [`save_reranker_as`].
pub fn quantize_reranker<B: Kernels>(
    reranker: &Reranker<B>,
    plan: &StoragePlan,
    terminal: Terminal,
) -> Result<QuantizedModel> {
    let mut lines = Lines::default();
    let bar =
        terminal.progress(reranker.clone().into_parts().model.num_params() as u64, "quantizing");
    let files = save_reranker_as(reranker, |name, shape, values| {
        lines.take(&bar, plan, name, (&shape, &values), None)
    })?;
    bar.finish_and_clear();
    Ok(QuantizedModel { files, lines: lines.0 })
}

/// What is said of the tensors that were taken.
#[derive(Default)]
struct Lines(Vec<TensorLine>);

impl Lines {
    /// A tensor as it is written: `calibrated`, or rounded to the nearest. Vectors are in no line.
    fn take(
        &mut self,
        bar: &ProgressBar,
        plan: &StoragePlan,
        name: &str,
        (shape, values): (&[usize], &[f32]),
        calibrated: Option<(StoredTensor, TensorLine)>,
    ) -> Result<StoredTensor> {
        if interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        bar.inc(values.len() as u64);
        let (tensor, line) = match calibrated {
            Some(done) => done,
            None => rounded(plan, name, shape, values).with_context(|| name.to_string())?,
        };
        if shape.len() > 1 {
            self.0.push(line);
        }
        Ok(tensor)
    }
}

/// A tensor in the fewest bits that the plan's budget allows.
fn rounded(
    plan: &StoragePlan,
    name: &str,
    shape: &[usize],
    before: &[f32],
) -> Result<(StoredTensor, TensorLine)> {
    let mut steps =
        plan.ladder(plan.of(name, shape)?, shape.last().copied().unwrap_or(0)).into_iter();
    let mut storage = steps.next().unwrap_or(Storage::F32);
    loop {
        let tensor = stored(storage, shape, before)?;
        let lost = weight_error(before, &values(&tensor));
        match steps.next() {
            Some(next) if plan.budget.is_some_and(|budget| lost > budget) => storage = next,
            _ => {
                let line = line_of(name, shape, &tensor, lost);
                return Ok((tensor, line));
            }
        }
    }
}

fn line_of(name: &str, shape: &[usize], tensor: &StoredTensor, weight_error: f64) -> TensorLine {
    let (bytes, storage) = match tensor {
        // What half precision cannot hold stays as it is.
        StoredTensor::Full(_, values) => (4 * values.len(), Storage::F32),
        StoredTensor::Half(_, values) => (2 * values.len(), Storage::F16),
        StoredTensor::Bf16(_, values) => (2 * values.len(), Storage::Bf16),
        StoredTensor::Quantized(matrix) => {
            let scale = if matrix.has_narrow_scales() { 2 } else { 4 };
            let bytes = matrix.codes().len() + scale * matrix.scales().len();
            (bytes, Storage::Quantized(matrix.scheme()))
        }
    };
    TensorLine {
        tensor: name.into(),
        shape: shape.to_vec(),
        storage,
        bytes,
        weight_error,
        output_error: None,
    }
}

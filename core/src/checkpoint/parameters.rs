//! Fills a module's parameters from a checkpoint and writes them back, by one table of names.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData, backend::Backend};

use super::safetensors::StoredTensor;
use super::weights::{TensorInfo, Weights};
use crate::config::ModelConfig;
use crate::kernels::{Kernels, Packing};
use crate::model::families::{self, Names, Part, Stacked, TensorSource};
use crate::model::{Backbone, Linear, is_router};
use crate::parallel::each_part;
#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
use crate::quant::{Bf16Matrix, HostMatrix};
use crate::quant::{Number, Scheme, WeightPrecision};
use crate::{Error, Result};

/// Takes the name, the shape and the values of a tensor to be saved.
pub(crate) type Keep<'a, E> = dyn FnMut(String, Vec<usize>, Vec<f32>) -> Result<(), E> + 'a;

/// A backbone with the weights of a checkpoint.
///
/// # Errors
/// One error that lists every missing, unknown and mis-shaped tensor, or else every one that is not finite.
pub fn load_backbone<B: Kernels>(
    config: &ModelConfig,
    weights: &mut Weights,
    device: &B::Device,
) -> Result<Backbone<B>> {
    let has = |name: &str| weights.tensors().contains_key(name);
    let names = families::names_in(config, has);
    let prefix = names.prefix(has);
    let stacked = families::stacked(config);
    for whole in &stacked {
        weights.take_apart(whole, prefix);
    }
    // No zeros are allocated yet: Burn makes a parameter at its first use.
    let mut backbone = Backbone::zeros(config, device);
    compare(&backbone, weights, &names, prefix)
        .map_err(|error| in_whole(error, &stacked, weights, prefix))?;
    if B::PACKING != Packing::Never {
        keep_packed(&mut backbone, weights, &names, prefix)?;
    }
    fill(backbone, weights, &names, prefix, device)
}

/// A report of tensors that the checkpoint has not, or in another shape, under the names of its release.
fn in_whole(error: Error, stacked: &[Stacked], weights: &Weights, prefix: &str) -> Error {
    let Error::Tensors(mut report) = error else {
        return error;
    };
    for whole in stacked {
        let part = |name: &String| {
            let bare = name.strip_prefix(prefix);
            bare.is_some_and(|bare| whole.parts.iter().any(|part| part == bare))
        };
        if report.missing.iter().filter(|name| part(name)).count() < whole.parts.len() {
            continue;
        }
        report.missing.retain(|name| !part(name));
        let name = format!("{prefix}{}", whole.name);
        report.extra.retain(|extra| *extra != name);
        match weights.tensors().get(&name) {
            Some(info) => report.misshaped.push((name, whole.shape.to_vec(), info.shape.clone())),
            None => report.missing.push(name),
        }
    }
    Error::Tensors(report)
}

/// Tensors as they are written, those of which the release has several in one put together; where one of them is
/// quantized, by blocks of its own inputs, all stay by themselves.
pub(crate) fn put_together(
    tensors: Vec<(String, StoredTensor)>,
    stacked: &[Stacked],
) -> Vec<(String, StoredTensor)> {
    let places: BTreeMap<&str, usize> = stacked
        .iter()
        .enumerate()
        .flat_map(|(number, whole)| whole.parts.iter().map(move |part| (part.as_str(), number)))
        .collect();
    let quantized = |(name, tensor): &(String, StoredTensor)| {
        matches!(tensor, StoredTensor::Quantized(_)) && places.contains_key(name.as_str())
    };
    if stacked.is_empty() || tensors.iter().any(quantized) {
        return tensors;
    }
    let mut parts: Vec<BTreeMap<String, StoredTensor>> = vec![BTreeMap::new(); stacked.len()];
    let mut result = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let Some(&number) = places.get(name.as_str()) else {
            result.push((name, tensor));
            continue;
        };
        parts[number].insert(name, tensor);
        if parts[number].len() == stacked[number].parts.len() {
            let whole = &stacked[number];
            result.push((whole.name.clone(), joined(std::mem::take(&mut parts[number]), whole)));
        }
    }
    result
}

/// The parts of a tensor as one, in 16 bits where all of them are.
fn joined(mut parts: BTreeMap<String, StoredTensor>, whole: &Stacked) -> StoredTensor {
    let kind = parts.values().next().map(std::mem::discriminant);
    let alike = parts.values().all(|part| Some(std::mem::discriminant(part)) == kind);
    let mut values = Vec::with_capacity(whole.shape.iter().product());
    let mut of_last: Option<StoredTensor> = None;
    for name in &whole.parts {
        let part = parts.remove(name);
        if let Some(
            StoredTensor::Full(shape, part)
            | StoredTensor::Half(shape, part)
            | StoredTensor::Bf16(shape, part),
        ) = &part
        {
            match (whole.turned, shape.as_slice()) {
                (true, &[rows, columns]) => values.extend(
                    (0..columns)
                        .flat_map(|column| (0..rows).map(move |row| part[row * columns + column])),
                ),
                _ => values.extend_from_slice(part),
            }
        }
        of_last = part;
    }
    let shape = whole.shape.to_vec();
    match of_last {
        Some(StoredTensor::Half(..)) if alike => StoredTensor::Half(shape, values),
        Some(StoredTensor::Bf16(..)) if alike => StoredTensor::Bf16(shape, values),
        _ => StoredTensor::Full(shape, values),
    }
}

/// Loads the weights with which the device computes in packed form. What does not fit is left to
/// [`fill`], whose error says why.
fn keep_packed<B: Kernels>(
    backbone: &mut Backbone<B>,
    weights: &mut Weights,
    names: &Names,
    prefix: &str,
) -> Result<()> {
    #[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
    if weights.precision() == WeightPrecision::Bf16 && B::PACKING == Packing::Host {
        return keep_bf16(backbone, weights, names, prefix);
    }
    for (path, linear) in backbone.linears_mut() {
        if is_router(&path) {
            continue;
        }
        let [inputs, outputs] = linear.weight.lazy_shape().dims();
        let mut parts: Vec<(String, Option<usize>)> = Vec::new();
        let mut schemes = Vec::new();
        let mut rows = 0;
        for Part { name, half, .. } in names.source(&format!("{path}.weight"))?.parts {
            let name = format!("{prefix}{name}");
            let shape = weights.tensors().get(&name).map(|info| info.shape.as_slice());
            if let (Some(scheme), Some(&[height, width])) = (weights.scheme(&name), shape)
                && width == inputs
            {
                rows += if half.is_some() { height / 2 } else { height };
                schemes.push(scheme);
                parts.push((name, half));
            } else {
                schemes.clear();
                break;
            }
        }
        let whole = |scheme: &Scheme| matches!(scheme.number, Number::Int8 | Number::Int4);
        let alike = schemes.windows(2).all(|pair| pair[0] == pair[1]);
        if rows == outputs && alike && schemes.first().is_some_and(whole) {
            let mut read = Vec::with_capacity(parts.len());
            for (name, half) in &parts {
                let whole = weights.read_quantized(name)?;
                read.extend(match half {
                    Some(half) => whole.map(|whole| whole.half(*half)).transpose()?,
                    None => whole,
                });
            }
            linear.keep_packed(&read)?;
        }
    }
    for (path, table) in backbone.tables_mut() {
        let shape: [usize; 2] = table.weight.lazy_shape().dims();
        for Part { name, .. } in names.source(&format!("{path}.weight"))?.parts {
            let name = format!("{prefix}{name}");
            let fits = |info: &TensorInfo| info.shape == shape;
            if weights.tensors().get(&name).is_some_and(fits)
                && let Some(read) = weights.map_quantized(&name)?
            {
                table.keep_packed(read)?;
            }
        }
    }
    Ok(())
}

/// Loads projections in bf16, one after the other. What does not fit is left to [`fill`].
#[cfg(all(feature = "flex", any(not(target_arch = "wasm32"), feature = "autodiff")))]
fn keep_bf16<B: Kernels>(
    backbone: &mut Backbone<B>,
    weights: &mut Weights,
    names: &Names,
    prefix: &str,
) -> Result<()> {
    for (path, linear) in backbone.linears_mut() {
        if is_router(&path) {
            continue;
        }
        let [inputs, outputs] = linear.weight.lazy_shape().dims();
        let source = names.source(&format!("{path}.weight"))?;
        let mut values = Vec::with_capacity(inputs * outputs);
        for Part { name, half, .. } in &source.parts {
            let name = format!("{prefix}{name}");
            let shape = weights.tensors().get(&name).map(|info| info.shape.as_slice());
            // `[outputs, inputs]` in files, as linear layers are stored.
            if source.transposed && matches!(shape, Some(&[_, width]) if width == inputs) {
                let whole = weights.read(&name)?.unwrap_or_default();
                values.extend_from_slice(half_of(&whole, *half));
            }
        }
        if values.len() == inputs * outputs && values.iter().all(|value| value.is_finite()) {
            linear.keep_on_host(HostMatrix::Bf16(Bf16Matrix::pack_transposed(&values, outputs)));
        }
    }
    Ok(())
}

/// The rows of a parameter in a tensor that has two of them, one after the other.
fn half_of(values: &[f32], half: Option<usize>) -> &[f32] {
    let size = values.len() / 2;
    match half {
        Some(0) => &values[..size],
        Some(_) => &values[size..],
        None => values,
    }
}

/// Whether no value is NaN or infinite.
fn are_finite(values: &[f32]) -> bool {
    // Without an end at the first one, several are looked at at once.
    let finite = |part: &[f32]| part.iter().fold(true, |all, value| all & value.is_finite());
    values.chunks(1 << 12).all(finite)
}

/// Writes a matrix, or one that is `transposed`, into the given columns of rows as wide as `width`.
fn place(rows: &mut [f32], width: usize, columns: Range<usize>, values: &[f32], transposed: bool) {
    // So few rows that the lines of memory that they begin with stay in the cache.
    const ROWS: usize = 32;
    let (count, all) = (columns.len(), rows.len() / width.max(1));
    each_part(rows, (ROWS * width).max(1), |number, part| {
        let first = number * ROWS;
        let part_rows = part.len() / width;
        if transposed {
            for out in 0..count {
                let of_rows = &values[out * all + first..][..part_rows];
                for (row, value) in part.chunks_exact_mut(width).zip(of_rows) {
                    row[columns.start + out] = *value;
                }
            }
        } else {
            let of_rows = values[first * count..].chunks_exact(count.max(1));
            for (row, values) in part.chunks_exact_mut(width).zip(of_rows) {
                row[columns.clone()].copy_from_slice(values);
            }
        }
    });
}

/// The tensors of a backbone, one after another, under the names of its family. Adapters are merged, and packed projections
/// unpacked, one weight after the other: all at once they would be another model in the device's memory.
pub(crate) fn save_backbone<B: Kernels, E: From<Error>>(
    config: &ModelConfig,
    backbone: &Backbone<B>,
    keep: &mut Keep<'_, E>,
) -> Result<(), E> {
    let names = families::names(config);
    let mut whole = backbone.clone();
    whole.tables_mut().into_iter().for_each(|(_, table)| table.unpack());
    let linears = whole.linears_mut().into_iter();
    let adapted: BTreeMap<String, Linear<B>> =
        linears.map(|(path, linear)| (format!("{path}.weight"), linear.clone())).collect();
    let merged = |path: &str| {
        let mut linear = adapted.get(path)?.clone();
        linear.unpack();
        linear.merge_for_good();
        Some(linear.weight.val())
    };
    visit_tensors(&whole, &names, &merged, keep)
}

/// Fills all parameters of a module.
///
/// # Errors
/// Tensors that do not fit the module, found before any is allocated, or that cannot be read.
pub(crate) fn fill<B: Kernels, M: Module<B>>(
    module: M,
    weights: &mut Weights,
    names: &Names,
    prefix: &'static str,
    device: &B::Device,
) -> Result<M> {
    compare(&module, weights, names, prefix)?;
    let mut loader = Loader::<B> {
        path: Path::default(),
        names,
        prefix,
        device,
        report: crate::TensorReport { file: weights.label(), ..Default::default() },
        failure: None,
        weights,
    };
    let module = module.map(&mut loader);
    match (loader.failure, loader.report) {
        (Some(failure), _) => Err(failure),
        (None, report) if report.is_empty() => Ok(module),
        (None, report) => Err(Error::Tensors(report)),
    }
}

/// Compares the names and shapes that a module needs with those of a checkpoint. Nothing is read or
/// allocated, because the config of another model would ask for tables that the weights do not
/// have.
fn compare<B: Kernels, M: Module<B>>(
    module: &M,
    weights: &Weights,
    names: &Names,
    prefix: &'static str,
) -> Result<()> {
    let mut comparer = Comparer {
        path: Path::default(),
        names,
        prefix,
        weights,
        needed: BTreeSet::new(),
        report: crate::TensorReport { file: weights.label(), ..Default::default() },
        failure: None,
    };
    module.visit(&mut comparer);
    let Comparer { mut report, failure, needed, .. } = comparer;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let spare = |name: &&str| !needed.contains(*name) && !names.is_ignored(name, prefix);
    report.extra.extend(weights.unused().filter(spare).map(String::from));
    if report.is_empty() { Ok(()) } else { Err(Error::Tensors(report)) }
}

/// The parameters of a module, one after another, as tensors under the checkpoint's names.
pub(crate) fn each_tensor<B: Kernels, M: Module<B>, E: From<Error>>(
    module: &M,
    names: &Names,
    keep: &mut Keep<'_, E>,
) -> Result<(), E> {
    visit_tensors(module, names, &|_| None, keep)
}

/// As [`each_tensor`], where some parameters are not what is to be saved, but `instead` says what is.
fn visit_tensors<B: Kernels, M: Module<B>, E: From<Error>>(
    module: &M,
    names: &Names,
    instead: &dyn Fn(&str) -> Option<Tensor<B, 2>>,
    keep: &mut Keep<'_, E>,
) -> Result<(), E> {
    let mut saver = Saver { path: Path::default(), names, instead, keep, failure: None };
    module.visit(&mut saver);
    saver.failure.map_or(Ok(()), Err)
}

/// Path of the parameter that is being visited, enum variants left out.
#[derive(Default)]
struct Path(Vec<String>);

impl Path {
    fn enter(&mut self, name: &str, container: &str) {
        if !container.starts_with("Enum:") {
            self.0.push(name.to_string());
        }
    }

    fn exit(&mut self, container: &str) {
        if !container.starts_with("Enum:") {
            self.0.pop();
        }
    }

    /// LoRA adapters are saved separately, not with the weights that they adapt; packed weights are
    /// unpacked before saving and loaded by `keep_packed`.
    fn is_apart(&self) -> bool {
        self.0.iter().any(|segment| segment == "adapters" || segment == "packed")
    }

    fn dotted(&self) -> String {
        self.0.join(".")
    }
}

/// A checkpoint's tensor that fills some columns of a parameter.
struct Piece {
    name: String,
    columns: usize,
    /// As in the checkpoint.
    shape: Vec<usize>,
    /// Which half of the tensor it is.
    half: Option<usize>,
}

/// The tensors that fill the parameter at a path, and whether they hold `[out, in]` where it is
/// `[in, out]`.
fn pieces(names: &Names, prefix: &str, path: &Path, shape: &[usize]) -> Result<(Vec<Piece>, bool)> {
    let TensorSource { parts, transposed, .. } = names.source(&path.dotted())?;
    let piece = |Part { name, width, half }| {
        let mut shape = shape.to_vec();
        if let (Some(last), Some(width)) = (shape.last_mut(), width) {
            *last = width;
        }
        let columns = shape.last().copied().unwrap_or_default();
        if transposed {
            shape.reverse();
        }
        if let (Some(first), Some(_)) = (shape.first_mut(), half) {
            *first = first.saturating_mul(2);
        }
        Piece { name: format!("{prefix}{name}"), columns, shape, half }
    };
    Ok((parts.into_iter().map(piece).collect(), transposed))
}

/// Whether a parameter has been replaced by a packed one, which leaves an empty tensor.
fn is_packed<const D: usize>(shape: [usize; D]) -> bool {
    shape.contains(&0)
}

struct Comparer<'a> {
    path: Path,
    names: &'a Names,
    prefix: &'static str,
    weights: &'a Weights,
    needed: BTreeSet<String>,
    report: crate::TensorReport,
    failure: Option<Error>,
}

impl<B: Kernels> ModuleVisitor<B> for Comparer<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.path.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let shape: [usize; D] = param.lazy_shape().dims();
        if self.path.is_apart() || is_packed(shape) {
            return;
        }
        match pieces(self.names, self.prefix, &self.path, &shape) {
            Ok((pieces, _)) => {
                for Piece { name, shape, .. } in pieces {
                    match self.weights.tensors().get(&name) {
                        // Both halves of a tensor miss it.
                        None if self.needed.contains(&name) => {}
                        None => self.report.missing.push(name.clone()),
                        Some(info) if info.shape != shape && !self.needed.contains(&name) => {
                            self.report.misshaped.push((name.clone(), shape, info.shape.clone()));
                        }
                        Some(_) => {}
                    }
                    self.needed.insert(name);
                }
            }
            Err(failure) => self.failure = Some(failure),
        }
    }
}

struct Loader<'a, B: Backend> {
    path: Path,
    names: &'a Names,
    prefix: &'static str,
    device: &'a B::Device,
    report: crate::TensorReport,
    failure: Option<Error>,
    weights: &'a mut Weights,
}

impl<B: Kernels> Loader<'_, B> {
    /// Whether the parameter is one that products take in bf16 on this device.
    fn stays_in_bf16(&self, dimensions: usize) -> bool {
        let path = self.path.dotted();
        let projects = path.strip_suffix(".weight").is_some_and(|path| !is_router(path));
        let in_block = self.path.0.iter().any(|segment| segment == "blocks");
        let asked = self.weights.precision() == WeightPrecision::Bf16;
        let multiplies = !B::HOST && B::supports_dtype(self.device, DType::BF16);
        asked && multiplies && dimensions == 2 && projects && in_block
    }

    /// Whether a parameter of so many `values` fits the device's largest tensor.
    fn check_size(&self, values: usize, bf16: bool) -> Result<()> {
        let (format, width) = if bf16 { ("bf16", 2) } else { ("f32", 4) };
        let (bytes, largest) = (values as u64 * width, B::largest_tensor(self.device));
        if bytes <= largest {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{} takes {} MB in {format}, and this GPU takes tensors of {} MB at most; load the \
             model with its weights in int8 or int4, or use the CPU",
            self.path.dotted(),
            bytes >> 20,
            largest >> 20
        )))
    }

    /// The parameter's values, whose shape [`compare`] has checked, or `None` after a note in the
    /// report.
    fn read<const D: usize>(&mut self, shape: [usize; D]) -> Result<Option<Tensor<B, D>>> {
        let (pieces, transposed) = pieces(self.names, self.prefix, &self.path, &shape)?;
        let total = shape[D - 1];
        let rows = shape[..D - 1].iter().product::<usize>();
        self.check_size(rows * total, self.stays_in_bf16(D))?;
        // Assembled on the host in our orientation, so nothing is read back from the device.
        let mut joined = vec![0.0; rows * total];
        let mut column = 0;
        for Piece { name, columns, half, .. } in pieces {
            let whole = match is_router(self.path.dotted().trim_end_matches(".weight")) {
                true => self.weights.values(&name)?,
                false => self.weights.read(&name)?,
            };
            let whole = whole.unwrap_or_default();
            let values = half_of(&whole, half);
            if values.len() != rows * columns || column + columns > total {
                return Err(Error::invalid(format!("{name}: has not the shape that was compared")));
            }
            if !are_finite(values) {
                self.report.non_finite.push(name);
                continue;
            }
            place(&mut joined, total, column..column + columns, values, transposed);
            column += columns;
        }
        if let Some(affine) = self.names.source(&self.path.dotted())?.affine {
            joined.iter_mut().for_each(|value| *value = affine.read(*value));
        }
        if !self.report.is_empty() {
            return Ok(None);
        }
        let data = TensorData::new(joined, shape);
        Ok(Some(match self.stays_in_bf16(D) {
            // Rounded here: the device never holds it in f32.
            true => Tensor::from_data(data.convert_dtype(DType::BF16), (self.device, DType::BF16)),
            false => Tensor::from_data(data, self.device),
        }))
    }
}

impl<B: Kernels> ModuleMapper<B> for Loader<'_, B> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.path.exit(container);
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let shape: [usize; D] = param.lazy_shape().dims();
        if self.failure.is_some() || self.path.is_apart() || is_packed(shape) {
            return param;
        }
        match self.read(shape) {
            // Without initialising the parameter first, which would double its memory.
            Ok(Some(tensor)) => {
                let id = param.id;
                param.transform_for_load(tensor, id)
            }
            Ok(None) => param,
            Err(failure) => {
                self.failure = Some(failure);
                param
            }
        }
    }
}

struct Saver<'a, 'k, B: Backend, E> {
    path: Path,
    names: &'a Names,
    instead: &'a dyn Fn(&str) -> Option<Tensor<B, 2>>,
    keep: &'a mut Keep<'k, E>,
    failure: Option<E>,
}

impl<B: Kernels, E: From<Error>> Saver<'_, '_, B, E> {
    fn save<const D: usize>(&mut self, tensor: Tensor<B, D>) -> Result<(), E> {
        let TensorSource { parts, transposed, affine } = self.names.source(&self.path.dotted())?;
        let total = tensor.dims()[D - 1];
        let mut column = 0;
        for Part { name, width, .. } in parts {
            let width = width.unwrap_or(total);
            let piece = tensor.clone().narrow(D - 1, column, width);
            column += width;
            let piece = if transposed { piece.transpose() } else { piece };
            let shape = piece.dims().to_vec();
            let values = piece.into_data().convert::<f32>().into_vec().map_err(|e| {
                Error::invalid(format!("{name}: could not be read back from the device: {e:?}"))
            });
            let mut values: Vec<f32> = values?;
            if let Some(affine) = affine {
                values.iter_mut().for_each(|value| *value = affine.write(*value));
            }
            (self.keep)(name, shape, values)?;
        }
        Ok(())
    }
}

impl<B: Kernels, E: From<Error>> ModuleVisitor<B> for Saver<'_, '_, B, E> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        self.path.exit(container);
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if self.failure.is_none() && !self.path.is_apart() {
            let saved = match (self.instead)(&self.path.dotted()) {
                Some(tensor) => self.save(tensor),
                None => self.save(param.val()),
            };
            self.failure = saved.err();
        }
    }
}

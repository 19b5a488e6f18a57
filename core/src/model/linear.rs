//! A linear layer that may be several projections side by side, each with its own LoRA adapter.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, Param, ParamId};
use burn::nn::Initializer;
use burn::tensor::{
    BasicOps, Bool, FloatDType, Tensor, TensorData, backend::Backend, module, ops::FloatTensor,
};

use super::families::Part;
use super::gram::SharedGram;
use super::init::initialized;
use super::lora::{Adapter, LoraConfig, names_module};
use super::packed::PackedWeight;
use crate::kernels::{Kernels, MatmulPrecision, Packing, Prepared, Projection};
use crate::quant::{HostMatrix, PackedMatrix, Quantized};
use crate::{Error, Result};

/// `y = x W + b` with `W` `[in, out]`.
///
/// The columns of `W` may be the concatenation of named parts (q, k and v in one product);
/// an [`Adapter`] belongs to one part.
#[derive(Module, Debug)]
pub struct Linear<B: Backend> {
    /// Weight `[in, out]`.
    pub weight: Param<Tensor<B, 2>>,
    /// Bias `[out]`.
    pub bias: Option<Param<Tensor<B, 1>>>,
    /// LoRA adapters, at most one a part, in the parts' order.
    pub adapters: Vec<Adapter<B>>,
    /// `(name, width)` of the parts, in column order.
    #[module(skip)]
    parts: Vec<(String, usize)>,
    /// Whether the adapters' update has been added to the weight.
    merged: bool,
    /// The packed weight in the host's memory, used instead of `weight` where it is set.
    #[module(skip)]
    packed_on_host: Option<Arc<HostMatrix>>,
    /// The packed weight in the device's memory, likewise.
    packed: Option<PackedWeight<B>>,
    /// True where a weight may differ from zero, in a pruned model that stays pruned; it masks the
    /// adapters' update too.
    mask: Option<Param<Tensor<B, 2, Bool>>>,
    /// Collects the layer's inputs.
    #[module(skip)]
    observer: Option<SharedGram>,
    /// Numbers of the products of a block that trains.
    #[module(skip)]
    matmul_precision: MatmulPrecision,
    /// What the backend has made of the weight.
    #[module(skip)]
    prepared: Prepared,
}

impl<B: Kernels> Linear<B> {
    /// A layer of the given parts, each with its name and width. A part without a name takes no adapter.
    pub fn new(
        input: usize,
        parts: &[(&str, usize)],
        bias: bool,
        init: &Initializer,
        device: &B::Device,
    ) -> Self {
        let output = parts.iter().map(|(_, width)| width).sum();
        Self {
            weight: init.init_with([input, output], Some(input), Some(output), device),
            bias: bias.then(|| Initializer::Zeros.init([output], device)),
            adapters: Vec::new(),
            parts: parts.iter().map(|(name, width)| (name.to_string(), *width)).collect(),
            merged: false,
            packed_on_host: None,
            packed: None,
            mask: None,
            observer: None,
            matmul_precision: MatmulPrecision::F32,
            prepared: Prepared::default(),
        }
    }

    /// Sets the numbers of the products of blocks that train.
    pub(super) fn set_matmul_precision(&mut self, matmul_precision: MatmulPrecision) {
        self.matmul_precision = matmul_precision;
    }

    /// Numbers of the products of a block that trains.
    pub(super) fn matmul_precision(&self) -> MatmulPrecision {
        self.matmul_precision
    }

    /// The layer as a part of a block over so many rows, padding included; `None` where it is more than
    /// a product with adapters.
    pub(super) fn projection(&self, rows: usize) -> Option<Projection<FloatTensor<B>>> {
        if self.mask.is_some() || self.observer.is_some() {
            return None;
        }
        let weight = self.weight.val();
        let values = rows * self.shape()[0];
        let mut adapters = Vec::new();
        if !self.merged {
            let mut of_parts = self.adapters.iter().peekable();
            let mut first = 0;
            for (name, width) in &self.parts {
                if let Some(adapter) = of_parts.next_if(|adapter| adapter.part() == name) {
                    adapters.push(adapter.low_rank(first, values));
                }
                first += width;
            }
        }
        Some(Projection {
            weight: weight.into_primitive().tensor(),
            matrix: self.packed_on_host.clone(),
            packed: self.packed.as_ref().map(PackedWeight::matrix),
            bias: self.bias.as_ref().map(|bias| bias.val().into_primitive().tensor()),
            adapters,
            prepared: self.prepared.clone(),
        })
    }

    /// The weight `[in, out]`, where the layer is a product with it and nothing else.
    pub(crate) fn dense(&self) -> Option<Tensor<B, 2>> {
        let changed = self.is_packed() || self.mask.is_some() || self.observer.is_some();
        let alone = !changed && self.bias.is_none() && (self.merged || self.adapters.is_empty());
        alone.then(|| self.weight.val())
    }

    /// Sets or removes the collector of the layer's inputs.
    pub(crate) fn observe(&mut self, observer: Option<SharedGram>) {
        self.observer = observer;
    }

    /// Changes the weights part by part, each as `[out, in]`.
    pub(super) fn change(
        &mut self,
        parts: &[Part],
        change: &mut impl FnMut(&str, &mut [f32], [usize; 2]) -> Result<()>,
    ) -> Result<()> {
        let weight = self.weight.val();
        let ([inputs, outputs], device) = (weight.dims(), weight.device());
        let data = weight.transpose().into_data().convert::<f32>().into_vec::<f32>();
        let mut values =
            data.map_err(|e| Error::invalid(format!("a weight cannot be read back: {e:?}")))?;
        let mut row = 0;
        for Part { name, width, .. } in parts {
            let width = width.unwrap_or(outputs);
            let part = &mut values[row * inputs..(row + width) * inputs];
            change(name, part, [width, inputs])?;
            row += width;
        }
        let turned = Tensor::<B, 2>::from_data(TensorData::new(values, [outputs, inputs]), &device);
        self.weight = self.weight.clone().map(|_| turned.transpose());
        Ok(())
    }

    /// Keeps only some columns of a layer of one part, in the order given.
    pub(super) fn keep_columns(&mut self, kept: &[Range<usize>]) {
        self.unpack();
        fn columns<B: Backend, const D: usize, K: BasicOps<B>>(
            of: Tensor<B, D, K>,
            kept: &[Range<usize>],
        ) -> Tensor<B, D, K> {
            let column = |range: &Range<usize>| of.clone().narrow(D - 1, range.start, range.len());
            Tensor::cat(kept.iter().map(column).collect(), D - 1)
        }
        let float = |of| columns(of, kept).detach();
        self.weight = self.weight.clone().map(float);
        for adapter in &mut self.adapters {
            adapter.b = adapter.b.clone().map(float);
        }
        self.bias = self.bias.take().map(|bias| bias.map(|bias| columns(bias, kept).detach()));
        self.mask = self.mask.take().map(|mask| mask.map(|mask| columns(mask, kept)));
        let width = kept.iter().map(Range::len).sum();
        self.parts.iter_mut().for_each(|(_, of_part)| *of_part = width);
        self.prepared = Prepared::default();
    }

    /// Keeps the weights that are zero now at zero through training.
    pub(crate) fn keep_zeros(&mut self) {
        let mask = self.weight.val().not_equal_elem(0.0);
        self.mask = Some(Param::initialized(ParamId::new(), mask));
    }

    /// Replaces the weight by packed projections side by side, in the form with which the backend
    /// computes.
    ///
    /// # Errors
    /// Projections that cannot be packed together.
    pub(crate) fn keep_packed(&mut self, parts: &[Quantized]) -> Result<()> {
        let device = self.weight.lazy_device();
        match B::PACKING {
            Packing::Never => return Ok(()),
            Packing::Host => self.keep_on_host(HostMatrix::Integers(PackedMatrix::new(parts)?)),
            Packing::Device => {
                self.packed = Some(PackedWeight::new(parts, &device)?);
                self.weight = Param::from_tensor(Tensor::zeros([0, 0], &device));
            }
        }
        Ok(())
    }

    /// Replaces the weight by one in the host's memory.
    pub(crate) fn keep_on_host(&mut self, matrix: HostMatrix) {
        let device = self.weight.lazy_device();
        self.packed_on_host = Some(Arc::new(matrix));
        self.weight = Param::from_tensor(Tensor::zeros([0, 0], &device));
    }

    /// Replaces a packed weight by a floating-point one.
    pub(crate) fn unpack(&mut self) {
        if let Some(packed) = self.packed_on_host.take() {
            let device = self.weight.device();
            let data = TensorData::new(packed.weights(), packed.shape());
            self.weight = Param::from_data(data, &device);
        }
        if let Some(packed) = self.packed.take() {
            self.weight = Param::from_tensor(packed.weights());
        }
    }

    /// `[batch, seq, in]` to `[batch, seq, out]`.
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [batch, seq, input] = x.dims();
        // One flat product: [batch * seq, in] x [in, out].
        let y = self.forward_rows(x.reshape([batch * seq, input]));
        let [_, output] = y.dims();
        y.reshape([batch, seq, output])
    }

    /// `[rows, in]` to `[rows, out]`.
    pub fn forward_rows(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let bias = self.bias.as_ref().map(Param::val);
        if let Some(observer) = &self.observer
            && let Ok(mut gram) = observer.lock()
        {
            gram.add(&x);
        }
        if let Some(mask) = &self.mask {
            let mut weight = self.weight.val().cast(x.dtype());
            if !self.adapters.is_empty() && !self.merged {
                weight = weight + self.delta();
            }
            return module::linear(x, weight.mask_fill(mask.val().bool_not(), 0.0), bias);
        }
        let base = |x| match (&self.packed_on_host, &self.packed) {
            (Some(packed), _) => B::host_linear(x, packed, bias),
            (None, Some(packed)) => packed.linear(x, bias),
            (None, None) => {
                let (weight, dtype) = (self.weight.val(), x.dtype());
                if weight.dtype() == dtype {
                    return B::dense_linear(x, weight, bias);
                }
                // Weights that a device keeps in bf16.
                let y = x.cast(weight.dtype()).matmul(weight).cast(dtype);
                match bias {
                    Some(bias) => y + bias.unsqueeze(),
                    None => y,
                }
            }
        };
        if self.adapters.is_empty() || self.merged {
            return base(x);
        }
        base(x.clone()) + self.adapted(x)
    }

    /// Inputs and outputs, whatever form the weight has.
    pub(crate) fn shape(&self) -> [usize; 2] {
        match (&self.packed_on_host, &self.packed) {
            (Some(packed), _) => packed.shape(),
            (None, Some(packed)) => packed.shape(),
            (None, None) => self.weight.lazy_shape().dims(),
        }
    }

    /// Whether the weight is packed.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed_on_host.is_some() || self.packed.is_some()
    }

    /// The adapters' part of the output `[rows, out]`, zero where a part has none.
    fn adapted(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let [rows, _] = x.dims();
        let device = x.device();
        let mut adapters = self.adapters.iter().peekable();
        let columns = self
            .parts
            .iter()
            .map(|(name, width)| match adapters.next_if(|adapter| adapter.part() == name) {
                Some(adapter) => adapter.forward(x.clone()),
                None => Tensor::zeros([rows, *width], (&device, x.dtype())),
            })
            .collect();
        Tensor::cat(columns, 1)
    }

    /// Names of the parts that take an adapter.
    pub fn part_names(&self) -> impl Iterator<Item = &String> {
        self.parts.iter().map(|(name, _)| name).filter(|name| !name.is_empty())
    }

    /// Number of parameters that the adapters of a configuration would have.
    pub(super) fn lora_size(&self, lora: &LoraConfig, modules: &[String]) -> usize {
        let [input, _] = self.shape();
        let named = |name: &str, module: &str| {
            !name.is_empty()
                && lora.targets.iter().any(|target| target == name || names_module(target, module))
        };
        let parts = self.parts.iter().zip(modules);
        parts
            .filter(|((name, _), module)| named(name, module))
            .map(|((_, width), _)| lora.rank * (input + width))
            .sum()
    }

    /// Adds an adapter to each part that a target names; marks the targets that matched.
    /// `modules` are the parts' full names.
    pub(crate) fn add_adapters(
        &mut self,
        lora: &LoraConfig,
        modules: &[String],
        matched: &mut [bool],
        device: &B::Device,
    ) -> usize {
        let [input, _] = self.shape();
        let mut adapters = Vec::new();
        let named = self.parts.iter().zip(modules).filter(|((name, _), _)| !name.is_empty());
        for ((name, width), module) in named {
            let mut hit = false;
            for (target, matched) in lora.targets.iter().zip(matched.iter_mut()) {
                if target == name || names_module(target, module) {
                    (hit, *matched) = (true, true);
                }
            }
            if hit {
                let adapter = Adapter::new([name, module], [input, *width], lora, device);
                adapters.push(initialized(adapter));
            }
        }
        self.adapters = adapters;
        self.adapters.len()
    }

    /// Adds the adapters' update to the weight, once; beside a packed weight they stay as they are.
    pub(super) fn merge(&mut self) {
        if !self.merged && !self.is_packed() {
            self.add_delta(1.0);
            self.merged = !self.adapters.is_empty();
        }
    }

    /// Adds the adapters' update to the weight for good, which leaves none; a packed weight becomes one of
    /// floating point for it.
    pub(crate) fn merge_for_good(&mut self) {
        if !self.adapters.is_empty() {
            self.unpack();
        }
        self.merge();
        self.adapters.clear();
        // Adapters that come later are not in the weight.
        self.merged = false;
    }

    /// Subtracts the adapters' update from the weight, if it was added.
    pub(super) fn unmerge(&mut self) {
        if self.merged {
            self.add_delta(-1.0);
            self.merged = false;
        }
    }

    fn add_delta(&mut self, sign: f64) {
        if self.adapters.is_empty() {
            return;
        }
        let delta = self.delta().mul_scalar(sign);
        let dtype = delta.dtype();
        self.weight = self.weight.clone().map(|weight| (weight.cast(dtype) + delta).detach());
        // In a pruned model the forward pass never used what the adapters would add to zeros.
        if let Some(mask) = self.mask.as_ref().filter(|_| sign > 0.0) {
            let zero = mask.val().bool_not();
            self.weight = self.weight.clone().map(|weight| weight.mask_fill(zero, 0.0).detach());
        }
    }

    /// What an unpacked layer multiplies with `[in, out]`, the adapters' update included.
    pub(crate) fn whole_weight(&self) -> Tensor<B, 2> {
        let weight = self.weight.val().cast(FloatDType::F32);
        match self.adapters.is_empty() || self.merged {
            true => weight,
            false => weight + self.delta(),
        }
    }

    /// The adapters' update `[in, out]`, zero where a part has none.
    fn delta(&self) -> Tensor<B, 2> {
        let [input, _] = self.weight.dims();
        let device = self.weight.device();
        let mut adapters = self.adapters.iter().peekable();
        let columns = self
            .parts
            .iter()
            .map(|(name, width)| match adapters.next_if(|adapter| adapter.part() == name) {
                Some(adapter) => adapter.delta(),
                None => Tensor::zeros([input, *width], &device),
            })
            .collect();
        Tensor::cat(columns, 1)
    }
}

//! Several devices that train one model together (data parallel), in one process or in many.
//!
//! Each device runs the same loop over the same batches and computes its share of the chunks. Vectors are gathered
//! and gradients summed over the devices, so that each query meets the negatives of all devices, each text gets
//! the gradient of all losses, and every copy of the model takes the same step.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{BasicOps, Int, Shape, Tensor, TensorData};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::tokenizer::Tokens;
use kiln_embed::train::{Chunk, ChunkSize, Late};
use xxhash_rust::xxh3::xxh3_64;

use super::transport::Transport;

/// Values that are sent at once: 64 MB.
pub(super) const BUCKET: usize = 1 << 24;

/// This device among those that train together.
#[derive(Debug)]
pub struct DeviceGroup<B: AutodiffBackend> {
    transport: Option<Box<dyn Transport<B::InnerBackend>>>,
}

impl<B: TrainingBackend> DeviceGroup<B> {
    /// One device alone.
    pub fn single() -> Self {
        Self { transport: None }
    }

    /// A device that reaches others.
    pub(super) fn over(transport: Box<dyn Transport<B::InnerBackend>>) -> Self {
        Self { transport: Some(transport) }
    }

    /// Whether there is no other device.
    pub fn is_single(&self) -> bool {
        self.world() == 1
    }

    /// Whether this device writes the files and talks to the user.
    pub fn is_main(&self) -> bool {
        self.rank() == 0
    }

    /// This device's number, from 0.
    pub(super) fn rank(&self) -> usize {
        self.transport.as_ref().map_or(0, |transport| transport.rank())
    }

    /// How many devices there are.
    pub(super) fn world(&self) -> usize {
        self.transport.as_ref().map_or(1, |transport| transport.world())
    }

    /// What a device is called.
    pub(super) fn name(&self, rank: usize) -> String {
        self.transport.as_ref().map_or_else(String::new, |transport| transport.name(rank))
    }

    /// How many texts are computed at once, where each device is to get some of a batch's.
    pub(super) fn chunk_size(&self, size: ChunkSize, tokens: &[Tokens]) -> ChunkSize {
        if self.is_single() {
            return size;
        }
        // Two pieces for each, so that none has much more than another.
        let all: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
        let fair = all.div_ceil(2 * self.world());
        match size {
            ChunkSize::Texts(usize::MAX) => ChunkSize::Tokens(fair),
            ChunkSize::Tokens(tokens) => ChunkSize::Tokens(tokens.min(fair)),
            ChunkSize::Texts(_) => size,
        }
    }

    /// Which pieces of work are each device's: the largest first, to the device that has least.
    pub(super) fn shares(&self, work: &[usize]) -> Vec<Vec<usize>> {
        let mut shares = vec![(0, Vec::new()); self.world()];
        let mut order: Vec<usize> = (0..work.len()).collect();
        order.sort_by_key(|&piece| std::cmp::Reverse(work[piece]));
        for piece in order {
            if let Some((load, share)) = shares.iter_mut().min_by_key(|(load, _)| *load) {
                *load += work[piece];
                share.push(piece);
            }
        }
        let sorted = |(_, mut share): (usize, Vec<usize>)| {
            share.sort_unstable();
            share
        };
        shares.into_iter().map(sorted).collect()
    }

    /// This device's part of what is shared.
    pub(super) fn own<'a, T>(&self, shares: &'a [Vec<T>]) -> &'a [T] {
        shares.get(self.rank()).map_or(&[], Vec::as_slice)
    }

    /// What the model gives the rows of all chunks `[rows, width]`, in the chunks' order, on every device; each
    /// brings those of its own.
    ///
    /// # Errors
    /// A device that has gone away.
    pub(super) fn gather_rows(
        &self,
        chunks: &[Chunk],
        shares: &[Vec<usize>],
        vectors: Vec<Tensor<B::InnerBackend, 2>>,
        width: usize,
        device: &B::Device,
    ) -> Result<Tensor<B::InnerBackend, 2>> {
        if self.is_single() {
            return Ok(Tensor::cat(vectors, 0));
        }
        let rows_of =
            |share: &Vec<usize>| share.iter().map(|&chunk| chunks[chunk].rows.len()).sum::<usize>();
        let rows: Vec<usize> = shares.iter().map(rows_of).collect();
        let own = (!vectors.is_empty()).then(|| Tensor::cat(vectors, 0));
        let all = self.all_gather(own, &rows, width, device)?;
        // From the devices' order to the chunks'.
        let mut starts = vec![0; chunks.len()];
        let mut next = 0;
        for &chunk in shares.iter().flatten() {
            starts[chunk] = next;
            next += chunks[chunk].rows.len();
        }
        let pieces = chunks
            .iter()
            .zip(starts)
            .map(|(chunk, start)| all.clone().narrow(0, start, chunk.rows.len()));
        Ok(Tensor::cat(pieces.collect(), 0))
    }

    /// The rows `[rows, width]` of all devices, one device's after the other's; all know how many each has.
    ///
    /// # Errors
    /// A device that has gone away.
    pub(super) fn all_gather(
        &self,
        own: Option<Tensor<B::InnerBackend, 2>>,
        rows: &[usize],
        width: usize,
        device: &B::Device,
    ) -> Result<Tensor<B::InnerBackend, 2>> {
        match (&self.transport, own) {
            (Some(transport), own) => transport.all_gather(own, rows, width, device),
            (None, Some(own)) => Ok(own),
            (None, None) => Ok(Tensor::zeros([0, width], device)),
        }
    }

    /// The bytes of each device, on the main one, which is the only one that holds them all.
    ///
    /// # Errors
    /// A device that has gone away.
    pub(super) fn gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        let mut own = Some(own);
        for rank in 0..self.world() {
            let turn = if rank == self.rank() { own.take() } else { None };
            let mut these = self.all_gather_bytes(turn.unwrap_or_default())?;
            if self.is_main() {
                all.push(these.swap_remove(rank));
            }
        }
        Ok(all)
    }

    /// The bytes of each device, on all of them.
    ///
    /// # Errors
    /// A device that has gone away.
    pub(super) fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        match &self.transport {
            Some(transport) => transport.all_gather_bytes(own),
            None => Ok(vec![own]),
        }
    }

    /// Returns once all devices have come here.
    ///
    /// # Errors
    /// A device that has gone away.
    pub(super) fn barrier(&self) -> Result<()> {
        self.transport.as_ref().map_or(Ok(()), |transport| transport.barrier())
    }

    /// While what is returned lives the others wait for this device: within one process however long, and for another as
    /// long as `KILN_BUSY_TIMEOUT` says.
    pub(super) fn busy(&self) -> Box<dyn Any> {
        self.transport.as_ref().map_or_else(|| Box::new(()) as Box<dyn Any>, |one| one.busy())
    }

    /// True once a device is lost: for what one computes while the others wait.
    pub(super) fn ends(&self) -> Option<Arc<AtomicBool>> {
        self.transport.as_ref()?.ends()
    }

    /// The sum of a number over the devices, in their order; where there are several each has to know its own.
    ///
    /// # Errors
    /// A device that has gone away.
    pub fn sum_number(&self, number: Late<B::InnerBackend>) -> Result<Late<B::InnerBackend>> {
        let Some(transport) = self.transport.as_ref().filter(|transport| transport.world() > 1)
        else {
            return Ok(number);
        };
        let all = transport.all_gather_bytes(number.read()?.to_le_bytes().to_vec())?;
        let numbers = all.into_iter().map(|bytes| -> Result<f64> {
            let bytes = <[u8; 8]>::try_from(bytes).ok().context("the devices lost one another")?;
            Ok(f64::from_le_bytes(bytes))
        });
        Ok(Late::Known(numbers.sum::<Result<f64>>()?))
    }

    /// The sums of all gradients over the devices.
    ///
    /// # Errors
    /// A device that has gone away.
    pub fn sum_gradients<M: Module<B>>(
        &self,
        module: &M,
        mut grads: GradientsParams,
    ) -> Result<GradientsParams> {
        let Some(transport) = &self.transport else {
            return Ok(grads);
        };
        let mut flatten = Flatten::<B>(&mut grads, Vec::new());
        module.visit(&mut flatten);
        let mut waiting = flatten.1;
        waiting.reverse();
        let mut sums = Vec::with_capacity(waiting.len());
        while let Some(first) = waiting.pop() {
            let mut bucket = vec![first];
            let mut count = bucket[0].dims()[0];
            while let Some(next) = waiting.pop_if(|next| count + next.dims()[0] <= BUCKET) {
                count += next.dims()[0];
                bucket.push(next);
            }
            let counts: Vec<usize> = bucket.iter().map(|part| part.dims()[0]).collect();
            let sum = transport.all_reduce(Tensor::cat(bucket, 0))?;
            let mut from = 0;
            for count in counts {
                sums.push(sum.clone().narrow(0, from, count));
                from += count;
            }
        }
        let mut summed = GradientsParams::new();
        module.visit(&mut Unflatten::<B> { into: &mut summed, sums: sums.into_iter() });
        Ok(summed)
    }

    /// The module with device 0's ids of the parameters that train. Processes draw ids of their own, and the optimizer
    /// knows its state by them.
    ///
    /// # Errors
    /// A device that has gone away, or another structure.
    pub(super) fn same_ids<M: Module<B>>(&self, module: M) -> Result<M> {
        let Some(transport) = &self.transport else {
            return Ok(module);
        };
        let mut ids = Ids(Vec::new());
        Module::<B>::visit(&module, &mut ids);
        let own: Vec<u8> = ids.0.iter().flat_map(|id| id.to_le_bytes()).collect();
        let bytes = transport.broadcast(own.clone())?;
        if bytes.len() != own.len() {
            bail!("the devices' models are of another structure");
        }
        let (ids, _) = bytes.as_chunks::<8>();
        let ids: Vec<u64> = ids.iter().map(|id| u64::from_le_bytes(*id)).collect();
        Ok(if bytes == own { module } else { module.map(&mut Rename(ids.into_iter())) })
    }

    /// The module with device 0's values where this device's are others: what is drawn or computed on unlike hardware
    /// may differ in its last bits. `trained` looks at parameters that train alone.
    ///
    /// # Errors
    /// A device that has gone away, or another structure.
    pub(super) fn align<M: Module<B>>(&self, module: M, trained: bool) -> Result<M> {
        let Some(transport) = &self.transport else {
            return Ok(module);
        };
        let mut sums = Sums { trained, sums: Vec::new() };
        Module::<B>::visit(&module, &mut sums);
        let own: Vec<u8> = sums.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let all = transport.all_gather_bytes(own)?;
        if let Some(rank) = all.iter().position(|sums| sums.len() != all[0].len()) {
            bail!(
                "{} has a model of another structure than {}; give all hosts the same base and recipe",
                transport.name(rank),
                transport.name(0)
            );
        }
        let differs: Vec<bool> = (0..sums.sums.len())
            .map(|i| all.iter().any(|sums| sums[8 * i..8 * i + 8] != all[0][8 * i..8 * i + 8]))
            .collect();
        if !differs.contains(&true) {
            return Ok(module);
        }
        let mut align = Align::<B> {
            transport: &**transport,
            trained,
            differs: differs.into_iter(),
            failure: None,
        };
        let module = module.map(&mut align);
        align.failure.map_or(Ok(module), Err)
    }
}

/// Takes the gradients out of a module, in its order; a device without a chunk has none, and takes part all the same.
struct Flatten<'a, B: AutodiffBackend>(&'a mut GradientsParams, Vec<Tensor<B::InnerBackend, 1>>);

impl<B: TrainingBackend> ModuleVisitor<B> for Flatten<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if !param.is_require_grad() {
            return;
        }
        let count = param.shape().num_elements();
        let flat = match self.0.remove::<B::InnerBackend, D>(param.id) {
            Some(grad) => grad.reshape(Shape::new([count])),
            None => Tensor::zeros([count], &param.device()),
        };
        self.1.push(flat);
    }
}

/// Gives them back.
struct Unflatten<'a, B: AutodiffBackend> {
    into: &'a mut GradientsParams,
    sums: std::vec::IntoIter<Tensor<B::InnerBackend, 1>>,
}

impl<B: TrainingBackend> ModuleVisitor<B> for Unflatten<'_, B> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad()
            && let Some(sum) = self.sums.next()
        {
            self.into.register::<B::InnerBackend, D>(param.id, sum.reshape(param.shape()));
        }
    }
}

/// The ids of the parameters that train.
struct Ids(Vec<u64>);

impl<B: TrainingBackend> ModuleVisitor<B> for Ids {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if param.is_require_grad() {
            self.0.push(param.id.val());
        }
    }
}

/// Gives them others.
struct Rename(std::vec::IntoIter<u64>);

impl<B: TrainingBackend> ModuleMapper<B> for Rename {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_require_grad() {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(self.0.next().map_or(id, ParamId::from), tensor, mapper)
    }
}

/// A checksum of each parameter.
struct Sums {
    trained: bool,
    sums: Vec<u64>,
}

impl<B: TrainingBackend> ModuleVisitor<B> for Sums {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        if !self.trained || param.is_require_grad() {
            // One device may keep in bf16 what another has in f32.
            let values = param.val().into_data().convert::<f32>();
            self.sums.push(xxh3_64(values.as_bytes()));
        }
    }
}

/// Replaces what differs by what device 0 has.
struct Align<'a, B: AutodiffBackend> {
    transport: &'a dyn Transport<B::InnerBackend>,
    trained: bool,
    differs: std::vec::IntoIter<bool>,
    failure: Option<anyhow::Error>,
}

impl<B: TrainingBackend> Align<'_, B> {
    fn values<const D: usize>(
        &self,
        tensor: Tensor<B::InnerBackend, D>,
    ) -> Result<Tensor<B::InnerBackend, D>> {
        let (device, shape, dtype) = (tensor.device(), tensor.shape(), tensor.dtype());
        let own = match self.transport.rank() {
            0 => bytes_of(&values_of(tensor.clone())?),
            _ => Vec::new(),
        };
        let bytes = self.transport.broadcast(own)?;
        if self.transport.rank() == 0 {
            return Ok(tensor);
        }
        let (values, _) = bytes.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if values.len() != shape.num_elements() {
            bail!("the devices' models are of another structure");
        }
        let data = TensorData::new(values, shape).convert_dtype(dtype);
        Ok(Tensor::from_data(data, (&device, dtype)))
    }
}

impl<B: TrainingBackend> ModuleMapper<B> for Align<'_, B> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let trains = param.is_require_grad();
        let looked_at = !self.trained || trains;
        if self.failure.is_some() || !looked_at || self.differs.next() != Some(true) {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        let tensor = match self.values(tensor.clone().inner()) {
            Ok(values) => Tensor::from_inner(values).set_require_grad(trains),
            Err(error) => {
                self.failure = Some(error);
                tensor
            }
        };
        Param::from_mapped_value(id, tensor, mapper)
    }
}

/// The values of a tensor, read back from its device.
pub(super) fn values_of<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Result<Vec<f32>> {
    let values = tensor.into_data().convert::<f32>().into_vec::<f32>();
    values.map_err(|error| {
        anyhow::anyhow!("values could not be read back from the device: {error:?}")
    })
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// A tensor on another device, by way of the host's memory. Burn moves one between two CUDA devices by NCCL, which has to
/// be there, and in which two devices that send to one another at once wait for one another's receiving.
pub(super) fn moved<B: Backend, const D: usize, K: BasicOps<B>>(
    tensor: Tensor<B, D, K>,
    device: &B::Device,
) -> Tensor<B, D, K> {
    if tensor.device() == *device {
        return tensor;
    }
    let dtype = tensor.dtype();
    Tensor::from_data(tensor.into_data(), (device, dtype))
}

/// A copy of a module on another device, with the same parameter ids.
pub(super) fn copied<B: TrainingBackend, M: Module<B>>(module: &M, device: &B::Device) -> M {
    struct Copy<'a, B: AutodiffBackend>(&'a B::Device);
    impl<B: TrainingBackend> ModuleMapper<B> for Copy<'_, B> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let trains = param.is_require_grad();
            let (id, tensor, mapper) = param.consume();
            let inner = moved(tensor.inner(), self.0);
            let tensor = Tensor::from_inner(inner).set_require_grad(trains);
            Param::from_mapped_value(id, tensor, mapper)
        }

        // Of packed weights.
        fn map_int<const D: usize>(
            &mut self,
            param: Param<Tensor<B, D, Int>>,
        ) -> Param<Tensor<B, D, Int>> {
            let (id, tensor, mapper) = param.consume();
            Param::from_mapped_value(id, moved(tensor, self.0), mapper)
        }
    }
    module.clone().map(&mut Copy::<B>(device))
}

#[cfg(test)]
mod tests {
    use burn::backend::{Autodiff, Flex};

    use super::super::in_process;
    use super::*;

    #[test]
    fn shares_are_fair_and_leave_nothing_out() {
        let groups: Vec<DeviceGroup<Autodiff<Flex>>> = in_process::devices(3)
            .into_iter()
            .map(|one| DeviceGroup::over(Box::new(one)))
            .collect();
        let work = [9, 8, 7, 3, 3, 2, 1];
        let shares = groups[0].shares(&work);
        let loads: Vec<usize> =
            shares.iter().map(|share| share.iter().map(|&i| work[i]).sum()).collect();
        assert_eq!(loads, [11, 11, 11]);
        let mut all: Vec<usize> =
            groups.iter().flat_map(|group| group.own(&shares).to_vec()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(DeviceGroup::<Autodiff<Flex>>::single().shares(&work), [all]);
    }
}

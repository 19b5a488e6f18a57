//! A batch through all of its chunks: what the loss is of, gathered from chunks and devices, the loss over it, and the
//! gradient back through each chunk.

use anyhow::Result;
use burn::optim::GradientsParams;
use burn::tensor::{ElementConversion as _, Int, Tensor, TensorData};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::tokenizer::Tokens;

use super::chunks::{Chunk, chunks};
use super::device_group::DeviceGroup;
use super::gradients::add;
use super::train_model::TrainModel;
use super::{BatchLoss, StepContext};

/// Loss and gradients of a batch of rows of tokens. `loss` takes what the model gives all rows, in their order
/// `[rows, width]` ([`TrainModel::finished`]), and gives `None` where it has nothing to say of them.
pub(super) fn through_chunks<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    tokens: &[Tokens],
    context: &StepContext<'_, B>,
    seed: u64,
    loss: impl FnOnce(Tensor<B, 2>) -> Result<Option<Tensor<B, 1>>>,
) -> Result<BatchLoss> {
    let &StepContext { tokenizer, ref runner, device, group, teacher, scale } = context;
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let chunks = chunks(tokenizer, tokens, runner.chunk, seed);
    // The chunks of this device.
    let share: Vec<usize> = group.share(chunks.len());
    let passes =
        runner.each(&share, |&i| runner.forward(train_model, &chunks[i], teacher, device))?;
    let (vectors, graphs): (Vec<_>, Vec<_>) =
        passes.into_iter().map(|pass| (pass.vectors.clone(), pass.graph())).unzip();

    // All vectors in the order of the chunks, other devices' included; then in the rows' order.
    let rows = chunks.iter().flat_map(|chunk| &chunk.rows).copied().collect::<Vec<_>>();
    let gathered = gather::<B>(group, &chunks, &share, vectors, train_model.width(), device)?;
    let mut position = vec![0i32; rows.len()];
    for (i, &row) in rows.iter().enumerate() {
        position[row] = i as i32;
    }
    let position = TensorData::new(position, [rows.len()]);
    let leaf = Tensor::<B, 2>::from_inner(gathered).require_grad();
    let all = leaf.clone().select(0, Tensor::<B, 1, Int>::from_data(position, device));
    // Where only hidden states are compared the vectors' graph still has to be there.
    let loss = loss(all)?.unwrap_or_else(|| leaf.clone().sum().mul_scalar(0.0));
    let value = loss.clone().into_scalar().elem::<f64>();
    let scaled = loss.mul_scalar(scale);
    let gradient = leaf.grad(&scaled.backward());
    let Some(gradient) = gradient else {
        anyhow::bail!("the loss does not depend on the vectors; check the batch and the masks");
    };

    // Where each chunk's rows stand among the gathered ones.
    let starts: Vec<usize> = chunks
        .iter()
        .scan(0, |next, chunk| {
            let start = *next;
            *next += chunk.rows.len();
            Some(start)
        })
        .collect();
    let work: Vec<_> =
        share.iter().copied().zip(graphs).map(|(i, graph)| (i, Once::new(graph))).collect();
    let parts = runner.each(&work, |(i, graph)| {
        let chunk = &chunks[*i];
        let gradient = gradient.clone().narrow(0, starts[*i], chunk.rows.len());
        // By tokens, over which the states' loss is a mean.
        let own = chunk.tokens.count_tokens();
        let weight = own as f64 / total.max(1) as f64;
        let states = (teacher, weight, scale);
        runner.backward(train_model, chunk, graph.take(), gradient, states, device)
    })?;
    let mut gradients = GradientsParams::new();
    let mut states = 0.0;
    for part in parts {
        states += part.loss;
        add::<B, _>(train_model, &mut gradients, part.gradients, scale);
    }
    let of_states = match teacher {
        Some(_) => group.sum_number(states, device)?,
        None => 0.0,
    };
    Ok(BatchLoss { loss: value + of_states, gradients, texts: tokens.len(), tokens: total })
}

/// A value that one of several threads takes.
struct Once<T>(std::sync::Mutex<Option<T>>);

impl<T> Once<T> {
    fn new(value: Option<T>) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    fn take(&self) -> Option<T> {
        self.0.lock().ok()?.take()
    }
}

/// What the model gives the rows of all chunks `[rows, width]`, in the chunks' order, on every device.
fn gather<B: TrainingBackend>(
    group: &DeviceGroup<B>,
    chunks: &[Chunk],
    share: &[usize],
    vectors: Vec<Tensor<B::InnerBackend, 2>>,
    width: usize,
    device: &B::Device,
) -> Result<Tensor<B::InnerBackend, 2>> {
    if group.is_single() {
        return Ok(Tensor::cat(vectors, 0));
    }
    // Zeros where other devices' vectors go; the sum over the devices is the gathered whole.
    let mut own = share.iter().zip(vectors).peekable();
    let parts = chunks
        .iter()
        .enumerate()
        .map(|(i, chunk)| match own.next_if(|(own, _)| **own == i) {
            Some((_, vectors)) => vectors,
            None => Tensor::zeros([chunk.rows.len(), width], device),
        })
        .collect();
    group.sum(Tensor::cat(parts, 0))
}

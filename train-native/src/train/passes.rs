//! A batch through all of its chunks, on all devices: what the loss is of is gathered from them.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::tokenizer::Tokens;
use kiln_embed::train::{BatchGradients, BatchPass, Chunk, TrainModel, chunks};

use super::device_group::DeviceGroup;
use super::distillation::Teacher;
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
    let pass = BatchPass {
        train_model,
        runner,
        chunks: &chunks,
        share: &share,
        states: teacher.and_then(Teacher::states),
        scale,
        device,
    };
    let vectors =
        |vectors| gather::<B>(group, &chunks, &share, vectors, train_model.width(), device);
    let BatchGradients { loss: value, states, gradients } = pass.run(vectors, |all| {
        // Where only hidden states are compared the vectors' graph still has to be there.
        Ok::<_, anyhow::Error>(match loss(all.clone())? {
            Some(loss) => loss,
            None => all.sum().mul_scalar(0.0),
        })
    })?;
    let of_states = match teacher {
        Some(_) => group.sum_number(states, device)?,
        None => 0.0,
    };
    Ok(BatchLoss { loss: value + of_states, gradients, texts: tokens.len(), tokens: total })
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

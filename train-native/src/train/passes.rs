//! A batch through all of its chunks, on all devices: what the loss is of is gathered from them.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::tokenizer::Tokens;
use kiln_embed::train::{BatchGradients, BatchPass, Chunk, TrainModel, chunks};

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
) -> Result<BatchLoss<B>> {
    let &StepContext { tokenizer, ref runner, device, group, teacher, scale, .. } = context;
    let total: usize = tokens.iter().map(|tokens| tokens.ids.len()).sum();
    let chunks = chunks::<B>(tokenizer, tokens, group.chunk_size(runner.chunk, tokens), seed);
    // The chunks of each device, by the tokens that it computes.
    let shares = group.shares(&chunks.iter().map(Chunk::work).collect::<Vec<_>>());
    let share = group.own(&shares);
    let pass = BatchPass {
        train_model,
        runner,
        chunks: &chunks,
        share,
        states: teacher.and_then(Teacher::states),
        scale,
        device,
    };
    let vectors =
        |vectors| group.gather_rows(&chunks, &shares, vectors, train_model.width(), device);
    let BatchGradients { loss: of_vectors, states, gradients } = pass.run(vectors, |all| {
        // Where only hidden states are compared the vectors' graph still has to be there.
        Ok::<_, anyhow::Error>(match loss(all.clone())? {
            Some(loss) => loss,
            None => all.sum().mul_scalar(0.0),
        })
    })?;
    let loss = match teacher {
        Some(_) => of_vectors.plus(group.sum_number(states)?),
        None => of_vectors,
    };
    Ok(BatchLoss { loss, gradients, texts: tokens.len(), tokens: total })
}

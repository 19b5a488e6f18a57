//! A batch whose loss is a function of its texts' vectors: forward, loss, and back through each chunk, or back
//! through the last projection alone where that is all that trains.

use std::sync::Mutex;

use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Int, Tensor, TensorData};

use super::chunks::{Chunk, ChunkRunner, StatesOf};
use super::late::Late;
use super::train_model::TrainModel;
use crate::Error;
use crate::kernels::TrainingBackend;

/// A batch, cut into chunks, and where it is computed.
pub struct BatchPass<'a, B: AutodiffBackend> {
    /// The parameters.
    pub train_model: &'a TrainModel<B>,
    /// How chunks are computed.
    pub runner: &'a ChunkRunner,
    /// All chunks of the batch.
    pub chunks: &'a [Chunk],
    /// Which of them are computed here; the others by other devices.
    pub share: &'a [usize],
    /// A loss on hidden states too.
    pub states: StatesOf<'a, B>,
    /// Factor of the loss; gradients are divided by it again.
    pub scale: f64,
    /// Where.
    pub device: &'a B::Device,
}

/// What a batch gives.
pub struct BatchGradients<B: AutodiffBackend> {
    /// The loss on the vectors.
    pub loss: Late<B::InnerBackend>,
    /// This device's share of the loss on hidden states.
    pub states: Late<B::InnerBackend>,
    /// Gradients of the chunks of this device.
    pub gradients: GradientsParams,
}

impl<B: TrainingBackend> BatchPass<'_, B> {
    /// Loss and gradients. `gather` makes the vectors `[texts, dim]` of all chunks, in the chunks' order, from those of
    /// this device's chunks; `loss` gets them in the texts' order.
    ///
    /// # Errors
    /// Those of the passes and of the two functions; a loss that does not depend on the vectors.
    pub fn run<E: From<Error>>(
        &self,
        gather: impl FnOnce(Vec<Tensor<B::InnerBackend, 2>>) -> Result<Tensor<B::InnerBackend, 2>, E>,
        loss: impl FnOnce(Tensor<B, 2>) -> Result<Tensor<B, 1>, E>,
    ) -> Result<BatchGradients<B>, E> {
        let &Self { train_model, runner, chunks, share, states, scale, device } = self;
        let only = share.len() == 1;
        let passes = runner
            .each(share, |&i| runner.forward(train_model, &chunks[i], only, states, device))?;
        let (vectors, kept): (Vec<_>, Vec<_>) =
            passes.into_iter().map(|pass| (pass.vectors.clone(), pass.kept())).unzip();

        // All vectors in the order of the chunks, other devices' included; then in the texts' order.
        let rows = chunks.iter().flat_map(|chunk| &chunk.rows).copied().collect::<Vec<_>>();
        let gathered = gather(vectors)?;
        let mut position = vec![0i32; rows.len()];
        for (i, &row) in rows.iter().enumerate() {
            position[row] = i as i32;
        }
        let position = TensorData::new(position, [rows.len()]);
        let leaf = Tensor::<B, 2>::from_inner(gathered).require_grad();
        let all = leaf.clone().select(0, Tensor::<B, 1, Int>::from_data(position, device));
        let loss = loss(all)?;
        let value = Late::of(loss.clone().inner(), runner.late);
        let gradient = leaf.grad(&loss.mul_scalar(scale).backward());
        let gradient = gradient.ok_or_else(|| {
            Error::invalid("the loss does not depend on the vectors; check the batch and the masks")
        })?;

        // Where each chunk's rows stand among the gathered ones.
        let starts: Vec<usize> = chunks
            .iter()
            .scan(0, |next, chunk| {
                let start = *next;
                *next += chunk.rows.len();
                Some(start)
            })
            .collect();
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.count_tokens()).sum();
        let work: Vec<_> = share.iter().copied().zip(kept.into_iter().map(Once::new)).collect();
        let (states, gradients) = runner.sum(train_model, &work, scale, |(i, kept)| {
            let chunk = &chunks[*i];
            let gradient = gradient.clone().narrow(0, starts[*i], chunk.rows.len());
            // By tokens, over which the states' loss is a mean.
            let own = chunk.tokens.count_tokens();
            let states = (states, own as f64 / tokens.max(1) as f64, scale);
            let part =
                runner.backward(train_model, chunk, kept.take(), gradient, states, device)?;
            Ok::<_, E>((part.loss, part.gradients))
        })?;
        Ok(BatchGradients { loss: value, states, gradients })
    }
}

/// Loss and gradients of a batch whose texts' vectors before the last projection are known, `[texts, dim]`, where
/// nothing before it trains: an adapter of vectors. `loss` gets what the projection makes of them, of norm 1.
///
/// # Errors
/// A model without a projection; those of the function.
pub fn projection_pass<B: TrainingBackend, E: From<Error>>(
    train_model: &TrainModel<B>,
    vectors: Tensor<B::InnerBackend, 2>,
    loss: impl FnOnce(Tensor<B, 2>) -> Result<Tensor<B, 1>, E>,
) -> Result<BatchGradients<B>, E> {
    let projection = train_model.model.dense().last();
    let projection = projection.ok_or_else(|| Error::invalid("the model has no projection"))?;
    let projected = projection.forward(Tensor::from_inner(vectors));
    let loss = loss(train_model.finished(projected))?;
    let value = Late::of(loss.clone().inner(), false);
    let gradients = GradientsParams::from_grads(loss.backward(), train_model);
    Ok(BatchGradients { loss: value, states: Late::Known(0.0), gradients })
}

/// A value that one of several threads takes.
struct Once<T>(Mutex<Option<T>>);

impl<T> Once<T> {
    fn new(value: Option<T>) -> Self {
        Self(Mutex::new(value))
    }

    fn take(&self) -> Option<T> {
        self.0.lock().ok()?.take()
    }
}

//! The objectives on vectors: InfoNCE or the order of scored pairs over the vectors of all texts, and a teacher's
//! vectors beside them.

use anyhow::Result;
use burn::tensor::{Int, Tensor, TensorData};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::loss::{
    Guide, angle_similarities, cosent, cosines, guided_info_nce, margin_mse, matryoshka,
};
use kiln_embed::train::{TrainModel, encode};

use super::distillation::Teacher;
use super::passes::through_chunks;
use super::{BatchLoss, StepContext};
use crate::data::Batch;
use crate::recipe::{MarginMse, Objective, Similarity, SimilarityLoss, Stage};

/// Loss and gradients of one batch: the contrastive loss, what is learned from a teacher, or both.
pub(super) fn contrastive<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    batch: &Batch,
    stage: &Stage,
    context: &StepContext<'_, B>,
    seed: u64,
) -> Result<BatchLoss<B>> {
    let &StepContext { tokenizer, device, teacher, .. } = context;
    let tokens = encode(tokenizer, &batch.prompted())?;
    let (count, queries) = (tokens.len(), batch.queries.len());
    let of_teacher = match teacher {
        Some(teacher) => teacher.vectors_of(batch, device)?,
        None => None,
    };
    let loss = |all: Tensor<B, 2>| -> Result<Option<Tensor<B, 1>>> {
        let gist = teacher.and_then(Teacher::guide);
        let guide = gist.zip(of_teacher.as_ref()).map(|(settings, vectors)| {
            let part = |from, count| vectors.clone().narrow(0, from, count);
            Guide { queries: part(0, queries), documents: part(queries, count - queries), settings }
        });
        let contrast = |all: Tensor<B, 2>| {
            let (queries, documents) =
                (all.clone().narrow(0, 0, queries), all.narrow(0, queries, count - queries));
            guided_info_nce(queries, documents, &batch.candidates, &stage.loss, guide.as_ref())
        };
        let distilled = teacher
            .zip(of_teacher.as_ref())
            .and_then(|(teacher, vectors)| teacher.vectors_loss(all.clone(), vectors.clone()));
        let margins = match &stage.margin_mse {
            Some(settings) => margins(&all, batch, settings),
            None => None,
        };
        let pairs = match stage.objective {
            Objective::Similarity => ScoredPairs::of(batch),
            _ => None,
        };
        let weight = stage.margin_mse.map_or(1.0, |settings| settings.contrastive);
        let contrastive = match (stage.objective, &stage.matryoshka) {
            (Objective::Distillation, _) => None,
            (Objective::Similarity, widths) => {
                let settings = stage.similarity.unwrap_or_default();
                match (&pairs, widths) {
                    (Some(pairs), Some(widths)) => {
                        Some(matryoshka(all, widths, |cut| Ok(pairs.loss(&cut, settings)))?)
                    }
                    (Some(pairs), None) => Some(pairs.loss(&all, settings)),
                    (None, _) => None,
                }
            }
            _ if weight == 0.0 => None,
            (_, Some(settings)) => Some(matryoshka(all, settings, |cut| Ok(contrast(cut)))?),
            (_, None) => Some(contrast(all)),
        };
        let contrastive =
            contrastive.map(|loss| if weight == 1.0 { loss } else { loss.mul_scalar(weight) });
        let parts = [contrastive, distilled, margins].into_iter().flatten();
        Ok(parts.reduce(|a, b| a + b))
    };
    through_chunks(train_model, &tokens, context, seed, loss)
}

/// The pairs of a batch that have scores: the rows of their texts among all, and their scores.
struct ScoredPairs {
    rows: [Vec<i32>; 2],
    scores: Vec<f64>,
}

impl ScoredPairs {
    /// Two at least, as one alone has no order.
    fn of(batch: &Batch) -> Option<Self> {
        let mut pairs = Self { rows: Default::default(), scores: Vec::new() };
        let documents = batch.candidates.owner.iter().zip(&batch.scores).enumerate();
        for (document, (&query, score)) in documents {
            let Some(score) = score else { continue };
            pairs.rows[0].push(query as i32);
            pairs.rows[1].push((batch.queries.len() + document) as i32);
            pairs.scores.push(f64::from(*score));
        }
        (pairs.scores.len() > 1).then_some(pairs)
    }

    /// How far the similarities of normalised vectors `[texts, dim]` are from the scores' order.
    fn loss<B: TrainingBackend>(&self, all: &Tensor<B, 2>, settings: Similarity) -> Tensor<B, 1> {
        let [first, second] = self.rows.clone().map(|rows| {
            let rows = TensorData::new(rows, [self.scores.len()]);
            all.clone().select(0, Tensor::<B, 1, Int>::from_data(rows, &all.device()))
        });
        let similarities = match settings.loss {
            SimilarityLoss::Cosent => cosines(first, second),
            SimilarityLoss::Angle => angle_similarities(first, second),
        };
        cosent(similarities, &self.scores, settings.scale)
    }
}

/// How far the margins between positives and negatives, of all vectors `[texts, dim]`, are from those of the
/// scores in rows; `None` where no row of the batch has those of its positive and a negative.
fn margins<B: TrainingBackend>(
    all: &Tensor<B, 2>,
    batch: &Batch,
    settings: &MarginMse,
) -> Option<Tensor<B, 1>> {
    let (queries, [_, dim]) = (batch.queries.len(), all.dims());
    let mut rows: [Vec<i32>; 3] = Default::default();
    let mut wanted = Vec::new();
    for (document, &query) in batch.candidates.owner.iter().enumerate() {
        let positive = batch.candidates.positive[query];
        if let (Some(above), Some(below)) = (batch.scores[positive], batch.scores[document])
            && document != positive
        {
            for (rows, row) in rows.iter_mut().zip([query, queries + positive, queries + document])
            {
                rows.push(row as i32);
            }
            wanted.push(f64::from(above - below) / settings.scale);
        }
    }
    if wanted.is_empty() {
        return None;
    }
    let count = wanted.len();
    let [asked, positives, negatives] = rows.map(|rows| {
        let rows = Tensor::<B, 1, Int>::from_data(TensorData::new(rows, [count]), &all.device());
        all.clone().select(0, rows)
    });
    let loss = margin_mse(asked, positives, negatives.reshape([count, 1, dim]), &wanted);
    Some(loss.mul_scalar(settings.weight * settings.scale * settings.scale))
}

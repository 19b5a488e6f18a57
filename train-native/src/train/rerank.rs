//! The objective of cross-encoders: scores of pairs of a query and a text, and the losses over them.

use anyhow::{Result, bail};
use burn::tensor::{Int, Tensor, TensorData};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::loss::{
    Preference, binary_cross_entropy, lambda_preferences, multiple_negatives_ranking,
    preference_loss, rank_net_preferences, score_margin_mse, score_mse,
};
use kiln_embed::train::TrainModel;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use super::passes::through_chunks;
use super::{BatchLoss, StepContext};
use crate::data::Batch;
use crate::recipe::{Rerank, RerankLoss};

/// Loss and gradients of one batch.
pub(super) fn rerank<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    batch: &Batch,
    settings: &Rerank,
    context: &StepContext<'_, B>,
    seed: u64,
) -> Result<BatchLoss<B>> {
    let &StepContext { tokenizer, input, .. } = context;
    let pairs = Pairs::of(batch, settings, seed);
    let text = |&(query, document): &(usize, usize)| {
        (&batch.queries[query].text, &batch.documents[document].text)
    };
    let tokens = pairs
        .all
        .par_iter()
        .map(text)
        .map(|(query, document)| input.tokenize(tokenizer, query, document))
        .collect::<kiln_embed::Result<Vec<_>>>()?;
    through_chunks(train_model, &tokens, context, seed, |scores: Tensor<B, 2>| {
        let [rows, width] = scores.dims();
        if width != 1 {
            bail!("the head gives a pair {width} scores, and a reranker gives one");
        }
        pairs.loss(scores.reshape([rows]), batch, settings)
    })
}

/// Which queries and documents of a batch stand together.
struct Pairs {
    /// Query and document of each pair: first each document with its own query, then in-batch negatives.
    all: Vec<(usize, usize)>,
    /// Pairs of each query: its positive, in-batch negatives, hard negatives.
    of_query: Vec<Vec<usize>>,
}

impl Pairs {
    fn of(batch: &Batch, settings: &Rerank, seed: u64) -> Self {
        let owner = &batch.candidates.owner;
        let mut all: Vec<(usize, usize)> =
            owner.iter().enumerate().map(|(document, &query)| (query, document)).collect();
        let mut of_query = Vec::with_capacity(batch.queries.len());
        for query in 0..batch.queries.len() {
            let positive = batch.candidates.positive[query];
            let mut own = vec![positive];
            for document in in_batch(batch, query, settings.num_negatives(), seed) {
                own.push(all.len());
                all.push((query, document));
            }
            let hard =
                owner.iter().enumerate().filter(|&(place, &of)| of == query && place != positive);
            own.extend(hard.map(|(place, _)| place));
            of_query.push(own);
        }
        Self { all, of_query }
    }

    /// The loss over the scores of all pairs `[pairs]`; `None` where no row has what it learns from.
    fn loss<B: TrainingBackend>(
        &self,
        scores: Tensor<B, 1>,
        batch: &Batch,
        settings: &Rerank,
    ) -> Result<Option<Tensor<B, 1>>> {
        let labelled = || -> (Vec<usize>, Vec<f64>) {
            let labels = batch.scores.iter().enumerate();
            labels.filter_map(|(place, label)| Some((place, f64::from((*label)?)))).unzip()
        };
        Ok(match settings.loss {
            RerankLoss::BinaryCrossEntropy => {
                let (places, labels) = labelled();
                let of = at(&scores, &places);
                of.map(|scores| binary_cross_entropy(scores, &labels, settings.pos_weight()))
            }
            RerankLoss::Mse => {
                let (places, wanted) = labelled();
                at(&scores, &places).map(|scores| score_mse(scores, &wanted))
            }
            RerankLoss::MarginMse => {
                let (above, below, margins) = self.margins(batch);
                let both = at(&scores, &above).zip(at(&scores, &below));
                both.map(|(above, below)| score_margin_mse(above, below, &margins))
            }
            RerankLoss::MultipleNegativesRanking => {
                let columns = self.of_query.iter().map(Vec::len).max().unwrap_or(0);
                let mut places = Vec::with_capacity(columns * self.of_query.len());
                let mut missing = Vec::with_capacity(columns * self.of_query.len());
                for own in &self.of_query {
                    // What is missing is filled with the positive, and hidden.
                    places
                        .extend(own.iter().copied().chain(std::iter::repeat(own[0])).take(columns));
                    missing.extend((0..columns).map(|column| column >= own.len()));
                }
                let shape = [self.of_query.len(), columns];
                at(&scores, &places).map(|scores| {
                    multiple_negatives_ranking(scores.reshape(shape), missing, settings.scale())
                })
            }
            RerankLoss::RankNet => self.preferences(&scores, batch, rank_net_preferences),
            RerankLoss::Lambda => {
                let data = scores.clone().inner().into_data().convert::<f32>().into_vec::<f32>();
                let now = data.map_err(|error| {
                    anyhow::anyhow!("the scores could not be read back: {error:?}")
                })?;
                self.preferences(&scores, batch, |places, labels| {
                    let now: Vec<f32> = places.iter().map(|&place| now[place]).collect();
                    lambda_preferences(places, labels, &now)
                })
            }
        })
    }

    /// Places of positives and of negatives, and how much more the positive scores with the teacher.
    fn margins(&self, batch: &Batch) -> (Vec<usize>, Vec<usize>, Vec<f64>) {
        let mut found = (Vec::new(), Vec::new(), Vec::new());
        for (document, &query) in batch.candidates.owner.iter().enumerate() {
            let positive = batch.candidates.positive[query];
            if let (Some(above), Some(below)) = (batch.scores[positive], batch.scores[document])
                && document != positive
            {
                found.0.push(positive);
                found.1.push(document);
                found.2.push(f64::from(above) - f64::from(below));
            }
        }
        found
    }

    /// The loss of what `prefer` says of each query's places and labels.
    fn preferences<B: TrainingBackend>(
        &self,
        scores: &Tensor<B, 1>,
        batch: &Batch,
        prefer: impl Fn(&[usize], &[f64]) -> Vec<Preference>,
    ) -> Option<Tensor<B, 1>> {
        let mut all: Vec<Preference> = Vec::new();
        for own in &self.of_query {
            let labelled =
                own.iter().filter_map(|&place| Some((place, f64::from(batch.scores[place]?))));
            let (places, labels): (Vec<usize>, Vec<f64>) = labelled.unzip();
            all.extend(prefer(&places, &labels));
        }
        let places = |of: fn(&Preference) -> usize| all.iter().map(of).collect::<Vec<_>>();
        let above = at(scores, &places(|one| one.above))?;
        let below = at(scores, &places(|one| one.below))?;
        let weights: Vec<f64> = all.iter().map(|one| one.weight).collect();
        Some(preference_loss(above, below, &weights))
    }
}

/// The scores at some places; `None` where there is none.
fn at<B: TrainingBackend>(scores: &Tensor<B, 1>, places: &[usize]) -> Option<Tensor<B, 1>> {
    if places.is_empty() {
        return None;
    }
    let rows: Vec<i32> = places.iter().map(|&place| place as i32).collect();
    let rows = TensorData::new(rows, [places.len()]);
    Some(scores.clone().select(0, Tensor::<B, 1, Int>::from_data(rows, &scores.device())))
}

/// Other queries' documents beside a query's own, drawn by the batch's seed: never one that is known to answer it,
/// and no text twice.
fn in_batch(batch: &Batch, query: usize, count: usize, seed: u64) -> Vec<usize> {
    let candidates = &batch.candidates;
    if count == 0 || !candidates.in_batch[query] {
        return Vec::new();
    }
    let known = candidates.known.get(query);
    let mut texts: Vec<usize> = (0..candidates.owner.len())
        .filter(|&document| candidates.owner[document] == query)
        .map(|document| candidates.document_text[document])
        .chain([candidates.query_text[query]])
        .collect();
    let mut others: Vec<usize> = (0..candidates.owner.len()).collect();
    others.shuffle(&mut ChaCha8Rng::seed_from_u64(crate::data::mixed(&[seed, query as u64])));
    let mut taken = Vec::new();
    for document in others {
        if taken.len() == count {
            break;
        }
        let text = candidates.document_text[document];
        if !texts.contains(&text) && known.is_none_or(|known| !known.contains(&text)) {
            texts.push(text);
            taken.push(document);
        }
    }
    taken
}

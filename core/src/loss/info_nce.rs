//! InfoNCE (arXiv:1807.03748, equation 4) with hard and in-batch negatives, over cosines as in
//! E5-Mistral (arXiv:2401.00368, section 3.2).

use std::collections::HashSet;

use burn::tensor::activation::log_softmax;
use burn::tensor::{Bool, Int, Tensor, TensorData, backend::Backend};
use serde::{Deserialize, Serialize};

use super::gist::Guide;

/// Settings of [`info_nce`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InfoNce {
    /// The temperature tau: 1 (arXiv:2509.00842), 0.05 (bidirectional reconstruction), 0.02
    /// (Linq-Embed-Mistral, E5).
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// Other queries' documents count as negatives too.
    #[serde(default = "yes")]
    pub in_batch: bool,
    /// With in-batch negatives: other queries' hard negatives count too, not only their positives.
    #[serde(default = "yes")]
    pub cross_negatives: bool,
    /// With in-batch negatives: also the other direction, in which each positive must find its query among the batch's
    /// queries.
    #[serde(default)]
    pub both_directions: bool,
    /// In-batch documents that score above the positive by more than this are taken for false
    /// negatives and left out; `None`: none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub false_negative_margin: Option<f64>,
}

fn default_temperature() -> f64 {
    0.05
}
fn yes() -> bool {
    true
}

impl Default for InfoNce {
    fn default() -> Self {
        Self {
            temperature: default_temperature(),
            in_batch: true,
            cross_negatives: true,
            both_directions: false,
            false_negative_margin: None,
        }
    }
}

/// Which document belongs to which query, and which texts are the same.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    /// The query that each document was given for: `[documents]`.
    pub owner: Vec<usize>,
    /// The document that is each query's positive: `[queries]`.
    pub positive: Vec<usize>,
    /// Number of each query's text, the same for equal texts: `[queries]`.
    pub query_text: Vec<usize>,
    /// Number of each document's text, the same for equal texts: `[documents]`.
    pub document_text: Vec<usize>,
    /// Whether each query takes in-batch negatives: `[queries]`.
    pub in_batch: Vec<bool>,
    /// Numbers of the texts that are known to answer each query, beside its positive: `[queries]`,
    /// or empty where none are.
    pub known: Vec<HashSet<usize>>,
}

impl Candidates {
    /// `queries` queries with `group` documents each, the positive first, no text twice.
    pub fn grouped(queries: usize, group: usize, in_batch: bool) -> Self {
        Self {
            owner: (0..queries * group).map(|document| document / group).collect(),
            positive: (0..queries).map(|query| query * group).collect(),
            query_text: (0..queries).map(|query| queries * group + query).collect(),
            document_text: (0..queries * group).collect(),
            in_batch: vec![in_batch; queries],
            known: Vec::new(),
        }
    }

    /// Whether a text is known to answer a query.
    fn answers(&self, text: usize, query: usize) -> bool {
        text == self.document_text[self.positive[query]]
            || self.known.get(query).is_some_and(|known| known.contains(&text))
    }

    /// Whether a document is masked for a query: a duplicate of itself or of one of its known
    /// positives, or another query's document where in-batch negatives are off.
    fn hidden(&self, query: usize, document: usize, settings: &InfoNce) -> bool {
        let positive = self.positive[query];
        if document == positive {
            return false;
        }
        let text = self.document_text[document];
        if self.answers(text, query) || text == self.query_text[query] {
            return true;
        }
        let owner = self.owner[document];
        let counts = document == self.positive[owner] || settings.cross_negatives;
        owner != query && !(self.in_batch[query] && counts)
    }

    /// Whether a query is masked for another query's positive, in the other direction: it is the same
    /// query or the positive itself, or that positive answers it too.
    fn hidden_query(&self, positive_of: usize, query: usize) -> bool {
        let positive = self.document_text[self.positive[positive_of]];
        positive_of != query
            && (!self.in_batch[positive_of]
                || self.query_text[query] == self.query_text[positive_of]
                || self.query_text[query] == positive
                || self.answers(positive, query))
    }

    /// Whether another query is masked where a guide contrasts it with a query, and its positive where it contrasts
    /// their positives: they are the same, one answers the other, or both have an answer in common.
    fn hidden_pair(&self, query: usize, other: usize) -> bool {
        let answers = |a: usize, b: usize| {
            self.answers(self.query_text[a], b)
                || self.answers(self.document_text[self.positive[a]], b)
        };
        query == other
            || !self.in_batch[query]
            || self.query_text[query] == self.query_text[other]
            || answers(query, other)
            || answers(other, query)
    }
}

/// Finite, because some shader compilers assume that there are no infinities.
const HIDDEN: f64 = -1e4;

/// Mean of `-log(exp(cos(q,p)/tau) / sum over candidates exp(cos(q,c)/tau))` over the queries.
///
/// * `queries` `[n, dim]` and `documents` `[m, dim]`, normalised;
/// * a query's candidates are its positive, its own hard negatives, and, where it takes in-batch
///   negatives, the other queries' documents; never a text that is known to answer it.
///
/// With [`InfoNce::both_directions`] the mean of both directions is returned. The other direction has in-batch negatives
/// alone, so a query that takes none has but the first.
pub fn info_nce<B: Backend>(
    queries: Tensor<B, 2>,
    documents: Tensor<B, 2>,
    candidates: &Candidates,
    settings: &InfoNce,
) -> Tensor<B, 1> {
    guided_info_nce(queries, documents, candidates, settings, None)
}

/// As [`info_nce`], where pairs that a guide finds about as near as a query and its positive are no negatives, a
/// query's own hard negatives among them. Where [`Gist`](super::Gist) says so, a query's sum also has its pairs with
/// other queries, and those of its positive with theirs, under the rules of in-batch documents.
///
/// It is the loss of sentence-transformers' `GISTEmbedLoss`, but for what [`Candidates`] masks.
pub fn guided_info_nce<B: Backend>(
    queries: Tensor<B, 2>,
    documents: Tensor<B, 2>,
    candidates: &Candidates,
    settings: &InfoNce,
    guide: Option<&Guide<B>>,
) -> Tensor<B, 1> {
    let [n, _] = queries.dims();
    let [m, _] = documents.dims();
    let device = queries.device();
    let positive: Vec<i32> = candidates.positive.iter().map(|&i| i as i32).collect();
    let positive = Tensor::<B, 1, Int>::from_data(TensorData::new(positive, [n]), &device);
    let of_positives =
        |cosines: &Tensor<B, 2>| cosines.clone().gather(1, positive.clone().reshape([n, 1]));
    // [n, m]
    let scores = cosines(&queries, &documents);
    let own_limit = settings
        .false_negative_margin
        .map(|margin| of_positives(&scores).detach().add_scalar(margin));

    let mut hidden: Vec<bool> = Vec::with_capacity(n * m);
    for query in 0..n {
        hidden.extend((0..m).map(|document| candidates.hidden(query, document, settings)));
    }
    let mut forward = masked(scores.clone().div_scalar(settings.temperature), hidden);
    if let Some(limit) = &own_limit {
        let other: Vec<bool> = (0..n)
            .flat_map(|query| candidates.owner.iter().map(move |&owner| owner != query))
            .collect();
        let other = Tensor::from_data(TensorData::new(other, [n, m]), &device);
        forward = forward.mask_fill(above(&scores, limit).bool_and(other), HIDDEN);
    }
    if let Some(Guide { queries: asked, documents: found, settings: gist }) = guide {
        let guided = cosines(asked, found).detach();
        let limit = gist.limit(of_positives(&guided));
        let other: Vec<bool> = (0..n)
            .flat_map(|query| (0..m).map(move |document| document != candidates.positive[query]))
            .collect();
        let other = Tensor::from_data(TensorData::new(other, [n, m]), &device);
        forward = forward.mask_fill(above(&guided, &limit).bool_and(other), HIDDEN);

        let positives = |of: &Tensor<B, 2>| of.clone().select(0, positive.clone());
        let mut contrasted = Vec::new();
        if gist.contrast_anchors {
            contrasted.push((queries.clone(), asked.clone()));
        }
        if gist.contrast_positives {
            contrasted.push((positives(&documents), positives(found)));
        }
        for (texts, guided) in contrasted {
            let scores = cosines(&texts, &texts);
            let hidden: Vec<bool> = (0..n)
                .flat_map(|query| (0..n).map(move |other| candidates.hidden_pair(query, other)))
                .collect();
            let mut extra = masked(scores.clone().div_scalar(settings.temperature), hidden);
            if let Some(limit) = &own_limit {
                extra = extra.mask_fill(above(&scores, limit), HIDDEN);
            }
            let guided = cosines(&guided, &guided);
            extra = extra.mask_fill(above(&guided, &limit), HIDDEN);
            forward = Tensor::cat(vec![forward, extra], 1);
        }
    }
    let forward = log_softmax(forward, 1).gather(1, positive.clone().reshape([n, 1]));
    if !settings.both_directions {
        return forward.mean().neg();
    }
    // [n positives, n queries]; the query of each positive stands on the diagonal.
    let back = scores.select(1, positive).transpose();
    let hidden: Vec<bool> =
        (0..n).flat_map(|i| (0..n).map(move |query| candidates.hidden_query(i, query))).collect();
    let back = masked(back.div_scalar(settings.temperature), hidden);
    let own = Tensor::<B, 1, Int>::arange(0..n as i64, &device).reshape([n, 1]);
    let back = log_softmax(back, 1).gather(1, own);
    let mut both = (forward.clone() + back).div_scalar(2.0);
    let alone: Vec<bool> = candidates.in_batch.iter().map(|in_batch| !in_batch).collect();
    if alone.contains(&true) {
        let alone = Tensor::from_data(TensorData::new(alone, [n, 1]), &device);
        both = both.mask_where(alone, forward);
    }
    both.mean().neg()
}

/// Products of all rows, which are normalised, with all rows.
fn cosines<B: Backend>(a: &Tensor<B, 2>, b: &Tensor<B, 2>) -> Tensor<B, 2> {
    a.clone().matmul(b.clone().transpose())
}

/// Which cosines `[n, k]` are above their row's limit `[n, 1]`.
fn above<B: Backend>(cosines: &Tensor<B, 2>, limit: &Tensor<B, 2>) -> Tensor<B, 2, Bool> {
    cosines.clone().detach().greater(limit.clone().expand(cosines.dims()))
}

fn masked<B: Backend>(scores: Tensor<B, 2>, hidden: Vec<bool>) -> Tensor<B, 2> {
    if !hidden.contains(&true) {
        return scores;
    }
    let mask = Tensor::from_data(TensorData::new(hidden, scores.dims()), &scores.device());
    scores.mask_fill(mask, HIDDEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Gist, MarginStrategy};
    use burn::backend::Flex;

    type B = Flex;

    /// The definition, written out over plain numbers.
    fn reference(q: &[[f64; 2]], d: &[[f64; 2]], group: usize, same: &[usize], s: &InfoNce) -> f64 {
        let dot = |a: &[f64; 2], b: &[f64; 2]| a[0] * b[0] + a[1] * b[1];
        let (mut forward, mut back) = (0.0, 0.0);
        for (i, query) in q.iter().enumerate() {
            let positive = i * group;
            let best = dot(query, &d[positive]);
            let mut sum = 0.0;
            for (j, document) in d.iter().enumerate() {
                let own = j / group == i;
                let counts = own || (s.in_batch && (s.cross_negatives || j % group == 0));
                let false_negative = !own
                    && s.false_negative_margin
                        .is_some_and(|margin| dot(query, document) > best + margin);
                if j == positive || (counts && !false_negative && same[j] != same[positive]) {
                    sum += (dot(query, document) / s.temperature).exp();
                }
            }
            forward -= ((best / s.temperature).exp() / sum).ln();
            let mut sum = 0.0;
            for (k, other) in q.iter().enumerate() {
                if k == i || (s.in_batch && same[k * group] != same[positive]) {
                    sum += (dot(other, &d[positive]) / s.temperature).exp();
                }
            }
            back -= ((best / s.temperature).exp() / sum).ln();
        }
        let n = q.len() as f64;
        if s.both_directions && s.in_batch { (forward + back) / n / 2.0 } else { forward / n }
    }

    #[test]
    fn equals_the_definition() {
        let unit = |angle: f64| [angle.cos(), angle.sin()];
        let q = [unit(0.1), unit(1.0), unit(2.5)];
        let d: Vec<[f64; 2]> = [0.2, 0.9, 1.1, 3.0, 0.2, 0.7].map(unit).to_vec();
        // Document 4 (the third positive) repeats document 0.
        let same = [0, 1, 2, 3, 0, 5];
        let device = Default::default();
        let tensor = |rows: &[[f64; 2]]| {
            let flat: Vec<f32> = rows.iter().flatten().map(|&x| x as f32).collect();
            Tensor::<B, 2>::from_data(TensorData::new(flat, [rows.len(), 2]), &device)
        };
        let mut cases = 0;
        for temperature in [1.0, 0.05] {
            for in_batch in [true, false] {
                for cross_negatives in [true, false] {
                    for both_directions in [true, false] {
                        for false_negative_margin in [None, Some(-0.1), Some(0.05)] {
                            let settings = InfoNce {
                                temperature,
                                in_batch,
                                cross_negatives,
                                both_directions,
                                false_negative_margin,
                            };
                            let candidates = Candidates {
                                document_text: same.to_vec(),
                                ..Candidates::grouped(3, 2, in_batch)
                            };
                            let ours = info_nce(tensor(&q), tensor(&d), &candidates, &settings);
                            let ours = f64::from(ours.into_scalar());
                            let reference = reference(&q, &d, 2, &same, &settings);
                            assert!(
                                (ours - reference).abs() < 1e-4,
                                "{settings:?} {ours} {reference}"
                            );
                            cases += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(cases, 48);
    }

    #[test]
    fn a_document_equal_to_the_query_is_no_negative() {
        // STS pairs in both directions: (a, b) and (b, a) in one batch.
        let candidates = Candidates {
            query_text: vec![0, 1],
            document_text: vec![1, 0],
            ..Candidates::grouped(2, 1, true)
        };
        assert!(candidates.hidden(0, 1, &InfoNce::default()));
        assert!(candidates.hidden_query(0, 1));
    }

    #[test]
    fn a_query_without_in_batch_negatives_has_one_direction() {
        let device = Default::default();
        let tensor = |angles: &[f32]| {
            let flat: Vec<f32> =
                angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
            Tensor::<B, 2>::from_data(TensorData::new(flat, [angles.len(), 2]), &device)
        };
        let (q, d) = ([0.1f32, 1.0], [0.2f32, 0.9, 1.1, 3.0]);
        let loss = |both_directions: bool, in_batch: [bool; 2]| {
            let settings = InfoNce { both_directions, ..InfoNce::default() };
            let candidates =
                Candidates { in_batch: in_batch.to_vec(), ..Candidates::grouped(2, 2, true) };
            f64::from(info_nce(tensor(&q), tensor(&d), &candidates, &settings).into_scalar())
        };
        assert!((loss(true, [false; 2]) - loss(false, [false; 2])).abs() < 1e-6);
        // Of two queries the one with in-batch negatives has the mean of its directions.
        let tau = InfoNce::default().temperature;
        let similarity = |a: f32, b: f32| (f64::from((a - b).cos()) / tau).exp();
        let own = |i: usize| similarity(q[i], d[2 * i]);
        let first = own(0) / (own(0) + similarity(q[0], d[1]));
        let second = own(1) / d.iter().map(|&one| similarity(q[1], one)).sum::<f64>();
        let back = own(1) / (own(1) + similarity(q[0], d[2]));
        let expected = -(first.ln() + (second.ln() + back.ln()) / 2.0) / 2.0;
        let actual = loss(true, [false, true]);
        assert!((actual - expected).abs() < 1e-4, "{actual} {expected}");
    }

    #[test]
    fn a_known_positive_of_another_row_is_no_negative() {
        // Query 1's positive (text 2) and query 2's hard negative (text 5) answer query 0 as well.
        let candidates = Candidates {
            known: vec![HashSet::from([2, 5]), HashSet::new(), HashSet::new()],
            ..Candidates::grouped(3, 2, true)
        };
        let settings = InfoNce::default();
        let hidden: Vec<(usize, usize)> = (0..3)
            .flat_map(|query| (0..6).map(move |document| (query, document)))
            .filter(|&(query, document)| candidates.hidden(query, document, &settings))
            .collect();
        assert_eq!(hidden, [(0, 2), (0, 5)]);
        // In the other direction query 1's positive does not have to tell query 0 from query 1.
        let hidden: Vec<(usize, usize)> = (0..3)
            .flat_map(|positive_of| (0..3).map(move |query| (positive_of, query)))
            .filter(|&(positive_of, query)| candidates.hidden_query(positive_of, query))
            .collect();
        assert_eq!(hidden, [(1, 0)]);

        // The loss is that of the other candidates alone.
        let device = Default::default();
        let unit = |angle: f32| [angle.cos(), angle.sin()];
        let tensor = |angles: &[f32]| {
            let flat: Vec<f32> = angles.iter().flat_map(|&angle| unit(angle)).collect();
            Tensor::<B, 2>::from_data(TensorData::new(flat, [angles.len(), 2]), &device)
        };
        let (q, d) = ([0.1f32, 1.0, 2.5], [0.2f32, 0.9, 1.1, 3.0, 0.25, 0.7]);
        let settings = InfoNce { both_directions: true, ..settings };
        let actual =
            f64::from(info_nce(tensor(&q), tensor(&d), &candidates, &settings).into_scalar());
        let similarity = |a: f32, b: f32| (f64::from((a - b).cos()) / settings.temperature).exp();
        let mut expected = 0.0;
        for i in 0..3 {
            let own = similarity(q[i], d[2 * i]);
            let there = (0..6).filter(|&j| i != 0 || (j != 2 && j != 5));
            expected -= (own / there.map(|j| similarity(q[i], d[j])).sum::<f64>()).ln();
            let back = (0..3).filter(|&k| i != 1 || k != 0);
            expected -= (own / back.map(|k| similarity(q[k], d[2 * i])).sum::<f64>()).ln();
        }
        assert!((actual - expected / 6.0).abs() < 1e-4, "{actual} {}", expected / 6.0);
    }

    /// The definition, written out over plain numbers.
    #[test]
    fn a_guide_chooses_negatives_of_all_kinds() {
        let device = Default::default();
        let tensor = |angles: &[f32]| {
            let flat: Vec<f32> =
                angles.iter().flat_map(|angle| [angle.cos(), angle.sin()]).collect();
            Tensor::<B, 2>::from_data(TensorData::new(flat, [angles.len(), 2]), &device)
        };
        let cosine = |a: f32, b: f32| f64::from((a - b).cos());
        let q = [0.1f32, 1.0, 2.5, 0.9, 1.8];
        let d = [0.2f32, 0.9, 1.1, 3.0, 2.4, 0.7, 0.8, 1.6, 1.7, 0.3];
        let guide_q = [0.3f32, 0.8, 2.2, 1.3, 2.0];
        let guide_d = [0.5f32, 2.1, 1.2, 0.0, 1.9, 2.8, 1.0, 0.45, 3.05, 1.5];
        // Queries 1 and 3 are the same, query 0 is the positive of 4, and the positive of 1 answers 0 as well.
        let mut candidates = Candidates {
            query_text: vec![10, 11, 12, 11, 14],
            in_batch: vec![true, true, false, true, true],
            known: vec![HashSet::new(); 5],
            ..Candidates::grouped(5, 2, true)
        };
        candidates.document_text[8] = 10;
        candidates.known[0].insert(2);
        let alike = [[1, 3], [0, 4], [0, 1]];

        let definition = |settings: &InfoNce, gist: &Gist| {
            let tau = settings.temperature;
            let mut loss = 0.0;
            for i in 0..5 {
                let best = cosine(q[i], d[2 * i]);
                let guided = cosine(guide_q[i], guide_d[2 * i]);
                let limit = match gist.margin_strategy {
                    MarginStrategy::Absolute => guided - gist.margin,
                    MarginStrategy::Relative => guided - gist.margin * guided.abs(),
                };
                let own_limit = settings.false_negative_margin.map_or(2.0, |margin| best + margin);
                let mut sum = (best / tau).exp();
                let mut add = |own: f64, guided: f64, own_limit: f64| {
                    if guided <= limit && own <= own_limit {
                        sum += (own / tau).exp();
                    }
                };
                for j in (0..10).filter(|&j| j != 2 * i) {
                    if !candidates.hidden(i, j, settings) {
                        let own_limit = if j / 2 == i { 2.0 } else { own_limit };
                        add(cosine(q[i], d[j]), cosine(guide_q[i], guide_d[j]), own_limit);
                    }
                }
                let others = (0..5).filter(|&k| i != 2 && k != i);
                for k in others.filter(|&k| !alike.contains(&[i.min(k), i.max(k)])) {
                    if gist.contrast_anchors {
                        add(cosine(q[i], q[k]), cosine(guide_q[i], guide_q[k]), own_limit);
                    }
                    if gist.contrast_positives {
                        let guided = cosine(guide_d[2 * i], guide_d[2 * k]);
                        add(cosine(d[2 * i], d[2 * k]), guided, own_limit);
                    }
                }
                loss -= ((best / tau).exp() / sum).ln() / 5.0;
            }
            loss
        };
        let mut losses = Vec::new();
        for false_negative_margin in [None, Some(-0.3)] {
            let settings =
                InfoNce { temperature: 0.5, false_negative_margin, ..InfoNce::default() };
            for (margin, margin_strategy) in [
                (0.0, MarginStrategy::Absolute),
                (0.5, MarginStrategy::Absolute),
                (0.5, MarginStrategy::Relative),
            ] {
                for contrast_anchors in [false, true] {
                    for contrast_positives in [false, true] {
                        let gist =
                            Gist { margin, margin_strategy, contrast_anchors, contrast_positives };
                        let guide = Guide {
                            queries: tensor(&guide_q),
                            documents: tensor(&guide_d),
                            settings: gist,
                        };
                        let (q, d) = (tensor(&q), tensor(&d));
                        let found = guided_info_nce(q, d, &candidates, &settings, Some(&guide));
                        let found = f64::from(found.into_scalar());
                        let expected = definition(&settings, &gist);
                        assert!(
                            (found - expected).abs() < 1e-5,
                            "{settings:?} {gist:?} {found} {expected}"
                        );
                        losses.push(found);
                    }
                }
            }
        }
        // With more pairs there is more to tell apart; with a larger margin less.
        assert!(losses[0] < losses[1].min(losses[2]) && losses[3] > losses[1].max(losses[2]));
        assert!(losses[4] < losses[8] && losses[8] < losses[0], "{losses:?}");
    }
}

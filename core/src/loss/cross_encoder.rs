//! Losses of the scores that a cross-encoder gives pairs, as sentence-transformers' `cross_encoder.losses` have
//! them. Scores are those before the model's activation.

use burn::tensor::activation::{log_sigmoid, log_softmax, sigmoid};
use burn::tensor::{Bool, Tensor, TensorData, backend::Backend};

/// Weight of NDCG-Loss2 beside LambdaRank in NDCG-Loss2++ (Wang et al., CIKM 2018, equation 17), as
/// sentence-transformers has it.
const MU: f64 = 10.0;
/// The least gain of an ideal ranking, so that a query without positives divides by something.
const LEAST_GAIN: f64 = 1e-10;

fn constant<B: Backend>(values: &[f64], device: &B::Device) -> Tensor<B, 1> {
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

/// `BinaryCrossEntropyLoss`: mean of `-(w y log s(x) + (1 - y) log(1 - s(x)))` with the sigmoid `s`, over scores
/// `x` `[n]` and labels `y` from 0 to 1; `w` is the weight of positives (PyTorch's `pos_weight`).
pub fn binary_cross_entropy<B: Backend>(
    scores: Tensor<B, 1>,
    labels: &[f64],
    pos_weight: f64,
) -> Tensor<B, 1> {
    let device = scores.device();
    let negative: Vec<f64> = labels.iter().map(|label| 1.0 - label).collect();
    let weights: Vec<f64> = labels.iter().map(|label| 1.0 + (pos_weight - 1.0) * label).collect();
    // With log(1 - s(x)) = log s(x) - x, one logarithm does for both.
    let logs = log_sigmoid(scores.clone());
    (scores * constant(&negative, &device) - logs * constant(&weights, &device)).mean()
}

/// `MSELoss`: mean of `(x - y)^2` over scores `x` `[n]` and those of a teacher `y`.
pub fn score_mse<B: Backend>(scores: Tensor<B, 1>, wanted: &[f64]) -> Tensor<B, 1> {
    let device = scores.device();
    (scores - constant(wanted, &device)).powf_scalar(2.0).mean()
}

/// `MarginMSELoss` (arXiv:2010.02666): mean of `((x_p - x_n) - margin)^2` over scores of positives and negatives
/// `[n]`, a pair of them in each place.
pub fn score_margin_mse<B: Backend>(
    positives: Tensor<B, 1>,
    negatives: Tensor<B, 1>,
    margins: &[f64],
) -> Tensor<B, 1> {
    score_mse(positives - negatives, margins)
}

/// `MultipleNegativesRankingLoss`: mean of `-log softmax(scale s(x))` at the positive over scores `x`
/// `[queries, candidates]` with the sigmoid `s`, the positive first; `missing` marks places where a query has no
/// candidate.
pub fn multiple_negatives_ranking<B: Backend>(
    scores: Tensor<B, 2>,
    missing: Vec<bool>,
    scale: f64,
) -> Tensor<B, 1> {
    // Finite, because some shader compilers assume that there are no infinities.
    const HIDDEN: f64 = -1e4;
    let (shape, device) = (scores.dims(), scores.device());
    let mut logits = sigmoid(scores).mul_scalar(scale);
    if missing.contains(&true) {
        let missing = Tensor::<B, 2, Bool>::from_data(TensorData::new(missing, shape), &device);
        logits = logits.mask_fill(missing, HIDDEN);
    }
    log_softmax(logits, 1).narrow(1, 0, 1).mean().neg()
}

/// A text that is more relevant than another of the same query, by their places, and how much it matters that it
/// scores more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preference {
    /// Place of the more relevant one.
    pub above: usize,
    /// Place of the other.
    pub below: usize,
    /// Weight of the pair.
    pub weight: f64,
}

/// What RankNet (Burges et al., ICML 2005) prefers: each text to all of a query's with a lower label, all pairs
/// alike. `places` says where the query's texts stand among all, and `labels` how relevant each is.
pub fn rank_net_preferences(places: &[usize], labels: &[f64]) -> Vec<Preference> {
    let pairs = places.iter().zip(labels);
    pairs
        .clone()
        .flat_map(|(&above, high)| {
            let lower = pairs.clone().filter(move |(_, low)| *low < high);
            lower.map(move |(&below, _)| Preference { above, below, weight: 1.0 })
        })
        .collect()
}

/// What `LambdaLoss` prefers: as [`rank_net_preferences`], weighted by what a swap costs in nDCG (NDCG-Loss2++, Wang
/// et al., CIKM 2018, equation 17) in the order of the scores that the texts have now.
pub fn lambda_preferences(places: &[usize], labels: &[f64], scores: &[f32]) -> Vec<Preference> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let discount = |rank: usize| (1.0 + rank as f64).log2();
    let power = |label: f64| label.max(0.0).exp2() - 1.0;
    let mut ideal: Vec<f64> = labels.to_vec();
    ideal.sort_by(|a, b| b.total_cmp(a));
    let ideal = ideal.iter().enumerate().map(|(place, &label)| power(label) / discount(place + 1));
    let most = ideal.sum::<f64>().max(LEAST_GAIN);
    let mut preferences = Vec::new();
    for (first, &i) in order.iter().enumerate() {
        for (second, &j) in order.iter().enumerate().filter(|&(_, &j)| labels[i] > labels[j]) {
            let gains = (power(labels[i]) - power(labels[j])).abs() / most;
            // Ranks count from 1; neighbours' discounts are those of ranks 1 and 2.
            let apart = first.abs_diff(second);
            let lambda_rank = (1.0 / discount(first + 1) - 1.0 / discount(second + 1)).abs();
            let ndcg_loss_2 = (1.0 / discount(apart) - 1.0 / discount(apart + 1)).abs();
            let weight = (MU * ndcg_loss_2 + lambda_rank) * gains;
            preferences.push(Preference { above: places[i], below: places[j], weight });
        }
    }
    preferences
}

/// `RankNetLoss` and `LambdaLoss`: mean of `-w log2 s(x_above - x_below)` over preferences, with the sigmoid `s`.
/// `above` and `below` `[n]` are the scores of the preferences' texts.
pub fn preference_loss<B: Backend>(
    above: Tensor<B, 1>,
    below: Tensor<B, 1>,
    weights: &[f64],
) -> Tensor<B, 1> {
    let device = above.device();
    let logs = log_sigmoid(above - below).div_scalar(std::f64::consts::LN_2);
    (logs * constant(weights, &device)).mean().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn the_weight_of_positives_counts_positives_more_often() {
        let scores = |values: &[f32]| Tensor::<Flex, 1>::from_data(values, &Default::default());
        let value = |loss: Tensor<Flex, 1>| f64::from(loss.into_scalar());
        let weighted = value(binary_cross_entropy(scores(&[0.3, -1.2]), &[1.0, 0.0], 3.0));
        let repeated = [0.3, 0.3, 0.3, -1.2];
        let repeated =
            value(binary_cross_entropy(scores(&repeated), &[1.0, 1.0, 1.0, 0.0], 1.0)) * 4.0 / 2.0;
        assert!((weighted - repeated).abs() < 1e-6, "{weighted} {repeated}");
        // What overflows is finite, and right: -log s(x) of a large negative x is -x.
        let far = value(binary_cross_entropy(scores(&[-200.0]), &[1.0], 1.0));
        assert!((far - 200.0).abs() < 1e-3, "{far}");
    }

    #[test]
    fn a_place_without_a_candidate_does_not_count() {
        let device = Default::default();
        let scores = |values: &[f32], columns: usize| {
            let data = TensorData::new(values.to_vec(), [values.len() / columns, columns]);
            Tensor::<Flex, 2>::from_data(data, &device)
        };
        let short = multiple_negatives_ranking(scores(&[0.5, -0.5], 2), vec![false; 2], 10.0);
        let long = multiple_negatives_ranking(
            scores(&[0.5, -0.5, 3.0], 3),
            vec![false, false, true],
            10.0,
        );
        let error = f64::from((short - long).abs().into_scalar());
        assert!(error < 1e-6, "{error}");
    }

    #[test]
    fn a_query_whose_texts_are_alike_prefers_nothing() {
        assert!(rank_net_preferences(&[3, 4], &[1.0, 1.0]).is_empty());
        assert!(lambda_preferences(&[3, 4], &[0.0, 0.0], &[0.1, 0.2]).is_empty());
        let one = rank_net_preferences(&[3, 4], &[0.0, 1.0]);
        assert_eq!(one, [Preference { above: 4, below: 3, weight: 1.0 }]);
    }
}

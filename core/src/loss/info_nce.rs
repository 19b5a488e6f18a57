//! InfoNCE with hard and in-batch negatives (METHODS.md, Shared).

use burn::tensor::{Int, Tensor, TensorData, activation::log_softmax, backend::Backend};
use serde::{Deserialize, Serialize};

/// Settings of [`info_nce`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InfoNce {
    /// tau: 1 (MGH), 0.05 (Anchor), 0.02 (Linq, E5).
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// Other queries' positives and hard negatives count as negatives too.
    #[serde(default = "default_in_batch")]
    pub in_batch: bool,
}

fn default_temperature() -> f64 {
    0.05
}
fn default_in_batch() -> bool {
    true
}

impl Default for InfoNce {
    fn default() -> Self {
        Self { temperature: default_temperature(), in_batch: default_in_batch() }
    }
}

/// Mean of `-log(exp(cos(q,p)/tau) / sum over candidates exp(cos(q,c)/tau))` over the queries.
///
/// * `queries` `[n, dim]`, normalised;
/// * `documents` `[n * (1 + h), dim]`, normalised: each query's positive, then its `h` hard
///   negatives, query by query;
/// * `same[i]` numbers the texts of the documents: documents with equal numbers are the same
///   text, so a duplicate of a query's positive is masked out and not taken for a negative.
///
/// Without in-batch negatives each query sees its own `1 + h` documents only.
pub fn info_nce<B: Backend>(
    queries: Tensor<B, 2>,
    documents: Tensor<B, 2>,
    same: &[usize],
    settings: &InfoNce,
) -> Tensor<B, 1> {
    let [n, dim] = queries.dims();
    let group = same.len() / n.max(1);
    let device = queries.device();
    let (scores, target) = if settings.in_batch {
        // [n, n * group]; the positive of query i stands in column i * group.
        let target: Vec<i32> = (0..n).map(|query| (query * group) as i32).collect();
        (queries.matmul(documents.transpose()), target)
    } else {
        // [n, group, dim] x [n, dim, 1] -> [n, group]; the positive stands first.
        let documents = documents.reshape([n, group, dim]);
        (documents.matmul(queries.unsqueeze_dim(2)).squeeze_dim(2), vec![0; n])
    };
    let [_, columns] = scores.dims();
    let scores = scores.div_scalar(settings.temperature);
    let duplicate: Vec<bool> = (0..n)
        .flat_map(|query| {
            let positive = query * group;
            (0..columns).map(move |column| {
                let document = if settings.in_batch { column } else { positive + column };
                document != positive && same[document] == same[positive]
            })
        })
        .collect();
    let scores = if duplicate.contains(&true) {
        let mask = Tensor::from_data(TensorData::new(duplicate, [n, columns]), &device);
        scores.mask_fill(mask, -1e4)
    } else {
        scores
    };
    let target = Tensor::<B, 2, Int>::from_data(TensorData::new(target, [n, 1]), &device);
    log_softmax(scores, 1).gather(1, target).mean().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    type B = Flex;

    /// The definition, written out over plain numbers.
    fn reference(q: &[[f64; 2]], d: &[[f64; 2]], same: &[usize], tau: f64, in_batch: bool) -> f64 {
        let group = d.len() / q.len();
        let dot = |a: &[f64; 2], b: &[f64; 2]| a[0] * b[0] + a[1] * b[1];
        let mut total = 0.0;
        for (i, query) in q.iter().enumerate() {
            let positive = i * group;
            let mut sum = 0.0;
            for (j, document) in d.iter().enumerate() {
                let own = j / group == i;
                if (in_batch || own) && (j == positive || same[j] != same[positive]) {
                    sum += (dot(query, document) / tau).exp();
                }
            }
            total -= ((dot(query, &d[positive]) / tau).exp() / sum).ln();
        }
        total / q.len() as f64
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
        for in_batch in [true, false] {
            for temperature in [1.0, 0.05] {
                let settings = InfoNce { temperature, in_batch };
                let ours = info_nce(tensor(&q), tensor(&d), &same, &settings).into_scalar();
                let reference = reference(&q, &d, &same, temperature, in_batch);
                assert!((f64::from(ours) - reference).abs() < 1e-4, "{ours} {reference}");
            }
        }
    }
}

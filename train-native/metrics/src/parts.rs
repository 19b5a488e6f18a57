//! The numbers that a task's score is made of.

use serde::{Deserialize, Serialize};

use crate::classification::average_precision;
use crate::correlation::spearman;

/// What a bootstrap draws again: the parts of a task whose scores are one number each, or pairs of
/// numbers whose relation is the score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ScoreParts {
    /// The score is the mean of these.
    Mean {
        /// One a query, document, text or experiment.
        values: Vec<f64>,
    },
    /// The score is Spearman's correlation of these.
    Spearman {
        /// The model's.
        found: Vec<f64>,
        /// People's.
        gold: Vec<f64>,
    },
    /// The score is the best average precision under some similarities.
    AveragePrecision {
        /// A list a similarity, larger is more alike.
        scores: Vec<Vec<f64>>,
        /// Whether the two texts belong together.
        positive: Vec<bool>,
    },
}

impl ScoreParts {
    /// How many parts there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Mean { values } => values.len(),
            Self::Spearman { gold, .. } => gold.len(),
            Self::AveragePrecision { positive, .. } => positive.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all of them are numbers.
    pub fn finite(&self) -> bool {
        let all = |values: &[f64]| values.iter().all(|value| value.is_finite());
        match self {
            Self::Mean { values } => all(values),
            Self::Spearman { found, gold } => all(found) && all(gold),
            Self::AveragePrecision { scores, .. } => scores.iter().all(|scores| all(scores)),
        }
    }

    /// The score of some of the parts, by number, each as often as it is named.
    pub fn score(&self, rows: &[usize]) -> f64 {
        let pick = |values: &[f64]| rows.iter().map(|&row| values[row]).collect::<Vec<_>>();
        match self {
            Self::Mean { values } => pick(values).iter().sum::<f64>() / rows.len() as f64,
            Self::Spearman { found, gold } => spearman(&pick(found), &pick(gold)),
            Self::AveragePrecision { scores, positive } => {
                let positive: Vec<bool> = rows.iter().map(|&row| positive[row]).collect();
                let each = scores.iter().map(|scores| average_precision(&pick(scores), &positive));
                each.fold(0.0, f64::max)
            }
        }
    }
}

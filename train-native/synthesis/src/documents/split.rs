//! Which documents are trained on, and which are kept back.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a document is used for. All its passages are used for the same, so that what is tested was not
/// trained on.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// Trained on.
    #[default]
    Train,
    /// Watched while training.
    Dev,
    /// Judged by.
    Test,
}

/// Shares of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// For training.
    pub train: f64,
    /// To watch while training.
    pub dev: f64,
    /// To judge by.
    pub test: f64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { train: 0.8, dev: 0.1, test: 0.1 }
    }
}

impl FromStr for Shares {
    type Err = String;

    /// `0.8,0.1,0.1`: train, dev, test.
    fn from_str(text: &str) -> Result<Self, String> {
        let shares: Option<Vec<f64>> =
            text.split(',').map(|part| part.trim().parse().ok()).collect();
        match shares.as_deref() {
            Some(&[train, dev, test])
                if [train, dev, test].iter().all(|share| (0.0..=1.0).contains(share))
                    && (train + dev + test - 1.0).abs() < 1e-6 =>
            {
                Ok(Self { train, dev, test })
            }
            _ => {
                Err("expected three shares of train, dev and test that sum to 1: 0.8,0.1,0.1"
                    .into())
            }
        }
    }
}

impl Shares {
    /// What a document is used for, by its name and the seed alone: it stays the same whatever else is in
    /// the folder.
    pub fn split(&self, seed: u64, name: &str) -> Split {
        // The 53 bits that a number between 0 and 1 has.
        let place = (xxh3_64_with_seed(name.as_bytes(), seed) >> 11) as f64 / (1u64 << 53) as f64;
        if place < self.train {
            Split::Train
        } else if place < self.train + self.dev || self.test == 0.0 && self.dev > 0.0 {
            Split::Dev
        } else if self.test > 0.0 {
            Split::Test
        } else {
            Split::Train
        }
    }

    /// The share of one split.
    pub fn of(&self, split: Split) -> f64 {
        match split {
            Split::Train => self.train,
            Split::Dev => self.dev,
            Split::Test => self.test,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_shared_out_by_their_names() {
        let shares: Shares = "0.5, 0.3,0.2".parse().unwrap();
        let names: Vec<String> = (0..20_000).map(|number| format!("docs/{number}.md")).collect();
        let split = |seed| names.iter().map(|name| shares.split(seed, name)).collect::<Vec<_>>();
        let first = split(1);
        for (of, share) in [(Split::Train, 0.5), (Split::Dev, 0.3), (Split::Test, 0.2)] {
            let count = first.iter().filter(|split| **split == of).count();
            assert!((count as f64 / 20_000.0 - share).abs() < 0.02, "{of:?}: {count}");
        }
        assert_eq!(first, split(1));
        assert_ne!(first, split(2));
        let only = |text: &str| {
            let shares: Shares = text.parse().unwrap();
            names.iter().map(|name| shares.split(1, name)).collect::<std::collections::HashSet<_>>()
        };
        assert_eq!(only("1,0,0"), [Split::Train].into());
        assert_eq!(only("0,0,1"), [Split::Test].into());
        assert_eq!(only("0.5,0.5,0"), [Split::Train, Split::Dev].into());
    }

    #[test]
    fn shares_are_three_and_sum_to_one() {
        for text in ["", "1", "0.8,0.2", "0.8,0.1,0.2", "-0.1,0.1,1", "a,b,c", "NaN,0,1", "1,0,0,0"]
        {
            assert!(text.parse::<Shares>().is_err(), "{text}");
        }
        assert_eq!("0.8,0.1,0.1".parse::<Shares>().unwrap(), Shares::default());
    }
}

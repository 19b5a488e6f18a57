//! The kinds of examples that a model writes.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// The kind of an example (E5-Mistral, arXiv:2401.00368, section 3.1; Negative Matters, appendix A).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExampleKind {
    /// Retrieval: short queries, long documents.
    ShortLong,
    /// Classification: long texts, short labels.
    LongShort,
    /// Phrases and sentences that belong together.
    ShortShort,
    /// Long texts that belong together.
    LongLong,
    /// Texts of the same meaning.
    Sts,
    /// Translations.
    Bitext,
    /// Queries for passages of a corpus.
    Corpus,
    /// Negatives for pairs that there are.
    Regenerated,
}

impl ExampleKind {
    /// Kinds that need no material.
    pub const FREE: [Self; 6] = [
        Self::ShortLong,
        Self::LongShort,
        Self::ShortShort,
        Self::LongLong,
        Self::Sts,
        Self::Bitext,
    ];

    /// The name in options, rows and templates.
    pub fn name(self) -> &'static str {
        match self {
            Self::ShortLong => "short-long",
            Self::LongShort => "long-short",
            Self::ShortShort => "short-short",
            Self::LongLong => "long-long",
            Self::Sts => "sts",
            Self::Bitext => "bitext",
            Self::Corpus => "corpus",
            Self::Regenerated => "regenerated",
        }
    }

    /// The template of its examples.
    pub fn template(self) -> &'static str {
        if self == Self::Regenerated { "negatives" } else { self.name() }
    }

    /// The template of its tasks, where it has tasks.
    pub fn tasks(self) -> Option<&'static str> {
        match self {
            Self::ShortLong => Some("tasks-short-long"),
            Self::LongShort => Some("tasks-long-short"),
            Self::ShortShort => Some("tasks-short-short"),
            Self::LongLong => Some("tasks-long-long"),
            _ => None,
        }
    }

    /// Whether a document could as well be the query.
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Sts | Self::Bitext)
    }

    /// The share where none is given: E5's counts without bitext.
    fn share(self) -> f64 {
        match self {
            Self::ShortLong => 40.0,
            Self::LongShort => 29.0,
            Self::Sts => 24.0,
            Self::LongLong => 4.0,
            Self::ShortShort => 3.0,
            _ => 10.0,
        }
    }

    /// The keys of an answer with so many negatives: query, positive, negatives.
    pub fn keys(self, levels: usize) -> Vec<String> {
        let (query, positive, negative, alone) = match self {
            Self::ShortLong => {
                ("user_query", "positive_document", "hard_negative_", "hard_negative_document")
            }
            Self::LongShort => ("input_text", "label", "misleading_label_", "misleading_label"),
            Self::ShortShort | Self::LongLong => {
                ("input", "positive_document", "hard_negative_", "")
            }
            Self::Sts | Self::Bitext => ("S1", "S2", "S", ""),
            Self::Corpus => ("queries", "", "hard_negative_", ""),
            Self::Regenerated => ("", "", "hard_negative_", ""),
        };
        let mut keys = vec![query.to_string(), positive.into()];
        match (self, levels) {
            (Self::Sts | Self::Bitext, _) => {
                keys.extend((0..levels.max(1)).map(|level| format!("S{}", level + 3)))
            }
            (Self::Regenerated, _) => {
                keys.extend((1..=levels.max(1)).map(|level| format!("{negative}{level}")))
            }
            (_, 0 | 1) => keys.push(alone.into()),
            _ => keys.extend((1..=levels).map(|level| format!("{negative}{level}"))),
        }
        keys.retain(|key| !key.is_empty());
        keys
    }
}

/// Kinds, each with its share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shares(pub Vec<(ExampleKind, f64)>);

impl Default for Shares {
    fn default() -> Self {
        let kinds = ExampleKind::FREE.into_iter().filter(|kind| *kind != ExampleKind::Bitext);
        Self(kinds.map(|kind| (kind, kind.share())).collect())
    }
}

impl Shares {
    /// Parses `short-long,sts` or `short-long=40,sts=10`.
    ///
    /// # Errors
    /// A kind that does not exist, or a share that is none.
    pub fn parse(text: &str) -> Result<Self> {
        let mut shares: Vec<(ExampleKind, f64)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, share) =
                part.split_once('=').map_or((part, None), |(name, share)| (name, Some(share)));
            let Some(kind) = ExampleKind::FREE.into_iter().find(|kind| kind.name() == name) else {
                let names = ExampleKind::FREE.map(ExampleKind::name).join(", ");
                bail!("{name:?} is no type of examples; there are {names}");
            };
            let share = share.map_or(Ok(kind.share()), str::parse).unwrap_or(-1.0);
            if !share.is_finite() || share <= 0.0 {
                bail!("{part:?}: the share of a type is a number above 0");
            }
            if shares.iter().any(|(other, _)| *other == kind) {
                bail!("{name} is named twice");
            }
            shares.push((kind, share));
        }
        Ok(Self(shares))
    }

    /// The kind at a place between 0 and 1.
    pub fn at(&self, place: f64) -> ExampleKind {
        let total: f64 = self.0.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        for (kind, share) in &self.0 {
            sum += share / total;
            if place < sum {
                return *kind;
            }
        }
        self.0.last().map_or(ExampleKind::ShortLong, |(kind, _)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_papers() {
        let keys = |kind: ExampleKind, levels| kind.keys(levels).join(" ");
        assert_eq!(
            keys(ExampleKind::ShortLong, 1),
            "user_query positive_document hard_negative_document"
        );
        assert_eq!(keys(ExampleKind::LongShort, 1), "input_text label misleading_label");
        assert_eq!(keys(ExampleKind::ShortShort, 1), "input positive_document");
        assert_eq!(keys(ExampleKind::Sts, 1), "S1 S2 S3");
        assert_eq!(keys(ExampleKind::Sts, 4), "S1 S2 S3 S4 S5 S6");
        assert_eq!(keys(ExampleKind::Corpus, 1), "queries");
        assert_eq!(keys(ExampleKind::Corpus, 2), "queries hard_negative_1 hard_negative_2");
        assert_eq!(keys(ExampleKind::Regenerated, 2), "hard_negative_1 hard_negative_2");
        let levels = "hard_negative_1 hard_negative_2 hard_negative_3 hard_negative_4";
        assert_eq!(keys(ExampleKind::LongLong, 4), format!("input positive_document {levels}"));
    }

    #[test]
    fn shares_are_parsed() {
        let shares = Shares::parse("sts=1, short-long=3").unwrap();
        assert_eq!((shares.at(0.2), shares.at(0.3)), (ExampleKind::Sts, ExampleKind::ShortLong));
        for wrong in ["", "corpus", "sts=0", "sts=a", "sts,sts"] {
            assert!(Shares::parse(wrong).is_err(), "{wrong}");
        }
        let all = Shares::default();
        let count =
            (0..1000).filter(|i| all.at(f64::from(*i) / 1e3) == ExampleKind::ShortLong).count();
        assert!((395..=405).contains(&count), "{count}");
    }
}

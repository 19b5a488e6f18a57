//! One data set of a stage.

use anyhow::{Result, bail};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// How labelled texts become triplets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Labels {
    /// The positive is another text of the class, negatives are texts of other classes; two
    /// classes are always taken label-based (NV-Embed).
    #[default]
    Examples,
    /// The positive is the label itself, negatives are other labels.
    Names,
}

/// One data set: a file, and what to do with it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSource {
    /// File (`.jsonl`, `.csv`, `.tsv`, `.parquet`, also `.gz` or `.zst`), BEIR folder, or
    /// `made-up:retrieval`, `made-up:classes`, `made-up:pairs` (texts that Kiln makes up itself).
    pub path: String,
    /// Task that the set stands for, in reports and for task-homogeneous batches; the file's name
    /// where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Share in the mixture, relative to the stage's other sets; by size where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// In-batch negatives for this set's queries; the stage's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_batch: Option<bool>,
    /// Put before its queries; the model's "query" prompt where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// Put before its documents; the model's "document" prompt where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_prompt: Option<String>,
    /// Labelled texts: how they become triplets.
    #[serde(default)]
    pub labels: Labels,
    /// Scored pairs: the least score of a positive pair (NV-Embed's 4 of 5, arXiv:2405.17428,
    /// section 4.2).
    #[serde(default = "default_threshold")]
    pub threshold: f64,
    /// Scored pairs: also (b, a).
    #[serde(default = "yes")]
    pub both_directions: bool,
    /// BEIR folder: which qrels.
    #[serde(default = "train")]
    pub split: String,
    /// The columns that make a text (joined by a space), where a row is a text for distillation;
    /// rows that have none of them are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Use only the first examples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

fn default_threshold() -> f64 {
    4.0
}
fn yes() -> bool {
    true
}
fn train() -> String {
    "train".into()
}

impl DataSource {
    /// A file with the usual settings.
    pub fn file(path: &str) -> Self {
        Self {
            path: path.into(),
            threshold: default_threshold(),
            both_directions: true,
            split: train(),
            ..Self::default()
        }
    }

    /// Name for reports.
    pub fn label(&self) -> String {
        let file = || {
            let name = self.path.trim_end_matches('/').rsplit('/').next().unwrap_or(&self.path);
            name.split('.').next().unwrap_or(name).to_string()
        };
        self.name.clone().unwrap_or_else(file)
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.path.is_empty() {
            bail!("an empty path");
        }
        if self.weight.is_some_and(|weight| !(weight.is_finite() && weight > 0.0)) {
            bail!("{}: weight must be above 0", self.path);
        }
        if self.limit == Some(0) {
            bail!("{}: limit must be at least 1", self.path);
        }
        Ok(())
    }
}

/// How a stage names a data set: by path, by a name of `[sources]`, or as a table.
#[derive(Debug, Clone, PartialEq)]
pub enum DataRef {
    /// A path, or a name of `[sources]`.
    Named(String),
    /// The whole table.
    Inline(Box<DataSource>),
}

impl Serialize for DataRef {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            DataRef::Named(name) => serializer.serialize_str(name),
            DataRef::Inline(source) => source.serialize(serializer),
        }
    }
}

// By hand, because an untagged enum would hide which field is unknown.
impl<'de> Deserialize<'de> for DataRef {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = DataRef;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a path, a name of [sources], or a table with path")
            }

            fn visit_str<E>(self, text: &str) -> Result<DataRef, E> {
                Ok(DataRef::Named(text.into()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DataRef, A::Error> {
                let source = DataSource::deserialize(MapAccessDeserializer::new(map))?;
                Ok(DataRef::Inline(Box::new(source)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

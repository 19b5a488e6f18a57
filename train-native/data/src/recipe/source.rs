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

impl Labels {
    /// Its name in a recipe.
    pub fn name(self) -> &'static str {
        match self {
            Self::Examples => "examples",
            Self::Names => "names",
        }
    }
}

/// The prompt of an instruction where the model has no format of its own (E5-Mistral,
/// arXiv:2401.00368, section 3.2; NV-Embed's release).
pub const INSTRUCTION_FORMAT: &str = "Instruct: {instruction}\nQuery: ";

/// What stands for the instruction in a format.
const INSTRUCTION: &str = "{instruction}";

/// An instruction as the prompt of a query.
pub fn instructed(format: &str, instruction: &str) -> String {
    format.replace(INSTRUCTION, instruction)
}

/// Refuses a format that would give every instruction the same prompt.
pub(super) fn check_instruction_format(format: &str) -> Result<()> {
    if !format.contains(INSTRUCTION) {
        bail!(
            "model.instruction_format is {format:?}, without {INSTRUCTION}; write that where the \
             instruction goes, as in {INSTRUCTION_FORMAT:?}"
        );
    }
    Ok(())
}

/// How near a training text may come to an evaluation text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakRule {
    /// As near as it likes: nothing is kept out.
    None,
    /// It may not be the same, whatever its case and outer space.
    #[default]
    Exact,
    /// Nor may its BM25 score for an evaluation text reach this share of the score that the
    /// evaluation text gives itself.
    Bm25(f32),
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
    /// Task instructions of its queries, of which one is drawn for each (NV-Embed, table 12); they
    /// become prompts by `model.instruction_format`. A row's own instruction goes before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instructions: Vec<String>,
    /// Documents carry their query's prompt too, as in symmetric tasks (STS).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub symmetric: bool,
    /// Put before its queries, as it is; the model's "query" prompt where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// Put before its documents, as it is; the model's "document" prompt where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document_prompt: Option<String>,
    /// Labelled texts and `made-up:classes`: how they become triplets; by example where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<Labels>,
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
    /// The columns that make a text (joined by a space), where a row is a labelled text (title and
    /// abstract) or a text for distillation; rows that have none of them are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<String>,
    /// Use only so many of the examples, drawn by the recipe's seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Use only this share of the examples, drawn by the recipe's seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// How near its texts may come to those of `filter.evaluation_texts`; as `[filter]` says where
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leak: Option<LeakRule>,
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
        if self.ratio.is_some_and(|ratio| !(ratio > 0.0 && ratio <= 1.0)) {
            bail!("{}: ratio must be above 0 and at most 1", self.path);
        }
        if let Some(LeakRule::Bm25(share)) = self.leak
            && !(share > 0.0 && share <= 1.0)
        {
            bail!("{}: leak.bm25 must be above 0 and at most 1", self.path);
        }
        if self.instructions.iter().any(|instruction| instruction.trim().is_empty()) {
            bail!("{}: an empty instruction; write query_prompt = \"\" for no prompt", self.path);
        }
        if self.query_prompt.is_some() && !self.instructions.is_empty() {
            bail!(
                "{}: query_prompt and instructions both say what stands before its queries; keep one",
                self.path
            );
        }
        if self.document_prompt.is_some() && self.symmetric {
            bail!(
                "{}: document_prompt and symmetric both say what stands before its documents; keep one",
                self.path
            );
        }
        Ok(())
    }
}

/// What a stage's objective makes of its sources.
#[derive(Debug, Clone, Copy)]
pub(super) struct Uses {
    /// Texts are read behind their prompts.
    pub(super) prompts: bool,
    /// Other queries' texts are negatives.
    pub(super) in_batch: bool,
    /// Of scored pairs those that are alike are positives; else their scores are learned.
    pub(super) alike: bool,
}

impl Uses {
    /// What two stages use together.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            prompts: self.prompts || other.prompts,
            in_batch: self.in_batch || other.in_batch,
            alike: self.alike || other.alike,
        }
    }
}

impl DataSource {
    /// Fields that say nothing to an objective.
    pub(super) fn unused(&self, uses: Uses) -> Vec<&'static str> {
        let Uses { prompts, in_batch, alike } = uses;
        let fields = [
            ("instructions", !prompts && !self.instructions.is_empty()),
            ("query_prompt", !prompts && self.query_prompt.is_some()),
            ("document_prompt", !prompts && self.document_prompt.is_some()),
            ("symmetric", !prompts && self.symmetric),
            ("in_batch", !in_batch && self.in_batch.is_some()),
            ("threshold", !alike && self.has_threshold()),
            ("both_directions", !alike && !self.both_directions),
        ];
        fields.iter().filter(|(_, unused)| *unused).map(|(field, _)| *field).collect()
    }

    /// Leaves out the fields that [`Self::unused`] names.
    pub(super) fn forget_unused(&mut self, uses: Uses) {
        let Uses { prompts, in_batch, alike } = uses;
        if !prompts {
            self.instructions.clear();
            (self.query_prompt, self.document_prompt, self.symmetric) = (None, None, false);
        }
        if !in_batch {
            self.in_batch = None;
        }
        if !alike {
            (self.threshold, self.both_directions) = (default_threshold(), yes());
        }
    }

    fn has_threshold(&self) -> bool {
        self.threshold != default_threshold()
    }

    /// Fields that say nothing to a source which is no file of scored pairs, or no BEIR folder.
    #[cfg(feature = "files")]
    pub(crate) fn idle(&self, scored_pairs: bool, beir: bool) -> Vec<&'static str> {
        let fields = [
            ("threshold", !scored_pairs && self.has_threshold()),
            ("both_directions", !scored_pairs && !self.both_directions),
            ("split", !beir && self.split != train()),
        ];
        fields.iter().filter(|(_, idle)| *idle).map(|(field, _)| *field).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Result<DataSource> {
        let source: DataSource = toml::from_str(&format!("path = 'x.jsonl'\n{text}"))?;
        source.check()?;
        Ok(source)
    }

    #[test]
    fn what_an_objective_does_not_use_of_a_source_is_named() {
        let all = Uses { prompts: true, in_batch: true, alike: true };
        let plain = Uses { prompts: false, ..all };
        let alone = Uses { in_batch: false, ..all };
        let scores = Uses { alike: false, ..all };
        let unused = |text: &str, uses| {
            let mut source = source(text).unwrap();
            let unused = source.unused(uses);
            source.forget_unused(uses);
            assert!(source.unused(uses).is_empty(), "{text}");
            unused
        };
        let prompted = "instructions = ['find']\nsymmetric = true\nin_batch = false";
        assert_eq!(unused(prompted, plain), ["instructions", "symmetric"]);
        assert_eq!(unused(prompted, alone), ["in_batch"]);
        assert!(unused(prompted, all).is_empty());
        assert_eq!(unused("query_prompt = 'q: '", plain), ["query_prompt"]);
        let pairs = "threshold = 3.0\nboth_directions = false";
        assert_eq!(unused(pairs, scores), ["threshold", "both_directions"]);
        assert!(unused(pairs, all).is_empty());
        assert!(unused("threshold = 4.0\nboth_directions = true", scores).is_empty());
        assert!(unused(prompted, plain.or(alone)).is_empty());
        assert_eq!(unused(prompted, plain.or(plain)), ["instructions", "symmetric"]);
    }

    #[test]
    fn a_source_has_a_leak_rule_of_its_own() {
        for (text, rule) in [
            ("", None),
            ("leak = 'none'", Some(LeakRule::None)),
            ("leak = 'exact'", Some(LeakRule::Exact)),
            ("leak = { bm25 = 0.8 }", Some(LeakRule::Bm25(0.8))),
        ] {
            let source = source(text).unwrap();
            assert_eq!(source.leak, rule);
            let again: DataSource = toml::from_str(&toml::to_string(&source).unwrap()).unwrap();
            assert_eq!(again, source);
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for (text, word) in [
            ("instructions = ['a']\nquery_prompt = 'b'", "keep one"),
            ("symmetric = true\ndocument_prompt = ''", "keep one"),
            ("instructions = ['a', ' ']", "empty instruction"),
            ("ratio = 0.0", "ratio"),
            ("ratio = nan", "ratio"),
            ("leak = { bm25 = 1.5 }", "leak.bm25"),
            ("leak = 'near'", "near"),
            ("limit = 0", "limit"),
        ] {
            let error = format!("{:#}", source(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn an_instruction_becomes_a_prompt() {
        let prompt = instructed(INSTRUCTION_FORMAT, "Find {it}");
        assert_eq!(prompt, "Instruct: Find {it}\nQuery: ");
        assert!(check_instruction_format(INSTRUCTION_FORMAT).is_ok());
        let error = check_instruction_format("Query: ").unwrap_err().to_string();
        assert!(error.contains("{instruction}"), "{error}");
    }
}

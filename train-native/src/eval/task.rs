//! What a task is, and what comes of it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;
use kiln_embed::embedder::{DOCUMENT, QUERY};
use kiln_metrics::ScoreParts;
use serde::{Deserialize, Serialize};

use super::encoder::TextEncoder;
use crate::recipe::{INSTRUCTION_FORMAT, instructed};

/// mteb's seven kinds of tasks.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// Logistic regression on a few labelled texts.
    Classification,
    /// Mini-batch k-means against labels.
    Clustering,
    /// Whether two texts belong together, by a threshold on their similarity.
    #[value(name = "pair", alias = "pair_classification")]
    #[serde(alias = "pair")]
    PairClassification,
    /// Ranking the candidates that each query comes with.
    Reranking,
    /// Ranking a corpus.
    Retrieval,
    /// Semantic textual similarity: correlation with human scores.
    Sts,
    /// Correlation of the similarity to human summaries with human scores.
    Summarization,
}

impl TaskKind {
    /// mteb's name of the kind.
    pub fn mteb_name(self) -> &'static str {
        match self {
            Self::Classification => "Classification",
            Self::Clustering => "Clustering",
            Self::PairClassification => "PairClassification",
            Self::Reranking => "Reranking",
            Self::Retrieval => "Retrieval",
            Self::Sts => "STS",
            Self::Summarization => "Summarization",
        }
    }

    /// The score that mteb reports for the kind.
    pub fn main_score(self) -> &'static str {
        match self {
            Self::Classification => "accuracy",
            Self::Clustering => "v_measure",
            Self::PairClassification => "max_ap",
            Self::Reranking => "map_at_1000",
            Self::Retrieval => "ndcg_at_10",
            Self::Sts | Self::Summarization => "cosine_spearman",
        }
    }

    /// Whether both sides of the task are texts of one kind, so that both carry the instruction
    /// (NV-Embed: "symmetric tasks").
    pub fn symmetric(self) -> bool {
        !matches!(self, Self::Reranking | Self::Retrieval)
    }
}

impl fmt::Display for TaskKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.mteb_name())
    }
}

/// Where a retrieval task stands in AIR-Bench (arXiv:2412.13102), whose leaderboard has the judgements of
/// its test splits and takes search results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AirBench {
    /// Version of the benchmark (`AIR-Bench_24.05`).
    pub benchmark_version: String,
    /// Type of task (`qa`, `long-doc`).
    pub task_type: String,
    /// Domain.
    pub domain: String,
    /// Language.
    pub language: String,
    /// Data set (`default` in most domains).
    pub dataset_name: String,
}

/// A task of a suite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Name, mteb's where it has one.
    pub name: String,
    /// Kind.
    pub kind: TaskKind,
    /// File or folder, relative to the data folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Data set of the Hub (`owner/name`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<String>,
    /// Its revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Part of the data set, often a language.
    #[serde(default = "default_subset")]
    pub subset: String,
    /// Split; the first of test, dev, validation that is there where it is not named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// Task of which this is one part, counted as one in averages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The score that counts, where it is not the kind's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub main_score: Option<String>,
    /// Classification: labelled texts of each label in training.
    #[serde(default = "default_samples")]
    pub samples_per_label: usize,
    /// Classification and clustering: how often it is done.
    #[serde(default = "default_experiments")]
    pub experiments: usize,
    /// Clustering: texts that are embedded, drawn by mteb's numbers, as its newer task does; rows that
    /// hold lists of texts are then one list. Where it is not given, all texts of a flat list, and
    /// each row of lists by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<usize>,
    /// Retrieval: a document with the query's own id is left out.
    #[serde(default)]
    pub ignore_identical_ids: bool,
    /// Retrieval: its place in AIR-Bench, for search results to submit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub air_bench: Option<AirBench>,
    /// Instructions by the paper whose table they stand in.
    #[serde(default)]
    pub instructions: BTreeMap<String, String>,
}

fn default_subset() -> String {
    "default".into()
}

fn default_samples() -> usize {
    8
}

fn default_experiments() -> usize {
    10
}

impl Task {
    /// A task of one's own.
    pub fn new(name: &str, kind: TaskKind) -> Self {
        Self {
            name: name.into(),
            kind,
            path: None,
            hub: None,
            revision: None,
            subset: default_subset(),
            split: None,
            group: None,
            main_score: None,
            samples_per_label: default_samples(),
            experiments: default_experiments(),
            documents: None,
            ignore_identical_ids: false,
            air_bench: None,
            instructions: BTreeMap::new(),
        }
    }

    /// Name of the score that counts.
    pub fn main_score(&self) -> &str {
        self.main_score.as_deref().unwrap_or(self.kind.main_score())
    }
}

/// The papers whose tables of evaluation instructions come with the program.
pub(super) const TABLES: [&str; 5] = ["nv-embed", "mgh", "anchor", "pooling-attention", "linq"];

/// Which instruction or prompt texts get.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PromptChoice {
    /// The model's own prompts: by the task's name, its kind, or `query` and `document`.
    #[default]
    Model,
    /// None.
    None,
    /// A paper's table, in the model's instruction format, or as `Instruct: ..\nQuery: `.
    Table(String),
    /// An instruction for all tasks, likewise.
    Instruction(String),
    /// The prompts themselves, for queries and for documents.
    Texts([String; 2]),
}

impl PromptChoice {
    /// A name on the command line: `model`, `none` or a paper's table (`nv-embed`, `mgh`, ..).
    ///
    /// # Errors
    /// Another name.
    pub fn from_name(name: &str) -> Result<Self> {
        Ok(match name {
            "model" => Self::Model,
            "none" => Self::None,
            table if TABLES.contains(&table) => Self::Table(table.into()),
            _ => bail!("{name:?} is none of model, none, {}", TABLES.join(", ")),
        })
    }

    /// Whether prompts are made of instructions.
    pub fn instructs(&self) -> bool {
        matches!(self, Self::Table(_) | Self::Instruction(_))
    }

    /// The instruction that a task gets, if any.
    ///
    /// # Errors
    /// The table has no instruction for the task.
    pub fn instruction<'a>(&'a self, task: &'a Task) -> Result<Option<&'a str>> {
        Ok(match self {
            Self::Table(table) => match task.instructions.get(table) {
                Some(instruction) => Some(instruction.as_str()),
                None => bail!(
                    "{}: the table {table} has no instruction for it; use --instruction or --prompts model",
                    task.name
                ),
            },
            Self::Instruction(instruction) => Some(instruction.as_str()),
            Self::Model | Self::None | Self::Texts(_) => None,
        })
    }

    /// Prompts of the task's queries (or only texts) and of its documents.
    ///
    /// # Errors
    /// The table has no instruction for the task.
    pub fn prompts(&self, task: &Task, encoder: &dyn TextEncoder) -> Result<[String; 2]> {
        if let Some(instruction) = self.instruction(task)? {
            let format = encoder.instruction_format();
            let query = instructed(format.as_deref().unwrap_or(INSTRUCTION_FORMAT), instruction);
            let document = match (task.kind.symmetric(), format) {
                // One-sided, but in symmetric tasks (NV-Embed, section 4).
                (true, _) => query.clone(),
                // What stood before documents in training, such as the opening of a turn.
                (false, Some(_)) => encoder.own_prompt(&DOCUMENT),
                (false, None) => String::new(),
            };
            return Ok([query, document]);
        }
        Ok(match self {
            Self::Texts(prompts) => prompts.clone(),
            Self::None | Self::Table(_) | Self::Instruction(_) => Default::default(),
            Self::Model => {
                let kind = task.kind.mteb_name();
                let side = |name: &str, more: &[&str]| {
                    let long = [format!("{}-{name}", task.name), format!("{kind}-{name}")];
                    let mut names = vec![long[0].as_str(), &task.name, &long[1], kind];
                    names.extend(more);
                    encoder.own_prompt(&names)
                };
                match task.kind.symmetric() {
                    true => [side("query", &[]), side("query", &[])],
                    false => [side("query", &QUERY), side("document", &DOCUMENT)],
                }
            }
        })
    }
}

/// What a task gave.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskOutcome {
    /// Scores by mteb's names; NaN where a score is not defined for the data.
    pub scores: BTreeMap<String, f64>,
    /// What the main score is made of.
    pub parts: ScoreParts,
    /// The split that was read.
    pub split: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model with a prompt of documents, and perhaps an instruction format.
    struct Told(Option<&'static str>);

    impl TextEncoder for Told {
        fn encode(&self, _: &[String], _: &str) -> Result<Vec<Vec<f32>>> {
            bail!("embeds nothing")
        }

        fn own_prompt(&self, names: &[&str]) -> String {
            if names.contains(&"document") { "[INST] ".into() } else { String::new() }
        }

        fn instruction_format(&self) -> Option<String> {
            self.0.map(String::from)
        }
    }

    #[test]
    fn instructions_take_the_form_that_the_model_was_trained_with() {
        let mut retrieval = Task::new("R", TaskKind::Retrieval);
        retrieval.instructions.insert("mgh".into(), "find".into());
        let sts = Task::new("S", TaskKind::Sts);
        let table = PromptChoice::Table("mgh".into());
        let all = PromptChoice::Instruction("find".into());
        let of =
            |choice: &PromptChoice, task: &Task, model: &Told| choice.prompts(task, model).unwrap();
        // One that carries no format is asked as ever.
        let plain = "Instruct: find\nQuery: ";
        let old = Told(None);
        assert_eq!(of(&table, &retrieval, &old), [plain, ""]);
        assert_eq!(of(&all, &sts, &old), [plain, plain]);
        let own = "[INST] Instruct: find\nQuery: ";
        let trained = Told(Some("[INST] Instruct: {instruction}\nQuery: "));
        for choice in [&table, &all] {
            assert_eq!(of(choice, &retrieval, &trained), [own, "[INST] "]);
        }
        assert_eq!(of(&all, &sts, &trained), [own, own]);
        assert!(table.prompts(&sts, &trained).unwrap_err().to_string().contains("mgh"));
    }
}

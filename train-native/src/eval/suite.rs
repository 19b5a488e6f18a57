//! Suites: lists of tasks, shipped or in a file of one's own.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::task::Task;
use crate::text::read_small;

/// Every task that the shipped suites name, with its place on the Hub.
const CATALOGUE: &str = include_str!("../../suites/mteb.toml");

/// The shipped suites.
const SHIPPED: [(&str, &str); 5] = [
    ("papers-56", include_str!("../../suites/papers-56.toml")),
    ("anchor-15", include_str!("../../suites/anchor-15.toml")),
    ("mgh-26", include_str!("../../suites/mgh-26.toml")),
    ("pooling-attention", include_str!("../../suites/pooling-attention.toml")),
    ("local", include_str!("../../suites/local.toml")),
];

/// A list of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// Name.
    pub name: String,
    /// What it is for.
    pub title: String,
    /// Its tasks.
    pub tasks: Vec<Task>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    #[serde(default)]
    title: String,
    /// Names from the catalogue; the name of a group stands for its parts.
    #[serde(default)]
    tasks: Vec<String>,
    #[serde(default)]
    task: Vec<Task>,
}

impl Suite {
    /// Names and titles of the shipped suites.
    ///
    /// # Errors
    /// A shipped suite that cannot be read, which its test excludes.
    pub fn shipped() -> Result<Vec<Suite>> {
        SHIPPED.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// A shipped suite by name, or a TOML file.
    ///
    /// # Errors
    /// Neither; the error lists the shipped ones. Or a file that is no suite.
    pub fn open(name: &str) -> Result<Self> {
        if let Some((name, text)) = SHIPPED.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let path = Path::new(name);
        if !path.exists() {
            let known: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            bail!("{name}: neither a suite file nor one of {}", known.join(", "));
        }
        let text = read_small(path)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        Self::parse(&stem, &text).with_context(|| name.to_string())
    }

    fn parse(name: &str, text: &str) -> Result<Self> {
        let file: SuiteFile = toml::from_str(text)?;
        let catalogue: SuiteFile = toml::from_str(CATALOGUE)?;
        let mut tasks = Vec::new();
        for wanted in &file.tasks {
            let is_it = |task: &&Task| task.name == *wanted || task.group.as_ref() == Some(wanted);
            let found: Vec<Task> = catalogue.task.iter().filter(is_it).cloned().collect();
            if found.is_empty() {
                let near = catalogue
                    .task
                    .iter()
                    .max_by(|a, b| {
                        let likeness = |task: &Task| strsim::jaro_winkler(&task.name, wanted);
                        likeness(a).total_cmp(&likeness(b))
                    })
                    .map_or("", |task| task.name.as_str());
                bail!("no task {wanted:?} is known; the nearest name is {near:?}");
            }
            tasks.extend(found);
        }
        tasks.extend(file.task);
        let mut seen = std::collections::HashSet::new();
        if let Some(task) = tasks.iter().find(|task| !seen.insert(&task.name)) {
            bail!("the task {:?} is there twice", task.name);
        }
        if tasks.is_empty() {
            bail!("the suite has no tasks");
        }
        Ok(Self { name: name.into(), title: file.title, tasks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::task::TABLES;
    use std::collections::{BTreeMap, HashSet};

    /// Tasks of each kind, parts of a group as one.
    fn counts(name: &str) -> BTreeMap<&'static str, usize> {
        let suite = Suite::open(name).unwrap();
        let one =
            |task: &Task| (task.kind.mteb_name(), task.group.clone().unwrap_or(task.name.clone()));
        let kinds: HashSet<_> = suite.tasks.iter().map(one).collect();
        let mut counts = BTreeMap::new();
        kinds.iter().for_each(|(kind, _)| *counts.entry(*kind).or_insert(0) += 1);
        counts
    }

    #[test]
    fn suites_are_those_of_the_papers() {
        let expected =
            |counts: &[(&'static str, usize)]| counts.iter().copied().collect::<BTreeMap<_, _>>();
        // NV-Embed, table 2.
        let full = [
            ("Classification", 12),
            ("Clustering", 11),
            ("PairClassification", 3),
            ("Reranking", 4),
            ("Retrieval", 15),
            ("STS", 10),
            ("Summarization", 1),
        ];
        assert_eq!(counts("papers-56"), expected(&full));
        // Anchor, table 8, lists these by kind; its head count for reranking and clustering too.
        let anchor = [
            ("Classification", 3),
            ("Clustering", 3),
            ("PairClassification", 1),
            ("Reranking", 2),
            ("Retrieval", 3),
            ("STS", 3),
        ];
        assert_eq!(counts("anchor-15"), expected(&anchor));
        assert_eq!(counts("mgh-26").values().sum::<usize>(), 26);
        // Pooling and Attention, table 7, without its two tasks that are not mteb's.
        let pooling_attention = [
            ("Classification", 6),
            ("Clustering", 12),
            ("PairClassification", 3),
            ("Reranking", 4),
            ("Retrieval", 14),
            ("STS", 8),
            ("Summarization", 1),
        ];
        assert_eq!(counts("pooling-attention"), expected(&pooling_attention));
        assert_eq!(counts("local").len(), 7);
    }

    #[test]
    fn every_task_of_the_papers_has_their_instructions() {
        let all = ["nv-embed", "mgh", "anchor", "linq"];
        for (suite, tables) in [("papers-56", &all[..]), ("pooling-attention", &TABLES)] {
            for task in Suite::open(suite).unwrap().tasks {
                for table in tables {
                    let known = task.instructions.contains_key(*table);
                    assert!(known, "{} has none of {table}", task.name);
                }
            }
        }
    }

    /// The papers' own tables, row by row.
    #[test]
    fn instructions_are_those_of_the_papers() {
        let tables =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/eval/instructions.tsv");
        let tables = std::fs::read_to_string(tables).unwrap();
        let catalogue: SuiteFile = toml::from_str(CATALOGUE).unwrap();
        let mut held = HashSet::new();
        for line in tables.lines().filter(|line| !line.starts_with('#')) {
            let row: Vec<&str> = line.split('\t').collect();
            let [table, name, said] = row[..] else { panic!("{line}") };
            let is_it = |task: &&Task| {
                let all_of_a_kind = name == "STS" && task.kind.mteb_name() == name;
                task.name == name || task.group.as_deref() == Some(name) || all_of_a_kind
            };
            let tasks: Vec<&Task> = catalogue.task.iter().filter(is_it).collect();
            // Two of Pooling and Attention's are not mteb's.
            let unknown = ["FinanceBench", "Company2Industry"].contains(&name);
            assert_eq!(tasks.is_empty(), unknown, "{table}: {name}");
            for task in tasks {
                // Linq prints no table and evaluates as E5-Mistral, whose table Negative Matters has.
                let alike = [table, "linq"];
                for table in &alike[..if table == "mgh" { 2 } else { 1 }] {
                    assert_eq!(task.instructions[*table], said, "{table}: {}", task.name);
                    held.insert((table.to_string(), &task.name));
                }
            }
        }
        for (suite, tables) in [
            ("papers-56", &["nv-embed", "mgh", "anchor", "linq"][..]),
            ("pooling-attention", &["pooling-attention"]),
        ] {
            for task in Suite::open(suite).unwrap().tasks {
                for table in tables {
                    // NV-Embed's table has no row for it; its public code has.
                    let absent = *table == "nv-embed" && task.group.is_some();
                    let is_held = held.contains(&(table.to_string(), &task.name));
                    assert_eq!(is_held, !absent, "{table}: {}", task.name);
                }
            }
        }
    }

    /// The suite of the cells on a real language model: two tasks of each of four kinds.
    #[test]
    fn the_experiments_suite_is_one() {
        let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/recipes/experiments/suite.toml");
        let kinds = ["Classification", "Clustering", "Retrieval", "STS"].map(|kind| (kind, 2));
        assert_eq!(counts(suite), kinds.into_iter().collect::<BTreeMap<_, _>>());
    }

    #[test]
    fn wrong_names_are_told() {
        let error = Suite::parse("x", "tasks = ['SciFakt']").unwrap_err().to_string();
        assert!(error.contains("\"SciFact\""), "{error}");
        assert!(Suite::open("nothing").unwrap_err().to_string().contains("papers-56"));
        assert!(Suite::parse("x", "").is_err());
    }
}

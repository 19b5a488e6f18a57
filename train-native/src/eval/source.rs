//! Where the files of a data set's split are: a file, a folder, or a data set of the Hub.
//!
//! Folders of the user and repositories of the Hub are laid out in the same ways, so one rule
//! finds a split in both: `SPLIT.jsonl`, `data/SPLIT-00000-of-00001.parquet`, `SUBSET/SPLIT.tsv`,
//! `SUBSET/SPLIT/0000.parquet`. A repository that says in its card (`configs:`) which files belong
//! to what is believed.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use globset::GlobBuilder;
use serde::Deserialize;
use xxhash_rust::xxh3::Xxh3;

use crate::hub::HubDataSet;
use crate::text::{Columns, TextFile, names_below, read_small};

/// Endings of files that hold rows.
const ENDINGS: [&str; 6] = ["jsonl", "json", "ndjson", "csv", "tsv", "parquet"];

/// A data set: its files by name, and how to get one.
pub enum TaskSource {
    /// One file, which is the split.
    File(PathBuf),
    /// A folder.
    Folder(PathBuf),
    /// A data set of the Hub.
    Hub {
        /// The repository.
        repo: Box<HubDataSet>,
        /// Names of its files.
        names: Vec<String>,
        /// What its card says of them.
        card: Card,
    },
}

/// Data that is not there, as against data that is wrong.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

/// Files by configuration and split, from a data set's card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card(BTreeMap<String, BTreeMap<String, Vec<String>>>);

impl Card {
    /// Reads the front matter of a README. What cannot be read says nothing.
    pub fn parse(readme: &str) -> Self {
        #[derive(Deserialize)]
        struct Front {
            #[serde(default)]
            configs: Vec<Config>,
        }
        #[derive(Deserialize)]
        struct Config {
            config_name: String,
            #[serde(default)]
            data_files: Vec<Split>,
        }
        #[derive(Deserialize)]
        struct Split {
            split: String,
            path: Paths,
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Paths {
            One(String),
            Many(Vec<String>),
        }
        let front = readme.strip_prefix("---").and_then(|rest| rest.split_once("\n---"));
        let Some((front, _)) = front else { return Self::default() };
        let Ok(front) = serde_saphyr::from_str::<Front>(front) else { return Self::default() };
        let split = |split: Split| match split.path {
            Paths::One(path) => (split.split, vec![path]),
            Paths::Many(paths) => (split.split, paths),
        };
        let config = |config: Config| {
            (config.config_name, config.data_files.into_iter().map(split).collect())
        };
        Self(front.configs.into_iter().map(config).collect())
    }
}

/// Name without its endings, or `None` where it holds no rows.
fn stem(name: &str) -> Option<&str> {
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let (stem, ending) = plain.rsplit_once('.')?;
    ENDINGS.contains(&ending).then_some(stem)
}

/// Whether `part` is `word`, or begins with it and a number of a piece (`test-00000-of-00001`).
fn is_piece(part: &str, word: &str) -> bool {
    part.strip_prefix(word).is_some_and(|rest| {
        rest.is_empty()
            || rest
                .strip_prefix(['-', '_'])
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    })
}

/// The files of a split among the names of a folder or repository, sorted.
pub fn split_files(names: &[String], card: &Card, subset: &str, split: &str) -> Vec<String> {
    if let Some(splits) = card.0.get(subset) {
        let wanted = splits.get(split).into_iter().flatten();
        let globs: Vec<_> = wanted
            .filter_map(|glob| GlobBuilder::new(glob).literal_separator(true).build().ok())
            .map(|glob| glob.compile_matcher())
            .collect();
        let mut found: Vec<String> = names
            .iter()
            .filter(|name| globs.iter().any(|glob| glob.is_match(name)) && stem(name).is_some())
            .cloned()
            .collect();
        found.sort();
        if !found.is_empty() {
            return found;
        }
    }
    let belongs = |name: &&String| {
        let Some(stem) = stem(name) else { return false };
        let parts: Vec<&str> = stem.split('/').collect();
        let Some((last, folders)) = parts.split_last() else { return false };
        let of_split = is_piece(last, split)
            || folders.last().is_some_and(|folder| *folder == split)
            || [format!("{subset}_{split}"), format!("{subset}-{split}")]
                .iter()
                .any(|both| is_piece(last, both));
        let known = ["data", "default", split];
        let of_subset = match subset {
            "default" => folders.iter().all(|folder| known.contains(folder)),
            _ => folders.contains(&subset) || last.starts_with(subset),
        };
        of_split && of_subset
    };
    let mut found: Vec<String> = names.iter().filter(belongs).cloned().collect();
    found.sort();
    found
}

impl TaskSource {
    /// A file or folder.
    ///
    /// # Errors
    /// It is not there.
    pub fn local(path: &Path) -> Result<Self> {
        if path.is_dir() {
            Ok(Self::Folder(path.to_path_buf()))
        } else if path.exists() {
            Ok(Self::File(path.to_path_buf()))
        } else {
            Err(Missing(format!("{}: no such file or folder", path.display())).into())
        }
    }

    /// A data set of the Hub. Its list of files is asked for at once.
    ///
    /// # Errors
    /// No such data set, or no network and nothing in the cache.
    pub fn hub(repo: HubDataSet) -> Result<Self> {
        let names = repo.names()?;
        let readme = match names.iter().any(|name| name == "README.md") {
            true => read_small(&repo.file("README.md")?).unwrap_or_default(),
            false => String::new(),
        };
        Ok(Self::Hub { repo: Box::new(repo), names, card: Card::parse(&readme) })
    }

    /// A number for the names and contents of all its files; of a data set of the Hub its name.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn sum(&self) -> Result<String> {
        let (folder, mut names) = match self {
            Self::File(path) => (path.as_path(), vec![String::new()]),
            Self::Folder(folder) => (folder.as_path(), names_below(folder)?),
            Self::Hub { repo, .. } => return Ok(repo.label()),
        };
        names.sort();
        let mut hash = Xxh3::new();
        for name in names {
            let path = if name.is_empty() { folder.to_path_buf() } else { folder.join(&name) };
            // Links to nowhere and the like are none of a task's files.
            if !path.is_file() {
                continue;
            }
            let mut file = crate::text::open(&path)?;
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            let mut block = vec![0; 1 << 16];
            loop {
                match file.read(&mut block).with_context(|| path.display().to_string())? {
                    0 => break,
                    count => hash.update(&block[..count]),
                }
            }
        }
        Ok(format!("{:032x}", hash.digest128()))
    }

    /// Name for messages.
    pub fn label(&self) -> String {
        match self {
            Self::File(path) | Self::Folder(path) => path.display().to_string(),
            Self::Hub { repo, .. } => repo.label(),
        }
    }

    /// The files of a split; none where there is no such split.
    ///
    /// # Errors
    /// Files that cannot be opened or downloaded.
    pub fn split(&self, subset: &str, split: &str) -> Result<Vec<TextFile>> {
        let open = |path: &Path| TextFile::open(&path.to_string_lossy(), Columns::required(&[]));
        match self {
            Self::File(path) => Ok(vec![open(path)?]),
            Self::Folder(folder) => {
                split_files(&names_below(folder)?, &Card::default(), subset, split)
                    .iter()
                    .map(|name| open(&folder.join(name)))
                    .collect()
            }
            Self::Hub { repo, names, card } => {
                let mut result = split_files(names, card, subset, split);
                if !result.is_empty() {
                    return result.iter().map(|name| open(&repo.file(name)?)).collect();
                }
                // The Hub converts every data set to Parquet, on a branch of its own.
                let converted = repo.converted();
                result = split_files(
                    &converted.names().unwrap_or_default(),
                    &Card::default(),
                    subset,
                    split,
                );
                result.iter().map(|name| open(&converted.file(name)?)).collect()
            }
        }
    }

    /// The first of some splits that is there, with its name.
    ///
    /// # Errors
    /// None of them is.
    pub fn first_split(&self, subset: &str, splits: &[&str]) -> Result<(String, Vec<TextFile>)> {
        for split in splits {
            let files = self.split(subset, split)?;
            if !files.is_empty() {
                return Ok((split.to_string(), files));
            }
        }
        let missing = format!(
            "{}: no file of a split {} (as {}.jsonl, .csv, .tsv or .parquet, also in a folder data/)",
            self.label(),
            splits.join(" or "),
            splits.first().unwrap_or(&"test")
        );
        Err(Missing(missing).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str], card: &str, subset: &str, split: &str) -> Vec<String> {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        split_files(&names, &Card::parse(card), subset, split)
    }

    #[test]
    fn splits_are_found_in_the_usual_layouts() {
        let names = [
            "README.md",
            "test.jsonl.gz",
            "data/train-00000-of-00002.parquet",
            "data/train-00001-of-00002.parquet",
            "en/test.jsonl",
            "de/test.jsonl",
            "testing.csv",
        ];
        assert_eq!(found(&names, "", "default", "test"), ["test.jsonl.gz"]);
        assert_eq!(found(&names, "", "default", "train").len(), 2);
        assert_eq!(found(&names, "", "en", "test"), ["en/test.jsonl"]);
        assert_eq!(found(&names, "", "fr", "test"), [""; 0]);
        assert_eq!(
            found(&["corpus/corpus-00000-of-00001.parquet"], "", "corpus", "corpus").len(),
            1
        );
        assert_eq!(found(&["default/test/0000.parquet"], "", "default", "test").len(), 1);
    }

    #[test]
    fn a_card_is_believed() {
        let card = "---\nlicence: x\nconfigs:\n- config_name: default\n  data_files:\n  - split: test\n    path: odd/*.parquet\n- config_name: en\n  data_files:\n  - split: test\n    path:\n    - a.jsonl\n    - b.jsonl\n---\n# Title\n";
        let names = ["odd/x.parquet", "test.jsonl", "a.jsonl", "b.jsonl", "odd/deep/y.parquet"];
        assert_eq!(found(&names, card, "default", "test"), ["odd/x.parquet"]);
        assert_eq!(found(&names, card, "en", "test"), ["a.jsonl", "b.jsonl"]);
        assert_eq!(Card::parse("---\n: [\n---\n"), Card::default());
    }
}

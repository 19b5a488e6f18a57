//! What examples are made of: nothing but tasks, the passages of a corpus, or pairs that there are.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_data::data::{DataSet, Store, StoreWriter, mixed};
use kiln_data::text::{Columns, TextFile};
use kiln_terminal::interrupt;
use kiln_terminal::terminal::Terminal;

use crate::documents::{Passage, read_passages};
use crate::llm::key;

/// Tells the seed of the order from those of examples.
const ORDER: u64 = 1 << 50;

/// Passages on disk.
#[derive(Debug)]
pub struct Passages {
    store: Store,
    numbers: Vec<u64>,
}

impl Passages {
    /// Reads a file of passages, or a BEIR corpus.
    ///
    /// # Errors
    /// Unreadable, a row without id or text, or no row at all.
    pub fn read(path: &Path, terminal: Terminal) -> Result<Self> {
        let (mut writer, mut numbers) = (StoreWriter::new()?, Vec::new());
        let counter = terminal.counter("passages");
        for (row, passage) in read_passages(path)?.enumerate() {
            if row.is_multiple_of(1024) && interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            let passage = passage?;
            if passage.text.trim().is_empty() {
                bail!("{}: the passage {:?} has no text", path.display(), passage.id);
            }
            numbers.push(key(&[&passage.title, &passage.text]) as u64);
            writer.push(&passage)?;
            counter.inc(1);
        }
        counter.finish_and_clear();
        if writer.is_empty() {
            bail!("{}: holds no passage", path.display());
        }
        Ok(Self { store: writer.finish()?, numbers })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there is none; there always is one.
    pub fn is_empty(&self) -> bool {
        self.store.len() == 0
    }

    /// The texts of this many passages or fewer, evenly taken from all.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn some_texts(&self, most: usize) -> Result<Vec<String>> {
        let rows = (0..self.len()).step_by(self.len().div_ceil(most.max(1)).max(1));
        rows.map(|row| Ok(self.get(row)?.text)).collect()
    }

    /// A passage.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn get(&self, row: usize) -> Result<Passage> {
        self.store.get(row)
    }
}

/// What examples are made of.
#[derive(Debug)]
pub enum Material {
    /// Nothing but tasks: the user's own, or those that a model thinks of.
    Tasks(Option<Vec<String>>),
    /// Passages.
    Corpus(Passages),
    /// Pairs that get new negatives, and a number for each.
    Pairs(Box<DataSet>, Vec<u64>),
}

impl Material {
    /// Reads a user's tasks: a text file, one a line, or rows with the field `task`.
    ///
    /// # Errors
    /// Unreadable, or none.
    pub fn tasks(path: &Path) -> Result<Self> {
        let columns = Columns { fields: vec!["task".into()], optional: vec![] };
        let file = TextFile::open(&path.to_string_lossy(), columns)?;
        let mut tasks = Vec::new();
        for record in file.records()? {
            let task = record?.fields.join(" ").trim().to_string();
            if !task.is_empty() {
                tasks.push(task);
            }
        }
        if tasks.is_empty() {
            bail!("{}: holds no task", path.display());
        }
        Ok(Self::Tasks(Some(tasks)))
    }

    /// Pairs whose first positives get new negatives.
    ///
    /// # Errors
    /// The temporary files cannot be read, or no pair.
    pub fn pairs(set: DataSet) -> Result<Self> {
        if set.is_empty() {
            bail!("there is no pair to write negatives for");
        }
        let number = |i: usize| -> Result<u64> {
            let example = set.get(i)?;
            let instruction = example.instruction.as_deref().unwrap_or_default();
            let positive = example.pos.first().map_or("", String::as_str);
            Ok(key(&[instruction, &example.query, positive]) as u64)
        };
        let numbers = (0..set.len()).map(number).collect::<Result<_>>()?;
        Ok(Self::Pairs(Box::new(set), numbers))
    }

    /// Examples that can be asked for, if that is bounded.
    pub(super) fn most(&self) -> Option<usize> {
        match self {
            Self::Tasks(_) => None,
            Self::Corpus(_) | Self::Pairs(..) => Some(self.numbers().len()),
        }
    }

    /// A number for each passage and pair by what it says, so that one that stays the same is asked the same among
    /// others.
    pub(super) fn numbers(&self) -> &[u64] {
        match self {
            Self::Tasks(_) => &[],
            Self::Corpus(passages) => &passages.numbers,
            Self::Pairs(_, numbers) => numbers,
        }
    }

    /// The order in which passages and pairs are taken: by their numbers, so that the first stay the first where
    /// others come or go.
    pub(super) fn order(&self, seed: u64) -> Vec<u32> {
        let numbers = self.numbers();
        let mut order: Vec<u32> = (0..numbers.len() as u32).collect();
        order.sort_by_cached_key(|row| mixed(&[seed, ORDER, numbers[*row as usize]]));
        order
    }

    /// A name of what is asked about. Passages and pairs may come and go: each question is about one of them.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Tasks(None) => "tasks".into(),
            Self::Tasks(Some(tasks)) => {
                format!("tasks {:032x}", xxhash_rust::xxh3::xxh3_128(tasks.join("\n").as_bytes()))
            }
            Self::Corpus(_) => "corpus".into(),
            Self::Pairs(..) => "pairs".into(),
        }
    }
}

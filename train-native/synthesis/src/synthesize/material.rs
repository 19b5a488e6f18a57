//! What examples are made of: nothing but tasks, the passages of a corpus, or pairs that there are.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_data::data::{DataSet, Store, StoreWriter, mixed};
use kiln_data::text::{Columns, TextFile};
use kiln_terminal::interrupt;
use kiln_terminal::terminal::Terminal;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::Xxh3;

use crate::documents::{Passage, read_passages};

/// Tells the seed of the order from those of examples.
const ORDER: u64 = 1 << 50;

/// Passages on disk.
#[derive(Debug)]
pub struct Passages {
    store: Store,
    hash: u128,
}

impl Passages {
    /// Reads a file of passages, or a BEIR corpus.
    ///
    /// # Errors
    /// Unreadable, a row without id or text, or no row at all.
    pub fn read(path: &Path, terminal: Terminal) -> Result<Self> {
        let (mut writer, mut hash) = (StoreWriter::new()?, Xxh3::new());
        let counter = terminal.counter("passages");
        for (row, passage) in read_passages(path)?.enumerate() {
            if row.is_multiple_of(1024) && interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            let passage = passage?;
            if passage.text.trim().is_empty() {
                bail!("{}: the passage {:?} has no text", path.display(), passage.id);
            }
            for text in [&passage.title, &passage.text] {
                hash.update(text.as_bytes());
                hash.update(b"\0");
            }
            writer.push(&passage)?;
            counter.inc(1);
        }
        counter.finish_and_clear();
        if writer.is_empty() {
            bail!("{}: holds no passage", path.display());
        }
        Ok(Self { store: writer.finish()?, hash: hash.digest128() })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Whether there is none; there always is one.
    pub fn is_empty(&self) -> bool {
        self.store.len() == 0
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
    /// Pairs that get new negatives, and a number for them.
    Pairs(Box<DataSet>, u128),
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
        let mut hash = Xxh3::new();
        for i in 0..set.len() {
            let example = set.get(i)?;
            for text in [Some(&example.query), example.pos.first()].into_iter().flatten() {
                hash.update(text.as_bytes());
                hash.update(b"\0");
            }
        }
        if set.is_empty() {
            bail!("there is no pair to write negatives for");
        }
        Ok(Self::Pairs(Box::new(set), hash.digest128()))
    }

    /// Examples that can be asked for, if that is bounded.
    pub(super) fn most(&self) -> Option<usize> {
        match self {
            Self::Tasks(_) => None,
            Self::Corpus(passages) => Some(passages.len()),
            Self::Pairs(set, _) => Some(set.len()),
        }
    }

    /// The order in which passages and pairs are taken.
    pub(super) fn order(&self, seed: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.most().unwrap_or(0) as u32).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(mixed(&[seed, ORDER])));
        order
    }

    /// A name that is the same for the same material.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Tasks(None) => "tasks".into(),
            Self::Tasks(Some(tasks)) => {
                format!("tasks {:032x}", xxhash_rust::xxh3::xxh3_128(tasks.join("\n").as_bytes()))
            }
            Self::Corpus(passages) => format!("corpus {:032x}", passages.hash),
            Self::Pairs(_, hash) => format!("pairs {hash:032x}"),
        }
    }
}

//! The answers that were paid for, in a file that only grows.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::answer::{Answer, Usage, Used};

/// How long answers may wait for the disk: a lost power supply loses no more.
const SYNC_EVERY: Duration = Duration::from_secs(2);
/// The longest line: an answer is bounded, and so is what a damaged file makes us read.
const LONGEST: u64 = 64 << 20;

/// Answers by the keys of their questions: a JSON line each, written when it comes, so that a process that is
/// killed loses what was being answered and nothing else.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// The file of `pen`, to wait for the disk while others write.
    file: File,
    /// Where the line of a key begins.
    places: HashMap<u128, u64>,
    pen: Pen,
    synced: Instant,
    used: Used,
}

/// What writes into a journal, from whatever thread an answer comes on.
#[derive(Debug, Clone)]
pub(super) struct Pen(Arc<Mutex<End>>);

/// The end of a journal's file.
#[derive(Debug)]
struct End {
    path: PathBuf,
    file: File,
    at: u64,
}

/// A line that is written, for [`Journal::know`].
#[derive(Debug)]
pub(super) struct Written {
    key: u128,
    at: u64,
    pub(super) usage: Usage,
    pub(super) cost: f64,
}

#[derive(Serialize, Deserialize)]
struct Line {
    key: String,
    /// What was asked, for people.
    label: String,
    /// What it cost when it came; later prices change nothing of that.
    #[serde(default, skip_serializing_if = "is_free")]
    cost: f64,
    #[serde(flatten)]
    answer: Answer,
}

fn is_free(cost: &f64) -> bool {
    *cost == 0.0
}

/// What is looked at when a journal is opened.
#[derive(Deserialize)]
struct Head {
    key: String,
    usage: Usage,
    #[serde(default)]
    cost: f64,
}

impl Head {
    /// What a line begins with, and its key; none where it is no answer's.
    fn of(line: &[u8]) -> Option<(Self, u128)> {
        let head: Self = serde_json::from_slice(line).ok()?;
        let key = u128::from_str_radix(&head.key, 16).ok().filter(|_| head.key.len() == 32)?;
        let is_price = head.cost.is_finite() && head.cost >= 0.0;
        is_price.then_some((head, key))
    }
}

impl Journal {
    /// Opens a journal, or begins one. A line that a killed process left unfinished is cut off, unless only its
    /// end is missing.
    ///
    /// # Errors
    /// Unreadable, damaged before its last line, or open elsewhere.
    pub fn open(path: &Path) -> Result<Self> {
        let label = || path.display().to_string();
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path).with_context(label)?;
        if !file.metadata().with_context(label)?.is_file() {
            bail!("{}: is no regular file", label());
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                bail!("{}: another process writes to it; wait until that one is done", label())
            }
            // Where there are no locks, nothing is known, and nothing is wrong.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let shared = file.try_clone().with_context(label)?;
        let end = End { path: path.to_path_buf(), file, at: 0 };
        let mut journal = Self {
            path: path.to_path_buf(),
            file: shared,
            places: HashMap::new(),
            pen: Pen(Arc::new(Mutex::new(end))),
            synced: Instant::now(),
            used: Used::default(),
        };
        journal.read()?;
        Ok(journal)
    }

    /// What writes into it, for another thread.
    pub(super) fn pen(&self) -> Pen {
        self.pen.clone()
    }

    fn read(&mut self) -> Result<()> {
        let label = self.path.display().to_string();
        let mut reader = BufReader::with_capacity(1 << 16, self.file.try_clone()?);
        reader.seek(SeekFrom::Start(0))?;
        let pen = self.pen();
        let mut end = pen.lock();
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            line.clear();
            number += 1;
            let read = (&mut reader)
                .take(LONGEST)
                .read_until(b'\n', &mut line)
                .with_context(|| label.clone())?;
            if read == 0 {
                return Ok(());
            }
            let is_whole = line.last() == Some(&b'\n');
            if !is_whole && read as u64 == LONGEST {
                bail!("{label}:{number}: is longer than any answer; is it the right file?");
            }
            match Head::of(&line) {
                Some((Head { usage, cost, .. }, key)) => {
                    self.know(Written { key, at: end.at, usage, cost });
                    end.at += read as u64;
                }
                None if is_whole => bail!(
                    "{label}:{number}: is no answer that Kiln kept; take the line away, or begin a new folder"
                ),
                None => return end.file.set_len(end.at).with_context(|| label.clone()),
            }
            if !is_whole {
                end.at += 1;
                return end.file.write_all(b"\n").with_context(|| label.clone());
            }
        }
    }

    /// Counts a line.
    pub(super) fn know(&mut self, Written { key, at, usage, cost }: Written) {
        // The first answer counts, so that the same journal always says the same.
        let place = self.places.entry(key).or_insert(at);
        *place = at.min(*place);
        self.used.add(usage, cost);
    }

    /// Number of questions that are answered.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether nothing was answered yet.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// What all answers used.
    pub fn used(&self) -> Used {
        self.used
    }

    /// Whether a question is answered.
    pub fn knows(&self, key: u128) -> bool {
        self.places.contains_key(&key)
    }

    /// The answer to a question.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn get(&self, key: u128) -> Result<Option<Answer>> {
        let Some(&place) = self.places.get(&key) else { return Ok(None) };
        let label = || self.path.display().to_string();
        // Both have one place in the file; a line is written at its end, wherever that is.
        let mut end = self.pen.lock();
        let file = &mut end.file;
        file.seek(SeekFrom::Start(place)).with_context(label)?;
        let mut line = Vec::new();
        BufReader::new(file).take(LONGEST).read_until(b'\n', &mut line).with_context(label)?;
        let line: Line = serde_json::from_slice(&line).with_context(label)?;
        Ok(Some(line.answer))
    }

    /// Keeps an answer, and what it cost.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn keep(&mut self, key: u128, label: &str, answer: &Answer, cost: f64) -> Result<()> {
        let written = self.pen.write(key, label, answer, cost)?;
        self.know(written);
        self.sync_now_and_then()
    }

    /// As [`Journal::sync`], where the last time is long ago.
    ///
    /// # Errors
    /// As [`Journal::sync`].
    pub(super) fn sync_now_and_then(&mut self) -> Result<()> {
        if self.synced.elapsed() > SYNC_EVERY { self.sync() } else { Ok(()) }
    }

    /// Waits until all answers are on the disk.
    ///
    /// # Errors
    /// The disk does not take them.
    pub fn sync(&mut self) -> Result<()> {
        self.synced = Instant::now();
        self.file.sync_data().with_context(|| self.path.display().to_string())
    }
}

impl Pen {
    fn lock(&self) -> std::sync::MutexGuard<'_, End> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an answer, and what it cost.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(
        &self,
        key: u128,
        label: &str,
        answer: &Answer,
        cost: f64,
    ) -> Result<Written> {
        let line =
            Line { key: format!("{key:032x}"), label: label.into(), cost, answer: answer.clone() };
        let mut bytes = serde_json::to_vec(&line)?;
        bytes.push(b'\n');
        let mut end = self.lock();
        let at = end.at;
        if let Err(error) = end.file.write_all(&bytes) {
            // Half a line would make the next one unreadable.
            let _ = end.file.set_len(at);
            return Err(error).with_context(|| end.path.display().to_string());
        }
        end.at += bytes.len() as u64;
        Ok(Written { key, at, usage: answer.usage, cost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Finish;

    fn answer(text: &str) -> Answer {
        let usage = Usage { prompt: 10, completion: 2, estimated: false };
        Answer { text: text.into(), finish: Finish::Stop, usage, model: "m".into() }
    }

    #[test]
    fn answers_outlive_a_cut_line_and_the_first_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answers.jsonl");
        let mut journal = Journal::open(&path).unwrap();
        assert!(
            journal.is_empty()
                && Journal::open(&path).unwrap_err().to_string().contains("another process")
        );
        journal.keep(7, "a", &answer("eins\n\"zwei\" 🚢"), 0.25).unwrap();
        journal.keep(8, "b", &answer("drei"), 0.0).unwrap();
        journal.keep(7, "a", &answer("later"), 0.5).unwrap();
        assert_eq!(journal.get(7).unwrap().unwrap().text, "eins\n\"zwei\" 🚢");
        drop(journal);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let mut journal = Journal::open(&path).unwrap();
        let used = Used { prompt: 20, completion: 4, cost: 0.25 };
        assert_eq!((journal.len(), journal.used()), (2, used));
        journal.keep(9, "c", &answer("vier"), 0.0).unwrap();
        drop(journal);
        // Only its end is missing.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        Journal::open(&path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        let journal = Journal::open(&path).unwrap();
        assert_eq!(journal.get(8).unwrap().unwrap(), answer("drei"));
        assert_eq!(journal.get(9).unwrap().unwrap().text, "vier");
        assert_eq!(journal.get(10).unwrap(), None);
        drop(journal);
        std::fs::write(&path, "{\"key\": \"zz\"}\n").unwrap();
        assert!(Journal::open(&path).unwrap_err().to_string().contains("answers.jsonl:1"));
    }
}

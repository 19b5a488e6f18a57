//! A whole folder to passages: read, cut, given to a split, each text once.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, bail};
use kiln_data::data::text_hash;
use kiln_terminal::interrupt;
use kiln_terminal::terminal::Terminal;
use rayon::prelude::*;
use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

use super::{ChunkRule, Count, Document, Documents, Passage, Shares, Split, Unread, passages};

/// Documents are cut side by side; so many bytes or documents are in memory at once.
const BATCH_BYTES: usize = 8 << 20;
const BATCH_DOCUMENTS: usize = 512;

/// How passages are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatherPlan {
    /// How large they are.
    pub rule: ChunkRule,
    /// How many of the documents are kept back.
    pub shares: Shares,
    /// Which ones.
    pub seed: u64,
}

/// Numbers of the three splits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct BySplit {
    /// For training.
    pub train: usize,
    /// To watch while training.
    pub dev: usize,
    /// To judge by.
    pub test: usize,
}

impl BySplit {
    /// The number of one split.
    pub fn of(&mut self, split: Split) -> &mut usize {
        match split {
            Split::Train => &mut self.train,
            Split::Dev => &mut self.dev,
            Split::Test => &mut self.test,
        }
    }

    /// All together.
    pub fn total(&self) -> usize {
        self.train + self.dev + self.test
    }
}

/// Tokens of passages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TokenCounts {
    /// Of all.
    pub total: u64,
    /// Of one, on average.
    pub mean: f64,
    /// Of the longest.
    pub max: usize,
}

/// What made no passage, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SkippedDocuments {
    /// Passages that another one is, title and text, or whose text another split has.
    pub duplicate_passages: usize,
    /// Passages without a letter or digit.
    pub without_words: usize,
    /// Documents and files without a text.
    pub empty: usize,
    /// Files of other kinds.
    pub other_files: usize,
    /// Links out of the folder or to a folder, and what is no file.
    pub links: usize,
    /// PDF that cannot be read.
    pub unreadable: usize,
}

/// What became of a folder.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Gathered {
    /// Documents, by what they are used for.
    pub documents: BySplit,
    /// Passages.
    pub passages: BySplit,
    /// Their tokens.
    pub tokens: TokenCounts,
    /// What made none.
    pub left_out: SkippedDocuments,
    /// Documents that are word for word another one, title and text; they are used for the same, and their passages are there
    /// once.
    pub duplicate_documents: usize,
    /// What was not read.
    #[serde(skip)]
    pub unread: Unread,
}

/// Makes passages of documents, and hands over those of each document together, in order.
///
/// A document is used for what its name and the seed say; one that is word for word an earlier one, for what
/// that one is. Passages of one title and text are one, and stay where they came first. A text stays in the split
/// in which it came first, whatever the titles, so that nothing that is tested was trained on.
///
/// # Errors
/// A document that cannot be read, no text in any of them, errors of `count` and of `each`, or Ctrl-C.
pub fn gather(
    documents: &mut Documents,
    plan: &GatherPlan,
    count: &Count<'_>,
    terminal: Terminal,
    each: &mut dyn FnMut(Vec<Passage>) -> Result<()>,
) -> Result<Gathered> {
    plan.rule.check()?;
    let counter = terminal.counter("passages");
    let count = |text: &str| -> Result<usize> {
        match interrupt::asked() {
            true => Err(kiln_embed::Error::Cancelled.into()),
            false => count(text),
        }
    };
    let mut gathered = Gathered::default();
    let mut splits: HashMap<u128, Split> = HashMap::new();
    let mut seen = Seen::default();
    loop {
        let batch = batch(documents)?;
        if batch.is_empty() {
            break;
        }
        let cut = batch.par_iter().map(|document| passages(document, &plan.rule, &count));
        let cut: Vec<Vec<Passage>> = cut.collect::<Result<_>>()?;
        for (document, mut passages) in batch.iter().zip(cut) {
            let own = plan.shares.split(plan.seed, &document.name);
            let known = splits.len();
            let split = *splits.entry(content(document)).or_insert(own);
            gathered.duplicate_documents += usize::from(splits.len() == known);
            *gathered.documents.of(split) += 1;
            passages.retain_mut(|passage| {
                passage.split = split;
                let words = passage.text.contains(char::is_alphanumeric);
                let first = words && seen.insert(passage);
                gathered.left_out.without_words += usize::from(!words);
                gathered.left_out.duplicate_passages += usize::from(words && !first);
                first
            });
            *gathered.passages.of(split) += passages.len();
            for passage in &passages {
                gathered.tokens.total += passage.tokens as u64;
                gathered.tokens.max = gathered.tokens.max.max(passage.tokens);
            }
            counter.inc(passages.len() as u64);
            if !passages.is_empty() {
                each(passages)?;
            }
        }
    }
    counter.finish_and_clear();
    let total = gathered.passages.total();
    if total == 0 {
        bail!("the documents hold no text; name a folder with texts in it");
    }
    gathered.tokens.mean = gathered.tokens.total as f64 / total as f64;
    gathered.unread = documents.unread().clone();
    gathered.left_out.empty = gathered.unread.empty;
    gathered.left_out.links = gathered.unread.links;
    gathered.left_out.unreadable = gathered.unread.unreadable.len();
    gathered.left_out.other_files = gathered.unread.endings.values().sum();
    Ok(gathered)
}

/// The passages that were kept.
#[derive(Default)]
struct Seen {
    /// What is embedded of each.
    embedded: HashSet<u128>,
    /// The split that each text is in.
    splits: HashMap<u128, Split>,
}

impl Seen {
    /// Adds a passage, unless it is there or its text is in another split.
    fn insert(&mut self, passage: &Passage) -> bool {
        let split = *self.splits.entry(text_hash(&passage.text)).or_insert(passage.split);
        split == passage.split && self.embedded.insert(text_hash(&passage.embedded()))
    }
}

/// The next documents.
fn batch(documents: &mut Documents) -> Result<Vec<Document>> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    while bytes < BATCH_BYTES && batch.len() < BATCH_DOCUMENTS {
        let Some(document) = documents.next().transpose()? else { break };
        bytes += document.sections.iter().map(|section| section.text.len()).sum::<usize>();
        batch.push(document);
    }
    Ok(batch)
}

/// A hash of what a document says, its title with it.
fn content(document: &Document) -> u128 {
    let sections = document.sections.iter();
    let parts = sections.flat_map(|section| section.heading.iter().chain([&section.text]));
    let mut hash = Xxh3::new();
    for part in [&document.title].into_iter().chain(parts) {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.digest128()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::Section;

    fn run(folder: &std::path::Path, shares: &str, seed: u64) -> (Gathered, Vec<Vec<Passage>>) {
        let plan = GatherPlan {
            rule: ChunkRule { min_tokens: 1, ..ChunkRule::default() },
            shares: shares.parse().unwrap(),
            seed,
        };
        let count = |text: &str| Ok(text.split_whitespace().count());
        let terminal = Terminal { json: false, quiet: true };
        let mut all = Vec::new();
        let mut documents = Documents::open(folder).unwrap();
        let gathered = gather(&mut documents, &plan, &count, terminal, &mut |passages| {
            all.push(passages);
            Ok(())
        });
        (gathered.unwrap(), all)
    }

    #[test]
    fn documents_stay_together_and_doubles_with_their_first() {
        let folder = tempfile::tempdir().unwrap();
        for n in 0..60 {
            // Every third is the same as the one before it but for its name.
            let text = format!(
                "# On {0}\n\nNumber {0} is there.\n\n## More\n\nAll have this.\n",
                n - n % 3 / 2
            );
            std::fs::write(folder.path().join(format!("{n:02}.md")), text).unwrap();
        }
        std::fs::write(folder.path().join("signs.txt"), "=== ***").unwrap();
        std::fs::write(folder.path().join("x.bin"), "x").unwrap();
        let (gathered, all) = run(folder.path(), "0.5,0.25,0.25", 1);
        assert_eq!(gathered.documents.total(), 61);
        assert_eq!(gathered.duplicate_documents, 20);
        assert_eq!(gathered.left_out.without_words, 1);
        assert_eq!(gathered.left_out.other_files, 1);
        // A double has nothing; the common text stands below each title of the split in which it came first.
        let common: Vec<&Passage> =
            all.iter().flatten().filter(|passage| passage.text == "All have this.").collect();
        assert!(common.len() > 1 && common.iter().all(|one| one.split == common[0].split));
        assert_eq!((all.len(), gathered.passages.total()), (40, 40 + common.len()));
        assert_eq!(gathered.left_out.duplicate_passages, 80 - common.len());
        let mut counts = gathered.passages;
        assert!(counts.train > counts.dev && counts.dev > 0 && *counts.of(Split::Test) > 0);
        assert_eq!(
            (gathered.tokens.max, gathered.tokens.mean > 5.0),
            (7, true),
            "{:?}",
            gathered.tokens
        );
        for passages in &all {
            assert!(passages.iter().all(|passage| passage.split == passages[0].split));
        }
        // The same again, whatever else is there.
        assert_eq!(run(folder.path(), "0.5,0.25,0.25", 1).1, all);
        assert_ne!(run(folder.path(), "0.5,0.25,0.25", 2).1, all);
    }

    #[test]
    fn a_text_is_in_one_split_and_there_below_each_title() {
        let passage = |title: &str, text: &str, split| Passage {
            title: title.into(),
            text: text.into(),
            split,
            ..Passage::default()
        };
        let mut seen = Seen::default();
        let all = [
            (passage("A", "same", Split::Train), true),
            (passage("B", "same", Split::Train), true),
            (passage("A", "same", Split::Train), false),
            (passage("C", "same", Split::Test), false),
            (passage("C", "other", Split::Test), true),
            (passage("D", "other", Split::Train), false),
        ];
        for (passage, stays) in all {
            assert_eq!(seen.insert(&passage), stays, "{passage:?}");
        }
        let titled = |title: &str| {
            let sections = vec![Section { text: "same".into(), ..Section::default() }];
            content(&Document { title: title.into(), sections, ..Document::default() })
        };
        assert_eq!(titled("A"), titled("A"));
        assert_ne!(titled("A"), titled("B"));
    }
}

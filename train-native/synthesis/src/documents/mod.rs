//! Documents of people to passages of at most so many tokens.
//!
//! `read -> (plain, markdown, html, pdf, rows) -> block -> outline -> chunk -> gather`: a folder is read document after
//! document, each becomes sections with their headings, sections become passages, and passages are given
//! to train, dev or test by their document. [`structure_pairs`] makes training pairs of them without an LLM.

mod block;
mod borders;
mod chunk;
mod gather;
mod html;
mod markdown;
mod outline;
mod passage;
#[cfg(feature = "pdf")]
mod pdf;
mod plain;
mod read;
mod rows;
mod split;
mod structure;

pub use chunk::{ChunkRule, Count, passages};
pub use gather::{BySplit, GatherPlan, Gathered, SkippedDocuments, TokenCounts, gather};
pub use passage::{Passage, by_document, read_passages};
pub use read::{Documents, Unread};
pub use split::{Shares, Split};
pub use structure::{Pair, PairOrigin, structure_pairs};

/// A document as it was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// Its path below the folder, with `/` between the parts; of a row `file:id`. Control characters are
    /// written out (`\n`). No other document of a folder has it.
    pub name: String,
    /// What it is called; empty where it does not say.
    pub title: String,
    /// Where it came from, as it says itself: an address.
    pub origin: Option<String>,
    /// Under which licence it is, as it says itself.
    pub licence: Option<String>,
    /// Its text, in order. None is empty.
    pub sections: Vec<Section>,
}

/// Text below one heading, up to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// The headings above the text, outermost first, without the document's title.
    pub heading: Vec<String>,
    /// The text: paragraphs with an empty line between them.
    pub text: String,
}

/// What a document's own header says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Facts {
    title: Option<String>,
    origin: Option<String>,
    licence: Option<String>,
}

impl Facts {
    /// Keeps a value by the name that people give it; the first of a kind counts.
    fn note(&mut self, name: &str, value: &str) {
        let value = value.trim();
        let place = match name.trim().to_ascii_lowercase().as_str() {
            "title" => &mut self.title,
            "licence" | "license" => &mut self.licence,
            "url" | "source" | "origin" | "canonical" => &mut self.origin,
            _ => return,
        };
        if place.is_none() && !value.is_empty() {
            *place = Some(value.to_string());
        }
    }
}

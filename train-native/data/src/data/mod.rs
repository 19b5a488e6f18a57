//! Training data: file formats, conversions, filters, and how batches are drawn.
//!
//! `rows of a file -> format -> convert -> filter -> Store on disk -> Sampler -> Batch`

#[cfg(feature = "files")]
mod beir;
#[cfg(feature = "files")]
mod convert;
#[cfg(feature = "files")]
pub mod corpus;
#[cfg(feature = "files")]
mod dataset;
#[cfg(feature = "files")]
mod edit;
mod example;
mod examples;
#[cfg(feature = "files")]
mod format;
#[cfg(feature = "files")]
mod intake;
mod known;
#[cfg(feature = "files")]
mod leak;
mod levels;
pub mod negatives;
mod prompts;
mod sampler;
#[cfg(feature = "files")]
mod store;

pub use example::Example;
pub use examples::{Examples, MemorySet};
pub use kiln_embed::seed::mixed;
pub use known::{KnownPositives, text_key};
pub use prompts::ModelPrompts;
pub use sampler::{Batch, Sampler, SamplerState, Text};
#[cfg(feature = "files")]
pub use {
    beir::{BeirFiles, BeirFolder, MOST_GRADE, qrels_file, qrels_splits},
    dataset::DataSet,
    edit::{Edit, Part},
    format::{DataRow, FIRST_TEXT, Fields, PAIR_SCORE, RowFormat, SECOND_TEXT},
    intake::{Counts, OnBadRow, Opening},
    leak::LeakFilter,
    store::{Store, StoreWriter},
};

/// A number for a text that is the same for the same text, whatever its case and outer space.
pub fn text_hash(text: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(text.trim().to_lowercase().as_bytes())
}

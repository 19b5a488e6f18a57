//! Training data: file formats, conversions, filters, and how batches are drawn.
//!
//! `rows of a file -> format -> convert -> filter -> Store on disk -> Sampler -> Batch`

mod beir;
mod convert;
pub mod corpus;
mod dataset;
mod edit;
mod example;
mod format;
mod intake;
mod known;
mod leak;
mod levels;
mod prompts;
mod sampler;
mod store;

pub use beir::{BeirFiles, BeirFolder, MOST_GRADE, qrels_file, qrels_splits};
pub use dataset::DataSet;
pub use edit::{Edit, Part};
pub use example::Example;
pub use format::{DataRow, FIRST_TEXT, Fields, PAIR_SCORE, RowFormat, SECOND_TEXT};
pub use intake::{Counts, OnBadRow, Opening};
pub use known::{KnownPositives, text_key};
pub use leak::LeakFilter;
pub use prompts::ModelPrompts;
pub use sampler::{Batch, Sampler, SamplerState, Text};
pub use store::{Store, StoreWriter};

/// A number for a text that is the same for the same text, whatever its case and outer space.
pub fn text_hash(text: &str) -> u128 {
    xxhash_rust::xxh3::xxh3_128(text.trim().to_lowercase().as_bytes())
}

/// A seed from several numbers, the same for the same numbers in the same order.
pub fn mixed(numbers: &[u64]) -> u64 {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

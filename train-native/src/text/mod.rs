//! Texts in files: one reader for each format, chosen by the file's name.

mod reader;

pub use reader::{Columns, Format, Object, Record, Stream, TextFile, Unreadable};

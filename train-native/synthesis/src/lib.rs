//! The data engine: documents, an LLM's examples, filters.

pub mod documents;

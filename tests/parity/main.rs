//! Our numbers against those of the reference implementations, on every device there is.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod attention;
mod batches;
mod blocks;
mod checkpoints;
mod compression;
#[path = "../fuzz/replay.rs"]
mod corpus;
mod embedders;
mod experts;
mod families;
mod gradients;
mod kernels;
mod losses;
mod metrics;
mod minilm;
mod named_models;
mod pooling;
mod rerankers;
mod settings;
mod static_embeddings;
mod tokenizer_kinds;
mod upstream;

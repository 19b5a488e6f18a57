//! The binary as a user runs it: every command on real files, bad input, Ctrl-C, and what
//! sentence-transformers makes of a saved model.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod adapt;
mod adapters;
mod analyze;
mod bad_input;
#[path = "../llm/mod.rs"]
#[allow(dead_code, unused_imports)]
mod chat;
mod chunk;
mod commands;
mod compat;
mod compress;
mod cross_encoders;
mod data;
mod embedding_gemma2;
mod eval;
mod experts;
mod gguf;
mod harness;
mod hosts;
mod hub;
mod index;
mod mining;
#[path = "../harness/named_models.rs"]
#[allow(dead_code, unreachable_pub)]
mod named;
mod named_models;
mod objectives;
mod peers;
#[path = "../harness/proxy.rs"]
mod proxy;
mod recipes;
mod refine;
mod rerank;
mod scores;
mod serve;
mod server;
mod shards;
mod sweep;
mod synthesize;
mod tasks;
mod terminal;
mod traces;
mod training;

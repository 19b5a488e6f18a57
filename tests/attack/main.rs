//! Kiln under attack: a hostile Hub, hostile files and hostile clients, all on loopback and bounded.
//!
//! Every test ends in the same place: one line of error or the right answer, and nothing of the
//! user's touched.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs, unreachable_pub)]

mod bombs;
#[path = "../llm/mod.rs"]
#[allow(dead_code, unused_imports)]
mod chat;
mod folders;
#[path = "../cli/harness.rs"]
#[allow(dead_code)]
mod harness;
mod hub;
mod llm;
mod power;
mod readers;
mod serve;
mod tokenizers;

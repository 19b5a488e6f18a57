//! The binary as a user runs it: every command on real files, bad input, Ctrl-C, and what
//! sentence-transformers makes of a saved model.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod adapters;
mod bad_input;
mod commands;
mod data;
mod harness;
mod hub;
mod mining;
mod peers;
mod recipes;
mod sweep;
mod training;

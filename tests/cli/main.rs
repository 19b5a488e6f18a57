//! The binary as a user runs it: every command on real files, bad input, Ctrl-C, and what
//! sentence-transformers makes of a saved model.

mod bad_input;
mod commands;
mod harness;
mod peers;
mod training;

//! What a command says, and how it is asked to stop: the lowest of Kiln's crates.

pub mod interrupt;
pub mod terminal;

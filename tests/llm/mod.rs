//! Language models for tests: a real small one, and one of ours that answers as a test wants.

mod fake;
mod real;
mod run;
mod text;

pub(crate) use fake::{Fake, Reply, Request, Then, answer};
pub(crate) use real::Real;
pub(crate) use run::{
    KEY, Running, TYPES, answers, lines, no_key_below, no_key_in, rejected, rows, summary,
    synthesize,
};

//! Language models for tests: a real small one, and one of ours that answers as a test wants.

mod fake;
mod real;
mod text;

pub(crate) use fake::{Fake, Reply, Request, Then, answer};
pub(crate) use real::Real;

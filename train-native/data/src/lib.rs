//! Files of texts and vectors, recipes, and training data. No backend is named here, so that a change
//! is compiled in seconds.
//!
//! `text, vectors -> recipe -> data`: each knows those before it alone.

pub mod data;
pub mod recipe;
pub mod text;
pub mod vectors;

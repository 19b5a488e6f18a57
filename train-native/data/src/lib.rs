//! Files of texts and vectors, recipes, and training data. No backend is named here, so that a change
//! is compiled in seconds.
//!
//! `text, vectors -> recipe -> data`: each knows those before it alone. Without the feature `files` there is no file, and
//! what remains runs in a page too: recipes, examples in memory, and the sampler.

pub mod data;
pub mod recipe;
#[cfg(feature = "files")]
pub mod text;
#[cfg(feature = "files")]
pub mod vectors;

//! The data engine: from documents, or from nothing but a task, to training data.
//!
//! `documents, prompts -> llm -> synthesize -> refine`: no backend and no model is named here, so that a change is
//! compiled in seconds.

pub mod documents;
pub mod language;
pub mod llm;
pub mod prompts;
pub mod refine;
pub mod synthesize;
pub mod words;

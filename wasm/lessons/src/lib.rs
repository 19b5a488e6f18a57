//! Teaching an embedder from a few lessons, where the texts are: LoRA adapters on its projections, trained by
//! the steps that `kiln train` takes ([`kiln_embed::train`]), over batches that its sampler draws.
//!
//! ```text
//! lessons --Split--> taught --Sampler--> batch --BatchPass--> gradients --Optimizer--> adapters
//!                \-> held back, and never taught: is the model better on them than before?
//! ```
//!
//! Nothing here knows a page: `kiln-wasm` hands it what JavaScript asks for.

mod check;
mod lessons;
mod state;
mod trainer;

pub use check::{Check, Score};
pub use lessons::{Lessons, Split};
pub use state::State;
pub use trainer::{AdapterSettings, Outcome, Phase, Plan, Point, Trainer};

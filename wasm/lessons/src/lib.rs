//! Teaching an embedder from a few lessons, where the texts are: LoRA adapters on its projections, or a residual
//! adapter of its vectors, trained by the steps that `kiln train` takes ([`kiln_embed::train`]), over batches that its
//! sampler draws.
//!
//! ```text
//! lessons --Split--> taught --Sampler--> batch --BatchPass--> gradients --Optimizer--> adapters
//!                \-> held back, and never taught: is the model better on them than before?
//! ```
//!
//! Nothing here knows a page: `kiln-wasm` hands it what JavaScript asks for.

mod check;
mod known;
mod lessons;
mod mined;
mod progress;
mod settings;
mod state;
mod trainer;

pub use check::{Check, Score};
pub use lessons::{Lessons, Split};
pub use mined::{Found, Mine, mined};
pub use progress::{Outcome, Phase, Point};
pub use settings::{AdapterKind, AdapterSettings, TeachingPlan};
pub use state::State;
pub use trainer::Trainer;

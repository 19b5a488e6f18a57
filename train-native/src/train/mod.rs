//! Training: one readable loop, whatever the recipe.

mod build;
mod checkpoint;
mod gradients;
mod run;
mod telemetry;

pub use build::{base_model, new_model, train_tokenizer};
pub use checkpoint::{Checkpoint, Position};
pub use run::{Outcome, Plan, train};
pub use telemetry::{Point, Telemetry};

//! From a trained model to the file that a page downloads: pruning, quantization, export.
//!
//! Calibrated methods go through the model block by block ([`Calibration::walk`]): what reaches each
//! projection is summed up, the projections are changed, and the next block sees what the changed
//! ones give.

mod calibration;
mod export;
mod gguf;
mod gptq;
mod linear_algebra;
mod plan;
mod prune;
mod quantize;

pub use calibration::Calibration;
pub use export::{Exported, ExportedReranker, check_export, export, sealed, sealed_reranker};
pub use gguf::{ImportLine, ImportedModel, import_gguf};
pub use gptq::{Gptq, gptq};
pub use plan::{Storage, StoragePlan};
pub use prune::{Pattern, PruneMethod, Pruned, prune, prune_weights};
pub use quantize::{Quantization, QuantizedModel, TensorLine, quantize, quantize_reranker};

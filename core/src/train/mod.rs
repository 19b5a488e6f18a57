//! A step of training, whatever draws its batches and whatever becomes of the model: natively a recipe's
//! stages, in the page a visitor's lessons.
//!
//! ```text
//! texts -> chunks -> vectors -> loss -> gradients of each chunk -> sum, clip -> optimizer
//! ```

mod settings;

#[cfg(feature = "autodiff")]
mod block_pass;
#[cfg(feature = "autodiff")]
mod chunks;
#[cfg(feature = "autodiff")]
mod gradients;
#[cfg(feature = "autodiff")]
mod late;
#[cfg(feature = "autodiff")]
mod optimizer;
#[cfg(feature = "autodiff")]
mod pass;
#[cfg(feature = "autodiff")]
mod saved;
#[cfg(feature = "autodiff")]
mod train_model;

pub use settings::{OptimizerKind, Schedule};

#[cfg(feature = "autodiff")]
pub use self::{
    block_pass::{BlockPass, Gathered},
    chunks::{
        Backward, CPU_CHUNK_TOKENS, Chunk, ChunkForward, ChunkRunner, ChunkSize, Graph, Kept,
        StatesLoss, StatesOf, chunks, columns, encode,
    },
    gradients::{add, clip_norm, map, norm, partition},
    late::{Coming, Late},
    optimizer::{Optimizer, state_bytes},
    pass::{BatchGradients, BatchPass, projection_pass},
    saved::{SavedParameters, put_parameters},
    train_model::{
        ParameterInfo, ParameterPath, TrainModel, Trains, parameters, set_trainable, sizes,
    },
};

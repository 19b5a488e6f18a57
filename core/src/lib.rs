#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! Data flows one way, and each step is one module:
//!
//! ```text
//! text --tokenizer--> Tokens --model--> States --pooling--> vectors --loss--> gradient
//!                                                  \--Explanation--> pictures
//! ```
//!
//! * [`config`] holds [`config::ModelConfig`], the shape of a model;
//! * [`tokenizer`] turns texts (with a prompt) into token batches;
//! * [`kernels`] is what the models compute beyond Burn's own operations, for each kind of device,
//!   and [`quant`] few-bit weights;
//! * [`model`] holds the one configurable encoder, the one configurable decoder, and what each family
//!   calls things;
//! * [`pooling`] turns token states into one vector a text, and explains how;
//! * [`loss`] holds the training losses;
//! * [`checkpoint`] reads and writes safetensors and the sentence-transformers layout;
//! * [`embedder`] joins all of it: texts in, vectors out;
//! * [`reranker`] is the cross-encoder: a query and a text in, a score out;
//! * [`explanation`] says why a text got its vector, and what other pooling heads look at;
//! * [`index`] is exact top-k search over vectors;
//! * [`train`] is a step of training: the passes of a batch, its gradients, the optimizer (feature `autodiff`).

pub mod checkpoint;
pub mod config;
pub mod embedder;
mod error;
pub mod explanation;
mod folder;
pub mod index;
pub mod kernels;
pub mod loss;
pub mod model;
mod parallel;
pub mod pooling;
pub mod quant;
pub mod reranker;
pub mod seed;
pub mod tokenizer;
pub mod train;

pub use config::ModelConfig;
#[cfg(not(feature = "flex"))]
pub use embedder::Embedder;
pub use embedder::{EmbedOptions, EmbeddingModel, Progress, Prompt};
pub use error::{Error, Result, TensorReport};
pub use explanation::TextExplanation;
pub use index::{Hit, Index, IndexPrecision};
pub use pooling::PoolingConfig;
pub use reranker::{Ranked, Reranker};

/// A model with its tokenizer and prompts; on the CPU where no backend is named.
#[cfg(feature = "flex")]
pub type Embedder<B = burn::backend::Flex> = embedder::Embedder<B>;

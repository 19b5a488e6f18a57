//! Checkpoints: safetensors, weight names, and the sentence-transformers folder layout.

mod folder;
pub(crate) mod names;
mod parameters;
mod peft;
mod safetensors;
mod sentence_transformers;

#[cfg(not(target_arch = "wasm32"))]
pub use folder::{Directory, write_directory};
pub use folder::{Files, Folder, ReadSeek, read_text};
pub use parameters::{load_backbone, save_backbone};
pub use peft::{load_adapters, save_adapters};
pub use safetensors::{TensorInfo, Weights, write_safetensors};
pub use sentence_transformers::{
    LoadOptions, SavedModel, load, load_pooling, read_architecture, save, tokenizer_config_file,
};

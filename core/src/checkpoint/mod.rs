//! Checkpoints: safetensors, weight names, and the sentence-transformers folder layout.

mod folder;
mod kiln_file;
mod manifest;
pub(crate) mod names;
mod parameters;
mod peft;
mod safetensors;
mod sentence_transformers;
#[cfg(not(target_arch = "wasm32"))]
mod write;

#[cfg(not(target_arch = "wasm32"))]
pub use folder::{Directory, open_folder};
pub use folder::{Files, Folder, ReadSeek, read_text, stays_inside};
pub use kiln_file::{KILN_MAGIC, KilnFile, write_kiln_file};
pub use manifest::{FORMAT_VERSION, FileSum, MANIFEST, Manifest, SelfTest};
pub use parameters::load_backbone;
pub use peft::{load_adapters, save_adapters};
pub use safetensors::{StoredTensor, TensorInfo, Weights, write_safetensors, write_tensors};
pub use sentence_transformers::{
    LoadOptions, SavedModel, load, load_pooling, read_embedder_config, save, save_as,
    tokenizer_config_file,
};
#[cfg(not(target_arch = "wasm32"))]
pub use write::{Existing, SUMS, Sums, check_target, write_directory};

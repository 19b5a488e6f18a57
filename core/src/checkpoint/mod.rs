//! Checkpoints: safetensors, PyTorch files, PEFT's adapters and those of vectors, the sentence-transformers folder layout, and exported
//! models (`kiln.json`, `.kiln`). The tensor names of each family are in `model::families`.

mod adapter_base;
mod header;
mod kiln_file;
mod manifest;
mod open;
mod parameters;
mod peft;
mod pytorch;
mod safetensors;
mod score_test;
mod sentence_transformers;
mod task_adapters;
mod vector_adapter;
mod weights;
#[cfg(not(target_arch = "wasm32"))]
mod write;

pub use crate::embedder::SelfTest;
#[cfg(not(target_arch = "wasm32"))]
pub use crate::folder::Directory;
pub use crate::folder::{Files, Folder, ReadSeek, read_text, stays_inside};
pub use adapter_base::{AdapterBase, safetensors_metadata};
pub use kiln_file::{KILN_MAGIC, KilnFile, write_kiln_file};
pub use manifest::{FORMAT_VERSION, FileSum, MANIFEST, Manifest};
#[cfg(not(target_arch = "wasm32"))]
pub use open::open_folder;
pub use parameters::load_backbone;
pub(crate) use parameters::{each_tensor, fill, save_backbone};
pub use peft::{adapts_tables, load_adapters, lora_base, save_adapters};
pub use safetensors::{StoredTensor, write_safetensors, write_tensors};
pub use score_test::ScoreTest;
pub(crate) use sentence_transformers::{
    KeptScore, LogitScore, ReadFolder, answers, check_head, has_logit_score, kept_score_files,
    logit_score_files, pools, read_activation, read_folder, read_kept_score, read_logit_score,
    read_prompts, read_transformer, read_transformer_shape,
};
pub use sentence_transformers::{
    LoadOptions, SavedModel, TRANSFORMER_CONFIGS, is_reranker, load, load_pooling, load_tokenizer,
    read_embedder_config, save, save_as, tokenizer_config_file,
};
pub use task_adapters::{has_task_adapters, task_adapter, task_names};
pub use vector_adapter::{
    adapted_fingerprint, is_adapted, is_vector_adapter, load_adapted, load_vector_adapter,
    save_vector_adapter,
};
pub use weights::{TensorInfo, Weights};
#[cfg(not(target_arch = "wasm32"))]
pub use write::{Existing, NewDirectory, SUMS, Sums, check_target, write_directory};

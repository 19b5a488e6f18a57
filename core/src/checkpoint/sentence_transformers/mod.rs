//! The sentence-transformers folder layout, read and written.
//!
//! `modules.json` lists transformer, pooling, dense and normalize modules; a plain Hugging Face
//! folder without it is mean-pooled, one of a language model (`..ForCausalLM`) by its last token, as
//! sentence-transformers 6 does. Heads that sentence-transformers does not have are written with the module type `kiln.Pooling` and
//! their weights in `1_Pooling/model.safetensors` under NV-Embed's released names.

mod calls;
mod logit_score;
mod read;
mod write;

use crate::folder::Files;
use crate::model::families::Names;
use crate::pooling::PoolingConfig;

pub(crate) use logit_score::{
    KeptScore, LogitScore, has_logit_score, kept_score_files, logit_score_files, read_kept_score,
    read_logit_score,
};
pub use read::{
    LoadOptions, TRANSFORMER_CONFIGS, is_reranker, load, load_pooling, load_tokenizer,
    read_embedder_config,
};
pub(crate) use read::{
    ReadFolder, answers, check_head, pools, read_activation, read_dense, read_folder, read_json,
    read_prompts, read_transformer, read_transformer_shape,
};
pub(crate) use write::dense_value;
pub use write::{save, save_as, tokenizer_config_file};

/// A model as files, ready to be written.
pub type SavedModel = Files;

/// Tensor names of a head with parameters, as in NV-Embed's release.
fn head_names() -> Names {
    Names::new(&[""], "latents")
        .tensor("block.latents", "latents")
        .tensor("block.layer_embedding", "layer_embedding")
        .norm("block.attention.norm", "cross_attend_blocks.0.norm")
        .norm("block.attention.norm_context", "cross_attend_blocks.0.norm_context")
        .linear("block.attention.to_q", "cross_attend_blocks.0.fn.to_q")
        .linear("block.attention.to_kv", "cross_attend_blocks.0.fn.to_kv")
        .linear("block.attention.to_out", "cross_attend_blocks.0.fn.to_out")
        .norm("block.feed_forward.norm", "cross_attend_blocks.1.norm")
        .linear("block.feed_forward.up", "cross_attend_blocks.1.fn.net.0")
        .linear("block.feed_forward.down", "cross_attend_blocks.1.fn.net.2")
}

/// Tensor names of a dense projection.
fn dense_names() -> Names {
    Names::new(&[""], "linear.weight").linear("linear", "linear")
}

/// sentence-transformers' flags for the heads that both have.
const MODES: [(&str, &str, PoolingConfig); 4] = [
    ("pooling_mode_cls_token", "cls", PoolingConfig::Cls),
    ("pooling_mode_mean_tokens", "mean", PoolingConfig::Mean),
    ("pooling_mode_weightedmean_tokens", "weightedmean", PoolingConfig::WeightedMean),
    ("pooling_mode_lasttoken", "lasttoken", PoolingConfig::LastToken),
];

/// Key of `config_sentence_transformers.json` for what sentence-transformers has no word for: which of an
/// instruction's tokens are pooled, where neither all nor none are.
const INSTRUCTION: &str = "kiln_instruction";

/// Key of the same file for how an instruction becomes the prompt of a query, for which sentence-transformers has no word
/// either.
const INSTRUCTION_FORMAT: &str = "kiln_instruction_format";

/// Key of a static embedding's `config.json`: whether unknown tokens are left out, as model2vec does.
const DROPS_UNKNOWN: &str = "drop_unknown";

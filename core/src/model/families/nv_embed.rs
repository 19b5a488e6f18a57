//! NV-Embed (arXiv:2405.17428): `config.json` wraps a Mistral under `text_config`, which attends in
//! both directions (section 3.1). `checkpoint::sentence_transformers` reads its latent-attention head.

use super::mistral;
use crate::Result;
use crate::config::{AttentionMode, Keys, ModelConfig, bad_config};

/// The release's `model_type`.
pub(crate) const MODEL_TYPE: &str = "nvembed";

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let inner =
        keys.get("text_config").ok_or_else(|| bad_config("the key text_config is missing"))?;
    let mut config = mistral::read(&Keys::new(inner)?)?;
    config.attention = AttentionMode::Bidirectional;
    Ok(config)
}

//! RoBERTa (arXiv:1907.11692) and XLM-RoBERTa (arXiv:1911.02116): as BERT, but fairseq counts
//! positions from the one after the padding id.

use serde_json::Value;

use super::encoder::{self, Traits};
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(family: Family, keys: &Keys<'_>) -> Result<ModelConfig> {
    encoder::read(
        keys,
        &Traits { family, default_pad: 1, position_offset: |pad| pad.saturating_add(1) },
    )
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let class = match config.family {
        Family::XlmRoberta => "XLMRobertaModel",
        _ => "RobertaModel",
    };
    encoder::write(config, class)
}

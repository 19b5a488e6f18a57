//! RoBERTa (arXiv:1907.11692), XLM-RoBERTa (arXiv:1911.02116) and CamemBERT (arXiv:1911.03894): as BERT, but
//! fairseq counts positions from the one after the padding id.

use serde_json::Value;

use super::encoder::{self, Traits};
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(family: Family, keys: &Keys<'_>) -> Result<ModelConfig> {
    let traits = Traits {
        family,
        default_pad: 1,
        position_offset: encoder::after_padding,
        default_types: 2,
    };
    encoder::read(keys, &traits)
}

pub(super) fn write(config: &ModelConfig) -> Value {
    let class = match config.family {
        Family::XlmRoberta => "XLMRobertaModel",
        Family::Camembert => "CamembertModel",
        _ => "RobertaModel",
    };
    encoder::write(config, class)
}

//! BERT (arXiv:1810.04805): positions count from 0.

use serde_json::Value;

use super::encoder::{self, Traits};
use super::jina_bert;
use crate::Result;
use crate::config::{Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    if jina_bert::is(keys) {
        return jina_bert::read(keys);
    }
    let traits =
        Traits { family: Family::Bert, default_pad: 0, position_offset: |_| 0, default_types: 2 };
    encoder::read(keys, &traits)
}

pub(super) fn write(config: &ModelConfig) -> Value {
    encoder::write(config, "BertModel")
}

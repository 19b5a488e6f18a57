//! XLM-RoBERTa-XL and -XXL (arXiv:2105.00572): RoBERTa's positions; norms before attention and feed-forward and one at
//! the end, in the place of those of the embeddings and after each residual sum.

use serde_json::Value;

use super::Names;
use super::encoder::{self, Traits};
use crate::Result;
use crate::config::{EncoderConfig, Family, Keys, ModelConfig};

pub(super) fn read(keys: &Keys<'_>) -> Result<ModelConfig> {
    let traits = Traits {
        family: Family::XlmRobertaXl,
        default_pad: 1,
        position_offset: encoder::after_padding,
        default_types: 1,
    };
    let config = encoder::read(keys, &traits)?;
    let config = ModelConfig { norm_eps: keys.float_or("layer_norm_eps", 1e-5)?, ..config };
    let part = encoder::part(&config);
    Ok(encoder::with(config, EncoderConfig { embedding_norm: false, pre_norm: true, ..part }))
}

pub(super) fn write(config: &ModelConfig) -> Value {
    encoder::write(config, "XLMRobertaXLModel")
}

pub(super) fn names(config: &ModelConfig) -> Names {
    encoder::bert_projections(config, &["", "roberta.", "model."])
        .norm("blocks.{}.attention_norm", "encoder.layer.{}.attention.self_attn_layer_norm")
        .linear("blocks.{}.feed_forward.up", "encoder.layer.{}.intermediate.dense")
        .linear("blocks.{}.feed_forward.down", "encoder.layer.{}.output.dense")
        .norm("blocks.{}.feed_forward_norm", "encoder.layer.{}.LayerNorm")
        .norm("final_norm", "encoder.LayerNorm")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_block_may_come_first() {
        let value = serde_json::json!({
            "model_type": "xlm-roberta-xl", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 3, "num_attention_heads": 2, "max_position_embeddings": 8,
        });
        let config = ModelConfig::from_value(&value).unwrap();
        assert_eq!((config.norm_eps, config.max_positions), (1e-5, 6));
        assert_eq!(config.keep_layers(&[2, 0]).unwrap().num_layers, 2);
    }
}

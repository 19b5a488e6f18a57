//! Model families: which keys of `config.json` and which tensor names each has, one small file a
//! family, and the dispatch from `model_type` to them.
//!
//! `encoder`, `rotary_encoder` and `decoder` hold what the BERT and the Llama descendants share, `rope` the
//! keys of rotary positions, `windows` those of the layers that have one, `modules` what LoRA calls projections; [`mod@names`] is the table of tensor names
//! that loading and saving both read.

mod bert;
mod decoder;
mod distilbert;
mod embedding_gemma2;
mod encoder;
mod eurobert;
mod gemma;
mod gemma3;
mod gte;
mod jina_bert;
mod jina_embeddings_v3;
pub(crate) mod jina_embeddings_v5;
mod llama;
mod mistral;
mod modernbert;
mod modules;
mod mpnet;
mod names;
mod nomic_bert;
pub(crate) mod nv_embed;
mod qwen2;
mod qwen3;
mod roberta;
mod rope;
mod rotary_encoder;
pub(crate) mod static_table;
mod windows;
mod xlm_roberta_xl;

use serde_json::Value;

pub(crate) use modules::encoder_modules;
pub(crate) use names::{Affine, Names, Part, Stacked, TensorSource};

use crate::config::{Family, Keys, ModelConfig, bad_config};
use crate::{Error, Result};

impl ModelConfig {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// Not JSON, an unknown `model_type`, a missing key, or sizes that contradict one another.
    pub fn from_json(text: &[u8]) -> Result<Self> {
        let value: Value =
            serde_json::from_slice(text).map_err(|e| bad_config(format!("not valid JSON: {e}")))?;
        Self::from_value(&value)
    }

    /// Reads a parsed `config.json`.
    ///
    /// # Errors
    /// As [`ModelConfig::from_json`].
    pub fn from_value(value: &Value) -> Result<Self> {
        let config = read_config(&Keys::new(value)?)?;
        config.check()?;
        Ok(config)
    }

    /// The `config.json` that transformers reads for this model.
    pub fn to_value(&self) -> Value {
        match self.family {
            Family::Bert => bert::write(self),
            Family::Roberta | Family::XlmRoberta | Family::Camembert => roberta::write(self),
            Family::XlmRobertaXl => xlm_roberta_xl::write(self),
            Family::Distilbert => distilbert::write(self),
            Family::Mpnet => mpnet::write(self),
            Family::JinaBert => jina_bert::write(self),
            Family::Modernbert => modernbert::write(self),
            Family::NomicBert => nomic_bert::write(self),
            Family::Gte => gte::write(self),
            Family::JinaEmbeddingsV3 => jina_embeddings_v3::write(self),
            Family::Eurobert => eurobert::write(self),
            Family::Gemma => gemma::write(self),
            Family::Gemma3 => gemma3::write(self),
            Family::EmbeddingGemma2 => embedding_gemma2::write(self),
            Family::Static => static_table::write(self),
            Family::Llama => llama::write(self),
            Family::Mistral => mistral::write(self),
            Family::Qwen2 => qwen2::write(self),
            Family::Qwen3 => qwen3::write(self),
        }
    }
}

/// From `model_type` to the family that reads the other keys.
fn read_config(keys: &Keys<'_>) -> Result<ModelConfig> {
    match keys.text_or("model_type", "")? {
        "bert" => bert::read(keys),
        "roberta" => roberta::read(Family::Roberta, keys),
        // Its own file names no type, copies that were saved again do.
        "" | "xlm-roberta" if jina_embeddings_v3::is(keys) => jina_embeddings_v3::read_first(keys),
        "xlm-roberta" => roberta::read(Family::XlmRoberta, keys),
        "xlm-roberta-xl" => xlm_roberta_xl::read(keys),
        "camembert" => roberta::read(Family::Camembert, keys),
        "distilbert" => distilbert::read(keys),
        "mpnet" => mpnet::read(keys),
        "modernbert" => modernbert::read(keys),
        "nomic_bert" => nomic_bert::read(keys),
        "gte" | "new" => gte::read(keys),
        "jina_embeddings_v3" => jina_embeddings_v3::read(keys),
        jina_embeddings_v5::MODEL_TYPE => jina_embeddings_v5::read(keys),
        "eurobert" => eurobert::read(keys),
        "gemma" => gemma::read(keys),
        "gemma3_text" => gemma3::read(keys),
        "embedding_gemma2_text" => embedding_gemma2::read(keys),
        embedding_gemma2::WITH_TOWERS => embedding_gemma2::read_text_part(keys),
        "static" => static_table::read(keys),
        "llama" => llama::read(keys),
        "mistral" => mistral::read(keys),
        "qwen2" => qwen2::read(keys),
        "qwen3" => qwen3::read(keys),
        nv_embed::MODEL_TYPE => nv_embed::read(keys),
        other => {
            Err(Error::UnknownFamily { found: other.to_string(), known: known_types().join(", ") })
        }
    }
}

/// All `model_type`s, each once.
fn known_types() -> Vec<&'static str> {
    let others = [
        nv_embed::MODEL_TYPE,
        jina_embeddings_v5::MODEL_TYPE,
        "new",
        "model2vec",
        embedding_gemma2::WITH_TOWERS,
    ];
    let mut known: Vec<&str> = Vec::new();
    for kind in Family::ALL.map(Family::model_type).into_iter().chain(others) {
        if !known.contains(&kind) {
            known.push(kind);
        }
    }
    known
}

/// The tensor names of a model's checkpoints, as it is saved.
pub(crate) fn names(config: &ModelConfig) -> Names {
    match config.family {
        Family::Bert | Family::Roberta | Family::XlmRoberta | Family::Camembert => {
            encoder::names(config)
        }
        Family::XlmRobertaXl => xlm_roberta_xl::names(config),
        Family::Distilbert => distilbert::names(config),
        Family::Mpnet => mpnet::names(config),
        Family::JinaBert => jina_bert::names(config),
        Family::Modernbert => modernbert::names(config),
        Family::NomicBert => nomic_bert::names(config),
        Family::Gte => gte::names(config),
        Family::JinaEmbeddingsV3 => jina_embeddings_v3::names(config),
        Family::Gemma => gemma::names(config),
        Family::Gemma3 => gemma3::names(config),
        Family::EmbeddingGemma2 => embedding_gemma2::names(config),
        Family::Static => static_table::names(),
        Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::Eurobert => {
            decoder::names(config)
        }
    }
}

/// Whether a module of a checkpoint, without what may stand before its names, has no part in vectors.
pub(crate) fn of_no_vector(config: &ModelConfig, module: &str) -> bool {
    names(config).is_ignored(&format!("{module}.weight"), "")
}

/// The tensor names of one checkpoint: those of [`names`], or of a release that has others.
pub(crate) fn names_in(config: &ModelConfig, has: impl Fn(&str) -> bool) -> Names {
    released(config).filter(|names| names.found(&has)).unwrap_or_else(|| names(config))
}

/// The tensor names of a family's release, where transformers' own class has others.
fn released(config: &ModelConfig) -> Option<Names> {
    match config.family {
        Family::NomicBert => Some(nomic_bert::released(config)),
        Family::Gte => Some(gte::released(config)),
        Family::JinaEmbeddingsV3 => Some(jina_embeddings_v3::released(config)),
        _ => None,
    }
}

/// Whether a module of a checkpoint, without what may stand before its names, has the name that a release gives it.
pub(crate) fn is_of_release(config: &ModelConfig, module: &str) -> bool {
    released(config).is_some_and(|names| names.has(&format!("{module}.weight")))
}

/// The tensors of a release that have several of ours, which [`names`] names by themselves.
pub(crate) fn stacked(config: &ModelConfig) -> Vec<Stacked> {
    match config.family {
        Family::NomicBert => nomic_bert::stacked(config),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BERT: &str = r#"{"model_type":"bert","vocab_size":100,"hidden_size":32,"num_hidden_layers":2,
        "num_attention_heads":4,"intermediate_size":64,"max_position_embeddings":64,"type_vocab_size":2,
        "layer_norm_eps":1e-12,"hidden_act":"gelu","pad_token_id":0}"#;

    #[test]
    fn round_trips_through_transformers_json() {
        let config = ModelConfig::from_json(BERT.as_bytes()).unwrap();
        assert_eq!(config.head_dim, 8);
        assert_eq!(ModelConfig::from_value(&config.to_value()).unwrap(), config);
    }

    #[test]
    fn unknown_family_lists_the_known_ones() {
        let error = ModelConfig::from_json(br#"{"model_type":"mamba"}"#).unwrap_err().to_string();
        for family in Family::ALL {
            assert!(error.contains(family.model_type()), "{error}");
        }
    }

    #[test]
    fn contradictions_are_named() {
        for (from, to, key) in [
            ("\"num_attention_heads\":4", "\"num_attention_heads\":0", "num_attention_heads"),
            ("\"num_attention_heads\":4", "\"num_attention_heads\":5", "hidden_size"),
            ("\"vocab_size\":100", "\"vocab_size\":1e3", "vocab_size"),
            ("\"vocab_size\":100", "\"vocab_size\":-1", "vocab_size"),
            ("\"vocab_size\":100", "\"vocab_size\":1000000000000", "vocab_size"),
            ("\"hidden_act\":\"gelu\"", "\"hidden_act\":\"mish\"", "hidden_act"),
        ] {
            let error =
                ModelConfig::from_json(BERT.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    /// nomic-embed-text-v2-moe's config.json, as published, but smaller and without what only training reads.
    const EXPERTS: &str = r#"{"model_type":"nomic_bert","activation_function":"gelu","causal":false,
        "expert_choice_router":false,"ffn_div":1,"layer_norm_epsilon":1e-05,"max_trained_positions":2048,
        "mlp_fc1_bias":true,"mlp_fc2_bias":true,"moe_every_n_layers":2,"moe_impl":"megablocks",
        "moe_normalize_expert_weights":false,"moe_resid_pdrop":0.0,"moe_top_k":2,"n_embd":32,"n_head":4,
        "n_inner":64,"n_layer":6,"n_positions":2048,"num_experts":8,"num_shared_experts":0,"pad_token_id":1,
        "parallel_block":false,"prenorm":false,"qkv_proj_bias":true,"rotary_emb_base":10000,
        "rotary_emb_fraction":1.0,"rotary_emb_interleaved":false,"rotary_emb_scale_base":null,
        "rotary_scaling_factor":null,"scale_attn_weights":true,"type_vocab_size":1,"use_rms_norm":null,
        "vocab_size":100}"#;

    #[test]
    fn texts_end_where_positions_would_be_stretched() {
        // nomic-embed-text-v1 as it was released, and with the keys for transformers that it has had since.
        let released = r#"{"model_type":"nomic_bert","activation_function":"swiglu","n_embd":32,"n_head":4,
            "n_inner":64,"n_layer":2,"n_positions":8192,"qkv_proj_bias":false,"mlp_fc1_bias":false,
            "mlp_fc2_bias":false,"rotary_emb_base":1000,"rotary_scaling_factor":2,"type_vocab_size":2,
            "vocab_size":100}"#;
        let read = |text: &str| ModelConfig::from_json(text.as_bytes()).unwrap();
        assert_eq!(read(released).max_positions, 2048);
        let trained = released.replace("8192,", "8192,\"max_trained_positions\":512,");
        assert_eq!(read(&trained).max_positions, 512);
        let keys = r#"8192,"max_position_embeddings":8192,"rope_parameters":{"factor":2.0,
            "rope_theta":1000.0,"rope_type":"dynamic"},"#;
        let since = read(&released.replace("8192,", keys));
        assert_eq!(since.max_positions, 8192);
        assert_eq!(since.encoder().unwrap().ropes, read(released).encoder().unwrap().ropes);
    }

    #[test]
    fn experts_are_read_and_written_as_released() {
        let config = ModelConfig::from_json(EXPERTS.as_bytes()).unwrap();
        let value = config.to_value();
        assert_eq!(ModelConfig::from_value(&value).unwrap(), config);
        assert_eq!(value["moe_every_n_layers"], 2);
        let encoder = config.encoder().unwrap();
        let experts = encoder.experts.unwrap();
        assert_eq!((experts.count, experts.top_k), (8, 2));
        assert!(encoder.qkv_bias && encoder.output_bias && encoder.up_bias && encoder.down_bias);
        let inside: Vec<usize> = (0..6).filter(|layer| experts.are_in(*layer)).collect();
        assert_eq!(inside, [1, 3, 5]);
        let whole = stacked(&config);
        assert_eq!(whole.len(), 6);
        assert_eq!(whole[3].name, "encoder.layers.3.mlp.experts.mlp.w2");
        assert_eq!(whole[3].parts[7], "encoder.layers.3.mlp.experts.7.fc2.weight");
        let source = names(&config).source("blocks.3.feed_forward.experts.7.down.weight").unwrap();
        assert_eq!(source.parts[0].name, whole[3].parts[7]);
        for (from, to, key) in [
            ("\"num_shared_experts\":0", "\"num_shared_experts\":1", "num_shared_experts"),
            (
                "\"expert_choice_router\":false",
                "\"expert_choice_router\":true",
                "expert_choice_router",
            ),
            ("weights\":false", "weights\":true", "moe_normalize_expert_weights"),
            ("\"ffn_div\":1", "\"ffn_div\":2", "ffn_div"),
            ("\"moe_top_k\":2", "\"moe_top_k\":9", "moe_top_k"),
            ("\"moe_top_k\":2,", "", "moe_top_k"),
            ("\"moe_every_n_layers\":2", "\"moe_every_n_layers\":1", "moe_every_n_layers"),
            (
                "\"activation_function\":\"gelu\"",
                "\"activation_function\":\"swiglu\"",
                "qkv_proj_bias",
            ),
            (
                "\"activation_function\":\"gelu\"",
                "\"activation_function\":\"relu\"",
                "qkv_proj_bias",
            ),
        ] {
            let text = EXPERTS.replace(from, to);
            assert_ne!(text, EXPERTS);
            let error = ModelConfig::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(key), "{error}");
        }
        let gated =
            EXPERTS.replace("\"gelu\"", "\"swiglu\"").replace("_bias\":true", "_bias\":false");
        let error = ModelConfig::from_json(gated.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("num_experts"), "{error}");
    }

    #[test]
    fn kept_layers_have_experts_where_the_configuration_can_say_so() {
        let config = ModelConfig::from_json(EXPERTS.as_bytes()).unwrap();
        let every = |keep: &[usize]| -> crate::Result<Option<usize>> {
            let kept = config.clone().keep_layers(keep)?;
            let experts = kept.encoder()?.experts.map(|experts| experts.every);
            assert_eq!(ModelConfig::from_value(&kept.to_value())?, kept);
            Ok(experts)
        };
        assert_eq!(every(&[0, 1, 2, 3]).unwrap(), Some(2));
        assert_eq!(every(&[0, 5]).unwrap(), Some(2));
        assert_eq!(every(&[0, 1, 2]).unwrap(), Some(2));
        assert_eq!(every(&[0, 1, 2, 4, 3]).unwrap(), Some(3));
        assert_eq!(every(&[0, 2, 4]).unwrap(), None);
        for keep in [&[1][..], &[0, 1, 3], &[0, 2, 3]] {
            let error = every(keep).unwrap_err().to_string();
            assert!(error.contains("moe_every_n_layers"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_a_config(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ModelConfig::from_json(&bytes);
        }

        #[test]
        fn any_sizes_are_an_error_or_a_checked_config(
            family in 0usize..Family::ALL.len(), heads in 0u64..9, kv in 0u64..9, hidden in 0u64..70,
            dim in proptest::option::of(0u64..20), layers in 0u64..5, theta in -2.0f64..1e6,
        ) {
            let value = serde_json::json!({
                "model_type": Family::ALL[family].model_type(), "vocab_size": 10, "hidden_size": hidden,
                "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
                "head_dim": dim, "intermediate_size": 8, "max_position_embeddings": 16,
                "rope_theta": theta, "pad_token_id": 1, "type_vocab_size": 1,
            });
            if let Ok(config) = ModelConfig::from_value(&value) {
                prop_assert_eq!(ModelConfig::from_value(&config.to_value()).unwrap(), config);
            }
        }
    }
}

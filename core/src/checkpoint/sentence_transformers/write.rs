//! Writes a sentence-transformers folder.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    DROPS_UNKNOWN, INSTRUCTION, INSTRUCTION_FORMAT, MODES, SavedModel, dense_names, head_names,
};
use crate::checkpoint::parameters::{Keep, each_tensor, put_together, save_backbone};
use crate::checkpoint::safetensors::{StoredTensor, write_tensors};
use crate::config::Family;
use crate::embedder::Embedder;
use crate::folder::Files;
use crate::kernels::Kernels;
use crate::model::families::stacked;
use crate::pooling::{DenseActivation, DenseConfig, PoolingConfig};
use crate::tokenizer::{InstructionSpan, TokenizerConfig};
use crate::{Error, Result};

/// The file of the backbone.
const WEIGHTS: &str = "model.safetensors";

/// A model as the files of a sentence-transformers folder; LoRA adapters are merged.
///
/// # Errors
/// Parameters that cannot be read back from the device.
pub fn save<B: Kernels>(embedder: &Embedder<B>) -> Result<SavedModel> {
    save_as(embedder, |_, _, shape, values| Ok(StoredTensor::Full(shape, values)))
}

/// As [`save`], with each tensor stored as `store` decides from its file, name, shape and values; it sees matrices that
/// the family's files have in one tensor one by one.
/// Only one tensor's values are in memory at a time, beside the model and the tensors already
/// stored.
///
/// # Errors
/// As [`save`], and the errors of `store`.
pub fn save_as<B: Kernels, E: From<Error>>(
    embedder: &Embedder<B>,
    mut store: impl FnMut(&str, &str, Vec<usize>, Vec<f32>) -> Result<StoredTensor, E>,
) -> Result<SavedModel, E> {
    let model = embedder.model();
    let mut weights: Vec<(String, Bytes)> = Vec::new();
    let mut tensors_file = |path: &str, module: &dyn Fn(&mut Keep<'_, E>) -> Result<(), E>| {
        let mut tensors = Vec::new();
        module(&mut |name, shape, values| {
            let tensor = store(path, &name, shape, values)?;
            tensors.push((name, tensor));
            Ok(())
        })?;
        if path == WEIGHTS {
            tensors = put_together(tensors, &stacked(&model.config));
        }
        weights.push((path.into(), write_tensors(&tensors, &[("format", "pt")])?.into()));
        Ok::<_, E>(())
    };
    tensors_file(WEIGHTS, &|keep| save_backbone(&model.config, &model.backbone, keep))?;
    if model.pooling.block.is_some() {
        tensors_file("1_Pooling/model.safetensors", &|keep| {
            each_tensor(&model.pooling, &head_names(), keep)
        })?;
    }
    let mut files = Files::default();
    let mut json_file = |path: &str, value: Value| {
        files.0.insert(path.into(), format!("{value:#}\n").into());
    };
    let own = !MODES.iter().any(|(_, _, pooling)| pooling == model.pooling.config());
    let library = "sentence_transformers.models";
    let pooling_class = if own { "kiln.Pooling".to_string() } else { format!("{library}.Pooling") };
    // A table averages by itself.
    let table = model.config.family == Family::Static;
    let first = if table { "StaticEmbedding" } else { "Transformer" };
    let mut modules =
        vec![json!({"idx": 0, "name": "0", "path": "", "type": format!("{library}.{first}")})];
    let mut config = model.config.to_value();
    if table {
        config[DROPS_UNKNOWN] = embedder.tokenizer().config().drop_unknown.into();
    }
    json_file("config.json", config);
    let pools = !table || *model.pooling.config() != PoolingConfig::Mean;
    if pools {
        modules.push(json!({"idx": 1, "name": "1", "path": "1_Pooling", "type": pooling_class}));
        json_file("1_Pooling/config.json", pooling_value(embedder, own));
    }
    for dense in &model.dense {
        let path = format!("{}_Dense", modules.len());
        json_file(&format!("{path}/config.json"), dense_value(dense.config()));
        tensors_file(&format!("{path}/model.safetensors"), &|keep| {
            each_tensor(dense, &dense_names(), keep)
        })?;
        let i = modules.len();
        modules.push(json!({"idx": i, "name": i.to_string(), "path": path, "type": format!("{library}.Dense")}));
    }
    if model.normalize {
        let i = modules.len();
        modules.push(json!({
            "idx": i, "name": i.to_string(), "path": format!("{i}_Normalize"), "type": format!("{library}.Normalize")
        }));
    }
    json_file("modules.json", modules.into());
    let tokenizer = embedder.tokenizer().config();
    json_file(
        "sentence_bert_config.json",
        json!({"max_seq_length": tokenizer.max_length, "do_lower_case": tokenizer.lower_case}),
    );
    let mut settings = json!({
        "__version__": {"kiln": env!("CARGO_PKG_VERSION")},
        "prompts": embedder.prompts().by_name(),
        "default_prompt_name": embedder.prompts().default_name(),
        "similarity_fn_name": embedder.similarity().name(),
    });
    if let Some(dimensions) = embedder.truncate_dim() {
        settings["truncate_dim"] = json!(dimensions);
    }
    if let Some(format) = embedder.prompts().instruction_format() {
        settings[INSTRUCTION_FORMAT] = json!(format);
    }
    // These two are `include_prompt` of the pooling module, where there is one.
    let is_said = tokenizer.instruction == InstructionSpan::Pooled
        || tokenizer.instruction == InstructionSpan::Masked && pools;
    if !is_said {
        settings[INSTRUCTION] = json!(tokenizer.instruction);
    }
    json_file("config_sentence_transformers.json", settings);
    files.0.extend(embedder.tokenizer_files().0.clone());
    if !files.0.contains_key("tokenizer.json") {
        files.0.insert("tokenizer.json".into(), embedder.tokenizer().to_json()?.into());
    }
    files.0.extend(weights);
    Ok(files)
}

fn pooling_value<B: Kernels>(embedder: &Embedder<B>, own: bool) -> Value {
    let model = embedder.model();
    let mut value = json!({
        "word_embedding_dimension": model.config.output_size(),
        "include_prompt": embedder.tokenizer().config().instruction == InstructionSpan::Pooled,
    });
    if own {
        value["kiln"] = json!(model.pooling.config());
    } else {
        for flag in ["pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens"] {
            value[flag] = false.into();
        }
        for (flag, _, pooling) in &MODES {
            value[*flag] = (pooling == model.pooling.config()).into();
        }
    }
    value
}

pub(crate) fn dense_value(config: &DenseConfig) -> Value {
    let activation = match config.activation {
        DenseActivation::Identity => "torch.nn.modules.linear.Identity",
        DenseActivation::Tanh => "torch.nn.modules.activation.Tanh",
        DenseActivation::Relu => "torch.nn.modules.activation.ReLU",
        DenseActivation::Gelu => "torch.nn.modules.activation.GELU",
    };
    json!({
        "in_features": config.in_features, "out_features": config.out_features,
        "bias": config.bias, "activation_function": activation,
    })
}

/// `tokenizer_config.json` of a tokenizer that Kiln trained itself.
pub fn tokenizer_config_file(
    family: Family,
    tokenizer: &TokenizerConfig,
    [bos, eos, pad]: [&str; 3],
) -> Vec<u8> {
    let value = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos, "eos_token": eos, "pad_token": pad,
        "add_bos_token": tokenizer.add_bos == Some(true) && family.is_decoder(),
        "add_eos_token": tokenizer.add_eos == Some(true) && family.is_decoder(),
        "padding_side": tokenizer.padding_side,
        "model_max_length": tokenizer.max_length,
        "clean_up_tokenization_spaces": false,
    });
    format!("{value:#}\n").into_bytes()
}

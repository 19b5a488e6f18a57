//! LoRA adapters in the format of PEFT (github.com/huggingface/peft): `adapter_config.json` and
//! `adapter_model.safetensors`.

use std::collections::BTreeMap;

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use serde_json::{Value, json};

use super::adapter_base::{AdapterBase, FINGERPRINT};
use super::safetensors::write_safetensors;
use super::weights::Weights;
use crate::config::ModelConfig;
use crate::folder::{Files, Folder, read_text};
use crate::kernels::Kernels;
use crate::model::{Backbone, LoraConfig, families};
use crate::{Error, Result};

pub(super) const CONFIG: &str = "adapter_config.json";
pub(super) const WEIGHTS: &str = "adapter_model";
const REMEDY: &str = "check r in adapter_config.json and the base model";
/// How PEFT's names of a table's two matrices end.
pub(super) const TABLE_A: &str = ".lora_embedding_A";
pub(super) const TABLE_B: &str = ".lora_embedding_B";
/// What PEFT puts before the module names of a model without a task head.
pub(super) const PREFIX: &str = "base_model.model.";

/// The adapters of a backbone as PEFT's two files; `base` says of which model they are.
///
/// # Errors
/// A backbone without adapters, or values that cannot be read back from the device.
pub fn save_adapters<B: Kernels>(
    backbone: &Backbone<B>,
    config: &ModelConfig,
    lora: &LoraConfig,
    base: &AdapterBase,
) -> Result<Files> {
    let mut tensors = Vec::new();
    let mut targets: Vec<String> = Vec::new();
    for (_, linear) in backbone.clone().projections_mut(config)? {
        for adapter in &linear.adapters {
            let matrices = [("lora_A", adapter.a.val()), ("lora_B", adapter.b.val())];
            for (name, matrix) in matrices {
                // PEFT stores [rank, in] and [out, rank]; we hold [in, rank] and [rank, out].
                let matrix = matrix.transpose();
                let shape = matrix.dims().to_vec();
                let name = format!("{PREFIX}{}.{name}.weight", adapter.module());
                let values = matrix.into_data().convert::<f32>().into_vec().map_err(|e| {
                    Error::invalid(format!("{name}: could not be read back from the device: {e:?}"))
                })?;
                tensors.push((name, shape, values));
            }
            targets.push(adapter.module().to_string());
        }
    }
    if tensors.is_empty() {
        return Err(Error::invalid("the model has no LoRA adapters to save"));
    }
    let value = json!({
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": base.name,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": targets,
        "bias": "none",
        "fan_in_fan_out": false,
        "use_rslora": false,
        "use_dora": false,
        "modules_to_save": null,
        "init_lora_weights": true,
        "inference_mode": true,
    });
    let mut files = Files::default();
    files.0.insert(CONFIG.into(), format!("{value:#}\n").into());
    let mut metadata = vec![("format", "pt")];
    metadata.extend(base.fingerprint.as_deref().map(|sum| (FINGERPRINT, sum)));
    let weights = write_safetensors(&tensors, &metadata)?;
    files.0.insert(format!("{WEIGHTS}.safetensors"), weights.into());
    Ok(files)
}

/// Of which model adapters say that they are.
///
/// # Errors
/// Files that cannot be read.
pub fn lora_base(folder: &dyn Folder) -> Result<AdapterBase> {
    AdapterBase::read(folder, CONFIG, &format!("{WEIGHTS}.safetensors"))
}

/// Whether adapters are of tables too, which [`load_adapters`] merges into them.
///
/// # Errors
/// Weights that are missing or damaged.
pub fn adapts_tables(folder: &dyn Folder) -> Result<bool> {
    let weights = Weights::open(folder, WEIGHTS)?;
    let is_of_table = |name: &String| [TABLE_A, TABLE_B].iter().any(|end| name.ends_with(end));
    Ok(weights.tensors().keys().any(is_of_table))
}

/// Adds the adapters of a PEFT folder to a backbone, and returns their settings. Those of tables of tokens or types are merged
/// into them.
///
/// # Errors
/// An adapter that is not plain LoRA, or tensors that do not fit the backbone; the error names
/// each.
pub fn load_adapters<B: Kernels>(
    backbone: Backbone<B>,
    config: &ModelConfig,
    folder: &dyn Folder,
    device: &B::Device,
) -> Result<(Backbone<B>, LoraConfig)> {
    let file = folder.file_label(CONFIG);
    let bad = |cause: String| Error::bad_file(&file, cause, "merge the adapter with PEFT first");
    let bytes = read_text(folder, CONFIG)?.ok_or_else(|| Error::MissingFile {
        folder: folder.label(),
        file: CONFIG.into(),
        remedy: "name a folder that PEFT's save_pretrained wrote".into(),
    })?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| bad(e.to_string()))?;
    let lora = read_config(&value).map_err(bad)?;
    let mut weights = Weights::open(folder, WEIGHTS)?;
    // The targets are the modules that have weights, whatever pattern chose them.
    let modules: Vec<String> = weights
        .tensors()
        .keys()
        .filter_map(|name| name.strip_suffix(".lora_A.weight"))
        .map(String::from)
        .collect();
    // What has no part in vectors, as a pooler, is no more read of adapters than of the base.
    let of_no_vector = |module: &String| {
        bare_names(module).iter().any(|name| families::of_no_vector(config, name))
    };
    let is_table = |name: &String| name.ends_with(TABLE_A);
    let (passed_over, modules): (Vec<String>, Vec<String>) =
        modules.into_iter().partition(of_no_vector);
    if let Some(module) = passed_over.first()
        && modules.is_empty()
        && !weights.tensors().keys().any(is_table)
    {
        return Err(Error::bad_file(
            weights.label(),
            format!("adapts {module} and the like alone, from which no vector comes"),
            "use an adapter of the model's projections",
        ));
    }
    // What is passed over else would be missing in every vector.
    let is_part = |name: &str| {
        let ends = [".lora_A.weight", ".lora_B.weight", TABLE_A, TABLE_B];
        ends.iter().any(|end| name.ends_with(end))
    };
    if let Some(other) = weights.tensors().keys().find(|name| !is_part(name)) {
        return Err(Error::bad_file(
            weights.label(),
            format!("holds {other}, which is no part of a LoRA adapter"),
            "merge the adapter with PEFT first",
        ));
    }
    let scale_by_root = value["use_rslora"] == json!(true);
    let alpha = if scale_by_root { lora.alpha * (lora.rank as f64).sqrt() } else { lora.alpha };
    let mut backbone = backbone;
    // Inputs and outputs of each projection, all of its parts together.
    let mut names: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (parts, linear) in backbone.projections_mut(config)? {
        let shape = linear.shape();
        names.extend(parts.into_iter().map(|part| (part, shape)));
    }
    let mut targets = Vec::new();
    for module in &modules {
        let named = |bare: String| names.get(&bare).map(|shape| (bare, *shape));
        let result = bare_names(module).into_iter().find_map(named);
        let (bare, [inputs, outputs]) = result.ok_or_else(|| {
            let of_release =
                bare_names(module).iter().any(|name| families::is_of_release(config, name));
            let (cause, remedy) = match of_release {
                true => (
                    "as the code that came with the model's release calls it; adapters are read by the names of \
                     transformers' own class alone",
                    "merge the adapter with PEFT first",
                ),
                false => {
                    ("which this model has not", "use the base model that adapter_config.json names")
                }
            };
            Error::bad_file(weights.label(), format!("adapts {module}, {cause}"), remedy)
        })?;
        // Before allocating: the file must hold as much as r promises.
        let shape = |name: &str| {
            let info = weights.tensors().get(&format!("{module}.{name}.weight"));
            info.map(|info| info.shape.clone()).unwrap_or_default()
        };
        let (a, b) = (shape("lora_A"), shape("lora_B"));
        let fits = a == [lora.rank, inputs]
            && matches!(*b, [rows, rank] if rows <= outputs && rank == lora.rank);
        if !fits {
            return Err(Error::bad_file(
                weights.label(),
                format!(
                    "{module} is {a:?} and {b:?}, and r is {} for a projection of {inputs} to {outputs}",
                    lora.rank
                ),
                REMEDY,
            ));
        }
        targets.push((bare, module.clone()));
    }
    let lora = LoraConfig {
        alpha,
        targets: targets.iter().map(|(bare, _)| bare.clone()).collect(),
        ..lora
    };
    let (mut backbone, _) = backbone.with_lora(&lora, config, device)?;
    merge_tables(&mut backbone, config, &mut weights, &lora, device)?;
    for (_, linear) in backbone.projections_mut(config)? {
        for adapter in &mut linear.adapters {
            let Some((_, module)) = targets.iter().find(|(bare, _)| bare == adapter.module())
            else {
                continue;
            };
            for (name, param) in [("lora_A", &mut adapter.a), ("lora_B", &mut adapter.b)] {
                let name = format!("{module}.{name}.weight");
                let [rows, columns] = param.shape().dims();
                let result = weights.tensors().get(&name).map(|info| info.shape.clone());
                if result.as_deref() != Some(&[columns, rows]) {
                    return Err(Error::bad_file(
                        weights.label(),
                        format!("{name} is {result:?}, expected [{columns}, {rows}]"),
                        REMEDY,
                    ));
                }
                let values = weights.read(&name)?.unwrap_or_default();
                if values.iter().any(|value| !value.is_finite()) {
                    return Err(Error::bad_file(
                        weights.label(),
                        format!("{name} holds NaN or infinite values"),
                        "save the adapter again",
                    ));
                }
                let data = TensorData::new(values, [columns, rows]);
                let tensor = Tensor::<B, 2>::from_data(data, device).transpose();
                *param = Param::initialized(param.id, tensor);
            }
        }
    }
    Ok((backbone, lora))
}

/// What a module of an adapter may be called in the base: task models nest the backbone
/// (`base_model.model.model.layers`).
fn bare_names(module: &str) -> Vec<String> {
    let bare = module.strip_prefix(PREFIX).unwrap_or(module);
    ["", "model.", "bert.", "roberta.", "xlm_roberta.", "language_model."]
        .iter()
        .filter_map(|prefix| bare.strip_prefix(prefix))
        .map(String::from)
        .collect()
}

/// Adds the adapters of tables to them.
fn merge_tables<B: Kernels>(
    backbone: &mut Backbone<B>,
    config: &ModelConfig,
    weights: &mut Weights,
    lora: &LoraConfig,
    device: &B::Device,
) -> Result<()> {
    let names = weights.tensors().keys();
    let mut modules: Vec<String> =
        names.filter_map(|name| name.strip_suffix(TABLE_A)).map(String::from).collect();
    for (path, table) in backbone.lookups_mut() {
        let source = families::names(config).source(path)?;
        let bare = source.parts.first().map(|part| part.name.trim_end_matches(".weight"));
        let ours =
            |module: &String| bare_names(module).iter().any(|name| Some(name.as_str()) == bare);
        let Some(at) = modules.iter().position(ours) else { continue };
        merge_table(table, weights, &modules.swap_remove(at), lora, device)?;
    }
    match modules.first() {
        None => Ok(()),
        Some(module) => Err(Error::bad_file(
            weights.label(),
            format!("adapts the table {module}, which this model has not, or keeps packed"),
            "use the base model that adapter_config.json names, with --weights f32",
        )),
    }
}

/// Adds an adapter of a table, `lora_embedding_A` `[rank, rows]` and `lora_embedding_B` `[width, rank]`, to the table
/// `[rows, width]`.
fn merge_table<B: Kernels>(
    table: &mut Param<Tensor<B, 2>>,
    weights: &mut Weights,
    module: &str,
    lora: &LoraConfig,
    device: &B::Device,
) -> Result<()> {
    let [rows, width] = table.val().dims();
    let mut matrix = |end: &str, shape: [usize; 2]| {
        let name = format!("{module}{end}");
        let found = weights.tensors().get(&name).map(|info| info.shape.clone());
        if found.as_deref() != Some(&shape) {
            let cause = format!("{name} is {found:?}, expected {shape:?}");
            return Err(Error::bad_file(weights.label(), cause, REMEDY));
        }
        let values = weights.read(&name)?.unwrap_or_default();
        if values.iter().any(|value| !value.is_finite()) {
            let cause = format!("{name} holds NaN or infinite values");
            return Err(Error::bad_file(weights.label(), cause, "save the adapter again"));
        }
        Ok(Tensor::<B, 2>::from_data(TensorData::new(values, shape), device))
    };
    let a = matrix(TABLE_A, [lora.rank, rows])?;
    let b = matrix(TABLE_B, [width, lora.rank])?;
    let scale = lora.alpha / lora.rank as f64;
    *table = Param::initialized(table.id, table.val() + (b.matmul(a) * scale).transpose());
    Ok(())
}

/// The settings of `adapter_config.json`, or an error that names what is not supported.
fn read_config(value: &Value) -> std::result::Result<LoraConfig, String> {
    if value["peft_type"] != json!("LORA") {
        return Err(format!("peft_type is {}, only LORA is supported", value["peft_type"]));
    }
    for (key, plain) in [
        ("use_dora", json!(false)),
        ("fan_in_fan_out", json!(false)),
        ("bias", json!("none")),
        ("modules_to_save", Value::Null),
        ("rank_pattern", json!({})),
        ("alpha_pattern", json!({})),
        ("lora_bias", json!(false)),
    ] {
        let found = &value[key];
        if !found.is_null() && *found != plain {
            return Err(format!("{key} is {found}, which is not supported"));
        }
    }
    // Other beginnings (pissa, olora ..) are taken from the base's weight, which PEFT changes when it loads them.
    let begun = &value["init_lora_weights"];
    let plain = ["gaussian", "eva", "orthogonal", "mica"];
    if !(begun.is_null() || begun.is_boolean() || plain.iter().any(|name| begun == name)) {
        return Err(format!(
            "init_lora_weights is {begun}, which changes the base's weights; save the adapter with \
             path_initial_model_for_weight_conversion, or merge it"
        ));
    }
    if !value["alora_invocation_tokens"].is_null() {
        return Err("alora_invocation_tokens are set, which is not supported".into());
    }
    let number = |key: &str, most: f64| {
        let number = value[key].as_f64().ok_or(format!("{key} is missing or no number"))?;
        let fits = (0.0..=most).contains(&number);
        fits.then_some(number).ok_or(format!("{key} is {number}, outside 0..={most}"))
    };
    let rank = value["r"].as_u64().filter(|&rank| rank > 0 && rank <= 1 << 16);
    Ok(LoraConfig {
        rank: rank.ok_or(format!("r is {}", value["r"]))? as usize,
        alpha: number("lora_alpha", 1e6)?,
        dropout: number("lora_dropout", 1.0)?,
        targets: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_adapters_are_refused_by_name() {
        let plain = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.1});
        assert_eq!(read_config(&plain).unwrap().rank, 4);
        for (key, value) in [
            ("peft_type", json!("IA3")),
            ("use_dora", json!(true)),
            ("bias", json!("all")),
            ("r", json!(0)),
            ("modules_to_save", json!(["x"])),
            ("init_lora_weights", json!("pissa_niter_4")),
            ("alora_invocation_tokens", json!([1])),
        ] {
            let mut other = plain.clone();
            other[key] = value;
            assert!(read_config(&other).unwrap_err().contains(key), "{key}");
        }
        for begun in [json!(true), json!(false), json!(null), json!("gaussian")] {
            let mut other = plain.clone();
            other["init_lora_weights"] = begun;
            assert!(read_config(&other).is_ok());
        }
    }
}

//! Adapters of vectors as files: a `Dense` module of sentence-transformers, `config.json` and `model.safetensors`, whose
//! metadata say of which model it is. [`load_adapted`] takes PEFT's adapters too.

use super::adapter_base::{AdapterBase, BASE, FINGERPRINT, json_of};
use super::manifest::FileSum;
use super::peft::{load_adapters, lora_base};
use super::safetensors::write_safetensors;
use super::sentence_transformers::{dense_value, read_dense};
use super::weights::Weights;
use crate::embedder::EmbeddingModel;
use crate::folder::{Files, Folder, read_text};
use crate::index::VectorAdapter;
use crate::kernels::Kernels;
use crate::pooling::{Dense, DenseConfig};
use crate::{Error, Result};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model";
/// sentence-transformers' name of the weights `[out, in]`.
const TENSOR: &str = "linear.weight";
const PEFT: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];
const REMEDY: &str = "name an adapter of vectors that Kiln saved, or a Dense module without bias and activation that \
                      keeps the width";

/// An adapter of vectors as its two files.
///
/// # Errors
/// None that such an adapter causes.
pub fn save_vector_adapter(adapter: &VectorAdapter, base: &AdapterBase) -> Result<Files> {
    let width = adapter.width();
    let config = DenseConfig::of_adapter(adapter);
    let mut metadata = vec![("format", "pt")];
    metadata.extend(base.name.as_deref().map(|name| (BASE, name)));
    metadata.extend(base.fingerprint.as_deref().map(|sum| (FINGERPRINT, sum)));
    let tensor = (TENSOR.to_string(), vec![width, width], adapter.weights().to_vec());
    let mut files = Files::default();
    files.0.insert(CONFIG.into(), format!("{:#}\n", dense_value(&config)).into());
    files
        .0
        .insert(format!("{WEIGHTS}.safetensors"), write_safetensors(&[tensor], &metadata)?.into());
    Ok(files)
}

/// Whether a folder's `config.json` is that of an adapter of vectors, or of another `Dense` module.
pub fn is_vector_adapter(folder: &dyn Folder) -> bool {
    let config = json_of(folder, CONFIG).ok().flatten().unwrap_or_default();
    config.get("in_features").is_some() && config.get("model_type").is_none()
}

/// Reads an adapter of vectors, and of which model it says that it is.
///
/// # Errors
/// Files that are missing or damaged, or a `Dense` module that is more than a map of a space into itself.
pub fn load_vector_adapter(folder: &dyn Folder) -> Result<(VectorAdapter, AdapterBase)> {
    let dense = read_dense(folder, "")?;
    let DenseConfig { in_features, out_features, bias, activation } = dense;
    if !dense.is_adapter() {
        let cause = format!(
            "maps {in_features} dimensions to {out_features}, with bias {bias} and the activation {activation:?}"
        );
        return Err(Error::bad_file(folder.file_label(CONFIG), cause, REMEDY));
    }
    let mut weights = Weights::open(folder, WEIGHTS)?;
    let label = weights.label();
    let bad = |cause: String| Error::bad_file(label.clone(), cause, REMEDY);
    let shape = weights.tensors().get(TENSOR).map(|info| info.shape.clone());
    // Before reading: the file must hold what its config.json promises.
    if shape.as_deref() != Some(&[in_features, in_features]) {
        return Err(bad(format!("{TENSOR} is {shape:?}, expected [{in_features}, {in_features}]")));
    }
    let values = weights.read(TENSOR)?.unwrap_or_default();
    let adapter =
        VectorAdapter::new(in_features, values).map_err(|error| bad(error.to_string()))?;
    let base = AdapterBase::read(folder, CONFIG, &format!("{WEIGHTS}.safetensors"))?;
    Ok((adapter, base))
}

/// A model with an adapter of its own, of either kind: PEFT's two files, or those of an adapter of vectors.
/// `fingerprint` is the SHA-256 of the model's manifest, where it has one.
///
/// # Errors
/// Files that are no adapter, or one of another model.
pub fn load_adapted<B: Kernels>(
    model: EmbeddingModel<B>,
    folder: &dyn Folder,
    fingerprint: Option<&str>,
    device: &B::Device,
) -> Result<EmbeddingModel<B>> {
    if read_text(folder, PEFT[0])?.is_some() || !is_vector_adapter(folder) {
        lora_base(folder)?.check_model(fingerprint)?;
        let (config, backbone) = (model.config().clone(), model.backbone().clone());
        let (backbone, _) = load_adapters(backbone, &config, folder, device)?;
        return Ok(model.map_backbone(|_| backbone));
    }
    let (adapter, base) = load_vector_adapter(folder)?;
    base.check(&adapter, model.dimensions(), fingerprint)?;
    Ok(model.with_dense(Dense::of_adapter(&adapter, device)?))
}

/// What tells an adapter of either kind from others: the SHA-256 of its weights; of PEFT's with that of `adapter_config.json`,
/// by whose numbers they are scaled.
fn adapter_sum(files: &Files) -> Option<String> {
    let sum = |name: &str| files.0.get(name).map(|bytes| FileSum::of(bytes).sha256);
    let [config, weights] = PEFT;
    match sum(weights) {
        Some(weights) => {
            let both = sum(config).unwrap_or_default() + &weights;
            Some(FileSum::of(both.as_bytes()).sha256)
        }
        None => sum(&format!("{WEIGHTS}.safetensors")),
    }
}

/// The fingerprint of a model with an adapter of either kind, of the model's own.
pub fn adapted_fingerprint(model: &str, files: &Files) -> Option<String> {
    Some(format!("{model}+{}", adapter_sum(files)?))
}

/// Whether a fingerprint is that of a model with an adapter.
pub fn is_adapted(fingerprint: &str) -> bool {
    let is_sum = |part: &str| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    fingerprint.split_once('+').is_some_and(|(model, adapter)| is_sum(model) && is_sum(adapter))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn base() -> AdapterBase {
        AdapterBase { name: Some("kiln-mini".into()), fingerprint: Some("ab".into()) }
    }

    fn adapter() -> VectorAdapter {
        VectorAdapter::new(2, vec![1.0, 0.5, -0.25, 2.0]).unwrap()
    }

    #[test]
    fn an_adapter_is_read_as_it_was_written() {
        let mut files = save_vector_adapter(&adapter(), &base()).unwrap();
        assert!(is_vector_adapter(&files));
        assert_eq!(load_vector_adapter(&files).unwrap(), (adapter(), base()));
        // Who renames the base does so in the file that can be edited.
        let mut config = json_of(&files, CONFIG).unwrap().unwrap();
        config[BASE] = "models/mini".into();
        files.0.insert(CONFIG.into(), config.to_string().into());
        let (_, named) = load_vector_adapter(&files).unwrap();
        assert_eq!(named.name.as_deref(), Some("models/mini"));
        let own = "ab".repeat(32);
        let adapted = adapted_fingerprint(&own, &files).unwrap();
        assert!(adapted.starts_with(&own) && is_adapted(&adapted) && !is_adapted(&own));
        // Somebody's own name.
        assert!(!is_adapted("mini+large") && !is_adapted(&format!("{own}+large")));
    }

    #[test]
    fn peft_files_say_whose_they_are_and_how_they_are_scaled() {
        let mut files = Files::default();
        let put = |files: &mut Files, alpha: f64| {
            let config = json!({ "lora_alpha": alpha, BASE: "kiln-mini" });
            files.0.insert(PEFT[0].into(), config.to_string().into());
        };
        put(&mut files, 16.0);
        let weights = write_safetensors(&[], &[("format", "pt"), (FINGERPRINT, "ab")]).unwrap();
        files.0.insert(PEFT[1].into(), weights.into());
        assert_eq!(lora_base(&files).unwrap(), base());
        let said = lora_base(&files).unwrap().check_model(Some("cd")).unwrap_err().to_string();
        assert!(said.contains("of another model, \"kiln-mini\""), "{said}");
        assert!(lora_base(&files).unwrap().check_model(None).is_ok());
        let former = adapter_sum(&files);
        put(&mut files, 32.0);
        assert_ne!(adapter_sum(&files), former);
        assert_eq!(lora_base(&Files::default()).unwrap(), AdapterBase::default());
    }

    #[test]
    fn what_is_no_adapter_is_refused() {
        let files = save_vector_adapter(&adapter(), &base()).unwrap();
        let said = |key: &str, value: Value| {
            let mut files = files.clone();
            let mut config = json_of(&files, CONFIG).unwrap().unwrap();
            config[key] = value;
            files.0.insert(CONFIG.into(), config.to_string().into());
            load_vector_adapter(&files).unwrap_err().to_string()
        };
        assert!(said("out_features", 3.into()).contains("2 dimensions to 3"));
        assert!(said("bias", true.into()).contains("bias true"));
        assert!(said("activation_function", "torch.nn.Tanh".into()).contains("Tanh"));
        assert!(said("use_residual", true.into()).contains("use_residual"));
        let of_tokens = said("module_input_name", "token_embeddings".into());
        assert!(of_tokens.contains("token_embeddings"), "{of_tokens}");
        let wide = VectorAdapter::identity(3);
        let mut mixed = save_vector_adapter(&wide, &base()).unwrap();
        mixed.0.insert(CONFIG.into(), files.0[CONFIG].clone());
        let error = load_vector_adapter(&mixed).unwrap_err().to_string();
        assert!(error.contains("expected [2, 2]"), "{error}");
        let mut cut = files.clone();
        let bytes = &files.0["model.safetensors"];
        cut.0.insert("model.safetensors".into(), bytes.slice(..bytes.len() - 1));
        assert!(load_vector_adapter(&cut).is_err());
        let check = |width, sum| base().check(&adapter(), width, sum);
        let said = |width, sum| check(width, sum).unwrap_err().to_string();
        assert!(said(2, Some("cd")).contains("another model, \"kiln-mini\""));
        assert!(said(3, None).contains("of 2 dimensions, those of \"kiln-mini\""));
        assert!(check(2, None).is_ok() && check(2, Some("ab")).is_ok());
    }
}

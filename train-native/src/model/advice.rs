//! Says what a model's files leave open or mean otherwise than it is computed, and the setting that changes it.

use anyhow::Result;
use kiln_embed::checkpoint::{
    Directory, FileSum, Folder, LoadOptions, MANIFEST, load_vector_adapter, read_text,
};
use kiln_embed::config::AttentionMode;
use kiln_embed::embedder::{Embedder, Similarity};
use kiln_embed::kernels::Kernels;
use kiln_embed::pooling::PoolingConfig;
use serde_json::Value;

use crate::terminal::Terminal;

/// Says where an adapter of vectors was taught on another model than its base. That may be the same one with weights of
/// another precision, so it is used all the same.
pub(super) fn advise_of_base(
    name: &str,
    adapter: &Directory,
    base: &dyn Folder,
    terminal: Terminal,
) -> Result<()> {
    let (_, taught_on) = load_vector_adapter(adapter)?;
    let sum = read_text(base, MANIFEST)?.map(|text| FileSum::of(&text).sha256);
    if taught_on.fingerprint.zip(sum).is_some_and(|(taught_on, sum)| taught_on != sum) {
        terminal.note(format!(
            "warning: {name}: was taught on another model than {}, or on other weights of it (kiln.json is another); \
             if it is another model, name the right one in base_model_name_or_path",
            base.label()
        ));
    }
    Ok(())
}

/// Says where a model whose own code takes one of its adapters for every text is computed without.
pub(super) fn advise_of_tasks(name: &str, folder: &dyn Folder, terminal: Terminal) -> Result<()> {
    let Some(text) = read_text(folder, "config.json")? else { return Ok(()) };
    let config: Value = serde_json::from_slice(&text)?;
    let tasks = config["task_names"].as_array().into_iter().flatten();
    let tasks: Vec<&str> = tasks.filter_map(Value::as_str).collect();
    if config["model_type"] == "jina_embeddings_v5" && !tasks.is_empty() {
        terminal.note(format!(
            "warning: {name}: its own code makes no vectors without one of its adapters ({}), and these are the base's alone; \
             add --adapter {}",
            tasks.join(", "),
            tasks[0]
        ));
    }
    Ok(())
}

/// Parts of the names of decoders that attend in both directions in their own code, which their
/// config.json does not say.
const BIDIRECTIONAL: [&str; 3] = ["gte-qwen2", "gritlm", "llm2vec"];

/// The class of its own code by which a decoder's config.json has it read, where that file does not say whether
/// attention is causal.
fn own_class(folder: &dyn Folder) -> Result<Option<String>> {
    let Some(text) = read_text(folder, "config.json")? else { return Ok(None) };
    let config: Value = serde_json::from_slice(&text)?;
    let says =
        ["is_causal", "use_bidirectional_attention"].iter().any(|key| config[key].is_boolean());
    // Qwen3 of jina-embeddings-v5, which is causal.
    let known = config["model_type"] == "jina_embeddings_v5";
    let class = config["auto_map"]["AutoModel"].as_str().filter(|_| !says && !known);
    Ok(class.map(str::to_string))
}

/// Names what is probably not meant about a model of that name, whose configuration stands in `folder`, and the setting
/// that changes it.
pub(super) fn advise<B: Kernels>(
    name: &str,
    embedder: &Embedder<B>,
    folder: &dyn Folder,
    options: &LoadOptions,
    terminal: Terminal,
) -> Result<()> {
    let model = embedder.model();
    let causal = model.attention() == AttentionMode::Causal;
    let pools_last = match model.pooling().config() {
        PoolingConfig::LastToken => true,
        // The state that stands for a layer.
        PoolingConfig::MultiLayerTrainable(_) => causal,
        _ => false,
    };
    if pools_last && embedder.tokenizer().suffix().is_empty() {
        terminal.note(format!(
            "warning: {name}: pools the last token, and its tokenizer puts none after a text, so that the text's own last \
             token is pooled; --add-eos true (model.add_eos = true in a recipe) puts EOS there"
        ));
    }
    let of_tokenizer = embedder.tokenizer_files().0.get("tokenizer_config.json");
    let of_tokenizer = of_tokenizer.and_then(|text| serde_json::from_slice::<Value>(text).ok());
    if of_tokenizer.is_some_and(|settings| settings["truncation_side"] == "left") {
        terminal.note(format!(
            "warning: {name}: its tokenizer_config.json has long texts lose their beginning (truncation_side); Kiln keeps the \
             beginning, and texts of more than {} tokens lose their end",
            embedder.tokenizer().config().max_length
        ));
    }
    let similarity = embedder.similarity();
    if similarity.normalizes() && similarity != Similarity::Cosine {
        terminal.note(format!(
            "warning: {name}: its vectors are meant to be compared by their {} distance (similarity_fn_name); Kiln ranks by \
             the cosine",
            similarity.name()
        ));
    }
    if options.attention.is_some() || !(causal && model.config().family.is_decoder()) {
        return Ok(());
    }
    let known = name.to_lowercase();
    if BIDIRECTIONAL.iter().any(|part| known.contains(part)) {
        terminal.note(format!(
            "warning: {name}: models of this name attend in both directions, which its config.json does not say; \
             --attention bidirectional (model.attention in a recipe) does so"
        ));
    } else if let Some(class) = own_class(folder)? {
        terminal.note(format!(
            "warning: {name}: config.json has it computed by code of its own ({class}), which Kiln does not run, and does \
             not say whether attention is causal, as it is here; if that code attends in both directions, add \
             --attention bidirectional (model.attention in a recipe), and --attention causal if it does not"
        ));
    }
    Ok(())
}

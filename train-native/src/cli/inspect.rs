//! `kiln inspect`

use std::path::Path;

use anyhow::{Result, bail};
use burn::module::Module as _;
use clap::Args;
use kiln_embed::Reranker;
use kiln_embed::checkpoint::{LoadOptions, Manifest, TensorInfo, Weights};
use kiln_embed::config::{LayerHeads, ModelConfig};
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::tokenizer::Tokenizer;
use serde_json::{Value, json};

use super::{Global, ModelArgs};
use crate::device::{Cpu, Device};
use crate::embedding::Parameters;
use crate::hub::ADAPTER;
use crate::model::{load, locate, open_folder, weights_stem};
use crate::terminal::{counted, thousands};

/// Show a model's configuration, parameters, pooling, prompts and tensors; of a cross-encoder its scores
#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// List every tensor with its shape and type
    #[arg(long)]
    tensors: bool,
}

pub(super) fn run(args: &InspectArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let found = locate(&args.model.name(), terminal)?;
    let name = found.name();
    if args.model.ranks(open_folder(&found.folder)?.as_ref())? {
        return reranker(&name, &found.folder, args, global);
    }
    let model = load(&name, &args.model.load_options(), &Device::Cpu, terminal)?;
    let shape = model.shape();
    let opened = open_folder(&found.folder)?;
    // Of adapters the folder has theirs alone; everything else that is shown is the base's.
    let base = found.base()?;
    let stem = match base {
        Some(_) if found.folder.join(ADAPTER).is_file() => "adapter_model",
        _ => weights_stem(opened.as_ref())?,
    };
    let weights = Weights::open(opened.as_ref(), stem)?;
    let manifest = Manifest::read(opened.as_ref())?;
    let Parameters { backbone, pooling, dense } = model.parameters();
    let parts = [("backbone", backbone), ("pooling", pooling), ("dense", dense)];
    let total: usize = parts.iter().map(|(_, count)| count).sum();
    let tokenizer = model.tokenizer().config();
    let tensors = values_of(&weights);
    let normalizes = model.normalizes(&EmbedOptions::default());
    let value = json!({
        "model": name, "adapter_of": base, "config": shape.config, "parameters": total, "pooling": shape.pooling,
        "dense": shape.dense, "normalize": normalizes, "dimensions": shape.dimensions(), "tokenizer": tokenizer,
        "prompts": model.prompts().by_name(), "default_prompt": model.prompts().default_name(), "tensors": tensors,
    });
    terminal.result(&value, || {
        let mut lines = about(&name, &shape.config, model.tokenizer());
        lines.extend([
            format!("pooling      {}", shape.pooling.name()),
            format!(
                "vectors      {} dimensions{}",
                shape.dimensions(),
                if normalizes { ", normalised" } else { ", not normalised" }
            ),
            format!("parameters   {}", thousands(total)),
        ]);
        if let Some(base) = &base {
            lines.insert(1, format!("adapter of   {base}"));
        }
        let named = parts.iter().filter(|(_, count)| *count > 0);
        lines.extend(named.map(|(part, count)| format!("  {part:<10} {}", thousands(*count))));
        for (prompt, text) in model.prompts().by_name() {
            let default = if model.prompts().default_name() == Some(prompt) { " (default)" } else { "" };
            lines.push(format!("prompt       {prompt}{default}: {text:?}"));
        }
        lines.push(format!("tensors      {}", weights.tensors().len()));
        if let Some(Manifest { format, written_by, weights, files, self_test: Some(test), .. }) = &manifest {
            let bytes: u64 = files.values().map(|file| file.bytes).sum();
            lines.push(format!(
                "exported     {weights}, format {format}, by {written_by}; {} bytes; its test {} (cosine of at least {:.4})",
                thousands(bytes as usize),
                if model.is_tested() { "passed" } else { "was not run, as settings are overridden" },
                test.least_cosine
            ));
        }
        lines.extend(args.tensors.then(|| lines_of(&weights)).into_iter().flatten());
        lines.join("\n")
    })
}

/// The same of a cross-encoder, in so far as it has it.
fn reranker(name: &str, folder: &Path, args: &InspectArgs, global: &Global) -> Result<()> {
    let opened = open_folder(folder)?;
    let options = args.model.load_options();
    let taken = LoadOptions {
        max_length: options.max_length,
        precision: options.precision,
        ..LoadOptions::default()
    };
    if options != taken {
        bail!(
            "{name}: is a reranker, of which --max-length and --weights can be set, and nothing else"
        );
    }
    let reranker = Reranker::<Cpu>::load_with(opened.as_ref(), &options, &Default::default())?;
    reranker.verify()?;
    let weights = Weights::open(opened.as_ref(), weights_stem(opened.as_ref())?)?;
    let manifest = Manifest::read(opened.as_ref())?;
    let (config, activation) = (reranker.config(), reranker.activation());
    let tokenizer = reranker.tokenizer();
    let head = reranker.head().num_params();
    let total =
        head + reranker.clone().into_parts().model.backbone().clone().unpacked().num_params();
    let value = json!({
        "model": name, "config": config, "parameters": total, "head": head,
        "scores": reranker.labels(), "activation": activation, "tokenizer": tokenizer.config(),
        "tensors": values_of(&weights),
    });
    global.terminal().result(&value, || {
        let mut lines = about(name, config, tokenizer);
        let scores = match reranker.labels() {
            1 => "a score of each pair".into(),
            labels => format!("{labels} scores of each pair"),
        };
        lines.extend([
            format!("gives        {scores}, then {activation:?}"),
            format!("parameters   {}", thousands(total)),
            format!("  head       {}", thousands(head)),
            format!("tensors      {}", weights.tensors().len()),
        ]);
        if let Some(Manifest { format, written_by, weights, score_test: Some(test), .. }) =
            &manifest
        {
            lines.push(format!(
                "exported     {weights}, format {format}, by {written_by}; its test {} (scores apart by {:.4} at most)",
                match options == LoadOptions::default() {
                    true => "passed",
                    false => "was not run, as settings are overridden",
                },
                test.most_apart
            ));
        }
        lines.extend(args.tensors.then(|| lines_of(&weights)).into_iter().flatten());
        lines.join("\n")
    })
}

/// What all models have.
fn about(name: &str, config: &ModelConfig, tokenizer: &Tokenizer) -> Vec<String> {
    let mut lines = vec![
        format!("model        {name}"),
        format!("family       {} ({:?} attention)", config.family.model_type(), config.attention),
        format!(
            "shape        {}, {} wide, {} ({} for keys and values) of {}, feed-forward {}",
            counted(config.num_layers, "layer", "layers"),
            config.hidden_size,
            counted(config.num_heads, "head", "heads"),
            config.num_kv_heads,
            config.head_dim,
            config.intermediate_size
        ),
    ];
    lines.extend(more_of(config));
    let (uses, length) = (tokenizer.id_bound(), tokenizer.config().max_length);
    lines.extend([
        format!("vocabulary   {} tokens, tokenizer uses {uses}", config.vocab_size),
        format!("length       {length} tokens of {} positions", config.max_positions),
    ]);
    lines
}

/// In which numbers a tensor is kept.
fn kept(info: &TensorInfo) -> String {
    match info.scheme {
        Some(scheme) => scheme.to_string(),
        None => format!("{:?}", info.dtype),
    }
}

fn values_of(weights: &Weights) -> Vec<Value> {
    let value = |(name, info): (&String, &TensorInfo)| json!({"name": name, "shape": info.shape, "dtype": kept(info)});
    weights.tensors().iter().map(value).collect()
}

fn lines_of(weights: &Weights) -> Vec<String> {
    let line = |(name, info): (&String, &TensorInfo)| {
        format!("  {name}  {:?}  {}", info.shape, kept(info))
    };
    weights.tensors().iter().map(line).collect()
}

/// A line of what a model has whose layers are not all alike.
fn more_of(config: &ModelConfig) -> Option<String> {
    if let Some(experts) = config.encoder().ok().and_then(|encoder| encoder.experts) {
        let layers = (0..config.num_layers).filter(|layer| experts.are_in(*layer));
        let layers: Vec<String> = layers.map(|layer| layer.to_string()).collect();
        return Some(format!(
            "experts      {} of which a token takes {}, in the layers {}",
            experts.count,
            experts.top_k,
            layers.join(", ")
        ));
    }
    let decoder = config.decoder().ok()?;
    let heads = decoder.global_heads.map(|LayerHeads { kv_heads, head_dim }| {
        format!(
            "heads of {head_dim} ({kv_heads} for keys and values) where a layer sees the whole text"
        )
    });
    let inputs = decoder.per_layer_input.map(|width| format!("per-layer inputs {width} wide"));
    let output = decoder.output_size.map(|width| format!("last states projected to {width}"));
    let parts: Vec<String> = [heads, inputs, output].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("besides      {}", parts.join(", ")))
}

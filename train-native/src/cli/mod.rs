//! The command line: one file a command, each no more than arguments and a call.

mod adapt;
mod analyze;
mod bench;
mod chunk;
mod compare;
mod completions;
mod devices;
mod distill;
mod embed;
mod eval;
mod eval_search;
mod export;
mod granularity;
mod import;
mod index;
mod inspect;
mod llm;
mod load;
mod man;
mod mine;
mod prune;
mod push;
mod quantize;
mod quickstart;
mod ranges;
mod recall;
mod recipes;
mod refine;
mod rerank;
mod reranker;
mod search;
mod serve;
mod similarity;
mod sweep;
mod synthesize;
mod teacher_prompts;
mod train;

use std::borrow::Cow;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use kiln_embed::checkpoint::{Existing, Folder, LoadOptions, is_reranker};
use kiln_embed::config::AttentionMode;
use kiln_embed::embedder::{EmbedOptions, Prompt};
use kiln_embed::pooling::PoolingConfig;
use kiln_embed::quant::WeightPrecision;
use kiln_embed::tokenizer::{InstructionSpan, PaddingSide, TextOptions};

use crate::device::{DeviceChoice, open};
use crate::embedding::TextModel;
use crate::eval::fingerprint;
use crate::interrupt;
use crate::model::{folders, load, model_name};
use crate::shards::Settings;
use crate::terminal::{Terminal, captured, error_line, field};
use crate::vectors::VectorFormat;

/// Train, run and search with text-embedding models on CPU, Vulkan and CUDA.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: Global,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
struct Global {
    /// Device to run on: auto, cpu, vulkan[:n] or cuda[:n] (`kiln devices` lists them)
    #[arg(long, global = true, default_value = "auto", value_name = "DEVICE")]
    device: DeviceChoice,
    /// Print results as JSON
    #[arg(long, global = true)]
    json: bool,
    /// Print neither progress nor notes
    #[arg(long, short, global = true)]
    quiet: bool,
    /// Longest line, row or Parquet page to read from a file, in bytes [default: 64 MiB]
    #[arg(long, global = true, value_name = "BYTES", hide_default_value = true,
        default_value_t = crate::text::DEFAULT_MOST_BYTES, value_parser = most_text_bytes)]
    max_text_bytes: usize,
}

impl Global {
    fn terminal(&self) -> Terminal {
        Terminal { json: self.json, quiet: self.quiet }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::QuickstartArgs),
    Train(train::TrainArgs),
    Sweep(sweep::SweepArgs),
    Recipes(recipes::RecipesArgs),
    Adapt(Box<adapt::AdaptArgs>),
    Chunk(chunk::ChunkArgs),
    Mine(Box<mine::MineArgs>),
    Refine(Box<refine::RefineArgs>),
    Synthesize(Box<synthesize::SynthesizeArgs>),
    Granularity(granularity::GranularityArgs),
    Eval(Box<eval::EvalArgs>),
    Compare(compare::CompareArgs),
    Analyze(Box<analyze::AnalyzeArgs>),
    Recall(recall::RecallArgs),
    Serve(Box<serve::ServeArgs>),
    Load(load::LoadArgs),
    Distill(distill::DistillArgs),
    Prune(Box<prune::PruneArgs>),
    Quantize(Box<quantize::QuantizeArgs>),
    Export(export::ExportArgs),
    Import(import::ImportArgs),
    Push(push::PushArgs),
    /// List the devices that can be used, and why others cannot
    Devices,
    Embed(embed::EmbedArgs),
    Index(index::IndexArgs),
    Search(Box<search::SearchArgs>),
    Rerank(rerank::RerankArgs),
    Similarity(similarity::SimilarityArgs),
    Inspect(inspect::InspectArgs),
    Bench(bench::BenchArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// What may stand where a model is written.
#[derive(Debug, Clone, Copy, Args)]
struct Overwrite {
    /// Replace an earlier output of Kiln's; files that Kiln did not write are never replaced
    #[arg(long)]
    overwrite: bool,
}

impl Overwrite {
    fn rule(self) -> Existing {
        if self.overwrite { Existing::ReplaceOurs } else { Existing::Refuse }
    }
}

/// Which model, and what of its settings to override.
#[derive(Debug, Clone, Args)]
struct ModelArgs {
    /// Model: a folder, a .kiln file, or a Hub id (owner/name[@revision]), which is downloaded into
    /// huggingface_hub's cache. MODEL#NAME picks one of its adapters, wherever an embedder is named
    #[arg(long, short, value_name = "DIR|FILE|HUB_ID")]
    model: String,
    /// Use the adapter of this name (as MODEL#NAME), such as jina-embeddings-v3's retrieval.query
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    #[command(flatten)]
    overrides: ModelOverrides,
}

impl ModelArgs {
    /// The model as [`load`] takes it, its adapter with it.
    fn name(&self) -> Cow<'_, str> {
        with_adapter(&self.model, self.adapter.as_deref())
    }

    /// The same model with the adapter of another name, and that adapter; `None` where either has none.
    fn with_adapter_of<'a>(&self, other: &'a str) -> Option<(String, &'a str)> {
        let name = self.name();
        let ((model, _), (_, adapter)) = (name.rsplit_once('#')?, other.rsplit_once('#')?);
        Some((format!("{model}#{adapter}"), adapter))
    }

    fn load_options(&self) -> LoadOptions {
        self.overrides.load_options()
    }

    /// Whether what lies in `folder` is taken for a reranker. A pooling makes an embedder of a language model that ranks.
    fn ranks(&self, folder: &dyn Folder) -> Result<bool> {
        Ok(self.load_options().pooling.is_none() && is_reranker(folder)?)
    }

    /// Loads the model where the command computes.
    fn load(&self, flags: &EmbedFlags, global: &Global) -> Result<Arc<dyn TextModel>> {
        let options = flags.load_options(self.load_options());
        load(&self.name(), &options, &open(global.device)?, global.terminal())
    }
}

/// A model as [`load`] takes it, its adapter with it.
fn with_adapter<'a>(model: &'a str, adapter: Option<&str>) -> Cow<'a, str> {
    match adapter {
        Some(adapter) => format!("{model}#{adapter}").into(),
        None => model.into(),
    }
}

/// What of a model's settings to override; the command's argument with the id `model` names it.
#[derive(Debug, Clone, Args)]
#[group(requires = "model")]
struct ModelOverrides {
    /// Pool with this head instead of the model's own: cls, last_token, mean, weighted_mean or
    /// anchor
    #[arg(long, value_name = "NAME", value_parser = parse_pooling)]
    pooling: Option<PoolingConfig>,
    /// Use this attention mask instead of the model's own: causal or bidirectional
    #[arg(long, value_name = "MODE", value_parser = parse_attention)]
    attention: Option<AttentionMode>,
    /// Truncate texts to this many tokens [default: the model's own limit]
    #[arg(long, value_name = "TOKENS", value_parser = ranges::whole(1, ranges::SIZE))]
    max_length: Option<usize>,
    /// Whether to put BOS before each text: true or false [default: as the model's tokenizer does]
    #[arg(long, value_name = "BOOL")]
    add_bos: Option<bool>,
    /// Whether to put EOS after each text: true or false [default: as the model's tokenizer does]
    #[arg(long, value_name = "BOOL")]
    add_eos: Option<bool>,
    /// Put this after each text, before EOS; it is never cut away
    #[arg(long, value_name = "TEXT")]
    text_suffix: Option<String>,
    /// Pad shorter texts of a batch on this side instead of the model's: left or right
    #[arg(long, value_name = "SIDE", value_parser = parse_padding)]
    padding_side: Option<PaddingSide>,
    /// Which tokens of an instruction pooling leaves out: pooled (none), masked (BOS too),
    /// masked_after_bos, or masked_without_bos (NV-Embed's release)
    #[arg(long = "instruction-pooling", value_name = "RULE", value_parser = parse_instruction)]
    instruction_pooling: Option<InstructionSpan>,
}

impl ModelOverrides {
    fn load_options(&self) -> LoadOptions {
        LoadOptions {
            pooling: self.pooling.clone(),
            attention: self.attention,
            max_length: self.max_length,
            text: TextOptions {
                add_bos: self.add_bos,
                add_eos: self.add_eos,
                text_suffix: self.text_suffix.clone(),
                padding_side: self.padding_side,
                instruction: self.instruction_pooling,
            },
            precision: WeightPrecision::Kept,
        }
    }
}

/// How to embed.
#[derive(Debug, Clone, Args)]
struct EmbedFlags {
    /// Truncate vectors to their first N dimensions (Matryoshka)
    #[arg(long, value_name = "N", value_parser = ranges::whole(1, ranges::SIZE))]
    dimensions: Option<usize>,
    /// Maximum number of tokens in a batch, padding included [default: 256 on the CPU, so that a
    /// batch fits its caches; 4096 on GPUs]
    #[arg(long, value_name = "TOKENS", value_parser = ranges::whole(1, 1 << 30))]
    batch_tokens: Option<usize>,
    /// Precision to run the weights in: kept (that of the file), f32, or rounded while loading to
    /// bf16 (on the CPU, and on GPUs that multiply it), or to int8, int4, fp8-e4m3 or fp8-e5m2, each with an optional block size
    /// (:32, :64, :128, :channel)
    #[arg(long, value_name = "PRECISION", default_value_t = WeightPrecision::Kept)]
    weights: WeightPrecision,
}

impl EmbedFlags {
    /// How to load what is to be embedded with.
    fn load_options(&self, overrides: LoadOptions) -> LoadOptions {
        LoadOptions { precision: self.weights, ..overrides }
    }

    /// What vectors by a model depend on beside their texts.
    fn settings(
        &self,
        model: &ModelArgs,
        prompt: &str,
        fields: &[String],
        format: VectorFormat,
        terminal: Terminal,
    ) -> Result<Settings> {
        let name = model.name();
        let options = self.load_options(model.load_options());
        Ok(Settings {
            model: model_name(&name),
            fingerprint: fingerprint(&folders(&name, terminal)?, &options, self.dimensions)?,
            weights: self.weights.name(),
            prompt: prompt.into(),
            dimensions: self.dimensions,
            fields: fields.to_vec(),
            format: format.name().into(),
        })
    }

    fn options(&self, prompt: Option<&str>, prompt_text: Option<&str>) -> EmbedOptions {
        EmbedOptions {
            prompt: Prompt::from_options(prompt, prompt_text),
            dimensions: self.dimensions,
            normalize: None,
            batch_tokens: self.batch_tokens,
        }
    }
}

fn most_text_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().ok().filter(|bytes: &usize| (1024..=1 << 40).contains(bytes));
    bytes.ok_or_else(|| "expected a number of bytes, 1024 or more".into())
}

fn parse_pooling(name: &str) -> Result<PoolingConfig, String> {
    let pooling = PoolingConfig::from_name(name).map_err(|error| error.to_string())?;
    match pooling {
        PoolingConfig::Cls
        | PoolingConfig::LastToken
        | PoolingConfig::Mean
        | PoolingConfig::WeightedMean
        | PoolingConfig::Anchor { .. } => Ok(pooling),
        _ => Err(format!("{name} has parameters; train it with a recipe")),
    }
}

fn parse_attention(name: &str) -> Result<AttentionMode, String> {
    match name {
        "causal" => Ok(AttentionMode::Causal),
        "bidirectional" => Ok(AttentionMode::Bidirectional),
        _ => Err(format!("{name:?} is neither causal nor bidirectional")),
    }
}

fn parse_padding(name: &str) -> Result<PaddingSide, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

fn parse_instruction(name: &str) -> Result<InstructionSpan, String> {
    serde_json::from_value(name.into()).map_err(|error| error.to_string())
}

/// What a build without approximate indexes says.
#[cfg(not(feature = "hnsw"))]
const WITHOUT_HNSW: &str = "this kiln was built without approximate indexes; build it with --features hnsw, or install the package";

/// What to do where memory runs out.
pub const LOWER_MEMORY: &str = "in training lower compute.chunk (with compute.grad_cache or \
    compute.checkpoint_blocks = true), batch_size or max_length, elsewhere --batch-tokens";

/// Whether a device's failure is that it has no memory left, by the words that drivers use.
fn is_out_of_memory(failure: &str) -> bool {
    let failure = failure.to_lowercase();
    ["out of memory", "outofmemory", "out_of_memory"].iter().any(|part| failure.contains(part))
}

/// Runs a command.
fn execute(command: &Command, global: &Global) -> Result<()> {
    match command {
        Command::Quickstart(args) => quickstart::run(args, global),
        Command::Train(args) => train::run(args, global),
        Command::Sweep(args) => sweep::run(args, global),
        Command::Recipes(args) => recipes::run(args, global),
        Command::Adapt(args) => adapt::run(args, global),
        Command::Chunk(args) => chunk::run(args, global),
        Command::Refine(args) => refine::run(args, global),
        Command::Mine(args) => mine::run(args, global),
        Command::Synthesize(args) => synthesize::run(args, global),
        Command::Granularity(args) => granularity::run(args, global),
        Command::Eval(args) => eval::run(args, global),
        Command::Compare(args) => compare::run(args, global),
        Command::Analyze(args) => analyze::run(args, global),
        Command::Recall(args) => recall::run(args, global),
        Command::Serve(args) => serve::run(args, global),
        Command::Load(args) => load::run(args, global),
        Command::Distill(args) => distill::run(args, global),
        Command::Prune(args) => prune::run(args, global),
        Command::Quantize(args) => quantize::run(args, global),
        Command::Export(args) => export::run(args, global),
        Command::Import(args) => import::run(args, global),
        Command::Push(args) => push::run(args, global),
        Command::Devices => devices::run(global),
        Command::Embed(args) => embed::run(args, global),
        Command::Index(args) => index::run(args, global),
        Command::Search(args) => search::run(args, global),
        Command::Rerank(args) => rerank::run(args, global),
        Command::Similarity(args) => similarity::run(args, global),
        Command::Inspect(args) => inspect::run(args, global),
        Command::Bench(args) => bench::run(args, global),
        Command::Completions(args) => completions::run(args, global),
        Command::Man(args) => man::run(args, global),
    }
}

/// Parses the command line, runs the command, and reports an error in one line.
pub fn main() -> ExitCode {
    ExitCode::from(run_as_process(std::env::args_os()))
}

/// As [`main`], of arguments that begin with the command's own name: the exit code. It takes over the
/// process's panics and signals.
pub fn run_as_process(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map(|place| format!(" ({}:{})", place.file(), place.line()));
        let what =
            panic.payload_as_str().unwrap_or("unknown cause").lines().next().unwrap_or_default();
        if is_out_of_memory(what) {
            eprintln!("error: the device is out of memory ({}); {LOWER_MEMORY}", field(what));
            return;
        }
        let place = place.unwrap_or_default();
        eprintln!("error: internal failure: {}{place}; please report it", field(what));
    }));
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Nobody is left to tell where the terminal is gone.
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(1);
        }
    };
    crate::text::set_most_bytes(cli.global.max_text_bytes);
    let result = interrupt::listen().and_then(|()| execute(&cli.command, &cli.global));
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("error: {}", error_line(&error));
            match error.downcast_ref::<kiln_embed::Error>() {
                Some(kiln_embed::Error::Cancelled) => interrupt::EXIT_CODE,
                _ => 1,
            }
        }
    }
}

/// What is wrong with the arguments of [`call`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct BadArguments(String);

/// Runs a command inside another program, with `--json`: its results, a line of JSON each. Arguments begin
/// with the command's own name. Signals stay the program's; [`interrupt::ask`] ends it.
///
/// # Errors
/// [`BadArguments`], or the command's own.
pub fn call(arguments: impl IntoIterator<Item = OsString>) -> Result<String> {
    let cli = Cli::try_parse_from(arguments).map_err(|error| {
        let text = error.to_string();
        let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
        let line = lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
        BadArguments(line.trim_start_matches("error: ").to_string())
    })?;
    let global = Global { json: true, ..cli.global };
    crate::text::set_most_bytes(global.max_text_bytes);
    let (done, results) = captured(|| execute(&cli.command, &global));
    done.map(|()| results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gives_its_results_and_says_what_is_wrong() {
        let call = |arguments: &[&str]| call(arguments.iter().map(OsString::from));
        let recipes = call(&["kiln", "recipes"]).unwrap();
        let recipes: serde_json::Value = serde_json::from_str(&recipes).unwrap();
        assert!(recipes.as_array().is_some_and(|all| !all.is_empty()), "{recipes}");
        let error = call(&["kiln", "embed", "--mode"]).unwrap_err();
        assert!(error.is::<BadArguments>(), "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
        assert!(error.to_string().contains("--mode"), "{error}");
        let error = call(&["kiln", "inspect", "--model", "no/such/folder"]).unwrap_err();
        assert!(!error.is::<BadArguments>() && error.to_string().contains("no/such"), "{error:#}");
    }

    #[test]
    fn drivers_words_for_no_memory_are_known() {
        for failure in [
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            "wgpu error: Out of Memory",
            "Not enough memory left on device: OutOfMemory",
        ] {
            assert!(is_out_of_memory(failure), "{failure}");
        }
        assert!(!is_out_of_memory("index out of bounds"));
    }
}

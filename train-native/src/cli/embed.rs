//! `kiln embed`

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::{EmbedFlags, Global, ModelArgs};
use crate::device;
use crate::embedding::embed_file;
use crate::model::load;
use crate::terminal::thousands;
use crate::text::{Columns, TextFile, apart};

/// Turn the texts of a file into vectors.
#[derive(Debug, Args)]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// File of texts by extension: .txt (one a line), .jsonl, .csv, .tsv, .parquet, each also
    /// .gz or .zst; - for standard input
    #[arg(long, short, value_name = "FILE")]
    input: String,
    /// File of vectors by extension: .npy, .jsonl, .parquet, .safetensors
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Field or column that holds the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Prompt of the model by name (see `inspect`)
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
    /// Prompt text to put before each text
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    flags: EmbedFlags,
}

pub(super) fn run(args: &EmbedArgs, global: &Global) -> Result<()> {
    // What can be wrong with the arguments is found before the model is loaded.
    let texts =
        TextFile::open(&args.input, Columns { fields: args.field.clone(), optional: Vec::new() })?;
    crate::vectors::VectorFormat::of(&args.output)?;
    apart(&args.output, &[texts.path()])?;
    let options = args.flags.options(args.prompt_name.as_deref(), args.prompt.as_deref());
    let device = device::open(global.device)?;
    let terminal = global.terminal();
    let overrides = args.flags.load_options(args.model.load_options());
    let model = load(&args.model.model, &overrides, &device, terminal)?;
    let device = device.to_string();
    let total = texts.count()?;
    if total == 0 {
        bail!("{}: holds no text", texts.label);
    }
    let start = Instant::now();
    let done = embed_file(model.as_ref(), &texts, total, &args.output, &options, terminal)?;
    let seconds = start.elapsed().as_secs_f64();
    let dim = model.dimensions(&options);
    let summary = json!({
        "output": args.output, "texts": total, "tokens": done.tokens, "dimensions": dim,
        "seconds": seconds, "texts_per_second": total as f64 / seconds, "device": device,
    });
    terminal.result(&summary, || {
        format!(
            "{} texts, {} tokens -> {} ({} dimensions) in {seconds:.1} s, {:.1} texts/s on {device}",
            thousands(total),
            thousands(done.tokens),
            args.output.display(),
            dim,
            total as f64 / seconds,
        )
    })
}

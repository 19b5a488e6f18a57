//! `kiln embed`

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::{EmbedFlags, Global, ModelArgs};
use crate::device;
use crate::embedding::embed_blocks;
use crate::model::load;
use crate::terminal::thousands;
use crate::text::{Columns, TextFile, apart};
use crate::vectors::{VectorFormat, VectorWriter};

/// Embed the texts of a file
#[derive(Debug, Args)]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// File of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet, optionally with .gz or
    /// .zst; - reads standard input
    #[arg(long, short, value_name = "FILE")]
    input: String,
    /// File to write the vectors to: .npy, .jsonl, .parquet or .safetensors; - writes to standard
    /// output
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Format of the vectors: npy, jsonl, parquet or safetensors [default: by the extension; jsonl
    /// on standard output]
    #[arg(long, value_name = "FORMAT")]
    format: Option<VectorFormat>,
    /// Field or column of the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Name of the model's prompt to use (`kiln inspect` lists them)
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
    /// Prompt to put before each text
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    #[command(flatten)]
    flags: EmbedFlags,
}

impl EmbedArgs {
    /// Whether the vectors go to standard output.
    fn piped(&self) -> bool {
        self.output == Path::new("-")
    }

    fn format(&self) -> Result<VectorFormat> {
        match self.format {
            Some(format) => Ok(format),
            None if self.piped() => Ok(VectorFormat::JsonLines),
            None => VectorFormat::of(&self.output),
        }
    }
}

pub(super) fn run(args: &EmbedArgs, global: &Global) -> Result<()> {
    // What can be wrong with the arguments is found before the model is loaded.
    let texts =
        TextFile::open(&args.input, Columns { fields: args.field.clone(), optional: Vec::new() })?;
    let format = args.format()?;
    if args.piped() && global.json {
        bail!(
            "--json prints a summary to standard output, where the vectors go; leave it out, or name a file"
        );
    }
    if !args.piped() {
        apart(&args.output, &[texts.path()])?;
    }
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
    let dim = model.dimensions(&options);
    let mut writer = match args.piped() {
        true => VectorWriter::to_standard_output(format, total, dim)?,
        false => VectorWriter::create_as(format, &args.output, total, dim)?,
    };
    let done = embed_blocks(model.as_ref(), &texts, total, &options, terminal, |rows| {
        writer.write(&rows)
    })?;
    writer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let text = || {
        format!(
            "{} texts, {} tokens -> {} ({} dimensions) in {seconds:.1} s, {:.1} texts/s on {device}",
            thousands(total),
            thousands(done.tokens),
            if args.piped() { "standard output".into() } else { args.output.display().to_string() },
            dim,
            total as f64 / seconds,
        )
    };
    if args.piped() {
        terminal.note(text());
        return Ok(());
    }
    let summary = json!({
        "output": args.output, "texts": total, "tokens": done.tokens, "dimensions": dim,
        "seconds": seconds, "texts_per_second": total as f64 / seconds, "device": device,
    });
    terminal.result(&summary, text)
}

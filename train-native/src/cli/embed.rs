//! `kiln embed`

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use super::{EmbedFlags, Global, ModelArgs};
use crate::device;
use crate::embedding::embed_blocks;
use crate::model::{load, load_tokenizer};
use crate::shards::{self, EmbedJob, Shard, is_address};
use crate::terminal::{counted, print_json, thousands};
use crate::text::{Columns, TextFile, apart};
use crate::vectors::{VectorFormat, VectorWriter};

/// Embed the texts of a file, or of many files.
///
/// Many files are a folder, a pattern ('docs/*.parquet') or an address of an object store ('s3://bucket/docs/'; also gs,
/// az, http), and --output is a folder or such an address. Each file gets an output of its own, written whole or not at
/// all. What is done is skipped the next time, so that a job that was stopped goes on; --shard divides the files among
/// processes.
///
/// A job resumes file by file: an interrupted file starts again, and so does one file embedded into one (--output
/// vectors.npy). Split a large file, such as by
/// `split --lines 100000 --additional-suffix .jsonl big.jsonl docs/part-`, and name the folder.
#[derive(Debug, Args)]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// File of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet, optionally with .gz or
    /// .zst; - reads standard input. Or many: a folder, a pattern, an address
    #[arg(long, short, value_name = "FILE|DIR|PATTERN|URL")]
    input: String,
    /// File to write the vectors to: .npy, .jsonl, .parquet or .safetensors; - writes to standard
    /// output. Of many files a folder (named with a / at its end, or there already) or an address
    #[arg(long, short, value_name = "FILE|DIR|URL")]
    output: PathBuf,
    /// Share of the files to embed: I/N, counted from 0, or auto (auto/N), which asks SLURM's, Kubernetes' and
    /// torchrun's variables [default: all files]
    #[arg(long, value_name = "I/N")]
    shard: Option<Shard>,
    /// Of many files, leave out rows that cannot be read or embedded, and list them in the output's _kiln/
    #[arg(long)]
    skip_bad_rows: bool,
    /// Of many files, read again what is done, compare it with the SHA-256 that was noted, and embed anew what is
    /// damaged; without it the size is compared alone
    #[arg(long)]
    verify: bool,
    /// Format of the vectors: npy, jsonl, parquet or safetensors [default: by the extension; jsonl
    /// on standard output; parquet for many files]
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

    /// Whether many files are asked for.
    fn is_many(&self) -> bool {
        let output = self.output.to_string_lossy();
        is_address(&self.input)
            || is_address(&output)
            || output.ends_with('/')
            || self.output.is_dir()
            || Path::new(&self.input).is_dir()
            || self.shard.is_some()
            || self.skip_bad_rows
            || self.verify
    }

    fn format(&self) -> Result<VectorFormat> {
        match self.format {
            Some(format) => Ok(format),
            None if self.piped() => Ok(VectorFormat::JsonLines),
            None => VectorFormat::of(&self.output),
        }
    }
}

/// Embeds many files into as many.
fn run_many(args: &EmbedArgs, global: &Global) -> Result<()> {
    let output = args.output.to_string_lossy();
    let is_folder = is_address(&output) || output.ends_with('/') || !args.output.is_file();
    if args.piped() || !is_folder || VectorFormat::of(&args.output).is_ok() {
        bail!(
            "{}: many files are embedded into a folder, and {output} is none; name one, with a / at its end",
            args.input
        );
    }
    if args.input == "-" {
        bail!("standard input is one file; --shard, --skip-bad-rows and --verify are for many");
    }
    let terminal = global.terminal();
    let overrides = args.flags.load_options(args.model.load_options());
    let options = args.flags.options(args.prompt_name.as_deref(), args.prompt.as_deref());
    let (_, prompts) = load_tokenizer(&args.model.name(), terminal)?;
    let prompt = prompts.text(&options.prompt)?;
    let format = args.format.unwrap_or(VectorFormat::Parquet);
    let prepared = shards::prepare(EmbedJob {
        input: &args.input,
        output: &output,
        shard: args.shard.unwrap_or(Shard::ALL),
        format,
        columns: Columns { fields: args.field.clone(), optional: Vec::new() },
        skip_bad_rows: args.skip_bad_rows,
        verify: args.verify,
        settings: args.flags.settings(&args.model, prompt, &args.field, format, terminal)?,
        terminal,
    })?;
    let device = device::open(global.device)?;
    let model = load(&args.model.name(), &overrides, &device, terminal)?;
    let summary = prepared.run(model.as_ref(), &options)?;
    let text = || {
        format!(
            "{}: {} done before{}, {}, {} -> {output} in {:.1} s, {:.1} texts/s on {device}{}",
            counted(summary.files, "file", "files"),
            thousands(summary.skipped),
            match summary.damaged {
                0 => String::new(),
                damaged => format!(" and whole, {} damaged", thousands(damaged)),
            },
            counted(summary.texts, "text", "texts"),
            counted(summary.tokens, "token", "tokens"),
            summary.seconds,
            summary.texts as f64 / summary.seconds.max(1e-9),
            match summary.bad_rows {
                0 => String::new(),
                bad => format!("; {} left out", counted(bad, "bad row", "bad rows")),
            },
        )
    };
    let Some((_, first)) = summary.failed.iter().next() else {
        return terminal.result(&summary, text);
    };
    match global.json {
        true => print_json(&summary)?,
        false => terminal.note(text()),
    }
    let files = counted(summary.files, "file", "files");
    bail!("{} of {files} failed: {first}", summary.failed.len())
}

pub(super) fn run(args: &EmbedArgs, global: &Global) -> Result<()> {
    if args.is_many() {
        return run_many(args, global);
    }
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
    let model = load(&args.model.name(), &overrides, &device, terminal)?;
    let device = device.to_string();
    let total = texts.count()?;
    if total == 0 {
        bail!("{}: holds no text", texts.label);
    }
    let dim = model.dimensions(&options);
    let mut writer = match args.piped() {
        true => VectorWriter::to_standard_output(format, total, dim)?,
        false => VectorWriter::create_as(format, &args.output, total, dim)?,
    };
    writer.describe(|| {
        let prompt = model.prompts().text(&options.prompt)?;
        args.flags.settings(&args.model, prompt, &args.field, format, terminal)?.line()
    })?;
    let start = Instant::now();
    let done = embed_blocks(model.as_ref(), &texts, total, &options, terminal, |rows| {
        writer.write(&rows)
    })?;
    writer.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let text = || {
        format!(
            "{}, {} -> {} ({} dimensions) in {seconds:.1} s, {:.1} texts/s on {device}",
            counted(total, "text", "texts"),
            counted(done.tokens, "token", "tokens"),
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

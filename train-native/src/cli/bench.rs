//! `kiln bench`

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kiln_embed::embedder::EmbedOptions;

use super::ranges::{ROWS, whole};
use super::{Global, ModelArgs};
use crate::bench::{Bench, Line, measure};
use crate::device::{self, Device, processor};
use crate::model::{load_embedder, resolve};
use crate::terminal::{print_json, thousands};
use crate::text::{Columns, Record, TextFile};
use crate::with_backend;

/// Compare our speed with sentence-transformers and ONNX Runtime: the same texts on the same
/// cores in one run, each engine in processes of its own.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Files of texts (formats as `embed --input`)
    #[arg(long, short, value_name = "FILE", required = true)]
    input: Vec<String>,
    /// Field or column that holds the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Use only the first texts
    #[arg(long, value_name = "N", value_parser = whole(1, ROWS))]
    limit: Option<usize>,
    /// The same model quantized by Kiln (folders or .kiln files), to be measured beside it, and beside ONNX
    /// Runtime's dynamic int8
    #[arg(long, value_name = "DIRS|FILES", value_delimiter = ',')]
    quantized: Vec<PathBuf>,
    /// Texts in a batch; on the CPU Kiln cuts its own where they would have more than 256 tokens
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(1, 1 << 20))]
    batch: usize,
    /// Passes over the texts in each process
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole(1, 10_000))]
    runs: usize,
    /// Processes of each engine, alternating
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1, 10_000))]
    rounds: usize,
    /// Python with sentence-transformers, onnx and onnxruntime (tests/setup.sh python makes one);
    /// without it only Kiln is measured
    #[arg(long, value_name = "PYTHON", env = "KILN_PYTHON")]
    python: Option<PathBuf>,
    /// Measure only this process and write the vectors here
    #[arg(long, hide = true, value_name = "FILE")]
    measure: Option<PathBuf>,
}

pub(super) fn run(args: &BenchArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let texts = read_texts(args)?;
    if texts.is_empty() {
        bail!("nothing to measure: no texts");
    }
    let device = device::open(global.device)?;
    let folder = resolve(&args.model.model, terminal)?;
    let name = folder.display().to_string();
    with_backend!(&device, B, handle => {
        let embedder = load_embedder::<B>(&name, &args.model.load_options(), &handle, terminal)?;
        let longest = embedder.tokenizer().config().max_length;
        let most = args.batch * longest.min(128);
        let usual = EmbedOptions::default().batch_tokens::<B>(1);
        let options = EmbedOptions { batch_tokens: Some(most.min(usual)), ..Default::default() };
        if let Some(out) = &args.measure {
            let measured = measure(&embedder, &texts, &options, args.runs, out)?;
            return print_json(&measured);
        }
        let tokens = embedder.tokenizer().encode_all("", &texts)?;
        let tokens = tokens.iter().map(|tokens| tokens.ids.len()).sum();
        drop(embedder);
        let bench = Bench {
            model: folder,
            quantized: args.quantized.clone(),
            texts,
            tokens,
            batch: args.batch,
            max_length: args.model.overrides.max_length.unwrap_or(0),
            runs: args.runs,
            rounds: args.rounds,
            python: args.python.clone(),
            device: global.device.to_string(),
        };
        let lines = bench.run(terminal)?;
        let device = match &device {
            Device::Cpu => processor(),
            other => other.to_string(),
        };
        terminal.result(&lines, || table(&bench, &device, &lines))
    })
}

/// The texts; a `.json` file written by `bench` itself is one list.
fn read_texts(args: &BenchArgs) -> Result<Vec<String>> {
    let mut texts = Vec::new();
    for input in &args.input {
        if args.measure.is_some() {
            let list = std::fs::read(input).with_context(|| input.clone())?;
            texts.extend(
                serde_json::from_slice::<Vec<String>>(&list).with_context(|| input.clone())?,
            );
            continue;
        }
        let file =
            TextFile::open(input, Columns { fields: args.field.clone(), optional: Vec::new() })?;
        let records = file.records()?.take(args.limit.unwrap_or(usize::MAX));
        texts.extend(
            records
                .map(|record| record.map(|record: Record| record.joined()))
                .collect::<Result<Vec<_>>>()?,
        );
    }
    texts.truncate(args.limit.unwrap_or(usize::MAX));
    Ok(texts)
}

fn table(bench: &Bench, device: &str, lines: &[Line]) -> String {
    let mut rows = vec![
        format!(
            "{} texts, {} tokens, batches of {}, on {device}",
            thousands(bench.texts.len()),
            thousands(bench.tokens),
            bench.batch
        ),
        format!(
            "{:<22} {:>8} {:>10} {:>8} {:>11} {:>10} {:>10}",
            "engine", "texts/s", "tokens/s", "peak MB", "Kiln ratio", "min cosine", "mean"
        ),
    ];
    rows.extend(lines.iter().map(|line| {
        format!(
            "{:<22} {:>8.1} {:>10.0} {:>8} {:>10.2}x {:>10.6} {:>10.6}",
            line.engine,
            line.texts_per_second,
            line.tokens_per_second,
            line.peak_mb,
            line.kiln_ratio,
            line.agreement,
            line.mean_agreement
        )
    }));
    rows.join("\n")
}

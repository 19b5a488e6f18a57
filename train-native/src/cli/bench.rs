//! `kiln bench`

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::quant::WeightPrecision;

use super::ranges::{ROWS, SIZE, whole};
use super::{Global, ModelArgs, ModelOverrides};
use crate::bench::{Bench, BenchLine, Peer, Ratios, Report, Work, WorkReport, made_up, measure};
use crate::device::{self, Device, processor};
use crate::embedding::TextModel;
use crate::model::{load, locate, model_name};
use crate::terminal::{print_json, thousands};
use crate::text::{Columns, Record, TextFile};

/// Compare Kiln's speed with that of sentence-transformers, ONNX Runtime, OpenVINO and llama.cpp.
///
/// All engines embed the same texts on the same cores in one run, each in processes of its own.
#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Files of texts, in any format of `embed --input`
    #[arg(long, short, value_name = "FILE", required_unless_present_any = ["tokens", "latency"])]
    input: Vec<String>,
    /// Field or column of the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Use only the first N texts; with --tokens, make up N
    #[arg(long, value_name = "N", value_parser = whole(1, ROWS))]
    limit: Option<usize>,
    /// Measure on made-up texts of exactly N tokens instead, each length by itself [default with
    /// --latency and without --input: 12]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = whole(3, SIZE),
        conflicts_with = "input")]
    tokens: Vec<usize>,
    /// Embed one text at a time, and show within how long half (p50) and 95 % (p95) of them were
    /// embedded
    #[arg(long)]
    latency: bool,
    /// The same model quantized by Kiln (folders or .kiln files), to be measured too
    #[arg(long, value_name = "DIRS|FILES", value_delimiter = ',')]
    quantized: Vec<PathBuf>,
    /// Measure the model with its weights rounded while loading too, as `embed --weights` does
    #[arg(long, value_name = "PRECISIONS", value_delimiter = ',')]
    weights: Vec<WeightPrecision>,
    /// Batch size in texts; on the CPU, Kiln splits batches of more than 256 tokens
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(1, 1 << 20))]
    batch: usize,
    /// Passes over the texts in each process
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole(1, 10_000))]
    runs: usize,
    /// Processes per engine; engines take turns
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1, 10_000))]
    rounds: usize,
    /// Python with the peers (`tests/setup.sh python` installs one); without it, only Kiln is
    /// measured
    #[arg(long, value_name = "PYTHON", env = "KILN_PYTHON")]
    python: Option<PathBuf>,
    /// Peers to measure: sentence-transformers, onnxruntime and openvino, which compute in f32,
    /// sentence-transformers-bf16, openvino-bf16, onnxruntime-int8 and llama-cpp (Q8_0) [default:
    /// all that PYTHON has; the last two only with something quantized of ours and with --gguf]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "python")]
    peers: Vec<Peer>,
    /// The same model as a GGUF file, for llama-cpp; it is measured in Q8_0 whatever the file holds
    #[arg(long, value_name = "FILE", requires = "python")]
    gguf: Option<PathBuf>,
    /// Compare the ratios with those stored in FILE, and warn of each that is more than 10 % lower
    #[arg(long, value_name = "FILE")]
    check: Option<PathBuf>,
    /// Store the ratios in FILE, in the place of those of the same texts, model, device and peers
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Measure only this process and write the vectors here
    #[arg(long, hide = true, value_name = "FILE")]
    measure: Option<PathBuf>,
}

pub(super) fn run(args: &BenchArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    // An unreadable file is told before anything is measured.
    let stored = args.check.as_deref().map(Ratios::read).transpose()?;
    let lengths = lengths(args);
    let texts = if lengths.is_empty() { read_texts(args)? } else { Vec::new() };
    if lengths.is_empty() && texts.is_empty() {
        bail!("nothing to measure: no texts");
    }
    let device = device::open(global.device)?;
    let found = locate(&args.model.name(), terminal)?;
    let name = found.name();
    let mut options = args.model.load_options();
    if let Some(longest) = lengths.iter().max() {
        options.max_length = Some(*longest);
    }
    if args.measure.is_some() {
        options =
            LoadOptions { precision: args.weights.first().copied().unwrap_or_default(), ..options };
    }
    let model = load(&name, &options, &device, terminal)?;
    if let Some(out) = &args.measure {
        let longest = model.tokenizer().config().max_length;
        let most = args.batch * longest.min(128);
        let usual = model.batch_tokens(&EmbedOptions::default());
        let options = EmbedOptions { batch_tokens: Some(most.min(usual)), ..Default::default() };
        let how = (args.runs, args.latency);
        return print_json(&measure(model.as_ref(), &texts, &options, how, out)?);
    }
    let works = if lengths.is_empty() {
        let tokens = model.tokenizer().encode_all("", &texts)?;
        let tokens = tokens.iter().map(|tokens| tokens.ids.len()).sum();
        let max_length = args.model.overrides.max_length.unwrap_or(0);
        vec![Work { texts, tokens, max_length }]
    } else {
        made_up_works(args, &lengths, model.as_ref())?
    };
    let pooling = model.shape().pooling.name().to_string();
    let size = thousands(model.parameters().backbone);
    drop(model);
    // The folder of an adapter that was made of a model's file has no name.
    let file = match name.contains('#') {
        true => model_name(&name),
        false => found.folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    let bench = Bench {
        name: format!("{file}, {size} parameters"),
        model: found.folder.clone(),
        own: name.into(),
        quantized: args.quantized.clone(),
        weights: args.weights.clone(),
        pooling,
        overrides: overrides(&args.model.overrides),
        batch: args.batch,
        one_at_a_time: args.latency,
        runs: args.runs,
        rounds: args.rounds,
        python: args.python.clone(),
        peers: args.peers.clone(),
        gguf: args.gguf.clone(),
        device: global.device.to_string(),
        machine: match &device {
            Device::Cpu => processor(),
            other => other.to_string(),
        },
    };
    let mut report = bench.run(&works, terminal)?;
    let measured = Ratios::of(&report);
    if let Some(stored) = stored {
        report.warnings = stored.warnings(&measured);
    }
    if let Some(file) = &args.store {
        measured.store(file)?;
    }
    for warning in &report.warnings {
        terminal.note(format!("warning: {warning}"));
    }
    terminal.result(&report, || text(&report))
}

/// Lengths of made-up texts; none where texts are given.
fn lengths(args: &BenchArgs) -> Vec<usize> {
    match args.tokens.is_empty() && args.input.is_empty() {
        true => vec![SHORT_QUERY],
        false => args.tokens.clone(),
    }
}

/// Tokens of a short query.
const SHORT_QUERY: usize = 12;
/// Where --limit does not say: as many texts as make so many tokens, within these numbers.
const MADE_UP_TOKENS: usize = 8192;
const MADE_UP_TEXTS: usize = 64;
/// Most tokens of all texts together, which are kept in memory.
const MOST_MADE_UP: usize = 1 << 28;

/// Texts of each length.
fn made_up_works(args: &BenchArgs, lengths: &[usize], model: &dyn TextModel) -> Result<Vec<Work>> {
    let longest = lengths.iter().copied().max().unwrap_or_default();
    let cut = model.tokenizer().encode_all("", &made_up(1, longest))?;
    let cut = cut.first().map_or(0, |tokens| tokens.ids.len());
    if cut != longest {
        bail!(
            "--tokens {longest}: the model cuts texts at {cut} tokens; ask for at most that many"
        );
    }
    let count =
        |length: usize| args.limit.unwrap_or((MADE_UP_TOKENS / length).clamp(1, MADE_UP_TEXTS));
    if let Some(length) = lengths.iter().find(|&&length| count(length) > MOST_MADE_UP / length) {
        bail!("--limit {}: too many texts of {length} tokens to make up", count(*length));
    }
    let work = |&length: &usize| {
        let count = count(length);
        Work { texts: made_up(count, length), tokens: count * length, max_length: length }
    };
    Ok(lengths.iter().map(work).collect())
}

/// The overrides but the length, as options.
fn overrides(overrides: &ModelOverrides) -> Vec<String> {
    let ModelOverrides {
        pooling,
        attention,
        max_length: _,
        add_bos,
        add_eos,
        text_suffix,
        padding_side,
        instruction_pooling,
    } = overrides;
    // By the words that are parsed.
    let word = |value: serde_json::Result<serde_json::Value>| {
        value.ok().and_then(|value| value.as_str().map(String::from))
    };
    let options = [
        ("--pooling", pooling.as_ref().map(|pooling| pooling.name().to_string())),
        ("--attention", attention.and_then(|mode| word(serde_json::to_value(mode)))),
        ("--add-bos", add_bos.map(|adds| adds.to_string())),
        ("--add-eos", add_eos.map(|adds| adds.to_string())),
        ("--text-suffix", text_suffix.clone()),
        ("--padding-side", padding_side.and_then(|side| word(serde_json::to_value(side)))),
        (
            "--instruction-pooling",
            instruction_pooling.and_then(|rule| word(serde_json::to_value(rule))),
        ),
    ];
    // A suffix may begin as an option does.
    let given = options.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
    given.collect()
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

fn text(report: &Report) -> String {
    let works: Vec<String> = report.works.iter().map(table).collect();
    format!("on {}\n\n{}", report.machine, works.join("\n\n"))
}

fn table(work: &WorkReport) -> String {
    let latency = work.lines.iter().any(|line| line.p50_ms.is_some());
    let speed = if latency { ["p50 ms", "p95 ms"] } else { ["texts/s", "tokens/s"] };
    let mut rows = vec![
        work.work.clone(),
        format!(
            "{:<26} {:>8} {:>10} {:>8} {:>11} {:>10} {:>10}",
            "engine", speed[0], speed[1], "peak MB", "Kiln ratio", "min cosine", "mean"
        ),
    ];
    rows.extend(work.lines.iter().map(|line| {
        let [first, second] = speeds(line);
        format!(
            "{:<26} {first:>8} {second:>10} {:>8} {:>10.2}x {:>10.6} {:>10.6}",
            line.engine,
            thousands(line.peak_mb as usize),
            line.kiln_ratio,
            line.agreement,
            line.mean_agreement
        )
    }));
    rows.join("\n")
}

fn speeds(line: &BenchLine) -> [String; 2] {
    match (line.p50_ms, line.p95_ms) {
        (Some(p50), Some(p95)) => [p50, p95].map(|ms| format!("{ms:.2}")),
        // Long texts take seconds.
        _ => {
            let digits = if line.texts_per_second < 10.0 { 3 } else { 1 };
            [
                format!("{:.digits$}", line.texts_per_second),
                format!("{:.0}", line.tokens_per_second),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(options: &str) -> Result<BenchArgs, String> {
        let words = ["bench", "-m", "dir"].into_iter().chain(options.split_whitespace());
        Command::try_parse_from(words)
            .map(|command| command.bench)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn texts_come_from_a_file_or_are_made_up() {
        assert_eq!(lengths(&parse("--input a.txt").unwrap()), [0; 0]);
        assert_eq!(lengths(&parse("--input a.txt --latency").unwrap()), [0; 0]);
        assert_eq!(lengths(&parse("--latency").unwrap()), [SHORT_QUERY]);
        assert_eq!(lengths(&parse("--tokens 1024,8192").unwrap()), [1024, 8192]);
        assert!(parse("").unwrap_err().contains("--input"));
        assert!(parse("--input a.txt --tokens 12").is_err());
        assert!(parse("--tokens 0").is_err());
    }

    #[test]
    fn peers_and_precisions_are_lists() {
        let args = parse("--latency --python py --peers openvino,openvino-bf16 --weights int8:128")
            .unwrap();
        assert_eq!(args.peers, [Peer::Openvino, Peer::OpenvinoBf16]);
        assert_eq!(args.weights.iter().map(ToString::to_string).collect::<Vec<_>>(), ["int8:128"]);
        let error = parse("--latency --python py --peers tensorflow").unwrap_err();
        assert!(error.contains("there are sentence-transformers"), "{error}");
    }

    #[test]
    fn each_process_is_told_of_the_overrides() {
        let all = "--latency --pooling mean --attention causal --max-length 40 --add-bos true --add-eos false \
                   --text-suffix=--end --padding-side left --instruction-pooling masked_without_bos";
        let args = parse(all).unwrap();
        let told = overrides(&args.model.overrides);
        let expected = [
            "--pooling=mean",
            "--attention=causal",
            "--add-bos=true",
            "--add-eos=false",
            "--text-suffix=--end",
            "--padding-side=left",
            "--instruction-pooling=masked_without_bos",
        ];
        assert_eq!(told, expected);
        let again = parse(&format!("--latency {}", told.join(" "))).unwrap();
        assert_eq!(overrides(&again.model.overrides), expected);
    }

    #[test]
    fn slow_and_fast_lines_are_both_readable() {
        let line = |texts_per_second: f64, p50_ms: Option<f64>| BenchLine {
            engine: "kiln".into(),
            own: true,
            texts_per_second,
            tokens_per_second: 8.0,
            p50_ms,
            p95_ms: p50_ms,
            peak_mb: 1,
            kiln_ratio: 1.0,
            agreement: 1.0,
            mean_agreement: 1.0,
        };
        assert_eq!(speeds(&line(0.0413, None))[0], "0.041");
        assert_eq!(speeds(&line(412.34, None))[0], "412.3");
        assert_eq!(speeds(&line(412.34, Some(2.426))), ["2.43", "2.43"]);
    }
}

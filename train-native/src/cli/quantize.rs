//! `kiln quantize`

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use kiln_embed::checkpoint::SelfTest;
use kiln_embed::reranker::Reranker;
use kiln_embed::tokenizer::Tokenizer;
use serde_json::json;

use super::ranges::{ROWS, number, whole};
use super::{Global, ModelArgs, Overwrite};
use crate::compress::{
    Calibration, Gptq, Quantization, Storage, StoragePlan, TensorLine, check_export, export,
    quantize, quantize_reranker, sealed, sealed_reranker,
};
use crate::device::{Device, open};
use crate::eval::plain_table;
use crate::model::{load_embedder, locate, must_be_full, open_folder, open_to_read, resolve};
use crate::terminal::{counted, thousands};
use crate::with_backend;

/// Quantize a model to int8, int4 or FP8.
///
/// Quantizes the embedding tables too, and writes a folder or one .kiln file. The result carries a
/// self-test, vectors that the full weights give for some texts (of a reranker: scores), and is
/// checked against it whenever it is loaded.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kiln quantize -m model --scheme int8 -o model-int8
  kiln quantize -m model --scheme int4 --method gptq --calibration texts.jsonl -o model.kiln
  kiln quantize -m model --scheme int4 --tensor '*embeddings*=int8:64' -o model.kiln
  kiln quantize -m model --scheme int4 --error-budget 0.01 -o model.kiln")]
pub(super) struct QuantizeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Quantization scheme: int8, int4, fp8-e4m3 or fp8-e5m2, each with an optional block size
    /// (:32, :64, :128, :channel); or f32, f16, bf16
    #[arg(long, short, default_value = "int8", value_name = "SCHEME")]
    scheme: Storage,
    /// How to round the weights
    #[arg(long, value_enum, default_value_t = Method::Rtn)]
    method: Method,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// GPTQ: quantize the inputs with the largest activations first
    #[arg(long)]
    act_order: bool,
    /// Scheme of tensors whose names match a pattern, such as '*embeddings*=int8:64' or
    /// '*.0.*=f16'; the last match wins (repeatable)
    #[arg(long, value_name = "PATTERN=SCHEME")]
    tensor: Vec<String>,
    /// Maximum relative squared error of a matrix (of its output, with --calibration); a matrix
    /// above it is stored as int8:32, or else as f16
    #[arg(long, value_name = "SHARE", value_parser = number(0.0, 1e3))]
    error_budget: Option<f64>,
    /// Folder, or file ending in .kiln, to write to
    #[arg(long, short, value_name = "DIR|FILE")]
    output: PathBuf,
    #[command(flatten)]
    existing: Overwrite,
}

/// How weights are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    /// Round to nearest, with the best-fitting scale for each block
    Rtn,
    /// GPTQ: later weights compensate for the error of earlier ones (needs --calibration)
    Gptq,
}

/// Texts that go through the model.
#[derive(Debug, Args)]
pub(super) struct CalibrationArgs {
    /// Calibration texts, similar to those the model will see: .txt, .jsonl, .csv, .tsv or
    /// .parquet, optionally with .gz or .zst
    #[arg(long, value_name = "FILE")]
    pub(super) calibration: Option<String>,
    /// Columns of the calibration text, joined by a space [default: text]
    #[arg(long, value_name = "COLUMN")]
    pub(super) calibration_column: Vec<String>,
    /// Maximum number of calibration tokens; memory grows with it
    #[arg(long, value_name = "N", default_value_t = 32_768, value_parser = whole(1, ROWS))]
    pub(super) calibration_tokens: usize,
    /// Damping of the Hessian: this share of its mean diagonal is added to the diagonal
    #[arg(long, value_name = "SHARE", default_value_t = 0.01, value_parser = number(0.0, 1e3))]
    pub(super) damping: f64,
}

/// Calibration texts, at least.
const LEAST_TEXTS: usize = 8;

impl CalibrationArgs {
    /// Reads the texts, if there are some.
    pub(super) fn read(
        &self,
        tokenizer: &Tokenizer,
        global: &Global,
    ) -> Result<Option<Calibration>> {
        if self.damping <= 0.0 {
            bail!("--damping must be above 0");
        }
        let Some(path) = &self.calibration else {
            return Ok(None);
        };
        // No text has fewer tokens than one.
        let texts =
            Calibration::read_texts(path, &self.calibration_column, self.calibration_tokens)?;
        let result = Calibration::new(tokenizer, &texts, LEAST_TEXTS, self.calibration_tokens)
            .map_err(|error| error.context(path.clone()))?;
        global.terminal().note(format!(
            "calibrating with {}, {}",
            counted(result.texts, "text", "texts"),
            counted(result.tokens, "token", "tokens")
        ));
        Ok(Some(result))
    }
}

pub(super) fn run(args: &QuantizeArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    if args.method == Method::Gptq && args.calibration.calibration.is_none() {
        bail!("GPTQ needs --calibration: a file of texts like those that the model will see");
    }
    if args.act_order && args.method != Method::Gptq {
        bail!("--act-order belongs to --method gptq");
    }
    if args.error_budget.is_some_and(|budget| budget <= 0.0) {
        bail!("--error-budget must be above 0");
    }
    let mut plan = StoragePlan::all(args.scheme);
    plan.budget = args.error_budget;
    for rule in &args.tensor {
        plan = plan.with_rule(rule)?;
    }
    check_export(&args.output, args.existing.rule())?;
    let found = locate(&args.model.name(), terminal)?;
    let name = found.name();
    must_be_full(&name, terminal)?;
    let device = open(global.device)?;
    if args.model.ranks(open_folder(&found.folder)?.as_ref())? {
        return reranker(args, &plan, &name, &device, global);
    }
    let (files, lines, reference) = with_backend!(&device, B, handle => {
        let embedder = load_embedder::<B>(&name, &args.model.load_options(), &handle, terminal)?;
        let reference = SelfTest::of(&embedder, 0.0)?;
        let calibration = args.calibration.read(embedder.tokenizer(), global)?;
        let how = Quantization {
            plan: &plan,
            gptq: (args.method == Method::Gptq)
                .then_some(Gptq { damping: args.calibration.damping, act_order: args.act_order }),
            calibration: calibration.as_ref(),
        };
        let model = quantize(embedder, &how, terminal)?;
        (model.files, model.lines, reference)
    });
    let (files, exported) = sealed(files, &args.output, &plan.usual().to_string(), reference)?;
    export(&files, &args.output, args.existing.rule())?;
    let (full, kept) = sizes(&lines);
    let value = json!({
        "output": args.output, "tensors": lines, "matrix_bytes": kept, "matrix_bytes_f32": full, "bytes": exported.bytes,
        "cosine": exported.cosine, "least_cosine": exported.least_cosine,
    });
    terminal.result(&value, || table(&lines) + &exported.summary("the full weights", &args.output))
}

/// A cross-encoder, whose weights are rounded to the nearest.
fn reranker(
    args: &QuantizeArgs,
    plan: &StoragePlan,
    name: &str,
    device: &Device,
    global: &Global,
) -> Result<()> {
    let terminal = global.terminal();
    if args.method == Method::Gptq || args.calibration.calibration.is_some() {
        bail!(
            "{name}: is a reranker, which is rounded to the nearest; leave out --method gptq and --calibration"
        );
    }
    let options = args.model.load_options();
    let folder = open_to_read(&resolve(name, terminal)?)?;
    let (model, reference) = with_backend!(device, B, handle => {
        let reranker = Reranker::<B>::load_with(folder.as_ref(), &options, &handle)?;
        let reference = reranker.score_test().with_context(|| name.to_string())?;
        (quantize_reranker(&reranker, plan, terminal)?, reference)
    });
    let (files, exported) =
        sealed_reranker(model.files, &args.output, &plan.usual().to_string(), reference)?;
    export(&files, &args.output, args.existing.rule())?;
    let (lines, (full, kept)) = (&model.lines, sizes(&model.lines));
    let value = json!({
        "output": args.output, "tensors": lines, "matrix_bytes": kept, "matrix_bytes_f32": full, "bytes": exported.bytes,
        "apart": exported.apart, "most_apart": exported.most_apart,
    });
    terminal.result(&value, || table(lines) + &exported.summary("the full weights", &args.output))
}

/// Bytes of matrices, in f32 and as they are kept.
fn sizes(lines: &[TensorLine]) -> (usize, usize) {
    let full = lines.iter().map(|line| 4 * line.shape.iter().product::<usize>()).sum();
    (full, lines.iter().map(|line| line.bytes).sum())
}

fn table(lines: &[TensorLine]) -> String {
    let header =
        ["tensor", "shape", "kept as", "bytes", "lost", "output lost"].map(String::from).to_vec();
    let rows = lines.iter().map(|line| {
        vec![
            line.tensor.clone(),
            format!("{:?}", line.shape),
            line.storage.to_string(),
            thousands(line.bytes),
            format!("{:.5}", line.weight_error),
            line.output_error.map_or("-".into(), |error| format!("{error:.5}")),
        ]
    });
    let (full, kept) = sizes(lines);
    let table = plain_table(&[header].into_iter().chain(rows).collect::<Vec<_>>());
    let share = kept as f64 / full.max(1) as f64;
    format!("{table}matrices     {} bytes, {share:.3} of f32\n", thousands(kept))
}

//! Speed side by side with the peers: the same texts, the same cores, one run.
//!
//! Every engine runs in a process of its own, so that its peak memory is its own; the rounds
//! alternate, so that a busy moment of the machine hits all engines alike.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use kiln_embed::checkpoint::Manifest;
use kiln_embed::embedder::{EmbedOptions, Embedder};
use kiln_embed::index::cosine;
use kiln_embed::kernels::Kernels;
use serde::{Deserialize, Serialize};

use crate::interrupt;
use crate::model::open_folder;
use crate::terminal::Terminal;
use crate::vectors::{VectorRow, VectorWriter, read_blocks};

const PEERS: &str = include_str!("peers.py");

/// What one process measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Seconds of each pass over the texts.
    pub seconds: Vec<f64>,
    /// Peak resident memory of the process in MB, model and runtime included.
    pub peak_mb: u64,
}

/// One line of the comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Line {
    /// Name of the engine.
    pub engine: String,
    /// Texts a second, median of all passes.
    pub texts_per_second: f64,
    /// Tokens a second, padding not counted.
    pub tokens_per_second: f64,
    /// Largest peak memory of its processes in MB.
    pub peak_mb: u64,
    /// How many times as fast as this engine Kiln is: the full model, or beside an int8 engine the
    /// first quantized one.
    pub kiln_ratio: f64,
    /// Smallest cosine between this engine's vectors and Kiln's of the full model.
    pub agreement: f32,
    /// Mean of these cosines.
    pub mean_agreement: f32,
}

/// What to compare on.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Model folder.
    pub model: PathBuf,
    /// The same model quantized by Kiln: folders or `.kiln` files. With one, ONNX Runtime is also
    /// measured with weights and activations in int8 (its dynamic quantization).
    pub quantized: Vec<PathBuf>,
    /// The texts.
    pub texts: Vec<String>,
    /// Tokens of all texts, as the model cuts them.
    pub tokens: usize,
    /// Texts in a batch of the peers; Kiln's budget is as many texts of the longest length.
    pub batch: usize,
    /// Most tokens of a text; 0: the model's own limit.
    pub max_length: usize,
    /// Passes over the texts in each process.
    pub runs: usize,
    /// Processes of each engine.
    pub rounds: usize,
    /// Python with sentence-transformers, onnx and onnxruntime; none: Kiln alone.
    pub python: Option<PathBuf>,
    /// What `--device` said.
    pub device: String,
}

/// Measures Kiln in this process.
///
/// # Errors
/// As embedding.
pub fn measure<B: Kernels>(
    embedder: &Embedder<B>,
    texts: &[String],
    options: &EmbedOptions,
    runs: usize,
    out: &Path,
) -> Result<Measurement> {
    let embed = |texts: &[String]| embedder.embed_with(texts, options, |_| interrupt::flow());
    embed(&texts[..texts.len().min(32)])?;
    let mut seconds = Vec::new();
    let mut vectors = Vec::new();
    for _ in 0..runs {
        let start = Instant::now();
        vectors = embed(texts)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let mut writer = VectorWriter::create(out, texts.len(), embedder.dimensions(options))?;
    let rows: Vec<VectorRow> = vectors
        .into_iter()
        .map(|vector| VectorRow { id: None, text: String::new(), vector })
        .collect();
    writer.write(&rows)?;
    writer.finish()?;
    Ok(Measurement { seconds, peak_mb: peak_memory_mb() })
}

/// Peak resident memory of this process in MB; 0 where the system does not say.
fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

impl Bench {
    /// Runs all engines and compares them.
    ///
    /// # Errors
    /// An engine that fails, with what it said.
    pub fn run(&self, terminal: Terminal) -> Result<Vec<Line>> {
        let folder = tempfile::tempdir()?;
        let texts = folder.path().join("texts.json");
        std::fs::write(&texts, serde_json::to_vec(&self.texts)?)?;
        let onnx = folder.path().join("model.onnx");
        let mut engines = vec!["kiln".to_string()];
        let own: Vec<&PathBuf> = [&self.model].into_iter().chain(&self.quantized).collect();
        for (number, path) in self.quantized.iter().enumerate() {
            let manifest = Manifest::read(open_folder(path)?.as_ref())?;
            let weights = manifest.map_or("quantized".into(), |manifest| manifest.weights);
            let again = engines.iter().any(|engine| *engine == format!("kiln {weights}"));
            engines.push(match again {
                true => format!("kiln {weights} ({})", number + 1),
                false => format!("kiln {weights}"),
            });
        }
        if let Some(python) = &self.python {
            terminal.note("exporting the model to ONNX");
            output(Command::new(python).args(["-c", PEERS, "export"]).arg(&self.model).arg(&onnx))?;
            engines.extend(["sentence-transformers", "onnxruntime"].map(String::from));
            if !self.quantized.is_empty() {
                engines.push("onnxruntime int8".into());
            }
        }
        let mut measured: Vec<Vec<Measurement>> = vec![Vec::new(); engines.len()];
        let bar = terminal.progress((self.rounds * engines.len()) as u64, "rounds");
        for _ in 0..self.rounds {
            for (i, engine) in engines.iter().enumerate() {
                bar.set_prefix(engine.clone());
                let out = folder.path().join(format!("{i}.npy"));
                let printed = match (&self.python, own.get(i)) {
                    (Some(python), None) => output(
                        Command::new(python)
                            .args(["-c", PEERS, engine])
                            .arg(&self.model)
                            .arg(&texts)
                            .args([&self.batch, &self.max_length, &self.runs].map(usize::to_string))
                            .arg(&onnx)
                            .arg(&out),
                    )?,
                    (_, model) => {
                        let model = model.copied().unwrap_or(&self.model);
                        output(&mut self.own_process(model, &texts, &out)?)?
                    }
                };
                let line = printed.lines().last().unwrap_or_default();
                measured[i].push(
                    serde_json::from_str(line)
                        .with_context(|| format!("{engine} printed {line:?}"))?,
                );
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let vectors = |engine: usize| -> Result<Vec<Vec<f32>>> {
            let blocks = read_blocks(&folder.path().join(format!("{engine}.npy")), 4096)?;
            Ok(blocks
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .flatten()
                .map(|row| row.vector)
                .collect())
        };
        let full = vectors(0)?;
        let rate = |all: &[Measurement]| {
            self.texts.len() as f64 / median(all.iter().flat_map(|m| &m.seconds))
        };
        engines
            .iter()
            .zip(&measured)
            .enumerate()
            .map(|(i, (engine, all))| {
                let texts_per_second = rate(all);
                let int8 = engine.ends_with("int8") || engine.starts_with("kiln ") && i > 0;
                let kiln = rate(&measured[usize::from(int8 && !self.quantized.is_empty())]);
                let theirs = vectors(i)?;
                let cosines: Vec<f32> =
                    full.iter().zip(&theirs).map(|(a, b)| cosine(a, b)).collect();
                let agreement = cosines.iter().copied().fold(1.0, f32::min);
                Ok(Line {
                    engine: engine.to_string(),
                    texts_per_second,
                    tokens_per_second: texts_per_second * self.tokens as f64
                        / self.texts.len() as f64,
                    peak_mb: all.iter().map(|m| m.peak_mb).max().unwrap_or(0),
                    kiln_ratio: kiln / texts_per_second,
                    agreement,
                    mean_agreement: cosines.iter().sum::<f32>() / cosines.len().max(1) as f32,
                })
            })
            .collect()
    }

    /// This binary again, measuring itself.
    fn own_process(&self, model: &Path, texts: &Path, out: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this binary")?);
        command.args(["--device", &self.device, "bench", "--measure"]).arg(out);
        command.arg("--model").arg(model).arg("--input").arg(texts);
        command.args(["--runs", &self.runs.to_string(), "--batch", &self.batch.to_string()]);
        if self.max_length > 0 {
            command.args(["--max-length", &self.max_length.to_string()]);
        }
        Ok(command)
    }
}

/// Standard output of a process that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed: {}", error.lines().last().unwrap_or("it said nothing"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn median<'a>(values: impl Iterator<Item = &'a f64>) -> f64 {
    let mut values: Vec<f64> = values.copied().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

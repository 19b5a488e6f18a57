//! Speed side by side with the peers: the same texts, the same cores, one run.
//!
//! Every engine runs in a process of its own, so that its peak memory is its own; the rounds
//! alternate, so that a busy moment of the machine hits all engines alike.

mod engine;
mod ratios;
mod texts;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use kiln_embed::checkpoint::Manifest;
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::index::cosine;
use kiln_embed::quant::WeightPrecision;
use serde::{Deserialize, Serialize};
use serde_json::json;

use self::engine::{Engine, Numbers, opponents, unused};
use crate::embedding::TextModel;
use crate::model::open_folder;
use crate::terminal::{Terminal, thousands};
use crate::vectors::{VectorRow, VectorWriter, read_blocks};

pub use engine::Peer;
pub use ratios::{Ratio, Ratios};
pub use texts::made_up;

const PEERS: &str = include_str!("peers.py");

/// What one process measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Seconds of each pass over the texts, or of each text where they come one at a time.
    pub seconds: Vec<f64>,
    /// Peak resident memory of the process in MB, model and runtime included.
    pub peak_mb: u64,
}

/// One line of the comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BenchLine {
    /// Name of the engine.
    pub engine: String,
    /// Whether it is Kiln.
    pub own: bool,
    /// Texts a second, median of all passes.
    pub texts_per_second: f64,
    /// Tokens a second, padding not counted.
    pub tokens_per_second: f64,
    /// Where texts come one at a time: milliseconds within which half of them are embedded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ms: Option<f64>,
    /// The same for 95 % of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_ms: Option<f64>,
    /// Largest peak memory of its processes in MB.
    pub peak_mb: u64,
    /// How many times as fast as this engine Kiln is in the same numbers (f32, bf16 or quantized),
    /// or the full model where no such one was measured.
    pub kiln_ratio: f64,
    /// Smallest cosine between this engine's vectors and Kiln's of the full model.
    pub agreement: f32,
    /// Mean of these cosines.
    pub mean_agreement: f32,
}

/// Texts to embed.
#[derive(Debug, Clone)]
pub struct Work {
    /// The texts.
    pub texts: Vec<String>,
    /// Tokens of all texts, as the model cuts them.
    pub tokens: usize,
    /// Most tokens of a text; 0: the model's own limit.
    pub max_length: usize,
}

/// What was measured on one set of texts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkReport {
    /// Model, texts and batch, in words.
    pub work: String,
    /// Number of texts.
    pub texts: usize,
    /// Tokens of all texts.
    pub tokens: usize,
    /// A line for each engine.
    pub lines: Vec<BenchLine>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The device that all computed on.
    pub machine: String,
    /// Each set of texts.
    pub works: Vec<WorkReport>,
    /// What a comparison with stored ratios has to say.
    pub warnings: Vec<String>,
}

/// What to compare.
#[derive(Debug, Clone)]
pub struct Bench {
    /// Model folder.
    pub model: PathBuf,
    /// The model as `--model` takes it: that folder, or `MODEL#ADAPTER`.
    pub own: PathBuf,
    /// The same model quantized by Kiln: folders or `.kiln` files.
    pub quantized: Vec<PathBuf>,
    /// Precisions in which the model is measured too, rounded while it is loaded.
    pub weights: Vec<WeightPrecision>,
    /// Its name and size, by which ratios are stored.
    pub name: String,
    /// Name of the model's pooling head, which the peers take.
    pub pooling: String,
    /// The model's settings that are overridden, as options of this command.
    pub overrides: Vec<String>,
    /// Texts in a batch of the peers; Kiln's budget is as many texts of the longest length.
    pub batch: usize,
    /// Whether texts come one at a time.
    pub one_at_a_time: bool,
    /// Passes over the texts in each process.
    pub runs: usize,
    /// Processes of each engine.
    pub rounds: usize,
    /// Python with what the peers need; none: Kiln alone.
    pub python: Option<PathBuf>,
    /// The peers to measure; all that this Python has where empty.
    pub peers: Vec<Peer>,
    /// The same model as a GGUF file, for llama.cpp.
    pub gguf: Option<PathBuf>,
    /// What `--device` said.
    pub device: String,
    /// The name of that device.
    pub machine: String,
}

/// Measures Kiln in this process.
///
/// # Errors
/// As embedding.
pub fn measure(
    model: &dyn TextModel,
    texts: &[String],
    options: &EmbedOptions,
    (runs, one_at_a_time): (usize, bool),
    out: &Path,
) -> Result<Measurement> {
    let parts: Vec<&[String]> = if one_at_a_time { texts.chunks(1).collect() } else { vec![texts] };
    for part in parts.iter().take(8) {
        model.embed(&part[..part.len().min(32)], options, |_| {})?;
    }
    let mut seconds = Vec::new();
    let mut vectors = Vec::new();
    for _ in 0..runs {
        vectors.clear();
        for part in &parts {
            let start = Instant::now();
            vectors.extend(model.embed(part, options, |_| {})?);
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    let mut writer = VectorWriter::create(out, texts.len(), model.dimensions(options))?;
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
    /// Runs all engines on all texts and compares them.
    ///
    /// # Errors
    /// An engine that fails, with what it said; a peer that was asked for and cannot be run.
    pub fn run(&self, works: &[Work], terminal: Terminal) -> Result<Report> {
        let folder = tempfile::tempdir()?;
        let engines = self.engines(folder.path(), terminal)?;
        let works = works
            .iter()
            .map(|work| self.run_work(work, &engines, folder.path(), terminal))
            .collect::<Result<Vec<_>>>()?;
        Ok(Report { machine: self.machine.clone(), works, warnings: Vec::new() })
    }

    /// Texts and batch in words, by which ratios are stored.
    fn describe(&self, work: &Work) -> String {
        let how = match self.one_at_a_time {
            true => "one at a time".to_string(),
            false => format!("batches of {}", self.batch),
        };
        let [texts, tokens] = [work.texts.len(), work.tokens].map(thousands);
        format!("{}: {texts} texts, {tokens} tokens, {how}", self.name)
    }

    /// Our engines, then the peers, whose files are written.
    fn engines(&self, folder: &Path, terminal: Terminal) -> Result<Vec<Engine>> {
        let own = |label: String, model: &Path, weights| Engine::Own {
            label,
            model: model.to_path_buf(),
            weights,
        };
        let mut engines = vec![own(String::new(), &self.own, WeightPrecision::Kept)];
        for &weights in &self.weights {
            engines.push(own(unused(&weights.to_string(), &engines), &self.own, weights));
        }
        for path in &self.quantized {
            let manifest = Manifest::read(open_folder(path)?.as_ref())?;
            let weights = manifest.map_or("quantized".into(), |manifest| manifest.weights);
            engines.push(own(unused(&weights, &engines), path, WeightPrecision::Kept));
        }
        if let Some(python) = &self.python {
            let packed = engines.iter().any(|engine| engine.numbers() == Numbers::Packed);
            let job = self.job(None, folder)?;
            let peers = self.possible_peers(python, &job, packed, terminal)?;
            terminal.note("writing the model in the peers' formats");
            let names = peers.iter().map(|peer| peer.name());
            output(Command::new(python).args(["-c", PEERS, "prepare"]).arg(&job).args(names))?;
            engines.extend(peers.into_iter().map(Engine::Peer));
        }
        Ok(engines)
    }

    /// The peers that are asked for; or all that can be run, and a note about the others.
    fn possible_peers(
        &self,
        python: &Path,
        job: &Path,
        packed: bool,
        terminal: Terminal,
    ) -> Result<Vec<Peer>> {
        let printed = output(Command::new(python).args(["-c", PEERS, "missing"]).arg(job))?;
        let missing: BTreeMap<String, Option<String>> = last_line(&printed, "peers.py")?;
        let reason = |peer: Peer| missing.get(peer.name()).cloned().flatten();
        if !self.peers.is_empty() {
            for &peer in &self.peers {
                if let Some(reason) = reason(peer) {
                    bail!("{peer} cannot be measured: {reason}");
                }
            }
            return Ok(self.peers.clone());
        }
        let mut peers = Vec::new();
        for peer in Peer::ALL {
            match reason(peer) {
                // Nothing of ours is its like.
                None if peer == Peer::OnnxruntimeInt8 && !packed => {}
                None => peers.push(peer),
                // Only those who name a file want it.
                Some(_) if peer == Peer::LlamaCpp && self.gguf.is_none() => {}
                Some(reason) => terminal.note(format!("{peer} is left out: {reason}")),
            }
        }
        Ok(peers)
    }

    /// Writes what a peer is to do with some texts, or to prepare before there are any.
    fn job(&self, work: Option<&Work>, folder: &Path) -> Result<PathBuf> {
        let [path, texts, out] =
            ["job.json", "texts.json", "peer.npy"].map(|name| folder.join(name));
        if let Some(work) = work {
            std::fs::write(&texts, serde_json::to_vec(&work.texts)?)?;
        }
        let job = json!({
            "model": self.model,
            "pooling": self.pooling,
            "modules": !self.overrides.iter().any(|option| option == "--pooling"),
            "texts": texts,
            "batch": self.batch,
            "max_length": work.map_or(0, |work| work.max_length),
            "runs": self.runs,
            "one_at_a_time": self.one_at_a_time,
            "gguf": self.gguf,
            "onnx": folder.join("model.onnx"),
            "q8_0": folder.join("model-q8_0.gguf"),
            "out": out,
        });
        std::fs::write(&path, serde_json::to_vec(&job)?)?;
        Ok(path)
    }

    /// All engines on the same texts.
    fn run_work(
        &self,
        work: &Work,
        engines: &[Engine],
        folder: &Path,
        terminal: Terminal,
    ) -> Result<WorkReport> {
        let job = self.job(Some(work), folder)?;
        let mut measured: Vec<Vec<Measurement>> = vec![Vec::new(); engines.len()];
        let mut vectors: Vec<Vec<Vec<f32>>> = vec![Vec::new(); engines.len()];
        let bar = terminal.progress((self.rounds * engines.len()) as u64, "rounds");
        for _ in 0..self.rounds {
            for (i, engine) in engines.iter().enumerate() {
                let name = engine.name();
                bar.set_prefix(name.clone());
                let (printed, out) = match (engine, &self.python) {
                    (Engine::Own { model, weights, .. }, _) => {
                        let out = folder.join("own.npy");
                        let texts = folder.join("texts.json");
                        let mut process =
                            self.own_process(model, *weights, work.max_length, &texts, &out)?;
                        (output(&mut process)?, out)
                    }
                    (Engine::Peer(peer), Some(python)) => {
                        let mut process = Command::new(python);
                        process.args(["-c", PEERS, "measure"]).arg(&job).arg(peer.name());
                        (output(&mut process)?, folder.join("peer.npy"))
                    }
                    (Engine::Peer(peer), None) => bail!("{peer} needs --python"),
                };
                measured[i].push(last_line(&printed, &name)?);
                vectors[i] = read_vectors(&out)?;
                // Cosines are taken pair by pair: what one side lacked would go unseen.
                let shape = |vectors: &[Vec<f32>]| [vectors.len(), vectors[0].len()];
                let (actual, expected) =
                    (shape(&vectors[i]), [work.texts.len(), shape(&vectors[0])[1]]);
                if actual != expected {
                    bail!("{name} gave vectors of the shape {actual:?}, expected {expected:?}");
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let lines = self.lines(work, engines, &measured, &vectors);
        Ok(WorkReport {
            work: self.describe(work),
            texts: work.texts.len(),
            tokens: work.tokens,
            lines,
        })
    }

    fn lines(
        &self,
        work: &Work,
        engines: &[Engine],
        measured: &[Vec<Measurement>],
        vectors: &[Vec<Vec<f32>>],
    ) -> Vec<BenchLine> {
        let texts = work.texts.len() as f64;
        let together = if self.one_at_a_time { 1.0 } else { texts };
        let sorted: Vec<Vec<f64>> = measured
            .iter()
            .map(|all| {
                let mut seconds: Vec<f64> =
                    all.iter().flat_map(|one| &one.seconds).copied().collect();
                seconds.sort_by(f64::total_cmp);
                seconds
            })
            .collect();
        let rate = |engine: usize| together / median(&sorted[engine]);
        let ms = |engine: usize, share: f64| {
            self.one_at_a_time.then(|| percentile(&sorted[engine], share) * 1e3)
        };
        let compared = opponents(engines);
        let line = |i: usize| {
            let cosines: Vec<f32> =
                vectors[0].iter().zip(&vectors[i]).map(|(a, b)| cosine(a, b)).collect();
            BenchLine {
                engine: engines[i].name(),
                own: matches!(engines[i], Engine::Own { .. }),
                texts_per_second: rate(i),
                tokens_per_second: rate(i) * work.tokens as f64 / texts,
                p50_ms: ms(i, 0.5),
                p95_ms: ms(i, 0.95),
                peak_mb: measured[i].iter().map(|one| one.peak_mb).max().unwrap_or(0),
                kiln_ratio: rate(compared[i]) / rate(i),
                agreement: cosines.iter().copied().fold(1.0, f32::min),
                mean_agreement: cosines.iter().sum::<f32>() / cosines.len().max(1) as f32,
            }
        };
        (0..engines.len()).map(line).collect()
    }

    /// This binary again, measuring itself.
    fn own_process(
        &self,
        model: &Path,
        weights: WeightPrecision,
        max_length: usize,
        texts: &Path,
        out: &Path,
    ) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("cannot find this binary")?);
        command.args(["--device", &self.device, "bench", "--measure"]).arg(out);
        command.arg("--model").arg(model).arg("--input").arg(texts).args(&self.overrides);
        command.args(["--runs", &self.runs.to_string(), "--batch", &self.batch.to_string()]);
        command.args(["--weights", &weights.to_string()]);
        if max_length > 0 {
            command.args(["--max-length", &max_length.to_string()]);
        }
        if self.one_at_a_time {
            command.arg("--latency");
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

/// What a process printed last, as JSON: libraries print lines of their own before.
fn last_line<T: serde::de::DeserializeOwned>(printed: &str, name: &str) -> Result<T> {
    let line = printed.lines().last().unwrap_or_default();
    serde_json::from_str(line).with_context(|| format!("{name} printed {line:?}"))
}

/// The vectors of a file, at least one.
fn read_vectors(path: &Path) -> Result<Vec<Vec<f32>>> {
    let blocks = read_blocks(path, 4096)?.collect::<Result<Vec<_>>>()?;
    Ok(blocks.into_iter().flatten().map(|row| row.vector).collect())
}

/// Of sorted values.
fn median(values: &[f64]) -> f64 {
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

/// The smallest of sorted values that at least this share of them do not exceed.
fn percentile(values: &[f64], share: f64) -> f64 {
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_percentiles() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(median(&values), 10.5);
        assert_eq!(median(&values[..3]), 2.0);
        assert!(median(&[]).is_nan() && percentile(&[], 0.5).is_nan());
        assert_eq!([0.5, 0.95, 1.0].map(|share| percentile(&values, share)), [10.0, 19.0, 20.0]);
    }

    #[test]
    fn only_the_last_line_counts() {
        let printed = "warning: slow\n{\"seconds\": [0.5], \"peak_mb\": 7}\n";
        let measured: Measurement = last_line(printed, "openvino").unwrap();
        assert_eq!(measured, Measurement { seconds: vec![0.5], peak_mb: 7 });
        let error = format!("{:#}", last_line::<Measurement>("oh", "openvino").unwrap_err());
        assert!(error.contains("openvino printed \"oh\""), "{error}");
    }
}

//! Small copies of named models: each its published configuration with small sizes, and weights that are computed
//! from the tensors' names (`tests/reference/named_models.py` says how, and made what is expected of them).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_embed::checkpoint::{Files, write_safetensors};
use serde::Deserialize;
use serde_json::Value;

/// What a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedKind {
    /// Texts to vectors, by a model.
    Embedder,
    /// Texts to vectors, by a table.
    Table,
    /// Pairs to scores.
    Reranker,
}

/// A copy of one model.
#[derive(Debug, Deserialize)]
pub struct NamedModel {
    /// Its id on the Hub.
    pub model: String,
    /// What it is.
    pub kind: NamedKind,
    /// `config.json`.
    config: Value,
    /// The name of its tokenizer's file.
    tokenizer: String,
    /// Its other files but the tokenizer and the weights.
    files: BTreeMap<String, Value>,
    /// Shapes by name, by file.
    tensors: BTreeMap<String, BTreeMap<String, Vec<usize>>>,
    /// Vectors of [`texts`], or scores of [`pairs`].
    expected: Value,
    /// Vectors of [`texts`] by each of the adapters in the model's own file.
    #[serde(default)]
    pub tasks: BTreeMap<String, Vec<Vec<f32>>>,
    /// Of each tensor's gradient the norm and what it is in the direction of [`noise`], by file and name; none of a tensor
    /// that makes no difference. They are of the sum of vectors of norm 1, or of scores, times [`noise`].
    #[serde(default)]
    pub gradients: BTreeMap<String, BTreeMap<String, [f64; 2]>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models")
}

fn json(path: &Path) -> Value {
    let text = std::fs::read(path).expect("a fixture");
    serde_json::from_slice(&text).expect("JSON")
}

/// The texts that the vectors are of.
pub fn texts() -> Vec<String> {
    serde_json::from_value(json(&folder().join("texts.json"))["texts"].clone()).expect("texts")
}

/// The pairs that the scores are of.
pub fn pairs() -> Vec<(String, String)> {
    serde_json::from_value(json(&folder().join("texts.json"))["pairs"].clone()).expect("pairs")
}

/// Values from -1 to 1 that a name gives, each of them exact in f32.
pub fn noise(name: &str, count: usize) -> Vec<f64> {
    let mix = |seed: u32, byte: u8| (seed ^ u32::from(byte)).wrapping_mul(16_777_619);
    let seed = name.bytes().fold(2_166_136_261, mix);
    let value = |place: usize| {
        let mut x = (place as u32).wrapping_mul(0x9E37_79B1).wrapping_add(seed);
        for (shift, factor) in [(16, 0x7FEB_352D), (15, 0x846C_A68B_u32)] {
            x = (x ^ x >> shift).wrapping_mul(factor);
        }
        f64::from((x ^ x >> 16) >> 8) / f64::from(1 << 23) - 1.0
    };
    (0..count).map(value).collect()
}

/// A tensor's values, by its name.
fn weights(name: &str, shape: &[usize]) -> Vec<f32> {
    let width = shape.last().copied().unwrap_or(1) as f64;
    let value = |x: f64| {
        let value = if shape.len() > 1 {
            x * if name.contains("embed") { 1.5 } else { 2.5 / width.sqrt() }
        } else if name.to_lowercase().contains("norm") && name.ends_with("weight") {
            x * 0.3 + 1.0
        } else {
            x * 0.3
        };
        value as f32
    };
    noise(name, shape.iter().product()).into_iter().map(value).collect()
}

impl NamedModel {
    /// All of them, by name.
    pub fn all() -> Vec<Self> {
        let entries = std::fs::read_dir(folder()).expect("the fixtures").flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.retain(|path| path.to_string_lossy().contains("--"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// The copy of no model that stands for a family of `tests/fixtures/families` that no named model is of.
    pub fn of_family(name: &str) -> Self {
        Self::read(&folder().join(format!("{name}.json")))
    }

    fn read(path: &Path) -> Self {
        serde_json::from_value(json(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The model's folder.
    pub fn folder(&self) -> Files {
        let mut files = Files::default();
        let tokenizer = folder().join(format!("tokenizers/{}.json", self.tokenizer));
        let root = match self.tensors.keys().next().and_then(|file| file.split_once('/')) {
            // A table, which has a folder of its own.
            Some((root, _)) if self.kind == NamedKind::Table => format!("{root}/"),
            _ => String::new(),
        };
        let tokenizer = std::fs::read(tokenizer).expect("a tokenizer");
        files.0.insert(format!("{root}tokenizer.json"), tokenizer.into());
        if self.config != serde_json::json!({}) {
            files.0.insert("config.json".into(), self.config.to_string().into());
        }
        for (name, file) in &self.files {
            files.0.insert(name.clone(), file.to_string().into());
        }
        for (file, tensors) in &self.tensors {
            let named = |(name, shape): (&String, &Vec<usize>)| {
                (name.clone(), shape.clone(), weights(name, shape))
            };
            let tensors: Vec<_> = tensors.iter().map(named).collect();
            let bytes = write_safetensors(&tensors, &[("format", "pt")]).expect("bytes in memory");
            files.0.insert(file.clone(), bytes.into());
        }
        files
    }

    /// Whether it writes tokens.
    pub fn is_decoder(&self) -> bool {
        self.config["architectures"][0].as_str().is_some_and(|class| class.ends_with("ForCausalLM"))
    }

    /// Vectors of [`texts`].
    pub fn vectors(&self) -> Vec<Vec<f32>> {
        serde_json::from_value(self.expected.clone()).expect("vectors")
    }

    /// Scores of [`pairs`], before any activation.
    pub fn scores(&self) -> Vec<f32> {
        serde_json::from_value(self.expected.clone()).expect("scores")
    }
}

//! Adapters for tasks in a model's own file: of each weight a stack of matrices, one for each task, as jina-embeddings-v3
//! (arXiv:2409.10173, section 3.3) is first released. One of them is given as PEFT would save it, by itself.

use serde_json::{Value, json};

use super::peft::{CONFIG, PREFIX, TABLE_A, TABLE_B, WEIGHTS};
use super::safetensors::write_safetensors;
use super::sentence_transformers::{read_json, read_transformer_shape};
use super::weights::{STACKED_A, STACKED_B, Weights};
use crate::config::{Architecture, Family, ModelConfig};
use crate::folder::{Files, Folder};
use crate::model::families::{self, Names};
use crate::{Error, Result};

const MODEL: &str = "config.json";
const REMEDY: &str = "use the files that were released together";

/// The tasks that a model's own file has adapters for, in their order; none where its configuration names none.
///
/// # Errors
/// A configuration that cannot be read.
pub fn task_names(folder: &dyn Folder) -> Result<Vec<String>> {
    let config = read_json(folder, MODEL)?.unwrap_or_default();
    let names = config["lora_adaptations"].as_array().into_iter().flatten();
    Ok(names.filter_map(Value::as_str).map(String::from).collect())
}

/// Whether a model's own file has such adapters.
pub fn has_task_adapters(weights: &Weights) -> bool {
    let is_stack = |name: &String| [STACKED_A, STACKED_B].iter().any(|end| name.ends_with(end));
    weights.tensors().keys().any(is_stack)
}

/// The adapter for a task as PEFT's two files, of which [`load_adapters`](super::load_adapters) makes LoRA:
/// `W + alpha / rank * B A`, of tables `W + alpha / rank * A B`.
///
/// The file's stacks are A `[tasks, rank, inputs]` and B `[tasks, outputs, rank]`, of tables A `[tasks, rows, rank]` and B
/// `[tasks, rank, width]`; PEFT's are `[rank, inputs]` and `[outputs, rank]`, of tables `[rank, rows]` and `[width, rank]`.
///
/// # Errors
/// A model without that task, or whose stacks of matrices do not fit it.
pub fn task_adapter(folder: &dyn Folder, task: &str) -> Result<Files> {
    let tasks = task_names(folder)?;
    let number = tasks
        .iter()
        .position(|name| name == task)
        .ok_or_else(|| Error::invalid(format!("{}: has no adapter {task:?}", folder.label())))?;
    let (raw, config) = read_transformer_shape(folder)?;
    let mut weights = Weights::open(folder, "model")?;
    let wrong = |cause: String| Error::bad_file(folder.file_label(MODEL), cause, REMEDY);
    if config.family != Family::JinaEmbeddingsV3 {
        return Err(wrong("names adapters for tasks, and is of no family that has them".into()));
    }
    let number_of = |key: &str| {
        raw[key]
            .as_f64()
            .filter(|number| number.is_finite())
            .ok_or_else(|| wrong(format!("{key} is {}, no number", raw[key])))
    };
    let (rank, alpha) = (number_of("lora_rank")?, number_of("lora_alpha")?);
    if !(1.0..=f64::from(1u32 << 16)).contains(&rank) {
        return Err(wrong(format!("lora_rank is {rank}")));
    }
    let has = |name: &str| weights.tensors().contains_key(name);
    let stored = families::names_in(&config, has);
    let prefix = stored.prefix(has);
    let named = families::names(&config);
    let mut stacks =
        Stacks { weights: &mut weights, tasks: tasks.len(), number, rank: rank as usize };
    let mut tensors = Vec::new();
    let tables =
        [("token_embedding.weight", config.vocab_size), ("type_embedding", types(&config))];
    for (path, rows) in tables {
        let name = module(&stored, path, prefix)?;
        let Some(table) = stacks.read(&name, Place::Table, [rows, config.hidden_size])? else {
            continue;
        };
        let module = format!("{PREFIX}{}", module(&named, path, "")?);
        tensors.push(turned(format!("{module}{TABLE_A}"), table.a));
        tensors.push(turned(format!("{module}{TABLE_B}"), table.b));
    }
    for (path, [inputs, outputs]) in projections(&config) {
        let name = module(&stored, &path, prefix)?;
        let Some(Adapter { a, b }) = stacks.read(&name, Place::Linear, [inputs, outputs])? else {
            continue;
        };
        let mut rows = b.values.chunks_exact(b.shape[1]);
        // One projection of the release can be several, which share the first matrix.
        for part in named.source(&path)?.parts {
            let module = format!("{PREFIX}{}", plain(&part.name));
            let count = part.width.unwrap_or(outputs);
            let own: Vec<f32> = rows.by_ref().take(count).flatten().copied().collect();
            tensors.push((format!("{module}.lora_A.weight"), a.shape.to_vec(), a.values.clone()));
            tensors.push((format!("{module}.lora_B.weight"), vec![count, b.shape[1]], own));
        }
    }
    let label = weights.label();
    let left = |name: &&str| {
        [STACKED_A, STACKED_B].iter().any(|end| name.ends_with(end))
            && !families::of_no_vector(&config, name.strip_prefix(prefix).unwrap_or(name))
    };
    if let Some(other) = weights.unused().find(left) {
        let cause = format!("adapts {other}, which is no part of this model");
        return Err(Error::bad_file(label, cause, REMEDY));
    }
    if tensors.is_empty() {
        let cause = format!("has no adapters, and {MODEL} names those for {}", tasks.join(", "));
        return Err(Error::bad_file(label, cause, REMEDY));
    }
    let value = json!({
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": raw["_name_or_path"],
        "r": rank as usize,
        "lora_alpha": alpha,
        "lora_dropout": raw["lora_dropout_p"].as_f64().unwrap_or(0.0),
        "bias": "none",
    });
    let mut files = Files::default();
    files.0.insert(CONFIG.into(), format!("{value:#}\n").into());
    let bytes = write_safetensors(&tensors, &[("format", "pt")])?;
    files.0.insert(format!("{WEIGHTS}.safetensors"), bytes.into());
    Ok(files)
}

/// Where LoRA's projections are in an encoder, with their inputs and outputs.
fn projections(config: &ModelConfig) -> impl Iterator<Item = (String, [usize; 2])> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let parts = [
        ("attention.qkv", [hidden, 3 * hidden]),
        ("attention.output", [hidden, hidden]),
        ("feed_forward.up", [hidden, inner]),
        ("feed_forward.down", [inner, hidden]),
    ];
    (0..config.num_layers).flat_map(move |layer| {
        parts.map(|(part, shape)| (format!("blocks.{layer}.{part}.weight"), shape))
    })
}

/// Rows of the table of token types.
fn types(config: &ModelConfig) -> usize {
    match &config.architecture {
        Architecture::Encoder(encoder) => encoder.type_vocab_size,
        Architecture::Decoder(_) => 0,
    }
}

/// The module that has a parameter of ours, or its first part.
fn module(names: &Names, path: &str, prefix: &str) -> Result<String> {
    let source = names.source(path)?;
    let name = source.parts.first().map(|part| plain(&part.name)).unwrap_or_default();
    Ok(format!("{prefix}{name}"))
}

fn plain(tensor: &str) -> &str {
    tensor.strip_suffix(".weight").unwrap_or(tensor)
}

/// A matrix, row-major.
struct Matrix {
    shape: [usize; 2],
    values: Vec<f32>,
}

/// The two matrices of a weight's adapter.
struct Adapter {
    a: Matrix,
    b: Matrix,
}

/// Of what an adapter is.
#[derive(Clone, Copy)]
enum Place {
    /// A table `[rows, width]`: `[rows, rank]` and `[rank, width]`.
    Table,
    /// A projection of inputs to outputs: `[rank, inputs]` and `[outputs, rank]`.
    Linear,
}

/// The stacks of a file, and which of each is taken.
struct Stacks<'a> {
    weights: &'a mut Weights,
    tasks: usize,
    number: usize,
    rank: usize,
}

impl Stacks<'_> {
    /// The adapter of a module; `None` where it has none.
    fn read(
        &mut self,
        module: &str,
        place: Place,
        [from, to]: [usize; 2],
    ) -> Result<Option<Adapter>> {
        let shapes = match place {
            Place::Table => [[from, self.rank], [self.rank, to]],
            Place::Linear => [[self.rank, from], [to, self.rank]],
        };
        let names = [STACKED_A, STACKED_B].map(|end| format!("{module}{end}"));
        if !names.iter().any(|name| self.weights.tensors().contains_key(name)) {
            return Ok(None);
        }
        let [a, b] = [0, 1].map(|side| self.take(&names[side], shapes[side]));
        Ok(Some(Adapter { a: a?, b: b? }))
    }

    fn take(&mut self, name: &str, [rows, columns]: [usize; 2]) -> Result<Matrix> {
        let expected = [self.tasks, rows, columns];
        let found = self.weights.tensors().get(name).map(|info| info.shape.clone());
        let values = match found.as_deref() == Some(&expected) {
            true => self.weights.read(name)?,
            false => None,
        };
        let Some(values) = values else {
            let cause = format!("{name} is {found:?}, expected {expected:?} by {MODEL}");
            return Err(Error::bad_file(self.weights.label(), cause, REMEDY));
        };
        let size = rows * columns;
        Ok(Matrix { shape: [rows, columns], values: values[self.number * size..][..size].to_vec() })
    }
}

/// A matrix with rows and columns changed, under a name.
fn turned(name: String, matrix: Matrix) -> (String, Vec<usize>, Vec<f32>) {
    let [rows, columns] = matrix.shape;
    let values = (0..columns).flat_map(|column| (0..rows).map(move |row| row * columns + column));
    (name, vec![columns, rows], values.map(|place| matrix.values[place]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A jina-embeddings-v3 of one layer, two tasks, rank 1 and width 4, with other keys and tensors in the place of its own.
    fn model(keys: Value, tensors: &[(&str, &[usize])]) -> Files {
        let mut config = json!({
            "model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": 20000.0, "vocab_size": 6,
            "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
            "max_position_embeddings": 16, "type_vocab_size": 1, "pad_token_id": 1, "lora_rank": 1, "lora_alpha": 3,
            "lora_adaptations": ["a", "b"],
        });
        for (key, value) in keys.as_object().into_iter().flatten() {
            config[key] = value.clone();
        }
        let name = |name: &str| format!("roberta.{name}");
        let values =
            |shape: &[usize]| (0..shape.iter().product()).map(|x: usize| x as f32).collect();
        let tensors: Vec<(String, Vec<usize>, Vec<f32>)> = tensors
            .iter()
            .map(|(tensor, shape)| (name(tensor), shape.to_vec(), values(shape)))
            .collect();
        let mut files = Files::default();
        files.0.insert("config.json".into(), config.to_string().into());
        let bytes = write_safetensors(&tensors, &[]).unwrap();
        files.0.insert("model.safetensors".into(), bytes.into());
        files
    }

    const A: &str = "encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_A";
    const B: &str = "encoder.layers.0.mixer.Wqkv.parametrizations.weight.0.lora_B";
    const W: &str = "encoder.layers.0.mixer.Wqkv.parametrizations.weight.original";

    #[test]
    fn projections_of_the_release_share_their_first_matrix() {
        let files = model(json!({}), &[(W, &[12, 4]), (A, &[2, 1, 4]), (B, &[2, 12, 1])]);
        assert_eq!(task_names(&files).unwrap(), ["a", "b"]);
        let adapter = task_adapter(&files, "b").unwrap();
        let mut weights = Weights::open(&adapter, WEIGHTS).unwrap();
        let mut read = |part: &str| {
            weights.read(&format!("base_model.model.layers.0.self_attn.{part}.weight")).unwrap()
        };
        assert_eq!(read("q_proj.lora_A").unwrap(), [4.0, 5.0, 6.0, 7.0]);
        assert_eq!(read("v_proj.lora_A"), read("q_proj.lora_A"));
        assert_eq!(read("q_proj.lora_B").unwrap(), [12.0, 13.0, 14.0, 15.0]);
        assert_eq!(read("v_proj.lora_B").unwrap(), [20.0, 21.0, 22.0, 23.0]);
        let weights = Weights::open(&files, "model").unwrap();
        assert!(weights.tensors().contains_key("roberta.encoder.layers.0.mixer.Wqkv.weight"));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let said = |keys: Value, tensors: &[(&str, &[usize])], task: &str| {
            task_adapter(&model(keys, tensors), task).unwrap_err().to_string()
        };
        let fits: [(&str, &[usize]); 3] = [(W, &[12, 4]), (A, &[2, 1, 4]), (B, &[2, 12, 1])];
        assert!(said(json!({}), &fits, "c").contains("has no adapter \"c\""));
        let three = json!({"lora_adaptations": ["a", "b", "c"]});
        assert!(said(three, &fits, "a").contains("expected [3, 1, 4]"));
        assert!(said(json!({"lora_rank": 0}), &fits, "a").contains("lora_rank is 0"));
        assert!(said(json!({"lora_rank": null}), &fits, "a").contains("lora_rank is null"));
        assert!(said(json!({}), &[(W, &[12, 4])], "a").contains("has no adapters"));
        let flat: [(&str, &[usize]); 3] = [(W, &[12, 4]), (A, &[2, 4]), (B, &[2, 12, 1])];
        assert!(said(json!({}), &flat, "a").contains("lora_A is Some([2, 4])"));
        // Half an adapter, more rows than the projection has, and a table of other rows.
        assert!(said(json!({}), &[(W, &[12, 4]), (A, &[2, 1, 4])], "a").contains(A));
        let tall: [(&str, &[usize]); 3] = [(W, &[12, 4]), (A, &[2, 1, 4]), (B, &[2, 16, 1])];
        assert!(said(json!({}), &tall, "a").contains("lora_B is Some([2, 16, 1])"));
        let table = "embeddings.word_embeddings.parametrizations.weight.0.lora_A";
        let hollow: Vec<_> = fits.into_iter().chain([(table, &[2, 0, 1 << 20][..])]).collect();
        assert!(said(json!({}), &hollow, "a").contains("expected [2, 6, 1]"));
        let other = "other.parametrizations.weight.0.lora_A";
        let more: Vec<_> = fits.into_iter().chain([(other, &[2, 1, 4][..])]).collect();
        assert!(said(json!({}), &more, "a").contains(other));
    }

    #[test]
    fn other_parametrizations_keep_their_names() {
        // Spectral norm's, by which the weight that computes is another.
        let vector = "encoder.layers.0.mixer.Wqkv.parametrizations.weight.0._u";
        let files = model(json!({}), &[(W, &[12, 4]), (vector, &[12])]);
        let weights = Weights::open(&files, "model").unwrap();
        assert!(weights.tensors().contains_key(&format!("roberta.{W}")));
    }
}

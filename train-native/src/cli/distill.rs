//! `kiln distill`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::Global;
use super::ranges::{ROWS, SIZE, number, seed, whole};
use super::train::{RunFlags, train_recipe};
use crate::model::embedder_config;
use crate::recipe::Recipe;

/// Distil a smaller model from a teacher, on texts without labels.
///
/// For more, such as labelled pairs beside the teacher or several stages, write a recipe;
/// train-native/recipes/examples/kiln-mini.toml is one.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kiln distill --teacher MODEL --texts texts.jsonl --keep-blocks 0,2,4 --steps 2000 -o student
  kiln distill --teacher MODEL --texts a.jsonl,b.txt --layers 3 --hidden-size 256 -o student")]
pub(super) struct DistillArgs {
    /// Teacher: a model folder or a Hub id
    #[arg(long, value_name = "DIR|HUB_ID")]
    teacher: String,
    /// Files of texts: .txt, .jsonl, .csv, .tsv or .parquet, optionally with .gz or .zst
    #[arg(long, value_name = "FILES", value_delimiter = ',', required = true)]
    texts: Vec<String>,
    /// Prompt that the teacher gets before each text [default: its prompt query, if it has one]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Name of the teacher's own prompt to put before each text
    #[arg(long, value_name = "NAME", conflicts_with = "prompt")]
    prompt_name: Option<String>,
    /// Columns of the text, joined by a space
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',', default_value = "text")]
    column: Vec<String>,
    /// Start the student from these blocks of the teacher, counted from 0
    #[arg(long, value_name = "BLOCKS", value_delimiter = ',', conflicts_with_all = ["layers", "hidden_size"], value_parser = whole(0, 1023))]
    keep_blocks: Vec<usize>,
    /// Number of layers of a student that starts from random weights
    #[arg(long, value_name = "N", requires = "hidden_size", value_parser = whole(1, 1024))]
    layers: Option<usize>,
    /// Hidden size of a student that starts from random weights
    #[arg(long, value_name = "N", requires = "layers", value_parser = whole(1, SIZE))]
    hidden_size: Option<usize>,
    /// Attention heads of a student that starts from random weights [default: hidden size / 64]
    #[arg(long, value_name = "N", value_parser = whole(1, SIZE))]
    heads: Option<usize>,
    /// Vocabulary size of a student that starts from random weights
    #[arg(long, value_name = "N", default_value_t = 16_000, value_parser = whole(1, SIZE))]
    vocab_size: usize,
    /// Also match the teacher's hidden states, layer by layer but for the last, or the last of a student with one
    /// (needs the teacher's tokenizer, hence --keep-blocks)
    #[arg(long, requires = "keep_blocks")]
    states: bool,
    /// Optimizer steps
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole(1, ROWS))]
    steps: usize,
    /// Batch size in texts
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole(1, SIZE))]
    batch_size: usize,
    /// Peak learning rate [default: 1e-4 with --keep-blocks, else 1e-3]
    #[arg(long, value_name = "RATE", value_parser = number(0.0, 1e3))]
    lr: Option<f64>,
    /// Truncate texts to this many tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = whole(1, SIZE))]
    max_length: usize,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = seed())]
    seed: u64,
    #[command(flatten)]
    run: RunFlags,
}

pub(super) fn run(args: &DistillArgs, global: &Global) -> Result<()> {
    train_recipe(&recipe(args, global)?, &PathBuf::new(), &args.run, global)
}

/// The options as a recipe.
fn recipe(args: &DistillArgs, global: &Global) -> Result<Recipe> {
    use toml::{Table, Value};
    let table = |entries: Vec<(&str, Value)>| -> Table {
        entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect()
    };
    let whole = |number: usize| Value::Integer(number as i64);
    let mut model = table(vec![("max_length", whole(args.max_length))]);
    if let (Some(layers), Some(hidden)) = (args.layers, args.hidden_size) {
        let heads = args.heads.unwrap_or((hidden / 64).max(1));
        if !hidden.is_multiple_of(heads) {
            bail!("--hidden-size {hidden} is no multiple of --heads {heads}");
        }
        let teacher = embedder_config(&args.teacher, global.terminal())?;
        let new = table(vec![
            ("vocab_size", whole(args.vocab_size)),
            ("lower_case", true.into()),
            ("hidden_size", whole(hidden)),
            // Two thirds of four widths, as gated blocks have three matrices, in blocks of 64.
            ("intermediate_size", whole((hidden * 8 / 3).next_multiple_of(64))),
            ("layers", whole(layers)),
            ("heads", whole(heads)),
            ("dimensions", whole(teacher.dimensions())),
        ]);
        model.insert("attention".into(), "bidirectional".into());
        model.insert("new".into(), new.into());
    } else if !args.keep_blocks.is_empty() {
        model.insert("base".into(), args.teacher.clone().into());
        let keep: Vec<Value> = args.keep_blocks.iter().map(|&block| whole(block)).collect();
        model.insert("keep_blocks".into(), keep.into());
    } else {
        bail!(
            "the student is either --keep-blocks 0,2,4 of the teacher, or new: --layers 3 --hidden-size 256"
        );
    }
    let columns: Vec<Value> = args.column.iter().map(|name| name.clone().into()).collect();
    let data: Vec<Value> = args
        .texts
        .iter()
        .map(|file| {
            table(vec![("path", file.clone().into()), ("fields", columns.clone().into())]).into()
        })
        .collect();
    let layers = match (args.states, args.keep_blocks.len()) {
        (false, _) => "none",
        (true, 1) => "last",
        (true, _) => "uniform",
    };
    let mut distillation = table(vec![
        ("teacher", args.teacher.clone().into()),
        ("vectors", 1.0.into()),
        ("scores", 1.0.into()),
        ("layers", layers.into()),
    ]);
    for (key, value) in [("query_prompt", &args.prompt), ("query_prompt_name", &args.prompt_name)] {
        distillation.extend(value.clone().map(|value| (key.to_string(), value.into())));
    }
    let lr = args.lr.unwrap_or(if args.keep_blocks.is_empty() { 1e-3 } else { 1e-4 });
    let stage = table(vec![
        ("name", "distill".into()),
        ("objective", "distillation".into()),
        ("data", data.into()),
        ("steps", whole(args.steps)),
        ("batch_size", whole(args.batch_size)),
        ("lr", lr.into()),
        ("warmup", whole(args.steps / 20)),
        ("schedule", "cosine".into()),
        ("weight_decay", 0.01.into()),
        ("distillation", distillation.into()),
    ]);
    let recipe = table(vec![
        ("name", "distill".into()),
        ("seed", Value::Integer(args.seed as i64)),
        ("model", model.into()),
        ("stage", vec![Value::Table(stage)].into()),
    ]);
    Recipe::parse(&toml::to_string(&recipe)?)
}

//! `kiln import`

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use super::{Global, Overwrite};
use crate::compress::{
    ImportLine, Storage, StoragePlan, check_export, export, import_gguf, sealed,
};
use crate::eval::plain_table;
use crate::model::{open_folder, resolve_without_weights, weights_stem};
use crate::terminal::thousands;

/// Import the weights of a GGUF file (llama.cpp, Ollama).
///
/// Q8_0 becomes int8:32 and Q4_0 becomes int4:32, value for value; other formats are rounded again.
/// Tokenizer, prompts and pooling come from the model that the file was made from.
#[derive(Debug, Args)]
pub(super) struct ImportArgs {
    /// GGUF file of an embedding model of the architecture bert, llama (which includes Mistral),
    /// qwen2 or qwen3
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Model that the file was made from: a folder or a Hub id; its weights are neither read nor
    /// downloaded
    #[arg(long, value_name = "DIR|HUB_ID")]
    like: String,
    /// Precision to store matrices in that are not Q8_0, Q4_0 or F32 in the file: f32, f16, or a
    /// scheme of `kiln quantize`
    #[arg(long, short, value_name = "SCHEME", default_value = "int8:32")]
    weights: Storage,
    /// Folder, or file ending in .kiln, to write to
    #[arg(long, short, value_name = "DIR|FILE")]
    output: PathBuf,
    #[command(flatten)]
    existing: Overwrite,
}

pub(super) fn run(args: &ImportArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    check_export(&args.output, args.existing.rule())?;
    let path = resolve_without_weights(&args.like, terminal)?;
    let base = open_folder(&path)?;
    let stem = weights_stem(base.as_ref()).with_context(|| path.display().to_string())?;
    let mut plan = StoragePlan::all(args.weights);
    plan.lenient = true;
    let model = import_gguf(&args.file, base.as_ref(), stem, &plan, terminal)?;
    let usual = model.lines.iter().max_by_key(|line| line.numbers);
    let usual = usual.map_or_else(|| args.weights.to_string(), |line| line.storage.clone());
    let (files, exported) = sealed(model.files, &args.output, &usual, model.reference)?;
    export(&files, &args.output, args.existing.rule())?;
    let value = json!({
        "output": args.output, "tensors": model.lines, "bytes": exported.bytes, "cosine": exported.cosine,
        "least_cosine": exported.least_cosine,
    });
    terminal.result(&value, || {
        let mut text = table(&model.lines);
        text.push_str(&exported.summary("the file's own numbers", &args.output));
        text
    })
}

fn table(lines: &[ImportLine]) -> String {
    let header = ["in the file", "kept as", "tensors", "numbers", "lost"].map(String::from);
    let rows = lines.iter().map(|line| {
        vec![
            line.gguf.clone(),
            line.storage.clone(),
            thousands(line.tensors),
            thousands(line.numbers),
            format!("{:.6}", line.lost),
        ]
    });
    plain_table(&[header.to_vec()].into_iter().chain(rows).collect::<Vec<_>>())
}

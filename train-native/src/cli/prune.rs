//! `kiln prune`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::checkpoint::{check_target, save, write_directory};
use serde_json::json;

use super::quantize::CalibrationArgs;
use super::{Global, ModelArgs, Overwrite};
use crate::compress::{Pattern, PruneMethod, prune};
use crate::device::open;
use crate::eval::plain_table;
use crate::model::{load_embedder, locate, must_be_full, open_folder};
use crate::with_backend;

/// Prune a model's weights by magnitude, Wanda or SparseGPT.
///
/// To train the pruned model further, set `keep_zeros = true` under [model] in the recipe, so that
/// its zeros stay.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kiln prune -m model --method wanda --pattern 2:4 --calibration texts.jsonl -o pruned
  kiln prune -m model --method sparsegpt --pattern 50% --calibration texts.jsonl -o pruned
  kiln train -r recipe.toml --set model.base=pruned --set model.keep_zeros=true -o retrained")]
pub(super) struct PruneArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// How to choose the weights to prune
    #[arg(long, value_enum, default_value = "wanda")]
    method: PruneMethod,
    /// Share of weights to prune: 0.5 or 50%, or n of every m neighbours (2:4, 4:8)
    #[arg(long, default_value = "2:4", value_name = "SHARE|N:M")]
    pattern: Pattern,
    #[command(flatten)]
    calibration: CalibrationArgs,
    /// Folder to write the pruned model to
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    existing: Overwrite,
}

pub(super) fn run(args: &PruneArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    check_target(&args.output, args.existing.rule())?;
    let found = locate(&args.model.name(), terminal)?;
    let name = found.name();
    if args.model.ranks(open_folder(&found.folder)?.as_ref())? {
        bail!(
            "{name}: is a reranker, and rerankers cannot be pruned; make it smaller by `kiln quantize`, or name an embedder"
        );
    }
    must_be_full(&name, terminal)?;
    let device = open(global.device)?;
    let (files, lines) = with_backend!(&device, B, handle => {
        let mut embedder = load_embedder::<B>(&name, &args.model.load_options(), &handle, terminal)?;
        let Some(calibration) = args.calibration.read(embedder.tokenizer(), global)? else {
            bail!("pruning needs --calibration: texts like those that the model will see (they choose the weights, and show what is lost)");
        };
        let how = (args.method, args.pattern, args.calibration.damping);
        let lines = prune(&mut embedder, &calibration, how, terminal)?;
        (save(&embedder)?, lines)
    });
    write_directory(&args.output, &files, args.existing.rule())?;
    let mean = |of: fn(&crate::compress::Pruned) -> f64| {
        lines.iter().map(of).sum::<f64>() / lines.len().max(1) as f64
    };
    let (sparsity, lost) = (mean(|line| line.sparsity), mean(|line| line.output_error));
    let value = json!({
        "output": args.output, "method": args.method, "pattern": args.pattern.to_string(),
        "sparsity": sparsity, "output_error": lost, "tensors": lines,
    });
    terminal.result(&value, || {
        let header = ["tensor", "zeros", "output lost"].map(String::from).to_vec();
        let rows = lines.iter().map(|line| {
            vec![
                line.tensor.clone(),
                format!("{:.4}", line.sparsity),
                format!("{:.5}", line.output_error),
            ]
        });
        let mut text = plain_table(&[header].into_iter().chain(rows).collect::<Vec<_>>());
        text.push_str(&format!("mean of all  zeros {sparsity:.4}, output lost {lost:.5}\n"));
        text.push_str(&format!("written to   {}\n", args.output.display()));
        text
    })
}

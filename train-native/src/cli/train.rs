//! `train-native train`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use burn::backend::Autodiff;
use burn::tensor::backend::Backend;
use clap::Args;
use kiln_core::checkpoint::{save, write_directory};
use serde_json::json;

use super::Global;
use crate::data::{Example, read_examples};
use crate::quickstart::curves;
use crate::recipe::Recipe;
use crate::report::{Page, line_chart};
use crate::terminal::{Terminal, thousands};
use crate::train::{Checkpoint, Outcome, Plan, base_model, new_model, train};
use crate::vectors::write_atomically;
use crate::{device, with_backend};

/// Train a model by a recipe. Ctrl-C saves a checkpoint and exits; --resume goes on from it.
#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// Recipe (TOML); its data files are looked for beside it
    #[arg(long, short, value_name = "FILE")]
    recipe: PathBuf,
    /// Folder for the model, the checkpoint, metrics and report
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Go on from the checkpoint in the output folder
    #[arg(long)]
    resume: bool,
    /// Steps between checkpoints
    #[arg(long, value_name = "STEPS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: u32,
}

pub(super) fn run(args: &TrainArgs, global: &Global) -> Result<()> {
    let recipe = Recipe::read(&args.recipe)?;
    let checkpoint = args.output.join("checkpoint");
    let resume = Checkpoint::find(&checkpoint, &recipe)?;
    match (&resume, args.resume) {
        (Some(_), false) => bail!(
            "{}: holds a checkpoint; add --resume to go on from it, or choose another --output",
            args.output.display()
        ),
        (None, true) => bail!("{}: holds no checkpoint to resume", args.output.display()),
        _ => {}
    }
    let beside = args.recipe.parent().unwrap_or(Path::new(""));
    let mut examples = Vec::new();
    for stage in &recipe.stages {
        let mut all: Vec<Example> = Vec::new();
        for file in &stage.data {
            all.extend(read_examples(&beside.join(file).to_string_lossy())?);
        }
        examples.push(all);
    }
    std::fs::create_dir_all(&args.output).with_context(|| args.output.display().to_string())?;
    let device = device::open(global.device)?;
    let terminal = global.terminal();
    let plan = Plan {
        recipe: &recipe,
        examples: &examples,
        checkpoint: &checkpoint,
        checkpoint_every: args.checkpoint_every as usize,
        resume,
        terminal,
    };
    with_backend!(&device, B, handle => train_and_save::<B>(plan, args, &handle, terminal))
}

fn train_and_save<B: Backend>(
    plan: Plan<'_>,
    args: &TrainArgs,
    device: &B::Device,
    terminal: Terminal,
) -> Result<()> {
    let recipe = plan.recipe;
    B::seed(device, recipe.seed);
    let texts = plan.examples.iter().flatten().flat_map(|example| {
        [&example.query].into_iter().chain(&example.pos).chain(&example.neg).map(String::as_str)
    });
    let embedder = match (&recipe.model.base, &recipe.model.new) {
        (Some(base), _) => base_model::<B>(base, &recipe.model, device, terminal)?,
        (None, Some(new)) => {
            new_model::<B>(new, &recipe.model, texts.collect::<Vec<_>>().into_iter(), device)?
        }
        (None, None) => bail!("the model needs either base or new"),
    };
    let Outcome { embedder, telemetry, interrupted } =
        train::<Autodiff<B>>(embedder, plan, |_, _| Ok(()))?;
    write_atomically(&args.output.join("metrics.jsonl"), telemetry.to_json_lines()?.as_bytes())?;
    if interrupted {
        terminal.note(format!("stopped; go on with --resume --output {}", args.output.display()));
        return Err(kiln_core::Error::Cancelled.into());
    }
    let model = args.output.join("model");
    write_directory(&model, &save(&embedder)?)?;
    let report = args.output.join("report.html");
    let (loss, lr) = curves(recipe, &telemetry);
    let mut page = Page::new(&format!("Training: {}", recipe.name));
    page.figure(&line_chart("step", "loss", &loss)?, "Loss of each step");
    page.figure(&line_chart("step", "learning rate", &lr)?, "Learning rate of each step");
    write_atomically(&report, page.to_html().as_bytes())?;
    let last = telemetry.points.last();
    let summary = json!({
        "model": model, "report": report, "steps": telemetry.points.len(),
        "loss": last.map(|point| point.loss),
        "seconds": telemetry.points.iter().map(|point| point.seconds).sum::<f64>(),
    });
    terminal.result(&summary, || {
        format!(
            "{} steps, last loss {:.4}; model in {}, report in {}",
            thousands(telemetry.points.len()),
            last.map_or(f64::NAN, |point| point.loss),
            model.display(),
            report.display()
        )
    })
}

//! `kiln train`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde_json::json;

use super::Global;
use crate::data::OnBadRow;
use crate::device::{DeviceChoice, is_gpu};
use crate::recipe::{Recipe, shipped};
use crate::terminal::counted;
use crate::train::{DryRun, MemoryPlace, Resume, RunArtifacts, TrainJob};

/// Train a model by a recipe: an embedder, or a reranker.
///
/// Ctrl-C saves a checkpoint and exits; --resume continues from it.
///
/// On several hosts, start one process for each device with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT (as
/// torchrun sets them) and the same KILN_SECRET. The first one writes; SCALE.md says more.
#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// Recipe: a TOML file, or the name of a shipped one (`kiln recipes` lists them)
    #[arg(long, short, value_name = "FILE|NAME")]
    recipe: String,
    /// Set a field of the recipe, such as stage.1.lr=1e-4 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Folder that the recipe's paths of data and evaluation are relative to [default: the recipe's own; the current one
    /// for shipped recipes]. Models are found from the current folder
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    run: RunFlags,
}

/// How a run is run, whatever it trains.
#[derive(Debug, Args)]
pub(super) struct RunFlags {
    /// Folder to write the model, checkpoints, metrics and report to
    #[arg(long, short, value_name = "DIR", required_unless_present = "dry_run")]
    output: Option<PathBuf>,
    /// Continue from the newest checkpoint in the output folder; with `auto` begin where there is none, as
    /// what a scheduler starts again has to
    #[arg(long, value_name = "WHEN", num_args = 0..=1, require_equals = true, default_missing_value = "always")]
    resume: Option<When>,
    /// Replace the models and checkpoints of an earlier run in the output folder
    #[arg(long)]
    overwrite: bool,
    /// Skip and count rows that cannot be read, instead of stopping
    #[arg(long)]
    skip_bad_rows: bool,
    /// Steps between checkpoints
    #[arg(long, value_name = "STEPS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: u32,
    /// Number of checkpoints to keep
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    keep: u32,
    /// Also keep the model every so many steps of the run, in the output folder's steps/; each can be
    /// loaded, so `kiln eval` can draw scores along training
    #[arg(long, value_name = "STEPS", default_value_t = 0, hide_default_value = true)]
    save_every: u32,
    /// Train on several devices of one kind together, such as cuda:0,cuda:1
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    devices: Vec<DeviceChoice>,
    /// Print the resolved recipe, parameters, memory and samples without training
    #[arg(long)]
    dry_run: bool,
}

/// When a run goes on from a checkpoint.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum When {
    /// Always: one has to be there
    Always,
    /// Where one is there
    Auto,
}

pub(super) fn run(args: &TrainArgs, global: &Global) -> Result<()> {
    let recipe = Recipe::read(&args.recipe, &args.set)?;
    let folder = match &args.data_dir {
        Some(folder) => folder.clone(),
        None if shipped(&args.recipe).is_some() => PathBuf::new(),
        None => Path::new(&args.recipe).parent().unwrap_or(Path::new("")).to_path_buf(),
    };
    train_recipe(&recipe, &folder, &args.run, global)
}

/// Trains by a recipe whose relative paths are looked for in a folder.
pub(super) fn train_recipe(
    recipe: &Recipe,
    folder: &Path,
    args: &RunFlags,
    global: &Global,
) -> Result<()> {
    let terminal = global.terminal();
    let on_bad_row = if args.skip_bad_rows { OnBadRow::Skip } else { OnBadRow::Stop };
    if args.dry_run {
        let choice = args.devices.first().copied().unwrap_or(global.device);
        let place = if is_gpu(choice) { MemoryPlace::Gpu } else { MemoryPlace::Host };
        let dry = DryRun::new(recipe, folder, on_bad_row, place, terminal)?;
        return terminal.result(&dry, || dry.to_text());
    }
    let Some(output) = &args.output else {
        bail!("--output is missing");
    };
    let job = TrainJob {
        recipe,
        folder,
        output,
        device: global.device,
        devices: &args.devices,
        on_bad_row,
        checkpoint_every: args.checkpoint_every as usize,
        keep: args.keep as usize,
        save_every: args.save_every as usize,
        resume: match args.resume {
            None => Resume::No,
            Some(When::Always) => Resume::Yes,
            Some(When::Auto) => Resume::IfThere,
        },
        overwrite: args.overwrite,
        terminal,
        on_step: None,
    };
    let trained = job.run()?;
    if trained.written { report(&trained, global) } else { Ok(()) }
}

fn report(fitted: &RunArtifacts, global: &Global) -> Result<()> {
    let RunArtifacts { model, adapter, best, report, points, .. } = fitted;
    let last = points.last();
    let seconds: f64 = points.iter().map(|point| point.seconds).sum();
    let summary = json!({
        "model": model, "adapter": adapter, "report": report, "steps": points.len(),
        "loss": last.map(|point| point.loss), "scores": last.map(|point| &point.scores),
        "best": best.as_ref().map(|(folder, best)| json!({"model": folder, "step": best.step, "score": best.score})),
        "seconds": seconds,
    });
    global.terminal().result(&summary, || {
        let mut lines = vec![format!(
            "{} in {seconds:.0} s, last loss {:.4}",
            counted(points.len(), "step", "steps"),
            last.map_or(f64::NAN, |point| point.loss)
        )];
        lines.push(format!("model    {}", model.display()));
        lines.extend(adapter.as_ref().map(|folder| format!("adapter  {}", folder.display())));
        lines.extend(best.as_ref().map(|(folder, best)| {
            format!("best     {} (step {}, {:.4})", folder.display(), best.step, best.score)
        }));
        lines.push(format!("report   {}", report.display()));
        lines.join("\n")
    })
}

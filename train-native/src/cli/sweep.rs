//! `kiln sweep`

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use super::Global;
use super::ranges::seed;
use crate::device::{DeviceChoice, open};
use crate::recipe::{SWEEPS, Sweep};
use crate::train::{sweep, sweep_table};

/// Train variants of a recipe with several seeds, and compare their scores.
///
/// Ctrl-C saves a checkpoint; the same command then continues, and does not repeat finished runs.
#[derive(Debug, Args)]
pub(super) struct SweepArgs {
    /// Sweep: a TOML file, or the name of a shipped one (curriculum, mgh-pooling,
    /// pooling, nv-pooling, nv-data, stages, alpha, ordering)
    #[arg(value_name = "FILE|NAME")]
    sweep: String,
    /// Folder to write the runs, results.json and report.html to
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Set a field of every variant's recipe, such as stage.1.steps=20 (repeatable)
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Seeds to use instead of the sweep's
    #[arg(long, value_name = "SEEDS", value_delimiter = ',', value_parser = seed())]
    seeds: Vec<u64>,
    /// Also keep each run's model every so many steps, in its folder's steps/, for `kiln eval`
    #[arg(long, value_name = "STEPS", default_value_t = 0, hide_default_value = true)]
    save_every: u32,
    /// Train on several devices of one kind together, such as cuda:0,cuda:1
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    devices: Vec<DeviceChoice>,
}

pub(super) fn run(args: &SweepArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let mut plan = Sweep::read(&args.sweep)?;
    if !args.seeds.is_empty() {
        plan.seeds.clone_from(&args.seeds);
    }
    let folder = match SWEEPS.iter().any(|one| one.name == args.sweep) {
        true => PathBuf::new(),
        false => Path::new(&args.sweep).parent().unwrap_or(Path::new("")).to_path_buf(),
    };
    let chosen = if args.devices.is_empty() { vec![global.device] } else { args.devices.clone() };
    let devices = chosen.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    let save_every = args.save_every as usize;
    let results = sweep(&plan, &folder, &args.set, &args.output, save_every, &devices, terminal)?;
    terminal.result(&results, || {
        format!("{}\nreport   {}", sweep_table(&results), args.output.join("report.html").display())
    })
}

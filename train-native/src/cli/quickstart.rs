//! `kiln quickstart`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::Global;
use super::ranges::{number, seed};
use crate::data::corpus::CorpusSize;
use crate::device;
use crate::quickstart::{Quickstart, QuickstartSummary, run as run_quickstart};

/// Train a small model from random weights on made-up texts, and search with it.
///
/// Needs no download and no GPU, and takes about two minutes on two cores.
#[derive(Debug, Args)]
pub(super) struct QuickstartArgs {
    /// Folder to write data, model, scores and report to
    #[arg(long, short, value_name = "DIR", default_value = "kiln-quickstart")]
    output: PathBuf,
    /// Random seed of the made-up texts and the weights
    #[arg(long, value_name = "N", value_parser = seed())]
    seed: Option<u64>,
    /// Share of the recipe's steps to run, such as 0.1 for a quick try
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, value_parser = number(0.0, 1e6))]
    steps: f64,
}

pub(super) fn run(args: &QuickstartArgs, global: &Global) -> Result<()> {
    anyhow::ensure!(args.steps > 0.0, "--steps is {}, not above 0", args.steps);
    let device = device::open(global.device)?;
    let terminal = global.terminal();
    let options = Quickstart {
        output: args.output.clone(),
        size: CorpusSize::default(),
        seed: args.seed,
        steps: args.steps,
    };
    let summary = run_quickstart(&options, &device, terminal)?;
    terminal.result(&summary, || text(&summary))
}

fn text(summary: &QuickstartSummary) -> String {
    let mut lines = vec![format!("nDCG@10 on {} unseen questions", summary.test_queries)];
    lines.extend(
        summary.scores.iter().map(|score| format!("  {:<26} {:.4}", score.name, score.ndcg_at_10)),
    );
    for sample in &summary.samples {
        lines.push(format!("\n{}", sample.query));
        lines.extend(sample.answers.iter().map(|(score, text)| format!("  {score:.3}  {text}")));
    }
    lines.push(format!(
        "\n{:.0} s in all; model in {}, report in {}",
        summary.seconds,
        summary.model.display(),
        summary.report.display()
    ));
    lines.push(format!(
        "search it: kiln search --model {} --corpus {} --query \"...\"",
        summary.model.display(),
        summary.model.with_file_name("data").join("test/corpus.jsonl").display()
    ));
    lines.join("\n")
}

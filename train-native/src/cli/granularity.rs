//! `kiln granularity`

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use kiln_embed::embedder::EmbedOptions;

use super::mine::open_examples;
use super::{Global, ModelArgs};
use crate::device::open;
use crate::eval::ModelEncoder;
use crate::mine::{Granularity, granularity};
use crate::model::load;
use crate::report::{Page, histogram};
use crate::terminal::Terminal;
use crate::vectors::write_atomically;

/// Fewest negatives that can be graded.
const LEVELS: usize = 2;
/// Bars of the histogram.
const STEPS: usize = 40;

/// Check that graded negatives are graded.
///
/// Prints the mean similarity to the query, level by level.
#[derive(Debug, Args)]
pub(super) struct GranularityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Examples with two or more negatives each, hardest first
    #[arg(long, short, value_name = "FILE")]
    data: PathBuf,
    /// Write the histogram to this HTML page
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Skip and count rows that cannot be read, instead of stopping
    #[arg(long)]
    skip_bad_rows: bool,
}

pub(super) fn run(args: &GranularityArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let set = open_examples(&args.data, args.skip_bad_rows, terminal)?;
    let name = &args.model.name();
    let model = load(name, &args.model.load_options(), &open(global.device)?, terminal)?;
    let quiet = Terminal { quiet: true, ..terminal };
    let encoder = ModelEncoder::new(model, EmbedOptions::default(), None, quiet);
    let results = granularity(&encoder, &set, LEVELS, usize::MAX, terminal)?;
    if let Some(path) = &args.report {
        write_atomically(path, page(&results, name)?.to_html().as_bytes())?;
    }
    terminal.result(&results, || text(&results))
}

fn verdict(result: &Granularity) -> String {
    let verdict = match result.graded {
        true => "the mean falls from each level to the next easier one",
        false => {
            "the levels are NOT graded: the mean does not fall from each level to the next easier one"
        }
    };
    format!(
        "{verdict}; it does so for {:.1} % of the queries one by one",
        100.0 * result.graded_queries
    )
}

fn text(result: &Granularity) -> String {
    let mut lines = vec![format!("{:<10} {:>8} {:>8} {:>9}", "level", "mean", "sd", "texts")];
    for level in &result.levels {
        lines.push(format!(
            "{:<10} {:>8.4} {:>8.4} {:>9}",
            level.name, level.mean, level.deviation, level.count
        ));
    }
    lines.push(verdict(result));
    lines.join("\n")
}

fn page(result: &Granularity, model: &str) -> Result<Page> {
    let mut page = Page::new("Granularity of negatives");
    page.paragraph(&format!("Cosine with the query, as {model} sees it. {}.", verdict(result)));
    page.figure(
        &histogram("cosine with the query", &result.series(), STEPS)?,
        "Share of the texts of each level",
    );
    let mut rows =
        vec![["level", "mean", "standard deviation", "texts"].map(String::from).to_vec()];
    rows.extend(result.levels.iter().map(|level| {
        vec![
            level.name.clone(),
            format!("{:.4}", level.mean),
            format!("{:.4}", level.deviation),
            level.count.to_string(),
        ]
    }));
    page.table(&rows);
    Ok(page)
}

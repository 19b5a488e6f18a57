//! `kiln compare`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::Global;
use crate::eval::{Comparison, markdown_table, plain_table, read_results};
use crate::report::Page;
use crate::vectors::write_atomically;

/// Compare the results of two models.
///
/// Tests each task by a paired bootstrap over its queries or texts, and each type of task by
/// Wilcoxon's signed-rank test over its tasks.
#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// Folder of the first model's results (from `eval --output`)
    a: PathBuf,
    /// Folder of the second model's results
    b: PathBuf,
    /// Write the tables to this file (.md or .html)
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &CompareArgs, global: &Global) -> Result<()> {
    let (a, b) = (read_results(&args.a)?, read_results(&args.b)?);
    let results = Comparison::of(&a, &b);
    if results.tasks.is_empty() {
        bail!("{} and {} have no task in common", args.a.display(), args.b.display());
    }
    let (tasks, kinds) = (results.task_rows(), results.kind_rows());
    let note = "Scores in points of 100. Tasks: the difference, the middle 95 % of 2000 paired bootstrap \
                draws of it, and how often they fall on the other side of zero (p, two-sided). Types: \
                Wilcoxon's signed-rank test over tasks, * where p < 0.05.";
    if let Some(output) = &args.output {
        let title = format!("{} (A) and {} (B)", results.a, results.b);
        let text = match output.extension().and_then(|ending| ending.to_str()) {
            Some("html") => {
                let mut page = Page::new(&title);
                page.paragraph(note).heading("Types").table(&kinds).heading("Tasks").table(&tasks);
                page.to_html()
            }
            Some("md") => format!(
                "# {title}\n\n{note}\n\n{}\n{}",
                markdown_table(&kinds),
                markdown_table(&tasks)
            ),
            _ => bail!("{}: tables are written as .md or .html", output.display()),
        };
        write_atomically(output, text.as_bytes())?;
    }
    global.terminal().result(&results, || {
        let mut text = format!(
            "A: {}\nB: {}\n\n{}\n{}\n{note}\n",
            results.a,
            results.b,
            plain_table(&tasks),
            plain_table(&kinds)
        );
        if !results.left_out.is_empty() {
            text += &format!("not in both: {}\n", results.left_out.join(", "));
        }
        text
    })
}

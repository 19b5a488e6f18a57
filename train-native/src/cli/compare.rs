//! `kiln compare`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::Global;
use crate::eval::{Comparison, ModelResults, Standings, markdown_table, plain_table, read_results};
use crate::report::Page;
use crate::vectors::write_atomically;

/// Compare the results of two models, or of several with the first.
///
/// Tests each task by a paired bootstrap over its queries or texts, and each type of task by
/// Wilcoxon's signed-rank test over its tasks. With more than two models, prints the types alone, a
/// row for each model.
#[derive(Debug, Args)]
pub(super) struct CompareArgs {
    /// Folder of the first model's results (from `eval --output`)
    a: PathBuf,
    /// Folders of the other models' results
    #[arg(required = true)]
    b: Vec<PathBuf>,
    /// Write the tables to this file (.md or .html)
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &CompareArgs, global: &Global) -> Result<()> {
    let a = read_results(&args.a)?;
    let [b] = args.b.as_slice() else {
        return several(&a, args, global);
    };
    let results = Comparison::of(&a, &read_results(b)?);
    if results.tasks.is_empty() {
        bail!("{} and {} have no task in common", args.a.display(), b.display());
    }
    let (tasks, kinds) = (results.task_rows(), results.kind_rows());
    let note = "Scores in points of 100. Tasks: the difference, the middle 95 % of 2000 paired bootstrap \
                draws of it, and how often they fall on the other side of zero (p, two-sided). Types: \
                Wilcoxon's signed-rank test over tasks, * where p < 0.05.";
    let note = format!("{note}{}", left_out(&results.left_out));
    if let Some(output) = &args.output {
        let title = format!("{} (A) and {} (B)", results.a, results.b);
        let text = match output.extension().and_then(|ending| ending.to_str()) {
            Some("html") => {
                let mut page = Page::new(&title);
                page.paragraph(&note).heading("Types").table(&kinds).heading("Tasks").table(&tasks);
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
        format!(
            "A: {}\nB: {}\n\n{}\n{}\n{note}\n",
            results.a,
            results.b,
            plain_table(&tasks),
            plain_table(&kinds)
        )
    })
}

/// Says which tasks are not compared, behind a note.
fn left_out(tasks: &[String]) -> String {
    match tasks {
        [] => String::new(),
        _ => format!(
            " Left out, as not all have a score of the same kind, split and files: {}.",
            tasks.join(", ")
        ),
    }
}

/// A row for each model.
fn several(first: &ModelResults, args: &CompareArgs, global: &Global) -> Result<()> {
    let others = args.b.iter().map(|folder| read_results(folder)).collect::<Result<Vec<_>>>()?;
    let standings = Standings::of(first, &others);
    if standings.kinds.is_empty() {
        bail!(
            "the {} models have no task in common of the same kind, split and files",
            1 + others.len()
        );
    }
    let rows = standings.rows();
    let note = "Mean scores in points of 100 over the tasks that all models have, their number in parentheses. * where \
                Wilcoxon's signed-rank test over the tasks finds p < 0.05 (two-sided) against the first model; it needs \
                six tasks at least.";
    let note = format!("{note}{}", left_out(&standings.left_out));
    if let Some(output) = &args.output {
        let title = format!("{} models beside {}", args.b.len(), standings.baseline);
        let text = match output.extension().and_then(|ending| ending.to_str()) {
            Some("html") => {
                let mut page = Page::new(&title);
                page.paragraph(&note).table(&rows);
                page.to_html()
            }
            Some("md") => format!("# {title}\n\n{note}\n\n{}", markdown_table(&rows)),
            _ => bail!("{}: tables are written as .md or .html", output.display()),
        };
        write_atomically(output, text.as_bytes())?;
    }
    global.terminal().result(&standings, || format!("{}\n{note}\n", plain_table(&rows)))
}

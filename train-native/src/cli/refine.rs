//! `kiln refine`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::quant::WeightPrecision;
use kiln_synthesis::llm::Journal;
use kiln_synthesis::prompts::Prompts;
use kiln_synthesis::refine::{
    FILES, FilterKind, Filters, Judge, KINDS, Models, Ranks, Refine, RefineSummary, SHIPPED, refine,
};
use serde_json::json;

use super::llm::LlmArgs;
use super::ranges::{NEIGHBOURS, seed, whole};
use super::teacher_prompts::TeacherPrompts;
use super::{Global, ModelOverrides};
use crate::data::{OnBadRow, text_hash};
use crate::device::open;
use crate::eval::fingerprint;
use crate::model::{folders, load};
use crate::output::claim;
use crate::refine::{Ask, ranks};
use crate::terminal::{counted, thousands};
use crate::text::apart;

/// Clean training data with filters, a teacher and judges.
///
/// Takes queries with positives and negatives in any training format, and keeps every field of the rows that
/// stay. What a teacher and judges said is kept in the output folder: the same command with other thresholds asks
/// nothing again.
#[derive(Debug, Args)]
pub(super) struct RefineArgs {
    /// Files of rows (repeatable)
    #[arg(long, short, value_name = "FILE", required_unless_present_any = ["list_filters", "print_filters"])]
    data: Vec<PathBuf>,
    /// Folder to write kept.jsonl, dropped.jsonl, summary.json and report.html to
    #[arg(long, short, value_name = "DIR", required_unless_present_any = ["list_filters", "print_filters"])]
    output: Option<PathBuf>,
    /// Filters: plain (without teacher and judges), linq (Linq-Embed-Mistral's, by type), or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "plain")]
    filters: String,
    /// List the kinds of filters and the shipped files
    #[arg(long)]
    list_filters: bool,
    /// Print the filters of --filters, to begin your own file with
    #[arg(long)]
    print_filters: bool,
    /// Files of evaluation texts, for leak filters that name none (repeatable)
    #[arg(long, value_name = "FILE")]
    leak: Vec<String>,
    /// Teacher: a model folder, a .kiln file, or a Hub id (owner/name[@revision])
    #[arg(long, short, value_name = "DIR|HUB_ID")]
    model: Option<String>,
    #[command(flatten)]
    overrides: ModelOverrides,
    #[command(flatten)]
    teacher_prompts: TeacherPrompts,
    /// Precision of the teacher's weights: kept, f32, or rounded while loading to bf16, int8, int4, ..
    #[arg(long, value_name = "PRECISION", default_value_t = WeightPrecision::Kept, requires = "model")]
    weights: WeightPrecision,
    /// File of texts that the teacher ranks (field text, optionally title) [default: the rows' own passages]
    #[arg(long, short, value_name = "FILE", requires = "model")]
    corpus: Option<String>,
    /// How deep to rank: each query's K nearest texts have a rank of their own, all others K + 1
    #[arg(long, value_name = "K", default_value_t = 200, value_parser = whole(1, NEIGHBOURS))]
    top_k: usize,
    /// Leave out the filters that need a teacher
    #[arg(long, conflicts_with = "model")]
    without_teacher: bool,
    /// Leave out the filters that need a language model
    #[arg(long, conflicts_with_all = ["llm", "llm_config"])]
    without_llm: bool,
    #[command(flatten)]
    llm: LlmArgs,
    /// Folder of your own answerable.jinja and refutation.jinja
    #[arg(long, value_name = "DIR")]
    prompts: Option<PathBuf>,
    /// Skip and count rows that cannot be read, instead of stopping
    #[arg(long)]
    skip_bad_rows: bool,
    /// Random seed of the report's examples
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    seed: u64,
}

pub(super) fn run(args: &RefineArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    if args.list_filters {
        let kinds = KINDS.map(|(kind, what)| json!({ "kind": kind, "what": what }));
        let value = json!({ "kinds": kinds, "shipped": SHIPPED.map(|shipped| shipped.name) });
        return terminal.result(&value, list);
    }
    let filters = Filters::open(&args.filters)?;
    if args.print_filters {
        return crate::terminal::print(filters.text.trim_end());
    }
    let Some(output) = &args.output else { bail!("--output is missing") };
    check(args, &filters)?;
    let mut inputs: Vec<&Path> = args.data.iter().map(PathBuf::as_path).collect();
    inputs.extend(args.corpus.iter().chain(&args.leak).map(Path::new));
    inputs.push(Path::new(&args.filters));
    for name in FILES {
        apart(&output.join(name), &inputs)?;
    }
    // What can be wrong is found before anything is asked.
    let prompts = Prompts::open(args.prompts.as_deref())?;
    let uses =
        |asks: fn(&FilterKind) -> bool| filters.filters.iter().any(|filter| asks(&filter.kind));
    let llm = match uses(FilterKind::asks_judges) {
        true => args.llm.connect(terminal)?,
        false => None,
    };
    claim(output, &FILES)?;
    let mut models = match llm {
        Some(llm) => {
            let journal = Journal::open(&output.join("judgements.jsonl"))?;
            Some(Models::new(llm, journal, args.llm.limits(), terminal))
        }
        None => None,
    };
    let ranks = match &args.model {
        Some(name) if uses(FilterKind::asks_teacher) => Some(teacher(args, name, output, global)?),
        _ => None,
    };
    let summary = refine(Refine {
        data: &args.data,
        filters: &filters,
        evaluation: &args.leak,
        ranks: ranks.as_ref(),
        judge: models.as_mut().map(|models| models as &mut dyn Judge),
        prompts: &prompts,
        on_bad_row: on_bad_row(args),
        output,
        seed: args.seed,
        terminal,
    })?;
    let mut value = serde_json::to_value(&summary)?;
    value["output"] = json!(output);
    terminal.result(&value, || text(&summary, output))?;
    if let Some(why) = summary.stopped() {
        terminal.note(format!("stopped at {why}; the same command with a higher limit goes on"));
    }
    Ok(())
}

fn on_bad_row(args: &RefineArgs) -> OnBadRow {
    if args.skip_bad_rows { OnBadRow::Skip } else { OnBadRow::Stop }
}

/// Whether there is who the filters ask.
fn check(args: &RefineArgs, filters: &Filters) -> Result<()> {
    let names = |asks: fn(&FilterKind) -> bool| -> Vec<&str> {
        let asking = filters.filters.iter().filter(|filter| asks(&filter.kind));
        asking.map(|filter| filter.name.as_str()).collect()
    };
    let teacher = names(FilterKind::asks_teacher);
    if !teacher.is_empty() && args.model.is_none() && !args.without_teacher {
        bail!(
            "{}: {} need a teacher; name one with --model, or leave them out with --without-teacher",
            args.filters,
            teacher.join(", ")
        );
    }
    let judges = names(FilterKind::asks_judges);
    let is_asked = args.llm.llm.is_some() || args.llm.llm_config.is_some();
    if !judges.is_empty() && !is_asked && !args.without_llm {
        bail!(
            "{}: {} need a language model; name one with --llm and --llm-model, or --llm-config, or leave them \
             out with --without-llm",
            args.filters,
            judges.join(", ")
        );
    }
    let deepest = filters.filters.iter().map(|filter| filter.kind.depth()).max().unwrap_or(0);
    if deepest > args.top_k && args.model.is_some() {
        bail!(
            "{}: looks at ranks up to {deepest}, and --top-k is {}; raise it",
            args.filters,
            args.top_k
        );
    }
    Ok(())
}

fn teacher(args: &RefineArgs, name: &str, output: &Path, global: &Global) -> Result<Ranks> {
    let options = LoadOptions { precision: args.weights, ..args.overrides.load_options() };
    let ask = Ask {
        data: &args.data,
        on_bad_row: on_bad_row(args),
        corpus: args.corpus.as_deref(),
        teacher: &label(name, args, &options, global)?,
        prompts: args.teacher_prompts.asked(),
        top_k: args.top_k,
        kept: &output.join("ranks.jsonl.zst"),
        terminal: global.terminal(),
    };
    ranks(&ask, || load(name, &options, &open(global.device)?, global.terminal()))
}

/// The teacher's name with a number for all that changes its vectors: the files that lie under the name now, its
/// prompts, and how it is loaded.
fn label(name: &str, args: &RefineArgs, options: &LoadOptions, global: &Global) -> Result<String> {
    let files = fingerprint(&folders(name, global.terminal())?, options, None)?;
    let settings = text_hash(&format!("{files} {:?}", args.teacher_prompts.asked())) as u64;
    let weights = match args.weights {
        WeightPrecision::Kept => String::new(),
        weights => format!(", {weights}"),
    };
    Ok(format!("{name}{weights}, files and settings {settings:016x}"))
}

fn list() -> String {
    let mut text = String::from("kinds of filters\n");
    for (kind, what) in KINDS {
        let _ = writeln!(text, "  {kind:<17} {what}");
    }
    text += "of each: types, sources, splits (of the rows that it looks at), name; of most: drop = \"negative\" or \"row\"\n";
    text += "shipped\n";
    for shipped in SHIPPED {
        let what = Filters::open(shipped.name).map(|filters| filters.description);
        let _ = writeln!(text, "  {:<17} {}", shipped.name, what.unwrap_or_default());
    }
    text += "kiln refine --filters NAME --print-filters prints one, to begin your own with";
    text
}

fn text(summary: &RefineSummary, output: &Path) -> String {
    let mut lines = vec![format!(
        "{} of {} kept: {}",
        thousands(summary.kept),
        counted(summary.rows, "row", "rows"),
        output.join("kept.jsonl").display()
    )];
    for one in &summary.filters {
        let mut line = format!(
            "  {:<18} {:>9} dropped of {:>9}",
            one.name,
            thousands(one.dropped),
            thousands(one.rows)
        );
        if one.rows == 0 {
            line += ", no row came to it";
        }
        for (count, [single, more]) in [
            (one.positives, ["positive taken out", "positives taken out"]),
            (one.negatives, ["negative taken out", "negatives taken out"]),
            (one.unjudged, ["not judged"; 2]),
            (one.marked, ["marked"; 2]),
        ] {
            if count > 0 {
                let _ = write!(line, ", {}", counted(count, single, more));
            }
        }
        lines.push(line);
    }
    for one in &summary.left_out {
        lines.push(format!("  {:<18} left out: {}", one.name, one.why));
    }
    if summary.bad_rows > 0 {
        let rows = counted(summary.bad_rows, "row", "rows");
        lines.push(format!("{rows} could not be read"));
    }
    if let Some(spent) = &summary.judges {
        let mut line = format!(
            "judges: {}, {} known before, {} failed; {} tokens",
            counted(spent.answered as usize, "answer", "answers"),
            thousands(spent.known as usize),
            thousands(spent.failed as usize),
            thousands((spent.prompt_tokens + spent.completion_tokens) as usize)
        );
        if spent.cost > 0.0 {
            let _ = write!(line, ", cost {:.4}", spent.cost);
        }
        lines.push(line);
    }
    lines.push(format!("report: {}", output.join("report.html").display()));
    lines.join("\n")
}

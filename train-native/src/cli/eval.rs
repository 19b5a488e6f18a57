//! `kiln eval`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{Args, Subcommand};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::Prompts;
use kiln_embed::quant::WeightPrecision;
use serde::Serialize;
use serde_json::{Value, json};

use super::eval_search::{self, EvalSearchArgs};
use super::ranges::{ROWS, number, whole};
use super::reranker::RerankerFlags;
use super::teacher_prompts::LightPrompts;
use super::{EmbedFlags, Global, ModelOverrides};
use crate::device;
use crate::eval::{
    Cache, EvalRun, Evaluated, Light, Measure, ModelEncoder, ModelResults, PromptChoice, Reranking,
    RunFiles, SkippedTask, Suite, SuiteRun, SuiteSummary, Task, TaskKind, TaskResult, fingerprint,
    plain_table, read_results, results_folder, short_hash, write_meta, write_tables,
};
use crate::mine::teacher_prompts;
use crate::model::{folders, load, model_name};
use crate::terminal::{Terminal, counted, print, print_json};

/// Score a model on tasks as mteb defines them.
///
/// Scores one task on a file of yours (--task, --data), or a suite of tasks (--suite). `kiln eval
/// trec` scores a TREC run instead.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(super) struct EvalArgs {
    #[command(subcommand)]
    trec: Option<Other>,
    /// Model: a folder, a .kiln file, or a Hub id (owner/name[@revision])
    #[arg(long, short, value_name = "DIR|HUB_ID", required = true)]
    model: Option<String>,
    #[command(flatten)]
    overrides: ModelOverrides,
    #[command(flatten)]
    flags: EmbedFlags,
    /// Kind of task that --data holds
    #[arg(long, value_name = "KIND", requires = "data", conflicts_with = "suite")]
    task: Option<TaskKind>,
    /// Suite: a TOML file, or the name of a shipped one (`kiln eval suites` lists them)
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "task")]
    suite: Option<String>,
    /// Data of --task: a file (.jsonl, .csv, .tsv, .parquet), a BEIR folder, or hub:owner/name.
    /// With --suite, the folder that the suite's paths are relative to
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Split to evaluate on [default: the first of test, dev, validation that exists]
    #[arg(long, value_name = "NAME", requires = "task")]
    split: Option<String>,
    /// Subset of the data set, usually a language
    #[arg(long, value_name = "NAME", requires = "task", default_value = "default")]
    subset: String,
    /// Run only these tasks of the suite
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "suite")]
    only: Vec<String>,
    /// Prompts to use: model (its own), none, or the instructions of nv-embed, mgh, anchor,
    /// pooling-attention or linq
    #[arg(long, value_name = "WHOSE", default_value = "model")]
    prompts: String,
    /// Instruction for all tasks, in the form that the model was trained with, else "Instruct: ...\nQuery: "
    #[arg(long, value_name = "TEXT", conflicts_with = "prompts")]
    instruction: Option<String>,
    /// Form of instructions, for a model that does not carry its own, such as
    /// "Instruct: {instruction}\nQuery: "; documents then have the model's prompt for them
    #[arg(long, value_name = "TEXT", value_parser = parse_instruction_format,
        conflicts_with_all = ["query_prompt", "document_prompt"])]
    instruction_format: Option<String>,
    /// Prompt of queries, or of all texts where a task has only one kind
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompts", "instruction"])]
    query_prompt: Option<String>,
    /// Prompt of documents
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["prompts", "instruction"])]
    document_prompt: Option<String>,
    /// Training texts per label in classification tasks
    #[arg(long, value_name = "N", requires = "task", default_value_t = 8, value_parser = whole(1, ROWS))]
    samples_per_label: usize,
    /// Evaluate retrieval on a light set that this teacher selects (the 50 best documents of a
    /// fifth of the queries), and print the gap to the full set
    #[arg(long, value_name = "DIR|HUB_ID")]
    light: Option<String>,
    #[command(flatten)]
    light_prompts: LightPrompts,
    /// Rank with this reranker (a folder, a .kiln file or a Hub id): the candidates of reranking tasks, and the
    /// best --candidates documents that the model finds in retrieval tasks
    #[arg(long, value_name = "DIR|FILE|HUB_ID")]
    reranker: Option<String>,
    /// Documents per query that the reranker ranks in retrieval tasks
    #[arg(long, value_name = "N", default_value_t = 100, requires = "reranker", value_parser = whole(1, 1000))]
    candidates: usize,
    #[command(flatten)]
    reranker_flags: RerankerFlags,
    /// Folder of results; an interrupted evaluation continues there [default with --suite: results]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Evaluate tasks again that the folder of results has already
    #[arg(long)]
    again: bool,
    /// Write what each retrieval task finds to this folder: a TREC run, and for a task with a place in
    /// AIR-Bench its search results in that benchmark's form
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,
    /// Folder to cache embeddings in
    #[arg(long, value_name = "DIR", env = "KILN_EMBEDDINGS")]
    cache: Option<PathBuf>,
    /// Do not cache embeddings
    #[arg(long, conflicts_with = "cache")]
    no_cache: bool,
}

#[derive(Debug, Subcommand)]
enum Other {
    /// Score a TREC run with trec_eval's measures
    Trec(TrecArgs),
    /// List the shipped suites and their tasks
    Suites,
    Search(EvalSearchArgs),
}

/// Files of trec_eval's formats.
#[derive(Debug, Args)]
struct TrecArgs {
    /// Relevance judgements, one per line: query, iteration, document, grade
    qrels: PathBuf,
    /// Run, one hit per line: query, Q0, document, rank, score, name; - reads standard input
    run: PathBuf,
    /// Also print the scores of each query
    #[arg(short = 'q', long)]
    each_query: bool,
    /// Average over all judged queries; queries missing from the run count as 0
    #[arg(short, long)]
    complete: bool,
    /// Measure by trec_eval's name, such as map, ndcg_cut.10,20 or official (repeatable)
    #[arg(short, long, value_name = "NAME")]
    measure: Vec<String>,
    /// Lowest grade that counts as relevant
    #[arg(short, long, value_name = "GRADE", default_value_t = 1.0, value_parser = number(-1e9, 1e9))]
    level: f64,
}

pub(super) fn run(args: &EvalArgs, global: &Global) -> Result<()> {
    match (&args.trec, &args.model) {
        (Some(Other::Trec(args)), _) => trec(args, global),
        (Some(Other::Suites), _) => suites(global),
        (Some(Other::Search(args)), _) => eval_search::run(args, global),
        (None, Some(model)) => tasks(args, model, global),
        (None, None) => bail!("name a model with --model"),
    }
}

fn trec(args: &TrecArgs, global: &Global) -> Result<()> {
    let measures = match args.measure.is_empty() {
        true => Measure::default_set(),
        false => args
            .measure
            .iter()
            .map(|name| Measure::parse(name))
            .collect::<Result<Vec<_>>>()?
            .concat(),
    };
    let result = Evaluated::read(&args.qrels, &args.run, args.complete, args.level)?;
    if result.repeated() > 0 {
        let lines = counted(result.repeated(), "line that says", "lines that say");
        global.terminal().note(format!("left out {lines} again what one before says"));
    }
    if global.json {
        return print_json(&result.to_json(&measures, args.each_query)?);
    }
    print(result.to_text(&measures, args.each_query)?.trim_end_matches('\n'))
}

fn suites(global: &Global) -> Result<()> {
    let suites = Suite::shipped()?;
    let values: Vec<Value> = suites
        .iter()
        .map(|suite| json!({ "name": suite.name, "title": suite.title, "tasks": suite.tasks }))
        .collect();
    global.terminal().result(&values, || {
        let mut text = String::new();
        for suite in &suites {
            let mut names: Vec<&str> = Vec::new();
            for task in &suite.tasks {
                let name = task.group.as_deref().unwrap_or(&task.name);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            text += &format!("{}  {}\n    {}\n", suite.name, suite.title, names.join(", "));
        }
        text
    })
}

/// The tasks that were asked for, and the folder in which their paths begin.
fn wanted(args: &EvalArgs) -> Result<(Vec<Task>, PathBuf)> {
    if let (Some(kind), Some(data)) = (args.task, &args.data) {
        let text = data.to_string_lossy();
        let hub = text.strip_prefix("hub:").map(String::from);
        let name = Path::new(hub.as_deref().unwrap_or(&text))
            .file_name()
            .map_or_else(|| "data".into(), |name| name.to_string_lossy().into_owned());
        let name = name.split('.').next().unwrap_or("data").to_string();
        let mut task = Task::new(&name, kind);
        match hub {
            Some(hub) => task.hub = Some(hub),
            None => task.path = Some(std::path::absolute(data)?),
        }
        task.split.clone_from(&args.split);
        task.subset.clone_from(&args.subset);
        task.samples_per_label = args.samples_per_label;
        return Ok((vec![task], PathBuf::new()));
    }
    let name = args.suite.as_deref().context("give --task with --data, or --suite")?;
    let mut tasks = Suite::open(name)?.tasks;
    if !args.only.is_empty() {
        let is_it =
            |task: &Task, name: &String| task.name == *name || task.group.as_ref() == Some(name);
        if let Some(unknown) =
            args.only.iter().find(|name| !tasks.iter().any(|task| is_it(task, name)))
        {
            bail!("the suite {name} has no task {unknown:?}; see `kiln eval suites`");
        }
        tasks.retain(|task| args.only.iter().any(|name| is_it(task, name)));
    }
    Ok((tasks, args.data.clone().unwrap_or_default()))
}

/// An encoder on the chosen device, and its fingerprint.
struct Opened {
    encoder: ModelEncoder,
    fingerprint: String,
}

/// A number for a model's files and what of its settings was changed.
fn fingerprint_of(
    args: &EvalArgs,
    model: &str,
    precision: WeightPrecision,
    terminal: Terminal,
) -> Result<String> {
    let overrides = LoadOptions { precision, ..args.overrides.load_options() };
    fingerprint(&folders(model, terminal)?, &overrides, args.flags.dimensions)
}

fn open(
    args: &EvalArgs,
    model: &str,
    precision: WeightPrecision,
    global: &Global,
) -> Result<Opened> {
    let terminal = global.terminal();
    let options = args.flags.options(None, None);
    let fingerprint = fingerprint_of(args, model, precision, terminal)?;
    let cache = match (&args.cache, args.no_cache) {
        (_, true) => None,
        (Some(folder), _) => Some(folder.clone()),
        (None, _) => Cache::default_folder(),
    };
    let cache = cache.and_then(|folder| Cache::open(&folder, &fingerprint, terminal));
    let device = device::open(global.device)?;
    let overrides = LoadOptions { precision, ..args.overrides.load_options() };
    let model = load(model, &overrides, &device, terminal)?;
    model.check(&options)?;
    let encoder = ModelEncoder::new(model, options, cache, terminal)
        .with_instruction_format(args.instruction_format.clone());
    Ok(Opened { encoder, fingerprint })
}

fn parse_instruction_format(format: &str) -> Result<String, String> {
    match Prompts::default().with_instruction_format(Some(format.into())) {
        Ok(_) => Ok(format.into()),
        Err(error) => Err(error.to_string()),
    }
}

fn prompts(args: &EvalArgs) -> Result<PromptChoice> {
    let choice = match (&args.instruction, &args.query_prompt, &args.document_prompt) {
        (Some(instruction), ..) => PromptChoice::Instruction(instruction.clone()),
        (None, None, None) => PromptChoice::from_name(&args.prompts)?,
        (None, query, document) => PromptChoice::Texts([
            query.clone().unwrap_or_default(),
            document.clone().unwrap_or_default(),
        ]),
    };
    if args.instruction_format.is_some() && !choice.instructs() {
        bail!(
            "--instruction-format is the form of instructions, and there are none; add --instruction, or --prompts \
             with a paper's name"
        );
    }
    Ok(choice)
}

fn tasks(args: &EvalArgs, model: &str, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let (tasks, data) = wanted(args)?;
    let prompts = prompts(args)?;
    let ours = open(args, model, args.flags.weights, global)?;
    // A model that is its own teacher is loaded once.
    let other = match &args.light {
        Some(teacher)
            if fingerprint_of(args, teacher, WeightPrecision::Kept, terminal)?
                != ours.fingerprint =>
        {
            Some(open(args, teacher, WeightPrecision::Kept, global)?)
        }
        _ => None,
    };
    let teacher = args.light.as_ref().map(|_| other.as_ref().unwrap_or(&ours));
    let asked_of_teacher = args.light_prompts.asked();
    let own_prompts = asked_of_teacher.iter().all(Option::is_none);
    let light = match teacher {
        Some(Opened { encoder, .. }) => {
            let prompts = teacher_prompts(encoder.model.prompts(), asked_of_teacher)?;
            Some(Light { teacher: encoder, prompts })
        }
        None => None,
    };
    // What the results depend on beside the model's files names their folder.
    let full = &fingerprint_of(args, model, WeightPrecision::Kept, terminal)?[..16];
    let asked = match &prompts {
        PromptChoice::Model => String::new(),
        PromptChoice::None => "-none".into(),
        PromptChoice::Table(table) => format!("-{table}"),
        other => format!("-prompts.{}", short_hash(&format!("{other:?}"))),
    };
    let mut base = format!("{full}{asked}");
    if let Some(format) = &args.instruction_format {
        base += &format!("-form.{}", short_hash(format));
    }
    let mut revision = base.clone();
    if args.flags.weights != WeightPrecision::Kept {
        revision += &format!("-{}", args.flags.weights.name());
    }
    if let Some(teacher) = &teacher {
        revision += &format!("-light.{}", &teacher.fingerprint[..8]);
    }
    if let Some(light) = light.as_ref().filter(|_| !own_prompts) {
        revision += &format!("-{}", short_hash(&format!("{:?}", light.prompts)));
    }
    let reranker = match &args.reranker {
        Some(id) => {
            let files = fingerprint(&folders(id, terminal)?, &LoadOptions::default(), None)?;
            let how = format!("{files} {:?} {}", args.reranker_flags, args.candidates);
            revision += &format!("-reranked.{}", short_hash(&how));
            Some(args.reranker_flags.load(id, global)?)
        }
        None => None,
    };
    let name = model_name(model);
    let output = match (&args.output, args.task) {
        (Some(output), _) => Some(output.clone()),
        (None, None) => Some(PathBuf::from("results")),
        (None, Some(_)) => None,
    };
    let folder = output.as_ref().map(|output| results_folder(output, &name, &revision));
    let run = EvalRun {
        encoder: &ours.encoder,
        prompts,
        data,
        folder: folder.clone(),
        again: args.again,
        light,
        reranker: reranker.as_ref().map(|model| Reranking {
            model: model.as_ref(),
            candidates: args.candidates,
            batch_tokens: args.reranker_flags.batch_tokens(),
        }),
        run_files: args.runs.clone().map(|folder| RunFiles {
            folder,
            model: name.clone(),
            reranker: args.reranker.as_deref().map(model_name),
        }),
        terminal,
    };
    if let Some(folder) = &folder {
        let device = global.device.to_string();
        write_meta(
            folder,
            &name,
            &revision,
            json!({ "device": device, "model": model, "reranker": args.reranker }),
        )?;
    }
    let gap_to = output
        .as_ref()
        .filter(|_| revision != base && reranker.is_none())
        .map(|output| results_folder(output, &name, &base));
    if let (Some(_), [task]) = (args.task, &tasks[..]) {
        let (result, kept) = run.one(task)?;
        if let Some(folder) = folder.as_ref().filter(|_| kept) {
            let place = folder.display();
            terminal.note(format!(
                "the score is kept from before in {place}; --again computes it anew"
            ));
        }
        if result.main_score().is_none() {
            terminal.note("the score is not defined: the values of one side are all equal");
        }
        return terminal.result(&result.to_json(), || one_text(&result));
    }
    let ran = run.all(&tasks)?;
    let gaps = gap_to.map(|folder| gaps(&folder, &ran.results));
    report(
        &ran,
        &ModelResults { model: name, revision, tasks: ran.results.clone() },
        folder.as_deref(),
        gaps.as_deref(),
        terminal,
    )
}

fn one_text(result: &TaskResult) -> String {
    let mut rows = vec![vec!["measure".to_string(), result.task.name.clone()]];
    rows.extend(result.scores.iter().map(|(name, score)| {
        vec![name.clone(), score.map_or("not defined".into(), |score| format!("{score:.5}"))]
    }));
    let main = result.main_score().map_or("not defined".into(), |score| format!("{score:.5}"));
    format!("{}main score: {} {main}\n", plain_table(&rows), result.task.main_score())
}

/// How far a task's score is from the full evaluation's.
#[derive(Debug, Clone, Serialize)]
struct Gap {
    task: String,
    full: f64,
    this: f64,
    gap: f64,
}

/// How far results are from the full evaluation's, task by task.
fn gaps(full: &Path, results: &[TaskResult]) -> Vec<Gap> {
    let Ok(full) = read_results(full) else {
        return Vec::new();
    };
    let gap = |result: &TaskResult| {
        let same = full.tasks.iter().find(|other| other.task == result.task)?;
        let (full, this) = same.main_score().zip(result.main_score())?;
        Some(Gap { task: result.task.name.clone(), full, this, gap: this - full })
    };
    results.iter().filter_map(gap).collect()
}

fn gap_rows(gaps: &[Gap]) -> Vec<Vec<String>> {
    let points = |score: f64| format!("{:.2}", 100.0 * score);
    let mut rows = vec![["task", "full", "this", "gap"].map(String::from).to_vec()];
    rows.extend(gaps.iter().map(|one| {
        let gap = format!("{:+.2}", 100.0 * one.gap);
        vec![one.task.clone(), points(one.full), points(one.this), gap]
    }));
    let mean = gaps.iter().map(|one| one.gap.abs()).sum::<f64>() / gaps.len().max(1) as f64;
    rows.push(vec!["mean size of the gap".into(), String::new(), String::new(), points(mean)]);
    rows
}

fn report(
    ran: &SuiteRun,
    results: &ModelResults,
    folder: Option<&Path>,
    gaps: Option<&[Gap]>,
    terminal: Terminal,
) -> Result<()> {
    let mut left_out = vec![vec!["task".to_string(), "why not".into()]];
    let reasons = |ran: &[SkippedTask], what: &str| {
        let row = |one: &SkippedTask| vec![one.task.clone(), format!("{what}: {}", one.reason)];
        ran.iter().map(row).collect::<Vec<_>>()
    };
    left_out.extend(reasons(&ran.skipped, "skipped"));
    left_out.extend(reasons(&ran.failed, "failed"));
    if let Some(folder) = folder {
        write_tables(folder, results, &left_out)?;
    }
    let summary = SuiteSummary::of(&results.tasks);
    let value = json!({
        "model": results.model,
        "revision": results.revision,
        "folder": folder,
        "tasks": results.tasks.iter().map(TaskResult::to_json).collect::<Vec<_>>(),
        "by_type": summary.by_type,
        "mean_by_task": summary.mean_by_task,
        "mean_by_type": summary.mean_by_type,
        "skipped": ran.skipped,
        "failed": ran.failed,
        "gaps": gaps.unwrap_or_default(),
    });
    terminal.result(&value, || {
        let mut text = plain_table(&summary.rows());
        if left_out.len() > 1 {
            text += &format!("\nnot evaluated:\n{}", plain_table(&left_out));
        }
        match gaps {
            Some([]) => {
                text += "\nno full evaluation is in the folder of results; run once without --light and --weights to see the gap\n";
            }
            Some(gaps) => {
                text += &format!("\ngap to the full evaluation:\n{}", plain_table(&gap_rows(gaps)));
            }
            None => {}
        }
        if let Some(folder) = folder {
            text += &format!("\nresults, report.md and report.html: {}\n", folder.display());
        }
        text
    })?;
    if results.tasks.is_empty() && ran.failed.is_empty() {
        bail!("no task's data is there; name its folder with --data, or see `kiln eval suites`");
    }
    match ran.failed.as_slice() {
        [] => Ok(()),
        failed => bail!(
            "{} of {} failed, first {}: {}",
            failed.len(),
            counted(failed.len() + ran.results.len() + ran.skipped.len(), "task", "tasks"),
            failed[0].task,
            failed[0].reason
        ),
    }
}

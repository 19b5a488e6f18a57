//! `kiln adapt`

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser as _, ValueEnum as _};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::config::AttentionMode;
use kiln_synthesis::documents::Shares;
use kiln_synthesis::llm::{EndpointList, Role};
use kiln_synthesis::prompts::Prompts;
use kiln_synthesis::refine::{FilterKind, Filters};
use kiln_synthesis::synthesize::{ANSWERS, OtherQuestions, SUMMARY};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::Xxh3;

use super::eval_search::systems;
use super::llm::LlmArgs;
use super::ranges::{ROWS, SIZE, number, seed, whole};
use super::synthesize::{Check, parse_languages};
use super::{Cli, Global, execute};
use crate::adapt::{
    Adapted, FILTERS, JUDGES, Questions, SOURCES, StepTaken, Tuning, Verdict, card, page, quoted,
    recipe, texts_of_corpus,
};
use crate::compress::Storage;
use crate::eval::{Systems, fingerprint, judged_split};
use crate::model::{embedder_config, folders, load_tokenizer, model_name};
use crate::output::claim;
use crate::terminal::{Terminal, plain, without_results};
use crate::text::{is_missing, names_below, read_small};
use crate::train::CHECKPOINTS;
use crate::vectors::write_atomically;

/// Make an embedder for a folder of documents: the whole way in one command.
///
/// Cuts the documents into passages, has a language model write questions that they answer (or takes titles and
/// headings, --no-llm), cleans those, mines hard negatives, fine-tunes the base, compares it with the base and with
/// BM25 on questions about documents that it was not trained on, and writes a compressed model, a report and a card.
/// Each step is said, most as a command that can be run alone; the same command goes on where it stopped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kiln adapt --docs handbook --base sentence-transformers/all-MiniLM-L6-v2 \\
    --llm http://localhost:8080/v1 --llm-model qwen3 -o handbook-embedder
  kiln adapt --docs handbook --base sentence-transformers/all-MiniLM-L6-v2 --no-llm -o handbook-embedder")]
pub(super) struct AdaptArgs {
    /// Documents: a folder or a file (.txt, .md, .html, .pdf, .jsonl, .csv, .tsv, .parquet)
    #[arg(long, value_name = "PATH")]
    docs: PathBuf,
    /// Model to begin with: a folder or a Hub id (owner/name[@revision])
    #[arg(long, short, value_name = "DIR|HUB_ID")]
    base: String,
    /// Folder for everything that is written
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    llm: LlmArgs,
    /// Ask no model: train on titles, headings, questions and neighbouring passages of the documents
    #[arg(long, conflicts_with_all = ["llm", "llm_config"])]
    no_llm: bool,
    /// Do not have the language model judge whether passages answer their questions
    #[arg(long)]
    no_judge: bool,
    /// BEIR folder of people's questions about the same documents; they decide in place of the held-out ones and are
    /// not trained on
    #[arg(long, value_name = "DIR")]
    test_set: Option<PathBuf>,
    /// Tokens of a passage, title and headings included [default: 256, or what the base reads of a text if that is
    /// less]
    #[arg(long, value_name = "N", value_parser = whole(16, SIZE))]
    tokens: Option<usize>,
    /// Shares of the documents to train on, to choose a checkpoint by, and to judge by
    #[arg(long, value_name = "SHARES", default_value = "0.8,0.1,0.1", value_parser = checked::<Shares>)]
    split: String,
    /// Questions to write for a passage, at most
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole(1, 10))]
    queries: usize,
    /// Passages to ask questions about [default: all]
    #[arg(long, value_name = "N", value_parser = whole(1, ROWS))]
    passages: Option<usize>,
    /// Language to write questions in: that of the documents, by ISO 639-1 (de)
    #[arg(long, value_name = "CODE", default_value = "en", value_parser = parse_languages)]
    language: String,
    /// Checks of questions to leave out, such as length for small models
    #[arg(long, value_enum, value_name = "CHECK", value_delimiter = ',')]
    without_check: Vec<Check>,
    /// Folder of your own corpus.jinja, answerable.jinja and refutation.jinja
    #[arg(long, value_name = "DIR", conflicts_with = "no_llm")]
    prompts: Option<PathBuf>,
    /// Filters of the questions, as `kiln refine` has them: a TOML file, plain or linq [default: see filters.toml in
    /// the output]
    #[arg(long, value_name = "NAME|FILE")]
    filters: Option<String>,
    /// Hard negatives of each question
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0, 100))]
    negatives: usize,
    /// Rounds of training over the examples
    #[arg(long, value_name = "N", default_value_t = 2.0, value_parser = number(0.01, 1e4))]
    epochs: f64,
    /// Steps of training, instead of --epochs
    #[arg(long, value_name = "N", value_parser = whole(1, ROWS))]
    steps: Option<usize>,
    /// Questions in a batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole(2, 1 << 20))]
    batch: usize,
    /// Learning rate [default: 2e-5; 2e-4 for adapters]
    #[arg(long, value_name = "RATE", value_parser = number(0.0, 10.0))]
    lr: Option<f64>,
    /// Train adapters of this rank; 0 trains all parameters [default: 16 for language models, 0 for encoders]
    #[arg(long, value_name = "RANK", value_parser = whole(0, 4096))]
    lora: Option<usize>,
    /// Train in bf16
    #[arg(long)]
    bf16: bool,
    /// Compression of the result: int8, int4, .., as `kiln quantize` has them
    #[arg(long, value_name = "SCHEME", default_value = "int8", value_parser = checked::<Storage>)]
    scheme: String,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    seed: u64,
}

impl AdaptArgs {
    /// The words that name the user's prompts; their content is what steps depend on.
    fn own_prompts(&self) -> Vec<String> {
        let folder = self.prompts.iter().map(|folder| folder.to_string_lossy().into_owned());
        folder.flat_map(|folder| ["--prompts".into(), folder]).collect()
    }
}

/// A word that is one of a kind, as it was given.
fn checked<T: FromStr<Err: Display>>(text: &str) -> Result<String, String> {
    text.parse::<T>().map(|_| text.to_string()).map_err(|error| error.to_string())
}

/// What lies in the output folder. Names of the steps' files are theirs.
const FILES: [&str; 18] = [
    STEPS,
    "passages.jsonl",
    "corpus.jsonl",
    "synthesis",
    "filters.toml",
    "refined",
    "train.jsonl",
    "train-corpus.jsonl",
    SOURCES,
    "questions.json",
    "dev",
    "test",
    "mined.jsonl",
    "recipe.toml",
    "run",
    PACKED,
    "report.html",
    "README.md",
];
/// The compressed model.
const PACKED: &str = "adapted.kiln";
/// Which steps are done.
const STEPS: &str = "steps.json";
/// Changes where a step does something else with the same words.
const FORMAT: &str = "2";
/// The base's weights where it ranks passages: twice as fast, and the ranks are nearly those of f32.
const RANKED_BY: &str = "int8";
/// Tokens of a passage, where the base reads as many.
const TOKENS: usize = 256;

/// Steps, each by a number for what it depended on.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    /// Those that were begun, and may have left something to go on from.
    begun: BTreeMap<String, String>,
    /// Those that are done.
    done: BTreeMap<String, String>,
}

/// Who writes and judges questions.
#[derive(Debug, Default)]
struct Models {
    writers: Vec<String>,
    judges: Vec<String>,
    prompts: Vec<String>,
}

/// The way through the steps.
struct Way<'a> {
    args: &'a AdaptArgs,
    global: &'a Global,
    /// The base as commands have it.
    base: String,
    /// A number for the base's files, and the models that are asked.
    fixed: String,
    done: Done,
    taken: Vec<StepTaken>,
    /// A number for all that the next step depends on: what the steps before it were.
    state: Xxh3,
}

impl Way<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.args.output.join(name)
    }

    fn arg(&self, name: &str) -> String {
        self.path(name).to_string_lossy().into_owned()
    }

    /// From here on all depends on this, and on nothing that was before.
    fn depends_on(&mut self, what: &[u8]) {
        self.state = Xxh3::new();
        for part in [FORMAT.as_bytes(), self.fixed.as_bytes(), what] {
            self.state.update(&(part.len() as u64).to_le_bytes());
            self.state.update(part);
        }
    }

    /// Does a step that is no command; `own` is what its files depend on beside what was before.
    fn step(
        &mut self,
        name: &str,
        own: &str,
        what: String,
        act: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        self.step_of(name, own, &[], &what, |way| (what.clone(), act(way)))
    }

    /// Does a step, unless it was done with all that went before it the same. What an earlier try with something else
    /// left in `stale` is removed. `act` says what it did as a command.
    fn step_of(
        &mut self,
        name: &str,
        own: &str,
        stale: &[&str],
        command: &str,
        act: impl FnOnce(&Self) -> (String, Result<()>),
    ) -> Result<()> {
        self.state.update(name.as_bytes());
        self.state.update(own.as_bytes());
        let state = format!("{:032x}", self.state.digest128());
        let terminal = self.global.terminal();
        if self.done.done.get(name) == Some(&state) {
            terminal.note(format!("{name}: done before"));
            let step = StepTaken { name: name.into(), command: command.into(), seconds: None };
            self.taken.push(step);
            return Ok(());
        }
        if self.done.begun.get(name) != Some(&state) {
            self.undo(name)?;
            // What is of other data is no beginning of this.
            for name in stale {
                remove(&self.path(name))?;
            }
            self.done.begun.insert(name.into(), state.clone());
            self.keep()?;
        }
        let start = Instant::now();
        let (command, result) = act(self);
        result.with_context(|| name.to_string())?;
        if crate::interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        self.done.done.insert(name.into(), state);
        self.keep()?;
        let seconds = start.elapsed().as_secs_f64();
        terminal.note(format!("{name}: done in {seconds:.0} s"));
        self.taken.push(StepTaken { name: name.into(), command, seconds: Some(seconds) });
        Ok(())
    }

    /// A step is not done after all.
    fn undo(&mut self, name: &str) -> Result<()> {
        self.done.done.remove(name);
        self.keep()
    }

    fn keep(&self) -> Result<()> {
        write_atomically(&self.path(STEPS), &serde_json::to_vec_pretty(&self.done)?)
    }

    /// Does a step that is a command. Of `free` words nothing that is written depends; `more` is what an earlier try
    /// asks for.
    fn command(
        &mut self,
        name: &str,
        words: &[String],
        free: &[String],
        stale: &[&str],
        more: impl Fn(&Self) -> &'static [&'static str],
    ) -> Result<()> {
        let all: Vec<String> =
            std::iter::once("kiln".to_string()).chain(words.iter().chain(free).cloned()).collect();
        let line =
            |all: &[String]| all.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
        let own = self.own(words);
        self.step_of(name, &own, stale, &line(&all), |way| {
            let all = [&all[..], &self::words(more(way))].concat();
            let line = line(&all);
            way.global.terminal().note(format!("\n{name}: {line}"));
            (line, way.execute(all))
        })
    }

    /// What of a command's words its files depend on: not where they lie.
    fn own(&self, words: &[String]) -> String {
        let word = |word: &String| match Path::new(word).strip_prefix(&self.args.output) {
            Ok(name) => name.to_string_lossy().into_owned(),
            Err(_) if *word == self.base => "the base".into(),
            Err(_) => word.clone(),
        };
        words.iter().map(word).collect::<Vec<_>>().join("\n")
    }

    fn execute(&self, all: Vec<String>) -> Result<()> {
        let cli = Cli::try_parse_from(all).map_err(|error| {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            anyhow::anyhow!("{}", line.trim_start_matches("error: "))
        })?;
        without_results(|| execute(&cli.command, self.global))
    }

    /// A step's own counts.
    fn summary(&self, name: &str) -> Result<Value> {
        let path = self.path(name);
        serde_json::from_str(&read_small(&path)?).with_context(|| path.display().to_string())
    }

    /// Whether a step was taken now, and not before.
    fn took(&self, name: &str) -> bool {
        self.taken.iter().any(|step| step.name == name && step.seconds.is_some())
    }
}

/// Removes a file or a folder, if it is there.
fn remove(path: &Path) -> Result<()> {
    let removed = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| path.display().to_string())
        }
        _ => Ok(()),
    }
}

/// A number for the documents: their names, sizes and times. Links that lead nowhere are no documents.
fn number_of(docs: &Path) -> Result<String> {
    let label = || docs.display().to_string();
    let mut names = match std::fs::metadata(docs).with_context(label)?.is_dir() {
        true => names_below(docs)?,
        false => vec![String::new()],
    };
    names.sort();
    let mut hash = Xxh3::new();
    for name in names {
        let path = if name.is_empty() { docs.to_path_buf() } else { docs.join(&name) };
        let data = match std::fs::metadata(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            data => data.with_context(|| path.display().to_string())?,
        };
        let time =
            data.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        hash.update(name.as_bytes());
        hash.update(&data.len().to_le_bytes());
        hash.update(&time.unwrap_or_default().as_nanos().to_le_bytes());
    }
    Ok(format!("{:032x}", hash.digest128()))
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

pub(super) fn run(args: &AdaptArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let endpoints = args.llm.endpoints()?;
    if endpoints.is_none() && !args.no_llm {
        bail!(
            "who is to write the questions? Give --llm URL and --llm-model NAME, --llm-config FILE, or --no-llm to take \
             titles and headings"
        );
    }
    // What can be wrong is found before hours of work.
    let filters = filters(args, endpoints.is_some())?;
    let models = models(args, endpoints.as_ref(), &filters)?;
    if let Some(set) = &args.test_set {
        check_test_set(set, &args.docs)?;
        crate::data::BeirFolder::read(set, &judged_split(set)?, Some(1), terminal)?;
    }
    if model_name(&args.base) == model_name(PACKED) {
        bail!("--base {}: has the name of what is made of it; rename it", args.base);
    }
    let config = embedder_config(&args.base, terminal)?;
    let tokens = tokens(args, terminal)?;
    let base = match Path::new(&args.base).exists() {
        true => std::path::absolute(&args.base)?.to_string_lossy().into_owned(),
        false => args.base.clone(),
    };
    let docs = number_of(&args.docs)?;
    let own = std::path::absolute(&args.output)?;
    if std::path::absolute(&args.docs)?.starts_with(&own)
        || own.starts_with(std::path::absolute(&args.docs)?)
    {
        bail!(
            "{}: would be read as documents on the next run; choose an --output outside --docs",
            args.output.display()
        );
    }
    claim(&args.output, &FILES)?;
    let path = args.output.join(STEPS);
    let done = match read_small(&path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string())?,
        Err(error) if is_missing(&error) => Done::default(),
        Err(error) => return Err(error),
    };
    let files = fingerprint(&folders(&args.base, terminal)?, &LoadOptions::default(), None)?;
    // Judges are asked by refinement alone.
    let answering = |roles: &[Role]| endpoints.as_ref().map(|list| list.answering(roles));
    let asked = serde_json::to_string(&answering(&[Role::Seed, Role::Write]))?;
    let judging = serde_json::to_string(&answering(&[Role::Judge]))?;
    let fixed = format!("{files} {asked}");
    let (taken, state) = (Vec::new(), Xxh3::new());
    let mut way = Way { args, global, base, fixed, done, taken, state };
    let titles = endpoints.is_some();

    write_passages(&mut way, &docs, tokens)?;
    way.state.update(models.prompts.first().map_or("", |version| version).as_bytes());
    write_questions(&mut way, titles)?;
    let corpus = if titles { "with titles" } else { "without titles" };
    let what = format!("write {} {corpus}", way.arg("corpus.jsonl"));
    way.step("corpus", corpus, what, |way| {
        texts_of_corpus(&way.path("passages.jsonl"), &way.path("corpus.jsonl"), titles)
    })?;
    if !models.judges.is_empty() {
        way.state.update(format!("{judging}{:?}", models.prompts).as_bytes());
    }
    refine_questions(&mut way, &filters, tokens, !models.judges.is_empty())?;
    let questions = split(&mut way, titles)?;
    mine(&mut way, tokens)?;
    let decoder = config.config.attention == AttentionMode::Causal;
    train(&mut way, questions.train, tokens, decoder)?;
    let best = if way.path("run/best").is_dir() { "run/best" } else { "run/model" };
    let (model, packed) = (way.arg(best), way.arg(PACKED));
    let quantize = ["quantize", "--model", &model, "--scheme", &args.scheme, "--output", &packed];
    way.command("compression", &words(&quantize), &[], &[], |_| &["--overwrite"])?;
    finish(way, &packed, questions, models)
}

/// The filters of the questions.
fn filters(args: &AdaptArgs, asks: bool) -> Result<Filters> {
    match &args.filters {
        Some(name) => Filters::open(name),
        None if asks && !args.no_judge => {
            Filters::parse(&format!("{FILTERS}{JUDGES}"), Path::new(""))
        }
        None => Filters::parse(FILTERS, Path::new("")),
    }
}

/// Who writes and judges, where anybody is asked; keys and roles are there.
fn models(args: &AdaptArgs, endpoints: Option<&EndpointList>, filters: &Filters) -> Result<Models> {
    let Some(list) = endpoints else { return Ok(Models::default()) };
    args.llm.connect(Terminal { json: false, quiet: true })?;
    let names = |role| list.of(role).into_iter().map(|i| list.endpoints[i].model.clone());
    let writers: Vec<String> = names(Role::Write).collect();
    if writers.is_empty() {
        bail!("no endpoint writes; give one the role \"write\" in --llm-config");
    }
    let prompts = Prompts::open(args.prompts.as_deref())?;
    let mut versions = vec![prompts.version("corpus").to_string()];
    let asking = || filters.filters.iter().filter(|filter| filter.kind.asks_judges());
    if args.no_judge || asking().next().is_none() {
        return Ok(Models { writers, judges: Vec::new(), prompts: versions });
    }
    let judges: Vec<String> = names(Role::Judge).collect();
    if judges.is_empty() {
        bail!(
            "no endpoint judges; give one the role \"judge\" in --llm-config, or leave judgements out (--no-judge)"
        );
    }
    let of = |refutes: bool| {
        asking().any(|filter| matches!(filter.kind, FilterKind::Refutation { .. }) == refutes)
    };
    for (name, is_asked) in [("answerable", of(false)), ("refutation", of(true))] {
        versions.extend(is_asked.then(|| prompts.version(name).to_string()));
    }
    Ok(Models { writers, judges, prompts: versions })
}

/// People's questions are no documents.
fn check_test_set(set: &Path, docs: &Path) -> Result<()> {
    let whole = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    if whole(set)?.starts_with(whole(docs)?) && judged_split(set).is_ok() {
        bail!(
            "{}: lies below --docs, so its questions would be read as documents and trained on; move it elsewhere",
            set.display()
        );
    }
    Ok(())
}

/// Tokens of a passage, all of which the base reads.
fn tokens(args: &AdaptArgs, terminal: Terminal) -> Result<usize> {
    let most = load_tokenizer(&args.base, terminal)?.0.config().max_length;
    match args.tokens {
        Some(tokens) if tokens > most => bail!(
            "--tokens {tokens}: {} reads {most} tokens of a text, and would not see the rest; lower it",
            args.base
        ),
        Some(tokens) => Ok(tokens),
        None => Ok(TOKENS.min(most)),
    }
}

/// Passages; what comes then depends on what they say, wherever the documents lie.
fn write_passages(way: &mut Way<'_>, docs: &str, tokens: usize) -> Result<()> {
    way.depends_on(docs.as_bytes());
    let args = way.args;
    let (documents, passages) = (args.docs.to_string_lossy(), way.arg("passages.jsonl"));
    let (tokens, seed, base) = (tokens.to_string(), args.seed.to_string(), way.base.clone());
    let chunk = words(&[
        "chunk",
        "--docs",
        &documents,
        "--model",
        &base,
        "--tokens",
        &tokens,
        "--split",
        &args.split,
        "--seed",
        &seed,
        "--output",
        &passages,
    ]);
    way.command("passages", &chunk, &[], &[], |_| &[])?;
    way.depends_on(content(&way.path("passages.jsonl"))?.as_bytes());
    Ok(())
}

/// A number for what a file says.
fn content(path: &Path) -> Result<String> {
    let label = || path.display().to_string();
    let mut file = std::fs::File::open(path).with_context(label)?;
    let (mut hash, mut block) = (Xxh3::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut block).with_context(label)?;
        if read == 0 {
            return Ok(format!("{:032x}", hash.digest128()));
        }
        hash.update(&block[..read]);
    }
}

/// Questions by a model, or by structure.
fn write_questions(way: &mut Way<'_>, asks: bool) -> Result<()> {
    let (passages, output) = (way.arg("passages.jsonl"), way.arg("synthesis"));
    let mut synthesize = words(&["synthesize", "--corpus", &passages, "--output", &output]);
    if !asks {
        synthesize.push("--structure".into());
        return way.command("questions", &synthesize, &[], &[], |_| &[]);
    }
    let args = way.args;
    let (seed, queries) = (args.seed.to_string(), args.queries.to_string());
    let options = ["--seed", &seed, "--queries", &queries, "--languages", &args.language];
    synthesize.extend(words(&options));
    synthesize.extend(args.passages.iter().flat_map(|count| ["--rows".into(), count.to_string()]));
    let checks = args.without_check.iter().filter_map(|check| check.to_possible_value());
    synthesize
        .extend(checks.flat_map(|check| ["--without-check".into(), check.get_name().to_string()]));
    let before = way.state.clone();
    let ask = |way: &mut Way<'_>| {
        let free = [args.llm.words(), args.own_prompts()].concat();
        way.command("questions", &synthesize, &free, &[], |way| {
            // What was answered is paid for, even about other documents.
            let begun = way.path("synthesis").join(ANSWERS).exists();
            if begun { &["--resume"] } else { &[] }
        })
    };
    match ask(way) {
        Err(error) if error.chain().any(|cause| cause.is::<OtherQuestions>()) => {
            set_aside(&way.path("synthesis"), way.global)?;
            way.state = before;
            ask(way)?;
        }
        asked => asked?,
    }
    check_questions(way)
}

/// Whether all passages were asked about, as far as the budget goes.
fn check_questions(way: &mut Way<'_>) -> Result<()> {
    let summary = way.summary(&format!("synthesis/{SUMMARY}"))?;
    let (open, all) = (&summary["unanswered"], &summary["examples"]);
    if !summary["spent"]["stopped"].is_null() {
        way.undo("questions")?;
        bail!(
            "questions: {open} of {all} passages are not asked about yet, as the budget is spent; raise it, or ask about \
             fewer (--passages), and run the same again"
        );
    }
    if open.as_u64() > Some(0) {
        way.global
            .terminal()
            .note(format!("questions: {open} of {all} passages got no answer, and are left out"));
    }
    Ok(())
}

/// Answers to other questions were paid for, and are kept beside.
fn set_aside(folder: &Path, global: &Global) -> Result<()> {
    let free =
        (1..).map(|number| folder.with_extension(number.to_string())).find(|path| !path.exists());
    let Some(free) = free else { return Ok(()) };
    std::fs::rename(folder, &free).with_context(|| folder.display().to_string())?;
    global
        .terminal()
        .note(format!("{}: answers to other questions are kept there", free.display()));
    Ok(())
}

/// What is left of the budget when the questions are written.
fn left(way: &Way<'_>) -> Result<LlmArgs> {
    let summary = way.summary(&format!("synthesis/{SUMMARY}"))?;
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    // A limit of requests is of this run alone.
    let requests = if way.took("questions") { number(&summary["spent"]["requests"]) } else { 0 };
    let tokens = number(&summary["prompt_tokens"]) + number(&summary["completion_tokens"]);
    Ok(way.args.llm.less(requests, tokens, summary["cost"].as_f64().unwrap_or(0.0)))
}

/// Filters by the base, and by the language model.
fn refine_questions(
    way: &mut Way<'_>,
    filters: &Filters,
    tokens: usize,
    judged: bool,
) -> Result<()> {
    let name = match &way.args.filters {
        // As it stands: what it names lies beside it.
        Some(name) => name.clone(),
        None => {
            let what = format!("write {}\n{}", way.arg("filters.toml"), filters.text);
            way.step("filters", &filters.text, what, |way| {
                write_atomically(&way.path("filters.toml"), filters.text.as_bytes())
            })?;
            way.arg("filters.toml")
        }
    };
    way.state.update(filters.text.as_bytes());
    let (rows, output, corpus) =
        (way.arg("synthesis/rows.jsonl"), way.arg("refined"), way.arg("corpus.jsonl"));
    let (tokens, base) = (tokens.to_string(), way.base.clone());
    let mut refine = words(&[
        "refine",
        "--data",
        &rows,
        "--filters",
        &name,
        "--model",
        &base,
        "--corpus",
        &corpus,
        "--max-length",
        &tokens,
        "--weights",
        RANKED_BY,
        "--output",
        &output,
    ]);
    if !judged {
        refine.push("--without-llm".into());
    }
    let free = match judged {
        true => [left(way)?.words(), way.args.own_prompts()].concat(),
        false => Vec::new(),
    };
    way.command("refinement", &refine, &free, &[], |_| &[])?;
    let stopped = way.summary("refined/summary.json")?["judges"]["stopped"].take();
    if !stopped.is_null() {
        way.undo("refinement")?;
        bail!(
            "refinement: not all questions are judged yet, as the budget is spent; raise it, or leave judgements out \
             (--no-judge), and run the same again"
        );
    }
    Ok(())
}

/// Questions to train on, to choose by and to judge by.
fn split(way: &mut Way<'_>, titles: bool) -> Result<Questions> {
    let file = way.path("questions.json");
    let what = format!("split {} by document", way.arg("refined/kept.jsonl"));
    way.step("split", "", what, |way| {
        let (kept, passages) = (way.path("refined/kept.jsonl"), way.path("passages.jsonl"));
        let questions = Questions::split(&kept, &passages, &way.args.output, titles)?;
        write_atomically(&file, &serde_json::to_vec_pretty(&questions)?)
    })?;
    serde_json::from_str(&read_small(&file)?).with_context(|| file.display().to_string())
}

fn mine(way: &mut Way<'_>, tokens: usize) -> Result<()> {
    let (train, corpus, mined) =
        (way.arg("train.jsonl"), way.arg("train-corpus.jsonl"), way.arg("mined.jsonl"));
    let (negatives, tokens) = (way.args.negatives.max(1).to_string(), tokens.to_string());
    let base = way.base.clone();
    let mine = words(&[
        "mine",
        "--model",
        &base,
        "--data",
        &train,
        "--corpus",
        &corpus,
        "--negatives",
        &negatives,
        "--least",
        "0",
        "--max-length",
        &tokens,
        "--weights",
        RANKED_BY,
        "--output",
        &mined,
    ]);
    way.command("negatives", &mine, &[], &[], |_| &[])
}

/// The recipe, and the training by it.
fn train(way: &mut Way<'_>, examples: usize, tokens: usize, decoder: bool) -> Result<()> {
    let args = way.args;
    let rank = args.lora.unwrap_or(if decoder { 16 } else { 0 });
    let people = args.test_set.as_deref().map(queries_of).transpose()?;
    let mut tuning = Tuning {
        base: "the base".into(),
        lora: Some(rank).filter(|rank| *rank > 0),
        examples,
        epochs: args.epochs,
        steps: args.steps,
        batch: args.batch.min(examples.max(2)),
        negatives: args.negatives,
        lr: args.lr,
        max_length: tokens,
        bf16: args.bf16,
        seed: args.seed,
        evaluation: people.iter().map(|path| content(path)).collect::<Result<_>>()?,
    };
    // What is trained depends on what base and questions are, and not on where they lie.
    let own = recipe(&tuning)?;
    tuning.base = way.base.clone();
    tuning.evaluation = people.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let text = recipe(&tuning)?;
    let what = format!("write {}\n{text}", way.arg("recipe.toml"));
    way.step("recipe", &own, what, |way| {
        write_atomically(&way.path("recipe.toml"), text.as_bytes())
    })?;
    let (recipe, trained) = (way.arg("recipe.toml"), way.arg("run"));
    let train = ["train", "--recipe", &recipe, "--output", &trained];
    way.command("training", &words(&train), &[], &["run"], |way| {
        let checkpoints = std::fs::read_dir(way.path("run").join(CHECKPOINTS));
        let begun = checkpoints.is_ok_and(|mut entries| entries.next().is_some());
        if begun { &["--resume"] } else { &["--overwrite"] }
    })
}

/// The file of people's questions.
fn queries_of(set: &Path) -> Result<PathBuf> {
    let set = std::path::absolute(set)?;
    let files = ["queries.jsonl", "queries.jsonl.gz", "queries.jsonl.zst"];
    let file = files.iter().map(|name| set.join(name)).find(|path| path.is_file());
    file.with_context(|| format!("{}: has no queries.jsonl", set.display()))
}

/// Compares, and writes the page and the card.
fn finish(mut way: Way<'_>, packed: &str, questions: Questions, models: Models) -> Result<()> {
    let (args, global) = (way.args, way.global);
    let terminal = global.terminal();
    let both = words(&[&way.base, packed]);
    let command = |data: &str| {
        let line =
            ["kiln", "eval", "search", "--model", &both[0], "--model", packed, "--data", data];
        line.map(quoted).join(" ")
    };
    let test = way.arg("test");
    terminal.note(format!("\ncomparison: {}", command(&test)));
    let start = Instant::now();
    let (held_out, set) = systems(&both, &way.path("test"), Some("test"), global)?;
    let mut commands = vec![command(&test)];
    let people = match &args.test_set {
        Some(folder) => {
            commands.push(command(&folder.to_string_lossy()));
            Some(systems(&both, folder, None, global)?.0)
        }
        None => None,
    };
    let seconds = Some(start.elapsed().as_secs_f64());
    way.taken.push(StepTaken { name: "comparison".into(), command: commands.join("\n"), seconds });
    let adapted = model_name(packed);
    let judged = people.as_ref().unwrap_or(&held_out);
    let difference = judged.difference(&adapted, &judged.against);
    let verdict = difference.map_or(Verdict::NotTold, |difference| Verdict::of(&difference));
    let mut all = Adapted {
        base: args.base.clone(),
        documents: args.docs.display().to_string(),
        writers: models.writers,
        judges: models.judges,
        prompts: models.prompts,
        seed: args.seed,
        scheme: args.scheme.clone(),
        kiln: env!("CARGO_PKG_VERSION"),
        questions,
        held_out,
        people,
        adapted,
        verdict,
        why: Vec::new(),
        steps: way.taken,
        output: packed.into(),
    };
    all.why = all.reasons();
    let report = args.output.join("report.html");
    write_atomically(&report, page(&all, &set)?.to_html().as_bytes())?;
    write_atomically(&args.output.join("README.md"), card(&all).as_bytes())?;
    terminal.result(&all, || text(&all, &report))
}

fn text(all: &Adapted, report: &Path) -> String {
    let mut lines = vec![String::new()];
    let table = |systems: &Systems| crate::eval::plain_table(&systems.rows());
    if let Some(people) = &all.people {
        lines.push(format!("questions of people\n{}", table(people)));
    }
    lines.push(format!("held-out questions\n{}", table(&all.held_out)));
    lines.push(format!("{}.", all.sentence()));
    lines.extend(all.why.iter().map(|reason| format!("  perhaps because {reason}")));
    lines.push(format!("model   {}\nreport  {}\n", plain(&all.output), report.display()));
    lines.extend(all.uses().map(|[what, how]| format!("{:<19}{how}", format!("{what}:"))));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn links_that_lead_nowhere_are_no_documents() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.md"), "a").unwrap();
        let before = number_of(folder.path()).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("b.txt")).unwrap();
        assert_eq!(number_of(folder.path()).unwrap(), before);
        std::fs::write(folder.path().join("c.txt"), "c").unwrap();
        assert_ne!(number_of(folder.path()).unwrap(), before);
        assert!(number_of(&folder.path().join("none")).is_err());
    }

    #[test]
    fn what_is_not_there_is_removed_too() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("run/a")).unwrap();
        remove(&folder.path().join("run")).unwrap();
        remove(&folder.path().join("run")).unwrap();
        assert!(!folder.path().join("run").exists());
    }
}

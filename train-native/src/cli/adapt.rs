//! `kiln adapt`

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use clap::{Args, Parser as _};
use kiln_embed::config::AttentionMode;
use kiln_synthesis::llm::Role;
use kiln_synthesis::synthesize::{ANSWERS, SUMMARY};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::eval::model_name;
use super::eval_search::systems;
use super::llm::LlmArgs;
use super::ranges::{ROWS, SIZE, number, seed, whole};
use super::{Cli, Global, execute};
use crate::adapt::{
    Adapted, FILTERS, JUDGES, Questions, StepTaken, Tuning, Verdict, card, page, recipe,
    texts_of_corpus,
};
use crate::model::embedder_config;
use crate::output::claim;
use crate::terminal::{plain, without_results};
use crate::text::{is_missing, names_below, read_small};
use crate::train::CHECKPOINTS;
use crate::vectors::write_atomically;

/// Make an embedder for a folder of documents: the whole way in one command.
///
/// Cuts the documents into passages, has a language model write questions that they answer (or takes titles and
/// headings, --no-llm), cleans those, mines hard negatives, fine-tunes the base, compares it with the base and with
/// BM25 on questions about documents that it was not trained on, and writes a compressed model, a report and a card.
/// Each step is a command that is printed and can be run alone; the same command goes on where it stopped.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  kiln adapt --docs handbook --base sentence-transformers/all-MiniLM-L6-v2 \\
    --llm http://localhost:8080/v1 --llm-model qwen3 -o handbook-embedder
  kiln adapt --docs handbook --base sentence-transformers/all-MiniLM-L6-v2 --no-llm -o handbook-embedder")]
pub(super) struct AdaptArgs {
    /// Documents: a folder or a file (.txt, .md, .html, .jsonl, .csv, .tsv, .parquet)
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
    /// BEIR folder of people's questions about the same documents, to judge by as well
    #[arg(long, value_name = "DIR")]
    test_set: Option<PathBuf>,
    /// Tokens of a passage, title and headings included
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = whole(16, SIZE))]
    tokens: usize,
    /// Shares of the documents to train on, to choose a checkpoint by, and to judge by
    #[arg(long, value_name = "SHARES", default_value = "0.8,0.1,0.1")]
    split: String,
    /// Most questions of a passage
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole(1, 10))]
    queries: usize,
    /// Passages to ask questions about [default: all]
    #[arg(long, value_name = "N", value_parser = whole(1, ROWS))]
    passages: Option<usize>,
    /// Language of the documents
    #[arg(long, value_name = "CODE", default_value = "en")]
    language: String,
    /// Checks of questions to leave out, such as length for small models
    #[arg(long, value_name = "CHECK")]
    without_check: Option<String>,
    /// Filters of the questions: a TOML file of `kiln refine` [default: see filters.toml in the output]
    #[arg(long, value_name = "FILE")]
    filters: Option<PathBuf>,
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
    #[arg(long, value_name = "SCHEME", default_value = "int8")]
    scheme: String,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    seed: u64,
}

/// What lies in the output folder. Names of the steps' files are theirs.
const FILES: [&str; 17] = [
    STEPS,
    "passages.jsonl",
    "corpus.jsonl",
    "synthesis",
    "filters.toml",
    "refined",
    "train.jsonl",
    "train-corpus.jsonl",
    "questions.json",
    "dev",
    "test",
    "mined.jsonl",
    "recipe.toml",
    "run",
    "adapted.kiln",
    "report.html",
    "README.md",
];
/// Which steps are done.
const STEPS: &str = "steps.json";

/// Steps, each by a number for what it depended on.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Done {
    /// Those that were begun, and may have left something to go on from.
    begun: BTreeMap<String, String>,
    /// Those that are done.
    done: BTreeMap<String, String>,
}

/// The way through the steps.
struct Way<'a> {
    args: &'a AdaptArgs,
    global: &'a Global,
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

    /// Does a step that is no command.
    fn step(
        &mut self,
        name: &str,
        what: String,
        act: impl FnOnce(&Self, bool) -> Result<()>,
    ) -> Result<()> {
        let own = what.clone();
        self.step_of(name, &own, what, act)
    }

    /// Does a step, unless it was done with all that went before it the same; `own` is what its files depend on
    /// beside that.
    fn step_of(
        &mut self,
        name: &str,
        own: &str,
        command: String,
        act: impl FnOnce(&Self, bool) -> Result<()>,
    ) -> Result<()> {
        self.state.update(name.as_bytes());
        self.state.update(own.as_bytes());
        let state = format!("{:032x}", self.state.digest128());
        let terminal = self.global.terminal();
        if self.done.done.get(name) == Some(&state) {
            terminal.note(format!("{name}: done before"));
            self.taken.push(StepTaken { name: name.into(), command, seconds: None });
            return Ok(());
        }
        terminal.note(format!("\n{name}: {command}"));
        let goes_on = self.done.begun.insert(name.into(), state.clone()).as_ref() == Some(&state);
        self.done.done.remove(name);
        self.keep()?;
        let start = Instant::now();
        act(self, goes_on).with_context(|| name.to_string())?;
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

    fn keep(&self) -> Result<()> {
        write_atomically(&self.path(STEPS), &serde_json::to_vec_pretty(&self.done)?)
    }

    /// Does a step that is a command. Of `free` words nothing that is written depends; `more` is added where it goes on from an earlier try.
    fn command(
        &mut self,
        name: &str,
        words: &[String],
        free: &[String],
        more: impl Fn(&Self, bool) -> Result<Vec<String>>,
    ) -> Result<()> {
        let all = || std::iter::once("kiln".to_string()).chain(words.iter().chain(free).cloned());
        let line = all().map(|word| quoted(&word)).collect::<Vec<_>>().join(" ");
        // The state is that of what is written.
        let own = words.join("\n");
        self.step_of(name, &own, line, |way, goes_on| {
            let all = all().chain(more(way, goes_on)?);
            let cli = Cli::try_parse_from(all).map_err(|error| {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                anyhow::anyhow!("{}", line.trim_start_matches("error: "))
            })?;
            without_results(|| execute(&cli.command, way.global))
        })
    }
}

/// A word as shells read it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A number for the documents: their names, sizes and times.
fn fingerprint(docs: &Path) -> Result<String> {
    let label = || docs.display().to_string();
    let names = match std::fs::metadata(docs).with_context(label)?.is_dir() {
        true => names_below(docs)?,
        false => vec![String::new()],
    };
    let mut names = names;
    names.sort();
    let mut hash = Xxh3::new();
    for name in names {
        let path = if name.is_empty() { docs.to_path_buf() } else { docs.join(&name) };
        let data = std::fs::metadata(&path).with_context(|| path.display().to_string())?;
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
    let writers: Vec<String> = match (&endpoints, args.no_llm) {
        (Some(list), _) => {
            list.of(Role::Write).into_iter().map(|i| list.endpoints[i].model.clone()).collect()
        }
        (None, true) => Vec::new(),
        (None, false) => bail!(
            "who is to write the questions? Give --llm URL and --llm-model NAME, --llm-config FILE, or --no-llm to take \
             titles and headings"
        ),
    };
    // What can be wrong is found before hours of work.
    if let Some(set) = &args.test_set {
        crate::data::BeirFolder::read(set, &test_split(set)?, Some(1), terminal)?;
    }
    let config = embedder_config(&args.base, terminal)?;
    let base = match Path::new(&args.base).exists() {
        true => std::path::absolute(&args.base)?.to_string_lossy().into_owned(),
        false => args.base.clone(),
    };
    let docs = fingerprint(&args.docs)?;
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
    let mut state = Xxh3::new();
    state.update(docs.as_bytes());
    state.update(
        serde_json::to_string(&endpoints.as_ref().map(|list| list.of_models()))?.as_bytes(),
    );
    let mut way = Way { args, global, done, taken: Vec::new(), state };
    let titles = endpoints.is_some();
    let tokens = args.tokens.to_string();
    let seed = args.seed.to_string();
    let least = (args.tokens / 4).clamp(1, 16).to_string();
    let documents = args.docs.to_string_lossy().into_owned();
    let passages = way.arg("passages.jsonl");

    let chunk = [
        "chunk",
        "--docs",
        &documents,
        "--model",
        &base,
        "--tokens",
        &tokens,
        "--min-tokens",
        &least,
        "--split",
        &args.split,
        "--seed",
        &seed,
        "--output",
        &passages,
    ];
    way.command("passages", &words(&chunk), &[], |_, _| Ok(Vec::new()))?;
    write_questions(&mut way, titles, &seed)?;
    let corpus = format!(
        "write {} {}",
        way.arg("corpus.jsonl"),
        if titles { "with titles" } else { "without titles" }
    );
    way.step("corpus", corpus, |way, _| {
        texts_of_corpus(&way.path("passages.jsonl"), &way.path("corpus.jsonl"), titles)
    })?;
    refine_questions(&mut way, titles, &base)?;

    let questions_file = way.path("questions.json");
    let split = format!("split {} by document", way.arg("refined/kept.jsonl"));
    way.step("split", split, |way, _| {
        let questions = Questions::split(
            &way.path("refined/kept.jsonl"),
            &way.path("passages.jsonl"),
            &way.args.output,
            titles,
        )?;
        write_atomically(&questions_file, &serde_json::to_vec_pretty(&questions)?)
    })?;
    let questions: Questions = serde_json::from_str(&read_small(&questions_file)?)?;

    let (train, train_corpus, mined) =
        (way.arg("train.jsonl"), way.arg("train-corpus.jsonl"), way.arg("mined.jsonl"));
    let negatives = args.negatives.max(1).to_string();
    let mine = [
        "mine",
        "--model",
        &base,
        "--data",
        &train,
        "--corpus",
        &train_corpus,
        "--negatives",
        &negatives,
        "--least",
        "0",
        "--max-length",
        &tokens,
        "--output",
        &mined,
    ];
    way.command("negatives", &words(&mine), &[], |_, _| Ok(Vec::new()))?;

    let decoder = config.config.attention == AttentionMode::Causal;
    let rank = args.lora.unwrap_or(if decoder { 16 } else { 0 });
    let tuning = Tuning {
        base: base.clone(),
        lora: Some(rank).filter(|rank| *rank > 0),
        examples: questions.train,
        epochs: args.epochs,
        steps: args.steps,
        batch: args.batch.min(questions.train.max(2)),
        negatives: args.negatives,
        lr: args.lr,
        max_length: args.tokens,
        bf16: args.bf16,
        seed: args.seed,
    };
    let text = recipe(&tuning)?;
    way.step("recipe", format!("write {}\n{text}", way.arg("recipe.toml")), |way, _| {
        write_atomically(&way.path("recipe.toml"), text.as_bytes())
    })?;
    let (recipe_file, trained) = (way.arg("recipe.toml"), way.arg("run"));
    let train = ["train", "--recipe", &recipe_file, "--output", &trained];
    way.command("training", &words(&train), &[], |way, goes_on| {
        let folder = way.path("run");
        if !goes_on && folder.exists() {
            // What was trained on other data is no beginning of this.
            std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let checkpoints = std::fs::read_dir(folder.join(CHECKPOINTS));
        let begun = checkpoints.is_ok_and(|mut entries| entries.next().is_some());
        Ok(words(if begun { &["--resume"] } else { &["--overwrite"] }))
    })?;
    let best = if way.path("run/best").is_dir() { "run/best" } else { "run/model" };
    let (model, packed) = (way.arg(best), way.arg("adapted.kiln"));
    let quantize = ["quantize", "--model", &model, "--scheme", &args.scheme, "--output", &packed];
    way.command("compression", &words(&quantize), &[], |_, _| Ok(words(&["--overwrite"])))?;
    finish(way, &base, &packed, questions, writers)
}

/// The split of a folder of people's questions.
fn test_split(set: &Path) -> Result<String> {
    let splits = crate::data::qrels_splits(set);
    let known = ["test", "dev", "validation"]
        .into_iter()
        .find(|name| splits.iter().any(|split| split == name));
    known
        .map(String::from)
        .with_context(|| format!("{}: has no judgements in qrels/", set.display()))
}

/// Questions by a model, or by structure.
fn write_questions(way: &mut Way<'_>, titles: bool, seed: &str) -> Result<()> {
    let (passages, output) = (way.arg("passages.jsonl"), way.arg("synthesis"));
    let mut synthesize = words(&["synthesize", "--corpus", &passages, "--output", &output]);
    if !titles {
        synthesize.push("--structure".into());
        return way.command("questions", &synthesize, &[], |_, _| Ok(Vec::new()));
    }
    let (args, global) = (way.args, way.global);
    let queries = args.queries.to_string();
    synthesize.extend(words(&[
        "--seed",
        seed,
        "--queries",
        &queries,
        "--languages",
        &args.language,
    ]));
    synthesize.extend(args.passages.iter().flat_map(|count| ["--rows".into(), count.to_string()]));
    synthesize.extend(
        args.without_check.iter().flat_map(|check| ["--without-check".into(), check.clone()]),
    );
    way.command("questions", &synthesize, &args.llm.words(), |way, goes_on| {
        let folder = way.path("synthesis");
        if !goes_on && folder.exists() {
            set_aside(&folder, global)?;
        }
        let begun = folder.join(ANSWERS).exists();
        Ok(words(if begun { &["--resume"] } else { &[] }))
    })?;
    let path = way.path("synthesis").join(SUMMARY);
    let summary: serde_json::Value =
        serde_json::from_str(&read_small(&path)?).with_context(|| path.display().to_string())?;
    if summary["unanswered"].as_u64().unwrap_or(0) > 0 {
        way.done.done.remove("questions");
        way.keep()?;
        bail!(
            "questions: {} of {} passages are not asked about yet, as the budget is spent; raise it, or ask about fewer \
             (--passages), and run the same again",
            summary["unanswered"],
            summary["examples"]
        );
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

/// Filters by the base, and by the language model.
fn refine_questions(way: &mut Way<'_>, titles: bool, base: &str) -> Result<()> {
    let args = way.args;
    let judged = titles && !args.no_judge && args.filters.is_none();
    let text = match &args.filters {
        Some(path) => read_small(path)?,
        None if judged => format!("{FILTERS}{JUDGES}"),
        None => FILTERS.into(),
    };
    way.step("filters", format!("write {}\n{text}", way.arg("filters.toml")), |way, _| {
        write_atomically(&way.path("filters.toml"), text.as_bytes())
    })?;
    let (rows, output, filters, corpus) = (
        way.arg("synthesis/rows.jsonl"),
        way.arg("refined"),
        way.arg("filters.toml"),
        way.arg("corpus.jsonl"),
    );
    let tokens = args.tokens.to_string();
    let refine = words(&[
        "refine",
        "--data",
        &rows,
        "--filters",
        &filters,
        "--model",
        base,
        "--corpus",
        &corpus,
        "--max-length",
        &tokens,
        "--output",
        &output,
    ]);
    let asks = titles && (judged || args.filters.is_some());
    let free = if asks { args.llm.words() } else { Vec::new() };
    way.command("refinement", &refine, &free, |_, _| Ok(Vec::new()))
}

/// Compares, and writes the page and the card.
fn finish(
    mut way: Way<'_>,
    base: &str,
    packed: &str,
    questions: Questions,
    writers: Vec<String>,
) -> Result<()> {
    let (args, global) = (way.args, way.global);
    let terminal = global.terminal();
    let models = words(&[base, packed]);
    let command = |data: &str| {
        let line = ["kiln", "eval", "search", "--model", base, "--model", packed, "--data", data];
        line.map(quoted).join(" ")
    };
    let test = way.arg("test");
    terminal.note(format!("\ncomparison: {}", command(&test)));
    let start = Instant::now();
    let (held_out, set) = systems(&models, &way.path("test"), Some("test"), global)?;
    let mut commands = vec![command(&test)];
    let people = match &args.test_set {
        Some(folder) => {
            commands.push(command(&folder.to_string_lossy()));
            Some(systems(&models, folder, Some(&test_split(folder)?), global)?.0)
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
        writers,
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
    terminal.result(&all, || {
        let mut lines = vec![String::new()];
        if let Some(people) = &all.people {
            lines.push(format!("questions of people\n{}", crate::eval::plain_table(&people.rows())));
        }
        lines.push(format!("held-out questions\n{}", crate::eval::plain_table(&all.held_out.rows())));
        lines.push(format!("{}.", all.sentence()));
        lines.extend(all.why.iter().map(|reason| format!("  perhaps because {reason}")));
        lines.push(format!("model   {}\nreport  {}\n", plain(packed), report.display()));
        lines.push(format!("serve it:          kiln serve --model {}", quoted(packed)));
        lines.push(r#"load it in a page: const model = await Embedder.load("/adapted.kiln"); // import { Embedder } from "kiln-embed""#.into());
        lines.join("\n")
    })
}

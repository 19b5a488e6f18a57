//! `kiln synthesize`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{ArgGroup, Args, ValueEnum};
use kiln_synthesis::language::Mixture;
use kiln_synthesis::llm::{Endpoint, EndpointList, Role, Stop};
use kiln_synthesis::prompts::Prompts;
use kiln_synthesis::synthesize::{
    DryRun, FILES, Material, Passages, Settings, Shares, SkippedChecks, Synthesis,
    SynthesisSummary, from_structure,
};

use super::Global;
use super::llm::LlmArgs;
use super::mine::open_examples;
use super::ranges::{ROWS, seed, whole};
use crate::data::LeakFilter;
use crate::output::claim;
use crate::terminal::{Terminal, counted, plain, print, thousands};
use crate::text::apart;

/// Have a language model write training data.
///
/// Thinks of tasks and writes examples of them, or queries for the passages of a corpus (--corpus), or graded
/// negatives for pairs that there are (--regenerate). Every answer is kept as it came; --resume asks nothing twice.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").args(["output", "dry_run", "print_prompt"]).required(true).multiple(true),
after_help = "Examples:
  kiln synthesize --llm http://localhost:8080/v1 --llm-model qwen3 --rows 1000 -o examples
  kiln synthesize --llm-config models.toml --levels 4 --languages xlm-r --rows 50000 --max-cost 20 -o examples
  kiln synthesize --llm http://localhost:8080/v1 --llm-model qwen3 --corpus passages.jsonl -o queries
  kiln synthesize --print-prompt short-long")]
pub(super) struct SynthesizeArgs {
    #[command(flatten)]
    llm: LlmArgs,
    /// Folder for the answers as they came (answers.jsonl), the examples (rows.jsonl), and what was refused
    /// (rejected.jsonl)
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Examples to ask for; with --corpus passages, with --regenerate pairs [default there: all]
    #[arg(long, value_name = "N", value_parser = whole(1, ROWS))]
    rows: Option<usize>,
    /// Types of examples, each perhaps with a share: short-long, long-short, short-short, long-long, sts, bitext
    /// [default: all but bitext, as often as in E5-Mistral]
    #[arg(long, value_name = "TYPE[=SHARE],..", value_parser = parse_types, conflicts_with_all = ["corpus", "regenerate"])]
    types: Option<Shares>,
    /// Negatives in one answer, hardest first: 1 (E5-Mistral), 2 (NV-Embed), 4 (MGH) [default: 1, which writes none
    /// with --corpus, as those are mined; 4 with --regenerate]
    #[arg(long, value_name = "N", value_parser = whole(1, 4))]
    levels: Option<usize>,
    /// Languages by ISO 639-1, each perhaps with a share (en=0.5,de=0.3,fr), or xlm-r: its list, 43 % English
    #[arg(long, value_name = "LIST", default_value = "en", value_parser = parse_languages)]
    languages: String,
    /// Write queries for the passages of this file: text, perhaps _id, title, document, split (`kiln chunk` writes it)
    #[arg(long, value_name = "FILE", conflicts_with = "regenerate")]
    corpus: Option<String>,
    /// Ask no model, and make pairs of the titles, headings, questions and neighbouring passages of --corpus
    #[arg(long, requires = "corpus", conflicts_with_all = ["llm", "llm_config", "levels", "rows"])]
    structure: bool,
    /// Queries to write for a passage, at most
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole(1, 10), requires = "corpus")]
    queries: usize,
    /// Write new negatives for the pairs of this file, in any training format
    #[arg(long, value_name = "FILE")]
    regenerate: Option<PathBuf>,
    /// Your own tasks, one a line or in the field `task`, instead of those that the model thinks of
    #[arg(long, value_name = "FILE", conflicts_with_all = ["corpus", "regenerate"])]
    tasks: Option<PathBuf>,
    /// How often to ask for a list of tasks, for each type
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole(1, 10_000))]
    brainstorms: usize,
    /// Tasks in each list (MGH: 20, NV-Embed: 40)
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = whole(1, 200))]
    tasks_each: usize,
    /// Few-shot samples of each type, written by the `seed` models and put before the other models' prompts
    /// [default: 3 where other models have the role `write`, else 0]
    #[arg(long, value_name = "N", value_parser = whole(0, 20), conflicts_with_all = ["corpus", "regenerate"])]
    samples: Option<usize>,
    /// How often an example is asked for until one passes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=20))]
    attempts: u32,
    /// Checks to leave out, such as length for small models, which do not count words
    #[arg(long, value_enum, value_name = "CHECK", value_delimiter = ',')]
    without_check: Vec<Check>,
    /// Texts of evaluation data, which no example may hold (repeatable)
    #[arg(long, value_name = "FILE")]
    leak: Vec<String>,
    /// Random seed
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    seed: u64,
    /// Folder of NAME.jinja that replace prompts
    #[arg(long, value_name = "DIR")]
    prompts: Option<PathBuf>,
    /// Print a prompt's template: tasks-short-long, short-long, corpus, negatives, ..
    #[arg(long, value_name = "NAME")]
    print_prompt: Option<String>,
    /// Print ten prompts and about how many tokens all would have, without asking
    #[arg(long)]
    dry_run: bool,
    /// Go on from the answers in the output folder
    #[arg(long)]
    resume: bool,
}

/// Passages whose language is looked at.
const LOOKED_AT: usize = 64;

/// A check that can be left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Check {
    /// Words are not counted
    Length,
    /// Languages are not told
    Language,
}

fn parse_types(text: &str) -> Result<Shares, String> {
    Shares::parse(text).map_err(|error| error.to_string())
}

pub(super) fn parse_languages(text: &str) -> Result<String, String> {
    Mixture::parse(text).map(|_| text.to_string()).map_err(|error| error.to_string())
}

impl SynthesizeArgs {
    fn settings(&self, endpoints: &EndpointList) -> Settings {
        let levels = if self.regenerate.is_some() { 4 } else { 1 };
        // A model that writes by itself needs no samples of itself.
        let seed = endpoints.of(Role::Seed);
        let other = !seed.is_empty() && seed != endpoints.of(Role::Write);
        Settings {
            seed: self.seed,
            types: self.types.clone().unwrap_or_default(),
            levels: self.levels.unwrap_or(levels),
            languages: self.languages.clone(),
            queries: self.queries,
            brainstorms: self.brainstorms,
            tasks: self.tasks_each,
            samples: self.samples.unwrap_or(if other { 3 } else { 0 }),
            attempts: self.attempts,
            left_out: SkippedChecks {
                length: self.without_check.contains(&Check::Length),
                language: self.without_check.contains(&Check::Language),
            },
        }
    }

    fn material(&self, terminal: Terminal) -> Result<Material> {
        match (&self.corpus, &self.regenerate, &self.tasks) {
            (Some(corpus), _, _) => {
                let passages = Passages::read(Path::new(corpus), terminal)?;
                let texts = passages.some_texts(LOOKED_AT)?;
                if let Some(other) = Mixture::parse(&self.languages)?.other(&texts) {
                    let (name, code) = (other.name, other.code);
                    terminal.note(format!(
                        "the passages look {name}; --languages {code} (of adapt: --language {code}) asks for questions in it"
                    ));
                }
                Ok(Material::Corpus(passages))
            }
            (_, Some(pairs), _) => Material::pairs(open_examples(pairs, false, terminal)?),
            (_, _, Some(tasks)) => Material::tasks(tasks),
            _ => Ok(Material::Tasks(None)),
        }
    }
}

pub(super) fn run(args: &SynthesizeArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let prompts = Prompts::open(args.prompts.as_deref())?;
    if let Some(name) = &args.print_prompt {
        return print(prompts.source(name)?.trim_end());
    }
    let folder = args.output.as_deref().unwrap_or(Path::new(""));
    if let (true, Some(corpus)) = (args.structure, &args.corpus) {
        return structure(Path::new(corpus), args, global);
    }
    let material = args.material(terminal)?;
    let synthesis = |settings| Synthesis {
        settings,
        material: &material,
        prompts: &prompts,
        examples: args.rows,
        leaks: None,
        folder,
        resume: args.resume,
        terminal,
    };
    if args.dry_run {
        let own = EndpointList { endpoints: vec![Endpoint::new("http://localhost", "none")] };
        let endpoints = args.llm.endpoints()?.unwrap_or(own);
        let settings = args.settings(&endpoints);
        let dry = synthesis(&settings).dry_run(&endpoints)?;
        return terminal.result(&dry, || dry_text(&dry));
    }
    if args.output.is_none() {
        bail!("--output is missing");
    }
    let Some(llm) = args.llm.connect(terminal)? else {
        bail!(
            "which model? Give --llm URL and --llm-model NAME, or --llm-config FILE (or --dry-run, which asks none)"
        );
    };
    let settings = args.settings(&llm.endpoints);
    let inputs: Vec<&Path> =
        args.corpus.iter().map(Path::new).chain(args.regenerate.as_deref()).collect();
    for name in FILES {
        apart(&folder.join(name), &inputs)?;
    }
    let leaks = match &args.leak[..] {
        [] => None,
        files => Some(LeakFilter::of_files(files, false)?),
    };
    claim(folder, &FILES)?;
    let synthesis = Synthesis { leaks: leaks.as_ref(), ..synthesis(&settings) };
    let summary = synthesis.run(&llm, &args.llm.limits())?;
    terminal.result(&summary, || text(&summary))?;
    match &summary.spent.stopped {
        Some(Stop::Interrupted) => Err(kiln_embed::Error::Cancelled.into()),
        Some(Stop::Budget(what)) => {
            terminal.note(format!("stopped at {what}; raise the limit and add --resume to go on"));
            Ok(())
        }
        None if summary.rows == 0 => bail!(
            "{}: no answer is an example; see why in {}, ask a larger model, or leave checks out (--without-check)",
            folder.display(),
            folder.join(kiln_synthesis::synthesize::REJECTED).display()
        ),
        None => Ok(()),
    }
}

/// Pairs without a model.
fn structure(corpus: &Path, args: &SynthesizeArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let Some(folder) = &args.output else { bail!("--output is missing") };
    apart(&folder.join(kiln_synthesis::synthesize::ROWS), &[corpus])?;
    claim(folder, &FILES)?;
    let done = from_structure(corpus, folder, terminal)?;
    terminal.result(&done, || {
        let types = done.types.iter().map(|(name, count)| format!("{} {name}", thousands(*count)));
        format!(
            "{} of {} of {}, without a model: {}\ntypes     {}",
            counted(done.rows, "row", "rows"),
            counted(done.passages, "passage", "passages"),
            counted(done.documents, "document", "documents"),
            done.output.display(),
            types.collect::<Vec<_>>().join(", ")
        )
    })
}

fn dry_text(dry: &DryRun) -> String {
    let mut text = String::new();
    for (i, prompt) in dry.prompts.iter().enumerate() {
        text += &format!("--- prompt {}\n{}\n", i + 1, plain(prompt));
    }
    text += &format!(
        "--- {}, about {} tokens of prompts and {} of answers",
        counted(dry.questions, "question", "questions"),
        thousands(dry.prompt_tokens as usize),
        thousands(dry.completion_tokens as usize)
    );
    if dry.cost > 0.0 {
        text += &format!(", cost about {:.2}", dry.cost);
    }
    text
}

fn text(summary: &SynthesisSummary) -> String {
    let mut lines = vec![format!(
        "{} of {}: {}",
        counted(summary.rows, "row", "rows"),
        counted(summary.examples, "example", "examples"),
        summary.output.display()
    )];
    let list = |counts: &mut dyn Iterator<Item = (String, usize)>| {
        counts
            .map(|(name, count)| format!("{} {name}", thousands(count)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let types = list(&mut summary.types.iter().map(|(name, count)| (name.clone(), *count)));
    if !types.is_empty() {
        lines.push(format!("types     {types}"));
    }
    if summary.languages.len() > 1 {
        lines.push(format!(
            "languages {}",
            list(&mut summary.languages.iter().map(|(name, count)| (name.clone(), *count)))
        ));
    }
    let reason =
        |reason| serde_json::to_value(reason).ok().and_then(|name| name.as_str().map(String::from));
    let rejected = list(
        &mut summary.rejected.iter().map(|(why, count)| (reason(why).unwrap_or_default(), *count)),
    );
    if !rejected.is_empty() {
        lines.push(format!("refused   {rejected}"));
    }
    for (count, what) in [
        (summary.without_row, "without a good answer"),
        (summary.unanswered, "not answered yet; --resume asks for them"),
    ] {
        if count > 0 {
            lines.push(format!("{} {what}", counted(count, "example", "examples")));
        }
    }
    let spent = &summary.spent;
    let mut used = format!(
        "{}, {} known before; {} tokens of prompts and {} of answers in all",
        counted(spent.requests as usize, "request", "requests"),
        thousands(spent.known as usize),
        thousands(summary.prompt_tokens as usize),
        thousands(summary.completion_tokens as usize)
    );
    if summary.cost > 0.0 {
        used += &format!(", cost {:.4}", summary.cost);
    }
    lines.push(used);
    lines.join("\n")
}

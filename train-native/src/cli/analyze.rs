//! `kiln analyze`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use kiln_embed::pooling::LayerState;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;

use super::mine::open_examples;
use super::ranges::{ROWS, seed, whole};
use super::{EmbedFlags, Global, ModelArgs};
use crate::analyze::{Analysis, Inputs, LayerTask, View, analyze};
use crate::data::corpus::{Corpus, CorpusSize, RetrievalSet};
use crate::eval::{
    Cache, ModelEncoder, Task, TaskKind, TaskSource, fingerprint, labelled_texts, plain_table,
};
use crate::model::folders;
use crate::terminal::{Terminal, counted};
use crate::text::{Columns, TextFile};

/// Draw a model's layers, its attention and its embedding space.
///
/// Writes SVG and JSON files, PNG where the build draws it, and one HTML page. Without files of yours, it uses made-up
/// texts.
#[derive(Debug, Args)]
pub(super) struct AnalyzeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    flags: EmbedFlags,
    /// Folder to write the pictures and the page to
    #[arg(long, short, value_name = "DIR", default_value = "analysis")]
    output: PathBuf,
    /// Run only these analyses
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<Analysis>,
    /// Text to draw attention and pooling weights for (repeatable) [default: made-up texts]
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// Labelled texts for the analyses of layers, latents, space and projection: .jsonl, .csv, .tsv
    /// or .parquet with the fields text and label [default: made-up texts]
    #[arg(long, value_name = "FILE")]
    labelled: Option<PathBuf>,
    /// The two labels to compare the latents of [default: the two most frequent]
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1)]
    groups: Vec<String>,
    /// Queries with positives and negatives, in any training format, for the analyses of similarity
    /// and space [default: made-up examples]
    #[arg(long, value_name = "FILE")]
    examples: Option<String>,
    /// Kind of task to score the layers on, with --data [default: made-up questions]
    #[arg(long, value_name = "KIND", requires = "data")]
    task: Option<TaskKind>,
    /// File or folder of the task's data
    #[arg(long, value_name = "PATH", requires = "task")]
    data: Option<PathBuf>,
    /// Split of the task's data
    #[arg(long, value_name = "NAME", requires = "task")]
    split: Option<String>,
    /// State that represents a layer [default: last_token for causal models, else mean]
    #[arg(long, value_name = "STATE")]
    layer_state: Option<StateChoice>,
    /// Prompt to put before the texts [default: the model's default prompt]
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Maximum number of labelled texts and of examples, drawn at random
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole(1, ROWS))]
    limit: usize,
    /// Seed of the random draw
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = seed())]
    seed: u64,
}

/// What stands for a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum StateChoice {
    /// The last token's state
    LastToken,
    /// The mean of the tokens' states
    Mean,
}

/// Made-up texts that are drawn by default.
const TEXTS: usize = 2;

pub(super) fn run(args: &AnalyzeArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    if !matches!(args.groups.len(), 0 | 2) {
        bail!("--groups takes two labels (a,b), not {}", args.groups.len());
    }
    let name = &args.model.name();
    let overrides = args.flags.load_options(args.model.load_options());
    let options = args.flags.options(None, None);
    let folders = folders(name, terminal)?;
    let hash = fingerprint(&folders, &overrides, options.dimensions)?;
    // Without a place of its own the cache is a file that goes with the run.
    let own = tempfile::tempdir()?;
    let cache = Cache::default_folder()
        .and_then(|folder| Cache::open(&folder, &hash, terminal))
        .or_else(|| Cache::open(own.path(), &hash, terminal));
    let Some(cache) = cache else { bail!("{}: no space for vectors", own.path().display()) };
    let model = args.model.load(&args.flags, global)?;
    model.check(&options)?;
    let state = LayerState::of(model.shape().config.attention);
    let view = ModelEncoder::new(model, options, Some(cache.clone()), terminal);
    let inputs = inputs(args, &view, state, terminal)?;
    let wanted = match args.only.is_empty() {
        true => Analysis::value_variants(),
        false => &args.only[..],
    };
    let results = analyze(&view, &inputs, wanted, &cache, terminal)?;
    results.write(&args.output, &crate::model::model_name(name), terminal)?;
    terminal.result(&results.to_json(&args.output), || {
        let mut text = String::new();
        if let Some(health) = &results.health {
            text += &plain_table(&health.rows());
        }
        let page = args.output.join("index.html");
        let pictures = counted(results.pictures.len(), "picture", "pictures");
        text + &format!("{pictures}; open {}", page.display())
    })
}

fn inputs(
    args: &AnalyzeArgs,
    view: &dyn View,
    state: LayerState,
    terminal: Terminal,
) -> Result<Inputs> {
    let made_up = || Corpus::generate(args.seed, CorpusSize::default()).test;
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    let mut labelled = match &args.labelled {
        Some(path) => {
            let file = TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?;
            labelled_texts(&[file])?
        }
        None => {
            let RetrievalSet { corpus, kinds, .. } = made_up();
            corpus.into_iter().zip(kinds.into_iter().map(String::from)).collect()
        }
    };
    labelled.shuffle(&mut rng);
    labelled.truncate(args.limit);
    let task = match (args.task, &args.data) {
        (Some(kind), Some(path)) => {
            let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
            let mut task = Task::new(&name, kind);
            task.split.clone_from(&args.split);
            LayerTask::Task(task, TaskSource::local(path)?)
        }
        _ => LayerTask::MadeUp(made_up()),
    };
    let texts = match args.text.is_empty() {
        true => labelled.iter().take(TEXTS).map(|(text, _)| text.clone()).collect(),
        false => args.text.clone(),
    };
    let groups = match &args.groups[..] {
        [a, b] => Some([a.clone(), b.clone()]),
        _ => None,
    };
    let examples = Path::new(args.examples.as_deref().unwrap_or("made-up:retrieval"));
    Ok(Inputs {
        texts,
        labelled,
        groups,
        examples: open_examples(examples, false, terminal)?,
        limit: args.limit,
        task,
        state: match args.layer_state {
            Some(StateChoice::LastToken) => LayerState::LastToken,
            Some(StateChoice::Mean) => LayerState::Mean,
            None => state,
        },
        prompt_text: match &args.prompt {
            Some(prompt) => prompt.clone(),
            None => view.own_prompt(&[]),
        },
    })
}

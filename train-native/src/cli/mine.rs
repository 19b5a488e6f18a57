//! `kiln mine`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::Prompt;
use kiln_embed::quant::WeightPrecision;
use serde_json::json;

use super::ranges::{NEIGHBOURS, ROWS, number, seed, single, whole};
use super::reranker::RerankerFlags;
use super::teacher_prompts::TeacherPrompts;
use super::{Global, ModelOverrides};
use crate::data::{DataSet, Example, OnBadRow, Opening, Store};
use crate::device::open;
use crate::mine::{
    self, Asking, Dropped, Filters, Keep, Negative, Pick, Query, Scored, filter, read_scores,
    search, teacher_prompts, write_scores,
};
use crate::model::load;
use crate::recipe::{DataSource, LeakRule};
use crate::terminal::{Terminal, counted, thousands};
use crate::text::apart;
use crate::vectors::NewFile;

/// Mine hard negatives with a teacher model.
///
/// Takes the texts nearest to each query, and filters out those that may be answers.
#[derive(Debug, Args)]
pub(super) struct MineArgs {
    /// Teacher: a model folder, a .kiln file, or a Hub id (owner/name[@revision])
    #[arg(long, short, value_name = "DIR|HUB_ID", required_unless_present = "from_scores")]
    model: Option<String>,
    #[command(flatten)]
    overrides: ModelOverrides,
    #[command(flatten)]
    prompts: TeacherPrompts,
    /// Precision of the teacher's weights: kept, f32, or rounded while loading to bf16, int8, int4, ..
    #[arg(long, value_name = "PRECISION", default_value_t = WeightPrecision::Kept, requires = "model")]
    weights: WeightPrecision,
    /// Examples: queries with positives, in any training format
    #[arg(long, short, value_name = "FILE")]
    data: PathBuf,
    /// Scored pairs: the least score of a positive pair, as a source's threshold in a recipe [default: 4, of STS's 5]
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = number(-1e6, 1e6))]
    threshold: Option<f64>,
    /// File of texts to mine from (field text, optionally title) [default: the texts of the
    /// examples; of scored pairs those of all pairs]
    #[arg(long, short, value_name = "FILE")]
    corpus: Option<String>,
    /// File to write the examples with their negatives to (.jsonl: query, pos, neg, scores)
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Candidates per query: its K nearest texts
    #[arg(long, value_name = "K", default_value_t = 100, value_parser = whole(1, NEIGHBOURS))]
    top_k: usize,
    /// Maximum number of negatives per query
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = whole(1, NEIGHBOURS))]
    negatives: usize,
    /// Drop queries that are left with fewer negatives than this; 0 drops none
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0, NEIGHBOURS))]
    least: usize,
    /// Drop candidates that score above this share of the positive's score (NV-Embed's
    /// TopK-PercPos; 1 - relative_margin in sentence-transformers); 0 turns this off
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, value_parser = single(0.0, 1e6))]
    percent_of_positive: f32,
    /// Drop candidates that score less than this below the positive
    #[arg(long, value_name = "MARGIN", value_parser = single(-1e6, 1e6))]
    absolute_margin: Option<f32>,
    /// Drop candidates before this rank, counted from 1 without the positives
    #[arg(long, value_name = "RANK", default_value_t = 1, value_parser = whole(0, ROWS))]
    min_rank: usize,
    /// Drop candidates after this rank
    #[arg(long, value_name = "RANK", value_parser = whole(0, ROWS))]
    max_rank: Option<usize>,
    /// Drop candidates that score above this
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = single(-1e6, 1e6))]
    max_score: Option<f32>,
    /// Drop candidates that score below this
    #[arg(long, value_name = "SCORE", allow_negative_numbers = true, value_parser = single(-1e6, 1e6))]
    min_score: Option<f32>,
    /// Keep the negatives that examples have, where they pass --keep-min-rank and --keep-max-rank, and
    /// mine only what is missing to --negatives [default: replace them]
    #[arg(long)]
    keep_negatives: bool,
    /// With --keep-negatives: drop given negatives that rank before this, counted as for --min-rank
    #[arg(long, value_name = "RANK", default_value_t = 1, value_parser = whole(0, ROWS), requires = "keep_negatives")]
    keep_min_rank: usize,
    /// With --keep-negatives: drop given negatives that rank after this, at most --top-k
    #[arg(long, value_name = "RANK", value_parser = whole(0, ROWS), requires = "keep_negatives")]
    keep_max_rank: Option<usize>,
    /// Drop queries whose best positive ranks below this, the query's own text left out of the count
    /// (Linq's refinement uses 100)
    #[arg(long, value_name = "RANK", value_parser = whole(0, ROWS))]
    max_positive_rank: Option<usize>,
    /// Which candidates to keep where more are left than --negatives
    #[arg(long, default_value_t = Pick::Top, value_parser = pick())]
    pick: Pick,
    /// Random seed of --pick random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    seed: u64,
    /// Also write scores and ranks to this file (.jsonl or .jsonl.zst), to filter again without
    /// embedding
    #[arg(long, value_name = "FILE")]
    scores: Option<PathBuf>,
    /// Filter the scores of an earlier run (--scores) instead of embedding
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scores", "model", "top_k"])]
    from_scores: Option<String>,
    /// Score positives, given negatives and candidates anew with this reranker (a folder, a .kiln file or a Hub
    /// id), and filter by its scores, so that what it takes for an answer is no negative
    #[arg(long, value_name = "DIR|FILE|HUB_ID")]
    reranker: Option<String>,
    #[command(flatten)]
    reranker_flags: RerankerFlags,
    /// Skip and count rows that cannot be read, instead of stopping
    #[arg(long)]
    skip_bad_rows: bool,
}

/// The names of [`Pick`].
fn pick() -> impl TypedValueParser<Value = Pick> {
    let [top, random] = Pick::NAMES.map(PossibleValue::new);
    let names = [top.help("The nearest"), random.help("Drawn at random")];
    PossibleValuesParser::new(names).try_map(|name| name.parse::<Pick>())
}

pub(super) fn run(args: &MineArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let mut inputs = vec![args.data.as_path()];
    inputs.extend(args.corpus.iter().chain(&args.from_scores).map(Path::new));
    for output in args.scores.iter().chain([&args.output]) {
        apart(output, &inputs)?;
    }
    if args.scores.as_ref() == Some(&args.output) {
        bail!("{}: --output and --scores name the same file", args.output.display());
    }
    let mut source = DataSource::file(&args.data.to_string_lossy());
    source.threshold = args.threshold.unwrap_or(source.threshold);
    let set = open_source(&source, args.skip_bad_rows, terminal)?;
    let corpus = mine::corpus(args.corpus.as_deref(), &set, terminal)?;
    // A name that is no reranker's is an error before hours of embedding.
    let reranker = match &args.reranker {
        Some(name) => Some((name, args.reranker_flags.load(name, global)?)),
        None => None,
    };
    let mut scored = scored(args, &set, &corpus, global)?;
    if let Some((name, reranker)) = &reranker {
        let batch_tokens = args.reranker_flags.batch_tokens();
        let texts = (&set, &corpus);
        mine::rerank(&mut scored, reranker.as_ref(), name, batch_tokens, texts, terminal)?;
    }
    if let Some(path) = &args.scores {
        write_scores(path, &scored)?;
    }
    let keep = args
        .keep_negatives
        .then_some(Keep { min_rank: args.keep_min_rank, max_rank: args.keep_max_rank });
    check_ranks(keep, &scored)?;
    let filters = Filters {
        min_rank: args.min_rank,
        max_rank: args.max_rank.unwrap_or(usize::MAX),
        percent_of_positive: Some(args.percent_of_positive).filter(|share| *share > 0.0),
        absolute_margin: args.absolute_margin,
        max_score: args.max_score,
        min_score: args.min_score,
        max_positive_rank: args.max_positive_rank,
        keep,
        per_query: args.negatives,
        least: args.least,
        pick: args.pick,
        seed: args.seed,
    };
    let mut dropped = Dropped::default();
    let mut lines = NewFile::create(&args.output)?;
    for query in &scored.queries {
        let Some(negatives) = filter(query, &filters, &mut dropped) else { continue };
        let example = set.get(query.number)?;
        let scored_texts = query.positive_scores.len() + query.negative_scores.len();
        let texts = example.pos.len() + if scored.given { example.neg.len() } else { 0 };
        if scored_texts != texts {
            bail!(
                "the scores of query {} are of {} of its own, it has {texts}; they were kept for other data, run \
                 without --from-scores",
                query.number,
                counted(scored_texts, "text", "texts")
            );
        }
        let mined = with_negatives(example, query, &negatives, &corpus)?;
        lines.line(&mined)?;
    }
    if dropped.queries_kept == 0 {
        bail!(
            "no query has a negative left: of {} {}; loosen the filters",
            counted(dropped.candidates, "candidate", "candidates"),
            reasons(&dropped).join(", ")
        );
    }
    lines.finish()?;
    let value = json!({
        "output": args.output, "teacher": scored.model, "prompts": scored.prompts, "queries": scored.queries.len(),
        "corpus": scored.corpus, "filters": filters, "counts": dropped,
    });
    let negatives = dropped.kept + dropped.given_kept;
    terminal.result(&value, || {
        let mut lines = vec![format!(
            "{} of {} kept with {}, {:.1} each, from {}: {}",
            thousands(dropped.queries_kept),
            counted(scored.queries.len(), "query", "queries"),
            counted(negatives, "negative", "negatives"),
            negatives as f64 / dropped.queries_kept as f64,
            counted(scored.corpus, "text", "texts"),
            args.output.display()
        )];
        if filters.keep.is_some() {
            let (kept, gone) = (thousands(dropped.given_kept), thousands(dropped.given_dropped));
            lines.push(format!("given negatives: {kept} kept, {gone} dropped"));
        }
        let candidates = counted(dropped.candidates, "candidate", "candidates");
        lines.push(format!("of {candidates} dropped:"));
        lines.extend(reasons(&dropped).into_iter().map(|reason| format!("  {reason}")));
        lines.join("\n")
    })
}

/// The teacher's nearest texts: kept by an earlier run, or found now.
fn scored(args: &MineArgs, set: &DataSet, corpus: &Store, global: &Global) -> Result<Scored> {
    let terminal = global.terminal();
    let asked = args.prompts.asked();
    match (&args.from_scores, &args.model) {
        (Some(path), _) => {
            let texts = asked.each_ref().map(|prompt| match prompt {
                None => Ok(None),
                Some(Prompt::Text(text)) => Ok(Some(text.as_str())),
                Some(_) => bail!(
                    "{path}: a prompt's name says nothing without the model; give its text with \
                     --query-prompt or --document-prompt, or leave it out"
                ),
            });
            let [query, document] = texts;
            read_scores(path, set, corpus, [query?, document?])
        }
        (None, None) => bail!("--model is missing"),
        (None, Some(name)) => {
            let device = open(global.device)?;
            let options = LoadOptions { precision: args.weights, ..args.overrides.load_options() };
            let teacher = load(name, &options, &device, terminal)?;
            let asking = Asking {
                model: name.clone(),
                prompts: teacher_prompts(teacher.prompts(), asked)?,
                top_k: args.top_k,
                given: args.keep_negatives,
            };
            search(teacher.as_ref(), &asking, set, corpus, terminal)
        }
    }
}

/// Whether the kept candidates tell how given negatives rank.
fn check_ranks(keep: Option<Keep>, scored: &Scored) -> Result<()> {
    let Some(keep) = keep else { return Ok(()) };
    if !scored.given {
        bail!(
            "the scores are without those of given negatives; run with --model and --keep-negatives"
        );
    }
    let depth = scored.queries.iter().map(|query| query.candidates.len()).max().unwrap_or(0);
    let last = keep.max_rank.unwrap_or(0).max(keep.min_rank);
    if last > depth && depth < scored.corpus {
        bail!(
            "given negatives are to be kept by ranks up to {last}, and only the {} known; raise --top-k",
            counted(depth, "nearest text is", "nearest texts are")
        );
    }
    Ok(())
}

/// An example with the negatives that were chosen. Levels stay where only given ones do.
fn with_negatives(
    example: Example,
    query: &Query,
    negatives: &[Negative],
    corpus: &Store,
) -> Result<Example> {
    let text = |negative: &Negative| match negative {
        Negative::Given(place, _) => Ok(example.neg[*place].clone()),
        Negative::Mined(candidate) => corpus.get(candidate.row),
    };
    let level = |negative: &Negative| match negative {
        Negative::Given(place, _) if !example.levels.is_empty() => Some(example.level(*place)),
        _ => None,
    };
    Ok(Example {
        neg: negatives.iter().map(text).collect::<Result<_>>()?,
        neg_scores: negatives.iter().map(|negative| negative.score()).collect(),
        levels: negatives.iter().map(level).collect::<Option<_>>().unwrap_or_default(),
        pos_scores: query.positive_scores.clone(),
        ..example
    })
}

/// Why candidates and queries went.
fn reasons(dropped: &Dropped) -> Vec<String> {
    let same = |what| [what, what];
    let all = [
        (dropped.known, same("the query itself and its positives")),
        (
            dropped.given,
            [
                "given negative, which its own window judges",
                "given negatives, which their own window judges",
            ],
        ),
        (
            dropped.percent_of_positive,
            same("too near to the positive's score (percent of positive)"),
        ),
        (dropped.absolute_margin, same("too near to the positive's score (absolute margin)")),
        (dropped.rank, same("outside the rank window")),
        (dropped.score, same("outside the score limits")),
        (dropped.surplus, same("more than are asked for, or of a dropped query")),
        (
            dropped.queries_positive_rank,
            ["query whose positive ranks too low", "queries whose positive ranks too low"],
        ),
        (
            dropped.queries_too_few,
            ["query with too few negatives", "queries with too few negatives"],
        ),
    ];
    let some = all.into_iter().filter(|(count, _)| *count > 0);
    some.map(|(count, [one, more])| counted(count, one, more)).collect()
}

/// Opens a file of examples as a data set.
pub(super) fn open_examples(
    path: &Path,
    skip_bad_rows: bool,
    terminal: Terminal,
) -> Result<DataSet> {
    open_source(&DataSource::file(&path.to_string_lossy()), skip_bad_rows, terminal)
}

fn open_source(source: &DataSource, skip_bad_rows: bool, terminal: Terminal) -> Result<DataSet> {
    let opening = Opening {
        folder: Path::new(""),
        on_bad_row: if skip_bad_rows { OnBadRow::Skip } else { OnBadRow::Stop },
        leaks: None,
        leak: LeakRule::None,
        deduplicate: true,
        texts_alone: false,
        scored: false,
        binary: false,
        negatives: 0,
        seed: 1,
        terminal,
    };
    DataSet::open(source, &opening)
}

//! `kiln search`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::{DOCUMENT, EmbedOptions, Prompt};
use kiln_embed::quant::WeightPrecision;
use serde::Serialize;

use super::ranges::{NEIGHBOURS, whole};
use super::reranker::RerankerFlags;
use super::{EmbedFlags, Global, ModelArgs};
use crate::embedding::{BLOCK, TextModel, embed_blocks};
use crate::eval::fingerprint;
#[cfg(feature = "hnsw")]
use crate::hnsw::ApproximateIndex;
use crate::interrupt;
use crate::model::{folders, model_name};
use crate::reranking::PairModel;
use crate::search::{Search, SearchHit};
use crate::shards::{Settings, VectorFiles};
use crate::terminal::{Terminal, field};
use crate::text::{Columns, Record, TextFile, apart};
use crate::vectors::{VectorFormat, VectorWriter};

/// Search texts by meaning.
///
/// Finds the exact top k by cosine similarity among the texts of a file, or among vectors that
/// `kiln embed` wrote. Both are streamed and may be larger than memory. An index of `kiln index` is searched approximately.
#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Query (repeatable)
    #[arg(long, short = 'Q', value_name = "TEXT", required_unless_present = "queries")]
    query: Vec<String>,
    /// File of queries, in any format of `embed --input`
    #[arg(long, value_name = "FILE")]
    queries: Option<String>,
    /// File of texts to search, in any format of `embed --input`
    #[arg(long, short, value_name = "FILE", required_unless_present = "index")]
    corpus: Option<String>,
    /// Vectors to search, from `kiln embed` or --save-index, of which .jsonl and .parquet include the texts: a file, a
    /// folder, a pattern, or an address of an object store. Or the folder of an index, from `kiln index`
    #[arg(long, value_name = "FILE|DIR|URL", conflicts_with_all = ["corpus", "corpus_prompt_name"])]
    index: Option<String>,
    /// Candidates that an approximate index looks at per query; more find more [default: as the index says]
    #[arg(long, value_name = "N", requires = "index", value_parser = whole(1, NEIGHBOURS))]
    expansion: Option<usize>,
    /// Also write the vectors of the corpus to this file, to search again with --index
    #[arg(long, value_name = "FILE", requires = "corpus")]
    save_index: Option<PathBuf>,
    /// Hits per query
    #[arg(long, short = 'k', value_name = "K", default_value_t = 10, value_parser = whole(1, NEIGHBOURS))]
    top_k: usize,
    /// Field or column of the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Name of the model's prompt for queries [default: query or search_query, if the model has it]
    #[arg(long, value_name = "NAME")]
    query_prompt_name: Option<String>,
    /// Name of the model's prompt for the corpus [default: document or passage, if the model has
    /// it]
    #[arg(long, value_name = "NAME")]
    corpus_prompt_name: Option<String>,
    /// Rerank the best hits with this reranker: a folder, a .kiln file or a Hub id, as `kiln rerank --model` takes
    #[arg(long, value_name = "DIR|FILE|HUB_ID")]
    reranker: Option<String>,
    /// Hits per query that are reranked, --top-k at least [default: 100, or --top-k if that is more]
    #[arg(long, value_name = "N", requires = "reranker", value_parser = whole(1, NEIGHBOURS))]
    candidates: Option<usize>,
    #[command(flatten)]
    reranker_flags: RerankerFlags,
    #[command(flatten)]
    flags: EmbedFlags,
}

/// The hits of one query.
#[derive(Debug, Serialize)]
struct Answer {
    query: String,
    hits: Vec<SearchHit>,
}

const NO_TEXTS: &str = "has no texts to rerank; search --corpus FILE, or an index in .jsonl or .parquet, which keep them";

/// What --index names.
enum Vectors {
    /// Vectors that are all looked at.
    Files(Box<VectorFiles>),
    /// A graph of them.
    #[cfg(feature = "hnsw")]
    Graph(Box<ApproximateIndex>),
}

impl Vectors {
    fn open(index: &str, args: &SearchArgs, terminal: Terminal) -> Result<Self> {
        let folder = Path::new(index);
        if folder.join("graph.usearch").is_file() {
            #[cfg(feature = "hnsw")]
            return Ok(Self::Graph(Box::new(ApproximateIndex::open(folder)?)));
            #[cfg(not(feature = "hnsw"))]
            bail!("{index}: {}", super::WITHOUT_HNSW);
        }
        if args.expansion.is_some() {
            bail!(
                "{index}: is no approximate index, and --expansion is for one; leave it out, or build one with `kiln index`"
            );
        }
        Ok(Self::Files(Box::new(VectorFiles::find(index, terminal)?)))
    }

    /// Whether there may be texts beside the vectors.
    fn may_keep_texts(&self) -> bool {
        match self {
            Self::Files(files) => files.may_keep_texts(),
            #[cfg(feature = "hnsw")]
            Self::Graph(index) => index.keeps_texts(),
        }
    }

    /// What they were made by, if that is known.
    fn settings(&self) -> Option<&Settings> {
        match self {
            Self::Files(files) => files.settings(),
            #[cfg(feature = "hnsw")]
            Self::Graph(index) => index.description().settings.as_ref(),
        }
    }

    /// Refuses a model whose vectors are others, and notes where the queries' are near them, not the same.
    fn check(&self, label: &str, args: &SearchArgs, terminal: Terminal) -> Result<()> {
        let Some(made_by) = self.settings() else { return Ok(()) };
        let theirs = WeightPrecision::by_name(&made_by.weights).ok();
        let theirs = theirs.filter(|theirs| *theirs != args.flags.weights);
        // The weights by which a model makes these vectors.
        let weights_of = |folders: Vec<PathBuf>| -> Result<Option<WeightPrecision>> {
            for precision in [Some(args.flags.weights), theirs].into_iter().flatten() {
                let overrides = LoadOptions { precision, ..args.model.load_options() };
                let own = fingerprint(&folders, &overrides, args.flags.dimensions)?;
                if own == made_by.fingerprint {
                    return Ok(Some(precision));
                }
            }
            Ok(None)
        };
        let mut weights = weights_of(folders(&args.model.name(), terminal)?)?;
        // A model that lacks the adapter is another one.
        if weights.is_none()
            && let Some((model, adapter)) = args.model.with_adapter_of(&made_by.model)
            && let Ok(folders) = folders(&model, terminal)
        {
            weights = weights_of(folders)?;
            if weights.is_some() {
                terminal.note(format!(
                    "{label}: its vectors were made with the adapter {adapter}, and the queries' are with another of the same \
                     model: that fits where the two were trained for each other"
                ));
            }
        }
        match weights {
            None => bail!(
                "{label}: has vectors of the model {}, and not of {} with these options; search with that model, or embed again",
                made_by.model,
                model_name(&args.model.name())
            ),
            Some(precision) if precision != args.flags.weights => terminal.note(format!(
                "{label}: its vectors were made by {precision} weights, and the queries' are by {}: they are near each other, not the same",
                args.flags.weights
            )),
            Some(_) => {}
        }
        Ok(())
    }
}

impl SearchArgs {
    /// Hits per query before any are reranked.
    fn depth(&self) -> usize {
        match &self.reranker {
            Some(_) => self.candidates.unwrap_or(self.top_k.max(100)),
            None => self.top_k,
        }
    }
}

pub(super) fn run(args: &SearchArgs, global: &Global) -> Result<()> {
    let columns = || Columns { fields: args.field.clone(), optional: Vec::new() };
    let corpus = args.corpus.as_deref().map(|path| TextFile::open(path, columns())).transpose()?;
    let mut queries = args.query.clone();
    if let Some(path) = &args.queries {
        let file = TextFile::open(path, columns())?;
        for record in file.records()? {
            queries.push(record.map(|record: Record| record.joined())?);
        }
    }
    if let (Some(output), Some(corpus)) = (&args.save_index, &corpus) {
        apart(output, &[corpus.path()])?;
    }
    if queries.is_empty() {
        bail!("no query; give --query TEXT or --queries FILE");
    }
    if let Some(candidates) = args.candidates.filter(|&candidates| candidates < args.top_k) {
        bail!(
            "--candidates {candidates} are fewer than the --top-k {} that are to be left of them",
            args.top_k
        );
    }
    let terminal = global.terminal();
    let vectors =
        args.index.as_deref().map(|index| Vectors::open(index, args, terminal)).transpose()?;
    if let (Some(index), Some(vectors)) = (&args.index, &vectors) {
        vectors.check(index, args, terminal)?;
    }
    let reranker = match &args.reranker {
        Some(name) => {
            if let (Some(index), Some(vectors)) = (&args.index, &vectors)
                && !vectors.may_keep_texts()
            {
                bail!("{index}: {NO_TEXTS}");
            }
            Some(args.reranker_flags.load(name, global)?)
        }
        None => None,
    };
    let model = args.model.load(&args.flags, global)?;
    let sources = (corpus.as_ref(), vectors.as_ref());
    let mut answers = search(model.as_ref(), &queries, sources, args, terminal)?;
    if let Some(reranker) = &reranker {
        rerank(reranker.as_ref(), &mut answers, args, terminal)?;
    }
    terminal.result(&answers, || answers.iter().map(Answer::text).collect::<Vec<_>>().join("\n\n"))
}

/// Puts the hits of each query into the order of a cross-encoder, and keeps the best.
fn rerank(
    reranker: &dyn PairModel,
    answers: &mut [Answer],
    args: &SearchArgs,
    terminal: Terminal,
) -> Result<()> {
    // Vectors alone; among texts some may be empty.
    let mut hits = answers.iter().flat_map(|answer| &answer.hits).peekable();
    if hits.peek().is_some() && hits.all(|hit| hit.text.is_empty()) {
        bail!("the index: {NO_TEXTS}");
    }
    let total: usize = answers.iter().map(|answer| answer.hits.len()).sum();
    let bar = terminal.progress(total as u64, "reranking");
    let mut before = 0;
    for answer in answers {
        let texts: Vec<&str> = answer.hits.iter().map(|hit| hit.text.as_str()).collect();
        let batch_tokens = args.reranker_flags.batch_tokens();
        let ranked = reranker.rank(&answer.query, &texts, batch_tokens, |done| {
            bar.set_position(before + done.texts as u64);
        })?;
        before += texts.len() as u64;
        let best = ranked.into_iter().take(args.top_k);
        let reranked = best.map(|place| {
            let hit = answer.hits[place.index].clone();
            SearchHit { similarity: Some(hit.score), score: place.score, ..hit }
        });
        answer.hits = reranked.collect();
    }
    bar.finish_and_clear();
    Ok(())
}

fn search(
    model: &dyn TextModel,
    queries: &[String],
    (corpus, vectors): (Option<&TextFile>, Option<&Vectors>),
    args: &SearchArgs,
    terminal: Terminal,
) -> Result<Vec<Answer>> {
    let options = |asked: &Option<String>, usual: &[&str]| {
        let prompt = match asked {
            Some(name) => Prompt::Named(name.clone()),
            None => model.prompts().first_of(usual),
        };
        EmbedOptions { prompt, ..args.flags.options(None, None) }
    };
    let of_queries = options(&args.query_prompt_name, &["query", "search_query"]);
    let of_queries = model.embed(queries, &of_queries, |_| {})?;
    let mut search = Search::new(of_queries.clone(), args.depth(), model.similarity())?;
    match (corpus, vectors) {
        (Some(corpus), _) => {
            let options = options(&args.corpus_prompt_name, &DOCUMENT);
            let total = corpus.count()?;
            let dim = model.dimensions(&options);
            let mut writer = args
                .save_index
                .as_deref()
                .map(|path| index_writer(path, (total, dim), model, &options, args, terminal))
                .transpose()?;
            embed_blocks(model, corpus, total, &options, terminal, |rows| {
                if let Some(writer) = &mut writer {
                    writer.write(&rows)?;
                }
                search.push(rows)
            })?;
            if let Some(writer) = writer {
                writer.finish()?;
            }
        }
        (None, Some(Vectors::Files(files))) => {
            let bar = terminal.counter("searching");
            files.read(BLOCK, |block| {
                if interrupt::asked() {
                    return Err(kiln_embed::Error::Cancelled.into());
                }
                bar.inc(block.len() as u64);
                search.push(block)
            })?;
            bar.finish_and_clear();
        }
        #[cfg(feature = "hnsw")]
        (None, Some(Vectors::Graph(index))) => {
            if !model.similarity().normalizes() {
                terminal.note(
                    "warning: this model's vectors are compared by their inner product, and those of an approximate index \
                     by their cosine",
                );
            }
            let found =
                |query: &Vec<f32>| index.search(query, args.depth(), args.expansion.unwrap_or(0));
            let found = of_queries.iter().map(found).collect::<Result<_>>()?;
            return Ok(answers(queries, found));
        }
        (None, None) => bail!("nothing to search; give --corpus FILE or --index FILE"),
    }
    Ok(answers(queries, search.finish()))
}

/// A writer for the vectors of the corpus, `(rows, dimensions)`, that keeps what they are made by.
fn index_writer(
    path: &Path,
    (rows, dim): (usize, usize),
    model: &dyn TextModel,
    options: &EmbedOptions,
    args: &SearchArgs,
    terminal: Terminal,
) -> Result<VectorWriter> {
    let format = VectorFormat::of(path)?;
    let mut writer = VectorWriter::create_as(format, path, rows, dim)?;
    writer.describe(|| {
        let prompt = model.prompts().text(&options.prompt)?;
        args.flags.settings(&args.model, prompt, &args.field, format, terminal)?.line()
    })?;
    Ok(writer)
}

fn answers(queries: &[String], found: Vec<Vec<SearchHit>>) -> Vec<Answer> {
    let answer = |(query, hits): (&String, _)| Answer { query: query.clone(), hits };
    queries.iter().zip(found).map(answer).collect()
}

/// The beginning of a text, in one line.
pub(super) fn excerpt(text: &str) -> String {
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = text.chars().take(100).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("{}{more}", field(&short))
}

impl Answer {
    fn text(&self) -> String {
        let mut lines = vec![field(&self.query).into_owned()];
        for (rank, hit) in self.hits.iter().enumerate() {
            let name = hit.id.clone().unwrap_or_else(|| format!("#{}", hit.row));
            let (name, short) = (field(&name), excerpt(&hit.text));
            lines.push(format!("{:>4}  {:.4}  {name}  {short}", rank + 1, hit.score));
        }
        lines.join("\n")
    }
}

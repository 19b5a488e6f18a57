//! `kiln search`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::embedder::{EmbedOptions, Embedder, Prompt};
use kiln_embed::kernels::Kernels;
use serde::Serialize;

use super::ranges::{NEIGHBOURS, whole};
use super::{EmbedFlags, Global, ModelArgs};
use crate::device;
use crate::embedding::{BLOCK, embed_blocks};
use crate::model::load_embedder;
use crate::search::{Found, Search};
use crate::terminal::{Terminal, field};
use crate::text::{Columns, Record, TextFile, apart};
use crate::vectors::{VectorWriter, read_blocks};
use crate::{interrupt, with_backend};

/// Find the texts nearest in meaning to a query: exact top-k by cosine, over a file of texts or
/// over vectors that `embed` wrote, streamed, so that either may be larger than memory.
#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Query text; may be given several times
    #[arg(long, short = 'Q', value_name = "TEXT", required_unless_present = "queries")]
    query: Vec<String>,
    /// File of queries (formats as `embed --input`)
    #[arg(long, value_name = "FILE")]
    queries: Option<String>,
    /// File of texts to search (formats as `embed --input`)
    #[arg(long, short, value_name = "FILE", required_unless_present = "index")]
    corpus: Option<String>,
    /// File of vectors to search, as `embed` or --save-index wrote it; .jsonl and .parquet keep the texts
    #[arg(long, value_name = "FILE", conflicts_with = "corpus")]
    index: Option<PathBuf>,
    /// Also write the corpus's vectors, to be searched again with --index
    #[arg(long, value_name = "FILE", requires = "corpus")]
    save_index: Option<PathBuf>,
    /// Hits for each query
    #[arg(long, short = 'k', value_name = "K", default_value_t = 10, value_parser = whole(1, NEIGHBOURS))]
    top_k: usize,
    /// Field or column that holds the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Prompt of the queries by name (default: "query" where the model has one)
    #[arg(long, value_name = "NAME")]
    query_prompt_name: Option<String>,
    /// Prompt of the corpus by name
    #[arg(long, value_name = "NAME")]
    corpus_prompt_name: Option<String>,
    #[command(flatten)]
    flags: EmbedFlags,
}

/// The hits of one query.
#[derive(Debug, Serialize)]
struct Answer {
    query: String,
    hits: Vec<Found>,
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
    let device = device::open(global.device)?;
    let terminal = global.terminal();
    with_backend!(&device, B, handle => {
        let embedder = load_embedder::<B>(&args.model.model, &args.flags.load_options(args.model.load_options()), &handle, terminal)?;
        search(&embedder, &queries, corpus.as_ref(), args, terminal)
    })
}

fn search<B: Kernels>(
    embedder: &Embedder<B>,
    queries: &[String],
    corpus: Option<&TextFile>,
    args: &SearchArgs,
    terminal: Terminal,
) -> Result<()> {
    let options = |asked: &Option<String>, usual: &[&str]| {
        let prompt = match asked {
            Some(name) => Prompt::Named(name.clone()),
            None => embedder.prompts().first_of(usual),
        };
        EmbedOptions { prompt, ..args.flags.options(None, None) }
    };
    let of_queries = options(&args.query_prompt_name, &["query", "search_query"]);
    let vectors = embedder.embed_with(queries, &of_queries, |_| interrupt::flow())?;
    let mut search = Search::new(vectors, args.top_k)?;
    match (corpus, &args.index) {
        (Some(corpus), _) => {
            let options = options(&args.corpus_prompt_name, &["document", "passage"]);
            let total = corpus.count()?;
            let dim = embedder.dimensions(&options);
            let mut writer = args
                .save_index
                .as_deref()
                .map(|path| VectorWriter::create(path, total, dim))
                .transpose()?;
            embed_blocks(embedder, corpus, total, &options, terminal, |rows| {
                if let Some(writer) = &mut writer {
                    writer.write(&rows)?;
                }
                search.push(rows)
            })?;
            if let Some(writer) = writer {
                writer.finish()?;
            }
        }
        (None, Some(index)) => {
            let bar = terminal.counter("searching");
            for block in read_blocks(index, BLOCK)? {
                let block = block?;
                bar.inc(block.len() as u64);
                search.push(block)?;
                if interrupt::asked() {
                    return Err(kiln_embed::Error::Cancelled.into());
                }
            }
            bar.finish_and_clear();
        }
        (None, None) => bail!("nothing to search; give --corpus FILE or --index FILE"),
    }
    let answers: Vec<Answer> = queries
        .iter()
        .zip(search.finish())
        .map(|(query, hits)| Answer { query: query.clone(), hits })
        .collect();
    terminal.result(&answers, || answers.iter().map(Answer::text).collect::<Vec<_>>().join("\n\n"))
}

impl Answer {
    fn text(&self) -> String {
        let mut lines = vec![field(&self.query).into_owned()];
        for (rank, hit) in self.hits.iter().enumerate() {
            let name = hit.id.clone().unwrap_or_else(|| format!("#{}", hit.row));
            let text: String = hit.text.split_whitespace().collect::<Vec<_>>().join(" ");
            let short: String = text.chars().take(100).collect();
            let more = if short.len() < text.len() { "..." } else { "" };
            let (name, short) = (field(&name), field(&short));
            lines.push(format!("{:>4}  {:.4}  {name}  {short}{more}", rank + 1, hit.score));
        }
        lines.join("\n")
    }
}

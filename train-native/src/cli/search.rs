//! `kiln search`

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::embedder::{EmbedOptions, Prompt};
use serde::Serialize;

use super::ranges::{NEIGHBOURS, whole};
use super::{EmbedFlags, Global, ModelArgs};
use crate::embedding::{BLOCK, TextModel, embed_blocks};
use crate::interrupt;
use crate::search::{Found, Search};
use crate::terminal::{Terminal, field};
use crate::text::{Columns, Record, TextFile, apart};
use crate::vectors::{VectorWriter, read_blocks};

/// Search texts by meaning.
///
/// Finds the exact top k by cosine similarity among the texts of a file, or among vectors that
/// `kiln embed` wrote. Both are streamed and may be larger than memory.
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
    /// File of vectors to search, from `kiln embed` or --save-index; .jsonl and .parquet include
    /// the texts
    #[arg(long, value_name = "FILE", conflicts_with = "corpus")]
    index: Option<PathBuf>,
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
    let model = args.model.load(&args.flags, global)?;
    search(model.as_ref(), &queries, corpus.as_ref(), args, global.terminal())
}

fn search(
    model: &dyn TextModel,
    queries: &[String],
    corpus: Option<&TextFile>,
    args: &SearchArgs,
    terminal: Terminal,
) -> Result<()> {
    let options = |asked: &Option<String>, usual: &[&str]| {
        let prompt = match asked {
            Some(name) => Prompt::Named(name.clone()),
            None => model.prompts().first_of(usual),
        };
        EmbedOptions { prompt, ..args.flags.options(None, None) }
    };
    let of_queries = options(&args.query_prompt_name, &["query", "search_query"]);
    let vectors = model.embed(queries, &of_queries, |_| {})?;
    let mut search = Search::new(vectors, args.top_k)?;
    match (corpus, &args.index) {
        (Some(corpus), _) => {
            let options = options(&args.corpus_prompt_name, &["document", "passage"]);
            let total = corpus.count()?;
            let dim = model.dimensions(&options);
            let mut writer = args
                .save_index
                .as_deref()
                .map(|path| VectorWriter::create(path, total, dim))
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

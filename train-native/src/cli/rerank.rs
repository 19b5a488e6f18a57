//! `kiln rerank`

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use super::Global;
use super::ranges::{NEIGHBOURS, whole};
use super::reranker::RerankerFlags;
use crate::terminal::field;
use crate::text::{Columns, TextFile};

/// Rank texts by how relevant they are to a query, with a cross-encoder.
///
/// A cross-encoder reads the query and each text together: slower than `kiln search`, and usually better.
/// Use it on a few hundred texts; `kiln search --reranker` does so with the best that it finds.
#[derive(Debug, Args)]
pub(super) struct RerankArgs {
    /// Reranker: a folder or a Hub id (owner/name[@revision]) with a head for sequence classification of one
    /// score, or a Qwen3-Reranker
    #[arg(id = "reranker", long = "model", short = 'm', value_name = "DIR|HUB_ID")]
    model: String,
    /// Query (repeatable)
    #[arg(long, short = 'Q', value_name = "TEXT", required = true)]
    query: Vec<String>,
    /// File of texts to rank, in any format of `embed --input`
    #[arg(long, short, value_name = "FILE", required_unless_present = "text")]
    corpus: Option<String>,
    /// Text to rank (repeatable)
    #[arg(long, short, value_name = "TEXT", conflicts_with = "corpus")]
    text: Vec<String>,
    /// Texts per query [default: all]
    #[arg(long, short = 'k', value_name = "K", value_parser = whole(1, NEIGHBOURS))]
    top_k: Option<usize>,
    /// Field or column of the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    #[command(flatten)]
    flags: RerankerFlags,
}

/// The ranking of one query.
#[derive(Debug, Serialize)]
struct Answer {
    query: String,
    ranked: Vec<Line>,
}

#[derive(Debug, Serialize)]
struct Line {
    /// Row of the corpus, from 0.
    row: usize,
    score: f32,
    id: Option<String>,
    text: String,
}

pub(super) fn run(args: &RerankArgs, global: &Global) -> Result<()> {
    let mut texts: Vec<(Option<String>, String)> =
        args.text.iter().map(|text| (None, text.clone())).collect();
    if let Some(path) = &args.corpus {
        let columns = Columns { fields: args.field.clone(), optional: Vec::new() };
        for record in TextFile::open(path, columns)?.records()? {
            let record = record?;
            texts.push((record.id.clone(), record.joined()));
        }
    }
    if texts.is_empty() {
        bail!("nothing to rank: the corpus is empty");
    }
    let model = args.flags.load(&args.model, global)?;
    let terminal = global.terminal();
    let bar = terminal.progress((texts.len() * args.query.len()) as u64, "pairs");
    let mut answers = Vec::new();
    for query in &args.query {
        let before = (answers.len() * texts.len()) as u64;
        let contents: Vec<&str> = texts.iter().map(|(_, text)| text.as_str()).collect();
        let ranked = model.rank(query, &contents, args.flags.batch_tokens(), |done| {
            bar.set_position(before + done.texts as u64);
        })?;
        let lines = ranked.into_iter().take(args.top_k.unwrap_or(texts.len())).map(|place| Line {
            row: place.index,
            score: place.score,
            id: texts[place.index].0.clone(),
            text: texts[place.index].1.clone(),
        });
        answers.push(Answer { query: query.clone(), ranked: lines.collect() });
    }
    bar.finish_and_clear();
    terminal
        .result(&answers, || answers.iter().map(Answer::to_text).collect::<Vec<_>>().join("\n\n"))
}

impl Answer {
    fn to_text(&self) -> String {
        let mut lines = vec![field(&self.query).into_owned()];
        for (rank, line) in self.ranked.iter().enumerate() {
            let name = line.id.clone().unwrap_or_else(|| format!("#{}", line.row));
            let (name, short) = (field(&name).into_owned(), super::search::excerpt(&line.text));
            lines.push(format!("{:>4}  {:.4}  {name}  {short}", rank + 1, line.score));
        }
        lines.join("\n")
    }
}

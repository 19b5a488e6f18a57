//! `kiln rerank`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use kiln_embed::reranker::ScoreActivation;
use serde::Serialize;
use serde_json::json;

use super::Global;
use super::ranges::{NEIGHBOURS, whole};
use super::reranker::RerankerFlags;
use crate::data::{DataSet, Example, OnBadRow, Opening};
use crate::recipe::{DataSource, LeakRule};
use crate::reranking::PairModel;
use crate::terminal::{Terminal, counted, field};
use crate::text::{Columns, TextFile, apart};
use crate::vectors::write_atomically;

/// Rank texts by how relevant they are to a query, with a cross-encoder, or score the rows of training data.
///
/// A cross-encoder reads the query and each text together: slower than `kiln search`, and usually better.
/// Use it on a few hundred texts; `kiln search --reranker` does so with the best that it finds.
///
/// With --data and --scores it writes its scores into rows of queries with positives and negatives, from which an
/// embedder (margin_mse in a recipe) or another cross-encoder (rerank.loss = "margin_mse" or "mse") learns them.
#[derive(Debug, Args)]
pub(super) struct RerankArgs {
    /// Reranker: a folder, a .kiln file or a Hub id (owner/name[@revision]): a cross-encoder with one score,
    /// Qwen3-Reranker, bge-reranker-v2-gemma, or a decoder saved with LogitScore
    #[arg(id = "reranker", long = "model", short = 'm', value_name = "DIR|FILE|HUB_ID")]
    model: String,
    /// Query (repeatable)
    #[arg(long, short = 'Q', value_name = "TEXT", required_unless_present = "data")]
    query: Vec<String>,
    /// File of texts to rank, in any format of `embed --input`
    #[arg(long, short, value_name = "FILE", required_unless_present_any = ["text", "data"])]
    corpus: Option<String>,
    /// Text to rank (repeatable)
    #[arg(long, short, value_name = "TEXT", conflicts_with = "corpus")]
    text: Vec<String>,
    /// Rows to score, in any training format: queries with positives, and negatives if there are some
    #[arg(long, value_name = "FILE", requires = "scores", conflicts_with_all = ["query", "corpus", "text", "top_k"])]
    data: Option<PathBuf>,
    /// With --data: file to write the rows with their scores to (.jsonl: query, pos, neg, pos_scores, neg_scores)
    #[arg(long, value_name = "FILE", requires = "data")]
    scores: Option<PathBuf>,
    /// With --data: write scores as they are before the reranker's activation, whose differences a sigmoid would press
    /// together
    #[arg(long, requires = "data")]
    logits: bool,
    /// With --data: skip and count rows that cannot be read, instead of stopping
    #[arg(long, requires = "data")]
    skip_bad_rows: bool,
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
    if let (Some(data), Some(output)) = (&args.data, &args.scores) {
        return score_rows(args, data, output, global);
    }
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

/// Rows that are scored at once.
const ROWS: usize = 64;

/// Writes rows with the reranker's scores of their texts.
fn score_rows(args: &RerankArgs, data: &Path, output: &Path, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    apart(output, &[data])?;
    let set = open_rows(data, args.skip_bad_rows, terminal)?;
    let model = args.flags.load(&args.model, global)?;
    let activation = match args.logits {
        true => ScoreActivation::Identity,
        false => model.activation(),
    };
    let bar = terminal.progress(set.len() as u64, "rows");
    let (mut lines, mut texts) = (Vec::new(), 0);
    for block in set.blocks(ROWS) {
        let mut rows = block.map(|i| set.get(i)).collect::<Result<Vec<_>>>()?;
        texts += score(&mut rows, model.as_ref(), args.flags.batch_tokens(), activation)?;
        for row in &rows {
            serde_json::to_writer(&mut lines, row)?;
            lines.push(b'\n');
        }
        bar.inc(rows.len() as u64);
    }
    bar.finish_and_clear();
    write_atomically(output, &lines)?;
    let before = if args.logits { "before" } else { "behind" };
    let value = json!({"output": output, "rows": set.len(), "texts": texts, "logits": args.logits});
    terminal.result(&value, || {
        format!(
            "{} of {} scored, {before} the activation: {}",
            counted(texts, "text", "texts"),
            counted(set.len(), "row", "rows"),
            output.display()
        )
    })
}

/// Gives rows the scores of their positives and negatives, and says how many texts these are.
fn score(
    rows: &mut [Example],
    model: &dyn PairModel,
    batch_tokens: Option<usize>,
    activation: ScoreActivation,
) -> Result<usize> {
    let of = |row: &Example| row.pos.len() + row.neg.len();
    let pairs = rows.iter().flat_map(|row| {
        row.pos.iter().chain(&row.neg).map(|text| (row.query.as_str(), text.as_str()))
    });
    let pairs: Vec<(&str, &str)> = pairs.collect();
    let count = pairs.len();
    let logits = model.logits(&pairs, batch_tokens, true, &mut |_| {})?;
    let mut scores = logits.into_iter().map(|score| activation.of(score));
    for row in rows {
        let all: Vec<f32> = scores.by_ref().take(of(row)).collect();
        let (positives, negatives) =
            all.split_at_checked(row.pos.len()).context("a text has no score")?;
        (row.pos_scores, row.neg_scores) = (positives.to_vec(), negatives.to_vec());
    }
    Ok(count)
}

/// Opens a file of rows with all of its pairs, alike or not.
fn open_rows(path: &Path, skip_bad_rows: bool, terminal: Terminal) -> Result<DataSet> {
    let opening = Opening {
        folder: Path::new(""),
        on_bad_row: if skip_bad_rows { OnBadRow::Skip } else { OnBadRow::Stop },
        leaks: None,
        leak: LeakRule::None,
        deduplicate: false,
        texts_alone: false,
        scored: true,
        binary: false,
        negatives: 0,
        seed: 1,
        terminal,
    };
    DataSet::open(&DataSource::file(&path.to_string_lossy()), &opening)
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

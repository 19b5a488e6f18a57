//! `kiln recall`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use kiln_embed::index::IndexPrecision;

use super::ranges::{NEIGHBOURS, SIZE, whole};
use super::{EmbedFlags, Global, ModelArgs};
use crate::data::{BeirFolder, qrels_splits};
use crate::eval::{Cache, ModelEncoder, Recall, RecallLine, TextEncoder, fingerprint, plain_table};
use crate::model::folders;
use crate::search::normalize;
use crate::terminal::Terminal;
use crate::text::{Columns, TextFile};

/// Measure the recall of smaller embeddings.
///
/// Compares truncated dimensions (Matryoshka), int8, binary, and rescored binary vectors with the
/// full ones.
#[derive(Debug, Args)]
pub(super) struct RecallArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    flags: EmbedFlags,
    /// BEIR folder with a corpus, queries and, for nDCG, judgements
    #[arg(long, value_name = "DIR", required_unless_present = "corpus")]
    data: Option<PathBuf>,
    /// Split of --data [default: test, else the first one]
    #[arg(long, value_name = "NAME", requires = "data")]
    split: Option<String>,
    /// File of texts to search, in any format of `embed --input`
    #[arg(long, value_name = "FILE", requires = "queries", conflicts_with = "data")]
    corpus: Option<String>,
    /// File of queries, in any format of `embed --input`
    #[arg(long, value_name = "FILE", requires = "corpus")]
    queries: Option<String>,
    /// Field or column of the text; several (title,text) are joined by a space
    #[arg(long, value_name = "NAME", default_value = "text", value_delimiter = ',')]
    field: Vec<String>,
    /// Hits per query
    #[arg(long, short = 'k', value_name = "K", default_value_t = 10, value_parser = whole(1, NEIGHBOURS))]
    top_k: usize,
    /// Dimensions to truncate vectors to [default: all, 1/2, 1/4 and 1/8 of them]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole(1, SIZE))]
    widths: Vec<usize>,
    /// Precisions to compare: f32, int8, binary, binary+int8 [default: all]
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = precision)]
    precision: Vec<IndexPrecision>,
    /// Binary candidates to rescore, as a multiple of K
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole(1, 10_000))]
    rescore: usize,
    /// Folder to cache embeddings in
    #[arg(long, value_name = "DIR", env = "KILN_EMBEDDINGS")]
    cache: Option<PathBuf>,
}

fn precision(name: &str) -> Result<IndexPrecision, String> {
    IndexPrecision::from_name(name).map_err(|error| error.to_string())
}

/// Corpus, queries and judgements.
fn read(args: &RecallArgs, terminal: Terminal) -> Result<BeirFolder> {
    if let Some(folder) = &args.data {
        let splits = qrels_splits(folder);
        let split = match &args.split {
            Some(split) => split.clone(),
            None => splits
                .iter()
                .find(|split| *split == "test")
                .or_else(|| splits.first())
                .cloned()
                .with_context(|| format!("{}: no judgements in qrels/", folder.display()))?,
        };
        return BeirFolder::read(folder, &split, None, terminal);
    }
    let open = |path: &Option<String>| -> Result<TextFile> {
        let columns = Columns { fields: args.field.clone(), optional: Vec::new() };
        TextFile::open(path.as_deref().unwrap_or_default(), columns)
    };
    let mut corpus = crate::data::StoreWriter::new()?;
    for record in open(&args.corpus)?.records()? {
        corpus.push(&record?.joined())?;
    }
    let queries: Vec<String> = open(&args.queries)?
        .records()?
        .map(|record| Ok(record?.joined()))
        .collect::<Result<_>>()?;
    Ok(BeirFolder {
        corpus: corpus.finish()?,
        corpus_ids: Vec::new(),
        query_ids: Vec::new(),
        queries,
        relevant: Vec::new(),
        absent: Vec::new(),
        candidates: None,
    })
}

pub(super) fn run(args: &RecallArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let set = read(args, terminal)?;
    let name = &args.model.name();
    let overrides = args.flags.load_options(args.model.load_options());
    let options = args.flags.options(None, None);
    let folders = folders(name, terminal)?;
    let hash = fingerprint(&folders, &overrides, options.dimensions)?;
    let folder = args.cache.clone().or_else(Cache::default_folder);
    let cache = folder.and_then(|folder| Cache::open(&folder, &hash, terminal));
    let model = args.model.load(&args.flags, global)?;
    model.check(&options)?;
    let encoder = ModelEncoder::new(model, options, cache, terminal);
    let encode = |texts: &[String], names: &[&str]| -> Result<Vec<Vec<f32>>> {
        let mut vectors = encoder.encode(texts, &encoder.own_prompt(names))?;
        vectors.iter_mut().for_each(|vector| normalize(vector));
        Ok(vectors)
    };
    let texts = (0..set.corpus.len()).map(|row| set.corpus.get(row)).collect::<Result<Vec<_>>>()?;
    let (queries, corpus) =
        (encode(&set.queries, &["query"])?, encode(&texts, &["document", "passage"])?);
    let width = corpus.first().map_or(0, Vec::len);
    let measure = Recall {
        k: args.top_k,
        dimensions: match args.widths.is_empty() {
            true => [1, 2, 4, 8]
                .map(|part| width / part)
                .into_iter()
                .filter(|&width| width > 0)
                .collect(),
            false => args.widths.clone(),
        },
        precisions: match args.precision.is_empty() {
            true => IndexPrecision::ALL.to_vec(),
            false => args.precision.clone(),
        },
        rescore: args.rescore,
    };
    let judged = args.data.as_ref().map(|_| (&set.relevant[..], &set.absent[..]));
    let lines = measure.run(&queries, &corpus, judged, terminal)?;
    terminal.result(&lines, || table(&lines, args.top_k, corpus.len(), args.data.as_deref()))
}

fn table(lines: &[RecallLine], k: usize, rows: usize, data: Option<&Path>) -> String {
    let recall = format!("recall@{k}");
    let mut header = vec!["dimensions", "precision", "bytes", "MB in all", &recall];
    if data.is_some() {
        header.push("nDCG@10");
    }
    header.push("ms a query");
    let mut table = vec![header.into_iter().map(String::from).collect::<Vec<_>>()];
    table.extend(lines.iter().map(|line| {
        let mut row = vec![
            line.dimensions.to_string(),
            line.precision.into(),
            line.bytes.to_string(),
            format!("{:.2}", (line.bytes * rows) as f64 / 1e6),
            format!("{:.4}", line.recall),
        ];
        row.extend(line.ndcg_at_10.map(|score| format!("{score:.4}")));
        row.push(format!("{:.3}", line.ms));
        row
    }));
    plain_table(&table)
}

//! A teacher's nearest texts of each query, and how they are kept for another filtering.

use std::collections::HashSet;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_embed::embedder::EmbedOptions;
use kiln_embed::index::{Hit, dot};
use kiln_metrics::ParallelTopK;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::data::{DataSet, Store, text_hash};
use crate::embedding::{BLOCK, TextModel};
use crate::terminal::Terminal;
use crate::text::{Columns, TextFile};

/// One of the nearest texts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Row of the corpus.
    pub row: usize,
    /// The teacher's score.
    pub score: f32,
    /// Whether it is one of the query's positives, or the query itself.
    pub known: bool,
}

/// A query's nearest texts, best first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Query {
    /// Number of the example.
    pub number: usize,
    /// The teacher's score of each positive.
    pub positive_scores: Vec<f32>,
    /// The nearest texts.
    pub candidates: Vec<Candidate>,
}

/// All queries, and what they were scored with.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The teacher.
    pub model: String,
    /// A number for the examples and the corpus ([`data_hash`]).
    pub data: String,
    /// Texts of the corpus.
    pub corpus: usize,
    /// Each example's candidates.
    pub queries: Vec<Query>,
}

/// A number for the examples and the corpus, whose rows the scores name.
///
/// # Errors
/// The temporary files cannot be read.
pub fn data_hash(set: &DataSet, corpus: &Store) -> Result<String> {
    let mut hash = Xxh3::new();
    let mut add = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    for i in 0..set.len() {
        let example = set.get(i)?;
        [&example.query].into_iter().chain(&example.pos).for_each(|text| add(text));
    }
    for row in 0..corpus.len() {
        add(&corpus.get::<String>(row)?);
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// The `k` nearest corpus texts of each example's query. Vectors of queries and positives are held
/// in memory, those of the corpus block by block.
///
/// # Errors
/// Texts that cannot be read or embedded; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn search(
    teacher: &dyn TextModel,
    model: &str,
    set: &DataSet,
    corpus: &Store,
    k: usize,
    terminal: Terminal,
) -> Result<Scored> {
    let [as_query, as_document] = ["query", "document"]
        .map(|prompt| EmbedOptions::with_prompt(teacher.prompts().first_of(&[prompt])));
    let mut queries = Vec::new();
    let mut positive_scores = Vec::new();
    let mut known: Vec<HashSet<u128>> = Vec::new();
    let bar = terminal.progress(set.len() as u64, "queries");
    for block in set.examples.blocks(BLOCK) {
        let examples: Vec<_> = block.map(|i| set.get(i)).collect::<Result<_>>()?;
        let texts: Vec<&String> = examples.iter().map(|example| &example.query).collect();
        let positives: Vec<&String> = examples.iter().flat_map(|example| &example.pos).collect();
        let (done, all) = (queries.len(), texts.len() + positives.len());
        let show = |part: usize| bar.set_position((done + examples.len() * part / all) as u64);
        let vectors = teacher.embed(&texts, &as_query, |progress| show(progress.texts))?;
        let positive_vectors = teacher.embed(&positives, &as_document, |progress| {
            show(texts.len() + progress.texts);
        })?;
        let mut positive_vectors = positive_vectors.into_iter();
        for (example, vector) in examples.iter().zip(&vectors) {
            let own = positive_vectors.by_ref().take(example.pos.len());
            positive_scores.push(own.map(|positive| dot(vector, &positive)).collect::<Vec<_>>());
            let texts = example.pos.iter().chain([&example.query]);
            known.push(texts.map(|text| text_hash(text)).collect());
        }
        queries.extend(vectors);
    }
    bar.finish_and_clear();

    let mut search = ParallelTopK::new(&queries, k)?;
    drop(queries);
    let mut hashes: Vec<u128> = Vec::with_capacity(corpus.len());
    let bar = terminal.progress(corpus.len() as u64, "corpus");
    for rows in corpus.blocks(BLOCK) {
        let texts: Vec<String> = rows.map(|row| corpus.get(row)).collect::<Result<_>>()?;
        let done = hashes.len();
        hashes.extend(texts.iter().map(|text| text_hash(text)));
        let vectors = teacher.embed(&texts, &as_document, |progress| {
            bar.set_position((done + progress.texts) as u64);
        })?;
        search.push(&vectors)?;
    }
    bar.finish_and_clear();
    let queries = search
        .finish()
        .into_iter()
        .zip(positive_scores)
        .zip(known)
        .enumerate()
        .map(|(number, ((hits, positive_scores), known))| Query {
            number,
            positive_scores,
            candidates: hits
                .into_iter()
                .map(|Hit { row, score }| Candidate {
                    row,
                    score,
                    known: known.contains(&hashes[row]),
                })
                .collect(),
        })
        .collect();
    let data = data_hash(set, corpus)?;
    Ok(Scored { model: model.into(), data, corpus: corpus.len(), queries })
}

#[derive(Serialize, Deserialize)]
struct Header {
    model: String,
    data: String,
    corpus: usize,
    queries: usize,
}

/// Keeps scores and ranks as JSON lines, atomically; zstd where the name ends in `.zst`.
///
/// # Errors
/// The file cannot be written.
pub fn write_scores(path: &Path, scored: &Scored) -> Result<()> {
    let mut lines = BufWriter::new(Vec::new());
    let header = Header {
        model: scored.model.clone(),
        data: scored.data.clone(),
        corpus: scored.corpus,
        queries: scored.queries.len(),
    };
    writeln!(lines, "{}", serde_json::to_string(&header)?)?;
    for query in &scored.queries {
        writeln!(lines, "{}", serde_json::to_string(query)?)?;
    }
    let mut bytes = lines.into_inner().map_err(|error| error.into_error())?;
    if path.extension().is_some_and(|ending| ending == "zst") {
        bytes = zstd::encode_all(&bytes[..], 3)?;
    }
    crate::vectors::write_atomically(path, &bytes)
}

/// Reads what [`write_scores`] kept, for the same examples and corpus.
///
/// # Errors
/// Unreadable, or kept for other data.
pub fn read_scores(path: &str, set: &DataSet, corpus: &Store) -> Result<Scored> {
    let data = data_hash(set, corpus)?;
    let (examples, corpus) = (set.len(), corpus.len());
    let file = TextFile::open(path, Columns::required(&[]))?;
    let mut objects = file.objects()?;
    let first = objects.next().with_context(|| format!("{path}: is empty"))??;
    let header: Header = serde_json::from_value(first.fields.into())
        .with_context(|| format!("{path}: no file of scores that `mine --scores` wrote"))?;
    if (header.queries, header.corpus) != (examples, corpus) {
        bail!(
            "{path}: was kept for {} queries and {} texts, the data now have {examples} and {corpus}; \
             run without --from-scores",
            header.queries,
            header.corpus
        );
    }
    if header.data != data {
        bail!(
            "{path}: was kept for other queries and texts, as many as these; run without --from-scores"
        );
    }
    let mut seen = HashSet::new();
    let queries = objects
        .map(|object| {
            let object = object?;
            let place = || format!("{path}:{}", object.number);
            let query: Query = serde_json::from_value(object.fields.clone().into())
                .with_context(|| format!("{}: no query's scores", place()))?;
            let rows: HashSet<usize> = query.candidates.iter().map(|one| one.row).collect();
            if query.number >= examples || rows.iter().any(|&row| row >= corpus) {
                bail!("{}: names a text that is not there", place());
            }
            if !seen.insert(query.number) || rows.len() < query.candidates.len() {
                bail!("{}: names a query or a text twice", place());
            }
            let scores = query.candidates.iter().map(|one| one.score);
            if !scores.chain(query.positive_scores.iter().copied()).all(f32::is_finite) {
                bail!("{}: has a score that is no number", place());
            }
            Ok(query)
        })
        .collect::<Result<Vec<_>>>()?;
    if queries.len() != examples {
        bail!("{path}: is cut short: {} of {examples} queries", queries.len());
    }
    Ok(Scored { model: header.model, data, corpus, queries })
}

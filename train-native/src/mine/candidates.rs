//! A teacher's nearest texts of each query, and how they are kept for another filtering.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_data::data::negatives::{Candidate, Query};
use kiln_embed::embedder::{DOCUMENT, EmbedOptions, Prompt, Prompts, QUERY};
use kiln_embed::index::{Hit, dot};
use kiln_metrics::ParallelTopK;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::data::{DataSet, Store, text_hash};
use crate::embedding::{BLOCK, TextModel};
use crate::terminal::{Terminal, counted};
use crate::text::{Columns, TextFile};
use crate::vectors::NewFile;

/// All queries, and what they were scored with.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The teacher.
    pub model: String,
    /// What it had before queries and before documents.
    pub prompts: [String; 2],
    /// Whether given negatives have scores.
    pub given: bool,
    /// A number for the examples and the corpus ([`data_hash`]).
    pub data: String,
    /// Texts of the corpus.
    pub corpus: usize,
    /// Each example's candidates.
    pub queries: Vec<Query>,
}

/// How to ask a teacher.
#[derive(Debug, Clone)]
pub struct Asking {
    /// Its name.
    pub model: String,
    /// What it has before queries and before documents.
    pub prompts: [String; 2],
    /// Nearest texts to keep for each query.
    pub top_k: usize,
    /// Whether the negatives that examples have are scored too.
    pub given: bool,
}

/// A teacher's prompts of queries and documents: those asked for, else its own of those names.
///
/// # Errors
/// A name that it does not have.
pub fn teacher_prompts(prompts: &Prompts, asked: [Option<Prompt>; 2]) -> Result<[String; 2]> {
    let [query, document] = asked;
    let text = |asked: Option<Prompt>, names: &[&str]| -> Result<String> {
        let prompt = asked.unwrap_or_else(|| prompts.first_of(names));
        Ok(prompts.text(&prompt)?.to_string())
    };
    Ok([text(query, &QUERY)?, text(document, &DOCUMENT)?])
}

/// A number for the examples and the corpus, whose rows the scores name; with the given negatives
/// where those were scored.
///
/// # Errors
/// The temporary files cannot be read.
pub fn data_hash(set: &DataSet, corpus: &Store, given: bool) -> Result<String> {
    let mut hash = Xxh3::new();
    let mut add = |text: &str| {
        hash.update(&(text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    for i in 0..set.len() {
        let example = set.get(i)?;
        [&example.query].into_iter().chain(&example.pos).for_each(|text| add(text));
        if given {
            example.neg.iter().for_each(|text| add(text));
        }
    }
    for row in 0..corpus.len() {
        add(&corpus.get::<String>(row)?);
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// What is known of a query before its nearest texts are.
struct Asked {
    positive_scores: Vec<f32>,
    negative_scores: Vec<f32>,
    query: u128,
    positives: HashSet<u128>,
    negatives: HashSet<u128>,
}

/// The nearest corpus texts of each example's query. Vectors of queries are held in memory, those of
/// the corpus block by block.
///
/// # Errors
/// Texts that cannot be read or embedded; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn search(
    teacher: &dyn TextModel,
    asking: &Asking,
    set: &DataSet,
    corpus: &Store,
    terminal: Terminal,
) -> Result<Scored> {
    // Shares of a positive's score are of cosines, unless the teacher means inner products.
    let normalize = teacher.similarity().normalizes().then_some(true);
    let [as_query, as_document] = asking.prompts.each_ref().map(|prompt| EmbedOptions {
        normalize,
        ..EmbedOptions::with_prompt(Prompt::Text(prompt.clone()))
    });
    let mut queries = Vec::new();
    let mut asked: Vec<Asked> = Vec::new();
    let bar = terminal.progress(set.len() as u64, "queries");
    for block in set.blocks(BLOCK) {
        let mut examples: Vec<_> = block.map(|i| set.get(i)).collect::<Result<_>>()?;
        if !asking.given {
            examples.iter_mut().for_each(|example| example.neg.clear());
        }
        let texts: Vec<&String> = examples.iter().map(|example| &example.query).collect();
        // Queries share documents: NFCorpus has 110,575 judgements of 3,633 texts.
        let mut documents: Vec<&String> = Vec::new();
        let mut row_of: HashMap<&String, usize> = HashMap::new();
        for text in examples.iter().flat_map(|example| example.pos.iter().chain(&example.neg)) {
            row_of.entry(text).or_insert_with(|| {
                documents.push(text);
                documents.len() - 1
            });
        }
        let (done, all) = (queries.len(), texts.len() + documents.len());
        let show = |part: usize| bar.set_position((done + examples.len() * part / all) as u64);
        let vectors = teacher.embed(&texts, &as_query, |progress| show(progress.texts))?;
        let of_documents = teacher.embed(&documents, &as_document, |progress| {
            show(texts.len() + progress.texts);
        })?;
        for (example, vector) in examples.iter().zip(&vectors) {
            let scores = |texts: &[String]| -> Vec<f32> {
                texts.iter().map(|text| dot(vector, &of_documents[row_of[text]])).collect()
            };
            let hashes =
                |texts: &[String]| texts.iter().map(|text| text_hash(text)).collect::<HashSet<_>>();
            asked.push(Asked {
                positive_scores: scores(&example.pos),
                negative_scores: scores(&example.neg),
                query: text_hash(&example.query),
                positives: hashes(&example.pos),
                negatives: hashes(&example.neg),
            });
        }
        queries.extend(vectors);
    }
    bar.finish_and_clear();

    let mut search = ParallelTopK::new(&queries, asking.top_k)?;
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
    let known = set.known();
    let found = search.finish().into_iter().zip(asked).enumerate();
    let queries = found.map(|(number, (hits, asked))| {
        let candidate = |Hit { row, score }: Hit| {
            let text = hashes[row];
            let known =
                asked.positives.contains(&text) || known.contains(asked.query as u64, text as u64);
            let (own, given) = (text == asked.query, asked.negatives.contains(&text));
            Candidate { row, score, known, own, given }
        };
        let candidates = hits.into_iter().map(candidate).collect();
        let Asked { positive_scores, negative_scores, .. } = asked;
        Query { number, positive_scores, negative_scores, candidates }
    });
    Ok(Scored {
        model: asking.model.clone(),
        prompts: asking.prompts.clone(),
        given: asking.given,
        data: data_hash(set, corpus, asking.given)?,
        corpus: corpus.len(),
        queries: queries.collect(),
    })
}

/// Number of the format of kept scores. Files of earlier versions have none: their scores are inner products, also of
/// teachers whose vectors are compared by the cosine and are not divided by their norm.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    #[serde(default)]
    format: u32,
    model: String,
    #[serde(default)]
    prompts: [String; 2],
    #[serde(default)]
    given: bool,
    data: String,
    corpus: usize,
    queries: usize,
}

/// Keeps scores and ranks as JSON lines, atomically; zstd where the name ends in `.zst`.
///
/// # Errors
/// The file cannot be written.
pub fn write_scores(path: &Path, scored: &Scored) -> Result<()> {
    let header = Header {
        format: FORMAT,
        model: scored.model.clone(),
        prompts: scored.prompts.clone(),
        given: scored.given,
        data: scored.data.clone(),
        corpus: scored.corpus,
        queries: scored.queries.len(),
    };
    let label = || path.display().to_string();
    let write = |file: &mut dyn Write| -> Result<()> {
        writeln!(file, "{}", serde_json::to_string(&header)?).with_context(label)?;
        for query in &scored.queries {
            writeln!(file, "{}", serde_json::to_string(query)?).with_context(label)?;
        }
        Ok(())
    };
    let mut file = NewFile::create(path)?;
    if path.extension().is_none_or(|ending| ending != "zst") {
        write(&mut file)?;
        return file.finish();
    }
    let mut packed = zstd::Encoder::new(file, 3).with_context(label)?;
    write(&mut packed)?;
    packed.finish().with_context(label)?.finish()
}

/// Reads what [`write_scores`] kept, for the same examples and corpus.
///
/// # Errors
/// Unreadable, kept by a version with another format, for other data, or with other prompts than those asked for.
pub fn read_scores(
    path: &str,
    set: &DataSet,
    corpus: &Store,
    prompts: [Option<&str>; 2],
) -> Result<Scored> {
    let (examples, texts) = (set.len(), corpus.len());
    let file = TextFile::open(path, Columns::required(&[]))?;
    let mut objects = file.objects()?;
    let first = objects.next().with_context(|| format!("{path}: is empty"))??;
    let header: Header = serde_json::from_value(first.fields.into())
        .with_context(|| format!("{path}: no file of scores that `mine --scores` wrote"))?;
    if header.format != FORMAT {
        bail!(
            "{path}: was kept by another version of Kiln, whose scores may be of another scale; run without \
             --from-scores"
        );
    }
    if (header.queries, header.corpus) != (examples, texts) {
        bail!(
            "{path}: was kept for {} and {}, the data now have {examples} and {texts}; run without --from-scores",
            counted(header.queries, "query", "queries"),
            counted(header.corpus, "text", "texts")
        );
    }
    for (side, (kept, asked)) in
        ["query", "document"].iter().zip(header.prompts.iter().zip(prompts))
    {
        if let Some(asked) = asked
            && asked != kept.as_str()
        {
            bail!(
                "{path}: was kept with the {side} prompt {kept:?}, not {asked:?}; run without --from-scores"
            );
        }
    }
    let data = data_hash(set, corpus, header.given)?;
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
            if query.number >= examples || rows.iter().any(|&row| row >= texts) {
                bail!("{}: names a text that is not there", place());
            }
            if !seen.insert(query.number) || rows.len() < query.candidates.len() {
                bail!("{}: names a query or a text twice", place());
            }
            let scores = query.candidates.iter().map(|one| &one.score);
            let scores = scores.chain(&query.positive_scores).chain(&query.negative_scores);
            if !scores.copied().all(f32::is_finite) {
                bail!("{}: has a score that is no number", place());
            }
            Ok(query)
        })
        .collect::<Result<Vec<_>>>()?;
    if queries.len() != examples {
        let all = counted(examples, "query", "queries");
        bail!("{path}: is cut short: {} of {all}", queries.len());
    }
    let Header { model, prompts, given, .. } = header;
    Ok(Scored { model, prompts, given, data, corpus: texts, queries })
}

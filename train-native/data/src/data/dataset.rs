//! A data set of a stage, ready to be drawn from: read, converted, filtered, and put on disk.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::convert::{Labelled, pair_examples};
use super::corpus::{Corpus, CorpusSize};
use super::format::{DataRow, Fields, RowFormat};
use super::leak::LeakFilter;
use super::store::{Store, StoreWriter};
use super::{BeirFolder, Example, text_hash};
use crate::recipe::DataSource;
use crate::text::{Columns, TextFile, Unreadable, short};
use kiln_terminal::interrupt;
use kiln_terminal::terminal::Terminal;

/// What to do with a row that cannot be read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnBadRow {
    /// End with an error that names it.
    #[default]
    Stop,
    /// Leave it out and count it.
    Skip,
}

/// How data sets are opened.
pub struct Opening<'a> {
    /// Folder for relative paths.
    pub folder: &'a Path,
    /// Rows that cannot be read.
    pub on_bad_row: OnBadRow,
    /// Evaluation texts to keep out.
    pub leaks: Option<&'a LeakFilter>,
    /// Drop repeated examples.
    pub deduplicate: bool,
    /// Whether texts without positives will do, as for distillation.
    pub texts_alone: bool,
    /// Negatives that labelled texts are given.
    pub negatives: usize,
    /// Seed of conversions and of made-up texts.
    pub seed: u64,
    /// What the user sees.
    pub terminal: Terminal,
}

/// What became of the rows of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Rows read.
    pub rows: usize,
    /// Rows that could not be read.
    pub bad_rows: usize,
    /// Scored pairs below the threshold.
    pub below_threshold: usize,
    /// Labelled texts whose label has no other text.
    pub lone_labels: usize,
    /// Rows without a text in the columns asked for.
    pub without_text: usize,
    /// Examples seen before.
    pub duplicates: usize,
    /// Examples with an evaluation text.
    pub leaks: usize,
    /// Negatives equal to a positive or the query, which were removed.
    pub equal_negatives: usize,
    /// Examples without a negative.
    pub without_negatives: usize,
    /// Most negatives that an example has.
    pub most_negatives: usize,
    /// Examples to train on.
    pub examples: usize,
}

impl Counts {
    /// What was left out, in words; empty where nothing was.
    pub fn left_out(&self) -> String {
        let parts = [
            (self.bad_rows, "bad rows"),
            (self.below_threshold, "pairs below the threshold"),
            (self.lone_labels, "texts alone in their class"),
            (self.without_text, "rows without text"),
            (self.duplicates, "duplicates"),
            (self.leaks, "evaluation texts"),
            (self.equal_negatives, "negatives equal to a positive"),
        ];
        let said = parts.iter().filter(|(count, _)| *count > 0);
        said.map(|(count, what)| format!("{count} {what}")).collect::<Vec<_>>().join(", ")
    }
}

/// A data set of a stage.
#[derive(Debug)]
pub struct DataSet {
    /// Name of the task.
    pub name: String,
    /// The recipe's entry.
    pub source: DataSource,
    /// What the rows are.
    pub format: String,
    /// The examples.
    pub examples: Store,
    /// What became of the rows.
    pub counts: Counts,
}

/// Filters examples and puts them on disk.
struct Intake<'a> {
    opening: &'a Opening<'a>,
    writer: StoreWriter,
    seen: HashSet<u128>,
    counts: Counts,
    limit: usize,
}

impl Intake<'_> {
    fn full(&self) -> bool {
        self.writer.len() >= self.limit
    }

    fn take(&mut self, mut example: Example) -> Result<()> {
        if self.full() {
            return Ok(());
        }
        let keep: Vec<bool> = example
            .neg
            .iter()
            .map(|text| {
                *text != example.query && !example.pos.contains(text) && !text.trim().is_empty()
            })
            .collect();
        if keep.contains(&false) {
            self.counts.equal_negatives += keep.iter().filter(|keep| !**keep).count();
            let mut kept = keep.iter();
            example.neg.retain(|_| kept.next().copied().unwrap_or(true));
            let mut kept = keep.iter();
            example.neg_scores.retain(|_| kept.next().copied().unwrap_or(true));
        }
        if self.opening.deduplicate {
            let mut key = text_hash(&example.query);
            for positive in &example.pos {
                key = key.rotate_left(1) ^ text_hash(positive);
            }
            if !self.seen.insert(key) {
                self.counts.duplicates += 1;
                return Ok(());
            }
        }
        if let Some(leaks) = self.opening.leaks {
            for text in [&example.query].into_iter().chain(&example.pos) {
                if leaks.leaks(text) {
                    self.counts.leaks += 1;
                    return Ok(());
                }
            }
        }
        self.counts.without_negatives += usize::from(example.neg.is_empty());
        self.counts.most_negatives = self.counts.most_negatives.max(example.neg.len());
        self.writer.push(&example)
    }
}

impl DataSet {
    /// Reads a source.
    ///
    /// # Errors
    /// A file that cannot be read, rows that are no training data, or no example left.
    pub fn open(source: &DataSource, opening: &Opening<'_>) -> Result<Self> {
        let mut intake = Intake {
            opening,
            writer: StoreWriter::new()?,
            seen: HashSet::new(),
            counts: Counts::default(),
            limit: source.limit.unwrap_or(usize::MAX),
        };
        let format = match source.path.strip_prefix("made-up:") {
            Some(part) => made_up(part, opening, &mut intake)?,
            None => {
                let path = opening.folder.join(&source.path);
                if path.is_dir() {
                    beir(&path, source, &mut intake)?
                } else {
                    rows(&path, source, &mut intake)?
                }
            }
        };
        let Intake { writer, mut counts, .. } = intake;
        counts.examples = writer.len();
        if writer.is_empty() {
            let why = match counts.left_out() {
                why if why.is_empty() => "it holds none".to_string(),
                why => format!("of {} rows: {why}", counts.rows),
            };
            bail!("{}: no example is left to train on; {why}", source.path);
        }
        Ok(Self {
            name: source.label(),
            source: source.clone(),
            format,
            examples: writer.finish()?,
            counts,
        })
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.examples.len()
    }

    /// Whether there is no example; an opened set has some.
    pub fn is_empty(&self) -> bool {
        self.examples.is_empty()
    }

    /// An example by its number.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn get(&self, i: usize) -> Result<Example> {
        self.examples.get(i)
    }
}

fn made_up(part: &str, opening: &Opening<'_>, intake: &mut Intake<'_>) -> Result<String> {
    let corpus = Corpus::generate(opening.seed, CorpusSize::default());
    let examples = match part {
        "retrieval" => corpus.retrieval,
        "classes" => corpus.classes,
        "pairs" => corpus.pairs,
        _ => bail!("made-up:{part}: there are made-up:retrieval, made-up:classes, made-up:pairs"),
    };
    intake.counts.rows = examples.len();
    for example in examples {
        intake.take(example)?;
    }
    Ok("made-up texts".into())
}

fn beir(folder: &Path, source: &DataSource, intake: &mut Intake<'_>) -> Result<String> {
    let set = BeirFolder::read(folder, &source.split, None, intake.opening.terminal)?;
    for (query, relevant) in set.queries.iter().zip(&set.relevant) {
        let mut rows: Vec<usize> =
            relevant.iter().filter(|(_, grade)| **grade > 0.0).map(|(row, _)| *row).collect();
        rows.sort_unstable();
        intake.counts.rows += 1;
        if rows.is_empty() {
            continue;
        }
        let pos = rows.into_iter().map(|row| set.corpus.get(row)).collect::<Result<_>>()?;
        intake.take(Example { query: query.clone(), pos, ..Example::default() })?;
    }
    Ok(format!("BEIR folder, {}", source.split))
}

fn rows(path: &Path, source: &DataSource, intake: &mut Intake<'_>) -> Result<String> {
    let file = TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?;
    let label = file.label.clone();
    let counter = intake.opening.terminal.counter(&source.label());
    let mut format: Option<RowFormat> = None;
    let mut labelled = Labelled::new()?;
    let mut first_bad: Option<anyhow::Error> = None;
    let mut highest = f64::NEG_INFINITY;
    for object in file.objects()? {
        if intake.counts.rows.is_multiple_of(1024) && interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        intake.counts.rows += 1;
        counter.inc(1);
        let row = object.and_then(|object| {
            let place = || format!("{label}:{}", object.number);
            let known = match format {
                Some(known) => known,
                None if !source.fields.is_empty() => *format.insert(RowFormat::Texts),
                // What the file holds is not known before a row can be read, so this always stops.
                None => *format.insert(RowFormat::of(&object.fields).with_context(place)?),
            };
            let expected = || format!("{}: expected {}", place(), known.name());
            if source.fields.is_empty() {
                return known.read(&object.fields).with_context(expected);
            }
            joined_fields(&object.fields, &source.fields).with_context(place)
        });
        match row {
            Ok(DataRow::Example(example)) if example.query.is_empty() => {
                intake.counts.without_text += 1;
            }
            Ok(DataRow::Example(example)) => intake.take(example)?,
            Ok(DataRow::Scored(pair, score)) => {
                highest = highest.max(score);
                if score >= source.threshold {
                    for example in pair_examples(pair, source.both_directions) {
                        intake.take(example)?;
                    }
                } else {
                    intake.counts.below_threshold += 1;
                }
            }
            Ok(DataRow::Labelled(text, class)) => labelled.push(&text, class)?,
            Err(error)
                if intake.opening.on_bad_row == OnBadRow::Skip
                    && format.is_some()
                    && !error.is::<Unreadable>() =>
            {
                intake.counts.bad_rows += 1;
                first_bad.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
        if intake.full() {
            break;
        }
    }
    counter.finish_and_clear();
    if let Some(error) = first_bad {
        let count = intake.counts.bad_rows;
        intake
            .opening
            .terminal
            .note(format!("{label}: left out {count} bad rows, the first: {error:#}"));
    }
    let Some(format) = format else {
        bail!("{label}: holds no row");
    };
    if format == RowFormat::ScoredPairs && intake.writer.is_empty() && highest < source.threshold {
        bail!(
            "{label}: no pair scores {} or more, the highest is {highest}; lower the source's threshold",
            source.threshold
        );
    }
    if format == RowFormat::Texts && !intake.opening.texts_alone {
        bail!(
            "{label}: holds texts without positives, from which only objective = \"distillation\" learns"
        );
    }
    if format == RowFormat::LabelledTexts {
        let mut rng = ChaCha8Rng::seed_from_u64(intake.opening.seed);
        let negatives = intake.opening.negatives;
        let lone = labelled
            .examples(source.labels, negatives, &mut rng, |example| intake.take(example))
            .with_context(|| label.clone())?;
        intake.counts.lone_labels = lone;
    }
    Ok(format.name().into())
}

/// A row as one text of some of its fields; an empty one where it has none of them.
fn joined_fields(fields: &Fields, names: &[String]) -> Result<DataRow> {
    let mut texts = Vec::new();
    for name in names {
        match fields.get(name) {
            None | Some(serde_json::Value::Null) => {}
            Some(serde_json::Value::String(text)) => texts.push(text.trim()),
            Some(other) => bail!("the field {name:?} is {}, not a text", short(other)),
        }
    }
    texts.retain(|text| !text.is_empty());
    Ok(DataRow::Example(Example { query: texts.join(" "), ..Example::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(
        name: &str,
        text: &str,
        on_bad_row: OnBadRow,
        change: fn(&mut DataSource),
    ) -> Result<DataSet> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join(name), text)?;
        let mut source = DataSource::file(name);
        change(&mut source);
        let leaks = LeakFilter::new(["a leaked question".to_string()], None);
        let opening = Opening {
            folder: folder.path(),
            on_bad_row,
            leaks: Some(&leaks),
            deduplicate: true,
            texts_alone: false,
            negatives: 2,
            seed: 1,
            terminal: Terminal { json: false, quiet: true },
        };
        DataSet::open(&source, &opening)
    }

    const LINES: &str = concat!(
        "{\"query\":\"q1\",\"pos\":[\"p1\"],\"neg\":[\"n1\",\"p1\",\"n2\"],\"neg_scores\":[1,2,3]}\n",
        "\n",
        "{\"query\":\"q2\",\"pos\":[\"p2\"]}\n",
        "{\"query\":\"q1\",\"pos\":[\"p1\"],\"neg\":[\"other\"]}\n",
        "{\"query\":\"A leaked question\",\"pos\":[\"p3\"]}\n",
    );

    #[test]
    fn duplicates_leaks_and_equal_negatives_go() {
        let set = open("a.jsonl", LINES, OnBadRow::Stop, |_| {}).unwrap();
        let counts = Counts {
            rows: 4,
            duplicates: 1,
            leaks: 1,
            equal_negatives: 1,
            without_negatives: 1,
            most_negatives: 2,
            examples: 2,
            ..Counts::default()
        };
        assert_eq!(set.counts, counts);
        let first = set.get(0).unwrap();
        assert_eq!(
            (first.neg, first.neg_scores),
            (vec!["n1".to_string(), "n2".into()], vec![1.0, 3.0])
        );
    }

    #[test]
    fn a_broken_row_stops_or_is_skipped() {
        let broken = format!("{LINES}{{\"query\":\"q5\"\n{{\"query\":\"q6\",\"pos\":[\"p6\"]}}\n");
        let error = format!("{:#}", open("a.jsonl", &broken, OnBadRow::Stop, |_| {}).unwrap_err());
        assert!(error.contains("a.jsonl:6"), "{error}");
        let set = open("a.jsonl", &broken, OnBadRow::Skip, |_| {}).unwrap();
        assert_eq!((set.counts.bad_rows, set.counts.examples), (1, 3));
        // Nothing is known of a file whose first row cannot be told.
        assert!(open("a.jsonl", "{\"x\": 1}\n", OnBadRow::Skip, |_| {}).is_err());
    }

    #[test]
    fn pairs_and_classes_are_converted() {
        let pairs = "sentence1,sentence2,score\na,b,4.5\nc,d,3.9\ne,f,4\n";
        let set = open("p.csv", pairs, OnBadRow::Stop, |_| {}).unwrap();
        assert_eq!((set.len(), set.counts.below_threshold), (4, 1));
        assert_eq!(set.get(1).unwrap(), Example::new("b".into(), "a".into(), vec![]));
        let one_way = open("p.csv", pairs, OnBadRow::Stop, |source| source.both_directions = false);
        assert_eq!(one_way.unwrap().len(), 2);
        let error =
            open("p.csv", pairs, OnBadRow::Stop, |source| source.threshold = 5.0).unwrap_err();
        assert!(format!("{error:#}").contains("the highest is 4.5"), "{error:#}");

        let classes = "text\tlabel\na1\ta\na2\ta\nb1\tb\nb2\tb\nc1\tc\nc2\tc\n";
        let set = open("c.tsv", classes, OnBadRow::Stop, |_| {}).unwrap();
        assert_eq!(set.len(), 6);
        let example = set.get(0).unwrap();
        assert_eq!((example.pos[0].as_str(), example.neg.len()), ("a2", 2));
        let alone = "text\tlabel\na1\ta\nb1\tb\nc1\tc\n";
        let error = format!("{:#}", open("c.tsv", alone, OnBadRow::Stop, |_| {}).unwrap_err());
        assert!(error.contains("3 texts alone in their class"), "{error}");
    }
}

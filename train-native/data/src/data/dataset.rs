//! A data set of a stage, ready to be drawn from: read, converted, filtered, and put on disk.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rand::{Rng, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use xxhash_rust::xxh3::xxh3_64;

use super::convert::{Labelled, PairTexts, pair_examples};
use super::corpus::{Corpus, CorpusSize};
use super::format::{DataRow, RowFormat, has_label, joined, labelled};
use super::intake::{Counts, Intake, OnBadRow, Opening};
use super::known::{Firsts, KnownPositives, tell_each_other};
use super::store::Store;
use super::{BeirFolder, Example, Examples, mixed};
use crate::recipe::{DataSource, Labels};
use crate::text::{Columns, Object, TextFile, Unreadable, most_bytes};
use kiln_terminal::interrupt;
use kiln_terminal::terminal::counted;

/// A data set of a stage.
#[derive(Debug)]
pub struct DataSet {
    /// Name of the task.
    pub name: String,
    /// The recipe's entry.
    pub source: DataSource,
    /// What the rows are.
    pub format: String,
    /// What became of the rows.
    pub counts: Counts,
    store: Store,
    /// The examples that were drawn, in the file's order; all where absent.
    drawn: Option<Vec<u32>>,
    known: KnownPositives,
    /// Negatives that `known` takes out of the examples.
    answers: usize,
    pair_texts: Option<Store>,
    /// Whether its documents are names of labels.
    by_name: bool,
}

/// What is known of a source once its rows are taken.
struct Taken {
    format: String,
    /// The first row's, or the source's own.
    place: String,
    is_labelled: bool,
    by_name: bool,
    pair_texts: Option<Store>,
}

impl DataSet {
    /// Reads a source.
    ///
    /// # Errors
    /// A file that cannot be read, rows that are no training data, fields that say nothing to rows of their kind, or no
    /// example left.
    pub fn open(source: &DataSource, opening: &Opening<'_>) -> Result<Self> {
        Self::open_with_firsts(source, opening).map(|(set, _)| set)
    }

    /// Reads the sources of a stage, whose rows say together which texts answer which queries.
    ///
    /// # Errors
    /// As [`Self::open`], of the first such source.
    pub fn open_all(sources: &[DataSource], opening: &Opening<'_>) -> Result<Vec<Self>> {
        let (mut sets, firsts): (Vec<Self>, Vec<Firsts>) = sources
            .iter()
            .map(|source| Self::open_with_firsts(source, opening))
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .unzip();
        let mut known: Vec<_> = sets.iter_mut().map(|set| &mut set.known).zip(firsts).collect();
        let learned = tell_each_other(&mut known);
        drop(known);
        for (set, _) in sets.iter_mut().zip(learned).filter(|(_, learned)| *learned) {
            set.count_again()?;
        }
        Ok(sets)
    }

    fn open_with_firsts(source: &DataSource, opening: &Opening<'_>) -> Result<(Self, Firsts)> {
        let mut intake = Intake::new(source, opening)?;
        let path = opening.folder.join(&source.path);
        let made_up_part = source.path.strip_prefix("made-up:");
        let is_beir = made_up_part.is_none() && path.is_dir();
        let taken = match made_up_part {
            Some(part) => made_up(part, source, &mut intake)?,
            None if is_beir => beir(&path, source, &mut intake)?,
            None => rows(&path, source, &mut intake)?,
        };
        let Taken { format, place, is_labelled, by_name, pair_texts } = taken;
        if let idle @ [_, ..] = source.idle(pair_texts.is_some(), is_beir).as_slice() {
            bail!(
                "{}: {} says nothing to a source that holds {format}; leave it out",
                source.path,
                idle.join(" and ")
            );
        }
        // Where texts alone will do, a stage may share the source with one that asks for their labels.
        if let Some(labels) = source.labels
            && !is_labelled
            && !opening.texts_alone
        {
            bail!(
                "{place}: labels = {:?} goes with labelled texts, and this holds {format}; leave it out",
                labels.name()
            );
        }
        let Intake { writer, gathering, counts, .. } = intake;
        if writer.is_empty() {
            let why = match counts.left_out() {
                why if why.is_empty() => "it holds none".to_string(),
                why => format!("of {}: {why}", counted(counts.rows, "row", "rows")),
            };
            bail!("{}: no example is left to train on; {why}", source.path);
        }
        let drawn = subset(source, opening.seed, writer.len());
        let (known, firsts) = gathering.finish_with_firsts();
        let mut set = Self {
            name: source.label(),
            source: source.clone(),
            format,
            counts,
            store: writer.finish()?,
            drawn,
            known,
            answers: 0,
            pair_texts,
            by_name,
        };
        set.count_again()?;
        Ok((set, firsts))
    }

    /// Counts the examples again, where some of them or of their negatives are left out.
    fn count_again(&mut self) -> Result<()> {
        if self.drawn.is_none() && self.known.is_empty() {
            return Ok(());
        }
        let mut counts = self.counts.clone();
        counts.start_over();
        let mut answers = 0;
        for i in 0..self.len() {
            if i.is_multiple_of(1024) && interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            let mut example = self.store.get(self.place(i))?;
            answers += self.known.drop_positives(&mut example);
            counts.add(&example);
        }
        counts.equal_negatives = counts.equal_negatives - self.answers + answers;
        self.answers = answers;
        counts.not_drawn = self.store.len() - self.len();
        self.counts = counts;
        Ok(())
    }

    /// Number of examples.
    pub fn len(&self) -> usize {
        self.drawn.as_ref().map_or(self.store.len(), Vec::len)
    }

    /// Whether there is no example; an opened set has some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An example by its number.
    ///
    /// # Errors
    /// The temporary file cannot be read.
    pub fn get(&self, i: usize) -> Result<Example> {
        let mut example = self.store.get(self.place(i))?;
        self.known.drop_positives(&mut example);
        Ok(example)
    }

    /// The numbers of the examples in order, in blocks of some examples or, where they are long, of as
    /// many as keep to [`most_bytes`].
    pub fn blocks(&self, examples: usize) -> impl Iterator<Item = Range<usize>> {
        let mut start = 0;
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let fits = |i: &usize| {
                bytes += self.store.bytes(self.place(*i));
                bytes <= most_bytes() as u64
            };
            let count = (start..self.len()).take(examples).take_while(fits).count();
            let block = start..start + count.max(usize::from(start < self.len()));
            start = block.end;
            (!block.is_empty()).then_some(block)
        })
    }

    /// A number for its texts, the same for the same texts in the same order.
    pub fn sum(&self) -> u64 {
        mixed(&[self.store.sum(), self.pair_texts.as_ref().map_or(0, Store::sum)])
    }

    /// What the source's rows, drawn or not, and those of the sources opened with it say about which texts answer which
    /// queries.
    pub fn known(&self) -> &KnownPositives {
        &self.known
    }

    /// All texts of a set of scored pairs, those of pairs below the threshold included, each once:
    /// NV-Embed mines negatives from them (arXiv:2405.17428, section 4.2).
    pub fn pair_texts(&self) -> Option<&Store> {
        self.pair_texts.as_ref()
    }

    /// A text that stands in where a query has too few negatives: of a set of scored pairs any text,
    /// elsewhere another example's positive. None where the example that was drawn has no positive.
    ///
    /// # Errors
    /// The temporary files cannot be read.
    pub fn stand_in(&self, rng: &mut impl Rng) -> Result<Option<String>> {
        match &self.pair_texts {
            Some(texts) => texts.get(rng.random_range(0..texts.len())).map(Some),
            None => Ok(self.get(rng.random_range(0..self.len()))?.pos.into_iter().next()),
        }
    }

    fn place(&self, i: usize) -> usize {
        self.drawn.as_ref().map_or(i, |drawn| drawn[i] as usize)
    }
}

impl Examples for DataSet {
    fn count(&self) -> usize {
        self.len()
    }

    fn example(&self, i: usize) -> Result<Example> {
        self.get(i)
    }

    fn source(&self) -> &DataSource {
        &self.source
    }

    fn known(&self) -> &KnownPositives {
        self.known()
    }

    fn levels(&self) -> usize {
        self.counts.levels.len()
    }

    fn documents_repeat(&self) -> bool {
        self.by_name
    }

    fn stand_in(&self, rng: &mut ChaCha8Rng) -> Result<Option<String>> {
        self.stand_in(rng)
    }
}

/// The examples that a source's `limit` and `ratio` leave, in order; `None` where that is all.
/// Sources of other names or paths get other ones by the same seed.
fn subset(source: &DataSource, seed: u64, examples: usize) -> Option<Vec<u32>> {
    let share = source.ratio.map(|ratio| ((examples as f64 * ratio).round() as usize).max(1));
    let count = [source.limit, share].into_iter().flatten().min()?;
    if count >= examples {
        return None;
    }
    let name = xxh3_64(format!("{}\n{}", source.label(), source.path).as_bytes());
    let mut rng = ChaCha8Rng::seed_from_u64(mixed(&[seed, name]));
    let drawn = rand::seq::index::sample(&mut rng, examples, count);
    let mut drawn: Vec<u32> = drawn.into_iter().map(|place| place as u32).collect();
    drawn.sort_unstable();
    Some(drawn)
}

fn made_up(part: &str, source: &DataSource, intake: &mut Intake<'_>) -> Result<Taken> {
    let corpus = Corpus::generate(intake.opening.seed, CorpusSize::default());
    let is_labelled = part == "classes";
    let by_name = is_labelled && source.labels == Some(Labels::Names);
    let examples = match part {
        "retrieval" => corpus.retrieval,
        "classes" if by_name => corpus.class_names,
        "classes" => corpus.classes,
        "pairs" => corpus.pairs,
        _ => bail!("made-up:{part}: there are made-up:retrieval, made-up:classes, made-up:pairs"),
    };
    intake.counts.rows = examples.len();
    for example in examples {
        intake.take(example)?;
    }
    let (format, place) = ("made-up texts".into(), source.path.clone());
    Ok(Taken { format, place, is_labelled, by_name, pair_texts: None })
}

fn beir(folder: &Path, source: &DataSource, intake: &mut Intake<'_>) -> Result<Taken> {
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
    let format = format!("BEIR folder, {}", source.split);
    let place = source.path.clone();
    Ok(Taken { format, place, is_labelled: false, by_name: false, pair_texts: None })
}

/// What the rows of a file become, one after another.
struct Rows<'a, 'b> {
    source: &'a DataSource,
    intake: &'a mut Intake<'b>,
    format: Option<RowFormat>,
    /// Where the row stands that told the format.
    first: String,
    labelled: Labelled,
    pair_texts: PairTexts,
    /// Highest score of a pair.
    highest: f64,
}

impl Rows<'_, '_> {
    /// Reads a row.
    fn read(&mut self, object: &Object, place: &str) -> Result<DataRow> {
        let fields = &object.fields;
        if self.format.is_none() {
            self.first = place.into();
        }
        let known = match self.format {
            Some(known) => known,
            None if !self.source.fields.is_empty() => {
                // Distillation learns from texts, whatever is said about them.
                let texts = self.intake.opening.texts_alone || !has_label(fields);
                *self.format.insert(match texts {
                    true => RowFormat::Texts,
                    false => RowFormat::LabelledTexts,
                })
            }
            // What the file holds is not known before a row can be read, so this always stops.
            None => *self.format.insert(RowFormat::of(fields).with_context(|| place.to_string())?),
        };
        let row = match (known, &self.source.fields[..]) {
            (_, []) => known.read(fields),
            (RowFormat::LabelledTexts, names) => labelled(fields, names),
            (_, names) => joined(fields, names)
                .map(|query| DataRow::Example(Example { query, ..Example::default() })),
        };
        row.with_context(|| format!("{place}: expected {}", known.name()))
    }

    /// Takes a row. Leaks are looked for before anything is made of it.
    fn take(&mut self, row: DataRow) -> Result<()> {
        match row {
            DataRow::Example(example) if example.query.is_empty() => {
                self.intake.counts.without_text += 1;
            }
            DataRow::Example(example) => self.intake.take(example)?,
            DataRow::Scored { pair, score, instruction } => {
                if self.intake.drops(&pair) {
                    return Ok(());
                }
                if self.intake.opening.scored {
                    return self.intake.take_scored(pair, score as f32, instruction);
                }
                self.highest = self.highest.max(score);
                pair.iter().try_for_each(|text| self.pair_texts.push(text))?;
                if score < self.source.threshold {
                    self.intake.counts.below_threshold += 1;
                    return Ok(());
                }
                for example in pair_examples(pair, instruction, self.source.both_directions) {
                    self.intake.take_converted(example)?;
                }
            }
            DataRow::Labelled { text, .. } if text.is_empty() => {
                self.intake.counts.without_text += 1;
            }
            DataRow::Labelled { text, label, instruction } => {
                if !self.intake.drops([&text]) {
                    self.labelled.push(&text, label, instruction.as_deref())?;
                }
            }
        }
        Ok(())
    }
}

/// Takes the rows of a file; also the texts of scored pairs, if that is what they are.
fn rows(path: &Path, source: &DataSource, intake: &mut Intake<'_>) -> Result<Taken> {
    let file = TextFile::open(&path.to_string_lossy(), Columns::required(&[]))?;
    let label = file.label.clone();
    let opening = intake.opening;
    let counter = opening.terminal.counter(&source.label());
    let mut first_bad: Option<anyhow::Error> = None;
    let mut rows = Rows {
        source,
        intake,
        format: None,
        first: String::new(),
        labelled: Labelled::new()?,
        pair_texts: PairTexts::new()?,
        highest: f64::NEG_INFINITY,
    };
    for object in file.objects()? {
        if rows.intake.counts.rows.is_multiple_of(1024) && interrupt::asked() {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        rows.intake.counts.rows += 1;
        counter.inc(1);
        let row = object.and_then(|object| {
            let place = format!("{label}:{}", object.number);
            rows.read(&object, &place)
        });
        match row {
            Ok(row) => rows.take(row)?,
            Err(error)
                if opening.on_bad_row == OnBadRow::Skip
                    && rows.format.is_some()
                    && !error.is::<Unreadable>() =>
            {
                rows.intake.counts.bad_rows += 1;
                first_bad.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    counter.finish_and_clear();
    let Rows { intake, format, first, labelled, pair_texts, highest, .. } = rows;
    if let Some(error) = first_bad {
        let bad = counted(intake.counts.bad_rows, "bad row", "bad rows");
        opening.terminal.note(format!("{label}: left out {bad}, the first: {error:#}"));
    }
    let Some(format) = format else {
        bail!("{label}: holds no row");
    };
    let below = intake.counts.below_threshold > 0 && highest < source.threshold;
    if format == RowFormat::ScoredPairs && intake.writer.is_empty() && below {
        bail!(
            "{label}: no pair scores {} or more, the highest is {highest}; lower threshold (of the source in a recipe, \
             --threshold of `kiln mine`)",
            source.threshold
        );
    }
    if format == RowFormat::Texts && !opening.texts_alone {
        bail!(
            "{label}: holds texts without positives, from which only the objectives distillation and mntp learn"
        );
    }
    let is_labelled = format == RowFormat::LabelledTexts;
    let labels = source.labels.unwrap_or_default();
    let by_name = is_labelled && labelled.by_name(labels);
    if is_labelled && !labelled.is_empty() {
        let mut rng = ChaCha8Rng::seed_from_u64(opening.seed);
        if !by_name {
            intake.gathering.set_classes(labelled.labels_of());
        }
        let lone = labelled
            .examples(labels, opening.negatives, &mut rng, |example| intake.take_converted(example))
            .with_context(|| label.clone())?;
        intake.counts.lone_labels = lone;
    }
    let pair_texts = match format {
        RowFormat::ScoredPairs => Some(pair_texts.finish()?),
        _ => None,
    };
    Ok(Taken { format: format.name().into(), place: first, is_labelled, by_name, pair_texts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::LeakFilter;
    use crate::data::text_key;
    use crate::recipe::LeakRule;
    use kiln_terminal::terminal::Terminal;

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
        let leaks = ["a leaked question", "how to reset the password of an account"];
        let leaks = LeakFilter::new(leaks.map(String::from), true);
        let opening = Opening {
            folder: folder.path(),
            on_bad_row,
            leaks: Some(&leaks),
            leak: LeakRule::Exact,
            deduplicate: true,
            texts_alone: false,
            scored: false,
            binary: false,
            negatives: 2,
            seed: 1,
            terminal: Terminal { json: false, quiet: true },
        };
        DataSet::open(&source, &opening)
    }

    #[test]
    fn what_says_nothing_to_rows_of_a_kind_is_refused() {
        let pairs = "sentence1,sentence2,score\na,b,4.5\nc,d,5\n";
        let threshold = |source: &mut DataSource| source.threshold = 3.0;
        let one_way = |source: &mut DataSource| source.both_directions = false;
        let split = |source: &mut DataSource| source.split = "dev".into();
        assert_eq!(open("a.csv", pairs, OnBadRow::Stop, threshold).unwrap().len(), 4);
        assert_eq!(open("a.csv", pairs, OnBadRow::Stop, one_way).unwrap().len(), 2);
        let refused = |name: &str, text: &str, change: fn(&mut DataSource), field: &str| {
            let error = open(name, text, OnBadRow::Stop, change).unwrap_err().to_string();
            assert!(error.contains(&format!("{name}: {field} says nothing")), "{error}");
        };
        refused("a.csv", pairs, split, "split");
        refused("a.jsonl", LINES, threshold, "threshold");
        refused("a.jsonl", LINES, one_way, "both_directions");
        refused("a.jsonl", LINES, split, "split");
    }

    #[test]
    fn sources_opened_together_know_each_others_positives() {
        let folder = tempfile::tempdir().unwrap();
        for (name, row) in [
            ("a", r#"{"query":"q","pos":["a"],"neg":["n","b"]}"#),
            ("b", r#"{"query":"q","pos":["b"],"neg":["n"]}"#),
        ] {
            std::fs::write(folder.path().join(format!("{name}.jsonl")), row).unwrap();
        }
        let opening = Opening {
            folder: folder.path(),
            on_bad_row: OnBadRow::Stop,
            leaks: None,
            leak: LeakRule::None,
            deduplicate: true,
            texts_alone: false,
            scored: false,
            binary: false,
            negatives: 2,
            seed: 1,
            terminal: Terminal { json: false, quiet: true },
        };
        let sources = ["a.jsonl", "b.jsonl"].map(DataSource::file);
        let alone = DataSet::open(&sources[0], &opening).unwrap();
        assert_eq!(alone.get(0).unwrap().neg, ["n", "b"]);
        let sets = DataSet::open_all(&sources, &opening).unwrap();
        assert_eq!(sets[0].get(0).unwrap().neg, ["n"]);
        assert_eq!((sets[0].counts.equal_negatives, sets[0].counts.most_negatives), (1, 1));
        for set in &sets {
            assert!(
                ["a", "b"].iter().all(|text| set.known().contains(text_key("q"), text_key(text)))
            );
        }
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
            with_wide_scores: 1,
            most_negatives: 2,
            levels: vec![1, 0, 1],
            examples: 2,
            ..Counts::default()
        };
        assert_eq!(set.counts, counts);
        let first = set.get(0).unwrap();
        assert_eq!(
            (first.neg, first.levels, first.neg_scores),
            (vec!["n1".to_string(), "n2".into()], vec![1, 3], vec![1.0, 3.0])
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

    #[test]
    fn labels_are_for_labelled_texts() {
        let by_name: fn(&mut DataSource) = |source| source.labels = Some(Labels::Names);
        let by_example: fn(&mut DataSource) = |source| source.labels = Some(Labels::Examples);
        let classes = "text\tlabel\na1\ta\na2\ta\nb1\tb\nb2\tb\nc1\tc\nc2\tc\n";
        let named = open("c.tsv", classes, OnBadRow::Stop, by_name).unwrap();
        assert!(named.documents_repeat() && named.get(0).unwrap().pos == ["a"]);
        assert!(!open("c.tsv", classes, OnBadRow::Stop, |_| {}).unwrap().documents_repeat());
        let binary = "text\tlabel\na1\ta\na2\ta\nb1\tb\n";
        assert!(open("c.tsv", binary, OnBadRow::Stop, |_| {}).unwrap().documents_repeat());

        let made_up = open("made-up:classes", "", OnBadRow::Stop, |_| {}).unwrap();
        let named = open("made-up:classes", "", OnBadRow::Stop, by_name).unwrap();
        let (example, by_label) = (made_up.get(0).unwrap(), named.get(0).unwrap());
        assert_eq!(example.query, by_label.query);
        assert!(!by_label.pos[0].contains(' ') && example.pos[0].contains(' '), "{by_label:?}");
        assert!(named.documents_repeat() && !made_up.documents_repeat());

        assert_eq!(open("c.tsv", classes, OnBadRow::Stop, by_example).unwrap().len(), 6);
        let pairs = "sentence1,sentence2,score\na,b,4.5\n";
        for (name, text, place) in [
            ("made-up:pairs", "", "made-up:pairs: "),
            ("a.jsonl", LINES, "a.jsonl:1: "),
            ("p.csv", pairs, "p.csv:2: "),
        ] {
            for (labels, change) in [("names", by_name), ("examples", by_example)] {
                let error = open(name, text, OnBadRow::Stop, change).unwrap_err().to_string();
                let said =
                    error.contains(&format!("{place}labels = {labels:?} goes with labelled"));
                assert!(said && error.lines().count() == 1, "{error}");
            }
        }
    }

    #[test]
    fn other_texts_have_another_sum() {
        let sum = |name: &str, text: &str| open(name, text, OnBadRow::Stop, |_| {}).unwrap().sum();
        assert_eq!(sum("a.jsonl", LINES), sum("a.jsonl", LINES));
        assert_ne!(sum("a.jsonl", LINES), sum("a.jsonl", &LINES.replace("n2", "n3")));
        let pairs = "sentence1,sentence2,score\na,b,4.5\nc,d,1\n";
        assert_ne!(sum("p.csv", pairs), sum("p.csv", &pairs.replace('d', "e")));
    }

    /// So many examples with a negative in every other one.
    fn lines(count: usize) -> String {
        let line = |n: usize| match n % 2 {
            0 => format!("{{\"query\":\"q{n}\",\"pos\":[\"p{n}\"]}}\n"),
            _ => format!("{{\"query\":\"q{n}\",\"pos\":[\"p{n}\"],\"neg\":[\"n{n}\"]}}\n"),
        };
        (0..count).map(line).collect()
    }

    fn queries(set: &DataSet) -> Vec<String> {
        (0..set.len()).map(|i| set.get(i).unwrap().query).collect()
    }

    #[test]
    fn a_subset_is_drawn_by_seed_and_source_and_keeps_the_files_order() {
        let text = lines(100);
        let open = |name: &str, change: fn(&mut DataSource)| {
            super::tests::open(name, &text, OnBadRow::Stop, change).unwrap()
        };
        let limited = open("a.jsonl", |source| source.limit = Some(20));
        let drawn = queries(&limited);
        assert_eq!((drawn.len(), limited.counts.examples, limited.counts.not_drawn), (20, 20, 80));
        let number = |query: &String| query[1..].parse::<usize>().unwrap();
        assert!(drawn.is_sorted_by_key(number), "{drawn:?}");
        assert!(drawn.iter().any(|query| number(query) >= 50), "not the first rows: {drawn:?}");
        let without = drawn.iter().filter(|query| number(query) % 2 == 0).count();
        assert_eq!(limited.counts.without_negatives, without);
        assert_eq!(limited.counts.levels, [20 - without]);
        assert_eq!(queries(&open("a.jsonl", |source| source.limit = Some(20))), drawn);
        assert_ne!(queries(&open("b.jsonl", |source| source.limit = Some(20))), drawn);
        let named = |source: &mut DataSource| {
            source.limit = Some(20);
            source.name = Some("other".into());
        };
        assert_ne!(queries(&open("a.jsonl", named)), drawn);
        let blocks: Vec<_> = limited.blocks(8).collect();
        assert_eq!(blocks, [0..8, 8..16, 16..20]);

        assert_eq!(open("a.jsonl", |source| source.ratio = Some(0.25)).len(), 25);
        assert_eq!(open("a.jsonl", |source| source.ratio = Some(1e-9)).len(), 1);
        let both = |source: &mut DataSource| {
            source.ratio = Some(0.5);
            source.limit = Some(7);
        };
        assert_eq!(open("a.jsonl", both).len(), 7);
        let all = open("a.jsonl", |source| source.limit = Some(1000));
        assert_eq!((all.len(), all.counts.not_drawn), (100, 0));
    }

    #[test]
    fn negatives_and_rows_are_looked_at_before_they_become_examples() {
        let near = "the password of an account, how to reset";
        let text = format!(
            "{{\"query\":\"q1\",\"pos\":[\"p1\"],\"neg\":[\"n1\",\"A leaked question\",\"{near}\"]}}\n\
             {{\"query\":\"q2\",\"pos\":[\"{near}\"]}}\n"
        );
        let open_by = |rule: fn(&mut DataSource)| {
            let set = open("a.jsonl", &text, OnBadRow::Stop, rule).unwrap();
            (set.get(0).unwrap(), set.counts)
        };
        let (first, counts) = open_by(|_| {});
        assert_eq!((counts.leaking_negatives, counts.leaks, counts.examples), (1, 0, 2));
        assert_eq!((first.neg.len(), &first.levels[..]), (2, &[1, 3][..]));
        let (first, counts) = open_by(|source| source.leak = Some(LeakRule::Bm25(0.8)));
        assert_eq!((counts.leaking_negatives, counts.leaks, counts.examples), (2, 1, 1));
        assert_eq!(first.neg, ["n1"]);
        let (first, counts) = open_by(|source| source.leak = Some(LeakRule::None));
        assert_eq!((counts.leaking_negatives, counts.leaks, first.neg.len()), (0, 0, 3));

        // A labelled text that leaks is no example's positive or negative either.
        let classes =
            "text\tlabel\na1\ta\na leaked question\ta\na2\ta\nb1\tb\nb2\tb\nc1\tc\nc2\tc\n";
        let set = open("c.tsv", classes, OnBadRow::Stop, |_| {}).unwrap();
        assert_eq!((set.len(), set.counts.leaks), (6, 1));
        let texts: Vec<String> =
            (0..6).flat_map(|i| set.get(i).unwrap().texts().cloned().collect::<Vec<_>>()).collect();
        assert!(!texts.contains(&"a leaked question".to_string()), "{texts:?}");
        let pairs =
            "sentence1,sentence2,score\na,b,5\nc,a leaked question,5\nd,A leaked question,1\n";
        let set = open("p.csv", pairs, OnBadRow::Stop, |_| {}).unwrap();
        assert_eq!((set.len(), set.counts.leaks, set.counts.below_threshold), (2, 2, 0));
        assert_eq!(set.pair_texts().unwrap().len(), 2);
    }

    #[test]
    fn a_query_is_not_its_own_positive() {
        let text = "{\"query\":\"q\",\"pos\":[\" q \",\"p\"],\"pos_scores\":[1,0.5]}\n\
                    {\"query\":\"same\",\"pos\":[\"same\"],\"neg\":[\"n\"]}\n";
        let set = open("a.jsonl", text, OnBadRow::Stop, |_| {}).unwrap();
        let counts = &set.counts;
        assert_eq!((counts.examples, counts.own_positives, counts.without_positives), (1, 1, 1));
        let first = set.get(0).unwrap();
        assert_eq!((first.pos, first.pos_scores), (vec!["p".to_string()], vec![0.5]));
        assert!(counts.left_out().contains("its own positive"), "{}", counts.left_out());
    }

    #[test]
    fn a_positive_of_another_row_is_no_negative() {
        let text = "{\"query\":\"q\",\"pos\":[\"p1\"],\"neg\":[\"n1\",\"P2\",\"n3\"]}\n\
                    {\"query\":\"q\",\"pos\":[\"p2\"]}\n{\"query\":\"r\",\"pos\":[\"p3\"],\"neg\":[\"p2\"]}\n";
        let set = open("a.jsonl", text, OnBadRow::Stop, |_| {}).unwrap();
        let first = set.get(0).unwrap();
        assert_eq!(
            (&first.neg[..], &first.levels[..]),
            (&["n1".into(), "n3".into()][..], &[1, 3][..])
        );
        assert_eq!((set.counts.equal_negatives, set.counts.most_negatives), (1, 2));
        assert_eq!(set.get(2).unwrap().neg, ["p2"]);
        // Rows that are not drawn know it too.
        let few = open("a.jsonl", text, OnBadRow::Stop, |source| source.limit = Some(1)).unwrap();
        assert!(few.known().contains(text_key("q"), text_key("p2")));
    }

    #[test]
    fn pairs_offer_the_texts_of_all_pairs() {
        let pairs = "sentence1,sentence2,score\na,b,5\nc,d,1\na,e,2\n";
        let set = open("p.csv", pairs, OnBadRow::Stop, |_| {}).unwrap();
        let texts = set.pair_texts().unwrap();
        let all: Vec<String> = (0..texts.len()).map(|i| texts.get(i).unwrap()).collect();
        assert_eq!(all, ["a", "b", "c", "d", "e"]);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: std::collections::HashSet<String> =
            (0..100).map(|_| set.stand_in(&mut rng).unwrap().unwrap()).collect();
        assert_eq!(drawn.len(), 5);
    }

    #[test]
    fn labelled_texts_of_several_columns() {
        let rows = "title,abstract,label\nt1,a1,x\nt2,a2,x\nt3,a3,y\nt4,a4,y\nt5,a5,z\nt6,a6,z\n";
        let set = open("p2p.csv", rows, OnBadRow::Stop, |_| {}).unwrap();
        let first = set.get(0).unwrap();
        assert_eq!((first.query.as_str(), first.pos[0].as_str()), ("t1 a1", "t2 a2"));
        let fields = |source: &mut DataSource| source.fields = vec!["abstract".into()];
        let set = open("p2p.csv", rows, OnBadRow::Stop, fields).unwrap();
        assert_eq!(set.get(0).unwrap().query, "a1");
        assert!(set.format.contains("labelled"), "{}", set.format);
    }
}

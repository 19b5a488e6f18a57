//! Rows through filters: in blocks, several at a time, and to disk where a filter has to see all of them
//! first.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use kiln_data::data::{LeakFilter, OnBadRow, Store, StoreWriter, text_hash};
use kiln_data::text::{TextFile, most_bytes};
use kiln_data::vectors::{NewFile, write_atomically};
use kiln_terminal::interrupt;
use kiln_terminal::terminal::{ProgressBar, Terminal};
use rayon::prelude::*;
use serde::Serialize;

use super::config::{Filter, FilterKind, Filters, Of};
use super::judge::{Judge, Judged, Questions};
use super::page::page;
use super::ranks::{Ranks, Role};
use super::row::{RefineRow, Resting, hash_of, lines, open, same};
use super::sieve::{Context, Ruling, difference, label_words, sift};
use super::summary::{RefineSummary, SkippedFilter};
use super::tally::{Measure, Tally, short};
use crate::llm::{Spent, Stop};
use crate::prompts::Prompts;

/// Rows that are held in memory together.
const BLOCK: usize = 2048;
/// The files that a run writes into its folder, those of the command included.
pub const FILES: [&str; 6] = [
    "kept.jsonl",
    "dropped.jsonl",
    "summary.json",
    "report.html",
    "judgements.jsonl",
    "ranks.jsonl.zst",
];

/// A run.
pub struct Refine<'a> {
    /// Files of rows.
    pub data: &'a [PathBuf],
    /// The filters.
    pub filters: &'a Filters,
    /// Files of evaluation texts, for `leak` filters that name none.
    pub evaluation: &'a [String],
    /// A teacher's ranks; filters that need them are left out where there are none.
    pub ranks: Option<&'a Ranks>,
    /// Who judges; filters that need them are left out where there is none.
    pub judge: Option<&'a mut dyn Judge>,
    /// The judges' prompts.
    pub prompts: &'a Prompts,
    /// Rows that cannot be read.
    pub on_bad_row: OnBadRow,
    /// Folder of the results.
    pub output: &'a Path,
    /// Seed of the examples on the page.
    pub seed: u64,
    /// What the user sees.
    pub terminal: Terminal,
}

/// A filter and what it remembers.
struct Sieve<'a> {
    /// Its place among the filters that are used.
    place: usize,
    filter: &'a Filter,
    leaks: Option<LeakFilter>,
    seen: HashSet<u128>,
    often: HashMap<u128, u32>,
    /// Rows that `keep_share` keeps, once it has seen all.
    share: Option<HashSet<u64>>,
}

/// A row on its way, by its number and its file.
struct Travelling {
    number: u64,
    file: usize,
    row: RefineRow,
    /// Dropped, by this filter and why.
    dropped: Option<(usize, String)>,
}

/// A line of a file by its number, or why it cannot be read.
type Line = (usize, Result<String>);

/// What is on disk between two passes.
#[derive(Serialize, serde::Deserialize)]
struct Spooled {
    number: u64,
    file: usize,
    row: Resting,
}

struct Run<'a> {
    sieves: Vec<Sieve<'a>>,
    files: Vec<TextFile>,
    ranks: Option<&'a Ranks>,
    judge: Option<&'a mut dyn Judge>,
    questions: Option<Questions<'a>>,
    tally: Tally,
    spent: Spent,
    kept: NewFile,
    dropped: NewFile,
    terminal: Terminal,
}

/// Passes all rows through the filters and writes the results.
///
/// # Errors
/// Files that cannot be read or written, rows that are none, judges that cannot be asked;
/// [`kiln_embed::Error::Cancelled`] after Ctrl-C. Results are put in their places one after another, once all
/// rows have passed; after any other error those of an earlier run stay. Answers of judges are kept.
pub fn refine(job: Refine<'_>) -> Result<RefineSummary> {
    let (sieves, left_out) = sieves(&job)?;
    let questions = match &job.judge {
        Some(judge) => Some(Questions::new(judge.endpoints(), job.prompts)?),
        None => None,
    };
    for sieve in &sieves {
        if let (FilterKind::Refutation { panel, .. }, Some(questions)) =
            (&sieve.filter.kind, &questions)
        {
            let judges = questions.panel(panel).with_context(|| sieve.filter.name.clone())?;
            if judges.len() == 1 {
                let name = &sieve.filter.name;
                job.terminal.note(format!("{name}: one judge is asked, where a panel has several"));
            }
        }
    }
    let names = sieves.iter().map(|sieve| sieve.filter.name.clone());
    let tally = Tally::new(names, job.seed);
    let mut run = Run {
        tally,
        files: job.data.iter().map(|path| open(path)).collect::<Result<_>>()?,
        ranks: job.ranks,
        judge: job.judge,
        questions,
        spent: Spent::default(),
        kept: NewFile::create(&job.output.join("kept.jsonl"))?,
        dropped: NewFile::create(&job.output.join("dropped.jsonl"))?,
        terminal: job.terminal,
        sieves,
    };
    run.pass_all(job.on_bad_row)?;
    let Run { tally, spent, kept, dropped, judge, .. } = run;
    let summary = RefineSummary {
        rows: tally.rows,
        bad_rows: tally.bad_rows,
        first_bad_row: tally.first_bad.as_ref().map(|error| short(&format!("{error:#}"))),
        kept: tally.kept,
        dropped: tally.rows - tally.kept,
        filters: tally.filters.clone(),
        types: tally.types.clone(),
        left_out,
        teacher: job.ranks.map(|ranks| ranks.teacher.clone()),
        judges: judge.is_some().then_some(spent),
    };
    let page = page(&summary, &tally, job.filters, job.ranks)?;
    let mut json = serde_json::to_vec_pretty(&summary)?;
    json.push(b'\n');
    kept.finish()?;
    dropped.finish()?;
    write_atomically(&job.output.join("summary.json"), &json)?;
    write_atomically(&job.output.join("report.html"), page.to_html().as_bytes())?;
    summary.unread().into_iter().chain(summary.idle()).for_each(|line| job.terminal.note(line));
    Ok(summary)
}

/// The filters that can be used, and the others.
fn sieves<'a>(job: &Refine<'a>) -> Result<(Vec<Sieve<'a>>, Vec<SkippedFilter>)> {
    let (mut sieves, mut left_out) = (Vec::new(), Vec::new());
    for filter in &job.filters.filters {
        let mut leave = |why: &str| {
            left_out.push(SkippedFilter { name: filter.name.clone(), why: why.into() });
        };
        if filter.kind.asks_teacher() && job.ranks.is_none() {
            leave("it needs a teacher");
            continue;
        }
        if filter.kind.asks_judges() && job.judge.is_none() {
            leave("it needs a language model");
            continue;
        }
        let mut leaks = None;
        if let FilterKind::Leak { files, bm25, .. } = &filter.kind {
            let own = files.iter().map(|name| job.filters.folder.join(name).display().to_string());
            let own: Vec<String> = own.collect();
            let files = if own.is_empty() { job.evaluation } else { &own };
            if files.is_empty() {
                leave("it names no files of evaluation texts, and --leak names none");
                continue;
            }
            leaks = Some(LeakFilter::of_files(files, bm25.is_some())?);
        }
        if let Some(ranks) = job.ranks {
            let depth = filter.kind.depth();
            if depth > ranks.depth && ranks.depth < ranks.corpus {
                bail!(
                    "filter {:?} looks at ranks up to {depth}, and only the {} nearest texts are ranked; \
                     raise --top-k",
                    filter.name,
                    ranks.depth
                );
            }
        }
        sieves.push(Sieve {
            place: sieves.len(),
            filter,
            leaks,
            seen: HashSet::new(),
            often: HashMap::new(),
            share: None,
        });
    }
    Ok((sieves, left_out))
}

impl Sieve<'_> {
    /// Whether it has to see all rows before it judges one.
    fn gathers(&self) -> bool {
        self.filter.kind.asks_judges() || matches!(self.filter.kind, FilterKind::KeepShare { .. })
    }

    /// Whether it judges a row by what came before.
    fn remembers(&self) -> bool {
        match &self.filter.kind {
            FilterKind::Duplicates { .. } => true,
            FilterKind::DuplicateLabels { most, .. } => most.is_some(),
            _ => false,
        }
    }

    fn looks_at(&self, one: &Travelling) -> bool {
        one.dropped.is_none() && self.filter.looks_at(&one.row)
    }

    /// What it says about a row, as far as the row alone tells.
    fn ruling(&self, one: &mut Travelling, context: Context<'_>) -> Ruling {
        match &self.filter.kind {
            FilterKind::KeepShare { keep, by } => {
                let known = context.ranks.and_then(|ranks| difference(&one.row, ranks, *by));
                match (&self.share, known) {
                    (Some(share), Some(_)) if share.contains(&one.number) => Ruling::Passes,
                    (Some(_), Some(_)) => Ruling::Drops(format!(
                        "it is not among the {:.0} % of the smallest difference",
                        100.0 * keep
                    )),
                    _ => Ruling::Unjudged,
                }
            }
            FilterKind::UniqueId {} => {
                let row = &mut one.row;
                let texts = row.positives.iter().map(|one| text_hash(&one.text));
                let all = [u128::from(one.number), text_hash(&row.query)].into_iter().chain(texts);
                row.mark = Some(format!(" [{:012x}]", hash_of(all) & 0xffff_ffff_ffff));
                Ruling::Passes
            }
            kind => sift(kind, &mut one.row, context),
        }
    }

    /// What it says about a row by those before it.
    fn repeats(&mut self, row: &RefineRow) -> Option<String> {
        let task = same(row.instruction.as_deref().unwrap_or_default());
        match &self.filter.kind {
            FilterKind::Duplicates { of } => {
                let query = [task, same(&row.query)];
                let (key, what) = match of {
                    Of::Queries => (hash_of(query), ""),
                    Of::Pairs => {
                        let texts = row.positives.iter().map(|one| same(&one.text));
                        let mut positives: Vec<u128> = texts.collect();
                        positives.sort_unstable();
                        let all = query.into_iter().chain(positives);
                        (hash_of(all), " with the same positives")
                    }
                };
                let again = !self.seen.insert(key);
                again.then(|| format!("the query was there before{what}, for the same task"))
            }
            FilterKind::DuplicateLabels { most: Some(most), .. } => {
                let passages = row.positives.iter().chain(&row.negatives);
                let labels = passages.map(|one| text_hash(&label_words(&one.text)));
                let count =
                    self.often.entry(hash_of([task].into_iter().chain(labels))).or_default();
                *count += 1;
                (*count as usize > *most)
                    .then(|| format!("{most} rows have the same labels for the same task"))
            }
            _ => None,
        }
    }
}

impl Run<'_> {
    /// Where a filter has to see all rows first, those that are left go to disk.
    fn pass_all(&mut self, on_bad_row: OnBadRow) -> Result<()> {
        let gathers = self.sieves.iter().enumerate().filter(|(_, sieve)| sieve.gathers());
        let mut ends: Vec<usize> = gathers.map(|(place, _)| place).collect();
        ends.push(self.sieves.len());
        let mut start = 0;
        let mut before: Option<Store> = None;
        for (i, &end) in ends.iter().enumerate() {
            let mut spool = match i + 1 < ends.len() {
                true => Some(StoreWriter::new()?),
                false => None,
            };
            match &before {
                None => self.read(on_bad_row, start..end, spool.as_mut())?,
                Some(store) => self.read_again(store, start..end, spool.as_mut())?,
            }
            before = spool.map(StoreWriter::finish).transpose()?;
            if let Some(store) = &before {
                self.gather(end, store)?;
            }
            start = end;
        }
        Ok(())
    }

    /// Rows of the files through some filters.
    fn read(
        &mut self,
        on_bad_row: OnBadRow,
        filters: Range<usize>,
        mut spool: Option<&mut StoreWriter>,
    ) -> Result<()> {
        let bar = self.terminal.counter("rows");
        for (file, text_file) in self.files.clone().iter().enumerate() {
            let (mut block, mut bytes) = (Vec::new(), 0);
            let mut pass = |run: &mut Self, block: Vec<Line>| -> Result<()> {
                bar.inc(block.len() as u64);
                let rows = run.rows(file, block, on_bad_row)?;
                run.pass(rows, filters.clone(), spool.as_deref_mut())
            };
            lines(text_file, &mut |line, text| {
                bytes += text.as_ref().map_or(0, String::len);
                block.push((line, text));
                if block.len() == BLOCK || bytes > most_bytes() {
                    bytes = 0;
                    pass(self, std::mem::take(&mut block))?;
                }
                Ok(())
            })?;
            pass(self, block)?;
        }
        bar.finish_and_clear();
        match self.tally.first_bad.take_if(|_| self.tally.rows == 0) {
            Some(error) => Err(error.context("no row can be read, the first")),
            None if self.tally.rows == 0 => {
                let label = self.files.first().map_or("", |file| file.label.as_str());
                bail!("{label}: holds no row; name a file with rows in it")
            }
            None => Ok(()),
        }
    }

    /// The rows of some lines of a file; those that are none are counted, or the first of them is an error.
    fn rows(
        &mut self,
        file: usize,
        lines: Vec<Line>,
        on_bad_row: OnBadRow,
    ) -> Result<Vec<Travelling>> {
        let label = &self.files[file].label;
        let read = |(line, text): Line| {
            RefineRow::of_line(text?, label).with_context(|| format!("{label}:{line}"))
        };
        let read: Vec<Result<RefineRow>> = lines.into_par_iter().map(read).collect();
        let mut rows = Vec::with_capacity(read.len());
        for row in read {
            match row {
                Ok(row) => {
                    let number = self.tally.rows as u64;
                    self.tally.came(&row);
                    rows.push(Travelling { number, file, row, dropped: None });
                }
                Err(error) if on_bad_row == OnBadRow::Skip => self.tally.bad(error),
                Err(error) => return Err(error),
            }
        }
        Ok(rows)
    }

    /// Rows that were put to rest, through some filters.
    fn read_again(
        &mut self,
        store: &Store,
        filters: Range<usize>,
        mut spool: Option<&mut StoreWriter>,
    ) -> Result<()> {
        let bar = self.terminal.progress(store.len() as u64, "rows");
        for block in store.blocks(BLOCK) {
            let count = block.len() as u64;
            let rows = block.map(|i| wake(store, i)).collect::<Result<_>>()?;
            self.pass(rows, filters.clone(), spool.as_deref_mut())?;
            bar.inc(count);
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// A block through some filters, and then to the next pass or to the results.
    fn pass(
        &mut self,
        mut rows: Vec<Travelling>,
        filters: Range<usize>,
        spool: Option<&mut StoreWriter>,
    ) -> Result<()> {
        stop_if_asked()?;
        for place in filters {
            self.filter(place, &mut rows)?;
        }
        let finished: Vec<Option<String>> = rows
            .par_iter()
            .map(|one| match (&one.dropped, &spool) {
                (Some((place, why)), _) => {
                    one.row.dropped(&self.sieves[*place].filter.name, why).map(Some)
                }
                (None, None) => one.row.kept().map(Some),
                (None, Some(_)) => Ok(None),
            })
            .collect::<Result<_>>()?;
        let mut spool = spool;
        for (one, line) in rows.into_iter().zip(finished) {
            let stays = one.dropped.is_none();
            if let Some(line) = line {
                self.measure(&one.row, stays)?;
                let file = if stays { &mut self.kept } else { &mut self.dropped };
                writeln!(file, "{line}")
                    .context("cannot write the rows; free space in the output's folder")?;
            }
            match (&one.dropped, spool.as_deref_mut()) {
                (Some((place, why)), _) => self.tally.drop(*place, &one.row, why),
                (None, None) => self.tally.keep(&one.row),
                (None, Some(spool)) => {
                    let label = &self.files[one.file].label;
                    let (number, file) = (one.number, one.file);
                    spool.push(&Spooled { number, file, row: one.row.rest(label) })?;
                }
            }
        }
        Ok(())
    }

    /// A block through a filter.
    fn filter(&mut self, place: usize, rows: &mut [Travelling]) -> Result<()> {
        let sieve = &self.sieves[place];
        let context =
            Context { ranks: self.ranks, leaks: sieve.leaks.as_ref(), ..Context::default() };
        let rule = |one: &mut Travelling, judged: Option<&Judged>| -> Outcome {
            if !sieve.looks_at(one) {
                return Outcome::default();
            }
            let texts = |row: &RefineRow| [row.positives.len(), row.negatives.len()];
            let before = texts(&one.row);
            let ruling = sieve.ruling(one, Context { judged, ..context });
            let after = texts(&one.row);
            let mut outcome = Outcome {
                looked: true,
                positives: before[0] - after[0],
                negatives: before[1] - after[1],
                unjudged: ruling == Ruling::Unjudged,
            };
            if let Ruling::Drops(why) = ruling {
                one.dropped = Some((sieve.place, why));
                (outcome.positives, outcome.negatives) = (0, 0);
            }
            outcome
        };
        let outcomes: Vec<Outcome> = match (&self.judge, &self.questions) {
            (Some(judge), Some(questions)) if sieve.filter.kind.asks_judges() => {
                let one = |one: &mut Travelling| {
                    let judged = match sieve.looks_at(one) {
                        true => Some(questions.judged(&sieve.filter.kind, &one.row, &**judge)?),
                        false => None,
                    };
                    Ok(rule(one, judged.as_ref()))
                };
                rows.iter_mut().map(one).collect::<Result<_>>()?
            }
            _ => rows.par_iter_mut().map(|one| rule(one, None)).collect(),
        };
        let counts = &mut self.tally.filters[place];
        for outcome in outcomes {
            counts.rows += usize::from(outcome.looked);
            counts.unjudged += usize::from(outcome.unjudged);
            counts.positives += outcome.positives;
            counts.negatives += outcome.negatives;
        }
        let sieve = &mut self.sieves[place];
        if matches!(sieve.filter.kind, FilterKind::UniqueId {}) {
            counts.marked += rows.iter().filter(|one| sieve.looks_at(one)).count();
        }
        if sieve.remembers() {
            for one in rows.iter_mut() {
                if sieve.looks_at(one)
                    && let Some(why) = sieve.repeats(&one.row)
                {
                    one.dropped = Some((place, why));
                }
            }
        }
        Ok(())
    }

    /// Lets a filter see all rows that came to it.
    fn gather(&mut self, place: usize, store: &Store) -> Result<()> {
        let sieve = &self.sieves[place];
        let kind = &sieve.filter.kind;
        if let (FilterKind::KeepShare { by, keep }, Some(ranks)) = (kind, self.ranks) {
            let mut all: Vec<(f64, u64)> = Vec::new();
            for i in 0..store.len() {
                let one = wake(store, i)?;
                if sieve.looks_at(&one)
                    && let Some(number) = difference(&one.row, ranks, *by)
                {
                    all.push((number, one.number));
                }
            }
            // Of equal ones the first; the share is of all that have a number, those at any distance among them.
            all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            all.truncate((all.len() as f64 * keep).round() as usize);
            let share = all.into_iter().map(|(_, number)| number).collect();
            self.sieves[place].share = Some(share);
            return Ok(());
        }
        let (Some(judge), Some(questions)) = (&mut self.judge, &self.questions) else {
            return Ok(());
        };
        // A budget that is used up is not asked for more.
        if self.spent.stopped.is_some() {
            return Ok(());
        }
        let mut keys = HashSet::new();
        let bar: ProgressBar = self.terminal.progress(store.len() as u64, "questions");
        for i in 0..store.len() {
            if i.is_multiple_of(BLOCK) {
                stop_if_asked()?;
            }
            let one = wake(store, i)?;
            if sieve.looks_at(&one) {
                keys.extend(questions.keys(kind, &one.row)?);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let total = keys.len() as u64;
        let mut left = keys;
        let mut all = (0..store.len()).flat_map(|i| {
            let of_row = || {
                let one = wake(store, i)?;
                match sieve.looks_at(&one) {
                    true => questions.questions(kind, &one.row),
                    false => Ok(Vec::new()),
                }
            };
            match of_row() {
                Ok(some) => some.into_iter().map(Ok).collect::<Vec<_>>(),
                Err(error) => vec![Err(error)],
            }
        });
        let mut distinct = std::iter::from_fn(|| {
            all.find(|question| match question {
                Ok(question) => left.remove(&question.key),
                Err(_) => true,
            })
        });
        let spent = judge.ask(total, &mut distinct, &mut |question, answer| {
            Ok(Questions::again(question, answer))
        })?;
        let interrupted = spent.stopped == Some(Stop::Interrupted);
        self.spent.add(spent);
        if interrupted {
            return Err(kiln_embed::Error::Cancelled.into());
        }
        Ok(())
    }

    /// Keeps numbers of a row that stays or went.
    fn measure(&mut self, row: &RefineRow, stays: bool) -> Result<()> {
        let sides = [
            (
                Role::Positive,
                &row.positives,
                Measure::PositiveScore,
                Measure::PositiveRank,
                Measure::PositiveRelatedness,
            ),
            (
                Role::Negative,
                &row.negatives,
                Measure::NegativeScore,
                Measure::NegativeRank,
                Measure::NegativeRelatedness,
            ),
        ];
        let judged = match (&self.judge, &self.questions) {
            (Some(judge), Some(questions)) => {
                let asks = |sieve: &&Sieve<'_>| {
                    matches!(
                        sieve.filter.kind,
                        FilterKind::Answerable { .. } | FilterKind::Relatedness { .. }
                    ) && sieve.filter.looks_at(row)
                };
                match self.sieves.iter().find(asks) {
                    Some(sieve) => Some(questions.judged(&sieve.filter.kind, row, &**judge)?),
                    None => None,
                }
            }
            _ => None,
        };
        for (role, passages, score, rank, related) in sides {
            for one in passages {
                let found = self.ranks.and_then(|ranks| ranks.of(role, &row.query, &one.text));
                if let Some(found) = found {
                    self.tally.measure(score, stays, found.score.into());
                    self.tally.measure(rank, stays, found.rank as f64);
                }
                if let Some(said) = judged.as_ref().and_then(|judged| judged.of(&one.text)) {
                    self.tally.measure(related, stays, said.relatedness);
                }
            }
        }
        Ok(())
    }
}

/// What a filter did to a row.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    looked: bool,
    unjudged: bool,
    positives: usize,
    negatives: usize,
}

fn wake(store: &Store, i: usize) -> Result<Travelling> {
    let Spooled { number, file, row } = store.get(i)?;
    Ok(Travelling { number, file, row: RefineRow::wake(row)?, dropped: None })
}

fn stop_if_asked() -> Result<()> {
    match interrupt::asked() {
        true => Err(kiln_embed::Error::Cancelled.into()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Question;
    use crate::refine::judge::tests::Fake;
    use crate::refine::ranks::Rank;
    use crate::refine::tally::TypeCounts;
    use serde_json::Value;

    const TERMINAL: Terminal = Terminal { json: false, quiet: true };

    struct Try {
        folder: tempfile::TempDir,
        ranks: Option<Ranks>,
    }

    impl Try {
        fn new(rows: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
            Self { folder, ranks: None }
        }

        fn run(&self, filters: &str, judge: Option<&mut Fake>) -> Result<RefineSummary> {
            let filters = Filters::parse(filters, self.folder.path())?;
            refine(Refine {
                data: &[self.folder.path().join("rows.jsonl")],
                filters: &filters,
                evaluation: &[],
                ranks: self.ranks.as_ref(),
                judge: judge.map(|fake| fake as &mut dyn Judge),
                prompts: &Prompts::open(None)?,
                on_bad_row: OnBadRow::Skip,
                output: self.folder.path(),
                seed: 1,
                terminal: TERMINAL,
            })
        }

        fn lines(&self, name: &str) -> Vec<Value> {
            let text = std::fs::read_to_string(self.folder.path().join(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        }

        fn queries(&self, name: &str) -> Vec<String> {
            let query = |line: Value| line["query"].as_str().unwrap().to_string();
            self.lines(name).into_iter().map(query).collect()
        }
    }

    fn rows(count: usize) -> String {
        let row = |i| {
            format!(
                "{{\"query\":\"q{i}\",\"pos\":[\"p{i}\"],\"neg\":[\"n{i}\"],\"type\":\"t{}\"}}\n",
                i % 2
            )
        };
        (0..count).map(row).collect()
    }

    #[test]
    fn kept_and_dropped_rows_are_all_rows() {
        let text = format!("{}not a row\n{}", rows(3), rows(2));
        let run = Try::new(&text);
        let summary = run
            .run("[[filter]]\nkind = 'duplicates'\n[[filter]]\nkind = 'length'\ntypes = ['t1']\nquery = { max = 0 }", None)
            .unwrap();
        assert_eq!((summary.rows, summary.kept, summary.dropped, summary.bad_rows), (5, 2, 3, 1));
        let counts = |i: usize| (summary.filters[i].rows, summary.filters[i].dropped);
        assert_eq!((counts(0), counts(1)), ((5, 2), (1, 1)));
        assert_eq!(summary.types["t0"], TypeCounts { rows: 3, kept: 2 });
        let kept = std::fs::read_to_string(run.folder.path().join("kept.jsonl")).unwrap();
        assert!(kept.lines().all(|line| text.lines().any(|row| row == line)), "{kept}");
        let dropped = run.lines("dropped.jsonl");
        assert_eq!(dropped.len(), 3);
        assert_eq!(dropped[0]["dropped"]["filter"], "length");
        assert_eq!(dropped[1]["dropped"]["filter"], "duplicates");
        let page = std::fs::read_to_string(run.folder.path().join("report.html")).unwrap();
        assert!(page.contains("duplicates: the query was there before"), "{page}");
        let first = summary.unread().unwrap();
        assert!(first.contains("1 bad row,") && first.contains("rows.jsonl:4"), "{first}");
    }

    #[test]
    fn the_first_bad_row_is_the_first_of_the_file() {
        let bad = "{\"text\":\"a\",\"label\":\"b\"}\nnothing\n";
        let summary = Try::new(&format!("{}{bad}{}", rows(2), rows(1)))
            .run("[[filter]]\nkind = 'equal'\nsplits = ['dev']\n[[filter]]\nkind = 'equal'", None)
            .unwrap();
        assert_eq!((summary.rows, summary.bad_rows), (3, 2));
        assert!(summary.first_bad_row.as_ref().unwrap().contains("rows.jsonl:3"), "{summary:?}");
        let idle = summary.idle().unwrap();
        assert!(idle.starts_with("no row came to equal:"), "{idle}");
    }

    #[test]
    fn rows_are_the_same_where_task_query_and_positives_are() {
        let row = |task: &str, query: &str, pos: &str| {
            format!("{{\"instruction\":\"{task}\",\"query\":\"{query}\",\"pos\":{pos}}}\n")
        };
        let text = [
            row("find", "use C++", "[\"a\",\"b\"]"),
            row("Find.", "Use  C++?", "[\"B\",\"a.\"]"),
            row("other", "use C++", "[\"a\",\"b\"]"),
            row("find", "use C#", "[\"a\",\"b\"]"),
            row("find", "use C++", "[\"c\"]"),
        ];
        let run = Try::new(&text.concat());
        assert_eq!(run.run("[[filter]]\nkind = 'duplicates'", None).unwrap().kept, 4);
        let queries = "[[filter]]\nkind = 'duplicates'\nof = 'queries'";
        assert_eq!(run.run(queries, None).unwrap().kept, 3);
    }

    #[test]
    fn a_share_of_the_smallest_differences_stays() {
        let mut run = Try::new(&rows(10));
        let mut ranks = Ranks::new("t".into(), 100, 100);
        for i in 0..8 {
            let mut insert = |role, text: String, rank| {
                let found = Rank { score: 1.0 / rank as f32, rank };
                ranks.insert(role, &format!("q{i}"), &text, found);
            };
            // The first two lie beyond the last rank, wherever that is: not side by side.
            insert(Role::Positive, format!("p{i}"), if i < 2 { 101 } else { 1 });
            insert(Role::Negative, format!("n{i}"), if i < 2 { 101 } else { 20 - i });
        }
        run.ranks = Some(ranks);
        let filters = "[[filter]]\nkind = 'equal'\n[[filter]]\nkind = 'keep_share'\nkeep = 0.25\n[[filter]]\nkind = 'unique_id'";
        let summary = run.run(filters, None).unwrap();
        // The two nearest of eight, and two that the teacher does not know.
        assert_eq!((summary.kept, summary.filters[1].unjudged), (4, 2));
        let kept = run.lines("kept.jsonl");
        let number =
            |line: &Value| line["query"].as_str().unwrap().split(' ').next().unwrap().to_string();
        assert_eq!(kept.iter().map(number).collect::<Vec<_>>(), ["q6", "q7", "q8", "q9"]);
        let mark = kept[0]["query"].as_str().unwrap().strip_prefix("q6").unwrap();
        assert_eq!(kept[0]["pos"][0], format!("p6{mark}"));
        assert_eq!(kept[0]["neg"][0], format!("n6{mark}"));
        assert_ne!(kept[1]["neg"][0], format!("n7{mark}"));
        assert_eq!(summary.filters[2].marked, 4);
    }

    /// Odd passages answer; how related they are is their number.
    fn says(question: &Question) -> String {
        let passage = question.prompt.split("--- passage ").nth(1).unwrap().lines().nth(1).unwrap();
        let number: u32 = passage[1..].parse().unwrap();
        let answers = passage.starts_with('p') && number != 2;
        format!("{{\"answerable\": {answers}, \"relatedness\": {}}}", number + 1)
    }

    #[test]
    fn judges_are_asked_once_whatever_the_thresholds() {
        let run = Try::new(&format!("{}{}", rows(4), rows(4)));
        let mut fake = Fake::new(&["m"], says);
        let filters = |least: u32| {
            format!(
                "[[filter]]\nkind = 'length'\nquery = {{ max = 1 }}\n[[filter]]\nkind = 'answerable'\n\
                 [[filter]]\nkind = 'relatedness'\nmin_positive = {least}\nmax_negative = 2"
            )
        };
        let summary = run.run(&filters(2), Some(&mut fake)).unwrap();
        // Four positives and four negatives, each once though their rows come twice.
        assert_eq!(fake.asked.len(), 8);
        assert_eq!(run.queries("kept.jsonl"), ["q1", "q3", "q1", "q3"]);
        assert_eq!(run.lines("kept.jsonl")[1]["neg"], serde_json::json!([]));
        assert_eq!((summary.filters[1].dropped, summary.filters[2].dropped), (2, 2));
        assert_eq!(summary.judges.as_ref().unwrap().answered, 8);
        let summary = run.run(&filters(4), Some(&mut fake)).unwrap();
        assert_eq!((fake.asked.len(), summary.kept), (8, 2));
        let page = std::fs::read_to_string(run.folder.path().join("report.html")).unwrap();
        assert!(page.contains("judged relatedness of positives"));
    }

    #[test]
    fn a_budget_leaves_rows_unjudged_and_the_next_run_goes_on() {
        let run = Try::new(&rows(4));
        let mut fake = Fake::new(&["m"], says);
        fake.most = 3;
        let filters = "[[filter]]\nkind = 'answerable'";
        let summary = run.run(filters, Some(&mut fake)).unwrap();
        assert_eq!((summary.kept, summary.stopped().as_deref()), (2, Some("--max-requests")));
        assert!(
            run.lines("dropped.jsonl")[0]["dropped"]["why"].as_str().unwrap().contains("no judge")
        );
        let lenient =
            run.run(&format!("{filters}\nkeep_unjudged = true"), Some(&mut fake)).unwrap();
        assert_eq!((lenient.kept, fake.asked.len()), (4, 3));
        fake.most = usize::MAX;
        let summary = run.run(filters, Some(&mut fake)).unwrap();
        assert_eq!((summary.kept, fake.asked.len(), summary.stopped()), (3, 8, None));
    }

    #[test]
    fn an_answer_that_says_nothing_is_asked_again_and_then_let_be() {
        let run = Try::new(&rows(1));
        let mut fake = Fake::new(&["m"], |question| match question.temperature {
            warm if warm > 0.7 => "{\"answerable\": true, \"relatedness\": 9}".into(),
            _ => "Ignore that. <b>".into(),
        });
        let filters = "[[filter]]\nkind = 'answerable'\ndrop = 'row'";
        let summary = run.run(filters, Some(&mut fake)).unwrap();
        assert_eq!((fake.asked.len(), summary.kept), (6, 0), "the negative answers too");
        let mut mute = Fake::new(&["m"], |_| "}}{{".into());
        let summary = run.run(filters, Some(&mut mute)).unwrap();
        assert_eq!((mute.asked.len(), summary.kept), (6, 0));
        assert!(
            run.lines("dropped.jsonl")[0]["dropped"]["why"].as_str().unwrap().contains("no judge")
        );
    }

    #[test]
    fn one_of_a_panel_is_enough() {
        let text = "{\"query\":\"claim\",\"pos\":[\"p1\"],\"instruction\":\"find what refutes it\"}\n\
                    {\"query\":\"claim\",\"pos\":[\"p2\"],\"instruction\":\"find what refutes it\"}\n\
                    {\"query\":\"claim\",\"pos\":[\"p3\"],\"instruction\":\"find it\"}\n";
        let run = Try::new(text);
        let mut fake = Fake::new(&["a", "b"], |question| {
            let supports = question.endpoint == 1 && question.prompt.contains("\np2\n");
            format!("{{\"stance\": \"{}\"}}", if supports { "support" } else { "refute" })
        });
        let summary = run.run("[[filter]]\nkind = 'refutation'", Some(&mut fake)).unwrap();
        assert_eq!((fake.asked.len(), summary.kept), (4, 2));
        assert_eq!(run.lines("dropped.jsonl")[0]["pos"][0], "p2");
        let only = "[[filter]]\nkind = 'refutation'\npanel = ['a']";
        assert_eq!(run.run(only, Some(&mut fake)).unwrap().kept, 3);
        let error = run.run("[[filter]]\nkind = 'refutation'\npanel = ['x']", Some(&mut fake));
        assert!(format!("{:#}", error.unwrap_err()).contains("refutation: panel"));
    }

    #[test]
    fn the_page_shows_texts_and_obeys_none() {
        let text = "{\"query\":\"<script>alert(1)</script>\",\"pos\":[\"</dd><img src=x onerror=a()>\"],\"type\":\"<b>\",\"source\":\"a/<i>\"}\n\
                    {\"query\":\"<script>\",\"pos\":[\"<SCRIPT>\"]}\n";
        let run = Try::new(text);
        run.run("description = '<u>'\n[[filter]]\nkind = 'equal'\nname = '<s>'", None).unwrap();
        let page = std::fs::read_to_string(run.folder.path().join("report.html")).unwrap();
        for tag in ["<script", "<img", "<b>", "<i>", "<u>", "<s>", "<SCRIPT"] {
            assert!(!page.contains(tag), "{tag}");
        }
        assert!(page.contains("&lt;script&gt;alert(1)"));
    }

    #[test]
    fn what_is_missing_leaves_filters_out_or_is_an_error() {
        let run = Try::new(&rows(2));
        let filters = "[[filter]]\nkind = 'rank_order'\n[[filter]]\nkind = 'answerable'\n[[filter]]\nkind = 'leak'";
        let summary = run.run(filters, None).unwrap();
        assert_eq!((summary.left_out.len(), summary.filters.len(), summary.kept), (3, 0, 2));
        let mut run = Try::new(&rows(2));
        run.ranks = Some(Ranks::new("t".into(), 10, 100));
        let error = run.run("[[filter]]\nkind = 'positive_rank'\nmax = 50", None).unwrap_err();
        assert!(error.to_string().contains("--top-k"), "{error}");
        for text in ["{\"text\":\"a\",\"label\":\"b\"}\n", "nothing\n"] {
            let error = format!(
                "{:#}",
                Try::new(text).run("[[filter]]\nkind = 'equal'", None).unwrap_err()
            );
            assert!(error.contains("rows.jsonl:1"), "{error}");
        }
        assert!(!run.folder.path().join("kept.jsonl").exists());
    }
}

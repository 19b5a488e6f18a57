//! Which filters there are: the file of filters, and those that come with the program.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;
use toml::{Spanned, Table, Value};

use super::row::RefineRow;
use crate::documents::Split;
use crate::language::Language;

/// A list of filters, in the order in which rows pass them.
#[derive(Debug, Clone, PartialEq)]
pub struct Filters {
    /// What it is for.
    pub description: String,
    /// The filters.
    pub filters: Vec<Filter>,
    /// The file as it stands.
    pub text: String,
    /// Folder of relative paths.
    pub folder: PathBuf,
}

/// A filter, and the rows that it looks at.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// Its name in counts: the file's, or its kind.
    pub name: String,
    /// Rows of these types; all where empty.
    pub types: Vec<String>,
    /// Rows of these sources; all where empty.
    pub sources: Vec<String>,
    /// Rows of these splits; all where empty. A row that names none is for training.
    pub splits: Vec<Split>,
    /// What it does.
    pub kind: FilterKind,
}

/// What goes where a negative does not pass. A positive that does not pass goes, and with the last one
/// the row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNegative {
    /// The row.
    Row,
    /// The negative alone; the others keep their levels.
    #[default]
    Negative,
}

/// What is told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The queries.
    Queries,
    /// Queries with their positives.
    #[default]
    Pairs,
}

/// Whose scores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scores {
    /// Those of the row.
    #[default]
    Row,
    /// The teacher's.
    Teacher,
}

/// What rows are ordered by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Distance between the teacher's ranks of the best positive and the hardest negative.
    #[default]
    RankDifference,
    /// Distance between their scores.
    ScoreDifference,
}

/// Bounds of a number, both included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Least.
    pub min: Option<f64>,
    /// Most.
    pub max: Option<f64>,
}

impl Span {
    /// Whether a number is within.
    pub fn holds(self, number: f64) -> bool {
        self.min.is_none_or(|min| number >= min) && self.max.is_none_or(|max| number <= max)
    }

    /// Refuses bounds out of a range, and those between which nothing lies.
    fn check(self, range: RangeInclusive<f64>) -> Result<(), Wrong> {
        for (key, bound) in [("min", self.min), ("max", self.max)] {
            bound.map_or(Ok(()), |bound| number(key, bound, range.clone()))?;
        }
        match (self.min, self.max) {
            (Some(min), Some(max)) if min > max => {
                wrong("min", format!("= {min} is above max = {max}, which nothing passes"))
            }
            _ => Ok(()),
        }
    }

    /// As [`Self::check`], of bounds that stand in a table.
    fn within(self, key: &str, range: RangeInclusive<f64>) -> Result<(), Wrong> {
        self.check(range)
            .map_err(|Wrong { what, .. }| Wrong { key: key.into(), what: format!("{key}.{what}") })
    }
}

/// What a filter does. The names in files are those of the variants, as `positive_rank`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum FilterKind {
    /// Texts of a row that are equal: a positive to the query, a negative to any of them.
    Equal {
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Rows that were there before.
    Duplicates {
        /// What is compared.
        #[serde(default)]
        of: Of,
    },
    /// Labels that are the same words in another order, and classes that come too often.
    DuplicateLabels {
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
        /// Most rows with the same instruction, positive and negatives.
        most: Option<usize>,
    },
    /// Numbers of words.
    Length {
        /// Of the query.
        #[serde(default)]
        query: Span,
        /// Of positives.
        #[serde(default)]
        positive: Span,
        /// Of negatives.
        #[serde(default)]
        negative: Span,
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Texts in another language than asked for.
    Language {
        /// The language, where rows do not say theirs.
        expected: Option<String>,
        /// The field in which rows do.
        #[serde(default = "language_field")]
        field: String,
        /// Below this confidence a text is not judged.
        #[serde(default = "confidence")]
        min_confidence: f64,
        /// Texts of fewer letters are not judged.
        #[serde(default = "letters")]
        min_letters: usize,
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Labels that stand in the text that they are to be told for.
    LabelInText {
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Positives in which no answer stands that the row has, as it asks (Linq-Embed-Mistral, arXiv:2412.03223, section 4.1).
    HasAnswer {
        /// Name of the field of answers: a text or several.
        #[serde(default = "answers")]
        field: String,
    },
    /// Passages that repeat the query.
    Copy {
        /// Queries of fewer words are not judged.
        #[serde(default = "copied_words")]
        min_words: usize,
        /// Most of the query's words that a passage may have; only the whole query in its order counts
        /// where absent.
        share: Option<f64>,
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Texts of an evaluation.
    Leak {
        /// Its files; where there are none, those of the command line.
        #[serde(default)]
        files: Vec<String>,
        /// Share of an evaluation text's own BM25 score from which a text is near it.
        bm25: Option<f32>,
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Rows without enough negatives.
    Negatives {
        /// Least.
        min: usize,
    },
    /// The teacher's rank of positives.
    PositiveRank {
        /// Last rank.
        max: usize,
    },
    /// The teacher's rank of negatives, its positives left out of the count.
    NegativeRank {
        /// First rank.
        #[serde(default = "one")]
        min: usize,
        /// Last rank.
        max: Option<usize>,
        /// What goes.
        #[serde(default)]
        drop: OnNegative,
    },
    /// Negatives that the teacher ranks before the best positive.
    RankOrder {
        /// What goes.
        #[serde(default = "whole_row")]
        drop: OnNegative,
    },
    /// The teacher's score of positives.
    PositiveScore {
        /// Least.
        min: Option<f64>,
        /// Most.
        max: Option<f64>,
    },
    /// The teacher's score of negatives.
    NegativeScore {
        /// Least.
        min: Option<f64>,
        /// Most.
        max: Option<f64>,
        /// What goes.
        #[serde(default)]
        drop: OnNegative,
    },
    /// How far negatives score below the positive.
    ScoreGap {
        /// Least.
        min: f64,
        /// By whom.
        #[serde(default)]
        of: Scores,
        /// Fields with the scores of positive and negative, where the row has no lists of them.
        #[serde(default = "score_fields")]
        fields: [String; 2],
        /// What goes.
        #[serde(default = "whole_row")]
        drop: OnNegative,
    },
    /// A share of the rows, of those of which the teacher knows the difference.
    KeepShare {
        /// Which: those where this is smallest.
        #[serde(default)]
        by: By,
        /// The share.
        keep: f64,
    },
    /// A judge on whether passages answer the query: positives must, negatives must not.
    Answerable {
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
        /// Whether texts that no judge judged stay.
        #[serde(default)]
        keep_unjudged: bool,
    },
    /// A judge on how related passages are to the query, 1 to 10. Asked together with `answerable`.
    Relatedness {
        /// Least of positives.
        min_positive: Option<f64>,
        /// Most of negatives.
        max_negative: Option<f64>,
        /// What goes with a negative.
        #[serde(default)]
        drop: OnNegative,
        /// Whether texts that no judge judged stay.
        #[serde(default)]
        keep_unjudged: bool,
    },
    /// Where the task asks for what refutes the query: a positive that any of some judges takes for
    /// support goes.
    Refutation {
        /// Words by which such a task or query is known: English ones in their usual forms, others as they are.
        #[serde(default = "refutation_words")]
        words: Vec<String>,
        /// Models of the endpoints that judge; all that do where absent.
        #[serde(default)]
        panel: Vec<String>,
        /// Whether texts that no judge judged stay.
        #[serde(default)]
        keep_unjudged: bool,
    },
    /// No filter: puts a number behind all texts of a row, the same behind each, so that those of another
    /// row are told from them. Linq does this to few-shot long-short and long-long rows, where a text of
    /// another row in the batch is often an answer as well.
    UniqueId {},
}

fn language_field() -> String {
    "language".into()
}

fn confidence() -> f64 {
    0.9
}

fn letters() -> usize {
    30
}

fn copied_words() -> usize {
    5
}

fn one() -> usize {
    1
}

fn answers() -> String {
    "answers".into()
}

fn whole_row() -> OnNegative {
    OnNegative::Row
}

fn score_fields() -> [String; 2] {
    ["positive_score".into(), "negative_score".into()]
}

fn refutation_words() -> Vec<String> {
    ["refute", "oppose", "opposition", "disagree", "reject", "deny", "contradict"]
        .map(String::from)
        .into()
}

/// What each kind is for, in a line.
pub const KINDS: [(&str, &str); 21] = [
    ("equal", "texts of a row that are equal once case and signs are left out"),
    ("duplicates", "queries, or queries with their positives, that were there before: of"),
    (
        "duplicate_labels",
        "labels of the same words in another order; classes that come too often: most",
    ),
    ("length", "words of query, positive and negative: { min, max } each"),
    ("language", "another language than the row's: field, expected, min_confidence, min_letters"),
    ("label_in_text", "a label that stands in its text"),
    ("has_answer", "positives without any of the row's own answers: field"),
    ("copy", "a passage that repeats the query: min_words, share"),
    ("leak", "texts of an evaluation: files, bm25"),
    ("negatives", "rows with too few negatives: min"),
    ("score_gap", "negatives that score too near to the positive: min, of, fields"),
    ("positive_rank", "positives that the teacher ranks too low: max"),
    ("negative_rank", "negatives outside a window of the teacher's ranks: min, max"),
    ("rank_order", "negatives that the teacher ranks before the positive"),
    ("positive_score", "positives by the teacher's score: min, max"),
    ("negative_score", "negatives by the teacher's score: min, max"),
    ("keep_share", "all but a share of the rows, those of the smallest difference: keep, by"),
    ("answerable", "by a judge: positives must answer the query, negatives must not"),
    ("relatedness", "by a judge, 1 to 10: min_positive, max_negative"),
    (
        "refutation",
        "by a panel of judges: support where the task asks for what refutes: words, panel",
    ),
    ("unique_id", "changes rows: a number of the row's own behind each of its texts"),
];

impl FilterKind {
    /// Whether it looks at a teacher's ranks or scores.
    pub fn asks_teacher(&self) -> bool {
        matches!(
            self,
            Self::PositiveRank { .. }
                | Self::NegativeRank { .. }
                | Self::RankOrder { .. }
                | Self::PositiveScore { .. }
                | Self::NegativeScore { .. }
                | Self::KeepShare { .. }
                | Self::ScoreGap { of: Scores::Teacher, .. }
        )
    }

    /// Whether it looks at the judgements of an LLM.
    pub fn asks_judges(&self) -> bool {
        matches!(self, Self::Answerable { .. } | Self::Relatedness { .. } | Self::Refutation { .. })
    }

    /// The last of the teacher's ranks that it tells apart.
    pub fn depth(&self) -> usize {
        match self {
            Self::PositiveRank { max } => *max,
            Self::NegativeRank { min, max, .. } => max.unwrap_or(0).max(*min),
            _ => 0,
        }
    }

    /// Whether its numbers are such that something may pass.
    fn check(&self) -> Result<(), Wrong> {
        match self {
            Self::Length { query, positive, negative, .. } => {
                let spans = [("query", query), ("positive", positive), ("negative", negative)];
                spans.into_iter().try_for_each(|(key, span)| span.within(key, 0.0..=f64::MAX))
            }
            Self::DuplicateLabels { most: Some(0), .. } => {
                wrong("most", "= 0: no row would pass; give 1 or more")
            }
            Self::Language { expected: Some(name), .. } if Language::named(name).is_err() => {
                let why =
                    format!("= {name:?} is no language that is known; use a code such as \"en\"");
                wrong("expected", why)
            }
            Self::Language { min_confidence, .. } => {
                number("min_confidence", *min_confidence, 0.0..=1.0)
            }
            Self::Copy { share: Some(most), .. } => share("share", *most),
            Self::Leak { bm25: Some(most), .. } => share("bm25", f64::from(*most)),
            Self::KeepShare { keep, .. } => share("keep", *keep),
            Self::PositiveRank { max: 0 } => wrong("max", "= 0: ranks count from 1"),
            Self::NegativeRank { min: 0, .. } => wrong("min", "= 0: ranks count from 1"),
            Self::NegativeRank { min, max: Some(max), .. } if min > max => {
                wrong("min", format!("= {min} is after max = {max}, which no negative passes"))
            }
            Self::PositiveScore { min, max } | Self::NegativeScore { min, max, .. } => {
                Span { min: *min, max: *max }.check(f64::MIN..=f64::MAX)
            }
            Self::ScoreGap { min, .. } => number("min", *min, f64::MIN..=f64::MAX),
            Self::Relatedness { min_positive: None, max_negative: None, .. } => {
                wrong("kind", "has no bound; give min_positive, max_negative, or both")
            }
            Self::Relatedness { min_positive, max_negative, .. } => {
                let given = [("min_positive", min_positive), ("max_negative", max_negative)];
                given.into_iter().try_for_each(|(key, value)| {
                    value.map_or(Ok(()), |value| number(key, value, 1.0..=10.0))
                })
            }
            Self::Refutation { words, .. } if words.iter().all(|word| word.trim().is_empty()) => {
                wrong("words", "is empty; name the words of tasks that ask for what refutes")
            }
            _ => Ok(()),
        }
    }
}

/// What is wrong with a filter, and the key by which its line is found.
#[derive(Debug)]
struct Wrong {
    key: String,
    what: String,
}

fn wrong<T>(key: &str, why: impl Display) -> Result<T, Wrong> {
    Err(Wrong { key: key.into(), what: format!("{key} {why}") })
}

/// Refuses a number out of a range, and what is no number.
fn number(key: &str, value: f64, range: RangeInclusive<f64>) -> Result<(), Wrong> {
    if range.contains(&value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    let expected = match (*least == f64::MIN, *most == f64::MAX) {
        (true, _) => "is no number".into(),
        (false, true) => format!("is no number from {least} on"),
        (false, false) => format!("is no number from {least} to {most}"),
    };
    wrong(key, format!("= {value} {expected}"))
}

/// Refuses what is no share, or the share of nothing.
fn share(key: &str, value: f64) -> Result<(), Wrong> {
    match value > 0.0 && value <= 1.0 {
        true => Ok(()),
        false => wrong(key, format!("= {value} is no share above 0 and up to 1")),
    }
}

/// Filters that come with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    /// The name that `--filters` takes.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

/// All of them.
pub const SHIPPED: [Shipped; 2] = [
    Shipped { name: "plain", text: include_str!("plain.toml") },
    Shipped { name: "linq", text: include_str!("linq.toml") },
];

impl Filters {
    /// Filters by a shipped name or from a file.
    ///
    /// # Errors
    /// No such name or file, or one that is wrong.
    pub fn open(name: &str) -> Result<Self> {
        if let Some(shipped) = SHIPPED.iter().find(|shipped| shipped.name == name) {
            return Self::parse(shipped.text, Path::new("")).context(shipped.name);
        }
        let path = Path::new(name);
        if !name.ends_with(".toml") {
            let names = SHIPPED.map(|shipped| shipped.name).join(", ");
            bail!(
                "{name}: no filters of this name; those shipped are {names}; a file ends in .toml"
            );
        }
        let text = kiln_data::text::read_small(path)?;
        Self::parse(&text, path.parent().unwrap_or(Path::new(""))).with_context(|| name.to_string())
    }

    /// Reads a file of filters.
    ///
    /// # Errors
    /// No TOML, or a filter that is unknown or wrong; the error names it and its line.
    pub fn parse(text: &str, folder: &Path) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            anyhow!("line {line}: {}", one_line(error.message()))
        })?;
        if file.filter.is_empty() {
            bail!("holds no [[filter]]; `kiln refine --list-filters` says which there are");
        }
        let mut filters: Vec<Filter> = Vec::new();
        for (i, table) in file.filter.into_iter().enumerate() {
            let start = table.span().start;
            let table = table.into_inner();
            let kind = table.get("kind").and_then(Value::as_str).unwrap_or("no kind").to_string();
            let filter = filter(table).map_err(|Wrong { key, what }| {
                let line = key_line(text, start, &key);
                anyhow!("line {line}: filter {} ({kind}): {what}", i + 1)
            })?;
            filters.push(Filter { name: unused(filter.name, &filters), ..filter });
        }
        Ok(Self {
            description: file.description,
            filters,
            text: text.into(),
            folder: folder.into(),
        })
    }
}

/// What stands in a file of filters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    description: String,
    #[serde(default)]
    filter: Vec<Spanned<Table>>,
}

/// The number of the line in which a place lies.
fn line_of(text: &str, place: usize) -> usize {
    1 + text.bytes().take(place).filter(|byte| *byte == b'\n').count()
}

/// The number of the line in which a filter's key stands; that in which the filter begins, where it has none.
fn key_line(text: &str, start: usize, key: &str) -> usize {
    let behind = text.get(start..).unwrap_or_default();
    let own = behind.lines().enumerate().take_while(|(i, line)| *i == 0 || !line.starts_with("[["));
    let is_key = |line: &str| {
        let value = line.trim_start().strip_prefix(key).map(str::trim_start);
        value.is_some_and(|value| value.starts_with(['=', '.']))
    };
    let place = own.into_iter().find(|(_, line)| is_key(line)).map_or(0, |(i, _)| i);
    line_of(text, start) + place
}

fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A name that no other filter has, as counts are by name.
fn unused(name: String, filters: &[Filter]) -> String {
    let numbers = (2..).map(|number| format!("{name} {number}"));
    let mut names = std::iter::once(name.clone()).chain(numbers);
    names.find(|name| filters.iter().all(|one| one.name != *name)).unwrap_or(name)
}

fn filter(mut table: Table) -> Result<Filter, Wrong> {
    let mut texts = |key: &str| -> Result<Vec<String>, Wrong> {
        match table.remove(key).map(Value::try_into).transpose() {
            Ok(texts) => Ok(texts.unwrap_or_default()),
            Err(_) => wrong(key, "is no list of texts"),
        }
    };
    let (types, sources) = (texts("types")?, texts("sources")?);
    let splits = texts("splits")?.iter().map(|name| split(name)).collect::<Result<_, _>>()?;
    let kind = match table.get("kind").and_then(Value::as_str) {
        Some(kind) => kind.to_string(),
        None => return wrong("kind", format!("is missing; it is one of {}", kinds())),
    };
    if !KINDS.iter().any(|(known, _)| *known == kind) {
        return wrong("kind", format!("= {kind:?} is none of {}", kinds()));
    }
    let name = match table.remove("name") {
        None => kind,
        Some(Value::String(name)) if !name.trim().is_empty() => name,
        Some(_) => return wrong("name", "is no text"),
    };
    let kind = read(table)?;
    kind.check()?;
    Ok(Filter { name, types, sources, splits, kind })
}

/// What a filter does, by its keys. The one that is wrong is that without which it is another error, or none.
fn read(table: Table) -> Result<FilterKind, Wrong> {
    let read = |table: Table| {
        FilterKind::deserialize(Value::Table(table)).map_err(|error| one_line(&error.to_string()))
    };
    let error = match read(table.clone()) {
        Ok(kind) => return Ok(kind),
        Err(error) => error,
    };
    let is_wrong = |key: &&String| {
        let mut others = table.clone();
        others.remove(key.as_str());
        *key != "kind" && read(others).err().as_ref() != Some(&error)
    };
    wrong(table.keys().find(is_wrong).map_or("kind", String::as_str), format!("is wrong: {error}"))
}

fn split(name: &str) -> Result<Split, Wrong> {
    match serde_json::from_value(name.into()) {
        Ok(split) => Ok(split),
        Err(_) => wrong("splits", format!("has {name:?}, which is none of train, dev and test")),
    }
}

fn kinds() -> String {
    KINDS.map(|(name, _)| name).join(", ")
}

impl Filter {
    /// Whether it looks at a row, by its type, its split, and its source: what the row names as such, or the
    /// name of its file.
    pub fn looks_at(&self, row: &RefineRow) -> bool {
        let of_type = || row.kind.as_ref().is_some_and(|kind| self.types.contains(kind));
        let of_source = || self.sources.contains(&row.source) || self.sources.contains(&row.file);
        let of_split = || row.split.is_some_and(|split| self.splits.contains(&split));
        (self.types.is_empty() || of_type())
            && (self.sources.is_empty() || of_source())
            && (self.splits.is_empty() || of_split())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn shipped_filters_are_read() {
        for shipped in SHIPPED {
            let filters = Filters::open(shipped.name).unwrap();
            assert!(!filters.description.is_empty() && !filters.filters.is_empty());
        }
        let plain = Filters::open("plain").unwrap();
        let alone = |filter: &Filter| filter.kind.asks_teacher() || filter.kind.asks_judges();
        assert!(!plain.filters.iter().any(alone));
    }

    #[test]
    fn kinds_are_those_that_are_listed() {
        for (name, _) in KINDS {
            let error =
                Filters::parse(&format!("[[filter]]\nkind = '{name}'\nx_y = 1"), Path::new(""))
                    .unwrap_err();
            let error = format!("{error:#}");
            assert!(
                error.contains("x_y") && error.contains(&format!("filter 1 ({name})")),
                "{error}"
            );
        }
    }

    #[test]
    fn errors_name_the_filter_and_what_is_wrong() {
        let error = |text: &str| format!("{:#}", Filters::parse(text, Path::new("")).unwrap_err());
        let unknown = error("[[filter]]\nkind = 'equal'\n[[filter]]\nkind = 'lenght'");
        assert!(unknown.contains("filter 2 (lenght)") && unknown.contains("length"), "{unknown}");
        for (text, word) in [
            ("", "no [[filter]]"),
            ("x = 1\n[[filter]]\nkind = 'equal'", "line 1: unknown field `x`"),
            ("\n[[filter]\nkind = 'equal'", "line 2"),
            ("[[filter]]\ntypes = ['a']", "kind is missing"),
            ("[[filter]]\nkind = 'equal'\ntypes = 'a'", "types is no list"),
            ("[[filter]]\nkind = 'length'\nquery = { min = 5, max = 2 }", "min = 5"),
            ("[[filter]]\nkind = 'length'\nquery = { least = 5 }", "least"),
            ("[[filter]]\nkind = 'keep_share'\nkeep = 3", "share"),
            ("[[filter]]\nkind = 'positive_rank'", "max"),
            ("[[filter]]\nkind = 'negative_rank'\nmin = 5\nmax = 4", "after max"),
            ("[[filter]]\nkind = 'language'\nexpected = 'xx-klingon'", "klingon"),
            ("[[filter]]\nkind = 'relatedness'", "min_positive"),
            ("[[filter]]\nkind = 'equal'\ndrop = 'all'", "negative"),
            ("[[filter]]\nkind = 'equal'\nsplits = ['trian']", "\"trian\""),
            (
                "[[filter]]\nkind = 'length'\nquery = { min = nan }",
                "line 3: filter 1 (length): query.min = NaN",
            ),
            (
                "[[filter]]\nkind = 'length'\n\nnegative.min = -1",
                "line 4: filter 1 (length): negative",
            ),
            ("[[filter]]\nkind = 'keep_share'\nkeep = -0.5", "line 3"),
            (
                "[[filter]]\nkind = 'equal'\n[[filter]]\nkeep = nan\nkind = 'keep_share'",
                "line 4: filter 2",
            ),
            ("[[filter]]\nkind = 'positive_score'\nmin = 0.5\nmax = 0.2", "above max"),
            ("[[filter]]\nkind = 'score_gap'\nmin = nan", "line 3"),
            ("[[filter]]\nkind = 'relatedness'\nmin_positive = 11", "from 1 to 10"),
            ("[[filter]]\nkind = 'language'\nmin_confidence = 90", "from 0 to 1"),
            ("[[filter]]\nkind = 'copy'\nshare = 1.5", "line 3"),
            ("[[filter]]\nkind = 'duplicate_labels'\nmost = 0", "most = 0"),
            ("[[filter]]\nkind = 'negatives'\nmin = -1", "line 3"),
            ("[[filter]]\nkind = 'refutation'\nwords = [' ']", "words is empty"),
        ] {
            let error = error(text);
            assert!(error.contains(word) && !error.contains('\n'), "{word}: {error}");
        }
        let error = format!("{:#}", Filters::open("lunq").unwrap_err());
        assert!(error.contains("plain, linq") && error.contains(".toml"), "{error}");
    }

    #[test]
    fn a_filter_looks_at_its_types_sources_and_splits() {
        let text = "[[filter]]\nkind = 'equal'\ntypes = ['sts', 'bitext']\nsources = ['rows.jsonl', 'made']\n\
                    [[filter]]\nkind = 'equal'\n[[filter]]\nkind = 'equal'\nsplits = ['train', 'dev']";
        let filters = Filters::parse(text, Path::new("")).unwrap().filters;
        assert_eq!((&filters[0].name[..], &filters[1].name[..]), ("equal", "equal 2"));
        let of = |more: Value| {
            let mut row = json!({"query": "q", "pos": ["p"]});
            row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            crate::refine::row::tests::row(row)
        };
        let looks = |more: Value| {
            filters.iter().map(|one| one.looks_at(&of(more.clone()))).collect::<Vec<_>>()
        };
        assert_eq!(looks(json!({"type": "sts"})), [true, true, true]);
        assert_eq!(
            looks(json!({"type": "bitext", "source": "made", "split": "dev"})),
            [true, true, true]
        );
        assert_eq!(looks(json!({"source": "made", "split": "test"})), [false, true, false]);
        assert!(
            !filters[0].looks_at(
                &RefineRow::of_line(
                    r#"{"query":"q","pos":"p","type":"sts"}"#.into(),
                    "other.jsonl"
                )
                .unwrap()
            )
        );
    }
}

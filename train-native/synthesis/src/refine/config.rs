//! Which filters there are: the file of filters, and those that come with the program.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use toml::{Table, Value};

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
    /// What it does.
    pub kind: Kind,
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
}

/// What a filter does. The names in files are those of the variants, as `positive_rank`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Kind {
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
    /// A share of the rows.
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
        /// Words by which such a task or query is known, in any of their endings.
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

fn whole_row() -> OnNegative {
    OnNegative::Row
}

fn score_fields() -> [String; 2] {
    ["positive_score".into(), "negative_score".into()]
}

fn refutation_words() -> Vec<String> {
    ["refute", "oppose", "disagree", "reject", "deny", "contradict"].map(String::from).into()
}

/// What each kind is for, in a line.
pub const KINDS: [(&str, &str); 20] = [
    ("equal", "texts of a row that are equal once case and signs are left out"),
    ("duplicates", "queries, or queries with their positives, that were there before: of"),
    (
        "duplicate_labels",
        "labels of the same words in another order; classes that come too often: most",
    ),
    ("length", "words of query, positive and negative: { min, max } each"),
    ("language", "another language than the row's: field, expected, min_confidence, min_letters"),
    ("label_in_text", "a label that stands in its text"),
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

impl Kind {
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

    fn check(&self) -> Result<()> {
        let span = |what: &str, span: Span| match (span.min, span.max) {
            (Some(min), Some(max)) if min > max => {
                bail!("{what}: min = {min} is above max = {max}, which no text passes")
            }
            _ => Ok(()),
        };
        let share = |name: &str, share: f64| match share {
            share if share > 0.0 && share <= 1.0 => Ok(()),
            share => bail!("{name} = {share} is no share between 0 and 1"),
        };
        match self {
            Self::Length { query, positive, negative, .. } => {
                span("query", *query)?;
                span("positive", *positive)?;
                span("negative", *negative)
            }
            Self::PositiveScore { min, max } | Self::NegativeScore { min, max, .. } => {
                span("scores", Span { min: *min, max: *max })
            }
            Self::NegativeRank { min, max: Some(max), .. } if min > max => {
                bail!("min = {min} is after max = {max}, which no negative passes")
            }
            Self::PositiveRank { max: 0 } => bail!("max = 0: ranks count from 1"),
            Self::KeepShare { keep, .. } => share("keep", *keep),
            Self::Copy { share: Some(most), .. } => share("share", *most),
            Self::Leak { bm25: Some(most), .. } => share("bm25", f64::from(*most)),
            Self::Language { expected: Some(name), .. } if Language::named(name).is_err() => {
                bail!("expected = {name:?} is no language that is known; use a code such as \"en\"")
            }
            Self::Relatedness { min_positive: None, max_negative: None, .. } => {
                bail!("give min_positive, max_negative, or both")
            }
            Self::Refutation { words, .. } if words.is_empty() => bail!("words is empty"),
            _ => Ok(()),
        }
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
    /// No TOML, or a filter that is unknown or wrong; the error names it.
    pub fn parse(text: &str, folder: &Path) -> Result<Self> {
        let mut table: Table = toml::from_str(text)?;
        let description = match table.remove("description") {
            None => String::new(),
            Some(Value::String(text)) => text,
            Some(_) => bail!("description is no text"),
        };
        let list = match table.remove("filter") {
            Some(Value::Array(list)) if !list.is_empty() => list,
            _ => bail!("holds no [[filter]]; `kiln refine --list-filters` says which there are"),
        };
        if let Some(name) = table.keys().next() {
            bail!("unknown field {name:?}; a file of filters has description and [[filter]]");
        }
        let mut filters: Vec<Filter> = Vec::new();
        for (i, value) in list.into_iter().enumerate() {
            let Value::Table(table) = value else { bail!("filter {}: is no table", i + 1) };
            let kind = table.get("kind").and_then(Value::as_str).unwrap_or("no kind").to_string();
            let mut filter = filter(table).with_context(|| format!("filter {} ({kind})", i + 1))?;
            // Counts are by name.
            let same = |filters: &[Filter], name: &str| filters.iter().any(|one| one.name == name);
            let name = filter.name.clone();
            let mut again = 2;
            while same(&filters, &filter.name) {
                filter.name = format!("{name} {again}");
                again += 1;
            }
            filters.push(filter);
        }
        Ok(Self { description, filters, text: text.into(), folder: folder.into() })
    }
}

fn filter(mut table: Table) -> Result<Filter> {
    let mut names = |field: &str| -> Result<Vec<String>> {
        match table.remove(field) {
            None => Ok(Vec::new()),
            Some(value) => value
                .try_into::<Vec<String>>()
                .with_context(|| format!("{field} is no list of texts")),
        }
    };
    let (types, sources) = (names("types")?, names("sources")?);
    let kind = match table.get("kind") {
        Some(Value::String(kind)) => kind.clone(),
        _ => bail!("kind is missing; it is one of {}", kinds()),
    };
    if !KINDS.iter().any(|(known, _)| *known == kind) {
        bail!("no filter is of this kind; there are {}", kinds());
    }
    let name = match table.remove("name") {
        None => kind,
        Some(Value::String(name)) if !name.trim().is_empty() => name,
        Some(_) => bail!("name is no text"),
    };
    let kind: Kind = Value::Table(table).try_into()?;
    kind.check()?;
    Ok(Filter { name, types, sources, kind })
}

fn kinds() -> String {
    KINDS.map(|(name, _)| name).join(", ")
}

impl Filter {
    /// Whether it looks at rows of a type from a source: what rows name as such, and the name of their
    /// file.
    pub fn looks_at(&self, kind: Option<&str>, sources: [&str; 2]) -> bool {
        let of_type = || kind.is_some_and(|kind| self.types.iter().any(|one| one == kind));
        let of_source = || self.sources.iter().any(|one| sources.contains(&one.as_str()));
        (self.types.is_empty() || of_type()) && (self.sources.is_empty() || of_source())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            ("x = 1\n[[filter]]\nkind = 'equal'", "\"x\""),
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
        ] {
            let error = error(text);
            assert!(error.contains(word), "{word}: {error}");
        }
        let error = format!("{:#}", Filters::open("lunq").unwrap_err());
        assert!(error.contains("plain, linq") && error.contains(".toml"), "{error}");
    }

    #[test]
    fn a_filter_looks_at_its_types_and_sources() {
        let text = "[[filter]]\nkind = 'equal'\ntypes = ['sts', 'bitext']\nsources = ['rows.jsonl', 'made']\n\
                    [[filter]]\nkind = 'equal'";
        let filters = Filters::parse(text, Path::new("")).unwrap().filters;
        assert_eq!((&filters[0].name[..], &filters[1].name[..]), ("equal", "equal 2"));
        let looks = |kind, source, file| filters[0].looks_at(kind, [source, file]);
        assert!(looks(Some("sts"), "x", "rows.jsonl") && looks(Some("bitext"), "made", "x"));
        assert!(!looks(None, "made", "x") && !looks(Some("sts"), "x", "other.jsonl"));
        assert!(filters[1].looks_at(None, ["x", "y"]));
    }
}

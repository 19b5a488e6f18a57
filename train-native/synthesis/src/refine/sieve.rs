//! What each filter that looks at one row alone says about it.

use std::collections::HashSet;

use kiln_data::data::LeakFilter;
use kiln_data::recipe::LeakRule;
use kiln_terminal::terminal::counted;
use unicode_segmentation::UnicodeSegmentation as _;

use super::config::{By, FilterKind, OnNegative, Scores, Span};
use super::judge::{Judged, Stance};
use super::ranks::{Rank, Ranks, Role};
use super::row::{Passage, RefineRow, asks_refutation, same};
use crate::language::Language;
use crate::words;

/// What a filter says about a row; negatives and positives may have gone from it before.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ruling {
    /// It goes on.
    Passes,
    /// It goes on, because the filter cannot tell.
    Unjudged,
    /// It goes, and why.
    Drops(String),
}

/// What a filter says about a text.
#[derive(Debug, Clone, PartialEq)]
enum Says {
    Yes,
    Unknown,
    No(String),
}

impl Says {
    fn no_if(wrong: bool, why: impl FnOnce() -> String) -> Self {
        if wrong { Self::No(why()) } else { Self::Yes }
    }
}

/// What filters look at beside the row.
#[derive(Clone, Copy, Default)]
pub(super) struct Context<'a> {
    /// The teacher's ranks.
    pub ranks: Option<&'a Ranks>,
    /// What judges said, of this row.
    pub judged: Option<&'a Judged>,
    /// Texts of evaluations.
    pub leaks: Option<&'a LeakFilter>,
}

/// A filter on one row: takes out of it what does not pass.
pub(super) fn sift(kind: &FilterKind, row: &mut RefineRow, context: Context<'_>) -> Ruling {
    match kind {
        FilterKind::Equal { drop } => equal(row, *drop),
        FilterKind::DuplicateLabels { drop, .. } => same_labels(row, *drop),
        FilterKind::Length { query, positive, negative, drop } => {
            if let Says::No(why) = length(&row.query, *query, "the query") {
                return Ruling::Drops(why);
            }
            let positives =
                |_: &RefineRow, one: &Passage| length(&one.text, *positive, "the positive");
            let negatives =
                |_: &RefineRow, one: &Passage| length(&one.text, *negative, "a negative");
            both(row, *drop, positives, negatives)
        }
        FilterKind::Language { expected, field, min_confidence, min_letters, drop } => {
            let name = row.named(field).or(expected.as_deref());
            let [query, document] = languages(name.unwrap_or_default(), row.kind.as_deref());
            let judge = |text: &str, expected: Option<Language>, what: &str| {
                let other = expected
                    .and_then(|one| Some((one, one.other(text, *min_letters, *min_confidence)?)));
                match other {
                    None => Says::Unknown,
                    Some((_, None)) => Says::Yes,
                    Some((expected, Some(name))) => {
                        Says::No(format!("{what} is {name} where {} is asked for", expected.name))
                    }
                }
            };
            if let Says::No(why) = judge(&row.query, query, "the query") {
                return Ruling::Drops(why);
            }
            let positives =
                |_: &RefineRow, one: &Passage| judge(&one.text, document, "the positive");
            let negatives = |_: &RefineRow, one: &Passage| judge(&one.text, document, "a negative");
            both(row, *drop, positives, negatives)
        }
        FilterKind::LabelInText { drop } => {
            let of = |row: &RefineRow, one: &Passage| {
                let stands = words::gives_away(&row.query, &one.text);
                Says::no_if(stands, || "the label stands in the text".into())
            };
            both(row, *drop, of, of)
        }
        FilterKind::HasAnswer { field } => {
            if row.texts(field).is_empty() {
                return Ruling::Unjudged;
            }
            let of = |row: &RefineRow, one: &Passage| {
                let is_there = |answer: &&str| words::contains(&one.text, answer);
                let there = row.texts(field).iter().any(is_there);
                Says::no_if(!there, || "no answer stands in the positive".into())
            };
            both(row, OnNegative::Row, of, |_, _| Says::Unknown)
        }
        FilterKind::Copy { min_words, share, drop } => {
            let all = |text: &str| -> HashSet<String> {
                text.unicode_words().map(str::to_lowercase).collect()
            };
            let query = all(&row.query);
            if words::count(&row.query) < *min_words {
                return Ruling::Unjudged;
            }
            let of = |row: &RefineRow, one: &Passage| {
                if words::contains(&one.text, &row.query) {
                    return Says::No("the passage repeats the query word for word".into());
                }
                let Some(most) = share else { return Says::Yes };
                let there = all(&one.text);
                let same = query.intersection(&there).count() as f64 / query.len().max(1) as f64;
                Says::no_if(same > *most, || {
                    format!("the passage has {:.0} % of the query's words", 100.0 * same)
                })
            };
            both(row, *drop, of, of)
        }
        FilterKind::Leak { bm25, drop, .. } => {
            let Some(leaks) = context.leaks else { return Ruling::Unjudged };
            let rule = bm25.map_or(LeakRule::Exact, LeakRule::Bm25);
            let why = || "an evaluation text".to_string();
            if leaks.leaks(&row.query, rule) {
                return Ruling::Drops(format!("the query is {}", why()));
            }
            let of = |_: &RefineRow, one: &Passage| Says::no_if(leaks.leaks(&one.text, rule), why);
            both(row, *drop, of, of)
        }
        FilterKind::Negatives { min } if row.negatives.len() < *min => {
            let left = counted(row.negatives.len(), "negative is", "negatives are");
            Ruling::Drops(format!("{left} left of {}", row.came[1]))
        }
        FilterKind::ScoreGap { min, of, fields, drop } => {
            score_gap(row, context, *min, *of, fields, *drop)
        }
        FilterKind::Answerable { drop, keep_unjudged } => {
            answerable(row, context.judged, *drop, *keep_unjudged)
        }
        FilterKind::Relatedness { min_positive, max_negative, drop, keep_unjudged } => {
            let of = |one: &Passage, span: Span, needed: bool, what: &str| {
                if !needed {
                    return Says::Yes;
                }
                match context.judged.and_then(|judged| judged.of(&one.text)) {
                    None => unjudged(*keep_unjudged),
                    Some(said) => Says::no_if(!span.holds(said.relatedness), || {
                        format!("{what} is judged {:.0} of 10 related", said.relatedness)
                    }),
                }
            };
            let least = Span { min: *min_positive, max: None };
            let most = Span { min: None, max: *max_negative };
            both(
                row,
                *drop,
                |_, one| of(one, least, min_positive.is_some(), "the positive"),
                |_, one| of(one, most, max_negative.is_some(), "a negative"),
            )
        }
        FilterKind::Refutation { words, keep_unjudged, .. } => {
            if !asks_refutation(row, words) {
                return Ruling::Passes;
            }
            let of = |_: &RefineRow, one: &Passage| {
                let stances = context.judged.map_or(&[][..], |judged| judged.stances(&one.text));
                match stances {
                    stances if stances.contains(&Some(Stance::Support)) => {
                        Says::No("a judge takes the positive for support".into())
                    }
                    [] => unjudged(*keep_unjudged),
                    stances if stances.contains(&None) => unjudged(*keep_unjudged),
                    _ => Says::Yes,
                }
            };
            both(row, OnNegative::Negative, of, |_, _| Says::Yes)
        }
        FilterKind::PositiveRank { .. }
        | FilterKind::NegativeRank { .. }
        | FilterKind::RankOrder { .. }
        | FilterKind::PositiveScore { .. }
        | FilterKind::NegativeScore { .. } => match context.ranks {
            Some(ranks) => by_teacher(kind, row, ranks),
            None => Ruling::Unjudged,
        },
        // The others look at more than a row, or change it.
        FilterKind::Duplicates { .. }
        | FilterKind::KeepShare { .. }
        | FilterKind::Negatives { .. }
        | FilterKind::UniqueId {} => Ruling::Passes,
    }
}

fn unjudged(keep: bool) -> Says {
    if keep { Says::Unknown } else { Says::No("no judge judged it".into()) }
}

/// Takes out the positives and negatives that do not pass.
fn both(
    row: &mut RefineRow,
    drop: OnNegative,
    positive: impl Fn(&RefineRow, &Passage) -> Says,
    negative: impl Fn(&RefineRow, &Passage) -> Says,
) -> Ruling {
    let positives = row.positives.iter().map(|one| positive(row, one)).collect();
    let negatives = row.negatives.iter().map(|one| negative(row, one)).collect();
    take_out(row, drop, positives, negatives)
}

fn take_out(
    row: &mut RefineRow,
    drop: OnNegative,
    positives: Vec<Says>,
    negatives: Vec<Says>,
) -> Ruling {
    let no = |says: &Says| match says {
        Says::No(why) => Some(why.clone()),
        Says::Yes | Says::Unknown => None,
    };
    let goes = |says: &Says| matches!(says, Says::No(_));
    if positives.iter().all(goes)
        && let Some(why) = positives.iter().find_map(no)
    {
        return Ruling::Drops(why);
    }
    if drop == OnNegative::Row
        && let Some(why) = negatives.iter().find_map(no)
    {
        return Ruling::Drops(why);
    }
    let judged = positives.iter().chain(&negatives).any(|says| *says != Says::Unknown);
    let mut says = positives.iter();
    row.positives.retain(|_| !says.next().is_some_and(goes));
    let mut says = negatives.iter();
    row.negatives.retain(|_| !says.next().is_some_and(goes));
    if judged { Ruling::Passes } else { Ruling::Unjudged }
}

fn equal(row: &mut RefineRow, drop: OnNegative) -> Ruling {
    let mut seen = HashSet::from([same(&row.query)]);
    let mut positives = Vec::new();
    for one in &row.positives {
        let is_new = seen.insert(same(&one.text));
        positives.push(Says::no_if(!is_new, || "the positive equals the query".into()));
    }
    let mut given = HashSet::new();
    let mut negatives = Vec::new();
    for one in &row.negatives {
        let text = same(&one.text);
        let known = seen.contains(&text);
        let again = !given.insert(text);
        negatives.push(Says::no_if(known || again, || {
            let other = if known { "the query or a positive" } else { "another negative" };
            format!("a negative equals {other}")
        }));
    }
    take_out(row, drop, positives, negatives)
}

/// The words of a label in alphabetical order.
pub(super) fn label_words(text: &str) -> String {
    let mut words = words::plain_words(text);
    words.sort_unstable();
    words.join(" ")
}

fn same_labels(row: &mut RefineRow, drop: OnNegative) -> Ruling {
    let positives: HashSet<String> =
        row.positives.iter().map(|one| label_words(&one.text)).collect();
    let mut given = HashSet::new();
    let negatives = row.negatives.iter().map(|one| {
        let label = label_words(&one.text);
        let right = positives.contains(&label);
        Says::no_if(right || !given.insert(label), || {
            let which = if right { "the right one" } else { "another wrong one" };
            format!("a wrong label has the words of {which}")
        })
    });
    let negatives = negatives.collect();
    let positives = row.positives.iter().map(|_| Says::Yes).collect();
    take_out(row, drop, positives, negatives)
}

fn length(text: &str, span: Span, what: &str) -> Says {
    if span == Span::default() {
        return Says::Yes;
    }
    let words = words::count(text);
    Says::no_if(!span.holds(words as f64), || format!("{what} has {words} words"))
}

/// The languages of queries and documents that a name says: one of both, or two with `->`, `/` or `,` between.
/// Of a bitext one language alone is that of the documents.
fn languages(name: &str, kind: Option<&str>) -> [Option<Language>; 2] {
    let one = |name: &str| Language::named(name).ok();
    match name.split_once("->").or_else(|| name.split_once(['/', ','])) {
        Some((query, document)) => [one(query), one(document)],
        None if kind == Some("bitext") => [None, one(name)],
        None => [one(name); 2],
    }
}

fn answerable(
    row: &mut RefineRow,
    judged: Option<&Judged>,
    drop: OnNegative,
    keep_unjudged: bool,
) -> Ruling {
    let of = |one: &Passage, wanted: bool| match judged.and_then(|judged| judged.of(&one.text)) {
        None => unjudged(keep_unjudged),
        Some(said) => Says::no_if(said.answerable != wanted, || {
            match wanted {
                true => "a judge says that the positive does not answer the query",
                false => "a judge says that a negative answers the query",
            }
            .into()
        }),
    };
    both(row, drop, |_, one| of(one, true), |_, one| of(one, false))
}

fn score_gap(
    row: &mut RefineRow,
    context: Context<'_>,
    min: f64,
    of: Scores,
    fields: &[String; 2],
    drop: OnNegative,
) -> Ruling {
    let score = |one: &Passage, role: Role| match of {
        Scores::Row => one.score.or_else(|| row.number(&fields[role as usize])),
        Scores::Teacher => Some(context.ranks?.of(role, &row.query, &one.text)?.score),
    };
    let positives = row.positives.iter().filter_map(|one| score(one, Role::Positive));
    let best = positives.reduce(f32::max);
    let negatives = row.negatives.iter().map(|one| match (best, score(one, Role::Negative)) {
        (Some(best), Some(score)) => {
            let gap = f64::from(best) - f64::from(score);
            // What is 1.5 on paper is not always in single precision.
            Says::no_if(gap < min - 1e-6, || {
                format!("a negative scores {gap:.3} below the positive")
            })
        }
        _ => Says::Unknown,
    });
    let negatives = negatives.collect();
    let positives = row.positives.iter().map(|_| Says::Unknown).collect();
    take_out(row, drop, positives, negatives)
}

/// The teacher's ranks of a row's positives or negatives.
fn ranked<'a>(
    row: &'a RefineRow,
    role: Role,
    ranks: &'a Ranks,
) -> impl Iterator<Item = Option<Rank>> + 'a {
    let all = match role {
        Role::Positive => &row.positives,
        Role::Negative => &row.negatives,
    };
    all.iter().map(move |one| ranks.of(role, &row.query, &one.text))
}

/// The one that the teacher scores highest.
fn best(row: &RefineRow, role: Role, ranks: &Ranks) -> Option<Rank> {
    ranked(row, role, ranks).flatten().reduce(|a, b| if b.score > a.score { b } else { a })
}

fn by_teacher(kind: &FilterKind, row: &mut RefineRow, ranks: &Ranks) -> Ruling {
    let unranked =
        || Says::No("the teacher has no rank of it: it is the query, or answers it".into());
    let place = |rank: usize| match rank {
        rank if ranks.is_far(rank) => format!("after {}", ranks.depth),
        rank => rank.to_string(),
    };
    let positive = |one: Option<Rank>| match (kind, one) {
        (FilterKind::PositiveRank { max }, Some(one)) => {
            Says::no_if(one.rank > *max, || format!("the positive ranks {}", place(one.rank)))
        }
        (FilterKind::PositiveScore { min, max }, Some(one)) => {
            let span = Span { min: *min, max: *max };
            Says::no_if(!span.holds(one.score.into()), || {
                format!("the positive scores {:.3}", one.score)
            })
        }
        (FilterKind::PositiveRank { .. } | FilterKind::PositiveScore { .. }, None) => unranked(),
        _ => Says::Yes,
    };
    let best = best(row, Role::Positive, ranks);
    let negative = |one: Option<Rank>| match (kind, one) {
        (FilterKind::NegativeRank { min, max, .. }, Some(one)) => {
            let within = one.rank >= *min && max.is_none_or(|max| one.rank <= max);
            Says::no_if(!within, || format!("a negative ranks {}", place(one.rank)))
        }
        (FilterKind::NegativeScore { min, max, .. }, Some(one)) => {
            let span = Span { min: *min, max: *max };
            Says::no_if(!span.holds(one.score.into()), || {
                format!("a negative scores {:.3}", one.score)
            })
        }
        (FilterKind::RankOrder { .. }, Some(one)) => {
            Says::no_if(best.is_none_or(|best| one.score > best.score), || {
                format!("a negative ranks {}, before the positive", place(one.rank))
            })
        }
        (
            FilterKind::NegativeRank { .. }
            | FilterKind::NegativeScore { .. }
            | FilterKind::RankOrder { .. },
            None,
        ) => unranked(),
        _ => Says::Yes,
    };
    let drop = match kind {
        FilterKind::NegativeRank { drop, .. }
        | FilterKind::NegativeScore { drop, .. }
        | FilterKind::RankOrder { drop } => *drop,
        _ => OnNegative::default(),
    };
    let positives = ranked(row, Role::Positive, ranks).map(positive).collect();
    let negatives = ranked(row, Role::Negative, ranks).map(negative).collect();
    take_out(row, drop, positives, negatives)
}

/// What `keep_share` orders rows by; `None` where the teacher does not know, or nothing is to compare. How far
/// a text beyond the last rank is from another is not known, and may be any distance.
pub(super) fn difference(row: &RefineRow, ranks: &Ranks, by: By) -> Option<f64> {
    let positive = best(row, Role::Positive, ranks)?;
    let negative = best(row, Role::Negative, ranks)?;
    let is_far = ranks.is_far(positive.rank) || ranks.is_far(negative.rank);
    Some(match by {
        By::RankDifference if is_far => f64::INFINITY,
        By::RankDifference => negative.rank.abs_diff(positive.rank) as f64,
        By::ScoreDifference => f64::from((positive.score - negative.score).abs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refine::config::Filters;
    use crate::refine::row::tests::row;
    use serde_json::{Value, json};
    use std::path::Path;

    fn kind(text: &str) -> FilterKind {
        let text = format!("[[filter]]\n{text}");
        Filters::parse(&text, Path::new("")).unwrap().filters.remove(0).kind
    }

    /// What a filter says about a row, and what is left of it.
    fn said(
        filter: &str,
        value: Value,
        context: Context<'_>,
    ) -> (Ruling, Vec<String>, Vec<String>) {
        let mut row = row(value);
        let ruling = sift(&kind(filter), &mut row, context);
        let texts = |all: &[Passage]| all.iter().map(|one| one.text.clone()).collect();
        (ruling, texts(&row.positives), texts(&row.negatives))
    }

    /// Whether the row passes, and the negatives that are left.
    fn passes(filter: &str, value: Value) -> Option<Vec<String>> {
        match said(filter, value, Context::default()) {
            (Ruling::Drops(why), ..) => {
                assert!(!why.is_empty());
                None
            }
            (_, _, negatives) => Some(negatives),
        }
    }

    fn none() -> Option<Vec<String>> {
        Some(Vec::new())
    }

    fn some(texts: &[&str]) -> Option<Vec<String>> {
        Some(texts.iter().map(|text| text.to_string()).collect())
    }

    #[test]
    fn equal_texts_go() {
        let filter = "kind = 'equal'";
        assert_eq!(passes(filter, json!({"query": "A b.", "pos": ["a  B"]})), None);
        let several =
            json!({"query": "q", "pos": ["Q!", "p", "P"], "neg": ["n", "p.", "N", "m", "q"]});
        let (ruling, positives, negatives) = said(filter, several.clone(), Context::default());
        assert_eq!(ruling, Ruling::Passes);
        assert_eq!((positives, negatives), (vec!["p".to_string()], vec!["n".into(), "m".into()]));
        assert_eq!(passes("kind = 'equal'\ndrop = 'row'", several), None);
        let other = json!({"query": "q", "pos": ["p"], "neg": ["n"]});
        assert_eq!(passes("kind = 'equal'\ndrop = 'row'", other), some(&["n"]));
    }

    #[test]
    fn labels_of_the_same_words_go() {
        let filter = "kind = 'duplicate_labels'";
        let value = json!({"query": "q", "pos": ["sports news"], "neg": ["News: Sports", "politics", "Politics", "sports"]});
        assert_eq!(passes(filter, value.clone()), some(&["politics", "sports"]));
        assert_eq!(passes("kind = 'duplicate_labels'\ndrop = 'row'", value), None);
    }

    #[test]
    fn lengths_are_in_words() {
        let filter = "kind = 'length'\nquery = { min = 2 }\npositive = { max = 3 }\nnegative = { min = 1, max = 2 }";
        assert_eq!(passes(filter, json!({"query": "one", "pos": ["p"]})), None);
        assert_eq!(passes(filter, json!({"query": "one two", "pos": ["a b c d"]})), None);
        let value =
            json!({"query": "one, two!", "pos": ["a b c d", "a b c"], "neg": ["a b c", "a-b"]});
        let (ruling, positives, negatives) = said(filter, value, Context::default());
        assert_eq!(ruling, Ruling::Passes);
        assert_eq!((positives, negatives), (vec!["a b c".to_string()], vec!["a-b".into()]));
        // Where words are not set apart, each sign counts as one.
        let filter = "kind = 'length'\nquery = { min = 4 }";
        assert_eq!(passes(filter, json!({"query": "蜂蜜的味道", "pos": ["p"]})), none());
    }

    const ENGLISH: &str = "The river floods the lower streets of the town every spring, and nobody there is surprised.";
    const GERMAN: &str = "Der Fluss überschwemmt jedes Frühjahr die unteren Straßen der Stadt, und niemand wundert sich.";

    #[test]
    fn other_languages_go_and_what_cannot_be_told_stays() {
        let filter = "kind = 'language'";
        let value = |query: &str, pos: &str, neg: &str, language: &str| json!({"query": query, "pos": [pos], "neg": [neg], "language": language});
        assert_eq!(passes(filter, value(ENGLISH, ENGLISH, GERMAN, "en")), none());
        assert_eq!(passes(filter, value(GERMAN, ENGLISH, ENGLISH, "English")), None);
        assert_eq!(passes(filter, value(ENGLISH, GERMAN, GERMAN, "en->de")), some(&[GERMAN]));
        assert_eq!(passes(filter, value(ENGLISH, ENGLISH, GERMAN, "en->de")), None);
        assert_eq!(
            passes("kind = 'language'\nexpected = 'de'", json!({"query": ENGLISH, "pos": ["p"]})),
            None
        );
        for value in [
            json!({"query": GERMAN, "pos": [ENGLISH]}),
            value("kurz", "short", "kurz", "en"),
            value(GERMAN, GERMAN, GERMAN, "klingon"),
        ] {
            assert_eq!(said(filter, value, Context::default()).0, Ruling::Unjudged);
        }
    }

    #[test]
    fn labels_that_stand_in_their_text_go() {
        let filter = "kind = 'label_in_text'";
        let value = |label: &str, wrong: &str| json!({"query": "A review of the sports-car: great!", "pos": [label], "neg": [wrong]});
        assert_eq!(passes(filter, value("Sports car", "x")), None);
        assert_eq!(passes(filter, value("port", "great")), none());
        assert_eq!(passes("kind = 'label_in_text'\ndrop = 'row'", value("port", "great")), None);
        assert_eq!(passes(filter, json!({"query": "我喜欢蜂蜜的味道", "pos": ["蜂蜜"]})), None);
    }

    #[test]
    fn positives_without_the_answer_go() {
        let filter = "kind = 'has_answer'";
        let value = |answers: Value, positives: &[&str]| json!({"query": "who built it?", "pos": positives, "neg": ["n"], "answers": answers});
        let good = "The wall was built by Ada Lind, in 1901.";
        assert_eq!(passes(filter, value(json!(["the king", "ada lind"]), &[good])), some(&["n"]));
        assert_eq!(passes(filter, value(json!("the king"), &[good])), None);
        // Words, and not letters: and one of the positives is enough.
        assert_eq!(passes(filter, value(json!("Lin"), &[good])), None);
        let both = value(json!(["Lind"]), &["It stands by the sea.", good]);
        let (ruling, positives, _) = said(filter, both, Context::default());
        assert_eq!((ruling, positives), (Ruling::Passes, vec![good.to_string()]));
        for none in [json!([]), json!(null), json!(7)] {
            let ruling = said(filter, value(none, &[good]), Context::default()).0;
            assert_eq!(ruling, Ruling::Unjudged);
        }
        let named = "kind = 'has_answer'\nfield = 'short'";
        let row = json!({"query": "q", "pos": ["x"], "short": ["y"]});
        assert_eq!(passes(named, row), None);
    }

    #[test]
    fn passages_that_repeat_the_query_go() {
        let filter = "kind = 'copy'\nmin_words = 4";
        let query = "how do bees make honey";
        let copy = format!("Many ask: How do bees make honey? They {}", "fly ".repeat(9));
        assert_eq!(passes(filter, json!({"query": query, "pos": [copy]})), None);
        let value =
            json!({"query": query, "pos": ["honey do bees how they make it"], "neg": [copy, "n"]});
        assert_eq!(passes(filter, value.clone()), some(&["n"]));
        assert_eq!(passes("kind = 'copy'\nmin_words = 4\nshare = 0.8", value), None);
        let short = json!({"query": "honey", "pos": ["honey is sweet"]});
        assert_eq!(said(filter, short, Context::default()).0, Ruling::Unjudged);
    }

    #[test]
    fn texts_of_evaluations_go() {
        let texts = ["How do I reset the password of my account?".to_string()];
        let leaks = LeakFilter::new(texts, true);
        let context = Context { leaks: Some(&leaks), ..Context::default() };
        let exact = "how do I reset the password of my account?";
        let near = "the password of my account, how do I reset";
        let ruling = |filter: &str, query: &str| {
            said(filter, json!({"query": query, "pos": ["p"], "neg": [exact]}), context)
        };
        assert!(matches!(ruling("kind = 'leak'", exact).0, Ruling::Drops(_)));
        assert!(ruling("kind = 'leak'", near).2.is_empty());
        assert!(matches!(ruling("kind = 'leak'\nbm25 = 0.8", near).0, Ruling::Drops(_)));
        assert!(matches!(ruling("kind = 'leak'\ndrop = 'row'", "q").0, Ruling::Drops(_)));
    }

    #[test]
    fn rows_need_their_negatives() {
        let filter = "kind = 'negatives'\nmin = 1";
        assert_eq!(passes(filter, json!({"query": "q", "pos": ["p"]})), None);
        assert_eq!(passes(filter, json!({"query": "q", "pos": ["p"], "neg": "n"})), some(&["n"]));
    }

    #[test]
    fn gaps_of_scores_are_those_of_the_row() {
        let filter = "kind = 'score_gap'\nmin = 1.5";
        let sts = |low: f64| json!({"query": "q", "pos": ["p"], "neg": ["n"], "pos_scores": [4.5], "neg_scores": [low]});
        assert_eq!(passes(filter, sts(3.0)), some(&["n"]));
        assert_eq!(passes(filter, sts(3.5)), None);
        let named = json!({"query": "q", "pos": ["p"], "neg": ["n"], "positive_score": 5, "negative_score": "4"});
        assert_eq!(passes(filter, named.clone()), None);
        assert_eq!(passes("kind = 'score_gap'\nmin = 1.5\ndrop = 'negative'", named), none());
        let without = json!({"query": "q", "pos": ["p"], "neg": ["n"]});
        assert_eq!(said(filter, without, Context::default()).0, Ruling::Unjudged);
    }

    /// One query with a positive at rank 2, negatives at 1, 60 and beyond the last.
    fn ranks() -> Ranks {
        let mut ranks = Ranks::new("t".into(), 200, 1000);
        ranks.insert(Role::Positive, "q", "p", Rank { score: 0.9, rank: 2 });
        ranks.insert(Role::Positive, "q", "farther", Rank { score: 0.05, rank: 201 });
        // Of another row of the same query.
        ranks.insert(Role::Negative, "q", "p", Rank { score: 0.9, rank: 150 });
        for (text, score, rank) in [("n1", 0.95, 1), ("n60", 0.5, 60), ("far", 0.1, 201)] {
            ranks.insert(Role::Negative, "q", text, Rank { score, rank });
        }
        ranks
    }

    #[test]
    fn teachers_ranks_and_scores_judge() {
        let ranks = ranks();
        let context = Context { ranks: Some(&ranks), ..Context::default() };
        let value = |neg: &[&str]| json!({"query": "q", "pos": ["p"], "neg": neg});
        let left = |filter: &str, neg: &[&str]| match said(filter, value(neg), context) {
            (Ruling::Drops(_), ..) => None,
            (_, _, negatives) => Some(negatives),
        };
        let all = ["n1", "n60", "far"];
        assert_eq!(left("kind = 'positive_rank'\nmax = 2", &all), some(&all));
        assert_eq!(left("kind = 'positive_rank'\nmax = 1", &all), None);
        assert_eq!(left("kind = 'negative_rank'\nmin = 50\nmax = 100", &all), some(&["n60"]));
        assert_eq!(left("kind = 'negative_rank'\nmin = 50", &all), some(&["n60", "far"]));
        assert_eq!(left("kind = 'negative_rank'\nmin = 50\ndrop = 'row'", &all), None);
        assert_eq!(left("kind = 'rank_order'", &["n60"]), some(&["n60"]));
        assert_eq!(left("kind = 'rank_order'", &["n1"]), None);
        assert_eq!(left("kind = 'rank_order'\ndrop = 'negative'", &all), some(&["n60", "far"]));
        assert_eq!(left("kind = 'positive_score'\nmin = 0.5", &[]), none());
        assert_eq!(left("kind = 'positive_score'\nmax = 0.5", &[]), None);
        assert_eq!(left("kind = 'negative_score'\nmax = 0.6\nmin = 0.2", &all), some(&["n60"]));
        let gap = "kind = 'score_gap'\nof = 'teacher'\nmin = 0.3\ndrop = 'negative'";
        assert_eq!(left(gap, &all), some(&["n60", "far"]));
        // One that the teacher did not rank answers the query.
        assert_eq!(left("kind = 'negative_rank'", &["known", "far"]), some(&["far"]));
        let own = json!({"query": "q", "pos": ["other"]});
        let (ruling, ..) = said("kind = 'positive_rank'\nmax = 100", own, context);
        assert!(matches!(ruling, Ruling::Drops(_)));

        let of = |neg: &[&str], by| difference(&row(value(neg)), &ranks, by);
        assert_eq!(of(&["n60", "far"], By::RankDifference), Some(58.0));
        assert_eq!(of(&["far"], By::RankDifference), Some(f64::INFINITY));
        let both = row(json!({"query": "q", "pos": ["farther"], "neg": ["far"]}));
        assert_eq!(difference(&both, &ranks, By::RankDifference), Some(f64::INFINITY));
        assert!((of(&["n60"], By::ScoreDifference).unwrap() - 0.4).abs() < 1e-6);
        assert_eq!(of(&[], By::RankDifference), None);
    }

    #[test]
    fn a_task_that_asks_for_what_refutes_is_known_by_its_words() {
        let words = ["refute".to_string(), "deny".into(), "oppose".into()];
        let asks = |instruction: &str, query: &str| {
            asks_refutation(
                &row(json!({"query": query, "pos": ["p"], "instruction": instruction})),
                &words,
            )
        };
        assert!(asks("Given a claim, retrieve documents that refute it", "q"));
        assert!(asks("Find opposing arguments", "q") && asks("t", "who DENIED it?"));
        assert!(asks("t", "denies") && asks("t", "it refutes that"));
        assert!(!asks("Given a claim, find support", "Denmark's density opposite the sea"));
        assert!(asks("t", "a refutation of it"));
        let chinese =
            row(json!({"query": "q", "pos": ["p"], "instruction": "找到反驳该说法的文章"}));
        assert!(asks_refutation(&chinese, &["反驳".into()]) && !asks_refutation(&chinese, &words));
    }
}

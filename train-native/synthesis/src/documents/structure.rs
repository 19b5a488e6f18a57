//! Training pairs from what documents are made of, without an LLM.
//!
//! A positive is a passage's text without its title, so that a title does not find itself.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Passage, Split};

/// What a pair was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PairOrigin {
    /// The document's title, and its first passage.
    Title,
    /// A heading below the title, and the first passage of its section.
    Heading,
    /// A question of the document, and what it answers.
    Question,
    /// Two passages of a section that follow one another; alike in both directions.
    Neighbours,
}

impl PairOrigin {
    /// What the query asks for, in one sentence.
    pub fn instruction(self) -> &'static str {
        match self {
            Self::Title => "Given a title, retrieve the start of the document it belongs to",
            Self::Heading => {
                "Given a heading, retrieve the section of the document it stands above"
            }
            Self::Question => "Given a question, retrieve the passage that answers it",
            Self::Neighbours => "Retrieve a passage of the same section of a document",
        }
    }
}

/// A query and a text that belongs to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// What the query asks for ([`PairOrigin::instruction`]).
    pub instruction: String,
    /// The query.
    pub query: String,
    /// The text.
    pub pos: String,
    /// What it was made of.
    pub kind: PairOrigin,
    /// The `_id` of the passage that the text is of.
    pub source: String,
    /// The document.
    pub document: String,
    /// What the document is used for.
    pub split: Split,
}

/// Neighbours are at most one of so many of the other pairs,
const OTHERS: usize = 2;
/// or of the passages, where that is more.
const PASSAGES: usize = 4;
/// Longest question, in letters.
const LONGEST_QUESTION: usize = 200;
/// Fewest words of a text that answers something.
const FEWEST_WORDS: usize = 4;
/// Bytes that the end of a passage and the start of the next one share where they overlap.
const SHARED: usize = 8;

/// Whether a heading or a line is a question.
pub(super) fn is_question(text: &str) -> bool {
    let text = text.trim_end_matches(['*', '_', '"', ')', ' ']);
    text.ends_with(['?', '\u{ff1f}', '\u{61f}'])
        && text.chars().count() <= LONGEST_QUESTION
        && text.chars().filter(|letter| letter.is_alphabetic()).count() >= 3
}

/// Pairs of one document's passages, in their order. A query that stands above several texts is left out,
/// as it says which one no more.
pub fn structure_pairs(passages: &[Passage]) -> Vec<Pair> {
    let mut pairs = Vec::new();
    let title = passages.iter().find_map(Passage::document_title);
    for (i, passage) in passages.iter().enumerate() {
        // Where passages were left out, as another document has their text, the first may be among them.
        let next = i.checked_sub(1).is_none_or(|before| follows(&passages[before], passage));
        let begins = match i {
            0 => number(passage) == 1,
            _ => next && passages[i - 1].heading != passage.heading,
        };
        if let (1, Some(title)) = (number(passage), title)
            && !is_question(title)
        {
            push(&mut pairs, PairOrigin::Title, title, &passage.text, passage);
        }
        if let (true, Some(heading)) = (begins, passage.heading.last()) {
            if is_question(heading) {
                push(&mut pairs, PairOrigin::Question, heading, &passage.text, passage);
            } else {
                let above = title.or(match &passage.heading[..] {
                    [first, _, ..] => Some(first.as_str()),
                    _ => None,
                });
                let query = above.map(|above| format!("{above}: {heading}"));
                let query = query.as_deref().unwrap_or(heading);
                push(&mut pairs, PairOrigin::Heading, query, &passage.text, passage);
            }
        }
        for (question, answer) in questions(&passage.text) {
            push(&mut pairs, PairOrigin::Question, question, answer, passage);
        }
    }
    unambiguous(&mut pairs);
    let most = (pairs.len() / OTHERS).max(passages.len() / PASSAGES);
    neighbours(passages, most, &mut pairs);
    pairs
}

/// The number of a passage in its document, from 1.
fn number(passage: &Passage) -> usize {
    let behind = passage.id.strip_prefix(&passage.document);
    let number = behind.and_then(|behind| behind.strip_prefix('#')?.parse().ok());
    number.unwrap_or(1)
}

/// Whether nothing was left out between two passages.
fn follows(before: &Passage, passage: &Passage) -> bool {
    number(before) + 1 == number(passage)
}

fn push(pairs: &mut Vec<Pair>, kind: PairOrigin, query: &str, pos: &str, passage: &Passage) {
    let (query, pos) = (query.trim(), pos.trim());
    let begins = pos.len() >= query.len()
        && pos.is_char_boundary(query.len())
        && pos[..query.len()].eq_ignore_ascii_case(query);
    let words = pos.split_whitespace().count();
    // Scripts without spaces have long words.
    if query.is_empty() || begins || words < FEWEST_WORDS && pos.len() < 8 * FEWEST_WORDS {
        return;
    }
    pairs.push(Pair {
        instruction: kind.instruction().into(),
        query: query.into(),
        pos: pos.into(),
        kind,
        source: passage.id.clone(),
        document: passage.document.clone(),
        split: passage.split,
    });
}

/// Leaves out what is asked twice.
fn unambiguous(pairs: &mut Vec<Pair>) {
    let mut times: HashMap<String, usize> = HashMap::new();
    for pair in pairs.iter() {
        *times.entry(pair.query.to_lowercase()).or_default() += 1;
    }
    pairs.retain(|pair| times.get(&pair.query.to_lowercase()) == Some(&1));
}

/// Adds pairs of passages that follow one another, each passage in one at most, evenly over the document.
fn neighbours(passages: &[Passage], most: usize, pairs: &mut Vec<Pair>) {
    let mut found = Vec::new();
    let mut i = 0;
    while i + 1 < passages.len() {
        let (one, next) = (&passages[i], &passages[i + 1]);
        if one.heading == next.heading && follows(one, next) && !overlap(&one.text, &next.text) {
            found.push(i);
            i += 1;
        }
        i += 1;
    }
    let most = most.min(found.len());
    for n in 0..most {
        let place = found[n * found.len() / most];
        let (one, next) = (&passages[place], &passages[place + 1]);
        push(pairs, PairOrigin::Neighbours, &one.text, &next.text, next);
    }
}

/// Whether a text begins with the end of the one before it.
fn overlap(before: &str, text: &str) -> bool {
    let ends = before.char_indices().map(|(place, _)| &before[place..]);
    ends.take_while(|end| end.len() >= SHARED).any(|end| text.starts_with(end))
}

/// Questions that begin a paragraph and fill its first line, each with what follows up to the next one.
fn questions(text: &str) -> Vec<(&str, &str)> {
    let mut starts = Vec::new();
    let mut blank = true;
    let mut place = 0;
    for line in text.split_inclusive('\n') {
        let bare = line.trim();
        // Items of a list and comments of code ask nothing that the next line answers.
        let asks = bare
            .starts_with(|first: char| first.is_alphabetic() || "\"'*_(¿".contains(first))
            && !bare.starts_with("* ");
        if (blank || bare.starts_with("Q:")) && asks && is_question(bare) {
            starts.push((place, place + line.len()));
        }
        blank = bare.is_empty();
        place += line.len();
    }
    let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([text.len()]);
    let pairs = starts.iter().zip(ends).map(|(&(start, answer), end)| {
        let question = unmarked(&text[start..answer], &["Q:", "Q.", "Question:"]);
        (question, unmarked(&text[answer..end], &["A:", "A.", "Answer:"]))
    });
    pairs.filter(|(question, answer)| !question.is_empty() && !answer.is_empty()).collect()
}

/// A text without the sign that it is a question or an answer.
fn unmarked<'t>(text: &'t str, signs: &[&str]) -> &'t str {
    let text = text.trim().trim_start_matches(['*', '_']);
    let sign = signs.iter().find_map(|sign| text.strip_prefix(sign));
    sign.unwrap_or(text).trim_start_matches(['*', '_']).trim().trim_end_matches(['*', '_'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(title: &str, heading: &[&str], text: &str) -> Passage {
        let path: Vec<&str> =
            [title].iter().chain(heading).filter(|part| !part.is_empty()).copied().collect();
        Passage {
            id: "x#1".into(),
            title: path.join(" > "),
            text: text.into(),
            document: "x".into(),
            heading: heading.iter().map(|part| part.to_string()).collect(),
            split: Split::Dev,
            ..Passage::default()
        }
    }

    /// The passages with their numbers.
    fn numbered(passages: &[Passage]) -> Vec<Passage> {
        let all = passages.iter().cloned().zip(1..);
        all.map(|(passage, n)| Passage { id: format!("x#{n}"), ..passage }).collect()
    }

    fn pairs(passages: &[Passage]) -> Vec<(PairOrigin, String, String)> {
        structure_pairs(&numbered(passages))
            .into_iter()
            .map(|pair| (pair.kind, pair.query, pair.pos))
            .collect()
    }

    #[test]
    fn titles_headings_and_questions_find_their_texts() {
        let found = structure_pairs(&numbered(&[
            passage("Ships", &[], "They float on the water."),
            passage("Ships", &["Masts"], "They hold the many sails."),
            passage("Ships", &["Why wood?"], "It floats better than iron."),
            passage(
                "Ships",
                &["More"],
                "Intro here.\n\nQ: Who sails them?\nA: Sailors of many lands do.\n\nIs it *far*?\n\nYes, it is very far.",
            ),
            passage("Ships", &["Short"], "No."),
        ]));
        let got: Vec<_> =
            found.iter().map(|pair| (pair.kind, pair.query.as_str(), pair.pos.as_str())).collect();
        assert_eq!(
            got[..5],
            [
                (PairOrigin::Title, "Ships", "They float on the water."),
                (PairOrigin::Heading, "Ships: Masts", "They hold the many sails."),
                (PairOrigin::Question, "Why wood?", "It floats better than iron."),
                (PairOrigin::Heading, "Ships: More", found[3].pos.as_str()),
                (PairOrigin::Question, "Who sails them?", "Sailors of many lands do."),
            ]
        );
        assert_eq!(got[5..], [(PairOrigin::Question, "Is it *far*?", "Yes, it is very far.")]);
        assert!(found.iter().all(|pair| pair.split == Split::Dev && pair.document == "x"));
        assert_eq!(found[1].instruction, PairOrigin::Heading.instruction());
    }

    #[test]
    fn what_tells_nothing_is_left_out() {
        // A query that begins its own text, and headings that stand above two.
        assert!(pairs(&[passage("Ships", &[], "SHIPS float on the water.")]).is_empty());
        let twice = [
            passage("", &["Summary"], "They float on the water."),
            passage("", &["Other", "Summary"], "They sink under the water."),
            passage("", &["Third"], "Nothing of it is there."),
            passage("", &["Summary"], "They fly over the water."),
        ];
        let queries: Vec<String> = pairs(&twice).into_iter().map(|pair| pair.1).collect();
        assert_eq!(queries, ["Other: Summary", "Third"]);
        assert!(structure_pairs(&[]).is_empty());
        // The first passage, of the title and of the section, was left out, and so was what lay between.
        let mut rest = numbered(&[
            passage("T", &[], "This one is left out."),
            passage("T", &[], "They float on the water."),
            passage("T", &["A"], "This one is left out."),
            passage("T", &["A"], "They sink under the water."),
        ]);
        rest.retain(|passage| !passage.text.contains("left out"));
        assert_eq!(structure_pairs(&rest), []);
        let list = "- Should they float?\n- Should they sink?\n\n1. Or fly?\n\n// A test of ?\n\nWho knows it all?\n- nobody knows it all\n";
        let asked = pairs(&[passage("", &[], list)]);
        assert_eq!(
            asked,
            [(PairOrigin::Question, "Who knows it all?".into(), "- nobody knows it all".into())]
        );
    }

    #[test]
    fn neighbours_are_of_one_section_and_not_too_many() {
        let text = |n: usize| format!("This is the passage of number {n}.");
        let section: Vec<Passage> = (0..16).map(|n| passage("", &[], &text(n))).collect();
        let found = pairs(&section);
        assert_eq!(found.len(), 4);
        assert!(found.iter().all(|pair| pair.0 == PairOrigin::Neighbours && pair.1 != pair.2));
        let apart = [passage("", &["A"], &text(1)), passage("", &["B"], &text(2))];
        assert!(pairs(&apart).iter().all(|pair| pair.0 == PairOrigin::Heading));
        // An overlap makes no pair.
        let end = text(7);
        let overlap = [
            passage("", &[], &format!("Before. {end}")),
            passage("", &[], &format!("{end} After.")),
        ];
        assert!(
            pairs(&[&overlap[..], &overlap].concat())
                .iter()
                .all(|pair| !pair.2.ends_with("After."))
        );
    }

    #[test]
    fn questions_end_with_their_sign() {
        for text in ["Why?", "**Is it so?**", "为什么呢？", "(Really?)"] {
            assert!(is_question(text), "{text}");
        }
        let long = format!("{}?", "why ".repeat(100));
        for text in ["Why", "a;", "??", "Why? Because.", &long] {
            assert!(!is_question(text), "{text}");
        }
    }
}

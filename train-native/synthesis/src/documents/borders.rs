//! Where a text may be cut: behind paragraphs, sentences, words, letters.
//!
//! All ranges follow one another and are the whole text.

use std::ops::Range;

use unicode_segmentation::{GraphemeCursor, UnicodeSegmentation as _};

/// A line of at least so many bytes that another follows was wrapped, and does not end a sentence.
const WRAPPED: usize = 50;

/// Words with a dot that ends no sentence.
const ABBREVIATIONS: [&str; 16] = [
    "e.g", "i.e", "mr", "mrs", "ms", "dr", "prof", "st", "vs", "cf", "no", "fig", "vol", "pp",
    "ca", "approx",
];

/// Paragraphs, each with the empty lines behind it.
pub(super) fn paragraphs(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut place) = (0, 0);
    let (mut words, mut gap) = (false, false);
    for line in text.split_inclusive('\n') {
        let blank = line.trim().is_empty();
        if !blank && gap && words {
            ranges.push(start..place);
            start = place;
        }
        gap = blank && (gap || words);
        words |= !blank;
        place += line.len();
    }
    if start < text.len() {
        ranges.push(start..text.len());
    }
    ranges
}

/// Lines of a paragraph: items of a list, rows, code. One that is long enough to have been wrapped goes on,
/// unless an item of a list or an indented line follows.
pub(super) fn lines(text: &str) -> Vec<Range<usize>> {
    let mut place = 0;
    let unwrapped = unwrapped(text);
    let lines = unwrapped.split_inclusive('\n').map(|line| {
        place += line.len();
        place - line.len()..place
    });
    lines.collect()
}

/// Sentences of a line or a paragraph, whose [`lines`] end them too.
pub(super) fn sentences(text: &str) -> Vec<Range<usize>> {
    let unwrapped = unwrapped(text);
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut open = false;
    for (start, sentence) in unwrapped.split_sentence_bound_indices() {
        let end = start + sentence.len();
        match ranges.last_mut() {
            Some(last) if open => last.end = end,
            _ => ranges.push(start..end),
        }
        open = goes_on(sentence);
    }
    ranges
}

/// The text with a space where a line was wrapped.
fn unwrapped(text: &str) -> String {
    let mut lines = text.split_inclusive('\n').peekable();
    let mut unwrapped = String::with_capacity(text.len());
    while let Some(line) = lines.next() {
        let soft = line.len() >= WRAPPED && lines.peek().is_some_and(|next| continues(next));
        match line.strip_suffix('\n') {
            Some(line) if soft => {
                unwrapped.push_str(line);
                unwrapped.push(' ');
            }
            _ => unwrapped.push_str(line),
        }
    }
    unwrapped
}

/// Whether a line goes on with what the one before it says.
fn continues(line: &str) -> bool {
    let mut letters = line.chars();
    let first = letters.next().unwrap_or(' ');
    let number = line.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let numbered = number.len() < line.len() && number.starts_with([')', '.']);
    let marked = matches!(first, '-' | '*' | '+' | '|' | '#' | '>') || numbered;
    !first.is_whitespace() && !marked
}

/// Whether a sentence's last dot is that of an abbreviation or of a number before an item.
fn goes_on(sentence: &str) -> bool {
    if sentence.ends_with('\n') {
        return false;
    }
    let Some(bare) = sentence.trim_end().strip_suffix('.') else { return false };
    let word = bare.rsplit(|letter: char| letter.is_whitespace() || letter == '(').next();
    let word = word.unwrap_or_default().to_lowercase();
    let initial = word.chars().count() == 1 && word.chars().all(char::is_alphabetic);
    let number = bare.trim_start() == word && word.chars().all(|digit| digit.is_ascii_digit());
    initial || number || ABBREVIATIONS.contains(&word.as_str())
}

/// Where a text is cut in two: between words where it has several, else between letters as people see
/// them, else between characters; as near to the middle as can be. `None` where nothing can be cut.
pub(super) fn middle(text: &str) -> Option<usize> {
    let start = text.len() - text.trim_start().len();
    let inner = text.trim();
    let half = inner.floor_char_boundary(inner.len() / 2);
    let right = inner[half..].find(char::is_whitespace).map(|place| half + place);
    let left = inner[..half].rfind(char::is_whitespace);
    let nearer = match (left, right) {
        (Some(left), Some(right)) if half - left <= right - half => Some(left),
        (left, right) => right.or(left),
    };
    if let Some(place) = nearer {
        // Behind the white space.
        let width = inner[place..].chars().next().map_or(1, char::len_utf8);
        return Some(start + place + width);
    }
    let inside = |place: &usize| *place > 0 && *place < inner.len();
    let mut cursor = GraphemeCursor::new(half, inner.len(), true);
    let grapheme = match cursor.is_boundary(inner, 0) {
        Ok(true) if half > 0 => Some(half),
        _ => cursor.next_boundary(inner, 0).ok().flatten().filter(inside).or_else(|| {
            let mut cursor = GraphemeCursor::new(half, inner.len(), true);
            cursor.prev_boundary(inner, 0).ok().flatten()
        }),
    };
    let character = || match half {
        0 => inner.chars().next().map(char::len_utf8),
        half => Some(half),
    };
    grapheme.filter(inside).or_else(|| character().filter(inside)).map(|place| start + place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parts(text: &str, ranges: &[Range<usize>]) -> Vec<String> {
        ranges.iter().map(|range| text[range.clone()].to_string()).collect()
    }

    #[test]
    fn paragraphs_end_at_empty_lines() {
        let text = "\n\na\nb\n \n\nc\n\n";
        assert_eq!(parts(text, &paragraphs(text)), ["\n\na\nb\n \n\n", "c\n\n"]);
        assert!(paragraphs("").is_empty());
    }

    #[test]
    fn sentences_end_where_people_end_them() {
        for (text, expected) in [
            ("One. Two! Three? Four", &["One. ", "Two! ", "Three? ", "Four"][..]),
            (
                "Dr. Smith, e.g. A. Smith (cf. Fig. 3), came. He left.",
                &["Dr. Smith, e.g. A. Smith (cf. Fig. 3), came. ", "He left."],
            ),
            ("1. first\n2. second", &["1. first\n", "2. second"]),
            ("let a = 1;\nlet b = 2;", &["let a = 1;\n", "let b = 2;"]),
            ("一。二。", &["一。", "二。"]),
            (
                "A line that is long enough to have been wrapped by its\nwriter. Another\n",
                &["A line that is long enough to have been wrapped by its\nwriter. ", "Another\n"],
            ),
            (
                "- an item that is long enough to have been wrapped, and no dot\n- another",
                &["- an item that is long enough to have been wrapped, and no dot\n", "- another"],
            ),
        ] {
            assert_eq!(parts(text, &sentences(text)), expected);
        }
    }

    #[test]
    fn words_are_cut_before_letters_and_letters_before_characters() {
        let cut = |text: &str| {
            middle(text).map(|place| (text[..place].to_string(), text[place..].to_string()))
        };
        let pair = |a: &str, b: &str| Some((a.to_string(), b.to_string()));
        assert_eq!(cut("one two three"), pair("one two ", "three"));
        assert_eq!(cut("x yyyyyyyyyyyyyyyy"), pair("x ", "yyyyyyyyyyyyyyyy"));
        assert_eq!(cut(" abcd "), pair(" ab", "cd "));
        assert_eq!(cut("e\u{301}o\u{301}"), pair("e\u{301}", "o\u{301}"));
        assert_eq!(cut("🇩🇪🇫🇷🇮🇹"), pair("🇩🇪🇫🇷", "🇮🇹"));
        assert_eq!(cut("e\u{301}"), pair("e", "\u{301}"));
        for text in ["", " ", "a", " é "] {
            assert_eq!(cut(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn ranges_are_the_whole_text_and_halves_are_never_empty(text in "([a-z]{1,70}|[ \n.]{1,3}|\\PC){0,40}") {
            for ranges in [paragraphs(&text), lines(&text), sentences(&text)] {
                prop_assert_eq!(parts(&text, &ranges).concat(), text.clone());
            }
            let Some(place) = middle(&text) else {
                prop_assert!(text.trim().chars().count() <= 1);
                return Ok(());
            };
            prop_assert!(!text[..place].trim().is_empty() && !text[place..].trim().is_empty());
        }
    }
}

//! Plain text.

use super::outline::{Outline, one_line};
use super::{Document, Facts};

/// Longest line that is taken for a title, in letters.
const TITLE: usize = 80;

/// A text of paragraphs. A short first line that ends as no sentence does, with an empty line and more text
/// behind it, is the title.
pub(super) fn read(name: String, text: &str) -> Document {
    let text = text.trim_start_matches(['\n', '\u{c}']);
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let behind = rest.split('\n').next().unwrap_or_default();
    let is_title = first.chars().count() <= TITLE
        && first.contains(char::is_alphabetic)
        && first.trim_end().ends_with(|last: char| last.is_alphanumeric() || last == ')')
        && behind.trim().is_empty()
        && !rest.trim().is_empty();
    let mut outline = Outline::default();
    let mut facts = Facts::default();
    match is_title {
        true => {
            facts.title = Some(one_line(first));
            outline.block(rest);
        }
        false => outline.block(text),
    }
    outline.finish(name, facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_first_line_that_stands_alone_is_the_title() {
        let read = |text: &str| {
            let document = read("x".into(), text);
            (document.title, document.sections.first().map(|section| section.text.clone()))
        };
        let some = |title: &str, text: &str| (title.to_string(), Some(text.to_string()));
        assert_eq!(
            read("\nOn  rivers\n\nThey run.\n\nDown."),
            some("On rivers", "They run.\n\nDown.")
        );
        for text in ["They run.\n\nDown.", "Why?\n\nSo", "one\ntwo", "alone", "=====\n\ntext"] {
            assert_eq!(read(text), some("", text));
        }
        assert_eq!(read(" \n"), (String::new(), None));
    }
}

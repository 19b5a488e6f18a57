//! What two texts are compared by: their words, without case and punctuation.

use unicode_segmentation::UnicodeSegmentation as _;
use xxhash_rust::xxh3::Xxh3;

/// Number of words, by Unicode's borders (UAX 29), so that languages without spaces have words too.
pub fn count(text: &str) -> usize {
    text.unicode_words().count()
}

/// A number for a text that is the same for the same words in the same order.
pub fn hash(text: &str) -> u128 {
    let mut hash = Xxh3::new();
    for word in text.unicode_words() {
        hash.update(word.to_lowercase().as_bytes());
        hash.update(b" ");
    }
    match hash.digest128() {
        // A text without any word is told from others by what it has.
        empty if empty == Xxh3::new().digest128() => {
            xxhash_rust::xxh3::xxh3_128(text.trim().as_bytes())
        }
        words => words,
    }
}

/// A text's words in small letters with a space around each, so that words stand in it that stand in the text.
pub fn spaced(text: &str) -> String {
    let mut spaced = String::from(" ");
    for word in text.unicode_words() {
        spaced.push_str(&word.to_lowercase());
        spaced.push(' ');
    }
    spaced
}

/// Whether the words of one text stand in another, in their order and together.
pub fn contains(text: &str, part: &str) -> bool {
    let part = spaced(part);
    part.len() > 1 && spaced(text).contains(&part)
}

/// Whether a text says its own label. A label of one or two letters stands in any text; where a letter is a
/// word, as in Chinese, two are enough.
pub fn gives_away(text: &str, label: &str) -> bool {
    let telling = label.trim().chars().count() > 2 || count(label) > 1;
    telling && contains(text, label)
}

/// What stands between spaces, in small letters and without the punctuation around it. Signs that are part of a
/// word tell things apart: `C++` and `C#`, `-5` and `5`, `.NET` and `net`.
pub fn plain_words(text: &str) -> Vec<String> {
    let around = |c: char| {
        let marks = "!?\"'()[]{}“”„‘’«»…¿¡、。，；：！？「」『』（）";
        marks.contains(c)
    };
    let behind = |c: char| around(c) || matches!(c, '.' | ',' | ';' | ':');
    let parts = text
        .split_whitespace()
        .map(|part| part.trim_start_matches(around).trim_end_matches(behind).to_lowercase());
    let words: Vec<String> = parts.filter(|word| !word.is_empty()).collect();
    match words.is_empty() {
        // A text without any word is told from others by what it has.
        true => text.split_whitespace().map(str::to_string).collect(),
        false => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_what_counts() {
        assert_eq!(hash("Hello, World!"), hash("  hello world"));
        assert_ne!(hash("hello world"), hash("world hello"));
        assert_ne!(hash("!"), hash("?"));
        assert_ne!(hash("ab c"), hash("a bc"));
        assert_eq!(count("It's 3.5 km, 東京"), 5);
        assert!(contains("The label is Very Good, he said", "very good"));
        assert!(contains("a a b", "a b") && contains("good", "Good!"));
        assert!(!contains("The label is very, well, good", "very good") && !contains("any", "?"));
        assert!(!contains("goods", "good") && !contains("good", "very good"));
    }

    #[test]
    fn words_are_found_in_time_that_grows_with_the_text() {
        let (text, part) = ("a ".repeat(200_000), "a ".repeat(100_000) + "b");
        assert!(!contains(&text, &part) && contains(&(text + "b"), &part));
    }

    #[test]
    fn a_label_gives_itself_away_as_words() {
        assert!(gives_away("A review of the sports-car: great!", "Sports car"));
        assert!(!gives_away("Is it so? No.", "no") && !gives_away("An import", "port"));
        assert!(gives_away("我喜欢蜂蜜的味道", "蜂蜜") && !gives_away("我喜欢", "我"));
    }

    #[test]
    fn plain_words_keep_the_signs_that_tell_things_apart() {
        assert_eq!(plain_words("News: (Sports) & “more”."), ["news", "sports", "&", "more"]);
        assert_eq!(plain_words("Hello !"), plain_words("hello"));
        for [one, other] in [["C++", "C#"], ["-5", "5"], [".NET", "net"], ["!", "?"]] {
            assert_ne!(plain_words(one), plain_words(other));
        }
    }
}

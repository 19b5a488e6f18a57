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

/// Whether the words of one text stand in another, in their order and together.
pub fn contains(text: &str, part: &str) -> bool {
    let words = |text: &str| text.unicode_words().map(str::to_lowercase).collect::<Vec<_>>();
    let part = words(part);
    !part.is_empty() && words(text).windows(part.len()).any(|window| window == part)
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
        assert!(!contains("The label is very, well, good", "very good") && !contains("any", "?"));
    }
}

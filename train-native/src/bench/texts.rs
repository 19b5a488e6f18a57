//! Texts of a given length, made up.

use crate::data::corpus::{Corpus, CorpusSize};

/// `count` texts of as many words each, in our own made-up language; no two begin alike.
///
/// A word is a token or more, so that a model which cuts texts at `words` tokens gets exactly as many.
pub fn made_up(count: usize, words: usize) -> Vec<String> {
    let corpus = Corpus::generate(1, CorpusSize::default());
    let all: Vec<&str> = corpus.training_texts().flat_map(str::split_whitespace).collect();
    (0..count)
        .map(|text| {
            // A step that is no multiple of the length, or long texts would all begin alike.
            let start = text * 7919;
            let words = (start..start + words).filter_map(|i| all.get(i % all.len().max(1)));
            words.copied().collect::<Vec<_>>().join(" ")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_so_many_words_and_differ() {
        let texts = made_up(3, 40);
        assert!(texts.iter().all(|text| text.split_whitespace().count() == 40), "{texts:?}");
        assert!(texts[0] != texts[1] && texts[1] != texts[2]);
        assert_eq!(made_up(3, 40), texts);
        assert_eq!(made_up(1, 100_000)[0].split_whitespace().count(), 100_000);
    }
}

//! Search by words (BM25), for comparison: the `bm25` crate with English stems and stop words.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bm25::{
    DefaultTokenizer, Document, Language, SearchEngine, SearchEngineBuilder, Tokenizer as _,
};
use unicode_segmentation::UnicodeSegmentation as _;

use crate::kiln::{Hit, Passage};

/// Passages whose words are taken up without a pause: some milliseconds.
const AT_ONCE: usize = 64;

/// Passages by their words.
pub(crate) struct Words {
    engine: SearchEngine<u32>,
    tokenizer: DefaultTokenizer,
}

impl Words {
    /// As Lucene's settings for short texts: k1 0.9, b 0.4. `pause` is called now and then, and lets the
    /// page go on meanwhile.
    pub(crate) async fn new(passages: &[(u32, Passage)], pause: impl AsyncFn()) -> Self {
        let tokenizer = DefaultTokenizer::new(Language::English);
        let contents = |passage: &Passage| format!("{} {}", passage.title, passage.text);
        let mut length = 0;
        for some in passages.chunks(AT_ONCE) {
            length += some
                .iter()
                .map(|(_, passage)| tokenizer.tokenize(&contents(passage)).len())
                .sum::<usize>();
            pause().await;
        }
        let mean = length as f32 / passages.len().max(1) as f32;
        let mut engine = SearchEngineBuilder::with_avgdl(mean)
            .language_mode(Language::English)
            .k1(0.9)
            .b(0.4)
            .build();
        for some in passages.chunks(AT_ONCE) {
            for (id, passage) in some {
                engine.upsert(Document { id: *id, contents: contents(passage) });
            }
            pause().await;
        }
        Self { engine, tokenizer }
    }

    /// The k best passages with a word of the query; of equal scores the earlier one comes first.
    pub(crate) fn search(&self, query: &str, k: usize) -> Vec<Hit> {
        let mut hits: Vec<Hit> = self
            .engine
            .search(query, None)
            .into_iter()
            .map(|found| Hit { id: found.document.id, score: found.score })
            .collect();
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
        hits.truncate(k);
        hits
    }

    /// Where words of the query stand in a text.
    pub(crate) fn matches(&self, query: &str, text: &str) -> Vec<Range<usize>> {
        let asked = self.tokenizer.tokenize(query);
        text.unicode_word_indices()
            .filter(|(_, word)| {
                self.tokenizer.tokenize(word).iter().any(|stem| asked.contains(stem))
            })
            .map(|(i, word)| i..i + word.len())
            .collect()
    }
}

/// Passages of a group that its words are counted in.
const COUNTED: usize = 100;

/// The words that set each group of texts apart from the others, the best first: class-based TF-IDF
/// (BERTopic, arXiv:2203.05794, equation 2), a word counted once a text, stems taken together and named by
/// their most frequent form.
pub(crate) fn distinctive(groups: &[Vec<String>], count: usize) -> Vec<Vec<String>> {
    let tokenizer = DefaultTokenizer::new(Language::English);
    // Texts with a stem, and how often each of its forms stands in them.
    type Stems = HashMap<String, (usize, HashMap<String, usize>)>;
    let stems_of = |group: &Vec<String>| {
        let mut stems = Stems::new();
        // From all over the group, where there are many.
        for text in group.iter().step_by(group.len().div_ceil(COUNTED).max(1)) {
            let mut seen = HashSet::new();
            for word in text.unicode_words().filter(|word| word.chars().all(char::is_alphabetic)) {
                let word = word.to_lowercase();
                let Some(stem) = tokenizer.tokenize(&word).into_iter().next() else { continue };
                let (texts, forms) = stems.entry(stem.clone()).or_default();
                *forms.entry(word).or_default() += 1;
                *texts += usize::from(seen.insert(stem));
            }
        }
        stems
    };
    let groups: Vec<Stems> = groups.iter().map(stems_of).collect();
    let words_of = |stems: &Stems| stems.values().map(|(texts, _)| texts).sum::<usize>() as f64;
    let mean = groups.iter().map(words_of).sum::<f64>() / groups.len().max(1) as f64;
    let mut everywhere: HashMap<&str, usize> = HashMap::new();
    for (stem, (texts, _)) in groups.iter().flatten() {
        *everywhere.entry(stem).or_default() += texts;
    }
    let best = |stems: &Stems| {
        let words = words_of(stems).max(1.0);
        let mut scored: Vec<(f64, &str)> = stems
            .iter()
            .filter_map(|(stem, (texts, forms))| {
                let rarity = (1.0 + mean / everywhere[stem.as_str()] as f64).ln();
                let form = forms.iter().max_by(|a, b| a.1.cmp(b.1).then(b.0.cmp(a.0)))?;
                Some((*texts as f64 / words * rarity, form.0.as_str()))
            })
            .collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        scored.into_iter().take(count).map(|(_, word)| word.to_string()).collect()
    };
    groups.iter().map(best).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_named_by_their_own_words() {
        let group = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        let groups = [
            group(&[
                "The volcano erupts lava",
                "Lava of volcanoes cools",
                "A volcano sleeps in 1902",
            ]),
            group(&["The baker kneads bread", "Bread rises", "Fresh bread, the baker says"]),
            Vec::new(),
        ];
        let names = distinctive(&groups, 2);
        assert_eq!(names, [vec!["volcano", "lava"], vec!["bread", "baker"], vec![]]);
        // Words of all groups come after those of one.
        let groups = [group(&["boats and bread", "bread"]), group(&["bread and wine", "bread"])];
        assert_eq!(distinctive(&groups, 2), [["boats", "bread"], ["wine", "bread"]]);
    }

    #[test]
    fn words_are_found_by_their_stems_and_marked() {
        let passage = |title: &str, text: &str| Passage {
            title: title.into(),
            text: text.into(),
            source: String::new(),
        };
        let all = [
            (3, passage("Boats", "A boat and the sea")),
            (5, passage("Bread", "The baker bakes")),
            (9, passage("Boats", "A boat and the sea")),
        ];
        let words = pollster::block_on(Words::new(&all, async || {}));
        let ids = |query: &str, k| -> Vec<u32> {
            words.search(query, k).iter().map(|hit| hit.id).collect()
        };
        assert_eq!(ids("boating", 5), [3, 9]);
        assert_eq!(ids("boating", 1), [3]);
        assert_eq!(ids("baking the bread", 5), [5]);
        assert!(ids("the of and", 5).is_empty() && ids("", 5).is_empty());
        assert_eq!(words.matches("baking", "The baker bakes"), vec![10..15]);
    }
}

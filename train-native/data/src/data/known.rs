//! Which texts are known to answer which queries, over all rows of a source, and of the sources beside it.

use std::collections::{HashMap, HashSet};

use super::text_hash;

/// Number of a text, the same for equal texts, whatever their case and outer space.
pub fn text_key(text: &str) -> u64 {
    text_hash(text) as u64
}

/// Positives by query. Only of queries that have several, because a query's only positive stands in
/// its example; texts are numbers ([`text_key`]), eight bytes each.
#[derive(Debug, Default)]
pub struct KnownPositives {
    several: HashMap<u64, Vec<u64>>,
    /// Labelled texts: the classes of each, all of whose texts are positives to each other.
    classes: HashMap<u64, Vec<u32>>,
}

impl KnownPositives {
    /// Whether no query has another positive than that of its one example.
    pub fn is_empty(&self) -> bool {
        self.several.is_empty() && self.classes.is_empty()
    }

    /// Whether a text is a known positive of a query that has several.
    pub fn contains(&self, query: u64, text: u64) -> bool {
        self.several(query).contains(&text)
            || self.classes(query).iter().any(|class| self.classes(text).contains(class))
    }

    /// The positives of a query that has several.
    pub(super) fn several(&self, query: u64) -> &[u64] {
        self.several.get(&query).map_or(&[], Vec::as_slice)
    }

    fn classes(&self, text: u64) -> &[u32] {
        self.classes.get(&text).map_or(&[], Vec::as_slice)
    }

    /// For each of some queries the places of the documents that are its known positives.
    pub(super) fn places(&self, queries: &[u64], documents: &[u64]) -> Vec<HashSet<usize>> {
        let mut by_text: HashMap<u64, Vec<usize>> = HashMap::new();
        let mut by_class: HashMap<u32, Vec<usize>> = HashMap::new();
        for (place, &text) in documents.iter().enumerate() {
            by_text.entry(text).or_default().push(place);
            for &class in self.classes(text) {
                by_class.entry(class).or_default().push(place);
            }
        }
        let of_query = |&query: &u64| {
            let same = self.several(query).iter().filter_map(|text| by_text.get(text));
            let alike = self.classes(query).iter().filter_map(|class| by_class.get(class));
            same.chain(alike).flatten().copied().collect()
        };
        queries.iter().map(of_query).collect()
    }
}

/// Each query's first positive, those of queries with one alone included.
pub(super) type Firsts = HashMap<u64, u64>;

/// Lets the sources of a stage know what the others say of their queries, and says which of them learned something.
#[cfg(feature = "files")]
pub(super) fn tell_each_other(sources: &mut [(&mut KnownPositives, Firsts)]) -> Vec<bool> {
    let mut told: Vec<Vec<(u64, u64)>> = vec![Vec::new(); sources.len()];
    for (teller, (known, firsts)) in sources.iter().enumerate() {
        for (&query, first) in firsts {
            let positives = match known.several(query) {
                [] => std::slice::from_ref(first),
                several => several,
            };
            for (listener, (_, own)) in sources.iter().enumerate() {
                if listener != teller && own.contains_key(&query) {
                    told[listener].extend(positives.iter().map(|&positive| (query, positive)));
                }
            }
        }
    }
    let mut learned = vec![false; sources.len()];
    for (listener, told) in told.into_iter().enumerate() {
        let (known, firsts) = &mut sources[listener];
        for (query, positive) in told {
            let first = firsts.get(&query).copied();
            if first == Some(positive) || known.several(query).contains(&positive) {
                continue;
            }
            let several = known.several.entry(query).or_insert_with(|| first.into_iter().collect());
            several.push(positive);
            learned[listener] = true;
        }
    }
    learned
}

/// Gathers [`KnownPositives`] from rows.
#[derive(Default)]
pub(super) struct Gathering {
    first: Firsts,
    known: KnownPositives,
}

impl Gathering {
    /// A row's query and its positives.
    pub(super) fn add(&mut self, query: &str, positives: &[String]) {
        let query = text_key(query);
        for positive in positives {
            let positive = text_key(positive);
            let first = *self.first.entry(query).or_insert(positive);
            if first == positive {
                continue;
            }
            let several = self.known.several.entry(query).or_insert_with(|| vec![first]);
            if !several.contains(&positive) {
                several.push(positive);
            }
        }
    }

    /// The classes of labelled texts that are each other's positives.
    #[cfg(feature = "files")]
    pub(super) fn set_classes(&mut self, classes: HashMap<u64, Vec<u32>>) {
        self.known.classes = classes;
    }

    pub(super) fn finish(self) -> KnownPositives {
        self.finish_with_firsts().0
    }

    pub(super) fn finish_with_firsts(mut self) -> (KnownPositives, Firsts) {
        self.known.several.shrink_to_fit();
        (self.known, self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positives_of_several_rows_are_known_together() {
        let mut gathering = Gathering::default();
        for (query, positives) in
            [("q", vec!["a"]), ("other", vec!["x"]), (" Q ", vec!["b", "A"]), ("r", vec!["a", "c"])]
        {
            let positives: Vec<String> = positives.into_iter().map(String::from).collect();
            gathering.add(query, &positives);
        }
        let known = gathering.finish();
        let contains = |query, text| known.contains(text_key(query), text_key(text));
        assert!(contains("q", "a") && contains("q", "B") && !contains("q", "c"));
        assert!(contains("r", "c") && !contains("r", "b"));
        // The one positive of a query is its example's.
        assert!(!contains("other", "x") && known.several(text_key("other")).is_empty());
        let keys = |texts: &[&str]| texts.iter().map(|text| text_key(text)).collect::<Vec<_>>();
        let places = known.places(&keys(&["r", "other", "q"]), &keys(&["b", "x", "a", "c", "a"]));
        assert_eq!(places, [HashSet::from([2, 3, 4]), HashSet::new(), HashSet::from([0, 2, 4])]);
    }

    #[cfg(feature = "files")]
    #[test]
    fn sources_know_each_others_positives() {
        let gathered = |rows: &[(&str, &str)]| {
            let mut gathering = Gathering::default();
            for (query, positive) in rows {
                gathering.add(query, &[positive.to_string()]);
            }
            gathering.finish_with_firsts()
        };
        let (mut one, firsts_of_one) = gathered(&[("q", "a"), ("r", "x"), ("s", "y")]);
        let (mut two, firsts_of_two) = gathered(&[("Q", "b"), ("q", "c"), ("r", "x")]);
        let (mut none, firsts_of_none) = gathered(&[("t", "a")]);
        let mut all =
            [(&mut one, firsts_of_one), (&mut two, firsts_of_two), (&mut none, firsts_of_none)];
        assert_eq!(tell_each_other(&mut all), [true, true, false]);
        let contains = |known: &KnownPositives, query: &str, text: &str| {
            known.contains(text_key(query), text_key(text))
        };
        for known in [&one, &two] {
            assert!(["a", "b", "c"].iter().all(|text| contains(known, "q", text)));
            assert!(known.several(text_key("r")).is_empty(), "both say the same");
        }
        assert!(none.is_empty());
    }

    #[test]
    fn texts_of_a_class_are_each_others_positives() {
        let mut gathering = Gathering::default();
        let classes = [("a", vec![0]), ("b", vec![0, 1]), ("c", vec![1]), ("d", vec![2])];
        gathering.set_classes(classes.map(|(text, classes)| (text_key(text), classes)).into());
        let known = gathering.finish();
        let contains = |query, text| known.contains(text_key(query), text_key(text));
        assert!(contains("a", "b") && contains("b", "c") && !contains("a", "c"));
        let keys = ["a", "b", "c", "d"].map(text_key);
        let places = known.places(&keys[..2], &keys);
        assert_eq!(places, [HashSet::from([0, 1]), HashSet::from([0, 1, 2])]);
    }
}

//! Passages that this page has shown: only these may go when an index is saved over another.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::kiln::Passage;
use crate::reading;

/// Passages by what they say, whatever their numbers are.
pub(crate) struct Known(HashSet<u64>);

impl Default for Known {
    /// The built-in ones, which the reader can have again at any time.
    fn default() -> Self {
        Self(reading::collection().iter().map(sum).collect())
    }
}

impl Known {
    pub(crate) fn add(&mut self, passages: &[(u32, Passage)]) {
        self.0.extend(passages.iter().map(|(_, passage)| sum(passage)));
    }

    pub(crate) fn has(&self, passage: &Passage) -> bool {
        self.0.contains(&sum(passage))
    }
}

fn sum(Passage { title, text, source }: &Passage) -> u64 {
    let mut hasher = DefaultHasher::new();
    (title, text, source).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passages_are_known_by_what_they_say() {
        let passage = |title: &str, text: &str| Passage {
            title: title.into(),
            text: text.into(),
            source: "notes.md".into(),
        };
        let mut known = Known::default();
        assert!(reading::collection().iter().all(|built_in| known.has(built_in)));
        assert!(!known.has(&passage("ab", "c")));
        known.add(&[(7, passage("ab", "c"))]);
        assert!(known.has(&passage("ab", "c")));
        assert!(!known.has(&passage("a", "bc")));
    }
}

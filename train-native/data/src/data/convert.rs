//! Classes and scored pairs as examples, as NV-Embed makes them (arXiv:2405.17428, section 4.2).

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::{Result, bail};
use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

use super::store::{Store, StoreWriter};
use super::{Example, text_key};
use crate::recipe::Labels;

/// Draws of a negative, for each that is asked for, before a text goes without.
const DRAWS: usize = 1000;

/// Labelled texts that wait for all classes to be known.
pub(super) struct Labelled {
    /// Each text and the instruction of its row.
    texts: StoreWriter,
    /// Number and rows of each label.
    classes: BTreeMap<String, (u32, Vec<u32>)>,
    label_of: Vec<u32>,
    names: Vec<String>,
    /// Number of each row's text, the same for equal texts.
    key_of: Vec<u64>,
    /// The labels of each text; one that is there twice may have two.
    labels_of: HashMap<u64, Vec<u32>>,
}

impl Labelled {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            texts: StoreWriter::new()?,
            classes: BTreeMap::new(),
            label_of: Vec::new(),
            names: Vec::new(),
            key_of: Vec::new(),
            labels_of: HashMap::new(),
        })
    }

    pub(super) fn push(
        &mut self,
        text: &str,
        label: String,
        instruction: Option<&str>,
    ) -> Result<()> {
        let row = self.texts.len() as u32;
        self.texts.push(&(text, instruction))?;
        let class = self.classes.entry(label).or_insert_with_key(|label| {
            self.names.push(label.clone());
            (self.names.len() as u32 - 1, Vec::new())
        });
        self.label_of.push(class.0);
        class.1.push(row);
        let key = text_key(text);
        self.key_of.push(key);
        let labels = self.labels_of.entry(key).or_default();
        if !labels.contains(&class.0) {
            labels.push(class.0);
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// Whether a text's positive is its label's name.
    pub(super) fn by_name(&self, labels: Labels) -> bool {
        labels == Labels::Names || self.names.len() == 2
    }

    /// The labels of each text, by its number.
    pub(super) fn labels_of(&self) -> HashMap<u64, Vec<u32>> {
        self.labels_of.clone()
    }

    /// One example a text. A text's positive is another text of its class, and its negatives have
    /// none of that class's texts; texts whose class has no other text are left out and counted.
    pub(super) fn examples(
        self,
        labels: Labels,
        negatives: usize,
        rng: &mut ChaCha8Rng,
        mut each: impl FnMut(Example) -> Result<()>,
    ) -> Result<usize> {
        let by_name = self.by_name(labels);
        let Self { texts, classes, label_of, names, key_of, labels_of } = self;
        if names.len() < 2 {
            bail!("all texts have the label {:?}; triplets need at least two labels", names[0]);
        }
        let store = texts.finish()?;
        let text = |row: u32, store: &Store| store.get::<(String, Option<String>)>(row as usize);
        // How many texts each class has, each counted once.
        let mut distinct = vec![0; names.len()];
        labels_of.values().flatten().for_each(|&label| distinct[label as usize] += 1);
        let mut lone = 0;
        for row in 0..store.len() {
            let label = label_of[row];
            let (query, instruction) = text(row as u32, &store)?;
            let asked = Example { instruction, query, ..Example::default() };
            let name = &names[label as usize];
            if by_name {
                let mut others: Vec<usize> =
                    (0..names.len()).filter(|&at| at != label as usize).collect();
                let neg = (0..negatives.min(others.len()))
                    .map(|_| spoken(&names[others.swap_remove(rng.random_range(0..others.len()))]))
                    .collect();
                each(Example { pos: vec![spoken(name)], neg, ..asked })?;
                continue;
            }
            let own = key_of[row];
            let Some(other) = another(&classes[name].1, own, &key_of, rng) else {
                lone += 1;
                continue;
            };
            let is_of_class = |key: u64| labels_of[&key].contains(&label);
            let wanted = negatives.min(labels_of.len() - distinct[label as usize]);
            let mut chosen: Vec<u32> = Vec::new();
            let mut seen: HashSet<u64> = HashSet::new();
            for _ in 0..wanted.saturating_mul(DRAWS) {
                if chosen.len() == wanted {
                    break;
                }
                let one = rng.random_range(0..store.len()) as u32;
                let key = key_of[one as usize];
                if !is_of_class(key) && seen.insert(key) {
                    chosen.push(one);
                }
            }
            let neg = chosen
                .into_iter()
                .map(|row| Ok(text(row, &store)?.0))
                .collect::<Result<Vec<String>>>()?;
            each(Example { pos: vec![text(other, &store)?.0], neg, ..asked })?;
        }
        Ok(lone)
    }
}

/// Another text of a class than the one of this number, if it has one.
fn another(class: &[u32], own: u64, key_of: &[u64], rng: &mut ChaCha8Rng) -> Option<u32> {
    let is_other = |row: &u32| key_of[*row as usize] != own;
    // Nearly always one of the first; a class that repeats one text is looked through.
    for _ in 0..16 {
        let row = class[rng.random_range(0..class.len())];
        if is_other(&row) {
            return Some(row);
        }
    }
    let others: Vec<u32> = class.iter().copied().filter(is_other).collect();
    others.choose(rng).copied()
}

/// A label as people say it: `card_arrival` is "card arrival".
fn spoken(label: &str) -> String {
    label.replace('_', " ")
}

/// A pair that is alike enough, as two examples: (a, b) and (b, a), or one.
pub(super) fn pair_examples(
    [first, second]: [String; 2],
    instruction: Option<String>,
    both: bool,
) -> Vec<Example> {
    let example = |query: &str, positive: &str| Example {
        instruction: instruction.clone(),
        ..Example::new(query.into(), positive.into(), Vec::new())
    };
    let mut examples = vec![example(&first, &second)];
    if both {
        examples.push(example(&second, &first));
    }
    examples
}

/// The texts of scored pairs, each once, also those of pairs that are not alike: what negatives are
/// taken from.
pub(super) struct PairTexts {
    writer: StoreWriter,
    seen: HashSet<u64>,
}

impl PairTexts {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { writer: StoreWriter::new()?, seen: HashSet::new() })
    }

    pub(super) fn push(&mut self, text: &str) -> Result<()> {
        match self.seen.insert(text_key(text)) {
            true => self.writer.push(&text),
            false => Ok(()),
        }
    }

    pub(super) fn finish(self) -> Result<Store> {
        self.writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    fn labelled(rows: &[(&str, &str)]) -> Labelled {
        let mut labelled = Labelled::new().unwrap();
        for (text, label) in rows {
            labelled.push(text, label.to_string(), None).unwrap();
        }
        labelled
    }

    fn examples(rows: &[(&str, &str)], labels: Labels, negatives: usize) -> (Vec<Example>, usize) {
        let mut all = Vec::new();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let push = |example| {
            all.push(example);
            Ok(())
        };
        let lone = labelled(rows).examples(labels, negatives, &mut rng, push).unwrap();
        (all, lone)
    }

    const ROWS: [(&str, &str); 7] = [
        ("a1", "class_a"),
        ("a2", "class_a"),
        ("a3", "class_a"),
        ("b1", "b"),
        ("b2", "b"),
        ("c1", "c"),
        ("a4", "class_a"),
    ];

    #[test]
    fn positives_share_the_class_and_negatives_do_not() {
        let (all, lone) = examples(&ROWS, Labels::Examples, 3);
        assert_eq!((all.len(), lone), (6, 1), "c has one text");
        for example in &all {
            let class = &example.query[..1];
            assert!(example.pos[0].starts_with(class) && example.pos[0] != example.query);
            assert_eq!(example.neg.len(), 3);
            assert!(example.neg.iter().all(|text| !text.starts_with(class)));
        }
    }

    #[test]
    fn a_text_that_is_there_twice_is_not_its_own_positive() {
        let rows = [
            ("a1", "a"),
            ("a1", "a"),
            ("A1 ", "a"),
            ("a2", "a"),
            ("b1", "b"),
            ("b1", "b"),
            ("c1", "c"),
            ("both", "b"),
            ("both", "c"),
        ];
        let (all, lone) = examples(&rows, Labels::Examples, 9);
        assert_eq!((all.len(), lone), (9, 0));
        let find = |query: &str| all.iter().filter(|one| one.query == query).collect::<Vec<_>>();
        assert!(find("a1").iter().all(|one| one.pos == ["a2"]), "{all:?}");
        assert!(find("b1").iter().all(|one| one.pos == ["both"]), "{all:?}");
        // A negative is a text of no row of the class, and each text is one once.
        for example in find("a1") {
            let mut negatives = example.neg.clone();
            negatives.sort();
            assert_eq!(negatives, ["b1", "both", "c1"]);
        }
        for example in find("b1") {
            assert!(!example.neg.contains(&"both".to_string()), "{example:?}");
        }
        let (_, lone) = examples(&rows[..6], Labels::Names, 1);
        assert_eq!(lone, 0);
        let alone = [("a1", "a"), ("a1", "a"), ("b1", "b"), ("c1", "c"), ("c2", "c")];
        let (all, lone) = examples(&alone, Labels::Examples, 1);
        assert_eq!((all.len(), lone), (2, 3), "{all:?}");
    }

    #[test]
    fn label_based_and_binary() {
        let (all, _) = examples(&ROWS, Labels::Names, 5);
        assert_eq!(all.len(), 7);
        assert_eq!(all[0].pos, ["class a"]);
        assert_eq!(all[0].neg.len(), 2);
        let (binary, _) = examples(&ROWS[..5], Labels::Examples, 5);
        assert_eq!(
            (binary[4].pos[0].as_str(), binary[4].neg.as_slice()),
            ("b", &["class a".to_string()][..])
        );
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert!(labelled(&ROWS[..3]).examples(Labels::Names, 1, &mut rng, |_| Ok(())).is_err());
    }
}

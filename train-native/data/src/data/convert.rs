//! Classes and scored pairs as examples, as NV-Embed makes them (arXiv:2405.17428, section 4.2).

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use super::Example;
use super::store::{Store, StoreWriter};
use crate::recipe::Labels;

/// Labelled texts that wait for all classes to be known.
pub(super) struct Labelled {
    texts: StoreWriter,
    /// Number and rows of each label.
    classes: BTreeMap<String, (u32, Vec<u32>)>,
    label_of: Vec<u32>,
    names: Vec<String>,
}

impl Labelled {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            texts: StoreWriter::new()?,
            classes: BTreeMap::new(),
            label_of: Vec::new(),
            names: Vec::new(),
        })
    }

    pub(super) fn push(&mut self, text: &str, label: String) -> Result<()> {
        let row = self.texts.len() as u32;
        self.texts.push(&text)?;
        let class = self.classes.entry(label).or_insert_with_key(|label| {
            self.names.push(label.clone());
            (self.names.len() as u32 - 1, Vec::new())
        });
        self.label_of.push(class.0);
        class.1.push(row);
        Ok(())
    }

    /// One example a text; texts whose class has no other text are left out and counted.
    pub(super) fn examples(
        self,
        labels: Labels,
        negatives: usize,
        rng: &mut ChaCha8Rng,
        mut each: impl FnMut(Example) -> Result<()>,
    ) -> Result<usize> {
        let Self { texts, classes, label_of, names } = self;
        if names.len() < 2 {
            bail!("all texts have the label {:?}; triplets need at least two labels", names[0]);
        }
        let store = texts.finish()?;
        let text = |row: u32, store: &Store| store.get::<String>(row as usize);
        let by_name = labels == Labels::Names || names.len() == 2;
        let mut lone = 0;
        for row in 0..store.len() {
            let label = label_of[row] as usize;
            let query = text(row as u32, &store)?;
            if by_name {
                let mut others: Vec<usize> = (0..names.len()).filter(|&at| at != label).collect();
                let negatives = (0..negatives.min(others.len()))
                    .map(|_| spoken(&names[others.swap_remove(rng.random_range(0..others.len()))]))
                    .collect();
                each(Example::new(query, spoken(&names[label]), negatives))?;
                continue;
            }
            let (_, class) = &classes[&names[label]];
            if class.len() < 2 {
                lone += 1;
                continue;
            }
            let mut other = class[rng.random_range(0..class.len())];
            while other as usize == row {
                other = class[rng.random_range(0..class.len())];
            }
            let mut chosen: Vec<u32> = Vec::new();
            let available = store.len() - class.len();
            while chosen.len() < negatives.min(available) {
                let one = rng.random_range(0..store.len()) as u32;
                if label_of[one as usize] as usize != label && !chosen.contains(&one) {
                    chosen.push(one);
                }
            }
            let negatives =
                chosen.into_iter().map(|row| text(row, &store)).collect::<Result<_>>()?;
            each(Example::new(query, text(other, &store)?, negatives))?;
        }
        Ok(lone)
    }
}

/// A label as people say it: `card_arrival` is "card arrival".
fn spoken(label: &str) -> String {
    label.replace('_', " ")
}

/// A pair that is alike enough, as two examples: (a, b) and (b, a), or one.
pub(super) fn pair_examples([first, second]: [String; 2], both: bool) -> Vec<Example> {
    let mut examples = vec![Example::new(first.clone(), second.clone(), Vec::new())];
    if both {
        examples.push(Example::new(second, first, Vec::new()));
    }
    examples
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    fn labelled(rows: &[(&str, &str)]) -> Labelled {
        let mut labelled = Labelled::new().unwrap();
        for (text, label) in rows {
            labelled.push(text, label.to_string()).unwrap();
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

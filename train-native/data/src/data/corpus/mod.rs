//! A graded corpus in our own words, made up by a typed generator: entities of several kinds,
//! their attributes, questions and passages about them, negatives of four levels, classes and
//! similarity pairs. Everything follows from the seed.
//!
//! Entities are split before any text is made, so no test entity, and hence no test passage or
//! query, is ever seen in training; only the kinds, the attributes and their wordings are.

mod kinds;
mod names;

use std::collections::BTreeMap;

use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use self::kinds::{Attribute, KINDS, Kind, Values};
use super::Example;

/// How large a corpus to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CorpusSize {
    /// Training entities of each kind; two at least are made, so that there are negatives.
    pub train: usize,
    /// Test entities of each kind.
    pub test: usize,
    /// Training questions of each fact.
    pub questions: usize,
}

impl Default for CorpusSize {
    fn default() -> Self {
        Self { train: 64, test: 12, questions: 2 }
    }
}

/// A retrieval test: passages, queries, and which passage answers which query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetrievalSet {
    /// Passages.
    pub corpus: Vec<String>,
    /// Queries.
    pub queries: Vec<String>,
    /// Row of the passage that answers each query.
    pub relevant: Vec<usize>,
    /// What each passage is about (`ship`, `town`, ..).
    pub kinds: Vec<&'static str>,
}

/// The generated corpus.
#[derive(Debug, Clone, PartialEq)]
pub struct Corpus {
    /// Question, passage, and negatives of four levels, hardest first: another fact of the same
    /// entity; the same fact of another entity of its kind; another fact of another entity of
    /// its kind; a fact of another kind.
    pub retrieval: Vec<Example>,
    /// A passage, another of its class (what kind of answer it gives), and three of others.
    pub classes: Vec<Example>,
    /// The same passages, each with the name of its class, and those of three others.
    pub class_names: Vec<Example>,
    /// Two passages that state the same fact in other words, both ways round, and a near miss.
    pub pairs: Vec<Example>,
    /// Held-out entities.
    pub test: RetrievalSet,
}

/// One entity with a value for each attribute of its kind.
struct Entity {
    kind: &'static Kind,
    name: String,
    values: Vec<String>,
}

/// One attribute of one entity.
#[derive(Clone, Copy)]
struct Fact<'a> {
    entity: &'a Entity,
    index: usize,
}

impl Fact<'_> {
    fn attribute(&self) -> &'static Attribute {
        &self.entity.kind.attributes[self.index]
    }

    fn fill(&self, template: &str) -> String {
        template.replace("{e}", &self.entity.name).replace("{v}", &self.entity.values[self.index])
    }

    fn question(&self, rng: &mut ChaCha8Rng) -> String {
        self.fill(pick(self.attribute().questions, rng))
    }

    /// A sentence that states the fact, and often one that introduces the entity.
    fn passage(&self, rng: &mut ChaCha8Rng) -> String {
        let fact = sentence(&self.fill(pick(self.attribute().statements, rng)));
        let intro = sentence(&self.fill(pick(self.entity.kind.introductions, rng)));
        match rng.random_range(0..4) {
            0 => fact,
            1 => format!("{fact} {intro}"),
            _ => format!("{intro} {fact}"),
        }
    }
}

/// The text with a capital at its start.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn pick<'a>(choices: &[&'a str], rng: &mut ChaCha8Rng) -> &'a str {
    choices.choose(rng).copied().unwrap_or_default()
}

impl Corpus {
    /// The corpus of a seed.
    pub fn generate(seed: u64, size: CorpusSize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut names = names::Names::default();
        let mut entities = |count: usize, rng: &mut ChaCha8Rng| -> Vec<Entity> {
            let kinds = KINDS.iter().flat_map(|kind| std::iter::repeat_n(kind, count));
            kinds.map(|kind| entity(kind, &mut names, rng)).collect()
        };
        let (train, test) = (entities(size.train.max(2), &mut rng), entities(size.test, &mut rng));
        let retrieval = retrieval(&train, size.questions, &mut rng);
        let (classes, class_names) = classes(&train, &mut rng);
        let pairs = pairs(&train, &mut rng);
        Self { retrieval, classes, class_names, pairs, test: retrieval_set(&test, &mut rng) }
    }

    /// All texts that training may see, for a tokenizer.
    pub fn training_texts(&self) -> impl Iterator<Item = &str> {
        [&self.retrieval, &self.classes, &self.pairs]
            .into_iter()
            .flatten()
            .flat_map(|example| [&example.query].into_iter().chain(&example.pos))
            .map(String::as_str)
    }
}

fn entity(kind: &'static Kind, names: &mut names::Names, rng: &mut ChaCha8Rng) -> Entity {
    let name = names.fresh(kind.naming, rng);
    let value = |attribute: &Attribute, rng: &mut ChaCha8Rng| match attribute.values {
        Values::Words(words) => pick(words, rng).to_string(),
        Values::Year(from, to) => rng.random_range(from..to).to_string(),
        Values::Number { from, to, step } => {
            (rng.random_range(from / step..to / step) * step).to_string()
        }
        Values::Name(naming) => names::invent(naming, rng),
    };
    let values = kind.attributes.iter().map(|attribute| value(attribute, rng)).collect();
    Entity { kind, name, values }
}

fn facts(entities: &[Entity]) -> Vec<Fact<'_>> {
    let of = |entity| (0..KINDS[0].attributes.len()).map(move |index| Fact { entity, index });
    entities.iter().flat_map(of).collect()
}

fn retrieval(entities: &[Entity], questions: usize, rng: &mut ChaCha8Rng) -> Vec<Example> {
    let facts = facts(entities);
    let draw = |rng: &mut ChaCha8Rng, fits: &dyn Fn(&Fact<'_>) -> bool| -> String {
        loop {
            if let Some(fact) = facts.choose(rng).filter(|fact| fits(fact)) {
                return fact.passage(rng);
            }
        }
    };
    let mut examples = Vec::new();
    for fact in &facts {
        let same_entity = |other: &Fact<'_>| std::ptr::eq(other.entity, fact.entity);
        let same_kind = |other: &Fact<'_>| std::ptr::eq(other.entity.kind, fact.entity.kind);
        for _ in 0..questions {
            let count = fact.entity.kind.attributes.len();
            let sibling = Fact {
                entity: fact.entity,
                index: (fact.index + rng.random_range(1..count)) % count,
            };
            let negatives = vec![
                sibling.passage(rng),
                draw(rng, &|o| same_kind(o) && !same_entity(o) && o.index == fact.index),
                draw(rng, &|o| same_kind(o) && !same_entity(o) && o.index != fact.index),
                draw(rng, &|o| !same_kind(o)),
            ];
            examples.push(Example::new(fact.question(rng), fact.passage(rng), negatives));
        }
    }
    examples.shuffle(rng);
    examples
}

/// Passages by example, and the same by the names of their classes.
fn classes(entities: &[Entity], rng: &mut ChaCha8Rng) -> (Vec<Example>, Vec<Example>) {
    let mut by_class: BTreeMap<&str, Vec<Fact<'_>>> = BTreeMap::new();
    for fact in facts(entities) {
        by_class.entry(fact.attribute().class).or_default().push(fact);
    }
    let names: Vec<&str> = by_class.keys().copied().collect();
    let (mut examples, mut by_name) = (Vec::new(), Vec::new());
    for _ in 0..entities.len() {
        let class = pick(&names, rng);
        let others: Vec<&str> = names.iter().copied().filter(|name| *name != class).collect();
        let text = |class: &str, rng: &mut ChaCha8Rng| {
            by_class[class].choose(rng).map(|fact| fact.passage(rng)).unwrap_or_default()
        };
        let query = text(class, rng);
        let positive = text(class, rng);
        let others = others.choose_multiple(rng, 3).copied().collect::<Vec<_>>();
        let negatives = others.iter().map(|&class| text(class, rng)).collect();
        if query != positive {
            let others = others.into_iter().map(String::from).collect();
            by_name.push(Example::new(query.clone(), class.to_string(), others));
            examples.push(Example::new(query, positive, negatives));
        }
    }
    (examples, by_name)
}

fn pairs(entities: &[Entity], rng: &mut ChaCha8Rng) -> Vec<Example> {
    let mut examples = Vec::new();
    for entity in entities {
        let count = entity.kind.attributes.len();
        let fact = Fact { entity, index: rng.random_range(0..count) };
        let near = Fact { entity, index: (fact.index + 1) % count };
        let (a, b) = (fact.passage(rng), fact.passage(rng));
        if a != b {
            examples.push(Example::new(a.clone(), b.clone(), vec![near.passage(rng)]));
            examples.push(Example::new(b, a, vec![near.passage(rng)]));
        }
    }
    examples.shuffle(rng);
    examples
}

fn retrieval_set(entities: &[Entity], rng: &mut ChaCha8Rng) -> RetrievalSet {
    let mut facts = facts(entities);
    facts.shuffle(rng);
    RetrievalSet {
        corpus: facts.iter().map(|fact| fact.passage(rng)).collect(),
        queries: facts.iter().map(|fact| fact.question(rng)).collect(),
        relevant: (0..facts.len()).collect(),
        kinds: facts.iter().map(|fact| fact.entity.kind.noun).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn small() -> Corpus {
        Corpus::generate(7, CorpusSize { train: 6, test: 3, questions: 2 })
    }

    #[test]
    fn the_seed_decides_everything() {
        assert_eq!(small(), small());
        assert_ne!(small(), Corpus::generate(8, CorpusSize { train: 6, test: 3, questions: 2 }));
    }

    #[test]
    fn nothing_of_the_test_is_in_training() {
        let corpus = small();
        let seen: HashSet<&str> = [&corpus.retrieval, &corpus.classes, &corpus.pairs]
            .into_iter()
            .flatten()
            .flat_map(|e| [&e.query].into_iter().chain(&e.pos).chain(&e.neg))
            .map(String::as_str)
            .collect();
        for text in corpus.test.corpus.iter().chain(&corpus.test.queries) {
            assert!(!seen.contains(text.as_str()), "{text}");
        }
    }

    #[test]
    fn every_text_is_filled_in() {
        let corpus = small();
        let kinds = KINDS.len();
        assert_eq!(corpus.retrieval.len(), kinds * 6 * 5 * 2);
        assert_eq!(corpus.test.queries.len(), kinds * 3 * 5);
        for text in corpus.training_texts().chain(corpus.test.queries.iter().map(String::as_str)) {
            assert!(!text.contains(['{', '}']) && !text.is_empty(), "{text}");
        }
        assert!(corpus.retrieval.iter().all(|example| example.neg.len() == 4));
    }

    #[test]
    fn the_answer_is_not_a_negative() {
        for example in small().retrieval {
            assert!(!example.neg.contains(&example.pos[0]), "{example:?}");
        }
        let corpus = small();
        assert_eq!(corpus.classes.len(), corpus.class_names.len());
        for (example, named) in corpus.classes.iter().zip(&corpus.class_names) {
            assert_eq!((&example.query, named.neg.len()), (&named.query, 3));
            assert!(!named.neg.contains(&named.pos[0]), "{named:?}");
        }
    }

    #[test]
    fn all_kinds_have_five_attributes_with_several_wordings() {
        for kind in KINDS {
            assert_eq!(kind.attributes.len(), 5, "{}", kind.noun);
            for attribute in kind.attributes {
                assert!(
                    attribute.questions.len() >= 4 && attribute.statements.len() >= 3,
                    "{}",
                    kind.noun
                );
            }
        }
    }
}

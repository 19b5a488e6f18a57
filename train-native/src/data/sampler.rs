//! Draws batches: shuffled by seed and epoch, no text twice in a batch, negatives by curriculum.

use std::collections::{HashSet, VecDeque};

use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Example;
use crate::recipe::{Curriculum, Stage};

/// The texts of one batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The queries.
    pub queries: Vec<String>,
    /// Each query's positive, then its hard negatives, query by query.
    pub documents: Vec<String>,
}

/// An endless, deterministic stream of batches over examples.
pub struct Sampler<'a> {
    examples: &'a [Example],
    rng: ChaCha8Rng,
    /// Examples to come, the next at the front.
    queue: VecDeque<usize>,
}

impl<'a> Sampler<'a> {
    /// A stream that is the same for the same examples and seed.
    pub fn new(examples: &'a [Example], seed: u64) -> Self {
        Self { examples, rng: ChaCha8Rng::seed_from_u64(seed), queue: VecDeque::new() }
    }

    /// The next batch of a stage, drawn for one of its steps (from 0).
    ///
    /// An example whose query or positive already stands in the batch waits for the next batch.
    /// A batch is smaller than asked only where the examples have too few distinct texts.
    pub fn next(&mut self, stage: &Stage, step: usize) -> Batch {
        let draw = self.rng.random_range(0..usize::MAX);
        let mut batch = Batch { queries: Vec::new(), documents: Vec::new() };
        let mut seen: HashSet<&str> = HashSet::new();
        let mut waiting = Vec::new();
        let mut refills = 0;
        while batch.queries.len() < stage.batch_size {
            let Some(at) = self.queue.pop_front() else {
                if refills == 1 {
                    break;
                }
                refills += 1;
                let mut order: Vec<usize> = (0..self.examples.len()).collect();
                order.shuffle(&mut self.rng);
                self.queue.extend(order);
                continue;
            };
            let example = &self.examples[at];
            let positive = &example.pos[self.rng.random_range(0..example.pos.len())];
            if seen.contains(example.query.as_str()) || seen.contains(positive.as_str()) {
                waiting.push(at);
                continue;
            }
            seen.extend([example.query.as_str(), positive.as_str()]);
            batch.queries.push(example.query.clone());
            batch.documents.push(positive.clone());
            let negatives = self.negatives(example, stage, step, draw);
            batch.documents.extend(negatives);
        }
        for at in waiting.into_iter().rev() {
            self.queue.push_front(at);
        }
        batch
    }

    /// As many negatives as the stage asks for. An example with fewer gets other examples'
    /// positives in their place, so that every row has as many.
    fn negatives(
        &mut self,
        example: &Example,
        stage: &Stage,
        step: usize,
        draw: usize,
    ) -> Vec<String> {
        let levels = example.neg.len();
        let first = first_level(stage, step, levels, draw);
        let mut chosen: Vec<String> = (0..stage.hard_negatives.min(levels))
            .map(|at| example.neg[(first + at) % levels].clone())
            .collect();
        let mut tries = 0;
        while chosen.len() < stage.hard_negatives {
            let other = &self.examples[self.rng.random_range(0..self.examples.len())];
            tries += 1;
            // A lone example has nothing else to offer.
            if tries > 100 || !example.pos.contains(&other.pos[0]) {
                chosen.push(other.pos[0].clone());
            }
        }
        chosen
    }
}

/// Index of the first negative to take, 0 being the hardest level.
fn first_level(stage: &Stage, step: usize, levels: usize, draw: usize) -> usize {
    if levels == 0 {
        return 0;
    }
    let phase = (step * levels / stage.steps).min(levels - 1);
    match stage.curriculum {
        Curriculum::Given => 0,
        Curriculum::CoarseToFine => levels - 1 - phase,
        Curriculum::FineToCoarse => phase,
        Curriculum::Random => draw % levels,
        Curriculum::Fixed(level) => (level - 1).min(levels - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(batch_size: usize, curriculum: Curriculum) -> Stage {
        Stage {
            name: "s".into(),
            data: vec!["d".into()],
            steps: 8,
            batch_size,
            accumulation: 1,
            hard_negatives: 1,
            curriculum,
            lr: 1e-3,
            warmup: 0,
            schedule: Default::default(),
            weight_decay: 0.0,
            clip_norm: 0.0,
            loss: Default::default(),
        }
    }

    fn examples(count: usize) -> Vec<Example> {
        let negatives = |n: usize| (1..=4).map(|level| format!("n{n}.{level}")).collect();
        (0..count).map(|n| Example::new(format!("q{n}"), format!("p{n}"), negatives(n))).collect()
    }

    #[test]
    fn an_epoch_sees_every_example_once() {
        let examples = examples(10);
        let mut sampler = Sampler::new(&examples, 3);
        let stage = stage(5, Curriculum::Given);
        let mut seen: Vec<String> =
            (0..2).flat_map(|step| sampler.next(&stage, step).queries).collect();
        seen.sort();
        let mut all: Vec<String> = examples.iter().map(|example| example.query.clone()).collect();
        all.sort();
        assert_eq!(seen, all);
    }

    #[test]
    fn the_same_seed_gives_the_same_batches() {
        let examples = examples(10);
        let run = |seed| {
            let mut sampler = Sampler::new(&examples, seed);
            (0..6).map(|step| sampler.next(&stage(4, Curriculum::Random), step)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn the_curriculum_runs_from_easy_to_hard() {
        let examples = examples(1);
        let levels = |curriculum| {
            let mut sampler = Sampler::new(&examples, 1);
            (0..8)
                .map(|step| sampler.next(&stage(1, curriculum), step).documents[1].clone())
                .map(|text| text[3..].parse::<usize>().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(levels(Curriculum::CoarseToFine), [4, 4, 3, 3, 2, 2, 1, 1]);
        assert_eq!(levels(Curriculum::FineToCoarse), [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(levels(Curriculum::Fixed(2)), [2; 8]);
        assert_eq!(levels(Curriculum::Given), [1; 8]);
    }

    #[test]
    fn no_text_stands_twice_in_a_batch() {
        let mut examples = examples(6);
        examples[3].query = "q0".into();
        examples[4].pos = vec!["p1".into()];
        let mut sampler = Sampler::new(&examples, 5);
        for step in 0..40 {
            let batch = sampler.next(&stage(4, Curriculum::Given), step);
            let mut texts: Vec<&String> =
                batch.queries.iter().chain(batch.documents.iter().step_by(2)).collect();
            let count = texts.len();
            texts.sort();
            texts.dedup();
            assert_eq!(texts.len(), count, "{batch:?}");
            assert_eq!(batch.queries.len(), 4);
        }
    }
}

//! Draws batches: shuffled by seed and epoch, no text twice in a batch, negatives by curriculum.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use anyhow::Result;
use kiln_embed::loss::Candidates;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::levels::{Moment, own_negatives};
use super::prompts::SourcePrompts;
use super::{Example, Examples, ModelPrompts, mixed, text_key};
use crate::recipe::{Objective, SamplerKind, Stage};

/// Texts that are drawn to stand in for a query's hard negatives before it goes without.
const STAND_INS: usize = 100;

/// A text with the prompt before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The prompt, perhaps empty.
    pub prompt: Arc<str>,
    /// The text.
    pub text: String,
}

impl Text {
    /// Prompt and text.
    pub fn prompted(&self) -> (&str, &str) {
        (&self.prompt, &self.text)
    }
}

/// The texts of one batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The queries.
    pub queries: Vec<Text>,
    /// Each query's positive and its hard negatives, query by query.
    pub documents: Vec<Text>,
    /// The score that its row gives each document, where it gives one.
    pub scores: Vec<Option<f32>>,
    /// Which document belongs to which query.
    pub candidates: Candidates,
    /// Data set and example of each query, to find a batch again.
    pub ids: Vec<(usize, usize)>,
}

impl Batch {
    /// Prompt and text of each query, then of each document.
    pub fn prompted(&self) -> Vec<(&str, &str)> {
        self.queries.iter().chain(&self.documents).map(Text::prompted).collect()
    }
}

/// Where a stream of batches is; the same state gives the same batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplerState {
    rng: ChaCha8Rng,
    cursors: Vec<Cursor>,
    /// Batches drawn so far.
    batches: usize,
}

/// Where a data set is in its epochs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Cursor {
    epoch: u64,
    position: usize,
    /// Examples that could not stand in their batch, the next at the front.
    waiting: VecDeque<u32>,
}

/// An endless, deterministic stream of batches over data sets.
pub struct Sampler<'a, S> {
    sets: &'a [S],
    stage: &'a Stage,
    seed: u64,
    state: SamplerState,
    /// Order of each set in its present epoch, and which epoch that is.
    orders: Vec<(u64, Vec<u32>)>,
    prompts: Vec<SourcePrompts>,
    shares: Vec<f64>,
    /// Set of each batch, where they come in blocks.
    schedule: Vec<usize>,
}

impl<'a, S: Examples> Sampler<'a, S> {
    /// A stream that is the same for the same data sets, stage and seed.
    pub fn new(sets: &'a [S], stage: &'a Stage, seed: u64, prompts: ModelPrompts<'_>) -> Self {
        let state = SamplerState {
            rng: ChaCha8Rng::seed_from_u64(seed),
            cursors: vec![Cursor::default(); sets.len()],
            batches: 0,
        };
        let prompts = sets.iter().map(|set| SourcePrompts::new(set.source(), prompts)).collect();
        let shares: Vec<f64> = sets
            .iter()
            .map(|set| set.source().weight.unwrap_or_else(|| stage.mixing.share(set.count())))
            .collect();
        let schedule = match stage.sampler {
            SamplerKind::Blocks(blocks) => {
                block_schedule(&shares, stage.steps * stage.accumulation, blocks, seed)
            }
            _ => Vec::new(),
        };
        let orders = vec![(0, Vec::new()); sets.len()];
        Self { sets, stage, seed, state, orders, prompts, shares, schedule }
    }

    /// Where the stream is.
    pub fn state(&self) -> &SamplerState {
        &self.state
    }

    /// Goes to where another stream was; where that was of other sets, as far as these have it.
    pub fn restore(&mut self, mut state: SamplerState) {
        state.cursors.resize(self.sets.len(), Cursor::default());
        for (cursor, set) in state.cursors.iter_mut().zip(self.sets) {
            let count = set.count();
            cursor.position = cursor.position.min(count);
            cursor.waiting.retain(|i| (*i as usize) < count);
        }
        self.state = state;
    }

    /// The next batch, drawn for one of the stage's steps (from 0).
    ///
    /// An example with in-batch negatives one of whose texts already stands in the batch waits for
    /// the next batch; names of labels, which stand for whole classes, may repeat. A batch is smaller
    /// than asked only where the sets have too few distinct texts.
    ///
    /// # Errors
    /// The examples cannot be read.
    pub fn next(&mut self, step: usize) -> Result<Batch> {
        let draw = self.state.rng.random_range(0..usize::MAX);
        let homogeneous = self.set_of_batch();
        self.state.batches = self.state.batches.wrapping_add(1);
        let mut batch = Batch::default();
        let mut seen: HashSet<String> = HashSet::new();
        let mut waiting: Vec<(usize, u32)> = Vec::new();
        let mut fruitless = 0;
        let most = 3 * match homogeneous {
            Some(set) => self.sets[set].count(),
            None => self.sets.iter().map(S::count).sum::<usize>(),
        };
        while batch.queries.len() < self.stage.batch_size && fruitless < most {
            let set = homogeneous.unwrap_or_else(|| self.draw_set());
            let i = self.next_example(set);
            let mut example = self.sets[set].example(i as usize)?;
            let mut positive_score = None;
            // Texts for distillation stand alone.
            let positive = match example.pos.len() {
                0 => None,
                count => {
                    let drawn = self.state.rng.random_range(0..count);
                    positive_score = example.pos_scores.get(drawn).copied();
                    Some(example.pos.swap_remove(drawn))
                }
            };
            let levels = self.sets[set].levels();
            let moment = Moment { step, draw, levels };
            let own = own_negatives(self.stage, &example, moment, &mut self.state.rng);
            // Queries without in-batch negatives see their own documents only.
            let alone = !self.in_batch(set);
            // The loss hides names of labels that answer a query.
            let repeat = self.sets[set].documents_repeat();
            let documents = positive.iter().chain(&own).filter(|_| !repeat);
            let texts = [&example.query].into_iter().chain(documents);
            if !alone && texts.clone().any(|text| seen.contains(text)) {
                waiting.push((set, i));
                fruitless += 1;
                continue;
            }
            fruitless = 0;
            seen.extend(texts.cloned());
            self.push(&mut batch, (set, i as usize), example, (positive, positive_score), own)?;
        }
        self.wait(waiting);
        number_texts(&mut batch);
        self.know_positives(&mut batch);
        Ok(batch)
    }

    /// Puts examples in front of those that wait, in their order.
    fn wait(&mut self, mut waiting: Vec<(usize, u32)>) {
        if waiting.is_empty() {
            return;
        }
        // Once is enough, or sets with few distinct texts would wait in ever longer queues.
        let mut once: HashSet<(usize, u32)> = HashSet::new();
        waiting.retain(|example| once.insert(*example));
        for (set, cursor) in self.state.cursors.iter_mut().enumerate() {
            cursor.waiting.retain(|i| !once.contains(&(set, *i)));
        }
        for (set, i) in waiting.into_iter().rev() {
            self.state.cursors[set].waiting.push_front(i);
        }
    }

    fn push(
        &mut self,
        batch: &mut Batch,
        (set, i): (usize, usize),
        example: Example,
        (positive, positive_score): (Option<String>, Option<f32>),
        mut negatives: Vec<String>,
    ) -> Result<()> {
        let in_batch = self.in_batch(set);
        // Without in-batch negatives every query needs its own: other examples' positives stand in.
        if !in_batch && self.stage.objective == Objective::Contrastive {
            let query = text_key(&example.query);
            for _ in 0..STAND_INS {
                if negatives.len() >= self.stage.hard_negatives {
                    break;
                }
                let Some(other) = self.sets[set].stand_in(&mut self.state.rng)? else { continue };
                let known = positive.as_ref() == Some(&other)
                    || other == example.query
                    || example.pos.contains(&other)
                    || self.sets[set].known().contains(query, text_key(&other));
                if !known && !negatives.contains(&other) {
                    negatives.push(other);
                }
            }
        }
        let own = example.instruction.as_deref();
        let [query_prompt, document_prompt] = self.prompts[set].draw(own, &mut self.state.rng);
        let query = batch.queries.len();
        batch.scores.extend(positive.is_some().then_some(positive_score));
        let score = |text: &String| {
            let place = example.neg.iter().position(|known| known == text)?;
            example.neg_scores.get(place).copied()
        };
        batch.scores.extend(negatives.iter().map(score));
        batch.queries.push(Text { prompt: query_prompt, text: example.query });
        if positive.is_some() {
            batch.candidates.positive.push(batch.documents.len());
        }
        batch.candidates.in_batch.push(in_batch);
        batch.ids.push((set, i));
        for text in positive.into_iter().chain(negatives) {
            batch.documents.push(Text { prompt: document_prompt.clone(), text });
            batch.candidates.owner.push(query);
        }
        Ok(())
    }

    fn in_batch(&self, set: usize) -> bool {
        let mixes = match self.stage.objective {
            // Pairs with scores say nothing of other pairs' texts.
            Objective::Similarity => false,
            Objective::Rerank => self.stage.rerank.unwrap_or_default().num_negatives() > 0,
            _ => true,
        };
        mixes && self.sets[set].source().in_batch.unwrap_or(self.stage.loss.in_batch)
    }

    /// The set of the next batch where batches are homogeneous.
    fn set_of_batch(&mut self) -> Option<usize> {
        match self.stage.sampler {
            SamplerKind::Blended => None,
            SamplerKind::Homogeneous => Some(self.draw_set()),
            SamplerKind::Blocks(_) => Some(self.schedule[self.state.batches % self.schedule.len()]),
            SamplerKind::Mixed => {
                // The accumulated batches of a step go through the sets in turn, by share: batch n
                // goes to the set that is furthest behind its share of the first n + 1 batches.
                let total: f64 = self.shares.iter().sum();
                let mut given = vec![0usize; self.shares.len()];
                let mut chosen = 0;
                for batch in 0..=self.state.batches % 10_000 {
                    let behind = |set: usize, given: &[usize]| {
                        self.shares[set] / total * (batch + 1) as f64 - given[set] as f64
                    };
                    chosen = (0..given.len())
                        .max_by(|&a, &b| {
                            behind(a, &given).total_cmp(&behind(b, &given)).then(b.cmp(&a))
                        })
                        .unwrap_or(0);
                    given[chosen] += 1;
                }
                Some(chosen)
            }
        }
    }

    fn draw_set(&mut self) -> usize {
        if self.sets.len() == 1 {
            return 0;
        }
        let total: f64 = self.shares.iter().sum();
        let mut left = self.state.rng.random::<f64>() * total;
        for (set, share) in self.shares.iter().enumerate() {
            left -= share;
            if left < 0.0 {
                return set;
            }
        }
        self.sets.len() - 1
    }

    /// The next example of a set: one that waits, or the next of the epoch's order.
    fn next_example(&mut self, set: usize) -> u32 {
        let cursor = &mut self.state.cursors[set];
        if let Some(i) = cursor.waiting.pop_front() {
            return i;
        }
        let length = self.sets[set].count();
        if cursor.position == length {
            (cursor.epoch, cursor.position) = (cursor.epoch.wrapping_add(1), 0);
        }
        let (epoch, order) = &mut self.orders[set];
        if order.is_empty() || *epoch != cursor.epoch {
            *order = (0..length as u32).collect();
            let seed = mixed(&[self.seed, set as u64, cursor.epoch]);
            order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
            *epoch = cursor.epoch;
        }
        cursor.position += 1;
        order[cursor.position - 1]
    }

    /// Notes which documents are known positives of each query, by what the stage's sources say of
    /// queries to which they give several.
    fn know_positives(&self, batch: &mut Batch) {
        let Batch { queries, documents, candidates, .. } = batch;
        candidates.known = vec![HashSet::new(); queries.len()];
        let knowing: Vec<&S> = self.sets.iter().filter(|set| !set.known().is_empty()).collect();
        if knowing.is_empty() {
            return;
        }
        let keys = |texts: &[Text]| texts.iter().map(|text| text_key(&text.text)).collect();
        let (of_queries, of_documents): (Vec<u64>, Vec<u64>) = (keys(queries), keys(documents));
        for set in knowing {
            let places = set.known().places(&of_queries, &of_documents);
            for (known, places) in candidates.known.iter_mut().zip(places) {
                known.extend(places.into_iter().map(|place| candidates.document_text[place]));
            }
        }
    }
}

/// Equal texts get equal numbers.
fn number_texts(batch: &mut Batch) {
    let all: Vec<&Text> = batch.queries.iter().chain(&batch.documents).collect();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    let found: Vec<usize> = all
        .iter()
        .map(|text| {
            let next = seen.len();
            *seen.entry(text.text.as_str()).or_insert(next)
        })
        .collect();
    let queries = batch.queries.len();
    batch.candidates.query_text = found[..queries].to_vec();
    batch.candidates.document_text = found[queries..].to_vec();
}

/// Set of each batch: `blocks` blocks with the same order of sets, each set as often as its share
/// says (largest remainders first). What a block owes a set is left to the next ones, so that small
/// sets get their share, too.
fn block_schedule(shares: &[f64], batches: usize, blocks: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(mixed(&[seed, 0xb10c])));
    let total: f64 = shares.iter().sum();
    let mut given = vec![0usize; shares.len()];
    let mut schedule = Vec::with_capacity(batches);
    for block in 0..blocks {
        let until = batches * (block + 1) / blocks;
        let due = |set: usize| shares[set] / total * until as f64;
        let mut owed: Vec<f64> =
            (0..shares.len()).map(|set| due(set) - given[set] as f64).collect();
        let mut counts = vec![0usize; shares.len()];
        for _ in schedule.len()..until {
            // Of equals the first in the order.
            let most = order.iter().rev().max_by(|a, b| owed[**a].total_cmp(&owed[**b]));
            let Some(&set) = most else { break };
            owed[set] -= 1.0;
            counts[set] += 1;
        }
        for &set in &order {
            given[set] += counts[set];
            schedule.extend(std::iter::repeat_n(set, counts[set]));
        }
    }
    schedule
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{DataSet, OnBadRow, Opening};
    use crate::recipe::{DataSource, LeakRule};
    use kiln_terminal::terminal::Terminal;

    fn stage(text: &str) -> Stage {
        let usual = "name = 's'\ndata = ['d']\nlr = 1e-3\nsteps = 8\n";
        toml::from_str(&format!("{usual}{text}")).unwrap()
    }

    /// Sets of the given sizes, with texts `a0`, `b0`, ... and four graded negatives.
    fn sets(sizes: &[usize]) -> Vec<DataSet> {
        let folder = tempfile::tempdir().unwrap();
        let opening = Opening {
            folder: folder.path(),
            on_bad_row: OnBadRow::Stop,
            leaks: None,
            leak: LeakRule::None,
            deduplicate: false,
            texts_alone: false,
            scored: false,
            binary: false,
            negatives: 1,
            seed: 1,
            terminal: Terminal { json: false, quiet: true },
        };
        let names = ["a", "b", "c"];
        sizes
            .iter()
            .zip(names)
            .map(|(size, name)| {
                let lines: Vec<String> = (0..*size)
                    .map(|n| {
                        let neg: Vec<String> = (1..=4).map(|l| format!("n{name}{n}.{l}")).collect();
                        serde_json::json!({"query": format!("{name}{n}"), "pos": [format!("p{name}{n}")], "neg": neg})
                            .to_string()
                    })
                    .collect();
                std::fs::write(folder.path().join(format!("{name}.jsonl")), lines.join("\n")).unwrap();
                DataSet::open(&DataSource::file(&format!("{name}.jsonl")), &opening).unwrap()
            })
            .collect()
    }

    /// A set of the lines of one file.
    fn set_of(name: &str, lines: &str, change: fn(&mut DataSource)) -> DataSet {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), lines).unwrap();
        let opening = Opening {
            folder: folder.path(),
            on_bad_row: OnBadRow::Stop,
            leaks: None,
            leak: LeakRule::None,
            deduplicate: true,
            texts_alone: false,
            scored: false,
            binary: false,
            negatives: 1,
            seed: 1,
            terminal: Terminal { json: false, quiet: true },
        };
        let mut source = DataSource::file(name);
        change(&mut source);
        DataSet::open(&source, &opening).unwrap()
    }

    fn texts(all: &[Text]) -> Vec<&str> {
        all.iter().map(|text| text.text.as_str()).collect()
    }

    #[test]
    fn an_epoch_sees_every_example_once() {
        let sets = sets(&[10]);
        let stage = stage("batch_size = 5");
        let mut sampler = Sampler::new(&sets, &stage, 3, ModelPrompts::default());
        let mut seen: Vec<String> = (0..2)
            .flat_map(|step| sampler.next(step).unwrap().queries)
            .map(|text| text.text)
            .collect();
        seen.sort();
        assert_eq!(seen, (0..10).map(|n| format!("a{n}")).collect::<Vec<_>>());
    }

    #[test]
    fn a_restored_state_goes_on_with_the_same_batches() {
        let sets = sets(&[7, 4]);
        let stage = stage("batch_size = 3\ncurriculum = 'sampled'");
        let mut sampler = Sampler::new(&sets, &stage, 3, ModelPrompts::new(["q: ", ""], None));
        (0..5).for_each(|step| drop(sampler.next(step).unwrap()));
        let saved = serde_json::to_string(sampler.state()).unwrap();
        let rest: Vec<Batch> = (5..9).map(|step| sampler.next(step).unwrap()).collect();
        let mut other = Sampler::new(&sets, &stage, 3, ModelPrompts::new(["q: ", ""], None));
        other.restore(serde_json::from_str(&saved).unwrap());
        assert_eq!(rest, (5..9).map(|step| other.next(step).unwrap()).collect::<Vec<_>>());
        let mut third = Sampler::new(&sets, &stage, 4, ModelPrompts::new(["q: ", ""], None));
        assert_ne!(rest[0], third.next(0).unwrap());
        assert_eq!(&*rest[0].queries[0].prompt, "q: ");
    }

    #[test]
    fn the_curriculum_runs_from_easy_to_hard() {
        let sets = sets(&[1]);
        let levels = |curriculum: &str| {
            let stage = stage(&format!("batch_size = 1\ncurriculum = {curriculum}"));
            let mut sampler = Sampler::new(&sets, &stage, 1, ModelPrompts::default());
            (0..8)
                .map(|step| sampler.next(step).unwrap().documents[1].text.clone())
                .map(|text| text[4..].parse::<usize>().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(levels("'coarse_to_fine'"), [4, 4, 3, 3, 2, 2, 1, 1]);
        assert_eq!(levels("'fine_to_coarse'"), [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(levels("{ fixed = 2 }"), [2; 8]);
        assert_eq!(levels("'given'"), [1; 8]);
        assert!(levels("'random'").iter().collect::<HashSet<_>>().len() > 1);
    }

    #[test]
    fn no_text_stands_twice_in_a_batch() {
        let lines = "{\"query\":\"q0\",\"pos\":[\"p0\"]}\n{\"query\":\"q1\",\"pos\":[\"p1\"]}\n\
                     {\"query\":\"q0\",\"pos\":[\"p2\"]}\n{\"query\":\"q3\",\"pos\":[\"p1\"]}\n\
                     {\"query\":\"p0\",\"pos\":[\"q0\"]}\n{\"query\":\"q5\",\"pos\":[\"p5\"]}\n";
        let sets = [set_of("a.jsonl", lines, |_| {})];
        let stage = stage("batch_size = 3");
        let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
        let mut drawn = HashSet::new();
        for step in 0..40 {
            let batch = sampler.next(step).unwrap();
            let mut all = texts(&batch.queries);
            all.extend(texts(&batch.documents));
            let distinct: HashSet<&str> = all.iter().copied().collect();
            assert_eq!(distinct.len(), all.len(), "{batch:?}");
            assert_eq!(batch.queries.len(), 3);
            drawn.extend(batch.ids);
        }
        assert_eq!(drawn.len(), 6, "those that wait get their turn");
        // More than there are distinct texts: a smaller batch, and no endless search.
        let big = self::stage("batch_size = 50");
        assert_eq!(
            Sampler::new(&sets, &big, 5, ModelPrompts::default()).next(0).unwrap().queries.len(),
            3
        );
    }

    #[test]
    fn names_of_labels_repeat_in_a_batch() {
        let row =
            |n: usize| format!("text {n}\t{}\n", if n.is_multiple_of(2) { "good" } else { "bad" });
        let lines: String = (0..40).map(row).collect();
        let sets = [set_of("c.tsv", &format!("text\tlabel\n{lines}"), |_| {})];
        let stage = stage("batch_size = 8");
        let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
        let mut queries = HashSet::new();
        for step in 0..5 {
            let batch = sampler.next(step).unwrap();
            assert_eq!(batch.queries.len(), 8, "{batch:?}");
            let documents: HashSet<&str> = texts(&batch.documents).into_iter().collect();
            assert_eq!(documents, HashSet::from(["good", "bad"]));
            queries.extend(batch.queries.into_iter().map(|text| text.text));
        }
        assert_eq!(queries.len(), 40, "none waits");
    }

    #[test]
    fn a_batch_of_a_small_set_looks_at_that_set_alone() {
        let sets = sets(&[4, 400]);
        let stage = stage("batch_size = 8\nsampler = 'homogeneous'\nmixing = 'uniform'");
        let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
        let mut batches = (0..20).map(|step| sampler.next(step).unwrap());
        let batch = batches.find(|batch| batch.ids[0].0 == 0).unwrap();
        assert_eq!(batch.queries.len(), 4);
        let cursor = &sampler.state.cursors[0];
        assert_eq!((cursor.epoch, cursor.waiting.len()), (3, 4));
    }

    #[test]
    fn blocks_give_small_sets_their_share() {
        for seed in 0..4 {
            let schedule = block_schedule(&[9000.0, 900.0, 100.0], 100, 10, seed);
            let count = |batches: &[usize], set| batches.iter().filter(|&&of| of == set).count();
            assert_eq!([0, 1, 2].map(|set| count(&schedule, set)), [90, 9, 1]);
            for block in schedule.chunks(10) {
                assert!((8..=10).contains(&count(block, 0)), "{block:?}");
            }
        }
        // Fewer batches than blocks, and sets that would all come first.
        assert_eq!(block_schedule(&[1.0; 5], 3, 7, 1).len(), 3);
        let mut each = block_schedule(&[1.0; 5], 5, 5, 1);
        each.sort_unstable();
        assert_eq!(each, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_state_of_other_sets_ends_nothing() {
        let (many, few) = (sets(&[20, 6]), sets(&[5, 3, 2]));
        for kind in ["'blended'", "'homogeneous'", "{ blocks = 2 }", "'mixed'"] {
            let stage = stage(&format!("batch_size = 2\nsampler = {kind}"));
            let mut sampler = Sampler::new(&many, &stage, 3, ModelPrompts::default());
            (0..8).for_each(|step| drop(sampler.next(step).unwrap()));
            let mut state = sampler.state().clone();
            for _ in 0..2 {
                let mut other = Sampler::new(&few, &stage, 3, ModelPrompts::default());
                other.restore(state.clone());
                for step in 0..8 {
                    assert!(!other.next(step).unwrap().queries.is_empty(), "{kind}");
                }
                let waiting = [1, u32::MAX].into();
                state.cursors[0] = Cursor { epoch: u64::MAX, position: usize::MAX, waiting };
                state.batches = usize::MAX;
            }
        }
    }

    #[test]
    fn without_in_batch_negatives_others_stand_in() {
        let mut sets = sets(&[6]);
        sets[0].source.in_batch = Some(false);
        let stage = stage("batch_size = 2\nhard_negatives = 6");
        let batch = Sampler::new(&sets, &stage, 5, ModelPrompts::default()).next(0).unwrap();
        assert_eq!(batch.documents.len(), 2 * 7);
        assert_eq!(batch.candidates.in_batch, [false, false]);
        assert_eq!(batch.candidates.positive, [0, 7]);
        assert!(batch.documents[5].text.starts_with("pa"), "{batch:?}");
    }

    #[test]
    fn mixtures_and_homogeneous_batches() {
        let sets = sets(&[300, 100]);
        let share = |text: &str| {
            let stage = stage(&format!("batch_size = 20\n{text}"));
            let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
            let all: Vec<usize> = (0..60)
                .flat_map(|step| sampler.next(step).unwrap().ids)
                .map(|(set, _)| set)
                .collect();
            all.iter().filter(|set| **set == 0).count() as f64 / all.len() as f64
        };
        assert!((share("") - 0.75).abs() < 0.05);
        assert!((share("mixing = 'uniform'") - 0.5).abs() < 0.05);
        assert!((share("mixing = { temperature = 2.0 }") - 0.634).abs() < 0.05);

        for kind in ["'homogeneous'", "{ blocks = 2 }", "'mixed'"] {
            let stage = stage(&format!("batch_size = 5\naccumulation = 4\nsampler = {kind}"));
            let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
            let tasks: Vec<usize> = (0..32)
                .map(|batch| {
                    let ids = sampler.next(batch / 4).unwrap().ids;
                    assert!(ids.iter().all(|(set, _)| *set == ids[0].0), "{kind}");
                    ids[0].0
                })
                .collect();
            let first = tasks.iter().filter(|task| **task == 0).count();
            match kind {
                "'homogeneous'" => assert!((16..=31).contains(&first), "{tasks:?}"),
                // Two blocks of 16 batches, the same order in both, 12 to 4.
                "{ blocks = 2 }" => {
                    assert_eq!((first, &tasks[..16]), (24, &tasks[16..]));
                    assert_eq!(tasks.windows(2).filter(|pair| pair[0] != pair[1]).count(), 3);
                }
                // Three to one within every step.
                _ => tasks.chunks(4).for_each(|step| {
                    assert_eq!(step.iter().filter(|task| **task == 0).count(), 3, "{tasks:?}");
                }),
            }
        }
    }

    /// The texts that a batch's query is not told apart from, its own positive left out.
    fn known_texts(batch: &Batch, query: &str) -> HashSet<String> {
        let place = batch.queries.iter().position(|text| text.text == query).unwrap();
        let own = batch.candidates.positive[place];
        (0..batch.documents.len())
            .filter(|&i| i != own)
            .filter(|&i| batch.candidates.known[place].contains(&batch.candidates.document_text[i]))
            .map(|i| batch.documents[i].text.clone())
            .collect()
    }

    #[test]
    fn positives_of_other_rows_are_known_in_the_batch() {
        let lines = "{\"query\":\"q0\",\"pos\":[\"a\"]}\n{\"query\":\"q0\",\"pos\":[\"b\"]}\n\
                     {\"query\":\"q1\",\"pos\":[\"B\"],\"neg\":[\"a\"]}\n{\"query\":\"q2\",\"pos\":[\"c\"]}\n";
        let sets = [set_of("a.jsonl", lines, |_| {})];
        let stage = stage("batch_size = 3");
        let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
        let mut met = HashSet::new();
        for step in 0..40 {
            let batch = sampler.next(step).unwrap();
            for query in texts(&batch.queries) {
                let known = known_texts(&batch, query);
                assert!(query == "q0" || known.is_empty(), "{query}: {known:?}");
                met.extend(known);
            }
        }
        // By another query's positive, in whatever case, and by another's hard negative.
        assert_eq!(met, HashSet::from(["a".into(), "B".into()]));
    }

    #[test]
    fn texts_of_a_class_are_known_to_each_other() {
        let lines = "text\tlabel\na1\ta\na2\ta\na3\ta\na4\ta\nb1\tb\nb2\tb\nc1\tc\nc2\tc\n";
        let sets = [set_of("c.tsv", lines, |_| {})];
        let stage = stage("batch_size = 4");
        let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
        let mut met = 0;
        for step in 0..40 {
            let batch = sampler.next(step).unwrap();
            for query in texts(&batch.queries) {
                let place = batch.queries.iter().position(|text| text.text == query).unwrap();
                let alike: HashSet<String> = batch
                    .documents
                    .iter()
                    .enumerate()
                    .filter(|(i, _)| *i != batch.candidates.positive[place])
                    .map(|(_, text)| text.text.clone())
                    .filter(|text| text[..1] == query[..1])
                    .collect();
                assert_eq!(known_texts(&batch, query), alike, "{batch:?}");
                met += alike.len();
            }
        }
        assert!(met > 0);
    }

    #[test]
    fn a_stand_in_is_no_known_positive_and_may_be_any_text_of_a_pair() {
        let lines = "{\"query\":\"q0\",\"pos\":[\"a\"]}\n{\"query\":\"q0\",\"pos\":[\"b\"]}\n\
                     {\"query\":\"q1\",\"pos\":[\"c\"]}\n";
        let alone = |source: &mut DataSource| source.in_batch = Some(false);
        let negatives = |set: DataSet, query: &str| -> HashSet<String> {
            let (sets, stage) = ([set], stage("batch_size = 2\nhard_negatives = 1"));
            let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
            let batches = (0..60).map(|step| sampler.next(step).unwrap());
            let of_query = |batch: Batch| -> Vec<String> {
                let candidates = &batch.candidates;
                (0..batch.documents.len())
                    .filter(|&i| batch.queries[candidates.owner[i]].text == query)
                    .filter(|&i| !candidates.positive.contains(&i))
                    .map(|i| batch.documents[i].text.clone())
                    .collect()
            };
            batches.flat_map(of_query).collect()
        };
        let expected = |texts: &[&str]| texts.iter().map(|text| text.to_string()).collect();
        assert_eq!(negatives(set_of("a.jsonl", lines, alone), "q0"), expected(&["c"]));
        let pairs = "sentence1,sentence2,score\na,b,5\nc,d,1\na,e,4.5\n";
        // c and d are in no positive pair; b and e both answer a.
        assert_eq!(negatives(set_of("p.csv", pairs, alone), "a"), expected(&["c", "d"]));
    }

    #[test]
    fn without_the_steps_level_another_text_stands_in() {
        let lines = "{\"query\":\"q0\",\"positive\":\"a\",\"negatives\":{\"n1\":\"x1\",\"n4\":\"x4\"}}\n\
                     {\"query\":\"q1\",\"positive\":\"b\",\"negatives\":{\"n1\":\"y1\",\"n2\":\"y2\",\"n4\":\"y4\"}}\n";
        let negatives = |in_batch: bool, level: usize| -> Vec<String> {
            let sets = [set_of("a.jsonl", lines, |_| {})];
            let text = format!(
                "batch_size = 2\ncurriculum = {{ fixed = {level} }}\nloss = {{ in_batch = {in_batch} }}"
            );
            let stage = stage(&text);
            let mut sampler = Sampler::new(&sets, &stage, 5, ModelPrompts::default());
            let batch = sampler.next(0).unwrap();
            let is_negative = |i: &usize| !batch.candidates.positive.contains(i);
            let places = (0..batch.documents.len()).filter(is_negative);
            let mut all: Vec<String> = places.map(|i| batch.documents[i].text.clone()).collect();
            all.sort();
            all
        };
        assert_eq!(negatives(true, 4), ["x4", "y4"]);
        assert_eq!(negatives(true, 2), ["y2"], "x4 is not level 2");
        assert_eq!(negatives(false, 2), ["b", "y2"], "the other's positive stands in");
    }

    #[test]
    fn instructions_are_drawn_and_go_on_after_a_restart() {
        let lines: String = (0..6)
            .map(|n| match n {
                0 => "{\"query\":\"q0\",\"pos\":[\"p0\"],\"prompt\":\"own\"}\n".to_string(),
                n => format!("{{\"query\":\"q{n}\",\"pos\":[\"p{n}\"]}}\n"),
            })
            .collect();
        let instructed =
            |source: &mut DataSource| source.instructions = vec!["one".into(), "two".into()];
        let sets = [set_of("a.jsonl", &lines, instructed)];
        let stage = stage("batch_size = 3");
        let prompts = ModelPrompts::new(["model: ", "doc: "], Some("<{instruction}> "));
        let mut sampler = Sampler::new(&sets, &stage, 5, prompts);
        let mut met: HashSet<(String, String)> = HashSet::new();
        (0..20).for_each(|step| {
            let batch = sampler.next(step).unwrap();
            assert!(batch.documents.iter().all(|text| &*text.prompt == "doc: "));
            met.extend(batch.queries.into_iter().map(|text| (text.text, text.prompt.to_string())));
        });
        for n in 0..6 {
            let of: HashSet<&str> = met
                .iter()
                .filter(|(query, _)| *query == format!("q{n}"))
                .map(|(_, prompt)| prompt.as_str())
                .collect();
            let expected: &[&str] = if n == 0 { &["<own> "] } else { &["<one> ", "<two> "] };
            assert_eq!(of, expected.iter().copied().collect());
        }
        let mut other = Sampler::new(&sets, &stage, 5, prompts);
        other.restore(sampler.state().clone());
        (20..40)
            .for_each(|step| assert_eq!(sampler.next(step).unwrap(), other.next(step).unwrap()));
    }
}

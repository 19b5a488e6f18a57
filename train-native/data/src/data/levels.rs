//! Which of an example's negatives a step takes.

use rand::Rng as _;
use rand::seq::IndexedRandom as _;
use rand_chacha::ChaCha8Rng;

use super::Example;
use crate::recipe::{Curriculum, Stage};

/// Where a draw of negatives stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Moment {
    /// Step of the stage, from 0.
    pub(super) step: usize,
    /// A number drawn for the batch.
    pub(super) draw: usize,
    /// Highest level of the data set.
    pub(super) levels: usize,
}

/// An example's own negatives for a step, at most as many as the stage asks for; none where it
/// lacks the step's level.
pub(super) fn own_negatives(
    stage: &Stage,
    example: &Example,
    moment: Moment,
    rng: &mut ChaCha8Rng,
) -> Vec<String> {
    if !stage.objective.takes_negatives() || example.neg.is_empty() {
        return Vec::new();
    }
    let count = stage.hard_negatives.min(example.neg.len());
    match stage.curriculum {
        Curriculum::Given => example.neg[..count].to_vec(),
        Curriculum::Sampled => example.neg.choose_multiple(rng, count).cloned().collect(),
        graded => {
            let level = level(graded, stage.steps, moment, rng);
            let of_level = (0..example.neg.len()).filter(|&i| example.level(i) == level);
            of_level.take(count).map(|i| example.neg[i].clone()).collect()
        }
    }
}

/// The level of a step, 1 being the hardest. The phases are equal shares of the steps over all levels
/// that the data set has, whichever of them an example has.
fn level(curriculum: Curriculum, steps: usize, moment: Moment, rng: &mut ChaCha8Rng) -> usize {
    let Moment { step, draw, levels } = moment;
    let levels = levels.max(1);
    let phase = (step * levels / steps.max(1)).min(levels - 1);
    match curriculum {
        Curriculum::CoarseToFine => levels - phase,
        Curriculum::FineToCoarse => phase + 1,
        Curriculum::Random => rng.random_range(1..=levels),
        Curriculum::RandomByBatch => 1 + draw % levels,
        Curriculum::Fixed(level) => level,
        Curriculum::Given | Curriculum::Sampled => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use rand::SeedableRng as _;

    fn stage(curriculum: &str) -> Stage {
        let usual = "name = 's'\ndata = ['d']\nlr = 1e-3\nsteps = 8\nbatch_size = 2\n";
        toml::from_str(&format!("{usual}curriculum = {curriculum}")).unwrap()
    }

    /// What an example that lacks level 2 is given in each of eight steps.
    fn given(curriculum: &str) -> Vec<Option<String>> {
        let example = Example {
            neg: ["n1", "n3", "n4"].map(String::from).into(),
            levels: vec![1, 3, 4],
            ..Example::new("q".into(), "p".into(), vec![])
        };
        let (stage, mut rng) = (stage(curriculum), ChaCha8Rng::seed_from_u64(1));
        let moment = |step| Moment { step, draw: 7 * step, levels: 4 };
        (0..8)
            .map(|step| own_negatives(&stage, &example, moment(step), &mut rng))
            .inspect(|negatives| assert!(negatives.len() <= 1))
            .map(|negatives| negatives.into_iter().next())
            .collect()
    }

    #[test]
    fn phases_are_quarters_and_a_missing_level_stays_missing() {
        let expected = |names: [&str; 8]| {
            names.map(|name| Some(name.to_string()).filter(|name| !name.is_empty())).to_vec()
        };
        let coarse = ["n4", "n4", "n3", "n3", "", "", "n1", "n1"];
        assert_eq!(given("'coarse_to_fine'"), expected(coarse));
        let fine = ["n1", "n1", "", "", "n3", "n3", "n4", "n4"];
        assert_eq!(given("'fine_to_coarse'"), expected(fine));
        assert_eq!(given("{ fixed = 3 }"), expected(["n3"; 8]));
        assert_eq!(given("{ fixed = 2 }"), expected([""; 8]));
        assert_eq!(given("'given'"), expected(["n1"; 8]));
        // 7 * step modulo 4 is 0, 3, 2, 1, ...
        let batches = ["n1", "n4", "n3", "", "n1", "n4", "n3", ""];
        assert_eq!(given("'random_by_batch'"), expected(batches));
        assert!(given("'sampled'").iter().all(Option::is_some));
    }

    #[test]
    fn negatives_without_levels_are_graded_as_they_stand() {
        let neg = ["a", "b", "c"].map(String::from).to_vec();
        let example = Example::new("q".into(), "p".into(), neg);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let moment = |step| Moment { step, draw: 0, levels: 4 };
        let stage = stage("'coarse_to_fine'");
        let taken: Vec<Vec<String>> =
            (0..8).map(|step| own_negatives(&stage, &example, moment(step), &mut rng)).collect();
        let expected: [&[&str]; 8] = [&[], &[], &["c"], &["c"], &["b"], &["b"], &["a"], &["a"]];
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_random_order_is_drawn_for_each_example() {
        let neg = ["a", "b", "c", "d"].map(String::from).to_vec();
        let example = Example::new("q".into(), "p".into(), neg);
        let moment = Moment { step: 0, draw: 0, levels: 4 };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut taken = |curriculum: &str| -> HashSet<String> {
            let stage = stage(curriculum);
            (0..60).flat_map(|_| own_negatives(&stage, &example, moment, &mut rng)).collect()
        };
        assert_eq!((taken("'random'").len(), taken("'random_by_batch'").len()), (4, 1));
    }
}

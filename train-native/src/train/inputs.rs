//! Everything that a recipe reads: the stages' data sets and the evaluation sets.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::data::{DataSet, LeakFilter, OnBadRow, Opening};
use crate::eval::{EvalSet, MEAN};
use crate::recipe::{Curriculum, LeakRule, Objective, Recipe, Rerank, RerankLoss, Stage};
use crate::terminal::{Terminal, counted};

/// Texts of each data set that a new tokenizer is trained on, at most.
const TOKENIZER_EXAMPLES: usize = 100_000;

/// What a recipe reads.
pub struct Inputs {
    /// Data sets of each stage.
    pub sets: Vec<Vec<DataSet>>,
    /// Evaluation sets.
    pub measured: Vec<EvalSet>,
}

impl Inputs {
    /// Opens all of them; relative paths are looked for in `folder`.
    ///
    /// # Errors
    /// Files that cannot be read, or data that a stage cannot be trained on.
    pub fn open(
        recipe: &Recipe,
        folder: &Path,
        on_bad_row: OnBadRow,
        terminal: Terminal,
    ) -> Result<Self> {
        let leak = leak_rule(recipe);
        let leaks = leaks(recipe, folder)?;
        for name in recipe.unread_sources() {
            terminal
                .note(format!("sources.{name}: no stage has it in its data, so nothing is read"));
        }
        let mut sets = Vec::new();
        for stage in &recipe.stages {
            let opening = Opening {
                folder,
                on_bad_row,
                leaks: leaks.as_ref(),
                leak,
                deduplicate: recipe.filter.deduplicate,
                texts_alone: stage.objective.takes_texts_alone(),
                scored: stage.takes_scored_pairs(),
                binary: rerank(stage).is_some_and(|settings| settings.is_binary()),
                negatives: stage.hard_negatives,
                seed: recipe.seed,
                terminal,
            };
            let sources: Vec<_> = stage.data.iter().map(|entry| recipe.source(entry)).collect();
            let of_stage = DataSet::open_all(&sources, &opening)
                .with_context(|| format!("stage {:?}", stage.name))?;
            for set in &of_stage {
                let left_out = match set.counts.left_out() {
                    rows if rows.is_empty() => rows,
                    rows => format!("; left out {rows}"),
                };
                terminal.note(format!(
                    "stage {}: {} of {} ({}){left_out}",
                    stage.name,
                    counted(set.len(), "example", "examples"),
                    set.name,
                    set.format,
                ));
            }
            fits(stage, &of_stage).with_context(|| format!("stage {:?}", stage.name))?;
            for set in of_stage.iter().filter(|set| runs_short(stage, set)) {
                terminal.note(format!(
                    "stage {}: hard_negatives = {}, but no example of {} has more than {}",
                    stage.name, stage.hard_negatives, set.name, set.counts.most_negatives
                ));
            }
            for set in of_stage.iter().filter(|_| goes_through_levels(stage)) {
                let rare = rare_levels(&set.counts.levels, set.len());
                if !rare.is_empty() {
                    let rare: Vec<String> = rare.iter().map(usize::to_string).collect();
                    terminal.note(format!(
                        "stage {}: fewer than 1 % of the examples of {} have a negative of level {}, and each of its {} \
                         levels has the same share of the steps",
                        stage.name,
                        set.name,
                        rare.join(" or "),
                        set.counts.levels.len()
                    ));
                }
            }
            for level in levels_missing(stage, &of_stage) {
                terminal.note(format!(
                    "stage {}: no example has a negative of level {level}, whose share of the steps does \
                     without hard negatives",
                    stage.name
                ));
            }
            sets.push(of_stage);
        }
        let (mut measured, reranks) = (Vec::new(), recipe.reranks());
        if let Some(eval) = &recipe.eval {
            for set in &eval.sets {
                let open = if reranks { EvalSet::open_to_rerank } else { EvalSet::open };
                measured.push(open(set, folder, recipe.seed, terminal)?);
            }
            if let Some(suite) = &eval.suite {
                let data = folder.join(eval.data.as_deref().unwrap_or_default());
                let prompts = eval.prompts.as_deref();
                let tasks = EvalSet::open_suite(suite, prompts, &data, folder, reranks);
                measured.extend(tasks.context("eval.suite")?);
            }
            let names: Vec<&str> = measured.iter().map(|set| set.name.as_str()).collect();
            if let Some(best) = eval.best.as_ref().filter(|best| *best != MEAN)
                && !names.contains(&best.as_str())
            {
                bail!("eval.best is {best:?}; there are {}", names.join(", "));
            }
        }
        Ok(Self { sets, measured })
    }

    /// Queries and positives, for a new tokenizer.
    ///
    /// # Errors
    /// The examples cannot be read.
    pub fn texts(&self) -> Result<Vec<String>> {
        let mut texts = Vec::new();
        for set in self.sets.iter().flatten() {
            for i in 0..set.len().min(TOKENIZER_EXAMPLES) {
                let example = set.get(i)?;
                texts.push(example.query);
                texts.extend(example.pos);
            }
        }
        Ok(texts)
    }
}

/// What a stage's cross-encoder learns, where it trains one.
fn rerank(stage: &Stage) -> Option<Rerank> {
    (stage.objective == Objective::Rerank).then(|| stage.rerank.unwrap_or_default())
}

/// The rule of sources that have none of their own.
fn leak_rule(recipe: &Recipe) -> LeakRule {
    recipe.filter.bm25_share.map_or(LeakRule::Exact, LeakRule::Bm25)
}

/// The evaluation texts, ready for the rules of all sources.
fn leaks(recipe: &Recipe, folder: &Path) -> Result<Option<LeakFilter>> {
    let sources = recipe.stages.iter().flat_map(|stage| &stage.data);
    let sources: Vec<_> = sources.map(|entry| recipe.source(entry)).collect();
    let files = &recipe.filter.evaluation_texts;
    if files.is_empty() {
        let asks = |rule: Option<LeakRule>| rule.is_some_and(|rule| rule != LeakRule::None);
        if let Some(source) = sources.iter().find(|source| asks(source.leak)) {
            bail!(
                "{}: leak keeps evaluation texts out, and there are none; name their files in \
                 filter.evaluation_texts",
                source.path
            );
        }
        return Ok(None);
    }
    let is_near = |rule: LeakRule| matches!(rule, LeakRule::Bm25(_));
    let near = sources.iter().any(|source| is_near(source.leak.unwrap_or(leak_rule(recipe))));
    let path = |file: &String| folder.join(file).to_string_lossy().into_owned();
    let files: Vec<String> = files.iter().map(path).collect();
    let columns = sources.into_iter().map(|source| source.fields);
    let columns: BTreeSet<Vec<String>> = columns.filter(|names| !names.is_empty()).collect();
    LeakFilter::of_files_joined(&files, &Vec::from_iter(columns), near).map(Some)
}

/// Whether a stage's curriculum goes through all levels that a set has.
fn goes_through_levels(stage: &Stage) -> bool {
    let fixed = matches!(stage.curriculum, Curriculum::Fixed(_));
    stage.curriculum.is_graded() && !fixed && stage.objective.takes_negatives()
}

/// The levels that only few of a set's examples have, from how many have each: some odd row may have made them.
fn rare_levels(counts: &[usize], examples: usize) -> Vec<usize> {
    let is_rare = |count: usize| count > 0 && count.saturating_mul(100) < examples;
    (1..=counts.len()).filter(|&level| is_rare(counts[level - 1])).collect()
}

/// The levels up to the highest that no example of a stage has, where its curriculum goes through
/// all of them.
fn levels_missing(stage: &Stage, sets: &[DataSet]) -> Vec<usize> {
    if !goes_through_levels(stage) {
        return Vec::new();
    }
    (1..=highest_level(sets)).filter(|&level| !has_level(sets, level)).collect()
}

fn highest_level(sets: &[DataSet]) -> usize {
    sets.iter().map(|set| set.counts.levels.len()).max().unwrap_or(0)
}

fn has_level(sets: &[DataSet], level: usize) -> bool {
    let count = |set: &DataSet| set.counts.levels.get(level - 1).copied();
    sets.iter().any(|set| count(set).is_some_and(|count| count > 0))
}

/// Whether a set has hard negatives, but for no example as many as the stage asks for.
fn runs_short(stage: &Stage, set: &DataSet) -> bool {
    let most = set.counts.most_negatives;
    stage.objective.takes_negatives() && most > 0 && most < stage.hard_negatives
}

/// Whether a stage can be trained on its data.
fn fits(stage: &Stage, sets: &[DataSet]) -> Result<()> {
    if stage.objective == Objective::Similarity
        && let Some(set) = sets.iter().find(|set| set.counts.with_scores == 0)
    {
        bail!(
            "{}: no row has a score, of which objective = \"similarity\" learns; it takes STS data (two texts and a \
             score) and rows with pos_scores",
            set.name
        );
    }
    if !stage.objective.takes_negatives() {
        return Ok(());
    }
    let with_negatives: usize =
        sets.iter().map(|set| set.len() - set.counts.without_negatives.min(set.len())).sum();
    if stage.curriculum.is_graded() && with_negatives == 0 {
        bail!(
            "the curriculum goes through graded negatives, and no example has a negative; \
             set curriculum = \"given\", or mine negatives with `kiln mine`"
        );
    }
    if let Curriculum::Fixed(level) = stage.curriculum
        && !has_level(sets, level)
    {
        bail!(
            "curriculum = {{ fixed = {level} }}, and no example has a negative of level {level}; the \
             highest is {}",
            highest_level(sets)
        );
    }
    if matches!(stage.objective, Objective::Distillation | Objective::Similarity) {
        return Ok(());
    }
    if let Some(settings) = rerank(stage) {
        return fits_reranker(&settings, sets, with_negatives);
    }
    if stage.margin_mse.is_some()
        && let Some(set) = sets.iter().find(|set| set.counts.with_margins == 0)
    {
        bail!(
            "{}: no row has scores of its positives and negatives, of which margin_mse learns; `kiln mine \
             --reranker` writes them",
            set.name
        );
    }
    if with_negatives == 0 && sets.iter().map(DataSet::len).sum::<usize>() < 2 {
        bail!("one example without negatives has nothing to be told apart from; add examples");
    }
    for set in sets {
        let in_batch = set.source.in_batch.unwrap_or(stage.loss.in_batch);
        if !in_batch && set.len() < 2 {
            bail!("{}: one example without in-batch negatives has nothing to learn from", set.name);
        }
        if !in_batch && stage.hard_negatives == 0 {
            bail!("{}: neither in-batch nor hard negatives; raise hard_negatives", set.name);
        }
    }
    Ok(())
}

/// Whether a cross-encoder can be trained on its data.
fn fits_reranker(settings: &Rerank, sets: &[DataSet], with_negatives: usize) -> Result<()> {
    use RerankLoss as L;
    let name = settings.loss.name();
    let without = |has: fn(&DataSet) -> usize| sets.iter().find(move |set| has(set) == 0);
    let examples = sets.iter().map(DataSet::len).sum::<usize>();
    match settings.loss {
        L::Mse => {
            if let Some(set) = without(|set| set.counts.with_scores) {
                bail!(
                    "{}: no row has a teacher's score, of which rerank.loss = {name:?} learns; `kiln rerank --data --scores` \
                     writes them",
                    set.name
                );
            }
        }
        L::MarginMse => {
            if let Some(set) = without(|set| set.counts.with_margins) {
                bail!(
                    "{}: no row has scores of its positives and negatives, of which rerank.loss = {name:?} learns; `kiln \
                     rerank --data --scores` writes them",
                    set.name
                );
            }
        }
        L::BinaryCrossEntropy | L::RankNet | L::Lambda => {
            if let Some(set) = without(|set| set.counts.with_scores) {
                bail!(
                    "{}: no row has a score, which rerank.labels = \"scores\" takes for labels; leave it out, or write \
                     scores with `kiln rerank --data --scores`",
                    set.name
                );
            }
            // RankNet and Lambda ask only which label is the higher.
            let by_itself = settings.loss == L::BinaryCrossEntropy;
            if by_itself && let Some(set) = sets.iter().find(|set| set.counts.with_wide_scores > 0)
            {
                bail!(
                    "{}: {} of {} rows have a label below 0 or above 1, and rerank.loss = {name:?} learns from 0 to 1; \
                     scale them, or use loss = \"mse\"",
                    set.name,
                    set.counts.with_wide_scores,
                    set.len()
                );
            }
            if by_itself && sets.iter().all(|set| set.counts.with_low_scores == 0) {
                bail!(
                    "{}: no row has a label or a negative, so that all texts are relevant, and rerank.loss = {name:?} has \
                     nothing to tell apart; add a column label, or mine negatives with `kiln mine`",
                    sets[0].name
                );
            }
            if !by_itself && with_negatives == 0 {
                bail!(
                    "{}: no row has a negative beside its positive, and rerank.loss = {name:?} compares the texts of a \
                     query; use loss = \"binary_cross_entropy\", or mine negatives with `kiln mine`",
                    sets[0].name
                );
            }
        }
        L::MultipleNegativesRanking => {
            if with_negatives == 0 && (examples < 2 || settings.num_negatives() == 0) {
                bail!(
                    "{}: no row has a negative, nor are there others in the batch; mine negatives with `kiln mine`",
                    sets[0].name
                );
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_odd_rows_are_rare() {
        assert_eq!(rare_levels(&[200, 150, 0, 2, 1], 200), [5]);
        assert!(rare_levels(&[9, 1], 10).is_empty());
    }
}

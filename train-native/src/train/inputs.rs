//! Everything that a recipe reads: the stages' data sets and the evaluation sets.

use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::data::{DataSet, LeakFilter, OnBadRow, Opening};
use crate::eval::{EvalSet, MEAN};
use crate::recipe::{Curriculum, Objective, Recipe, Stage};
use crate::terminal::{Terminal, thousands};

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
        let filter = &recipe.filter;
        let files: Vec<String> = filter
            .evaluation_texts
            .iter()
            .map(|file| folder.join(file).to_string_lossy().into_owned())
            .collect();
        let leaks = match files.is_empty() {
            true => None,
            false => Some(LeakFilter::of_files(&files, filter.bm25_share)?),
        };
        let mut sets = Vec::new();
        for stage in &recipe.stages {
            let opening = Opening {
                folder,
                on_bad_row,
                leaks: leaks.as_ref(),
                deduplicate: filter.deduplicate,
                texts_alone: stage.objective.takes_texts_alone(),
                negatives: stage.hard_negatives,
                seed: recipe.seed,
                terminal,
            };
            let of_stage: Vec<DataSet> = stage
                .data
                .iter()
                .map(|entry| DataSet::open(&recipe.source(entry), &opening))
                .collect::<Result<_>>()
                .with_context(|| format!("stage {:?}", stage.name))?;
            for set in &of_stage {
                let left_out = match set.counts.left_out() {
                    rows if rows.is_empty() => rows,
                    rows => format!("; left out {rows}"),
                };
                terminal.note(format!(
                    "stage {}: {} examples of {} ({}){left_out}",
                    stage.name,
                    thousands(set.len()),
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
            sets.push(of_stage);
        }
        let mut measured = Vec::new();
        if let Some(eval) = &recipe.eval {
            for set in &eval.sets {
                measured.push(EvalSet::open(set, folder, recipe.seed, terminal)?);
            }
            if let Some(suite) = &eval.suite {
                let data = folder.join(eval.data.as_deref().unwrap_or_default());
                measured.extend(EvalSet::open_suite(suite, &data, folder).context("eval.suite")?);
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

/// Whether a set has hard negatives, but for no example as many as the stage asks for.
fn runs_short(stage: &Stage, set: &DataSet) -> bool {
    let most = set.counts.most_negatives;
    stage.objective == Objective::Contrastive && most > 0 && most < stage.hard_negatives
}

/// Whether a stage can be trained on its data.
fn fits(stage: &Stage, sets: &[DataSet]) -> Result<()> {
    if stage.objective != Objective::Contrastive {
        return Ok(());
    }
    let graded = !matches!(stage.curriculum, Curriculum::Given | Curriculum::Sampled);
    let with_negatives: usize =
        sets.iter().map(|set| set.len() - set.counts.without_negatives.min(set.len())).sum();
    if graded && with_negatives == 0 {
        bail!(
            "the curriculum goes through graded negatives, and no example has a negative; \
             set curriculum = \"given\", or mine negatives with `kiln mine`"
        );
    }
    let levels = sets.iter().map(|set| set.counts.most_negatives).max().unwrap_or(0);
    if let Curriculum::Fixed(level) = stage.curriculum
        && level > levels
    {
        bail!(
            "curriculum = {{ fixed = {level} }}, and no example has more than {levels} negatives"
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

//! Trains every variant of a sweep with every seed, and compares their scores.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::{CHECKPOINTS, Checkpoint, Fit, Inputs, fit};
use crate::data::OnBadRow;
use crate::device::Device;
use crate::output::claim;
use crate::recipe::{Recipe, Sweep, slug};
use crate::report::{Page, bar_chart};
use crate::terminal::{Terminal, counted};
use crate::vectors::write_atomically;

/// One finished run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRun {
    /// The recipe as it was trained.
    pub recipe: Recipe,
    /// Scores after the last step by evaluation set.
    pub scores: Vec<(String, f64)>,
    /// Loss of the last step.
    #[serde(deserialize_with = "super::telemetry::number")]
    pub loss: f64,
    /// Seconds of all steps.
    pub seconds: f64,
}

/// What came of a variant.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VariantScores {
    /// Its name.
    pub variant: String,
    /// Each evaluation set with the scores of all seeds.
    pub sets: Vec<SetScores>,
    /// Mean seconds of a run.
    pub seconds: f64,
}

/// Scores of one variant on one set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SetScores {
    /// The set.
    pub set: String,
    /// One score a seed.
    pub scores: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation (n - 1); absent with one seed.
    pub deviation: Option<f64>,
}

impl SetScores {
    fn new(set: &str, scores: Vec<f64>) -> Self {
        let mean = scores.iter().sum::<f64>() / scores.len() as f64;
        let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
        let deviation = (scores.len() > 1).then(|| (squares / (scores.len() - 1) as f64).sqrt());
        Self { set: set.into(), scores, mean, deviation }
    }

    fn text(&self) -> String {
        match self.deviation {
            Some(deviation) => format!("{:.4} ± {deviation:.4}", self.mean),
            None => format!("{:.4}", self.mean),
        }
    }
}

/// Trains what of a sweep is not finished yet, each run in a folder of its own, and compares.
///
/// # Errors
/// As [`fit`]; a recipe without an evaluation set; [`kiln_embed::Error::Cancelled`] after Ctrl-C,
/// with the state saved.
pub fn sweep(
    sweep: &Sweep,
    folder: &Path,
    changes: &[String],
    output: &Path,
    devices: &[Device],
    terminal: Terminal,
) -> Result<Vec<VariantScores>> {
    let mut jobs = Vec::new();
    for variant in &sweep.variants {
        for &seed in &sweep.seeds {
            let recipe = sweep.recipe(variant, seed, folder, changes)?;
            if recipe.eval.is_none() {
                bail!("variant {:?}: its recipe has no [eval] to compare by", variant.name);
            }
            jobs.push((variant, seed, recipe));
        }
    }
    claim(output, &["results.json", "report.html"])?;
    let mut runs: Vec<Vec<SweepRun>> = vec![Vec::new(); sweep.variants.len()];
    let bar = terminal.progress(jobs.len() as u64, &sweep.name);
    for (number, (variant, seed, recipe)) in jobs.iter().enumerate() {
        let run_folder = output.join(slug(&variant.name)).join(format!("seed-{seed}"));
        let run = match finished(&run_folder, recipe)? {
            Some(run) => run,
            None => bar.suspend(|| train(recipe, folder, &run_folder, devices, terminal))?,
        };
        let scores: Vec<String> =
            run.scores.iter().map(|(set, score)| format!("{set} {score:.4}")).collect();
        bar.suspend(|| {
            terminal.note(format!(
                "{}/{} {}, seed {seed}: {}",
                number + 1,
                jobs.len(),
                variant.name,
                scores.join(", ")
            ));
        });
        bar.inc(1);
        runs[number / sweep.seeds.len()].push(run);
    }
    bar.finish_and_clear();
    let results: Vec<VariantScores> = sweep
        .variants
        .iter()
        .zip(&runs)
        .map(|(variant, runs)| compare(&variant.name, runs))
        .collect();
    write_atomically(&output.join("results.json"), &serde_json::to_vec_pretty(&results)?)?;
    let page = page(sweep, &results)?;
    write_atomically(&output.join("report.html"), page.to_html().as_bytes())?;
    Ok(results)
}

const RESULT: &str = "result.json";

/// The result of a run that was finished with the same recipe.
fn finished(run_folder: &Path, recipe: &Recipe) -> Result<Option<SweepRun>> {
    let path = run_folder.join(RESULT);
    let Ok(bytes) = std::fs::read(&path) else {
        return Ok(None);
    };
    let run: SweepRun = serde_json::from_slice(&bytes)
        .with_context(|| format!("{}: damaged; remove it to train again", path.display()))?;
    if run.recipe.comparable() != recipe.comparable() {
        bail!(
            "{}: was trained with other settings; choose another --output or remove it",
            run_folder.display()
        );
    }
    Ok(Some(run))
}

/// Trains one variant with one seed, from where it was stopped if it was.
fn train(
    recipe: &Recipe,
    folder: &Path,
    run_folder: &Path,
    devices: &[Device],
    terminal: Terminal,
) -> Result<SweepRun> {
    let quiet = Terminal { quiet: true, ..terminal };
    let inputs = Inputs::open(recipe, folder, OnBadRow::Stop, quiet)?;
    let resume = Checkpoint::find(&run_folder.join(CHECKPOINTS), recipe, terminal)?;
    let plan = Fit {
        recipe,
        inputs: &inputs,
        output: run_folder,
        checkpoint_every: 500,
        keep: 1,
        save_every: 0,
        resume,
        overwrite: true,
        hosts: None,
        terminal: Terminal {
            quiet: terminal.quiet || !console::user_attended_stderr(),
            ..terminal
        },
        on_step: None,
    };
    let artifacts = fit(&plan, devices)?;
    let last = artifacts.points.last().context("a recipe without steps")?;
    let run = SweepRun {
        recipe: recipe.clone(),
        scores: last.scores.clone(),
        loss: last.loss,
        seconds: artifacts.points.iter().map(|point| point.seconds).sum(),
    };
    write_atomically(&run_folder.join(RESULT), &serde_json::to_vec(&run)?)?;
    // The state is of no more use; the model stays.
    Checkpoint::remove_all(&run_folder.join(CHECKPOINTS)).ok();
    Ok(run)
}

fn compare(variant: &str, runs: &[SweepRun]) -> VariantScores {
    let names = runs.first().map(|run| run.scores.iter().map(|(set, _)| set.as_str()));
    let sets = names
        .into_iter()
        .flatten()
        .map(|set| {
            let score = |run: &SweepRun| {
                run.scores
                    .iter()
                    .find(|(name, _)| name == set)
                    .map_or(f64::NAN, |(_, score)| *score)
            };
            SetScores::new(set, runs.iter().map(score).collect())
        })
        .collect();
    let seconds = runs.iter().map(|run| run.seconds).sum::<f64>() / runs.len().max(1) as f64;
    VariantScores { variant: variant.into(), sets, seconds }
}

/// Header and one row a variant.
fn rows(results: &[VariantScores]) -> Vec<Vec<String>> {
    let sets = results.first().map(|variant| variant.sets.as_slice()).unwrap_or_default();
    let header = ["variant".to_string()]
        .into_iter()
        .chain(sets.iter().map(|set| set.set.clone()))
        .chain(["seconds".to_string()]);
    let row = |scores: &VariantScores| {
        [scores.variant.clone()]
            .into_iter()
            .chain(scores.sets.iter().map(SetScores::text))
            .chain([format!("{:.0}", scores.seconds)])
            .collect::<Vec<_>>()
    };
    [header.collect()].into_iter().chain(results.iter().map(row)).collect()
}

/// The comparison as a Markdown table.
pub fn sweep_table(results: &[VariantScores]) -> String {
    let mut rows = rows(results).into_iter().map(|row| format!("| {} |", row.join(" | ")));
    let header = rows.next().unwrap_or_default();
    let line = format!("|{}", "---|".repeat(header.matches('|').count().saturating_sub(1)));
    [header, line].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

fn page(sweep: &Sweep, results: &[VariantScores]) -> Result<Page> {
    let mut page = Page::new(&format!("Sweep: {}", sweep.name));
    page.paragraph(&sweep.description);
    page.paragraph(&format!(
        "Each variant was trained with {}; the table has the mean score after the last step \
         and the standard deviation over seeds.",
        counted(sweep.seeds.len(), "seed", "seeds")
    ));
    page.table(&rows(results));
    let sets = results.first().map(|variant| variant.sets.len()).unwrap_or_default();
    for i in 0..sets {
        let bars: Vec<(String, f64)> =
            results.iter().map(|scores| (scores.variant.clone(), scores.sets[i].mean)).collect();
        page.figure(&bar_chart(&bars)?, &format!("{}: mean over seeds", results[0].sets[i].set));
    }
    page.heading("Sweep").code(&toml::to_string(sweep)?);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_deviations_are_those_of_a_sample() {
        let scores = SetScores::new("dev", vec![0.2, 0.4, 0.6]);
        assert!((scores.mean - 0.4).abs() < 1e-12);
        assert!((scores.deviation.unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(scores.text(), "0.4000 ± 0.2000");
        assert_eq!(SetScores::new("dev", vec![0.2]).text(), "0.2000");
    }
}

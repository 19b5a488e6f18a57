//! Trains every variant of a sweep with every seed, and compares their scores.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::fit::STEPS;
use super::{CHECKPOINTS, Checkpoint, Fit, Inputs, Point, fit};
use crate::data::OnBadRow;
use crate::device::Device;
use crate::eval::MEAN;
use crate::output::claim;
use crate::recipe::{Recipe, Sweep, slug};
use crate::report::{Page, Series, bar_chart, line_chart};
use crate::terminal::{Terminal, counted};
use crate::vectors::write_atomically;

/// One finished run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRun {
    /// The recipe as it was trained.
    pub recipe: Recipe,
    /// Scores after the last step by evaluation set.
    pub scores: Vec<(String, f64)>,
    /// Steps of the run, from 1, that were followed by an evaluation, each with its scores; earlier versions wrote none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<(usize, Vec<(String, f64)>)>,
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
    /// The scores along training, by step.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub along: Vec<StepScores>,
}

/// Scores of one variant on one set after a step that was followed by an evaluation with every seed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepScores {
    /// The step of the run, from 1.
    pub step: usize,
    /// One score a seed.
    pub scores: Vec<f64>,
    /// Their mean.
    pub mean: f64,
}

impl VariantScores {
    fn on(&self, set: &str) -> Option<&SetScores> {
        self.sets.iter().find(|one| one.set == set)
    }

    fn along(&self, set: &str) -> &[StepScores] {
        self.on(set).map(|set| set.along.as_slice()).unwrap_or_default()
    }
}

impl SetScores {
    fn new(set: &str, scores: Vec<f64>, along: Vec<StepScores>) -> Self {
        let mean = mean(&scores);
        let squares: f64 = scores.iter().map(|score| (score - mean).powi(2)).sum();
        let deviation = (scores.len() > 1).then(|| (squares / (scores.len() - 1) as f64).sqrt());
        Self { set: set.into(), scores, mean, deviation, along }
    }

    fn text(&self) -> String {
        match self.deviation {
            Some(deviation) => format!("{:.4} ± {deviation:.4}", self.mean),
            None => format!("{:.4}", self.mean),
        }
    }
}

fn mean(scores: &[f64]) -> f64 {
    scores.iter().sum::<f64>() / scores.len() as f64
}

/// Trains what of a sweep is not finished yet, each run in a folder of its own, and compares. Each run keeps its model
/// every `save_every` steps, as [`Fit::save_every`] says.
///
/// # Errors
/// As [`fit`]; a recipe without an evaluation set; [`kiln_embed::Error::Cancelled`] after Ctrl-C,
/// with the state saved.
pub fn sweep(
    sweep: &Sweep,
    folder: &Path,
    changes: &[String],
    output: &Path,
    save_every: usize,
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
            None => {
                bar.suspend(|| train(recipe, folder, &run_folder, save_every, devices, terminal))?
            }
        };
        if let Some(step) = not_kept(recipe, &run_folder, save_every) {
            bar.suspend(|| {
                terminal.note(format!(
                    "{}: was trained without keeping the model of step {step}; remove it to train it again",
                    run_folder.display()
                ));
            });
        }
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

/// The first of the steps whose models a run is to keep, every so many and 0 none, that its folder has no model of.
fn not_kept(recipe: &Recipe, run_folder: &Path, save_every: usize) -> Option<usize> {
    let steps = recipe.stages.iter().map(|stage| stage.steps).sum::<usize>();
    let every = if save_every == 0 { usize::MAX } else { save_every };
    let models = run_folder.join(STEPS);
    (every..=steps).step_by(every).find(|step| !models.join(format!("{step:06}")).exists())
}

/// The steps that were followed by an evaluation, with their scores.
fn curve(points: &[Point]) -> Vec<(usize, Vec<(String, f64)>)> {
    let scored = points.iter().enumerate().filter(|(_, point)| !point.scores.is_empty());
    scored.map(|(before, point)| (before + 1, point.scores.clone())).collect()
}

/// Trains one variant with one seed, from where it was stopped if it was.
fn train(
    recipe: &Recipe,
    folder: &Path,
    run_folder: &Path,
    save_every: usize,
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
        save_every,
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
        curve: curve(&artifacts.points),
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
            let score = |run: &SweepRun| score_on(set, &run.scores).unwrap_or(f64::NAN);
            SetScores::new(set, runs.iter().map(score).collect(), along(set, runs))
        })
        .collect();
    let seconds = runs.iter().map(|run| run.seconds).sum::<f64>() / runs.len().max(1) as f64;
    VariantScores { variant: variant.into(), sets, seconds }
}

fn score_on(set: &str, scores: &[(String, f64)]) -> Option<f64> {
    scores.iter().find(|(name, _)| name == set).map(|(_, score)| *score)
}

/// A variant's scores on a set, after the steps at which all its runs have one.
fn along(set: &str, runs: &[SweepRun]) -> Vec<StepScores> {
    let at = |run: &SweepRun, step: usize| {
        let (_, scores) = run.curve.iter().find(|(of, _)| *of == step)?;
        score_on(set, scores)
    };
    let steps = runs.first().into_iter().flat_map(|run| run.curve.iter().map(|(step, _)| *step));
    steps
        .filter_map(|step| {
            let scores = runs.iter().map(|run| at(run, step)).collect::<Option<Vec<f64>>>()?;
            Some(StepScores { step, mean: mean(&scores), scores })
        })
        .collect()
}

/// The sets that are shown along training, where a variant was evaluated more than once: of a suite its mean and those
/// of its kinds, which say more than its tasks do.
fn shown_along(results: &[VariantScores]) -> Vec<&str> {
    let mut sets = results.iter().flat_map(|variant| &variant.sets);
    if !sets.any(|set| set.along.len() > 1) {
        return Vec::new();
    }
    let has_some = |set: &&str| results.iter().any(|variant| !variant.along(set).is_empty());
    let names = all_sets(results).into_iter().filter(has_some);
    if !names.clone().any(|name| name == MEAN) {
        return names.collect();
    }
    let of_kind = |name: &&str| name.strip_prefix(MEAN).is_some_and(|kind| kind.starts_with(' '));
    [MEAN].into_iter().chain(names.filter(of_kind)).collect()
}

/// Header and one row a set and variant that has scores on it: their means over seeds by step. Nothing where there is no
/// more than the last step.
fn rows_along(results: &[VariantScores]) -> Vec<Vec<String>> {
    let sets = shown_along(results);
    if sets.is_empty() {
        return Vec::new();
    }
    let lines: Vec<(&str, &VariantScores)> = sets
        .iter()
        .flat_map(|set| results.iter().map(move |variant| (*set, variant)))
        .filter(|(set, variant)| !variant.along(set).is_empty())
        .collect();
    let steps: BTreeSet<usize> = lines
        .iter()
        .flat_map(|(set, variant)| variant.along(set).iter().map(|at| at.step))
        .collect();
    let header = ["score".to_string(), "variant".to_string()].into_iter();
    let header: Vec<String> = header.chain(steps.iter().map(ToString::to_string)).collect();
    let row = |(set, variant): (&str, &VariantScores)| {
        let score = |step: &usize| {
            let at = variant.along(set).iter().find(|at| at.step == *step);
            at.map(|at| format!("{:.4}", at.mean)).unwrap_or_default()
        };
        let names = [set.to_string(), variant.variant.clone()].into_iter();
        names.chain(steps.iter().map(score)).collect::<Vec<_>>()
    };
    [header].into_iter().chain(lines.into_iter().map(row)).collect()
}

/// A set's scores along training, one line a variant that has some.
fn lines_along(results: &[VariantScores], set: &str) -> Vec<Series> {
    let line = |variant: &VariantScores| Series {
        name: variant.variant.clone(),
        points: variant.along(set).iter().map(|at| (at.step as f64, at.mean)).collect(),
    };
    results.iter().map(line).filter(|line| !line.points.is_empty()).collect()
}

/// Header and one row a variant.
fn rows(results: &[VariantScores]) -> Vec<Vec<String>> {
    let sets = all_sets(results);
    let header = ["variant"].into_iter().chain(sets.iter().copied()).chain(["seconds"]);
    let row = |scores: &VariantScores| {
        let of_sets =
            sets.iter().map(|set| scores.on(set).map(SetScores::text).unwrap_or_default());
        [scores.variant.clone()]
            .into_iter()
            .chain(of_sets)
            .chain([format!("{:.0}", scores.seconds)])
            .collect::<Vec<_>>()
    };
    [header.map(String::from).collect()].into_iter().chain(results.iter().map(row)).collect()
}

/// The sets of all variants, which may have sets of their own.
fn all_sets(results: &[VariantScores]) -> Vec<&str> {
    let mut sets: Vec<&str> = Vec::new();
    for set in results.iter().flat_map(|scores| &scores.sets) {
        if !sets.contains(&set.set.as_str()) {
            sets.push(&set.set);
        }
    }
    sets
}

/// The comparison as a Markdown table, and a second one where variants were evaluated along training.
pub fn sweep_table(results: &[VariantScores]) -> String {
    let last = markdown(rows(results));
    match rows_along(results) {
        along if along.is_empty() => last,
        along => format!("{last}\n\nMeans over seeds by step:\n\n{}", markdown(along)),
    }
}

/// Rows, the first of them the header, as a Markdown table.
fn markdown(rows: Vec<Vec<String>>) -> String {
    let mut rows = rows.into_iter().map(|row| format!("| {} |", row.join(" | ")));
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
    for name in all_sets(results) {
        let bars: Vec<(String, f64)> = results
            .iter()
            .filter_map(|scores| Some((scores.variant.clone(), scores.on(name)?.mean)))
            .collect();
        page.figure(&bar_chart(&bars)?, &format!("{name}: mean over seeds"));
    }
    let pictures = shown_along(results)
        .into_iter()
        .map(|set| {
            let picture = line_chart("step", "score", &lines_along(results, set))?;
            anyhow::Ok((picture, format!("{set}: mean over seeds by step")))
        })
        .collect::<Result<Vec<_>>>()?;
    if let [(first, caption), others @ ..] = pictures.as_slice() {
        page.heading("Along training").figure(first, caption);
        page.figures(others).table(&rows_along(results));
    }
    page.heading("Sweep").code(&toml::to_string(sweep)?);
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that was scored on a suite of two kinds after steps, the last of which is its end.
    fn run(curve: &[(usize, f64)]) -> SweepRun {
        let scores = |score: f64| {
            let of = |name: &str, more: f64| (name.to_string(), score + more);
            vec![
                of("Own task", 0.0),
                of("mean Retrieval", 0.1),
                of("mean STS", -0.1),
                of(MEAN, 0.0),
            ]
        };
        let last = curve.last().map_or(0.0, |(_, score)| *score);
        let recipe = Recipe::read("linq-small", &[]).unwrap();
        let curve = curve.iter().map(|(step, score)| (*step, scores(*score))).collect();
        SweepRun { recipe, scores: scores(last), curve, loss: 1.0, seconds: 2.0 }
    }

    #[test]
    fn curves_are_means_of_the_seeds_at_the_steps_that_all_have() {
        let two = compare("a", &[run(&[(2, 0.2), (4, 0.4)]), run(&[(2, 0.4), (3, 0.5), (4, 0.6)])]);
        let steps = |set: &str| -> Vec<usize> { two.along(set).iter().map(|at| at.step).collect() };
        assert_eq!(steps("Own task"), [2, 4]);
        assert_eq!(two.along(MEAN)[0].scores, [0.2, 0.4]);
        assert!((two.along(MEAN)[1].mean - 0.5).abs() < 1e-12);
        // Another length, and one that an earlier version finished.
        let results = [two, compare("b", &[run(&[(6, 0.7)])]), compare("c", &[run(&[])])];
        assert_eq!(shown_along(&results), [MEAN, "mean Retrieval", "mean STS"]);
        let table = sweep_table(&results);
        assert!(
            table.contains("| score | variant | 2 | 4 | 6 |\n|---|---|---|---|---|\n"),
            "{table}"
        );
        assert!(table.contains("\n| mean STS | a | 0.2000 | 0.4000 |  |\n"), "{table}");
        assert!(
            table.contains("\n| mean | b |  |  | 0.7000 |\n") && !table.contains("| mean | c |"),
            "{table}"
        );
        let text = "name = 'x'\nrecipe = 'linq-small'\nseeds = [1]\nvariant = [{ name = 'a' }]";
        let html = page(&Sweep::parse(text).unwrap(), &results).unwrap().to_html();
        // Bars of four scores, and lines of the three that are shown along training.
        assert_eq!(html.matches("<svg").count(), 4 + 3, "{html}");
        assert!(html.contains("mean STS: mean over seeds by step") && html.contains("polyline"));

        // A variant with sets of its own.
        let [a, mut other] = ["a", "other"].map(|name| compare(name, &[run(&[(6, 0.7)])]));
        other.sets.truncate(1);
        other.sets[0].set = "its own".into();
        let table = sweep_table(&[a.clone(), other.clone()]);
        assert!(table.contains("\n| other |  |  |  |  | 0.7000 | 2 |"), "{table}");
        let html = page(&Sweep::parse(text).unwrap(), &[other, a]).unwrap().to_html();
        assert_eq!(html.matches("<svg").count(), 5);

        // The suite's mean is shown where the first variant has none.
        let mut without = compare("without", &[run(&[])]);
        without.sets.truncate(1);
        let with = compare("with", &[run(&[(2, 0.2), (4, 0.4)])]);
        assert_eq!(shown_along(&[without, with]), [MEAN, "mean Retrieval", "mean STS"]);

        // Where all that there is are the last scores, they are said once.
        let last = [compare("b", &[run(&[(6, 0.7)])])];
        assert!(!sweep_table(&last).contains("by step"));
    }

    #[test]
    fn runs_of_earlier_versions_are_read() {
        let mut saved = serde_json::to_value(run(&[(2, 0.2), (4, 0.4)])).unwrap();
        let again: SweepRun = serde_json::from_value(saved.clone()).unwrap();
        assert_eq!(again.curve, run(&[(2, 0.2), (4, 0.4)]).curve);
        saved.as_object_mut().unwrap().remove("curve");
        assert!(serde_json::from_value::<SweepRun>(saved).unwrap().curve.is_empty());
    }

    #[test]
    fn means_and_deviations_are_those_of_a_sample() {
        let scores = SetScores::new("dev", vec![0.2, 0.4, 0.6], Vec::new());
        assert!((scores.mean - 0.4).abs() < 1e-12);
        assert!((scores.deviation.unwrap() - 0.2).abs() < 1e-12);
        assert_eq!(scores.text(), "0.4000 ± 0.2000");
        assert_eq!(SetScores::new("dev", vec![0.2], Vec::new()).text(), "0.2000");
    }
}

//! The page about a training run.

use anyhow::Result;
use kiln_report::{Page, Series, line_chart};

use super::{Inputs, Point};
use crate::recipe::Recipe;
use crate::terminal::{counted, thousands};

/// A value of each step, one line a stage.
pub fn curves(recipe: &Recipe, points: &[Point], value: fn(&Point) -> f64) -> Vec<Series> {
    let mut before = 0;
    let mut lines = Vec::new();
    for (number, stage) in recipe.stages.iter().enumerate() {
        let of_stage = points.iter().filter(|point| point.stage == number);
        lines.push(Series {
            name: stage.name.clone(),
            points: of_stage.map(|point| ((before + point.step) as f64, value(point))).collect(),
        });
        before += stage.steps;
    }
    lines
}

/// Scores by step, one line a set.
fn score_lines(recipe: &Recipe, points: &[Point]) -> Vec<Series> {
    let starts: Vec<usize> = recipe
        .stages
        .iter()
        .scan(0, |next, stage| {
            let start = *next;
            *next += stage.steps;
            Some(start)
        })
        .collect();
    let mut lines: Vec<Series> = Vec::new();
    for point in points {
        for (name, score) in &point.scores {
            let i = ((starts[point.stage] + point.step) as f64, *score);
            match lines.iter_mut().find(|line| line.name == *name) {
                Some(line) => line.points.push(i),
                None => lines.push(Series { name: name.clone(), points: vec![i] }),
            }
        }
    }
    lines
}

/// The report of a run.
///
/// # Errors
/// What plotters cannot draw.
pub fn training_page(recipe: &Recipe, inputs: &Inputs, points: &[Point]) -> Result<Page> {
    let mut page = Page::new(&format!("Training: {}", recipe.name));
    if !recipe.description.is_empty() {
        page.paragraph(&recipe.description);
    }
    let seconds: f64 = points.iter().map(|point| point.seconds).sum();
    let tokens: usize = points.iter().map(|point| point.tokens).sum();
    page.paragraph(&format!(
        "{} over {} ({}) in {}: {:.2} seconds a step, {:.0} tokens a second.",
        counted(points.len(), "step", "steps"),
        counted(points.iter().map(|point| point.texts).sum(), "text", "texts"),
        counted(tokens, "token", "tokens"),
        counted(seconds.round() as usize, "second", "seconds"),
        seconds / points.len().max(1) as f64,
        tokens as f64 / seconds.max(1e-9),
    ));
    let scores = score_lines(recipe, points);
    if !scores.is_empty() {
        page.heading("Scores");
        page.figure(
            &line_chart("step", "score", &scores)?,
            "Score of each evaluation; higher is better",
        );
        let mut rows = vec![vec!["step".to_string()]];
        rows[0].extend(scores.iter().map(|line| line.name.clone()));
        for i in 0..scores[0].points.len() {
            let mut row = vec![format!("{}", scores[0].points[i].0)];
            row.extend(
                scores.iter().filter_map(|line| Some(format!("{:.4}", line.points.get(i)?.1))),
            );
            rows.push(row);
        }
        page.table(&rows);
    }
    page.heading("Training");
    let figure =
        |page: &mut Page, what: &str, caption: &str, value: fn(&Point) -> f64| -> Result<()> {
            page.figure(&line_chart("step", what, &curves(recipe, points, value))?, caption);
            Ok(())
        };
    figure(
        &mut page,
        "loss",
        "Loss of each step (stages with other negatives or another objective have losses of another level)",
        |point| point.loss,
    )?;
    figure(&mut page, "learning rate", "Learning rate of each step", |point| point.lr)?;
    figure(&mut page, "gradient norm", "Norm of the gradient before clipping", |point| {
        point.grad_norm
    })?;
    figure(&mut page, "tokens/s", "Tokens a second, padding not counted", |point| {
        point.tokens as f64 / point.seconds.max(1e-9)
    })?;
    page.heading("Data");
    let mut rows = vec![
        ["stage", "data", "rows are", "rows", "examples", "left out"].map(String::from).to_vec(),
    ];
    for (stage, sets) in recipe.stages.iter().zip(&inputs.sets) {
        rows.extend(sets.iter().map(|set| {
            vec![
                stage.name.clone(),
                set.name.clone(),
                set.format.clone(),
                thousands(set.counts.rows),
                thousands(set.len()),
                set.counts.left_out(),
            ]
        }));
    }
    page.table(&rows);
    page.heading("Recipe");
    page.code(&toml::to_string(recipe)?);
    Ok(page)
}

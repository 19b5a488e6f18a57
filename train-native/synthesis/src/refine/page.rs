//! The page about a run.

use anyhow::Result;
use kiln_report::{Card, Page, histogram};
use kiln_terminal::terminal::{counted, thousands};

use super::config::Filters;
use super::ranks::Ranks;
use super::summary::RefineSummary;
use super::tally::{Measure, Shown, Tally};

/// Steps of histograms.
const STEPS: usize = 40;
/// Steps of judgements, which are whole numbers from 1 to 10.
const JUDGED_STEPS: usize = 10;
/// Examples of each side.
const EXAMPLES: usize = 12;

fn row<const N: usize>(cells: [String; N]) -> Vec<String> {
    cells.into()
}

/// Counts, histograms, examples, and the filters as they stand in their file.
///
/// # Errors
/// What cannot be drawn.
pub(super) fn page(
    summary: &RefineSummary,
    tally: &Tally,
    filters: &Filters,
    ranks: Option<&Ranks>,
) -> Result<Page> {
    let mut page = Page::new("Refined rows");
    let share = 100.0 * summary.kept as f64 / summary.rows.max(1) as f64;
    page.paragraph(&format!(
        "{} of {} kept ({share:.1} %), {} dropped.",
        thousands(summary.kept),
        counted(summary.rows, "row is", "rows are"),
        thousands(summary.dropped)
    ));
    for line in summary.unread().into_iter().chain(summary.idle()) {
        page.paragraph(&format!("Note: {line}."));
    }
    if let Some(ranks) = ranks {
        page.paragraph(&format!(
            "Teacher: {}, over {} texts, the nearest {} of which are ranked.",
            ranks.teacher,
            thousands(ranks.corpus),
            thousands(ranks.depth)
        ));
    }
    if let Some(spent) = &summary.judges {
        page.paragraph(&format!(
            "Judges: {} asked, {} answered by an earlier run, {} without an answer; {} tokens{}.",
            counted(spent.answered as usize, "question", "questions"),
            thousands(spent.known as usize),
            thousands(spent.failed as usize),
            thousands((spent.prompt_tokens + spent.completion_tokens) as usize),
            if spent.cost > 0.0 {
                format!(", at a cost of {:.4}", spent.cost)
            } else {
                String::new()
            },
        ));
    }
    if let Some(why) = summary.stopped() {
        page.paragraph(&format!("The judges were stopped before the end: {why}. {UNJUDGED}"));
    }
    counts(&mut page, summary);
    histograms(&mut page, tally, ranks)?;
    examples(&mut page, tally);
    page.heading("Filters");
    if !filters.description.is_empty() {
        page.paragraph(&filters.description);
    }
    page.code(&filters.text);
    Ok(page)
}

/// What becomes of texts that nobody judged.
pub(super) const UNJUDGED: &str = "Texts that no judge has judged count as wrong, unless their filter has \
    keep_unjudged = true; the same command again goes on where it stopped.";

fn counts(page: &mut Page, summary: &RefineSummary) {
    page.heading("What each filter did");
    let header = [
        "filter",
        "rows looked at",
        "rows dropped",
        "share",
        "positives taken out",
        "negatives taken out",
        "not judged",
    ];
    let mut rows = vec![row(header.map(String::from))];
    for one in &summary.filters {
        let share = 100.0 * one.dropped as f64 / one.rows.max(1) as f64;
        rows.push(row([
            one.name.clone(),
            thousands(one.rows),
            thousands(one.dropped),
            format!("{share:.1} %"),
            thousands(one.positives),
            thousands(one.negatives),
            thousands(one.unjudged),
        ]));
    }
    page.table(&rows);
    for one in summary.filters.iter().filter(|one| one.marked > 0) {
        let rows = counted(one.marked, "row", "rows");
        page.paragraph(&format!("{} marked {rows}.", one.name));
    }
    if !summary.left_out.is_empty() {
        let all = summary.left_out.iter().map(|one| format!("{} ({})", one.name, one.why));
        page.paragraph(&format!("Left out: {}.", all.collect::<Vec<_>>().join("; ")));
    }
    page.heading("Types");
    let mut rows = vec![row(["type", "rows", "kept", "share"].map(String::from))];
    for (name, one) in &summary.types {
        let share = 100.0 * one.kept as f64 / one.rows.max(1) as f64;
        rows.push(row([
            name.clone(),
            thousands(one.rows),
            thousands(one.kept),
            format!("{share:.1} %"),
        ]));
    }
    page.table(&rows);
}

fn histograms(page: &mut Page, tally: &Tally, ranks: Option<&Ranks>) -> Result<()> {
    if tally.measures.is_empty() {
        return Ok(());
    }
    page.heading("Kept against dropped");
    for (measure, [kept, dropped]) in &tally.measures {
        let series = [("kept", kept), ("dropped", dropped)];
        let series = series.into_iter().filter(|(_, sample)| !sample.items.is_empty());
        let series: Vec<_> =
            series.map(|(name, sample)| (name.to_string(), sample.items.clone())).collect();
        let names: Vec<&str> = series.iter().map(|(name, _)| name.as_str()).collect();
        let mut caption = format!("{}, of rows {}", measure.name(), names.join(" and of rows "));
        if let (Measure::PositiveRank | Measure::NegativeRank, Some(ranks)) = (measure, ranks) {
            let last = thousands(ranks.depth + 1);
            caption += &format!("; {last} stands for all that are farther");
        }
        let steps = match measure {
            Measure::PositiveRelatedness | Measure::NegativeRelatedness => JUDGED_STEPS,
            _ => STEPS,
        };
        page.figure(&histogram(measure.name(), &series, steps)?, &caption);
    }
    Ok(())
}

fn examples(page: &mut Page, tally: &Tally) {
    page.heading("Examples");
    page.paragraph("Drawn at random; long texts are shortened. Dropped rows are shown as the filter found them.");
    let kept: Vec<Card> = tally.examples.items.iter().take(EXAMPLES).map(card).collect();
    // One of each filter in turn, so that none crowds out the others.
    let most = tally.dropped.iter().map(|sample| sample.items.len()).max().unwrap_or(0);
    let turns =
        (0..most).flat_map(|i| tally.dropped.iter().filter_map(move |one| one.items.get(i)));
    let dropped: Vec<Card> = turns.take(EXAMPLES.max(tally.dropped.len())).map(card).collect();
    page.beside(&[
        (format!("{} kept", kept.len()), kept),
        (format!("{} dropped", dropped.len()), dropped),
    ]);
}

fn card(one: &Shown) -> Card {
    Card {
        title: one.title.clone(),
        texts: one.texts.iter().map(|(what, text)| (what.to_string(), text.clone())).collect(),
        note: one.why.clone(),
    }
}

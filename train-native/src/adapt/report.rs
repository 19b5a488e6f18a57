//! What came of it: a page and a model card.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;

use super::Questions;
use crate::data::BeirFolder;
use crate::eval::{BM25, Difference, Systems, markdown_table};
use crate::report::{Page, bar_chart};
use crate::terminal::{counted, plain, thousands};

/// Questions that the page shows.
const SHOWN: usize = 12;
/// Letters of a passage that it shows.
const LETTERS: usize = 300;
/// Questions below which a difference says little.
const FEW_QUESTIONS: usize = 100;
/// Examples below which there is little to learn from.
const FEW_EXAMPLES: usize = 500;

/// What is to be known of people's questions.
const TRAINED_ON: &str =
    "The documents of these questions may be those that were trained on; the questions were not.";
/// Origins that the card names.
const ORIGINS: usize = 20;

/// A step that was taken.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTaken {
    /// What it does.
    pub name: String,
    /// The command that does it alone.
    pub command: String,
    /// Seconds; none where it was done before.
    pub seconds: Option<f64>,
}

/// Whether the base was made better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The middle 95 % of draws are above zero.
    Better,
    /// They hold zero.
    NotTold,
    /// They are below zero.
    Worse,
}

impl Verdict {
    /// By the draws of a difference; without them by nothing.
    pub fn of(difference: &Difference) -> Self {
        match difference.bootstrap {
            Some(interval) if interval.low > 0.0 => Self::Better,
            Some(interval) if interval.high < 0.0 => Self::Worse,
            _ => Self::NotTold,
        }
    }
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Adapted {
    /// The base, as it was named.
    pub base: String,
    /// The folder of documents.
    pub documents: String,
    /// Who wrote the questions: models, or none.
    pub writers: Vec<String>,
    /// Who judged them: models, or none.
    pub judges: Vec<String>,
    /// The versions of the prompts that these were given.
    pub prompts: Vec<String>,
    /// Seed.
    pub seed: u64,
    /// Compression of the result.
    pub scheme: String,
    /// Version of Kiln.
    pub kiln: &'static str,
    /// Counts.
    pub questions: Questions,
    /// Ways to search by held-out questions.
    pub held_out: Systems,
    /// Ways to search by questions of people, where there are some.
    pub people: Option<Systems>,
    /// The name of the adapted model among the ways.
    pub adapted: String,
    /// Whether the adapted model searches better than the base, by people's questions where there are some.
    pub verdict: Verdict,
    /// Why not, perhaps.
    pub why: Vec<String>,
    /// What was done.
    pub steps: Vec<StepTaken>,
    /// The compressed model.
    pub output: String,
}

impl Adapted {
    /// The ways that decide: by people's questions where there are some.
    pub fn judged(&self) -> &Systems {
        self.people.as_ref().unwrap_or(&self.held_out)
    }

    /// One line that says what came of it.
    pub fn sentence(&self) -> String {
        let systems = self.judged();
        let who = if self.people.is_some() { "people's questions" } else { "held-out questions" };
        let name = &self.adapted;
        let Some(difference) = systems.difference(name, &systems.against) else {
            return format!("{name} did not search");
        };
        let [points, range, _] = difference.cells();
        let what = match self.verdict {
            Verdict::Better => "is better than the base",
            Verdict::NotTold => "cannot be told from the base",
            Verdict::Worse => "is worse than the base",
        };
        format!(
            "{name} {what}: nDCG@10 {points} points ({range}) on {} {who}{}",
            thousands(systems.queries),
            self.beaten_by().unwrap_or_default()
        )
    }

    /// Whether it answers questions like those that it was trained on better than the base.
    fn learned_its_own(&self) -> bool {
        let difference = self.held_out.difference(&self.adapted, &self.held_out.against);
        difference.is_some_and(|difference| Verdict::of(&difference) == Verdict::Better)
    }

    /// What serves the model, and what loads it in a page, each with what it is.
    pub fn uses(&self) -> [[String; 2]; 2] {
        let page = "const model = await Embedder.load(\"/adapted.kiln\"); // import { Embedder } from \"kiln-embed\"";
        [
            ["serve it".into(), format!("kiln serve --model {}", quoted(&self.output))],
            ["load it in a page".into(), page.into()],
        ]
    }

    /// A way's name where there is no room: what it is to the base.
    fn short(&self, name: &str) -> String {
        name.replace(&self.adapted, "adapted").replace(&self.held_out.against, "base")
    }

    /// What finds more without the adapted model, though that is better than the base.
    fn beaten_by(&self) -> Option<String> {
        let systems = self.judged();
        let own = systems.get(&self.adapted)?.ndcg_at_10;
        let others = systems.systems.iter().filter(|one| !one.name.contains(&self.adapted));
        let best = others.max_by(|a, b| a.ndcg_at_10.total_cmp(&b.ndcg_at_10))?;
        let (name, found) = (self.short(&best.name), best.ndcg_at_10);
        let all = || format!("; {name} finds more: {:.2} beside {:.2}", 100.0 * found, 100.0 * own);
        (self.verdict == Verdict::Better && found > own).then(all)
    }

    /// Why it may not be better.
    pub fn reasons(&self) -> Vec<String> {
        if self.verdict == Verdict::Better {
            return Vec::new();
        }
        let mut why = Vec::new();
        let systems = self.judged();
        let base = systems.get(&systems.against).map_or(0.0, |system| system.ndcg_at_10);
        let words = systems.get(BM25).map_or(0.0, |system| system.ndcg_at_10);
        if systems.queries < FEW_QUESTIONS {
            why.push(format!(
                "{} few: differences of some points are within what chance does; add documents or a \
                 --test-set",
                counted(systems.queries, "question is", "questions are")
            ));
        }
        if self.questions.train < FEW_EXAMPLES {
            why.push(format!(
                "{} little to learn from; add documents, or have more questions written (--queries)",
                counted(self.questions.train, "example is", "examples are")
            ));
        }
        if base > 0.9 {
            why.push(
                "the base finds nearly everything already; harder questions would show more".into(),
            );
        }
        if words > base {
            why.push(
                "BM25 finds more than the base: the words of these questions stand in their passages; look at the \
                 hybrid"
                    .into(),
            );
        }
        if self.people.is_some() && self.learned_its_own() {
            why.push(
                "the model did learn to answer questions like those that it was trained on: these are not what people \
                 ask"
                    .into(),
            );
        }
        if self.scheme.starts_with("int4") {
            why.push("int4 takes some of what was learned; int8 takes less (--scheme)".into());
        }
        if self.writers.is_empty() {
            why.push("titles and headings are not what people ask; let a language model write questions (--llm)".into());
        } else {
            why.push("the questions are as good as the model that wrote them; look at them in synthesis/rows.jsonl, \
                      and ask a larger one".into());
        }
        why
    }
}

/// The page.
///
/// # Errors
/// A chart that cannot be drawn, or a corpus that cannot be read.
pub fn page(adapted: &Adapted, set: &BeirFolder) -> Result<Page> {
    let mut page = Page::new("Adapted to your documents");
    let questions = &adapted.questions;
    page.paragraph(&format!("{}.", adapted.sentence()));
    for reason in &adapted.why {
        page.paragraph(&format!("Perhaps because {reason}."));
    }
    let writers = match &adapted.writers[..] {
        [] => "nobody: they are titles, headings and questions of the documents themselves".into(),
        writers => writers.join(", "),
    };
    page.paragraph(&format!(
        "{} of {}, cut into {}. Questions by {writers}: {} to train on, {} to choose a checkpoint by, {} \
         to judge by; no document is in two of these parts.",
        counted(questions.documents, "document", "documents"),
        adapted.documents,
        counted(questions.passages, "passage", "passages"),
        thousands(questions.train),
        thousands(questions.dev),
        thousands(questions.test)
    ));
    let show = |page: &mut Page, title: &str, systems: &Systems| -> Result<()> {
        page.heading(title);
        let bars: Vec<(String, f64)> = systems
            .systems
            .iter()
            .map(|system| (adapted.short(&system.name), system.ndcg_at_10))
            .collect();
        page.figure(
            &bar_chart(&bars)?,
            &format!(
                "nDCG@10 of {} among {}",
                counted(systems.queries, "question", "questions"),
                counted(systems.documents, "passage", "passages")
            ),
        );
        page.table(&systems.rows());
        Ok(())
    };
    if let Some(people) = &adapted.people {
        show(&mut page, "Questions of people", people)?;
        page.paragraph(TRAINED_ON);
    }
    show(&mut page, "Held-out questions", &adapted.held_out)?;
    page.paragraph(
        "In points of 100. The middle 95 % of 2000 paired draws of documents with their questions, and how often they fall \
         on the other side of zero (p, two-sided). A hybrid is the reciprocal rank fusion of BM25's and the model's first hundred hits.",
    );
    page.heading("Held-out questions and what is found first");
    let systems =
        [adapted.held_out.get(&adapted.held_out.against), adapted.held_out.get(&adapted.adapted)];
    let [Some(base), Some(own)] = systems else {
        bail!("{}: neither it nor the base searched", adapted.adapted)
    };
    let mut rows = vec![
        [
            "question",
            "the passage that it is of",
            "found first by the base",
            "by the adapted model",
        ]
        .map(String::from)
        .to_vec(),
    ];
    let step = (set.queries.len() / SHOWN).max(1);
    for i in (0..set.queries.len()).step_by(step).take(SHOWN) {
        let right = set.relevant[i].keys().next().copied();
        let mut row = vec![set.queries[i].clone()];
        row.push(right.map_or(Ok(String::new()), |right| shown(set, right))?);
        for system in [base, own] {
            row.push(match system.hits[i].first() {
                Some(first) if Some(*first) == right => "the same".into(),
                Some(first) => shown(set, *first)?,
                None => String::new(),
            });
        }
        rows.push(row);
    }
    page.table(&rows);
    page.heading("Use");
    page.table(&adapted.uses().map(Vec::from));
    page.heading("Steps");
    let mut rows = vec![["step", "command", "seconds"].map(String::from).to_vec()];
    rows.extend(adapted.steps.iter().map(|step| {
        let seconds = step.seconds.map_or("done before".into(), |seconds| format!("{seconds:.0}"));
        vec![step.name.clone(), step.command.clone(), seconds]
    }));
    page.table(&rows);
    Ok(page)
}

fn shown(set: &BeirFolder, row: usize) -> Result<String> {
    let text: String = set.corpus.get(row)?;
    let start: String = text.chars().take(LETTERS).collect();
    Ok(if start.len() < text.len() { format!("{start} ...") } else { start })
}

/// The model card: what it is, what it was made of, and how it searches.
pub fn card(adapted: &Adapted) -> String {
    let questions = &adapted.questions;
    let mut text = String::from(
        "---\nlibrary_name: kiln\npipeline_tag: sentence-similarity\ntags:\n- sentence-similarity\n- feature-extraction\n- kiln\n",
    );
    if crate::hub::is_id(&adapted.base) {
        // JSON is YAML, and quotes what YAML would misread.
        let _ = writeln!(text, "base_model: {}", json!(adapted.base));
    }
    text += "---\n\n# Adapted to a folder of documents\n\n";
    let _ = writeln!(text, "{}.\n", adapted.sentence());
    for reason in &adapted.why {
        let _ = writeln!(text, "- Perhaps because {reason}.");
    }
    text += "\n## What it was made of\n\n";
    let _ = writeln!(text, "- Base: `{}`.", one_line(&adapted.base));
    let _ = writeln!(
        text,
        "- {} in {}; {} to train on, {} to choose a checkpoint by, {} to judge by.",
        counted(questions.documents, "document", "documents"),
        counted(questions.passages, "passage", "passages"),
        counted(questions.train, "example", "examples"),
        counted(questions.dev, "question", "questions"),
        thousands(questions.test)
    );
    let names = |names: &[String]| {
        names.iter().map(|name| format!("`{}`", one_line(name))).collect::<Vec<_>>().join(", ")
    };
    match &adapted.writers[..] {
        [] => {
            text += "- Questions: titles, headings and questions of the documents themselves; no language model wrote any.\n"
        }
        writers => {
            let _ = writeln!(
                text,
                "- Questions: generated by {}. Passages are the documents' own text.",
                names(writers)
            );
        }
    }
    if !adapted.judges.is_empty() {
        let _ = writeln!(text, "- Judged by {}.", names(&adapted.judges));
    }
    if !adapted.prompts.is_empty() {
        let _ = writeln!(text, "- Prompts: {}.", names(&adapted.prompts));
    }
    let _ = writeln!(text, "- Seed {}, Kiln {}.", adapted.seed, adapted.kiln);
    if !questions.origins.is_empty() {
        let _ =
            writeln!(text, "- Where the documents came from, as they say: {}.", origins(questions));
    }
    text += "- Origin and licence of each document: `sources.jsonl`.\n";
    text += "- Licences that the documents name: ";
    let mut licences: Vec<String> = questions
        .licences
        .iter()
        .map(|(name, count)| format!("{} ({count})", one_line(name)))
        .collect();
    if questions.without_licence > 0 {
        licences.push(format!("none ({})", questions.without_licence));
    }
    let _ = writeln!(text, "{}.", licences.join(", "));
    if let Some(people) = &adapted.people {
        let _ = writeln!(text, "\n## Questions of people\n\n{}", markdown_table(&people.rows()));
        let _ = writeln!(text, "{TRAINED_ON}");
    }
    let _ =
        writeln!(text, "\n## Held-out questions\n\n{}", markdown_table(&adapted.held_out.rows()));
    text += "\n## Use\n\n";
    for [what, how] in adapted.uses() {
        let _ = writeln!(text, "{what}:\n\n    {how}\n");
    }
    text
}

/// The origins of most documents, and how many others there are.
fn origins(questions: &Questions) -> String {
    let mut all: Vec<(&String, &usize)> = questions.origins.iter().collect();
    all.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let named =
        all.iter().take(ORIGINS).map(|(name, count)| format!("{} ({count})", one_line(name)));
    let mut named: Vec<String> = named.collect();
    if let Some(others) = all.len().checked_sub(ORIGINS).filter(|others| *others > 0) {
        named.push(format!("and {}", counted(others, "other", "others")));
    }
    named.join(", ")
}

/// A word as shells read it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// A name that stays in its place in Markdown.
fn one_line(name: &str) -> String {
    let name: String = name.split_whitespace().collect::<Vec<_>>().join(" ");
    plain(&name).replace(['`', '<', '>', '[', ']'], "'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origins_of_most_documents_are_named() {
        let mut questions = Questions::default();
        for n in 0..ORIGINS + 3 {
            questions.origins.insert(format!("host-{n:02}.org"), 1);
        }
        questions.origins.insert("<b>.org".into(), 9);
        let text = origins(&questions);
        assert!(text.starts_with("'b'.org (9), host-00.org (1)"), "{text}");
        assert!(text.ends_with("and 4 others"), "{text}");
    }
}

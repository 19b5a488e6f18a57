//! The README's first command: a corpus, a tokenizer and a model from nothing, trained in two
//! stages and measured on unseen entities.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use burn::backend::Autodiff;
use kiln_embed::checkpoint::{Existing, check_target, save, write_directory};
use kiln_embed::embedder::{EmbedOptions, Prompt};
use kiln_embed::kernels::Kernels;
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use serde::Serialize;

use crate::data::OnBadRow;
use crate::data::corpus::{Corpus, CorpusSize, RetrievalSet};
use crate::device::Device;
use crate::embedding::TextModel;
use crate::eval::{bm25_rankings, dense_rankings, ndcg};
use crate::output::claim;
use crate::recipe::{Recipe, Stage};
use crate::report::{Page, bar_chart, line_chart};
use crate::terminal::Terminal;
use crate::train::{
    Inputs, Point, RUN_FILES, TrainObserver, TrainPlan, Trained, curves, new_model, train,
};
use crate::vectors::write_atomically;
use crate::with_backend;

/// The recipe that quickstart runs, as it also writes it into its folder.
pub const RECIPE: &str = include_str!("../recipes/quickstart.toml");

/// Rank down to which nDCG counts.
const DEPTH: usize = 10;

/// How to run quickstart.
#[derive(Debug, Clone)]
pub struct Quickstart {
    /// Folder for everything that is written.
    pub output: PathBuf,
    /// Size of the corpus.
    pub size: CorpusSize,
    /// Another seed than the recipe's.
    pub seed: Option<u64>,
    /// Share of the recipe's steps to run, for a quick try.
    pub steps: f64,
}

/// nDCG@10 of one way to rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// What ranked.
    pub name: String,
    /// Mean nDCG@10 over the test queries.
    pub ndcg_at_10: f64,
}

/// One answered sample query.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sample {
    /// The query.
    pub query: String,
    /// The three best passages with their cosine.
    pub answers: Vec<(f32, String)>,
    /// Whether the first passage is the right one.
    pub right: bool,
}

/// What quickstart reports.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QuickstartSummary {
    /// Scores in the order in which they were measured.
    pub scores: Vec<Score>,
    /// Sample queries.
    pub samples: Vec<Sample>,
    /// Test queries, each with one right passage among as many.
    pub test_queries: usize,
    /// Parameters of the model.
    pub parameters: usize,
    /// Seconds in all.
    pub seconds: f64,
    /// Where the model is.
    pub model: PathBuf,
    /// Where the report is.
    pub report: PathBuf,
}

/// Runs the whole: data, model, two stages, scores, report.
///
/// # Errors
/// A folder that cannot be written, or [`kiln_embed::Error::Cancelled`] after Ctrl-C.
pub fn run(options: &Quickstart, device: &Device, terminal: Terminal) -> Result<QuickstartSummary> {
    with_backend!(device, B, handle => run_on::<B>(options, &handle, terminal))
}

fn run_on<B: Kernels>(
    options: &Quickstart,
    device: &B::Device,
    terminal: Terminal,
) -> Result<QuickstartSummary> {
    let start = Instant::now();
    let mut recipe = Recipe::parse(RECIPE)?;
    recipe.seed = options.seed.unwrap_or(recipe.seed);
    for stage in &mut recipe.stages {
        stage.steps = ((stage.steps as f64 * options.steps).round() as usize).max(1);
    }
    B::seed(device, recipe.seed);
    let corpus = Corpus::generate(recipe.seed, options.size);
    let out = &options.output;
    check_target(&out.join("model"), Existing::ReplaceOurs)?;
    claim(out, &[RUN_FILES.as_slice(), &["data", "scores.json"]].concat())?;
    write_data(out, &corpus, &recipe)?;
    terminal.note(format!(
        "made {} training examples and {} test queries on unseen entities in {}",
        corpus.retrieval.len() + corpus.classes.len() + corpus.pairs.len(),
        corpus.test.queries.len(),
        out.join("data").display()
    ));

    let shape = recipe.model.new.clone().context("the quickstart recipe describes a new model")?;
    let embedder = new_model::<B>(&shape, &recipe.model, corpus.training_texts(), device)?;
    let parameters = burn::module::Module::num_params(embedder.model());
    let mut scores = vec![
        Score { name: "random order".into(), ndcg_at_10: random_score(&corpus.test, recipe.seed) },
        Score { name: "untrained model".into(), ndcg_at_10: score(&embedder, &corpus.test)? },
    ];
    let show = |name: String, value: f64, scores: &mut Vec<Score>| {
        terminal.note(format!("nDCG@{DEPTH} {value:.4}  {name}"));
        scores.push(Score { name, ndcg_at_10: value });
    };
    for score in &scores {
        terminal.note(format!("nDCG@{DEPTH} {:.4}  {}", score.ndcg_at_10, score.name));
    }
    let inputs = Inputs::open(&recipe, out, OnBadRow::Stop, Terminal { quiet: true, ..terminal })?;
    let plan = TrainPlan {
        recipe: &recipe,
        sets: &inputs.sets,
        measured: &[],
        output: Some(out),
        lm_head: None,
        checkpoint_every: 500,
        keep: 1,
        save_every: 0,
        resume: None,
        hosts: None,
        terminal,
    };
    struct Scores<'a, F>(&'a RetrievalSet, F);
    impl<B: Kernels, F: FnMut(String, f64)> TrainObserver<Autodiff<B>> for Scores<'_, F> {
        fn after_stage(&mut self, model: &Trained<B>, stage: &Stage) -> Result<()> {
            let Trained::Embedder(embedder) = model else { return Ok(()) };
            let value = score(embedder, self.0)?;
            (self.1)(format!("after stage {:?}", stage.name), value);
            Ok(())
        }
    }
    let note = |name: String, value: f64| show(name, value, &mut scores);
    let outcome = train::<Autodiff<B>>(embedder, plan, &[], &mut Scores(&corpus.test, note))?;
    if outcome.interrupted {
        return Err(kiln_embed::Error::Cancelled.into());
    }
    let embedder = outcome.model.embedder().context("the quickstart recipe trains an embedder")?;
    let bm25 =
        mean_ndcg(&bm25_rankings(&corpus.test.queries, &corpus.test.corpus, DEPTH), &corpus.test);
    show("BM25 on the same test".into(), bm25, &mut scores);

    let model = out.join("model");
    write_directory(&model, &save(embedder)?, Existing::ReplaceOurs)?;
    let summary = QuickstartSummary {
        samples: samples(embedder, &corpus.test)?,
        scores,
        test_queries: corpus.test.queries.len(),
        parameters,
        seconds: start.elapsed().as_secs_f64(),
        model,
        report: out.join("report.html"),
    };
    write_atomically(&out.join("scores.json"), &serde_json::to_vec_pretty(&summary)?)?;
    write_atomically(
        &summary.report,
        page(&summary, &recipe, &outcome.points)?.to_html().as_bytes(),
    )?;
    Ok(summary)
}

/// The corpus in the formats that people bring, and the recipe, so that `train --recipe` runs
/// the same again.
fn write_data(out: &Path, corpus: &Corpus, recipe: &Recipe) -> Result<()> {
    let folder = out.join("data");
    let create =
        |path: &Path| std::fs::create_dir_all(path).with_context(|| path.display().to_string());
    create(&folder.join("test/qrels"))?;
    fn lines<T: Serialize>(items: impl Iterator<Item = T>) -> Result<Vec<u8>> {
        let lines: Vec<String> =
            items.map(|item| serde_json::to_string(&item)).collect::<Result<_, _>>()?;
        Ok((lines.join("\n") + "\n").into_bytes())
    }
    #[derive(Serialize)]
    struct Text<'a> {
        _id: String,
        text: &'a str,
    }
    let texts = |prefix: &'static str, texts: &'static str, of: &[String]| -> Result<()> {
        let rows =
            of.iter().enumerate().map(|(row, text)| Text { _id: format!("{prefix}{row}"), text });
        write_atomically(&folder.join("test").join(texts), &lines(rows)?)
    };
    for (name, examples) in
        [("retrieval", &corpus.retrieval), ("classes", &corpus.classes), ("pairs", &corpus.pairs)]
    {
        write_atomically(&folder.join(format!("{name}.jsonl")), &lines(examples.iter())?)?;
    }
    texts("d", "corpus.jsonl", &corpus.test.corpus)?;
    texts("q", "queries.jsonl", &corpus.test.queries)?;
    let mut qrels = String::from("query-id\tcorpus-id\tscore\n");
    for (query, document) in corpus.test.relevant.iter().enumerate() {
        qrels.push_str(&format!("q{query}\td{document}\t1\n"));
    }
    write_atomically(&folder.join("test/qrels/test.tsv"), qrels.as_bytes())?;
    write_atomically(&out.join("recipe.toml"), toml::to_string(recipe)?.as_bytes())
}

fn mean_ndcg(rankings: &[Vec<usize>], test: &RetrievalSet) -> f64 {
    let scores = rankings.iter().zip(&test.relevant).map(|(ranking, &right)| {
        let grades: HashMap<usize, f64> = [(right, 1.0)].into();
        ndcg(ranking, &grades, &[], DEPTH)
    });
    scores.sum::<f64>() / rankings.len().max(1) as f64
}

fn random_score(test: &RetrievalSet, seed: u64) -> f64 {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut rows: Vec<usize> = (0..test.corpus.len()).collect();
    let mut rankings = Vec::with_capacity(test.queries.len());
    for _ in &test.queries {
        rows.shuffle(&mut rng);
        rankings.push(rows[..DEPTH.min(rows.len())].to_vec());
    }
    mean_ndcg(&rankings, test)
}

fn embed(model: &dyn TextModel, texts: &[String], prompt: &str) -> Result<Vec<Vec<f32>>> {
    let options = EmbedOptions::with_prompt(Prompt::Named(prompt.into()));
    Ok(model.embed(texts, &options, |_| {})?)
}

fn score(model: &dyn TextModel, test: &RetrievalSet) -> Result<f64> {
    let corpus = embed(model, &test.corpus, "document")?;
    let queries = embed(model, &test.queries, "query")?;
    Ok(mean_ndcg(&dense_rankings(&queries, &corpus, DEPTH)?, test))
}

/// The first three test queries and what the model finds.
fn samples(model: &dyn TextModel, test: &RetrievalSet) -> Result<Vec<Sample>> {
    let corpus = embed(model, &test.corpus, "document")?;
    let chosen = &test.queries[..3.min(test.queries.len())];
    let queries = embed(model, chosen, "query")?;
    let rankings = dense_rankings(&queries, &corpus, 3)?;
    let sample = |(i, ranking): (usize, Vec<usize>)| Sample {
        query: chosen[i].clone(),
        right: ranking.first() == Some(&test.relevant[i]),
        answers: ranking
            .into_iter()
            .map(|row| {
                (kiln_embed::index::dot(&queries[i], &corpus[row]), test.corpus[row].clone())
            })
            .collect(),
    };
    Ok(rankings.into_iter().enumerate().map(sample).collect())
}

fn page(summary: &QuickstartSummary, recipe: &Recipe, points: &[Point]) -> Result<Page> {
    let mut page = Page::new("Kiln quickstart");
    page.paragraph(&format!(
        "A model of {} parameters, trained from nothing in {:.0} seconds on made-up facts, and tested on {} questions \
         about entities that it never saw; each has one right passage among {}.",
        crate::terminal::thousands(summary.parameters),
        summary.seconds,
        summary.test_queries,
        summary.test_queries
    ));
    page.heading("Retrieval, nDCG@10");
    let bars: Vec<(String, f64)> =
        summary.scores.iter().map(|score| (score.name.clone(), score.ndcg_at_10)).collect();
    page.figure(&bar_chart(&bars)?, "nDCG@10 on the test questions; higher is better");
    page.heading("Training");
    let (loss, lr) =
        (curves(recipe, points, |point| point.loss), curves(recipe, points, |point| point.lr));
    page.figure(&line_chart("step", "loss", &loss)?, "Contrastive loss of each step (the stages' losses have different negatives, so their levels differ)");
    page.figure(&line_chart("step", "learning rate", &lr)?, "Learning rate of each step");
    page.heading("Sample queries");
    for sample in &summary.samples {
        let mut rows = vec![vec!["cosine".to_string(), sample.query.clone()]];
        rows.extend(
            sample.answers.iter().map(|(score, text)| vec![format!("{score:.3}"), text.clone()]),
        );
        page.table(&rows);
    }
    Ok(page)
}

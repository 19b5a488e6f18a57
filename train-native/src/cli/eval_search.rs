//! `kiln eval search`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::checkpoint::LoadOptions;

use super::Global;
use crate::data::BeirFolder;
use crate::device::open;
use crate::eval::{Systems, judged_split, plain_table};
use crate::model::{load, model_name};
use crate::terminal::counted;
use crate::vectors::write_atomically;

/// Compare ways to search a corpus: words (BM25), models, and both together.
///
/// Compares all with the first model by a paired bootstrap over documents with their queries; a hybrid is the reciprocal rank fusion of
/// BM25's and the model's first hundred hits.
#[derive(Debug, Args)]
pub(super) struct EvalSearchArgs {
    /// Models, the one to compare with first (repeatable)
    #[arg(long, short, value_name = "DIR|HUB_ID", required = true)]
    model: Vec<String>,
    /// BEIR folder: corpus.jsonl, queries.jsonl, qrels/
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Judgements to use [default: the first of test, dev, validation that exists]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Also write the scores, those of each query included, to this file (.json)
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(args: &EvalSearchArgs, global: &Global) -> Result<()> {
    let systems = systems(&args.model, &args.data, args.split.as_deref(), global)?.0;
    if let Some(output) = &args.output {
        write_atomically(output, &serde_json::to_vec_pretty(&systems)?)?;
    }
    let text = || {
        format!(
            "{}, {}\n\n{}\nIn points of 100; the middle 95 % of 2000 paired draws of documents with \
             their questions, and how often they fall on the other side of zero (p, two-sided).\n",
            counted(systems.queries, "query", "queries"),
            counted(systems.documents, "document", "documents"),
            plain_table(&systems.rows())
        )
    };
    global.terminal().result(&systems, text)
}

/// All ways to search a BEIR folder, and the folder.
pub(super) fn systems(
    models: &[String],
    data: &Path,
    split: Option<&str>,
    global: &Global,
) -> Result<(Systems, BeirFolder)> {
    let terminal = global.terminal();
    let split = split.map_or_else(|| judged_split(data), |split| Ok(split.into()))?;
    let set = BeirFolder::read(data, &split, None, terminal)?;
    let device = open(global.device)?;
    let mut loaded = Vec::new();
    for model in models {
        let name = model_name(model);
        if loaded.iter().any(|(other, _)| *other == name) {
            bail!("two models have the name {name}; copy one to a folder of another name");
        }
        loaded.push((name, load(model, &LoadOptions::default(), &device, terminal)?));
    }
    let models: Vec<_> =
        loaded.iter().map(|(name, model)| (name.clone(), model.as_ref())).collect();
    Ok((Systems::of(&set, &models, terminal)?, set))
}

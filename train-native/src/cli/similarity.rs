//! `kiln similarity`

use anyhow::{Result, bail};
use clap::Args;
use kiln_embed::index::cosine;
use serde::Serialize;

use super::{EmbedFlags, Global, ModelArgs};
use crate::terminal::{counted, field};
use crate::text::{Columns, TextFile};

/// Compute the cosine similarity of pairs of texts.
///
/// Takes two texts from the command line, or a file of pairs.
#[derive(Debug, Args)]
pub(super) struct SimilarityArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Two texts
    #[arg(num_args = 2, value_names = ["TEXT", "TEXT"], required_unless_present = "input")]
    texts: Vec<String>,
    /// File of pairs: .jsonl, .csv, .tsv or .parquet
    #[arg(long, short, value_name = "FILE", conflicts_with = "texts")]
    input: Option<String>,
    /// Fields or columns of the two texts
    #[arg(long, value_names = ["A,B"], default_value = "sentence1,sentence2", value_delimiter = ',', num_args = 1)]
    fields: Vec<String>,
    /// Name of the model's prompt to use for both texts
    #[arg(long, value_name = "NAME")]
    prompt_name: Option<String>,
    #[command(flatten)]
    flags: EmbedFlags,
}

/// One pair and its similarity.
#[derive(Debug, Serialize)]
struct Pair {
    a: String,
    b: String,
    cosine: f32,
}

pub(super) fn run(args: &SimilarityArgs, global: &Global) -> Result<()> {
    let [a_field, b_field] = args.fields.as_slice() else {
        bail!("--fields takes two names with a comma between, as sentence1,sentence2");
    };
    let (mut left, mut right) = (Vec::new(), Vec::new());
    match (&args.input, args.texts.as_slice()) {
        (Some(path), _) => {
            let file = TextFile::open(path, Columns::required(&[a_field, b_field]))?;
            if file.format() == crate::text::Format::Lines {
                bail!(
                    "{}: a line holds one text; pairs come from .jsonl, .csv, .tsv or .parquet",
                    file.label
                );
            }
            for record in file.records()? {
                let mut fields = record?.fields.into_iter();
                left.extend(fields.next());
                right.extend(fields.next());
            }
        }
        (None, [a, b]) => {
            left.push(a.clone());
            right.push(b.clone());
        }
        _ => bail!("give two texts, or --input FILE"),
    }
    if left.is_empty() {
        bail!("no pairs to compare");
    }
    let terminal = global.terminal();
    let options = args.flags.options(args.prompt_name.as_deref(), None);
    let texts: Vec<&String> = left.iter().chain(&right).collect();
    let model = args.model.load(&args.flags, global)?;
    let bar = terminal.progress(texts.len() as u64, "embedding");
    let vectors = model.embed(&texts, &options, |progress| bar.set_position(progress.texts as u64));
    bar.finish_and_clear();
    let vectors = vectors?;
    let pairs: Vec<Pair> = left
        .iter()
        .zip(&right)
        .enumerate()
        .map(|(row, (a, b))| Pair {
            a: a.clone(),
            b: b.clone(),
            cosine: cosine(&vectors[row], &vectors[left.len() + row]),
        })
        .collect();
    terminal.note(counted(pairs.len(), "pair", "pairs"));
    terminal.result(&pairs, || {
        let line =
            |pair: &Pair| format!("{:.6}\t{}\t{}", pair.cosine, field(&pair.a), field(&pair.b));
        pairs.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}

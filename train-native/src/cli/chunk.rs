//! `kiln chunk`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use kiln_synthesis::documents::{
    ChunkRule, Documents, GatherPlan, Gathered, Shares, Split, gather,
};
use serde_json::json;

use super::Global;
use super::ranges::{SIZE, seed, whole};
use crate::mine::teacher_prompts;
use crate::model::load_tokenizer;
use crate::terminal::{Terminal, counted, thousands};
use crate::text::apart;
use crate::vectors::NewFile;

/// Tokens of a passage, where the model reads as many.
const TOKENS: usize = 256;
/// Tokens of a text that stands alone, where passages are long enough.
const MIN_TOKENS: usize = 16;

/// Cut documents into passages that fit a model.
///
/// Reads .txt, .md, .html, .pdf, .jsonl, .csv, .tsv and .parquet. Each line written is a passage, as in a BEIR
/// corpus (_id, title, text), with its document, headings and split: all passages of a document are for
/// train, dev or test together.
#[derive(Debug, Args)]
pub(super) struct ChunkArgs {
    /// Folder of documents, or one file; of .jsonl, .csv, .tsv and .parquet each row is a document (field text,
    /// body or content, optionally title, _id, license, url)
    #[arg(long, value_name = "PATH")]
    docs: PathBuf,
    /// Model whose tokens are counted: a folder, a .kiln file, or a Hub id (owner/name[@revision]); its weights
    /// are not read
    #[arg(long, short, value_name = "DIR|HUB_ID")]
    model: String,
    /// File to write the passages to (.jsonl)
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
    /// Maximum number of tokens of a passage: title, headings, text, and what the model puts around them
    /// [default: 256, or what the model reads of a text if that is less]
    #[arg(long, value_name = "N", value_parser = whole(16, SIZE))]
    tokens: Option<usize>,
    /// Begin a passage with sentences of the end of the one before it, at most this many tokens
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0, SIZE))]
    overlap: usize,
    /// Join a text of fewer tokens than this with what stands beside it, where that fits [default: 16, or a
    /// quarter of --tokens if that is less]
    #[arg(long, value_name = "N", value_parser = whole(0, SIZE))]
    min_tokens: Option<usize>,
    /// Shares of the documents for train, dev and test
    #[arg(long, value_name = "SHARES", default_value = "0.8,0.1,0.1")]
    split: Shares,
    /// Random seed of --split
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = seed())]
    seed: u64,
}

pub(super) fn run(args: &ChunkArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    check_output(args)?;
    let mut documents = Documents::open(&args.docs)?;
    let (tokenizer, prompts) = load_tokenizer(&args.model, terminal)?;
    let [_, prompt] = teacher_prompts(&prompts, [None, None])?;
    let most = tokenizer.config().max_length;
    let tokens = args.tokens.unwrap_or(TOKENS.min(most));
    if tokens > most {
        bail!(
            "--tokens {tokens}: {} reads {most} tokens of a text, and would not see the rest; lower it",
            args.model
        );
    }
    let min_tokens = args.min_tokens.unwrap_or(MIN_TOKENS.min(tokens / 4));
    let rule = ChunkRule { tokens, overlap: args.overlap, min_tokens };
    let plan = GatherPlan { rule, shares: args.split, seed: args.seed };
    let count = |text: &str| Ok(tokenizer.length(&prompt, text)?);
    let mut file = NewFile::create(&args.output)?;
    let gathered = gather(&mut documents, &plan, &count, terminal, &mut |passages| {
        passages.iter().try_for_each(|passage| file.line(passage))
    })?;
    file.finish()?;
    say(&gathered, args.split, terminal);
    let value = json!({
        "output": args.output, "model": args.model, "max_tokens": tokens, "overlap": args.overlap,
        "min_tokens": min_tokens, "split": args.split, "seed": args.seed,
        "documents": gathered.documents, "passages": gathered.passages, "tokens": gathered.tokens,
        "duplicate_documents": gathered.duplicate_documents, "left_out": gathered.left_out,
        "other_files": gathered.unread.endings,
    });
    terminal.result(&value, || summary(&gathered, &args.output))
}

/// Refuses an output of another kind, or one that is read or will be read next time.
fn check_output(args: &ChunkArgs) -> Result<()> {
    let output = &args.output;
    if output.extension().is_none_or(|ending| ending != "jsonl") {
        bail!("{}: passages are written as .jsonl; name such a file", output.display());
    }
    apart(output, &[&args.docs])?;
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if let (Ok(docs), Ok(folder)) = (args.docs.canonicalize(), folder.canonicalize())
        && docs.is_dir()
        && folder.starts_with(&docs)
    {
        bail!(
            "{}: lies in the folder that is read, and would be a document itself; name a file elsewhere",
            output.display()
        );
    }
    Ok(())
}

/// What there is to know before the passages are used.
fn say(gathered: &Gathered, shares: Shares, terminal: Terminal) {
    if let Some(note) = gathered.unread.note() {
        terminal.note(note);
    }
    let mut documents = gathered.documents;
    for (split, name) in [(Split::Train, "train"), (Split::Dev, "dev"), (Split::Test, "test")] {
        if shares.of(split) > 0.0 && *documents.of(split) == 0 {
            let count = documents.total();
            terminal.note(format!(
                "warning: no document is for {name}, as there are only {count}; a document is never divided \
                 (--split and --seed choose others)"
            ));
        }
    }
}

fn summary(gathered: &Gathered, output: &Path) -> String {
    let passages = gathered.passages;
    let mut lines = vec![
        format!(
            "{} of {}: {}",
            counted(passages.total(), "passage", "passages"),
            counted(gathered.documents.total(), "document", "documents"),
            output.display()
        ),
        format!(
            "train {}, dev {}, test {}; {:.0} tokens on average, at most {}",
            thousands(passages.train),
            thousands(passages.dev),
            thousands(passages.test),
            gathered.tokens.mean,
            thousands(gathered.tokens.max)
        ),
    ];
    let left_out = &gathered.left_out;
    let passage = ["passage", "passages"];
    for (count, [one, more], what) in [
        (left_out.duplicate_passages, passage, "left out whose text another one has"),
        (left_out.without_words, passage, "left out without a letter or digit"),
        (
            gathered.duplicate_documents,
            ["document is", "documents are"],
            "word for word another one",
        ),
    ] {
        if count > 0 {
            lines.push(format!("{} {what}", counted(count, one, more)));
        }
    }
    lines.join("\n")
}

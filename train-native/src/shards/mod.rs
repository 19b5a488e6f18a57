//! Embeds many files, a share of them in each process: any scheduler runs as many processes as it likes over the same
//! input and output, which are folders or prefixes of an object store.
//!
//! Each input file becomes one output file, written whole or not at all, and then a line in the output's `_kiln/`
//! that says what it was made of. A process that starts again skips the files whose line is there; one that was
//! killed has lost the file that it was at, no more. The vectors of a text do not depend on its batch, so that what
//! is left at the end is the same bytes, however often it was interrupted.

mod entry;
mod manifest;
mod place;
#[cfg(feature = "object-store")]
mod remote;
mod shard;
mod vectors;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use globset::{GlobBuilder, GlobMatcher};
use kiln_embed::embedder::EmbedOptions;
use serde::Serialize;
use serde_json::json;

use entry::{Entry, Span, file_name};
pub use manifest::Settings;
use manifest::{Done, sum_of};
use place::Place;
pub use place::is_address;
pub use shard::Shard;
pub use vectors::VectorFiles;

use crate::embedding::{TextModel, embed_records};
use crate::interrupt;
use crate::terminal::{Terminal, counted};
use crate::text::{Columns, Format, TextFile, Unreadable};
use crate::vectors::{TEMPORARY, VectorFormat, VectorWriter};

/// Where an output keeps what its files were made of.
const OWN: &str = "_kiln";

/// Which files, and where their vectors go.
pub struct EmbedJob<'a> {
    /// A folder, a pattern (`docs/*.parquet`), a file, or any of them in an object store.
    pub input: &'a str,
    /// A folder, or a prefix of an object store.
    pub output: &'a str,
    /// This process's share.
    pub shard: Shard,
    /// Format of the output's files: Parquet or JSONL.
    pub format: VectorFormat,
    /// The text's columns.
    pub columns: Columns,
    /// Whether rows that cannot be read or embedded are left out and listed, instead of ending their file.
    pub skip_bad_rows: bool,
    /// Whether files that were done before are read to see that they still are what was written, and embedded anew
    /// where they are not.
    pub verify: bool,
    /// What the vectors depend on beside the texts.
    pub settings: Settings,
    /// What the user sees.
    pub terminal: Terminal,
}

/// What became of a share.
#[derive(Debug, Clone, Default, Serialize)]
pub struct EmbedSummary {
    /// Files of the share.
    pub files: usize,
    /// Files that were done before.
    pub skipped: usize,
    /// Files that were done before and damaged since, as [`EmbedJob::verify`] finds; they are embedded now.
    pub damaged: usize,
    /// Texts embedded now.
    pub texts: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Rows left out now.
    pub bad_rows: usize,
    /// Seconds of embedding.
    pub seconds: f64,
    /// Files that could not be read to their end, and why.
    pub failed: BTreeMap<String, String>,
}

/// An input file, and its output's name.
struct Unit {
    entry: Entry,
    output: String,
}

/// Input and output, looked at and found to fit.
pub struct Prepared<'a> {
    job: EmbedJob<'a>,
    input: Place,
    output: Place,
    units: Vec<Unit>,
    /// Sizes of the files that the output has.
    there: HashMap<String, u64>,
}

/// Looks at input and output, before any model is loaded.
///
/// # Errors
/// An input without files, an output inside it or with vectors of another kind, a store that cannot be reached.
pub fn prepare(job: EmbedJob<'_>) -> Result<Prepared<'_>> {
    if !matches!(job.format, VectorFormat::Parquet | VectorFormat::JsonLines) {
        bail!(
            "files of npy and safetensors say at their beginning how many rows follow; embed many files to parquet or jsonl"
        );
    }
    let named = Named::new(job.input)?;
    let (input, output) = (Place::open(&named.base)?, Place::open(job.output)?);
    if !output.takes_large_files() {
        bail!(
            "{}: texts can be read from there, and vectors not written; name a folder, or an s3, gs or az address",
            job.output
        );
    }
    // What names files of one folder finds none below it.
    if output.is_inside(&input) && (named.is_deep() || input.is_inside(&output)) {
        bail!("{}: is inside the input, and would be read as one the next time", job.output);
    }
    let mut units: Vec<Unit> = Vec::new();
    let mut made_of: HashMap<String, String> = HashMap::new();
    let others = RefCell::new(BTreeSet::new());
    let fits = |name: &str| {
        let fits = has_texts(name);
        if !fits {
            others.borrow_mut().insert(name.to_string());
        }
        fits
    };
    for entry in named.list(&input, fits)? {
        let output = output_name(&entry.name, job.format);
        if let Some(other) = made_of.insert(output.clone(), entry.name.clone()) {
            bail!(
                "{} and {} would both become {output}; rename one, or embed them one by one",
                input.label(&other),
                input.label(&entry.name)
            );
        }
        units.push(Unit { entry, output });
    }
    if units.is_empty() {
        bail!(
            "{}: has no file of texts (.txt, .jsonl, .csv, .tsv, .parquet, and these with .gz or .zst)",
            job.input
        );
    }
    if let Some(first) = others.borrow().first() {
        job.terminal.note(format!(
            "{}: {} passed over ({first}); texts are in .txt, .jsonl, .csv, .tsv and .parquet, and in these \
             with .gz or .zst",
            job.input,
            counted(others.borrow().len(), "other file is", "other files are")
        ));
    }
    let places = 0..units.len();
    let units =
        units.into_iter().zip(places).filter(|(_, at)| job.shard.has(*at)).map(|(unit, _)| unit);
    let units: Vec<Unit> = units.collect();
    job.settings.agree(&output, job.output)?;
    let outputs: HashSet<&str> = units.iter().map(|unit| unit.output.as_str()).collect();
    // But not what another process is just writing.
    let own =
        |name: &str| name.split('/').next() == Some(OWN) && !file_name(name).starts_with(TEMPORARY);
    let there = output.list(Span::All, |name| outputs.contains(name) || own(name))?;
    let there = there.into_iter().map(|entry| (entry.name, entry.bytes)).collect();
    Ok(Prepared { job, input, output, units, there })
}

impl Prepared<'_> {
    /// Embeds what of the share is not done.
    ///
    /// # Errors
    /// A place that cannot be written, a store that cannot be reached, or [`kiln_embed::Error::Cancelled`] after
    /// Ctrl-C. Files that cannot be read are listed in the summary.
    pub fn run(&self, model: &dyn TextModel, options: &EmbedOptions) -> Result<EmbedSummary> {
        let terminal = self.job.terminal;
        let start = Instant::now();
        let mut summary = EmbedSummary { files: self.units.len(), ..EmbedSummary::default() };
        for (number, unit) in self.units.iter().enumerate() {
            if interrupt::asked() {
                return Err(kiln_embed::Error::Cancelled.into());
            }
            let name = self.input.label(&unit.entry.name);
            let place = format!("[{}/{}] {name}", number + 1, self.units.len());
            match self.state_of(unit)? {
                OutputState::Whole => {
                    summary.skipped += 1;
                    continue;
                }
                OutputState::Damaged => {
                    summary.damaged += 1;
                    terminal.note(format!(
                        "{}: is not what was written, by its SHA-256; it is embedded anew",
                        self.output.label(&unit.output)
                    ));
                }
                OutputState::Missing => {}
            }
            match self.embed(unit, model, options) {
                Ok(done) => {
                    summary.texts += done.rows;
                    summary.tokens += done.tokens;
                    summary.bad_rows += done.bad_rows;
                    let bad = match done.bad_rows {
                        0 => String::new(),
                        bad => format!(", {} left out", counted(bad, "bad row", "bad rows")),
                    };
                    let texts = counted(done.rows, "text", "texts");
                    terminal.note(format!("{place}: {texts}{bad}"));
                }
                Err(Fault::OfInput(error)) => {
                    let reason = format!("{error:#}");
                    terminal.note(format!("{place}: failed: {reason}"));
                    summary.failed.insert(name, reason);
                }
                Err(Fault::Else(error)) => return Err(error),
            }
        }
        summary.seconds = start.elapsed().as_secs_f64();
        Ok(summary)
    }

    /// Whether a file was embedded before, by this or another process, and still is what it was.
    fn state_of(&self, unit: &Unit) -> Result<OutputState> {
        let Some(bytes) = self.output.read(&done_name(&unit.entry.name))? else {
            return Ok(OutputState::Missing);
        };
        // One that cannot be read is written anew.
        let Ok(done) = serde_json::from_slice::<Done>(&bytes) else {
            return Ok(OutputState::Missing);
        };
        let fits = done.input_bytes == unit.entry.bytes
            && done.input_version == unit.entry.version
            && done.settings == self.job.settings.sum()
            && self.there.get(&unit.output) == Some(&done.output_bytes);
        if !fits {
            return Ok(OutputState::Missing);
        }
        if !self.job.verify {
            return Ok(OutputState::Whole);
        }
        let scratch = tempfile::tempdir().context("a folder for what is on its way")?;
        let path = self.output.fetch(&unit.output, scratch.path())?;
        let is_whole = sum_of(&path)? == (done.output_bytes, done.sha256);
        Ok(if is_whole { OutputState::Whole } else { OutputState::Damaged })
    }

    fn embed(
        &self,
        unit: &Unit,
        model: &dyn TextModel,
        options: &EmbedOptions,
    ) -> Result<Done, Fault> {
        let scratch = tempfile::tempdir().context("a folder for what is on its way")?;
        let content = self.input.fetch(&unit.entry.name, scratch.path())?;
        let (path, label) = (content.to_string_lossy(), self.input.label(&unit.entry.name));
        let mut file = TextFile::open(&path, self.job.columns.clone()).map_err(|error| {
            // It knows the copy alone.
            Fault::OfInput(anyhow::Error::msg(format!("{error:#}").replace(&*path, &label)))
        })?;
        file.label = label;
        let target = self.output.target(&unit.output, scratch.path())?;
        let dim = model.dimensions(options);
        let mut writer = VectorWriter::create_growing(self.job.format, &target, dim)?;
        writer.describe(|| self.job.settings.line())?;
        let mut bad = Vec::new();
        // Where a bad row counts, the count of rows finds it before any is embedded.
        let total = if self.job.skip_bad_rows && file.format() != Format::Parquet {
            None
        } else {
            Some(file.count().map_err(Fault::OfInput)?)
        };
        let terminal = self.job.terminal;
        let bar = match total {
            Some(total) => terminal.progress(total as u64, "embedding"),
            None => terminal.counter("embedding"),
        };
        let mut cannot_write = None;
        let records = file.records().map_err(Fault::OfInput)?;
        let embedded = embed_records(
            model,
            records,
            options,
            |row, error| {
                if !self.job.skip_bad_rows || error.is::<Unreadable>() {
                    return Err(error);
                }
                bad.push(json!({ "row": row, "reason": format!("{error:#}") }));
                Ok(())
            },
            |texts| bar.set_position(texts as u64),
            |rows| {
                writer.write(&rows).inspect_err(|error| cannot_write = Some(format!("{error:#}")))
            },
        );
        bar.finish_and_clear();
        let embedded = embedded.map_err(|error| {
            match cannot_write.is_some() || error.is::<kiln_embed::Error>() && interrupt::asked() {
                true => Fault::Else(error),
                false => Fault::OfInput(error),
            }
        })?;
        writer.finish()?;
        let (output_bytes, sha256) = sum_of(&target)?;
        self.output.put(&unit.output, &target)?;
        let listed = format!("{OWN}/{}.bad.jsonl", unit.entry.name);
        if !bad.is_empty() {
            let lines: String = bad.iter().map(|row| format!("{row}\n")).collect();
            self.output.write(&listed, lines.as_bytes())?;
        } else if self.there.contains_key(&listed) {
            // They are of an input that was mended.
            self.output.remove(&listed)?;
        }
        let done = Done {
            input: unit.entry.name.clone(),
            input_bytes: unit.entry.bytes,
            input_version: unit.entry.version.clone(),
            output: unit.output.clone(),
            output_bytes,
            sha256,
            rows: embedded.texts,
            bad_rows: bad.len(),
            tokens: embedded.tokens,
            dimensions: dim,
            settings: self.job.settings.sum(),
        };
        let line = serde_json::to_vec(&done).context("what a file was made of")?;
        self.output.write(&done_name(&unit.entry.name), &line)?;
        Ok(done)
    }
}

/// What is known of a file's output.
enum OutputState {
    /// It is not there, or of another input or other settings.
    Missing,
    /// It is there.
    Whole,
    /// It has other bytes than were written.
    Damaged,
}

/// What hinders a file.
enum Fault {
    /// Its own content; other files go on.
    OfInput(anyhow::Error),
    /// Anything else, which would hinder the others too.
    Else(anyhow::Error),
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        Self::Else(error)
    }
}

fn done_name(input: &str) -> String {
    format!("{OWN}/{input}.json")
}

/// What an input names.
struct Named {
    /// The folder or prefix that it begins with.
    base: String,
    files: NamedFiles,
}

/// Which files below its base an input names.
enum NamedFiles {
    /// What there is of the right kind.
    All,
    /// This one.
    One(String),
    /// Those that fit a pattern, which may go into folders.
    Pattern { matcher: GlobMatcher, is_deep: bool },
}

impl Named {
    fn new(input: &str) -> Result<Self> {
        let cut = |at: usize| {
            let (base, rest) = input.split_at(at);
            let base = base.trim_end_matches('/');
            (if base.is_empty() { "." } else { base }.to_string(), rest.trim_start_matches('/'))
        };
        let is_file = match is_address(input) {
            // What ends as a file of texts or vectors does is one.
            true => {
                let name = file_name(input);
                has_texts(name) || VectorFormat::of(Path::new(name)).is_ok()
            }
            false => Path::new(input).is_file(),
        };
        let special = match is_address(input) || !Path::new(input).exists() {
            true => input.find(['*', '?', '[', '{']),
            false => None,
        };
        let end = match special {
            Some(at) => input[..at].rfind('/').map_or(0, |slash| slash + 1),
            None if is_file => input.rfind('/').map_or(0, |slash| slash + 1),
            None => {
                let base = input.trim_end_matches('/').to_string();
                return Ok(Self { base, files: NamedFiles::All });
            }
        };
        let (base, rest) = match input.starts_with('/') && end == 1 {
            true => ("/".to_string(), &input[1..]),
            false => cut(end),
        };
        let files = match special {
            None => NamedFiles::One(rest.into()),
            Some(_) => {
                let glob = GlobBuilder::new(rest).literal_separator(true).build();
                let glob = glob.with_context(|| format!("{input}: is no pattern"))?;
                let is_deep = rest.contains('/') || rest.contains("**");
                NamedFiles::Pattern { matcher: glob.compile_matcher(), is_deep }
            }
        };
        Ok(Self { base, files })
    }

    /// Whether files of folders below are named.
    fn is_deep(&self) -> bool {
        match self.files {
            NamedFiles::All => true,
            NamedFiles::One(_) => false,
            NamedFiles::Pattern { is_deep, .. } => is_deep,
        }
    }

    /// Whether a file is one of the input's; of a folder's, hidden ones are not, and those alone that `fits` says.
    fn has(&self, name: &str, fits: impl Fn(&str) -> bool) -> bool {
        match &self.files {
            NamedFiles::All => {
                !name.split('/').any(|part| part.starts_with(['.', '_'])) && fits(name)
            }
            NamedFiles::One(one) => name == one,
            NamedFiles::Pattern { matcher, .. } => matcher.is_match(name),
        }
    }

    /// The input's files. Nothing is asked of others that lie there.
    fn list(&self, place: &Place, fits: impl Fn(&str) -> bool) -> Result<Vec<Entry>> {
        let wanted = |name: &str| self.has(name, &fits);
        match &self.files {
            NamedFiles::One(name) => Ok(place.entry(name)?.into_iter().collect()),
            NamedFiles::Pattern { is_deep: false, .. } => place.list(Span::Here, wanted),
            NamedFiles::All | NamedFiles::Pattern { .. } => place.list(Span::All, wanted),
        }
    }
}

/// Endings of files of texts, and of packed ones behind them.
const ENDINGS: [&str; 6] = [".txt", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet"];
const PACKINGS: [&str; 2] = [".gz", ".zst"];

/// Whether a file has texts, by its name.
fn has_texts(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let plain = PACKINGS.iter().find_map(|packing| name.strip_suffix(packing)).unwrap_or(&name);
    ENDINGS.iter().any(|ending| plain.ends_with(ending))
}

/// `docs/a.jsonl.zst` to `docs/a.parquet`.
fn output_name(input: &str, format: VectorFormat) -> String {
    let small = input.to_ascii_lowercase();
    let mut stem = input;
    for ending in PACKINGS.into_iter().chain(ENDINGS) {
        let rest = small[..stem.len()].strip_suffix(ending).map_or(0, str::len);
        stem = if rest > 0 { &input[..rest] } else { stem };
    }
    format!("{stem}.{}", format.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_a_place_and_a_pattern() {
        let at = |input: &str, name: &str| {
            let named = Named::new(input).unwrap();
            let has = named.has(name, has_texts);
            (named.base, has)
        };
        for (input, base, name, is_wanted) in [
            ("s3://b/docs/*.parquet", "s3://b/docs", "x.parquet", true),
            ("s3://b/docs/*.parquet", "s3://b/docs", "below/x.parquet", false),
            ("s3://b/docs/**/*.parquet", "s3://b/docs", "a/b/x.parquet", true),
            ("s3://b/docs/", "s3://b/docs", "a/b/x.jsonl.zst", true),
            ("s3://b/docs", "s3://b/docs", "_kiln/x.jsonl", false),
            ("s3://b/docs", "s3://b/docs", "x.png", false),
            ("s3://b/docs", "s3://b/docs", "X.CSV.gz", true),
            ("s3://b/docs/x[1].jsonl", "s3://b/docs", "x1.jsonl", true),
            ("s3://b/x.jsonl", "s3://b", "x.jsonl", true),
            ("s3://b/x.jsonl", "s3://b", "y.jsonl", false),
            ("*.txt", ".", "a.txt", true),
            ("/*.txt", "/", "a.txt", true),
            ("none/{a,b}.csv", "none", "b.csv", true),
        ] {
            assert_eq!(at(input, name), (base.to_string(), is_wanted), "{input} {name}");
        }
        assert!(Named::new("none/[.csv").is_err());
    }

    #[test]
    fn outputs_are_named_after_their_inputs() {
        for (input, output) in [
            ("a/b.parquet", "a/b.parquet"),
            ("b.jsonl.zst", "b.parquet"),
            ("b.c.txt.gz", "b.c.parquet"),
            ("B.TXT", "B.parquet"),
            (".txt", ".txt.parquet"),
        ] {
            assert_eq!(output_name(input, VectorFormat::Parquet), output);
        }
        assert_eq!(output_name("b.txt", VectorFormat::JsonLines), "b.jsonl");
    }
}

//! Writes a model as it is shipped: a folder, or one `.kiln` file, with the test that it carries.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use kiln_embed::checkpoint::{
    Existing, Files, KILN_MAGIC, LoadOptions, Manifest, ScoreTest, SelfTest, check_target, load,
    write_directory, write_kiln_file,
};
use kiln_embed::reranker::Reranker;
use serde::Serialize;

use crate::device::Cpu;
use crate::terminal::thousands;
use crate::vectors::write_atomically;

/// What was written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Exported {
    /// Bytes of all files.
    pub bytes: usize,
    /// Least cosine of its vectors to those of the full weights, over the texts of its test.
    pub cosine: f32,
    /// What whoever loads it asks for.
    pub least_cosine: f32,
}

impl Exported {
    /// Lines for people; `compared_with` is what the cosine is to.
    pub fn summary(&self, compared_with: &str, output: &Path) -> String {
        format!(
            "all files    {} bytes\nself-test    least cosine to {compared_with} {:.5}; loading asks for {:.5}\n\
             written to   {}\n",
            thousands(self.bytes),
            self.cosine,
            self.least_cosine,
            output.display()
        )
    }
}

/// A model whose vectors are further away from its own is not worth shipping.
const LEAST: f32 = 0.5;

/// What `tokenizer.json` has too, for readers that cannot read it.
const VOCABULARIES: [&str; 5] =
    ["vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "sentencepiece.bpe.model"];

/// A model's files as its target keeps them: one file, which is downloaded as a whole, has its vocabulary once, and no space
/// for people in it.
fn kept(mut files: Files, to: &Path) -> Files {
    if is_one_file(to)
        && let Some(tokenizer) = files.0.get_mut("tokenizer.json")
    {
        *tokenizer = compact(tokenizer).into();
        files.0.retain(|path, _| !VOCABULARIES.contains(&path.as_str()));
    }
    files
}

/// JSON without the space between its values; keys keep their order, and numbers their digits.
fn compact(json: &[u8]) -> Vec<u8> {
    let (mut in_text, mut is_escaped) = (false, false);
    let is_kept = |byte: &u8| {
        let is_kept = in_text || !byte.is_ascii_whitespace();
        in_text ^= *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_kept
    };
    json.iter().copied().filter(is_kept).collect()
}

/// Puts the test and the sums among a model's files, as `to` keeps them. `reference` are the vectors of the full weights;
/// the model must come near them, and whoever loads it may be a little further away than it is here,
/// because devices round differently.
///
/// # Errors
/// Files that make no model, or one that has lost too much.
pub fn sealed(
    files: Files,
    to: &Path,
    weights: &str,
    reference: SelfTest,
) -> Result<(Files, Exported)> {
    let mut files = kept(files, to);
    let open = SelfTest { least_cosine: -1.0, ..reference };
    Manifest::seal(&mut files, weights, open.clone())?;
    let embedder = load::<Cpu>(&files, &LoadOptions::default(), &Default::default())?;
    let cosine: f32 = burn::tensor::read_sync(open.run(&embedder))?;
    if cosine.is_nan() || cosine < LEAST {
        bail!(
            "the vectors of the compressed model have a cosine of {cosine:.3} to those of the full one, \
             less than {LEAST}: too much is lost; use more bits (int8), --method gptq, or --error-budget"
        );
    }
    let least_cosine = (cosine - (0.5 * (1.0 - cosine)).max(0.003)).max(-1.0);
    Manifest::seal(&mut files, weights, SelfTest { least_cosine, ..open })?;
    let bytes = files.0.values().map(Bytes::len).sum();
    Ok((files, Exported { bytes, cosine, least_cosine }))
}

/// What was written of a cross-encoder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExportedReranker {
    /// Bytes of all files.
    pub bytes: usize,
    /// How far a score is from that of the full weights, over the pairs of its test.
    pub apart: f32,
    /// How far it may be for whoever loads it.
    pub most_apart: f32,
}

impl ExportedReranker {
    /// Lines for people; `compared_with` is what the scores are compared with.
    pub fn summary(&self, compared_with: &str, output: &Path) -> String {
        format!(
            "all files    {} bytes\nself-test    scores are at most {:.4} from those of {compared_with}; loading asks for \
             {:.4}\nwritten to   {}\n",
            thousands(self.bytes),
            self.apart,
            self.most_apart,
            output.display()
        )
    }
}

/// As [`sealed`], of a cross-encoder; `reference` are the scores of the full weights.
///
/// # Errors
/// Files that make no cross-encoder.
pub fn sealed_reranker(
    files: Files,
    to: &Path,
    weights: &str,
    reference: ScoreTest,
) -> Result<(Files, ExportedReranker)> {
    let mut files = kept(files, to);
    let open = ScoreTest { most_apart: f32::MAX, ..reference };
    Manifest::seal_reranker(&mut files, weights, open.clone())?;
    let options = LoadOptions::default();
    let reranker = Reranker::<Cpu>::load_with(&files, &options, &Default::default())?;
    let apart = reranker.apart(&open)?;
    // Scores are of any size, and devices round them by a share of it.
    let largest = open.scores.iter().fold(0.0f32, |largest, score| largest.max(score.abs()));
    let most_apart = apart + (0.5 * apart).max(0.003 * largest);
    Manifest::seal_reranker(&mut files, weights, ScoreTest { most_apart, ..open })?;
    let bytes = files.0.values().map(Bytes::len).sum();
    Ok((files, ExportedReranker { bytes, apart, most_apart }))
}

/// Whether a model is to be one file.
fn is_one_file(to: &Path) -> bool {
    to.extension().is_some_and(|ending| ending == "kiln")
}

/// Whether [`export`] may write there; to be asked before what takes long.
///
/// # Errors
/// Something is there that may not be replaced.
pub fn check_export(to: &Path, existing: Existing) -> Result<()> {
    if !is_one_file(to) {
        return Ok(check_target(to, existing)?);
    }
    match std::fs::metadata(to) {
        Err(_) => Ok(()),
        Ok(data) if !data.is_file() => bail!("{}: is no file; choose another name", to.display()),
        Ok(_) if existing == Existing::Refuse => {
            bail!("{}: is there already; add --overwrite to replace it", to.display())
        }
        Ok(_) => {
            let mut start = [0; 4];
            let read = std::fs::File::open(to).and_then(|mut file| file.read_exact(&mut start));
            match read.is_ok() && start == KILN_MAGIC {
                true => Ok(()),
                false => bail!(
                    "{}: is no .kiln file, so Kiln did not write it; choose another name",
                    to.display()
                ),
            }
        }
    }
}

/// Writes files to a folder, or to one file where the name ends in `.kiln`; under a temporary name
/// first.
///
/// # Errors
/// As [`check_export`], and whatever the file system refuses.
pub fn export(files: &Files, to: &Path, existing: Existing) -> Result<()> {
    check_export(to, existing)?;
    if !is_one_file(to) {
        return Ok(write_directory(to, files, existing)?);
    }
    let mut bytes = Vec::new();
    write_kiln_file(files, &mut bytes)?;
    if let Some(parent) = to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    write_atomically(to, &bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_its_vocabulary_once_and_without_space() {
        let json = r#"{ "b" : [1.50, "a \" {  }\\" ],
            "a":	"\\" , "é  ": 10000000000000000000000 }"#;
        let small = r#"{"b":[1.50,"a \" {  }\\"],"a":"\\","é  ":10000000000000000000000}"#;
        let mut files = Files::default();
        let written =
            [("tokenizer.json", json), ("vocab.txt", "a\n"), ("added_tokens.json", "{ }")];
        files.0.extend(written.map(|(path, text)| (path.to_string(), Bytes::from(text))));
        assert_eq!(kept(files.clone(), Path::new("folder")), files);
        let one = kept(files.clone(), Path::new("model.kiln"));
        assert_eq!(one.0.keys().collect::<Vec<_>>(), ["added_tokens.json", "tokenizer.json"]);
        assert_eq!(one.0["tokenizer.json"], small);
        // Where nothing else has it, it stays.
        files.0.remove("tokenizer.json");
        assert_eq!(kept(files.clone(), Path::new("model.kiln")), files);
    }
}

//! `kiln export`

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use kiln_embed::checkpoint::{Files, Folder, LoadOptions, MANIFEST, Manifest, SelfTest};
use kiln_embed::reranker::Reranker;
use serde_json::json;

use super::{Global, ModelArgs, Overwrite};
use crate::compress::{
    Quantization, Storage, StoragePlan, check_export, export, quantize, quantize_reranker, sealed,
    sealed_reranker,
};
use crate::device::Cpu;
use crate::model::{load_embedder, locate, open_folder};
use crate::terminal::{counted, thousands};

/// Export a model for deployment: a folder with checksums and a self-test, or one .kiln file.
///
/// A model that is exported or quantized already is copied unchanged, from a folder to a file or
/// back.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Precision to store matrices in: f32, f16, bf16, or a scheme of `kiln quantize` [default: f16]
    #[arg(long, short, value_name = "SCHEME")]
    weights: Option<Storage>,
    /// Folder, or file ending in .kiln, to write to
    #[arg(long, short, value_name = "DIR|FILE")]
    output: PathBuf,
    #[command(flatten)]
    existing: Overwrite,
}

pub(super) fn run(args: &ExportArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    check_export(&args.output, args.existing.rule())?;
    let found = locate(&args.model.name(), terminal)?;
    let folder = open_folder(&found.folder)?;
    let (files, weights, bound) = match Manifest::read(folder.as_ref())? {
        Some(manifest) => {
            if args.weights.is_some() || args.model.load_options() != LoadOptions::default() {
                bail!(
                    "{}: is exported already, with {} weights, and is copied as it is; leave the options out, or \
                     export the model that it was made from",
                    found.folder.display(),
                    manifest.weights
                );
            }
            manifest.check_files(folder.as_ref())?;
            let mut files = Files::default();
            let names = manifest.files.keys().map(String::as_str).chain([MANIFEST]);
            for name in names {
                let bytes =
                    read_all(folder.as_ref(), name).with_context(|| folder.file_label(name))?;
                files.0.insert(name.into(), bytes.into());
            }
            let bound = match (manifest.self_test, manifest.score_test) {
                (Some(test), _) => Bound::Cosine(test.least_cosine),
                (None, test) => Bound::Apart(test.map_or(0.0, |test| test.most_apart)),
            };
            (files, manifest.weights, bound)
        }
        None if args.model.ranks(folder.as_ref())? => {
            let (options, device) = (args.model.load_options(), Default::default());
            let reranker = Reranker::<Cpu>::load_with(folder.as_ref(), &options, &device)?;
            let reference = reranker.score_test().with_context(|| found.name())?;
            let weights = args.weights.unwrap_or(Storage::F16);
            let model = quantize_reranker(&reranker, &StoragePlan::all(weights), terminal)?;
            let (files, exported) =
                sealed_reranker(model.files, &args.output, &weights.to_string(), reference)?;
            (files, weights.to_string(), Bound::Apart(exported.most_apart))
        }
        None => {
            let (name, options) = (found.name(), args.model.load_options());
            let embedder = load_embedder::<Cpu>(&name, &options, &Default::default(), terminal)?;
            let reference = SelfTest::of(&embedder, 0.0)?;
            let weights = args.weights.unwrap_or(Storage::F16);
            let plan = StoragePlan::all(weights);
            let how = Quantization { plan: &plan, gptq: None, calibration: None };
            let model = quantize(embedder, &how, terminal)?;
            let (files, exported) =
                sealed(model.files, &args.output, &weights.to_string(), reference)?;
            (files, weights.to_string(), Bound::Cosine(exported.least_cosine))
        }
    };
    export(&files, &args.output, args.existing.rule())?;
    let bytes: usize = files.0.values().map(Bytes::len).sum();
    let mut value =
        json!({"output": args.output, "weights": weights, "bytes": bytes, "files": files.0.len()});
    let asked = match bound {
        Bound::Cosine(least) => {
            value["least_cosine"] = json!(least);
            format!("a cosine of {least:.5}")
        }
        Bound::Apart(most) => {
            value["most_apart"] = json!(most);
            format!("scores at most {most:.4} away")
        }
    };
    terminal.result(&value, || {
        format!(
            "{weights} weights, {} bytes in {}; loading asks for {asked}\nwritten to   {}",
            thousands(bytes),
            counted(files.0.len(), "file", "files"),
            args.output.display()
        )
    })
}

/// What whoever loads the model asks for.
enum Bound {
    /// Of vectors: the least.
    Cosine(f32),
    /// Of scores: the largest difference.
    Apart(f32),
}

/// A file of any length; the limit of configuration files is not for weights.
fn read_all(folder: &dyn Folder, name: &str) -> Result<Vec<u8>> {
    let (mut reader, length) = folder.open(name)?.context("is not there")?;
    let mut bytes = Vec::with_capacity(length as usize);
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

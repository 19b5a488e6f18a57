//! `kiln export`

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use clap::Args;
use kiln_embed::checkpoint::{Files, Folder, LoadOptions, MANIFEST, Manifest, SelfTest};
use serde_json::json;

use super::{Global, ModelArgs, Overwrite};
use crate::compress::{Quantization, Storage, StoragePlan, check_export, export, quantize, sealed};
use crate::device::Cpu;
use crate::model::{load_embedder, locate, open_folder};
use crate::terminal::thousands;

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
    let (files, weights, least) = match Manifest::read(folder.as_ref())? {
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
            (files, manifest.weights, manifest.self_test.least_cosine)
        }
        None => {
            let (name, options) = (found.name(), args.model.load_options());
            let embedder = load_embedder::<Cpu>(&name, &options, &Default::default(), terminal)?;
            let reference = SelfTest::of(&embedder, 0.0)?;
            let weights = args.weights.unwrap_or(Storage::F16);
            let plan = StoragePlan::all(weights);
            let how = Quantization { plan: &plan, gptq: None, calibration: None };
            let model = quantize(embedder, &how, terminal)?;
            let (files, exported) = sealed(model.files, &weights.to_string(), reference)?;
            (files, weights.to_string(), exported.least_cosine)
        }
    };
    export(&files, &args.output, args.existing.rule())?;
    let bytes: usize = files.0.values().map(Bytes::len).sum();
    let value = json!({
        "output": args.output, "weights": weights, "bytes": bytes, "files": files.0.len(), "least_cosine": least,
    });
    terminal.result(&value, || {
        format!(
            "{weights} weights, {} bytes in {} files; loading asks for a cosine of {least:.5}\nwritten to   {}",
            thousands(bytes),
            files.0.len(),
            args.output.display()
        )
    })
}

/// A file of any length; the limit of configuration files is not for weights.
fn read_all(folder: &dyn Folder, name: &str) -> Result<Vec<u8>> {
    let (mut reader, length) = folder.open(name)?.context("is not there")?;
    let mut bytes = Vec::with_capacity(length as usize);
    reader.read_to_end(&mut bytes)?;
    Ok(bytes)
}

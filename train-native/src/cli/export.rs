//! `train-native export`

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use kiln_core::checkpoint::{Files, MANIFEST, Manifest, SelfTest, read_text};
use serde_json::json;

use super::{Global, ModelArgs};
use crate::compress::{Quantization, Storage, StoragePlan, export, quantize, sealed};
use crate::device::Cpu;
use crate::model::{load_embedder, open_folder, resolve};
use crate::terminal::thousands;

/// Write a model as it is shipped: a folder with sums and a self-test (kiln.json), or one .kiln file. A model
/// that is exported or quantized already is copied as it is, from a folder to a file or back.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// How matrices are kept: f32, f16, or a scheme as for `quantize`
    #[arg(long, short, default_value = "f16", value_name = "SCHEME")]
    weights: Storage,
    /// Where to write: a folder, or a file that ends in .kiln
    #[arg(long, short, value_name = "DIR|FILE")]
    output: PathBuf,
}

pub(super) fn run(args: &ExportArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    let path = resolve(&args.model.model, terminal)?;
    let folder = open_folder(&path)?;
    let (files, weights, least) = match Manifest::read(folder.as_ref())? {
        Some(manifest) => {
            manifest.check_files(folder.as_ref())?;
            let mut files = Files::default();
            let names = manifest.files.keys().map(String::as_str).chain([MANIFEST]);
            for name in names {
                let bytes =
                    read_all(folder.as_ref(), name).with_context(|| folder.file_label(name))?;
                files.0.insert(name.into(), bytes);
            }
            (files, manifest.weights, manifest.self_test.least_cosine)
        }
        None => {
            let name = path.display().to_string();
            let device = Default::default();
            let embedder =
                load_embedder::<Cpu>(&name, &args.model.load_options(), &device, terminal)?;
            let reference = SelfTest::of(&embedder, 0.0)?;
            let plan = StoragePlan::all(args.weights);
            let how = Quantization { plan: &plan, gptq: None, calibration: None };
            let model = quantize(embedder, &how, terminal)?;
            let (files, exported) = sealed(model.files, &args.weights.to_string(), reference)?;
            (files, args.weights.to_string(), exported.least_cosine)
        }
    };
    export(&files, &args.output)?;
    let bytes: usize = files.0.values().map(Vec::len).sum();
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

fn read_all(folder: &dyn kiln_core::checkpoint::Folder, name: &str) -> Result<Vec<u8>> {
    // Small files and large ones alike; the limit of configuration files is not for weights.
    if let Some((mut reader, length)) = folder.open(name)? {
        let mut bytes = Vec::with_capacity(length as usize);
        std::io::Read::read_to_end(&mut reader, &mut bytes)?;
        return Ok(bytes);
    }
    Ok(read_text(folder, name)?.unwrap_or_default())
}

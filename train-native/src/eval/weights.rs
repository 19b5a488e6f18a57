//! Evaluation at lower precision (Linq-Embed-Mistral, section 7.2): what a model scores with the weights
//! that `quantize` gives it, computed as a quantized model is.

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use kiln_core::checkpoint::{LoadOptions, load};
use kiln_core::embedder::Embedder;
use kiln_core::kernels::Kernels;
use kiln_core::quant::{Number, Scheme};

use crate::compress::{Quantization, Storage, StoragePlan, quantize};
use crate::terminal::Terminal;

/// How weights are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum WeightBits {
    /// As they are.
    #[default]
    Full,
    /// In 8 bits, blocks of 32.
    Int8,
    /// In 4 bits, blocks of 32.
    Int4,
}

impl WeightBits {
    /// Name as part of a folder's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// The model with its matrices rounded, as if it had been written by `quantize` and read again;
    /// matrices that no block of 32 divides take smaller ones.
    ///
    /// # Errors
    /// Weights that are not finite.
    pub fn applied<B: Kernels>(self, embedder: Embedder<B>) -> Result<Embedder<B>> {
        let number = match self {
            Self::Full => return Ok(embedder),
            Self::Int8 => Number::Int8,
            Self::Int4 => Number::Int4,
        };
        let mut plan = StoragePlan::all(Storage::Quantized(Scheme { number, block: Some(32) }));
        plan.lenient = true;
        let how = Quantization { plan: &plan, gptq: None, calibration: None };
        let (device, prompts) = (embedder.device.clone(), embedder.prompts.clone());
        let max_length = Some(embedder.tokenizer.config().max_length);
        let quiet = Terminal { json: false, quiet: true };
        let files = quantize(embedder, &how, quiet).context("rounding the weights")?.files;
        let options = LoadOptions { max_length, ..LoadOptions::default() };
        let mut read = load(&files, &options, &device)?;
        read.prompts = prompts;
        Ok(read)
    }
}

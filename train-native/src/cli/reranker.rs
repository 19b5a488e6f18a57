//! How commands run a reranker.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::quant::WeightPrecision;

use super::Global;
use super::ranges::{SIZE, whole};
use crate::device::open;
use crate::reranking::{PairModel, load_reranker};

/// How to run a reranker; the command's argument with the id `reranker` names it.
#[derive(Debug, Clone, Args)]
pub(super) struct RerankerFlags {
    /// What the reranker is asked for, where its prompt has a place for it (Qwen3-Reranker,
    /// bge-reranker-v2-gemma's question)
    #[arg(long, requires = "reranker", value_name = "TEXT")]
    reranker_instruction: Option<String>,
    /// Truncate pairs to this many tokens [default: the reranker's own limit]
    #[arg(long, requires = "reranker", value_name = "TOKENS", value_parser = whole(4, SIZE))]
    max_pair_length: Option<usize>,
    /// Maximum number of tokens in a batch of pairs, padding included [default: 256 on the CPU, 4096 on GPUs]
    #[arg(long, requires = "reranker", value_name = "TOKENS", value_parser = whole(1, 1 << 30))]
    pair_batch_tokens: Option<usize>,
    /// Precision to run the reranker's weights in: as `--weights` of `kiln embed`
    #[arg(long, requires = "reranker", value_name = "PRECISION", default_value_t = WeightPrecision::Kept)]
    reranker_weights: WeightPrecision,
}

impl RerankerFlags {
    pub(super) fn load_options(&self) -> LoadOptions {
        LoadOptions {
            max_length: self.max_pair_length,
            precision: self.reranker_weights,
            ..LoadOptions::default()
        }
    }

    pub(super) fn load(&self, name: &str, global: &Global) -> Result<Arc<dyn PairModel>> {
        let device = open(global.device)?;
        load_reranker(
            name,
            &self.load_options(),
            self.reranker_instruction.as_deref(),
            &device,
            global.terminal(),
        )
    }

    pub(super) fn batch_tokens(&self) -> Option<usize> {
        self.pair_batch_tokens
    }
}

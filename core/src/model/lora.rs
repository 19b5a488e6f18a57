//! Low-rank adaptation (LoRA, arXiv:2106.09685).

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, backend::Backend, ops::FloatTensor};
use serde::{Deserialize, Serialize};

use super::dropout::Dropout;
use crate::kernels::{Kernels, LowRank};

/// Which projections get an adapter, and of what size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank r of the update.
    #[serde(default = "default_rank")]
    pub rank: usize,
    /// The update is scaled by `alpha / rank`.
    #[serde(default = "default_alpha")]
    pub alpha: f64,
    /// Dropout on the adapter's input, in training only.
    #[serde(default = "default_dropout")]
    pub dropout: f64,
    /// Projections by the end of their name (`q_proj`, `attention.self.query`), by a pattern over
    /// the whole name (`layers.1*.self_attn.*`), or `all-linear`.
    #[serde(default = "default_targets")]
    pub targets: Vec<String>,
}

// Rank 16, alpha 32, dropout 0.1: NV-Embed (arXiv:2405.17428, table 11).
fn default_rank() -> usize {
    16
}
fn default_alpha() -> f64 {
    32.0
}
fn default_dropout() -> f64 {
    0.1
}
fn default_targets() -> Vec<String> {
    vec!["all-linear".into()]
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            rank: default_rank(),
            alpha: default_alpha(),
            dropout: default_dropout(),
            targets: default_targets(),
        }
    }
}

/// `scale * dropout(x) A B` for one projection.
#[derive(Module, Debug)]
pub struct Adapter<B: Backend> {
    /// `A` `[in, rank]`, initialised at random.
    pub a: Param<Tensor<B, 2>>,
    /// `B` `[rank, out]`, initialised to zero, so that a fresh adapter changes nothing.
    pub b: Param<Tensor<B, 2>>,
    dropout: Dropout,
    scale: f64,
    #[module(skip)]
    part: String,
    #[module(skip)]
    module: String,
}

impl<B: Kernels> Adapter<B> {
    pub(super) fn new(
        [part, module]: [&str; 2],
        [input, output]: [usize; 2],
        lora: &LoraConfig,
        device: &B::Device,
    ) -> Self {
        // As PEFT initialises: Kaiming-uniform A with gain 1/sqrt(3), zero B.
        let init = Initializer::KaimingUniform { gain: 1.0 / 3f64.sqrt(), fan_out_only: false };
        Self {
            a: init.init_with([input, lora.rank], Some(input), Some(lora.rank), device),
            b: Initializer::Zeros.init([lora.rank, output], device),
            dropout: Dropout { probability: lora.dropout },
            scale: lora.alpha / lora.rank as f64,
            part: part.to_string(),
            module: module.to_string(),
        }
    }

    /// Full name of the projection in the family's checkpoints, as PEFT spells it.
    pub fn module(&self) -> &str {
        &self.module
    }

    /// `alpha / rank`, or the scale of an adapter that was read from a file.
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Name of the projection that this adapts.
    pub fn part(&self) -> &str {
        &self.part
    }

    /// `[rows, in]` to `[rows, out]`.
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.dropout.forward(x).matmul(self.a.val()).matmul(self.b.val()).mul_scalar(self.scale)
    }

    /// The adapter as a part of a block, on the columns from `first` on; `values` are those of its
    /// input.
    pub(super) fn low_rank(&self, first: usize, values: usize) -> LowRank<FloatTensor<B>> {
        let (a, b) = (self.a.val(), self.b.val());
        LowRank {
            dropout: self.dropout.draw::<B>(values, &a.device()),
            a: a.into_primitive().tensor(),
            b: b.into_primitive().tensor(),
            first,
            scale: self.scale as f32,
        }
    }

    /// The update of the weight: `scale * A B`, `[in, out]`.
    pub fn delta(&self) -> Tensor<B, 2> {
        self.a.val().matmul(self.b.val()).mul_scalar(self.scale)
    }
}

/// Whether a target names a module: `all-linear`, the end of its name at a dot, or a pattern with
/// `*` over the whole name.
pub(super) fn names_module(target: &str, module: &str) -> bool {
    if target == "all-linear" || target == module {
        return true;
    }
    let Some((first, rest)) = target.split_once('*') else {
        return module.strip_suffix(target).is_some_and(|before| before.ends_with('.'));
    };
    let Some(mut left) = module.strip_prefix(first) else {
        return false;
    };
    let mut pieces = rest.split('*').peekable();
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return left.ends_with(piece);
        }
        match left.find(piece) {
            Some(i) => left = &left[i + piece.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_ends_or_patterns() {
        let module = "layers.12.self_attn.q_proj";
        for target in [
            "all-linear",
            "q_proj",
            "self_attn.q_proj",
            module,
            "layers.1*.self_attn.*",
            "*q_proj",
            "*.12.*",
        ] {
            assert!(names_module(target, module), "{target}");
        }
        for target in ["proj", "k_proj", "layers.2*", "layers.*.mlp.*", "*k_proj", "attn.q_proj"] {
            assert!(!names_module(target, module), "{target}");
        }
    }
}

//! Backbones: the post-norm [`Encoder`] and the one configurable [`Decoder`].
//!
//! [`Backbone`] is either of them: token ids in, [`States`] out.

mod attention;
mod decoder;
mod encoder;
pub(crate) mod families;
mod feed_forward;
mod linear;
mod lora;
mod mask;
mod rotary;

use burn::module::{Module, ModuleMapper};
use burn::nn::Initializer;
use burn::tensor::{Bool, Int, Tensor, TensorData, backend::Backend};

pub use attention::{Attention, scaled_dot_product};
pub use decoder::{Decoder, DecoderBlock};
pub use encoder::{Encoder, EncoderBlock};
pub use feed_forward::FeedForward;
pub use linear::Linear;
pub use lora::{Adapter, LoraConfig};
pub use mask::attention_mask;
pub use rotary::{Rotary, inverse_frequencies};

use crate::config::{Architecture, AttentionMode, ModelConfig};
use crate::tokenizer::TokenBatch;
use crate::{Error, Result};

/// What a forward pass shall keep besides the last hidden states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Want {
    /// Keep the hidden states of every layer.
    pub layers: bool,
    /// Keep the last layer's attention weights.
    pub attention: bool,
}

impl Want {
    /// What satisfies both.
    pub fn or(self, other: Want) -> Want {
        Want { layers: self.layers || other.layers, attention: self.attention || other.attention }
    }
}

/// What a forward pass returns.
#[derive(Debug, Clone)]
pub struct States<B: Backend> {
    /// Last hidden states, final-normed where the model has a final norm: `[batch, seq, hidden]`.
    pub last: Tensor<B, 3>,
    /// `N + 1` tensors `[batch, seq, hidden]`, the embedding output first and [`States::last`]
    /// at the end, as transformers' `hidden_states`; empty unless asked for.
    pub layers: Vec<Tensor<B, 3>>,
    /// Attention weights of the last layer `[batch, heads, query, key]`, if asked for.
    pub attention: Option<Tensor<B, 4>>,
}

/// A batch of token ids on a device.
#[derive(Debug, Clone)]
pub struct ModelInput<B: Backend> {
    /// Token ids `[batch, seq]`.
    pub ids: Tensor<B, 2, Int>,
    /// True at tokens, false at padding: `[batch, seq]`.
    pub attention_mask: Tensor<B, 2, Bool>,
    /// True at tokens that pooling may use (instruction and padding excluded): `[batch, seq]`.
    pub pooling_mask: Tensor<B, 2, Bool>,
    /// Index of each token among its row's tokens, padding 0: `[batch, seq]`.
    pub positions: Tensor<B, 2, Int>,
    /// Whether any position of the batch is padding.
    pub padded: bool,
}

impl<B: Backend> ModelInput<B> {
    /// Copies a token batch to a device.
    pub fn new(tokens: &TokenBatch, device: &B::Device) -> Self {
        let shape = [tokens.batch, tokens.seq];
        let ids: Vec<i32> = tokens.ids.iter().map(|&id| id as i32).collect();
        Self {
            ids: Tensor::from_data(TensorData::new(ids, shape), device),
            attention_mask: Tensor::from_data(
                TensorData::new(tokens.attention.clone(), shape),
                device,
            ),
            pooling_mask: Tensor::from_data(TensorData::new(tokens.pooling.clone(), shape), device),
            positions: Tensor::from_data(TensorData::new(tokens.positions(), shape), device),
            padded: tokens.attention.iter().any(|&token| !token),
        }
    }
}

/// The module with every parameter's value drawn.
///
/// Burn draws a parameter at its first use, and a clone made before that would draw another
/// value; so a random module is only handed out once it is drawn.
pub(crate) fn initialized<B: Backend, M: Module<B>>(module: M) -> M {
    struct Draw;
    impl<B: Backend> ModuleMapper<B> for Draw {}
    module.map(&mut Draw)
}

/// Either architecture.
#[derive(Module, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one backbone in a model")]
pub enum Backbone<B: Backend> {
    /// Post-norm BERT blocks.
    Encoder(Encoder<B>),
    /// Pre-norm decoder blocks.
    Decoder(Decoder<B>),
}

impl<B: Backend> Backbone<B> {
    /// A backbone with random weights: N(0, 0.02), biases zero, norms one.
    pub fn random(config: &ModelConfig, device: &B::Device) -> Self {
        let init = Initializer::Normal { mean: 0.0, std: 0.02 };
        initialized(Self::with_initializer(config, &init, device))
    }

    /// A backbone of zeros, to be filled from a checkpoint.
    pub fn zeros(config: &ModelConfig, device: &B::Device) -> Self {
        Self::with_initializer(config, &Initializer::Zeros, device)
    }

    fn with_initializer(config: &ModelConfig, init: &Initializer, device: &B::Device) -> Self {
        match &config.architecture {
            Architecture::Encoder(encoder) => {
                Backbone::Encoder(Encoder::new(config, encoder, init, device))
            }
            Architecture::Decoder(decoder) => {
                Backbone::Decoder(Decoder::new(config, decoder, init, device))
            }
        }
    }

    /// One forward pass.
    pub fn forward(&self, input: &ModelInput<B>, mode: AttentionMode, want: Want) -> States<B> {
        match self {
            Backbone::Encoder(encoder) => encoder.forward(input, mode, want),
            Backbone::Decoder(decoder) => decoder.forward(input, mode, want),
        }
    }

    /// Adds LoRA adapters to every projection that the configuration names, and says how many.
    ///
    /// # Errors
    /// A target that matches no projection.
    pub fn with_lora(mut self, lora: &LoraConfig, device: &B::Device) -> Result<(Self, usize)> {
        let mut matched = vec![false; lora.targets.len()];
        let mut count = 0;
        for linear in self.projections_mut() {
            count += linear.add_adapters(lora, &mut matched, device);
        }
        if let Some(at) = matched.iter().position(|hit| !hit) {
            let known = self.projection_names().join(", ");
            return Err(Error::invalid(format!(
                "LoRA target {:?} names no projection of this model; it has {known} (or \"all-linear\")",
                lora.targets[at]
            )));
        }
        Ok((initialized(self), count))
    }

    /// Folds all LoRA adapters into their weights: `W + scale * A B`.
    pub fn merge_lora(mut self) -> Self {
        for linear in self.projections_mut() {
            linear.merge();
        }
        self
    }

    fn projections_mut(&mut self) -> Vec<&mut Linear<B>> {
        match self {
            Backbone::Encoder(encoder) => {
                encoder.blocks.iter_mut().flat_map(EncoderBlock::projections_mut).collect()
            }
            Backbone::Decoder(decoder) => {
                decoder.blocks.iter_mut().flat_map(DecoderBlock::projections_mut).collect()
            }
        }
    }

    /// Names of the projections that LoRA can adapt, as the checkpoint's family calls them.
    pub fn projection_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut backbone = self.clone();
        for linear in backbone.projections_mut() {
            for part in linear.part_names() {
                if !names.contains(part) {
                    names.push(part.clone());
                }
            }
        }
        names
    }
}

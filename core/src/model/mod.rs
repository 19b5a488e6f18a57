//! Backbones: the post-norm [`Encoder`] and the one configurable [`Decoder`].
//!
//! [`Backbone`] is either of them: token ids in, [`States`] out.

mod attention;
mod decoder;
mod dropout;
mod embedding;
mod encoder;
pub(crate) mod families;
mod feed_forward;
mod gram;
mod linear;
mod lora;
mod mask;
mod rotary;

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper};
use burn::nn::Initializer;
use burn::tensor::{BasicOps, Bool, FloatDType, Int, Tensor, TensorData, backend::Backend};

pub use attention::Attention;
pub use decoder::{Decoder, DecoderBlock};
pub use dropout::{Dropout, seed_dropout};
pub use embedding::Embedding;
pub use encoder::{Encoder, EncoderBlock};
pub use feed_forward::FeedForward;
pub use gram::{Gram, SharedGram};
pub use linear::Linear;
pub use lora::{Adapter, LoraConfig};
pub use mask::attention_mask;
pub use rotary::{Rotary, inverse_frequencies};

use crate::config::{Architecture, AttentionMode, ModelConfig, check_kept};
use crate::kernels::{Kernels, RotaryTables, Seen};
use crate::tokenizer::TokenBatch;
use crate::{Error, Result};

/// What a forward pass shall keep besides the last hidden states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwardOptions {
    /// Keep the hidden states of every layer.
    pub layers: bool,
    /// Keep the last layer's attention weights.
    pub attention: bool,
}

impl ForwardOptions {
    /// What satisfies both.
    pub fn or(self, other: ForwardOptions) -> ForwardOptions {
        ForwardOptions {
            layers: self.layers || other.layers,
            attention: self.attention || other.attention,
        }
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

impl<B: Backend> States<B> {
    /// Those of one row's tokens, but for the attention weights.
    pub(crate) fn row(&self, row: usize, extent: &Range<usize>) -> Self {
        let part = |states: &Tensor<B, 3>| {
            states.clone().narrow(0, row, 1).narrow(1, extent.start, extent.len())
        };
        Self {
            last: part(&self.last),
            layers: self.layers.iter().map(part).collect(),
            attention: None,
        }
    }
}

/// What all blocks of one forward pass share: where tokens stand, rotary angles and attention masks.
#[derive(Debug, Clone)]
pub struct BlockInputs<B: Backend> {
    rows: Arc<[Range<usize>]>,
    angles: Option<RotaryTables<B>>,
    /// Distinct masks `[batch, 1, query, key]`, true where a query must not look.
    masks: Vec<Option<Tensor<B, 4, Bool>>>,
    mask_of_layer: Vec<usize>,
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
    /// Where the tokens of each row stand.
    pub rows: Arc<[Range<usize>]>,
}

impl<B: Kernels> ModelInput<B> {
    /// Copies a token batch to a device.
    pub fn new(tokens: &TokenBatch, device: &B::Device) -> Self {
        let shape = [tokens.batch, tokens.seq];
        let ids: Vec<i32> = tokens.ids.iter().map(|&id| id as i32).collect();
        let extent = |row: &[bool]| {
            let first = row.iter().position(|&token| token).unwrap_or(0);
            first..row.iter().rposition(|&token| token).map_or(first, |last| last + 1)
        };
        Self {
            ids: Tensor::from_data(TensorData::new(ids, shape), device),
            attention_mask: Tensor::from_data(
                TensorData::new(tokens.attention.clone(), shape),
                device,
            ),
            pooling_mask: Tensor::from_data(TensorData::new(tokens.pooling.clone(), shape), device),
            positions: Tensor::from_data(TensorData::new(tokens.positions(), shape), device),
            padded: tokens.attention.iter().any(|&token| !token),
            rows: tokens.attention.chunks(tokens.seq.max(1)).map(extent).collect(),
        }
    }

    /// One row by itself, without its padding.
    pub(crate) fn row(&self, row: usize) -> Self {
        let extent = self.rows[row].clone();
        fn part<B: Backend, K: BasicOps<B>>(
            of: &Tensor<B, 2, K>,
            row: usize,
            extent: &Range<usize>,
        ) -> Tensor<B, 2, K> {
            of.clone().narrow(0, row, 1).narrow(1, extent.start, extent.len())
        }
        Self {
            ids: part(&self.ids, row, &extent),
            attention_mask: part(&self.attention_mask, row, &extent),
            pooling_mask: part(&self.pooling_mask, row, &extent),
            positions: part(&self.positions, row, &extent),
            padded: false,
            rows: std::iter::once(0..extent.len()).collect(),
        }
    }
}

/// The module with every parameter's value drawn.
///
/// Burn draws a parameter at its first use, and a clone made before that would draw another
/// value; so a random module is only handed out once it is drawn.
pub(crate) fn initialized<B: Kernels, M: Module<B>>(module: M) -> M {
    struct Draw;
    impl<B: Kernels> ModuleMapper<B> for Draw {}
    module.map(&mut Draw)
}

/// Either architecture.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one backbone in a model")]
pub enum Backbone<B: Backend> {
    /// Post-norm BERT blocks.
    Encoder(Encoder<B>),
    /// Pre-norm decoder blocks.
    Decoder(Decoder<B>),
}

impl<B: Kernels> Backbone<B> {
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

    /// Number of blocks.
    pub fn layers(&self) -> usize {
        match self {
            Backbone::Encoder(encoder) => encoder.blocks.len(),
            Backbone::Decoder(decoder) => decoder.blocks.len(),
        }
    }

    /// The backbone with only some of its blocks, in the order given (a student of less depth).
    ///
    /// # Errors
    /// No block at all, or one that the backbone does not have.
    pub fn keep_blocks(mut self, keep: &[usize]) -> Result<Self> {
        check_kept(keep, self.layers())?;
        match &mut self {
            Backbone::Encoder(encoder) => {
                encoder.blocks = keep.iter().map(|&block| encoder.blocks[block].clone()).collect();
            }
            Backbone::Decoder(decoder) => decoder.keep_blocks(keep),
        }
        Ok(self)
    }

    /// The table of token embeddings `[vocab, hidden]`.
    pub fn token_embedding(&self) -> Tensor<B, 2> {
        match self {
            Backbone::Encoder(encoder) => encoder.token_embedding.table(),
            Backbone::Decoder(decoder) => decoder.token_embedding.table(),
        }
    }

    /// One forward pass.
    pub fn forward(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        want: ForwardOptions,
    ) -> States<B> {
        let x = self.embed_tokens(input);
        self.forward_embeddings(x, input, mode, want)
    }

    /// One forward pass from the first block's input `[batch, seq, hidden]`; of `input` only the
    /// attention mask is used.
    pub fn forward_embeddings(
        &self,
        mut x: Tensor<B, 3>,
        input: &ModelInput<B>,
        mode: AttentionMode,
        want: ForwardOptions,
    ) -> States<B> {
        let shared = self.prepare(input, mode, x.dtype().into());
        let mut states = States { last: x.clone(), layers: Vec::new(), attention: None };
        for index in 0..self.layers() {
            if want.layers {
                states.layers.push(x.clone());
            }
            let last = index + 1 == self.layers();
            (x, states.attention) = self.layer(index, x, &shared, want.attention && last);
        }
        states.last = self.finish(x);
        if want.layers {
            states.layers.push(states.last.clone());
        }
        states
    }

    /// The first block's input `[batch, seq, hidden]` of token ids.
    pub fn embed_tokens(&self, input: &ModelInput<B>) -> Tensor<B, 3> {
        match self {
            Backbone::Encoder(encoder) => encoder.embed_tokens(input),
            Backbone::Decoder(decoder) => decoder.embed_tokens(input),
        }
    }

    /// What all blocks of a pass over `input` share; `dtype` is that of the states.
    pub fn prepare(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        dtype: FloatDType,
    ) -> BlockInputs<B> {
        match self {
            Backbone::Encoder(encoder) => BlockInputs {
                rows: input.rows.clone(),
                angles: None,
                masks: vec![attention_mask(input, mode, None)],
                mask_of_layer: vec![0; encoder.blocks.len()],
            },
            Backbone::Decoder(decoder) => decoder.prepare(input, mode, dtype),
        }
    }

    /// One block: `[batch, seq, hidden]` to the same; with its attention weights on demand.
    pub fn layer(
        &self,
        index: usize,
        x: Tensor<B, 3>,
        shared: &BlockInputs<B>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let seen = Seen {
            rows: &shared.rows,
            angles: shared.angles.as_ref(),
            mask: shared.masks[shared.mask_of_layer[index]].as_ref(),
        };
        match self {
            Backbone::Encoder(encoder) => encoder.blocks[index].forward(x, seen, want_weights),
            Backbone::Decoder(decoder) => decoder.blocks[index].forward(x, seen, want_weights),
        }
    }

    /// The final norm, where the architecture has one.
    pub fn finish(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Backbone::Encoder(_) => x,
            Backbone::Decoder(decoder) => B::rms_norm(x, &decoder.norm),
        }
    }

    /// Adds LoRA adapters to every projection that the configuration names, and says how many.
    ///
    /// # Errors
    /// A target that matches no projection.
    pub fn with_lora(
        mut self,
        lora: &LoraConfig,
        config: &ModelConfig,
        device: &B::Device,
    ) -> Result<(Self, usize)> {
        let mut matched = vec![false; lora.targets.len()];
        let mut count = 0;
        for (modules, linear) in self.projections_mut(config)? {
            count += linear.add_adapters(lora, &modules, &mut matched, device);
        }
        if let Some(i) = matched.iter().position(|hit| !hit) {
            let known = self.projection_names(config)?.join(", ");
            return Err(Error::invalid(format!(
                "LoRA target {:?} names no projection of this model; it has {known} (or \"all-linear\")",
                lora.targets[i]
            )));
        }
        Ok((self, count))
    }

    /// Values that the adapters of a configuration would have, without making them.
    ///
    /// # Errors
    /// A projection without a name in checkpoints, which is a defect.
    pub fn lora_size(&self, lora: &LoraConfig, config: &ModelConfig) -> Result<usize> {
        let mut backbone = self.clone();
        let projections = backbone.projections_mut(config)?;
        Ok(projections.iter().map(|(modules, linear)| linear.lora_size(lora, modules)).sum())
    }

    /// Whether there is any LoRA adapter.
    pub fn has_adapters(&self) -> bool {
        self.clone().linears_mut().iter().any(|(_, linear)| !linear.adapters.is_empty())
    }

    /// Folds all LoRA adapters into their weights, `W + scale * A B`, and drops them.
    pub fn merge_lora(mut self) -> Self {
        for (_, linear) in self.linears_mut() {
            linear.merge();
            linear.adapters.clear();
        }
        self
    }

    /// Folds all adapters into their weights and keeps them, so that [`Backbone::unmerged`] can
    /// take them out again.
    pub fn merged(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.merge());
        self
    }

    /// Takes the adapters out of the weights that [`Backbone::merged`] put them into.
    pub fn unmerged(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.unmerge());
        self
    }

    /// The backbone with all packed weights made into full ones, to be trained, adapted or saved.
    pub fn unpacked(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.unpack());
        self.tables_mut().into_iter().for_each(|(_, table)| table.unpack());
        self
    }

    /// Observes everything that goes into the projections of one block from now on; by the names of
    /// each projection's parts in checkpoints (`encoder.layer.0.attention.self.query.weight`).
    ///
    /// # Errors
    /// A projection without a name in checkpoints, which is a defect.
    pub fn observe_block(
        &mut self,
        block: usize,
        config: &ModelConfig,
    ) -> Result<Vec<(Vec<String>, SharedGram)>> {
        let inside = format!("blocks.{block}.");
        let names = families::names(config);
        let mut observers = Vec::new();
        for (path, linear) in self.linears_mut() {
            if path.starts_with(&inside) {
                let parts = names.source(&format!("{path}.weight"))?.parts;
                let observer = SharedGram::default();
                linear.observe(Some(observer.clone()));
                observers.push((parts.into_iter().map(|(name, _)| name).collect(), observer));
            }
        }
        Ok(observers)
    }

    /// Observes nothing any more.
    pub fn observe_nothing(&mut self) {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.observe(None));
    }

    /// Changes the projections of one block, part by part: each part's name in checkpoints, its
    /// weights `[out, in]` row by row, and its shape.
    ///
    /// # Errors
    /// Weights that cannot be read back, or what `change` says.
    pub fn change_block(
        &mut self,
        block: usize,
        config: &ModelConfig,
        mut change: impl FnMut(&str, &mut [f32], [usize; 2]) -> Result<()>,
    ) -> Result<()> {
        let inside = format!("blocks.{block}.");
        let names = families::names(config);
        for (path, linear) in self.linears_mut() {
            if path.starts_with(&inside) {
                let parts = names.source(&format!("{path}.weight"))?.parts;
                linear.change(&parts, &mut change)?;
            }
        }
        Ok(())
    }

    /// Keeps all weights of the projections that are zero now at zero, whatever training does.
    pub fn keep_zeros(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.keep_zeros());
        self
    }

    /// The embedding tables with their paths among our parameters.
    pub(crate) fn tables_mut(&mut self) -> Vec<(&'static str, &mut Embedding<B>)> {
        match self {
            Backbone::Encoder(encoder) => vec![
                ("token_embedding", &mut encoder.token_embedding),
                ("position_embedding", &mut encoder.position_embedding),
            ],
            Backbone::Decoder(decoder) => vec![("token_embedding", &mut decoder.token_embedding)],
        }
    }

    /// All projections with their paths among our parameters.
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        let numbered = |(index, block): (usize, Vec<(&'static str, _)>)| {
            block
                .into_iter()
                .map(move |(path, linear)| (format!("blocks.{index}.{path}"), linear))
                .collect::<Vec<_>>()
        };
        match self {
            Backbone::Encoder(encoder) => encoder
                .blocks
                .iter_mut()
                .map(EncoderBlock::projections_mut)
                .enumerate()
                .flat_map(numbered)
                .collect(),
            Backbone::Decoder(decoder) => decoder
                .blocks
                .iter_mut()
                .map(DecoderBlock::projections_mut)
                .enumerate()
                .flat_map(numbered)
                .collect(),
        }
    }

    /// All projections, each with the names of its parts as the family's checkpoints spell them
    /// (`layers.0.self_attn.q_proj`).
    pub(crate) fn projections_mut(
        &mut self,
        config: &ModelConfig,
    ) -> Result<Vec<(Vec<String>, &mut Linear<B>)>> {
        let names = families::names(config);
        self.linears_mut()
            .into_iter()
            .map(|(path, linear)| {
                let parts = names.source(&format!("{path}.weight"))?.parts;
                let module = |(name, _): (String, _)| name.trim_end_matches(".weight").to_string();
                Ok((parts.into_iter().map(module).collect(), linear))
            })
            .collect()
    }

    /// Names of the projections that LoRA can adapt, as the checkpoint's family calls them.
    ///
    /// # Errors
    /// A projection without a name in checkpoints, which is a defect.
    pub fn projection_names(&self, config: &ModelConfig) -> Result<Vec<String>> {
        let mut names: Vec<String> = Vec::new();
        for (_, linear) in self.clone().projections_mut(config)? {
            for part in linear.part_names() {
                if !names.contains(part) {
                    names.push(part.clone());
                }
            }
        }
        Ok(names)
    }
}

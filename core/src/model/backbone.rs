//! [`Backbone`], either architecture: token ids in, [`States`] out.

use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::{Tensor, backend::Backend};

use super::decoder::{Decoder, DecoderBlock};
use super::embedding::Embedding;
use super::encoder::{Encoder, EncoderBlock};
use super::init::initialized;
use super::input::{BlockInputs, ForwardOptions, ModelInput, States};
use super::linear::Linear;
use crate::config::{Architecture, AttentionMode, ModelConfig};
use crate::kernels::{Kernels, MatmulPrecision};

/// Either architecture.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one backbone in a model")]
pub enum Backbone<B: Backend> {
    /// Blocks with layer norms, BERT's and their kin.
    Encoder(Encoder<B>),
    /// Blocks with RMS norms, Llama's and their kin.
    Decoder(Decoder<B>),
}

impl<B: Kernels> Backbone<B> {
    /// A backbone with random weights: N(0, 0.02), biases zero, norms one.
    pub fn random(config: &ModelConfig, device: &B::Device) -> Self {
        Self::drawn(config, 0.02, device)
    }

    /// As [`Backbone::random`], with another standard deviation.
    pub(crate) fn drawn(config: &ModelConfig, std: f64, device: &B::Device) -> Self {
        let init = Initializer::Normal { mean: 0.0, std };
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

    /// A static embedding: its table `[vocab, hidden]`.
    pub(crate) fn of_table(config: &ModelConfig, table: Tensor<B, 2>, device: &B::Device) -> Self {
        let mut backbone = Self::zeros(config, device);
        if let Backbone::Encoder(encoder) = &mut backbone {
            encoder.token_embedding.weight = Param::from_tensor(table);
        }
        backbone
    }

    /// Number of blocks.
    pub fn layers(&self) -> usize {
        match self {
            Backbone::Encoder(encoder) => encoder.blocks.len(),
            Backbone::Decoder(decoder) => decoder.blocks.len(),
        }
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

    /// One forward pass from the first block's input `[batch, seq, hidden]`; it uses only the
    /// attention mask of `input`.
    pub fn forward_embeddings(
        &self,
        mut x: Tensor<B, 3>,
        input: &ModelInput<B>,
        mode: AttentionMode,
        want: ForwardOptions,
    ) -> States<B> {
        let shared = self.prepare(input, mode, &x);
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

    /// Token ids to the first block's input `[batch, seq, hidden]`.
    pub fn embed_tokens(&self, input: &ModelInput<B>) -> Tensor<B, 3> {
        match self {
            Backbone::Encoder(encoder) => encoder.embed_tokens(input),
            Backbone::Decoder(decoder) => decoder.embed_tokens(input),
        }
    }

    /// What all blocks of a pass over `input` share; `embeddings` `[batch, seq, hidden]` are the first one's input.
    pub fn prepare(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        embeddings: &Tensor<B, 3>,
    ) -> BlockInputs<B> {
        match self {
            Backbone::Encoder(encoder) => encoder.prepare(input, mode, embeddings),
            Backbone::Decoder(decoder) => decoder.prepare(input, mode, embeddings),
        }
    }

    /// Each block's own input `[batch, seq, width]`, of embeddings `[batch, seq, hidden]`; none where blocks get
    /// nothing but states.
    pub fn per_layer_inputs(&self, embeddings: &Tensor<B, 3>) -> Vec<Tensor<B, 3>> {
        match self {
            Backbone::Encoder(_) => Vec::new(),
            Backbone::Decoder(decoder) => decoder.per_layer(embeddings),
        }
    }

    /// One block: `[batch, seq, hidden]` to the same, and its attention weights on demand.
    pub fn layer(
        &self,
        index: usize,
        x: Tensor<B, 3>,
        shared: &BlockInputs<B>,
        want_weights: bool,
    ) -> (Tensor<B, 3>, Option<Tensor<B, 4>>) {
        let seen = shared.seen(index);
        match self {
            Backbone::Encoder(encoder) => encoder.blocks[index].forward(x, seen, want_weights),
            Backbone::Decoder(decoder) => {
                let own = shared.per_layer.get(index);
                decoder.blocks[index].forward(x, seen, own, want_weights)
            }
        }
    }

    /// The final norm, where the architecture has one, and the projection after it, where there is one.
    pub fn finish(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match self {
            Backbone::Encoder(encoder) => encoder.finish(x),
            Backbone::Decoder(decoder) => decoder.finish(x),
        }
    }

    /// Sets the numbers in which blocks that train compute their products, where the backend computes
    /// whole blocks. A block that it does not compute whole (experts, pruned weights that stay zero, weights of
    /// attention that are asked for) stays in f32.
    pub fn set_matmul_precision(&mut self, precision: MatmulPrecision) {
        for (_, linear) in self.linears_mut() {
            linear.set_matmul_precision(precision);
        }
    }

    /// The embedding tables with their paths among our parameters.
    pub(crate) fn tables_mut(&mut self) -> Vec<(&'static str, &mut Embedding<B>)> {
        match self {
            Backbone::Encoder(encoder) => {
                let positions = &mut encoder.position_embedding;
                let positions = positions.iter_mut().map(|table| ("position_embedding", table));
                positions.chain([("token_embedding", &mut encoder.token_embedding)]).collect()
            }
            Backbone::Decoder(decoder) => vec![("token_embedding", &mut decoder.token_embedding)],
        }
    }

    /// The tables of tokens and types that are not packed, by the paths of their parameters.
    pub(crate) fn lookups_mut(&mut self) -> Vec<(&'static str, &mut Param<Tensor<B, 2>>)> {
        let (tokens, types) = match self {
            Backbone::Encoder(encoder) => {
                (&mut encoder.token_embedding, encoder.type_embedding.as_mut())
            }
            Backbone::Decoder(decoder) => (&mut decoder.token_embedding, None),
        };
        let tokens =
            (!tokens.is_packed()).then_some(("token_embedding.weight", &mut tokens.weight));
        tokens.into_iter().chain(types.map(|table| ("type_embedding", table))).collect()
    }

    /// All projections with their paths among our parameters.
    pub(crate) fn linears_mut(&mut self) -> Vec<(String, &mut Linear<B>)> {
        let numbered = |(index, block): (usize, Vec<(String, _)>)| {
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
            Backbone::Decoder(Decoder { blocks, per_layer_inputs, output_projection, .. }) => {
                let inputs = per_layer_inputs.iter_mut().map(|inputs| &mut inputs.projection);
                let inputs = inputs.map(|linear| ("per_layer_inputs.projection", linear));
                let output = output_projection.iter_mut();
                let output = output.map(|linear| ("output_projection", linear));
                let outer = inputs.chain(output).map(|(path, linear)| (path.to_string(), linear));
                let blocks = blocks.iter_mut().map(DecoderBlock::projections_mut).enumerate();
                blocks.flat_map(numbered).chain(outer).collect()
            }
        }
    }
}

//! What goes into a forward pass ([`ModelInput`], [`ForwardOptions`]) and what comes out
//! ([`States`]).

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{BasicOps, Bool, Int, Tensor, TensorData, backend::Backend};

use crate::kernels::{Kernels, RotaryTables, Seen};
use crate::tokenizer::TokenBatch;

/// What a forward pass keeps besides the last hidden states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ForwardOptions {
    /// Keep the hidden states of every layer.
    pub layers: bool,
    /// Keep the last layer's attention weights.
    pub attention: bool,
}

impl ForwardOptions {
    /// Everything that either asks for.
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
    /// Last hidden states, final-normed where the model has a final norm, and projected where it projects them:
    /// `[batch, seq, output]`.
    pub last: Tensor<B, 3>,
    /// `N + 1` tensors `[batch, seq, hidden]`, the embedding output first and [`States::last`]
    /// at the end, as transformers' `hidden_states`; empty unless asked for.
    pub layers: Vec<Tensor<B, 3>>,
    /// Attention weights of the last layer `[batch, heads, query, key]`, if asked for.
    pub attention: Option<Tensor<B, 4>>,
}

impl<B: Backend> States<B> {
    /// The states of one row's tokens, without the attention weights.
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

/// What all blocks of one forward pass share: the extent of each row, rotary tables, attention masks, what is added
/// to scores, and what each layer gets of the embeddings.
#[derive(Debug, Clone)]
pub struct BlockInputs<B: Backend> {
    pub(super) rows: Arc<[Range<usize>]>,
    /// Distinct tables.
    pub(super) angles: Vec<RotaryTables<B>>,
    pub(super) angles_of_layer: Vec<Option<usize>>,
    /// Distinct masks `[batch, 1, query, key]`, true where a query must not look.
    pub(super) masks: Vec<Option<Tensor<B, 4, Bool>>>,
    pub(super) mask_of_layer: Vec<usize>,
    /// Added to the scores of every layer `[heads, 2 seq - 1]`, at `seq - 1 + key - query`.
    pub(super) bias: Option<Tensor<B, 2>>,
    /// Each layer's own input `[batch, seq, width]`; none where the model has no such inputs.
    pub(super) per_layer: Vec<Tensor<B, 3>>,
    /// Whether nobody reads the states that layers give.
    pub(super) unread: bool,
}

impl<B: Backend> BlockInputs<B> {
    /// What one layer sees.
    pub(super) fn seen(&self, layer: usize) -> Seen<'_, B> {
        Seen {
            rows: &self.rows,
            angles: self.angles_of_layer[layer].map(|table| &self.angles[table]),
            mask: self.masks[self.mask_of_layer[layer]].as_ref(),
            bias: self.bias.as_ref(),
            // A layer's own input is mixed into what its block gives.
            unread: self.unread && self.per_layer.is_empty(),
        }
    }

    /// Says that the states which layers give are asked for their gradients alone, so that they need not be computed.
    pub fn leave_unread(&mut self) {
        self.unread = true;
    }

    /// Cuts one layer's own input off from the graph that made it, and returns the leaf that stands in its place, whose
    /// gradient that graph is owed.
    pub fn cut(&mut self, layer: usize) -> Option<Tensor<B, 3>> {
        let input = self.per_layer.get_mut(layer)?;
        *input = input.clone().detach().require_grad();
        Some(input.clone())
    }

    /// Whether it may be made of parameters, so that each graph of a model that trains needs its own; the layers' own
    /// inputs are [cut](BlockInputs::cut) instead.
    pub fn learns(&self) -> bool {
        self.bias.is_some()
    }
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
    /// Which of two texts each token belongs to `[batch, seq]`; `None`: there is one.
    pub types: Option<Tensor<B, 2, Int>>,
    /// Whether any position of the batch is padding.
    pub padded: bool,
    /// First and one past the last token of each row.
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
            types: (!tokens.types.is_empty()).then(|| {
                let types: Vec<i32> = tokens.types.iter().map(|&kind| kind as i32).collect();
                Tensor::from_data(TensorData::new(types, shape), device)
            }),
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
            types: self.types.as_ref().map(|types| part(types, row, &extent)),
            padded: false,
            rows: std::iter::once(0..extent.len()).collect(),
        }
    }
}

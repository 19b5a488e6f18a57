//! What each layer of a model sees of a text: how far, and by which rotary angles.

use burn::module::Module;
use burn::tensor::{FloatDType, Tensor};

use super::input::{BlockInputs, ModelInput};
use super::mask::attention_mask;
use super::rotary::Rotary;
use crate::config::{AttentionMode, ModelConfig};
use crate::kernels::Kernels;

/// Windows and rotary positions of all layers.
#[derive(Module, Clone, Debug, Default)]
pub(super) struct LayerViews {
    /// Distinct positions; layers without any where there are none.
    #[module(skip)]
    rotary: Vec<Rotary>,
    /// Sliding window of each layer in tokens.
    #[module(skip)]
    windows: Vec<Option<usize>>,
}

impl LayerViews {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let own = config.head_dim;
        let global = config.windows().iter().position(Option::is_none);
        let global = global.map_or(own, |layer| config.heads_of(layer).head_dim);
        let ropes = config.ropes();
        let ropes = ropes.iter().flat_map(|ropes| {
            let local = ropes.local.iter().map(move |rope| Rotary::new(rope, own));
            std::iter::once(Rotary::new(&ropes.global, global)).chain(local)
        });
        Self { rotary: ropes.collect(), windows: config.windows().to_vec() }
    }

    /// Keeps only some layers, in the order given.
    pub(super) fn keep(&mut self, layers: &[usize]) {
        self.windows = layers.iter().map(|&layer| self.windows[layer]).collect();
    }

    /// Rotary tables and one mask for each distinct window, rather than for each layer. `bias` is added to
    /// the scores of all layers.
    pub(super) fn prepare<B: Kernels>(
        &self,
        input: &ModelInput<B>,
        mode: AttentionMode,
        dtype: FloatDType,
        bias: Option<Tensor<B, 2>>,
    ) -> BlockInputs<B> {
        let [_, seq] = input.attention_mask.dims();
        let device = input.attention_mask.device();
        let tables = |rotary: &Rotary| {
            let (cos, sin) = rotary.angles(seq, &device);
            (cos.cast(dtype), sin.cast(dtype))
        };
        let mut shared = BlockInputs {
            rows: input.rows.clone(),
            angles: self.rotary.iter().map(tables).collect(),
            angles_of_layer: Vec::new(),
            masks: Vec::new(),
            mask_of_layer: Vec::new(),
            bias,
            per_layer: Vec::new(),
            unread: false,
        };
        let mut windows: Vec<Option<usize>> = Vec::new();
        for window in &self.windows {
            let i = windows.iter().position(|known| known == window).unwrap_or_else(|| {
                windows.push(*window);
                shared.masks.push(attention_mask(input, mode, *window));
                windows.len() - 1
            });
            shared.mask_of_layer.push(i);
            let last = self.rotary.len().checked_sub(1);
            // The second table, where there is one, is that of layers with a window.
            shared.angles_of_layer.push(last.map(|last| if window.is_some() { last } else { 0 }));
        }
        shared
    }
}

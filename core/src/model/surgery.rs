//! Changes to a [`Backbone`] that is already there: LoRA adapters in and out, blocks left out,
//! packed weights unpacked, and the views of one block that pruning and quantization work on.

use super::backbone::Backbone;
use super::experts::is_router;
use super::families::{self, Part};
use super::gram::SharedGram;
use super::linear::Linear;
use super::lora::LoraConfig;
use crate::config::{ModelConfig, check_kept};
use crate::kernels::Kernels;
use crate::{Error, Result};

/// LoRA (arXiv:2106.09685).
impl<B: Kernels> Backbone<B> {
    /// Adds LoRA adapters to every projection that the configuration names, and returns their number.
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

    /// Number of parameters that the adapters of a configuration would have.
    ///
    /// # Errors
    /// A projection without a tensor name, which is a defect of the family's table.
    pub fn lora_size(&self, lora: &LoraConfig, config: &ModelConfig) -> Result<usize> {
        let mut backbone = self.clone();
        let projections = backbone.projections_mut(config)?;
        Ok(projections.iter().map(|(modules, linear)| linear.lora_size(lora, modules)).sum())
    }

    /// Whether any projection has a LoRA adapter.
    pub fn has_adapters(&self) -> bool {
        self.clone().linears_mut().iter().any(|(_, linear)| !linear.adapters.is_empty())
    }

    /// Whether any projection is packed.
    pub fn is_packed(&self) -> bool {
        self.clone().linears_mut().iter().any(|(_, linear)| linear.is_packed())
    }

    /// Values of the largest packed projection; 0 where none is packed.
    pub fn largest_packed(&self) -> usize {
        let mut all = self.clone();
        let packed = all.linears_mut().into_iter().filter(|(_, linear)| linear.is_packed());
        packed.map(|(_, linear)| linear.shape().iter().product()).max().unwrap_or(0)
    }

    /// Folds all LoRA adapters into their weights, `W + scale * A B`, and drops them; packed weights become ones of floating
    /// point for it.
    pub fn merge_lora(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.merge_for_good());
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

    /// All projections, each with the module names of its parts in the family's checkpoints
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
                let module = |part: Part| part.name.trim_end_matches(".weight").to_string();
                Ok((parts.into_iter().map(module).collect(), linear))
            })
            .collect()
    }

    /// Names of the projections that LoRA can adapt, as the family's checkpoints spell them.
    ///
    /// # Errors
    /// A projection without a tensor name, which is a defect of the family's table.
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

/// Pruning, quantization and students of less depth.
impl<B: Kernels> Backbone<B> {
    /// The backbone with only some of its blocks, in the order given (a student of less depth).
    ///
    /// # Errors
    /// No block at all, or one that the backbone does not have.
    pub fn keep_blocks(mut self, keep: &[usize]) -> Result<Self> {
        check_kept(keep, self.layers())?;
        match &mut self {
            Backbone::Encoder(encoder) => encoder.keep_blocks(keep),
            Backbone::Decoder(decoder) => decoder.keep_blocks(keep),
        }
        Ok(self)
    }

    /// The backbone with floating-point weights in place of packed ones, to be trained, adapted or saved.
    pub fn unpacked(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.unpack());
        self.tables_mut().into_iter().for_each(|(_, table)| table.unpack());
        self
    }

    /// From now on collects the inputs of one block's projections, as Gram matrices; each comes with
    /// the tensor names of its projection's parts (`encoder.layer.0.attention.self.query.weight`). Those that send
    /// tokens to experts are no such projections: they stay as they are.
    ///
    /// # Errors
    /// A projection without a tensor name, which is a defect of the family's table.
    pub fn observe_block(
        &mut self,
        block: usize,
        config: &ModelConfig,
    ) -> Result<Vec<(Vec<String>, SharedGram)>> {
        let inside = format!("blocks.{block}.");
        let names = families::names(config);
        let mut observers = Vec::new();
        for (path, linear) in self.linears_mut() {
            if path.starts_with(&inside) && !is_router(&path) {
                let parts = names.source(&format!("{path}.weight"))?.parts;
                let observer = SharedGram::default();
                linear.observe(Some(observer.clone()));
                observers.push((parts.into_iter().map(|part| part.name).collect(), observer));
            }
        }
        Ok(observers)
    }

    /// Stops collecting.
    pub fn observe_nothing(&mut self) {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.observe(None));
    }

    /// Changes the projections of one block that [`Backbone::observe_block`] observes, part by part: `change` gets a
    /// part's tensor name, its weights `[out, in]` row by row, and its shape.
    ///
    /// # Errors
    /// Weights that cannot be read back from the device, or an error of `change`.
    pub fn change_block(
        &mut self,
        block: usize,
        config: &ModelConfig,
        mut change: impl FnMut(&str, &mut [f32], [usize; 2]) -> Result<()>,
    ) -> Result<()> {
        let inside = format!("blocks.{block}.");
        let names = families::names(config);
        for (path, linear) in self.linears_mut() {
            if path.starts_with(&inside) && !is_router(&path) {
                let parts = names.source(&format!("{path}.weight"))?.parts;
                linear.change(&parts, &mut change)?;
            }
        }
        Ok(())
    }

    /// Keeps the weights that are zero now at zero through training, so that pruning lasts.
    pub fn keep_zeros(mut self) -> Self {
        self.linears_mut().into_iter().for_each(|(_, linear)| linear.keep_zeros());
        self
    }
}

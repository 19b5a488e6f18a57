//! A training recipe: typed TOML in which an unknown field is an error.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_core::config::AttentionMode;
use kiln_core::loss::InfoNce;
use kiln_core::model::LoraConfig;
use kiln_core::pooling::PoolingConfig;
use serde::{Deserialize, Serialize};

/// The whole of a training run, as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name for reports.
    pub name: String,
    /// Seed of weights, shuffles and dropout.
    #[serde(default)]
    pub seed: u64,
    /// What is trained.
    pub model: ModelRecipe,
    /// The stages, in order; the optimizer starts anew at each.
    #[serde(rename = "stage")]
    pub stages: Vec<Stage>,
}

/// What is trained: a model that exists, or a new one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecipe {
    /// Folder or Hub id to start from.
    pub base: Option<String>,
    /// Shape of a model to train from nothing, with a tokenizer trained on the run's texts.
    pub new: Option<NewModel>,
    /// Pooling head; the base model's where absent.
    pub pooling: Option<PoolingConfig>,
    /// Attention mask; the base model's where absent.
    pub attention: Option<AttentionMode>,
    /// Most tokens of a text.
    pub max_length: Option<usize>,
    /// Adapters; all parameters are trained where absent.
    pub lora: Option<LoraConfig>,
    /// Prompts that the model is saved with, by name ("query" and "document" are used in training).
    #[serde(default)]
    pub prompts: std::collections::BTreeMap<String, String>,
}

/// Shape of a new model: a Llama-shaped decoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewModel {
    /// Tokens of the vocabulary to be learned, special ones included.
    pub vocab_size: usize,
    /// Width of the hidden states.
    pub hidden_size: usize,
    /// Inner width of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; as many as query heads where absent.
    pub kv_heads: Option<usize>,
}

/// One stage of training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Name for reports.
    pub name: String,
    /// Files of triplets.
    pub data: Vec<String>,
    /// Optimizer steps.
    pub steps: usize,
    /// Queries in a batch.
    pub batch_size: usize,
    /// Batches whose gradients make one step.
    #[serde(default = "one")]
    pub accumulation: usize,
    /// Hard negatives of each query.
    #[serde(default = "one")]
    pub hard_negatives: usize,
    /// Which of a query's negatives are taken.
    #[serde(default)]
    pub curriculum: Curriculum,
    /// Highest learning rate.
    pub lr: f64,
    /// Steps of linear warm-up.
    #[serde(default)]
    pub warmup: usize,
    /// What the learning rate does after the warm-up.
    #[serde(default)]
    pub schedule: Schedule,
    /// AdamW's weight decay; norms, biases and latents are never decayed.
    #[serde(default)]
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 does not clip.
    #[serde(default = "default_clip")]
    pub clip_norm: f64,
    /// The contrastive loss.
    #[serde(default)]
    pub loss: InfoNce,
}

fn one() -> usize {
    1
}
fn default_clip() -> f64 {
    1.0
}

/// Order of graded negatives over a stage (MGH, METHODS.md 2); negatives are given hardest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Curriculum {
    /// The first ones, as given.
    #[default]
    Given,
    /// From the easiest level to the hardest, each for an equal share of the steps.
    CoarseToFine,
    /// From the hardest to the easiest.
    FineToCoarse,
    /// A level drawn for each batch.
    Random,
    /// Always the same level, 1 being the hardest.
    Fixed(usize),
}

/// Learning rate after the warm-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Falls linearly to zero.
    #[default]
    Linear,
    /// Stays.
    Constant,
}

impl Stage {
    /// Learning rate of a step, from 0.
    pub fn learning_rate(&self, step: usize) -> f64 {
        if step < self.warmup {
            return self.lr * (step + 1) as f64 / self.warmup as f64;
        }
        match self.schedule {
            Schedule::Constant => self.lr,
            Schedule::Linear => {
                let left = self.steps.saturating_sub(step) as f64;
                self.lr * left / (self.steps - self.warmup).max(1) as f64
            }
        }
    }
}

impl Recipe {
    /// Reads a recipe file.
    ///
    /// # Errors
    /// Unreadable, not TOML, an unknown field (with its line), or values that make no sense.
    pub fn read(path: &Path) -> Result<Self> {
        let label = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| label.clone())?;
        Self::parse(&text).with_context(|| label)
    }

    /// Reads the text of a recipe.
    ///
    /// # Errors
    /// As [`Recipe::read`].
    pub fn parse(text: &str) -> Result<Self> {
        let recipe: Self = toml::from_str(text)?;
        recipe.check()?;
        Ok(recipe)
    }

    fn check(&self) -> Result<()> {
        match (&self.model.base, &self.model.new) {
            (Some(_), None) => {}
            (None, Some(new)) => {
                if new.vocab_size < 300 {
                    bail!(
                        "model.new.vocab_size is {}, below the 256 bytes and special tokens",
                        new.vocab_size
                    );
                }
                if self.model.lora.is_some() {
                    bail!(
                        "model.lora with model.new would leave random weights frozen; remove one"
                    );
                }
            }
            _ => bail!("the model needs either base or new"),
        }
        if let Some(pooling) = &self.model.pooling {
            pooling.check()?;
        }
        if self
            .model
            .lora
            .as_ref()
            .is_some_and(|lora| lora.rank == 0 || !(0.0..1.0).contains(&lora.dropout))
        {
            bail!("model.lora: rank must be at least 1, and dropout at least 0 and below 1");
        }
        if self.stages.is_empty() {
            bail!("the recipe has no [[stage]]");
        }
        for stage in &self.stages {
            let name = &stage.name;
            if stage.steps == 0 || stage.batch_size == 0 || stage.accumulation == 0 {
                bail!("stage {name:?}: steps, batch_size and accumulation must be at least 1");
            }
            if stage.data.is_empty() {
                bail!("stage {name:?}: data names no file");
            }
            if !(stage.lr.is_finite() && stage.lr > 0.0) {
                bail!("stage {name:?}: lr is {}", stage.lr);
            }
            if !(stage.loss.temperature.is_finite() && stage.loss.temperature > 0.0) {
                bail!("stage {name:?}: loss.temperature is {}", stage.loss.temperature);
            }
            if stage.hard_negatives == 0 && !stage.loss.in_batch {
                bail!(
                    "stage {name:?}: without hard negatives and in-batch negatives there is nothing to learn from"
                );
            }
            if stage.batch_size == 1 && stage.hard_negatives == 0 {
                bail!("stage {name:?}: a batch of one has no in-batch negatives");
            }
            if stage.curriculum == Curriculum::Fixed(0) {
                bail!("stage {name:?}: curriculum.fixed counts from 1, the hardest");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = r#"
        name = "r"
        [model]
        base = "dir"
        [[stage]]
        name = "one"
        data = ["a.jsonl"]
        steps = 10
        batch_size = 4
        lr = 1e-3
        warmup = 2
    "#;

    #[test]
    fn warm_up_and_linear_decay() {
        let stage = Recipe::parse(RECIPE).unwrap().stages.remove(0);
        let rates: Vec<f64> = (0..10).map(|step| stage.learning_rate(step)).collect();
        assert!((rates[0] - 5e-4).abs() < 1e-12 && (rates[1] - 1e-3).abs() < 1e-12);
        assert!((rates[2] - 1e-3).abs() < 1e-12 && (rates[9] - 1.25e-4).abs() < 1e-12);
    }

    #[test]
    fn unknown_fields_are_errors_with_their_name() {
        let error = Recipe::parse(&RECIPE.replace("warmup", "warm_up")).unwrap_err().to_string();
        assert!(error.contains("warm_up") && error.contains("warmup"), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        for (from, to) in [
            ("steps = 10", "steps = 0"),
            ("lr = 1e-3", "lr = nan"),
            ("base = \"dir\"", ""),
            ("lr = 1e-3", "lr = 1e-3\nhard_negatives = 0\nloss = { in_batch = false }"),
        ] {
            assert!(Recipe::parse(&RECIPE.replace(from, to)).is_err(), "{to}");
        }
    }
}

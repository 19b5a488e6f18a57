//! What is trained, and how.

use anyhow::{Result, bail};
use kiln_data::recipe::{Curriculum, Stage};
use kiln_embed::config::{Architecture, ModelConfig};
use kiln_embed::model::LoraConfig;
use serde::{Deserialize, Serialize};

/// What is trained.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdapterKind {
    /// LoRA where the model is small, else an adapter of its vectors.
    #[default]
    Auto,
    /// LoRA on the model's projections: each step is a pass through the model.
    Lora,
    /// A residual adapter of the model's vectors ([`kiln_embed::index::VectorAdapter`]): texts are embedded once.
    Adapter,
}

/// Multiplications that a token takes in the projections of a model that `auto` trains with LoRA, at most: those of
/// models of 6 or 12 blocks of 384 numbers, not of 12 blocks of 768.
const SMALL: usize = 32_000_000;

impl AdapterKind {
    /// What is trained of a model.
    pub(crate) fn of(self, model: &ModelConfig) -> Self {
        // Four projections of attention, and eight times its width in the feed-forward part, as in BERT.
        let size = 12 * model.num_layers * model.hidden_size * model.hidden_size;
        match self {
            Self::Auto if model.num_layers > 0 && size <= SMALL => Self::Lora,
            Self::Auto => Self::Adapter,
            told => told,
        }
    }
}

/// What is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct AdapterSettings {
    /// LoRA, or an adapter of vectors.
    pub kind: AdapterKind,
    /// Rank of the adapters; 8 where absent.
    pub rank: Option<usize>,
    /// Their update is scaled by `alpha / rank`; 16 where absent.
    pub alpha: Option<f64>,
    /// Which projections get one, as PEFT's `target_modules`; for LoRA alone.
    pub targets: Vec<String>,
    /// Seed of what is drawn: the adapters, what is held back, the batches.
    pub seed: u64,
}

impl Default for AdapterSettings {
    fn default() -> Self {
        let targets = vec!["all-linear".into()];
        Self { kind: AdapterKind::Auto, rank: None, alpha: None, targets, seed: 1 }
    }
}

impl AdapterSettings {
    /// The same with all that a kind leaves open.
    pub(crate) fn resolved(&self, kind: AdapterKind) -> Self {
        let rank = self.rank.unwrap_or(8);
        let alpha = self.alpha.unwrap_or(16.0);
        Self { kind, rank: Some(rank), alpha: Some(alpha), ..self.clone() }
    }

    /// The settings of the low-rank part.
    ///
    /// # Errors
    /// Values that make no sense, by name.
    pub(crate) fn lora(&self) -> Result<LoraConfig> {
        let Self { rank, alpha, targets, .. } = self.resolved(self.kind);
        let (rank, alpha) = (rank.unwrap_or_default(), alpha.unwrap_or_default());
        if rank == 0 || rank > 256 {
            bail!("rank is {rank}; adapters have a rank between 1 and 256");
        }
        if !(alpha.is_finite() && alpha > 0.0) {
            bail!("alpha is {alpha}; it has to be above 0");
        }
        Ok(LoraConfig { rank, alpha, dropout: 0.0, targets })
    }
}

/// How it is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct TeachingPlan {
    /// Steps, each over one batch; where absent as many as the kind usually takes. Where [`TeachingPlan::learning_rate`] is
    /// absent too, and by the score before the first step the model knows next to nothing of the lessons that are held back, as
    /// many as it takes to learn new words, at a higher rate.
    pub steps: Option<usize>,
    /// Lessons in a batch; where absent as many as the kind usually takes.
    pub batch_size: Option<usize>,
    /// Highest learning rate; it rises over a tenth of the steps and falls linearly to zero. Where absent the kind's
    /// usual one.
    pub learning_rate: Option<f64>,
    /// Temperature of InfoNCE.
    pub temperature: f64,
    /// Negatives of each lesson's own in a batch, of those that it has.
    pub hard_negatives: usize,
    /// Share of the lessons that is held back, to see whether the model has become better.
    pub hold_back: f64,
    /// Steps between looks at the lessons that are held back; a quarter of all where 0.
    pub check_every: usize,
    /// Looks without a gain after which training stops; where 0 two, and where new words are learned, of which the first looks
    /// may show nothing, as many as there are.
    pub patience: usize,
    /// Texts at most among which the answers of held-back lessons are to be found.
    pub check_texts: usize,
}

impl Default for TeachingPlan {
    fn default() -> Self {
        Self {
            steps: None,
            batch_size: None,
            learning_rate: None,
            temperature: 0.05,
            hard_negatives: 1,
            hold_back: 0.2,
            check_every: 0,
            patience: 0,
            check_texts: 96,
        }
    }
}

/// What a kind is trained with where nothing is asked for; `wasm/RESULTS.md` has the measurements.
struct Usual {
    steps: usize,
    batch_size: usize,
    learning_rate: f64,
    patience: usize,
}

impl Usual {
    fn of(kind: AdapterKind) -> Self {
        match kind {
            AdapterKind::Auto | AdapterKind::Lora => {
                Self { steps: 60, batch_size: 16, learning_rate: 5e-4, patience: 2 }
            }
            AdapterKind::Adapter => {
                Self { steps: 60, batch_size: 64, learning_rate: 3e-4, patience: 2 }
            }
        }
    }

    /// For words that the model knows next to nothing of.
    fn of_new_words(kind: AdapterKind) -> Self {
        let learning_rate = match kind {
            AdapterKind::Auto | AdapterKind::Lora => 2e-3,
            AdapterKind::Adapter => 1e-3,
        };
        Self { steps: 300, learning_rate, patience: 300, ..Self::of(kind) }
    }
}

impl TeachingPlan {
    /// The same with all that it leaves to the kind.
    pub(crate) fn resolved(&self, kind: AdapterKind) -> Self {
        self.or(Usual::of(kind))
    }

    /// The same where the words are new to the model.
    pub(crate) fn of_new_words(&self, kind: AdapterKind) -> Self {
        self.or(Usual::of_new_words(kind))
    }

    /// Whether how long and how hard to train is left open.
    pub(crate) fn is_open(&self) -> bool {
        self.steps.is_none() && self.learning_rate.is_none()
    }

    fn or(&self, usual: Usual) -> Self {
        Self {
            steps: self.steps.or(Some(usual.steps)),
            batch_size: self.batch_size.or(Some(usual.batch_size)),
            learning_rate: self.learning_rate.or(Some(usual.learning_rate)),
            patience: if self.patience == 0 { usual.patience } else { self.patience },
            ..self.clone()
        }
    }

    /// Steps in all; those of [`TeachingPlan::resolved`].
    pub(crate) fn steps(&self) -> usize {
        self.steps.unwrap_or_default()
    }

    /// The stage of a recipe that trains so, what is left open as for LoRA.
    ///
    /// # Errors
    /// Values that make no sense, by name.
    pub fn stage(&self) -> Result<Stage> {
        let all = self.resolved(AdapterKind::Lora);
        let batch_size = all.batch_size.unwrap_or_default();
        let learning_rate = all.learning_rate.unwrap_or_default();
        let whole = [("steps", all.steps()), ("batchSize", batch_size)];
        for (name, value) in whole {
            if value == 0 || value > 100_000 {
                bail!("{name} is {value}; it has to be between 1 and 100000");
            }
        }
        if batch_size < 2 {
            bail!("batchSize is 1; with 2 or more, lessons are told apart from one another");
        }
        for (name, value) in [("learningRate", learning_rate), ("temperature", self.temperature)] {
            if !(value.is_finite() && value > 0.0) {
                bail!("{name} is {value}; it has to be above 0");
            }
        }
        if !(0.0..0.9).contains(&self.hold_back) {
            bail!("holdBack is {}; it is a share between 0 and 0.9", self.hold_back);
        }
        let mut stage: Stage = serde_json::from_value(serde_json::json!({
            "name": "lessons",
            "data": [],
            "steps": all.steps(),
            "batch_size": batch_size,
            "lr": learning_rate,
            "warmup": warmup(all.steps()),
            "hard_negatives": self.hard_negatives,
            "loss": { "temperature": self.temperature },
        }))?;
        stage.curriculum = Curriculum::Sampled;
        Ok(stage)
    }

    pub(crate) fn check_every(&self) -> usize {
        match self.check_every {
            0 => self.steps().div_ceil(4),
            every => every,
        }
    }
}

/// Bytes of a batch's graph that are kept from its first pass to its second.
const KEPT: usize = 128 << 20;

/// Tokens of a batch whose graph is kept; of a larger one each chunk's is made again. Of a token each block keeps about its
/// inputs, queries, keys, values, what attention makes of them, and what is between the feed-forward part's projections.
/// Blocks with experts are no single operation, and keep several times as much.
pub(crate) fn most_kept(model: &ModelConfig) -> usize {
    if matches!(&model.architecture, Architecture::Encoder(encoder) if encoder.experts.is_some()) {
        return 0;
    }
    let block = (6 * model.hidden_size + 2 * model.intermediate_size) * size_of::<f32>();
    KEPT / (model.num_layers * block).max(1)
}

/// Steps over which the learning rate rises.
pub(crate) fn warmup(steps: usize) -> usize {
    steps / 10
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(num_layers: usize, hidden_size: usize) -> ModelConfig {
        let json = format!(
            r#"{{"model_type": "bert", "hidden_size": {hidden_size}, "num_hidden_layers": {num_layers},
                "num_attention_heads": 12, "intermediate_size": {}, "vocab_size": 99, "max_position_embeddings": 64}}"#,
            4 * hidden_size
        );
        ModelConfig::from_json(json.as_bytes()).unwrap()
    }

    #[test]
    fn a_page_keeps_less_of_larger_models_and_nothing_of_experts() {
        // 6 blocks of 5,376 numbers a token.
        assert_eq!(most_kept(&model(6, 384)), 1040);
        assert_eq!(most_kept(&model(12, 768)), 260);
        let experts = r#"{"model_type": "nomic_bert", "activation_function": "gelu", "vocab_size": 99, "num_experts": 8,
            "moe_top_k": 2, "moe_every_n_layers": 2, "n_embd": 64, "n_layer": 4, "n_head": 4, "n_inner": 96, "n_positions": 160}"#;
        assert_eq!(most_kept(&ModelConfig::from_json(experts.as_bytes()).unwrap()), 0);
    }

    #[test]
    fn auto_is_lora_for_small_models() {
        assert_eq!(AdapterKind::Auto.of(&model(6, 384)), AdapterKind::Lora);
        assert_eq!(AdapterKind::Auto.of(&model(12, 384)), AdapterKind::Lora);
        assert_eq!(AdapterKind::Auto.of(&model(12, 768)), AdapterKind::Adapter);
        assert_eq!(AdapterKind::Lora.of(&model(12, 768)), AdapterKind::Lora);
    }

    #[test]
    fn what_is_left_open_is_the_kinds() {
        let plan = TeachingPlan { steps: Some(7), ..TeachingPlan::default() };
        let adapter = plan.resolved(AdapterKind::Adapter);
        assert_eq!((adapter.steps(), adapter.batch_size), (7, Some(64)));
        assert_eq!(TeachingPlan::default().resolved(AdapterKind::Lora).steps(), 60);
        let settings = AdapterSettings { rank: Some(4), ..AdapterSettings::default() };
        assert_eq!((settings.lora().unwrap().rank, settings.lora().unwrap().alpha), (4, 16.0));
    }

    #[test]
    fn new_words_take_more_steps_at_a_higher_rate_and_no_early_end() {
        let plan = TeachingPlan::default();
        assert_eq!(plan.resolved(AdapterKind::Lora).patience, 2);
        for (kind, rate) in [(AdapterKind::Lora, 2e-3), (AdapterKind::Adapter, 1e-3)] {
            let long = plan.of_new_words(kind);
            assert_eq!((long.steps(), long.learning_rate, long.patience), (300, Some(rate), 300));
            assert_eq!(long.batch_size, plan.resolved(kind).batch_size);
        }
        // What was asked for stays, and a number of steps or a rate is no open plan.
        let asked = TeachingPlan { batch_size: Some(8), patience: 1, ..plan.clone() };
        let long = asked.of_new_words(AdapterKind::Lora);
        assert_eq!((long.batch_size, long.patience), (Some(8), 1));
        assert!(asked.is_open());
        assert!(!TeachingPlan { steps: Some(60), ..plan.clone() }.is_open());
        assert!(!TeachingPlan { learning_rate: Some(5e-4), ..plan }.is_open());
    }
}

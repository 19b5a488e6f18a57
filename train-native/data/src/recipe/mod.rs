//! A training recipe: typed TOML in which an unknown field is an error.

mod overrides;
#[cfg(test)]
mod papers;
mod shipped;
mod source;
mod stage;
#[cfg(feature = "files")]
mod sweep;

use std::collections::BTreeMap;
#[cfg(feature = "files")]
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use kiln_embed::config::AttentionMode;
use kiln_embed::model::LoraConfig;
use kiln_embed::pooling::PoolingConfig;
use kiln_embed::quant::{Number, Scheme};
use kiln_embed::tokenizer::{InstructionSpan, PaddingSide, TextOptions};
use serde::{Deserialize, Serialize};

#[cfg(feature = "files")]
use crate::text::{is_missing, read_small};

pub use kiln_embed::train::{OptimizerKind, Schedule};
pub use shipped::{SHIPPED, SWEEPS, Shipped, shipped};
use source::Uses;
pub use source::{DataRef, DataSource, INSTRUCTION_FORMAT, Labels, LeakRule, instructed};
pub use stage::{
    Curriculum, Distillation, LayerMap, MarginMse, Mixing, Mntp, Objective, Reconstruction, Rerank,
    RerankLabels, RerankLoss, SamplerKind, Similarity, SimilarityLoss, Stage,
};
#[cfg(feature = "files")]
pub use sweep::{Sweep, Variant, slug};

/// The whole of a training run, as data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Name for reports.
    pub name: String,
    /// What it reproduces, in a line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Seed of weights, shuffles and dropout.
    #[serde(default)]
    pub seed: u64,
    /// Names of the stages to run, in this order; all, as they stand, where empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<String>,
    /// What is trained.
    pub model: ModelRecipe,
    /// Data sets by name, for stages to refer to.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sources: BTreeMap<String, DataSource>,
    /// What is kept out of the training data.
    #[serde(default)]
    pub filter: Filter,
    /// How a batch is computed; changes memory and time, not the method.
    #[serde(default)]
    pub compute: Compute,
    /// Evaluation during training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<Evaluation>,
    /// The stages; the optimizer starts anew at each, unless the stage says otherwise.
    #[serde(rename = "stage")]
    pub stages: Vec<Stage>,
}

/// What is trained: a model that exists, or a new one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelRecipe {
    /// Folder or Hub id to start from.
    pub base: Option<String>,
    /// Blocks of the base model to keep, counted from 0 (a student of less depth); all where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_blocks: Option<Vec<usize>>,
    /// Keeps the zeros of a pruned base model, whatever is trained.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_zeros: bool,
    /// The base's matrices and tables in `int8` or `int4`, packed, beside adapters (QLoRA, arXiv:2305.14314), but for those
    /// whose rows are no whole blocks; in floating point where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frozen_weights: Option<Scheme>,
    /// Shape of a model to train from nothing, with a tokenizer trained on the run's texts.
    pub new: Option<NewModel>,
    /// Pooling head; the base model's where absent.
    pub pooling: Option<PoolingConfig>,
    /// Attention mask; the base model's where absent.
    pub attention: Option<AttentionMode>,
    /// Most tokens of a text, those that stand around it included.
    pub max_length: Option<usize>,
    /// Put BOS before each text, or do not; as the base model's tokenizer does where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_bos: Option<bool>,
    /// Put EOS after each text, or do not; as the base model's tokenizer does where absent. Most base
    /// language models' do not, and pooling the last token then pools the text's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub add_eos: Option<bool>,
    /// Stands after each text and before EOS, and is never cut away (a chat template's end, `[/INST]`). It is
    /// tokenized by itself: where the tokenizer puts a space before every text, as Mistral's does, it puts one before
    /// this too, which is written without its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_suffix: Option<String>,
    /// Side on which shorter texts of a batch are padded; the base model's where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding_side: Option<PaddingSide>,
    /// Which tokens of an instruction pooling leaves out; as the base model does where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<InstructionSpan>,
    /// How an instruction becomes the prompt of a query; `{instruction}` stands for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction_format: Option<String>,
    /// Adapters; all parameters are trained where absent.
    pub lora: Option<LoraConfig>,
    /// With adapters: further parameters to train, by a part of their path (`norm`,
    /// `token_embedding`). The pooling head and projections always train.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,
    /// With adapters: nothing else trains, not the pooling head nor projections either, so that PEFT's folder is the
    /// whole difference to the base model, as with adapters that a page has taught.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adapters_alone: bool,
    /// Prompts that the model is saved with, by name ("query" and "document" are used in training).
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
}

impl ModelRecipe {
    /// What stands around a text, and what of it is pooled.
    pub fn text_options(&self) -> TextOptions {
        TextOptions {
            add_bos: self.add_bos,
            add_eos: self.add_eos,
            text_suffix: self.text_suffix.clone(),
            padding_side: self.padding_side,
            instruction: self.instruction,
        }
    }
}

/// Shape of a new model: a Llama-shaped decoder, or, where a cross-encoder is trained, an encoder of ModernBERT's shape.
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
    /// Width of the vectors, by a projection after pooling; that of the hidden states where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dimensions: Option<usize>,
    /// Whether the tokenizer writes everything in lower case first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lower_case: bool,
    /// Folder of a model whose tokenizer is taken in place of a new one (a narrower student that
    /// learns from hidden states).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<String>,
    /// Folder or Hub name of a model whose vectors of the single tokens the token embeddings start
    /// from (Model2Vec's distillation), by a projection to its width (`dimensions`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub word_vectors: Option<String>,
}

/// What is kept out of the training data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// Drop examples whose query and positives have been seen before in the source.
    #[serde(default = "yes")]
    pub deduplicate: bool,
    /// Files of evaluation texts; training examples with one of them are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evaluation_texts: Vec<String>,
    /// Also drop a text whose BM25 score for an evaluation text is at least this share of the
    /// score that the evaluation text gives itself; exact matches only where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bm25_share: Option<f32>,
}

impl Default for Filter {
    fn default() -> Self {
        Self { deduplicate: true, evaluation_texts: Vec::new(), bm25_share: None }
    }
}

/// Number format of the forward and backward pass; weights and optimizer stay f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDtype {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16.
    Bf16,
    /// IEEE half precision, with loss scaling.
    F16,
}

/// Number format in which gradients go from host to host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientFormat {
    /// 32 bits.
    #[default]
    F32,
    /// bfloat16: half of what is sent, and sums that are rounded at each hop.
    Bf16,
}

impl GradientFormat {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How a batch is computed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compute {
    /// Number format.
    #[serde(default)]
    pub precision: ComputeDtype,
    /// Texts computed at once; where absent the whole batch, and with `grad_cache` on the CPU as many as
    /// make 2,048 tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// Forget a chunk's activations and compute them again for its gradient (GradCache,
    /// arXiv:2101.06983): memory for one chunk, whatever the batch.
    #[serde(default)]
    pub grad_cache: bool,
    /// Keep only the blocks' inputs and compute each block again for its gradient (gradient
    /// checkpointing): memory for one block, whatever the depth. Implies `grad_cache`.
    #[serde(default)]
    pub checkpoint_blocks: bool,
    /// Number format in which gradients go from host to host, where several train together.
    #[serde(default, skip_serializing_if = "GradientFormat::is_default")]
    pub gradients: GradientFormat,
    /// Where several devices train together, each keeps the optimizer's state of its share of the parameters (ZeRO's
    /// first stage, arXiv:1910.02054, section 5.1): the same numbers, less memory, half as much again to send.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shard_optimizer: bool,
}

/// Evaluation during training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// Steps between evaluations; 0: only at the end of each stage.
    #[serde(default)]
    pub every: usize,
    /// Name of the set or task whose score chooses the best checkpoint, or "mean" of a suite's tasks; the
    /// first set where absent, or the suite's mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<String>,
    /// The sets.
    #[serde(rename = "set", default, skip_serializing_if = "Vec::is_empty")]
    pub sets: Vec<EvaluationSet>,
    /// A suite of tasks, by name or as a TOML file, as `kiln eval` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<String>,
    /// Folder that the suite's paths are relative to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// Prompts of the suite's tasks, as `kiln eval --prompts` takes them: a paper's name, "model" or "none"; the model's
    /// own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<String>,
}

/// One set to evaluate on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationSet {
    /// Name for reports.
    pub name: String,
    /// BEIR folder (`corpus.jsonl`, `queries.jsonl`, `qrels/`), measured by nDCG@10; a file of scored
    /// pairs, measured by Spearman's correlation of the cosine; or `made-up:test`. Of a cross-encoder also a file of
    /// rows of a query, positives and negatives, which it ranks.
    pub path: String,
    /// Which qrels of a BEIR folder.
    #[serde(default = "dev")]
    pub split: String,
    /// Use only the first queries or pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Of a cross-encoder: how many of the texts that BM25 finds best it ranks anew, 100 where absent; a BEIR folder
    /// with `top_ranked` says itself which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidates: Option<usize>,
}

fn yes() -> bool {
    true
}
fn dev() -> String {
    "dev".into()
}

impl Recipe {
    /// Reads a recipe file, or a shipped recipe by name, with `key=value` changes.
    ///
    /// # Errors
    /// Unreadable, not TOML, an unknown field (with the nearest known name), or values that make
    /// no sense.
    #[cfg(feature = "files")]
    pub fn read(file_or_name: &str, changes: &[String]) -> Result<Self> {
        if let Some(shipped) = shipped(file_or_name) {
            return Self::parse_with(shipped.text, changes)
                .with_context(|| format!("recipe {file_or_name}"));
        }
        let path = Path::new(file_or_name);
        let text = match read_small(path) {
            Ok(text) => text,
            Err(error) if is_missing(&error) => {
                let known = SHIPPED.iter().map(|recipe| recipe.name);
                let hint = overrides::nearest(file_or_name, known)
                    .map(|name| format!("; did you mean the recipe {name}?"))
                    .unwrap_or_default();
                bail!(
                    "{file_or_name}: no such file, nor a recipe of that name{hint} \
                     (`kiln recipes` lists them)"
                );
            }
            Err(error) => return Err(error),
        };
        Self::parse_with(&text, changes).with_context(|| file_or_name.to_string())
    }

    /// Reads the text of a recipe.
    ///
    /// # Errors
    /// It is not TOML, has an unknown field (the nearest known one is named), or values that make no sense.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, &[])
    }

    /// Reads the text of a recipe and changes fields: `stage.1.lr=1e-4`.
    ///
    /// # Errors
    /// As [`Recipe::parse`], and changes that are no `key=value`.
    pub fn parse_with(text: &str, changes: &[String]) -> Result<Self> {
        let recipe: Self = if changes.is_empty() {
            toml::from_str(text).map_err(overrides::explain)?
        } else {
            let mut table: toml::Table = toml::from_str(text).map_err(overrides::explain)?;
            for change in changes {
                overrides::apply(&mut table, change).with_context(|| format!("--set {change}"))?;
            }
            let text = toml::to_string(&table)?;
            toml::from_str(&text)
                .map_err(overrides::explain)
                .with_context(|| format!("after --set {}", changes.join(" --set ")))?
        };
        recipe.check_sources()?;
        recipe.ordered()?.checked()
    }

    /// The recipe with its stages in the order that it asks for.
    fn ordered(mut self) -> Result<Self> {
        if self.order.is_empty() {
            return Ok(self);
        }
        let unread: Vec<String> = self.unread_sources().into_iter().map(String::from).collect();
        let mut stages = Vec::new();
        for name in &self.order {
            let stage = self.stages.iter().find(|stage| stage.name == *name);
            let known = || self.stages.iter().map(|stage| stage.name.as_str()).collect::<Vec<_>>();
            stages.push(
                stage
                    .with_context(|| {
                        format!("order names {name:?}; the stages are {}", known().join(", "))
                    })?
                    .clone(),
            );
        }
        self.stages = stages;
        self.order.clear();
        // Or the recipe, written down again, would be refused for what served the other stages.
        self.forget_unused(|name| unread.iter().any(|one| one == name));
        Ok(self)
    }

    /// Names of `[sources]` that stand in no stage's data.
    pub fn unread_sources(&self) -> Vec<&str> {
        let names = self.sources.keys().map(String::as_str);
        names.filter(|name| self.uses_of(name).is_none()).collect()
    }

    /// What the stages make together of a named source; `None` where none reads it.
    fn uses_of(&self, name: &str) -> Option<Uses> {
        let reads = |entry: &DataRef| matches!(entry, DataRef::Named(one) if one == name);
        let readers = self.stages.iter().filter(|stage| stage.data.iter().any(reads));
        readers.map(Stage::uses).reduce(Uses::or)
    }

    /// Refuses fields of a named source that say nothing to any stage that reads it.
    fn check_sources(&self) -> Result<()> {
        for (name, source) in &self.sources {
            if let Some(uses) = self.uses_of(name)
                && let unused @ [_, ..] = source.unused(uses).as_slice()
            {
                bail!(
                    "sources.{name}: no stage that reads it uses {}; leave it out",
                    unused.join(" nor ")
                );
            }
        }
        Ok(())
    }

    /// Leaves out the fields of named sources that no stage uses, and the sources that none reads, but for those to
    /// `keep`.
    fn forget_unused(&mut self, keep: impl Fn(&str) -> bool) {
        let sources = std::mem::take(&mut self.sources).into_iter();
        self.sources = sources
            .filter_map(|(name, mut source)| {
                match self.uses_of(&name) {
                    Some(uses) => source.forget_unused(uses),
                    None if keep(&name) => {}
                    None => return None,
                }
                Some((name, source))
            })
            .collect();
    }

    /// The recipe to compare with one that was saved, perhaps by an older version: with `labels` of every source, and
    /// without what no stage uses.
    pub fn comparable(&self) -> Self {
        let mut recipe = self.clone();
        recipe.forget_unused(|_| false);
        let entries = recipe.stages.iter_mut().flat_map(|stage| stage.data.iter_mut());
        let inline = entries.filter_map(|entry| match entry {
            DataRef::Named(_) => None,
            DataRef::Inline(source) => Some(source.as_mut()),
        });
        for source in recipe.sources.values_mut().chain(inline) {
            source.labels = Some(source.labels.unwrap_or_default());
        }
        recipe
    }

    /// Whether a cross-encoder is trained, and no embedder.
    pub fn reranks(&self) -> bool {
        self.stages.first().is_some_and(|stage| stage.objective == Objective::Rerank)
    }

    /// Refuses what says something of vectors, where a cross-encoder is trained.
    fn check_reranker(&self) -> Result<()> {
        let other = self
            .stages
            .iter()
            .find(|stage| (stage.objective == Objective::Rerank) != self.reranks());
        if let Some(stage) = other {
            bail!(
                "stage {:?}: objective = {:?} trains another kind of model than stage {:?}, whose objective is {:?}; \
                 make two recipes",
                stage.name,
                stage.objective.name(),
                self.stages[0].name,
                self.stages[0].objective.name()
            );
        }
        if !self.reranks() {
            return Ok(());
        }
        let model = &self.model;
        let text = [model.add_bos.is_some(), model.add_eos.is_some(), model.text_suffix.is_some()];
        let new = model.new.as_ref();
        for (key, given) in [
            ("model.pooling", model.pooling.is_some()),
            ("model.attention", model.attention.is_some()),
            ("model.add_bos, add_eos or text_suffix", text.contains(&true)),
            ("model.padding_side", model.padding_side.is_some()),
            ("model.instruction", model.instruction.is_some()),
            ("model.instruction_format", model.instruction_format.is_some()),
            ("model.prompts", !model.prompts.is_empty()),
            ("model.new.kv_heads", new.is_some_and(|new| new.kv_heads.is_some())),
            ("model.new.dimensions", new.is_some_and(|new| new.dimensions.is_some())),
            ("model.new.tokenizer", new.is_some_and(|new| new.tokenizer.is_some())),
            ("model.new.word_vectors", new.is_some_and(|new| new.word_vectors.is_some())),
        ] {
            if given {
                bail!(
                    "{key} is an embedder's, and objective = \"rerank\" trains a cross-encoder; leave it out"
                );
            }
        }
        for entry in self.stages.iter().flat_map(|stage| &stage.data) {
            let source = self.source(entry);
            let prompts = source.query_prompt.is_some() || source.document_prompt.is_some();
            if prompts || source.symmetric || !source.instructions.is_empty() {
                bail!(
                    "{}: a cross-encoder reads a query and a text without prompts; leave query_prompt, document_prompt, \
                     instructions and symmetric out",
                    source.path
                );
            }
        }
        Ok(())
    }

    /// Refuses what would train, or change, weights that stay packed.
    fn check_frozen_weights(&self) -> Result<()> {
        let Some(scheme) = self.model.frozen_weights else {
            return Ok(());
        };
        if !matches!(scheme.number, Number::Int8 | Number::Int4) {
            bail!("model.frozen_weights is {scheme}; weights stay packed in int8 and int4");
        }
        if self.model.lora.is_none() || self.model.base.is_none() {
            bail!(
                "model.frozen_weights packs a base beside adapters, and without model.base and model.lora nothing is frozen; \
                 leave it out"
            );
        }
        if self.model.keep_zeros {
            bail!(
                "model.keep_zeros needs the base's weights as they are; leave model.frozen_weights out"
            );
        }
        if self.compute.precision == ComputeDtype::F16 {
            bail!("beside model.frozen_weights compute.precision is \"f32\" or \"bf16\"");
        }
        for stage in &self.stages {
            let changed = [
                (stage.full, "full = true trains all weights"),
                (stage.merge_lora, "merge_lora changes weights"),
                (stage.objective.writes_tokens(), "its objective writes tokens by a whole table"),
                (
                    stage.objective == Objective::Rerank,
                    "a cross-encoder is trained in floating point",
                ),
            ];
            if let Some((_, what)) = changed.iter().find(|(given, _)| *given) {
                bail!(
                    "stage {:?}: {what}, and model.frozen_weights keeps the base in {scheme}; leave one of the two out",
                    stage.name
                );
            }
        }
        Ok(())
    }

    /// The source that a stage's entry means, with its name.
    pub fn source(&self, entry: &DataRef) -> DataSource {
        match entry {
            DataRef::Named(name) => match self.sources.get(name) {
                Some(source) => DataSource {
                    name: Some(source.name.clone().unwrap_or_else(|| name.clone())),
                    ..source.clone()
                },
                None => DataSource::file(name),
            },
            DataRef::Inline(source) => (**source).clone(),
        }
    }

    fn checked(self) -> Result<Self> {
        match (&self.model.base, &self.model.new) {
            (Some(_), None) => {}
            (None, Some(new)) => {
                if self.model.keep_zeros {
                    bail!("model.keep_zeros is for a pruned base model; a new one has no zeros");
                }
                if self.model.keep_blocks.is_some() {
                    bail!("model.keep_blocks chooses from a base model's blocks; use model.base");
                }
                if new.dimensions == Some(0) {
                    bail!("model.new.dimensions must be at least 1");
                }
                if new.tokenizer.is_none() && new.vocab_size < 300 {
                    bail!(
                        "model.new.vocab_size is {}, below the 256 bytes and special tokens",
                        new.vocab_size
                    );
                }
                if self.model.lora.is_some() && !self.stages.first().is_some_and(|stage| stage.full)
                {
                    bail!(
                        "model.lora with model.new would leave random weights frozen; \
                         remove one, or make the first stage full"
                    );
                }
            }
            _ => bail!("the model needs either base or new"),
        }
        if let Some(pooling) = &self.model.pooling {
            pooling.check()?;
            if let unused @ [_, ..] = pooling.unused().as_slice() {
                bail!(
                    "model.pooling: mode = {:?} does not use {}; leave it out",
                    pooling.name(),
                    unused.join(" nor ")
                );
            }
        }
        if let Some(format) = &self.model.instruction_format {
            source::check_instruction_format(format)?;
        }
        if self.model.adapters_alone && (self.model.lora.is_none() || !self.model.train.is_empty())
        {
            bail!("model.adapters_alone needs model.lora, and goes without model.train");
        }
        if self.model.lora.is_none() && !self.model.train.is_empty() {
            bail!(
                "model.train names what trains beside adapters, and without model.lora everything trains; leave it out"
            );
        }
        if let Some(lora) = &self.model.lora
            && (lora.rank == 0 || !(0.0..1.0).contains(&lora.dropout))
        {
            bail!("model.lora: rank must be at least 1, and dropout at least 0 and below 1");
        }
        if self.compute.chunk == Some(0) {
            bail!("compute.chunk must be at least 1");
        }
        if self.filter.bm25_share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            bail!("filter.bm25_share must be above 0 and at most 1");
        }
        if self.filter.bm25_share.is_some() && self.filter.evaluation_texts.is_empty() {
            bail!(
                "filter.bm25_share keeps evaluation texts out, and there are none; name their files in \
                 filter.evaluation_texts, or leave it out"
            );
        }
        if let Some(eval) = &self.eval {
            let names: Vec<&str> = eval.sets.iter().map(|set| set.name.as_str()).collect();
            if names.is_empty() && eval.suite.is_none() {
                bail!("eval has no [[eval.set]] and no suite");
            }
            if eval.data.is_some() && eval.suite.is_none() {
                bail!("eval.data is the folder of a suite's tasks; name eval.suite");
            }
            if eval.prompts.is_some() && (eval.suite.is_none() || self.reranks()) {
                bail!(
                    "eval.prompts are those that an embedder gets for a suite's tasks; name eval.suite, or leave it out"
                );
            }
            for (i, set) in eval.sets.iter().enumerate() {
                if set.limit == Some(0) || set.candidates == Some(0) {
                    bail!("eval.set {:?}: limit and candidates must be at least 1", set.name);
                }
                if set.candidates.is_some() && !self.reranks() {
                    bail!(
                        "eval.set {:?}: candidates are what a cross-encoder ranks anew, and no stage has objective = \
                         \"rerank\"; leave it out",
                        set.name
                    );
                }
                if names[..i].contains(&set.name.as_str()) {
                    bail!("eval has two sets of the name {:?}", set.name);
                }
            }
            // Which tasks a suite has is known once it is read.
            if let Some(best) = &eval.best
                && eval.suite.is_none()
                && !names.contains(&best.as_str())
            {
                bail!("eval.best is {best:?}; the sets are {}", names.join(", "));
            }
        }
        if self.stages.is_empty() {
            bail!("the recipe has no [[stage]]");
        }
        self.check_reranker()?;
        self.check_frozen_weights()?;
        if let Some(first) = self.stages.first() {
            for (key, given) in
                [("keep_optimizer", first.keep_optimizer), ("merge_lora", first.merge_lora)]
            {
                if given {
                    bail!(
                        "stage {:?}: {key} goes on from the stage before, and this is the first; leave it out",
                        first.name
                    );
                }
            }
        }
        for (before, stage) in self.stages.iter().zip(self.stages.iter().skip(1)) {
            if stage.keep_optimizer && stage.optimizer != before.optimizer {
                bail!(
                    "stage {:?}: keep_optimizer goes on with the {} of stage {:?}, not with {}; \
                     name the same optimizer, or leave keep_optimizer out",
                    stage.name,
                    before.optimizer.name(),
                    before.name,
                    stage.optimizer.name()
                );
            }
            if stage.keep_optimizer && stage.weight_decay != before.weight_decay {
                bail!(
                    "stage {:?}: keep_optimizer goes on with the weight_decay of stage {:?}, {}, not with {}; name the \
                     same, or leave keep_optimizer out",
                    stage.name,
                    before.name,
                    before.weight_decay,
                    stage.weight_decay
                );
            }
        }
        if let Some(stage) = self.stages.iter().find(|stage| stage.merge_lora)
            && self.model.lora.is_none()
        {
            bail!("stage {:?}: merge_lora needs model.lora", stage.name);
        }
        for stage in &self.stages {
            stage.check().with_context(|| format!("stage {:?}", stage.name))?;
            let mixes =
                |entry: &DataRef| self.source(entry).in_batch.unwrap_or(stage.loss.in_batch);
            if stage.objective == Objective::Contrastive
                && !stage.data.iter().any(mixes)
                && let unused @ [_, ..] = stage.unused_without_in_batch().as_slice()
            {
                bail!(
                    "stage {:?}: without in-batch negatives nothing uses {}; leave it out, or set in_batch = true",
                    stage.name,
                    unused.join(" nor ")
                );
            }
            let layers = stage.distillation.as_ref().map(|from| &from.layers);
            if self.compute.checkpoint_blocks && layers.is_some_and(|map| *map != LayerMap::None) {
                bail!(
                    "stage {:?}: compute.checkpoint_blocks forgets the hidden states that distillation.layers compares; use compute.grad_cache",
                    stage.name
                );
            }
            for entry in &stage.data {
                let source = self.source(entry);
                source.check().with_context(|| format!("stage {:?}, data", stage.name))?;
                if let DataRef::Inline(own) = entry
                    && let unused @ [_, ..] = own.unused(stage.uses()).as_slice()
                {
                    bail!(
                        "stage {:?}, {}: objective = {:?} does not use {}; leave it out",
                        stage.name,
                        own.path,
                        stage.objective.name(),
                        unused.join(" nor ")
                    );
                }
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECIPE: &str = r#"
        name = "r"
        [model]
        base = "dir"
        [sources.web]
        path = "web.jsonl"
        [[stage]]
        name = "one"
        data = ["a.jsonl", "web", { path = "b.csv", in_batch = false }]
        steps = 10
        batch_size = 4
        lr = 1e-3
        warmup = 2
        [[stage]]
        name = "two"
        data = ["web"]
        steps = 3
        batch_size = 4
        lr = 1e-4
    "#;

    fn error(text: &str, changes: &[&str]) -> String {
        let changes: Vec<String> = changes.iter().map(|change| change.to_string()).collect();
        format!("{:#}", Recipe::parse_with(text, &changes).unwrap_err())
    }

    #[test]
    fn data_are_files_names_or_tables() {
        let recipe = Recipe::parse(RECIPE).unwrap();
        let sources: Vec<DataSource> =
            recipe.stages[0].data.iter().map(|entry| recipe.source(entry)).collect();
        assert_eq!(sources[0].path, "a.jsonl");
        assert_eq!(
            (sources[1].path.as_str(), sources[1].name.as_deref()),
            ("web.jsonl", Some("web"))
        );
        assert_eq!((sources[2].path.as_str(), sources[2].in_batch), ("b.csv", Some(false)));
    }

    #[test]
    fn fields_can_be_set() {
        let set = |changes: &[&str]| {
            let changes: Vec<String> = changes.iter().map(|change| change.to_string()).collect();
            Recipe::parse_with(RECIPE, &changes).unwrap()
        };
        assert_eq!(set(&["stage.1.lr=5e-5"]).stages[0].lr, 5e-5);
        assert_eq!(set(&["stage.two.steps=7"]).stages[1].steps, 7);
        assert_eq!(set(&["model.base=other/dir"]).model.base.as_deref(), Some("other/dir"));
        assert!(!set(&["stage.1.loss.in_batch=false"]).stages[0].loss.in_batch);
        assert_eq!(
            set(&["model.pooling={ mode = 'mean' }"]).model.pooling,
            Some(PoolingConfig::Mean)
        );
        let reversed = set(&["order=['two', 'one']"]);
        assert_eq!(reversed.stages.iter().map(|stage| stage.steps).collect::<Vec<_>>(), [3, 10]);
    }

    #[test]
    fn unknown_fields_are_errors_with_the_nearest_name() {
        let wrong = error(&RECIPE.replace("warmup", "warm_up"), &[]);
        assert!(wrong.contains("warm_up") && wrong.contains("did you mean `warmup`"), "{wrong}");
        let wrong = error(RECIPE, &["stage.1.bach_size=3"]);
        assert!(wrong.contains("did you mean `batch_size`"), "{wrong}");
        let wrong = error(RECIPE, &["stage.1.curriculum='coarse_to_fin'"]);
        assert!(wrong.contains("did you mean `coarse_to_fine`"), "{wrong}");
        let wrong = error(RECIPE, &["stage.9.lr=1"]);
        assert!(wrong.contains("stage.9"), "{wrong}");
        assert!(error(RECIPE, &["lr"]).contains("key=value"));
        let wrong = error(RECIPE, &["stage.1.data=[{ pth = 'x' }]"]);
        assert!(wrong.contains("did you mean `path`"), "{wrong}");
    }

    #[test]
    fn a_cross_encoder_takes_nothing_of_an_embedder() {
        let one = RECIPE.replace(", { path = \"b.csv\", in_batch = false }", "");
        let one = one.replace("warmup = 2", "objective = \"rerank\"");
        let both = one.replace("lr = 1e-4", "lr = 1e-4\nobjective = \"rerank\"");
        assert!(Recipe::parse(&both).unwrap().reranks());
        assert!(error(&one, &[]).contains("another kind of model"));
        for (change, part) in [
            ("model.pooling={ mode = 'mean' }", "model.pooling"),
            ("model.add_eos=true", "add_eos"),
            ("model.prompts={ query = 'q: ' }", "model.prompts"),
            ("sources.web.query_prompt='q: '", "web.jsonl: a cross-encoder"),
            ("stage.1.data=[{ path = 'x', symmetric = true }]", "symmetric"),
        ] {
            let said = error(&both, &[change]);
            assert!(said.contains(part), "{change}: {said}");
        }
        let set = "eval={ set = [{ name = 's', path = 'p', candidates = 5 }] }";
        assert!(error(RECIPE, &[set]).contains("candidates"));
        let set = "eval={ prompts = 'mgh', set = [{ name = 's', path = 'p' }] }";
        assert!(error(RECIPE, &[set]).contains("eval.prompts"));
    }

    #[test]
    fn what_says_nothing_is_refused() {
        let source = |more: &str| format!("stage.1.data=[{{ path = 'x', {more} }}]");
        let pool = |mode: &str, more: &str| format!("model.pooling={{ mode = '{mode}', {more} }}");
        let objective = |name: &str| format!("stage.1.objective='{name}'");
        let alone = "stage.1.loss.in_batch=false".to_string();
        let rewrite = objective("reconstruction");
        let teacher = "stage.1.distillation={ teacher = 't' }".to_string();
        let all = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        for (changes, part) in [
            // Without in-batch negatives; the source decides where it says something.
            (
                vec![
                    alone.clone(),
                    source("name = 'y'"),
                    "stage.1.loss.both_directions=true".into(),
                ],
                "uses loss.both_directions",
            ),
            (
                vec![
                    alone.clone(),
                    source("name = 'y'"),
                    "stage.1.loss.cross_negatives=false".into(),
                ],
                "uses loss.cross_negatives",
            ),
            (
                vec![source("in_batch = false"), "stage.1.loss.false_negative_margin=0.1".into()],
                "uses loss.false_negative_margin",
            ),
            (
                vec![
                    source("in_batch = false"),
                    "stage.1.distillation={ teacher = 't', guide = 0.1, contrast_anchors = true }"
                        .into(),
                ],
                "uses distillation.contrast_anchors",
            ),
            (
                vec![
                    source("in_batch = false"),
                    "stage.1.distillation={ teacher = 't', guide = 0.1, contrast_positives = true }"
                        .into(),
                ],
                "uses distillation.contrast_positives",
            ),
            // Sources.
            (vec![objective("similarity"), source("threshold = 3.0")], "not use threshold"),
            (vec![objective("similarity"), source("in_batch = true")], "not use in_batch"),
            (vec![rewrite.clone(), source("in_batch = false")], "not use in_batch"),
            (vec![rewrite.clone(), source("instructions = ['a']")], "not use instructions"),
            (vec![rewrite.clone(), source("query_prompt = 'a'")], "not use query_prompt"),
            (vec![rewrite.clone(), source("symmetric = true")], "not use symmetric"),
            (
                vec![
                    rewrite.clone(),
                    objective("reconstruction").replace('1', "2"),
                    "sources.web={ path = 'web.jsonl', instructions = ['a'], in_batch = false }"
                        .into(),
                ],
                "sources.web: no stage that reads it uses instructions nor in_batch;",
            ),
            (
                vec![objective("distillation"), teacher.clone(), source("in_batch = false")],
                "not use in_batch",
            ),
            // Stages.
            (
                all(&["stage.1.hard_negatives=0", "stage.1.curriculum='coarse_to_fine'"]),
                "hard_negatives = 0 takes none",
            ),
            (
                all(&["stage.1.hard_negatives=0", "stage.1.curriculum='sampled'"]),
                "hard_negatives = 0",
            ),
            (
                all(&["stage.2.keep_optimizer=true", "stage.2.weight_decay=0.1"]),
                "weight_decay of stage",
            ),
            (all(&["stage.1.keep_optimizer=true"]), "keep_optimizer goes on from"),
            (all(&["stage.1.merge_lora=true"]), "merge_lora goes on from"),
            (
                vec![teacher.clone(), "stage.1.distillation.alpha=0.0".into()],
                "distillation.alpha is 0",
            ),
            (
                vec![
                    teacher,
                    "stage.1.distillation.query_prompt='a'".into(),
                    "stage.1.distillation.query_prompt_name='b'".into(),
                ],
                "query_prompt_name both",
            ),
            // Heads and filters.
            (vec![pool("self_attention", "latents = 8")], "not use latents"),
            (vec![pool("self_attention", "latent_size = 8")], "not use latent_size"),
            (vec![pool("latent_attention", "latent_size = 8")], "not use latent_size"),
            (vec![pool("last_layer_trainable", "layer_std = 1.0")], "not use layer_std"),
            (all(&["filter.bm25_share=0.8"]), "filter.evaluation_texts"),
        ] {
            let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
            let said = error(RECIPE, &changes);
            assert!(said.contains(part) && !said.contains('\n'), "{changes:?}: {said}");
        }
    }

    #[test]
    fn what_stays_packed_is_neither_trained_nor_changed() {
        let lora = "model.lora={ rank = 4, alpha = 8.0 }";
        let packed = "model.frozen_weights='int4:64'";
        let recipe = |changes: &[&str]| {
            let changes: Vec<String> = changes.iter().map(|change| change.to_string()).collect();
            Recipe::parse_with(RECIPE, &changes)
        };
        let read = recipe(&[lora, packed]).unwrap();
        assert_eq!(read.model.frozen_weights.unwrap().to_string(), "int4:64");
        assert_eq!(Recipe::parse(&toml::to_string(&read).unwrap()).unwrap(), read);
        for (changes, part) in [
            (&[packed][..], "without model.base and model.lora"),
            (&[lora, "model.frozen_weights='fp8-e4m3'"], "int8 and int4"),
            (&[lora, packed, "model.keep_zeros=true"], "keep_zeros"),
            (&[lora, packed, "compute.precision='f16'"], "compute.precision"),
            (&[lora, packed, "stage.2.full=true"], "stage \"two\": full = true"),
            (&[lora, packed, "stage.2.merge_lora=true"], "stage \"two\": merge_lora"),
            (&[lora, packed, "stage.2.objective='mntp'"], "writes tokens"),
        ] {
            let said = error(RECIPE, changes);
            assert!(said.contains(part) && !said.contains('\n'), "{changes:?}: {said}");
        }
    }

    #[test]
    fn what_says_something_is_taken() {
        let recipe =
            RECIPE.replace("base = \"dir\"", "base = \"dir\"\nlora = { rank = 4, alpha = 8.0 }");
        for changes in [
            // One of the sources takes in-batch negatives.
            &[
                "stage.1.loss.in_batch=false",
                "stage.1.loss.both_directions=true",
                "sources.web.in_batch=true",
            ][..],
            &[
                "stage.1.objective='reconstruction'",
                "stage.1.reconstruction.instructions=true",
                "stage.1.data=[{ path = 'x', instructions = ['a'] }]",
            ],
            // A named source may serve other stages.
            &["stage.2.objective='reconstruction'", "sources.web.instructions=['a']"],
            &["stage.2.keep_optimizer=true"],
            &["stage.2.merge_lora=true"],
            &["stage.1.distillation={ teacher = 't', alpha = 0.0, guide = 0.1 }"],
            &[
                "model.pooling={ mode = 'multi_layer_trainable', latents = 8, latent_size = 8, layer_std = 1.0 }",
            ],
            &["filter={ bm25_share = 0.8, evaluation_texts = ['e.txt'] }"],
        ] {
            let changes: Vec<String> = changes.iter().map(|change| change.to_string()).collect();
            if let Err(error) = Recipe::parse_with(&recipe, &changes) {
                panic!("{changes:?}: {error:#}");
            }
        }
    }

    #[test]
    fn an_order_leaves_out_what_served_other_stages() {
        let changes = |order: &str| {
            [
                "stage.1.objective='reconstruction'",
                "stage.1.data=['web']",
                "sources.web.instructions=['a']",
                "sources.other={ path = 'other.jsonl', in_batch = true }",
                "sources.idle={ path = 'idle.jsonl', in_batch = true }",
                "stage.2.data=['web', 'other']",
                order,
            ]
            .map(String::from)
        };
        let both = Recipe::parse_with(RECIPE, &changes("order=['two', 'one']")).unwrap();
        assert_eq!(both.sources.len(), 3);
        assert_eq!(both.unread_sources(), ["idle"]);
        let first = Recipe::parse_with(RECIPE, &changes("order=['one']")).unwrap();
        assert_eq!(first.sources.keys().collect::<Vec<_>>(), ["idle", "web"]);
        assert!(first.sources["web"].instructions.is_empty());
        let again = Recipe::parse(&toml::to_string(&first).unwrap()).unwrap();
        assert_eq!(again, first);
    }

    #[test]
    fn a_saved_recipe_compares_by_what_its_stages_use() {
        let now = Recipe::parse(RECIPE).unwrap();
        let mut saved = now.clone();
        saved.sources.insert("other".into(), DataSource::file("other.jsonl"));
        saved.sources.get_mut("web").unwrap().labels = Some(Labels::Examples);
        let DataRef::Inline(inline) = &mut saved.stages[0].data[2] else { panic!() };
        inline.labels = Some(Labels::Examples);
        assert_ne!(saved, now);
        assert_eq!(saved.comparable(), now.comparable());
        saved.sources.get_mut("web").unwrap().labels = Some(Labels::Names);
        assert_ne!(saved.comparable(), now.comparable());
    }

    #[test]
    fn nonsense_is_refused() {
        for (from, to) in [
            ("steps = 10", "steps = 0"),
            ("lr = 1e-3", "lr = nan"),
            ("base = \"dir\"", ""),
            ("lr = 1e-3", "lr = 1e-3\nhard_negatives = 0\nloss = { in_batch = false }"),
            ("name = \"r\"", "name = \"r\"\norder = [\"three\"]"),
            ("lr = 1e-4", "lr = 1e-4\noptimizer = \"sgd\"\nkeep_optimizer = true"),
        ] {
            assert!(Recipe::parse(&RECIPE.replace(from, to)).is_err(), "{to}");
        }
    }
}

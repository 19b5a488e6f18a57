//! What a recipe would do: resolved fields, parameters, memory, samples.

use std::path::Path;

use anyhow::{Result, bail};
use kiln_embed::config::{Architecture, Gate, ModelConfig};
use kiln_embed::embedder::{EmbedderConfig, EmbeddingModel};
use kiln_embed::kernels::{INNER_AT_ONCE, SCORES_AT_ONCE};
use kiln_embed::model::{Backbone, LoraConfig};
use kiln_embed::pooling::{Dense, FeedForwardKind, Pooling, PoolingConfig};
use kiln_embed::reranker::{ScoreHead, reranker_shape};
use kiln_embed::train::{CPU_CHUNK_TOKENS, TrainModel, sizes, state_bytes};
use serde::Serialize;

use super::build::{projection, stored_in_bf16};
use super::{Inputs, TrainedShape, new_config, new_encoder_config, new_encoder_value};
use crate::data::{Counts, OnBadRow};
use crate::device::Cpu;
use crate::model::{embedder_config, reranker_config};
use crate::recipe::{ComputeDtype, ModelRecipe, NewModel, Objective, Recipe, Stage};
use crate::terminal::{Terminal, counted, thousands};

/// A recipe, looked at without training.
#[derive(Debug, Clone, Serialize)]
pub struct DryRun {
    /// The recipe with every default filled in.
    pub recipe: Recipe,
    /// Whose memory is estimated.
    pub place: MemoryPlace,
    /// Each stage's numbers.
    pub stages: Vec<DryStage>,
    /// Why the data could not be read, where it could not.
    pub data_error: Option<String>,
}

/// A stage, looked at without training.
#[derive(Debug, Clone, Serialize)]
pub struct DryStage {
    /// Its name.
    pub name: String,
    /// Optimizer steps.
    pub steps: usize,
    /// Queries that it sees.
    pub samples: usize,
    /// Parameters that train.
    pub trained: usize,
    /// Parameters that are frozen.
    pub frozen: usize,
    /// Estimated bytes: weights, gradients and optimizer states, activations.
    pub memory: Memory,
    /// The same where all parameters train, if adapters were trained in their place.
    pub with_adapters: Option<Memory>,
    /// The same on each of several devices that train together.
    pub by_ranks: Vec<RankMemory>,
    /// What to change where this machine has less main memory free, or usual GPUs have less.
    pub warning: Option<String>,
    /// Each data set and what became of its rows.
    pub data: Vec<(String, Counts)>,
}

/// Estimated bytes of one of several devices that train together.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RankMemory {
    /// How many there are.
    pub ranks: usize,
    /// Where each keeps the whole state of the optimizer.
    pub replicated: Memory,
    /// With `compute.shard_optimizer`.
    pub sharded: Memory,
}

/// Estimated bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Memory {
    /// Weights, with the copy that a lower precision computes with.
    pub weights: usize,
    /// Gradients and optimizer state of the trained parameters, f32.
    pub training: usize,
    /// Activations that are kept for the gradient, texts at their longest.
    pub activations: usize,
}

type B = burn::backend::Autodiff<Cpu>;

impl DryRun {
    /// Looks at a recipe. The weights are never drawn or read.
    ///
    /// # Errors
    /// A base model whose config cannot be read, or adapters that fit no projection.
    pub fn new(
        recipe: &Recipe,
        folder: &Path,
        on_bad_row: OnBadRow,
        place: MemoryPlace,
        terminal: Terminal,
    ) -> Result<Self> {
        let shape: TrainedShape = match (&recipe.model.base, &recipe.model.new) {
            (Some(base), _) if recipe.reranks() => {
                let mut base = reranker_config(base, terminal)?;
                if let Some(keep) = &recipe.model.keep_blocks {
                    base.config = base.config.keep_layers(keep)?;
                }
                base.into()
            }
            (None, Some(new)) if recipe.reranks() => {
                let value = new_encoder_value(new, &recipe.model);
                reranker_shape(&new_encoder_config(&value)?, &value)?.into()
            }
            (Some(base), _) => {
                let base = embedder_config(base, terminal)?;
                let config = match &recipe.model.keep_blocks {
                    Some(keep) => base.config.keep_layers(keep)?,
                    None => base.config,
                };
                let pooling = recipe.model.pooling.clone().unwrap_or(base.pooling);
                EmbedderConfig { config, pooling, dense: base.dense }.into()
            }
            (None, Some(new)) => {
                let pooling = recipe.model.pooling.clone().unwrap_or(PoolingConfig::Mean);
                let vocab_size = match &new.tokenizer {
                    Some(donor) => embedder_config(donor, terminal)?.config.vocab_size,
                    None => new.vocab_size,
                };
                let new = NewModel { vocab_size, ..new.clone() };
                let config = new_config(&new, &recipe.model)?;
                let dense = projection(&new, &config, &pooling).into_iter().collect();
                EmbedderConfig { config, pooling, dense }.into()
            }
            (None, None) => bail!("the model needs either base or new"),
        };
        let in_bf16 = recipe.compute.precision == ComputeDtype::Bf16
            && place == MemoryPlace::Gpu
            && !recipe.reranks()
            && has_bf16_weights(&recipe.model, &shape.embedder.config);
        // A recipe can be looked at before its data are there.
        let (inputs, data_error) = match Inputs::open(recipe, folder, on_bad_row, terminal) {
            Ok(inputs) => (Some(inputs), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let stages = recipe
            .stages
            .iter()
            .enumerate()
            .map(|(number, stage)| {
                // What was merged, or trained as a whole, is in f32 from then on.
                let before = &recipe.stages[..number];
                let changed =
                    stage.merge_lora || before.iter().any(|stage| stage.full || stage.merge_lora);
                let mut dry =
                    DryStage::new(recipe, stage, (&shape, in_bf16 && !changed), 1, place)?;
                let data = inputs.iter().flat_map(|inputs| &inputs.sets[number]);
                dry.data = data.map(|set| (set.name.clone(), set.counts.clone())).collect();
                Ok(dry)
            })
            .collect::<Result<_>>()?;
        Ok(Self { recipe: recipe.clone(), place, stages, data_error })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let mut lines = vec![toml::to_string(&self.recipe).unwrap_or_default()];
        for (stage, asked) in self.stages.iter().zip(&self.recipe.stages) {
            let gigabytes = |bytes: usize| format!("{:.2} GB", bytes as f64 / 1e9);
            let Memory { weights, training, activations } = stage.memory;
            lines.push(format!(
                "stage {}: {}, {}; {} parameters train, {} are frozen",
                stage.name,
                counted(stage.steps, "step", "steps"),
                counted(stage.samples, "query", "queries"),
                thousands(stage.trained),
                thousands(stage.frozen)
            ));
            lines.push(format!(
                "  memory, estimated: weights {}, gradients and optimizer {}, activations at most {}",
                gigabytes(weights),
                gigabytes(training),
                gigabytes(activations)
            ));
            let all = |of: fn(&RankMemory) -> Memory| {
                let each = stage.by_ranks.iter().map(|ranks| gigabytes(of(ranks).total()));
                each.collect::<Vec<_>>().join(", ")
            };
            let ranks: Vec<String> =
                stage.by_ranks.iter().map(|ranks| ranks.ranks.to_string()).collect();
            lines.push(format!(
                "  on each of {} ranks: in all {}; with compute.shard_optimizer {}",
                ranks.join(", "),
                all(|ranks| ranks.replicated),
                all(|ranks| ranks.sharded)
            ));
            lines.extend(stage.warning.iter().map(|line| format!("  {line}")));
            let weights: Vec<f64> = stage
                .data
                .iter()
                .zip(&asked.data)
                .map(|((_, counts), entry)| {
                    let own = self.recipe.source(entry).weight;
                    own.unwrap_or_else(|| asked.mixing.share(counts.examples))
                })
                .collect();
            let all: f64 = weights.iter().sum();
            for ((name, counts), weight) in stage.data.iter().zip(&weights) {
                let part = weight / all;
                let epochs = part * stage.samples as f64 / counts.examples.max(1) as f64;
                let share = match &stage.data[..] {
                    [_] => format!(", {epochs:.2} epochs"),
                    _ => format!(", {:.2} % of the queries, {epochs:.2} epochs", 100.0 * part),
                };
                let left_out = counts.left_out();
                let left_out =
                    if left_out.is_empty() { left_out } else { format!("; left out {left_out}") };
                lines.push(format!(
                    "  data {name}: {}{share}{left_out}",
                    counted(counts.examples, "example", "examples")
                ));
            }
        }
        if self.place == MemoryPlace::Gpu {
            // Pools of cubecl 0.10 (memory_management/memory_manage.rs), as its CUDA runtime asks for them.
            lines.push(
                "memory of a CUDA GPU is taken in pages of 1/64, 1/16 and 1/4 of the card, and one of each may be nearly empty: \
                 up to a third of a card may be taken beyond these estimates"
                    .into(),
            );
        }
        if let Some(error) = &self.data_error {
            lines.push(format!("data: {error}"));
        }
        lines.join("\n")
    }
}

/// Whether the frozen weights of a recipe's base are in bf16, as far as is known without a download.
fn has_bf16_weights(
    ModelRecipe { base, keep_zeros, .. }: &ModelRecipe,
    config: &ModelConfig,
) -> bool {
    let Some(base) = base.as_deref().filter(|_| !keep_zeros) else {
        return false;
    };
    if Path::new(base).exists() {
        return stored_in_bf16(Path::new(base));
    }
    // As language models are released; adapters that are merged into one make weights that are no longer so.
    matches!(config.architecture, Architecture::Decoder(_)) && !base.contains('#')
}

impl Memory {
    /// All of it.
    pub fn total(&self) -> usize {
        self.weights + self.training + self.activations
    }
}

impl DryStage {
    /// All but its data, of one of so many devices.
    fn new(
        recipe: &Recipe,
        stage: &Stage,
        (shape, in_bf16): (&TrainedShape, bool),
        ranks: usize,
        place: MemoryPlace,
    ) -> Result<Self> {
        let own = recipe.model.lora.as_ref().filter(|_| !stage.full);
        let parameters_with = |lora| {
            let mut parameters = Parameters::new(&recipe.model, stage, shape, lora)?;
            if !in_bf16 {
                parameters.bf16_factors = 0;
            }
            Ok::<_, anyhow::Error>(parameters)
        };
        let parameters = parameters_with(own)?;
        let embedder = &shape.embedder;
        let memory_on = |parameters, ranks, shard_optimizer| {
            let ranks = Ranks { count: ranks, shard_optimizer };
            memory(recipe, stage, embedder, parameters, ranks, place)
        };
        let memory_of = |parameters| memory_on(parameters, ranks, recipe.compute.shard_optimizer);
        let usual =
            LoraConfig { rank: 16, alpha: 32.0, dropout: 0.1, targets: vec!["all-linear".into()] };
        let with_adapters = match own {
            Some(_) => None,
            None => {
                let lora = recipe.model.lora.as_ref().unwrap_or(&usual);
                Some(memory_of(parameters_with(Some(lora))?))
            }
        };
        let mut dry = Self {
            name: stage.name.clone(),
            steps: stage.steps,
            samples: stage.samples(),
            trained: parameters.trained,
            frozen: parameters.frozen,
            memory: memory_of(parameters),
            with_adapters,
            by_ranks: [2, 4, 8]
                .map(|ranks| {
                    let of = |shard| memory_on(parameters, ranks, shard);
                    RankMemory { ranks, replicated: of(false), sharded: of(true) }
                })
                .into(),
            warning: None,
            data: Vec::new(),
        };
        dry.warning = match place {
            MemoryPlace::Host => dry.too_much(free_memory()),
            MemoryPlace::Gpu => dry.too_much_for_cards(),
        };
        Ok(dry)
    }

    /// What to change where a machine has less free.
    fn too_much(&self, free: Option<usize>) -> Option<String> {
        let free = free.filter(|free| self.memory.total() > *free)?;
        let total = about(self.memory.total());
        let remedy = self.remedy(free);
        Some(format!("may need {total}, and {} of main memory are free: {remedy}", about(free)))
    }

    /// What to change where usual cards have less; which one there is is not asked.
    fn too_much_for_cards(&self) -> Option<String> {
        let total = self.memory.total();
        let small: Vec<usize> = CARDS.into_iter().filter(|card| total > card << 30).collect();
        let remedy = self.remedy(small.last()? << 30);
        let names: Vec<String> = small.iter().map(|card| format!("{card} GB")).collect();
        Some(format!(
            "may need {}, more than a GPU of {} has: {remedy}",
            about(total),
            names.join(" or of ")
        ))
    }

    /// What needs less than a stage that does not fit.
    fn remedy(&self, free: usize) -> String {
        let Memory { weights, training, .. } = self.memory;
        // Smaller batches do not help where the parameters alone do not fit.
        match self.with_adapters {
            Some(adapters) if weights + training > free => format!(
                "all parameters train, whose weights, gradients and optimizer take {}: train adapters (model.lora, and \
                 full = false), which takes {} in all, or a smaller base",
                about(weights + training),
                about(adapters.total())
            ),
            None if weights + training > free => "take a smaller base".into(),
            _ => "lower compute.chunk (with compute.grad_cache or compute.checkpoint_blocks = true), batch_size or \
                  max_length"
                .into(),
        }
    }
}

/// Bytes of main memory that are free; `None` where the system does not say.
fn free_memory() -> Option<usize> {
    let mut system = sysinfo::System::new();
    system.refresh_memory();
    Some(system.available_memory() as usize).filter(|free| *free > 0)
}

/// Memory of usual GPUs, in GiB: a desktop's and a server's.
const CARDS: [usize; 2] = [24, 80];

fn about(bytes: usize) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Says which stages may not fit into the main memory of one of so many hosts.
pub(super) fn warn_of_memory(
    recipe: &Recipe,
    shape: &TrainedShape,
    ranks: usize,
    terminal: Terminal,
) -> Result<()> {
    for stage in &recipe.stages {
        if let Some(line) =
            DryStage::new(recipe, stage, (shape, false), ranks, MemoryPlace::Host)?.warning
        {
            terminal.note(format!("stage {}: {line}", stage.name));
        }
    }
    Ok(())
}

/// How many values train, and how many do not.
#[derive(Clone, Copy, Default)]
struct Parameters {
    trained: usize,
    frozen: usize,
    /// Of those that do not train: the weights of products, which a GPU keeps in bf16 as the base's file has them.
    bf16_factors: usize,
    /// Of those that do not train: what stays packed (`model.frozen_weights`).
    packed: usize,
}

impl Parameters {
    /// Burn draws a parameter at its first use, so counting shapes needs no memory, whatever the model.
    fn new(
        recipe: &ModelRecipe,
        stage: &Stage,
        shape: &TrainedShape,
        lora: Option<&LoraConfig>,
    ) -> Result<Self> {
        let device = Default::default();
        let EmbedderConfig { config, pooling, dense } = &shape.embedder;
        let backbone = Backbone::<B>::zeros(config, &device);
        let mut counted = Self::default();
        if let Some(lora) = lora {
            counted.trained = backbone.lora_size(lora, config)?;
        }
        let model =
            EmbeddingModel::new(backbone, Pooling::unfilled(pooling, config, &device), config);
        let model = dense
            .iter()
            .fold(model, |model, projection| model.with_dense(Dense::new(projection, &device)));
        let score_head = shape.head.clone().map(|head| ScoreHead::unfilled(head, &device));
        let projections = Vec::new();
        let whole = TrainModel { model, lm_head: None, projections, score_head, answer: None };
        if has_own_head(recipe, stage, config) {
            let size = config.vocab_size * config.hidden_size;
            let of_it = if lora.is_none() { &mut counted.trained } else { &mut counted.frozen };
            *of_it += size;
        }
        for (path, size) in sizes(&whole) {
            let trains = lora.is_none()
                || !recipe.adapters_alone
                    && path
                        .split('.')
                        .any(|part| matches!(part, "pooling" | "dense" | "score_head"))
                || recipe.train.iter().any(|extra| path.contains(extra.as_str()));
            if trains {
                counted.trained += size;
                continue;
            }
            counted.frozen += size;
            if recipe.frozen_weights.is_some() {
                let is_matrix = path.contains(".backbone.") && path.ends_with(".weight");
                counted.packed += if is_matrix { size } else { 0 };
            } else if path.contains(".blocks.") && path.ends_with(".weight") {
                counted.bf16_factors += size;
            }
        }
        Ok(counted)
    }
}

/// Whether a stage writes tokens, or ranks, by a language-model head that is not the token embeddings.
fn has_own_head(recipe: &ModelRecipe, stage: &Stage, config: &ModelConfig) -> bool {
    let of_base =
        recipe.base.is_some() && config.decoder().is_ok_and(|decoder| !decoder.tie_word_embeddings);
    match stage.objective {
        Objective::Rerank => of_base,
        _ => stage.objective.writes_tokens() && stage.tied().map_or(of_base, |tied| !tied),
    }
}

/// Where a stage's tensors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlace {
    /// In main memory.
    Host,
    /// In a GPU's.
    Gpu,
}

/// How many devices train together, and whether they share out the optimizer's state.
#[derive(Clone, Copy)]
struct Ranks {
    count: usize,
    shard_optimizer: bool,
}

/// An estimate: what a block keeps for its gradient, and what its way back needs beside that.
fn memory(
    recipe: &Recipe,
    stage: &Stage,
    EmbedderConfig { config, pooling, .. }: &EmbedderConfig,
    Parameters { trained, frozen, bf16_factors, packed }: Parameters,
    ranks: Ranks,
    place: MemoryPlace,
) -> Memory {
    let lower = recipe.compute.precision != ComputeDtype::F32;
    // A GPU keeps the inputs of products in the recipe's numbers, and all else in f32; the CPU all in f32.
    let factor_bytes = if lower && place == MemoryPlace::Gpu { 2 } else { 4 };
    let longest = recipe.model.max_length.unwrap_or(config.max_positions).min(config.max_positions);
    let texts = match stage.objective {
        Objective::Contrastive | Objective::Distillation | Objective::Similarity => {
            stage.batch_size * (2 + stage.hard_negatives)
        }
        Objective::Rerank => {
            let more = stage.rerank.unwrap_or_default().num_negatives();
            stage.batch_size * (1 + stage.hard_negatives + more)
        }
        Objective::Reconstruction => stage.batch_size * 4,
        Objective::Mntp => stage.batch_size * 2,
    };
    let texts = texts.div_ceil(ranks.count);
    let cached = recipe.compute.grad_cache || recipe.compute.checkpoint_blocks;
    let chunk = match (recipe.compute.chunk, stage.objective) {
        // Texts that are read, and as many that are written from them.
        (Some(chunk), Objective::Reconstruction) if !recipe.compute.checkpoint_blocks => {
            Some(2 * chunk)
        }
        (None, _) if cached && place == MemoryPlace::Host => {
            Some((CPU_CHUNK_TOKENS / longest.max(1)).max(1))
        }
        (chunk, _) => chunk,
    };
    let texts_at_once = chunk.filter(|_| cached).map_or(texts, |chunk| chunk.min(texts));
    let rows = texts_at_once * longest;
    let (hidden, inner, heads) = (config.hidden_size, config.intermediate_size, config.num_heads);
    let row = (heads + 2 * config.num_kv_heads) * config.head_dim;
    let (gates, joined, norms_after) = match &config.architecture {
        Architecture::Decoder(_) => (1, false, 0),
        Architecture::Encoder(encoder) => {
            let gate = encoder.gate;
            (usize::from(gate != Gate::None), gate == Gate::Joined, usize::from(!encoder.pre_norm))
        }
    };
    let states = 4 * hidden;
    let block = match recipe.compute.precision {
        // Computed operation by operation: what autodiff keeps of a block.
        ComputeDtype::F16 => 2 * (14 * hidden + 3 * inner + 3 * heads * longest),
        // Both branches' inputs and sums; queries, keys, values, their context, and the feed-forward's inner states.
        ComputeDtype::F32 | ComputeDtype::Bf16 => {
            (2 + 2 * norms_after) * states
                + factor_bytes * (row + heads * config.head_dim + (1 + gates) * inner)
        }
    };
    let kept = match recipe.compute.checkpoint_blocks {
        // The inputs of checkpointed blocks, which pooling may need too.
        true => {
            let seen = pooling.forward_options().layers;
            block + config.num_layers * if seen { states } else { factor_bytes * hidden }
        }
        false => block * config.num_layers,
    };
    // Gradients of the inner states and of what they are made of, or the scores of attention and their gradients.
    // Adapters that drop out have inputs of their own there and back, beside their gradients in f32: a GPU makes all of them,
    // in the recipe's numbers.
    let adapters = recipe.model.lora.as_ref().filter(|_| !stage.full);
    let dropped = match (adapters.is_some_and(|lora| lora.dropout > 0.0), place) {
        (false, _) => 0,
        (true, MemoryPlace::Host) => 2 * 4,
        (true, MemoryPlace::Gpu) => 2 * 4 + 3 * factor_bytes,
    };
    // A GPU makes the inner states of some rows after others, but not in f16 (see `block`).
    let inner_rows = match place {
        MemoryPlace::Gpu if recipe.compute.precision != ComputeDtype::F16 => {
            rows.min((INNER_AT_ONCE / inner.max(1)).max(1))
        }
        _ => rows,
    };
    let rounds = place == MemoryPlace::Gpu && recipe.compute.precision == ComputeDtype::Bf16;
    let rounded = match recipe.model.frozen_weights {
        // One packed weight at a time becomes a factor.
        Some(_) => hidden * (inner * (1 + usize::from(joined))).max(row) * factor_bytes,
        // Weights of the feed-forward in f32 are rounded once for all of its rows.
        None if rounds && bf16_factors == 0 => (2 + gates) * hidden * inner * factor_bytes,
        None => 0,
    };
    let feed_forward = rounded
        + inner_rows * ((2 + gates) * 4 + factor_bytes + dropped) * inner
        + rows * 3 * states;
    let scores = match place {
        // A few rows of them at a time.
        MemoryPlace::Host => 0,
        MemoryPlace::Gpu => {
            (texts_at_once * heads * longest * longest).min(SCORES_AT_ONCE.max(heads * longest))
        }
    };
    let attention = 4 * 4 * scores + rows * (2 * 4 * row + 2 * states);
    let mut passing = feed_forward.max(attention);
    if stage.objective.writes_tokens() {
        // Of the tokens that are written the logits, the logarithms of their softmax and what leads back to their
        // gradient, in f32.
        let written = match stage.objective {
            Objective::Mntp => rows as f64 * stage.mntp.clone().unwrap_or_default().mask,
            // Of each second text.
            _ => rows as f64 / 2.0,
        };
        passing = passing.max(written as usize * 6 * config.vocab_size * size_of::<f32>());
    } else {
        passing = passing.max(pooling_bytes(pooling, config, texts_at_once, longest));
    }
    let whole = trained + frozen - packed;
    let in_words = recipe.model.frozen_weights.map_or(0, |scheme| {
        let scales = scheme.block.map_or(0, |block| packed / block);
        packed * scheme.number.bits() / 8 + scales * size_of::<f32>()
    });
    let weights = match (lower, place) {
        (false, _) => 4 * whole,
        // Beside f32 the copy with which products are computed.
        (true, MemoryPlace::Host) => 6 * whole,
        // What is in f32 is rounded where it is multiplied.
        (true, MemoryPlace::Gpu) if rounds => 4 * (whole - bf16_factors) + 2 * bf16_factors,
        (true, MemoryPlace::Gpu) => 6 * whole,
    };
    let weights = weights + in_words;
    // A chunk's beside the sum of the batch's before it, and that beside the batches' before it. Where the recipe does not say
    // how large chunks are, each of several ranks gets two or more (`DeviceGroup::chunk_size`). The sum over the ranks goes
    // bucket by bucket, when one gradient is left, and the new values of a shared optimizer come when none is.
    let fair = recipe.compute.chunk.is_none() && ranks.count > 1 && texts > 1;
    let in_chunks = fair || chunk.is_some_and(|chunk| chunk < texts);
    let gradients = 1 + usize::from(in_chunks) + usize::from(stage.accumulation > 1);
    let sharers = if ranks.shard_optimizer { ranks.count } else { 1 };
    Memory {
        weights,
        training: gradients * trained * size_of::<f32>()
            + (trained * state_bytes(stage.optimizer)).div_ceil(sharers),
        activations: rows * kept + passing,
    }
}

/// What a pooling head keeps of texts for its gradient, and what its way back needs beside that, in f32.
fn pooling_bytes(
    pooling: &PoolingConfig,
    config: &ModelConfig,
    texts: usize,
    longest: usize,
) -> usize {
    let hidden = config.hidden_size;
    let (block, queries, keys) = match pooling {
        PoolingConfig::SelfAttention(block) => (block, longest, longest),
        PoolingConfig::LatentAttention(block) => (block, longest, block.latents),
        PoolingConfig::LastLayerTrainable(block) => (block, block.latents, longest),
        PoolingConfig::MultiLayerTrainable(block) => (block, block.latents, config.num_layers),
        // The weights of attention, and what is between them and a token's score, there and back.
        PoolingConfig::Anchor { .. } => {
            return texts * 13 * 4 * config.num_heads * longest * longest;
        }
        PoolingConfig::Cls
        | PoolingConfig::LastToken
        | PoolingConfig::Mean
        | PoolingConfig::WeightedMean => return 0,
    };
    let width = pooling.output_size(hidden);
    let inner = block.heads * block.width_of_head(hidden);
    let by_keys = block.heads * keys;
    // Of four widths each.
    let fans = match block.feed_forward {
        FeedForwardKind::Geglu => 5,
        FeedForwardKind::Gelu => 2,
    };
    let folds = match pooling {
        PoolingConfig::SelfAttention(_) => false,
        // Of all texts' tokens, which see the same latents.
        PoolingConfig::LatentAttention(_) => block.folds(texts * queries, keys, width, hidden),
        _ => block.folds(queries, keys, width, hidden),
    };
    let of_query = 10 * width + 2 * by_keys + fans * 4 * width + if folds { 0 } else { 2 * inner };
    let of_keys = keys
        * match (pooling, folds) {
            // All texts have the same.
            (PoolingConfig::LatentAttention(_), true) => 0,
            // Values by the heads' outputs.
            (_, true) => 2 * inner + block.heads * width,
            (_, false) => 2 * inner,
        };
    let passing = (queries * 5 * 4 * width).max(queries * 3 * by_keys + of_keys);
    texts * 4 * (queries * of_query + of_keys + passing)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recipe of one stage that trains all of a new model.
    fn dry(of_stage: &str, of_compute: &str, place: MemoryPlace) -> DryRun {
        let recipe = Recipe::parse(&format!(
            "name = 'n'\n[model]\nmax_length = 24\npooling = {{ mode = 'mean' }}\n\
             [model.new]\nvocab_size = 320\nhidden_size = 32\nintermediate_size = 48\nlayers = 3\nheads = 4\nkv_heads = 2\n\
             [[stage]]\nname = 's'\ndata = ['none.jsonl']\nsteps = 1\nbatch_size = 16\nlr = 1e-3\n{of_stage}\n\
             [compute]\n{of_compute}\n"
        ))
        .unwrap();
        let quiet = Terminal { json: false, quiet: true };
        let folder = Path::new("no such folder");
        DryRun::new(&recipe, folder, OnBadRow::Stop, place, quiet).unwrap()
    }

    /// Its stage.
    fn stage(of_stage: &str, of_compute: &str) -> DryStage {
        dry(of_stage, of_compute, MemoryPlace::Host).stages.into_iter().next().unwrap()
    }

    #[test]
    fn estimates_of_a_gpu_say_what_its_pages_add() {
        let says = |place| dry("", "", place).to_text().contains("1/4 of the card");
        assert!(says(MemoryPlace::Gpu) && !says(MemoryPlace::Host));
    }

    #[test]
    fn a_machine_that_has_too_little_is_told_what_would_do() {
        let warning =
            |stage: &DryStage, free: usize| stage.too_much(Some(free)).unwrap_or_default();
        // All parameters train: weights, gradients and optimizer take 536,064 bytes, what is left are activations.
        let mut dry = stage("", "");
        let (all, fixed) = (dry.memory.total(), dry.memory.weights + dry.memory.training);
        assert_eq!((warning(&dry, all), dry.too_much(None)), (String::new(), None));
        let said = warning(&dry, all - 1);
        assert!(said.starts_with("may need 0.0 GB, and 0.0 GB of main memory are free:"), "{said}");
        assert!(said.contains("lower compute.chunk"), "{said}");
        assert!(warning(&dry, fixed).contains("lower compute.chunk"));
        let said = warning(&dry, fixed - 1);
        assert!(said.contains("train adapters (model.lora, and full = false)"), "{said}");
        // With adapters already, what is left is a smaller base.
        dry.with_adapters = None;
        assert!(warning(&dry, fixed - 1).ends_with("free: take a smaller base"));
        // Sizes of a base of 8 B.
        dry.memory = Memory { weights: 32 << 30, training: 96 << 30, activations: 1 << 30 };
        let said = warning(&dry, 64 << 30);
        assert!(
            said.starts_with("may need 138.5 GB, and 68.7 GB of main memory are free"),
            "{said}"
        );
    }

    #[test]
    fn usual_gpus_that_have_too_little_are_named() {
        let warning = |negatives: usize| {
            let dry = dry(&format!("hard_negatives = {negatives}"), "", MemoryPlace::Gpu);
            dry.stages[0].warning.clone().unwrap_or_default()
        };
        assert_eq!(warning(1), "");
        // 16 x 20,002 and 16 x 60,002 texts of 24 tokens, of 3,840 bytes each: 29 and 88 GB.
        let (one, both) = (warning(20_000), warning(60_000));
        assert!(one.contains("a GPU of 24 GB has: lower compute.chunk"), "{one}");
        assert!(both.contains("a GPU of 24 GB or of 80 GB has: lower"), "{both}");
    }

    #[test]
    fn a_gpu_holds_the_inner_states_of_some_tokens() {
        // More tokens than those whose inner states it holds: attention needs more. A row keeps 1,024 bytes in each of three
        // blocks, and passes 2 x 4 x 64 + 2 x 128 beside the scores.
        const NEGATIVES: usize = 60_000;
        const ROWS: usize = 16 * (2 + NEGATIVES) * 24;
        const { assert!(ROWS * 48 > 10 * INNER_AT_ONCE) };
        let of_stage = format!("hard_negatives = {NEGATIVES}");
        let activations = |place| dry(&of_stage, "", place).stages[0].memory.activations;
        assert_eq!(activations(MemoryPlace::Gpu), ROWS * (3 * 1_024 + 768) + 16 * SCORES_AT_ONCE);
        // 16 x 48 + 3 x 128.
        assert_eq!(activations(MemoryPlace::Host), ROWS * (3 * 1_024 + 1_152));
    }

    #[test]
    fn each_rank_has_its_share() {
        // 320 x 32 embeddings; three blocks of 2 x 32 x 32 + 2 x 32 x 16 in attention, 3 x 32 x 48 in the feed-forward part
        // and two norms of 32; and the last norm.
        const VALUES: usize = 10_240 + 3 * (3_072 + 4_608 + 64) + 32;
        assert_eq!(VALUES, 33_504);
        let numbers = |memory: Memory| [memory.weights, memory.training, memory.activations];
        // Gradients, and what AdamW keeps, of each value, in bytes.
        let training = |stage: &DryStage| {
            let by_ranks = stage.by_ranks.iter();
            let ranks =
                by_ranks.map(|one| (one.ranks, one.replicated.training, one.sharded.training));
            (stage.memory.training, ranks.collect::<Vec<_>>())
        };

        // One device has the 48 texts in one chunk, and one gradient. Each of several has two chunks, and the gradient of one
        // beside the sum. A token's row: in each block 2 x 128 of states and 4 x (64 + 32 + 96), then 16 x 48 + 3 x 128.
        let usual = stage("", "");
        assert_eq!((usual.trained, usual.frozen), (VALUES, 0));
        const ROW: usize = 3 * 1_024 + 1_152;
        assert_eq!(numbers(usual.memory), [134_016, 402_048, 48 * 24 * ROW]);
        let expected = [(2, 24, 402_048), (4, 12, 335_040), (8, 6, 301_536)];
        for (of, (ranks, texts, sharded)) in usual.by_ranks.iter().zip(expected) {
            assert_eq!(of.ranks, ranks);
            assert_eq!(numbers(of.replicated), [134_016, 536_064, texts * 24 * ROW], "{ranks}");
            assert_eq!(numbers(of.sharded), [134_016, sharded, texts * 24 * ROW], "{ranks}");
        }
        assert_eq!(usual.by_ranks.len(), 3);
        assert_eq!(usual.by_ranks[1].sharded.total(), 134_016 + 335_040 + 12 * 24 * 4_224);

        // Chunks as large as the share of one of two: one chunk, and one gradient, on each of two or more.
        let (one, ranks) = training(&stage("", "chunk = 24"));
        assert_eq!(one, 16 * VALUES);
        let expected = [(2, 12, 8), (4, 12, 6), (8, 12, 5)];
        type Bytes = (usize, usize, usize);
        let bytes = |(ranks, all, own): Bytes| (ranks, all * VALUES, own * VALUES);
        assert_eq!(ranks, expected.map(bytes));
        // Smaller ones than the share of one of eight.
        let (one, ranks) = training(&stage("", "chunk = 5"));
        assert_eq!(one, 16 * VALUES);
        assert_eq!(ranks, [(2, 16, 12), (4, 16, 10), (8, 16, 9)].map(bytes));
        // A batch beside the sum of the batches before it.
        let (one, ranks) = training(&stage("accumulation = 2", ""));
        assert_eq!(one, 16 * VALUES);
        assert_eq!(ranks, [(2, 20, 16), (4, 20, 14), (8, 20, 13)].map(bytes));
        // SGD keeps one number of each value.
        let (one, ranks) = training(&stage("optimizer = 'sgd'", "shard_optimizer = true"));
        assert_eq!(one, 8 * VALUES);
        let halves = |(ranks, all, own): Bytes| (ranks, all * VALUES, own * VALUES / 2);
        assert_eq!(ranks, [(2, 12, 20), (4, 12, 18), (8, 12, 17)].map(halves));
    }
}

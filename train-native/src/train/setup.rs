//! What a run needs around its parameters, and what each stage changes about them.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, anyhow, bail};
use burn::module::{AutodiffModule, Param};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Tensor, TensorData};
use kiln_embed::checkpoint::{Files, LoadOptions};
use kiln_embed::embedder::{Embedder, EmbedderParts, EmbeddingModel, Prompts};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::model::Backbone;
use kiln_embed::pooling::PoolingConfig;
use kiln_embed::reranker::{
    Answer, PairInput, Reranker, RerankerParts, ScoreActivation, ScoreHead, Scorer,
};
use kiln_embed::tokenizer::Tokenizer;
use kiln_embed::train::{ChunkRunner, TrainModel, Trains, set_trainable, sizes};

use super::Trained;
use super::distillation::{Teacher, projection};
use super::mntp::mask_token;
use super::reconstruction::written_eos;
use super::transport::Transport;
use crate::data::{DataSet, mixed};
use crate::eval::fingerprint;
use crate::model::folders;
use crate::recipe::{
    Compute, ComputeDtype, INSTRUCTION_FORMAT, ModelRecipe, Objective, Recipe, instructed,
};
use crate::terminal::Terminal;

/// A model less its parameters.
#[derive(Clone)]
pub(super) struct ModelParts<B: AutodiffBackend> {
    pub tokenizer: Tokenizer,
    pub prompts: Prompts,
    pub tokenizer_files: Files,
    /// How a cross-encoder reads a pair.
    pub input: PairInput,
    /// What a decoder that ranks is saved with.
    pub answer: Option<Answer>,
    /// What a cross-encoder makes of its scores.
    pub activation: ScoreActivation,
    pub device: B::Device,
}

/// How chunks are computed, as a recipe says.
pub(super) fn chunk_runner<B: TrainingBackend>(compute: &Compute) -> ChunkRunner {
    let dtype = match compute.precision {
        ComputeDtype::F32 => FloatDType::F32,
        ComputeDtype::Bf16 => FloatDType::BF16,
        ComputeDtype::F16 => FloatDType::F16,
    };
    ChunkRunner::new::<B>(compute.chunk, compute.grad_cache, compute.checkpoint_blocks, dtype)
}

/// Takes a model apart; the base of an embedder may have a language-model head of its own.
pub(super) fn start<B: TrainingBackend>(
    model: impl Into<Trained<B::InnerBackend>>,
    lm_head: Option<TensorData>,
) -> (ModelParts<B>, TrainModel<B>) {
    let (embedder, scorer, input, activation) = match model.into() {
        Trained::Embedder(embedder) => {
            (embedder.into_parts(), None, PairInput::Template, ScoreActivation::Identity)
        }
        Trained::Reranker(reranker) => {
            let RerankerParts {
                model,
                scorer,
                input,
                tokenizer,
                tokenizer_files,
                activation,
                device,
            } = reranker.into_parts();
            let prompts = Prompts::default();
            let embedder = EmbedderParts { model, tokenizer, prompts, tokenizer_files, device };
            (embedder, Some(scorer), input, activation)
        }
    };
    let EmbedderParts { model, tokenizer, prompts, tokenizer_files, device } = embedder;
    let (score_head, answer, table) = match scorer {
        None => (None, None, None),
        Some(Scorer::Head(head)) => (Some(head), None, None),
        Some(Scorer::Logits(answer, table)) => {
            (None, Some(answer), table.map(Tensor::<B, 2>::from_inner))
        }
    };
    let parts =
        ModelParts::<B> { tokenizer, prompts, tokenizer_files, input, answer, activation, device };
    let table = table.or_else(|| lm_head.map(|head| Tensor::from_data(head, &parts.device)));
    let train_model = TrainModel {
        model: EmbeddingModel::from_inner(model),
        lm_head: table.map(Param::from_tensor),
        projections: Vec::new(),
        score_head: score_head.map(ScoreHead::from_inner),
        answer: parts.answer.as_ref().map(Answer::tokens),
    };
    (parts, train_model)
}

impl<B: TrainingBackend> ModelParts<B> {
    /// The model as it is, to evaluate and to save: with its adapters merged, where that takes no memory of a GPU
    /// and unpacks nothing.
    pub(super) fn trained(&self, train_model: &TrainModel<B>) -> Result<Trained<B::InnerBackend>> {
        let mut model = train_model.model.valid();
        if B::HOST && !model.backbone().is_packed() {
            model = model.map_backbone(Backbone::merge_lora);
        }
        let (tokenizer, files) = (self.tokenizer.clone(), self.tokenizer_files.clone());
        let scorer = match (&train_model.score_head, &self.answer) {
            (Some(head), _) => Scorer::Head(head.valid()),
            (None, Some(answer)) => {
                let table = train_model.lm_head.as_ref().map(|table| table.val().inner());
                Scorer::Logits(answer.clone(), table)
            }
            (None, None) => {
                return Ok(Trained::Embedder(
                    Embedder::new(model, tokenizer, &self.device)?
                        .with_prompts(self.prompts.clone())
                        .with_tokenizer_files(files),
                ));
            }
        };
        Ok(Trained::Reranker(Reranker::from_parts(RerankerParts {
            model,
            scorer,
            input: self.input.clone(),
            tokenizer,
            tokenizer_files: files,
            activation: self.activation,
            device: self.device.clone(),
        })?))
    }

    /// The model's prompts of queries and documents.
    pub(super) fn prompts(&self) -> [&str; 2] {
        ["query", "document"]
            .map(|name| self.prompts.by_name().get(name).map_or("", String::as_str))
    }
}

/// Refuses what no text can be read or written with, before anything is trained: prompts that leave no room
/// for a text, and tokens that the tokenizer does not have.
///
/// # Errors
/// The first such prompt, and whose it is; the first stage without its token.
pub(super) fn check_texts<B: TrainingBackend>(
    parts: &ModelParts<B>,
    recipe: &Recipe,
    sets: &[Vec<DataSet>],
    layers: usize,
    causal: bool,
) -> Result<()> {
    let format = parts.prompts.instruction_format().unwrap_or(INSTRUCTION_FORMAT);
    let room = |prompt: &str, whose: &str| {
        let tokens = parts.tokenizer.encode(prompt, "a")?;
        if tokens.content.is_empty() {
            bail!(
                "{whose} {prompt:?} leaves no room for a text in max_length = {}; shorten it, or raise model.max_length",
                parts.tokenizer.config().max_length
            );
        }
        Ok(())
    };
    parts.prompts().iter().try_for_each(|prompt| room(prompt, "the model's prompt"))?;
    for set in sets.iter().flatten() {
        let source = &set.source;
        let whose = format!("the prompt of {}", set.name);
        let literal = source.query_prompt.iter().chain(&source.document_prompt).cloned();
        let instructions = source.instructions.iter().map(|one| instructed(format, one));
        literal.chain(instructions).try_for_each(|prompt| room(&prompt, &whose))?;
        let whose = format!("an example's instruction in {}", set.name);
        let own = &set.counts.longest_instruction;
        own.iter().try_for_each(|one| room(&instructed(format, one), &whose))?;
        // A shorter one may have more tokens, but no more than it has bytes.
        let most = parts.tokenizer.config().max_length;
        let rest = parts.tokenizer.encode("", "a")?.ids.len();
        let may_fill = |prompt: &String| prompt.len() + rest > most;
        if own.as_ref().is_some_and(|one| may_fill(&instructed(format, one))) {
            let (hasher, mut seen) = (RandomState::new(), HashSet::new());
            for i in 0..set.len() {
                let own = set.get(i)?.instruction.map(|one| instructed(format, &one));
                if let Some(prompt) = own.filter(may_fill)
                    && seen.insert(hasher.hash_one(&prompt))
                {
                    room(&prompt, &whose)?;
                }
            }
        }
    }
    for stage in &recipe.stages {
        let place = || format!("stage {:?}", stage.name);
        if stage.objective.writes_tokens() && layers == 0 {
            bail!(
                "stage {:?}: a table of tokens has no layers that could predict one token from others, as {:?} \
                 learns it; use objective = \"contrastive\"",
                stage.name,
                stage.objective.name()
            );
        }
        match stage.objective {
            Objective::Mntp => {
                if causal {
                    bail!(
                        "stage {:?}: under a causal mask \"mntp\" predicts a token from those before it alone; set \
                         model.attention = \"bidirectional\"",
                        stage.name
                    );
                }
                let settings = stage.mntp.clone().unwrap_or_default();
                mask_token(&parts.tokenizer, &settings).with_context(place)?;
            }
            Objective::Reconstruction => {
                let settings = stage.reconstruction.unwrap_or_default();
                written_eos(&parts.tokenizer, &settings).with_context(place)?;
            }
            Objective::Rerank => {
                // What stands around a pair leaves room for two texts.
                parts.input.tokenize(&parts.tokenizer, "a", "a").map(drop).with_context(place)?;
            }
            Objective::Contrastive | Objective::Distillation | Objective::Similarity => {}
        }
    }
    Ok(())
}

/// Refuses to train by its name what stays packed, before anything is trained.
///
/// # Errors
/// The first such name.
pub(super) fn check_frozen<B: TrainingBackend>(
    train_model: &TrainModel<B>,
    model: &ModelRecipe,
) -> Result<()> {
    let Some(scheme) = model.frozen_weights else {
        return Ok(());
    };
    if !train_model.backbone().is_packed() {
        bail!(
            "model.frozen_weights = {scheme}: none of the base's matrices stays packed so; name a base in floating point, int8 or int4"
        );
    }
    let sizes = sizes(train_model);
    // On the host nothing stands in the place of a packed weight.
    let packed = |(path, size): &&(String, usize)| *size == 0 || path.contains(".packed.");
    for (path, _) in sizes.iter().filter(packed) {
        if let Some(name) = model.train.iter().find(|name| path.contains(name.as_str())) {
            bail!(
                "model.train names {name:?}, and model.frozen_weights keeps weights of it in {scheme}; leave one of the two out"
            );
        }
    }
    Ok(())
}

/// Refuses processes whose packed bases are others: what is packed is no parameter, so that none is given the first one's.
///
/// # Errors
/// The first process that reads other files; files that cannot be read.
pub(super) fn check_base<B: Backend>(
    by: &impl Transport<B>,
    model: &ModelRecipe,
    terminal: Terminal,
) -> Result<()> {
    let (Some(base), Some(_)) = (&model.base, model.frozen_weights) else {
        return Ok(());
    };
    let _busy = by.busy();
    let own = fingerprint(&folders(base, terminal)?, &LoadOptions::default(), None)?;
    let all = by.all_gather_bytes(own.into_bytes())?;
    if let Some(rank) = all.iter().position(|other| *other != all[0]) {
        bail!(
            "{} reads another base than {}; give all hosts the same files of {base}",
            by.name(rank),
            by.name(0)
        );
    }
    Ok(())
}

/// Says where `reconstruction` writes from another state than is probably meant.
pub(super) fn advise_of_state<B: TrainingBackend>(
    parts: &ModelParts<B>,
    pooling: &PoolingConfig,
    recipe: &Recipe,
    terminal: Terminal,
) {
    let pools_last = matches!(pooling, PoolingConfig::LastToken);
    // Of a base that pools this token it is said where that is loaded.
    let is_said = pools_last && recipe.model.base.is_some();
    let writes = recipe.stages.iter().filter(|stage| stage.objective == Objective::Reconstruction);
    for stage in writes {
        if parts.tokenizer.suffix().is_empty() && !is_said {
            terminal.note(format!(
                "warning: stage {}: reconstruction writes from the last token's state, and the tokenizer puts none after a \
                 text, so that it is the text's own; model.add_eos = true puts EOS there",
                stage.name
            ));
        }
        if !pools_last {
            terminal.note(format!(
                "stage {}: reconstruction trains the last token's state, whatever is pooled; model.pooling is {:?}, and \
                 mode = \"last_token\" pools that state",
                stage.name,
                pooling.name()
            ));
        }
    }
}

/// Burn has one generator for all threads, whatever their devices: one at a time seeds it and draws.
static GENERATOR: Mutex<()> = Mutex::new(());

/// What is drawn by a seed: the same on all devices, and after a resumption.
fn drawn<B: TrainingBackend, T>(
    device: &B::Device,
    seed: u64,
    draw: impl FnOnce() -> T,
) -> Result<T> {
    let _alone = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    B::seed(device, seed);
    let drawn = draw();
    // Operations that are to be fused draw only when they are computed.
    B::sync(device).map_err(|error| anyhow!("the device: {error:?}"))?;
    Ok(drawn)
}

/// The parameters as a stage trains them: with adapters or in full, with a language-model head or
/// without.
pub(super) fn enter_stage<B: TrainingBackend>(
    train_model: TrainModel<B>,
    recipe: &Recipe,
    number: usize,
    teacher: Option<&Teacher<B>>,
    device: &B::Device,
) -> Result<TrainModel<B>> {
    let stage = &recipe.stages[number];
    let TrainModel { mut model, lm_head, mut projections, score_head, answer } = train_model;
    let widths = teacher.map_or(Vec::new(), |teacher| teacher.widths(&model));
    let known: Vec<[usize; 2]> = projections.iter().map(|one| one.val().dims()).collect();
    // Another teacher may be of another width.
    if widths != known {
        let seed = mixed(&[recipe.seed, number as u64, 1]);
        let new = |widths| projection::<B>(widths, device);
        projections = drawn::<B, Vec<_>>(device, seed, || widths.into_iter().map(new).collect())?;
    }
    let lm_head = match stage.tied() {
        Some(false) if stage.objective.writes_tokens() => {
            let copy = || Param::from_tensor(model.backbone().token_embedding().detach());
            Some(lm_head.unwrap_or_else(copy))
        }
        Some(true) => None,
        _ if answer.is_some() => lm_head,
        // A base model's own head, for this stage or a later one.
        _ if recipe.stages[number..].iter().any(|stage| stage.objective.writes_tokens()) => lm_head,
        _ => None,
    };
    let mut trains = Trains::Everything;
    match recipe.model.lora.as_ref().filter(|_| !stage.full) {
        None => model = model.map_backbone(Backbone::merge_lora),
        Some(lora) => {
            trains = match recipe.model.adapters_alone {
                true => Trains::AdaptersAlone,
                false => Trains::Adapters(&recipe.model.train),
            };
            if !model.backbone().has_adapters() {
                let seed = mixed(&[recipe.seed, number as u64]);
                model = drawn::<B, _>(device, seed, || model.with_lora(lora, device))??;
            }
        }
    }
    let train_model = TrainModel { model, lm_head, projections, score_head, answer };
    Ok(set_trainable::<B, _>(train_model, trains))
}

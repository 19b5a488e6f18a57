//! What a run needs around its parameters, and what each stage changes about them.

use anyhow::Result;
use burn::module::{AutodiffModule, Param};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{AdamW, AdamWConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use kiln_core::checkpoint::Files;
use kiln_core::embedder::{Embedder, EmbeddingModel, Prompts};
use kiln_core::kernels::TrainingBackend;
use kiln_core::tokenizer::Tokenizer;

use super::distillation::Lesson;
use super::trainee::{Trainee, Trains, set_trainable};
use crate::recipe::{Objective, Recipe, Stage};

pub(super) type Adam<B> = OptimizerAdaptor<AdamW, Trainee<B>, B>;

/// Two optimizers: parameters that decay, and norms, biases and latents, which do not.
pub(super) fn optimizers<B: TrainingBackend>(stage: &Stage) -> [Adam<B>; 2] {
    let adam = AdamWConfig::new().with_epsilon(1e-8);
    [
        adam.clone().with_weight_decay(stage.weight_decay as f32).init(),
        adam.with_weight_decay(0.0).init(),
    ]
}

/// An embedder less its parameters.
#[derive(Clone)]
pub(super) struct Tools<B: AutodiffBackend> {
    pub tokenizer: Tokenizer,
    pub prompts: Prompts,
    pub tokenizer_files: Files,
    pub device: B::Device,
}

/// Takes an embedder apart.
pub(super) fn start<B: TrainingBackend>(
    embedder: Embedder<B::InnerBackend>,
) -> (Tools<B>, Trainee<B>) {
    let Embedder { model, tokenizer, prompts, device, tokenizer_files, .. } = embedder;
    let trainee = Trainee {
        model: EmbeddingModel::from_inner(model),
        lm_head: None,
        projections: Vec::new(),
    };
    (Tools { tokenizer, prompts, tokenizer_files, device }, trainee)
}

impl<B: TrainingBackend> Tools<B> {
    /// The model as it is, adapters merged, to evaluate and to save.
    pub(super) fn embedder(&self, trainee: &Trainee<B>) -> Result<Embedder<B::InnerBackend>> {
        let mut inner = trainee.model.valid();
        inner.backbone = inner.backbone.merge_lora();
        let mut embedder = Embedder::new(inner, self.tokenizer.clone(), &self.device)?;
        embedder.prompts = self.prompts.clone();
        embedder.tokenizer_files = self.tokenizer_files.clone();
        Ok(embedder)
    }

    /// The model's prompts of queries and documents.
    pub(super) fn prompts(&self) -> [&str; 2] {
        ["query", "document"].map(|name| self.prompts.by_name.get(name).map_or("", String::as_str))
    }
}

/// The parameters as a stage trains them: with adapters or in full, with a language-model head or
/// without.
pub(super) fn enter_stage<B: TrainingBackend>(
    mut trainee: Trainee<B>,
    recipe: &Recipe,
    number: usize,
    lesson: Option<&Lesson<B>>,
    device: &B::Device,
) -> Result<Trainee<B>> {
    let stage = &recipe.stages[number];
    let projections =
        lesson.map_or(Vec::new(), |lesson| lesson.projections(&trainee.model, device));
    let shapes = |all: &[Param<Tensor<B, 2>>]| -> Vec<[usize; 2]> {
        all.iter().map(|one| one.val().dims()).collect()
    };
    // Another teacher may be of another width.
    if shapes(&projections) != shapes(&trainee.projections) {
        trainee.projections = projections;
    }
    let lora = recipe.model.lora.as_ref().filter(|_| !stage.full);
    trainee.lm_head = match stage.objective {
        Objective::Reconstruction if !stage.reconstruction.unwrap_or_default().tied => {
            let copy = || Param::from_tensor(trainee.model.backbone.token_embedding().detach());
            Some(trainee.lm_head.take().unwrap_or_else(copy))
        }
        _ => None,
    };
    let Some(lora) = lora else {
        trainee.model.backbone = trainee.model.backbone.merge_lora();
        return Ok(set_trainable::<B, _>(trainee, Trains::Everything));
    };
    if !trainee.model.backbone.has_adapters() {
        let config = trainee.model.config.clone();
        (trainee.model.backbone, _) = trainee.model.backbone.with_lora(lora, &config, device)?;
    }
    Ok(set_trainable::<B, _>(trainee, Trains::Adapters(&recipe.model.train)))
}

//! What a stage learns from a teacher: its vectors, the scores between them, its hidden states
//! (NV-Embed, arXiv:2405.17428, appendix A.2).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use burn::module::Param;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Distribution, FloatDType, Tensor, TensorData};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::embedder::{EmbedOptions, Embedder, EmbeddingModel};
use kiln_embed::kernels::TrainingBackend;
use kiln_embed::loss::{Gist, score_distillation, state_distillation};
use kiln_embed::model::ModelInput;
use kiln_embed::pooling::{PoolingConfig, l2_normalize};
use kiln_embed::tokenizer::Tokenizer;
use kiln_embed::train::{Chunk, StatesLoss, StatesOf, TrainModel};

use super::setup::ModelParts;
use crate::data::{Batch, DataSet, Text};
use crate::embedding::BLOCK;
use crate::eval::{Cache, ModelEncoder, TextEncoder, fingerprint};
use crate::model::{folders, load_into_memory};
use crate::recipe::{Distillation, Recipe, Stage};
use crate::terminal::Terminal;

/// The teachers of a run, each loaded when a stage first asks for it.
pub(super) struct Teachers<'a, B: AutodiffBackend> {
    recipe: &'a Recipe,
    tokenizer: Tokenizer,
    device: B::Device,
    terminal: Terminal,
    loaded: HashMap<usize, Teacher<B>>,
}

impl<'a, B: TrainingBackend> Teachers<'a, B> {
    pub(super) fn new(recipe: &'a Recipe, parts: &ModelParts<B>, terminal: Terminal) -> Self {
        Self {
            recipe,
            tokenizer: parts.tokenizer.clone(),
            device: parts.device.clone(),
            terminal,
            loaded: HashMap::new(),
        }
    }

    /// What a stage learns from a teacher, if anything; the student has so many layers.
    pub(super) fn of(
        &mut self,
        stage: usize,
        student_layers: usize,
    ) -> Result<Option<&Teacher<B>>> {
        let Some(settings) = &self.recipe.stages[stage].distillation else {
            return Ok(None);
        };
        if !self.loaded.contains_key(&stage) {
            // One teacher at a time is in memory.
            self.loaded.clear();
            let name = &self.recipe.stages[stage].name;
            let teacher = Teacher::load(
                settings,
                &self.tokenizer,
                student_layers,
                &self.device,
                self.terminal,
            )
            .with_context(|| format!("stage {name:?}, the teacher"))?;
            self.loaded.insert(stage, teacher);
        }
        Ok(self.loaded.get(&stage))
    }
}

/// A teacher, and what is learned from it.
pub(super) struct Teacher<B: AutodiffBackend> {
    settings: Distillation,
    model: Arc<Embedder<B::InnerBackend>>,
    encoder: ModelEncoder,
    /// What it has before queries and before documents.
    prompts: [String; 2],
    /// Whether its vectors are kept on disk.
    cached: bool,
    /// Pairs of a student's and a teacher's layers.
    pairs: Vec<[usize; 2]>,
}

impl<B: TrainingBackend> Teacher<B> {
    pub(super) fn load(
        settings: &Distillation,
        tokenizer: &Tokenizer,
        student_layers: usize,
        device: &B::Device,
        terminal: Terminal,
    ) -> Result<Self> {
        let options = LoadOptions::default();
        let embedder =
            load_into_memory::<B::InnerBackend>(&settings.teacher, &options, device, terminal)?;
        let layers = embedder.model().backbone().layers();
        let pairs = settings.layers.pairs(student_layers, layers)?;
        let head = embedder.model().pooling().config();
        if pairs.iter().any(|[_, layer]| *layer > layers)
            && !matches!(head, PoolingConfig::LatentAttention(_))
        {
            bail!(
                "distillation.layers asks for the output of the teacher's latent-attention block, and the head of {} \
                 is {}; use layers = \"uniform\", or pairs of its {layers} layers",
                settings.teacher,
                head.name()
            );
        }
        if !pairs.is_empty() && embedder.tokenizer().to_json()? != tokenizer.to_json()? {
            bail!(
                "{} has another tokenizer than the student, so their hidden states are not of the \
                 same tokens; set distillation.layers = \"none\", or give the student the teacher's tokenizer",
                settings.teacher
            );
        }
        // Vectors are made once and kept, for later epochs and later runs.
        let mut cache = None;
        if settings.vectors > 0.0 || settings.scores > 0.0 || settings.guide.is_some() {
            let files: Vec<PathBuf> = folders(&settings.teacher, terminal)?;
            let name = fingerprint(&files, &options, None)?;
            let folder = Cache::default_folder();
            cache = folder.and_then(|folder| Cache::open(&folder, &name, terminal));
        }
        let cached = cache.is_some();
        let model = Arc::new(embedder);
        let encoder = ModelEncoder::new(model.clone(), EmbedOptions::default(), cache, terminal);
        // The recipe's, else the teacher's own.
        let prompt = |role: &str, text: &Option<String>, name: &Option<String>| {
            Ok::<_, anyhow::Error>(match (text, name.as_deref()) {
                (Some(text), _) => text.clone(),
                (None, None) => encoder.own_prompt(&[role]),
                (None, name) => model
                    .prompts()
                    .get(name)
                    .with_context(|| format!("distillation.{role}_prompt_name"))?
                    .to_string(),
            })
        };
        let prompts = [
            prompt("query", &settings.query_prompt, &settings.query_prompt_name)?,
            prompt("document", &settings.document_prompt, &settings.document_prompt_name)?,
        ];
        Ok(Self { settings: settings.clone(), model, encoder, prompts, cached, pairs })
    }

    /// The loss on hidden states, where they are compared.
    pub(super) fn states(&self) -> StatesOf<'_, B> {
        (!self.pairs.is_empty()).then_some(self)
    }

    /// The widths of the student's layers and of the teacher's, between which there are projections, where any differ.
    pub(super) fn widths(&self, student: &EmbeddingModel<B>) -> Vec<[usize; 2]> {
        let teacher = self.model.model().config();
        let widths = self.pairs.iter();
        let widths: Vec<_> = widths
            .map(|&[own, theirs]| [student.config().state_size(own), teacher.state_size(theirs)])
            .collect();
        match widths.iter().all(|[from, to]| from == to) {
            true => Vec::new(),
            false => widths,
        }
    }

    /// Checks that the student can learn this, and embeds all texts of the stage once, where it will
    /// see most of them; few of many are embedded when their turn comes.
    ///
    /// # Errors
    /// Vectors of another width than the teacher's; [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    pub(super) fn prepare(
        &self,
        student: &EmbeddingModel<B>,
        sets: &[DataSet],
        stage: &Stage,
    ) -> Result<()> {
        let vectors = self.settings.vectors;
        let (own, theirs) = (student.dimensions(), self.model.model().dimensions());
        if vectors > 0.0 && own != theirs {
            bail!(
                "the student's vectors have {own} dimensions and the teacher's {theirs}; set \
                 model.new.dimensions = {theirs}, or learn from the scores alone (vectors = 0, scores = 1)"
            );
        }
        let examples: usize = sets.iter().map(DataSet::len).sum();
        let drawn = stage.steps.saturating_mul(stage.batch_size * stage.accumulation);
        if !self.has_vectors() || !self.cached || drawn < examples / 2 {
            return Ok(());
        }
        let [query, document] = &self.prompts;
        let mut waiting: [Vec<String>; 2] = Default::default();
        let encode = |texts: &mut Vec<String>, prompt: &str, least: usize| -> Result<()> {
            if texts.len() >= least && !texts.is_empty() {
                self.encoder.encode(texts, prompt)?;
                texts.clear();
            }
            Ok(())
        };
        for set in sets {
            for i in 0..set.len() {
                let example = set.get(i)?;
                waiting[0].push(example.query);
                waiting[1].extend(example.pos.into_iter().chain(example.neg));
                encode(&mut waiting[0], query, 8 * BLOCK)?;
                encode(&mut waiting[1], document, 8 * BLOCK)?;
            }
        }
        encode(&mut waiting[0], query, 0)?;
        encode(&mut waiting[1], document, 0)
    }

    /// How the teacher chooses negatives, if it guides.
    pub(super) fn guide(&self) -> Option<Gist> {
        self.settings.gist()
    }

    /// The same, with other settings of what it was not loaded by.
    #[cfg(test)]
    pub(super) fn with(self, settings: Distillation) -> Self {
        Self { settings, ..self }
    }

    /// Whether its vectors are looked at.
    fn has_vectors(&self) -> bool {
        self.learns_vectors() || self.settings.guide.is_some()
    }

    fn learns_vectors(&self) -> bool {
        self.settings.vectors > 0.0 || self.settings.scores > 0.0
    }

    /// The teacher's vectors `[texts, dim]` of a batch, queries first, divided by their norm; `None` where only
    /// hidden states are compared.
    pub(super) fn vectors_of(
        &self,
        batch: &Batch,
        device: &B::Device,
    ) -> Result<Option<Tensor<B, 2>>> {
        if !self.has_vectors() {
            return Ok(None);
        }
        let [query, document] = &self.prompts;
        let texts = |texts: &[Text]| texts.iter().map(|text| text.text.clone()).collect::<Vec<_>>();
        let mut vectors = self.encoder.encode(&texts(&batch.queries), query)?;
        vectors.extend(self.encoder.encode(&texts(&batch.documents), document)?);
        let (count, dim) = (vectors.len(), vectors.first().map_or(0, Vec::len));
        let data = TensorData::new(vectors.concat(), [count, dim]);
        Ok(Some(l2_normalize(Tensor::<B, 2>::from_data(data, device))))
    }

    /// How far the vectors `[texts, dim]` of a batch, queries first, are from the teacher's; `None`
    /// where nothing is learned from them.
    pub(super) fn vectors_loss(
        &self,
        student: Tensor<B, 2>,
        teacher: Tensor<B, 2>,
    ) -> Option<Tensor<B, 1>> {
        let Distillation { alpha, vectors, scores, temperature, .. } = self.settings;
        if !self.learns_vectors() {
            return None;
        }
        let device = student.device();
        let mut loss = Tensor::<B, 1>::zeros([1], &device);
        if vectors > 0.0 {
            let cosines = (student.clone() * teacher.clone()).sum_dim(1);
            loss = loss + (-cosines.mean() + 1.0).mul_scalar(vectors);
        }
        if scores > 0.0 {
            let [count, _] = student.dims();
            // A text is not compared with itself: far below every cosine.
            let own = Tensor::<B, 2>::eye(count, &device).mul_scalar(-1e4);
            let between = |x: Tensor<B, 2>| x.clone().matmul(x.transpose()) + own.clone();
            let divergence = score_distillation(between(student), between(teacher), temperature);
            loss = loss + divergence.mul_scalar(scores);
        }
        Some(loss.mul_scalar(alpha))
    }
}

/// A new projection from the width of a student's layer to that of a teacher's.
pub(super) fn projection<B: TrainingBackend>(
    [from, to]: [usize; 2],
    device: &B::Device,
) -> Param<Tensor<B, 2>> {
    let spread = Distribution::Normal(0.0, (from as f64).powf(-0.5));
    Param::from_tensor(Tensor::random([from, to], spread, device))
}

impl<B: TrainingBackend> StatesLoss<B> for Teacher<B> {
    /// Sum over the pairs of layers of the mean squared error between the student's states
    /// `[batch, seq, hidden]` and the teacher's, over the tokens of a chunk.
    fn loss(
        &self,
        student: &TrainModel<B>,
        layers: &[Tensor<B, 3>],
        input: &ModelInput<B>,
        chunk: &Chunk,
        device: &B::Device,
    ) -> kiln_embed::Result<Tensor<B, 1>> {
        let inner = ModelInput::<B::InnerBackend>::new(&chunk.tokens, device);
        let states = self.model.model().states(&inner);
        let mut teacher_layers = states.layers;
        teacher_layers.extend(self.model.model().pooling().output_states(&states.last)?);
        let mask = input.attention_mask.clone().float();
        let mut loss = Tensor::<B, 1>::zeros([1], device);
        for (i, &[student_layer, teacher_layer]) in self.pairs.iter().enumerate() {
            let mut state = layers[student_layer].clone();
            if let Some(projection) = student.projections.get(i) {
                state = state.matmul(projection.val().unsqueeze());
            }
            let target = Tensor::<B, 3>::from_inner(teacher_layers[teacher_layer].clone());
            loss = loss + state_distillation(state.cast(FloatDType::F32), target, mask.clone());
        }
        Ok(loss.mul_scalar(self.settings.alpha))
    }
}

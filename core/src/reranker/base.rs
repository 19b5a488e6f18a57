//! What a cross-encoder is trained from: one that exists, a language model that answers, or an encoder that gets a head.

use burn::module::Module;
use burn::nn::LayerNorm;
use burn::tensor::backend::Backend;
use serde_json::Value;

use super::head::{self, HeadConfig, ScoreHead};
use super::load::{check_types, labels};
use super::{PairInput, Reranker, RerankerParts, ScoreActivation, Scorer};
use crate::checkpoint::{
    LoadOptions, Weights, answers, fill, has_logit_score, load_backbone, pools, read_kept_score,
    read_transformer, read_transformer_shape,
};
use crate::config::ModelConfig;
use crate::embedder::EmbeddingModel;
use crate::folder::{Files, Folder};
use crate::kernels::Kernels;
use crate::model::families::{self, Names};
use crate::model::{Backbone, Linear};
use crate::pooling::Pooling;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

/// Shape of a cross-encoder of one score.
#[derive(Debug, Clone, PartialEq)]
pub struct RerankerShape {
    /// The transformer's.
    pub config: ModelConfig,
    /// The head's; `None` of a decoder, whose score is made of logits of its language-model head.
    pub head: Option<HeadConfig>,
}

/// Shape of the cross-encoder that training makes of a folder's model, from its configuration alone.
///
/// # Errors
/// Configuration that cannot be read, what [`reranker_shape`] refuses, and a decoder that Kiln wrote without its
/// language-model head.
pub fn read_reranker_shape(folder: &dyn Folder) -> Result<RerankerShape> {
    let (raw, config) = read_transformer_shape(folder)?;
    let shape = match has_logit_score(folder)? || answers(&raw) && !pools(folder)? {
        false => reranker_shape(&config, &raw),
        true if read_kept_score(folder)?.is_some() => Err(Error::invalid(
            "was quantized or exported with the direction of its score in the place of the language-model head, which \
             trains; start from the model that it was made of",
        )),
        true => config.decoder().map(|_| RerankerShape { config: config.clone(), head: None }),
    };
    shape.map_err(|error| Error::invalid(format!("{}: {error}", folder.label())))
}

/// Shape of the cross-encoder that training makes of an encoder, whose `config.json` is `raw`.
///
/// # Errors
/// A decoder, or an encoder for which there is no head.
pub fn reranker_shape(config: &ModelConfig, raw: &Value) -> Result<RerankerShape> {
    let family = config.family.model_type();
    if config.family.is_decoder() {
        return Err(refused(&format!("is a decoder ({family})")));
    }
    match head::of_family(config, raw, "", 1)? {
        Some((head, _)) => Ok(RerankerShape { config: config.clone(), head: Some(head) }),
        None => Err(refused(&format!("is of a family without such a head ({family})"))),
    }
}

fn refused(what: &str) -> Error {
    Error::invalid(format!(
        "{what}, and cross-encoders are trained from encoders with a head for sequence classification and from decoders \
         that rank by logits; start from one of BERT, RoBERTa, XLM-RoBERTa, XLM-RoBERTa-XL, CamemBERT, DistilBERT, MPNet, \
         ModernBERT, nomic-bert or gte, from Qwen3-Reranker or bge-reranker-v2-gemma, or from a model with LogitScore"
    ))
}

/// What a checkpoint of an encoder may have of a head.
#[derive(Module, Debug)]
struct Middle<B: Backend> {
    dense: Option<Linear<B>>,
    norm: Option<LayerNorm<B>>,
}

impl<B: Kernels> Reranker<B> {
    /// The cross-encoder that training starts from: that of a folder, or the folder's encoder with a head that is
    /// drawn, of which `fresh` says what is made of its scores. Of the head the file's own part is taken, as
    /// transformers takes it: BERT's pooler, and the layers before the output of ModernBERT's language-model head.
    /// A decoder goes on by its logits.
    ///
    /// # Errors
    /// As [`Reranker::load_with`]; a head of several scores; what [`read_reranker_shape`] refuses.
    pub fn for_training(
        folder: &dyn Folder,
        options: &LoadOptions,
        fresh: ScoreActivation,
        device: &B::Device,
    ) -> Result<Self> {
        if read_reranker_shape(folder)?.head.is_none() {
            return Self::load_as(folder, options, device, true);
        }
        let read = read_transformer(folder, options)?;
        let mut weights = Weights::open(folder, &read.stem)?;
        if let Some(scores) = labels(&weights).filter(|_| !matches!(pools(folder), Ok(true))) {
            if scores != 1 {
                return Err(Error::invalid(format!(
                    "{}: its head gives each pair {scores} scores, and a reranker gives one; start from the encoder \
                     without that head",
                    folder.label()
                )));
            }
            return Self::load_with(folder, options, device);
        }
        if read.tokenizer.config().lower_case {
            return Err(Error::invalid(format!(
                "{}: its sentence_bert_config.json lower-cases texts, which a cross-encoder's files cannot say; start \
                 from an encoder whose tokenizer.json does it",
                folder.label()
            )));
        }
        read.tokenizer.check_pairs()?;
        check_types(&read.config, &read.tokenizer)?;
        let prefix = {
            let has = |name: &str| weights.tensors().contains_key(name);
            families::names_in(&read.config, has).prefix(has)
        };
        weights.give_in(options.precision);
        let backbone = load_backbone::<B>(&read.config, &mut weights, device)?;
        let Some((shape, names)) = head::of_family(&read.config, &read.raw, prefix, 1)? else {
            return Err(refused("has no head"));
        };
        let head = ScoreHead::random(shape, &read.config, device);
        Ok(Self {
            backbone,
            head: with_own_part(head, &names, folder, &read.stem, device)?,
            answer: None,
            lm_head: None,
            config: read.config,
            tokenizer: read.tokenizer,
            tokenizer_files: read.tokenizer_files,
            input: PairInput::Template,
            activation: fresh,
            score_test: None,
            device: device.clone(),
        })
    }
}

impl<B: Kernels> RerankerParts<B> {
    /// A cross-encoder with random weights, `raw` being its `config.json`. The encoder's are N(0, 1 / sqrt(width)): a
    /// narrow one that begins with the usual 0.02 hardly tells one pair from another, and learns nothing for long.
    ///
    /// # Errors
    /// What [`reranker_shape`] refuses.
    pub fn random(
        (config, raw): (&ModelConfig, &Value),
        (tokenizer, tokenizer_files): (Tokenizer, Files),
        activation: ScoreActivation,
        device: &B::Device,
    ) -> Result<Self> {
        let RerankerShape { config, head } = reranker_shape(config, raw)?;
        let head = head.ok_or_else(|| refused("has no head"))?;
        let std = 1.0 / (config.hidden_size as f64).sqrt();
        let backbone = Backbone::drawn(&config, std, device);
        let pooling = Pooling::unfilled(&head.scored.pooling(), &config, device);
        let model = EmbeddingModel::new(backbone, pooling, &config).with_normalize(false);
        let scorer = Scorer::Head(ScoreHead::random(head, &config, device));
        let (input, device) = (PairInput::Template, device.clone());
        Ok(Self { model, scorer, input, tokenizer, tokenizer_files, activation, device })
    }
}

/// The head with what the file has of it before its last projection.
fn with_own_part<B: Kernels>(
    mut head: ScoreHead<B>,
    names: &Names,
    folder: &dyn Folder,
    stem: &str,
    device: &B::Device,
) -> Result<ScoreHead<B>> {
    let paths = ["dense.weight", "dense.bias", "norm.gamma", "norm.beta"];
    let sources = paths.iter().filter_map(|path| names.source(path).ok());
    let wanted: Vec<String> =
        sources.flat_map(|source| source.parts).map(|part| part.name).collect();
    // Opened again, so that the head's reader lists only its own tensors.
    let mut weights = Weights::open(folder, stem)?;
    weights.retain(|name| wanted.iter().any(|one| one == name));
    if !weights.tensors().is_empty() {
        let own = Middle { dense: head.dense.take(), norm: head.norm.take() };
        let Middle { dense, norm } = fill(own, &mut weights, names, "", device)?;
        (head.dense, head.norm) = (dense, norm);
    }
    Ok(head)
}

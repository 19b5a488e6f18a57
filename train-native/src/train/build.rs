//! The model that a recipe starts from: an existing one, or a new one with its tokenizer.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::tensor::{DType, TensorData};
use kiln_embed::checkpoint::{
    Files, LoadOptions, Weights, read_embedder_config, tokenizer_config_file,
};
use kiln_embed::config::{AttentionMode, Family, ModelConfig};
use kiln_embed::embedder::{Embedder, EmbedderParts, EmbeddingModel, Prompts, Similarity};
use kiln_embed::kernels::Kernels;
use kiln_embed::model::Backbone;
use kiln_embed::pooling::{Dense, DenseActivation, DenseConfig, PoolingConfig};
use kiln_embed::quant::WeightPrecision;
use kiln_embed::reranker::{Reranker, RerankerParts, ScoreActivation};
use kiln_embed::tokenizer::{InstructionSpan, PaddingSide, Tokenizer, TokenizerConfig};
use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::Lowercase;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::template::TemplateProcessing;

use crate::model::{
    folders, load_embedder, load_to_train, open_folder, reranker_config, resolve, weights_stem,
};
use crate::recipe::{ComputeDtype, ModelRecipe, NewModel, Recipe, Stage};
use crate::terminal::Terminal;

const SPECIAL: [&str; 3] = ["<pad>", "<s>", "</s>"];

/// Most tokens of a text where the recipe does not say.
const MAX_LENGTH: usize = 128;

/// Trains a byte-level BPE tokenizer; it puts `<s>` and `</s>` around each text.
///
/// # Errors
/// What the `tokenizers` crate refuses.
pub fn train_tokenizer<'a>(
    texts: impl Iterator<Item = &'a str> + Send,
    vocab_size: usize,
    lower_case: bool,
) -> Result<Vec<u8>> {
    let failed = |error: tokenizers::Error| anyhow!("cannot train a tokenizer: {error}");
    let mut tokenizer = tokenizers::Tokenizer::new(BPE::default());
    if lower_case {
        tokenizer.with_normalizer(Some(Lowercase));
    }
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocab_size)
        .min_frequency(2)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(SPECIAL.map(|token| AddedToken::from(token, true)).to_vec())
        .build();
    tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), texts).map_err(failed)?;
    put_around(&mut tokenizer, None)?;
    Ok(tokenizer.to_string(true).map_err(failed)?.into_bytes())
}

/// Gives a tokenizer a template that puts `<s>` and `</s>` around a text, and what is said around two.
fn put_around(tokenizer: &mut tokenizers::Tokenizer, pair: Option<String>) -> Result<()> {
    let special = |token: &str| {
        let id =
            tokenizer.token_to_id(token).with_context(|| format!("the tokenizer lost {token}"))?;
        Ok::<_, anyhow::Error>((token.to_string(), id))
    };
    let mut template = TemplateProcessing::builder();
    template
        .try_single(format!("{} $A {}", SPECIAL[1], SPECIAL[2]))
        .map_err(|error| anyhow!("{error}"))?
        .special_tokens(vec![special(SPECIAL[1])?, special(SPECIAL[2])?]);
    if let Some(pair) = pair {
        template.try_pair(pair).map_err(|error| anyhow!("{error}"))?;
    }
    let template = template.build().map_err(|error| anyhow!("{error}"))?;
    tokenizer.with_post_processor(Some(template));
    Ok(())
}

/// The shape of a new model.
///
/// # Errors
/// Sizes that contradict one another.
pub fn new_config(shape: &NewModel, recipe: &ModelRecipe) -> Result<ModelConfig> {
    let config = ModelConfig::from_value(&serde_json::json!({
        "model_type": Family::Llama.model_type(),
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads.unwrap_or(shape.heads),
        "max_position_embeddings": recipe.max_length.unwrap_or(MAX_LENGTH),
        "pad_token_id": 0,
        "is_causal": recipe.attention == Some(AttentionMode::Causal),
    }));
    config.map_err(unnamed)
}

/// The `config.json` of a new cross-encoder: ModernBERT's, whose layers all see the whole pair and whose head scores
/// the mean of the states. From nothing, BERT's first token learns nothing in as many steps.
pub fn new_encoder_value(shape: &NewModel, recipe: &ModelRecipe) -> serde_json::Value {
    serde_json::json!({
        "model_type": Family::Modernbert.model_type(),
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": recipe.max_length.unwrap_or(MAX_LENGTH),
        "global_attn_every_n_layers": 1,
        "classifier_pooling": "mean",
        "pad_token_id": 0,
    })
}

/// The shape of a new cross-encoder, by its `config.json`.
///
/// # Errors
/// Sizes that contradict one another.
pub fn new_encoder_config(value: &serde_json::Value) -> Result<ModelConfig> {
    ModelConfig::from_value(value).map_err(unnamed)
}

/// The error of a shape of which there is no config.json yet to be named.
fn unnamed(error: kiln_embed::Error) -> anyhow::Error {
    match error {
        kiln_embed::Error::BadFile { cause, .. } => {
            anyhow!("model.new: {cause}; change the recipe")
        }
        error => error.into(),
    }
}

/// A new ModernBERT-shaped cross-encoder with random weights, and its tokenizer.
///
/// # Errors
/// Sizes that contradict one another.
pub fn new_reranker<'a, B: Kernels>(
    shape: &NewModel,
    recipe: &Recipe,
    texts: impl Iterator<Item = &'a str> + Send,
    device: &B::Device,
) -> Result<Reranker<B>> {
    let value = new_encoder_value(shape, &recipe.model);
    let config = new_encoder_config(&value)?;
    let json = train_tokenizer(texts, shape.vocab_size, shape.lower_case)?;
    let failed = |error: tokenizers::Error| anyhow!("cannot make a template: {error}");
    let mut trained = tokenizers::Tokenizer::from_bytes(&json).map_err(failed)?;
    let [_, first, last] = SPECIAL;
    put_around(&mut trained, Some(format!("{first} $A {last} $B {last}")))?;
    let json = trained.to_string(true).map_err(failed)?.into_bytes();
    let tokenizer_config = TokenizerConfig::new(recipe.model.max_length.unwrap_or(MAX_LENGTH));
    let names = tokenizer_config_file(config.family, &tokenizer_config, [first, last, SPECIAL[0]]);
    let mut names: serde_json::Value = serde_json::from_slice(&names)?;
    names["model_input_names"] = serde_json::json!(["input_ids", "attention_mask"]);
    let tokenizer = Tokenizer::new(&json, &names, tokenizer_config)?;
    let files = [
        ("tokenizer.json".into(), json.into()),
        ("tokenizer_config.json".into(), format!("{names:#}\n").into()),
    ];
    let (activation, files) = (fresh_activation(recipe), Files(files.into()));
    let parts = RerankerParts::random((&config, &value), (tokenizer, files), activation, device)?;
    Ok(Reranker::from_parts(parts)?)
}

/// What a cross-encoder with a fresh head makes of its scores: nothing where it has learned a teacher's, else
/// sentence-transformers' sigmoid.
fn fresh_activation(recipe: &Recipe) -> ScoreActivation {
    let last = recipe.stages.last().and_then(|stage| stage.rerank).unwrap_or_default();
    match last.loss.learns_scores() {
        true => ScoreActivation::Identity,
        false => ScoreActivation::Sigmoid,
    }
}

/// The recipe's base model as a cross-encoder: with its own head where it is one, else with a fresh one.
///
/// # Errors
/// Whatever is wrong with the model's files; a model of which no cross-encoder is trained.
pub fn base_reranker<B: Kernels>(
    base: &str,
    recipe: &Recipe,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Reranker<B>> {
    // Refuses what cannot be trained before the weights come.
    reranker_config(base, Terminal { quiet: true, ..terminal })?;
    let options = LoadOptions {
        max_length: recipe.model.max_length,
        // Training is in floating point.
        precision: WeightPrecision::Full,
        ..LoadOptions::default()
    };
    let folder = open_folder(&resolve(base, terminal)?)?;
    let fresh = fresh_activation(recipe);
    let reranker = Reranker::<B>::for_training(folder.as_ref(), &options, fresh, device)?;
    if recipe.model.keep_blocks.is_none() && !recipe.model.keep_zeros {
        return Ok(reranker);
    }
    let mut parts = reranker.into_parts();
    if let Some(keep) = &recipe.model.keep_blocks {
        parts.model = parts.model.keep_blocks(keep)?;
    }
    if recipe.model.keep_zeros {
        parts.model = parts.model.map_backbone(Backbone::keep_zeros);
    }
    Ok(Reranker::from_parts(parts)?)
}

/// A new Llama-shaped model with random weights, and its tokenizer.
///
/// # Errors
/// Sizes that contradict one another.
pub fn new_model<'a, B: Kernels>(
    shape: &NewModel,
    recipe: &ModelRecipe,
    texts: impl Iterator<Item = &'a str> + Send,
    device: &B::Device,
) -> Result<Embedder<B>> {
    let max_length = recipe.max_length.unwrap_or(MAX_LENGTH);
    let config = new_config(shape, recipe)?;
    if let Some(folder) = &shape.tokenizer {
        return with_tokenizer_of(folder, shape, recipe, device);
    }
    let json = train_tokenizer(texts, shape.vocab_size, shape.lower_case)?;
    let text = recipe.text_options();
    let tokenizer_config = TokenizerConfig {
        max_length,
        padding_side: text.padding_side.unwrap_or(PaddingSide::Right),
        add_bos: Some(text.add_bos.unwrap_or(true)),
        add_eos: Some(text.add_eos.unwrap_or(true)),
        text_suffix: text.text_suffix.unwrap_or_default(),
        lower_case: false,
        drop_unknown: false,
        instruction: text.instruction.unwrap_or(InstructionSpan::Masked),
    };
    let names = tokenizer_config_file(
        config.family,
        &tokenizer_config,
        [SPECIAL[1], SPECIAL[2], SPECIAL[0]],
    );
    let tokenizer = Tokenizer::new(&json, &serde_json::from_slice(&names)?, tokenizer_config)?;
    let json = tokenizer.to_json()?;
    let files = Files(
        [("tokenizer.json".into(), json.into()), ("tokenizer_config.json".into(), names.into())]
            .into(),
    );
    assemble(&config, shape, recipe, (tokenizer, files), device)
}

/// A new model with the tokenizer of another one.
fn with_tokenizer_of<B: Kernels>(
    folder: &str,
    shape: &NewModel,
    recipe: &ModelRecipe,
    device: &B::Device,
) -> Result<Embedder<B>> {
    let options = LoadOptions {
        max_length: recipe.max_length,
        text: recipe.text_options(),
        ..LoadOptions::default()
    };
    let quiet = Terminal { json: false, quiet: true };
    let donor = load_embedder::<B>(folder, &options, device, quiet)?;
    let shape = NewModel { vocab_size: donor.model().config().vocab_size, ..shape.clone() };
    let mut config = new_config(&shape, recipe)?;
    config.pad_token_id = donor.model().config().pad_token_id;
    let EmbedderParts { tokenizer, tokenizer_files, .. } = donor.into_parts();
    assemble(&config, &shape, recipe, (tokenizer, tokenizer_files), device)
}

/// The projection to a new model's dimensions, where the recipe names some.
pub(super) fn projection(
    shape: &NewModel,
    config: &ModelConfig,
    pooling: &PoolingConfig,
) -> Option<DenseConfig> {
    shape.dimensions.map(|out_features| DenseConfig {
        in_features: pooling.output_size(config.output_size()),
        out_features,
        bias: false,
        activation: DenseActivation::Identity,
    })
}

fn assemble<B: Kernels>(
    config: &ModelConfig,
    shape: &NewModel,
    recipe: &ModelRecipe,
    (tokenizer, files): (Tokenizer, Files),
    device: &B::Device,
) -> Result<Embedder<B>> {
    let pooling = recipe.pooling.clone().unwrap_or(PoolingConfig::Mean);
    let mut model = EmbeddingModel::random(config, &pooling, device);
    if let Some(projection) = projection(shape, config, &pooling) {
        model = model.with_dense(Dense::new(&projection, device));
    }
    let prompts = Prompts::from(recipe.prompts.clone())
        .with_instruction_format(recipe.instruction_format.clone())?;
    Ok(Embedder::new(model, tokenizer, device)?.with_prompts(prompts).with_tokenizer_files(files))
}

/// The recipe's base model, with its overrides and prompts.
///
/// # Errors
/// Whatever is wrong with the model's files.
pub fn base_model<B: Kernels>(
    base: &str,
    recipe: &Recipe,
    device: &B::Device,
    terminal: Terminal,
) -> Result<Embedder<B>> {
    let compute = recipe.compute.precision;
    let recipe = &recipe.model;
    let keeps_bf16 = compute == ComputeDtype::Bf16
        && recipe.lora.is_some()
        && recipe.frozen_weights.is_none()
        && !B::HOST
        && !recipe.keep_zeros
        && B::supports_dtype(device, DType::BF16)
        // Adapters that are merged into a base make weights that are no longer in bf16.
        && matches!(folders(base, terminal)?.as_slice(), [folder] if stored_in_bf16(folder));
    let options = LoadOptions {
        pooling: recipe.pooling.clone(),
        attention: recipe.attention,
        max_length: recipe.max_length,
        text: recipe.text_options(),
        precision: match recipe.frozen_weights {
            Some(scheme) => WeightPrecision::Rounded(scheme),
            None if keeps_bf16 => WeightPrecision::Bf16,
            None => WeightPrecision::Full,
        },
    };
    let embedder = load_to_train::<B>(base, &options, device, terminal)?;
    if recipe.frozen_weights.is_some() && !B::HOST {
        // Each is unpacked to be multiplied, and the table to be saved.
        let config = embedder.model().config();
        let values = embedder.model().backbone().largest_packed();
        let bytes = 4 * values.max(config.vocab_size * config.hidden_size) as u64;
        let largest = B::largest_tensor(device);
        if bytes > largest {
            bail!(
                "{base}: its largest weight takes {} MB where it is unpacked, and this GPU takes tensors of {} MB at most; \
                 train on the CPU",
                bytes >> 20,
                largest >> 20
            );
        }
    }
    let embedder = embedder.map_model(|mut model| {
        model = model.with_normalize(true);
        if let Some(keep) = &recipe.keep_blocks {
            model = model.keep_blocks(keep)?;
        }
        if recipe.keep_zeros {
            model = model.map_backbone(Backbone::keep_zeros);
        }
        Ok(model)
    })?;
    let mut prompts = embedder.prompts().clone();
    prompts.extend(recipe.prompts.clone());
    if let Some(format) = &recipe.instruction_format {
        prompts = prompts.with_instruction_format(Some(format.clone()))?;
    }
    // What is trained are vectors of length 1.
    Ok(embedder
        .with_prompts(prompts)
        .with_similarity(Similarity::Cosine)
        .with_truncate_dim(None)?)
}

/// Whether a folder is a model whose matrices are all in bf16.
pub(super) fn stored_in_bf16(folder: &Path) -> bool {
    let are_bf16 = || {
        let folder = open_folder(folder)?;
        let weights = Weights::open(folder.as_ref(), weights_stem(folder.as_ref())?)?;
        Ok::<_, anyhow::Error>(weights.are_bf16())
    };
    // One without weights, or of adapters alone, is said where it is loaded.
    are_bf16().unwrap_or(false)
}

/// Name of the language-model head's weights `[vocab, hidden]` in a checkpoint.
const LM_HEAD: &str = "lm_head.weight";

/// The base model's language-model head `[vocab, hidden]`, where a stage writes tokens and the base has one
/// of its own; `None` where its token embeddings are the head.
///
/// # Errors
/// A base that has neither, unless the stages say which head to use; weights that cannot be read.
pub fn own_lm_head(recipe: &Recipe, terminal: Terminal) -> Result<Option<TensorData>> {
    let writes: Vec<&Stage> =
        recipe.stages.iter().filter(|stage| stage.objective.writes_tokens()).collect();
    let (Some(base), Some(first)) = (&recipe.model.base, writes.first()) else {
        return Ok(None);
    };
    let Some(folder) = folders(base, terminal)?.pop() else {
        return Ok(None);
    };
    let folder = open_folder(&folder)?;
    let config = read_embedder_config(folder.as_ref())?.config;
    let Ok(decoder) = config.decoder() else {
        bail!(
            "stage {:?}: objective = {:?} writes tokens and needs a decoder; {base} is an encoder",
            first.name,
            first.objective.name()
        );
    };
    if let Some(width) = decoder.output_size {
        bail!(
            "stage {:?}: objective = {:?} writes tokens, and {base} projects its last states to {width} dimensions, \
             of which no language-model head makes tokens",
            first.name,
            first.objective.name()
        );
    }
    if decoder.tie_word_embeddings || writes.iter().all(|stage| stage.tied() == Some(true)) {
        return Ok(None);
    }
    let mut weights = Weights::open(folder.as_ref(), weights_stem(folder.as_ref())?)?;
    if let Some(values) = weights.read(LM_HEAD)? {
        let [vocab, hidden] = [config.vocab_size, config.hidden_size];
        if values.len() != vocab * hidden {
            bail!(
                "{}: {LM_HEAD} has {} values, and config.json makes it {vocab} x {hidden}",
                weights.label(),
                values.len()
            );
        }
        return Ok(Some(TensorData::new(values, [vocab, hidden])));
    }
    match writes.iter().find(|stage| stage.tied().is_none()) {
        Some(stage) => bail!(
            "stage {:?} writes tokens, and the base model {base} has no language-model head ({LM_HEAD}), nor does its \
             config.json tie one to the embeddings; start from the model with its head, or set {}.tied = true (the \
             embeddings) or false (a copy of them that trains)",
            stage.name,
            stage.objective.name()
        ),
        None => Ok(None),
    }
}

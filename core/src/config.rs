//! [`ModelConfig`], everything that the shape of a model depends on, and typed access to the keys
//! of `config.json`.
//!
//! Which key fills which field differs from family to family: `model::families` holds
//! [`ModelConfig::from_json`] and [`ModelConfig::to_value`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Error, Result};

/// A model family: which `model_type` it is, hence its config keys and weight names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// BERT: learned positions, token types, post-norm blocks.
    Bert,
    /// RoBERTa: as BERT, with positions that start after the padding id.
    Roberta,
    /// XLM-RoBERTa: as RoBERTa.
    XlmRoberta,
    /// XLM-RoBERTa-XL and -XXL: as RoBERTa, with norms before each branch.
    XlmRobertaXl,
    /// Llama 1 to 3.
    Llama,
    /// Mistral 7B: Llama with a sliding window.
    Mistral,
    /// Qwen2: Llama with biases on q, k and v.
    Qwen2,
    /// Qwen3: Llama with RMS norms on the heads of q and k.
    Qwen3,
    /// CamemBERT: as RoBERTa.
    Camembert,
    /// DistilBERT: BERT without token types.
    Distilbert,
    /// MPNet: RoBERTa's positions, and a learned bias for each bucket of distances.
    Mpnet,
    /// jina-embeddings-v2, BERT with ALiBi and a gated feed-forward; its files say `bert`.
    JinaBert,
    /// ModernBERT: pre-norm, rotary, gated, local and global layers.
    Modernbert,
    /// nomic-embed: post-norm, rotary; gated in v1 and v1.5, with experts in v2.
    NomicBert,
    /// gte v1.5, gte-multilingual and arctic-embed-m v2: post-norm, rotary, gated; older files say `new`.
    Gte,
    /// jina-embeddings-v3: XLM-RoBERTa with rotary positions in the place of learned ones.
    JinaEmbeddingsV3,
    /// EuroBERT: Llama in both directions.
    Eurobert,
    /// Gemma: Llama with scaled embeddings and `1 + weight` in its norms.
    Gemma,
    /// Gemma 3's text models, EmbeddingGemma among them.
    Gemma3,
    /// EmbeddingGemma 2's text part: Gemma 3 in both directions, with per-layer inputs.
    EmbeddingGemma2,
    /// A table of tokens whose rows are averaged.
    Static,
}

impl Family {
    /// All families, in the order in which errors list them.
    pub const ALL: [Family; 21] = [
        Family::Bert,
        Family::Roberta,
        Family::XlmRoberta,
        Family::XlmRobertaXl,
        Family::Llama,
        Family::Mistral,
        Family::Qwen2,
        Family::Qwen3,
        Family::Camembert,
        Family::Distilbert,
        Family::Mpnet,
        Family::JinaBert,
        Family::Modernbert,
        Family::NomicBert,
        Family::Gte,
        Family::JinaEmbeddingsV3,
        Family::Eurobert,
        Family::Gemma,
        Family::Gemma3,
        Family::EmbeddingGemma2,
        Family::Static,
    ];

    /// The `model_type` string of `config.json`.
    pub fn model_type(self) -> &'static str {
        match self {
            Family::Bert => "bert",
            Family::Roberta => "roberta",
            Family::XlmRoberta => "xlm-roberta",
            Family::XlmRobertaXl => "xlm-roberta-xl",
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Camembert => "camembert",
            Family::Distilbert => "distilbert",
            Family::Mpnet => "mpnet",
            Family::JinaBert => "bert",
            Family::Modernbert => "modernbert",
            Family::NomicBert => "nomic_bert",
            Family::Gte => "gte",
            Family::JinaEmbeddingsV3 => "jina_embeddings_v3",
            Family::Eurobert => "eurobert",
            Family::Gemma => "gemma",
            Family::Gemma3 => "gemma3_text",
            Family::EmbeddingGemma2 => "embedding_gemma2_text",
            Family::Static => "static",
        }
    }

    /// True for language models, which are causal unless told otherwise.
    pub fn is_decoder(self) -> bool {
        matches!(
            self,
            Family::Llama
                | Family::Mistral
                | Family::Qwen2
                | Family::Qwen3
                | Family::Gemma
                | Family::Gemma3
        )
    }

    /// True where `add_bos_token` and `add_eos_token` of a tokenizer's settings are obeyed: in language models,
    /// and in what was made of one.
    pub(crate) fn adds_tokens(self) -> bool {
        self.is_decoder() || self == Family::EmbeddingGemma2
    }
}

/// Activation function of a feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Exact Gaussian error linear unit.
    Gelu,
    /// Its tanh approximation (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
    /// Sigmoid linear unit, `x * sigmoid(x)`.
    Silu,
    /// Rectified linear unit.
    Relu,
}

impl Activation {
    /// Reads a Hugging Face `hidden_act` name.
    pub fn from_hf(name: &str) -> Result<Self> {
        match name {
            "gelu" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
            "silu" | "swish" => Ok(Activation::Silu),
            "relu" => Ok(Activation::Relu),
            other => Err(bad_config(format!(
                "unknown hidden_act {other:?}; supported are gelu, gelu_new, gelu_pytorch_tanh, silu, relu"
            ))),
        }
    }

    /// The Hugging Face `hidden_act` name.
    pub fn to_hf(self) -> &'static str {
        match self {
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_pytorch_tanh",
            Activation::Silu => "silu",
            Activation::Relu => "relu",
        }
    }
}

/// How rotary frequencies are stretched beyond the length seen in training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Plain rotary positions.
    Default,
    /// All frequencies divided by `factor`.
    Linear {
        /// Stretch factor, at least 1.
        factor: f64,
    },
    /// Gemma 4: of each head's pairs of dimensions the first alone turn.
    Proportional {
        /// All frequencies are divided by it.
        factor: f64,
        /// Share of the pairs that turn.
        partial_rotary_factor: f64,
    },
    /// Llama 3: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// Stretch factor of the low frequencies.
        factor: f64,
        /// Wavelengths longer than `original / low_freq_factor` are stretched.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of the original model, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN (arXiv:2309.00071): interpolation by parts and a temperature on the attention.
    Yarn {
        /// Stretch factor.
        factor: f64,
        /// Context length of the original model, in tokens.
        original_max_position_embeddings: usize,
        /// Rotations above which a dimension is kept.
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated.
        beta_slow: f64,
        /// Factor on cos and sin.
        attention_factor: f64,
        /// Whether the ramp's bounds are rounded to whole dimensions.
        truncate: bool,
    },
}

/// Rotary position embedding (arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base wavelength.
    pub theta: f64,
    /// Frequency scaling.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Refuses values that would give angles that are not finite.
    fn check(&self) -> Result<()> {
        let finite = |key: &str, value: f64, least: f64, most: f64| {
            if value > least && value <= most {
                return Ok(());
            }
            Err(bad_config(format!(
                "{key} is {value}, and has to be above {least} and at most {most:e}"
            )))
        };
        let length = |length: usize| match length {
            1..=0xffff_ffff => Ok(()),
            _ => Err(bad_config(format!("original_max_position_embeddings is {length}"))),
        };
        finite("rope_theta", self.theta, 1.0, 1e18)?;
        match self.scaling {
            RopeScaling::Default => Ok(()),
            RopeScaling::Linear { factor } => finite("the rope factor", factor, 0.0, 1e6),
            RopeScaling::Proportional { factor, partial_rotary_factor } => {
                finite("the rope factor", factor, 0.0, 1e6)?;
                finite("partial_rotary_factor", partial_rotary_factor, 0.0, 1.0)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings,
            } => {
                finite("the rope factor", factor, 0.0, 1e6)?;
                finite("low_freq_factor", low, 0.0, 1e6)?;
                // The ramp divides by their distance.
                finite("high_freq_factor", high, low, 1e6)?;
                length(original_max_position_embeddings)
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings,
                beta_fast,
                beta_slow,
                attention_factor,
                truncate: _,
            } => {
                finite("the rope factor", factor, 0.0, 1e6)?;
                finite("beta_slow", beta_slow, 0.0, 1e6)?;
                finite("beta_fast", beta_fast, 0.0, 1e6)?;
                finite("attention_factor", attention_factor, 0.0, 1e3)?;
                length(original_max_position_embeddings)
            }
        }
    }
}

/// Rotary positions by layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ropes {
    /// Of layers that see the whole text, and of all where there are no others.
    pub global: Rope,
    /// Of layers with a window, where they have their own (ModernBERT, Gemma 3).
    pub local: Option<Rope>,
}

impl Ropes {
    /// The same for all layers.
    pub fn alike(rope: Rope) -> Self {
        Self { global: rope, local: None }
    }
}

/// A table of positions that is added to the tokens' embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedPositions {
    /// Row of the first token: 0 for BERT, `pad_token_id + 1` for RoBERTa.
    pub offset: usize,
    /// Rows of the table, the offset included.
    pub rows: usize,
}

/// What is added to the scores of attention, by the distance of key and query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreBias {
    /// A learned number for each head and bucket of distances, shared by all layers (T5, arXiv:1910.10683,
    /// section 2.1; MPNet).
    Buckets {
        /// Number of buckets; half of them are for keys after the query.
        buckets: usize,
        /// Distances from here on share the last bucket.
        max_distance: usize,
    },
    /// The distance times a constant of the head, subtracted (ALiBi, arXiv:2108.12409), in both directions.
    Alibi,
}

/// The gate of a feed-forward block (GLU, arXiv:2002.05202).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// There is none.
    None,
    /// A projection of its own.
    Apart,
    /// The first half of the outputs of the projection into the block.
    Joined,
}

/// Feed-forwards of which each token takes a few (sparsely gated mixture of experts, arXiv:1701.06538).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MixtureOfExperts {
    /// Number of experts of a layer.
    pub count: usize,
    /// Experts that a token takes.
    pub top_k: usize,
    /// Layer `i` has experts where `i % every == 1`.
    pub every: usize,
}

impl MixtureOfExperts {
    /// Most experts of a layer.
    const MOST: usize = 128;

    /// Whether a layer has experts, and not one feed-forward for all tokens.
    pub fn are_in(self, layer: usize) -> bool {
        self.every > 1 && layer % self.every == 1
    }

    fn check(self) -> Result<()> {
        let Self { count, top_k, every } = self;
        let within = |key: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(bad_config(format!("{key} is {value}, outside {least}..={most}")))
        };
        within("num_experts", count, 1, Self::MOST)?;
        within("moe_top_k", top_k, 1, count)?;
        within("moe_every_n_layers", every, 2, LARGEST)
    }

    /// Where the experts are once only some layers are kept, in the order given; `None`: nowhere.
    fn keep(self, keep: &[usize]) -> Result<Option<Self>> {
        let has: Vec<bool> = keep.iter().map(|&layer| self.are_in(layer)).collect();
        if !has.contains(&true) {
            return Ok(None);
        }
        let fits = |every: &usize| {
            let kept = Self { every: *every, ..self };
            has.iter().enumerate().all(|(layer, has)| kept.are_in(layer) == *has)
        };
        let every = std::iter::once(self.every).chain(2..=keep.len()).find(fits);
        let every = every.ok_or_else(|| {
            Error::invalid(format!(
                "experts would be in other layers than moe_every_n_layers can say (1, 1 + n, 1 + 2 n ..); they are in \
                 1, {}, {} .. now",
                1 + self.every,
                1 + 2 * self.every
            ))
        })?;
        Ok(Some(Self { every, ..self }))
    }
}

/// What only the encoder has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderConfig {
    /// Learned positions.
    pub positions: Option<LearnedPositions>,
    /// Rotary positions.
    pub ropes: Option<Ropes>,
    /// Bias on the scores of attention.
    pub score_bias: Option<ScoreBias>,
    /// Rows of the token-type table (every token uses row 0); 0: there is none.
    pub type_vocab_size: usize,
    /// Whether the sum of the embeddings is normed; it is but in static embeddings and XLM-RoBERTa-XL.
    pub embedding_norm: bool,
    /// Norms before attention and feed-forward, and one at the end (ModernBERT, XLM-RoBERTa-XL), rather than after
    /// each residual sum (BERT). The first attention's is that of the embeddings, where they have one.
    pub pre_norm: bool,
    /// Whether norms add a learned vector.
    pub norm_bias: bool,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub output_bias: bool,
    /// The gate of the feed-forward.
    pub gate: Gate,
    /// Biases on the feed-forward's first projections.
    pub up_bias: bool,
    /// Bias on its last.
    pub down_bias: bool,
    /// Experts in the place of some layers' feed-forward, of the same width and without biases and gates of their own.
    pub experts: Option<MixtureOfExperts>,
    /// Farthest key that a query of each layer sees, in tokens; `None`: the whole text.
    pub windows: Vec<Option<usize>>,
}

impl EncoderConfig {
    /// BERT's (arXiv:1810.04805) with so many layers, from which the other families differ.
    pub fn bert(layers: usize) -> Self {
        Self {
            positions: None,
            ropes: None,
            score_bias: None,
            type_vocab_size: 0,
            embedding_norm: true,
            pre_norm: false,
            norm_bias: true,
            qkv_bias: true,
            output_bias: true,
            gate: Gate::None,
            up_bias: true,
            down_bias: true,
            experts: None,
            windows: vec![None; layers],
        }
    }
}

/// What only the decoder has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecoderConfig {
    /// Rotary positions.
    pub ropes: Ropes,
    /// Biases on the q, k and v projections.
    pub qkv_bias: bool,
    /// Bias on the attention's output projection.
    pub output_bias: bool,
    /// Biases in the feed-forward block.
    pub mlp_bias: bool,
    /// RMS norms on the heads of q and k (Qwen3).
    pub qk_norm: bool,
    /// Sliding window of each layer in tokens; `None`: the whole text.
    pub windows: Vec<Option<usize>>,
    /// A norm on the output of each branch, too (Gemma).
    pub sandwich_norms: bool,
    /// What embeddings are multiplied with (Gemma).
    pub embedding_scale: Option<f64>,
    /// The scores' scale is its root's inverse, where it is not the heads' width (Gemma); their norms carry it.
    pub query_scalar: Option<f64>,
    /// Whether a language-model head would share the embedding table.
    pub tie_word_embeddings: bool,
    /// Keys and values of layers that see the whole text, where they differ from the other layers'
    /// (EmbeddingGemma 2).
    pub global_heads: Option<LayerHeads>,
    /// RMS norms without factors on the heads of v (EmbeddingGemma 2).
    pub value_norm: bool,
    /// Width of the inputs that each layer gets of the token embeddings (EmbeddingGemma 2).
    pub per_layer_input: Option<usize>,
    /// Whether each layer's output is multiplied with a number of its own (EmbeddingGemma 2).
    pub layer_scales: bool,
    /// Width to which the last states are projected, if they are (EmbeddingGemma 2).
    pub output_size: Option<usize>,
}

/// Heads of a layer's attention; those of the queries are as many in all layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerHeads {
    /// Key and value heads; divides the number of query heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
}

/// Which of the two architectures a model is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    /// Blocks with layer norms, BERT's and their kin.
    Encoder(EncoderConfig),
    /// Blocks with RMS norms, Llama's and their kin.
    Decoder(DecoderConfig),
}

/// Which keys a query may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionMode {
    /// Only itself and earlier tokens.
    Causal,
    /// Everything.
    Bidirectional,
}

/// Everything a model's shape depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelConfig {
    /// Family.
    pub family: Family,
    /// Rows of the token embedding table.
    pub vocab_size: usize,
    /// Width d of the hidden states.
    pub hidden_size: usize,
    /// Inner width of the feed-forward block.
    pub intermediate_size: usize,
    /// Number of blocks N.
    pub num_layers: usize,
    /// Query heads H.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Longest input in tokens.
    pub max_positions: usize,
    /// Epsilon of the norms.
    pub norm_eps: f64,
    /// Activation of the feed-forward block.
    pub activation: Activation,
    /// Causal or bidirectional attention.
    pub attention: AttentionMode,
    /// Id of the padding token, where the config names one.
    pub pad_token_id: Option<u32>,
    /// Encoder or decoder, with what only it has.
    pub architecture: Architecture,
}

/// Largest width, table or length that a model may have.
const LARGEST: usize = 1 << 24;

/// The error of a `config.json` that no model can be built from.
pub(crate) fn bad_config(cause: impl std::fmt::Display) -> Error {
    Error::bad_file("config.json", cause, "use the config.json that was saved with the weights")
}

impl ModelConfig {
    /// The configuration of a model with only some of its layers, in the order given.
    ///
    /// # Errors
    /// No layer, one that the model lacks, or an order that the family's configuration cannot say.
    pub fn keep_layers(mut self, keep: &[usize]) -> Result<Self> {
        check_kept(keep, self.num_layers)?;
        if let Architecture::Encoder(encoder) = &self.architecture
            && encoder.pre_norm
            && encoder.embedding_norm
            && (keep[0] != 0 || keep[1..].contains(&0))
        {
            return Err(Error::invalid(
                "block 0 of this model has no norm before its attention: keep it, and first",
            ));
        }
        let of_last = keep.last().and_then(|&layer| self.windows().get(layer).copied().flatten());
        if self.family == Family::EmbeddingGemma2 && of_last.is_some() {
            return Err(Error::invalid(
                "the last block of EmbeddingGemma 2 has to see the whole text: keep one without a window last",
            ));
        }
        if let Architecture::Encoder(encoder) = &mut self.architecture
            && let Some(experts) = encoder.experts
        {
            encoder.experts = experts.keep(keep)?;
        }
        self.num_layers = keep.len();
        let windows = self.windows_mut();
        *windows = keep.iter().map(|&layer| windows.get(layer).copied().flatten()).collect();
        Ok(self)
    }

    fn windows_mut(&mut self) -> &mut Vec<Option<usize>> {
        match &mut self.architecture {
            Architecture::Encoder(encoder) => &mut encoder.windows,
            Architecture::Decoder(decoder) => &mut decoder.windows,
        }
    }

    /// Window of each layer in tokens; `None`: the whole text.
    pub fn windows(&self) -> &[Option<usize>] {
        match &self.architecture {
            Architecture::Encoder(encoder) => &encoder.windows,
            Architecture::Decoder(decoder) => &decoder.windows,
        }
    }

    /// The same with another attention.
    ///
    /// # Errors
    /// A family that cannot be saved so.
    pub(crate) fn attending(self, attention: AttentionMode) -> Result<Self> {
        if self.family == Family::EmbeddingGemma2 && attention == AttentionMode::Causal {
            return Err(Error::invalid(
                "EmbeddingGemma 2 attends in both directions alone: leave its attention as it is",
            ));
        }
        Ok(Self { attention, ..self })
    }

    /// Heads of a layer.
    pub fn heads_of(&self, layer: usize) -> LayerHeads {
        let own = match (&self.architecture, self.windows().get(layer)) {
            (Architecture::Decoder(decoder), Some(None)) => decoder.global_heads,
            _ => None,
        };
        own.unwrap_or(LayerHeads { kv_heads: self.num_kv_heads, head_dim: self.head_dim })
    }

    /// Width of the last states, which is not that of the others where they are projected.
    pub fn output_size(&self) -> usize {
        let projected = self.decoder().ok().and_then(|decoder| decoder.output_size);
        projected.unwrap_or(self.hidden_size)
    }

    /// Width of the states `hidden_states[index]`, of which the embeddings are the first and the last states the last.
    pub fn state_size(&self, index: usize) -> usize {
        if index < self.num_layers { self.hidden_size } else { self.output_size() }
    }

    /// Rotary positions, where the model has them.
    pub fn ropes(&self) -> Option<&Ropes> {
        match &self.architecture {
            Architecture::Encoder(encoder) => encoder.ropes.as_ref(),
            Architecture::Decoder(decoder) => Some(&decoder.ropes),
        }
    }

    /// The encoder's part, or an error for a decoder.
    pub fn encoder(&self) -> Result<&EncoderConfig> {
        match &self.architecture {
            Architecture::Encoder(encoder) => Ok(encoder),
            Architecture::Decoder(_) => {
                Err(Error::invalid("this model is a decoder, not an encoder"))
            }
        }
    }

    pub(crate) fn decoder_mut(&mut self) -> Result<&mut DecoderConfig> {
        match &mut self.architecture {
            Architecture::Decoder(decoder) => Ok(decoder),
            Architecture::Encoder(_) => {
                Err(Error::invalid("this model is an encoder, not a decoder"))
            }
        }
    }

    /// The decoder's part, or an error for an encoder.
    pub fn decoder(&self) -> Result<&DecoderConfig> {
        match &self.architecture {
            Architecture::Decoder(decoder) => Ok(decoder),
            Architecture::Encoder(_) => {
                Err(Error::invalid("this model is an encoder, not a decoder"))
            }
        }
    }

    /// Checks that the sizes fit one another, so that no later code divides by zero or allocates
    /// without bound.
    pub(crate) fn check(&self) -> Result<()> {
        let sizes = [
            ("vocab_size", self.vocab_size, LARGEST),
            ("hidden_size", self.hidden_size, LARGEST),
            ("intermediate_size", self.intermediate_size, LARGEST),
            ("num_hidden_layers", self.num_layers, 1024),
            // The width of the queries is the product of both.
            ("num_attention_heads", self.num_heads, 1 << 12),
            ("num_key_value_heads", self.num_kv_heads, 1 << 12),
            ("head_dim", self.head_dim, 1 << 14),
            ("max_position_embeddings", self.max_positions, LARGEST),
        ];
        for (key, size, largest) in sizes {
            let may_be_none = key == "num_hidden_layers" && self.family == Family::Static;
            if (size == 0 && !may_be_none) || size > largest {
                return Err(bad_config(format!("{key} is {size}, outside 1..={largest}")));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return Err(bad_config(format!(
                "num_attention_heads {} is no multiple of num_key_value_heads {}",
                self.num_heads, self.num_kv_heads
            )));
        }
        // It keeps a norm from dividing by zero, so it must not round to zero in f32 either.
        if !(f64::from(f32::MIN_POSITIVE)..=1.0).contains(&self.norm_eps) {
            return Err(bad_config(format!(
                "the norm epsilon is {:e}, and has to be between {:e} and 1",
                self.norm_eps,
                f32::MIN_POSITIVE
            )));
        }
        match &self.architecture {
            Architecture::Encoder(encoder) => self.check_encoder(encoder)?,
            Architecture::Decoder(decoder) => self.check_decoder(decoder)?,
        }
        if let Some(ropes) = self.ropes() {
            let global = (0..self.num_layers).map(|layer| self.heads_of(layer).head_dim);
            if let Some(odd) = global.chain([self.head_dim]).find(|dim| !dim.is_multiple_of(2)) {
                return Err(bad_config(format!(
                    "head_dim {odd} is odd; rotary positions need pairs"
                )));
            }
            ropes.global.check()?;
            ropes.local.as_ref().map_or(Ok(()), Rope::check)?;
        }
        let windows = self.windows();
        if let Some(window) =
            windows.iter().flatten().find(|window| !(1..=LARGEST).contains(*window))
        {
            return Err(bad_config(format!("sliding_window is {window}, outside 1..={LARGEST}")));
        }
        if windows.len() != self.num_layers {
            return Err(bad_config(format!(
                "layer_types has {} entries for {} layers",
                windows.len(),
                self.num_layers
            )));
        }
        self.check_addressable()
    }

    /// Checks what only the decoder has.
    fn check_decoder(&self, decoder: &DecoderConfig) -> Result<()> {
        let global = decoder.global_heads;
        let sizes = [
            ("num_key_value_heads", global.map(|heads| heads.kv_heads), 1 << 12),
            ("head_dim", global.map(|heads| heads.head_dim), 1 << 14),
            ("hidden_size_per_layer_input", decoder.per_layer_input, 1 << 14),
            ("embedding_dim", decoder.output_size, LARGEST),
        ];
        for (key, size, largest) in sizes {
            if let Some(size) = size.filter(|size| !(1..=largest).contains(size)) {
                return Err(bad_config(format!("{key} is {size}, outside 1..={largest}")));
            }
        }
        match global {
            Some(LayerHeads { kv_heads, .. }) if !self.num_heads.is_multiple_of(kv_heads) => {
                Err(bad_config(format!(
                    "num_attention_heads {} is no multiple of the {kv_heads} for keys and values of layers that see \
                     the whole text",
                    self.num_heads
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_encoder(&self, encoder: &EncoderConfig) -> Result<()> {
        if self.num_heads * self.head_dim != self.hidden_size {
            return Err(bad_config(format!(
                "hidden_size {} is no multiple of num_attention_heads {}",
                self.hidden_size, self.num_heads
            )));
        }
        if let Some(LearnedPositions { offset, rows }) = encoder.positions
            && (rows <= offset || rows > LARGEST)
        {
            return Err(bad_config("max_position_embeddings leaves no position for a token"));
        }
        if encoder.type_vocab_size > LARGEST {
            let types = encoder.type_vocab_size;
            return Err(bad_config(format!("type_vocab_size is {types}, more than {LARGEST}")));
        }
        encoder.experts.map_or(Ok(()), MixtureOfExperts::check)?;
        if let Some(ScoreBias::Buckets { buckets, max_distance }) = encoder.score_bias {
            // Two directions, each with buckets of one distance and buckets of several.
            if !(4..=1 << 16).contains(&buckets) || !buckets.is_multiple_of(4) {
                return Err(bad_config(format!(
                    "relative_attention_num_buckets is {buckets}, and has to be a multiple of 4 up to 65536"
                )));
            }
            if max_distance <= buckets / 4 || max_distance > LARGEST {
                return Err(bad_config(format!(
                    "the largest distance of {buckets} buckets is {max_distance}"
                )));
            }
        }
        Ok(())
    }

    /// Refuses matrices that are too large to address, which matters on 32-bit targets.
    fn check_addressable(&self) -> Result<()> {
        let qkv = |heads: LayerHeads| (self.num_heads + 2 * heads.kv_heads) * heads.head_dim;
        let own = LayerHeads { kv_heads: self.num_kv_heads, head_dim: self.head_dim };
        let more = match &self.architecture {
            Architecture::Encoder(encoder) => {
                [encoder.positions.map_or(0, |table| table.rows), encoder.type_vocab_size, 0]
            }
            Architecture::Decoder(decoder) => [
                decoder.global_heads.map_or(0, qkv),
                self.num_layers * decoder.per_layer_input.unwrap_or(0),
                decoder.output_size.unwrap_or(0),
            ],
        };
        let widest = [self.vocab_size, self.intermediate_size, qkv(own)].into_iter().chain(more);
        let widest = widest.max().unwrap_or_default();
        let bytes = widest.checked_mul(self.hidden_size).and_then(|count| count.checked_mul(4));
        match bytes {
            Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
            _ => Err(bad_config(format!(
                "a matrix of {widest} by {} is larger than this machine can address",
                self.hidden_size
            ))),
        }
    }
}

/// Typed access to the keys of a JSON object, with errors that name the key.
pub(crate) struct Keys<'a>(pub(crate) &'a serde_json::Map<String, Value>);

impl<'a> Keys<'a> {
    pub(crate) fn new(value: &'a Value) -> Result<Self> {
        value.as_object().map(Keys).ok_or_else(|| bad_config("not a JSON object"))
    }

    /// The value of a key; JSON `null` counts as absent, as it does in transformers.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub(crate) fn size(&self, key: &str) -> Result<usize> {
        self.size_or(key, None)
    }

    pub(crate) fn size_or(&self, key: &str, default: Option<usize>) -> Result<usize> {
        match (self.get(key), default) {
            (Some(value), _) => value
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .ok_or_else(|| bad_config(format!("{key} is {value}, not a whole number"))),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(bad_config(format!("the key {key} is missing"))),
        }
    }

    pub(crate) fn float_or(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            Some(value) => {
                value.as_f64().ok_or_else(|| bad_config(format!("{key} is {value}, not a number")))
            }
            None => Ok(default),
        }
    }

    pub(crate) fn bool_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            Some(value) => value
                .as_bool()
                .ok_or_else(|| bad_config(format!("{key} is {value}, not true or false"))),
            None => Ok(default),
        }
    }

    pub(crate) fn text_or(&self, key: &str, default: &'a str) -> Result<&'a str> {
        match self.get(key) {
            Some(value) => {
                value.as_str().ok_or_else(|| bad_config(format!("{key} is {value}, not a string")))
            }
            None => Ok(default),
        }
    }
}

/// Checks that `keep` names blocks of the model.
pub(crate) fn check_kept(keep: &[usize], layers: usize) -> Result<()> {
    if keep.is_empty() {
        return Err(Error::invalid("a model needs at least one block"));
    }
    match keep.iter().find(|&&block| block >= layers) {
        Some(block) => Err(Error::invalid(format!(
            "there is no block {block}: the model has {layers}, counted from 0"
        ))),
        None => Ok(()),
    }
}

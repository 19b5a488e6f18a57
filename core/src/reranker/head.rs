//! The head of a cross-encoder: from the states of a pair to its scores.

use burn::module::{Module, Param};
use burn::nn::{Initializer, LayerNorm, LayerNormConfig};
use burn::tensor::{Distribution, Tensor, activation, backend::Backend};

use crate::config::{Family, Gate, Keys, ModelConfig, bad_config};
use crate::kernels::Kernels;
use crate::model::families::Names;
use crate::model::{Linear, States, initialized};
use crate::pooling::PoolingConfig;
use crate::{Error, Result};

/// What lies between the head's projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// Hyperbolic tangent.
    Tanh,
    /// Gaussian error linear unit.
    Gelu,
    /// Rectified linear unit.
    Relu,
}

/// Which state of a pair is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scored {
    /// That of the first token.
    First,
    /// The mean of all.
    Mean,
    /// That of the last token.
    Last,
}

impl Scored {
    /// The pooling head that gives this state of each row of a batch.
    pub fn pooling(self) -> PoolingConfig {
        match self {
            Scored::First => PoolingConfig::Cls,
            Scored::Mean => PoolingConfig::Mean,
            Scored::Last => PoolingConfig::LastToken,
        }
    }
}

/// transformers' `initializer_range`.
const STD: f64 = 0.02;

/// N(0, std) without what lies beyond two deviations, ModernBERT's `initializer_cutoff_factor`.
fn truncated_normal<B: Backend>(shape: [usize; 2], std: f64, device: &B::Device) -> Tensor<B, 2> {
    let draw = || Tensor::<B, 2>::random(shape, Distribution::Normal(0.0, std), device);
    let mut x = draw();
    // Of a value in twenty each time; what is left after six is one in a hundred million.
    for _ in 0..6 {
        let beyond = x.clone().abs().greater_elem(2.0 * std);
        x = x.mask_where(beyond, draw());
    }
    x.clamp(-2.0 * std, 2.0 * std)
}

/// Shape of a [`ScoreHead`].
#[derive(Debug, Clone, PartialEq)]
pub struct HeadConfig {
    /// Width of the states.
    pub hidden: usize,
    /// Number of scores.
    pub labels: usize,
    /// Which state is scored.
    pub scored: Scored,
    /// The projection before the last, unless there is none, and whether it has a bias.
    pub dense: Option<(Between, bool)>,
    /// Epsilon of the norm after it, and whether it has a bias.
    pub norm: Option<(f64, bool)>,
    /// Whether the last projection has a bias.
    pub output_bias: bool,
}

/// `output(norm(act(dense(state))))`: transformers' heads for sequence classification.
#[derive(Module, Debug)]
pub struct ScoreHead<B: Backend> {
    pub(super) dense: Option<Linear<B>>,
    pub(super) norm: Option<LayerNorm<B>>,
    pub(super) output: Linear<B>,
    #[module(skip)]
    config: HeadConfig,
}

impl<B: Kernels> ScoreHead<B> {
    /// A head to be filled from a checkpoint, or of which the shape alone is wanted; no memory is allocated yet.
    pub fn unfilled(config: HeadConfig, device: &B::Device) -> Self {
        let init = Initializer::Normal { mean: 0.0, std: STD };
        let HeadConfig { hidden, labels, .. } = config;
        let dense = config
            .dense
            .map(|(_, bias)| Linear::new(hidden, &[("dense", hidden)], bias, &init, device));
        let norm = config.norm.map(|(epsilon, bias)| {
            LayerNormConfig::new(hidden).with_epsilon(epsilon).with_bias(bias).init(device)
        });
        let output =
            Linear::new(hidden, &[("classifier", labels)], config.output_bias, &init, device);
        Self { dense, norm, output, config }
    }

    /// A head with random weights, as transformers' class for sequence classification begins: N(0, 0.02), and zero
    /// biases; ModernBERT's draws are wider at the output and narrower before it.
    pub(super) fn random(config: HeadConfig, model: &ModelConfig, device: &B::Device) -> Self {
        let mut head = initialized(Self::unfilled(config, device));
        if model.family == Family::Modernbert {
            let width = |std: f64, linear: &mut Linear<B>| {
                let shape: [usize; 2] = linear.weight.dims();
                linear.weight = Param::from_tensor(truncated_normal(shape, std, device));
            };
            let layers = model.num_layers.max(1) as f64;
            head.dense.iter_mut().for_each(|dense| width(STD / (2.0 * layers).sqrt(), dense));
            width(1.0 / (model.hidden_size as f64).sqrt(), &mut head.output);
        }
        head
    }

    /// The head's shape.
    pub fn config(&self) -> &HeadConfig {
        &self.config
    }

    /// Number of scores of a pair.
    pub fn labels(&self) -> usize {
        self.config.labels
    }

    /// Scores `[1, labels]` of one pair's states, without padding.
    pub(super) fn forward(&self, states: States<B>) -> Tensor<B, 2> {
        let [_, seq, hidden] = states.last.dims();
        let at = |place: usize| states.last.clone().narrow(1, place, 1).reshape([1, hidden]);
        self.forward_rows(match self.config.scored {
            Scored::First => at(0),
            Scored::Last => at(seq - 1),
            Scored::Mean => states.last.clone().mean_dim(1).reshape([1, hidden]),
        })
    }

    /// Scores `[rows, labels]` of the states `[rows, hidden]` that are scored, in the numbers of the head.
    pub fn forward_rows(&self, states: Tensor<B, 2>) -> Tensor<B, 2> {
        let mut x = states.cast(self.output.weight.val().dtype());
        if let (Some(dense), Some((between, _))) = (&self.dense, self.config.dense) {
            x = dense.forward_rows(x);
            x = match between {
                Between::Tanh => x.tanh(),
                Between::Gelu => activation::gelu(x),
                Between::Relu => activation::relu(x),
            };
        }
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
        }
        self.output.forward_rows(x)
    }
}

/// The head that transformers' class for sequence classification has in a family, and the names of its tensors
/// behind the backbone's `prefix`; `None` for families without one.
///
/// # Errors
/// Settings of the head that are not supported.
pub(super) fn of_family(
    config: &ModelConfig,
    raw: &serde_json::Value,
    prefix: &str,
    labels: usize,
) -> Result<Option<(HeadConfig, Names)>> {
    if config.family == Family::NomicBert && config.encoder()?.gate == Gate::None {
        return Err(Error::invalid(
            "nomic-embed-text-v2-moe and other models of nomic_bert without a gate make no cross-encoders: transformers \
             has no class of them for sequence classification",
        ));
    }
    let plain = HeadConfig {
        hidden: config.hidden_size,
        labels,
        scored: Scored::First,
        dense: Some((Between::Tanh, true)),
        norm: None,
        output_bias: true,
    };
    let names = |dense: &str, output: &str| {
        Names::new(&[""], "classifier.weight").linear("dense", dense).linear("output", output)
    };
    let flag = |key: &str| raw.get(key).and_then(serde_json::Value::as_bool).unwrap_or(false);
    Ok(Some(match config.family {
        Family::Bert | Family::Gte | Family::NomicBert => {
            (plain, names(&format!("{prefix}pooler.dense"), "classifier"))
        }
        Family::Roberta
        | Family::XlmRoberta
        | Family::XlmRobertaXl
        | Family::Camembert
        | Family::Mpnet => (plain, names("classifier.dense", "classifier.out_proj")),
        Family::Distilbert => (
            HeadConfig { dense: Some((Between::Relu, true)), ..plain },
            names("pre_classifier", "classifier"),
        ),
        Family::Modernbert => {
            let keys = Keys::new(raw)?;
            let scored = match keys.text_or("classifier_pooling", "cls")? {
                "cls" => Scored::First,
                "mean" => Scored::Mean,
                other => return Err(unknown("classifier_pooling", other, "cls and mean")),
            };
            let between = match keys.text_or("classifier_activation", "gelu")? {
                "gelu" => Between::Gelu,
                "relu" => Between::Relu,
                "tanh" => Between::Tanh,
                other => {
                    return Err(unknown("classifier_activation", other, "gelu, relu and tanh"));
                }
            };
            let head = HeadConfig {
                scored,
                dense: Some((between, flag("classifier_bias"))),
                norm: Some((config.norm_eps, flag("norm_bias"))),
                ..plain
            };
            (head, names("head.dense", "classifier").norm("norm", "head.norm"))
        }
        _ => return Ok(None),
    }))
}

/// The head of a decoder that ranks, the product of the last state with one direction, and its tensor's name.
pub(super) fn of_decoder(config: &ModelConfig) -> (HeadConfig, Names) {
    let head = HeadConfig {
        hidden: config.hidden_size,
        labels: 1,
        scored: Scored::Last,
        dense: None,
        norm: None,
        output_bias: false,
    };
    (head, Names::new(&[""], "score.weight").linear("output", "score"))
}

fn unknown(key: &str, found: &str, known: &str) -> Error {
    bad_config(format!("{key} {found:?} is not supported; {known} are"))
}

/// Whether the head of a family begins with the backbone's pooler.
pub(super) fn takes_pooler(family: Family) -> bool {
    matches!(family, Family::Bert | Family::Gte | Family::NomicBert)
}

/// The name of the last projection's weight, which says how many scores there are.
pub(super) const OUTPUTS: [&str; 2] = ["classifier.out_proj.weight", "classifier.weight"];

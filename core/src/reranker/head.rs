//! The head of a cross-encoder: from the states of a pair to its scores.

use burn::module::Module;
use burn::nn::{Initializer, LayerNorm, LayerNormConfig};
use burn::tensor::{Tensor, activation, backend::Backend};

use crate::config::{Family, Keys, ModelConfig, bad_config};
use crate::kernels::Kernels;
use crate::model::families::Names;
use crate::model::{Linear, States};
use crate::{Error, Result};

/// What lies between the head's projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    Tanh,
    Gelu,
    Relu,
}

/// Which state of a pair is scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scored {
    First,
    Mean,
    Last,
}

/// Shape of a [`ScoreHead`].
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HeadConfig {
    pub hidden: usize,
    pub labels: usize,
    pub scored: Scored,
    /// The projection before the last, unless there is none, and whether it has a bias.
    pub dense: Option<(Between, bool)>,
    /// Epsilon of the norm after it, and whether it has a bias.
    pub norm: Option<(f64, bool)>,
    pub output_bias: bool,
}

/// `output(norm(act(dense(state))))`: transformers' heads for sequence classification.
#[derive(Module, Debug)]
pub struct ScoreHead<B: Backend> {
    dense: Option<Linear<B>>,
    norm: Option<LayerNorm<B>>,
    pub(super) output: Linear<B>,
    #[module(skip)]
    config: HeadConfig,
}

impl<B: Kernels> ScoreHead<B> {
    pub(super) fn unfilled(config: HeadConfig, device: &B::Device) -> Self {
        let init = Initializer::Normal { mean: 0.0, std: 0.02 };
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

    /// Number of scores of a pair.
    pub(super) fn labels(&self) -> usize {
        self.config.labels
    }

    /// Scores `[1, labels]` of one pair's states, without padding.
    pub(super) fn forward(&self, states: States<B>) -> Tensor<B, 2> {
        let [_, seq, hidden] = states.last.dims();
        let at = |place: usize| states.last.clone().narrow(1, place, 1).reshape([1, hidden]);
        let mut x = match self.config.scored {
            Scored::First => at(0),
            Scored::Last => at(seq - 1),
            Scored::Mean => states.last.clone().mean_dim(1).reshape([1, hidden]),
        };
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
        Family::Roberta | Family::XlmRoberta | Family::Camembert | Family::Mpnet => {
            (plain, names("classifier.dense", "classifier.out_proj"))
        }
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

fn unknown(key: &str, found: &str, known: &str) -> Error {
    bad_config(format!("{key} {found:?} is not supported; {known} are"))
}

/// Whether the head of a family begins with the backbone's pooler.
pub(super) fn takes_pooler(family: Family) -> bool {
    matches!(family, Family::Bert | Family::Gte | Family::NomicBert)
}

/// The name of the last projection's weight, which says how many scores there are.
pub(super) const OUTPUTS: [&str; 2] = ["classifier.out_proj.weight", "classifier.weight"];

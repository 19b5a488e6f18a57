//! How the paths of our parameters map to the tensor names of a checkpoint: one table, which
//! loading and saving share.

use crate::{Error, Result};

/// The names of one model family.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names {
    prefixes: Vec<&'static str>,
    probe: &'static str,
    rules: Vec<Rule>,
    ignored: Vec<&'static str>,
}

#[derive(Debug, Clone)]
struct Rule {
    /// Path of one parameter with `{}` for the layer.
    path: String,
    parts: Vec<Part>,
    transposed: bool,
}

#[derive(Debug, Clone)]
struct Part {
    name: String,
    /// Columns of the joined parameter that this tensor fills; `None`: all.
    width: Option<usize>,
}

/// Where one of our parameters lives in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorSource {
    /// Tensor names and how many of the parameter's last-dimension entries each fills.
    pub parts: Vec<(String, Option<usize>)>,
    /// Whether the checkpoint holds `[out, in]` where we hold `[in, out]`.
    pub transposed: bool,
}

impl Names {
    /// `prefixes` are what may stand before every name; `probe` is a name that every checkpoint
    /// of the family has, by which the prefix is found.
    pub(crate) fn new(prefixes: &[&'static str], probe: &'static str) -> Self {
        Self { prefixes: prefixes.to_vec(), probe, ..Self::default() }
    }

    fn rule(mut self, path: String, parts: Vec<Part>, transposed: bool) -> Self {
        self.rules.push(Rule { path, parts, transposed });
        self
    }

    /// A parameter that is one tensor as it is.
    pub(crate) fn tensor(self, path: &str, name: &str) -> Self {
        self.rule(path.into(), vec![Part { name: name.into(), width: None }], false)
    }

    /// A [`crate::model::Linear`]: weight (transposed) and bias.
    pub(crate) fn linear(self, path: &str, name: &str) -> Self {
        let part = |kind: &str| vec![Part { name: format!("{name}.{kind}"), width: None }];
        self.rule(format!("{path}.weight"), part("weight"), true).rule(
            format!("{path}.bias"),
            part("bias"),
            false,
        )
    }

    /// A [`crate::model::Linear`] whose columns are several of the checkpoint's projections.
    pub(crate) fn joined(self, path: &str, parts: &[(&str, usize)]) -> Self {
        let all = |kind: &str| {
            parts
                .iter()
                .map(|(name, width)| Part { name: format!("{name}.{kind}"), width: Some(*width) })
                .collect::<Vec<_>>()
        };
        let (weights, biases) = (all("weight"), all("bias"));
        self.rule(format!("{path}.weight"), weights, true).rule(
            format!("{path}.bias"),
            biases,
            false,
        )
    }

    /// A layer norm: `gamma` is the checkpoint's weight, `beta` its bias.
    pub(crate) fn norm(self, path: &str, name: &str) -> Self {
        let beta = vec![Part { name: format!("{name}.bias"), width: None }];
        self.rms(path, name).rule(format!("{path}.beta"), beta, false)
    }

    /// An RMS norm: `gamma` is the checkpoint's weight.
    pub(crate) fn rms(self, path: &str, name: &str) -> Self {
        let gamma = vec![Part { name: format!("{name}.weight"), width: None }];
        self.rule(format!("{path}.gamma"), gamma, false)
    }

    /// Tensors that a checkpoint may hold and that we do not use: names that start so, or (after
    /// `{}`) end so.
    pub(crate) fn ignored(mut self, names: &[&'static str]) -> Self {
        self.ignored.extend(names);
        self
    }

    /// Where the parameter at `path` (segments joined by dots) lives.
    ///
    /// # Errors
    /// A parameter that the table does not name, which is a defect of the table.
    pub(crate) fn source(&self, path: &str) -> Result<TensorSource> {
        let (general, layer) = split_layer(path);
        let rule = self.rules.iter().find(|rule| rule.path == general).ok_or_else(|| {
            Error::invalid(format!("the parameter {path} has no name in checkpoints"))
        })?;
        let name = |part: &Part| (part.name.replace("{}", layer.unwrap_or("{}")), part.width);
        Ok(TensorSource {
            parts: rule.parts.iter().map(name).collect(),
            transposed: rule.transposed,
        })
    }

    /// The prefix that a checkpoint puts before its names.
    pub(crate) fn prefix(&self, has: impl Fn(&str) -> bool) -> &'static str {
        self.prefixes
            .iter()
            .copied()
            .find(|prefix| has(&format!("{prefix}{}", self.probe)))
            .unwrap_or("")
    }

    /// Whether a tensor that no parameter uses may be passed over silently.
    pub(crate) fn is_ignored(&self, name: &str, prefix: &str) -> bool {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        self.ignored.iter().any(|ignored| match ignored.strip_prefix("{}") {
            Some(ending) => name.ends_with(ending),
            None => bare.starts_with(ignored) || name.starts_with(ignored),
        })
    }
}

/// `blocks.3.norm.gamma` to `blocks.{}.norm.gamma` and `3`.
fn split_layer(path: &str) -> (String, Option<&str>) {
    let is_number = |segment: &&str| segment.bytes().all(|byte| byte.is_ascii_digit());
    let layer = path.split('.').find(is_number);
    let general = path.split('.').map(|segment| if is_number(&segment) { "{}" } else { segment });
    (general.collect::<Vec<_>>().join("."), layer)
}

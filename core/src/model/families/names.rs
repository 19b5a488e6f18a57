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
    /// Path of one parameter with `{}` for the layer, and for what is numbered in it, or with the number of the only layer
    /// that it is for.
    path: String,
    parts: Vec<Part>,
    transposed: bool,
    affine: Option<Affine>,
}

/// A parameter that is `(value + add) * times` of a checkpoint's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Affine {
    /// Added first.
    pub add: f64,
    /// Multiplied with the sum.
    pub times: f64,
}

impl Affine {
    /// From the checkpoint's to ours.
    pub(crate) fn read(self, value: f32) -> f32 {
        ((f64::from(value) + self.add) * self.times) as f32
    }

    /// From ours to the checkpoint's.
    pub(crate) fn write(self, value: f32) -> f32 {
        (f64::from(value) / self.times - self.add) as f32
    }
}

/// A tensor that fills a parameter, or some of its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Name of the tensor.
    pub name: String,
    /// Columns (entries of the last dimension) of the joined parameter that it fills; `None`: all.
    pub width: Option<usize>,
    /// Which half of the tensor it is, where a release has two of our parameters in one.
    pub half: Option<usize>,
}

/// Where one of our parameters lives in a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorSource {
    /// Tensors, in the order of the columns that they fill.
    pub parts: Vec<Part>,
    /// Whether the checkpoint holds `[out, in]` where we hold `[in, out]`.
    pub transposed: bool,
    /// What is made of the checkpoint's values.
    pub affine: Option<Affine>,
}

/// A tensor in which a release has several matrices of ours, one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stacked {
    /// Its name.
    pub name: String,
    /// Names of the matrices by themselves.
    pub parts: Vec<String>,
    /// Its shape: the rows of all, one after the other.
    pub shape: [usize; 2],
    /// Whether it has their transposes.
    pub turned: bool,
}

impl Names {
    /// `prefixes` are what may stand before every name; `probe` is a name that every checkpoint
    /// of the family has, by which the prefix is found.
    pub(crate) fn new(prefixes: &[&'static str], probe: &'static str) -> Self {
        Self { prefixes: prefixes.to_vec(), probe, ..Self::default() }
    }

    fn rule(mut self, path: String, parts: Vec<Part>, transposed: bool) -> Self {
        self.rules.push(Rule { path, parts, transposed, affine: None });
        self
    }

    /// A parameter that is one tensor as it is.
    pub(crate) fn tensor(self, path: &str, name: &str) -> Self {
        self.rule(path.into(), vec![Part { name: name.into(), width: None, half: None }], false)
    }

    /// A [`crate::model::Linear`]: weight (transposed) and bias.
    pub(crate) fn linear(self, path: &str, name: &str) -> Self {
        self.part_of(path, name, None)
    }

    /// A [`crate::model::Linear`] that is half of the outputs of one of a release's, the first (0) or the
    /// second (1). Such names are for reading alone.
    pub(crate) fn share(self, path: &str, name: &str, half: usize) -> Self {
        self.part_of(path, name, Some(half))
    }

    fn part_of(self, path: &str, name: &str, half: Option<usize>) -> Self {
        let part = |kind: &str| vec![Part { name: format!("{name}.{kind}"), width: None, half }];
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
                .map(|(name, width)| Part {
                    name: format!("{name}.{kind}"),
                    width: Some(*width),
                    half: None,
                })
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
        let beta = vec![Part { name: format!("{name}.bias"), width: None, half: None }];
        self.rms(path, name).rule(format!("{path}.beta"), beta, false)
    }

    /// An RMS norm: `gamma` is the checkpoint's weight.
    pub(crate) fn rms(self, path: &str, name: &str) -> Self {
        let gamma = vec![Part { name: format!("{name}.weight"), width: None, half: None }];
        self.rule(format!("{path}.gamma"), gamma, false)
    }

    /// An RMS norm whose `gamma` is made of the checkpoint's weight.
    pub(crate) fn affine(self, path: &str, name: &str, affine: Affine) -> Self {
        let mut names = self.rms(path, name);
        if let Some(rule) = names.rules.last_mut() {
            rule.affine = Some(affine);
        }
        names
    }

    /// More that may stand before every name.
    pub(crate) fn prefixed(mut self, prefixes: &[&'static str]) -> Self {
        self.prefixes.extend(prefixes);
        self
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
        let (general, numbers) = split_numbers(path);
        let find = |path: &str| self.rules.iter().find(|rule| rule.path == path);
        let rule = find(path).or_else(|| find(&general)).ok_or_else(|| {
            Error::invalid(format!("the parameter {path} has no name in checkpoints"))
        })?;
        let named = |part: &Part| {
            let put = |name: String, number: &&str| name.replacen("{}", number, 1);
            Part { name: numbers.iter().fold(part.name.clone(), put), ..part.clone() }
        };
        Ok(TensorSource {
            parts: rule.parts.iter().map(named).collect(),
            transposed: rule.transposed,
            affine: rule.affine,
        })
    }

    /// Whether a tensor is one of these, without what may stand before its name.
    pub(crate) fn has(&self, tensor: &str) -> bool {
        let (general, _) = split_numbers(tensor);
        self.rules.iter().flat_map(|rule| &rule.parts).any(|part| part.name == general)
    }

    /// Whether a checkpoint has these names.
    pub(crate) fn found(&self, has: impl Fn(&str) -> bool) -> bool {
        self.prefixes.iter().any(|prefix| has(&format!("{prefix}{}", self.probe)))
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
fn split_numbers(path: &str) -> (String, Vec<&str>) {
    let is_number = |segment: &&str| segment.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = path.split('.').filter(is_number).collect();
    let general = path.split('.').map(|segment| if is_number(&segment) { "{}" } else { segment });
    (general.collect::<Vec<_>>().join("."), numbers)
}

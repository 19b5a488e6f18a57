//! Which tensor is kept how.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use globset::{Glob, GlobMatcher};
use kiln_embed::checkpoint::StoredTensor;
use kiln_embed::quant::{Number, Quantized, Scheme};

/// How a tensor is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// As it is.
    F32,
    /// In half precision.
    F16,
    /// In bfloat16.
    Bf16,
    /// Quantized.
    Quantized(Scheme),
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::F16 => f.write_str("f16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Quantized(scheme) => scheme.fmt(f),
        }
    }
}

impl FromStr for Storage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "bf16" => Ok(Self::Bf16),
            _ => text.parse().map(Self::Quantized).map_err(|error: kiln_embed::Error| {
                format!("{error}; f32, f16 and bf16 are possible too")
            }),
        }
    }
}

impl serde::Serialize for Storage {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// How the names of matrices end that save next to nothing when they are rounded: those that send tokens to experts, and
/// would send some to others, and MPNet's biases of distances, with a column for each head.
const SMALL: [&str; 2] = [".router.layer.weight", ".relative_attention_bias.weight"];

/// What matrices are kept as; biases and norms always stay as they are, and routers and biases of distances unless a rule
/// names them.
#[derive(Debug, Clone)]
pub struct StoragePlan {
    usual: Storage,
    named: Vec<(GlobMatcher, Storage)>,
    /// Most of a matrix (or of its output, where texts were given) that may be lost, as a share of its
    /// square; where more would be, the matrix gets more bits.
    pub budget: Option<f64>,
    /// Takes smaller blocks where the usual ones do not divide a matrix, rather than stop.
    pub lenient: bool,
}

impl StoragePlan {
    /// All matrices alike.
    pub fn all(usual: Storage) -> Self {
        Self { usual, named: Vec::new(), budget: None, lenient: false }
    }

    /// The usual storage.
    pub fn usual(&self) -> Storage {
        self.usual
    }

    /// Adds a rule `PATTERN=STORAGE`; of several that match, the last counts.
    ///
    /// # Errors
    /// No such rule.
    pub fn with_rule(mut self, rule: &str) -> Result<Self> {
        let (pattern, storage) = rule.rsplit_once('=').with_context(|| {
            format!("{rule:?} is no rule; expected PATTERN=int8:32 or the like")
        })?;
        let matcher = Glob::new(pattern).with_context(|| rule.to_string())?.compile_matcher();
        let storage =
            storage.parse().map_err(|error: String| anyhow::anyhow!("{rule}: {error}"))?;
        self.named.push((matcher, storage));
        Ok(self)
    }

    /// How a tensor is kept if nothing speaks against it.
    ///
    /// # Errors
    /// A block that does not divide its rows.
    pub fn of(&self, name: &str, shape: &[usize]) -> Result<Storage> {
        let [_, columns] = *shape else {
            return Ok(Storage::F32);
        };
        if !name.ends_with("weight") {
            return Ok(Storage::F32);
        }
        let named = self.named.iter().rev().find(|(pattern, _)| pattern.is_match(name));
        let small = SMALL.iter().any(|end| name.ends_with(end));
        let usual = if small { Storage::F32 } else { self.usual };
        let storage = named.map_or(usual, |(_, storage)| *storage);
        let Storage::Quantized(scheme) = storage else {
            return Ok(storage);
        };
        match scheme.check(columns) {
            Ok(()) => Ok(storage),
            Err(_) if self.lenient => Ok(smaller(scheme, columns)),
            Err(error) => bail!("{error}, or leave it out with --tensor '{name}=f32'"),
        }
    }

    /// What to try for a matrix, the fewest bits first.
    pub fn ladder(&self, first: Storage, columns: usize) -> Vec<Storage> {
        let mut steps = vec![first];
        if let (Some(_), Storage::Quantized(scheme)) = (self.budget, first) {
            let int8 = Scheme { number: Number::Int8, block: Some(32) };
            if scheme.number.bits() < 8 && int8.check(columns).is_ok() {
                steps.push(Storage::Quantized(int8));
            }
            steps.push(Storage::F16);
        }
        steps
    }
}

/// The largest smaller block that divides rows of a length.
fn smaller(scheme: Scheme, columns: usize) -> Storage {
    let fits = |block: &usize| Scheme { block: Some(*block), ..scheme }.check(columns).is_ok();
    match [64, 32, 16, 8, 4]
        .into_iter()
        .filter(|block| *block < scheme.block_in(columns))
        .find(fits)
    {
        Some(block) => Storage::Quantized(Scheme { block: Some(block), ..scheme }),
        None => Storage::F16,
    }
}

/// A tensor as it is kept, rounded to the nearest where it is quantized.
///
/// # Errors
/// Weights that are not finite.
pub(super) fn stored(storage: Storage, shape: &[usize], values: &[f32]) -> Result<StoredTensor> {
    Ok(match (storage, shape) {
        (Storage::Quantized(scheme), &[rows, columns]) => {
            StoredTensor::Quantized(Quantized::round(values, [rows, columns], scheme)?)
        }
        (Storage::F16, _) if values.iter().all(|value| value.abs() <= 65_504.0) => {
            StoredTensor::Half(shape.to_vec(), values.to_vec())
        }
        (Storage::Bf16, _) => StoredTensor::Bf16(shape.to_vec(), values.to_vec()),
        _ => StoredTensor::Full(shape.to_vec(), values.to_vec()),
    })
}

/// The values that a kept tensor stands for.
pub(super) fn values(tensor: &StoredTensor) -> Vec<f32> {
    match tensor {
        StoredTensor::Full(_, values) => values.clone(),
        StoredTensor::Half(_, values) => {
            values.iter().map(|value| half::f16::from_f32(*value).to_f32()).collect()
        }
        StoredTensor::Bf16(_, values) => {
            values.iter().map(|value| half::bf16::from_f32(*value).to_f32()).collect()
        }
        StoredTensor::Quantized(matrix) => matrix.values(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_tensors() {
        let plan = StoragePlan::all("int4:32".parse().unwrap())
            .with_rule("*word_embeddings*=int8:64")
            .unwrap()
            .with_rule("*.layer.0.*=f16")
            .unwrap();
        let of = |name: &str| plan.of(name, &[8, 64]).unwrap().to_string();
        assert_eq!(of("embeddings.word_embeddings.weight"), "int8:64");
        assert_eq!(of("encoder.layer.0.output.dense.weight"), "f16");
        assert_eq!(of("encoder.layer.1.output.dense.weight"), "int4:32");
        assert_eq!(of("latents"), "f32");
        assert_eq!(of("encoder.layers.1.mlp.router.layer.weight"), "f32");
        assert_eq!(of("encoder.layers.1.mlp.experts.3.fc2.weight"), "int4:32");
        assert_eq!(plan.of("norm.weight", &[64]).unwrap(), Storage::F32);
        let error = format!("{:#}", plan.of("x.weight", &[8, 48]).unwrap_err());
        assert!(error.contains("--tensor 'x.weight=f32'") && error.contains("int4:16"), "{error}");
        let lenient = StoragePlan { lenient: true, ..plan };
        assert_eq!(lenient.of("x.weight", &[8, 48]).unwrap().to_string(), "int4:16");
        assert!(StoragePlan::all(Storage::F32).with_rule("x").is_err());
        assert!(StoragePlan::all(Storage::F32).with_rule("x=int3").is_err());
    }
}

//! Rotary positions in `config.json`.

use serde_json::{Value, json};

use crate::Result;
use crate::config::{Keys, Rope, RopeScaling, bad_config};

/// Reads both layouts: `rope_theta` with `rope_scaling`, and transformers 5's `rope_parameters`.
pub(super) fn read(keys: &Keys<'_>, default_theta: f64, max_positions: usize) -> Result<Rope> {
    let scaling = keys.get("rope_parameters").or_else(|| keys.get("rope_scaling"));
    let theta = keys.float_or("rope_theta", default_theta)?;
    parse(keys, scaling, theta, max_positions)
}

/// The positions of one kind of layers: under its name in `rope_parameters`, or by a key for its theta and by
/// `rope_scaling`.
pub(super) fn of_kind(
    keys: &Keys<'_>,
    kind: &str,
    theta_key: &str,
    default_theta: f64,
    max_positions: usize,
) -> Result<Rope> {
    let scaling = own(keys, kind).or_else(|| keys.get("rope_scaling"));
    parse(keys, scaling, keys.float_or(theta_key, default_theta)?, max_positions)
}

/// As [`of_kind`], for layers that `rope_scaling` does not mean.
pub(super) fn own_of_kind(
    keys: &Keys<'_>,
    kind: &str,
    theta_key: &str,
    default_theta: f64,
    max_positions: usize,
) -> Result<Rope> {
    parse(keys, own(keys, kind), keys.float_or(theta_key, default_theta)?, max_positions)
}

fn own<'a>(keys: &Keys<'a>, kind: &str) -> Option<&'a Value> {
    let own = keys.get("rope_parameters").and_then(|kinds| kinds.get(kind));
    own.filter(|own| !own.is_null())
}

fn parse(
    keys: &Keys<'_>,
    scaling: Option<&Value>,
    theta: f64,
    max_positions: usize,
) -> Result<Rope> {
    let empty = serde_json::Map::new();
    let scaling = match scaling {
        Some(value) => Keys::new(value)?,
        None => Keys(&empty),
    };
    let theta = scaling.float_or("rope_theta", theta)?;
    let kind = scaling.text_or("rope_type", scaling.text_or("type", "default")?)?;
    let original = |default: usize| {
        scaling.size_or(
            "original_max_position_embeddings",
            Some(keys.size_or("original_max_position_embeddings", Some(default))?),
        )
    };
    let factor = |default: f64| {
        let factor = scaling.float_or("factor", default)?;
        if factor.is_finite() && factor >= 1.0 {
            Ok(factor)
        } else {
            Err(bad_config(format!("rope factor {factor} is below 1")))
        }
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: factor(1.0)? },
        "llama3" => RopeScaling::Llama3 {
            factor: factor(8.0)?,
            low_freq_factor: scaling.float_or("low_freq_factor", 1.0)?,
            high_freq_factor: scaling.float_or("high_freq_factor", 4.0)?,
            original_max_position_embeddings: original(8192)?,
        },
        "yarn" => {
            let original = original(max_positions)?.max(1);
            let factor = factor(max_positions as f64 / original as f64)?;
            let mscale = |weight: f64| {
                if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
            };
            let (one, all) =
                (scaling.float_or("mscale", 0.0)?, scaling.float_or("mscale_all_dim", 0.0)?);
            let inferred =
                if one != 0.0 && all != 0.0 { mscale(one) / mscale(all) } else { mscale(1.0) };
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast: scaling.float_or("beta_fast", 32.0)?,
                beta_slow: scaling.float_or("beta_slow", 1.0)?,
                attention_factor: scaling.float_or("attention_factor", inferred)?,
                truncate: scaling.bool_or("truncate", true)?,
            }
        }
        "ntk" => RopeScaling::Ntk { factor: factor(1.0)? },
        other => {
            return Err(bad_config(format!(
                "rope_type {other:?} is not supported; default, linear, llama3, yarn and ntk are"
            )));
        }
    };
    Ok(Rope { theta, scaling })
}

/// As transformers 5 reads it.
pub(super) fn write(rope: &Rope) -> Value {
    let mut value = json!(rope.scaling);
    value["rope_theta"] = json!(rope.theta);
    value
}

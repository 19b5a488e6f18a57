//! Rotary positions in `config.json`.

use serde_json::{Value, json};

use super::windows::GLOBAL;
use crate::Result;
use crate::config::{Keys, Rope, RopeScaling, bad_config};

/// Reads both layouts: `rope_theta` with `rope_scaling`, and transformers 5's `rope_parameters`.
pub(super) fn read(keys: &Keys<'_>, default_theta: f64, max_positions: usize) -> Result<Rope> {
    let scaling = keys.get("rope_parameters").or_else(|| keys.get("rope_scaling"));
    let theta = keys.float_or("rope_theta", default_theta)?;
    parse(keys, scaling, theta, max_positions)
}

/// The positions of one kind of layers: under its name in `rope_parameters`, or by a key for its theta and, of
/// those that see the whole text, by `rope_scaling`.
pub(super) fn of_kind(
    keys: &Keys<'_>,
    kind: &str,
    theta_key: &str,
    default_theta: f64,
    max_positions: usize,
) -> Result<Rope> {
    let own = keys.get("rope_parameters").and_then(|kinds| kinds.get(kind));
    let shared = || keys.get("rope_scaling").filter(|_| kind == GLOBAL);
    let scaling = own.filter(|own| !own.is_null()).or_else(shared);
    parse(keys, scaling, keys.float_or(theta_key, default_theta)?, max_positions)
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
    let mut theta = scaling.float_or("rope_theta", theta)?;
    let kind = scaling.text_or("rope_type", scaling.text_or("type", "default")?)?;
    let share = scaling.float_or("partial_rotary_factor", 1.0)?;
    if kind != "proportional" && share != 1.0 {
        return Err(bad_config(format!(
            "partial_rotary_factor is {share}, which is not supported with rope_type {kind:?}"
        )));
    }
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
        // Stretched by the length of texts that are longer than `max_position_embeddings`; longer ones are cut.
        "default" | "dynamic" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: factor(1.0)? },
        "proportional" => RopeScaling::Proportional {
            factor: factor(1.0)?,
            partial_rotary_factor: scaling.float_or("partial_rotary_factor", 1.0)?,
        },
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
        // gte-multilingual's: the base is stretched, and so is each wavelength by as much as all dimensions
        // share. Said in transformers' words, so that what is saved is read there.
        "ntk" => {
            if let Some(mixed) = scaling.get("mixed_b") {
                return Err(bad_config(format!(
                    "rope_scaling.mixed_b is {mixed}, which is not supported"
                )));
            }
            let factor = factor(1.0)?;
            let heads = keys.size("num_attention_heads")?;
            let width = keys.size("hidden_size")?.checked_div(heads).unwrap_or(0);
            let width = keys.size_or("head_dim", Some(width))?.max(1);
            theta *= factor;
            RopeScaling::Linear { factor: factor.powf(2.0 / width as f64) }
        }
        other => {
            return Err(bad_config(format!(
                "rope_type {other:?} is not supported; default, dynamic, linear, proportional, llama3, yarn and ntk are"
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::rotary::inverse_frequencies;

    #[test]
    fn ntk_stretches_the_base_and_all_wavelengths() {
        let value = json!({
            "hidden_size": 24, "num_attention_heads": 3, "rope_theta": 20000.0,
            "rope_scaling": {"type": "ntk", "factor": 8.0},
        });
        let rope = read(&Keys::new(&value).unwrap(), 1e4, 64).unwrap();
        for (pair, found) in inverse_frequencies(&rope, 8).into_iter().enumerate() {
            let base: f64 = 20000.0 * 8.0;
            let expected = base.powf(-2.0 * pair as f64 / 8.0) / 8f64.powf(2.0 / 8.0);
            assert!((f64::from(found) / expected - 1.0).abs() < 1e-6, "{pair}: {found} {expected}");
        }
        let mut mixed = value.clone();
        mixed["rope_scaling"]["mixed_b"] = json!(0.5);
        let error = read(&Keys::new(&mixed).unwrap(), 1e4, 64).unwrap_err().to_string();
        assert!(error.contains("mixed_b"), "{error}");
    }
}

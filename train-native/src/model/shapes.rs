//! Shapes of the models that shipped recipes start from, so that `train --dry-run` of them asks no
//! server: the keys of their `config.json` that make the shape, and their pooling.

use anyhow::{Context as _, Result};
use kiln_embed::config::ModelConfig;
use kiln_embed::embedder::EmbedderConfig;
use kiln_embed::pooling::PoolingConfig;
use serde::Deserialize;
use serde_json::Value;

macro_rules! shapes {
    ($($id:literal: $file:literal),* $(,)?) => {
        &[$(($id, include_str!(concat!("../../recipes/bases/", $file, ".json")))),*]
    };
}

/// Hub id and shape.
const SHAPES: &[(&str, &str)] = shapes![
    "mistralai/Mistral-7B-v0.1": "mistralai--Mistral-7B-v0.1",
    "mistralai/Mistral-7B-Instruct-v0.2": "mistralai--Mistral-7B-Instruct-v0.2",
    "intfloat/e5-mistral-7b-instruct": "intfloat--e5-mistral-7b-instruct",
    "meta-llama/Llama-3.2-1B": "meta-llama--Llama-3.2-1B",
    "meta-llama/Llama-3.2-1B-Instruct": "meta-llama--Llama-3.2-1B-Instruct",
    "sentence-transformers/all-MiniLM-L6-v2": "sentence-transformers--all-MiniLM-L6-v2",
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    config: Value,
    pooling: String,
}

/// The shape of a model by its Hub id, where it comes with the program.
///
/// # Errors
/// A file that does not fit the program, which the tests would have found.
pub(super) fn shipped_shape(id: &str) -> Result<Option<EmbedderConfig>> {
    let Some((_, text)) = SHAPES.iter().find(|(known, _)| *known == id) else {
        return Ok(None);
    };
    let shape: Shape = serde_json::from_str(text).with_context(|| id.to_string())?;
    Ok(Some(EmbedderConfig {
        config: ModelConfig::from_value(&shape.config)?,
        pooling: PoolingConfig::from_name(&shape.pooling)?,
        dense: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{Recipe, SHIPPED};

    #[test]
    fn every_base_of_a_shipped_recipe_has_its_shape_here() {
        for one in SHIPPED {
            let Some(base) = Recipe::parse(one.text).unwrap().model.base else { continue };
            assert!(shipped_shape(&base).unwrap().is_some(), "{}: {base}", one.name);
        }
        for (id, _) in SHAPES {
            shipped_shape(id).unwrap();
        }
    }
}

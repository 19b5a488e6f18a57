//! The recipe of the fine-tuning.

use anyhow::Result;
use toml::{Table, Value};

/// How the base is tuned.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// The base: an absolute path or a Hub id.
    pub base: String,
    /// Whether adapters are trained (decoders), or all parameters (encoders).
    pub lora: Option<usize>,
    /// Examples.
    pub examples: usize,
    /// Rounds over them.
    pub epochs: f64,
    /// Steps; by examples and rounds where absent.
    pub steps: Option<usize>,
    /// Queries in a batch.
    pub batch: usize,
    /// Negatives of each query.
    pub negatives: usize,
    /// Learning rate; 2e-5 for all parameters and 2e-4 for adapters where absent.
    pub lr: Option<f64>,
    /// Most tokens of a text.
    pub max_length: usize,
    /// Whether to compute in bf16.
    pub bf16: bool,
    /// Seed.
    pub seed: u64,
    /// Texts that must not be trained on, beside those of dev and test: people's questions.
    pub evaluation: Vec<String>,
}

impl Tuning {
    /// Steps of the run.
    pub fn steps(&self) -> usize {
        let rounds = self.examples as f64 * self.epochs / self.batch as f64;
        self.steps.unwrap_or((rounds.ceil() as usize).max(10))
    }
}

/// A recipe whose paths are relative to the folder of `adapt`.
///
/// # Errors
/// A recipe that TOML cannot express.
pub fn recipe(tuning: &Tuning) -> Result<String> {
    let text = |text: &str| Value::String(text.into());
    let number = |number: usize| Value::Integer(number as i64);
    let table = |fields: Vec<(&str, Value)>| -> Table {
        fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
    };
    let steps = tuning.steps();
    let mut model =
        table(vec![("base", text(&tuning.base)), ("max_length", number(tuning.max_length))]);
    if let Some(rank) = tuning.lora {
        let lora = table(vec![("rank", number(rank)), ("alpha", Value::Float(2.0 * rank as f64))]);
        model.insert("lora".into(), lora.into());
    }
    let loss = table(vec![("temperature", Value::Float(0.05)), ("in_batch", true.into())]);
    let lr = tuning.lr.unwrap_or(if tuning.lora.is_some() { 2e-4 } else { 2e-5 });
    let stage = table(vec![
        ("name", text("adapt")),
        ("data", Value::Array(vec![text("mined.jsonl")])),
        ("steps", number(steps)),
        ("batch_size", number(tuning.batch)),
        ("hard_negatives", number(tuning.negatives)),
        ("lr", Value::Float(lr)),
        ("warmup", number(steps / 10)),
        ("loss", loss.into()),
    ]);
    let set = table(vec![("name", text("dev")), ("path", text("dev")), ("split", text("dev"))]);
    let eval =
        table(vec![("every", number((steps / 5).max(1))), ("set", Value::Array(vec![set.into()]))]);
    let own = ["dev/queries.jsonl", "test/queries.jsonl"].into_iter();
    let evaluation = own.chain(tuning.evaluation.iter().map(String::as_str)).map(text).collect();
    let mut all = table(vec![
        ("name", text("adapted")),
        ("description", text("Fine-tunes a base on questions about a folder of documents")),
        ("seed", Value::Integer(i64::try_from(tuning.seed)?)),
        ("model", model.into()),
        ("filter", table(vec![("evaluation_texts", Value::Array(evaluation))]).into()),
        ("eval", eval.into()),
        ("stage", Value::Array(vec![stage.into()])),
    ]);
    if tuning.bf16 {
        all.insert("compute".into(), table(vec![("precision", text("bf16"))]).into());
    }
    Ok(format!(
        "# Written by `kiln adapt`; `kiln train --recipe` runs it again.\n{}",
        toml::to_string_pretty(&all)?
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn what_is_written_is_a_recipe() {
        let tuning = Tuning {
            base: "a \"b\"".into(),
            lora: Some(16),
            examples: 1000,
            epochs: 2.0,
            steps: None,
            batch: 32,
            negatives: 1,
            lr: None,
            max_length: 256,
            bf16: true,
            seed: 7,
            evaluation: vec!["/people/queries.jsonl".into()],
        };
        let recipe = Recipe::parse(&recipe(&tuning).unwrap()).unwrap();
        assert_eq!((recipe.stages[0].steps, recipe.seed), (63, 7));
        assert_eq!(recipe.model.base.as_deref(), Some("a \"b\""));
        assert_eq!(recipe.filter.evaluation_texts.len(), 3);
        assert!(recipe.model.lora.is_some() && recipe.eval.is_some());
    }
}

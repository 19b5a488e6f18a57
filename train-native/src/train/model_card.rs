//! The model card: `README.md` with the front matter that the Hub reads.

use std::path::Path;

use anyhow::Result;
use kiln_embed::kernels::Kernels;
use kiln_embed::reranker::ScoreActivation;
use serde_json::json;

use super::{Inputs, Point, Trained};
use crate::eval::MRR;
use crate::hub::is_id;
use crate::recipe::Recipe;

/// What a model card is made from.
pub struct ModelCard<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Its data.
    pub inputs: &'a Inputs,
    /// The steps so far.
    pub points: &'a [Point],
}

impl ModelCard<'_> {
    /// The card of a model.
    ///
    /// # Errors
    /// A recipe that TOML cannot express.
    pub fn to_markdown<B: Kernels>(&self, model: &Trained<B>) -> Result<String> {
        let recipe = self.recipe;
        let scores: Vec<(&str, &str, f64)> = self
            .points
            .iter()
            .rev()
            .find(|point| !point.scores.is_empty())
            .map(|point| {
                point
                    .scores
                    .iter()
                    .map(|(name, score)| (name.as_str(), self.metric(name), *score))
                    .collect()
            })
            .unwrap_or_default();
        let mut names: Vec<&str> = Vec::new();
        for set in self.inputs.sets.iter().flatten() {
            if !names.contains(&set.name.as_str()) {
                names.push(&set.name);
            }
        }
        // JSON is YAML, and quotes what YAML would misread.
        let (pipeline, tags) = match model {
            Trained::Embedder(_) => {
                ("sentence-similarity", &["sentence-similarity", "feature-extraction"][..])
            }
            Trained::Reranker(_) => ("text-ranking", &["cross-encoder", "reranker"][..]),
        };
        let mut front = vec![
            "library_name: sentence-transformers".to_string(),
            format!("pipeline_tag: {pipeline}"),
            format!("tags:\n- sentence-transformers\n- {}\n- kiln", tags.join("\n- ")),
        ];
        // A folder means nothing to others, and the Hub refuses what is no id of its own.
        let base = recipe.model.base.as_ref().and_then(|base| base.split('@').next());
        if let Some(base) = base.filter(|base| is_id(base) && !Path::new(base).exists()) {
            front.push(format!("base_model: {}", json!(base)));
        }
        if !scores.is_empty() {
            let results: Vec<_> = scores
                .iter()
                .map(|(name, metric, score)| {
                    let task = match (model, *metric) {
                        (Trained::Reranker(_), _) => "text-ranking",
                        (_, "nDCG@10") => "information-retrieval",
                        _ => "semantic-similarity",
                    };
                    json!({
                        "task": {"type": task, "name": task.replace('-', " ")},
                        "dataset": {"name": name, "type": name},
                        "metrics": [{"type": metric.to_lowercase(), "value": score, "name": metric}],
                    })
                })
                .collect();
            front.push(format!(
                "model-index: {}",
                json!([{"name": recipe.name, "results": results}])
            ));
        }
        let mut text = format!("---\n{}\n---\n\n# {}\n\n", front.join("\n"), recipe.name);
        if !recipe.description.is_empty() {
            text.push_str(&format!("{}\n\n", recipe.description));
        }
        text.push_str(&about(model));
        if !scores.is_empty() {
            text.push_str("## Scores\n\n| set | metric | score |\n|---|---|---|\n");
            for (name, metric, score) in &scores {
                text.push_str(&format!("| {name} | {metric} | {score:.4} |\n"));
            }
            text.push('\n');
        }
        if !recipe.model.prompts.is_empty() {
            text.push_str("## Prompts\n\n");
            for (name, prompt) in &recipe.model.prompts {
                text.push_str(&format!("- {name}: `{}`\n", prompt.replace('\n', "\\n")));
            }
            text.push('\n');
        }
        text.push_str("## Training\n\n| stage | steps | queries a step | data | examples |\n|---|---|---|---|---|\n");
        for (stage, sets) in recipe.stages.iter().zip(&self.inputs.sets) {
            for set in sets {
                text.push_str(&format!(
                    "| {} | {} | {} | {} | {} |\n",
                    stage.name,
                    stage.steps,
                    stage.batch_size * stage.accumulation,
                    set.name,
                    set.len()
                ));
            }
        }
        text.push_str(&format!("\n## Recipe\n\n```toml\n{}```\n", toml::to_string(recipe)?));
        Ok(text)
    }

    fn metric(&self, name: &str) -> &str {
        let measured = &self.inputs.measured;
        match measured.iter().find(|set| set.name == name) {
            Some(set) => &set.metric,
            None if name.ends_with(MRR) => MRR,
            None => "score",
        }
    }
}

/// What a model is, and who loads it.
fn about<B: Kernels>(model: &Trained<B>) -> String {
    match model {
        Trained::Embedder(embedder) => format!(
            "A text-embedding model with vectors of {} dimensions, trained with Kiln. It loads in \
             sentence-transformers where its pooling is one that sentence-transformers has, and in Kiln natively \
             and in the browser.\n\n",
            embedder.model().dimensions()
        ),
        Trained::Reranker(reranker) => {
            let scores = match reranker.activation() {
                ScoreActivation::Sigmoid => "between 0 and 1, by a sigmoid",
                ScoreActivation::Identity => "as the model gives them, without an activation",
            };
            format!(
                "A cross-encoder that scores pairs of a query and a text of up to {} tokens together, trained with \
                 Kiln. Scores are {scores}; the higher, the more relevant. It loads in sentence-transformers:\n\n\
                 ```python\nfrom sentence_transformers import CrossEncoder\n\n\
                 model = CrossEncoder(\"path/to/this/folder\")\n\
                 model.rank(\"a query\", [\"a text\", \"another text\"])\n```\n\nand in Kiln, natively and in the \
                 browser: `kiln rerank --model DIR --query QUERY --corpus FILE`.\n\n",
                reranker.tokenizer().config().max_length
            )
        }
    }
}

//! What stands before the texts of a batch.

use std::sync::Arc;

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;

use crate::recipe::{DataSource, INSTRUCTION_FORMAT, instructed};

/// The prompts of the model that is trained.
#[derive(Debug, Clone, Copy)]
pub struct ModelPrompts<'a> {
    /// That of queries, where neither the source nor the row has another.
    pub query: &'a str,
    /// That of documents, where the source has no other.
    pub document: &'a str,
    /// How an instruction becomes the prompt of a query; `{instruction}` stands for it.
    pub instruction_format: &'a str,
}

impl<'a> ModelPrompts<'a> {
    /// The prompts of queries and documents, and a recipe's `model.instruction_format`.
    pub fn new([query, document]: [&'a str; 2], instruction_format: Option<&'a str>) -> Self {
        let instruction_format = instruction_format.unwrap_or(INSTRUCTION_FORMAT);
        Self { query, document, instruction_format }
    }
}

impl Default for ModelPrompts<'_> {
    fn default() -> Self {
        Self::new([""; 2], None)
    }
}

/// The prompts of one source.
pub(super) struct SourcePrompts {
    /// Of queries without an instruction of their own; one is drawn.
    queries: Vec<Arc<str>>,
    /// Of documents; those of their query where absent.
    document: Option<Arc<str>>,
    format: String,
}

impl SourcePrompts {
    pub(super) fn new(source: &DataSource, model: ModelPrompts<'_>) -> Self {
        let format = model.instruction_format;
        let queries = match (&source.query_prompt, &source.instructions[..]) {
            (Some(prompt), _) => vec![Arc::from(prompt.as_str())],
            (None, []) => vec![Arc::from(model.query)],
            (None, all) => all.iter().map(|one| Arc::from(instructed(format, one))).collect(),
        };
        let document = source.document_prompt.as_deref().unwrap_or(model.document);
        let document = (!source.symmetric).then(|| Arc::from(document));
        Self { queries, document, format: format.into() }
    }

    /// The prompts of a query and its documents. A row's own instruction goes before the source's;
    /// of several of the source one is drawn.
    pub(super) fn draw(&self, own: Option<&str>, rng: &mut ChaCha8Rng) -> [Arc<str>; 2] {
        let query = match (own, &self.queries[..]) {
            (Some(own), _) => Arc::from(instructed(&self.format, own)),
            (None, [one]) => one.clone(),
            (None, all) => all[rng.random_range(0..all.len())].clone(),
        };
        let document = self.document.clone().unwrap_or_else(|| query.clone());
        [query, document]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use rand::SeedableRng as _;

    const MODEL: ModelPrompts<'_> =
        ModelPrompts { query: "q: ", document: "d: ", instruction_format: "<{instruction}> " };

    /// All pairs of prompts that are drawn.
    fn drawn(change: fn(&mut DataSource), own: Option<&str>) -> BTreeSet<[String; 2]> {
        let mut source = DataSource::file("x.jsonl");
        change(&mut source);
        let prompts = SourcePrompts::new(&source, MODEL);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        (0..40).map(|_| prompts.draw(own, &mut rng).map(|prompt| prompt.to_string())).collect()
    }

    #[test]
    fn a_row_goes_before_its_source_and_a_source_before_the_model() {
        let one = |query: &str, document: &str| BTreeSet::from([[query.into(), document.into()]]);
        assert_eq!(drawn(|_| {}, None), one("q: ", "d: "));
        assert_eq!(drawn(|_| {}, Some("row")), one("<row> ", "d: "));
        let literal = |source: &mut DataSource| source.query_prompt = Some("own: ".into());
        assert_eq!(drawn(literal, None), one("own: ", "d: "));
        assert_eq!(drawn(literal, Some("row")), one("<row> ", "d: "));
        let several = |source: &mut DataSource| source.instructions = vec!["a".into(), "b".into()];
        let both = [["<a> ", "d: "], ["<b> ", "d: "]].map(|pair| pair.map(String::from));
        assert_eq!(drawn(several, None), BTreeSet::from(both));
        assert_eq!(drawn(several, Some("row")), one("<row> ", "d: "));
    }

    #[test]
    fn in_symmetric_tasks_documents_carry_their_querys_prompt() {
        let symmetric = |source: &mut DataSource| {
            source.symmetric = true;
            source.instructions = vec!["a".into(), "b".into()];
        };
        let both = [["<a> ", "<a> "], ["<b> ", "<b> "]].map(|pair| pair.map(String::from));
        assert_eq!(drawn(symmetric, None), BTreeSet::from(both));
        let row = BTreeSet::from([["<row> ", "<row> "].map(String::from)]);
        assert_eq!(drawn(symmetric, Some("row")), row);
    }
}

//! The chat template of a decoder that ranks, as sentence-transformers 6 renders it: a message of the role `query`, one of
//! the role `document`, and before them, where there is an instruction, one of the role `system`.

use minijinja::value::merge_maps;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::Value as Json;

use super::prompt::{PairPrompt, PromptPart};

/// Stand for what is filled in; no template has them.
const QUERY: &str = "kiln5query7";
const DOCUMENT: &str = "kiln5document7";
const SYSTEM: &str = "kiln5system7";
/// Texts as they may come, to see that they stand in the prompt as they are.
const TEXTS: [&str; 3] =
    ["Is <b> \"a\" & 'b' 5 %?\nYes", "{{ no }} {% if %} \\n \u{e9}\u{4e2d}", "x"];
/// Steps that a template may take; one that never ends is stopped.
const STEPS: u64 = 100_000;

/// How sentence-transformers calls a template.
pub(super) struct Call<'a> {
    /// The template (Jinja).
    pub template: &'a str,
    /// Whether a message's content is a list of parts, each with a type, instead of a text.
    pub structured: bool,
    /// What else the template is given: `add_generation_prompt` and the like.
    pub options: &'a serde_json::Map<String, Json>,
    /// The tokenizer's special tokens by their names: `bos_token` and the like.
    pub tokens: &'a serde_json::Map<String, Json>,
}

impl Call<'_> {
    /// What the template makes of messages, as text with places for a query, a document and an instruction.
    ///
    /// # Errors
    /// A template that cannot be rendered, that leaves out the query or the text, or changes them; why.
    pub(super) fn prompt(&self) -> Result<PairPrompt, String> {
        let plain = self.parts(None)?;
        // Some templates refuse what they have no place for.
        let instructed = self.parts(Some(SYSTEM)).ok();
        let instructed = instructed.filter(|parts| parts.contains(&PromptPart::Instruction));
        let [kept, trimmed] = [false, true].map(|trims| self.leaves_texts_alone(&plain, trims));
        match (kept?, trimmed?) {
            (true, _) => Ok(PairPrompt::new(plain, instructed, false)),
            (false, true) => Ok(PairPrompt::new(plain, instructed, true)),
            (false, false) => Err("changes the texts that it is given".into()),
        }
    }

    /// Whether texts stand in the prompt as they are, or without the space around them.
    fn leaves_texts_alone(&self, parts: &[PromptPart], trims: bool) -> Result<bool, String> {
        for [query, document] in [[TEXTS[0], TEXTS[1]], [TEXTS[1], TEXTS[2]], [" \n a ", "\tb  "]] {
            let shown = |text: &'static str| if trims { text.trim() } else { text };
            let expected: String = parts
                .iter()
                .map(|part| match part {
                    PromptPart::Text(text) => text.as_str(),
                    PromptPart::Instruction => "",
                    PromptPart::Query => shown(query),
                    PromptPart::Document => shown(document),
                })
                .collect();
            if self.rendered(None, query, document)? != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn parts(&self, system: Option<&str>) -> Result<Vec<PromptPart>, String> {
        let mut rest = self.rendered(system, QUERY, DOCUMENT)?;
        let places = [
            (SYSTEM, PromptPart::Instruction, "system"),
            (QUERY, PromptPart::Query, "query"),
            (DOCUMENT, PromptPart::Document, "document"),
        ];
        let mut parts = Vec::new();
        loop {
            let found = places.iter().filter_map(|place| Some((rest.find(place.0)?, place)));
            let Some((at, (mark, part, role))) = found.min_by_key(|(at, _)| *at) else { break };
            if parts.contains(part) {
                return Err(format!("has the message of the role {role} twice"));
            }
            let after = rest.split_off(at);
            parts.extend([PromptPart::Text(rest), part.clone()]);
            rest = after[mark.len()..].into();
        }
        parts.push(PromptPart::Text(rest));
        match places[1..].iter().find(|(_, part, _)| !parts.contains(part)) {
            Some((_, _, role)) => Err(format!("leaves out messages of the role {role}")),
            None => Ok(parts),
        }
    }

    fn rendered(
        &self,
        system: Option<&str>,
        query: &str,
        document: &str,
    ) -> Result<String, String> {
        let message = |role: &str, text: &str| match self.structured {
            true => context! { role, content => [context! { type => "text", text }] },
            false => context! { role, content => text },
        };
        let messages: Vec<Value> = system
            .map(|text| message("system", text))
            .into_iter()
            .chain([message("query", query), message("document", document)])
            .collect();
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(STEPS));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |words: String| -> Result<Value, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, words))
        });
        let options = Value::from_serialize(self.options);
        let tokens = Value::from_serialize(self.tokens);
        let given = merge_maps([tokens, options, context! { messages }]);
        environment.render_str(self.template, given).map_err(|error| {
            let why = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
            format!("cannot be rendered: {why}")
        })
    }
}

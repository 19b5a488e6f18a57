//! The chat template of a decoder that ranks, as sentence-transformers 6 renders it: a message of the role `query`, one of
//! the role `document`, and before them, where there is an instruction, one of the role `system`.

use minijinja::value::merge_maps;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::Value as Json;

use super::prompt::{PairPrompt, PromptPart, PromptText};

/// Stand for what is filled in; no template has them.
const QUERY: &str = "kiln5query7";
const DOCUMENT: &str = "kiln5document7";
const SYSTEM: &str = "kiln5system7";
/// Instructions, queries and texts as they may come, to see that they stand in the prompt as they are.
const TEXTS: [[&str; 3]; 3] = [
    ["Rank <b>\n", "Is <b> \"a\" & 'b' 5 %?\nYes", "{{ no }} {% if %} \\n \u{e9}\u{4e2d}"],
    ["x", "{{ no }}", "x"],
    ["\t a ", " \n a ", "\tb  "],
];
/// Letters of a text that is longer than a template may cut it.
const LONG: usize = 100_000;
/// Steps that a template may take; one that never ends is stopped. What its texts take of memory is not bounded.
const STEPS: u64 = 20_000;

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
        Ok(PairPrompt::new(self.text(false)?, self.text(true)))
    }

    /// With a message of the role `system`, or without one.
    fn text(&self, instructed: bool) -> Result<PromptText, String> {
        let parts = self.parts(instructed)?;
        let mut changes = "the texts";
        for (trims_texts, trims_instruction) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let text = PromptText { parts: parts.clone(), trims_texts, trims_instruction };
            if self.is_as_rendered(&text, instructed)? {
                return Ok(text);
            }
            if instructed {
                changes = "the texts or the instruction";
            }
        }
        Err(format!("changes {changes} that it is given"))
    }

    /// Whether the template makes the same of texts as they come.
    fn is_as_rendered(&self, text: &PromptText, instructed: bool) -> Result<bool, String> {
        let long = "a b".repeat(LONG / 3);
        let all = TEXTS.into_iter().chain([["Rank", &*long, &*long]]);
        for [system, query, document] in all {
            let rendered = self.rendered(instructed.then_some(system), query, document)?;
            if rendered != text.write(system, query, document) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn parts(&self, instructed: bool) -> Result<Vec<PromptPart>, String> {
        let mut rest = self.rendered(instructed.then_some(SYSTEM), QUERY, DOCUMENT)?;
        let mut places =
            vec![(QUERY, PromptPart::Query, "query"), (DOCUMENT, PromptPart::Document, "document")];
        if instructed {
            places.push((SYSTEM, PromptPart::Instruction, "system"));
        }
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
        match places.iter().find(|(_, part, _)| !parts.contains(part)) {
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
        // As transformers sets Jinja up.
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(STEPS));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        let refused = |words: String| minijinja::Error::new(ErrorKind::InvalidOperation, words);
        environment
            .add_function("raise_exception", move |words: String| Err::<Value, _>(refused(words)));
        environment.add_function("strftime_now", move |_: String| {
            Err::<Value, _>(refused("it asks for the date, and a prompt is made once".into()))
        });
        // They take as much memory as a template asks for.
        for filter in ["batch", "indent", "slice"] {
            environment.remove_filter(filter);
        }
        let usual = context! { tools => (), documents => (), add_generation_prompt => false };
        let (options, tokens) =
            (Value::from_serialize(self.options), Value::from_serialize(self.tokens));
        let given = merge_maps([usual, tokens, options, context! { messages }]);
        environment.render_str(self.template, given).map_err(|error| {
            let why = error.detail().map_or_else(|| error.kind().to_string(), str::to_string);
            format!("cannot be rendered: {why}")
        })
    }
}

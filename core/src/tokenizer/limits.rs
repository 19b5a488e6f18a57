//! Limits of a `tokenizer.json`. Its author decides how much work each text takes: an expression
//! can backtrack for ever, a rule can turn a letter into a page. What no published tokenizer needs
//! is refused before anything is built from it.

use serde::Deserialize;
use serde_json::Value;

/// Most added tokens; published tokenizers have up to some 7,000.
const MOST_ADDED: usize = 1 << 15;
/// Steps of a normalizer or a pre-tokenizer, inner ones included.
const MOST_STEPS: usize = 64;
/// Most bytes of an expression, or of a text that a step inserts.
const MOST_BYTES: usize = 4096;
/// Most times that all replacements together may lengthen a text.
const MOST_GROWTH: usize = 64;
/// Most letters of a word that WordPiece looks up, in time that grows with their cube.
const LONGEST_WORD: u64 = 512;

/// The parts of the file that are checked.
#[derive(Deserialize)]
pub(super) struct Outline {
    #[serde(default)]
    added_tokens: Option<Vec<AddedToken>>,
    #[serde(default)]
    pub(super) normalizer: Value,
    #[serde(default)]
    pub(super) pre_tokenizer: Value,
    #[serde(default)]
    pub(super) model: Model,
    #[serde(default)]
    post_processor: Value,
}

#[derive(Deserialize)]
struct AddedToken {
    #[serde(default)]
    content: String,
}

/// How words become tokens.
#[derive(Deserialize, Default)]
pub(super) struct Model {
    #[serde(default, rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
}

/// The outline of a file, or an error that says what it exceeds.
pub(super) fn check(json: &[u8]) -> Result<Outline, String> {
    let outline: Outline = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let added = outline.added_tokens.as_deref().unwrap_or_default();
    if added.len() > MOST_ADDED {
        return Err(format!(
            "has {} added tokens, more than the {MOST_ADDED} that are allowed",
            added.len()
        ));
    }
    if added.iter().any(|token| token.content.len() > MOST_BYTES) {
        return Err(format!("has an added token of more than {MOST_BYTES} bytes"));
    }
    let longest = outline.model.max_input_chars_per_word.unwrap_or(0);
    if longest > LONGEST_WORD {
        return Err(format!(
            "looks up words of {longest} letters (max_input_chars_per_word), more than {LONGEST_WORD}"
        ));
    }
    let mut totals = Totals { steps: 0, growth: 1 };
    totals.look_at(&outline.normalizer)?;
    totals.look_at(&outline.pre_tokenizer)?;
    check_templates(&outline.post_processor)?;
    Ok(outline)
}

/// What a template puts around a text must be there: the crate looks it up
/// unchecked, and reads a template whatever its `type`.
fn check_templates(processor: &Value) -> Result<(), String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    list(&processor["processors"]).iter().try_for_each(check_templates)?;
    for (name, sequences) in [("single", &["A"][..]), ("pair", &["A", "B"][..])] {
        for piece in list(&processor[name]) {
            if let Some(id) = piece["SpecialToken"]["id"].as_str()
                && processor["special_tokens"].get(id).is_none()
            {
                return Err(format!(
                    "has the token {id:?} in its template {name:?}, but not in special_tokens"
                ));
            }
            if let Some(id) = piece["Sequence"]["id"].as_str()
                && !sequences.contains(&id)
            {
                return Err(format!("has the sequence {id:?} in its template {name:?}"));
            }
        }
    }
    Ok(())
}

/// Totals over all steps.
struct Totals {
    steps: usize,
    growth: usize,
}

impl Totals {
    fn look_at(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Array(all) => all.iter().try_for_each(|one| self.look_at(one)),
            Value::Object(object) => {
                if let Some(kind) = object.get("type").and_then(Value::as_str) {
                    self.steps += 1;
                    if self.steps > MOST_STEPS {
                        return Err(format!("has more than {MOST_STEPS} steps before its model"));
                    }
                    if kind == "Replace" {
                        let content = object.get("content").and_then(Value::as_str);
                        let pattern =
                            object.get("pattern").and_then(|pattern| pattern.get("String"));
                        let replaced = pattern.and_then(Value::as_str).map_or(1, str::len).max(1);
                        let growth = content.map_or(0, str::len).div_ceil(replaced).max(1);
                        self.growth = self.growth.saturating_mul(growth);
                        if self.growth > MOST_GROWTH {
                            return Err(format!(
                                "replaces so that a text may become {} times as long, more than {MOST_GROWTH}",
                                self.growth
                            ));
                        }
                    }
                }
                for (key, value) in object {
                    let text = value.as_str();
                    // SentencePiece's table of replacements is long.
                    if key != "precompiled_charsmap"
                        && text.is_some_and(|text| text.len() > MOST_BYTES)
                    {
                        return Err(format!("has a {key} of more than {MOST_BYTES} bytes"));
                    }
                    match text {
                        Some(expression) if key == "Regex" => check_expression(expression)?,
                        _ => self.look_at(value)?,
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// The only look-around of published tokenizers: white space except its last character before a
/// word.
const LOOKS_AHEAD: &str = r"\s+(?!\S)";

/// Expressions match in linear time, or by backtracking if they look around; too much backtracking
/// would silently stop splitting in the middle of a text.
fn check_expression(expression: &str) -> Result<(), String> {
    let plain = |part: &str| regex_syntax::parse(part).is_ok();
    match alternatives(expression).all(|part| part == LOOKS_AHEAD || plain(part)) {
        true => Ok(()),
        false => Err(format!(
            "splits by the expression {expression:?}, whose look-around or references this Kiln does not run"
        )),
    }
}

/// The alternatives of an expression: its parts between bars outside groups and classes.
fn alternatives(expression: &str) -> impl Iterator<Item = &str> {
    let (mut depth, mut class, mut escaped, mut start) = (0i32, false, false, 0);
    let mut parts = Vec::new();
    for (i, letter) in expression.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match letter {
            '\\' => escaped = true,
            '[' => class = true,
            ']' => class = false,
            '(' if !class => depth += 1,
            ')' if !class => depth -= 1,
            '|' if !class && depth == 0 => {
                parts.push(&expression[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&expression[start..]);
    parts.into_iter()
}

#[cfg(test)]
mod tests {
    use super::super::window::SPLITS;
    use super::*;
    use serde_json::json;

    fn refused(file: Value) -> String {
        check(file.to_string().as_bytes()).err().unwrap()
    }

    #[test]
    fn published_expressions_are_taken() {
        for expression in SPLITS {
            check_expression(expression).unwrap();
        }
        check_expression(" ?[^(\\s|[.,!?…。，、।۔،])]+").unwrap();
    }

    #[test]
    fn what_backtracks_is_refused() {
        for expression in ["(a+)+(?!b)", r"(\s+(?!\S))+x", r"(a)\1", "(?<=a)b", r"\s+(?!\S)+"] {
            let error = check_expression(expression).unwrap_err();
            assert!(error.contains("look-around"), "{expression}: {error}");
        }
        let split = json!({"type": "Split", "pattern": {"Regex": "(a*)*(?=c)"}});
        let inside = json!({"type": "Sequence", "pretokenizers": [split]});
        assert!(refused(json!({"pre_tokenizer": inside})).contains("look-around"));
    }

    #[test]
    fn templates_name_what_there_is() {
        let template = |single: Value| {
            let template = json!({"type": "TemplateProcessing", "single": [single],
                "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [0], "tokens": ["[CLS]"]}}});
            json!({"post_processor": {"type": "Sequence", "processors": [template]}})
        };
        let untyped = json!({"single": [{"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
            "pair": [], "special_tokens": {}});
        assert!(refused(json!({"post_processor": untyped})).contains("special_tokens"));
        let token = |id: &str| template(json!({"SpecialToken": {"id": id, "type_id": 0}}));
        assert!(check(token("[CLS]").to_string().as_bytes()).is_ok());
        assert!(refused(token("[SEP]")).contains("special_tokens"));
        assert!(
            refused(template(json!({"Sequence": {"id": "B", "type_id": 0}}))).contains("sequence")
        );
    }

    #[test]
    fn what_grows_is_refused() {
        let replace =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"});
        let steps =
            |count: usize| json!({"type": "Sequence", "normalizers": vec![replace.clone(); count]});
        assert!(check(json!({"normalizer": steps(1)}).to_string().as_bytes()).is_ok());
        assert!(refused(json!({"normalizer": steps(9)})).contains("times as long"));
        let strips = vec![json!({"type": "Lowercase"}); 100];
        assert!(
            refused(json!({"normalizer": {"type": "Sequence", "normalizers": strips}}))
                .contains("steps")
        );
        let added = vec![json!({"id": 1, "content": "<x>"}); 40_000];
        assert!(refused(json!({"added_tokens": added})).contains("added tokens"));
        let prepend = json!({"type": "Prepend", "prepend": "x".repeat(10_000)});
        assert!(refused(json!({"normalizer": prepend})).contains("prepend"));
        let model = json!({"type": "WordPiece", "max_input_chars_per_word": 1_000_000});
        assert!(refused(json!({"model": model})).contains("letters"));
    }
}

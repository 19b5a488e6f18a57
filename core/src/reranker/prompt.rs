//! The prompt in which a decoder reads a query and a text.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::tokenizer::{Tokenizer, Tokens};
use crate::{Error, Result};

/// A prompt with places for a query, a text and, where it takes one, an instruction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairPrompt {
    /// Without an instruction.
    plain: PromptText,
    /// With one, or why there is none.
    instructed: std::result::Result<PromptText, String>,
    instruction: Option<String>,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PromptText {
    pub(super) parts: Vec<PromptPart>,
    /// Space around queries and texts is left out.
    pub(super) trims_texts: bool,
    /// Space around an instruction is.
    pub(super) trims_instruction: bool,
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PromptPart {
    Text(String),
    Instruction,
    Query,
    Document,
}

/// Qwen3-Reranker's prompt (arXiv:2506.05176, section 2 and its model card).
const QWEN3: [&str; 4] = [
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. \
     Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: ",
    "\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
];
const QWEN3_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// bge-reranker-v2-gemma's (its model card, and `FlagLLMReranker` of FlagEmbedding), before its question.
const BGE_GEMMA: [&str; 3] = ["<bos>A: ", "\nB: ", "\n"];
const BGE_GEMMA_QUESTION: &str = "Given a query A and a passage B, determine whether the passage contains an answer to the \
     query by providing a prediction of either 'Yes' or 'No'.";

impl PromptText {
    /// With an instruction, a query and a text in their places.
    pub(super) fn write(&self, instruction: &str, query: &str, document: &str) -> String {
        let trimmed = |text, trims: bool| if trims { str::trim(text) } else { text };
        let part = |part: &PromptPart| match part {
            PromptPart::Text(text) => text.clone(),
            PromptPart::Instruction => trimmed(instruction, self.trims_instruction).into(),
            PromptPart::Query => trimmed(query, self.trims_texts).into(),
            PromptPart::Document => trimmed(document, self.trims_texts).into(),
        };
        self.parts.iter().map(part).collect()
    }

    /// Whether a query and a text have one place each, and an instruction so many.
    fn has_places(&self, instructions: RangeInclusive<usize>) -> bool {
        let count = |part: &PromptPart| self.parts.iter().filter(|one| *one == part).count();
        count(&PromptPart::Query) == 1
            && count(&PromptPart::Document) == 1
            && instructions.contains(&count(&PromptPart::Instruction))
    }
}

impl PairPrompt {
    /// A prompt without an instruction, and one with it.
    #[cfg(feature = "chat-templates")]
    pub(super) fn new(
        plain: PromptText,
        instructed: std::result::Result<PromptText, String>,
    ) -> Self {
        Self { plain, instructed, instruction: None }
    }

    /// A prompt as Kiln's own files have it.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn kept(value: Value) -> std::result::Result<Self, String> {
        let prompt: Self = serde_json::from_value(value)
            .map_err(|error| format!("its prompt cannot be read: {error}"))?;
        let instructed = match &prompt.instructed {
            Ok(text) => text.has_places(1..=1),
            Err(_) => prompt.instruction.is_none(),
        };
        let instructions = usize::from(prompt.instruction.is_some());
        match instructed && prompt.plain.has_places(0..=instructions) {
            true => Ok(prompt),
            false => {
                Err("its prompt needs one place each for a query, a text and an instruction".into())
            }
        }
    }

    /// Qwen3-Reranker's.
    pub(super) fn qwen3() -> Self {
        Self::qwen3_with(QWEN3_INSTRUCTION)
    }

    fn qwen3_with(instruction: &str) -> Self {
        let [before, query, document, after] = QWEN3.map(|text| PromptPart::Text(text.into()));
        let places = [PromptPart::Instruction, PromptPart::Query, PromptPart::Document];
        let texts = [before, query, document].into_iter().zip(places);
        let parts = texts.flat_map(|(text, place)| [text, place]).chain([after]).collect();
        Self::of_parts(parts, instruction)
    }

    /// bge-reranker-v2-gemma's, of which the question at the end is the instruction.
    pub(super) fn bge_gemma() -> Self {
        let places = [PromptPart::Query, PromptPart::Document, PromptPart::Instruction];
        let texts = BGE_GEMMA.map(|text| PromptPart::Text(text.into())).into_iter().zip(places);
        let parts = texts.flat_map(|(text, place)| [text, place]).collect();
        Self::of_parts(parts, BGE_GEMMA_QUESTION)
    }

    fn of_parts(parts: Vec<PromptPart>, instruction: &str) -> Self {
        let text = PromptText { parts, trims_texts: false, trims_instruction: false };
        let instruction = Some(instruction.into());
        Self { plain: text.clone(), instructed: Ok(text), instruction }
    }

    /// A released model's, where a chat template is that, word for word: with the instruction that it has by itself.
    #[cfg(any(test, not(feature = "chat-templates")))]
    pub(super) fn of_released(template: &str) -> Option<Self> {
        Self::of_qwen3(template).or_else(|| Self::of_bge_gemma(template))
    }

    /// As [`PairPrompt::to_template`] writes it.
    #[cfg(any(test, not(feature = "chat-templates")))]
    fn of_bge_gemma(template: &str) -> Option<Self> {
        let written = Self::bge_gemma().to_template();
        let usual = Value::from(BGE_GEMMA_QUESTION).to_string();
        let (before, after) = written.split_once(&usual)?;
        let question = template.strip_prefix(before)?.strip_suffix(after)?;
        let question: String = serde_json::from_str(question).ok()?;
        let prompt = Self::bge_gemma().with_instruction(&question).ok()?;
        Some(prompt).filter(|prompt| prompt.to_template() == template)
    }

    /// As its makers and others write it.
    #[cfg(any(test, not(feature = "chat-templates")))]
    fn of_qwen3(template: &str) -> Option<Self> {
        let (mut texts, mut places) = (Vec::new(), Vec::new());
        // Jinja leaves out the last line's end.
        let mut rest = template.strip_suffix('\n').unwrap_or(template);
        while let Some((text, more)) = rest.split_once("{{") {
            let (place, more) = more.split_once("}}")?;
            texts.push(text);
            places.push(place);
            rest = more;
        }
        texts.push(rest);
        let [system, query, document] = places[..] else { return None };
        let is_role = |place: &str, role: &str| {
            place.contains(&format!("\"{role}\"")) || place.contains(&format!("'{role}'"))
        };
        let simple = |place: &str| {
            !["trim", "strip", "[:", "truncate", "replace", "~", "+"]
                .iter()
                .any(|word| place.contains(word))
        };
        if texts != QWEN3
            || !(is_role(system, "system")
                && is_role(query, "query")
                && is_role(document, "document"))
            || !places.iter().all(|place| simple(place))
        {
            return None;
        }
        let (_, usual) = system.split_once("default(\"")?;
        let (usual, _) = usual.split_once("\")")?;
        Some(Self::qwen3_with(usual)).filter(|_| !usual.contains('\\'))
    }

    /// The same with an instruction.
    ///
    /// # Errors
    /// A prompt that has no place for one.
    pub(super) fn with_instruction(mut self, text: &str) -> Result<Self> {
        if let Err(why) = &self.instructed {
            return Err(Error::invalid(format!(
                "the reranker takes no instruction: its prompt {why}"
            )));
        }
        self.instruction = Some(text.into());
        Ok(self)
    }

    /// A released model's prompt as a chat template (Jinja): its own instruction where there is no message of the role
    /// `system`.
    pub(super) fn to_template(&self) -> String {
        let of = |role: &str, usual: String| {
            format!(
                "{{{{ messages | selectattr(\"role\", \"eq\", \"{role}\") | map(attribute=\"content\") | first{usual} }}}}"
            )
        };
        let part = |part: &PromptPart| match part {
            PromptPart::Text(text) => text.clone(),
            PromptPart::Query => of("query", String::new()),
            PromptPart::Document => of("document", String::new()),
            PromptPart::Instruction => {
                let usual = Value::from(self.instruction.as_deref().unwrap_or_default());
                of("system", format!(" | default({usual})"))
            }
        };
        // Jinja leaves out the last line's end.
        self.plain.parts.iter().map(part).chain(["\n".into()]).collect()
    }

    /// Tokens of the prompt with a query and a text. Where they are too many, the end of what stands before the
    /// prompt's own end is cut, which after a long query may be the whole text.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take; no room for it.
    pub(super) fn tokenize(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        text: &str,
    ) -> Result<Tokens> {
        let (prompt, instruction) = match (&self.instruction, &self.instructed) {
            (Some(instruction), Ok(prompt)) => (prompt, instruction.as_str()),
            _ => (&self.plain, ""),
        };
        tokenizer.encode_prompt(&|query, text| prompt.write(instruction, query, text), query, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_template_is_qwen3s_word_for_word() {
        let [before, query, document, after] = QWEN3;
        let role = |role: &str, more: &str| {
            format!(
                "{{{{ messages | selectattr(\"role\", \"eq\", \"{role}\") | map(attribute=\"content\") | first{more} }}}}"
            )
        };
        let template = |instruction: &str, of_document: &str| {
            let system = role("system", instruction);
            let (asked, text) = (role("query", ""), role("document", of_document));
            format!("{before}{system}{query}{asked}{document}{text}{after}\n")
        };
        let found = PairPrompt::of_qwen3(&template(" | default(\"Rank\")", "")).unwrap();
        assert_eq!(found.instruction.as_deref(), Some("Rank"));
        assert_eq!(PairPrompt::of_qwen3(&template("", "")), None);
        assert_eq!(PairPrompt::of_qwen3(&template(" | default(\"Rank\")", " | trim")), None);
        let released = PairPrompt::qwen3();
        assert_eq!(PairPrompt::of_qwen3(&released.to_template()), Some(released));
        let whole = template(" | default(\"Rank\")", "");
        for other in [
            whole.replace("Judge", "Say"),
            format!("{{% set a = 1 %}}{whole}"),
            whole.replace("</think>", ""),
        ] {
            assert_eq!(PairPrompt::of_qwen3(&other), None, "{other}");
        }
    }

    #[test]
    fn a_chat_template_is_bge_gemmas_word_for_word() {
        let released = PairPrompt::bge_gemma();
        let written = released.to_template();
        assert_eq!(PairPrompt::of_released(&written), Some(released.clone()));
        let asked = released.with_instruction("Does B say \"why\"?\n").unwrap();
        assert_eq!(PairPrompt::of_released(&asked.to_template()), Some(asked));
        let qwen3 = PairPrompt::qwen3();
        assert_eq!(PairPrompt::of_released(&qwen3.to_template()), Some(qwen3));
        for (part, other) in [
            ("<bos>", ""),
            ("\"document\"", "\"query\""),
            ("default(\"", "default(\"Rank\" ~ \""),
            ("Given", "\\u0047iven"),
            (" }}\n", " | trim }}\n"),
        ] {
            let changed = written.replace(part, other);
            assert_ne!(changed, written, "{part}");
            assert_eq!(PairPrompt::of_released(&changed), None, "{part}");
        }
    }

    #[test]
    fn a_prompt_is_kept_whole_or_refused() {
        let prompt = PairPrompt::qwen3();
        let value = serde_json::to_value(&prompt).unwrap();
        assert_eq!(PairPrompt::kept(value.clone()), Ok(prompt));
        let mut plain = PairPrompt::qwen3().plain;
        assert_eq!(plain.parts.remove(1), PromptPart::Instruction);
        let without =
            PairPrompt { plain, instructed: Err("leaves it out".into()), instruction: None };
        assert_eq!(PairPrompt::kept(serde_json::to_value(&without).unwrap()), Ok(without.clone()));
        let placeless = PairPrompt { instruction: Some("Rank".into()), ..without };
        assert!(PairPrompt::kept(serde_json::to_value(&placeless).unwrap()).is_err());
        for place in [1, 3, 5] {
            for text in ["/plain/parts", "/instructed/Ok/parts"] {
                let mut twice = value.clone();
                let parts = twice.pointer_mut(text).unwrap().as_array_mut().unwrap();
                parts.push(parts[place].clone());
                assert!(PairPrompt::kept(twice).unwrap_err().contains("one place each"));
            }
        }
        let mut nothing_to_fill_in = value.clone();
        nothing_to_fill_in["instruction"] = Value::Null;
        assert!(PairPrompt::kept(nothing_to_fill_in).unwrap_err().contains("one place each"));
        let mut lacks = value.clone();
        lacks["plain"]["parts"].as_array_mut().unwrap().remove(5);
        assert!(PairPrompt::kept(lacks).unwrap_err().contains("one place each"));
        let error = PairPrompt::kept(Value::Null).unwrap_err();
        assert!(error.contains("cannot be read") && error.lines().count() == 1, "{error}");
    }
}

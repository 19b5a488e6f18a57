//! The prompt in which a decoder reads a query and a text.

use crate::tokenizer::{Tokenizer, Tokens};
use crate::{Error, Result};

/// A prompt with places for a query, a text and, where it takes one, an instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairPrompt {
    /// Without an instruction.
    plain: Vec<PromptPart>,
    /// With one.
    instructed: Option<Vec<PromptPart>>,
    instruction: Option<String>,
    /// Space around queries and texts is left out.
    trims: bool,
}

/// A part of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
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

impl PairPrompt {
    /// A prompt without an instruction, and one with it.
    #[cfg(feature = "chat-templates")]
    pub(super) fn new(
        plain: Vec<PromptPart>,
        instructed: Option<Vec<PromptPart>>,
        trims: bool,
    ) -> Self {
        Self { plain, instructed, instruction: None, trims }
    }

    /// Qwen3-Reranker's.
    pub(super) fn qwen3() -> Self {
        let [before, query, document, after] = QWEN3.map(|text| PromptPart::Text(text.into()));
        let places = [PromptPart::Instruction, PromptPart::Query, PromptPart::Document].into_iter();
        let texts = [before, query, document].into_iter();
        let parts: Vec<_> =
            texts.zip(places).flat_map(|(text, place)| [text, place]).chain([after]).collect();
        let instruction = Some(QWEN3_INSTRUCTION.into());
        Self { plain: Vec::new(), instructed: Some(parts), instruction, trims: false }
    }

    /// Whether a chat template is Qwen3-Reranker's prompt, as far as its words tell.
    #[cfg(not(feature = "chat-templates"))]
    pub(super) fn is_qwen3(template: &str) -> bool {
        QWEN3.iter().all(|text| template.contains(text.trim()))
    }

    /// The same with an instruction.
    ///
    /// # Errors
    /// A prompt that has no place for one.
    pub(super) fn with_instruction(mut self, text: &str) -> Result<Self> {
        if self.instructed.is_none() {
            return Err(Error::invalid(
                "the prompt of this reranker has no place for an instruction",
            ));
        }
        self.instruction = Some(text.into());
        Ok(self)
    }

    /// Tokens of the prompt with a query and a text. What stands after both is never cut.
    ///
    /// # Errors
    /// A text that the tokenizer cannot take; no room for it.
    pub(super) fn tokenize(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        text: &str,
    ) -> Result<Tokens> {
        let parts = match (&self.instruction, &self.instructed) {
            (Some(_), Some(parts)) => parts,
            _ => &self.plain,
        };
        let trimmed = |text| if self.trims { str::trim(text) } else { text };
        let (end, parts) = match parts.split_last() {
            Some((PromptPart::Text(end), parts)) => (end.as_str(), parts),
            _ => ("", parts.as_slice()),
        };
        let written = |query: &str, text: &str| -> String {
            let part = |part: &PromptPart| match part {
                PromptPart::Text(text) => text.clone(),
                PromptPart::Instruction => self.instruction.clone().unwrap_or_default(),
                PromptPart::Query => query.into(),
                PromptPart::Document => text.into(),
            };
            parts.iter().map(part).collect()
        };
        tokenizer.encode_before(&written("", ""), &written(trimmed(query), trimmed(text)), end)
    }
}

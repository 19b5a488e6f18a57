//! Prompts (instructions) that stand before a text: those that a model names, and which one to use.

use std::collections::BTreeMap;

use crate::{Error, Result};

/// Which prompt to put before the texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Prompt {
    /// The model's default prompt, if it has one.
    #[default]
    Default,
    /// None, whatever the model's default is.
    None,
    /// One of the model's prompts, by name.
    Named(String),
    /// This text, as it is.
    Text(String),
}

impl Prompt {
    /// A prompt by text or, where there is none, by name; the default where there is neither.
    pub fn from_options(name: Option<&str>, text: Option<&str>) -> Self {
        match (text, name) {
            (Some(text), _) => Self::Text(text.into()),
            (None, Some(name)) => Self::Named(name.into()),
            (None, None) => Self::Default,
        }
    }
}

/// Names of the prompt for queries, of which the first that a model has is taken.
pub const QUERY: [&str; 1] = ["query"];
/// Likewise for documents, as sentence-transformers' `encode_document` looks for it.
pub const DOCUMENT: [&str; 3] = ["document", "passage", "corpus"];

/// What stands for the instruction in an instruction format.
const INSTRUCTION: &str = "{instruction}";

/// A model's named prompts, which of them is used where none is asked for, and what makes a prompt of an instruction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    by_name: BTreeMap<String, String>,
    default: Option<String>,
    instruction_format: Option<String>,
}

impl Prompts {
    /// Prompts by name; `default_prompt_name` is that of the default.
    ///
    /// # Errors
    /// A default that is not among them.
    pub fn new(
        by_name: BTreeMap<String, String>,
        default_prompt_name: Option<String>,
    ) -> Result<Self> {
        match &default_prompt_name {
            Some(name) if !by_name.contains_key(name) => Err(Error::invalid(format!(
                "default_prompt_name {name:?} is not among the prompts"
            ))),
            _ => Ok(Self { by_name, default: default_prompt_name, instruction_format: None }),
        }
    }

    /// The same prompts with how an instruction becomes the prompt of a query; `{instruction}` stands for it.
    ///
    /// # Errors
    /// A format without `{instruction}`.
    pub fn with_instruction_format(mut self, format: Option<String>) -> Result<Self> {
        if let Some(format) = &format
            && !format.contains(INSTRUCTION)
        {
            return Err(Error::invalid(format!(
                "the instruction format {format:?} is without {INSTRUCTION}; write that where the instruction goes"
            )));
        }
        self.instruction_format = format;
        Ok(self)
    }

    /// How an instruction becomes the prompt of a query, where the model says it; `{instruction}` stands for it.
    pub fn instruction_format(&self) -> Option<&str> {
        self.instruction_format.as_deref()
    }

    /// The same prompts with another default.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn with_default(mut self, name: &str) -> Result<Self> {
        self.get(Some(name))?;
        self.default = Some(name.into());
        Ok(self)
    }

    /// Texts by name.
    pub fn by_name(&self) -> &BTreeMap<String, String> {
        &self.by_name
    }

    /// Name of the default.
    pub fn default_name(&self) -> Option<&str> {
        self.default.as_deref()
    }

    /// Text of a prompt by name; `None` asks for the default, which may be empty.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn get(&self, name: Option<&str>) -> Result<&str> {
        match name.or(self.default_name()) {
            None => Ok(""),
            Some(name) => self.by_name.get(name).map(String::as_str).ok_or_else(|| {
                let known: Vec<&str> = self.by_name.keys().map(String::as_str).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                Error::invalid(format!("the model has no prompt {name:?}; it has {known}"))
            }),
        }
    }

    /// Text of a prompt.
    ///
    /// # Errors
    /// As [`Prompts::get`].
    pub fn text<'a>(&'a self, prompt: &'a Prompt) -> Result<&'a str> {
        match prompt {
            Prompt::Default => self.get(None),
            Prompt::None => Ok(""),
            Prompt::Named(name) => self.get(Some(name)),
            Prompt::Text(text) => Ok(text),
        }
    }

    /// The first of some prompts that the model has, else its default. That is none of queries or documents, as
    /// sentence-transformers has it, unless it is named after them, as `retrieval.query` is: it may be the other side's.
    pub fn first_of(&self, names: &[&str]) -> Prompt {
        if let Some(&name) = names.iter().find(|&&name| self.by_name.contains_key(name)) {
            return Prompt::Named(name.into());
        }
        let default = self.default_name().unwrap_or_default();
        let last = default.rsplit(['.', '_', '-', ':']).next().unwrap_or(default);
        let is_of_a_side = names.iter().any(|name| QUERY.contains(name) || DOCUMENT.contains(name));
        match is_of_a_side && !names.contains(&last) {
            true => Prompt::None,
            false => Prompt::Default,
        }
    }
}

impl From<BTreeMap<String, String>> for Prompts {
    /// Prompts without a default.
    fn from(by_name: BTreeMap<String, String>) -> Self {
        Self { by_name, ..Self::default() }
    }
}

impl Extend<(String, String)> for Prompts {
    /// Adds prompts by name and text, in the place of those that have the same names.
    fn extend<T: IntoIterator<Item = (String, String)>>(&mut self, prompts: T) {
        self.by_name.extend(prompts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn prompts(default: Option<&str>) -> Result<Prompts> {
        let by_name = [("query", "q: "), ("passage", "p: ")];
        let by_name = by_name.map(|(name, text)| (name.to_string(), text.to_string()));
        Prompts::new(by_name.into(), default.map(String::from))
    }

    #[test]
    fn unknown_prompts_list_the_known_ones() {
        let prompts = prompts(None).unwrap();
        assert_eq!(prompts.get(None).unwrap(), "");
        assert_eq!(prompts.get(Some("query")).unwrap(), "q: ");
        assert!(prompts.get(Some("document")).unwrap_err().to_string().contains("query"));
        assert!(prompts.with_default("document").is_err());
    }

    #[test]
    fn a_prompt_is_a_name_a_text_or_the_default() {
        let prompts = prompts(Some("passage")).unwrap();
        let text = |prompt: Prompt| prompts.text(&prompt).unwrap().to_string();
        assert_eq!(text(Prompt::Default), "p: ");
        assert_eq!(text(Prompt::None), "");
        assert_eq!(text(prompts.first_of(&["search_query", "query"])), "q: ");
        assert_eq!(text(prompts.first_of(&["document", "passage"])), "p: ");
        // The default is of documents, and so of no query and of anything else.
        assert_eq!(text(prompts.first_of(&["passage of another name", "corpus"])), "");
        assert_eq!(text(prompts.first_of(&["STS"])), "p: ");
        let named = BTreeMap::from([("retrieval.query".into(), "r: ".into())]);
        let named = Prompts::new(named, Some("retrieval.query".into())).unwrap();
        assert_eq!(named.first_of(&["query"]), Prompt::Default);
        assert_eq!(named.first_of(&["document", "passage"]), Prompt::None);
        assert_eq!(text(Prompt::from_options(Some("query"), Some("t: "))), "t: ");
        assert_eq!(text(Prompt::from_options(Some("query"), None)), "q: ");
        assert_eq!(Prompt::from_options(None, None), Prompt::Default);
    }

    #[test]
    fn a_format_has_a_place_for_the_instruction() {
        let format = |text: &str| prompts(None).unwrap().with_instruction_format(Some(text.into()));
        assert_eq!(
            format("<{instruction}> ").unwrap().instruction_format(),
            Some("<{instruction}> ")
        );
        assert!(format("Query: ").unwrap_err().to_string().contains("{instruction}"));
    }

    #[test]
    fn a_default_is_one_of_the_prompts() {
        assert!(prompts(Some("document")).unwrap_err().to_string().contains("document"));
    }
}

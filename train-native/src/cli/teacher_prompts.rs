//! The prompts that a teacher was trained with, by name or as they are.

use clap::Args;
use kiln_embed::embedder::Prompt;

/// Prompts of a teacher's queries and documents.
#[derive(Debug, Clone, Args)]
pub(super) struct TeacherPrompts {
    /// Prompt to put before queries
    #[arg(long, value_name = "TEXT")]
    query_prompt: Option<String>,
    /// Name of the model's prompt for queries [default: query, if the model has it]
    #[arg(long, value_name = "NAME", conflicts_with = "query_prompt")]
    query_prompt_name: Option<String>,
    /// Prompt to put before documents
    #[arg(long, value_name = "TEXT")]
    document_prompt: Option<String>,
    /// Name of the model's prompt for documents [default: document, if the model has it]
    #[arg(long, value_name = "NAME", conflicts_with = "document_prompt")]
    document_prompt_name: Option<String>,
}

/// The prompts of the teacher of `eval --light`, where the usual names are the model's own.
#[derive(Debug, Clone, Args)]
pub(super) struct LightPrompts {
    /// Prompt that the teacher of --light puts before queries
    #[arg(long, value_name = "TEXT", requires = "light")]
    light_query_prompt: Option<String>,
    /// Name of that teacher's prompt for queries [default: query, if it has it]
    #[arg(long, value_name = "NAME", requires = "light", conflicts_with = "light_query_prompt")]
    light_query_prompt_name: Option<String>,
    /// Prompt that the teacher of --light puts before documents
    #[arg(long, value_name = "TEXT", requires = "light")]
    light_document_prompt: Option<String>,
    /// Name of that teacher's prompt for documents [default: document, if it has it]
    #[arg(long, value_name = "NAME", requires = "light", conflicts_with = "light_document_prompt")]
    light_document_prompt_name: Option<String>,
}

/// One side's prompt, if one was asked for.
fn asked(text: Option<&String>, name: Option<&String>) -> Option<Prompt> {
    match (text, name) {
        (None, None) => None,
        (text, name) => {
            Some(Prompt::from_options(name.map(String::as_str), text.map(String::as_str)))
        }
    }
}

impl TeacherPrompts {
    /// What was asked for: of queries and of documents.
    pub(super) fn asked(&self) -> [Option<Prompt>; 2] {
        [
            asked(self.query_prompt.as_ref(), self.query_prompt_name.as_ref()),
            asked(self.document_prompt.as_ref(), self.document_prompt_name.as_ref()),
        ]
    }
}

impl LightPrompts {
    /// What was asked for: of queries and of documents.
    pub(super) fn asked(&self) -> [Option<Prompt>; 2] {
        [
            asked(self.light_query_prompt.as_ref(), self.light_query_prompt_name.as_ref()),
            asked(self.light_document_prompt.as_ref(), self.light_document_prompt_name.as_ref()),
        ]
    }
}

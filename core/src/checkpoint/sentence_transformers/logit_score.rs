//! How a decoder ranks, as sentence-transformers 6 saves it: by the logits of tokens (`LogitScore`) behind a chat template.

use serde_json::{Map, Value};

use super::calls::{Calls, read_calls};
use super::read::{LOGIT_SCORE, bad, inside, read_json, read_modules};
use crate::folder::{Folder, read_text, stays_inside};
use crate::{Error, Result};

const SETTINGS: &str = "sentence_bert_config.json";
/// What a template has where it takes a message's content as a list of parts; sentence-transformers looks for these.
const STRUCTURED: [&str; 5] = ["content[0]", ".type", "'type'", "\"type\"", "message.content["];
/// How a decoder ranks.
#[cfg_attr(
    not(feature = "chat-templates"),
    expect(dead_code, reason = "templates are rendered with it alone")
)]
pub(crate) struct LogitScore {
    /// The token whose logit is the score.
    pub token: u32,
    /// The token whose logit is taken from it.
    pub other: Option<u32>,
    /// The chat template (Jinja).
    pub template: String,
    /// Whether a message's content is a list of parts, each with a type, instead of a text.
    pub structured: bool,
    /// What else the template is given.
    pub options: Map<String, Value>,
    /// Special tokens by their names.
    pub tokens: Map<String, Value>,
    /// Tokens of a row at most, where that is said beside the template.
    pub max_length: Option<usize>,
}

/// How a decoder ranks by a list of modules; `None` where the list names no such module.
///
/// # Errors
/// Files that are missing, cannot be read or contradict each other; settings that are not supported.
pub(crate) fn read_logit_score(folder: &dyn Folder) -> Result<Option<LogitScore>> {
    let modules = read_modules(folder)?.unwrap_or_default();
    let Some(module) = modules.iter().find(|module| module.kind == LOGIT_SCORE) else {
        return Ok(None);
    };
    let read = |file: &str| Ok::<_, Error>(read_json(folder, file)?.unwrap_or_default());
    let file = inside(&module.path, "config.json");
    let config = read(&file)?;
    let id = |key: &str| match &config[key] {
        Value::Null => Ok(None),
        value => match value.as_u64().and_then(|id| u32::try_from(id).ok()) {
            Some(id) => Ok(Some(id)),
            None => Err(bad(folder, &file, format!("{key} is {value}, no token's number"))),
        },
    };
    let token = id("true_token_id")?.ok_or_else(|| bad(folder, &file, "names no true_token_id"))?;
    let other = id("false_token_id")?;
    let wrong = |cause: String| bad(folder, SETTINGS, cause);
    let settings = read(SETTINGS)?;
    let calls = read_calls(&settings["processing_kwargs"]).map_err(wrong)?;
    let of_tokenizer = read("tokenizer_config.json")?;
    let message = &settings["modality_config"]["message"];
    let Some(template) = read_template(folder, &of_tokenizer, calls.template)? else {
        return Err(wrong("there is no chat template, which LogitScore needs".into()));
    };
    let structured = match &message["format"] {
        _ if !message.is_object() => {
            return Err(wrong(
                "does not say that texts are messages, for the chat template".into(),
            ));
        }
        Value::Null => STRUCTURED.iter().any(|sign| template.contains(sign)),
        format if format == "auto" => STRUCTURED.iter().any(|sign| template.contains(sign)),
        format if format == "structured" => true,
        format if format == "flat" => false,
        format => {
            return Err(wrong(format!("the format of messages is {format}, which is unknown")));
        }
    };
    let text = |value: &Value| value.as_str().or(value["content"].as_str()).map(Value::from);
    let tokens = of_tokenizer.as_object().into_iter().flatten();
    let tokens = tokens.filter(|(name, _)| name.ends_with("_token"));
    let tokens = tokens.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect();
    let Calls { options, max_length, .. } = calls;
    Ok(Some(LogitScore { token, other, template, structured, options, tokens, max_length }))
}

/// The chat template of a name, or the one that is used by itself: a file, or in the tokenizer's settings. What is no
/// name is the template.
fn read_template(
    folder: &dyn Folder,
    of_tokenizer: &Value,
    named: Option<String>,
) -> Result<Option<String>> {
    if named.as_ref().is_some_and(|text| text.contains("{{") || text.contains("{%")) {
        return Ok(named);
    }
    let name = named.as_deref().unwrap_or("default");
    let file = match name {
        "default" => "chat_template.jinja".to_string(),
        name => format!("additional_chat_templates/{name}.jinja"),
    };
    if stays_inside(&file)
        && let Some(text) = read_text(folder, &file)?
    {
        let text = String::from_utf8(text.to_vec());
        return Ok(Some(text.map_err(|_| bad(folder, &file, "is no UTF-8 text"))?));
    }
    let listed = |one: &&Value| one["name"] == name;
    let found = match &of_tokenizer["chat_template"] {
        Value::Array(all) => all.iter().find(listed).map_or(&Value::Null, |one| &one["template"]),
        one if name == "default" => one,
        _ => &Value::Null,
    };
    match (found.as_str(), named) {
        (None, Some(name)) => Err(bad(
            folder,
            SETTINGS,
            format!("names the chat template {name:?}, which is not there"),
        )),
        (found, _) => Ok(found.map(String::from)),
    }
}

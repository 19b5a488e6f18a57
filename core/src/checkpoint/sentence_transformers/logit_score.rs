//! How a decoder ranks, as sentence-transformers 6 saves it: by the logits of tokens (`LogitScore`) behind a chat template;
//! and as Kiln does: by a direction of its own in f32 (`kiln.LogitScore`), since rows of a table that is quantized are
//! rounded, behind a prompt that needs no template to be rendered.

use serde_json::{Map, Value, json};

use super::calls::{Calls, read_calls};
use super::read::{LOGIT_SCORE, ModuleEntry, bad, inside, read_json, read_modules};
use crate::folder::{Files, Folder, read_text, stays_inside};
use crate::{Error, Result};

const SETTINGS: &str = "sentence_bert_config.json";
/// What sentence-transformers knows of the whole.
const WHOLE: &str = "config_sentence_transformers.json";
const TEMPLATE: &str = "chat_template.jinja";
/// The folder of the module that Kiln writes.
const PATH: &str = "1_LogitScore";
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
    let Some(module) = logit_module(folder)? else { return Ok(None) };
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

/// How a decoder ranks that Kiln wrote.
pub(crate) struct KeptScore {
    /// Where that is said, for error messages.
    pub file: String,
    /// Path of the file with the score's direction, without its ending.
    pub stem: String,
    /// The prompt.
    pub prompt: Value,
}

/// How a decoder ranks that Kiln wrote; `None` for all others.
///
/// # Errors
/// Files that cannot be read.
pub(crate) fn read_kept_score(folder: &dyn Folder) -> Result<Option<KeptScore>> {
    let Some(module) = logit_module(folder)? else { return Ok(None) };
    let file = inside(&module.path, "config.json");
    let config = read_json(folder, &file)?.unwrap_or_default();
    Ok(config.get("kiln").map(|kept| KeptScore {
        file: folder.file_label(&file),
        stem: inside(&module.path, "model"),
        prompt: kept["prompt"].clone(),
    }))
}

/// The files that [`read_kept_score`] reads; `direction` is a safetensors file.
pub(crate) fn kept_score_files(prompt: &Value, direction: Vec<u8>) -> Files {
    let (transformer, own) =
        ("sentence_transformers.models.Transformer", format!("kiln.{LOGIT_SCORE}"));
    let mut files = module_files([transformer, &own], &json!({"kiln": {"prompt": prompt}}));
    files.0.insert(inside(PATH, "model.safetensors"), direction.into());
    files
}

/// A list of two modules, and the settings of the second.
fn module_files([transformer, score]: [&str; 2], config: &Value) -> Files {
    let modules = json!([
        {"idx": 0, "name": "0", "path": "", "type": transformer},
        {"idx": 1, "name": "1", "path": PATH, "type": score},
    ]);
    let mut files = Files::default();
    files.0.insert("modules.json".into(), format!("{modules:#}\n").into());
    files.0.insert(inside(PATH, "config.json"), format!("{config:#}\n").into());
    files
}

/// The files that [`read_logit_score`] and sentence-transformers read, for a decoder with the weights of a language model:
/// its folder's, or where no list of modules says that it ranks, those of `template`. The score is the logit of a token, less
/// that of the other.
///
/// # Errors
/// Files that cannot be read.
pub(crate) fn logit_score_files(
    folder: &dyn Folder,
    (token, other): (u32, Option<u32>),
    template: &dyn Fn() -> String,
) -> Result<Files> {
    let classes = [
        "sentence_transformers.base.modules.transformer.Transformer",
        "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    ];
    let output = "causal_logits";
    let score =
        json!({"true_token_id": token, "false_token_id": other, "module_input_name": output});
    let mut files = module_files(classes, &score);
    let object = |file: &str| {
        let value = read_json(folder, file)?.filter(Value::is_object);
        Ok::<_, Error>(value.unwrap_or_else(|| json!({})))
    };
    let mut settings = object(SETTINGS)?;
    let mut whole = object(WHOLE)?;
    if has_logit_score(folder)? {
        let named = settings["processing_kwargs"]["chat_template"]["chat_template"].as_str();
        // What is no name is the template.
        let named = named.filter(|name| !name.contains('{')).map(named_template);
        let paths = named.into_iter().chain([TEMPLATE.into()]);
        for path in paths.filter(|path| stays_inside(path)) {
            if let Some(text) = read_text(folder, &path)? {
                files.0.insert(path, text.into());
            }
        }
    } else {
        let read = json!({"method": "forward", "method_output_name": "logits"});
        let mut message = read.clone();
        message["format"] = json!("flat");
        settings["transformer_task"] = json!("text-generation");
        settings["modality_config"] = json!({"text": read, "message": message});
        settings["module_output_name"] = json!(output);
        files.0.insert(TEMPLATE.into(), template().into());
    }
    whole["model_type"] = json!("CrossEncoder");
    files.0.insert(SETTINGS.into(), format!("{settings:#}\n").into());
    files.0.insert(WHOLE.into(), format!("{whole:#}\n").into());
    Ok(files)
}

/// Whether a list of modules says that a decoder ranks.
///
/// # Errors
/// A list that cannot be read.
pub(crate) fn has_logit_score(folder: &dyn Folder) -> Result<bool> {
    Ok(logit_module(folder)?.is_some())
}

fn logit_module(folder: &dyn Folder) -> Result<Option<ModuleEntry>> {
    let modules = read_modules(folder)?.unwrap_or_default();
    Ok(modules.into_iter().find(|module| module.kind == LOGIT_SCORE))
}

fn named_template(name: &str) -> String {
    format!("additional_chat_templates/{name}.jinja")
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
        "default" => TEMPLATE.to_string(),
        name => named_template(name),
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

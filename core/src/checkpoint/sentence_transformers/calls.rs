//! How sentence-transformers 6 calls a tokenizer and its chat template (`processing_kwargs`).

use serde_json::{Map, Value};

/// What is said of how rows are put together, which changes no token.
const OF_ROWS: [&str; 6] = [
    "padding",
    "pad_to_multiple_of",
    "return_attention_mask",
    "return_dict",
    "return_tensors",
    "tokenize",
];
/// What transformers does with a prompt beside the template.
const AROUND: [&str; 4] =
    ["continue_final_message", "documents", "sanitize_control_tokens", "tools"];

/// How the template is called.
#[derive(Default)]
pub(super) struct Calls {
    /// Its name, or its text.
    pub template: Option<String>,
    pub options: Map<String, Value>,
    pub max_length: Option<usize>,
}

/// Most tokens of a text, where what an embedder's `sentence_bert_config.json` says of its texts' way into the tokenizer
/// has that.
pub(super) fn read_text_calls(settings: &Value) -> std::result::Result<Option<usize>, String> {
    let given = &settings["processing_kwargs"];
    let given = serde_json::json!({ "text": given["text"], "common": given["common"] });
    read_calls(&given).map(|calls| calls.max_length)
}

/// What `processing_kwargs` say; the first of the three that gives a length rules.
pub(super) fn read_calls(given: &Value) -> std::result::Result<Calls, String> {
    let mut calls = Calls::default();
    for bucket in ["chat_template", "text", "common"] {
        for (key, value) in given[bucket].as_object().into_iter().flatten() {
            let usual = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Array(all) => all.is_empty(),
                _ => false,
            };
            let of_template = bucket == "chat_template";
            let name = format!("processing_kwargs.{bucket}.{key}");
            match key.as_str() {
                key if OF_ROWS.contains(&key) => {}
                _ if value.is_null() => {}
                "max_length" => {
                    let length = value.as_u64().and_then(|length| usize::try_from(length).ok());
                    let length = length.ok_or_else(|| format!("{name} is {value}"))?;
                    calls.max_length.get_or_insert(length);
                }
                "truncation" if *value == Value::Bool(true) || value == "longest_first" => {}
                "restore_suffix" if of_template && *value == Value::Bool(true) => {}
                "chat_template" if of_template => match value.as_str() {
                    Some(template) => calls.template = Some(template.into()),
                    None => return Err(format!("{name} is {value}, no text")),
                },
                key if of_template && AROUND.contains(&key) && usual => {}
                "restore_suffix" | "truncation" => {
                    return Err(format!("{name} is {value}, which is not supported"));
                }
                key if of_template && !AROUND.contains(&key) => {
                    calls.options.insert(key.into(), value.clone());
                }
                _ => return Err(format!("{name} is not supported")),
            }
        }
    }
    Ok(calls)
}

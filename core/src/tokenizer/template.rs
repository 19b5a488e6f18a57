//! The template of a `tokenizer.json`: which special tokens stand around a text.

use serde_json::{Map, Value, json};

use crate::{Error, Result};

/// The special tokens that a tokenizer's own template puts before and after a text.
pub(super) fn of(inner: &tokenizers::Tokenizer) -> tokenizers::Result<(Vec<u32>, Vec<u32>)> {
    let probe = inner.encode("a", true)?;
    let special: Vec<bool> =
        probe.get_special_tokens_mask().iter().map(|&mask| mask == 1).collect();
    let before = special.iter().take_while(|&&special| special).count();
    let after = special[before..].iter().rev().take_while(|&&special| special).count();
    let ids = probe.get_ids();
    Ok((ids[..before].to_vec(), ids[ids.len() - after..].to_vec()))
}

/// The same file with a template that puts these tokens around a text, or two. Post-processors that
/// put tokens there are replaced; others (`ByteLevel`) stay.
///
/// # Errors
/// A file that is no JSON object.
pub(super) fn replace(
    json: &str,
    prefix: &[u32],
    suffix: &[u32],
    name: impl Fn(u32) -> String,
) -> Result<Vec<u8>> {
    let mut file: Map<String, Value> = serde_json::from_str(json).map_err(Error::invalid)?;
    let special = |id: &u32| json!({"SpecialToken": {"id": name(*id), "type_id": 0}});
    let text = |part: &str| json!({"Sequence": {"id": part, "type_id": 0}});
    let around = |parts: &[&str]| -> Vec<Value> {
        let texts = parts.iter().map(|part| text(part));
        prefix.iter().map(special).chain(texts).chain(suffix.iter().map(special)).collect()
    };
    let tokens: Map<String, Value> = prefix
        .iter()
        .chain(suffix)
        .map(|&id| {
            let name = name(id);
            (name.clone(), json!({"id": name, "ids": [id], "tokens": [name]}))
        })
        .collect();
    let template = json!({
        "type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]),
        "special_tokens": tokens,
    });
    let before = file.remove("post_processor").unwrap_or_default();
    let mut steps = match before.get("type").and_then(Value::as_str) {
        Some("Sequence") => before["processors"].as_array().cloned().unwrap_or_default(),
        Some(_) => vec![before],
        None => Vec::new(),
    };
    steps.retain(|step| step["type"] == "ByteLevel");
    steps.push(template);
    let processor = match steps.len() {
        1 => steps.remove(0),
        _ => json!({"type": "Sequence", "processors": steps}),
    };
    file.insert("post_processor".into(), processor);
    serde_json::to_vec(&file).map_err(Error::invalid)
}

//! `--set key=value`, and errors that name the nearest known field.

use anyhow::{Context as _, Result, anyhow, bail};
use toml::{Table, Value};

/// Sets one field of a recipe: `stage.1.lr=1e-4`, where stages count from 1 or go by name.
pub(super) fn apply(table: &mut Table, change: &str) -> Result<()> {
    let (key, raw) = change.split_once('=').context("expected key=value, as stage.1.lr=1e-4")?;
    let raw = raw.trim();
    // A value as TOML has it; what is none is a text.
    let value = toml::from_str::<Table>(&format!("value = {raw}"))
        .ok()
        .and_then(|mut parsed| parsed.remove("value"))
        .unwrap_or_else(|| Value::String(raw.to_string()));
    let path: Vec<&str> = key.trim().split('.').collect();
    let (last, parents) = path.split_last().context("expected key=value")?;
    let mut i = table;
    let mut walked: Vec<&str> = Vec::new();
    let mut parents = parents.iter();
    while let Some(name) = parents.next() {
        walked.push(name);
        let entry = i.entry(name.to_string()).or_insert_with(|| Value::Table(Table::new()));
        i = match entry {
            Value::Table(inner) => inner,
            Value::Array(items) => {
                let which = parents.next().context("which one? Count from 1, or give its name")?;
                walked.push(which);
                let place = walked.join(".");
                element(items, which).with_context(|| format!("there is no {place}"))?
            }
            _ => bail!("{} is a value, not a table", walked.join(".")),
        };
    }
    i.insert(last.to_string(), value);
    Ok(())
}

fn element<'a>(items: &'a mut [Value], which: &str) -> Option<&'a mut Table> {
    let i = match which.parse::<usize>() {
        Ok(number) => number.checked_sub(1)?,
        Err(_) => items.iter().position(|item| {
            item.get("name").and_then(Value::as_str).is_some_and(|name| name == which)
        })?,
    };
    items.get_mut(i)?.as_table_mut()
}

/// A TOML error with the nearest known name behind it.
pub(super) fn explain(error: toml::de::Error) -> anyhow::Error {
    let message = error.message();
    // serde says: unknown field `a`, expected one of `b`, `c`
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let unknown = message.starts_with("unknown field") || message.starts_with("unknown variant");
    match quoted.split_first() {
        Some((name, known)) if unknown => match nearest(name, known.iter().copied()) {
            Some(name) => anyhow!("{}; did you mean `{name}`?", error.to_string().trim_end()),
            None => error.into(),
        },
        _ => error.into(),
    }
}

/// The known name that is most like an unknown one, if any is like it.
pub(super) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (strsim::jaro_winkler(unknown, name), name))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

//! The prompts: template files with a version each, which users may replace.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use kiln_data::text::{is_missing, read_small};
use minijinja::{Environment, UndefinedBehavior};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../prompts/", $name, ".jinja")))),*]
    };
}

/// The templates that are part of the program.
const SHIPPED: &[(&str, &str)] = &shipped![
    "tasks-short-long",
    "tasks-long-short",
    "tasks-short-short",
    "tasks-long-long",
    "short-long",
    "long-short",
    "short-short",
    "long-long",
    "sts",
    "bitext",
    "corpus",
    "negatives",
    "samples",
    "answerable",
    "refutation",
];

/// What stands before a shipped template's version in its first line.
const VERSION: &str = "{#- version ";

/// Templates by name, ours or the user's.
#[derive(Debug)]
pub struct Prompts {
    environment: Environment<'static>,
    versions: Vec<(&'static str, String)>,
}

impl Prompts {
    /// The shipped templates, each replaced by the `NAME.jinja` of a folder where there is one.
    ///
    /// # Errors
    /// A folder that cannot be read or has a template of a name that does not exist, or a template that is wrong.
    pub fn open(folder: Option<&Path>) -> Result<Self> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // Prompts are texts: nothing in them is HTML, whatever a template is called.
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        let mut versions = Vec::new();
        if let Some(folder) = folder {
            check_names(folder)?;
        }
        for (name, ours) in SHIPPED {
            let file = format!("{name}.jinja");
            let theirs = match folder.map(|folder| read_small(&folder.join(&file))) {
                None => None,
                Some(Ok(text)) => Some(text),
                Some(Err(error)) if is_missing(&error) => None,
                Some(Err(error)) => return Err(error),
            };
            let version = match &theirs {
                Some(text) => format!("{name}/{:08x}", xxh3_64(text.as_bytes()) as u32),
                None => {
                    let number = ours.strip_prefix(VERSION).and_then(|rest| rest.split(':').next());
                    format!("{name}/{}", number.with_context(|| format!("{file} has no version"))?)
                }
            };
            let text = theirs.unwrap_or_else(|| ours.to_string());
            environment.add_template_owned(file, text).map_err(|error| wrong(&error))?;
            versions.push((*name, version));
        }
        Ok(Self { environment, versions })
    }

    /// Names of all templates.
    pub fn names() -> Vec<&'static str> {
        SHIPPED.iter().map(|(name, _)| *name).collect()
    }

    /// A template as it stands.
    ///
    /// # Errors
    /// No template has this name.
    pub fn source(&self, name: &str) -> Result<String> {
        match self.environment.get_template(&format!("{name}.jinja")) {
            Ok(template) => Ok(template.source().to_string()),
            Err(_) => bail!("there is no prompt {name:?}; there are {}", Self::names().join(", ")),
        }
    }

    /// A template's name and version: a number of ours, a hash of the user's.
    pub fn version(&self, name: &str) -> &str {
        let found = self.versions.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, version)| version)
    }

    /// Names and versions of all templates.
    pub fn versions(&self) -> Vec<&str> {
        self.versions.iter().map(|(_, version)| version.as_str()).collect()
    }

    /// A prompt.
    ///
    /// # Errors
    /// A placeholder that does not exist, or a template that computes what cannot be.
    pub fn fill(&self, name: &str, placeholders: impl Serialize) -> Result<String> {
        let template = self.environment.get_template(&format!("{name}.jinja"));
        let template = template.map_err(|error| wrong(&error))?;
        let text = template.render(placeholders).map_err(|error| wrong(&error))?;
        Ok(text.trim().to_string())
    }
}

/// Refuses files that would never be used.
fn check_names(folder: &Path) -> Result<()> {
    let label = || folder.display().to_string();
    for entry in std::fs::read_dir(folder).with_context(label)? {
        let name = entry.with_context(label)?.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".jinja") else { continue };
        if !SHIPPED.iter().any(|(known, _)| *known == stem) {
            bail!(
                "{}: {name} replaces no prompt; there are {}",
                label(),
                Prompts::names().join(", ")
            );
        }
    }
    Ok(())
}

/// What is wrong with a template, and where.
fn wrong(error: &minijinja::Error) -> anyhow::Error {
    let place = match (error.name(), error.line()) {
        (Some(name), Some(line)) => format!("{name}:{line}: "),
        (Some(name), None) => format!("{name}: "),
        _ => String::new(),
    };
    let detail = error.detail().map_or_else(String::new, |detail| format!(": {detail}"));
    anyhow!("{place}{}{detail}", error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shipped_templates_have_versions_and_want_all_their_placeholders() {
        let prompts = Prompts::open(None).unwrap();
        assert_eq!(prompts.version("short-long"), "short-long/1");
        let error = prompts
            .fill("short-long", json!({"samples": [], "task": "t"}))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("short-long.jinja:"), "{error}");
        let text = prompts.fill("tasks-short-long", json!({"count": 20})).unwrap();
        assert!(
            text.starts_with("Think of 20 different") && text.contains(r#"{"tasks": ["#),
            "{text}"
        );
        assert!(prompts.source("sts").unwrap().contains("{{ unit }}"));
        assert!(prompts.source("x").unwrap_err().to_string().contains("tasks-short-long"));
    }

    #[test]
    fn a_user_replaces_some_of_them() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tasks-short-long.jinja"), "{{ count }} <b>").unwrap();
        let prompts = Prompts::open(Some(folder.path())).unwrap();
        assert_eq!(prompts.fill("tasks-short-long", json!({"count": "&"})).unwrap(), "& <b>");
        let version = prompts.version("tasks-short-long");
        assert!(version.starts_with("tasks-short-long/") && version.len() == 25, "{version}");
        std::fs::write(folder.path().join("tasks-short-long.jinja"), "\n{{ count").unwrap();
        let error = Prompts::open(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("tasks-short-long.jinja:2"), "{error}");
        std::fs::remove_file(folder.path().join("tasks-short-long.jinja")).unwrap();
        std::fs::write(folder.path().join("short.jinja"), "x").unwrap();
        assert!(
            Prompts::open(Some(folder.path()))
                .unwrap_err()
                .to_string()
                .contains("replaces no prompt")
        );
    }
}

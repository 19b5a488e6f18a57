//! `kiln recipes`

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use super::Global;
use crate::recipe::{Recipe, SHIPPED, shipped};

/// List the shipped recipes, or print one to copy and change
#[derive(Debug, Args)]
pub(super) struct RecipesArgs {
    /// Recipe to print as TOML
    name: Option<String>,
}

pub(super) fn run(args: &RecipesArgs, global: &Global) -> Result<()> {
    let terminal = global.terminal();
    if let Some(name) = &args.name {
        let known = || SHIPPED.iter().map(|recipe| recipe.name).collect::<Vec<_>>().join(", ");
        let recipe =
            shipped(name).with_context(|| format!("no recipe {name:?}; there are {}", known()))?;
        return terminal.result(&json!({"name": name, "toml": recipe.text}), || recipe.text.into());
    }
    let recipes = SHIPPED.iter().map(|one| Recipe::parse(one.text)).collect::<Result<Vec<_>>>()?;
    terminal.result(&recipes, || {
        let lines = SHIPPED
            .iter()
            .zip(&recipes)
            .map(|(shipped, recipe)| format!("{:<22} {}", shipped.name, recipe.description));
        lines.collect::<Vec<_>>().join("\n")
    })
}

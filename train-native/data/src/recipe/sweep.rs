//! A sweep: one recipe in several variants, each with several seeds.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::Recipe;
use super::overrides;
use super::shipped::{SWEEPS, Shipped};
use crate::text::{is_missing, read_small};

/// One recipe in several variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Name for reports.
    pub name: String,
    /// What it asks.
    #[serde(default)]
    pub description: String,
    /// Recipe of all variants that name none: a file (beside the sweep's) or a shipped one.
    pub recipe: String,
    /// Each variant is trained once with each.
    pub seeds: Vec<u64>,
    /// Changes for all variants.
    #[serde(default)]
    pub set: Vec<String>,
    /// The variants.
    #[serde(rename = "variant")]
    pub variants: Vec<Variant>,
}

/// One variant of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name for reports.
    pub name: String,
    /// Its own recipe, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// Its changes.
    #[serde(default)]
    pub set: Vec<String>,
}

impl Sweep {
    /// Reads a sweep file, or a shipped one by name.
    ///
    /// # Errors
    /// Unreadable, not TOML, an unknown field, no variant, no seed, or a name that comes twice.
    pub fn read(file_or_name: &str) -> Result<Self> {
        if let Some(shipped) = SWEEPS.iter().find(|one| one.name == file_or_name) {
            return Self::parse(shipped.text).with_context(|| format!("sweep {file_or_name}"));
        }
        let text = match read_small(Path::new(file_or_name)) {
            Err(error) if is_missing(&error) => {
                let known: Vec<&str> = SWEEPS.iter().map(|one: &Shipped| one.name).collect();
                bail!(
                    "{file_or_name}: no such file, nor a sweep of that name; there are {}",
                    known.join(", ")
                );
            }
            read => read?,
        };
        Self::parse(&text).with_context(|| file_or_name.to_string())
    }

    /// Reads the text of a sweep.
    ///
    /// # Errors
    /// As [`Sweep::read`].
    pub fn parse(text: &str) -> Result<Self> {
        let sweep: Self = toml::from_str(text).map_err(overrides::explain)?;
        if sweep.variants.is_empty() || sweep.seeds.is_empty() {
            bail!("a sweep needs a [[variant]] and seeds = [1]");
        }
        for (i, variant) in sweep.variants.iter().enumerate() {
            let same = |other: &Variant| slug(&other.name) == slug(&variant.name);
            if slug(&variant.name).is_empty() || sweep.variants[..i].iter().any(same) {
                bail!("variant {:?}: the name is empty or used before", variant.name);
            }
        }
        Ok(sweep)
    }

    /// The recipe of a variant with a seed; recipe files are looked for in `folder`. `changes`
    /// come last.
    ///
    /// # Errors
    /// As [`Recipe::read`].
    pub fn recipe(
        &self,
        variant: &Variant,
        seed: u64,
        folder: &Path,
        changes: &[String],
    ) -> Result<Recipe> {
        let name = variant.recipe.as_ref().unwrap_or(&self.recipe);
        let beside = folder.join(name);
        let name = if beside.is_file() { beside.to_string_lossy() } else { name.into() };
        let seed = format!("seed={seed}");
        let all = [&self.set[..], &variant.set, &[seed], changes].concat();
        Recipe::read(&name, &all).with_context(|| format!("variant {:?}", variant.name))
    }
}

/// A name as a folder: letters and digits with dashes between.
pub fn slug(name: &str) -> String {
    let kept = |c: char| if c.is_alphanumeric() || c == '.' { c } else { ' ' };
    let words: String = name.to_lowercase().chars().map(kept).collect();
    words.split_whitespace().collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_sweeps_resolve() {
        for one in SWEEPS {
            let sweep = Sweep::parse(one.text).unwrap_or_else(|e| panic!("{}: {e:#}", one.name));
            assert_eq!(sweep.name, one.name);
            let recipes: Vec<Recipe> = sweep
                .variants
                .iter()
                .map(|variant| sweep.recipe(variant, 7, Path::new(""), &[]).unwrap())
                .collect();
            for (i, recipe) in recipes.iter().enumerate() {
                assert_eq!(recipe.seed, 7);
                assert!(recipe.eval.is_some(), "{}", one.name);
                let same = recipes[..i].iter().filter(|other| {
                    (&other.model, &other.stages) == (&recipe.model, &recipe.stages)
                });
                assert_eq!(same.count(), 0, "{}: {:?}", one.name, sweep.variants[i].name);
            }
        }
    }

    #[test]
    fn senseless_sweeps_are_refused() {
        let text = "name = 'x'\nrecipe = 'linq-small'\nseeds = [1]\n";
        for (rest, expected) in [
            ("variant = []", "variant"),
            ("variant = [{ name = 'a b' }, { name = 'A-b' }]", "used before"),
            ("variants = []", "did you mean `variant`"),
        ] {
            let error = format!("{:#}", Sweep::parse(&format!("{text}{rest}")).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
        let sweep = Sweep::parse(&format!("{text}variant = [{{ name = 'a', set = ['sed=1'] }}]"));
        let sweep = sweep.unwrap();
        let error = sweep.recipe(&sweep.variants[0], 1, Path::new(""), &[]).unwrap_err();
        assert!(format!("{error:#}").contains("did you mean `seed`"), "{error:#}");
    }
}

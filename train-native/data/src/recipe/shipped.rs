//! The recipes and sweeps that come with the program.

/// A recipe or a sweep by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    /// Its name, as `train --recipe` or `sweep` takes it.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

macro_rules! shipped {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(Shipped { name: $name, text: include_str!(concat!($folder, $name, ".toml")) }),*]
    };
}

/// All shipped recipes.
pub const SHIPPED: &[Shipped] = shipped![
    "../../../recipes/":
    "quickstart",
    "nv-embed",
    "nv-embed-small",
    "mgh-ata",
    "mgh-ata-public",
    "mgh-ata-synthetic",
    "mgh-ata-small",
    "anchor",
    "anchor-small",
    "pooling-attn-1",
    "pooling-attn-1-small",
    "pooling-attn-2",
    "pooling-attn-2-small",
    "pooling-attn-3",
    "pooling-attn-3-small",
    "pooling-attn-4",
    "pooling-attn-4-small",
    "pooling-attn-5",
    "pooling-attn-5-small",
    "linq",
    "linq-small",
    "cross-encoder",
    "cross-encoder-small",
];

/// All shipped sweeps.
pub const SWEEPS: &[Shipped] = shipped![
    "../../../recipes/sweeps/":
    "curriculum",
    "mgh-pooling",
    "pooling",
    "nv-pooling",
    "nv-data",
    "stages",
    "alpha",
    "ordering",
];

/// A shipped recipe by name.
pub fn shipped(name: &str) -> Option<&'static Shipped> {
    SHIPPED.iter().find(|recipe| recipe.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Recipe;

    #[test]
    fn all_are_read_and_bear_their_names() {
        for one in SHIPPED {
            let recipe =
                Recipe::parse(one.text).unwrap_or_else(|error| panic!("{}: {error:#}", one.name));
            assert_eq!(recipe.name, one.name);
            assert!(!recipe.description.is_empty(), "{}", one.name);
            // What is printed as the resolved recipe is a recipe again.
            let again = Recipe::parse(&toml::to_string(&recipe).unwrap()).unwrap();
            assert_eq!(again, recipe, "{}", one.name);
        }
    }

    #[test]
    fn sources_of_one_file_are_of_one_kind_and_differ_in_fields() {
        for one in SHIPPED {
            let recipe = Recipe::parse(one.text).unwrap();
            let sources: Vec<_> = recipe.sources.values().collect();
            for (i, a) in sources.iter().enumerate() {
                for b in sources[i + 1..].iter().filter(|b| a.path == b.path) {
                    assert_eq!(a.labels, b.labels, "{}: {}", one.name, a.path);
                    let has_fields = !a.fields.is_empty() && !b.fields.is_empty();
                    assert!(has_fields && a.fields != b.fields, "{}: {}", one.name, a.path);
                }
            }
        }
    }

    #[test]
    fn the_five_designs_differ_in_pooling_and_mask_alone() {
        for ending in ["", "-small"] {
            let designs: Vec<Recipe> = (1..=5)
                .map(|n| shipped(&format!("pooling-attn-{n}{ending}")).unwrap())
                .map(|one| Recipe::parse(one.text).unwrap())
                .collect();
            for design in &designs[1..] {
                let mut same = design.clone();
                same.name.clone_from(&designs[0].name);
                same.description.clone_from(&designs[0].description);
                same.model.pooling.clone_from(&designs[0].model.pooling);
                same.model.attention = designs[0].model.attention;
                assert_eq!(same, designs[0]);
            }
        }
    }
}

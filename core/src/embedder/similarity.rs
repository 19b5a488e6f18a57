//! How a model's vectors are meant to be compared.

use serde::{Deserialize, Serialize};

/// How two vectors are compared, by sentence-transformers' names (`similarity_fn_name`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Similarity {
    /// The cosine of their angle.
    #[default]
    Cosine,
    /// Their inner product: models that were trained by it say much by a vector's length.
    Dot,
    /// Less their distance.
    Euclidean,
    /// Less the sum of their numbers' differences.
    Manhattan,
}

impl Similarity {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::Dot => "dot",
            Self::Euclidean => "euclidean",
            Self::Manhattan => "manhattan",
        }
    }

    /// The one of a name in files; the cosine of any other, as sentence-transformers has it.
    pub fn from_name(name: &str) -> Self {
        [Self::Dot, Self::Euclidean, Self::Manhattan]
            .into_iter()
            .find(|one| one.name() == name)
            .unwrap_or_default()
    }

    /// Whether vectors are divided by their norm before they are compared by their inner product. Kiln ranks by these
    /// two, and by the cosine for all but `dot`.
    pub fn normalizes(self) -> bool {
        self != Self::Dot
    }
}

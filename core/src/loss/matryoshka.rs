//! Matryoshka representation learning (arXiv:2205.13147) around any loss over vectors.

use burn::tensor::{Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::pooling::{l2_normalize, truncate};

/// Widths at which truncated vectors are trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matryoshka {
    /// The widths; the full width is trained only if it is listed.
    pub dimensions: Vec<usize>,
    /// Weight of each width's loss; 1 each where absent, as in sentence-transformers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<f64>,
}

/// Weighted sum over the widths of `loss` on the truncated, normalised vectors `[rows, dim]`.
///
/// # Errors
/// A width beyond the vectors', or an error of `loss`.
pub fn matryoshka<B: Backend>(
    vectors: Tensor<B, 2>,
    settings: &Matryoshka,
    mut loss: impl FnMut(Tensor<B, 2>) -> Result<Tensor<B, 1>>,
) -> Result<Tensor<B, 1>> {
    let mut total = Tensor::zeros([1], &vectors.device());
    for (i, &width) in settings.dimensions.iter().enumerate() {
        let part = loss(l2_normalize(truncate(vectors.clone(), width)?))?;
        total = total + part.mul_scalar(settings.weights.get(i).copied().unwrap_or(1.0));
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::backend::Flex;

    #[test]
    fn sums_over_widths_of_renormalised_vectors() {
        let device = Default::default();
        let x = Tensor::<Flex, 2>::from_data([[3.0, 4.0, 12.0]], &device);
        let settings = Matryoshka { dimensions: vec![1, 2], weights: vec![1.0, 10.0] };
        // First components: 3/3 and 3/5.
        let first = |v: Tensor<Flex, 2>| Ok(v.narrow(1, 0, 1).reshape([1]));
        let sum = matryoshka(x.clone(), &settings, first).unwrap().into_scalar();
        assert!((sum - 7.0).abs() < 1e-5, "{sum}");
        assert!(
            matryoshka(x, &Matryoshka { dimensions: vec![4], weights: vec![] }, first).is_err()
        );
    }
}

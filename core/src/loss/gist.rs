//! GISTEmbed (arXiv:2402.16829): InfoNCE whose in-batch negatives a guide chooses.

use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor, backend::Backend};
use serde::{Deserialize, Serialize};

/// Settings of [`gist`], sentence-transformers' by name and default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gist {
    /// The temperature.
    #[serde(default = "default_temperature")]
    pub temperature: f64,
    /// A text is no negative where the guide's similarity is above the positive's less this.
    #[serde(default)]
    pub margin: f64,
    /// Whether the margin is a share of the positive's similarity.
    #[serde(default)]
    pub relative: bool,
    /// Other queries are negatives of a query, too.
    #[serde(default = "yes")]
    pub contrast_anchors: bool,
    /// Other positives are negatives of a query's positive, too.
    #[serde(default = "yes")]
    pub contrast_positives: bool,
}

fn default_temperature() -> f64 {
    0.01
}
fn yes() -> bool {
    true
}

impl Default for Gist {
    fn default() -> Self {
        Self {
            temperature: default_temperature(),
            margin: 0.0,
            relative: false,
            contrast_anchors: true,
            contrast_positives: true,
        }
    }
}

/// Vectors of a batch, normalised `[n, dim]`: queries, their positives, and their first, second, .. negatives.
#[derive(Debug, Clone)]
pub struct Contrasted<B: Backend> {
    /// Queries.
    pub queries: Tensor<B, 2>,
    /// The positive of each.
    pub positives: Tensor<B, 2>,
    /// A negative of each.
    pub negatives: Vec<Tensor<B, 2>>,
}

/// Finite, because some shader compilers assume that there are no infinities.
const HIDDEN: f64 = -1e4;

/// Cross-entropy of each query's positive among all texts that the guide does not take for another positive.
///
/// The guide's vectors may be of another width; nothing flows back into them.
pub fn gist<B: Backend>(
    own: &Contrasted<B>,
    guide: &Contrasted<B>,
    settings: &Gist,
) -> Tensor<B, 1> {
    let [n, _] = own.queries.dims();
    let device = own.queries.device();
    let similarities = |a: &Tensor<B, 2>, b: &Tensor<B, 2>| a.clone().matmul(b.clone().transpose());
    let of_guide = similarities(&guide.queries, &guide.positives).detach();
    let diagonal = Tensor::<B, 1, Int>::arange(0..n as i64, &device).reshape([n, 1]);
    let best = of_guide.clone().gather(1, diagonal.clone());
    let limit = match settings.relative {
        true => best.clone() - best.abs().mul_scalar(settings.margin),
        false => best.sub_scalar(settings.margin),
    };
    let kept = |own: Tensor<B, 2>, guided: Tensor<B, 2>, spare_diagonal: bool| {
        let mut hidden = guided.detach().greater(limit.clone().expand(own.dims()));
        if spare_diagonal {
            let other = diagonal
                .clone()
                .expand([n, n])
                .not_equal(diagonal.clone().transpose().expand([n, n]));
            hidden = hidden.bool_and(other);
        }
        own.mask_fill(hidden, HIDDEN)
    };
    let mut scores = vec![kept(similarities(&own.queries, &own.positives), of_guide, true)];
    if settings.contrast_anchors {
        let guided = similarities(&guide.queries, &guide.queries);
        scores.push(kept(similarities(&own.queries, &own.queries), guided, false));
    }
    if settings.contrast_positives {
        let guided = similarities(&guide.positives, &guide.positives);
        scores.push(kept(similarities(&own.positives, &own.positives), guided, false));
    }
    for (own_negatives, guided) in own.negatives.iter().zip(&guide.negatives) {
        let guided = similarities(&guide.queries, guided);
        scores.push(kept(similarities(&own.queries, own_negatives), guided, false));
    }
    let scores = Tensor::cat(scores, 1).div_scalar(settings.temperature);
    log_softmax(scores, 1).gather(1, diagonal).mean().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Candidates, Guide, InfoNce, guided_info_nce};
    use crate::pooling::l2_normalize;
    use burn::backend::Flex;
    use burn::tensor::Distribution;

    type B = Flex;

    /// Without other queries and other positives' positives it is InfoNCE with a guide, which recipes use.
    #[test]
    fn a_guided_info_nce_is_gist_without_its_extra_pairs() {
        let device = Default::default();
        B::seed(&device, 3);
        let (n, dim) = (7, 6);
        let drawn = || {
            let normal = Distribution::Normal(0.0, 1.0);
            l2_normalize(Tensor::<B, 2>::random([n, dim], normal, &device))
        };
        let contrasted = || Contrasted {
            queries: drawn(),
            positives: drawn(),
            negatives: vec![drawn(), drawn()],
        };
        let (own, guide) = (contrasted(), contrasted());
        let documents = |of: &Contrasted<B>| {
            let all = [&of.positives, &of.negatives[0], &of.negatives[1]];
            let all = all.map(|x| x.clone().reshape([n, 1, dim])).to_vec();
            Tensor::cat(all, 1).reshape([n * 3, dim])
        };
        let cosines = guide.queries.clone().matmul(documents(&guide).transpose());
        let mut hidden = Vec::new();
        for margin in [-0.4, 0.0, 0.3] {
            let settings = Gist {
                temperature: 0.1,
                margin,
                contrast_anchors: false,
                contrast_positives: false,
                ..Gist::default()
            };
            let expected = gist(&own, &guide, &settings).into_scalar();
            let settings = InfoNce { temperature: 0.1, ..InfoNce::default() };
            let candidates = Candidates::grouped(n, 3, true);
            let guide = Guide { cosines: cosines.clone(), margin };
            let (queries, documents) = (own.queries.clone(), documents(&own));
            let found = guided_info_nce(queries, documents, &candidates, &settings, Some(&guide))
                .into_scalar();
            assert!((found - expected).abs() < 1e-5, "{margin}: {found} {expected}");
            hidden.push(found);
        }
        // The larger the margin, the fewer negatives.
        assert!(hidden[0] > hidden[1] && hidden[1] > hidden[2], "{hidden:?}");
    }
}

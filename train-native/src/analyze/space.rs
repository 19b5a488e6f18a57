//! How well the vectors use their space.

use anyhow::Result;
use linfa_linalg::eigh::{EigSort as _, EighInto as _};
use ndarray::{Array1, Array2, Axis};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::json;

use super::{Inputs, Picture, View, not_here};
use crate::mine::granularity;
use crate::report::{Series, line_chart};
use crate::search::normalize;
use crate::terminal::Terminal;

/// Measures of a space of vectors of length 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Health {
    /// Vectors.
    pub vectors: usize,
    /// Their width.
    pub dimensions: usize,
    /// `log mean exp(-2 |x - y|^2)` over all pairs (Wang and Isola, arXiv:2005.10242): the lower
    /// the better spread.
    pub uniformity: f64,
    /// Mean `|x - y|^2` over queries and their positives (the same paper): the lower the nearer.
    pub alignment: Option<f64>,
    /// Mean cosine of two vectors (Ethayarajh, arXiv:1909.00512): 0 where no direction is
    /// preferred.
    pub mean_cosine: f64,
    /// `min Z(c) / max Z(c)` with `Z(c) = sum exp(c x)` over the eigenvectors `c` of `X^T X`, each with
    /// both signs (Mu and Viswanath, arXiv:1702.01417): 1 is isotropic.
    pub isotropy: f64,
    /// `(sum l)^2 / sum l^2` of the covariance's eigenvalues `l` (participation ratio).
    pub effective_dimension: f64,
    /// `exp` of the entropy of the singular values' shares (RankMe, arXiv:2210.02885).
    pub rank_me: f64,
    /// Dimensions that hold 90 % of the variance.
    pub dimensions_90: usize,
    /// .. 99 %.
    pub dimensions_99: usize,
}

impl Health {
    /// Rows of a table.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let number = |value: f64| format!("{value:.4}");
        let row = |name: &str, value: String, meaning: &str| {
            vec![name.to_string(), value, meaning.to_string()]
        };
        vec![
            row("measure", "value".into(), "what it says"),
            row("vectors", format!("{} x {}", self.vectors, self.dimensions), "texts x dimensions"),
            row("uniformity", number(self.uniformity), "lower: better spread; -4 is the least"),
            row(
                "alignment",
                self.alignment.map_or("no pairs".into(), number),
                "lower: positives nearer; 0 is the least",
            ),
            row("mean cosine", number(self.mean_cosine), "near 0: no direction is preferred"),
            row("isotropy", number(self.isotropy), "1: the same in all directions"),
            row(
                "effective dimension",
                format!("{:.1}", self.effective_dimension),
                "participation ratio of the variance",
            ),
            row("RankMe", format!("{:.1}", self.rank_me), "dimensions in use, by entropy"),
            row(
                "dimensions for 90 / 99 %",
                format!("{} / {}", self.dimensions_90, self.dimensions_99),
                "of the variance",
            ),
        ]
    }
}

/// Eigenvalues of a symmetric matrix, largest first, and the eigenvectors as columns.
fn eigen(matrix: Array2<f64>) -> Result<(Array1<f64>, Array2<f64>)> {
    Ok(matrix.eigh_into()?.sort_eig_desc())
}

/// Measures of vectors of length 1, and the eigenvalues of their covariance, largest first.
///
/// # Errors
/// Fewer than two vectors, or a decomposition that does not converge.
pub fn health(vectors: &[Vec<f32>], alignment: Option<f64>) -> Result<(Health, Vec<f64>)> {
    if vectors.len() < 2 {
        return not_here("two texts at least are needed");
    }
    let (count, width) = (vectors.len(), vectors[0].len());
    let values = vectors.iter().flatten().map(|&value| f64::from(value)).collect();
    let x = Array2::from_shape_vec((count, width), values)?;
    // Sums of exp(-2 |x - y|^2) and of cosines over pairs.
    let (kernel, cosines) = (0..count)
        .into_par_iter()
        .map(|row| {
            let dots = x.slice(ndarray::s![row + 1.., ..]).dot(&x.row(row));
            let kernel: f64 = dots.iter().map(|dot| (-2.0 * (2.0 - 2.0 * dot)).exp()).sum();
            (kernel, dots.sum())
        })
        .reduce(|| (0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    let pairs = (count * (count - 1) / 2) as f64;

    let (gram, directions) = eigen(x.t().dot(&x))?;
    // An eigenvector's sign is nobody's choice: both are looked at.
    let along = x.dot(&directions);
    let sums = |sign: f64| along.mapv(|value| (sign * value).exp()).sum_axis(Axis(0));
    let (least, most) = [sums(1.0), sums(-1.0)]
        .iter()
        .flatten()
        .fold((f64::INFINITY, 0.0f64), |(a, b), &sum| (a.min(sum), b.max(sum)));

    let centred = &x - &x.sum_axis(Axis(0)).mapv(|sum| sum / count as f64);
    let covariance = centred.t().dot(&centred) / (count - 1) as f64;
    let (spectrum, _) = eigen(covariance)?;
    let spectrum: Vec<f64> = spectrum.iter().map(|value| value.max(0.0)).collect();
    let total: f64 = spectrum.iter().sum();
    let squares: f64 = spectrum.iter().map(|value| value * value).sum();
    // RankMe takes the vectors as they are, not centred.
    let singular: Vec<f64> = gram.iter().map(|value| value.max(0.0).sqrt()).collect();
    let sum: f64 = singular.iter().sum();
    let entropy: f64 =
        singular.iter().map(|value| value / sum + 1e-7).map(|share| -share * share.ln()).sum();
    let within = |share: f64| {
        let mut gathered = 0.0;
        let enough = |value: &f64| {
            gathered += value;
            gathered >= share * total
        };
        spectrum.iter().position(enough).map_or(width, |i| i + 1)
    };
    let health = Health {
        vectors: count,
        dimensions: width,
        uniformity: (kernel / pairs).ln(),
        alignment,
        mean_cosine: cosines / pairs,
        isotropy: least / most,
        effective_dimension: if squares > 0.0 { total * total / squares } else { 0.0 },
        rank_me: entropy.exp(),
        dimensions_90: within(0.9),
        dimensions_99: within(0.99),
    };
    Ok((health, spectrum))
}

pub(super) fn space(
    view: &dyn View,
    inputs: &Inputs,
    terminal: Terminal,
) -> Result<(Picture, Health)> {
    let texts: Vec<String> = inputs.labelled.iter().map(|(text, _)| text.clone()).collect();
    let mut vectors = view.encode(&texts, &inputs.prompt_text)?;
    vectors.iter_mut().for_each(|vector| normalize(vector));
    let result = granularity(view, &inputs.examples, 0, inputs.limit, terminal)?;
    let alignment = result.levels.first().map(|positive| 2.0 - 2.0 * positive.mean);
    let (health, spectrum) = health(&vectors, alignment)?;
    let total: f64 = spectrum.iter().sum();
    let mut gathered = 0.0;
    let mut points = vec![(0.0, 0.0)];
    points.extend(spectrum.iter().enumerate().map(|(i, value)| {
        gathered += value / total.max(f64::MIN_POSITIVE);
        ((i + 1) as f64, gathered)
    }));
    let width = health.dimensions as f64;
    let series = [
        Series { name: "this model".into(), points },
        Series { name: "all directions alike".into(), points: vec![(0.0, 0.0), (width, 1.0)] },
    ];
    let picture = Picture {
        name: "space".into(),
        title: "Spectrum of the space".into(),
        caption: format!(
            "Share of the variance of {} texts' vectors in their first principal components. \
             Effective dimension {:.1} of {}.",
            health.vectors, health.effective_dimension, health.dimensions
        ),
        svg: line_chart("components", "share of the variance", &series)?,
        data: json!({ "health": health, "eigenvalues": spectrum }),
    };
    Ok((picture, health))
}

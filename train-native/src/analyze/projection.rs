//! The texts in two dimensions, coloured by their labels.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use linfa_linalg::Order;
use linfa_linalg::lobpcg::TruncatedSvd;
use ndarray::{Array2, Axis};
use rand_08::SeedableRng as _;
use rand_08::rngs::SmallRng;
use serde_json::json;

use super::{Inputs, Picture, View, not_here};
use crate::report::{Group, scatter};
use crate::search::normalize;
use crate::terminal::Terminal;

/// Rounds of t-SNE.
const ROUNDS: usize = 1000;
/// scikit-learn's perplexity, where there are enough texts.
const PERPLEXITY: f32 = 30.0;
/// Barnes-Hut's accuracy, scikit-learn's default.
const THETA: f32 = 0.5;

/// Points in the plane.
pub type Points = Vec<(f64, f64)>;

/// The two principal components of each vector, and the share of the variance in each.
///
/// # Errors
/// Fewer than three vectors, or a decomposition that fails.
pub fn principal_components(vectors: &[Vec<f32>]) -> Result<(Points, [f64; 2])> {
    let (count, width) = (vectors.len(), vectors.first().map_or(0, Vec::len));
    if count < 3 || width < 2 {
        bail!("{count} vectors of {width} dimensions: three of two at least are needed");
    }
    let values = vectors.iter().flatten().map(|&value| f64::from(value)).collect();
    let vectors = Array2::from_shape_vec((count, width), values)?;
    let mean = vectors.mean_axis(Axis(0)).context("no vectors")?;
    let centred = vectors - &mean;
    let seed = SmallRng::seed_from_u64(42);
    let svd = TruncatedSvd::new_with_rng(centred.clone(), Order::Largest, seed).decompose(2);
    let (_, _, directions) = svd.context("principal components")?.values_vectors();
    let points = centred.dot(&directions.t());
    let total: f64 = centred.iter().map(|x| x * x).sum();
    // Directions in which nothing varies are left out of what the decomposition gives.
    let value = |row: usize, axis: usize| points.get((row, axis)).copied().unwrap_or(0.0);
    let share = |axis: usize| {
        let squares: f64 = (0..count).map(|row| value(row, axis).powi(2)).sum();
        if total > 0.0 { squares / total } else { 0.0 }
    };
    let shares = [share(0), share(1)];
    Ok(((0..count).map(|row| (value(row, 0), value(row, 1))).collect(), shares))
}

/// t-SNE by bhtsne (Barnes-Hut), from the principal components on, so that it is the same each
/// time.
///
/// # Errors
/// Fewer vectors than the perplexity needs.
pub fn t_sne(
    vectors: &[Vec<f32>],
    start: &[(f64, f64)],
    mut each: impl FnMut(usize),
) -> Result<Points> {
    if vectors.len() < 8 || start.len() != vectors.len() {
        bail!("{} vectors: t-SNE needs eight at least", vectors.len());
    }
    let perplexity = PERPLEXITY.min((vectors.len() - 1) as f32 / 3.0);
    let deviation = {
        let squares: f64 = start.iter().map(|point| point.0 * point.0).sum();
        (squares / start.len() as f64).sqrt().max(1e-12)
    };
    // scikit-learn's start: the first component has a deviation of 1e-4.
    let start: Vec<f32> = start
        .iter()
        .flat_map(|point| [point.0, point.1])
        .map(|value| (value / deviation * 1e-4) as f32)
        .collect();
    let distance = |a: &Vec<f32>, b: &Vec<f32>| {
        a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
    };
    let result = bhtsne::tSNE::<f32, Vec<f32>, 2>::new(vectors)
        .perplexity(perplexity)
        .epochs(ROUNDS)
        .initial_embedding(start)
        .epoch_callback(|epoch, _| each(epoch))
        .barnes_hut(THETA, distance)
        .embedding();
    let (points, _) = result.as_chunks::<2>();
    Ok(points.iter().map(|point| (f64::from(point[0]), f64::from(point[1]))).collect())
}

fn by_label(labels: &[String], points: &[(f64, f64)]) -> Vec<Group> {
    let mut groups: BTreeMap<&String, Points> = BTreeMap::new();
    for (label, &point) in labels.iter().zip(points) {
        groups.entry(label).or_default().push(point);
    }
    groups.into_iter().map(|(name, points)| Group { name: name.clone(), points }).collect()
}

/// Share of the points whose nearest other point has their label.
fn neighbours_agree(labels: &[String], points: &[(f64, f64)]) -> f64 {
    let nearest = |i: usize| {
        let distance = |other: usize| {
            let (a, b): ((f64, f64), (f64, f64)) = (points[i], points[other]);
            (a.0 - b.0).powi(2) + (a.1 - b.1).powi(2)
        };
        let others = (0..points.len()).filter(move |&other| other != i);
        others.min_by(|&a, &b| distance(a).total_cmp(&distance(b)))
    };
    let agree = |i: &usize| nearest(*i).is_some_and(|other| labels[other] == labels[*i]);
    (0..points.len()).filter(agree).count() as f64 / points.len().max(1) as f64
}

pub(super) fn projection(
    view: &dyn View,
    inputs: &Inputs,
    terminal: Terminal,
) -> Result<Vec<Picture>> {
    let (texts, labels): (Vec<String>, Vec<String>) = inputs.labelled.iter().cloned().unzip();
    if texts.len() < 8 {
        return not_here("eight texts at least are needed");
    }
    let mut vectors = view.encode(&texts, &inputs.prompt_text)?;
    vectors.iter_mut().for_each(|vector| normalize(vector));
    if vectors.iter().all(|vector| *vector == vectors[0]) {
        return not_here("all texts have the same vector");
    }
    let (components, shares) = principal_components(&vectors)?;
    let bar = terminal.progress(ROUNDS as u64, "t-SNE");
    let spread = t_sne(&vectors, &components, |round| bar.set_position(round as u64))?;
    bar.finish_and_clear();
    let picture =
        |name: &str, title: &str, axes: [String; 2], points: &[(f64, f64)]| -> Result<Picture> {
            let agree = neighbours_agree(&labels, points);
            let texts = texts.iter().zip(&labels).zip(points);
            let rows: Vec<_> = texts
            .map(|((text, label), (x, y))| json!({ "text": text, "label": label, "x": x, "y": y }))
            .collect();
            Ok(Picture {
                name: name.into(),
                title: title.into(),
                caption: format!(
                    "{} texts, coloured by label. The nearest other point has the same label for \
                 {:.1} % of them.",
                    points.len(),
                    100.0 * agree
                ),
                svg: scatter(&axes[0], &axes[1], &by_label(&labels, points))?,
                data: json!({ "points": rows, "neighbours_agree": agree, "variance": shares }),
            })
        };
    let percent = |i: usize| format!("component {} ({:.1} %)", i + 1, 100.0 * shares[i]);
    Ok(vec![
        picture("pca", "The texts by PCA", [percent(0), percent(1)], &components)?,
        picture("t-sne", "The texts by t-SNE", [String::new(), String::new()], &spread)?,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three groups around three far corners of a space of five dimensions.
    fn groups() -> (Vec<Vec<f32>>, Vec<String>) {
        let noise = |i: usize, axis: usize| ((i * 31 + axis * 17) % 13) as f32 * 0.02;
        let vector =
            |i: usize| (0..5).map(|axis| f32::from(axis == i % 3) * 3.0 + noise(i, axis)).collect();
        ((0..60).map(vector).collect(), (0..60).map(|i| format!("g{}", i % 3)).collect())
    }

    #[test]
    fn groups_stay_together() {
        let (vectors, labels) = groups();
        let (components, shares) = principal_components(&vectors).unwrap();
        assert!(shares[0] + shares[1] > 0.9 && shares[0] >= shares[1], "{shares:?}");
        assert_eq!(neighbours_agree(&labels, &components), 1.0);
        let points = t_sne(&vectors, &components, |_| ()).unwrap();
        assert_eq!(points.len(), 60);
        assert_eq!(neighbours_agree(&labels, &points), 1.0);
        assert!(t_sne(&vectors[..7], &components[..7], |_| ()).is_err());
        assert!(principal_components(&vectors[..2]).is_err());
    }
}

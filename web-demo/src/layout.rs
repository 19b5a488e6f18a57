//! Vectors to places in the plane and clusters; runs in a worker of its own (`map-worker.js`).

use linfa::prelude::*;
use linfa_clustering::KMeans;
use linfa_reduction::Pca;
use ndarray::Array2;
use rand_xoshiro::Xoshiro256Plus;
use rand_xoshiro::rand_core::SeedableRng as _;
use wasm_bindgen::prelude::*;

/// Rounds of t-SNE.
const ROUNDS: usize = 600;
/// scikit-learn's perplexity, where there are enough texts.
const PERPLEXITY: f32 = 30.0;
/// Barnes-Hut's accuracy, scikit-learn's default.
const THETA: f32 = 0.5;
/// Clusters at most: as many as there are colours.
const CLUSTERS: usize = 10;

/// Where each vector is in the plane, and its cluster: `[x, y, cluster]` one after another. t-SNE
/// (bhtsne) from the principal components on, and k-means (linfa), the same each time. `report` is
/// called with the share that is done.
///
/// # Errors
/// Fewer than eight vectors, or numbers that make no whole vectors.
#[wasm_bindgen]
pub fn layout(
    vectors: &[f32],
    dimensions: usize,
    report: &js_sys::Function,
) -> Result<Vec<f32>, JsError> {
    if dimensions == 0 || !vectors.len().is_multiple_of(dimensions) {
        return Err(JsError::new("a map needs vectors of one width"));
    }
    let rows: Vec<Vec<f32>> = vectors.chunks_exact(dimensions).map(<[f32]>::to_vec).collect();
    let count = rows.len();
    if count < 8 {
        return Err(JsError::new("a map needs eight passages at least"));
    }
    let values = vectors.iter().map(|&value| f64::from(value)).collect();
    let data = Dataset::from(Array2::from_shape_vec((count, dimensions), values)?);
    let components = Pca::params(2).fit(&data)?.predict(data.records());
    let clusters = CLUSTERS.min(((count as f64 / 2.0).sqrt() as usize).max(2));
    let rng = Xoshiro256Plus::seed_from_u64(7);
    let means = KMeans::params_with_rng(clusters, rng).max_n_iterations(100).fit(&data)?;
    let of = means.predict(data.records());

    // scikit-learn's start: the first component has a deviation of 1e-4.
    let component = |row: usize, axis: usize| components.get((row, axis)).copied().unwrap_or(0.0);
    let squares: f64 = (0..count).map(|row| component(row, 0).powi(2)).sum();
    let deviation = (squares / count as f64).sqrt().max(1e-12);
    let start: Vec<f32> = (0..count)
        .flat_map(|row| [component(row, 0), component(row, 1)])
        .map(|value| (value / deviation * 1e-4) as f32)
        .collect();
    let distance = |a: &Vec<f32>, b: &Vec<f32>| {
        a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>().sqrt()
    };
    let places = bhtsne::tSNE::<f32, Vec<f32>, 2>::new(&rows)
        .perplexity(PERPLEXITY.min((count - 1) as f32 / 3.0))
        .epochs(ROUNDS)
        .initial_embedding(start)
        .epoch_callback(|epoch, _| {
            if epoch % 20 == 0 {
                // A page that no longer listens is no reason to stop.
                let _ = report.call1(&JsValue::NULL, &(epoch as f64 / ROUNDS as f64).into());
            }
        })
        .barnes_hut(THETA, distance)
        .embedding();
    let (places, _) = places.as_chunks::<2>();
    Ok(places
        .iter()
        .zip(&of)
        .flat_map(|(place, &cluster)| [place[0], place[1], cluster as f32])
        .collect())
}

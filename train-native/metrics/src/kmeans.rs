//! scikit-learn's `MiniBatchKMeans` (D. Sculley, "Web-scale k-means clustering", 2010), step for
//! step: k-means++ over a sample, mini-batches drawn with repetition, centres with few members
//! moved to random points, and a stop where the smoothed inertia no longer falls. With the same
//! seed it draws the same numbers, so that V-measures are mteb's.

use ndarray::{Array1, Array2, ArrayView2, Axis, s};

use crate::random::NumpyRandom;

/// Passes over the data at most.
const MAX_ITERATIONS: usize = 100;
/// Batches without a lower smoothed inertia after which it stops.
const PATIENCE: usize = 10;
/// A centre with less than this share of the largest centre's members is moved.
const REASSIGNMENT_RATIO: f32 = 0.01;

/// The cluster of each row of `[rows, dim]`. Rows must be at least as many as clusters.
pub fn mini_batch_kmeans(
    rows: ArrayView2<'_, f32>,
    clusters: usize,
    batch: usize,
    seed: u32,
) -> Vec<usize> {
    let count = rows.nrows();
    let batch = batch.min(count);
    let mut random = NumpyRandom::new(seed);
    let mut sample = 3 * batch;
    if sample < clusters {
        sample = 3 * clusters;
    }
    let sample = sample.min(count);
    // The validation set, by which several starts would be compared; there is one.
    random.integers(count, sample);
    let mut centres = if sample < count {
        let drawn = random.integers(count, sample);
        plus_plus(rows.select(Axis(0), &drawn).view(), clusters, &mut random)
    } else {
        plus_plus(rows, clusters, &mut random)
    };
    let cumulative = even_weights(count);
    let mut members = Array1::<f32>::zeros(clusters);
    let (mut since_reassignment, mut without_gain) = (0, 0);
    let (mut smoothed, mut lowest) = (None::<f64>, None::<f64>);
    for step in 0..MAX_ITERATIONS * count / batch {
        let drawn = rows.select(Axis(0), &random.weighted(&cumulative, batch));
        since_reassignment += batch;
        let reassign = members.iter().any(|&n| n == 0.0) || since_reassignment >= 10 * clusters;
        if reassign {
            since_reassignment = 0;
        }
        let (labels, inertia) = assign(drawn.view(), &centres);
        update(&drawn, &labels, &mut centres, &mut members);
        if reassign {
            move_small(&drawn, &mut centres, &mut members, &mut random);
        }
        // The first inertia is that of the start.
        if step == 0 {
            continue;
        }
        let inertia = inertia / batch as f64;
        let weight = (batch as f64 * 2.0 / (count as f64 + 1.0)).min(1.0);
        let now = smoothed.map_or(inertia, |before| before * (1.0 - weight) + inertia * weight);
        smoothed = Some(now);
        if lowest.is_none_or(|lowest| now < lowest) {
            (lowest, without_gain) = (Some(now), 0);
        } else {
            without_gain += 1;
        }
        if without_gain >= PATIENCE {
            break;
        }
    }
    assign(rows, &centres).0
}

/// Running sums of `count` equal weights (in single precision, as scikit-learn keeps them).
fn even_weights(count: usize) -> Vec<f64> {
    let weight = f64::from(1.0f32 / count as f32);
    let mut sum = 0.0;
    let sums: Vec<f64> = (0..count)
        .map(|_| {
            sum += weight;
            sum
        })
        .collect();
    sums.iter().map(|edge| edge / sum).collect()
}

/// Squared distances `[points, rows]` from some of the rows to all, computed in double precision.
fn squared_distances(points: &[usize], rows: &Array2<f64>, norms: &Array1<f64>) -> Array2<f32> {
    let chosen = rows.select(Axis(0), points);
    let mut products = chosen.dot(&rows.t());
    for (mut line, &point) in products.outer_iter_mut().zip(points) {
        line.zip_mut_with(norms, |product, norm| *product = -2.0 * *product + norms[point] + norm);
    }
    products.mapv(|distance| (distance as f32).max(0.0))
}

/// Greedy k-means++: each next centre is the best of some points drawn by their distance.
fn plus_plus(rows: ArrayView2<'_, f32>, clusters: usize, random: &mut NumpyRandom) -> Array2<f32> {
    let wide = rows.mapv(f64::from);
    let norms = wide.map_axis(Axis(1), |row| row.dot(&row));
    let trials = 2 + (clusters as f64).ln() as usize;
    let first = random.weighted(&even_weights(rows.nrows()), 1)[0];
    let mut chosen = vec![first];
    let mut closest = squared_distances(&[first], &wide, &norms).row(0).to_owned();
    while chosen.len() < clusters {
        let potential = f64::from(closest.sum());
        let values: Vec<f64> = (0..trials).map(|_| random.unit() * potential).collect();
        let mut sum = 0.0f32;
        let sums: Vec<f64> = closest
            .iter()
            .map(|distance| {
                sum += distance;
                f64::from(sum)
            })
            .collect();
        let candidates: Vec<usize> = values
            .iter()
            .map(|value| sums.partition_point(|edge| edge < value).min(sums.len() - 1))
            .collect();
        let mut distances = squared_distances(&candidates, &wide, &norms);
        for mut line in distances.outer_iter_mut() {
            line.zip_mut_with(&closest, |distance, now| *distance = distance.min(*now));
        }
        let potentials = distances.sum_axis(Axis(1));
        let mut best = 0;
        for i in 1..candidates.len() {
            if potentials[i] < potentials[best] {
                best = i;
            }
        }
        closest = distances.row(best).to_owned();
        chosen.push(candidates[best]);
    }
    rows.select(Axis(0), &chosen)
}

/// The nearest centre of each row, the first of equal ones, and the sum of squared distances.
fn assign(rows: ArrayView2<'_, f32>, centres: &Array2<f32>) -> (Vec<usize>, f64) {
    let norms = centres.map_axis(Axis(1), |centre| centre.dot(&centre));
    let mut labels = Vec::with_capacity(rows.nrows());
    let mut inertia = 0.0;
    for start in (0..rows.nrows()).step_by(4096) {
        let block = rows.slice(s![start..(start + 4096).min(rows.nrows()), ..]);
        let products = block.dot(&centres.t());
        for (row, products) in block.outer_iter().zip(products.outer_iter()) {
            let mut best = (0, f32::INFINITY);
            for (i, (product, norm)) in products.iter().zip(&norms).enumerate() {
                let distance = norm - 2.0 * product;
                if distance < best.1 {
                    best = (i, distance);
                }
            }
            let to_centre = row.iter().zip(centres.row(best.0)).map(|(a, b)| (a - b) * (a - b));
            inertia += f64::from(to_centre.sum::<f32>());
            labels.push(best.0);
        }
    }
    (labels, inertia)
}

/// Moves each centre to the mean of all that it has been given so far.
fn update(
    batch: &Array2<f32>,
    labels: &[usize],
    centres: &mut Array2<f32>,
    members: &mut Array1<f32>,
) {
    for i in 0..centres.nrows() {
        let mine: Vec<usize> = (0..labels.len()).filter(|&row| labels[row] == i).collect();
        if mine.is_empty() {
            continue;
        }
        let mut centre = centres.row_mut(i);
        centre *= members[i];
        for &row in &mine {
            centre += &batch.row(row);
        }
        members[i] += mine.len() as f32;
        centre *= 1.0 / members[i];
    }
}

/// Moves the centres that have too few members to random rows of the batch.
fn move_small(
    batch: &Array2<f32>,
    centres: &mut Array2<f32>,
    members: &mut Array1<f32>,
    random: &mut NumpyRandom,
) {
    let largest = members.iter().copied().fold(0.0, f32::max);
    let mut small: Vec<bool> = members.iter().map(|&n| n < REASSIGNMENT_RATIO * largest).collect();
    let most = batch.nrows() / 2;
    if small.iter().filter(|&&small| small).count() as f64 > 0.5 * batch.nrows() as f64 {
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by(|&a, &b| members[a].total_cmp(&members[b]));
        order[most..].iter().for_each(|&i| small[i] = false);
    }
    let moved: Vec<usize> = (0..small.len()).filter(|&i| small[i]).collect();
    if moved.is_empty() {
        return;
    }
    let targets = random.distinct(batch.nrows(), moved.len());
    for (&centre, row) in moved.iter().zip(targets) {
        centres.row_mut(centre).assign(&batch.row(row));
    }
    // Counted as the smallest of the others, so that they are not moved again at once.
    let least =
        (0..small.len()).filter(|&i| !small[i]).map(|i| members[i]).fold(f32::INFINITY, f32::min);
    moved.iter().for_each(|&i| members[i] = least);
}

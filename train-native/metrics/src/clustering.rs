//! How well clusters match labels, as scikit-learn defines it.

use std::collections::HashMap;

use statrs::function::gamma::ln_gamma;

/// Counts of each pair of label and cluster, of the labels and of the clusters.
struct Contingency {
    cells: Vec<(usize, usize, f64)>,
    labels: Vec<f64>,
    clusters: Vec<f64>,
    total: f64,
}

impl Contingency {
    fn new(labels: &[usize], clusters: &[usize]) -> Self {
        let (mut rows, mut columns) = (HashMap::new(), HashMap::new());
        let (mut label_counts, mut cluster_counts) = (Vec::new(), Vec::new());
        let mut cells: HashMap<(usize, usize), f64> = HashMap::new();
        for (label, cluster) in labels.iter().zip(clusters) {
            let next = rows.len();
            let row = *rows.entry(label).or_insert(next);
            let next = columns.len();
            let column = *columns.entry(cluster).or_insert(next);
            label_counts.resize(rows.len(), 0.0);
            cluster_counts.resize(columns.len(), 0.0);
            label_counts[row] += 1.0;
            cluster_counts[column] += 1.0;
            *cells.entry((row, column)).or_default() += 1.0;
        }
        let mut cells: Vec<_> = cells.into_iter().map(|((a, b), n)| (a, b, n)).collect();
        // In a fixed order, so that sums of floats are the same in every run.
        cells.sort_by_key(|&(a, b, _)| (a, b));
        Self { cells, labels: label_counts, clusters: cluster_counts, total: labels.len() as f64 }
    }

    fn mutual_information(&self) -> f64 {
        let terms = self.cells.iter().map(|&(row, column, n)| {
            n / self.total * (n * self.total / (self.labels[row] * self.clusters[column])).ln()
        });
        terms.sum::<f64>().max(0.0)
    }

    fn entropy(&self, counts: &[f64]) -> f64 {
        counts.iter().map(|n| -n / self.total * (n / self.total).ln()).sum::<f64>().max(0.0)
    }

    /// What two random clusterings of these sizes share on average.
    fn expected_mutual_information(&self) -> f64 {
        let n = self.total;
        let log_factorial: Vec<f64> =
            (0..=self.total as usize).map(|n| ln_gamma(n as f64 + 1.0)).collect();
        let fact = |n: f64| log_factorial[n as usize];
        let mut sum = 0.0;
        for &a in &self.labels {
            for &b in &self.clusters {
                let mut shared = (a + b - n).max(1.0);
                while shared <= a.min(b) {
                    let chance = fact(a) + fact(b) + fact(n - a) + fact(n - b)
                        - fact(n)
                        - fact(shared)
                        - fact(a - shared)
                        - fact(b - shared)
                        - fact(n - a - b + shared);
                    sum += shared / n * (n * shared / (a * b)).ln() * chance.exp();
                    shared += 1.0;
                }
            }
        }
        sum
    }
}

/// V-measure: the harmonic mean of homogeneity and completeness (Rosenberg and Hirschberg, 2007).
pub fn v_measure(labels: &[usize], clusters: &[usize]) -> f64 {
    if labels.is_empty() {
        return 1.0;
    }
    let table = Contingency::new(labels, clusters);
    let shared = table.mutual_information();
    let part = |entropy: f64| if entropy > 0.0 { shared / entropy } else { 1.0 };
    let homogeneity = part(table.entropy(&table.labels));
    let completeness = part(table.entropy(&table.clusters));
    match homogeneity + completeness {
        sum if sum > 0.0 => 2.0 * homogeneity * completeness / sum,
        _ => 0.0,
    }
}

/// Mutual information adjusted for chance (Vinh et al., 2010), with the mean of the entropies.
pub fn adjusted_mutual_information(labels: &[usize], clusters: &[usize]) -> f64 {
    let table = Contingency::new(labels, clusters);
    let alone = |counts: &[f64]| counts.len() == 1;
    let split = |counts: &[f64]| counts.len() as f64 == table.total;
    if labels.is_empty()
        || (alone(&table.labels) && alone(&table.clusters))
        || (split(&table.labels) && split(&table.clusters))
    {
        return 1.0;
    }
    let expected = table.expected_mutual_information();
    let mean = (table.entropy(&table.labels) + table.entropy(&table.clusters)) / 2.0;
    let nonzero = |value: f64| match value {
        value if value < 0.0 => value.min(-f64::EPSILON),
        value => value.max(f64::EPSILON),
    };
    (table.mutual_information() - expected) / nonzero(mean - expected)
}

//! The measures, and the draws, models and tests around them: numbers in, numbers out, each defined as
//! mteb, scikit-learn, scipy or trec_eval define it, and checked against them
//! (`tests/parity/metrics.rs`).

mod classification;
mod clustering;
mod compare;
mod correlation;
mod kmeans;
mod logistic;
mod pairs;
mod parts;
mod random;
mod range;
mod ranking;
mod retrieval;
mod top_k;
mod trec;

pub use classification::{average_precision, classification_scores};
pub use clustering::{adjusted_mutual_information, v_measure};
pub use compare::{Interval, Wilcoxon, clustered_bootstrap, paired_bootstrap, wilcoxon};
pub use correlation::{pearson, ranks, spearman};
pub use kmeans::mini_batch_kmeans;
pub use logistic::fit_predict;
pub use pairs::pair_scores;
pub use parts::ScoreParts;
pub use random::{NumpyRandom, PythonRandom};
pub use range::checked;
pub use ranking::Ranking;
pub use retrieval::{dense_rankings, ndcg};
pub use top_k::ParallelTopK;
pub use trec::{Evaluated, Measure};

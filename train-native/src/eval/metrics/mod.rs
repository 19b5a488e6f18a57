//! The measures: numbers in, numbers out, each defined as mteb, scikit-learn, scipy or trec_eval
//! define it, and checked against them (`tests/eval`).

mod classification;
mod clustering;
mod correlation;
mod pairs;
mod ranking;

pub use classification::{average_precision, classification_scores};
pub use clustering::{adjusted_mutual_information, v_measure};
pub use correlation::{pearson, ranks, spearman};
pub use pairs::pair_scores;
pub use ranking::Ranking;

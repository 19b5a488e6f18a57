//! Logistic regression as mteb fits it: scikit-learn's defaults (L2 with C = 1, an intercept that
//! is not penalised), at most 100 steps of L-BFGS. By linfa.

use anyhow::{Result, anyhow};
use linfa::prelude::*;
use linfa_logistic::{LogisticRegression, MultiLogisticRegression};
use ndarray::{Array1, Array2};

const STEPS: u64 = 100;

/// Learns the classes of some vectors and finds those of others.
///
/// # Errors
/// Fewer than two classes, or numbers that L-BFGS cannot work with.
pub fn fit_predict(
    train: Array2<f64>,
    classes: Vec<usize>,
    test: &Array2<f64>,
) -> Result<Vec<usize>> {
    let failed = |error: linfa_logistic::error::Error| anyhow!("logistic regression: {error}");
    let mut kinds = classes.clone();
    kinds.sort_unstable();
    kinds.dedup();
    if kinds.len() < 2 {
        return Err(anyhow!(
            "logistic regression needs two labels, the training texts have {}",
            kinds.len()
        ));
    }
    let result = if kinds.len() == 2 {
        let data = Dataset::new(train, Array1::from(classes));
        let model =
            LogisticRegression::default().max_iterations(STEPS).fit(&data).map_err(failed)?;
        model.predict(test)
    } else {
        let data = Dataset::new(train, Array1::from(classes));
        let model =
            MultiLogisticRegression::default().max_iterations(STEPS).fit(&data).map_err(failed)?;
        model.predict(test)
    };
    Ok(result.to_vec())
}

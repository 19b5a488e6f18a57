//! The ranges in which measures lie. Each number that is reported as a score passes here when it is
//! made, so that data of a kind that nobody thought of ends in an error, not in a recall of 2.

use anyhow::{Result, bail};

/// How far rounding may carry a score out of its range.
const ROUNDING: f64 = 1e-9;

/// The score of a task by a measure, in the measure's range; `None` where it is not defined, as a
/// correlation is not where one side is constant.
///
/// # Errors
/// A number outside the range, or none where the measure always has one.
pub fn checked(task: &str, measure: &str, score: f64) -> Result<Option<f64>> {
    let name = measure.to_lowercase();
    let correlation = name.contains("spearman") || name.contains("pearson");
    // Adjusted for chance, it is below 0 where chance does better.
    let least = if correlation || name == "ami" { -1.0 } else { 0.0 };
    if correlation && score.is_nan() {
        return Ok(None);
    }
    if !(least - ROUNDING..=1.0 + ROUNDING).contains(&score) {
        bail!(
            "{task}: {measure} is {score}, outside {least} to 1: the data or the vectors break what the measure \
             assumes; look for ids that are there twice, for empty lists and for NaN"
        );
    }
    Ok(Some(score.clamp(least, 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_lie_in_their_ranges() {
        assert_eq!(checked("t", "recall_at_10", 1.0 + 1e-12).unwrap(), Some(1.0));
        assert_eq!(checked("t", "cosine_spearman", f64::NAN).unwrap(), None);
        assert_eq!(checked("t", "nDCG@10", 0.25).unwrap(), Some(0.25));
        assert_eq!(checked("t", "Spearman", -0.5).unwrap(), Some(-0.5));
        for (measure, score) in [
            ("recall_at_10", 2.0),
            ("ndcg_at_10", -0.1),
            ("v_measure", f64::NAN),
            ("cosine_pearson", f64::INFINITY),
            ("max_ap", 1.1),
        ] {
            let error = checked("Own", measure, score).unwrap_err().to_string();
            assert!(error.starts_with(&format!("Own: {measure} is")), "{error}");
        }
    }
}

//! Similarities of queries to their positives and to each level of negatives.

use anyhow::Result;
use serde_json::json;

use super::{Inputs, Picture, View};
use crate::mine::granularity;
use crate::report::histogram;
use crate::terminal::Terminal;

/// Steps of the histogram.
const STEPS: usize = 40;

pub(super) fn similarity(
    view: &dyn View,
    inputs: &Inputs,
    terminal: Terminal,
) -> Result<Vec<Picture>> {
    let result = granularity(view, &inputs.examples, 0, inputs.limit, terminal)?;
    let means: Vec<String> = result
        .levels
        .iter()
        .map(|level| format!("{} {:.3} (± {:.3})", level.name, level.mean, level.deviation))
        .collect();
    let levels: Vec<_> = result
        .levels
        .iter()
        .map(|level| {
            json!({
                "name": level.name, "mean": level.mean, "deviation": level.deviation,
                "count": level.count, "similarities": level.similarities,
            })
        })
        .collect();
    Ok(vec![Picture {
        name: "similarity".into(),
        title: "Similarities of positives and negatives".into(),
        caption: format!(
            "Cosine of queries to their positives and to each level of negatives (n1 is the \
             hardest), as shares. Means: {}.",
            means.join(", ")
        ),
        svg: histogram("cosine", &result.series(), STEPS)?,
        data: json!({ "levels": levels }),
    }])
}

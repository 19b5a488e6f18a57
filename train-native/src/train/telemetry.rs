//! What a run reports of each step.

use serde::{Deserialize, Serialize};

/// One optimizer step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Stage, from 0.
    pub stage: usize,
    /// Step of the stage, from 1.
    pub step: usize,
    /// Mean loss of the step.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Seconds that the step took.
    pub seconds: f64,
    /// Texts in the step.
    pub texts: usize,
}

/// All steps so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// The steps, in order.
    pub points: Vec<Point>,
}

impl Telemetry {
    /// The steps as JSON lines.
    pub fn to_json_lines(&self) -> serde_json::Result<String> {
        let lines: Vec<String> =
            self.points.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
        Ok(lines.join("\n") + "\n")
    }
}

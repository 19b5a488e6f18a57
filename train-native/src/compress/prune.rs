//! Pruning: magnitude, Wanda (arXiv:2306.11695), SparseGPT (arXiv:2301.00774); at a ratio, or n of m.

use std::fmt;
use std::str::FromStr;

use anyhow::Result;
use clap::ValueEnum;
use kiln_embed::embedder::Embedder;
use kiln_embed::kernels::Kernels;
use kiln_embed::model::Gram;
use rayon::prelude::*;
use serde::Serialize;

use super::Calibration;
use super::linear_algebra::{InverseFactor, output_error};
use crate::terminal::Terminal;

/// How weights are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PruneMethod {
    /// The smallest weights of each projection.
    Magnitude,
    /// The smallest products of |weight| and input norm, within each output.
    Wanda,
    /// The weights whose loss changes the output least, with the rest adjusted to compensate.
    #[value(name = "sparsegpt")]
    SparseGpt,
}

/// Which share of the weights goes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub enum Pattern {
    /// A share of all, from 0 to 1.
    Ratio(f64),
    /// `n` of every `m` neighbouring inputs.
    Of(usize, usize),
}

/// `0.5`, `50%`, `2:4`, `4:8`.
impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a share (0.5, 50%) nor n:m (2:4, 4:8)");
        if let Some((n, m)) = text.split_once(':') {
            let (n, m) = (n.parse().map_err(|_| wrong())?, m.parse().map_err(|_| wrong())?);
            return match 0 < n && n < m && m <= 1024 {
                true => Ok(Self::Of(n, m)),
                false => {
                    Err(format!("{text:?}: n must be above 0 and below m, and m 1024 at most"))
                }
            };
        }
        let (number, unit) = match text.strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text, 1.0),
        };
        let ratio = number.trim().parse::<f64>().map_err(|_| wrong())? / unit;
        match (0.0..1.0).contains(&ratio) && ratio > 0.0 {
            true => Ok(Self::Ratio(ratio)),
            false => Err(format!("{text:?}: the share must be above 0 and below 1")),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ratio(ratio) => write!(f, "{}%", 100.0 * ratio),
            Self::Of(n, m) => write!(f, "{n}:{m}"),
        }
    }
}

/// What became of one projection.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pruned {
    /// Its name in checkpoints.
    pub tensor: String,
    /// Share of its weights that are zero now.
    pub sparsity: f64,
    /// Share of its output that is lost on the calibration texts.
    pub output_error: f64,
}

/// Inputs whose scores are compared together by SparseGPT at a ratio.
const GROUP: usize = 128;

/// Prunes all projections of a backbone.
///
/// # Errors
/// Rows that the pattern does not divide, a singular Hessian, or Ctrl-C.
pub fn prune<B: Kernels>(
    embedder: &mut Embedder<B>,
    calibration: &Calibration,
    (method, pattern, damping): (PruneMethod, Pattern, f64),
    terminal: Terminal,
) -> Result<Vec<Pruned>> {
    let mut report = Vec::new();
    calibration.walk(embedder, terminal, |name, weights, shape, gram| {
        if let Pattern::Of(_, m) = pattern
            && !shape[1].is_multiple_of(m)
        {
            anyhow::bail!("{pattern} does not divide its {} inputs", shape[1]);
        }
        let before = weights.to_vec();
        prune_weights(weights, (method, pattern, damping), gram)?;
        let zeros = weights.iter().filter(|weight| **weight == 0.0).count();
        report.push(Pruned {
            tensor: name.into(),
            sparsity: zeros as f64 / weights.len() as f64,
            output_error: output_error(&before, weights, gram)?,
        });
        Ok(())
    })?;
    Ok(report)
}

/// Prunes weights `[out, in]` of one projection in place, by the Gram matrix of what goes in.
///
/// # Errors
/// A Hessian that is singular in spite of the damping (SparseGPT).
pub fn prune_weights(
    weights: &mut [f32],
    (method, pattern, damping): (PruneMethod, Pattern, f64),
    gram: &Gram,
) -> Result<()> {
    let inputs = gram.inputs;
    match method {
        PruneMethod::Magnitude => by_score(weights, inputs, pattern, false, |_| 1.0),
        PruneMethod::Wanda => {
            let norm = |input: usize| gram.sum[input * inputs + input].sqrt() as f32;
            by_score(weights, inputs, pattern, true, norm);
        }
        PruneMethod::SparseGpt => sparse_gpt(weights, inputs, pattern, gram, damping)?,
    }
    Ok(())
}

/// Indices of the `count` smallest scores.
fn smallest(scores: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    if count > 0 && count < scores.len() {
        order.select_nth_unstable_by(count, |&a, &b| {
            scores[a].total_cmp(&scores[b]).then(a.cmp(&b))
        });
    }
    order.truncate(count);
    order
}

/// Zeros the weights with the smallest |weight| times the factor of their input: among all of the
/// matrix, or among each row's.
fn by_score(
    weights: &mut [f32],
    inputs: usize,
    pattern: Pattern,
    by_row: bool,
    factor: impl Fn(usize) -> f32 + Sync,
) {
    let part = match pattern {
        Pattern::Of(_, m) => m,
        Pattern::Ratio(_) if by_row => inputs,
        Pattern::Ratio(_) => weights.len(),
    };
    weights.par_chunks_mut(part).enumerate().for_each(|(number, part)| {
        let start = number * part.len() % inputs;
        let scores: Vec<f32> = part
            .iter()
            .enumerate()
            .map(|(i, weight)| weight.abs() * factor((start + i) % inputs))
            .collect();
        let count = match pattern {
            Pattern::Of(n, _) => n,
            Pattern::Ratio(ratio) => (ratio * part.len() as f64).round() as usize,
        };
        smallest(&scores, count).into_iter().for_each(|i| part[i] = 0.0);
    });
}

/// SparseGPT: input after input, what is pruned costs `w^2 / [H^-1]_jj`, and the inputs after it make
/// it good.
fn sparse_gpt(
    weights: &mut [f32],
    inputs: usize,
    pattern: Pattern,
    gram: &Gram,
    damping: f64,
) -> Result<()> {
    let order: Vec<usize> = (0..inputs).collect();
    let factor = InverseFactor::new(gram, &order, damping)?;
    let mut rows: Vec<Vec<f64>> = weights
        .chunks_exact(inputs)
        .map(|row| row.iter().map(|&w| f64::from(w)).collect())
        .collect();
    for row in &mut rows {
        row.iter_mut().zip(&factor.dead).filter(|(_, dead)| **dead).for_each(|(w, _)| *w = 0.0);
    }
    let width = match pattern {
        Pattern::Of(_, m) => m,
        Pattern::Ratio(_) => GROUP,
    };
    for start in (0..inputs).step_by(width) {
        let end = (start + width).min(inputs);
        let score = |row: &[f64]| -> Vec<f32> {
            (start..end).map(|i| (row[i] / factor.row(i)[0]).powi(2) as f32).collect()
        };
        // Which go: of each row's own, or, at a ratio, of all rows' together.
        let gone: Vec<Vec<usize>> = match pattern {
            Pattern::Of(n, _) => rows.par_iter().map(|row| smallest(&score(row), n)).collect(),
            Pattern::Ratio(ratio) => {
                let scores: Vec<f32> = rows.par_iter().flat_map_iter(|row| score(row)).collect();
                let count = (ratio * scores.len() as f64).round() as usize;
                let mut gone = vec![Vec::new(); rows.len()];
                for i in smallest(&scores, count) {
                    gone[i / (end - start)].push(i % (end - start));
                }
                gone
            }
        };
        rows.par_iter_mut().zip(gone).for_each(|(row, mut gone)| {
            gone.sort_unstable();
            for i in gone.into_iter().map(|i| start + i) {
                let line = factor.row(i);
                let error = row[i] / line[0];
                row[i..].iter_mut().zip(line).for_each(|(later, value)| *later -= error * value);
                row[i] = 0.0;
            }
        });
    }
    for (row, made) in weights.chunks_exact_mut(inputs).zip(&rows) {
        row.iter_mut().zip(made).for_each(|(weight, made)| *weight = *made as f32);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::linear_algebra::tests::gram;
    use super::*;

    fn weights() -> Vec<f32> {
        (0..16 * 64).map(|i| (i as f32 * 2.3).sin() + 0.01).collect()
    }

    #[test]
    fn patterns_are_read() {
        assert_eq!("50%".parse(), Ok(Pattern::Ratio(0.5)));
        assert_eq!("0.25".parse(), Ok(Pattern::Ratio(0.25)));
        assert_eq!("2:4".parse(), Ok(Pattern::Of(2, 4)));
        for wrong in ["", "4:4", "0:4", "100%", "-1", "a:b"] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_pattern_is_kept_and_better_methods_lose_less() {
        let (gram, _) = gram(64, 300, 4);
        for pattern in [Pattern::Of(2, 4), Pattern::Of(4, 8), Pattern::Ratio(0.5)] {
            let mut lost = Vec::new();
            for method in [PruneMethod::Magnitude, PruneMethod::Wanda, PruneMethod::SparseGpt] {
                let mut after = weights();
                prune_weights(&mut after, (method, pattern, 0.01), &gram).unwrap();
                let zeros = after.iter().filter(|weight| **weight == 0.0).count();
                assert_eq!(zeros, 512, "{pattern} {method:?}");
                if let Pattern::Of(n, m) = pattern {
                    for part in after.chunks(m) {
                        assert_eq!(part.iter().filter(|weight| **weight == 0.0).count(), n);
                    }
                }
                lost.push(output_error(&weights(), &after, &gram).unwrap());
            }
            assert!(lost[2] < 0.6 * lost[1] && lost[1] < lost[0], "{pattern} {lost:?}");
        }
    }
}

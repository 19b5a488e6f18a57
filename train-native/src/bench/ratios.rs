//! Ratios that were measured once, so that a later run can say what has become slower.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::Report;
use crate::text::{is_missing, read_small};
use crate::vectors::write_atomically;

/// A ratio that is lower than the stored one by more than this share has fallen: less is noise.
const NOISE: f64 = 0.1;

/// How many times as fast as a peer Kiln was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// Model, texts and batch.
    pub work: String,
    /// The device that both computed on.
    pub machine: String,
    /// The peer.
    pub engine: String,
    /// Kiln's speed divided by the peer's.
    pub ratio: f64,
}

impl Ratio {
    /// Whether both are of the same engine at the same work on the same kind of machine.
    fn is_like(&self, other: &Self) -> bool {
        (&self.work, &self.machine, &self.engine) == (&other.work, &other.machine, &other.engine)
    }
}

/// A file of ratios.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratios {
    /// In the order in which they were first stored.
    pub ratios: Vec<Ratio>,
}

impl Ratios {
    /// The ratios of a report to every peer.
    pub fn of(report: &Report) -> Self {
        let ratios = report.works.iter().flat_map(|work| {
            let peers = work.lines.iter().filter(|line| !line.own && line.kiln_ratio.is_finite());
            peers.map(|line| Ratio {
                work: work.work.clone(),
                machine: report.machine.clone(),
                engine: line.engine.clone(),
                // More digits than two runs have in common.
                ratio: (line.kiln_ratio * 1000.0).round() / 1000.0,
            })
        });
        Self { ratios: ratios.collect() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Unreadable, or not of this form.
    pub fn read(path: &Path) -> Result<Self> {
        let text = read_small(path)?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: no ratios that bench stored", path.display()))
    }

    /// Puts new ratios in the place of a file's own of the same kind; the others stay. A file that
    /// is missing is made.
    ///
    /// # Errors
    /// As [`Ratios::read`], and a file that cannot be written.
    pub fn store(self, path: &Path) -> Result<()> {
        let mut all = match Self::read(path) {
            Err(error) if is_missing(&error) => Self::default(),
            read => read?,
        };
        all.merge(self);
        write_atomically(path, (serde_json::to_string_pretty(&all)? + "\n").as_bytes())
    }

    fn merge(&mut self, new: Self) {
        for ratio in new.ratios {
            match self.ratios.iter_mut().find(|known| known.is_like(&ratio)) {
                Some(known) => *known = ratio,
                None => self.ratios.push(ratio),
            }
        }
    }

    /// A line for each measured ratio that is more than a tenth below the stored one, and one where
    /// nothing measured was ever stored.
    pub fn warnings(&self, measured: &Self) -> Vec<String> {
        let mut known = false;
        let mut warnings = Vec::new();
        for now in &measured.ratios {
            let Some(stored) = self.ratios.iter().find(|stored| stored.is_like(now)) else {
                continue;
            };
            known = true;
            if now.ratio < stored.ratio * (1.0 - NOISE) {
                warnings.push(format!(
                    "{:.2}x {}, {:.0} % below the stored {:.2}x ({})",
                    now.ratio,
                    now.engine,
                    (1.0 - now.ratio / stored.ratio) * 100.0,
                    stored.ratio,
                    now.work,
                ));
            }
        }
        if !known {
            warnings.push(
                "no ratio of this work on this machine is stored; --store FILE adds what was measured"
                    .into(),
            );
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratios(of: &[(&str, &str, f64)]) -> Ratios {
        let ratio = |&(machine, engine, ratio): &(&str, &str, f64)| Ratio {
            work: "m: 400 texts".into(),
            machine: machine.into(),
            engine: engine.into(),
            ratio,
        };
        Ratios { ratios: of.iter().map(ratio).collect() }
    }

    #[test]
    fn only_what_fell_by_more_than_a_tenth_is_warned_of() {
        let stored = ratios(&[("a", "onnxruntime", 1.2), ("a", "openvino", 1.0)]);
        let fallen = ratios(&[("a", "onnxruntime", 1.02), ("a", "openvino", 0.91)]);
        let warnings = stored.warnings(&fallen);
        assert_eq!(
            warnings,
            ["1.02x onnxruntime, 15 % below the stored 1.20x (m: 400 texts)"],
            "{warnings:?}"
        );
        let same = ratios(&[("a", "onnxruntime", 1.09), ("a", "openvino", 3.0)]);
        assert!(stored.warnings(&same).is_empty());
    }

    #[test]
    fn other_machines_and_engines_are_not_compared() {
        let stored = ratios(&[("a", "onnxruntime", 1.2)]);
        let [warning] = &stored.warnings(&ratios(&[("b", "onnxruntime", 0.1)]))[..] else {
            panic!("one line")
        };
        assert!(warning.contains("--store"), "{warning}");
        let more = ratios(&[("a", "onnxruntime", 1.2), ("a", "openvino", 0.1)]);
        assert!(stored.warnings(&more).is_empty());
    }

    #[test]
    fn storing_replaces_what_is_alike_and_keeps_the_rest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bench.json");
        ratios(&[("a", "onnxruntime", 1.2), ("b", "onnxruntime", 1.4)]).store(&path).unwrap();
        ratios(&[("a", "onnxruntime", 1.3), ("a", "openvino", 1.1)]).store(&path).unwrap();
        let expected =
            ratios(&[("a", "onnxruntime", 1.3), ("b", "onnxruntime", 1.4), ("a", "openvino", 1.1)]);
        assert_eq!(Ratios::read(&path).unwrap(), expected);
        std::fs::write(&path, "[]").unwrap();
        let error = format!("{:#}", ratios(&[]).store(&path).unwrap_err());
        assert!(error.contains("bench.json"), "{error}");
    }
}

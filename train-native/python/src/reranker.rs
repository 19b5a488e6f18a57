//! A cross-encoder as Python holds it.

use std::ops::ControlFlow;
use std::sync::Arc;

use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::reranker::ScoreActivation;
use numpy::PyArray1;
use pyo3::prelude::*;
use train_native::reranking::{self, load_reranker};

use crate::embedder::{Place, device_choice, precision, terminal};
use crate::errors::{bad_value, check_model};
use crate::job::{Stop, run_until};
use crate::texts::Texts;

/// A model that scores pairs of a query and a text.
#[pyclass(frozen, module = "kiln_embed._native")]
pub(crate) struct PairModel {
    model: Arc<dyn reranking::PairModel>,
    place: Place,
}

#[pymethods]
impl PairModel {
    #[new]
    #[pyo3(signature = (model, device, weights, instruction, max_length, progress))]
    fn new(
        py: Python<'_>,
        model: &str,
        device: &str,
        weights: Option<&str>,
        instruction: Option<&str>,
        max_length: Option<usize>,
        progress: bool,
    ) -> PyResult<Self> {
        check_model(model)?;
        let choice = device_choice(device)?;
        let options =
            LoadOptions { max_length, precision: precision(weights)?, ..LoadOptions::default() };
        run_until(py, &Stop::default(), || {
            let place = Place::open(choice)?;
            let model =
                load_reranker(model, &options, instruction, &place.device, terminal(progress))?;
            Ok(Self { model, place })
        })
    }

    /// Scores of pairs, as many queries as texts; `activate`: what the model makes of them.
    fn scores<'py>(
        &self,
        py: Python<'py>,
        queries: &Bound<'py, PyAny>,
        texts: &Bound<'py, PyAny>,
        activate: bool,
        batch_tokens: Option<usize>,
        progress: bool,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let queries = Texts::of(queries, "queries")?;
        let texts = Texts::of(texts, "texts")?;
        let (queries, texts) = (queries.strs(), texts.strs());
        if queries.len() != texts.len() {
            return Err(bad_value(format!(
                "{} queries and {} texts are no pairs",
                queries.len(),
                texts.len()
            )));
        }
        let pairs: Vec<(&str, &str)> = queries.into_iter().zip(texts).collect();
        let activation = if activate { self.model.activation() } else { ScoreActivation::Identity };
        let stop = Stop::default();
        let scores = run_until(py, &stop, || {
            self.place.check()?;
            let bar = terminal(progress).progress(pairs.len() as u64, "ranking");
            let logits = self.model.logits_until(&pairs, batch_tokens, &mut |done| {
                bar.set_position(done.texts as u64);
                if stop.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            bar.finish_and_clear();
            Ok(logits.into_iter().map(|score| activation.of(score)).collect::<Vec<f32>>())
        })?;
        Ok(PyArray1::from_vec(py, scores))
    }

    /// What the model makes of scores before the activation.
    fn activated(&self, logits: Vec<f32>) -> Vec<f32> {
        let activation = self.model.activation();
        logits.into_iter().map(|logit| activation.of(logit)).collect()
    }

    /// Most tokens of a pair.
    #[getter]
    fn max_length(&self) -> usize {
        self.model.max_length()
    }

    /// Where it computes.
    #[getter]
    fn device(&self) -> String {
        self.place.device.to_string()
    }
}

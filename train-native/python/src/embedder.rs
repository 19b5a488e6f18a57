//! An embedding model as Python holds it.

use std::ops::ControlFlow;
use std::process;
use std::str::FromStr as _;
use std::sync::Arc;

use anyhow::{Result, bail};
use kiln_embed::checkpoint::LoadOptions;
use kiln_embed::config::AttentionMode;
use kiln_embed::embedder::{EmbedOptions, Prompt};
use kiln_embed::pooling::PoolingConfig;
use kiln_embed::quant::WeightPrecision;
use kiln_embed::tokenizer::Tokens;
use numpy::{PyArray1, PyArray2, PyArrayMethods as _};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use train_native::device::{self, Device, DeviceChoice};
use train_native::embedding::{self, BLOCK};
use train_native::eval::fingerprint;
use train_native::model::{folders, load};
use train_native::terminal::Terminal;
use train_native::text::most_bytes;

use crate::arrow::Vectors;
use crate::errors::{bad_value, check_model, to_python};
use crate::job::{Stop, run_until};
use crate::texts::Texts;

/// Where a model computes, and in which process it was loaded.
pub(crate) struct Place {
    pub(crate) device: Device,
    process: u32,
}

impl Place {
    pub(crate) fn open(choice: DeviceChoice) -> Result<Self> {
        Ok(Self { device: device::open(choice)?, process: process::id() })
    }

    /// Refuses a GPU in a process that was forked after it was opened.
    pub(crate) fn check(&self) -> Result<()> {
        if self.device != Device::Cpu && self.process != process::id() {
            bail!(
                "this process was forked after the model was loaded on {}, which a fork cannot use; load the model in \
                 each process, or start them with multiprocessing's spawn",
                self.device
            );
        }
        Ok(())
    }
}

pub(crate) fn device_choice(name: &str) -> PyResult<DeviceChoice> {
    DeviceChoice::from_str(name).map_err(|error| bad_value(format!("device {error}")))
}

pub(crate) fn precision(name: Option<&str>) -> PyResult<WeightPrecision> {
    name.map_or(Ok(WeightPrecision::Kept), |name| {
        WeightPrecision::from_str(name).map_err(|error| bad_value(format!("weights: {error}")))
    })
}

/// Notes only: bars are for those who ask.
pub(crate) fn terminal(says: bool) -> Terminal {
    Terminal { json: false, quiet: !says }
}

/// Vectors of texts, one after another.
struct Embedded {
    rows: usize,
    width: usize,
    values: Vec<f32>,
}

/// A model with its tokenizer and prompts.
#[pyclass(frozen, module = "kiln_embed._native")]
pub(crate) struct TextModel {
    model: Arc<dyn embedding::TextModel>,
    place: Place,
    name: String,
    loaded: LoadOptions,
}

/// What every method takes, in Rust's words.
fn options(
    prompt_name: Option<&str>,
    prompt: Option<&str>,
    dimensions: Option<usize>,
    normalize: bool,
    batch_tokens: Option<usize>,
) -> EmbedOptions {
    EmbedOptions {
        prompt: Prompt::from_options(prompt_name, prompt),
        dimensions,
        // Otherwise as the model does.
        normalize: normalize.then_some(true),
        batch_tokens,
    }
}

impl TextModel {
    fn vectors(
        &self,
        py: Python<'_>,
        texts: &Texts,
        options: &EmbedOptions,
        progress: bool,
    ) -> PyResult<Embedded> {
        self.model.check(options).map_err(|error| to_python(&error.into()))?;
        let stop = Stop::default();
        run_until(py, &stop, || {
            self.place.check()?;
            let texts = texts.strs();
            let width = self.model.dimensions(options);
            let mut values = Vec::with_capacity(texts.len() * width);
            let bar = terminal(progress).progress(texts.len() as u64, "embedding");
            let (mut rest, mut begun) = (&texts[..], 0);
            while !rest.is_empty() {
                let block;
                (block, rest) = rest.split_at(block_of(rest));
                let vectors = self.model.embed_until(block, options, &mut |done| {
                    bar.set_position((begun + done.texts) as u64);
                    if stop.asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })?;
                values.extend(vectors.into_iter().flatten());
                begun += block.len();
            }
            bar.finish_and_clear();
            Ok(Embedded { rows: texts.len(), width, values })
        })
    }
}

/// How many texts are sorted by length together: as the command `kiln embed` has them.
fn block_of(texts: &[&str]) -> usize {
    let mut bytes = 0;
    let fits = |text: &&&str| {
        let before = bytes;
        bytes += text.len();
        before < most_bytes()
    };
    texts.iter().take(BLOCK).take_while(fits).count()
}

#[pymethods]
impl TextModel {
    #[new]
    #[pyo3(signature = (model, device, weights, pooling, attention, max_length, progress))]
    fn new(
        py: Python<'_>,
        model: &str,
        device: &str,
        weights: Option<&str>,
        pooling: Option<&str>,
        attention: Option<&str>,
        max_length: Option<usize>,
        progress: bool,
    ) -> PyResult<Self> {
        check_model(model)?;
        let choice = device_choice(device)?;
        let attention = match attention {
            None => None,
            Some("causal") => Some(AttentionMode::Causal),
            Some("bidirectional") => Some(AttentionMode::Bidirectional),
            Some(other) => {
                return Err(bad_value(format!(
                    "attention {other:?} is neither causal nor bidirectional"
                )));
            }
        };
        let pooling = pooling.map(PoolingConfig::from_name).transpose().map_err(bad_value)?;
        let precision = precision(weights)?;
        let options =
            LoadOptions { pooling, attention, max_length, precision, ..LoadOptions::default() };
        // A download hears Ctrl-C where it ends; its threads are its own.
        run_until(py, &Stop::default(), || {
            let place = Place::open(choice)?;
            let loaded = load(model, &options, &place.device, terminal(progress))?;
            Ok(Self { model: loaded, place, name: model.into(), loaded: options.clone() })
        })
    }

    /// A number for what the vectors depend on beside texts and prompt, as the command writes it into the outputs of
    /// many files.
    fn fingerprint(&self, py: Python<'_>, dimensions: Option<usize>) -> PyResult<String> {
        run_until(py, &Stop::default(), || {
            fingerprint(&folders(&self.name, terminal(false))?, &self.loaded, dimensions)
        })
    }

    /// float32 `[texts, dimensions]`, which NumPy takes over.
    #[pyo3(signature = (texts, name, prompt_name, prompt, dimensions, normalize, batch_tokens, progress))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyAny>,
        name: &str,
        prompt_name: Option<&str>,
        prompt: Option<&str>,
        dimensions: Option<usize>,
        normalize: bool,
        batch_tokens: Option<usize>,
        progress: bool,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let texts = Texts::of(texts, name)?;
        let options = options(prompt_name, prompt, dimensions, normalize, batch_tokens);
        let Embedded { rows, width, values } = self.vectors(py, &texts, &options, progress)?;
        PyArray1::from_vec(py, values).reshape([rows, width])
    }

    /// The same as an Arrow array.
    #[pyo3(signature = (texts, name, prompt_name, prompt, dimensions, normalize, batch_tokens, progress))]
    fn embed_arrow(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyAny>,
        name: &str,
        prompt_name: Option<&str>,
        prompt: Option<&str>,
        dimensions: Option<usize>,
        normalize: bool,
        batch_tokens: Option<usize>,
        progress: bool,
    ) -> PyResult<Vectors> {
        let texts = Texts::of(texts, name)?;
        let options = options(prompt_name, prompt, dimensions, normalize, batch_tokens);
        let Embedded { rows, width, values } = self.vectors(py, &texts, &options, progress)?;
        Vectors::new(rows, width, values)
    }

    /// Token ids of each text, and whether it was cut.
    fn tokenize(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyAny>,
        prompt_name: Option<&str>,
        prompt: Option<&str>,
    ) -> PyResult<Vec<(Vec<u32>, bool)>> {
        let texts = Texts::of(texts, "texts")?;
        let prompt = Prompt::from_options(prompt_name, prompt);
        let prompts = self.model.prompts();
        let prompt = prompts.text(&prompt).map_err(|error| to_python(&error.into()))?;
        let tokens = run_until(py, &Stop::default(), || {
            Ok(self.model.tokenizer().encode_all(prompt, &texts.strs())?)
        })?;
        Ok(tokens.into_iter().map(|Tokens { ids, truncated, .. }| (ids, truncated)).collect())
    }

    /// Tokens, their places in the text in characters, and the weights that pooling gave to tokens, latents and
    /// layers.
    fn explain<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        prompt_name: Option<&str>,
        prompt: Option<&str>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let options = options(prompt_name, prompt, None, false, None);
        let why = run_until(py, &Stop::default(), || {
            self.place.check()?;
            Ok(self.model.explain(text, &options)?)
        })?;
        let characters = |bytes: usize| {
            text.get(..bytes).map_or_else(|| text.chars().count(), |text| text.chars().count())
        };
        let offsets: Vec<(usize, usize)> =
            why.offsets.iter().map(|&(from, to)| (characters(from), characters(to))).collect();
        let found = PyDict::new(py);
        found.set_item("tokens", why.tokens)?;
        found.set_item("offsets", offsets)?;
        found.set_item("token_weights", why.token_weights)?;
        found.set_item("latents", why.latents)?;
        found.set_item("layers", why.layers)?;
        Ok(found)
    }

    /// Width of the vectors, all of it.
    #[getter]
    fn dimensions(&self) -> usize {
        self.model.dimensions(&EmbedOptions::default())
    }

    /// Most tokens of a text.
    #[getter]
    fn max_length(&self) -> usize {
        self.model.tokenizer().config().max_length
    }

    /// Where it computes.
    #[getter]
    fn device(&self) -> String {
        self.place.device.to_string()
    }

    /// Whether that is a GPU.
    #[getter]
    fn on_gpu(&self) -> bool {
        self.place.device != Device::Cpu
    }

    /// Whether it divides vectors by their norm.
    #[getter]
    fn normalizes(&self) -> bool {
        self.model.normalizes(&EmbedOptions::default())
    }

    /// Number of parameters.
    #[getter]
    fn parameters(&self) -> usize {
        let parameters = self.model.parameters();
        parameters.backbone + parameters.pooling + parameters.dense
    }

    /// Named prompts.
    #[getter]
    fn prompts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let prompts = PyDict::new(py);
        for (name, text) in self.model.prompts().by_name() {
            prompts.set_item(name, text)?;
        }
        Ok(prompts)
    }

    /// How its vectors are meant to be compared.
    #[getter]
    fn similarity_fn_name(&self) -> &'static str {
        self.model.similarity().name()
    }

    /// Name of the prompt that is used where none is asked for.
    #[getter]
    fn default_prompt_name(&self) -> Option<&str> {
        self.model.prompts().default_name()
    }
}

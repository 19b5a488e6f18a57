//! A trainer's state as files: enough to go on with the same numbers after the page was closed.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use kiln_data::data::{Example, SamplerState};
use kiln_embed::checkpoint::{FileSum, Files, Weights, write_safetensors};
use kiln_embed::index::VectorAdapter;
use kiln_embed::model::LoraConfig;
use kiln_embed::train::SavedParameters;
use serde::{Deserialize, Serialize};

use crate::progress::Progress;
use crate::settings::{AdapterSettings, TeachingPlan};

/// What a state says beside its tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    /// Which model it is of, and in which precision.
    #[serde(default)]
    pub base: Option<String>,
    /// What is trained.
    pub settings: AdapterSettings,
    /// The low-rank part, which may be another than the settings': that of adapters that were begun with.
    pub lora: LoraConfig,
    /// How.
    pub plan: TeachingPlan,
    /// Steps as they were planned; the plan's own may be fewer, as many as fit into a time.
    pub most: usize,
    /// The lessons that are taught.
    pub taught: Vec<Example>,
    /// The lessons that are held back.
    pub held_back: Vec<Example>,
    /// The texts among which their answers are to be found.
    pub texts: Vec<String>,
    /// Where the stream of batches is.
    pub sampler: Option<SamplerState>,
    /// How far the run is.
    pub progress: Progress,
    /// Ids of the parameters by their names.
    pub ids: BTreeMap<String, String>,
}

/// A state as it was read.
pub(crate) struct Kept {
    pub state: State,
    /// The parameters now, before the run, and at their best.
    pub parameters: [Option<Weights>; 3],
    /// The adapter of vectors before the part that trains.
    pub first: Option<VectorAdapter>,
    /// The optimizer's state, group by group.
    pub optimizer: [Vec<u8>; 2],
}

const STATE: &str = "state.json";
/// The parameters now, before the run, and at their best.
const PARAMETERS: [&str; 3] = ["parameters", "start", "best"];
const FIRST: &str = "first";
const OPTIMIZER: [&str; 2] = ["optimizer-decayed.bin", "optimizer-undecayed.bin"];
/// The sums of the others, so that no damaged one is read.
const SUMS: &str = "sums.json";

impl State {
    /// The state as files.
    pub(crate) fn to_files(
        &self,
        parameters: [Option<SavedParameters>; 3],
        first: Option<&VectorAdapter>,
        optimizer: [Vec<u8>; 2],
    ) -> Result<Files> {
        let mut files = Files::default();
        files.0.insert(STATE.into(), serde_json::to_vec(self)?.into());
        for (name, saved) in PARAMETERS.into_iter().zip(parameters) {
            if let Some(saved) = saved {
                let bytes = write_safetensors(&saved.tensors, &[("format", "kiln")])?;
                files.0.insert(format!("{name}.safetensors"), bytes.into());
            }
        }
        if let Some(first) = first {
            let tensor = (FIRST.to_string(), vec![first.width(); 2], first.weights().to_vec());
            let bytes = write_safetensors(&[tensor], &[("format", "kiln")])?;
            files.0.insert(format!("{FIRST}.safetensors"), bytes.into());
        }
        for (name, bytes) in OPTIMIZER.into_iter().zip(optimizer) {
            files.0.insert(name.into(), bytes.into());
        }
        let sums: BTreeMap<&String, String> =
            files.0.iter().map(|(name, bytes)| (name, FileSum::of(bytes).sha256)).collect();
        let sums = serde_json::to_vec(&sums)?;
        files.0.insert(SUMS.into(), sums.into());
        Ok(files)
    }

    /// What files say: the state, the parameters, the optimizer's state.
    pub(crate) fn from_files(files: &Files) -> Result<Kept> {
        let file = |name: &str| {
            files.0.get(name).with_context(|| format!("the state of training has no {name}"))
        };
        let sums: BTreeMap<String, String> =
            serde_json::from_slice(file(SUMS)?).with_context(|| format!("{SUMS} is damaged"))?;
        for (name, sum) in &sums {
            if FileSum::of(file(name)?).sha256 != *sum {
                bail!("{name} of the state of training is damaged; begin anew");
            }
        }
        let state = serde_json::from_slice(file(STATE)?)
            .with_context(|| format!("{STATE} is no state of training"))?;
        let optimizer = OPTIMIZER.map(|name| file(name).map(|bytes| bytes.to_vec()));
        let [decayed, undecayed] = optimizer;
        let weights = |name: &str| -> Result<Option<Weights>> {
            let there = files.0.contains_key(&format!("{name}.safetensors"));
            Ok(if there { Some(Weights::open(files, name)?) } else { None })
        };
        let [now, start, best] = PARAMETERS.map(weights);
        let parameters = [now?, start?, best?];
        let first = match weights(FIRST)? {
            None => None,
            Some(mut weights) => {
                let width =
                    weights.tensors().get(FIRST).and_then(|info| info.shape.first().copied());
                let values = weights.read(FIRST)?.unwrap_or_default();
                Some(VectorAdapter::new(width.unwrap_or_default(), values)?)
            }
        };
        Ok(Kept { state, parameters, first, optimizer: [decayed?, undecayed?] })
    }
}

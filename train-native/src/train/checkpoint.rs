//! A run's state on disk: enough to go on from the same step with the same numbers.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::module::AutodiffModule;
use burn::optim::Optimizer;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::backend::AutodiffBackend;
use kiln_core::checkpoint::{Files, write_directory};
use serde::{Deserialize, Serialize};

use super::Telemetry;
use crate::recipe::Recipe;

/// Where a run is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Stage, from 0.
    pub stage: usize,
    /// Steps of the stage that are done.
    pub step: usize,
}

/// What a checkpoint says besides the parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The recipe, which must be the same to go on.
    pub recipe: Recipe,
    /// Where the run is.
    pub position: Position,
    /// Every step so far.
    pub telemetry: Telemetry,
}

type Bytes = BinBytesRecorder<FullPrecisionSettings>;

const STATE: &str = "state.json";
const MODEL: &str = "model.bin";
const DECAYED: &str = "optimizer-decayed.bin";
const UNDECAYED: &str = "optimizer-undecayed.bin";

impl Checkpoint {
    /// Writes the state, the model and both optimizers to a folder, atomically.
    pub(super) fn save<B, M, O>(&self, folder: &Path, model: &M, optimizers: [&O; 2]) -> Result<()>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let record = |error| anyhow!("cannot encode the checkpoint: {error}");
        let bytes = Bytes::default();
        let mut files = Files::default();
        files.0.insert(STATE.into(), serde_json::to_vec(self)?);
        files.0.insert(
            MODEL.into(),
            <Bytes as Recorder<B>>::record(&bytes, model.clone().into_record(), ())
                .map_err(record)?,
        );
        for (name, optimizer) in [DECAYED, UNDECAYED].into_iter().zip(optimizers) {
            let encoded = <Bytes as Recorder<B>>::record(&bytes, optimizer.to_record(), ())
                .map_err(record)?;
            files.0.insert(name.into(), encoded);
        }
        write_directory(folder, &files)?;
        Ok(())
    }

    /// The state of a folder; `None` where there is no checkpoint.
    ///
    /// # Errors
    /// A checkpoint of another recipe, or one that cannot be read.
    pub fn find(folder: &Path, recipe: &Recipe) -> Result<Option<Self>> {
        let path = folder.join(STATE);
        let label = || path.display().to_string();
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(label),
        };
        let found: Self = serde_json::from_slice(&text).with_context(|| {
            format!("{}: not a checkpoint; remove {}", label(), folder.display())
        })?;
        if found.recipe != *recipe {
            bail!(
                "{}: was written by another recipe; choose another --output or remove it",
                folder.display()
            );
        }
        Ok(Some(found))
    }

    /// Reads the parameters and optimizer states that belong to the state.
    pub(super) fn load<B, M, O>(
        folder: &Path,
        model: M,
        optimizers: [O; 2],
        device: &B::Device,
    ) -> Result<(M, [O; 2])>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let bytes = Bytes::default();
        let read = |name: &str| {
            let path = folder.join(name);
            std::fs::read(&path).with_context(|| path.display().to_string())
        };
        let decode = |error| {
            anyhow!("{}: a damaged checkpoint: {error}; remove it to start anew", folder.display())
        };
        let record = <Bytes as Recorder<B>>::load(&bytes, read(MODEL)?, device).map_err(decode)?;
        let model = model.load_record(record);
        let [decayed, undecayed] = optimizers;
        let record =
            <Bytes as Recorder<B>>::load(&bytes, read(DECAYED)?, device).map_err(decode)?;
        let decayed = decayed.load_record(record);
        let record =
            <Bytes as Recorder<B>>::load(&bytes, read(UNDECAYED)?, device).map_err(decode)?;
        Ok((model, [decayed, undecayed.load_record(record)]))
    }
}

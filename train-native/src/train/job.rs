//! A training as users start it: in one process, on one device or several, or as one of several processes.

use std::path::Path;

use anyhow::{Result, bail};

use super::{Fit, Hosts, Inputs, Point, Resume, RunArtifacts, fit, resumed};
use crate::data::OnBadRow;
use crate::device::{Device, DeviceChoice, open, open_local};
use crate::recipe::Recipe;
use crate::terminal::{Terminal, counted};

/// What is to be trained, how, and where it goes.
pub struct TrainJob<'a> {
    /// The recipe.
    pub recipe: &'a Recipe,
    /// Folder that the recipe's paths of data and evaluation are relative to.
    pub folder: &'a Path,
    /// Folder for everything that is written.
    pub output: &'a Path,
    /// The device, where `devices` names none.
    pub device: DeviceChoice,
    /// Devices of one kind that train together; of several processes those of this host.
    pub devices: &'a [DeviceChoice],
    /// What to do with rows that cannot be read.
    pub on_bad_row: OnBadRow,
    /// Steps between checkpoints.
    pub checkpoint_every: usize,
    /// Checkpoints to keep.
    pub keep: usize,
    /// Steps between models that are kept in the folder's `steps/`; 0 keeps none.
    pub save_every: usize,
    /// Whether it goes on from what the folder holds.
    pub resume: Resume,
    /// Whether models that another run has left in the folder are replaced.
    pub overwrite: bool,
    /// What the user sees.
    pub terminal: Terminal,
    /// Told of each step, in the process that writes.
    pub on_step: Option<&'a (dyn Fn(&Point) + Sync)>,
}

impl TrainJob<'_> {
    /// Trains, together with the other processes where the environment names some ([`Hosts::join`]), of which the first
    /// writes.
    ///
    /// # Errors
    /// As [`fit`]; a device that is not there, a process that does not come.
    pub fn run(&self) -> Result<RunArtifacts> {
        let Self { recipe, on_bad_row, checkpoint_every, terminal, .. } = *self;
        let Some(hosts) = Hosts::join(recipe, on_bad_row, checkpoint_every, terminal)? else {
            let chosen = match self.devices {
                [] => &[self.device],
                devices => devices,
            };
            let devices = chosen.iter().map(|device| open(*device)).collect::<Result<Vec<_>>>()?;
            return self.train(&devices, None, terminal);
        };
        // The first process speaks for all; each says what ends it.
        let quiet = terminal.quiet || !hosts.is_main();
        let terminal = Terminal { quiet, ..terminal };
        let device = self.own_device(hosts.local_rank());
        let done = device.and_then(|device| self.train(&[device], Some(&hosts), terminal));
        done.inspect_err(|error| hosts.failed(error))
    }

    /// The device of one of several processes: of those that are named for its host the one of its number there.
    fn own_device(&self, local: usize) -> Result<Device> {
        match (self.devices.get(local), self.devices) {
            (Some(choice), _) => open(*choice),
            (None, []) => open_local(self.device, local),
            (None, devices) => bail!(
                "--devices names {}, and this is process {local} of its host (LOCAL_RANK); name one for each, or \
                 leave --devices out",
                counted(devices.len(), "device", "devices")
            ),
        }
    }

    fn train(
        &self,
        devices: &[Device],
        hosts: Option<&Hosts>,
        terminal: Terminal,
    ) -> Result<RunArtifacts> {
        let Self { recipe, output, .. } = *self;
        // What is read and opened takes each process its own time.
        let busy = hosts.map(Hosts::busy);
        let writes = hosts.is_none_or(Hosts::is_main);
        // The others get what the first one finds.
        // What is replaced is not gone on from, whatever recipe it is of.
        let replaces = self.overwrite && self.resume == Resume::No;
        let found = match writes && !replaces {
            true => resumed(output, recipe, self.resume, terminal)?,
            false => None,
        };
        let shared = hosts.map(|hosts| hosts.share(found.clone())).transpose()?;
        let resume = shared.as_ref().map_or(found, |shared| shared.found.clone());
        let inputs = Inputs::open(recipe, self.folder, self.on_bad_row, terminal)?;
        // A launcher starts again what ended before its first checkpoint, whatever models of some steps it had left.
        let unfinished = self.resume == Resume::IfThere && !output.join("model").exists();
        let plan = Fit {
            recipe,
            inputs: &inputs,
            output,
            checkpoint_every: self.checkpoint_every,
            keep: self.keep,
            save_every: self.save_every,
            resume,
            overwrite: self.overwrite || unfinished,
            hosts: hosts.cloned(),
            terminal,
            on_step: self.on_step.filter(|_| writes),
        };
        drop(busy);
        fit(&plan, devices)
    }
}

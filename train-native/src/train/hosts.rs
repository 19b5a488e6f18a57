//! Training in several processes, on one host or many: who takes part, and what rank 0 has and the others need.

use std::any::Any;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context as _, Result, bail};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use kiln_hosts::{Error, Format, Launch, Ring, Terms};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::checkpoint::Checkpoint;
use super::device_group::values_of;
use super::transport::{Outside, Transport};
use crate::data::{Batch, OnBadRow, Text};
use crate::interrupt;
use crate::recipe::{GradientFormat, Recipe};
use crate::terminal::{Terminal, counted, error_line};

/// The processes of a run; this is one of them.
#[derive(Debug, Clone)]
pub struct Hosts {
    ring: Arc<Ring>,
    local_rank: usize,
    format: Format,
}

/// The checkpoint that all processes go on from.
#[derive(Debug)]
pub struct SharedCheckpoint {
    /// Its state, and where its files are.
    pub found: Option<(Checkpoint, PathBuf)>,
    /// The folder of a copy, which is removed with this.
    _copy: Option<tempfile::TempDir>,
}

impl Hosts {
    /// Finds the other processes, where the environment says that there are some (`RANK`, `WORLD_SIZE`,
    /// `MASTER_ADDR` and what else [`Launch::from_environment`] reads). All must have the same recipe, rule for bad rows and
    /// number of steps between checkpoints.
    ///
    /// # Errors
    /// An environment that does not fit together, a process that does not come or may not take part;
    /// [`kiln_embed::Error::Cancelled`] after Ctrl-C.
    pub fn join(
        recipe: &Recipe,
        on_bad_row: OnBadRow,
        checkpoint_every: usize,
        terminal: Terminal,
    ) -> Result<Option<Self>> {
        let host = sysinfo::System::host_name().unwrap_or_else(|| "unknown host".into());
        let launch = Launch::from_environment(&host, |name| std::env::var(name).ok())?;
        let Some(launch) = launch else { return Ok(None) };
        // Everything that decides which batches there are, what is computed of them, and when all meet.
        let decides = format!("{}\n{on_bad_row:?}\n{checkpoint_every}", toml::to_string(recipe)?);
        let terms = Terms {
            version: env!("CARGO_PKG_VERSION").into(),
            recipe: format!("{:016x}", xxh3_64(decides.as_bytes())),
        };
        let note = |line: &str| {
            if launch.is_main() {
                terminal.note(line);
            }
        };
        let ring = match Ring::join(&launch, &terms, &note, &interrupt::asked) {
            Ok(ring) => Arc::new(ring),
            Err(Error::Stopped) => return Err(kiln_embed::Error::Cancelled.into()),
            Err(error) => return Err(error.into()),
        };
        if launch.is_main() {
            let names: Vec<String> = (0..launch.world).map(|rank| ring.name(rank)).collect();
            terminal.note(format!(
                "{} processes train together: {}",
                launch.world,
                names.join(", ")
            ));
        }
        let format = match recipe.compute.gradients {
            GradientFormat::F32 => Format::F32,
            GradientFormat::Bf16 => Format::Bf16,
        };
        Ok(Some(Self { ring, local_rank: launch.local_rank, format }))
    }

    /// Whether this process writes the files and talks to the user.
    pub fn is_main(&self) -> bool {
        self.ring.is_main()
    }

    /// How many processes there are.
    pub fn world(&self) -> usize {
        self.ring.world()
    }

    /// The process's number among those of its host.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// While what is returned lives the others wait for this process, as long as `KILN_BUSY_TIMEOUT` says.
    pub fn busy(&self) -> kiln_hosts::Busy {
        self.ring.busy()
    }

    /// The way to the other processes.
    pub(super) fn transport(&self) -> OverHosts {
        OverHosts { ring: self.ring.clone(), format: self.format }
    }

    /// The checkpoint that rank 0 found, if it found one, for each process: the others need not reach its folder, and
    /// get a copy in a temporary one.
    ///
    /// # Errors
    /// A process that is lost, or files that cannot be read or written.
    pub fn share(&self, found: Option<(Checkpoint, PathBuf)>) -> Result<SharedCheckpoint> {
        let mut names: Vec<String> = Vec::new();
        if let Some((_, folder)) = &found {
            for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
                let entry = entry?;
                if entry.file_type()?.is_file() {
                    names.extend(entry.file_name().into_string().ok());
                }
            }
        }
        let names = self.ring.broadcast(serde_json::to_vec(&(found.is_some(), names))?)?;
        let (is_there, names): (bool, Vec<String>) = serde_json::from_slice(&names)?;
        if !is_there {
            return Ok(SharedCheckpoint { found: None, _copy: None });
        }
        let copy = if found.is_some() { None } else { Some(tempfile::tempdir()?) };
        for name in names {
            // What a name says is not ours to believe.
            if Path::new(&name).file_name() != Some(name.as_ref()) {
                bail!("rank 0 has a checkpoint with a file {name:?}; remove that checkpoint");
            }
            let from = found.as_ref().map(|(_, folder)| folder.join(&name));
            let to = copy.as_ref().map(|copy| copy.path().join(&name));
            self.share_file(from.as_deref(), to.as_deref()).context(name)?;
        }
        let found = match &copy {
            Some(copy) => Some((Checkpoint::read(copy.path())?, copy.path().to_path_buf())),
            None => found,
        };
        Ok(SharedCheckpoint { found, _copy: copy })
    }

    /// Sends a file from rank 0 to the others, in pieces.
    fn share_file(&self, from: Option<&Path>, to: Option<&Path>) -> Result<()> {
        const PIECE: u64 = 1 << 26;
        let mut from = from.map(File::open).transpose()?;
        let mut to = to.map(File::create).transpose()?;
        loop {
            let mut piece = Vec::new();
            if let Some(from) = &mut from {
                from.take(PIECE).read_to_end(&mut piece)?;
            }
            let piece = self.ring.broadcast(piece)?;
            if piece.is_empty() {
                return Ok(());
            }
            if let Some(to) = &mut to {
                to.write_all(&piece)?;
            }
        }
    }

    /// Ends in peace, once all processes do.
    ///
    /// # Errors
    /// A process that is lost.
    pub fn leave(&self) -> Result<()> {
        Ok(self.ring.leave()?)
    }

    /// Tells the others that this process cannot go on, and why.
    pub fn failed(&self, error: &anyhow::Error) {
        if lost(error).is_none() {
            self.ring.fail(&error_line(error));
        }
    }
}

/// What is said of a process that is lost, where that is what is wrong.
pub(super) fn lost(error: &anyhow::Error) -> Option<&str> {
    match error.downcast_ref::<Error>() {
        Some(Error::Lost(line)) => Some(line),
        _ => None,
    }
}

/// The error of a run that a lost process has ended, and what there is to go on from: on rank 0 how many steps the
/// checkpoints of its folder hold.
pub(super) fn stopped(line: &str, kept: Option<(usize, &Path)>) -> anyhow::Error {
    Error::Lost(match kept {
        Some((0, _)) => format!("{line}; there is no checkpoint yet"),
        Some((steps, folder)) => format!(
            "{line}; the state after {} is in {}: go on with --resume, with as many processes as you like",
            counted(steps, "step", "steps"),
            folder.display()
        ),
        None => format!("{line}; the last checkpoint of rank 0 holds: go on with --resume"),
    })
    .into()
}

/// A number for what a step is computed of.
pub(super) fn fingerprint(batches: &[Batch]) -> u64 {
    let mut sum = Xxh3::new();
    let mut add = |text: &Text| {
        for part in [&*text.prompt, &*text.text] {
            sum.update(&(part.len() as u64).to_le_bytes());
            sum.update(part.as_bytes());
        }
    };
    for batch in batches {
        batch.queries.iter().chain(&batch.documents).for_each(&mut add);
    }
    // Of everything else that a loss is computed of.
    for batch in batches {
        let Batch { candidates, scores, .. } = batch;
        sum.update(format!("{candidates:?} {scores:?}").as_bytes());
    }
    sum.digest()
}

/// Processes around a ring ([`Ring`]). Values pass through memory of the host.
#[derive(Debug)]
pub(super) struct OverHosts {
    ring: Arc<Ring>,
    format: Format,
}

impl<B: Backend> Transport<B> for OverHosts {
    fn rank(&self) -> usize {
        self.ring.rank()
    }

    fn world(&self) -> usize {
        self.ring.world()
    }

    fn all_reduce(&self, values: Tensor<B, 1>) -> Result<Tensor<B, 1>> {
        let (device, [count]) = (values.device(), values.dims());
        let mut values = values_of(values)?;
        self.ring.all_reduce(&mut values, self.format)?;
        Ok(Tensor::from_data(TensorData::new(values, [count]), &device))
    }

    fn all_gather(
        &self,
        own: Option<Tensor<B, 2>>,
        rows: &[usize],
        width: usize,
        device: &B::Device,
    ) -> Result<Tensor<B, 2>> {
        let own = own.map_or(Ok(Vec::new()), values_of)?;
        let lengths: Vec<usize> = rows.iter().map(|rows| rows * width).collect();
        if lengths.get(self.ring.rank()) != Some(&own.len()) {
            bail!("{} vectors of {width} values make {} values", rows[self.ring.rank()], own.len());
        }
        let all = self.ring.all_gather(&own, &lengths)?;
        let rows: usize = rows.iter().sum();
        Ok(Tensor::from_data(TensorData::new(all, [rows, width]), device))
    }

    fn all_gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        Ok(self.ring.all_gather_bytes(&own)?)
    }

    fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(self.ring.broadcast(bytes)?)
    }

    fn outside(&self, at_leisure: bool, run: &mut Outside<'_>) -> Result<()> {
        Ok(self.ring.outside(at_leisure, run)?)
    }

    fn busy(&self) -> Box<dyn Any> {
        Box::new(self.ring.busy())
    }

    fn ends(&self) -> Option<Arc<AtomicBool>> {
        Some(self.ring.ends())
    }

    fn name(&self, rank: usize) -> String {
        self.ring.name(rank)
    }
}

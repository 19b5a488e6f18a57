//! Sums, gathering and passing on around the ring: each rank sends to the next and receives from the one before.
//!
//! A sum is a reduce-scatter and an all-gather (Patarasuk and Yuan, JPDC 69, 2009): values are cut into as many
//! parts as there are ranks, part c goes from rank c once around and every rank adds its own to what came; then the
//! sums go around. A rank sends and receives `2 (n - 1) / n` times the values, whatever n. The order in which
//! a part is summed follows from its number, so that all runs of as many ranks give the same bits, and all
//! ranks get the same.

use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use half::bf16;

use crate::frame::{Broken, Header, MOST, Outgoing, Patience as _, receive};
use crate::join::{self, Joined, Terms};
use crate::launch::Launch;
use crate::watch::{Busy, Watch};
use crate::{Ended, Error, Result};

/// Bytes that fit into a connection's buffers, so that they can be sent before anything is read.
const SMALL: usize = 8 << 10;

const VALUES: u8 = 20;
const BYTES: u8 = 21;

/// How values travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16 at each hop, in half the bytes.
    Bf16,
}

impl Format {
    fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }

    fn write(self, values: &[f32], buffer: &mut Vec<u8>) {
        match self {
            Self::F32 => buffer.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Self::Bf16 => {
                let rounded = values.iter().map(|value| bf16::from_f32(*value));
                buffer.extend(rounded.flat_map(bf16::to_le_bytes));
            }
        }
    }

    /// Has `each` do something with every value and what came for it.
    fn read(self, bytes: &[u8], into: &mut [f32], each: impl Fn(&mut f32, f32)) {
        match self {
            Self::F32 => {
                let (came, _) = bytes.as_chunks::<4>();
                let came = came.iter().map(|bytes| f32::from_le_bytes(*bytes));
                into.iter_mut().zip(came).for_each(|(value, came)| each(value, came));
            }
            Self::Bf16 => {
                let (came, _) = bytes.as_chunks::<2>();
                let came = came.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32());
                into.iter_mut().zip(came).for_each(|(value, came)| each(value, came));
            }
        }
    }
}

/// This process among those that train together.
#[derive(Debug)]
pub struct Ring {
    rank: usize,
    world: usize,
    watch: Arc<Watch>,
    next: TcpStream,
    previous: TcpStream,
    /// Number of the last operation, and memory for frames.
    work: Mutex<Work>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Work {
    operation: u64,
    out: Outgoing,
    payload: Vec<u8>,
}

impl Ring {
    /// Finds the other ranks. `note` is told who is waited for, and `stops` asked whether to give up.
    ///
    /// # Errors
    /// A rank that does not come in time or was started for something else; [`Error::Stopped`].
    pub fn join(
        launch: &Launch,
        terms: &Terms,
        note: &(dyn Fn(&str) + Sync),
        stops: &(dyn Fn() -> bool + Sync),
    ) -> Result<Self> {
        let Joined { watch, threads, next, previous } = join::join(launch, terms, note, stops)?;
        let ring = Self {
            rank: launch.rank,
            world: launch.world,
            watch,
            next,
            previous,
            work: Mutex::default(),
            threads,
        };
        ring.barrier()?;
        Ok(ring)
    }

    /// This process's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many processes there are.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Whether this is rank 0.
    pub fn is_main(&self) -> bool {
        self.rank == 0
    }

    /// `rank 1 (host)`.
    pub fn name(&self, rank: usize) -> String {
        self.watch.name(rank)
    }

    /// While what is returned lives this rank does what the others wait for, as long as [`crate::Timeouts::busy`] lets
    /// it: it loads, evaluates or saves.
    pub fn busy(&self) -> Busy {
        self.watch.busy()
    }

    /// True once a rank is lost, which the next operation says: for long work that goes on without the others.
    pub fn ends(&self) -> Arc<AtomicBool> {
        self.watch.ends()
    }

    /// The sums over all ranks, on each of them.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn all_reduce(&self, values: &mut [f32], format: Format) -> Result<()> {
        self.operation(|ring, work| {
            let (rank, world) = (ring.rank, ring.world);
            let bound = |part: usize| values.len() * part / world;
            let bounds: Vec<(usize, usize)> =
                (0..world).map(|part| (bound(part), bound(part + 1))).collect();
            let part = |shift: usize| (rank + 2 * world - shift) % world;
            for step in 0..world - 1 {
                let (sent, received) = two(values, bounds[part(step)], bounds[part(step + 1)]);
                ring.pass(work, sent, received, format, |value, came| *value += came)?;
            }
            // Every rank has to go on with the bits that the others get.
            let (from, to) = bounds[part(world - 1)];
            if format == Format::Bf16 {
                for value in &mut values[from..to] {
                    *value = bf16::from_f32(*value).to_f32();
                }
            }
            for step in 0..world - 1 {
                let (sent, received) =
                    two(values, bounds[part(step + world - 1)], bounds[part(step)]);
                ring.pass(work, sent, received, format, |value, came| *value = came)?;
            }
            Ok(())
        })
    }

    /// The values of all ranks, one after the other; every rank knows how many each has.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn all_gather(&self, own: &[f32], lengths: &[usize]) -> Result<Vec<f32>> {
        self.operation(|ring, work| {
            let (rank, world) = (ring.rank, ring.world);
            let mut next = 0;
            let bounds: Vec<(usize, usize)> = lengths
                .iter()
                .map(|length| {
                    next += length;
                    (next - length, next)
                })
                .collect();
            let mut all = vec![0.0; next];
            let (from, to) = bounds[rank];
            all[from..to].copy_from_slice(own);
            let part = |shift: usize| (rank + world - shift) % world;
            for step in 0..world - 1 {
                let (sent, received) = two(&mut all, bounds[part(step)], bounds[part(step + 1)]);
                ring.pass(work, sent, received, Format::F32, |value, came| *value = came)?;
            }
            Ok(all)
        })
    }

    /// The bytes of each rank, on all of them; each may have as many as it likes.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn all_gather_bytes(&self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.operation(|ring, work| {
            let (rank, world) = (ring.rank, ring.world);
            let mut all = vec![Vec::new(); world];
            all[rank] = own.to_vec();
            let part = |shift: usize| (rank + world - shift) % world;
            for step in 0..world - 1 {
                let sent = std::mem::take(&mut all[part(step)]);
                let mut received = Vec::new();
                let operation = work.operation;
                ring.both(
                    work,
                    sent.len(),
                    |out| ring.send_bytes(out, &sent, operation),
                    |payload| {
                        ring.receive_bytes(payload, operation, |bytes, _| {
                            received.extend_from_slice(bytes);
                            Ok(())
                        })
                    },
                )?;
                all[part(step)] = sent;
                all[part(step + 1)] = received;
            }
            Ok(all)
        })
    }

    /// Rank 0's bytes, on all ranks.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        self.operation(|ring, work| {
            let operation = work.operation;
            if ring.rank == 0 {
                ring.send_bytes(&mut work.out, &bytes, operation)?;
                return Ok(bytes);
            }
            let last = ring.rank + 1 == ring.world;
            let mut all = Vec::new();
            let out = &mut work.out;
            ring.receive_bytes(&mut work.payload, operation, |bytes, header| {
                all.extend_from_slice(bytes);
                match last {
                    true => Ok(()),
                    false => out.send(&ring.next, header, &*ring.watch, |buffer| {
                        buffer.extend_from_slice(bytes);
                    }),
                }
            })?;
            Ok(all)
        })
    }

    /// Returns once all ranks have come here.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn barrier(&self) -> Result<()> {
        self.all_gather_bytes(&[]).map(drop)
    }

    /// Runs what all ranks do together by another way than around the ring, such as sums among their GPUs. `run` asks what
    /// it is given, again and again, whether a rank is lost, and ends where one is. With `at_leisure` its asking counts as
    /// data that flow: then `run` itself has to end in time.
    ///
    /// # Errors
    /// A rank that is lost, or what `run` says.
    pub fn outside<T>(
        &self,
        at_leisure: bool,
        run: impl FnOnce(&dyn Fn() -> bool) -> Result<T, Ended>,
    ) -> Result<T> {
        self.operation(|ring, _| {
            let (watch, own) = (&ring.watch, ring.watch.name(ring.rank));
            let lost = || {
                if at_leisure {
                    watch.came(1);
                }
                watch.verdict().is_some()
            };
            run(&lost).map_err(|ended| {
                Broken::Ended(match ended {
                    Ended::Here(line) => watch.judge(Error::Lost(format!("{own}: {line}"))),
                    Ended::Elsewhere(line) => watch.broke(format!("{own}: {line}")),
                })
            })
        })
    }

    /// Ends, once all ranks do, in peace.
    ///
    /// # Errors
    /// A rank that is lost.
    pub fn leave(&self) -> Result<()> {
        self.barrier()?;
        self.watch.leave();
        Ok(())
    }

    /// Tells all ranks that this one cannot go on, and why; they stop with that line, unless they have stopped already.
    pub fn fail(&self, why: &str) {
        self.watch.depart(why);
    }

    /// One operation after the other, each with its number.
    fn operation<T>(&self, run: impl FnOnce(&Self, &mut Work) -> Result<T, Broken>) -> Result<T> {
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = self.watch.verdict() {
            return Err(error);
        }
        work.operation += 1;
        let number = work.operation;
        self.watch.operation_begins(number);
        match run(self, &mut work) {
            Ok(result) => {
                self.watch.operation_ends(number);
                Ok(result)
            }
            Err(broken) => Err(self.lost(broken)),
        }
    }

    fn lost(&self, broken: Broken) -> Error {
        let before = self.watch.name((self.rank + self.world - 1) % self.world);
        match broken {
            Broken::Ended(error) => error,
            Broken::Damaged(what) => self.watch.judge(Error::Lost(format!(
                "{} got {what} from {before}: the network between them damages data",
                self.watch.name(self.rank)
            ))),
            Broken::Unexpected => self.watch.judge(Error::Lost(format!(
                "{} got data of another length or operation than it expected from {before}: they do not do the same; give \
                 all hosts the same recipe, data and kind of device",
                self.watch.name(self.rank)
            ))),
            Broken::Closed(error) => {
                let after = self.watch.name((self.rank + 1) % self.world);
                let ends = if before == after { after } else { format!("{before} or {after}") };
                self.watch.broke(format!("{ends} is lost: a connection closed ({error})"))
            }
        }
    }

    /// Sends and receives at the same time, so that no circle of ranks waits for one another's buffers.
    fn both(
        &self,
        work: &mut Work,
        bytes: usize,
        send: impl FnOnce(&mut Outgoing) -> Result<(), Broken> + Send,
        receive: impl FnOnce(&mut Vec<u8>) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let Work { out, payload, .. } = work;
        if bytes <= SMALL {
            send(out)?;
            return receive(payload);
        }
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| send(out));
            let received = receive(payload);
            let sent = sending.join().unwrap_or_else(|_| {
                Err(Broken::Closed(std::io::Error::other("the sending thread ended early")))
            });
            received.and(sent)
        })
    }

    /// Sends one part and has `each` take what comes for another.
    fn pass(
        &self,
        work: &mut Work,
        sent: &[f32],
        received: &mut [f32],
        format: Format,
        each: impl Fn(&mut f32, f32),
    ) -> Result<(), Broken> {
        let operation = work.operation;
        let bytes = sent.len() * format.size();
        self.both(
            work,
            bytes,
            |out| self.send_values(out, sent, format, operation),
            |payload| self.receive_values(payload, received, format, operation, each),
        )
    }

    fn send_values(
        &self,
        out: &mut Outgoing,
        mut values: &[f32],
        format: Format,
        operation: u64,
    ) -> Result<(), Broken> {
        loop {
            let left = (values.len() * format.size()) as u64;
            let (now, later) = values.split_at(values.len().min(MOST / format.size()));
            let header = Header { kind: VALUES, operation, left };
            out.send(&self.next, header, &*self.watch, |buffer| format.write(now, buffer))?;
            if later.is_empty() {
                return Ok(());
            }
            values = later;
        }
    }

    fn receive_values(
        &self,
        payload: &mut Vec<u8>,
        mut into: &mut [f32],
        format: Format,
        operation: u64,
        each: impl Fn(&mut f32, f32),
    ) -> Result<(), Broken> {
        loop {
            let header = receive(&self.previous, payload, &*self.watch)?;
            let left = (into.len() * format.size()) as u64;
            let count = payload.len() / format.size();
            let whole = payload.len().is_multiple_of(format.size()) && count <= into.len();
            if header != (Header { kind: VALUES, operation, left }) || !whole {
                return Err(Broken::Unexpected);
            }
            let (now, later) = into.split_at_mut(count);
            format.read(payload, now, &each);
            if later.is_empty() {
                return Ok(());
            }
            if count == 0 {
                return Err(Broken::Unexpected);
            }
            into = later;
        }
    }

    fn send_bytes(
        &self,
        out: &mut Outgoing,
        mut bytes: &[u8],
        operation: u64,
    ) -> Result<(), Broken> {
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(MOST));
            let header = Header { kind: BYTES, operation, left: bytes.len() as u64 };
            out.send(&self.next, header, &*self.watch, |buffer| buffer.extend_from_slice(now))?;
            if later.is_empty() {
                return Ok(());
            }
            bytes = later;
        }
    }

    fn receive_bytes(
        &self,
        payload: &mut Vec<u8>,
        operation: u64,
        mut each: impl FnMut(&[u8], Header) -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        let mut expected = None;
        loop {
            let header = receive(&self.previous, payload, &*self.watch)?;
            let left = expected.unwrap_or(header.left);
            let now = payload.len() as u64;
            if header != (Header { kind: BYTES, operation, left }) || now > left {
                return Err(Broken::Unexpected);
            }
            each(payload, header)?;
            if now == left {
                return Ok(());
            }
            if now == 0 {
                return Err(Broken::Unexpected);
            }
            expected = Some(left - now);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // A rank that did not leave in peace has failed, if only by a panic.
        self.watch.depart("it ended early");
        for thread in self.threads.drain(..) {
            // It has nothing left to say.
            let _ = thread.join();
        }
    }
}

/// Two parts of a slice, one to read and one to write.
fn two(
    values: &mut [f32],
    (from, to): (usize, usize),
    (into, end): (usize, usize),
) -> (&[f32], &mut [f32]) {
    if to <= into {
        let (front, back) = values.split_at_mut(into);
        (&front[from..to], &mut back[..end - into])
    } else {
        let (front, back) = values.split_at_mut(from);
        (&back[..to - from], &mut front[into..end])
    }
}

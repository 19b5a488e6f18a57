//! Who is alive: each rank says so to rank 0, and rank 0 to each, over the connections that they met by. Rank 0
//! judges; what it says first is what all ranks stop with.
//!
//! A process that ends closes its connection, and is named at once. One that is stopped, or behind a cable
//! that was pulled, is named after `silence`. Where all live and the data do not flow, rank 0 knows from what the ranks say
//! of their operations which one is behind, or between which two the data stand still. One that says that it loads,
//! evaluates or saves is given longer (`busy`), and not for ever: its disk may hang.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::frame::{Broken, Deadline, POLL, Patience, receive, send_message};
use crate::launch::Timeouts;
use crate::{Error, Result};

const BEAT: u8 = 1;
const VERDICT: u8 = 2;
const LEAVE: u8 = 3;

/// How long a verdict may take to go out, and last words to come in.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A connection between rank 0 and another.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) rank: usize,
    pub(crate) stream: TcpStream,
    out: Mutex<bool>,
    left: AtomicBool,
}

impl Link {
    pub(crate) fn new(rank: usize, stream: TcpStream) -> Self {
        Self { rank, stream, out: Mutex::new(true), left: AtomicBool::new(false) }
    }

    /// Sends a message, unless one before it was cut off.
    fn send(&self, kind: u8, message: &[u8]) {
        let mut whole = lock(&self.out);
        if *whole {
            let deadline = Deadline(Instant::now() + LAST_WORDS, Error::Stopped);
            *whole = send_message(&self.stream, kind, message, &deadline).is_ok();
        }
    }
}

/// What a rank says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Beat {
    /// Operations that it has begun, and that it has ended.
    started: u64,
    done: u64,
    /// Bytes of the present one that it has got.
    moved: u64,
    /// Whether it does what the others cannot help waiting for.
    busy: bool,
}

impl Beat {
    fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.started, self.done, self.moved, u64::from(self.busy)];
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let (numbers, []) = bytes.as_chunks::<8>() else { return None };
        let [started, done, moved, busy] = numbers else { return None };
        let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
        Some(Self {
            started: number(started),
            done: number(done),
            moved: number(moved),
            busy: number(busy) != 0,
        })
    }

    fn waits(self) -> bool {
        self.started > self.done
    }
}

/// The last that was heard of a rank, and when it last was something new.
#[derive(Debug, Clone, Copy)]
struct Report {
    beat: Beat,
    changed: Instant,
}

/// What the threads of a rank share.
#[derive(Debug)]
pub(crate) struct Watch {
    rank: usize,
    hosts: Vec<String>,
    timeouts: Timeouts,
    links: Vec<Link>,
    verdict: Mutex<Option<(Error, Instant)>>,
    /// Whether there is a verdict, for what cannot ask.
    ends: Arc<AtomicBool>,
    changed: Condvar,
    leaving: AtomicBool,
    started: AtomicU64,
    done: AtomicU64,
    moved: AtomicU64,
    busy: AtomicUsize,
    /// Of all ranks, at rank 0.
    reports: Mutex<Vec<Report>>,
    /// The ring's connections, which a verdict shuts.
    ring: Mutex<Vec<TcpStream>>,
}

/// While it lives the others wait longer, and do not ask why.
#[derive(Debug)]
pub struct Busy(Arc<Watch>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// `links` are rank 0's to all others, or another's to rank 0.
    pub(crate) fn new(
        rank: usize,
        hosts: Vec<String>,
        timeouts: Timeouts,
        links: Vec<Link>,
    ) -> Self {
        let report = Report { beat: Beat::default(), changed: Instant::now() };
        let reports = Mutex::new(vec![report; hosts.len()]);
        Self {
            rank,
            hosts,
            timeouts,
            links,
            verdict: Mutex::new(None),
            ends: Arc::default(),
            changed: Condvar::new(),
            leaving: AtomicBool::new(false),
            started: AtomicU64::new(0),
            done: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            busy: AtomicUsize::new(0),
            reports,
            ring: Mutex::new(Vec::new()),
        }
    }

    /// Starts the threads that listen and say that this rank lives.
    pub(crate) fn begin(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let mut threads = Vec::new();
        for number in 0..self.links.len() {
            let watch = self.clone();
            threads.push(std::thread::spawn(move || watch.listen(&watch.links[number])));
        }
        let watch = self.clone();
        threads.push(std::thread::spawn(move || watch.beat()));
        threads
    }

    /// The ring's connections.
    pub(crate) fn guard_ring(&self, streams: Vec<TcpStream>) {
        *lock(&self.ring) = streams;
    }

    /// `rank 1 (host)`.
    pub(crate) fn name(&self, rank: usize) -> String {
        match self.hosts.get(rank) {
            Some(host) => format!("rank {rank} ({host})"),
            None => format!("rank {rank}"),
        }
    }

    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::SeqCst);
        Busy(self.clone())
    }

    pub(crate) fn operation_begins(&self, number: u64) {
        self.moved.store(0, Ordering::SeqCst);
        self.started.store(number, Ordering::SeqCst);
    }

    pub(crate) fn operation_ends(&self, number: u64) {
        self.done.store(number, Ordering::SeqCst);
    }

    /// What is wrong, if something is.
    pub(crate) fn verdict(&self) -> Option<Error> {
        lock(&self.verdict).as_ref().map(|(error, _)| error.clone())
    }

    /// True once something is wrong.
    pub(crate) fn ends(&self) -> Arc<AtomicBool> {
        self.ends.clone()
    }

    /// What rank 0 says of a connection of the ring that broke, or, where it does not say anything in time, `line`.
    pub(crate) fn broke(&self, line: String) -> Error {
        let grace =
            (4 * self.interval()).clamp(2 * LAST_WORDS, self.timeouts.silence.max(2 * LAST_WORDS));
        let deadline = Instant::now() + grace;
        let mut verdict = lock(&self.verdict);
        loop {
            if let Some((error, _)) = verdict.as_ref() {
                return error.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(verdict, left);
            verdict = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(verdict);
        self.judge(Error::Lost(line))
    }

    /// Takes a verdict and tells the others; the first one stays. Returns that.
    pub(crate) fn judge(&self, error: Error) -> Error {
        self.take(error, true)
    }

    fn take(&self, error: Error, tells: bool) -> Error {
        let mut verdict = lock(&self.verdict);
        if let Some((first, _)) = verdict.as_ref() {
            return first.clone();
        }
        if tells {
            for link in self.links.iter().filter(|link| !link.left.load(Ordering::SeqCst)) {
                link.send(VERDICT, error.to_string().as_bytes());
            }
        }
        *verdict = Some((error.clone(), Instant::now()));
        drop(verdict);
        self.ends.store(true, Ordering::SeqCst);
        self.changed.notify_all();
        for stream in lock(&self.ring).iter() {
            // It may be shut already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        error
    }

    /// Says farewell: all ranks have ended what they do together.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        self.links.iter().for_each(|link| link.send(LEAVE, &[]));
        self.end();
    }

    /// Ends at any time: unless all have left in peace, the others hear that this rank has failed.
    pub(crate) fn depart(&self, why: &str) {
        if !self.is_leaving() {
            self.judge(Error::Lost(format!("{} has failed: {why}", self.name(self.rank))));
        }
        self.end();
    }

    /// No more is said.
    fn end(&self) {
        self.leaving.store(true, Ordering::SeqCst);
        for link in &self.links {
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        self.changed.notify_all();
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::SeqCst)
    }

    /// Between two signs of life.
    fn interval(&self) -> Duration {
        let usual = Duration::from_secs(5);
        (self.timeouts.silence / 6).clamp(Duration::from_millis(50), usual)
    }

    fn own_beat(&self) -> Beat {
        // The end first, so that no operation seems to end before it began.
        let done = self.done.load(Ordering::SeqCst);
        Beat {
            started: self.started.load(Ordering::SeqCst),
            done,
            moved: self.moved.load(Ordering::SeqCst),
            busy: self.busy.load(Ordering::SeqCst) > 0,
        }
    }

    /// Says that this rank lives, until it does not take part any more.
    fn beat(&self) {
        loop {
            let verdict = lock(&self.verdict);
            if verdict.is_some() || self.is_leaving() {
                return;
            }
            let waited = self.changed.wait_timeout(verdict, self.interval());
            let verdict = waited.unwrap_or_else(PoisonError::into_inner).0;
            if verdict.is_some() || self.is_leaving() {
                return;
            }
            drop(verdict);
            let beat = self.own_beat();
            self.links.iter().for_each(|link| link.send(BEAT, &beat.to_bytes()));
            if self.rank == 0 {
                self.heard(0, beat);
                if let Some(line) = self.behind() {
                    self.judge(Error::Lost(line));
                }
            }
        }
    }

    fn heard(&self, rank: usize, beat: Beat) {
        if let Some(report) = lock(&self.reports).get_mut(rank)
            && report.beat != beat
        {
            *report = Report { beat, changed: Instant::now() };
        }
    }

    /// The rank that the others have waited for too long, or the two between which data stand still.
    fn behind(&self) -> Option<String> {
        self.late_of(&lock(&self.reports).clone())
    }

    fn late_of(&self, reports: &[Report]) -> Option<String> {
        let still = |report: &Report| report.changed.elapsed();
        // The first operation that has not ended everywhere: who waits in it, and who has not come to it.
        let waiting = reports.iter().filter(|report| report.beat.waits());
        let first = waiting.map(|report| report.beat.started).min()?;
        let waits =
            |(_, report): &(usize, &Report)| report.beat.waits() && report.beat.started == first;
        let ranks = || reports.iter().enumerate();
        let waited = ranks().filter(waits).map(|(_, report)| still(report)).min()?;
        let mut late =
            ranks().filter(|(_, report)| !report.beat.waits() && report.beat.done < first);
        if late.clone().next().is_none() {
            // A rank that has ended the operation has just said so; the others may have, and not have said it yet. And one
            // that is silent is named first.
            let news = ranks().map(|(_, report)| still(report)).min()?;
            if news < self.timeouts.silence + 3 * self.interval() {
                return None;
            }
            // The one that has got least has stood still longest.
            let stands = ranks().filter(waits);
            let (rank, _) = stands.min_by_key(|(_, report)| (report.beat.moved, report.changed))?;
            let before = (rank + reports.len() - 1) % reports.len();
            return Some(format!(
                "no data of {} have reached {} for {:.0} s: the network between them stands still",
                self.name(before),
                self.name(rank),
                self.timeouts.silence.as_secs_f64()
            ));
        }
        let Timeouts { slow, busy, .. } = self.timeouts;
        let limit = |report: &Report| if report.beat.busy { busy } else { slow };
        let (rank, report) = late.find(|(_, report)| waited.min(still(report)) > limit(report))?;
        let (name, seconds) = (self.name(rank), limit(report).as_secs_f64());
        Some(match report.beat.busy {
            true => format!(
                "{name} has loaded, evaluated or saved for {seconds:.0} s, and the others wait for it: look whether a disk \
                 or the network hangs there, or give it longer by KILN_BUSY_TIMEOUT"
            ),
            false => {
                format!("{name} is slow: the others have waited for it for {seconds:.0} s")
            }
        })
    }

    /// Hears what the other side of a link says, until it says no more.
    fn listen(&self, link: &Link) {
        let mut heard = Heard { watch: self, rank: link.rank, last: Instant::now() };
        let mut message = Vec::new();
        loop {
            let received = receive(&link.stream, &mut message, &heard);
            heard.last = Instant::now();
            match received {
                Ok(header) if header.kind == BEAT => {
                    if let Some(beat) = Beat::of(&message) {
                        self.heard(link.rank, beat);
                    }
                }
                Ok(header) if header.kind == VERDICT => {
                    let line = String::from_utf8_lossy(&message).into_owned();
                    // Rank 0 tells the others what one of them found.
                    self.take(Error::Lost(line), self.rank == 0);
                }
                Ok(header) if header.kind == LEAVE => {
                    link.left.store(true, Ordering::SeqCst);
                    return;
                }
                Ok(_) | Err(Broken::Damaged(_) | Broken::Unexpected) => {
                    self.judge(Error::Lost(format!(
                        "{} sends what is no sign of life: the network damages data",
                        self.name(link.rank)
                    )));
                    return;
                }
                Err(Broken::Ended(error)) => {
                    if error != Error::Stopped {
                        self.judge(error);
                    }
                    return;
                }
                Err(Broken::Closed(_)) => {
                    if !self.is_leaving() {
                        self.judge(Error::Lost(format!(
                            "{} is lost: its process has ended, or its connection",
                            self.name(link.rank)
                        )));
                    }
                    return;
                }
            }
            if self.rank != 0 && self.verdict().is_some() {
                return;
            }
        }
    }
}

impl Patience for Watch {
    fn check(&self) -> Result<()> {
        self.verdict().map_or(Ok(()), Err)
    }

    fn came(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::SeqCst);
    }
}

/// Waits for a sign of life.
struct Heard<'a> {
    watch: &'a Watch,
    rank: usize,
    last: Instant,
}

impl Patience for Heard<'_> {
    fn check(&self) -> Result<()> {
        if self.watch.is_leaving() {
            return Err(Error::Stopped);
        }
        if let Some((_, since)) = lock(&self.watch.verdict).as_ref() {
            return if since.elapsed() < LAST_WORDS { Ok(()) } else { Err(Error::Stopped) };
        }
        let silence = self.watch.timeouts.silence;
        if self.last.elapsed() < silence.max(2 * POLL) {
            return Ok(());
        }
        Err(Error::Lost(format!(
            "{} is lost: nothing has been heard of it for {:.0} s",
            self.watch.name(self.rank),
            silence.as_secs_f64()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ranks have said: operations begun and ended, bytes of the present one, and how many seconds ago.
    fn late(said: &[(u64, u64, u64, u64)]) -> Option<String> {
        late_while(&[], said)
    }

    /// As `late`, where some of the ranks say that they are busy.
    fn late_while(busy: &[usize], said: &[(u64, u64, u64, u64)]) -> Option<String> {
        let seconds = Duration::from_secs;
        let timeouts = Timeouts {
            join: seconds(600),
            silence: seconds(60),
            slow: seconds(1800),
            busy: seconds(3600),
        };
        let hosts = (0..said.len()).map(|rank| format!("host{rank}")).collect();
        let watch = Watch::new(0, hosts, timeouts, Vec::new());
        let now = Instant::now();
        let report =
            |(rank, &(started, done, moved, ago)): (usize, &(u64, u64, u64, u64))| Report {
                beat: Beat { started, done, moved, busy: busy.contains(&rank) },
                // A clock that begins with the system may not reach back so far.
                changed: now.checked_sub(seconds(ago)).unwrap_or(now),
            };
        watch.late_of(&said.iter().enumerate().map(report).collect::<Vec<_>>())
    }

    #[test]
    fn who_is_late_follows_from_what_all_say() {
        // All is well, for however long they have computed.
        assert_eq!(late(&[(7, 7, 0, 900), (7, 7, 0, 900)]), None);
        // Rank 1 has waited long, rank 0 has come, both have ended it, and rank 1 has not said so yet.
        assert_eq!(late(&[(7, 7, 0, 0), (7, 6, 0, 300)]), None);
        // Nothing moves in the operation that both are in.
        let stands = late(&[(7, 6, 50, 80), (7, 6, 10, 90)]);
        assert!(stands.is_some_and(|line| line.contains("rank 0 (host0) have reached rank 1")));
        assert_eq!(late(&[(7, 6, 50, 2), (7, 6, 10, 90)]), None);
        // Rank 1 does not come.
        assert_eq!(late(&[(7, 6, 0, 1000), (6, 6, 0, 1000)]), None);
        let slow = late(&[(7, 6, 0, 2000), (6, 6, 0, 2000)]);
        assert!(slow.is_some_and(|line| line.starts_with("rank 1 (host1) is slow")));
    }

    #[test]
    fn one_that_is_busy_is_given_longer_and_not_for_ever() {
        assert_eq!(late_while(&[1], &[(7, 6, 0, 3000), (6, 6, 0, 3000)]), None);
        // As long as it was busy, the others have come only now.
        assert_eq!(late_while(&[1], &[(7, 6, 0, 1000), (6, 6, 0, 4000)]), None);
        let stuck = late_while(&[1], &[(7, 6, 0, 4000), (6, 6, 0, 4000)]).unwrap_or_default();
        assert!(
            stuck.starts_with("rank 1 (host1) has loaded, evaluated or saved for 3600 s"),
            "{stuck}"
        );
        assert!(stuck.contains("KILN_BUSY_TIMEOUT") && stuck.lines().count() == 1, "{stuck}");
        // Beside one that is busy with reason one that is none is found out all the same.
        let slow = late_while(&[0], &[(6, 6, 0, 2000), (6, 6, 0, 2000), (7, 6, 0, 2000)]);
        assert!(slow.is_some_and(|line| line.starts_with("rank 1 (host1) is slow")));
        // Where nobody waits, all may be busy as long as they like.
        assert_eq!(late_while(&[0, 1], &[(6, 6, 0, 9000), (6, 6, 0, 9000)]), None);
    }
}

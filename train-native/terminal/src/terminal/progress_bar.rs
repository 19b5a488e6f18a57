//! How far a long job is: a bar on a terminal; in a log file a line now and then, so that nobody
//! takes a job of hours for one that hangs.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, HumanCount, HumanDuration, ProgressDrawTarget, ProgressStyle};

use super::{Terminal, field};

/// Time between two lines where standard error is no terminal; `KILN_PROGRESS_SECONDS` sets another.
const BETWEEN_LINES: Duration = Duration::from_secs(30);

/// Progress of one job. Clones show the same job.
#[derive(Debug, Clone)]
pub struct ProgressBar {
    bar: indicatif::ProgressBar,
    /// Where lines take the bar's place.
    log: Option<Log>,
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Things,
    Bytes,
}

#[derive(Debug, Clone)]
struct Log {
    terminal: Terminal,
    state: Arc<State>,
    /// Ends the thread that writes the lines, at the latest when the last clone is dropped.
    stop: Sender<()>,
}

#[derive(Debug)]
struct State {
    unit: Unit,
    /// When the job began, and how much was done already.
    start: Mutex<(Instant, u64)>,
    paused: AtomicBool,
    /// Whether the log has a line of this job.
    said: AtomicBool,
}

impl ProgressBar {
    /// A bar in an indicatif template, or lines. `total` is `None` where nobody knows it.
    pub(super) fn new(
        terminal: Terminal,
        total: Option<u64>,
        what: &str,
        unit: Unit,
        template: &str,
    ) -> Self {
        let target = match terminal.quiet {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr(),
        };
        let bar = indicatif::ProgressBar::with_draw_target(total, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(field(what).into_owned());
        if !terminal.quiet && !std::io::stderr().is_terminal() {
            let log = Log::start(terminal, unit, bar.clone());
            return Self { bar, log: Some(log) };
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar, log: None }
    }

    /// Counts some more as done.
    pub fn inc(&self, more: u64) {
        self.bar.inc(more);
    }

    /// Says how much is done in all.
    pub fn set_position(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Says how much an earlier run has done, which counts for no rate.
    pub fn resume_at(&self, done: u64) {
        self.bar.set_position(done);
        self.bar.reset_eta();
        if let Some(log) = &self.log {
            *log.state.start.lock().unwrap_or_else(PoisonError::into_inner) =
                (Instant::now(), done);
        }
    }

    /// How much is done.
    pub fn position(&self) -> u64 {
        self.bar.position()
    }

    /// Sets the total once it is known.
    pub fn set_length(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Numbers that follow the progress.
    pub fn set_prefix(&self, numbers: String) {
        self.bar.set_prefix(numbers);
    }

    /// Runs what writes to the terminal itself, the bar out of its way.
    pub fn suspend<T>(&self, run: impl FnOnce() -> T) -> T {
        let pause = |paused| {
            if let Some(log) = &self.log {
                log.state.paused.store(paused, Ordering::Relaxed);
            }
        };
        pause(true);
        let result = self.bar.suspend(run);
        pause(false);
        result
    }

    /// Ends the job: takes the bar away, or writes a last line where there were others.
    pub fn finish_and_clear(&self) {
        if let Some(log) = &self.log
            && log.state.said.load(Ordering::Relaxed)
        {
            log.say(&self.bar);
        }
        self.end();
    }

    /// As [`ProgressBar::finish_and_clear`], with a last line in a log however short the job was.
    pub fn finish_with_line(&self) {
        if let Some(log) = &self.log {
            log.say(&self.bar);
        }
        self.end();
    }

    fn end(&self) {
        if let Some(log) = &self.log {
            // The thread may have ended with an earlier clone.
            let _ = log.stop.send(());
        }
        self.bar.finish_and_clear();
    }
}

impl Log {
    /// Starts the thread that writes a line now and then, however long one step of the job takes.
    fn start(terminal: Terminal, unit: Unit, bar: indicatif::ProgressBar) -> Self {
        let state = Arc::new(State {
            unit,
            start: Mutex::new((Instant::now(), 0)),
            paused: AtomicBool::new(false),
            said: AtomicBool::new(false),
        });
        let (stop, stopped) = channel();
        let between = between_lines();
        let (shared, thread) = (state.clone(), std::thread::Builder::new());
        // Without a thread the job still runs, only silently.
        let _ = thread.name("progress".into()).spawn(move || {
            while stopped.recv_timeout(between) == Err(RecvTimeoutError::Timeout) {
                if !shared.paused.load(Ordering::Relaxed) {
                    shared.said.store(true, Ordering::Relaxed);
                    terminal.note(shared.line(&bar));
                }
            }
        });
        Self { terminal, state, stop }
    }

    fn say(&self, bar: &indicatif::ProgressBar) {
        self.terminal.note(self.state.line(bar));
    }
}

impl State {
    fn line(&self, bar: &indicatif::ProgressBar) -> String {
        let (start, before) = *self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, total) = (bar.position(), bar.length());
        let line = line(&bar.message(), done, total, before, start.elapsed(), self.unit);
        match bar.prefix() {
            numbers if numbers.is_empty() => line,
            numbers => format!("{line}  {numbers}"),
        }
    }
}

/// `embedding 1,200/5,000  40/s  2 minutes left`. What was done before the job counts for no rate.
fn line(
    what: &str,
    done: u64,
    total: Option<u64>,
    before: u64,
    elapsed: Duration,
    unit: Unit,
) -> String {
    let amount = |number: u64| match unit {
        Unit::Things => HumanCount(number).to_string(),
        Unit::Bytes => DecimalBytes(number).to_string(),
    };
    let total = total.filter(|total| *total > 0);
    let mut line = format!("{what} {}", amount(done));
    if let Some(total) = total {
        line += &format!("/{}", amount(total));
    }
    let rate = done.saturating_sub(before) as f64 / elapsed.as_secs_f64().max(1e-9);
    if rate > 0.0 {
        line += &match unit {
            Unit::Things if rate < 10.0 => format!("  {rate:.2}/s"),
            _ => format!("  {}/s", amount(rate as u64)),
        };
    }
    match total {
        Some(total) if done >= total => line += &format!("  in {}", HumanDuration(elapsed)),
        Some(total) if rate > 0.0 => {
            // A rate of nearly nothing leaves more time than a Duration holds.
            let left = Duration::try_from_secs_f64((total - done) as f64 / rate);
            line += &format!("  {} left", HumanDuration(left.unwrap_or(Duration::MAX)));
        }
        _ => line += &format!("  after {}", HumanDuration(elapsed)),
    }
    line
}

fn between_lines() -> Duration {
    std::env::var("KILN_PROGRESS_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|between| *between >= Duration::from_millis(1))
        .unwrap_or(BETWEEN_LINES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_is_done_how_fast_and_what_is_left() {
        let after = |what, done, total, before, seconds, unit| {
            line(what, done, total, before, Duration::from_secs(seconds), unit)
        };
        let things = |done, total, before| after("texts", done, total, before, 30, Unit::Things);
        assert_eq!(things(1200, Some(5000), 0), "texts 1,200/5,000  40/s  2 minutes left");
        assert_eq!(things(1200, Some(5000), 1050), "texts 1,200/5,000  5.00/s  13 minutes left");
        assert_eq!(things(5000, Some(5000), 0), "texts 5,000/5,000  166/s  in 30 seconds");
        assert_eq!(things(0, Some(5000), 0), "texts 0/5,000  after 30 seconds");
        assert_eq!(things(3000, None, 0), "texts 3,000  100/s  after 30 seconds");
        let bytes = after("model", 60_000_000, Some(90_000_000), 0, 60, Unit::Bytes);
        assert_eq!(bytes, "model 60.00 MB/90.00 MB  1.00 MB/s  30 seconds left");
        // What has no length yet has a total of nothing.
        assert_eq!(after("model", 0, Some(0), 0, 30, Unit::Bytes), "model 0 B  after 30 seconds");
    }
}

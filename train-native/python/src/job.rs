//! Work beside the interpreter: without its lock, with Ctrl-C heard, and in forks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use std::{process, thread};

use anyhow::{Context as _, Result};
use pyo3::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::errors::{KilnError, to_python};

/// How often the interpreter is asked for signals.
const LISTENS_EVERY: Duration = Duration::from_millis(50);

/// The process that loaded this module, whose threads rayon's own pool has.
static HOME: OnceLock<u32> = OnceLock::new();

/// The pool of a process that was forked from it.
static FORKED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

pub(crate) fn remember_this_process() {
    HOME.get_or_init(process::id);
}

/// Whether this process was forked from the one that loaded this module.
pub(crate) fn is_forked() -> bool {
    HOME.get().is_some_and(|home| *home != process::id())
}

/// Runs work that uses rayon. A fork has none of its parent's threads, and would wait for them for ever: work
/// there gets a pool of that process.
fn with_threads<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if !is_forked() {
        return work();
    }
    let pool = {
        let mut forked = FORKED.lock().unwrap_or_else(PoisonError::into_inner);
        match &*forked {
            Some((process, pool)) if *process == process::id() => pool.clone(),
            _ => {
                let pool =
                    ThreadPoolBuilder::new().build().context("no threads in a forked process")?;
                let pool = Arc::new(pool);
                // The threads of an earlier pool are not in this process either: nobody could join them.
                if let Some(inherited) = forked.replace((process::id(), pool.clone())) {
                    std::mem::forget(inherited);
                }
                pool
            }
        }
    };
    pool.install(work)
}

/// Asks work to end.
#[derive(Default)]
pub(crate) struct Stop(AtomicBool);

impl Stop {
    pub(crate) fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Runs work on a thread of its own, while this one, the interpreter's lock released, listens for signals and
/// hands `each` what the work sends. An exception of either calls `stop`, and is raised once the work has ended.
pub(crate) fn run<T: Send, E: Send>(
    py: Python<'_>,
    work: impl FnOnce(Sender<E>) -> Result<T> + Send,
    mut each: impl FnMut(Python<'_>, E) -> PyResult<()> + Send,
    stop: impl Fn() + Sync,
) -> PyResult<T> {
    py.detach(|| {
        let mut raised: Option<PyErr> = None;
        let done = thread::scope(|scope| {
            let (sender, receiver) = channel();
            let work = move || with_threads(|| work(sender));
            let worker = thread::Builder::new().name("kiln".into()).spawn_scoped(scope, work)?;
            loop {
                let sent = match receiver.recv_timeout(LISTENS_EVERY) {
                    Ok(sent) => Some(sent),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                let heard = Python::attach(|py| {
                    if let Some(sent) = sent.filter(|_| raised.is_none()) {
                        each(py, sent)?;
                    }
                    py.check_signals()
                });
                if let Err(error) = heard {
                    stop();
                    raised.get_or_insert(error);
                }
            }
            std::io::Result::Ok(worker.join())
        });
        if let Some(error) = raised {
            return Err(error);
        }
        match done {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(error))) => Err(to_python(&error)),
            Ok(Err(panic)) => {
                let what = panic.downcast_ref::<String>().map(String::as_str);
                let what = what.or_else(|| panic.downcast_ref::<&str>().copied());
                let what = what.and_then(|what| what.lines().next()).unwrap_or("unknown cause");
                Err(KilnError::new_err(format!("internal failure: {what}; please report it")))
            }
            Err(error) => Err(KilnError::new_err(format!("no thread to compute on: {error}"))),
        }
    })
}

/// Runs work that sends nothing and looks at `stop` itself.
pub(crate) fn run_until<T: Send>(
    py: Python<'_>,
    stop: &Stop,
    work: impl FnOnce() -> Result<T> + Send,
) -> PyResult<T> {
    // The sender lives as long as the work: its end is the work's.
    let work = |alive: Sender<()>| {
        let result = work();
        drop(alive);
        result
    };
    run(py, work, |_, ()| Ok(()), || stop.ask())
}

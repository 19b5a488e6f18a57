//! Ctrl-C: the first asks the running job to stop cleanly, the second ends the process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Another flag that stops what runs.
static OTHER: Mutex<Option<Arc<AtomicBool>>> = Mutex::new(None);

/// Exit code of a process that Ctrl-C ended, by the shells' convention.
pub const EXIT_CODE: u8 = 130;

/// Starts to listen for Ctrl-C and for the signals that ask a process to end. A process that was told to
/// outlive its terminal (`nohup`) does.
///
/// # Errors
/// The system refuses a handler.
pub fn listen() -> Result<()> {
    let outlives = hangup::is_ignored();
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    })
    .context("cannot listen for Ctrl-C")?;
    if outlives {
        hangup::ignore();
    }
    Ok(())
}

#[cfg(unix)]
mod hangup {
    //! SIGHUP, for which `ctrlc` sets its handler whatever there was before.

    #![expect(unsafe_code, reason = "what a signal does is set by a call that is unsafe")]

    use nix::sys::signal::{SigHandler, Signal, signal};

    /// Whether the signal is ignored. To be called before it is listened for: it is ignored afterwards.
    pub(super) fn is_ignored() -> bool {
        let before = set(SigHandler::SigIgn);
        matches!(before, Some(SigHandler::SigIgn))
    }

    pub(super) fn ignore() {
        set(SigHandler::SigIgn);
    }

    fn set(to: SigHandler) -> Option<SigHandler> {
        // SAFETY: the call is unsafe because a handler runs in the midst of other code; `SigIgn`, the only
        // one that is given here, runs none.
        unsafe { signal(Signal::SIGHUP, to) }.ok()
    }
}

#[cfg(not(unix))]
mod hangup {
    pub(super) fn is_ignored() -> bool {
        false
    }

    pub(super) fn ignore() {}
}

/// Asks the running job to stop, as Ctrl-C does.
pub fn ask() {
    ASKED.store(true, Ordering::SeqCst);
}

/// Lets the next job run after one that was asked to stop.
pub fn forget() {
    ASKED.store(false, Ordering::SeqCst);
}

/// Whether Ctrl-C was pressed.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// While it lives, [`flow`] heeds another flag, too.
#[derive(Debug)]
pub struct AlsoStops(Option<Arc<AtomicBool>>);

impl Drop for AlsoStops {
    fn drop(&mut self) {
        *OTHER.lock().unwrap_or_else(PoisonError::into_inner) = self.0.take();
    }
}

/// Has [`flow`] break off what runs once a flag is set, as well as after Ctrl-C.
pub fn also(flag: Arc<AtomicBool>) -> AlsoStops {
    let mut other = OTHER.lock().unwrap_or_else(PoisonError::into_inner);
    AlsoStops(other.replace(flag))
}

/// `Break` once Ctrl-C was pressed, or the flag of [`also`] is set.
pub fn flow() -> ControlFlow<()> {
    let other = OTHER.lock().unwrap_or_else(PoisonError::into_inner);
    let stops = other.as_ref().is_some_and(|flag| flag.load(Ordering::SeqCst));
    if asked() || stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

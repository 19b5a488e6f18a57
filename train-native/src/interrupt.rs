//! Ctrl-C: the first asks the running job to stop cleanly, the second ends the process.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result};

static ASKED: AtomicBool = AtomicBool::new(false);

/// Exit code of a process that Ctrl-C ended, by the shells' convention.
pub const EXIT_CODE: u8 = 130;

/// Starts to listen for Ctrl-C and for the signals that ask a process to end.
///
/// # Errors
/// The system refuses a handler.
pub fn listen() -> Result<()> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(EXIT_CODE));
        }
    })
    .context("cannot listen for Ctrl-C")
}

/// Whether Ctrl-C was pressed.
pub fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}

/// `Break` once Ctrl-C was pressed.
pub fn flow() -> ControlFlow<()> {
    if asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

//! Memory between steps.

#![expect(unsafe_code, reason = "the allocator's settings are C functions; each with its proof")]

use std::ffi::c_long;
use std::sync::{Mutex, PoisonError};

use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};

/// `mi_option_purge_delay` of mimalloc's list of options, in milliseconds; -1 is never.
const PURGE_DELAY: mi_option_t = 15;

/// Runs that keep memory now, and the delay that was set before the first of them.
static RUNS: Mutex<(usize, c_long)> = Mutex::new((0, 0));

/// Keeps the memory that a step frees for the next step, as long as it lives: given back to the system, it
/// would come back page by page, each of them cleared first, which takes a quarter of a step.
#[derive(Debug)]
pub(super) struct KeptMemory(());

impl KeptMemory {
    pub(super) fn new() -> Self {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        if runs.0 == 0 {
            // SAFETY: the functions read and set a number in a static table; the option is in the table.
            unsafe {
                runs.1 = mi_option_get(PURGE_DELAY);
                mi_option_set(PURGE_DELAY, -1);
            }
        }
        runs.0 += 1;
        Self(())
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
        runs.0 -= 1;
        if runs.0 == 0 {
            // SAFETY: as above; collecting frees only what nothing uses.
            unsafe {
                mi_option_set(PURGE_DELAY, runs.1);
                mi_collect(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay() -> c_long {
        // SAFETY: the function reads a number in a static table, in which the option is.
        unsafe { mi_option_get(PURGE_DELAY) }
    }

    /// A release of mimalloc may number its options anew; no other of them is 1000 at first.
    #[test]
    fn the_option_is_the_delay_of_purges() {
        let runs = RUNS.lock().unwrap();
        assert_eq!(if runs.0 == 0 { delay() } else { runs.1 }, 1000);
        drop(runs);
        let _kept = KeptMemory::new();
        assert_eq!(delay(), -1);
    }
}

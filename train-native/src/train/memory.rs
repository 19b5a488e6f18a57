//! Memory between steps.

#![expect(unsafe_code, reason = "the allocator's settings are C functions; each with its proof")]

use libmimalloc_sys::{mi_collect, mi_option_get, mi_option_set, mi_option_t};

/// `mi_option_purge_delay` of mimalloc's list of options, in milliseconds; -1 is never.
const PURGE_DELAY: mi_option_t = 15;

/// Keeps the memory that a step frees for the next step, as long as it lives: given back to the system, it
/// would come back page by page, each of them cleared first, which takes a quarter of a step.
#[derive(Debug)]
pub(super) struct KeptMemory {
    delay: std::ffi::c_long,
}

impl KeptMemory {
    pub(super) fn new() -> Self {
        // SAFETY: the functions read and set a number in a static table; the option is in the table.
        let delay = unsafe { mi_option_get(PURGE_DELAY) };
        // SAFETY: as above.
        unsafe { mi_option_set(PURGE_DELAY, -1) };
        Self { delay }
    }
}

impl Drop for KeptMemory {
    fn drop(&mut self) {
        // SAFETY: as above; collecting frees only what nothing uses.
        unsafe {
            mi_option_set(PURGE_DELAY, self.delay);
            mi_collect(true);
        }
    }
}

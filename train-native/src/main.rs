//! The `kiln` binary: parses the command line and reports errors in one line.

use std::process::ExitCode;

mod allocator {
    //! mimalloc, and a line that says what to lower where memory runs out.

    #![allow(unsafe_code)]

    use std::alloc::{GlobalAlloc, Layout};
    use std::io::Write as _;
    use std::sync::atomic::{AtomicBool, Ordering};

    use mimalloc::MiMalloc;

    pub(super) struct Allocator;

    // SAFETY: every method passes its arguments unchanged to mimalloc's method of the same name,
    // whose contract is the trait's, and returns what that returns. Where that is null the process
    // ends, which the trait leaves open; nothing is allocated on the way and nothing unwinds.
    unsafe impl GlobalAlloc for Allocator {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's promises are those that mimalloc asks for.
            or_end(unsafe { MiMalloc.alloc(layout) }, layout.size())
        }

        unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
            // SAFETY: as above.
            or_end(unsafe { MiMalloc.alloc_zeroed(layout) }, layout.size())
        }

        unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: as above.
            or_end(unsafe { MiMalloc.realloc(memory, layout, size) }, size)
        }

        unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
            // SAFETY: as above.
            unsafe { MiMalloc.dealloc(memory, layout) }
        }
    }

    fn or_end(memory: *mut u8, size: usize) -> *mut u8 {
        if memory.is_null() {
            static SAID: AtomicBool = AtomicBool::new(false);
            while SAID.swap(true, Ordering::SeqCst) {
                // Another thread has, and ends the process.
                std::thread::yield_now();
            }
            let _ = writeln!(
                std::io::stderr(),
                "error: out of memory, {} MB more were asked for; {}",
                size.div_ceil(1_000_000),
                train_native::cli::LOWER_MEMORY
            );
            // Not `exit`, whose handlers may allocate.
            std::process::abort();
        }
        memory
    }
}

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// Mesa asks the Wayland display which adapter it draws with. Where the environment leads to no
/// display, libwayland prints an `error:` of its own, which reads like one of ours; it is silent
/// about a display that is named and does not answer.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn name_a_display() {
    let is_absolute =
        |name| std::env::var_os(name).is_some_and(|path| std::path::Path::new(&path).is_absolute());
    let reachable = is_absolute("XDG_RUNTIME_DIR")
        || is_absolute("WAYLAND_DISPLAY")
        || std::env::var_os("WAYLAND_SOCKET").is_some();
    if !reachable {
        // SAFETY: this is the first that `main` does, and nothing before it starts a thread, so
        // that no other thread reads the environment.
        unsafe { std::env::set_var("WAYLAND_DISPLAY", "/dev/null") };
    }
}

fn main() -> ExitCode {
    #[cfg(target_os = "linux")]
    name_a_display();
    train_native::cli::main()
}

//! The `train-native` binary: parses the command line and reports errors in one line.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    train_native::cli::main()
}

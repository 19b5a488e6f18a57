//! What the user sees: progress bars and notes on standard error, results on standard output.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// How much a command says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terminal {
    /// Results as JSON.
    pub json: bool,
    /// No progress bars and no notes.
    pub quiet: bool,
}

impl Terminal {
    /// A progress bar with rate and time left; invisible when quiet or not on a terminal.
    pub fn progress(self, total: u64, what: &str) -> ProgressBar {
        let target =
            if self.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = ProgressStyle::with_template(
            "{msg:>12} {bar:32.cyan/blue} {human_pos}/{human_len} {per_sec} {eta} left {prefix}",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar.set_message(what.to_string());
        bar.enable_steady_tick(Duration::from_millis(250));
        bar
    }

    /// The bar of a training stage, with a line of numbers (its prefix) below.
    pub fn training(self, total: u64, stage: &str) -> ProgressBar {
        let bar = self.progress(total, stage);
        let style = ProgressStyle::with_template(
            "{msg:>12} {bar:32.cyan/blue} {human_pos}/{human_len} steps  {elapsed} gone  {eta} left\n{prefix:>0}",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar
    }

    /// A bar that counts bytes; its length is set when it is known.
    pub fn bytes(self, what: &str) -> ProgressBar {
        let bar = self.progress(0, what);
        let style = ProgressStyle::with_template(
            "{msg:>24} {bar:32.cyan/blue} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
        bar
    }

    /// A counter with its rate, for work of unknown length.
    pub fn counter(self, what: &str) -> ProgressBar {
        let bar = self.progress(0, what);
        bar.unset_length();
        let style =
            ProgressStyle::with_template("{msg:>12} {spinner} {human_pos} {per_sec} {elapsed}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        bar
    }

    /// A line on standard error, unless quiet.
    pub fn note(self, line: impl std::fmt::Display) {
        if !self.quiet {
            eprintln!("{line}");
        }
    }

    /// The result of a command: JSON, or the text.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print(&serde_json::to_string(value)?) } else { print(text().trim_end()) }
    }
}

/// Prints a line; a reader that has gone away (`| head`) ends the process quietly.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(line: &str) -> Result<()> {
    match writeln!(io::stdout().lock(), "{line}") {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.context("cannot write to standard output"),
    }
}

/// A number with thousands separators.
pub fn thousands(number: usize) -> String {
    indicatif::HumanCount(number as u64).to_string()
}

//! What the user sees: progress bars and notes on standard error, results on standard output.
//!
//! Texts of files end up here too, so all that is meant for people goes through [`plain`] or
//! [`field`]: no text moves the cursor, colours the screen or turns a line around.

mod progress_bar;

use std::borrow::Cow;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use serde::Serialize;

pub use progress_bar::ProgressBar;
use progress_bar::Unit;

/// How much a command says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Terminal {
    /// Results as JSON.
    pub json: bool,
    /// No progress and no notes.
    pub quiet: bool,
}

impl Terminal {
    /// Progress with rate and time left.
    pub fn progress(self, total: u64, what: &str) -> ProgressBar {
        let template =
            "{msg:>12} {bar:32.cyan/blue} {human_pos}/{human_len} {per_sec} {eta} left {prefix}";
        ProgressBar::new(self, Some(total), what, Unit::Things, template)
    }

    /// Progress of a training stage, with its numbers on a line below.
    pub fn training(self, total: u64, stage: &str) -> ProgressBar {
        let template = "{msg:>12} {bar:32.cyan/blue} {human_pos}/{human_len} steps  {elapsed} gone  {eta} left\n{prefix:>0}";
        ProgressBar::new(self, Some(total), stage, Unit::Things, template)
    }

    /// Progress in bytes; the length is set when it is known.
    pub fn bytes(self, what: &str) -> ProgressBar {
        let template =
            "{msg:>24} {bar:32.cyan/blue} {bytes}/{total_bytes} {bytes_per_sec} {eta} left";
        ProgressBar::new(self, Some(0), what, Unit::Bytes, template)
    }

    /// A count with its rate, for work of unknown length.
    pub fn counter(self, what: &str) -> ProgressBar {
        let template = "{msg:>12} {spinner} {human_pos} {per_sec} {elapsed}";
        ProgressBar::new(self, None, what, Unit::Things, template)
    }

    /// A line on standard error, unless quiet.
    pub fn note(self, line: impl std::fmt::Display) {
        if !self.quiet {
            // Nobody is left to tell where standard error is gone.
            let _ = writeln!(io::stderr(), "{}", plain(&line.to_string()));
        }
    }

    /// The result of a command: JSON, or the text.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub fn result(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if self.json { print_json(value) } else { print(text().trim_end()) }
    }
}

/// Prints text for people, which may have several lines.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<()> {
    write_line(&plain(text))
}

/// Prints a value for programs, on one line.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    write_line(&serde_json::to_string(value)?)
}

/// Whether results are dropped ([`without_results`]).
static SILENT: AtomicBool = AtomicBool::new(false);

/// Runs a command that is part of another, whose own results nobody asked for.
pub fn without_results<T>(run: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            SILENT.store(self.0, Ordering::Relaxed);
        }
    }
    let _before = Before(SILENT.swap(true, Ordering::Relaxed));
    run()
}

/// Results that are collected ([`captured`]).
static CAPTURED: Mutex<Option<String>> = Mutex::new(None);

/// Runs a command inside another program: what it would print as its results is returned. One at a time in a
/// process.
pub fn captured<T>(run: impl FnOnce() -> T) -> (T, String) {
    struct Ends;
    impl Drop for Ends {
        fn drop(&mut self) {
            *capture() = None;
        }
    }
    *capture() = Some(String::new());
    let _ends = Ends;
    let done = run();
    let results = capture().take().unwrap_or_default();
    (done, results)
}

fn capture() -> MutexGuard<'static, Option<String>> {
    CAPTURED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_line(line: &str) -> Result<()> {
    if SILENT.load(Ordering::Relaxed) {
        return Ok(());
    }
    if let Some(results) = &mut *capture() {
        results.push_str(line);
        results.push('\n');
        return Ok(());
    }
    writeln!(StandardOutput, "{line}").context("cannot write to standard output")
}

/// Standard output, for results. A reader that has gone away (`| head`) ends the process quietly.
#[derive(Debug, Clone, Copy)]
pub struct StandardOutput;

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        while_read(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        while_read(io::stdout().flush())
    }
}

fn while_read<T>(result: io::Result<T>) -> io::Result<T> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other,
    }
}

/// Whether a terminal obeys the character rather than show it: controls, and what changes the
/// direction of the text that follows.
fn commands(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(text: &str, obeyed: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&obeyed) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match obeyed(character) {
            true => safe.extend(character.escape_default()),
            false => safe.push(character),
        }
    }
    safe.into()
}

/// Text for people with what a terminal would obey written out (`\u{1b}`), line ends and tabs left.
pub fn plain(text: &str) -> Cow<'_, str> {
    escaped(text, |character| commands(character) && !matches!(character, '\n' | '\t'))
}

/// As [`plain`], of a part of a line: an id, a name, a query.
pub fn field(text: &str) -> Cow<'_, str> {
    escaped(text, commands)
}

/// An error as the one line that the user gets, whatever line breaks its causes have.
pub fn error_line(error: &anyhow::Error) -> String {
    /// Letters of a line; what quotes a whole row says no more than its start.
    const MOST: usize = 2000;
    let mut line = format!("{error:#}").split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(MOST) {
        line.truncate(end);
        line.push_str("...");
    }
    field(&line).into_owned()
}

/// A number with thousands separators.
pub fn thousands(number: usize) -> String {
    indicatif::HumanCount(number as u64).to_string()
}

/// A number and what it counts, by one name for one and another for more: 1 query, 2,000 queries.
pub fn counted(number: usize, one: &str, more: &str) -> String {
    format!("{} {}", thousands(number), if number == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_counted_by_another_name() {
        let queries = [0, 1, 2, 2000].map(|number| counted(number, "query", "queries"));
        assert_eq!(queries, ["0 queries", "1 query", "2 queries", "2,000 queries"]);
    }

    #[test]
    fn what_a_terminal_obeys_is_written_out() {
        let text = "a\u{1b}[2Jb\u{7f}\u{9b}31m\u{202e}c\u{2066}\rd\0\te\nf";
        let safe = plain(text);
        assert_eq!(safe, "a\\u{1b}[2Jb\\u{7f}\\u{9b}31m\\u{202e}c\\u{2066}\\rd\\u{0}\te\nf");
        assert_eq!(field("a\tb\nc"), "a\\tb\\nc");
        let harmless = "Größe 蜂蜜 \u{200f}עברית 🚢 \"'\\";
        assert!(matches!(plain(harmless), Cow::Borrowed(same) if same == harmless));
    }

    #[test]
    fn results_are_captured_until_the_command_ends() {
        let (done, results) = captured(|| print("one").and_then(|()| print_json(&[2])));
        done.unwrap();
        assert_eq!(results, "one\n[2]\n");
        assert!(capture().is_none());
    }

    #[test]
    fn an_error_is_one_line_of_bounded_length() {
        let error = anyhow::anyhow!("first\nline \u{1b}[31m").context("x".repeat(5000));
        let line = error_line(&error);
        assert!(line.len() < 2100 && line.ends_with("..."), "{line}");
        let error = anyhow::anyhow!("first\nline \u{1b}[31m").context("file");
        assert_eq!(error_line(&error), "file: first line \\u{1b}[31m");
    }
}

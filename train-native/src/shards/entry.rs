//! A file in a place, and which of them are listed.

/// A file that a folder or an object store has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name below the place, with `/` between the parts.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What changes when its content does.
    pub version: String,
}

/// Which of a place's files are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span<'a> {
    /// Those that lie in it, and in no folder below.
    Here,
    /// Those of a folder below, where there is one.
    Below(&'a str),
    /// All.
    All,
}

/// The last part of a name.
pub(super) fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

//! A file in a place.

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

/// The last part of a name.
pub(super) fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

//! What the Hub says, checked before it becomes a path or an address: names of files, revisions,
//! commits and ETags.

use anyhow::{Result, bail};
use kiln_embed::checkpoint::stays_inside;
use sha2::{Digest as _, Sha256};

/// Owner, name and revision of a Hub id; `None` where it is none.
pub(super) fn parts(id: &str) -> Option<[&str; 3]> {
    let (id, revision) = id.split_once('@').unwrap_or((id, "main"));
    let (owner, name) = id.split_once('/')?;
    // Two hyphens part owner and name in the cache.
    let word = |part: &str| {
        (1..=96).contains(&part.len())
            && !part.starts_with('.')
            && !part.contains("--")
            && !part.contains("..")
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    (word(owner) && word(name) && stays_inside(revision)).then_some([owner, name, revision])
}

/// Refuses a file's name that leads out of its repository.
pub(super) fn check(name: &str) -> Result<()> {
    if !stays_inside(name) {
        let shown: String = name.chars().take(80).collect();
        bail!(
            "the repository names a file {shown:?}, which is no path inside it; do not use this repository"
        );
    }
    Ok(())
}

/// Words of a server as they may be shown: short, and without control characters.
pub(super) fn shown(words: &str) -> String {
    words.chars().filter(|c| !c.is_control()).take(200).collect()
}

/// A commit: 40 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Commit(String);

impl Commit {
    pub(super) fn parse(text: &str) -> Option<Self> {
        is_hexadecimal(text, 40).then(|| Self(text.to_ascii_lowercase()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A file's version, by its ETag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tag {
    /// The SHA-256 of a large file.
    Sha256(String),
    /// The SHA-1 that git gives a small file.
    Git(String),
    /// Says nothing of the content.
    Other(String),
}

impl Tag {
    /// Reads an ETag's header; `None` where it says nothing.
    pub(super) fn parse(header: &str) -> Option<Self> {
        let bare = header.trim();
        let bare = bare.strip_prefix("W/").unwrap_or(bare).trim_matches('"');
        if bare.is_empty() {
            return None;
        }
        Some(if is_hexadecimal(bare, 64) {
            Self::Sha256(bare.to_ascii_lowercase())
        } else if is_hexadecimal(bare, 40) {
            Self::Git(bare.to_ascii_lowercase())
        } else if bare.len() <= 128 && bare.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            Self::Other(bare.to_string())
        } else {
            Self::Other(format!("tag-{}", hexadecimal(&Sha256::digest(bare))))
        })
    }

    /// The name of its blob.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Sha256(name) | Self::Git(name) | Self::Other(name) => name,
        }
    }
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_an_owner_and_a_name() {
        assert_eq!(parts("a/b"), Some(["a", "b", "main"]));
        assert_eq!(parts("a/b.c@refs/pr/1"), Some(["a", "b.c", "refs/pr/1"]));
        let bad =
            ["a", "/b", "a/", "a/b/c", "../b", "a/..", "a--b/c", "a/b@", "a/b@../x", "a/b@/x"];
        for id in bad {
            assert_eq!(parts(id), None, "{id}");
        }
    }

    #[test]
    fn files_stay_in_their_repository() {
        for name in ["config.json", "1_Pooling/config.json", "..%2fx", "a b", "...", "é.json"] {
            assert!(check(name).is_ok(), "{name}");
        }
        let long = "a/".repeat(600) + "a";
        for name in
            ["", ".", "..", "/x", "a/../b", "a//b", "a/", "a\\b", "C:x", "a\nb", "a\0", &long]
        {
            assert!(check(name).is_err(), "{name}");
        }
    }

    #[test]
    fn tags_are_read_as_names() {
        let (sha256, git) = ("a1".repeat(32), "b2".repeat(20));
        assert_eq!(Tag::parse(&format!("\"{sha256}\"")), Some(Tag::Sha256(sha256)));
        assert_eq!(Tag::parse(&format!("W/\"{git}\"")), Some(Tag::Git(git)));
        assert_eq!(Tag::parse("\"v1\""), Some(Tag::Other("v1".into())));
        assert_eq!(Tag::parse("\"\""), None);
        for odd in ["\"/etc/passwd\"", "\"../../x\"", "a-b", &"a".repeat(200)] {
            let Some(Tag::Other(name)) = Tag::parse(odd) else { panic!("{odd}") };
            assert!(name.starts_with("tag-") && name.len() == 68, "{name}");
        }
        assert_eq!(Commit::parse("../"), None);
        assert_eq!(Commit::parse(&"F".repeat(40)).unwrap().as_str(), "f".repeat(40));
    }
}

//! Brings one file into the cache: continued where it broke off, compared with its sum, and put in
//! its place only when it is whole.

use std::fs::{self, File};
use std::io::{Read, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, RANGE, TRANSFER_ENCODING};
use reqwest::{Method, Response, StatusCode, Url};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

use super::cache::{Cache, at};
use super::client::{Client, Failure, Pace, Patience};
use super::names::{Tag, hexadecimal};
use crate::terminal::ProgressBar;

/// The longest body whose length nobody has announced.
const UNANNOUNCED: u64 = 64 << 20;
/// An attempt that brings this much does not count as a failed one.
const PROGRESS: u64 = 16 << 20;

/// What is to come.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) url: Url,
    pub(super) tag: Tag,
    pub(super) size: Option<u64>,
}

/// A file that is being downloaded, beside the place where it will be.
struct Partial {
    path: PathBuf,
    file: File,
    length: u64,
    /// Of what is there, where the tag is one.
    sum: Option<Sha256>,
}

/// Why an attempt did not bring the file.
enum Broken {
    /// The Hub or the network.
    Hub(Failure),
    /// This machine.
    Here(anyhow::Error),
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Hub(failure)
    }
}

impl Partial {
    /// Opens what an earlier run has left, or begins anew where it cannot be checked in the end.
    fn open(path: PathBuf, wanted: &Wanted) -> Result<Self> {
        let old = fs::symlink_metadata(&path).ok();
        if old.is_some_and(|data| !data.is_file()) {
            fs::remove_file(&path).map_err(at(&path))?;
        }
        let mut options = File::options();
        let file = options.create(true).truncate(false).read(true).write(true).open(&path);
        let file = file.map_err(at(&path))?;
        let sum = matches!(wanted.tag, Tag::Sha256(_)).then(Sha256::new);
        let mut partial = Self { path, file, length: 0, sum };
        let kept = partial.file.metadata().map_err(at(&partial.path))?.len();
        let checked = !matches!(wanted.tag, Tag::Other(_));
        if checked && wanted.size.is_some_and(|size| kept <= size) {
            partial.take_in(kept)?;
        } else {
            partial.restart()?;
        }
        Ok(partial)
    }

    /// Adds to the sum what is there already.
    fn take_in(&mut self, length: u64) -> Result<()> {
        if let Some(sum) = &mut self.sum {
            blocks(&self.file, |block| sum.update(block)).map_err(at(&self.path))?;
        }
        self.length = self.file.seek(SeekFrom::Start(length)).map_err(at(&self.path))?;
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.file.set_len(0).map_err(at(&self.path))?;
        self.file.rewind().map_err(at(&self.path))?;
        self.length = 0;
        self.sum = self.sum.is_some().then(Sha256::new);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(at(&self.path))?;
        if let Some(sum) = &mut self.sum {
            sum.update(bytes);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Whether the content is the tag's.
    fn is(&mut self, tag: &Tag) -> Result<bool> {
        match tag {
            Tag::Sha256(wanted) => {
                Ok(self.sum.clone().is_some_and(|sum| hexadecimal(&sum.finalize()) == *wanted))
            }
            Tag::Git(wanted) => {
                let mut sum =
                    <Sha1 as sha1::Digest>::new_with_prefix(format!("blob {}\0", self.length));
                self.file.rewind().map_err(at(&self.path))?;
                let take = |block: &[u8]| sha1::Digest::update(&mut sum, block);
                blocks(&self.file, take).map_err(at(&self.path))?;
                Ok(hexadecimal(&sha1::Digest::finalize(sum)) == *wanted)
            }
            Tag::Other(_) => Ok(true),
        }
    }

    /// Puts the file in its place.
    fn finish(self, path: &Path) -> Result<()> {
        self.file.sync_all().map_err(at(&self.path))?;
        fs::rename(&self.path, path).map_err(at(path))
    }

    fn remove(self) {
        drop(self.file);
        // The error to report is another one.
        let _ = fs::remove_file(&self.path);
    }
}

/// Reads to the end.
pub(super) fn blocks(mut from: impl Read, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut block = vec![0; 1 << 17];
    loop {
        match from.read(&mut block)? {
            0 => return Ok(()),
            read => take(&block[..read]),
        }
    }
}

/// Downloads a file's content to its place among the blobs, unless it is there. The caller holds its
/// lock.
///
/// # Errors
/// The Hub does not give it, gives something else, or the disk is full.
pub(super) fn download(
    client: &Client,
    cache: &Cache,
    wanted: &Wanted,
    bar: &ProgressBar,
) -> Result<()> {
    let blob = cache.blob(&wanted.tag)?;
    let kept = cache.blob_length(&wanted.tag)?;
    if kept.is_some_and(|length| wanted.size.map_or(length > 0, |size| length == size)) {
        return Ok(());
    }
    let mut path = blob.clone().into_os_string();
    path.push(".incomplete");
    let mut partial = Partial::open(path.into(), wanted)?;
    let mut again = partial.length > 0 || wanted.size.is_none();
    loop {
        if let Err(error) = receive(client, &mut partial, wanted, bar) {
            // What can be continued is kept.
            if partial.length == 0 {
                partial.remove();
            }
            return Err(error);
        }
        if partial.is(&wanted.tag)? {
            return partial.finish(&blob);
        }
        if !again {
            break;
        }
        // What an earlier run left may be damaged, and a body without a length cut short.
        partial.restart()?;
        again = false;
    }
    partial.remove();
    bail!(
        "what came is not what the Hub announced (its sum is not {}); it was damaged on the way, or \
         somebody changed it; nothing of it is kept",
        wanted.tag.as_str()
    )
}

/// Tries until all has come.
fn receive(
    client: &Client,
    partial: &mut Partial,
    wanted: &Wanted,
    bar: &ProgressBar,
) -> Result<()> {
    let most = Patience::LONG.busy;
    let mut attempt = 1;
    while wanted.size != Some(partial.length) {
        let from = partial.length;
        let failure = match attempt_once(client, partial, wanted, bar) {
            Ok(()) => break,
            Err(Broken::Here(error)) => return Err(error),
            Err(Broken::Hub(failure)) => failure,
        };
        if !failure.is_transient() {
            return Err(failure.into());
        }
        if partial.length >= from + PROGRESS {
            attempt = 1;
        }
        if attempt == most {
            let error = anyhow::Error::from(failure);
            return Err(error.context(format!("gave up after {most} attempts")));
        }
        bar.suspend(|| client.before_next(wanted.name, &failure, attempt))?;
        attempt += 1;
    }
    Ok(())
}

fn attempt_once(
    client: &Client,
    partial: &mut Partial,
    wanted: &Wanted,
    bar: &ProgressBar,
) -> Result<(), Broken> {
    let mut call = client.call(Method::GET, wanted.url.clone()).limit(client.settings.idle);
    if partial.length > 0 {
        let range = format!("bytes={}-", partial.length);
        let range = HeaderValue::from_str(&range).context("a range").map_err(Broken::Here)?;
        call = call.header(RANGE, range);
    }
    let mut response = match client.send(&call) {
        Err(Failure::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. })
            if partial.length > 0 =>
        {
            partial.restart().map_err(Broken::Here)?;
            return Err(
                Failure::Silent("the Hub does not go on where the file broke off".into()).into()
            );
        }
        answer => answer?,
    };
    if let Some(other) = other_version(client, &response, &wanted.tag) {
        partial.restart().map_err(Broken::Here)?;
        return Err(
            Failure::Silent(format!("the Hub gives another version of it ({other})")).into()
        );
    }
    let mut size = wanted.size;
    if response.status() == StatusCode::PARTIAL_CONTENT {
        if !goes_on(&response, partial.length, size) {
            partial.restart().map_err(Broken::Here)?;
            return Err(
                Failure::Silent("the Hub gives another part of it than was asked".into()).into()
            );
        }
    } else {
        if partial.length > 0 {
            partial.restart().map_err(Broken::Here)?;
        }
        size = size.or(response.content_length());
    }
    // Without a length, a sum or pieces that end, nobody would see that something is missing.
    let has = |name| response.headers().contains_key(name);
    let ends = has(CONTENT_LENGTH) || has(TRANSFER_ENCODING);
    if size.is_none() && matches!(wanted.tag, Tag::Other(_)) && !ends {
        return Err(
            Failure::Broken("the Hub says neither how long it is nor its sum".into()).into()
        );
    }
    bar.set_length(size.unwrap_or(0));
    bar.resume_at(partial.length);
    let most = size.unwrap_or(UNANNOUNCED);
    let mut pace = Pace::new();
    while let Some(chunk) = client.chunk(&mut response, &mut pace, client.settings.idle)? {
        if partial.length + chunk.len() as u64 > most {
            partial.restart().map_err(Broken::Here)?;
            let cause = match size {
                Some(size) => format!("the Hub sends more than the {size} bytes that it announced"),
                None => format!("it has more than {} MiB, and no announced length", most >> 20),
            };
            return Err(Failure::Broken(cause).into());
        }
        partial.write(&chunk).map_err(Broken::Here)?;
        bar.set_position(partial.length);
        // A body that ends with its connection may never end.
        if size == Some(partial.length) && !ends {
            return Ok(());
        }
    }
    match size {
        Some(size) if partial.length < size => {
            let length = partial.length;
            Err(Failure::Silent(format!("the answer ends after {length} of {size} bytes")).into())
        }
        _ => Ok(()),
    }
}

/// The version that the Hub's own answer is of, where it is not the one that is wanted.
fn other_version(client: &Client, response: &Response, wanted: &Tag) -> Option<String> {
    let header = response.headers().get("x-linked-etag");
    // What large files are kept by has ETags of its own.
    let header = header.or_else(|| {
        let plain = response.headers().get("etag");
        plain.filter(|_| client.is_own(response.url()) && matches!(wanted, Tag::Git(_)))
    })?;
    let tag = Tag::parse(header.to_str().ok()?)?;
    (tag != *wanted).then(|| tag.as_str().to_string())
}

/// Whether a part of a file begins where it should and ends with the file.
fn goes_on(response: &Response, from: u64, size: Option<u64>) -> bool {
    let header = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let range = || {
        let (place, total) = header?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = place.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        let total: Option<u64> = total.parse().ok();
        Some((first, last, total))
    };
    range().is_some_and(|(first, last, total)| {
        let fits = |size| Some(last + 1) == Some(size) && total.is_none_or(|total| total == size);
        first == from && last >= first && size.is_none_or(fits)
    })
}

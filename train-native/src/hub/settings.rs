//! What the environment says of the Hub, in `huggingface_hub`'s words.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use reqwest::Url;
use reqwest::header::HeaderValue;

const ENDPOINT: &str = "https://huggingface.co";
/// Seconds, as `huggingface_hub` waits.
const TIMEOUT: u64 = 10;

pub(super) struct Settings {
    pub(super) endpoint: Url,
    /// What is sent as authorization.
    pub(super) token: Option<HeaderValue>,
    pub(super) cache: PathBuf,
    /// How long the Hub may take to say what there is.
    pub(super) answer: Duration,
    /// How long a download may stand still.
    pub(super) idle: Duration,
}

/// Whether the user wants no network.
pub(super) fn offline() -> bool {
    is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE")
}

/// Whether a variable is one of the four words that `huggingface_hub` takes for yes.
fn is_on(name: &str) -> bool {
    word(name).is_some_and(|value| {
        ["1", "on", "yes", "true"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
    })
}

/// A path, of which `~` is the home folder.
fn path(text: String) -> PathBuf {
    let below = text.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
    match (below, dirs::home_dir()) {
        (Some(below), Some(home)) => home.join(below.trim_start_matches('/')),
        _ => PathBuf::from(text),
    }
}

/// A variable that is set to more than blanks.
fn word(name: &str) -> Option<String> {
    env::var(name).ok().map(|value| value.trim().to_string()).filter(|value| !value.is_empty())
}

impl Settings {
    pub(super) fn read() -> Result<Self> {
        let home = match word("HF_HOME") {
            Some(home) => path(home),
            None => match word("XDG_CACHE_HOME") {
                Some(cache) => path(cache),
                None => dirs::home_dir()
                    .context("there is no home folder for the Hub's cache; set HF_HOME")?
                    .join(".cache"),
            }
            .join("huggingface"),
        };
        let cache = word("HF_HUB_CACHE").or_else(|| word("HUGGINGFACE_HUB_CACHE"));
        let download = seconds("HF_HUB_DOWNLOAD_TIMEOUT")?;
        let answer = seconds("HF_HUB_ETAG_TIMEOUT")?.or(download);
        Ok(Self {
            endpoint: endpoint(&word("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into()))?,
            token: token(&home)?,
            cache: cache.map_or_else(|| home.join("hub"), path),
            answer: Duration::from_secs(answer.unwrap_or(TIMEOUT)),
            idle: Duration::from_secs(download.unwrap_or(TIMEOUT)),
        })
    }
}

fn endpoint(text: &str) -> Result<Url> {
    let bad = || format!("HF_ENDPOINT is {text:?}; set it to an address such as {ENDPOINT}");
    let url = Url::parse(text).with_context(bad)?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() || url.query().is_some() {
        bail!(bad());
    }
    Ok(url)
}

/// A time limit; zero is none of its own.
fn seconds(name: &str) -> Result<Option<u64>> {
    let Some(text) = word(name) else { return Ok(None) };
    match text.parse::<u32>() {
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(seconds.into())),
        Err(_) => bail!("{name} is {text:?}; set it to whole seconds"),
    }
}

fn token(home: &std::path::Path) -> Result<Option<HeaderValue>> {
    if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return Ok(None);
    }
    let from_file = || {
        let path = word("HF_TOKEN_PATH").map_or_else(|| home.join("token"), path);
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.trim().to_string()).filter(|text| !text.is_empty())
    };
    let result = word("HF_TOKEN").or_else(|| word("HUGGING_FACE_HUB_TOKEN")).or_else(from_file);
    let header = result.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
    // The token itself stays out of the message.
    let mut header = header.transpose().map_err(|_| {
        anyhow!("the Hub's token holds characters that none has; check HF_TOKEN, or log in again")
    })?;
    if let Some(header) = &mut header {
        header.set_sensitive(true);
    }
    Ok(header)
}

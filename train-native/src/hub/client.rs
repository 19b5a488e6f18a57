//! Requests to the Hub: bounded in time, size and redirects, with the token for the Hub alone.

use std::fmt;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use bytes::Bytes;
use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, ETAG, HeaderMap, HeaderName,
    HeaderValue, LINK, LOCATION, RETRY_AFTER,
};
use reqwest::{Method, Response, StatusCode, Url};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::names::{Commit, Tag, shown};
use super::settings::Settings;
use crate::interrupt;
use crate::terminal::Terminal;

const REDIRECTS: usize = 5;
/// How often a wait looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(100);
/// The longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A transfer that brings less than this in its time limit stands still.
const LEAST_BYTES: u64 = 1024;
const LARGEST_JSON: u64 = 64 << 20;

/// How often something is tried.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// While nobody answers.
    pub(super) silent: u32,
    /// While the Hub is busy or ill.
    pub(super) busy: u32,
}

impl Patience {
    pub(super) const LONG: Self = Self { silent: 5, busy: 5 };
    /// Where the cache may do without the Hub.
    pub(super) const SHORT: Self = Self { silent: 2, busy: 4 };
    /// For what must not be done twice.
    pub(super) const ONCE: Self = Self { silent: 1, busy: 5 };
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody answers, or the answer breaks off.
    Silent(String),
    /// The Hub says so.
    Status {
        status: StatusCode,
        /// What the Hub calls it (`EntryNotFound`).
        code: String,
        message: String,
        /// How long the Hub wants to be left alone.
        pause: Option<Duration>,
    },
    /// An answer that makes no sense, or that is not safe to follow.
    Broken(String),
    /// Ctrl-C.
    Cancelled,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(cause) | Self::Broken(cause) => f.write_str(cause),
            Self::Status { status, message, .. } if message.is_empty() => {
                write!(f, "the Hub answers {status}")
            }
            Self::Status { status, message, .. } => {
                write!(f, "the Hub answers {status}: {message}")
            }
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Cancelled => kiln_embed::Error::Cancelled.into(),
            other => anyhow!("{other}"),
        }
    }
}

impl Failure {
    /// Whether another try may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Status { status, .. } => {
                status.is_server_error() || matches!(status.as_u16(), 408 | 429)
            }
            Self::Broken(_) | Self::Cancelled => false,
        }
    }

    fn status(response: &Response) -> Self {
        let header = |name: &str| {
            let value = response.headers().get(name).and_then(|value| value.to_str().ok());
            shown(value.unwrap_or_default())
        };
        let seconds = header(RETRY_AFTER.as_str()).trim().parse::<u32>().ok();
        Self::Status {
            status: response.status(),
            code: header("x-error-code"),
            message: header("x-error-message"),
            pause: seconds.map(|seconds| Duration::from_secs(seconds.into())),
        }
    }

    fn of_transport(error: reqwest::Error) -> Self {
        let broken = error.is_builder();
        let error = error.without_url();
        // The innermost cause is the one that says something.
        let mut cause: &dyn std::error::Error = &error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let cause = shown(&cause.to_string());
        if broken { Self::Broken(cause) } else { Self::Silent(cause) }
    }
}

/// A request that can be sent again.
#[derive(Clone)]
pub(super) struct Call {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Bytes,
    limit: Duration,
}

impl Call {
    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    pub(super) fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }
}

/// What the Hub says of a file before it gives it.
pub(super) struct Head {
    pub(super) commit: Option<Commit>,
    pub(super) tag: Tag,
    pub(super) size: Option<u64>,
}

/// Whether a transfer goes on.
pub(super) struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), bytes: 0 }
    }

    fn left(&self, limit: Duration) -> Duration {
        limit.saturating_sub(self.since.elapsed())
    }

    fn count(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        if self.bytes >= LEAST_BYTES {
            *self = Self::new();
        }
    }
}

/// Asks the Hub, and waits for its answers.
pub(super) struct Client {
    http: reqwest::Client,
    runtime: Option<Runtime>,
    pub(super) settings: Settings,
    terminal: Terminal,
}

impl Drop for Client {
    fn drop(&mut self) {
        // A name that is still being looked up must not hold up the end of the process.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Client {
    pub(super) fn new(settings: Settings, terminal: Terminal) -> Result<Self> {
        let http = crate::http::client()
            .user_agent(concat!("kiln/", env!("CARGO_PKG_VERSION")))
            // Every hop is looked at here.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(settings.answer)
            .build()
            .context("cannot make encrypted connections")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { http, runtime: Some(runtime), settings, terminal })
    }

    /// An address of the Hub; the parts are encoded.
    pub(super) fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Result<Url, Failure> {
        let mut url = self.settings.endpoint.clone();
        url.path_segments_mut()
            .map_err(|()| Failure::Broken("HF_ENDPOINT has no paths".into()))?
            .pop_if_empty()
            .extend(parts);
        Ok(url)
    }

    pub(super) fn call(&self, method: Method, url: Url) -> Call {
        // Compressed files would have other sizes.
        let headers = [(ACCEPT_ENCODING, HeaderValue::from_static("identity"))];
        let (headers, body) = (headers.into_iter().collect(), Bytes::new());
        Call { method, url, headers, body, limit: self.settings.answer }
    }

    pub(super) fn post(&self, url: Url, kind: &'static str, body: Vec<u8>) -> Call {
        let call = self.call(Method::POST, url);
        let call = call.header(CONTENT_TYPE, HeaderValue::from_static(kind));
        Call { body: body.into(), ..call }
    }

    /// Waits until a future is done, until neither it nor what `moved` counts has moved for the
    /// limit, or for Ctrl-C.
    pub(super) fn wait<T>(
        &self,
        limit: Duration,
        moved: impl Fn() -> u64,
        future: impl Future<Output = T>,
    ) -> Result<T, Failure> {
        let Some(runtime) = &self.runtime else { return Err(Failure::Cancelled) };
        runtime.block_on(async {
            let mut future = pin!(future);
            let (mut since, mut seen) = (Instant::now(), moved());
            loop {
                if interrupt::asked() {
                    return Err(Failure::Cancelled);
                }
                if let Ok(done) = tokio::time::timeout(TICK.min(limit), &mut future).await {
                    return Ok(done);
                }
                let now = moved();
                if now != seen {
                    (since, seen) = (Instant::now(), now);
                }
                if since.elapsed() >= limit {
                    let seconds = limit.as_secs();
                    return Err(Failure::Silent(format!("no answer within {seconds} seconds")));
                }
            }
        })
    }

    fn pause(&self, length: Duration) -> Result<(), Failure> {
        match self.wait(length, || 0, std::future::pending::<()>()) {
            Err(Failure::Cancelled) => Err(Failure::Cancelled),
            _ => Ok(()),
        }
    }

    /// Before another try: says why, and waits.
    pub(super) fn before_next(
        &self,
        what: &str,
        failure: &Failure,
        attempt: u32,
    ) -> Result<(), Failure> {
        let asked = match failure {
            Failure::Status { pause, .. } => *pause,
            _ => None,
        };
        let pause = asked.unwrap_or(Duration::from_millis(500) * (1 << attempt.min(5)) / 2);
        if pause > LONGEST_PAUSE {
            let seconds = pause.as_secs();
            return Err(Failure::Broken(format!(
                "{failure}, and asks to wait for {seconds} seconds"
            )));
        }
        self.terminal.note(format!("{what}: {failure}; trying again (attempt {})", attempt + 1));
        self.pause(pause)
    }

    /// Tries until it works or cannot work.
    pub(super) fn retry<T>(
        &self,
        what: &str,
        patience: Patience,
        act: impl Fn() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut attempt = 1;
        loop {
            let failure = match act() {
                Ok(done) => return Ok(done),
                Err(failure) => failure,
            };
            let most = match failure {
                Failure::Silent(_) => patience.silent,
                _ => patience.busy,
            };
            if !failure.is_transient() || most == 1 {
                return Err(failure);
            }
            if attempt >= most {
                return Err(Failure::Silent(format!("{failure} ({attempt} attempts)")));
            }
            self.before_next(what, &failure, attempt)?;
            attempt += 1;
        }
    }

    /// Whether the token may go there.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.settings.endpoint.origin()
    }

    fn ask(&self, call: &Call, url: &Url) -> Result<Response, Failure> {
        let mut request =
            self.http.request(call.method.clone(), url.clone()).headers(call.headers.clone());
        if let Some(token) = self.settings.token.as_ref().filter(|_| self.is_own(url)) {
            request = request.header(AUTHORIZATION, token.clone());
        }
        if !call.body.is_empty() {
            request = request.body(call.body.clone());
        }
        self.wait(call.limit, || 0, request.send())?.map_err(Failure::of_transport)
    }

    /// An address that a server names, if it may be followed from another.
    pub(super) fn follow(from: &Url, to: &str) -> Result<Url, Failure> {
        let refuse =
            |why: &str| Failure::Broken(format!("the Hub leads to {:?}, {why}", shown(to)));
        let mut url = from.join(to).map_err(|_| refuse("which is no address"))?;
        match url.scheme() {
            "https" => {}
            "http" if from.scheme() == "http" => {}
            "http" => return Err(refuse("which is not encrypted")),
            _ => return Err(refuse("which is not on the web")),
        }
        // Names and passwords in an address would be sent along.
        let _ = (url.set_username(""), url.set_password(None));
        Ok(url)
    }

    /// Where an answer leads on to.
    fn next(&self, call: &Call, url: &Url, response: &Response) -> Result<Option<Url>, Failure> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return Ok(None);
        }
        let to = response.headers().get(LOCATION).and_then(|to| to.to_str().ok());
        let to = to.ok_or_else(|| Failure::Broken("the Hub leads to no address".into()))?;
        let next = Self::follow(url, to)?;
        // What is written is written to the Hub alone.
        let reads = matches!(call.method, Method::GET | Method::HEAD);
        let moved = matches!(response.status().as_u16(), 307 | 308) && self.is_own(&next);
        if !reads && !moved {
            return Err(Failure::Broken(format!("the Hub leads a {} elsewhere", call.method)));
        }
        Ok(Some(next))
    }

    fn hops<T>(
        &self,
        call: &Call,
        mut look: impl FnMut(&Response, bool) -> Option<T>,
    ) -> Result<(Option<T>, Response), Failure> {
        let mut url = call.url.clone();
        for _ in 0..=REDIRECTS {
            let response = self.ask(call, &url)?;
            let next = self.next(call, &url, &response)?;
            if next.is_none() && !response.status().is_success() {
                return Err(Failure::status(&response));
            }
            if let Some(result) = look(&response, next.is_none()) {
                return Ok((Some(result), response));
            }
            match next {
                Some(next) => url = next,
                None => return Ok((None, response)),
            }
        }
        Err(Failure::Broken(format!("the Hub leads on and on, more than {REDIRECTS} times")))
    }

    /// The answer at the end of the redirects.
    pub(super) fn send(&self, call: &Call) -> Result<Response, Failure> {
        self.hops(call, |_, _| None::<()>).map(|(_, response)| response)
    }

    /// What there is at an address, without it.
    pub(super) fn head(&self, url: Url) -> Result<Head, Failure> {
        let call = self.call(Method::HEAD, url);
        let (mut commit, mut tag, mut size) = (None, None, None);
        let look = |response: &Response, last: bool| {
            let text =
                |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
            let number = |name: &str| text(name).and_then(|text| text.trim().parse::<u64>().ok());
            commit = commit.take().or_else(|| text("x-repo-commit").map(String::from));
            tag = tag.take().or_else(|| text("x-linked-etag").and_then(Tag::parse));
            size = size.or_else(|| number("x-linked-size"));
            if last {
                tag = tag.take().or_else(|| text(ETAG.as_str()).and_then(Tag::parse));
                size = size.or_else(|| number(CONTENT_LENGTH.as_str()));
            }
            // A large file's place need not be asked once the Hub has said what it is.
            (commit.is_some() && tag.is_some() && size.is_some()).then_some(())
        };
        self.hops(&call, look)?;
        let commit = match commit {
            Some(text) => Some(Commit::parse(&text).ok_or_else(|| {
                Failure::Broken(format!(
                    "the Hub names {:?} as the commit, which is none",
                    shown(&text)
                ))
            })?),
            None => None,
        };
        let no_tag = || {
            Failure::Broken("the answer has no ETag; HF_ENDPOINT or a proxy leads to no Hub".into())
        };
        Ok(Head { commit, tag: tag.ok_or_else(no_tag)?, size })
    }

    /// The next piece of an answer's body.
    pub(super) fn chunk(
        &self,
        response: &mut Response,
        pace: &mut Pace,
        limit: Duration,
    ) -> Result<Option<Bytes>, Failure> {
        let left = pace.left(limit);
        let chunk = self.wait(left, || 0, response.chunk()).map_err(|failure| match failure {
            Failure::Silent(_) => {
                Failure::Silent(format!("nothing came for {} seconds", limit.as_secs()))
            }
            other => other,
        })?;
        let chunk = chunk.map_err(Failure::of_transport)?;
        pace.count(chunk.as_ref().map_or(0, Bytes::len));
        Ok(chunk)
    }

    /// JSON, and the address of the page that follows it.
    pub(super) fn json(&self, call: &Call) -> Result<(Value, Option<Url>), Failure> {
        let mut response = self.send(call)?;
        let next = next_page(response.url(), response.headers())?;
        let mut text = Vec::new();
        // However slowly it comes.
        let end = Instant::now() + call.limit * 6;
        let mut pace = Pace::new();
        while let Some(chunk) = self.chunk(&mut response, &mut pace, call.limit)? {
            text.extend_from_slice(&chunk);
            if text.len() as u64 > LARGEST_JSON {
                let most = LARGEST_JSON >> 20;
                return Err(Failure::Broken(format!("the answer is longer than {most} MiB")));
            }
            if Instant::now() > end {
                return Err(Failure::Silent("the answer takes too long".into()));
            }
        }
        let value = serde_json::from_slice(&text)
            .map_err(|error| Failure::Broken(format!("the answer is no JSON: {error}")))?;
        Ok((value, next))
    }

    /// Sends a body that is made while it is sent, and counts what has gone; not to a further place.
    pub(super) fn put(
        &self,
        url: &Url,
        body: reqwest::Body,
        sent: impl Fn() -> u64,
    ) -> Result<Response, Failure> {
        let request = self.http.put(url.clone()).body(body).send();
        let limit = self.settings.idle.max(super::upload::TIMEOUT);
        let response = self.wait(limit, sent, request)?.map_err(Failure::of_transport)?;
        match response.status() {
            status if status.is_success() => Ok(response),
            _ => Err(Failure::status(&response)),
        }
    }
}

/// The page that an answer's `Link` calls the next.
fn next_page(i: &Url, headers: &HeaderMap) -> Result<Option<Url>, Failure> {
    let link = headers.get(LINK).and_then(|link| link.to_str().ok()).unwrap_or_default();
    let next = link.split(',').find_map(|link| {
        let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
        let is_next = |word: &str| matches!(word.trim(), "rel=\"next\"" | "rel=next");
        rest.split(';').any(is_next).then_some(target)
    });
    let Some(target) = next else { return Ok(None) };
    let url = Client::follow(i, target)?;
    if url.origin() != i.origin() {
        return Err(Failure::Broken(format!(
            "the next page is on another server ({:?})",
            shown(target)
        )));
    }
    Ok(Some(url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_followed_as_browsers_do() {
        let i = Url::parse("https://hub/a/b").unwrap();
        let to = |to: &str| Client::follow(&i, to).map(|url| url.to_string()).ok();
        assert_eq!(to("/c").as_deref(), Some("https://hub/c"));
        assert_eq!(to("/\\host/c").as_deref(), Some("https://host/c"));
        assert_eq!(to("//host/c").as_deref(), Some("https://host/c"));
        assert_eq!(to("https://me:word@host/").as_deref(), Some("https://host/"));
        assert_eq!(to("http://hub/c"), None);
        assert_eq!(to("file:///etc/passwd"), None);
        assert_eq!(to("data:,x"), None);
    }

    #[test]
    fn the_next_page_is_on_the_same_server() {
        let i = Url::parse("https://hub/api?x=1").unwrap();
        let page = |link: &str| {
            let headers = [(LINK, HeaderValue::from_str(link).unwrap())];
            next_page(&i, &headers.into_iter().collect()).map(|url| url.map(|url| url.to_string()))
        };
        let link = "<https://hub/api?p=1>; rel=\"prev\", </api?p=3>; rel=\"next\"";
        assert_eq!(page(link).unwrap().as_deref(), Some("https://hub/api?p=3"));
        assert_eq!(page("</api>; rel=\"last\"").unwrap(), None);
        for other in ["https://host/api", "http://hub/api", "https://hub:444/", "/\\host/"] {
            assert!(page(&format!("<{other}>; rel=\"next\"")).is_err(), "{other}");
        }
    }
}

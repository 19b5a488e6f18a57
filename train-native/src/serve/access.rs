//! Who may ask: keys, the names under which the server may be asked, and the web pages that may ask it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use axum::extract::{Request, State};
use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use subtle::ConstantTimeEq as _;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use super::refusal::Refusal;
use super::request::Protocol;
use super::telemetry::Telemetry;

/// Who may ask a server.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The API key.
    key: Option<String>,
    /// The names under which the server may be asked; `None`: any.
    hosts: Option<Vec<String>>,
    /// The web pages' origins that may ask it, beside its own; `*` is any.
    origins: Vec<String>,
}

impl Access {
    /// For a server that listens on an address.
    ///
    /// A web page can have its own name resolve to this machine, so a server that only this machine reaches
    /// and that asks for no key is to be asked by a name that no page can have, or by one of `hosts`.
    ///
    /// # Errors
    /// A key that no client can send, or a host or an origin that is none.
    pub fn new(
        address: IpAddr,
        key: Option<String>,
        hosts: &[String],
        origins: &[String],
    ) -> Result<Self> {
        if let Some(key) = &key {
            check_key(key)?;
        }
        let guarded = !hosts.is_empty() || (address.is_loopback() && key.is_none());
        let named = hosts.iter().map(|host| match host.parse::<Authority>() {
            Ok(name) if name.port().is_none() && name.as_str() == name.host() => {
                Ok(bare(name.host()))
            }
            _ => bail!(
                "--allow-host {host:?} is not the name of a host; leave out scheme, port and path"
            ),
        });
        let named = named.collect::<Result<Vec<_>>>()?;
        let origins = origins.iter().map(|origin| match origin.parse::<Uri>() {
            _ if matches!(origin.as_str(), "*" | "null") => Ok(origin.clone()),
            Ok(uri)
                if uri.scheme().is_some()
                    && uri.authority().is_some()
                    && uri.path_and_query().is_none_or(|path| path == "/")
                    && !origin.ends_with('/') =>
            {
                Ok(origin.to_ascii_lowercase())
            }
            _ => bail!(
                "--allow-origin {origin:?} is not an origin; write it as https://example.org, or *"
            ),
        });
        let hosts = guarded.then(|| {
            let own = ["localhost".to_string(), address.to_string()];
            own.into_iter().chain(named).collect()
        });
        Ok(Self { key, hosts, origins: origins.collect::<Result<_>>()? })
    }

    /// Whether a key is asked for.
    pub(super) fn has_key(&self) -> bool {
        self.key.is_some()
    }

    /// Whether a server may be asked by a name, with or without a port.
    fn knows(&self, host: &str) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = bare(authority.host());
        let loopback = name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        loopback || hosts.contains(&name)
    }

    /// Whether a web page of an origin may ask.
    fn lets(&self, origin: &str, host: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        let own = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        own.is_some_and(|own| own.eq_ignore_ascii_case(host))
            || self.origins.iter().any(|known| known == "*" || *known == origin)
    }

    /// The headers with which a browser lets the pages of the allowed origins read the answers.
    pub(super) fn cors(&self) -> Option<CorsLayer> {
        if self.origins.is_empty() {
            return None;
        }
        let origins = match self.origins.iter().any(|origin| origin == "*") {
            true => AllowOrigin::any(),
            false => AllowOrigin::list(
                self.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()),
            ),
        };
        let layer = CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST])
            // OpenAI's client sends a dozen of its own.
            .allow_headers(AllowHeaders::mirror_request())
            .allow_private_network(true)
            .max_age(Duration::from_secs(600));
        Some(layer)
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let forbidden = |message| Refusal::new(StatusCode::FORBIDDEN, "forbidden", message);
        let headers = request.headers();
        let hosts = || {
            let sent = headers.get_all(header::HOST).iter();
            // A request line may name the host too.
            let named = request.uri().authority().map(Authority::as_str);
            sent.map(|host| host.to_str().unwrap_or("?")).chain(named)
        };
        if let Some(host) = hosts().find(|host| !self.knows(host)) {
            return Err(forbidden(format!(
                "{host:?} is not a name of this server; ask it as localhost, or start serve with --allow-host"
            )));
        }
        let host = hosts().next().unwrap_or_default();
        let origins = headers.get_all(header::ORIGIN).iter();
        let mut origins = origins.map(|origin| origin.to_str().unwrap_or("?"));
        match origins.find(|origin| !self.lets(origin, host)) {
            Some(origin) => Err(forbidden(format!(
                "web pages of {origin:?} may not ask this server; start serve with --allow-origin"
            ))),
            None => Ok(()),
        }
    }

    fn check_key(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let Some(key) = &self.key else { return Ok(()) };
        let sent =
            headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let sent = match sent.split_at_checked("Bearer ".len()) {
            Some((scheme, sent)) if scheme.eq_ignore_ascii_case(b"Bearer ") => sent,
            _ => &[],
        };
        match bool::from(sent.ct_eq(key.as_bytes())) {
            true => Ok(()),
            false => Err(Refusal::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "the API key is missing or wrong; send it as Authorization: Bearer KEY",
            )),
        }
    }
}

/// A key that clients can send in a header.
///
/// # Errors
/// It is empty, or has other characters than printable ASCII with none but inner spaces.
pub fn check_key(key: &str) -> Result<()> {
    if key.is_empty() {
        bail!("--api-key is empty");
    }
    let sendable = |byte: u8| (b' '..=b'~').contains(&byte);
    if let Some(i) = key.bytes().position(|byte| !sendable(byte)) {
        bail!(
            "--api-key (or KILN_API_KEY) has a byte that no client can send, at position {}; use printable ASCII",
            i + 1
        );
    }
    if key.trim() != key {
        bail!("--api-key (or KILN_API_KEY) begins or ends with a space, which no client can send");
    }
    Ok(())
}

/// The name of a host without brackets and the final dot, in lower case.
fn bare(host: &str) -> String {
    let host = host.strip_suffix('.').unwrap_or(host);
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.to_ascii_lowercase()
}

/// Who may ask, and where refusals are counted.
pub(super) type Guards = (Arc<Access>, Arc<Telemetry>);

type Known = State<Guards>;

fn refused(refusal: Refusal, request: &Request, telemetry: &Telemetry) -> Response {
    telemetry.failures.with_label_values(&[refusal.kind()]).inc();
    refusal.in_protocol(Protocol::of(request.uri().path())).into_response()
}

/// Before every route: the name and the page that asks.
pub(super) async fn guard(
    State((access, telemetry)): Known,
    request: Request,
    next: Next,
) -> Response {
    match access.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(refusal, &request, &telemetry),
    }
}

/// Before the routes that ask for the key. The body has not been read.
pub(super) async fn authorize(
    State((access, telemetry)): Known,
    request: Request,
    next: Next,
) -> Response {
    match access.check_key(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refused(refusal, &request, &telemetry),
    }
}

/// Before the routes that are posted to: what is posted has to call itself JSON, which a web page cannot send
/// elsewhere without asking. The body has not been read.
pub(super) async fn takes_json(
    State((_, telemetry)): Known,
    request: Request,
    next: Next,
) -> Response {
    if request.method() != Method::POST || is_json(request.headers()) {
        return next.run(request).await;
    }
    let refusal = Refusal::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "validation",
        "send the body as Content-Type: application/json",
    );
    refused(refusal, &request, &telemetry)
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(list: &[&str]) -> Vec<String> {
        list.iter().map(|one| one.to_string()).collect()
    }

    fn access(
        address: &str,
        key: Option<&str>,
        hosts: &[&str],
        origins: &[&str],
    ) -> Result<Access> {
        let key = key.map(String::from);
        Access::new(address.parse().unwrap(), key, &strings(hosts), &strings(origins))
    }

    #[test]
    fn a_loopback_server_without_a_key_knows_its_names_alone() {
        let alone = access("127.0.0.1", None, &["Box.example"], &[]).unwrap();
        for host in [
            "localhost",
            "LOCALHOST:80",
            "localhost.:1",
            "127.0.0.1:8080",
            "[::1]:8080",
            "127.9.9.9",
            "box.example:1",
        ] {
            assert!(alone.knows(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:8080",
            "",
            "10.0.0.1",
            "a b",
            "[::2]",
            "127.0.0.1.nip.example",
        ] {
            assert!(!alone.knows(host), "{host}");
        }
        for open in [access("0.0.0.0", None, &[], &[]), access("127.0.0.1", Some("k"), &[], &[])] {
            assert!(open.unwrap().knows("any.example"));
        }
    }

    #[test]
    fn pages_ask_their_own_server_or_one_that_lets_them() {
        let own = access("127.0.0.1", None, &[], &["https://page.example", "null"]).unwrap();
        assert!(own.lets("http://localhost:8080", "localhost:8080"));
        assert!(own.lets("https://page.example", "localhost:8080") && own.lets("null", "x"));
        for other in [
            "http://localhost:8081",
            "http://page.example",
            "https://page.example.evil",
            "file://",
            "",
        ] {
            assert!(!own.lets(other, "localhost:8080"), "{other}");
        }
        let any = access("127.0.0.1", None, &[], &["*"]).unwrap();
        assert!(any.lets("https://any.example", "x"));
    }

    #[test]
    fn what_is_no_key_host_or_origin_is_refused() {
        for key in ["", " a", "a ", "a\n", "\u{7f}", "schlüssel", "a\0b"] {
            assert!(check_key(key).is_err(), "{key:?}");
        }
        assert!(check_key("a b~!").is_ok());
        for host in ["", "a:80", "http://a", "a/b", "a b", "user@a"] {
            assert!(access("127.0.0.1", None, &[host], &[]).is_err(), "{host:?}");
        }
        for origin in [
            "",
            "page.example",
            "https://page.example/",
            "https://page.example/a",
            "https://",
            "a b",
        ] {
            assert!(access("127.0.0.1", None, &[], &[origin]).is_err(), "{origin:?}");
        }
    }
}

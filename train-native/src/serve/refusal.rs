//! What a request gets that is not answered with vectors: one line, in the form of its protocol.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::request::Protocol;
use crate::terminal::field;

/// The kind of error of a server that takes no requests.
const UNHEALTHY: &str = "unhealthy";
/// Longest message, in characters: what a client sent is quoted in it.
const LONGEST: usize = 300;

/// A refusal, with the status and the kind of each of the two protocols.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    /// text-embeddings-inference's kind of error, and ours in the metrics.
    kind: &'static str,
    message: String,
    protocol: Protocol,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, kind: &'static str, message: impl AsRef<str>) -> Self {
        let mut message = field(message.as_ref()).into_owned();
        if let Some((end, _)) = message.char_indices().nth(LONGEST) {
            message.truncate(end);
            message.push_str("..");
        }
        Self { status, kind, message, protocol: Protocol::Tei }
    }

    /// A request that makes no sense.
    pub(super) fn invalid(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "validation", message)
    }

    /// A request that is larger than is taken.
    pub(super) fn too_large(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "validation", message)
    }

    /// A client that took too long.
    pub(super) fn slow(message: impl AsRef<str>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "timeout", message)
    }

    /// A server that does not take requests yet.
    pub(super) fn loading() -> Self {
        Self::closed("the models are being loaded; try again when /readyz answers 200")
    }

    /// A server that takes no requests any more.
    pub(super) fn ending() -> Self {
        Self::closed(
            "the server ends and takes no more requests; ask another one, or this one when it runs again",
        )
    }

    fn closed(message: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, UNHEALTHY, message)
    }

    /// As clients of a protocol read it.
    pub(super) fn in_protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        if protocol == Protocol::OpenAi && self.status == StatusCode::UNPROCESSABLE_ENTITY {
            self.status = StatusCode::BAD_REQUEST;
        }
        self
    }

    /// The kind of error in the metrics: one of a few, none of them a client's words.
    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }

    /// The line.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = match self.protocol {
            Protocol::OpenAi => {
                let kind = match self.kind {
                    "validation" | "not_found" => "invalid_request_error",
                    "overloaded" => "rate_limit_error",
                    "unauthorized" => "authentication_error",
                    "forbidden" => "permission_error",
                    _ => "server_error",
                };
                json!({ "error": { "message": self.message, "type": kind, "param": null, "code": null } })
            }
            Protocol::Tei => json!({ "error": self.message, "error_type": self.kind }),
        };
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS || self.kind == UNHEALTHY {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_is_quoted_in_one_short_line() {
        let refusal = Refusal::invalid("bad\u{1b}[2J\r\nline ".to_string() + &"é".repeat(9000));
        assert!(!refusal.message().chars().any(char::is_control), "{refusal:?}");
        assert!(refusal.message().starts_with("bad\\u{1b}[2J\\r\\nline é"), "{refusal:?}");
        assert_eq!(refusal.message().chars().count(), LONGEST + 2);
    }
}

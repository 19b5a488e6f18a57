//! Takes a request's body in, no faster than there is memory for it and no slower than clients may be.

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::connections::{Client, Phase};
use super::limits::{Limits, SMALL_BODY};
use super::memory::{Held, Memory};
use super::refusal::Refusal;

/// What a body costs in all, as a multiple of its size: itself, its texts, and a text while it is read.
const COPIES: usize = 3;

/// A body, with the memory that it holds.
///
/// # Errors
/// One that is too large, that comes too slowly, or that breaks off.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Body,
    limits: &Limits,
    memory: &Memory,
    client: &Client,
) -> Result<(Vec<u8>, Held), Refusal> {
    let most = limits.max_body;
    let too_large = || Refusal::too_large(format!("the body is larger than {most} bytes"));
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
    let length = length.and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let mut held = None;
    client.enter(Phase::Body);
    loop {
        let frame = timeout(limits.stall_timeout, body.frame()).await.map_err(|_| {
            let seconds = limits.stall_timeout.as_secs();
            Refusal::slow(format!("no byte of the body came within {seconds} s"))
        })?;
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| Refusal::invalid("the body broke off"))?;
        let Ok(part) = frame.into_data() else { continue };
        let size = bytes.len() + part.len();
        if size > most {
            return Err(too_large());
        }
        if size > SMALL_BODY && held.is_none() {
            // All of it at once: two that had half of theirs each would wait for each other.
            held = Some(memory.get(length.unwrap_or(most).saturating_mul(COPIES)).await);
            bytes.reserve_exact(length.unwrap_or(size).max(size) - bytes.len());
        }
        bytes.extend_from_slice(&part);
        client.enter(Phase::Body);
    }
    client.enter(Phase::Work);
    Ok((bytes, held.unwrap_or_default()))
}

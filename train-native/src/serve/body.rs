//! Takes a request's body in, no faster than there is memory for it and no slower than clients may be.

use std::time::Instant;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use super::connections::{Client, Phase};
use super::limits::{Limits, SMALL_BODY};
use super::memory::{Held, Memory, Pace};
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
    let stall = limits.stall_timeout;
    let mut bytes = Vec::new();
    let mut held: Option<(Held, Pace)> = None;
    let mut last = Instant::now();
    client.enter(Phase::Body);
    loop {
        let wait = if held.is_some() { Pace::TICK.min(stall) } else { stall };
        let frame = timeout(wait, body.frame()).await;
        if let Some((_, pace)) = &mut held
            && pace.lags(bytes.len(), memory)
            && !matches!(frame, Ok(None))
        {
            return Err(Refusal::slow(
                "the body came too slowly while others waited for its memory",
            ));
        }
        let frame = match frame {
            Ok(Some(frame)) => frame.map_err(|_| Refusal::invalid("the body broke off"))?,
            Ok(None) => break,
            Err(_) if last.elapsed() < stall => continue,
            Err(_) => {
                let seconds = stall.as_secs();
                return Err(Refusal::slow(format!("no byte of the body came within {seconds} s")));
            }
        };
        let Ok(part) = frame.into_data() else { continue };
        let size = bytes.len() + part.len();
        if size > most {
            return Err(too_large());
        }
        if size > SMALL_BODY && held.is_none() {
            // All of it at once: two that had half of theirs each would wait for each other.
            let all = memory.get(length.unwrap_or(most).saturating_mul(COPIES)).await;
            held = Some((all, Pace::new(bytes.len())));
            bytes.reserve_exact(length.unwrap_or(size).max(size) - bytes.len());
        }
        bytes.extend_from_slice(&part);
        last = Instant::now();
        client.enter(Phase::Body);
    }
    client.enter(Phase::Work);
    Ok((bytes, held.map(|(held, _)| held).unwrap_or_default()))
}

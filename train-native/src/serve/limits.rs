//! What a server refuses, and what it holds at most. SERVING.md lists the numbers.

use std::time::Duration;

/// What a server refuses, how long it waits, and how it batches.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Most requests in work or waiting; the next one is answered 429.
    pub max_requests: usize,
    /// Most texts of a request.
    pub max_texts: usize,
    /// Most bytes of a request's body.
    pub max_body: usize,
    /// Most bytes of a request's texts, each counted with its prompt.
    pub max_expanded: usize,
    /// Most tokens that are embedded together.
    pub batch_tokens: usize,
    /// Bytes that all requests together may hold, beside the small ones ([`SMALL_BODY`], [`SMALL_WORK`]).
    pub memory: usize,
    /// Most connections; where they are all taken, the next one takes the place of one that waits.
    pub max_connections: usize,
    /// How long a request may take, from its head to its vectors, and how long its answer may be on its way.
    pub timeout: Duration,
    /// How long a request's head may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long a body may bring no byte, and an answer be left unread.
    pub stall_timeout: Duration,
    /// Whether texts that are too long are cut; else they are refused.
    pub truncate: bool,
}

/// Connections beside those whose requests are in work, for whoever is only listened to.
pub const SPARE_CONNECTIONS: usize = 256;
/// The most that any limit on texts can be.
pub const MOST_TEXTS: usize = 65_536;
/// Most bytes of a request's head.
pub(super) const HEAD_BYTES: usize = 65_536;
/// Bodies up to this size never wait for memory: they are bounded by the number of connections.
pub const SMALL_BODY: usize = 65_536;
/// Nor do vectors and answers up to this size.
pub const SMALL_WORK: usize = 262_144;
/// How long a request goes on whose client has closed its own side of the connection: it may be waiting for
/// the answer (HTTP allows that), or be gone.
pub(super) const HALF_CLOSED: Duration = Duration::from_secs(5);

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_requests: 512,
            max_texts: 2048,
            max_body: 8_000_000,
            max_expanded: 16_000_000,
            batch_tokens: 16_384,
            memory: 256_000_000,
            max_connections: 512 + SPARE_CONNECTIONS,
            timeout: Duration::from_secs(60),
            head_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(10),
            truncate: true,
        }
    }
}

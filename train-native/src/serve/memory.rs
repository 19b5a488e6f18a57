//! The memory that requests share. Who needs more than a small request does has to get it first, and gives it
//! back when it is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory is counted in blocks of this many bytes.
const BLOCK: usize = 1024;

/// Memory of a request, given back when this is dropped.
#[derive(Debug, Default)]
pub(super) struct Held(#[allow(dead_code)] Option<OwnedSemaphorePermit>);

/// One share of the memory; requests get theirs in the order in which they ask.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    blocks: Arc<Semaphore>,
    all: u32,
    waiting: Arc<AtomicUsize>,
}

impl Memory {
    /// So many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let all = u32::try_from(bytes / BLOCK).unwrap_or(u32::MAX).max(1);
        Self { blocks: Arc::new(Semaphore::new(all as usize)), all, waiting: Arc::default() }
    }

    /// Whether somebody waits for some of it.
    pub(super) fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Waits for so many bytes. Who needs more than there are gets all there are, and is alone with them.
    pub(super) async fn get(&self, bytes: usize) -> Held {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX).min(self.all);
        let _waiting = Waiting::begin(&self.waiting);
        // The semaphore is never closed.
        Held(self.blocks.clone().acquire_many_owned(blocks).await.ok())
    }
}

/// Somebody who waits, until this is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How fast a client takes or brings what its memory is held for. While others wait for memory, it has to
/// keep up: 128 KiB a second.
#[derive(Debug)]
pub(super) struct Pace {
    since: Instant,
    bytes: usize,
}

impl Pace {
    /// How often it is looked at.
    pub(super) const TICK: Duration = Duration::from_millis(500);
    const BYTES: usize = 65_536;

    /// From here on.
    pub(super) fn new(bytes: usize) -> Self {
        Self { since: Instant::now(), bytes }
    }

    /// Whether too few bytes went by since it was last looked at, while others wait; `bytes` counts all.
    pub(super) fn lags(&mut self, bytes: usize, memory: &Memory) -> bool {
        if self.since.elapsed() < Self::TICK {
            return false;
        }
        let few = bytes - self.bytes < Self::BYTES;
        *self = Self::new(bytes);
        few && memory.is_short()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_needs_more_than_there_is_gets_all_and_others_wait_for_it() {
        let memory = Memory::new(10 * BLOCK);
        let all = memory.get(99 * BLOCK).await;
        assert!(!memory.is_short());
        let mut waiting = Box::pin(memory.get(1));
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        assert!(memory.is_short());
        drop(all);
        let one = waiting.await;
        assert!(!memory.is_short());
        let _nine = memory.get(9 * BLOCK).await;
        drop(one);
    }

    #[tokio::test]
    async fn a_slow_client_lags_only_while_others_wait() {
        let memory = Memory::new(BLOCK);
        let ago = |bytes| Pace { since: Instant::now() - 2 * Pace::TICK, bytes };
        assert!(!ago(0).lags(10, &memory));
        let _all = memory.get(BLOCK).await;
        let mut waiting = Box::pin(memory.get(1));
        assert!(tokio::time::timeout(Duration::ZERO, &mut waiting).await.is_err());
        assert!(ago(0).lags(10, &memory) && !ago(0).lags(Pace::BYTES, &memory));
        assert!(!Pace::new(0).lags(10, &memory), "it has had no time yet");
    }
}

//! The memory that requests share. Who needs more than a small request does has to get it first, and gives it
//! back when it is done.

use std::sync::Arc;

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
}

impl Memory {
    /// So many bytes.
    pub(super) fn new(bytes: usize) -> Self {
        let all = u32::try_from(bytes / BLOCK).unwrap_or(u32::MAX).max(1);
        Self { blocks: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Waits for so many bytes. Who needs more than there are gets all there are, and is alone with them.
    pub(super) async fn get(&self, bytes: usize) -> Held {
        let blocks = u32::try_from(bytes.div_ceil(BLOCK)).unwrap_or(u32::MAX).min(self.all);
        // The semaphore is never closed.
        Held(self.blocks.clone().acquire_many_owned(blocks).await.ok())
    }
}

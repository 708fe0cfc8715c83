//! State of the flush ledger: running flushes, their waiters, and blocks that are not durable on
//! the cache device yet.

use alloc::vec::Vec;
use forebay_format::VolumeId;

/// A waiter for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// A client's FLUSH or FUA.
    Request(u32),
    /// A bypass write whose intent must be durable.
    Intent(u32),
    /// A bypass write over dirty blocks: the backing store must be durable before they are dropped.
    Direct(u32),
    /// The checkpoint in progress.
    Checkpoint,
    /// A lifecycle job of this volume.
    Lifecycle(VolumeId),
    /// Recovery, before it trusts the blocks that it read.
    Recovery,
    /// No particular waiter.
    Nobody,
}

/// State of flushes of one device.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    pub(crate) running: bool,
    /// Flushes that have ended, with or without an error.
    pub(crate) ended: u64,
    /// Number of the last flush that succeeded.
    pub(crate) succeeded: u64,
    /// Writes completed since the last flush was submitted.
    pub(crate) unflushed: bool,
    pub(crate) waiters: Vec<(u64, Waiter)>,
}

impl Flusher {
    /// Returns the number of the flush that covers everything completed so far: the running one if
    /// nothing completed since its submission, else the next one.
    pub(crate) fn ticket(&self) -> u64 {
        self.ended + 1 + u64::from(self.running && self.unflushed)
    }

    /// Queues a waiter; returns true if a flush must be started now.
    pub(crate) fn enter(&mut self, waiter: Waiter) -> bool {
        self.waiters.push((self.ticket(), waiter));
        !self.running
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running
    }

    pub(crate) fn waits(&self, waiter: Waiter) -> bool {
        self.waiters.iter().any(|(_, other)| *other == waiter)
    }
}

/// The ledger of the cache device. Each backing store has a [`Flusher`] with its volume.
#[derive(Debug, Default)]
pub(crate) struct FlushLedger {
    pub(crate) cache: Flusher,
    /// Segments with complete blocks that no flush has covered.
    pub(crate) undurable: Vec<u32>,
    /// The same when the running flush was submitted, with the blocks complete then.
    pub(crate) flushing: Vec<(u32, u32)>,
    /// Memory for the waiters that a flush serves.
    pub(crate) served: Vec<Waiter>,
}

impl FlushLedger {
    /// Returns true if everything complete is durable, or will be after the flush of the next
    /// ticket (`waits`: that flush has a waiter).
    pub(crate) fn covers_all(&self, waits: bool) -> bool {
        let starts_later = self.cache.ticket() > self.cache.ended + u64::from(self.cache.running);
        self.undurable.is_empty() || waits && starts_later
    }
}

//! State of the flush ledger: which flush runs, who waits for which, and what the cache device does
//! not hold durably yet.

use alloc::vec::Vec;
use forebay_format::VolumeId;

/// Who waits for a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// A client's FLUSH or FUA.
    Request(u32),
    /// A direct write whose intent must be durable.
    Intent(u32),
    /// A direct write over dirty blocks: the backing store must be durable before they are dropped.
    Direct(u32),
    /// The checkpoint under way.
    Checkpoint,
    /// A job of the life cycle of this volume.
    Lifecycle(VolumeId),
    /// Recovery, before it trusts what it read.
    Recovery,
    /// Nobody in particular.
    Nobody,
}

/// State of flushes of one device.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    pub(crate) running: bool,
    /// Flushes that have ended, well or not.
    pub(crate) ended: u64,
    /// Number of the last flush that ended well.
    pub(crate) succeeded: u64,
    /// Writes completed since the last flush was started.
    pub(crate) unflushed: bool,
    pub(crate) waiters: Vec<(u64, Waiter)>,
}

impl Flusher {
    /// Number of the flush that covers everything completed up to now: the running one if nothing
    /// completed since it was started, else the next one to be started.
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
    /// The same at the time the running flush was started, with the blocks complete then.
    pub(crate) flushing: Vec<(u32, u32)>,
    /// Memory for those whom a flush serves.
    pub(crate) served: Vec<Waiter>,
}

impl FlushLedger {
    /// Everything complete is durable, or will be when the flush of the next ticket has ended
    /// (`waits`: somebody waits for it).
    pub(crate) fn covers_all(&self, waits: bool) -> bool {
        let starts_later = self.cache.ticket() > self.cache.ended + u64::from(self.cache.running);
        self.undurable.is_empty() || waits && starts_later
    }
}

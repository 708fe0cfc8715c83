//! State of the flush ledger: running flushes, their waiters, and blocks that are not durable on
//! the cache device yet.

use crate::map::CacheMap;
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
    None,
}

/// State of flushes of one device.
#[derive(Debug, Default)]
pub(crate) struct Flusher {
    running: bool,
    /// Flushes that have ended, with or without an error.
    ended: u64,
    /// Number of the last flush that succeeded.
    succeeded: u64,
    /// Writes completed since the last flush was submitted.
    unflushed: bool,
    waiters: Vec<(u64, Waiter)>,
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

    /// A flush is submitted.
    pub(crate) fn begin(&mut self) {
        (self.running, self.unflushed) = (true, false);
    }

    /// The running flush has ended: moves its waiters to `served`. Returns true if others wait for
    /// the next one.
    pub(crate) fn end(&mut self, ok: bool, served: &mut Vec<Waiter>) -> bool {
        self.running = false;
        self.ended += 1;
        let ended = self.ended;
        if ok {
            self.succeeded = ended;
        } else {
            self.unflushed = true;
        }
        self.waiters.retain(|(ticket, waiter)| {
            let due = *ticket <= ended;
            if due {
                served.push(*waiter);
            }
            !due
        });
        !self.waiters.is_empty()
    }

    /// A write has completed, or must be treated as one that no flush has covered.
    pub(crate) fn note_write(&mut self) {
        self.unflushed = true;
    }

    /// Returns true if writes have completed since the last flush was submitted.
    pub(crate) fn has_unflushed(&self) -> bool {
        self.unflushed
    }

    /// Returns true if something is not covered by a flush that has ended.
    pub(crate) fn is_needed(&self) -> bool {
        self.unflushed || self.running
    }

    /// Returns true if the flush of this ticket, or a later one, has succeeded.
    pub(crate) fn has_covered(&self, ticket: u64) -> bool {
        self.succeeded >= ticket
    }

    /// Returns the number of the last flush that succeeded.
    pub(crate) fn succeeded(&self) -> u64 {
        self.succeeded
    }

    /// Returns the number of flushes that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
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
    undurable: Vec<u32>,
    /// The same when the running flush was submitted, with the blocks complete then.
    flushing: Vec<(u32, u32)>,
    /// Memory for the waiters that a flush serves.
    served: Vec<Waiter>,
}

impl FlushLedger {
    /// Notes that a segment has complete blocks that no flush has covered.
    pub(crate) fn note_undurable(&mut self, segment: u32) {
        if !self.undurable.contains(&segment) {
            self.undurable.push(segment);
        }
    }

    /// A flush of the cache device begins: it covers the blocks that are complete now.
    pub(crate) fn note_covered(&mut self, map: &CacheMap) {
        self.flushing.clear();
        let completed = |number: u32| (number, map.segments[number as usize].completed);
        self.flushing.extend(self.undurable.drain(..).map(completed));
    }

    /// The flush has succeeded: what it covers is durable.
    pub(crate) fn make_durable(&mut self, map: &mut CacheMap) {
        for (number, blocks) in self.flushing.drain(..) {
            let segment = &mut map.segments[number as usize];
            // A segment that was freed meanwhile needs no durability.
            if segment.has_table() && blocks <= segment.completed {
                segment.durable = segment.durable.max(blocks);
            }
        }
    }

    /// The pool no longer has segments from `count` on.
    pub(crate) fn forget_segments(&mut self, count: u32) {
        self.undurable.retain(|number| *number < count);
        self.flushing.retain(|(number, _)| *number < count);
    }

    /// Takes the empty list of served waiters; [`Self::give_back`] returns its memory.
    pub(crate) fn take_served(&mut self) -> Vec<Waiter> {
        core::mem::take(&mut self.served)
    }

    pub(crate) fn give_back(&mut self, served: Vec<Waiter>) {
        self.served = served;
    }

    /// Returns true if everything complete is durable, or will be after the flush of the next
    /// ticket (`waits`: that flush has a waiter).
    pub(crate) fn covers_all(&self, waits: bool) -> bool {
        let starts_later = self.cache.ticket() > self.cache.ended + u64::from(self.cache.running);
        self.undurable.is_empty() || waits && starts_later
    }
}

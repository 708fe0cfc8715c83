//! State of a cache failure: its stage, data lost or at risk, guarantees of earlier FLUSHes, and
//! reads that are retried.

use crate::api::Nanos;
use crate::base::bitset::BlockSet;
use crate::context::locks::BlockRange;
use crate::map::segment::Key;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use forebay_format::StreamKind;

/// For this time after a block was given up, reads of a cache in use are not retried. Somewhat
/// longer than the pauses.
const GIVEN_UP_NS: Nanos = 10_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum FailureStage {
    #[default]
    Sound,
    Asking,
    Refused,
    WithoutCache,
}

/// A request that waits for the owner's answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    /// A write, zero or discard that holds its block lock: repeated without the cache.
    Redo(u32),
    /// A FLUSH or FUA: its writes are made durable without the cache.
    Durable(u32),
}

/// Lost sectors of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(crate) mask: u8,
    /// Time of the write; negative if it was before the start of this engine.
    pub(crate) written_at: i64,
}

/// Sectors of a block that are no longer at risk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Safe {
    pub(crate) mask: u8,
    pub(crate) change: u64,
}

#[derive(Debug, Default)]
pub(crate) struct CacheFailure {
    pub(crate) stage: FailureStage,
    pub(crate) held: VecDeque<Held>,
    pub(crate) gone: BTreeMap<Key, Gone>,
    /// Requests that wait for the rescue of their volume.
    pub(crate) waiting: Vec<u32>,
    /// Requests that wait for a record with so many changes.
    pub(crate) recording: Vec<(u64, u32)>,
    /// Number of changes of the data at risk: sectors that became safe.
    pub(crate) changes: u64,
    /// Of those, the changes in the last record.
    pub(crate) recorded: u64,
    /// Sectors that became safe and that the last record still lists, with the number of the
    /// change.
    pub(crate) safe: BTreeMap<Key, Safe>,
    /// Up to this change there were too many of those to remember.
    pub(crate) forgotten: u64,
    pub(crate) last_ticket: u64,
    /// The record being written, and the changes that it will include.
    pub(crate) pending: Option<(u64, u64)>,
    pub(crate) recorded_at: Nanos,
    /// The last record failed.
    pub(crate) record_failed: bool,
    /// The end of the rescue was reported.
    pub(crate) told: bool,
    /// Segments that could not be read, in sequence.
    pub(crate) unreadable: Vec<u32>,
}

impl CacheFailure {
    pub(crate) fn lost_blocks(&self) -> u64 {
        self.gone.len() as u64
    }
}

/// A position in the log: everything before it had been applied at one instant.
#[derive(Debug)]
pub(crate) struct Place {
    /// Segments whose first batch is not older than this one are behind the position.
    pub(crate) next_sequence: u64,
    /// Segments that were open then: number, and applied blocks.
    pub(crate) open: [Option<(u32, u32)>; StreamKind::ALL.len()],
    /// Blocks that were being changed: their applied writes might be unacknowledged. By address.
    pub(crate) busy: Vec<BlockRange>,
}

/// Guarantees of earlier FLUSHes.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    /// Everything before this position is guaranteed.
    pub(crate) upto: Option<Place>,
    /// The FLUSH that is tracked, and the position that it will guarantee.
    pub(crate) following: Option<(u32, Place)>,
    /// Memory for the next position, so that a FLUSH allocates nothing.
    pub(crate) spare: Vec<BlockRange>,
    /// Dirty blocks that no FLUSH has guaranteed; some of them might be safe or lost already.
    pub(crate) urgent: BlockSet,
}

/// Reads that will be retried.
#[derive(Debug, Default)]
pub(crate) struct ReadRetry {
    /// By time and operation: the byte of the cache where it reads then.
    pub(crate) waiting: BTreeMap<(Nanos, u32), u64>,
    /// When the last block was given up, if no read has succeeded since.
    pub(crate) given_up_at: Option<Nanos>,
    /// The device is known to have vanished, and no read has succeeded since.
    pub(crate) gone: bool,
    /// Times and operations to repeat because the device was shortened.
    pub(crate) ended: BTreeSet<(Nanos, u32)>,
    /// The device was shortened for so long that the engine no longer waits for it.
    pub(crate) ended_for_good: bool,
}

impl ReadRetry {
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let waiting = self.waiting.first_key_value().map(|((at, _), _)| *at);
        waiting.into_iter().chain(self.ended.first().map(|(at, _)| *at)).min()
    }

    /// Returns the waiting reads, which have no I/O in flight.
    pub(crate) fn operations(&self) -> impl Iterator<Item = u32> {
        self.waiting.keys().map(|(_, op)| *op)
    }

    /// Notes that the device has vanished, and accepts its shorter size.
    pub(crate) fn end_for_good(&mut self) {
        (self.gone, self.ended_for_good) = (true, true);
    }

    /// Notes that a cached block was read.
    pub(crate) fn restart(&mut self) {
        (self.given_up_at, self.gone) = (None, false);
    }

    /// Notes another failure of an operation that was repeated `asked` times, of `most`; returns
    /// true if it is given up.
    pub(crate) fn gives_up(&mut self, asked: u8, most: u8, now: Nanos, failed: bool) -> bool {
        let since = self.given_up_at.map(|at| now - at);
        let hopeless = since.is_some_and(|since| failed || since < GIVEN_UP_NS);
        if asked >= most {
            self.given_up_at = Some(now);
        }
        // A read that already waits keeps its whole time.
        self.gone || asked >= most || asked == 0 && hopeless
    }
}

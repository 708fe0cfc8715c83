//! State of the failure of a cache device: how far its owner is, what is lost or at risk, what
//! FLUSHes have promised, and reads that are tried again.

use crate::api::Nanos;
use crate::base::bitset::BlockSet;
use crate::context::locks::BlockRange;
use crate::map::segment::Key;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use forebay_format::StreamKind;

/// How long a cache in use is not waited for after a block was given up. As long as the pauses, and
/// then some.
const GIVEN_UP_NS: Nanos = 10_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum FailureStage {
    #[default]
    Sound,
    Asking,
    Refused,
    WithoutCache,
}

/// A request that waits for what the owner answers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Held {
    /// A write, zero or discard that holds its block lock: done over, without the cache.
    Redo(u32),
    /// A FLUSH or FUA: what it covers is to be made durable without the cache.
    Durable(u32),
}

/// Sectors of a block that nobody has any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub(super) mask: u8,
    /// When they were written; before the origin of time if that was before this engine began.
    pub(super) written_at: i64,
}

/// Sectors of a block that were at risk and are not any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Safe {
    pub(super) mask: u8,
    pub(super) change: u64,
}

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct CacheFailure {
    pub(super) stage: FailureStage,
    pub(super) held: VecDeque<Held>,
    pub(super) gone: BTreeMap<Key, Gone>,
    /// Requests that wait for the rescue of their volume.
    pub(super) waiting: Vec<u32>,
    /// Requests that wait for a record which knows of so many changes.
    pub(super) recording: Vec<(u64, u32)>,
    /// Changes of what is at risk: sectors that came to be safe.
    pub(super) changes: u64,
    /// Of those, changes that the last record knows.
    pub(super) recorded: u64,
    /// Sectors that came to be safe and that the last record still lists, with the number of the
    /// change.
    pub(super) safe: BTreeMap<Key, Safe>,
    /// There were more of those than can be remembered, up to this change.
    pub(super) forgotten: u64,
    pub(super) last_ticket: u64,
    /// The record under way, and the changes that it will know.
    pub(super) pending: Option<(u64, u64)>,
    pub(super) recorded_at: Nanos,
    /// The last record failed.
    pub(super) record_failed: bool,
    /// The end of the rescue was told.
    pub(super) told: bool,
    /// Segments that could not be read, one after the other.
    pub(super) unreadable: Vec<u32>,
}

impl CacheFailure {
    pub(crate) fn lost_blocks(&self) -> u64 {
        self.gone.len() as u64
    }
}

/// A place in the log: what lies before it had been applied at one instant.
#[derive(Debug)]
pub(super) struct Place {
    /// Segments whose first batch is not older than this one lie behind it.
    pub(super) next_sequence: u64,
    /// Of the segments that were open then: number, and blocks that had been applied.
    pub(super) open: [Option<(u32, u32)>; StreamKind::ALL.len()],
    /// Blocks that were being changed: what had been applied of them need not have been
    /// acknowledged. By address.
    pub(super) busy: Vec<BlockRange>,
}

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    /// Before this lies what was promised.
    pub(super) upto: Option<Place>,
    /// The FLUSH that is followed, and what it will have promised.
    pub(super) following: Option<(u32, Place)>,
    /// For the next place, so that a FLUSH allocates nothing.
    pub(super) spare: Vec<BlockRange>,
    /// Dirty blocks that nobody has promised yet; some of them may be safe or lost already.
    pub(super) urgent: BlockSet,
}

/// Reads that are to be asked for again.
#[derive(Debug, Default)]
pub(crate) struct ReadRetry {
    /// When and which operation, and the byte of the cache where it reads then.
    pub(super) waiting: BTreeMap<(Nanos, u32), u64>,
    /// When a block was given up, if no read has succeeded since.
    pub(super) given_up_at: Option<Nanos>,
    /// The device is known to be gone, and no read has succeeded since.
    pub(super) gone: bool,
    /// When which operation is asked for again because the device had ended.
    pub(super) ended: BTreeSet<(Nanos, u32)>,
    /// The device had ended for so long that it is not waited for any more.
    pub(super) ended_for_good: bool,
}

impl ReadRetry {
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let waiting = self.waiting.first_key_value().map(|((at, _), _)| *at);
        waiting.into_iter().chain(self.ended.first().map(|(at, _)| *at)).min()
    }

    /// Reads that wait, so that nothing is asked of a device just now.
    pub(crate) fn operations(&self) -> impl Iterator<Item = u32> {
        self.waiting.keys().map(|(_, op)| *op)
    }

    /// The device is gone, and where it ends now is where it ends.
    pub(crate) fn end_for_good(&mut self) {
        (self.gone, self.ended_for_good) = (true, true);
    }

    /// A cached block was read.
    pub(crate) fn restart(&mut self) {
        (self.given_up_at, self.gone) = (None, false);
    }

    /// An operation that was asked for again `asked` times, of `most`, has failed once more: is it
    /// given up?
    pub(super) fn gives_up(&mut self, asked: u8, most: u8, now: Nanos, failed: bool) -> bool {
        let since = self.given_up_at.map(|at| now - at);
        let hopeless = since.is_some_and(|since| failed || since < GIVEN_UP_NS);
        if asked >= most {
            self.given_up_at = Some(now);
        }
        // Who waits already has its whole time.
        self.gone || asked >= most || asked == 0 && hopeless
    }
}

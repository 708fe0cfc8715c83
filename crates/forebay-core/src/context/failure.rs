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
pub(crate) enum FailureStage {
    #[default]
    Sound,
    Asking,
    Refused,
    WithoutCache,
}

/// A request that waits for what the owner answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Held {
    /// A write, zero or discard that holds its block lock: done over, without the cache.
    Redo(u32),
    /// A FLUSH or FUA: what it covers is to be made durable without the cache.
    Durable(u32),
}

/// Sectors of a block that nobody has any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    pub(crate) mask: u8,
    /// When they were written; before the origin of time if that was before this engine began.
    pub(crate) written_at: i64,
}

/// Sectors of a block that were at risk and are not any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Safe {
    pub(crate) mask: u8,
    pub(crate) change: u64,
}

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct CacheFailure {
    pub(crate) stage: FailureStage,
    pub(crate) held: VecDeque<Held>,
    pub(crate) gone: BTreeMap<Key, Gone>,
    /// Requests that wait for the rescue of their volume.
    pub(crate) waiting: Vec<u32>,
    /// Requests that wait for a record which knows of so many changes.
    pub(crate) recording: Vec<(u64, u32)>,
    /// Changes of what is at risk: sectors that came to be safe.
    pub(crate) changes: u64,
    /// Of those, changes that the last record knows.
    pub(crate) recorded: u64,
    /// Sectors that came to be safe and that the last record still lists, with the number of the
    /// change.
    pub(crate) safe: BTreeMap<Key, Safe>,
    /// There were more of those than can be remembered, up to this change.
    pub(crate) forgotten: u64,
    pub(crate) last_ticket: u64,
    /// The record under way, and the changes that it will know.
    pub(crate) pending: Option<(u64, u64)>,
    pub(crate) recorded_at: Nanos,
    /// The last record failed.
    pub(crate) record_failed: bool,
    /// The end of the rescue was told.
    pub(crate) told: bool,
    /// Segments that could not be read, one after the other.
    pub(crate) unreadable: Vec<u32>,
}

impl CacheFailure {
    pub(crate) fn lost_blocks(&self) -> u64 {
        self.gone.len() as u64
    }
}

/// A place in the log: what lies before it had been applied at one instant.
#[derive(Debug)]
pub(crate) struct Place {
    /// Segments whose first batch is not older than this one lie behind it.
    pub(crate) next_sequence: u64,
    /// Of the segments that were open then: number, and blocks that had been applied.
    pub(crate) open: [Option<(u32, u32)>; StreamKind::ALL.len()],
    /// Blocks that were being changed: what had been applied of them need not have been
    /// acknowledged. By address.
    pub(crate) busy: Vec<BlockRange>,
}

/// See the top of the file.
#[derive(Debug, Default)]
pub(crate) struct Promised {
    /// Before this lies what was promised.
    pub(crate) upto: Option<Place>,
    /// The FLUSH that is followed, and what it will have promised.
    pub(crate) following: Option<(u32, Place)>,
    /// For the next place, so that a FLUSH allocates nothing.
    pub(crate) spare: Vec<BlockRange>,
    /// Dirty blocks that nobody has promised yet; some of them may be safe or lost already.
    pub(crate) urgent: BlockSet,
}

/// Reads that are to be asked for again.
#[derive(Debug, Default)]
pub(crate) struct ReadRetry {
    /// When and which operation, and the byte of the cache where it reads then.
    pub(crate) waiting: BTreeMap<(Nanos, u32), u64>,
    /// When a block was given up, if no read has succeeded since.
    pub(crate) given_up_at: Option<Nanos>,
    /// The device is known to be gone, and no read has succeeded since.
    pub(crate) gone: bool,
    /// When which operation is asked for again because the device had ended.
    pub(crate) ended: BTreeSet<(Nanos, u32)>,
    /// The device had ended for so long that it is not waited for any more.
    pub(crate) ended_for_good: bool,
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
    pub(crate) fn gives_up(&mut self, asked: u8, most: u8, now: Nanos, failed: bool) -> bool {
        let since = self.given_up_at.map(|at| now - at);
        let hopeless = since.is_some_and(|since| failed || since < GIVEN_UP_NS);
        if asked >= most {
            self.given_up_at = Some(now);
        }
        // Who waits already has its whole time.
        self.gone || asked >= most || asked == 0 && hopeless
    }
}

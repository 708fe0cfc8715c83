//! State of a cache failure: its stage, data lost or at risk, guarantees of earlier FLUSHes, and
//! reads that are retried.

use crate::api::{Nanos, OwnerAction};
use crate::base::bitset::BlockSet;
use crate::context::actions::ActionQueue;
use crate::context::locks::BlockRange;
use crate::context::requests::Req;
use crate::map::segment::Key;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use forebay_format::StreamKind;

/// For this time after a block was given up, reads of a cache in use are not retried. Somewhat
/// longer than the pauses.
const GIVEN_UP_NS: Nanos = 10_000_000_000;
/// Minimum time between updates of the record if no request waits for one.
const RECORD_PAUSE_NS: Nanos = 1_000_000_000;
/// Maximum number of safe blocks to remember; beyond it the next record is a complete one.
const SAFE_BLOCKS_MAX: usize = 1 << 20;

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
    /// A flush of the cache device failed: the engine cannot guarantee durability.
    fenced: bool,
    stage: FailureStage,
    held: VecDeque<Held>,
    gone: BTreeMap<Key, Gone>,
    /// Requests that wait for the rescue of their volume.
    waiting: Vec<u32>,
    /// Requests that wait for a record with so many changes.
    recording: Vec<(u64, u32)>,
    /// Number of changes of the data at risk: sectors that became safe.
    changes: u64,
    /// Of those, the changes in the last record.
    recorded: u64,
    /// Sectors that became safe and that the last record still lists, with the number of the
    /// change.
    safe: BTreeMap<Key, Safe>,
    /// Up to this change there were too many of those to remember.
    forgotten: u64,
    last_ticket: u64,
    /// The record being written, and the changes that it will include.
    pending: Option<(u64, u64)>,
    recorded_at: Nanos,
    /// The last record failed.
    record_failed: bool,
    /// The end of the rescue was reported.
    told: bool,
    /// Segments that could not be read, in sequence.
    unreadable: Vec<u32>,
}

impl CacheFailure {
    /// Returns true if the engine guarantees nothing new on the cache device (I14).
    #[inline]
    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// Fences the cache for good.
    pub(crate) fn fence(&mut self) {
        self.fenced = true;
    }

    pub(crate) fn stage(&self) -> FailureStage {
        self.stage
    }

    /// Returns true if the cache device failed and the engine serves its volumes without it.
    #[inline]
    pub(crate) fn runs_without_cache(&self) -> bool {
        self.stage == FailureStage::WithoutCache
    }

    /// The engine asks the owner to record the failure.
    pub(crate) fn begin_asking(&mut self) {
        self.stage = FailureStage::Asking;
    }

    /// The owner could not record the failure.
    pub(crate) fn refuse(&mut self) {
        self.stage = FailureStage::Refused;
    }

    /// The record is durable.
    pub(crate) fn go_on_without_cache(&mut self) {
        self.stage = FailureStage::WithoutCache;
    }

    /// A request waits for the owner's answer.
    pub(crate) fn hold(&mut self, held: Held) {
        self.held.push_back(held);
    }

    /// Takes the requests that waited for the owner's answer.
    pub(crate) fn take_held(&mut self) -> VecDeque<Held> {
        core::mem::take(&mut self.held)
    }

    /// Notes that a slot was read.
    pub(crate) fn note_readable(&mut self) {
        self.unreadable.clear();
    }

    /// Notes a failed read of a segment; returns the number of different ones in sequence if this
    /// one is new among them, else 0.
    pub(crate) fn note_unreadable(&mut self, segment: u32) -> usize {
        if self.unreadable.contains(&segment) {
            return 0;
        }
        self.unreadable.push(segment);
        self.unreadable.len()
    }

    /// Returns the number of blocks that are lost at least in part.
    pub(crate) fn lost_blocks(&self) -> u64 {
        self.gone.len() as u64
    }

    /// Returns the lost sectors of a block.
    pub(crate) fn lost_sectors(&self, key: Key) -> u8 {
        if self.gone.is_empty() {
            return 0;
        }
        self.gone.get(&key).map_or(0, |gone| gone.mask)
    }

    /// Returns the lost blocks, by address.
    pub(crate) fn gone(&self) -> impl Iterator<Item = (&Key, &Gone)> {
        self.gone.iter()
    }

    /// Returns the lost blocks of a range, by address.
    pub(crate) fn gone_in(&self, range: BlockRange) -> impl Iterator<Item = (&Key, &Gone)> {
        self.gone.range(range.first..=range.last)
    }

    pub(crate) fn is_any_lost_in(&self, range: BlockRange) -> bool {
        self.gone_in(range).next().is_some()
    }

    /// Notes lost sectors of a block, in addition to those known.
    pub(crate) fn add_gone(&mut self, key: Key, lost: Gone) {
        let gone = self.gone.entry(key).or_insert(Gone { mask: 0, ..lost });
        gone.mask |= lost.mask;
        gone.written_at = gone.written_at.min(lost.written_at);
    }

    /// Notes that the only copy of these sectors of a block is lost.
    pub(crate) fn set_gone(&mut self, key: Key, lost: Gone) {
        self.gone.insert(key, lost);
    }

    /// Notes that these sectors of a block were overwritten: returns those that were lost, if any
    /// sector of the block was.
    pub(crate) fn heal(&mut self, key: Key, written: u8) -> Option<u8> {
        let gone = self.gone.get_mut(&key)?;
        let healed = gone.mask & written;
        gone.mask &= !written;
        if gone.mask == 0 {
            self.gone.remove(&key);
        }
        Some(healed)
    }

    /// Returns the number of another change of the data at risk.
    pub(crate) fn next_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// Notes sectors that became safe, until a record does not list them.
    pub(crate) fn add_safe(&mut self, key: Key, now_safe: Safe) {
        let change = now_safe.change;
        let safe = self.safe.entry(key).or_insert(Safe { mask: 0, change });
        (safe.mask, safe.change) = (safe.mask | now_safe.mask, change);
        if self.safe.len() > SAFE_BLOCKS_MAX {
            self.safe.clear();
            self.forgotten = change;
        }
    }

    /// Returns the sectors that became safe since the last record, by address; `None` if there were
    /// too many to remember.
    pub(crate) fn safe(&self) -> Option<impl Iterator<Item = (Key, u8)>> {
        let remembers = self.forgotten <= self.recorded;
        remembers.then(|| self.safe.iter().map(|(key, safe)| (*key, safe.mask)))
    }

    /// Returns the number of the last change in this range that the record does not include yet, 0
    /// if it includes all.
    pub(crate) fn unrecorded_in(&self, range: BlockRange) -> u64 {
        if self.forgotten > self.recorded {
            return self.forgotten;
        }
        let safe = self.safe.range(range.first..=range.last);
        safe.map(|(_, safe)| safe.change).max().unwrap_or(0)
    }

    /// Returns true if the last record does not include all changes.
    pub(crate) fn has_unrecorded(&self) -> bool {
        self.changes > self.recorded
    }

    /// A record that includes this number of changes is durable.
    pub(crate) fn note_recorded(&mut self, changes: u64) {
        self.recorded = changes;
        self.safe.retain(|_, safe| safe.change > changes);
    }

    /// Asks the owner for a record, unless it is writing one.
    pub(crate) fn ask_record(&mut self, actions: &mut ActionQueue) {
        if self.pending.is_some() {
            return;
        }
        self.last_ticket += 1;
        self.pending = Some((self.last_ticket, self.changes));
        actions.push_owner(OwnerAction::RecordLoss { ticket: self.last_ticket });
    }

    /// Returns true while the owner writes a record.
    pub(crate) fn is_recording(&self) -> bool {
        self.pending.is_some()
    }

    /// The owner has answered; returns the number of changes that the record includes, if it is the
    /// answer to the last request.
    pub(crate) fn record_answered(&mut self, ticket: u64, ok: bool) -> Option<u64> {
        let (_, changes) = self.pending.take_if(|(pending, _)| *pending == ticket)?;
        self.record_failed = !ok;
        Some(changes)
    }

    pub(crate) fn has_record_failed(&self) -> bool {
        self.record_failed
    }

    /// The pause until the next record begins.
    pub(crate) fn pause_records(&mut self, now: Nanos) {
        self.recorded_at = now;
    }

    /// Returns when the next record is due if no request waits for one.
    pub(crate) fn next_record_at(&self) -> Nanos {
        self.recorded_at.saturating_add(RECORD_PAUSE_NS)
    }

    /// Lets a request wait for a record with so many changes, unless there is one.
    pub(crate) fn wait_for_record(
        &mut self,
        req: u32,
        request: &mut Req,
        needed: u64,
        actions: &mut ActionQueue,
    ) {
        if needed > self.recorded {
            request.pending += 1;
            self.recording.push((needed, req));
            self.ask_record(actions);
        }
    }

    /// Takes the requests that waited for a record with at most so many changes.
    pub(crate) fn take_recorded(&mut self, changes: u64) -> Vec<u32> {
        let due = |(needed, _): &mut (u64, u32)| *needed <= changes;
        self.recording.extract_if(.., due).map(|(_, req)| req).collect()
    }

    /// Returns true if a request waits for a record.
    pub(crate) fn is_record_awaited(&self) -> bool {
        !self.recording.is_empty()
    }

    /// A request waits for the rescue of its volume.
    pub(crate) fn wait_for_rescue(&mut self, req: u32) {
        self.waiting.push(req);
    }

    /// Returns true if a request waits for a rescue.
    pub(crate) fn is_rescue_awaited(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the requests for which this is true and that waited for the rescue.
    pub(crate) fn take_rescued(&mut self, is_due: impl Fn(u32) -> bool) -> Vec<u32> {
        self.waiting.extract_if(.., |req| is_due(*req)).collect()
    }

    /// Returns true if the end of the rescue was reported.
    pub(crate) fn has_rescue_ended(&self) -> bool {
        self.told
    }

    /// The end of the rescue is reported.
    pub(crate) fn end_rescue(&mut self) {
        self.told = true;
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

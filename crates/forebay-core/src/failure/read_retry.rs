//! ReadRetry with reads of what only the cache has, and with a cache device that has ended.
//!
//! A read error says nothing lasting: a path that fails over, a device that resets, takes seconds,
//! and then answers again. A dirty block that is called lost stays lost. So when all attempts to
//! read one have ended in errors (not in a wrong checksum, which is certain), the operation is
//! asked for again, after growing pauses, about 6 s in all, before whoever wanted the block hears
//! of it (I71). Of a block with two copies each time both are read, and a wrong checksum of one
//! says nothing of the other. Until then the operation is under way like one of a slow device:
//! pins, locks and memory stay as they are.
//!
//! Where a block was given up and nothing was read since, the next one is not waited for, so that a
//! rescue from a dead device takes one such time and not one for every block. While the cache is in
//! use this is believed for some seconds only: one bad block must not be the end of another one an
//! hour later.
//!
//! A device that ends before the end that it had
//! ([`DeviceFailure::Ended`](crate::DeviceFailure::Ended)) is not there, and may be back in a
//! moment. Nothing of what it was asked was done, so every operation on it, not only reads, waits
//! in the same way and is then asked for as before. The cache is fenced when one has waited for all
//! of the time. One member of a mirrored cache is put out at once: the other one has what it had.

use crate::api::{Action, Device, Nanos, OpId};
use crate::context::coverage::CoverageMark;
use crate::context::operations::{Op, OpKind};
use crate::context::{Context, Status};
use crate::failure::damage::CACHE_READ_TRIES;
use crate::fault::{self, PlantedBug};
use crate::map::segment::BlockState;

/// The first pause; each one is twice as long as the one before.
const FIRST_PAUSE_NS: Nanos = 50_000_000;
/// Pauses: 6.35 s in all, more than a path or a controller takes to fail over and less than what
/// clients take for a hang.
const PAUSES: u8 = 7;

impl Context {
    fn is_only_copy(&self, slot: u32) -> bool {
        self.map.state(slot) == BlockState::Dirty && !self.map.is_lost(slot)
    }

    /// An operation has ended. True if it is a last attempt to read a dirty block, has not brought
    /// it, and will be asked for again.
    pub(crate) fn is_asked_again(&mut self, op: OpId, ok: bool, crcs: &[u32]) -> bool {
        let state = self.ops.get(op.0);
        let (asked, member) = (state.asked, state.member);
        let Some((slot, offset)) = self.last_attempt(state, u32::from(asked) + 1) else { return false };
        let copies = if self.slot_tries(slot) > CACHE_READ_TRIES { 2 } else { 1 };
        if ok && (copies == 1 || crcs.first() == Some(&self.map.crc(slot))) {
            return false;
        }
        let (now, failed) = (self.now, self.runs_without_cache());
        if self.read_retry.gives_up(asked, copies * PAUSES, now, failed)
            || fault::planted(PlantedBug::GiveUpAtOnce)
        {
            return false;
        }
        self.note_cache_read(Some(slot), member, ok);
        self.ops.get_mut(op.0).asked += 1;
        // The other copy is read at once.
        let pause = if asked % copies == 0 { FIRST_PAUSE_NS << (asked / copies) } else { 0 };
        self.read_retry.waiting.insert((self.now + pause, op.0), offset);
        true
    }

    /// An operation has found its device ended. True if it is the cache device, and the operation
    /// will be asked for again.
    pub(crate) fn awaits_device(&mut self, op: OpId) -> bool {
        let state = self.ops.get(op.0);
        let (asked, member) = (state.ended, state.member);
        // Nothing is lost with a discard.
        if !state.kind.is_of_cache() || matches!(state.kind, OpKind::Discard) {
            return false;
        }
        // The last steps of a stop wait too. A mirrored cache does not: its other member would have
        // to be noted to be alone.
        let waits = self.is_ready() || self.status == Status::Stopping && self.mirror.is_none();
        if self.fenced || !waits {
            return !self.read_retry.ended_for_good && self.is_asked_again(op, false, &[]);
        }
        if fault::planted(PlantedBug::FailAtEnd) {
            return self.is_asked_again(op, false, &[]);
        }
        if self.mirror.as_ref().is_some_and(|mirror| mirror.failed().is_none_or(|failed| failed == member)) {
            self.cover(CoverageMark::MemberEnded);
            self.member_failed(member);
            return false;
        }
        if asked >= PAUSES {
            self.cover(CoverageMark::EndedForGood);
            self.read_retry.end_for_good();
            self.fence();
            return false;
        }
        self.ops.get_mut(op.0).ended += 1;
        self.read_retry.ended.insert((self.now + (FIRST_PAUSE_NS << asked), op.0));
        true
    }

    /// Asks again for what a device that had ended was asked for, when it is time; for all of it
    /// once the cache is fenced: nobody waits any more.
    fn ask_ended(&mut self) {
        let (now, fenced) = (self.now, self.fenced);
        while let Some((_, op)) =
            self.read_retry.ended.first().copied().filter(|(at, _)| fenced || *at <= now)
        {
            self.read_retry.ended.pop_first();
            self.cover(CoverageMark::EndedLater);
            self.actions.extend(self.ops.get(op).action);
        }
    }

    /// The slot of a read of one dirty block after which nothing else would be tried, and where to
    /// read it for the so-many-th time after that.
    fn last_attempt(&self, state: &Op, again: u32) -> Option<(u32, u64)> {
        if matches!(state.kind, OpKind::CopyRead) {
            return self.last_copy_read().filter(|copy| self.is_only_copy(copy.0));
        }
        let (slot, tries) = state.slot.zip(state.attempt)?;
        let is_last = self.is_only_copy(slot) && tries >= self.slot_tries(slot);
        is_last.then(|| (slot, self.slot_offset(slot, tries + again)))
    }

    /// Asks again for what has waited long enough.
    pub(crate) fn step_read_retry(&mut self) {
        self.ask_ended();
        while let Some(due) = self.read_retry.waiting.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let ((_, op), offset) = due.remove_entry();
            self.cover(CoverageMark::DirtyReadLater);
            let member = self.member_at(offset);
            let state = self.ops.get_mut(op);
            state.member = member;
            let len = state.len;
            self.stats.count_read(Device::Cache, len);
            self.actions.push_back(Action::Read {
                op: OpId(op),
                device: Device::Cache,
                offset,
                len,
                crc: true,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::failure::ReadRetry;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_block_that_was_given_up_is_not_the_end_of_another_one_later() {
        let mut retry = ReadRetry::default();
        assert!(!retry.gives_up(PAUSES - 1, PAUSES, 6 * SECOND, false));
        assert!(retry.gives_up(PAUSES, PAUSES, 7 * SECOND, false));
        // Nothing was read since: the next block is not waited for, but those that wait already
        // have their time.
        assert!(retry.gives_up(0, PAUSES, 8 * SECOND, false));
        assert!(!retry.gives_up(1, PAUSES, 8 * SECOND, false));
        // An hour later nobody knows what is the matter. A cache that is given up has been written
        // off.
        assert!(!retry.gives_up(0, PAUSES, 3600 * SECOND, false));
        assert!(retry.gives_up(0, PAUSES, 3600 * SECOND, true));
        retry.restart();
        assert!(!retry.gives_up(0, PAUSES, 3600 * SECOND, true));
        retry.end_for_good();
        assert!(retry.gives_up(1, PAUSES, 3600 * SECOND, true));
    }
}

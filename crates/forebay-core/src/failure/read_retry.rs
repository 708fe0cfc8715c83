//! Retries reads of dirty data, and operations on a cache device that has ended.
//!
//! A read error may be transient: a path that fails over or a device that resets takes seconds, and
//! then responds again. The loss of a dirty block is permanent. So when all attempts to read one
//! have ended in errors (not in a wrong checksum, which is conclusive), the operation is repeated
//! after growing pauses, about 6 s in total, before it fails (I71). Each repetition reads both
//! copies of a mirrored block; a wrong checksum of one says nothing about the other. Until then the
//! operation is in flight, as on a slow device: it keeps its pins, locks and memory.
//!
//! If a block was given up and no read has succeeded since, the next one fails without a wait, so
//! that a rescue from a dead device takes one such period and not one for every block. While the
//! cache is in use this holds for some seconds only: one bad block must not cost another one an
//! hour later.
//!
//! A device that ends before its recorded end
//! ([`DeviceFailure::Ended`](crate::DeviceFailure::Ended)) is absent, and may return in a moment.
//! It has executed none of its operations, so each one on it, not only reads, waits in the same way
//! and is then repeated. The cache is fenced when one has waited for the whole period. A member of
//! a mirrored cache is failed out at once: the other one has the same data.

use crate::api::{Device, IoAction, Nanos, OpId};
use crate::context::coverage::CoverageMark;
use crate::context::operations::{Op, OpKind};
use crate::context::{Context, Status};
use crate::failure::damage::CACHE_READ_TRIES;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::BlockState;

/// The first pause; each one is twice as long as the previous one.
const FIRST_PAUSE_NS: Nanos = 50_000_000;
/// Pauses: 6.35 s in total, longer than a failover of a path or controller and shorter than the
/// patience of clients.
const PAUSES: u8 = 7;

impl CacheMap {
    fn is_only_copy(&self, slot: u32) -> bool {
        self.state(slot) == BlockState::Dirty && !self.is_lost(slot)
    }
}

impl Context {
    /// An operation has ended. True if it was the last attempt to read a dirty block, failed, and
    /// will be repeated.
    pub(crate) fn is_asked_again(&mut self, op: OpId, ok: bool, crcs: &[u32]) -> bool {
        let state = self.ops.get(op.0);
        let (asked, member) = (state.asked, state.member);
        let Some((slot, offset)) = self.last_attempt(state, u32::from(asked) + 1) else { return false };
        let copies = if self.members.slot_tries(&self.map, slot) > CACHE_READ_TRIES { 2 } else { 1 };
        if ok && (copies == 1 || crcs.first() == Some(&self.map.crc(slot))) {
            return false;
        }
        let (now, failed) = (self.now, self.failure.runs_without_cache());
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

    /// An operation has found that its device ends early. True if it is the cache device, and the
    /// operation will be repeated.
    pub(crate) fn awaits_device(&mut self, op: OpId) -> bool {
        let state = self.ops.get(op.0);
        let (asked, member) = (state.ended, state.member);
        // A failed discard loses nothing.
        if !state.kind.is_of_cache() || matches!(state.kind, OpKind::Discard) {
            return false;
        }
        // The last steps of a stop wait too. A mirrored cache does not: the owner would have to
        // record that the other member is alone.
        let waits = self.status.is_ready() || self.status == Status::Stopping && !self.members.is_mirrored();
        if self.failure.is_fenced() || !waits {
            return !self.read_retry.ended_for_good && self.is_asked_again(op, false, &[]);
        }
        if fault::planted(PlantedBug::FailAtEnd) {
            return self.is_asked_again(op, false, &[]);
        }
        if self.members.mirror().is_some_and(|mirror| mirror.failed().is_none_or(|failed| failed == member)) {
            self.coverage.add(CoverageMark::MemberEnded);
            self.member_failed(member);
            return false;
        }
        if asked >= PAUSES {
            self.coverage.add(CoverageMark::EndedForGood);
            self.read_retry.end_for_good();
            self.fence();
            return false;
        }
        self.ops.get_mut(op.0).ended += 1;
        self.read_retry.ended.insert((self.now + (FIRST_PAUSE_NS << asked), op.0));
        true
    }

    /// Repeats operations on a device that had ended, when their pause is over; all of them once
    /// the cache is fenced, since waiting is then pointless.
    fn ask_ended(&mut self) {
        let (now, fenced) = (self.now, self.failure.is_fenced());
        while let Some((_, op)) =
            self.read_retry.ended.first().copied().filter(|(at, _)| fenced || *at <= now)
        {
            self.read_retry.ended.pop_first();
            self.coverage.add(CoverageMark::EndedLater);
            if let Some(action) = self.ops.get(op).action {
                self.actions.push_io(action);
            }
        }
    }

    /// The slot of a read of one dirty block after which no other attempt follows, and the offset
    /// of the `again`-th repetition.
    fn last_attempt(&self, state: &Op, again: u32) -> Option<(u32, u64)> {
        if matches!(state.kind, OpKind::CopyRead) {
            return self.members.last_copy_read(&self.map).filter(|copy| self.map.is_only_copy(copy.0));
        }
        let (slot, tries) = state.slot.zip(state.attempt)?;
        let is_last = self.map.is_only_copy(slot) && tries >= self.members.slot_tries(&self.map, slot);
        is_last.then(|| (slot, self.members.slot_offset(&self.map, slot, tries + again)))
    }

    /// Repeats the reads whose pause is over.
    pub(crate) fn step_read_retry(&mut self) {
        self.ask_ended();
        while let Some(due) = self.read_retry.waiting.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let ((_, op), offset) = due.remove_entry();
            self.coverage.add(CoverageMark::DirtyReadLater);
            let member = self.member_at(offset);
            let state = self.ops.get_mut(op);
            state.member = member;
            let len = state.len;
            self.stats.count_read(Device::Cache, len);
            self.actions.push_io(IoAction::Read {
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
    fn later_block_gets_its_own_retry_time() {
        let mut retry = ReadRetry::default();
        assert!(!retry.gives_up(PAUSES - 1, PAUSES, 6 * SECOND, false));
        assert!(retry.gives_up(PAUSES, PAUSES, 7 * SECOND, false));
        // No read has succeeded since: the next block does not wait, but those that already wait
        // get their time.
        assert!(retry.gives_up(0, PAUSES, 8 * SECOND, false));
        assert!(!retry.gives_up(1, PAUSES, 8 * SECOND, false));
        // An hour later the state of the device is unknown. A failed cache has been written off.
        assert!(!retry.gives_up(0, PAUSES, 3600 * SECOND, false));
        assert!(retry.gives_up(0, PAUSES, 3600 * SECOND, true));
        retry.restart();
        assert!(!retry.gives_up(0, PAUSES, 3600 * SECOND, true));
        retry.end_for_good();
        assert!(retry.gives_up(1, PAUSES, 3600 * SECOND, true));
    }
}

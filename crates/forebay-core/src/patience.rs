//! Patience with reads of what only the cache has.
//!
//! A read error says nothing lasting: a path that fails over, a device that resets, takes seconds, and then answers again. A dirty
//! block that is called lost stays lost. So when all attempts to read one have ended in errors (not in a wrong checksum, which is
//! certain), the operation is asked for again, after growing pauses, about 6 s in all, before whoever wanted the block hears of it (I71).
//! Of a block with two copies each time both are read, and a wrong checksum of one says nothing of the other.
//! Until then the operation is under way like one of a slow device: pins, locks and memory stay as they are.
//!
//! A device on which a block was given up and nothing was read since is not waited for again, so that a rescue from a dead device
//! takes one such time and not one for every block.

use crate::api::{Action, Device, Nanos, OpId};
use crate::config::PlantedBug;
use crate::engine::{Engine, OpKind};
use crate::landmarks::Landmark;
use crate::read::CACHE_READ_TRIES;
use crate::segment::State;
use alloc::collections::BTreeMap;

/// The first pause; each one is twice as long as the one before.
const FIRST_PAUSE_NS: Nanos = 50_000_000;
/// Pauses: 6.35 s in all, more than a path or a controller takes to fail over and less than what clients take for a hang.
const PAUSES: u8 = 7;

/// Reads that are to be asked for again.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// When and which operation, and the byte of the cache where it reads then.
    waiting: BTreeMap<(Nanos, u32), u64>,
    /// A block was given up, or the device is known to be gone, and no read has succeeded since.
    exhausted: bool,
}

impl Patience {
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// The device is gone: nothing will come of waiting.
    pub(crate) fn end(&mut self) {
        self.exhausted = true;
    }

    /// A cached block was read.
    pub(crate) fn renew(&mut self) {
        self.exhausted = false;
    }
}

impl Engine {
    /// An operation has ended. True if it is a last attempt to read a dirty block, has not brought it, and will be asked for again.
    pub(crate) fn is_asked_again(&mut self, op: OpId, ok: bool, crcs: &[u32]) -> bool {
        let state = self.ops.get(op.0);
        let (asked, member) = (state.asked, state.member);
        let Some((slot, offset)) = self.last_attempt(&state.kind, u32::from(asked) + 1) else { return false };
        let copies = if self.slot_tries(slot) > CACHE_READ_TRIES { 2 } else { 1 };
        if ok && (copies == 1 || crcs.first() == Some(&self.map.crc(slot))) {
            return false;
        }
        if asked >= copies * PAUSES {
            self.patience.end();
        }
        if self.patience.exhausted || self.planted(PlantedBug::GiveUpAtOnce) {
            return false;
        }
        self.note_cache_read(Some(slot), member, ok);
        self.ops.get_mut(op.0).asked += 1;
        // The other copy is read at once.
        let pause = if asked % copies == 0 { FIRST_PAUSE_NS << (asked / copies) } else { 0 };
        self.patience.waiting.insert((self.now + pause, op.0), offset);
        true
    }

    /// The slot of a read of one dirty block after which nothing else would be tried, and where to read it for the so-many-th time
    /// after that.
    fn last_attempt(&self, kind: &OpKind, again: u32) -> Option<(u32, u64)> {
        let (slot, tries) = match *kind {
            OpKind::ReadHit { slot, count: 1, tries, .. } => (slot, tries),
            OpKind::MergeCached { merge, tries } => (self.merges.get(merge).cached_slot()?, tries),
            OpKind::DestageRead { extent, at, count: 1, tries } => {
                (self.extents.get(extent).parts[at as usize].slot()?, tries)
            }
            OpKind::RelocateRead { relocation } => {
                let relocation = self.relocations.get(relocation);
                (relocation.from(), relocation.tries())
            }
            OpKind::CopyRead => {
                let copy = self.last_copy_read()?;
                return self.is_only_copy(copy.0).then_some(copy);
            }
            _ => return None,
        };
        let is_last = self.is_only_copy(slot) && tries >= self.slot_tries(slot);
        is_last.then(|| (slot, self.slot_offset(slot, tries + again)))
    }

    fn is_only_copy(&self, slot: u32) -> bool {
        self.map.state(slot) == State::Dirty && !self.map.is_lost(slot)
    }

    /// Asks again for what has waited long enough.
    pub(crate) fn step_patience(&mut self) {
        while let Some(due) = self.patience.waiting.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let ((_, op), offset) = due.remove_entry();
            self.reached(Landmark::DirtyReadLater);
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

//! A copy on one member that could not be read, or not as it should be, while the other one is
//! good, is written again.
//!
//! A slot of a pair that had to be read from the member that does not come first is a *suspect*,
//! and so is one of which a scrub has found a copy that is not right. Suspects are looked at one
//! after the other: first one copy, then the other one is read and compared with the checksum. If
//! exactly one of them is right, it is written over the other. Where both are right an error has
//! passed; where neither is, those who want the block find out by themselves, and a scrub is told
//! whether that is certain ([`Outcome`]).
//!
//! Only as long as both members count. What fails on the way is a failure of its member like any
//! other.

use crate::api::{Action, Device, Nanos, OpId};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::mirror::{Outcome, Repair, Standing};
use crate::context::operations::OpKind;
use crate::context::pages::PageUse;
use crate::failure::damage::CACHE_READ_TRIES;
use crate::map::segment::BlockState;
use forebay_format::BLOCK_BYTES;

/// More suspects are not remembered: whoever reads them later finds them again.
const SUSPECTS_MAX: usize = 1024;
/// Time until another look, if there is no memory.
const RETRY_NS: Nanos = 100_000_000;

impl Context {
    /// A copy of this slot, which has two, is not as it should be.
    pub(super) fn suspect_copy(&mut self, slot: u32) {
        let Some(mirror) = self.mirror.as_mut() else { return };
        if mirror.standing == Standing::Whole && mirror.repairs.suspects.len() < SUSPECTS_MAX {
            mirror.repairs.suspects.insert(slot);
        }
    }

    /// A scrub has found a copy of this slot that is not right, and waits to be told by an event.
    /// False if it waits for that already.
    pub(crate) fn ask_repair(&mut self, slot: u32) -> bool {
        let Some(mirror) = self.mirror.as_mut() else { return false };
        mirror.repairs.suspects.insert(slot);
        self.settle_again();
        self.mirror.as_mut().is_some_and(|mirror| mirror.repairs.asked.insert(slot))
    }

    /// A scrub that ends does not wait any more. Returns for how many suspects it has waited.
    pub(crate) fn forget_asked_repairs(&mut self) -> usize {
        self.mirror.as_mut().map_or(0, |mirror| core::mem::take(&mut mirror.repairs.asked).len())
    }

    /// Tells the scrub, if it waits for this.
    fn tell_outcome(&mut self, slot: u32, outcome: Outcome) {
        if self.mirror.as_mut().is_some_and(|mirror| mirror.repairs.asked.remove(&slot)) {
            self.tell(Event::Repaired(slot, outcome));
        }
    }

    /// Both members count, and nothing speaks against writing to them.
    fn may_repair(&self) -> bool {
        let whole = self.mirror.as_ref().is_some_and(|mirror| mirror.standing == Standing::Whole);
        whole && !self.fenced && !self.stopping
    }

    pub(super) fn repair_deadline(&self) -> Option<Nanos> {
        let repairs = &self.mirror.as_ref()?.repairs;
        let waits = !repairs.suspects.is_empty() && repairs.current.is_none() && self.may_repair();
        waits.then(|| repairs.next_at.max(self.now))
    }

    pub(super) fn step_repair(&mut self) {
        let (now, may) = (self.now, self.may_repair());
        let Some(mirror) = &mut self.mirror else { return };
        let repairs = &mut mirror.repairs;
        if !may {
            for slot in core::mem::take(&mut repairs.suspects) {
                self.tell_outcome(slot, Outcome::Alone);
            }
            return;
        }
        if repairs.current.is_some() || now < repairs.next_at {
            return;
        }
        while let Some(slot) = self.mirror.as_mut().and_then(|mirror| mirror.repairs.suspects.pop_first()) {
            // It may have been overwritten, or moved, since.
            if self.map.state(slot) != BlockState::Void && self.is_pair(self.map.place(slot).0) {
                self.begin_repair(slot);
                return;
            }
            self.tell_outcome(slot, Outcome::Sound);
        }
    }

    fn begin_repair(&mut self, slot: u32) {
        let page = self.pages.take(PageUse::Survivor);
        let Some(mirror) = &mut self.mirror else { return };
        let Some(page) = page else {
            mirror.repairs.suspects.insert(slot);
            mirror.repairs.next_at = self.now + RETRY_NS;
            return;
        };
        self.map.pin(slot);
        self.read_copy_of(Repair { slot, page, reads: 0, bad: None, looks: 1, unread: false });
    }

    fn read_copy_of(&mut self, repair: Repair) {
        let (segment, index) = self.map.place(repair.slot);
        let (offset, span) = (self.half_offset(segment, repair.reads, index), repair.page.span());
        if let Some(mirror) = &mut self.mirror {
            mirror.repairs.current = Some(repair);
        }
        self.read(Device::Cache, offset, &[span], true, OpKind::RepairRead);
    }

    fn end_repair(&mut self, repair: Repair, outcome: Outcome) {
        self.pages.give(PageUse::Survivor, repair.page);
        self.tell_outcome(repair.slot, outcome);
        self.map.unpin(repair.slot);
        self.settle_again();
    }

    /// A copy has been read.
    pub(crate) fn repair_read(&mut self, ok: bool, crcs: &[u32]) {
        let Some(mut repair) = self.mirror.as_mut().and_then(|mirror| mirror.repairs.current.take()) else {
            return;
        };
        if self.map.state(repair.slot) == BlockState::Void {
            self.end_repair(repair, Outcome::Sound);
            return;
        }
        if !self.may_repair() {
            self.end_repair(repair, Outcome::Alone);
            return;
        }
        let right = ok && crcs.first() == Some(&self.map.crc(repair.slot));
        repair.unread |= !ok || right;
        match (repair.bad, repair.reads, right) {
            (None, 0, true) => self.read_copy_of(Repair { reads: 1, ..repair }),
            (None, 0, false) => self.read_copy_of(Repair { reads: 1, bad: Some(0), ..repair }),
            // The page has what this copy has: the good one is wanted.
            (None, _, false) => self.read_copy_of(Repair { reads: 0, bad: Some(1), ..repair }),
            (Some(bad), _, true) => self.write_copy_of(repair, bad),
            (None, _, true) => self.end_repair(repair, Outcome::Sound),
            // A read may bring wrong bytes once.
            (Some(_), _, false) if repair.looks < CACHE_READ_TRIES => {
                self.read_copy_of(Repair { reads: 0, bad: None, looks: repair.looks + 1, ..repair });
            }
            (Some(_), _, false) => {
                let outcome = if repair.unread { Outcome::Unread } else { Outcome::Wrong };
                self.end_repair(repair, outcome);
            }
        }
    }

    fn write_copy_of(&mut self, repair: Repair, bad: u8) {
        let (segment, index) = self.map.place(repair.slot);
        let (offset, span) = (self.half_offset(segment, bad, index), repair.page.span());
        let op = self.new_op(OpKind::RepairWrite);
        let state = self.ops.get_mut(op);
        state.spans.push(span);
        state.member = bad;
        let len = BLOCK_BYTES as u32;
        self.count_cache_write(op, offset, len);
        self.actions.push_back(Action::Write { op: OpId(op), device: Device::Cache, offset, len });
        if let Some(mirror) = &mut self.mirror {
            mirror.repairs.current = Some(repair);
        }
    }

    /// The good copy has been written over the bad one.
    pub(crate) fn repair_written(&mut self, member: u8, ok: bool) {
        self.flushes.cache.unflushed = true;
        let Some(mirror) = &mut self.mirror else { return };
        mirror.repairs.mended += u64::from(ok);
        if let Some(repair) = mirror.repairs.current.take() {
            self.end_repair(repair, if ok { Outcome::Mended } else { Outcome::Alone });
        }
        if ok {
            self.cover(CoverageMark::CopyMended);
        } else {
            self.member_failed(member);
        }
    }
}

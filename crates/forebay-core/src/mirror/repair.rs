//! Repairs a bad copy on one member (unreadable, or with a wrong checksum) from a good copy on the
//! other one.
//!
//! A slot of a pair that could only be read from the other member is a *suspect*, and so is one
//! with a bad copy found by a scrub. Suspects are checked one after the other: first one copy, then
//! the other one is read and compared with the checksum. If exactly one of them is correct, it is
//! written over the other. If both are correct, an error was transient; if neither is, readers of
//! the block notice that themselves, and the scrub learns whether the result is certain
//! ([`Outcome`]).
//!
//! Repairs run only while both members are active. A failure during a repair is a failure of its
//! member like any other.

use crate::api::{Device, IoAction, Nanos, OpId};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::mirror::{Members, Outcome, Repair};
use crate::context::operations::OpKind;
use crate::context::pages::PageUse;
use crate::failure::damage::CACHE_READ_TRIES;
use crate::map::segment::BlockState;
use forebay_format::BLOCK_BYTES;

/// Maximum number of suspects; later readers find the others again.
const SUSPECTS_MAX: usize = 1024;
/// Time until another attempt, if there is no memory.
const RETRY_NS: Nanos = 100_000_000;

impl Members {
    /// A copy of this slot, which has two, is bad.
    pub(super) fn suspect_copy(&mut self, slot: u32) {
        let Some(mirror) = self.mirror_mut() else { return };
        if mirror.is_whole() && mirror.repairs_mut().suspects.len() < SUSPECTS_MAX {
            mirror.repairs_mut().suspects.insert(slot);
        }
    }

    /// A scrub that ends stops waiting. Returns the number of suspects that it waited for.
    pub(crate) fn forget_asked_repairs(&mut self) -> usize {
        self.mirror_mut().map_or(0, |mirror| core::mem::take(&mut mirror.repairs_mut().asked).len())
    }
}

impl Context {
    /// A scrub has found a bad copy of this slot, and waits for an event. False if it already waits
    /// for it.
    pub(crate) fn ask_repair(&mut self, slot: u32) -> bool {
        let Some(mirror) = self.members.mirror_mut() else { return false };
        mirror.repairs_mut().suspects.insert(slot);
        self.settle_again();
        self.members.mirror_mut().is_some_and(|mirror| mirror.repairs_mut().asked.insert(slot))
    }

    /// Sends the outcome to the scrub, if it waits for this slot.
    fn emit_outcome(&mut self, slot: u32, outcome: Outcome) {
        if self.members.mirror_mut().is_some_and(|mirror| mirror.repairs_mut().asked.remove(&slot)) {
            self.emit(Event::Repaired(slot, outcome));
        }
    }

    /// True if both members are active and writable.
    fn may_repair(&self) -> bool {
        let whole = self.members.mirror().is_some_and(|mirror| mirror.is_whole());
        whole && !self.failure.is_fenced() && !self.stopping
    }

    pub(super) fn repair_deadline(&self) -> Option<Nanos> {
        let repairs = self.members.mirror()?.repairs();
        let waits = !repairs.suspects.is_empty() && repairs.current.is_none() && self.may_repair();
        waits.then(|| repairs.next_at.max(self.now))
    }

    pub(super) fn step_repair(&mut self) {
        let (now, may) = (self.now, self.may_repair());
        let Some(mirror) = self.members.mirror_mut() else { return };
        let repairs = mirror.repairs_mut();
        if !may {
            for slot in core::mem::take(&mut repairs.suspects) {
                self.emit_outcome(slot, Outcome::Alone);
            }
            return;
        }
        if repairs.current.is_some() || now < repairs.next_at {
            return;
        }
        while let Some(slot) =
            self.members.mirror_mut().and_then(|mirror| mirror.repairs_mut().suspects.pop_first())
        {
            // It may have been overwritten or relocated meanwhile.
            if self.map.state(slot) != BlockState::Void
                && self.members.is_pair(&self.map, self.map.place(slot).0)
            {
                self.begin_repair(slot);
                return;
            }
            self.emit_outcome(slot, Outcome::Sound);
        }
    }

    fn begin_repair(&mut self, slot: u32) {
        let page = self.pages.take(PageUse::Survivor);
        let Some(mirror) = self.members.mirror_mut() else { return };
        let Some(page) = page else {
            mirror.repairs_mut().suspects.insert(slot);
            mirror.repairs_mut().next_at = self.now + RETRY_NS;
            return;
        };
        self.map.pin(slot);
        self.read_copy_of(Repair { slot, page, reads: 0, bad: None, looks: 1, unread: false });
    }

    fn read_copy_of(&mut self, repair: Repair) {
        let (segment, index) = self.map.place(repair.slot);
        let (offset, span) =
            (self.members.half_offset(&self.map, segment, repair.reads, index), repair.page.span());
        if let Some(mirror) = self.members.mirror_mut() {
            mirror.repairs_mut().current = Some(repair);
        }
        self.read(Device::Cache, offset, &[span], true, OpKind::RepairRead);
    }

    fn end_repair(&mut self, repair: Repair, outcome: Outcome) {
        self.pages.give(PageUse::Survivor, repair.page);
        self.emit_outcome(repair.slot, outcome);
        self.map.unpin(repair.slot);
        self.settle_again();
    }

    /// A copy was read.
    pub(crate) fn repair_read(&mut self, ok: bool, crcs: &[u32]) {
        let Some(mut repair) =
            self.members.mirror_mut().and_then(|mirror| mirror.repairs_mut().current.take())
        else {
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
            // The page has this copy: read the good one.
            (None, _, false) => self.read_copy_of(Repair { reads: 0, bad: Some(1), ..repair }),
            (Some(bad), _, true) => self.write_copy_of(repair, bad),
            (None, _, true) => self.end_repair(repair, Outcome::Sound),
            // A read may return wrong bytes once.
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
        let (offset, span) = (self.members.half_offset(&self.map, segment, bad, index), repair.page.span());
        let op = self.ops.begin(OpKind::RepairWrite, self.now);
        let state = self.ops.get_mut(op);
        state.spans.push(span);
        state.member = bad;
        let len = BLOCK_BYTES as u32;
        self.count_cache_write(op, offset, len);
        self.actions.push_io(IoAction::Write { op: OpId(op), device: Device::Cache, offset, len });
        if let Some(mirror) = self.members.mirror_mut() {
            mirror.repairs_mut().current = Some(repair);
        }
    }

    /// The write of the good copy over the bad one has ended.
    pub(crate) fn repair_written(&mut self, member: u8, ok: bool) {
        self.flushes.cache.note_write();
        let Some(mirror) = self.members.mirror_mut() else { return };
        mirror.repairs_mut().repaired += u64::from(ok);
        if let Some(repair) = mirror.repairs_mut().current.take() {
            self.end_repair(repair, if ok { Outcome::Repaired } else { Outcome::Alone });
        }
        if ok {
            self.coverage.add(CoverageMark::CopyRepaired);
        } else {
            self.member_failed(member);
        }
    }
}

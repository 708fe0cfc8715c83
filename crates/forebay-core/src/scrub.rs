//! Scrub: everything that the cache holds is read and compared with its checksum, at a bounded rate.
//!
//! Damage shows when a block is read, and a block that nobody reads may stay damaged for long: until it is the only copy that
//! is left of something, or until a second copy of it is damaged too. A scrub goes through all segments once. What it finds is
//! treated as if a client had read it ([`Engine::give_up`]): a clean block is dropped, and fetched again from the backing store; a
//! dirty one is lost, and reported. An error is no damage: a dirty block that cannot be read is counted and left alone.
//!
//! Of a pair of a mirrored cache both copies are read, the segment of one member after that of the other, if both count. A block with a copy that is damaged
//! or cannot be read is handed to `mirror::repair`, which writes it again from the other one, or says what is the matter.
//!
//! It takes no lock: a slot is judged after it was read only if it is still the one that counts, and is never written again
//! while its segment is pinned. It yields to everybody by its rate alone. What is written while it is under way need not be
//! checked, and is checked only where the scrub has not been.

use crate::api::{Device, Nanos, Notice};
use crate::base::bucket::Bucket;
use crate::context::coverage::CoverageMark;
use crate::context::locks::BlockRange;
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse};
use crate::context::sectors::BLOCK;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::{LifecycleError, sweep_slots};
use crate::map::segment::{BlockState, Key};
use crate::mirror::state::Outcome;
use crate::request::read::{CACHE_READ_TRIES, Damage};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most blocks of one read. Longer ones would not be cheaper, and clients would wait longer behind them.
const RUN_BLOCKS: u32 = 16;
/// Most reads under way.
const READS_MAX: usize = 4;

/// What a scrub has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Blocks compared; in a mirrored cache both copies of those that have two.
    pub checked_blocks: u64,
    /// Blocks, or copies, that were in the cache when it began.
    pub total_blocks: u64,
    /// Blocks, or copies, that were not what was written.
    pub damaged_blocks: u64,
    /// Of those, clean ones that were fetched again from the backing store (the others are fetched when somebody reads them), and
    /// copies that were written again from the other one.
    pub repaired_blocks: u64,
    /// Of those, dirty ones: nobody else has them.
    pub lost_blocks: u64,
    /// Dirty blocks that could not be read, which may pass: they are as they were.
    pub unreadable_blocks: u64,
}

/// A scrub under way.
#[derive(Debug)]
pub(crate) struct Scrub {
    bytes_per_s: u64,
    /// Only what is dirty is looked at, and nobody is told when it ends.
    dirty_only: bool,
    bucket: Bucket,
    /// The next slot to look at, and which of its copies.
    segment: u32,
    copy: u8,
    index: u32,
    /// Reads of the cache and of backing stores under way, and suspects that are being looked at.
    under_way: usize,
    cancelled: bool,
    /// Slots that are to be read once more, of the one copy that they have now.
    again: Vec<u32>,
    wake_at: Option<Nanos>,
    report: ScrubReport,
}

impl Scrub {
    /// A read of so many blocks begins.
    fn begins(&mut self, blocks: u32) {
        self.under_way += 1;
        self.bucket.take(u64::from(blocks) * BLOCK);
    }
}

/// Consecutive slots that are being read.
#[derive(Debug)]
pub(crate) struct ScrubRead {
    slot: u32,
    pages: Vec<Page>,
    from: From,
}

/// Where slots are read.
#[derive(Clone, Copy, Debug)]
struct From {
    /// Of a pair: which of the members.
    member: Option<u8>,
    tries: u32,
}

/// What a read of a slot has brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Right,
    Wrong,
    /// An error.
    Nothing,
}

impl ScrubRead {
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }
}

impl Engine {
    /// Begins to compare everything in the cache with its checksums, reading at most `bytes_per_s`.
    /// [`Notice::ScrubEnded`] follows.
    ///
    /// # Errors
    /// A scrub is under way, or the engine does not serve.
    pub fn begin_scrub(&mut self, now: Nanos, bytes_per_s: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.cx.may_change_pool()?;
        if self.scrub.as_ref().is_some_and(|scrub| !scrub.dirty_only) {
            return Err(LifecycleError::Busy);
        }
        let copies = |number: u32| 1 + u64::from(self.has_two_copies(number));
        let live = (0..)
            .zip(&self.cx.map.segments)
            .map(|(number, segment)| u64::from(segment.live) * copies(number));
        let total_blocks = live.sum();
        let report = ScrubReport { total_blocks, ..ScrubReport::default() };
        self.start_scrub(bytes_per_s, false, report);
        Ok(())
    }

    /// Compares everything dirty with its checksums, reading at most `bytes_per_s`: what was lost before this start is found again,
    /// though nobody reads it. Nobody is told when it ends; a scrub that is begun takes its place, and nothing happens if one is
    /// under way.
    pub fn check_dirty(&mut self, now: Nanos, bytes_per_s: u64) {
        self.begin(now);
        if self.cx.may_change_pool().is_ok() && self.scrub.is_none() {
            self.start_scrub(bytes_per_s, true, ScrubReport::default());
        }
    }

    fn start_scrub(&mut self, bytes_per_s: u64, dirty_only: bool, report: ScrubReport) {
        // What a check of the dirty blocks has begun ends in the scrub that takes its place.
        let before = self.scrub.take().map(|scrub| (scrub.under_way, scrub.again));
        let (under_way, again) = before.unwrap_or_default();
        self.scrub = Some(Box::new(Scrub {
            bytes_per_s: bytes_per_s.max(BLOCK),
            dirty_only,
            bucket: Bucket::default(),
            segment: 0,
            copy: 0,
            index: 0,
            under_way,
            cancelled: false,
            again,
            wake_at: None,
            report,
        }));
    }

    /// Ends a scrub early; [`Notice::ScrubEnded`] follows. Nothing happens if there is none.
    pub fn cancel_scrub(&mut self, now: Nanos) {
        self.begin(now);
        if let Some(scrub) = self.scrub.as_mut().filter(|scrub| !scrub.dirty_only) {
            scrub.cancelled = true;
        }
    }

    /// What the scrub under way has done so far.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<ScrubReport> {
        self.scrub.as_ref().filter(|scrub| !scrub.dirty_only).map(|scrub| scrub.report)
    }

    pub(crate) fn scrub_deadline(&self) -> Option<Nanos> {
        self.scrub.as_ref().and_then(|scrub| scrub.wake_at)
    }

    pub(crate) fn step_scrub(&mut self) {
        let Some(mut scrub) = self.scrub.take() else { return };
        scrub.wake_at = None;
        let ends = scrub.cancelled || self.cx.fenced || self.cx.stopping;
        if ends {
            scrub.under_way -= self.cx.forget_asked_repairs();
        }
        let through = !ends && self.scrub_on(&mut scrub);
        if scrub.under_way == 0 && (ends || through) {
            if !scrub.dirty_only {
                self.cx.notice(Notice::ScrubEnded { report: scrub.report, complete: through });
            }
        } else {
            self.scrub = Some(scrub);
        }
    }

    /// Begins what may be read now. True if there is nothing more to be read.
    fn scrub_on(&mut self, scrub: &mut Scrub) -> bool {
        scrub.bucket.settle(self.cx.now, scrub.bytes_per_s);
        let mut looks = sweep_slots(self.cx.map.geometry.slot_count());
        while scrub.under_way < READS_MAX && self.cx.pages.available(PageUse::Scrub) > 0 {
            if !scrub.bucket.is_open(scrub.bytes_per_s) {
                scrub.wake_at = scrub.bucket.opens_at(scrub.bytes_per_s);
                return false;
            }
            if let Some(slot) = scrub.again.pop() {
                if self.is_worth_scrubbing(slot) {
                    scrub.begins(1);
                    let member = self.scrubbed_member(slot, 0);
                    self.read_for_scrub(slot, 1, From { member, tries: 1 });
                }
                continue;
            }
            match self.next_run(scrub, &mut looks) {
                Some((slot, count, copy)) => {
                    scrub.begins(count);
                    let member = self.scrubbed_member(slot, copy);
                    self.read_for_scrub(slot, count, From { member, tries: 1 });
                }
                None if looks == 0 => {
                    scrub.wake_at = Some(self.cx.now + 1);
                    return false;
                }
                None => return scrub.under_way == 0,
            }
        }
        false
    }

    /// Both members have this segment, and count.
    fn has_two_copies(&self, segment: u32) -> bool {
        let whole = self.cx.mirror.as_ref().is_some_and(|mirror| mirror.failed().is_none());
        whole && self.cx.is_pair(segment)
    }

    /// The member of a pair that this copy is read from: the one that counts, if only one does.
    fn scrubbed_member(&self, slot: u32, copy: u8) -> Option<u8> {
        let mirror = self.cx.mirror.as_ref().filter(|_| self.cx.is_pair(self.cx.map.place(slot).0))?;
        Some(mirror.failed().map_or(copy, |failed| 1 - failed))
    }

    /// True if a slot counts, is not known to be lost, and was not on a member that is.
    fn is_worth_scrubbing(&self, slot: u32) -> bool {
        let state = self.cx.map.state(slot);
        if state == BlockState::Void || self.cx.mirror.is_some() && self.cx.is_gone(self.cx.map.place(slot).0)
        {
            return false;
        }
        let overlooked = fault::planted(PlantedBug::ScrubOverlooksDirty) && state == BlockState::Dirty;
        let lost = state == BlockState::Dirty && self.cx.map.is_lost(slot);
        !overlooked && !lost
    }

    /// The same for one that was read: it may have been overwritten meanwhile.
    fn is_worth_judging(&self, slot: u32) -> bool {
        self.is_worth_scrubbing(slot) || fault::planted(PlantedBug::ScrubJudgesVoid)
    }

    /// The next slots that count and follow one another on the device, and which copy of them.
    fn next_run(&self, scrub: &mut Scrub, looks: &mut u32) -> Option<(u32, u32, u8)> {
        let blocks = self.cx.map.geometry.segment_blocks;
        let most = RUN_BLOCKS.min(self.cx.pages.available(PageUse::Scrub));
        let mut run: Option<(u32, u32, u8)> = None;
        while (scrub.segment as usize) < self.cx.map.segments.len() && *looks > 0 {
            let empty = self.cx.map.segments[scrub.segment as usize].live == 0;
            if empty || scrub.index >= blocks {
                let second = scrub.copy == 0 && !fault::planted(PlantedBug::ScrubOneCopy);
                let again = !empty && second && self.has_two_copies(scrub.segment);
                (scrub.segment, scrub.copy) = if again { (scrub.segment, 1) } else { (scrub.segment + 1, 0) };
                scrub.index = 0;
                *looks -= 1;
                match run {
                    Some(run) => return Some(run),
                    None => continue,
                }
            }
            let slot = self.cx.map.slot(scrub.segment, scrub.index);
            let wanted = !scrub.dirty_only || self.cx.map.state(slot) == BlockState::Dirty;
            let counts = wanted && self.is_worth_scrubbing(slot);
            if !counts && run.is_some() {
                return run;
            }
            (scrub.index, *looks) = (scrub.index + 1, *looks - 1);
            if counts {
                let (first, count, copy) = run.unwrap_or((slot, 0, scrub.copy));
                run = Some((first, count + 1, copy));
                if count + 1 == most {
                    return run;
                }
            }
        }
        run
    }

    fn read_for_scrub(&mut self, slot: u32, count: u32, from: From) {
        let pages: Vec<Page> = (0..count).filter_map(|_| self.cx.pages.take(PageUse::Scrub)).collect();
        let spans: Vec<_> = pages.iter().map(|page| page.span()).collect();
        self.cx.map.pin(slot);
        let offset = self.copy_offset(slot, from.member);
        let read = self.scrub_reads.insert(ScrubRead { slot, pages, from });
        let op = self.cx.read(Device::Cache, offset, &spans, true, OpKind::ScrubRead { read });
        self.cx.ops.get_mut(op).slot = Some(slot);
    }

    /// Byte of the cache where a slot lies, on this member if it is of a pair.
    fn copy_offset(&self, slot: u32, member: Option<u8>) -> u64 {
        let (segment, index) = self.cx.map.place(slot);
        member.map_or_else(|| self.cx.map.offset(slot), |member| self.cx.half_offset(segment, member, index))
    }

    pub(crate) fn scrub_read(&mut self, read: u32, ok: bool, crcs: &[u32]) {
        let ScrubRead { slot: first, pages, from } = self.scrub_reads.remove(read);
        for ((slot, page), index) in (first..).zip(pages).zip(0..) {
            self.cx.pages.give(PageUse::Scrub, page);
            let found = match crcs.get(index) {
                _ if !ok => Found::Nothing,
                Some(crc) if *crc == self.cx.map.crc(slot) => Found::Right,
                _ => Found::Wrong,
            };
            self.scrubbed(slot, found, from);
        }
        self.cx.map.unpin(first);
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way -= 1;
        }
    }

    /// A slot was read; its segment is still pinned.
    fn scrubbed(&mut self, slot: u32, found: Found, from: From) {
        let stale = !self.is_worth_judging(slot);
        let paired = self.has_two_copies(self.cx.map.place(slot).0);
        let elsewhere =
            self.cx.mirror.as_ref().zip(from.member).is_some_and(|(mirror, member)| !mirror.counts(member));
        let elsewhere = elsewhere && !fault::planted(PlantedBug::JudgeFailedCopy);
        let Some(scrub) = &mut self.scrub else { return };
        let right = found == Found::Right;
        if elsewhere && !stale {
            // Of a member that does not count any more: what does is on the other one.
            scrub.again.push(slot);
            return;
        }
        if !right && !stale && from.tries < CACHE_READ_TRIES {
            scrub.begins(1);
            self.read_for_scrub(slot, 1, From { tries: from.tries + 1, ..from });
            return;
        }
        scrub.report.checked_blocks += 1;
        if right || stale || self.cx.fenced {
            return;
        }
        if paired {
            let waits = self.cx.ask_repair(slot);
            self.scrub_does(|scrub| scrub.under_way += usize::from(waits));
        } else {
            self.condemn(slot, found == Found::Wrong);
        }
    }

    /// No copy of a slot is right; `certain`: it was read, and is wrong.
    fn condemn(&mut self, slot: u32, certain: bool) {
        if !certain && self.cx.map.state(slot) != BlockState::Clean {
            // A path that fails over takes seconds, and this is the only copy: whoever needs it decides.
            self.scrub_does(|scrub| scrub.report.unreadable_blocks += 1);
            return;
        }
        self.scrub_does(|scrub| scrub.report.damaged_blocks += 1);
        let (key, pinned) = (self.cx.map.key(slot), self.cx.map.is_pinned(slot));
        match self.cx.give_up(slot) {
            Damage::Lost => self.scrub_does(|scrub| scrub.report.lost_blocks += 1),
            Damage::Dropped => self.fetch_again(key, pinned),
            Damage::Kept => {}
        }
    }

    /// What was found out about a slot with two copies, of which one was not right.
    pub(crate) fn scrub_repaired(&mut self, slot: u32, outcome: Outcome) {
        self.scrub_does(|scrub| scrub.under_way -= 1);
        self.cx.settle_again();
        if !self.is_worth_judging(slot) || self.cx.fenced {
            return;
        }
        match outcome {
            Outcome::Sound => {}
            Outcome::Mended => self.scrub_does(|scrub| {
                scrub.report.damaged_blocks += 1;
                scrub.report.repaired_blocks += 1;
            }),
            Outcome::Wrong => self.condemn(slot, true),
            Outcome::Unread => self.condemn(slot, false),
            Outcome::Alone => self.scrub_does(|scrub| {
                scrub.report.checked_blocks -= 1;
                scrub.again.push(slot);
            }),
        }
    }

    /// Where the copies of each block lie that both members have, with its checksum: for oracles. Slow.
    pub fn pair_copies(&self) -> impl Iterator<Item = ([u64; 2], u32)> + '_ {
        let slots = (0..self.cx.map.geometry.slot_count()).filter(|slot| {
            let (segment, index) = self.cx.map.place(*slot);
            let table = &self.cx.map.segments[segment as usize];
            self.has_two_copies(segment) && table.live > 0 && table.state(index) != BlockState::Void
        });
        let place = |slot, member| self.copy_offset(slot, Some(member));
        slots.map(move |slot| ([place(slot, 0), place(slot, 1)], self.cx.map.crc(slot)))
    }

    fn scrub_does(&mut self, change: impl FnOnce(&mut Scrub)) {
        if let Some(scrub) = &mut self.scrub {
            change(scrub);
        }
    }

    /// A damaged clean block was dropped: what the backing store has takes its place, as a fill.
    fn fetch_again(&mut self, key: Key, pinned: bool) {
        let range = BlockRange { first: key, last: key };
        let volume = key.volume();
        let serves = self.cx.is_attached(volume) && {
            let volume = self.cx.volume(volume);
            volume.fills() && (key.block() + 1) * BLOCK <= volume.limit_bytes
        };
        let idle = serves && !self.cx.locks.is_held(range) && !self.cx.fills.any_in(range);
        if !idle || self.cx.map.lookup(key).is_some() || self.cx.stopping {
            return;
        }
        let Some(page) = self.cx.pages.take(PageUse::Fill) else { return };
        let token = self.cx.fills.register(key, pinned);
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way += 1;
        }
        let kind = OpKind::ScrubFetch { key, page, token };
        self.cx.read(Device::Backing(volume), key.block() * BLOCK, &[page.span()], true, kind);
    }

    pub(crate) fn scrub_fetched(&mut self, key: Key, page: Page, token: u64, ok: bool, crcs: &[u32]) {
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way -= 1;
        }
        let crc = crcs.first().filter(|_| ok && self.cx.fills.is_valid(key, token) && !self.cx.fenced);
        let Some(crc) = crc else {
            self.cx.fills.end(key, token);
            self.cx.pages.give(PageUse::Fill, page);
            self.cx.settle_again();
            return;
        };
        self.scrub_does(|scrub| scrub.report.repaired_blocks += 1);
        self.cx.cover(CoverageMark::ScrubRepaired);
        self.append_fill(key, *crc, page, token);
    }
}

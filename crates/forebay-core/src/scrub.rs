//! Scrub: reads every cached block at a bounded rate and compares it with its checksum.
//!
//! A read detects damage, so a block that clients do not read can stay damaged for a long time:
//! until it is the only remaining copy, or until its second copy is damaged too. A scrub passes
//! over all segments once. It handles a damaged block as a client's read would
//! (`Context::give_up`): it drops a clean block and fetches it again from the backing store; a
//! dirty block is lost, and the scrub reports it. A read error is not damage: the scrub counts a
//! dirty block that cannot be read and leaves it alone.
//!
//! In a mirrored cache whose members are both active, the scrub reads both copies of a pair, the
//! segment of one member after that of the other. If a copy is damaged or unreadable, it hands the
//! block to `mirror::repair`, which rewrites the copy from the other one or reports why it cannot.
//!
//! The scrub takes no lock: it evaluates a slot after the read only if the slot is still live, and
//! the log does not reuse a slot while its segment is pinned. Its rate alone limits its load on
//! other I/O. Blocks written during a scrub need no check, and get one only in segments that the
//! scrub has not reached.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::stats::ScrubReport;
use crate::api::{Device, Nanos, Notice};
use crate::base::bucket::Bucket;
use crate::base::slab::Slab;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::locks::BlockRange;
use crate::context::mirror::{Members, Outcome};
use crate::context::operations::OpKind;
use crate::context::pages::{Page, PageUse};
use crate::context::sectors::BLOCK;
use crate::failure::damage::{CACHE_READ_TRIES, Damage};
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, Key};
use crate::map::{CacheMap, sweep_slots};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Maximum blocks per read. Longer reads would not be cheaper, and clients would wait longer behind
/// them.
const RUN_BLOCKS: u32 = 16;
/// Maximum reads in flight.
const READS_MAX: usize = 4;

/// A running scrub.
#[derive(Debug)]
struct Scrub {
    bytes_per_s: u64,
    /// Checks dirty blocks only, and raises no notice at its end.
    dirty_only: bool,
    bucket: Bucket,
    /// The next slot to check, and which of its copies.
    segment: u32,
    copy: u8,
    index: u32,
    /// Reads of the cache and of backing stores in flight, and suspects in repair.
    under_way: usize,
    cancelled: bool,
    /// Slots to read once more, from their one remaining copy.
    again: Vec<u32>,
    wake_at: Option<Nanos>,
    report: ScrubReport,
}

impl Members {
    /// Returns true if both members have this segment and are active.
    fn has_two_copies(&self, map: &CacheMap, segment: u32) -> bool {
        let whole = self.mirror().is_some_and(|mirror| mirror.failed().is_none());
        whole && self.is_pair(map, segment)
    }

    /// The member of a pair to read this copy from: the active one, if only one is active.
    fn scrubbed_member(&self, map: &CacheMap, slot: u32, copy: u8) -> Option<u8> {
        let mirror = self.mirror().filter(|_| self.is_pair(map, map.place(slot).0))?;
        Some(mirror.failed().map_or(copy, |failed| 1 - failed))
    }

    /// Byte offset of a slot in the cache, on this member if the slot belongs to a pair.
    fn copy_offset(&self, map: &CacheMap, slot: u32, member: Option<u8>) -> u64 {
        let (segment, index) = map.place(slot);
        member.map_or_else(|| map.offset(slot), |member| self.half_offset(map, segment, member, index))
    }

    /// Returns true if a slot is live, is not known to be lost, and was not only on a lost member.
    fn is_worth_scrubbing(&self, map: &CacheMap, slot: u32) -> bool {
        let state = map.state(slot);
        if state == BlockState::Void || self.is_mirrored() && self.is_gone(map, map.place(slot).0) {
            return false;
        }
        let overlooked = fault::planted(PlantedBug::ScrubOverlooksDirty) && state == BlockState::Dirty;
        let lost = state == BlockState::Dirty && map.is_lost(slot);
        !overlooked && !lost
    }

    /// As [`Members::is_worth_scrubbing`], after the read: a client may have overwritten the block.
    fn is_worth_judging(&self, map: &CacheMap, slot: u32) -> bool {
        self.is_worth_scrubbing(map, slot) || fault::planted(PlantedBug::ScrubJudgesVoid)
    }
}

impl Context {
    /// The next run of live slots, contiguous on the device, and which copy of them: first slot,
    /// count, copy.
    fn next_run(&self, scrub: &mut Scrub, looks: &mut u32) -> Option<(u32, u32, u8)> {
        let blocks = self.map.geometry.segment_blocks;
        let most = RUN_BLOCKS.min(self.pages.available(PageUse::Scrub));
        let mut run: Option<(u32, u32, u8)> = None;
        while (scrub.segment as usize) < self.map.segments.len() && *looks > 0 {
            let empty = self.map.segments[scrub.segment as usize].live == 0;
            if empty || scrub.index >= blocks {
                let second = scrub.copy == 0 && !fault::planted(PlantedBug::ScrubOneCopy);
                let again = !empty && second && self.members.has_two_copies(&self.map, scrub.segment);
                (scrub.segment, scrub.copy) = if again { (scrub.segment, 1) } else { (scrub.segment + 1, 0) };
                scrub.index = 0;
                *looks -= 1;
                match run {
                    Some(run) => return Some(run),
                    None => continue,
                }
            }
            let slot = self.map.slot(scrub.segment, scrub.index);
            let wanted = !scrub.dirty_only || self.map.state(slot) == BlockState::Dirty;
            let counts = wanted && self.members.is_worth_scrubbing(&self.map, slot);
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
}

impl Scrub {
    /// Accounts for a read of `blocks` blocks.
    fn begins(&mut self, blocks: u32) {
        self.under_way += 1;
        self.bucket.take(u64::from(blocks) * BLOCK);
    }
}

/// The engine's scrub, if one is running, and its reads.
#[derive(Debug)]
pub(crate) struct Scrubber {
    scrub: Option<Box<Scrub>>,
    reads: Slab<ScrubRead>,
}

/// Consecutive slots that are being read.
#[derive(Debug)]
struct ScrubRead {
    slot: u32,
    pages: Vec<Page>,
    from: From,
}

/// Where slots are read from.
#[derive(Clone, Copy, Debug)]
struct From {
    /// For a pair: which of the members.
    member: Option<u8>,
    tries: u32,
}

/// The result of reading a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Right,
    Wrong,
    /// The read failed.
    Nothing,
}

impl Scrubber {
    pub(crate) fn new() -> Self {
        Self { scrub: None, reads: Slab::new() }
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.scrub.is_some()
    }

    /// Begins to compare all cached blocks with their checksums, reading at most `bytes_per_s`.
    /// [`Notice::ScrubEnded`] follows.
    ///
    /// # Errors
    /// A scrub is running, or the engine is not serving.
    pub(crate) fn begin(&mut self, cx: &Context, bytes_per_s: u64) -> Result<(), LifecycleError> {
        cx.may_change_pool()?;
        if self.scrub.as_ref().is_some_and(|scrub| !scrub.dirty_only) {
            return Err(LifecycleError::Busy);
        }
        let copies = |number: u32| 1 + u64::from(cx.members.has_two_copies(&cx.map, number));
        let live =
            (0..).zip(&cx.map.segments).map(|(number, segment)| u64::from(segment.live) * copies(number));
        let total_blocks = live.sum();
        let report = ScrubReport { total_blocks, ..ScrubReport::default() };
        self.start(bytes_per_s, false, report);
        Ok(())
    }

    /// Compares all dirty blocks with their checksums, reading at most `bytes_per_s`: finds blocks
    /// lost before this start again without waiting for a client to read them. Raises no notice at
    /// the end. A scrub that begins replaces this check; if one is running, the call does nothing.
    pub(crate) fn check_dirty(&mut self, cx: &Context, bytes_per_s: u64) {
        if cx.may_change_pool().is_ok() && self.scrub.is_none() {
            self.start(bytes_per_s, true, ScrubReport::default());
        }
    }

    fn start(&mut self, bytes_per_s: u64, dirty_only: bool, report: ScrubReport) {
        // Reads that a check of the dirty blocks has in flight end in the scrub that replaces it.
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

    /// Ends a scrub early; [`Notice::ScrubEnded`] follows. Does nothing if there is none.
    pub(crate) fn cancel(&mut self) {
        if let Some(scrub) = self.scrub.as_mut().filter(|scrub| !scrub.dirty_only) {
            scrub.cancelled = true;
        }
    }

    /// Progress of the running scrub.
    pub(crate) fn progress(&self) -> Option<ScrubReport> {
        self.scrub.as_ref().filter(|scrub| !scrub.dirty_only).map(|scrub| scrub.report)
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.scrub.as_ref().and_then(|scrub| scrub.wake_at)
    }

    pub(crate) fn step(&mut self, cx: &mut Context) {
        let Some(mut scrub) = self.scrub.take() else { return };
        scrub.wake_at = None;
        let ends = scrub.cancelled || cx.failure.is_fenced() || cx.stopping;
        if ends {
            scrub.under_way -= cx.members.forget_asked_repairs();
        }
        let through = !ends && self.scrub_on(cx, &mut scrub);
        if scrub.under_way == 0 && (ends || through) {
            if !scrub.dirty_only {
                cx.actions.notice(Notice::ScrubEnded { report: scrub.report, complete: through });
            }
        } else {
            self.scrub = Some(scrub);
        }
    }

    /// Begins the reads that the rate allows now. Returns true if nothing is left to read.
    fn scrub_on(&mut self, cx: &mut Context, scrub: &mut Scrub) -> bool {
        scrub.bucket.settle(cx.now, scrub.bytes_per_s);
        let mut looks = sweep_slots(cx.map.geometry.slot_count());
        while scrub.under_way < READS_MAX && cx.pages.available(PageUse::Scrub) > 0 {
            if !scrub.bucket.is_open(scrub.bytes_per_s) {
                scrub.wake_at = scrub.bucket.opens_at(scrub.bytes_per_s);
                return false;
            }
            if let Some(slot) = scrub.again.pop() {
                if cx.members.is_worth_scrubbing(&cx.map, slot) {
                    scrub.begins(1);
                    let member = cx.members.scrubbed_member(&cx.map, slot, 0);
                    self.read_for_scrub(cx, slot, 1, From { member, tries: 1 });
                }
                continue;
            }
            match cx.next_run(scrub, &mut looks) {
                Some((slot, count, copy)) => {
                    scrub.begins(count);
                    let member = cx.members.scrubbed_member(&cx.map, slot, copy);
                    self.read_for_scrub(cx, slot, count, From { member, tries: 1 });
                }
                None if looks == 0 => {
                    scrub.wake_at = Some(cx.now + 1);
                    return false;
                }
                None => return scrub.under_way == 0,
            }
        }
        false
    }

    fn read_for_scrub(&mut self, cx: &mut Context, slot: u32, count: u32, from: From) {
        let pages: Vec<Page> = (0..count).filter_map(|_| cx.pages.take(PageUse::Scrub)).collect();
        let spans: Vec<_> = pages.iter().map(|page| page.span()).collect();
        cx.map.pin(slot);
        let offset = cx.members.copy_offset(&cx.map, slot, from.member);
        let read = self.reads.insert(ScrubRead { slot, pages, from });
        let op = cx.read(Device::Cache, offset, &spans, true, OpKind::ScrubRead { read });
        cx.ops.get_mut(op).slot = Some(slot);
    }

    pub(crate) fn slots_read(&mut self, cx: &mut Context, read: u32, ok: bool, crcs: &[u32]) {
        let ScrubRead { slot: first, pages, from } = self.reads.remove(read);
        for ((slot, page), index) in (first..).zip(pages).zip(0..) {
            cx.pages.give(PageUse::Scrub, page);
            let found = match crcs.get(index) {
                _ if !ok => Found::Nothing,
                Some(crc) if *crc == cx.map.crc(slot) => Found::Right,
                _ => Found::Wrong,
            };
            self.scrubbed(cx, slot, found, from);
        }
        cx.map.unpin(first);
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way -= 1;
        }
    }

    /// Handles the result of a slot's read; its segment is still pinned.
    fn scrubbed(&mut self, cx: &mut Context, slot: u32, found: Found, from: From) {
        let stale = !cx.members.is_worth_judging(&cx.map, slot);
        let paired = cx.members.has_two_copies(&cx.map, cx.map.place(slot).0);
        let elsewhere =
            cx.members.mirror().zip(from.member).is_some_and(|(mirror, member)| !mirror.counts(member));
        let elsewhere = elsewhere && !fault::planted(PlantedBug::JudgeFailedCopy);
        let Some(scrub) = &mut self.scrub else { return };
        let right = found == Found::Right;
        if elsewhere && !stale {
            // Read from a member that is no longer active: the copy that counts is on the other
            // one.
            scrub.again.push(slot);
            return;
        }
        if !right && !stale && from.tries < CACHE_READ_TRIES {
            scrub.begins(1);
            self.read_for_scrub(cx, slot, 1, From { tries: from.tries + 1, ..from });
            return;
        }
        scrub.report.checked_blocks += 1;
        if right || stale || cx.failure.is_fenced() {
            return;
        }
        if paired {
            let waits = cx.ask_repair(slot);
            self.note(|scrub| scrub.under_way += usize::from(waits));
        } else {
            self.condemn(cx, slot, found == Found::Wrong);
        }
    }

    /// Gives up a slot without a correct copy; `certain`: the read succeeded, and the checksum is
    /// wrong.
    fn condemn(&mut self, cx: &mut Context, slot: u32, certain: bool) {
        if !certain && cx.map.state(slot) != BlockState::Clean {
            // A path failover takes seconds, and this is the only copy: the next client read or
            // destage of the block decides.
            self.note(|scrub| scrub.report.unreadable_blocks += 1);
            return;
        }
        self.note(|scrub| scrub.report.damaged_blocks += 1);
        let (key, pinned) = (cx.map.key(slot), cx.map.is_pinned(slot));
        match cx.give_up(slot) {
            Damage::Lost => self.note(|scrub| scrub.report.lost_blocks += 1),
            Damage::Dropped => self.fetch_again(cx, key, pinned),
            Damage::Kept => {}
        }
    }

    /// Handles the outcome of the repair of a slot with two copies, one of them wrong.
    pub(crate) fn repaired(&mut self, cx: &mut Context, slot: u32, outcome: Outcome) {
        self.note(|scrub| scrub.under_way -= 1);
        cx.settle_again();
        if !cx.members.is_worth_judging(&cx.map, slot) || cx.failure.is_fenced() {
            return;
        }
        match outcome {
            Outcome::Sound => {}
            Outcome::Repaired => self.note(|scrub| {
                scrub.report.damaged_blocks += 1;
                scrub.report.repaired_blocks += 1;
            }),
            Outcome::Wrong => self.condemn(cx, slot, true),
            Outcome::Unread => self.condemn(cx, slot, false),
            Outcome::Alone => self.note(|scrub| {
                scrub.report.checked_blocks -= 1;
                scrub.again.push(slot);
            }),
        }
    }

    /// Byte offsets of both copies of each block that both members have, and its checksum: for
    /// oracles. Slow.
    pub(crate) fn pair_copies<'a>(&'a self, cx: &'a Context) -> impl Iterator<Item = ([u64; 2], u32)> + 'a {
        let slots = (0..cx.map.geometry.slot_count()).filter(|slot| {
            let (segment, index) = cx.map.place(*slot);
            let table = &cx.map.segments[segment as usize];
            cx.members.has_two_copies(&cx.map, segment)
                && table.live > 0
                && table.state(index) != BlockState::Void
        });
        let place = |slot, member| cx.members.copy_offset(&cx.map, slot, Some(member));
        slots.map(move |slot| ([place(slot, 0), place(slot, 1)], cx.map.crc(slot)))
    }

    fn note(&mut self, change: impl FnOnce(&mut Scrub)) {
        if let Some(scrub) = &mut self.scrub {
            change(scrub);
        }
    }

    /// Fetches a damaged clean block, which was dropped, from the backing store again, as a fill.
    fn fetch_again(&mut self, cx: &mut Context, key: Key, pinned: bool) {
        let range = BlockRange { first: key, last: key };
        let volume = key.volume();
        let serves = cx.volumes.is_attached(volume) && {
            let volume = cx.volume(volume);
            volume.fills() && (key.block() + 1) * BLOCK <= volume.limit_bytes
        };
        let idle = serves && !cx.locks.is_held(range) && !cx.fills.any_in(range);
        if !idle || cx.map.lookup(key).is_some() || cx.stopping || cx.spares_flash() {
            return;
        }
        let Some(page) = cx.pages.take(PageUse::Fill) else { return };
        let token = cx.fills.new_token();
        cx.fills.register_own(key, token, pinned);
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way += 1;
        }
        let kind = OpKind::ScrubFetch { key, page, token };
        cx.read(Device::Backing(volume), key.block() * BLOCK, &[page.span()], true, kind);
    }

    pub(crate) fn fetched(
        &mut self,
        cx: &mut Context,
        key: Key,
        page: Page,
        token: u64,
        ok: bool,
        crcs: &[u32],
    ) {
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way -= 1;
        }
        let crc = crcs.first().filter(|_| ok && cx.fills.is_valid(key, token) && !cx.failure.is_fenced());
        let Some(crc) = crc else {
            cx.fills.end(key, token);
            cx.pages.give(PageUse::Fill, page);
            cx.settle_again();
            return;
        };
        self.note(|scrub| scrub.report.repaired_blocks += 1);
        cx.coverage.add(CoverageMark::ScrubRepaired);
        cx.emit(Event::Fetched { key, crc: *crc, page, token });
    }
}

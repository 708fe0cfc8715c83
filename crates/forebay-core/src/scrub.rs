//! Scrub: everything that the cache holds is read and compared with its checksum, at a bounded rate.
//!
//! Damage shows when a block is read, and a block that nobody reads may stay damaged for long: until it is the only copy that
//! is left of something, or until a second copy of it is damaged too. A scrub goes through all segments once. What it finds is
//! treated as if a client had read it ([`Engine::give_up`]): a clean block is dropped, and fetched again from the backing store; a
//! dirty one is lost, and reported. An error is no damage: a dirty block that cannot be read is counted and left alone.
//!
//! It takes no lock: a slot is judged after it was read only if it is still the one that counts, and is never written again
//! while its segment is pinned. It yields to everybody by its rate alone. What is written while it is under way need not be
//! checked, and is checked only where the scrub has not been.

use crate::api::{Device, Nanos, Notice};
use crate::bucket::Bucket;
use crate::config::PlantedBug;
use crate::engine::{BLOCK, Engine, OpKind};
use crate::landmarks::Landmark;
use crate::life::{LifeError, sweep_slots};
use crate::locks::BlockRange;
use crate::pages::{Page, PageUse};
use crate::read::{CACHE_READ_TRIES, Damage};
use crate::segment::{Key, State};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Most blocks of one read. Longer ones would not be cheaper, and clients would wait longer behind them.
const RUN_BLOCKS: u32 = 16;
/// Most reads under way.
const READS_MAX: usize = 4;

/// What a scrub has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Blocks compared.
    pub checked_blocks: u64,
    /// Blocks that were in the cache when it began.
    pub total_blocks: u64,
    /// Blocks that were not what was written.
    pub damaged_blocks: u64,
    /// Of those, clean ones that were fetched again from the backing store. The others are fetched when somebody reads them.
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
    bucket: Bucket,
    /// The next slot to look at.
    segment: u32,
    index: u32,
    /// Reads of the cache and of backing stores under way.
    under_way: usize,
    cancelled: bool,
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
    /// A scrub is under way, the engine does not serve, or the cache is mirrored.
    pub fn begin_scrub(&mut self, now: Nanos, bytes_per_s: u64) -> Result<(), LifeError> {
        self.advance(now);
        self.may_change_pool()?;
        if self.scrub.is_some() {
            return Err(LifeError::Busy);
        }
        if self.mirror.is_some() {
            // It would have to compare both copies.
            return Err(LifeError::Mirrored);
        }
        let total_blocks = self.map.segments.iter().map(|segment| u64::from(segment.live)).sum();
        self.scrub = Some(Box::new(Scrub {
            bytes_per_s: bytes_per_s.max(BLOCK),
            bucket: Bucket::default(),
            segment: 0,
            index: 0,
            under_way: 0,
            cancelled: false,
            wake_at: None,
            report: ScrubReport { total_blocks, ..ScrubReport::default() },
        }));
        Ok(())
    }

    /// Ends a scrub early; [`Notice::ScrubEnded`] follows. Nothing happens if there is none.
    pub fn cancel_scrub(&mut self, now: Nanos) {
        self.advance(now);
        if let Some(scrub) = &mut self.scrub {
            scrub.cancelled = true;
        }
    }

    /// What the scrub under way has done so far.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<ScrubReport> {
        self.scrub.as_ref().map(|scrub| scrub.report)
    }

    pub(crate) fn scrub_deadline(&self) -> Option<Nanos> {
        self.scrub.as_ref().and_then(|scrub| scrub.wake_at)
    }

    pub(crate) fn step_scrub(&mut self) {
        let Some(mut scrub) = self.scrub.take() else { return };
        scrub.wake_at = None;
        let ends = scrub.cancelled || self.fenced || self.stopping;
        let through = !ends && self.scrub_on(&mut scrub);
        if scrub.under_way == 0 && (ends || through) {
            self.notice(Notice::ScrubEnded { report: scrub.report, complete: through });
        } else {
            self.scrub = Some(scrub);
        }
    }

    /// Begins what may be read now. True if there is nothing more to be read.
    fn scrub_on(&mut self, scrub: &mut Scrub) -> bool {
        scrub.bucket.settle(self.now, scrub.bytes_per_s);
        let mut looks = sweep_slots(self.map.geometry.slot_count());
        while scrub.under_way < READS_MAX && self.pages.available(PageUse::Scrub) > 0 {
            if !scrub.bucket.is_open(scrub.bytes_per_s) {
                scrub.wake_at = scrub.bucket.opens_at(scrub.bytes_per_s);
                return false;
            }
            match self.next_run(scrub, &mut looks) {
                Some((slot, count)) => {
                    scrub.begins(count);
                    self.read_for_scrub(slot, count, 1);
                }
                None if looks == 0 => {
                    scrub.wake_at = Some(self.now + 1);
                    return false;
                }
                None => return scrub.under_way == 0,
            }
        }
        false
    }

    /// True if a slot counts, and is not known to be lost.
    fn is_worth_scrubbing(&self, slot: u32) -> bool {
        let (segment, index) = self.map.place(slot);
        let state = self.map.segments[segment as usize].state(index);
        let overlooked = self.planted(PlantedBug::ScrubOverlooksDirty) && state == State::Dirty;
        state != State::Void && !overlooked && !(state == State::Dirty && self.map.is_lost(slot))
    }

    /// The same for one that was read: it may have been overwritten meanwhile.
    fn is_worth_judging(&self, slot: u32) -> bool {
        self.is_worth_scrubbing(slot) || self.planted(PlantedBug::ScrubJudgesVoid)
    }

    /// The next slots that count and follow one another on the device.
    fn next_run(&self, scrub: &mut Scrub, looks: &mut u32) -> Option<(u32, u32)> {
        let blocks = self.map.geometry.segment_blocks;
        let most = RUN_BLOCKS.min(self.pages.available(PageUse::Scrub));
        let mut run: Option<(u32, u32)> = None;
        while (scrub.segment as usize) < self.map.segments.len() && *looks > 0 {
            let empty = self.map.segments[scrub.segment as usize].live == 0;
            if empty || scrub.index >= blocks {
                (scrub.segment, scrub.index) = (scrub.segment + 1, 0);
                *looks -= 1;
                match run {
                    Some(run) => return Some(run),
                    None => continue,
                }
            }
            let slot = self.map.slot(scrub.segment, scrub.index);
            let counts = self.is_worth_scrubbing(slot);
            if !counts && run.is_some() {
                return run;
            }
            (scrub.index, *looks) = (scrub.index + 1, *looks - 1);
            if counts {
                let (first, count) = run.unwrap_or((slot, 0));
                run = Some((first, count + 1));
                if count + 1 == most {
                    return run;
                }
            }
        }
        run
    }

    fn read_for_scrub(&mut self, slot: u32, count: u32, tries: u32) {
        let pages: Vec<Page> = (0..count).filter_map(|_| self.pages.take(PageUse::Scrub)).collect();
        let spans: Vec<_> = pages.iter().map(|page| page.span()).collect();
        self.map.pin(slot);
        let read = self.scrub_reads.insert(ScrubRead { slot, pages, tries });
        self.read(Device::Cache, self.map.offset(slot), &spans, true, OpKind::ScrubRead { read });
    }

    pub(crate) fn scrub_read(&mut self, read: u32, ok: bool, crcs: &[u32]) {
        let ScrubRead { slot: first, pages, tries } = self.scrub_reads.remove(read);
        let count = pages.len() as u32;
        for page in pages {
            self.pages.give(PageUse::Scrub, page);
        }
        for index in 0..count {
            let slot = first + index;
            let found = match crcs.get(index as usize) {
                _ if !ok => Found::Nothing,
                Some(crc) if *crc == self.map.crc(slot) => Found::Right,
                _ => Found::Wrong,
            };
            self.scrubbed(slot, found, tries);
        }
        self.map.unpin(first);
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way -= 1;
        }
    }

    /// A slot was read; its segment is still pinned.
    fn scrubbed(&mut self, slot: u32, found: Found, tries: u32) {
        let stale = !self.is_worth_judging(slot);
        let Some(scrub) = &mut self.scrub else { return };
        let right = found == Found::Right;
        if !right && !stale && tries < CACHE_READ_TRIES {
            scrub.begins(1);
            self.read_for_scrub(slot, 1, tries + 1);
            return;
        }
        scrub.report.checked_blocks += 1;
        if right || stale || self.fenced {
            return;
        }
        if found == Found::Nothing && self.map.state(slot) != State::Clean {
            // A path that fails over takes seconds, and this is the only copy: whoever needs it decides.
            scrub.report.unreadable_blocks += 1;
            return;
        }
        scrub.report.damaged_blocks += 1;
        let (key, pinned) = (self.map.key(slot), self.map.is_pinned(slot));
        match self.give_up(slot) {
            Damage::Lost => self.scrub_counts(|report| report.lost_blocks += 1),
            Damage::Dropped => self.fetch_again(key, pinned),
            Damage::Kept => {}
        }
    }

    fn scrub_counts(&mut self, count: impl FnOnce(&mut ScrubReport)) {
        if let Some(scrub) = &mut self.scrub {
            count(&mut scrub.report);
        }
    }

    /// A damaged clean block was dropped: what the backing store has takes its place, as a fill.
    fn fetch_again(&mut self, key: Key, pinned: bool) {
        let range = BlockRange { first: key, last: key };
        let volume = key.volume();
        let serves = self.is_attached(volume) && {
            let volume = self.volume(volume);
            volume.fills() && (key.block() + 1) * BLOCK <= volume.limit_bytes
        };
        let idle = serves && !self.locks.is_held(range) && !self.fills.any_in(range);
        if !idle || self.map.lookup(key).is_some() || self.stopping {
            return;
        }
        let Some(page) = self.pages.take(PageUse::Fill) else { return };
        let token = self.fills.register(key, pinned);
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way += 1;
        }
        let kind = OpKind::ScrubFetch { key, page, token };
        self.read(Device::Backing(volume), key.block() * BLOCK, &[page.span()], true, kind);
    }

    pub(crate) fn scrub_fetched(&mut self, key: Key, page: Page, token: u64, ok: bool, crcs: &[u32]) {
        if let Some(scrub) = &mut self.scrub {
            scrub.under_way -= 1;
        }
        let crc = crcs.first().filter(|_| ok && self.fills.is_valid(key, token) && !self.fenced);
        let Some(crc) = crc else {
            self.fills.end(key, token);
            self.pages.give(PageUse::Fill, page);
            self.settle_again();
            return;
        };
        self.scrub_counts(|report| report.repaired_blocks += 1);
        self.reached(Landmark::ScrubRepaired);
        self.append_fill(key, *crc, page, token);
    }
}

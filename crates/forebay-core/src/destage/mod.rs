//! Destage: writes dirty blocks back to the backing store.
//!
//! An *extent* is a set of adjacent dirty blocks, possibly with the gaps between them, that destage
//! writes with one device write (`extent`). Destage
//!
//! 1. picks it in destage order among the waiting blocks; only blocks that the cache device holds
//!    durably, in their slot or in the slot that they were moved from (I11: else a power cut could
//!    leave the backing store newer than the cache, and recovery would treat a clean copy of the
//!    older content as current);
//! 2. under the backing lock, reads the gaps from the backing store, then the rest from the cache,
//!    and compares that with its checksums;
//! 3. writes it to the backing store, or, for an extent of discards, zeroes it there and
//!    deallocates its space;
//! 4. after a flush of the backing store, sets the blocks of the extent that clients have not
//!    overwritten meanwhile to *destaged* and queues clean marks for the log. Once its mark has
//!    been appended, a block is clean (I5).
//!
//! `order` selects the next block; `rate_controller` decides rate and concurrency.

pub(crate) mod cost;
pub(crate) mod extent;
pub(crate) mod order;
pub(crate) mod ordered;
pub(crate) mod rate_controller;
pub(crate) mod report;
pub(crate) mod state;

use crate::api::destage::Limit;
use crate::api::{Device, IoAction, Nanos, Notice, OpId, Span};
use crate::base::slab::Slab;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::operations::OpKind;
use crate::context::pages::PageUse;
use crate::context::sectors::{BLOCK, push_span, sector_runs};
use crate::context::volume::Volume;
use crate::context::volumes::Volumes;
use crate::destage::extent::{Extent, Most, Part};
use crate::destage::rate_controller::DestagePlan;
use crate::destage::state::FLUSH_DELAY_NS;
use crate::fault::{self, PlantedBug};
use crate::map::MASK_FULL;
use crate::map::segment::{BlockState, Key};
use alloc::vec::Vec;
use forebay_format::{StreamKind, VolumeId};

/// Blocks written since the last backing flush that justify a flush.
const FLUSH_WORTH_BLOCKS: u64 = 1024;
/// The same while free segments are short and emptied ones wait for a flush, perhaps of another
/// store.
const FLUSH_FOR_ROOM_BLOCKS: u64 = 32;
/// Destage leaves gaps alone for so long after a gap could not be read.
const FILL_PAUSE_NS: Nanos = 10_000_000_000;
/// Consecutive failures after which nothing waits for a rescue; the rescue continues all the same.
const RESCUE_TRIES: u32 = 3;
/// Busy blocks after which destage stops trying a volume for now.
const BUSY_MAX: u32 = 16;

/// Extents in flight, and those that wait for a flush of their backing store.
#[derive(Debug)]
pub(crate) struct Destager {
    extents: Slab<Extent>,
}

impl Destager {
    pub(crate) fn new() -> Self {
        Self { extents: Slab::new() }
    }

    pub(crate) fn extents_len(&self) -> usize {
        self.extents.len()
    }
}

/// Result of trying a candidate for destage.
enum Pick {
    /// Started an extent.
    Started,
    /// Cannot take this block now; try further ones.
    Busy,
    /// Cannot take any block until another event.
    Wait(Limit),
}

fn limit_is_of_operator(limit: Limit) -> bool {
    matches!(limit, Limit::MaxIops | Limit::MaxBandwidth)
}

impl Volume {
    /// Returns true if a flush is in flight, and enough for the next one has been written since. On
    /// stores that let new writes overtake a flush, it would otherwise never complete.
    fn flush_is_behind(&self) -> bool {
        self.flusher.is_running() && self.destage.written_blocks >= FLUSH_WORTH_BLOCKS
    }
}

impl Volumes {
    /// Returns true if the last write-back of any volume failed.
    pub(crate) fn is_destage_failing(&self) -> bool {
        self.iter().any(|volume| volume.destage.rate.failures() > 0)
    }
}

impl Context {
    fn count_destage_write(&mut self, id: VolumeId) {
        self.stats.destage_writes += 1;
        self.volume_mut(id).destage.rate.count_write();
    }

    /// Returns true if the cache device holds the content of this slot durably (I11), or is given
    /// up. Reclaim moves only durable dirty blocks, and the log does not reuse their old segment
    /// before a checkpoint records the copy (I7): so a copy counts as durable from the start.
    pub(crate) fn is_held(&self, slot: u32) -> bool {
        let segment = self.map.place(slot).0 as usize;
        let is_copy = || self.map.segments[segment].stream == StreamKind::Survivor;
        self.map.is_durable(slot) || is_copy() || self.failure.runs_without_cache()
    }

    pub(crate) fn is_destageable(&self, slot: u32) -> bool {
        self.is_held(slot) || fault::planted(PlantedBug::DestageBeforeDurable)
    }

    fn back_off(&mut self, id: VolumeId) {
        let now = self.now;
        self.stats.destage_failures += 1;
        let paused = self.volume_mut(id).destage.rate.failed(now);
        if let Some(retry_in) = paused {
            self.actions.notice(Notice::DestageFailed { volume: id, retry_in });
        }
        if self.failure.runs_without_cache() && self.volume(id).destage.rate.failures() >= RESCUE_TRIES {
            let stopping = self.stopping;
            let volume = self.volume_mut(id);
            (volume.rescue_failed, volume.rescue_given_up) = (true, stopping);
        }
    }

    /// Returns true if free segments are short, and a backing flush would empty some.
    fn flush_makes_room(&mut self) -> bool {
        let wanted = self.free.window_size as usize;
        self.free.free_segments() < wanted && self.map.are_empty_in_use((wanted / 4).max(1))
    }

    /// Flushes the backing store if enough was written, if something waits for the flush, or if no
    /// other destage work is left.
    fn flush_extents(&mut self, id: VolumeId, pressed: bool) {
        let volume = self.volume(id);
        let destage = &volume.destage;
        let resting = destage.rate.is_backing_off(self.now);
        if destage.written.is_empty() || volume.flusher.is_running() || resting {
            return;
        }
        // Blocks of a later flush epoch wait for this flush.
        let may_go = self.map.volumes[usize::from(id.0)].waiting.next_from(0).is_some();
        let nothing_else = !may_go || pressed || self.stopping;
        let due = destage.in_flight == 0 && nothing_else
            || destage.written_blocks >= FLUSH_WORTH_BLOCKS
            || self.now >= destage.written_since + FLUSH_DELAY_NS;
        if due || destage.written_blocks >= FLUSH_FOR_ROOM_BLOCKS && self.flush_makes_room() {
            self.volume_mut(id).destage.written_blocks = 0;
            self.flush(Device::Backing(id), Waiter::None);
        }
    }

    /// Flushes the backing stores before a shutdown; returns true while flushes are in flight.
    pub(crate) fn flush_backings_for_shutdown(&mut self) -> bool {
        let mut busy = false;
        for id in self.volumes.ids() {
            let Some(volume) = self.volumes.get(id) else { continue };
            if volume.flusher.is_running() {
                busy = true;
            } else if volume.flusher.has_unflushed() && !volume.gave_up {
                self.volume_mut(id).gave_up = true;
                self.flush(Device::Backing(id), Waiter::None);
                busy = true;
            }
        }
        busy
    }
}

impl Destager {
    pub(crate) fn step(&mut self, cx: &mut Context) {
        for id in cx.volumes.ids() {
            let Some(volume) = cx.volumes.get(id) else { continue };
            let map = &cx.map.volumes[usize::from(id.0)];
            let nothing = map.waiting.len() == 0 && !volume.destage.is_under_way();
            if nothing && volume.destage.rate.is_idle(cx.now, map.dirty) {
                continue;
            }
            let plan = cx.destage_plan(id);
            let limit = self.start_extents(cx, id, &plan);
            let wake = match limit {
                (_, Some(at)) => Some(at),
                (limit, None) => cx.wake_for(id, limit),
            };
            cx.volume_mut(id).destage.rate.rest(&plan, limit.0, wake);
            cx.flush_extents(id, plan.pressed);
        }
    }

    /// Starts the extents that the plan allows. Returns the limit that prevents more, and its end
    /// if known.
    fn start_extents(
        &mut self,
        cx: &mut Context,
        id: VolumeId,
        plan: &DestagePlan,
    ) -> (Limit, Option<Nanos>) {
        if plan.depth == 0 {
            return (plan.why, None);
        }
        let mut quota = None;
        let mut busy = 0;
        while busy < BUSY_MAX {
            if cx.volume(id).destage.in_flight >= plan.depth {
                let yields = plan.why == Limit::ForegroundLatency;
                return (if yields { plan.why } else { Limit::BackingStore }, None);
            }
            if cx.volume(id).flush_is_behind() {
                return (Limit::BackingStore, None);
            }
            let (now, volume) = (cx.now, cx.volume_mut(id));
            if let Some((limit, at)) = volume.destage.rate.gate(now, plan, &volume.settings)
                && !(limit_is_of_operator(limit) && fault::planted(PlantedBug::ExceedLimits))
            {
                return (limit, Some(at));
            }
            let Some(block) = cx.next_to_destage(id) else {
                return (if busy > 0 { Limit::BusyBlocks } else { Limit::BackingStore }, None);
            };
            let quota = *quota.get_or_insert_with(|| cx.page_quota(id, cx.pages.limit(PageUse::Destage)));
            let held = cx.volume(id).destage.pages_held;
            let room = quota.saturating_sub(held).min(cx.pages.available(PageUse::Destage));
            if held > 0 && room < plan.extent_blocks.min(quota) / 2 {
                // A long extent soon is better than a short one now.
                return (Limit::Scratch, None);
            }
            let most = Most { blocks: room.min(plan.extent_blocks), dirty: plan.extent_dirty };
            match self.pick(cx, id, block, most) {
                Pick::Started => busy = 0,
                Pick::Busy => busy += 1,
                Pick::Wait(limit) => return (limit, None),
            }
        }
        (Limit::BusyBlocks, None)
    }

    /// Tries to start an extent of at most `most` blocks around `block`: it grows forwards, then
    /// backwards.
    fn pick(&mut self, cx: &mut Context, id: VolumeId, block: u64, most: Most) -> Pick {
        let slot = cx.map.slot_to_destage(Key::new(id, block)).expect("a waiting block is in the map");
        cx.volume_mut(id).destage.cursor = block + 1;
        if !cx.is_destageable(slot) {
            cx.want_cache_flush();
            return Pick::Wait(Limit::CacheFlush);
        }
        if most.blocks == 0 {
            return Pick::Wait(Limit::Scratch);
        }
        if cx.map.order(id).is_some() && cx.map.is_shadow(slot) {
            cx.coverage.add(CoverageMark::Shadow);
        }
        let extent = cx.plan_extent(id, block, slot, most);
        let end = extent.first + extent.parts.len() as u64;
        let locked = extent.locked(fault::planted(PlantedBug::FillGapsUnlocked));
        if !cx.backing_locks.try_acquire(locked) {
            return Pick::Busy;
        }
        cx.volume_mut(id).destage.cursor = end;
        self.start_extent(cx, extent);
        Pick::Started
    }

    /// Takes pages for an extent and reads its gaps from the backing store, or, if it has none, its
    /// blocks from the cache.
    fn start_extent(&mut self, cx: &mut Context, extent: Extent) {
        let id = extent.volume;
        let (blocks, dirty) = (extent.parts.len() as u32, extent.slots.len() as u32);
        let mask = cx.map.mask(extent.slots[0]);
        let writes = if mask == MASK_FULL { 1 } else { sector_runs(mask).count() as u64 };
        let read = extent.to_read();
        let destage = &mut cx.volume_mut(id).destage;
        let reads = read.map_or(0, |(first, last)| (last - first + 1) as u64);
        let time = destage.cost.of_extent(writes, blocks.into(), reads);
        destage.in_flight += 1;
        destage.started += 1;
        destage.pages_held += blocks;
        destage.rate.charge(dirty.into(), blocks.into(), writes, time);
        cx.stats.gap_filled_blocks += u64::from(blocks - dirty);
        if blocks > dirty {
            cx.coverage.add(if reads > 0 {
                CoverageMark::GapFromBacking
            } else {
                CoverageMark::GapFromCache
            });
        }
        let (first, number) = (extent.first, self.extents.insert(extent));
        self.extents.get_mut(number).pages = Vec::with_capacity(blocks as usize);
        for at in 0..blocks as usize {
            let page = cx.pages.take(PageUse::Destage).expect("pages were counted");
            let extent = self.extents.get_mut(number);
            extent.pages.push(page);
            let part = extent.parts[at];
            if let Part::Dirty(_) = part {
                cx.map.volumes[usize::from(id.0)].waiting.remove(first + at as u64);
            }
            if let Some(slot) = part.slot() {
                cx.map.pin(slot);
            }
        }
        match read {
            Some((from, to)) => self.read_gaps(cx, number, from, to),
            None => self.read_extent(cx, number),
        }
    }

    /// Reads a range of the backing store into the pages of an extent, under its lock.
    fn read_gaps(&self, cx: &mut Context, number: u32, from: usize, to: usize) {
        let extent = self.extents.get(number);
        let (id, offset) = (extent.volume, (extent.first + from as u64) * BLOCK);
        let mut spans: Vec<Span> = Vec::new();
        extent.pages[from..=to].iter().for_each(|page| push_span(&mut spans, page.span()));
        cx.read(Device::Backing(id), offset, &spans, false, OpKind::GapRead { extent: number });
    }

    pub(crate) fn gaps_read(&mut self, cx: &mut Context, number: u32, ok: bool) {
        if ok {
            self.read_extent(cx, number);
            return;
        }
        cx.coverage.add(CoverageMark::GapUnreadable);
        // A sector between dirty blocks may be unreadable: write them without the gap.
        let id = self.extents.get(number).volume;
        let until = cx.now + FILL_PAUSE_NS;
        cx.volume_mut(id).destage.fill_pause_until = until;
        self.end_extent_io(cx, number);
        self.retry_extent(cx, number);
    }

    /// Reads the blocks of an extent that are cached.
    fn read_extent(&mut self, cx: &mut Context, number: u32) {
        let mut at = 0;
        while at < self.extents.get(number).parts.len() {
            let parts = &self.extents.get(number).parts;
            let Some(slot) = parts[at].slot() else {
                at += 1;
                continue;
            };
            let room = (cx.map.geometry.segment_blocks - cx.map.place(slot).1) as usize;
            let follows = |count: usize| {
                parts.get(at + count).is_some_and(|part| part.slot() == Some(slot + count as u32))
            };
            let mut count = 1;
            while count < room && follows(count) {
                count += 1;
            }
            self.read_extent_part(cx, number, at, count, 1);
            at += count;
        }
        self.extent_part_read(cx, number, true);
    }

    fn read_extent_part(&mut self, cx: &mut Context, number: u32, at: usize, count: usize, tries: u32) {
        let extent = self.extents.get_mut(number);
        extent.pending += 1;
        let slot = extent.parts[at].slot().expect("what is read from the cache has a slot");
        let mut spans: Vec<Span> = Vec::with_capacity(count);
        for page in &extent.pages[at..at + count] {
            push_span(&mut spans, page.span());
        }
        let (at, count) = (at as u32, count as u32);
        let kind = OpKind::DestageRead { extent: number, at, count, tries };
        cx.read_slots((slot, count), tries, &spans, kind);
    }

    pub(crate) fn part_read(
        &mut self,
        cx: &mut Context,
        number: u32,
        (at, count, tries): (u32, u32, u32),
        ok: bool,
        crcs: &[u32],
    ) {
        let trust = fault::planted(PlantedBug::SkipChecksum);
        let mut fine = true;
        for index in 0..count {
            let at = (at + index) as usize;
            let part = self.extents.get(number).parts[at];
            let slot = part.slot().expect("what was read from the cache has a slot");
            if ok && (trust || crcs.get(index as usize) == Some(&cx.map.crc(slot))) {
                self.extents.get_mut(number).compared += 1;
                continue;
            }
            if tries < cx.members.slot_tries(&cx.map, slot) {
                self.read_extent_part(cx, number, at, 1, tries + 1);
                continue;
            }
            fine = false;
            let counts = match part {
                Part::Dirty(_) => cx.map.state(slot) == BlockState::Dirty,
                _ => cx.map.state(slot) == BlockState::Clean,
            };
            if counts {
                cx.give_up(slot);
            }
        }
        self.extent_part_read(cx, number, fine);
    }

    fn extent_part_read(&mut self, cx: &mut Context, number: u32, ok: bool) {
        let extent = self.extents.get_mut(number);
        extent.failed |= !ok;
        extent.pending -= 1;
        if extent.pending > 0 {
            return;
        }
        if extent.failed {
            self.end_extent_io(cx, number);
            self.retry_extent(cx, number);
        } else {
            self.write_extent(cx, number);
        }
    }

    fn write_extent(&mut self, cx: &mut Context, number: u32) {
        let extent = self.extents.get(number);
        let cached = extent.parts.iter().filter(|part| part.slot().is_some()).count();
        assert!(extent.compared == cached, "I4: only what was compared with its checksum is written back");
        let durable = |slot: &u32| cx.is_held(*slot);
        assert!(extent.slots.iter().all(durable), "I11: only what the cache holds durably is written back");
        let (id, first) = (extent.volume, extent.first);
        self.extents.get_mut(number).is_written = true;
        let extent = self.extents.get(number);
        let mask = if extent.parts.len() == 1 { cx.map.mask(extent.slots[0]) } else { MASK_FULL };
        if mask != MASK_FULL {
            let mask = cx.volume(id).block_mask(first) & mask;
            let page = extent.pages[0];
            let runs: Vec<(u32, u32)> = sector_runs(mask).collect();
            self.extents.get_mut(number).pending = runs.len() as u32;
            for (from, to) in runs {
                let offset = first * BLOCK + u64::from(from);
                let kind = OpKind::DestageWrite { extent: number };
                cx.count_destage_write(id);
                cx.write_backing(id, offset, &[page.part(from, to)], kind);
            }
            return;
        }
        if extent.is_discard {
            let last = first + extent.parts.len() as u64 - 1;
            let len = (last - first) * BLOCK + cx.volume(id).block_len(last);
            self.extents.get_mut(number).pending = 1;
            cx.count_destage_write(id);
            let op = OpId(cx.ops.begin(OpKind::DestageWrite { extent: number }, cx.now));
            cx.actions.push_io(IoAction::Zero {
                op,
                volume: id,
                offset: first * BLOCK,
                len,
                may_unmap: true,
            });
            return;
        }
        let mut spans: Vec<Span> = Vec::with_capacity(extent.pages.len());
        for (at, page) in extent.pages.iter().enumerate() {
            let len = cx.volume(id).block_len(first + at as u64) as u32;
            push_span(&mut spans, page.part(0, len));
        }
        self.extents.get_mut(number).pending = 1;
        cx.count_destage_write(id);
        cx.write_backing(id, first * BLOCK, &spans, OpKind::DestageWrite { extent: number });
    }

    pub(crate) fn written(&mut self, cx: &mut Context, number: u32, ok: bool) {
        let extent = self.extents.get_mut(number);
        extent.failed |= !ok;
        extent.pending -= 1;
        if extent.pending > 0 {
            return;
        }
        let (id, failed, blocks) = (extent.volume, extent.failed, extent.slots.len() as u64);
        self.end_extent_io(cx, number);
        cx.volume_mut(id).flusher.note_write();
        if failed {
            cx.back_off(id);
            self.retry_extent(cx, number);
            return;
        }
        let now = cx.now;
        let destage = &mut cx.volume_mut(id).destage;
        destage.rate.succeeded();
        if destage.written.is_empty() {
            destage.written_since = now;
        }
        destage.written.push(number);
        destage.written_blocks += blocks;
        if fault::planted(PlantedBug::CleanBeforeBackingFlush) {
            let early = core::mem::take(&mut cx.volume_mut(id).destage.written);
            cx.volume_mut(id).destage.flushing.extend(early);
            self.flushed(cx, id, true);
        }
    }

    /// Releases the pages and the backing lock of an extent whose device operations have ended.
    fn end_extent_io(&mut self, cx: &mut Context, number: u32) {
        let forgets_gaps = fault::planted(PlantedBug::FillGapsUnlocked);
        let extent = self.extents.get_mut(number);
        let (id, range) = (extent.volume, extent.locked(forgets_gaps));
        let pages = core::mem::take(&mut extent.pages);
        let parts = core::mem::take(&mut extent.parts);
        let destage = &mut cx.volume_mut(id).destage;
        destage.in_flight -= 1;
        destage.pages_held -= pages.len() as u32;
        for page in pages {
            cx.pages.give(PageUse::Destage, page);
        }
        for part in parts {
            if let Part::Cached(slot) = part {
                cx.map.unpin(slot);
            }
        }
        cx.release_backing(range);
    }

    /// Follows a block that was moved `from` the slot in which destage picked it, so that it
    /// becomes clean in its new slot. Else it would have to wait for its turn once more, however
    /// old it is.
    pub(crate) fn follow(&mut self, cx: &mut Context, (from, to): (u32, u32)) {
        if fault::planted(PlantedBug::LoseMovedExtent) {
            return;
        }
        let key = cx.map.key(from);
        let near = |extent: &&mut Extent| extent.volume == key.volume() && extent.first <= key.block();
        let place = |extent: &Extent| extent.slots.iter().position(|slot| *slot == from);
        let found = self.extents.iter_mut().filter(near).find_map(|extent| Some((place(extent)?, extent)));
        let (at, extent) = found.expect("a block that was picked is in an extent");
        extent.slots[at] = to;
        cx.map.pin(to);
        // Reads and comparisons in flight stay on the old slot.
        match extent.parts.iter_mut().find(|part| **part == Part::Dirty(from)) {
            Some(part) => *part = Part::Cached(from),
            None => cx.map.unpin(from),
        }
    }

    /// Drops an extent that could not be written: its blocks wait again.
    fn retry_extent(&mut self, cx: &mut Context, number: u32) {
        let extent = self.extents.remove(number);
        for slot in extent.slots {
            cx.map.wait_again(slot);
            cx.rewind_walk(extent.volume, slot);
            cx.map.unpin(slot);
        }
    }

    /// Handles the end of a backing flush: the extents that it covers become destaged, or wait
    /// again.
    pub(crate) fn flushed(&mut self, cx: &mut Context, id: VolumeId, ok: bool) {
        let mut extents = core::mem::take(&mut cx.volume_mut(id).destage.flushing);
        if !ok && !fault::planted(PlantedBug::TrustDestageInFlight) {
            self.distrust_written(cx, id, &mut extents);
        }
        if extents.is_empty() {
            return;
        }
        if !ok {
            cx.coverage.add(CoverageMark::DestageFlushFailed);
            cx.back_off(id);
            for number in extents {
                self.retry_extent(cx, number);
            }
            return;
        }
        let mut blocks = 0;
        for number in extents {
            let extent = self.extents.remove(number);
            for slot in extent.slots {
                if cx.map.state(slot) == BlockState::Dirty && cx.failure.runs_without_cache() {
                    cx.rescued(slot);
                    blocks += 1;
                } else if cx.map.state(slot) == BlockState::Dirty {
                    // A shadow is an older version: the newer one of its block stays at risk.
                    if cx.failure.is_fenced() && !cx.map.is_shadow(slot) {
                        cx.note_safer(cx.map.key(slot), cx.map.mask(slot));
                    }
                    cx.map.set_state(slot, BlockState::Destaged);
                    cx.log.marks.add(slot, cx.now);
                    cx.model_cleaned(slot);
                    blocks += 1;
                }
                cx.map.unpin(slot);
            }
        }
        cx.stats.destaged_blocks += blocks;
        cx.counters.of(id).destaged_blocks += blocks;
        let control = &mut cx.volume_mut(id).destage.rate;
        control.succeeded();
        control.note_destaged(blocks);
        let saturated = !core::mem::take(&mut control.paced);
        cx.emit(Event::Destaged { volume: id, blocks, saturated });
    }

    /// Handles a failed flush: extents written while it was in flight may have reached the backing
    /// store before it and been dropped with the rest. Destage writes them again (I84).
    fn distrust_written(&mut self, cx: &mut Context, id: VolumeId, failed: &mut Vec<u32>) {
        let destage = &mut cx.volume_mut(id).destage;
        destage.written_blocks = 0;
        failed.append(&mut destage.written);
        for extent in self.extents.iter_mut().filter(|extent| extent.volume == id) {
            extent.failed |= extent.is_written;
        }
    }

    /// Sets blocks back to dirty that a bypass write is about to overwrite on the backing store
    /// (`slots` is sorted): a flush no longer makes their content durable. They stay dirty until
    /// the bypass write drops them, and if it fails.
    pub(crate) fn undo(&mut self, cx: &mut Context, id: VolumeId, slots: &[u32]) {
        if slots.is_empty() {
            return;
        }
        let destage = &cx.volume(id).destage;
        let extents: Vec<u32> = destage.written.iter().chain(&destage.flushing).copied().collect();
        for number in extents {
            let all = core::mem::take(&mut self.extents.get_mut(number).slots);
            let (undone, kept) = all.into_iter().partition(|slot| slots.binary_search(slot).is_ok());
            self.extents.get_mut(number).slots = kept;
            let undone: Vec<u32> = undone;
            if !undone.is_empty() {
                cx.coverage.add(CoverageMark::DestageUndone);
            }
            for slot in undone {
                cx.map.unpin(slot);
            }
        }
        for slot in slots {
            match cx.map.state(*slot) {
                BlockState::Destaged => cx.map.set_state(*slot, BlockState::Dirty),
                _ => cx.map.wait_again(*slot),
            }
            cx.rewind_walk(id, *slot);
        }
    }
}

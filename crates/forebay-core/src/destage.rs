//! Writing dirty blocks back.
//!
//! An *extent* is a run of adjacent dirty blocks that is written back with one device write:
//!
//! 1. picked by the destage order among the blocks that wait; only blocks that the cache device holds durably (I11:
//!    else a power cut could leave the backing store newer than the cache, and a clean copy of the older content would
//!    be believed);
//! 2. read from the cache and compared with its checksums;
//! 3. written to the backing store, under the backing lock;
//! 4. when the backing store has been flushed: those of its blocks that were not overwritten meanwhile become
//!    *destaged*, and a clean mark for them is queued for the log. When the mark has been appended they are clean (I5).
//!
//! How many extents are under way grows with the pressure: how far the dirty level is above `dirty_low_pct`, a drain,
//! writers that wait, reclaim that found nothing to free. Foreground reads of the backing store hold it down.

use crate::api::{Device, Nanos, Notice, Span};
use crate::config::PlantedBug;
use crate::engine::{BLOCK, Engine, OpKind, push_span, sector_runs};
use crate::flush::Waiter;
use crate::locks::BlockRange;
use crate::map::MASK_FULL;
use crate::pages::{Page, PageUse};
use crate::read::CACHE_READ_TRIES;
use crate::segment::{Key, State};
use crate::settings::DestageOrder;
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// Most blocks in one extent (1 MiB).
const EXTENT_BLOCKS_MAX: u32 = 256;
/// Blocks written since the last backing flush that are worth a flush.
const FLUSH_WORTH_BLOCKS: u64 = 512;
/// First and longest pause after a failed write-back.
const BACKOFF_NS: core::ops::RangeInclusive<Nanos> = 100_000_000..=10_000_000_000;

/// Destage of one volume.
#[derive(Debug)]
pub(crate) struct Destage {
    /// Where the elevator is.
    cursor: u64,
    /// Extents being read or written.
    in_flight: u32,
    /// Extents on the backing store that no flush covers.
    pub(crate) written: Vec<u32>,
    written_blocks: u64,
    /// Extents that the running flush covers.
    pub(crate) flushing: Vec<u32>,
    pub(crate) backoff_until: Nanos,
    backoff: Nanos,
}

impl Default for Destage {
    fn default() -> Self {
        Self {
            cursor: 0,
            in_flight: 0,
            written: Vec::new(),
            written_blocks: 0,
            flushing: Vec::new(),
            backoff_until: 0,
            backoff: *BACKOFF_NS.start(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Extent {
    volume: VolumeId,
    first: u64,
    slots: Vec<u32>,
    pages: Vec<Page>,
    pending: u32,
    failed: bool,
}

impl Extent {
    fn blocks(&self) -> BlockRange {
        let last = self.first + self.slots.len() as u64 - 1;
        BlockRange { first: Key::new(self.volume, self.first), last: Key::new(self.volume, last) }
    }
}

impl Destage {
    /// Blocks are being read or written, or wait for a flush of the backing store.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight > 0 || !self.written.is_empty() || !self.flushing.is_empty()
    }
}

/// What a candidate for destage turned out to be.
enum Pick {
    /// An extent was started.
    Started,
    /// This block cannot be taken now; look further.
    Busy,
    /// Nothing can be taken until something else happens.
    Wait,
}

impl Engine {
    pub(crate) fn step_destage(&mut self) {
        for index in 0..self.volumes.len() {
            let Some(volume) = &self.volumes[index] else { continue };
            let id = volume.id;
            let depth = self.destage_depth(id);
            let mut misses = 0;
            while self.volume(id).destage.in_flight < depth && misses < 16 {
                let Some(block) = self.next_to_destage(id) else { break };
                match self.pick(id, block) {
                    Pick::Started => misses = 0,
                    Pick::Busy => misses += 1,
                    Pick::Wait => break,
                }
            }
            self.flush_extents(id);
        }
    }

    /// How many extents of a volume may be under way now.
    fn destage_depth(&self, id: VolumeId) -> u32 {
        let volume = self.volume(id);
        let waiting = self.map.volumes[usize::from(id.0)].waiting.len();
        if waiting == 0 || self.now < volume.destage.backoff_until || self.is_winding_down() || self.fenced {
            return 0;
        }
        let most = volume.settings.destage_depth_max.max(1);
        if volume.draining
            || self.throttle.has_waiting()
            || self.reclaim_wants_destage
            || self.writes_wait_for_order(id)
        {
            return most;
        }
        let low = self.data_capacity() * u64::from(volume.settings.dirty_low_pct) / 100;
        let (level, _, high) = self.dirty_levels();
        let mut depth = 0;
        if level > low {
            depth = 1 + u64::from(most - 1) * (level - low) / high.saturating_sub(low).max(1);
        }
        if volume.idle_at().is_some_and(|at| self.now >= at) {
            depth = depth.max(u64::from(most / 2).max(1));
        }
        let depth = depth.min(u64::from(most)) as u32;
        // Reads that wait for the disk go first: leave it one write at a time while there is no pressure.
        if volume.misses_in_flight > 0 { depth.min(1) } else { depth }
    }

    fn next_to_destage(&mut self, id: VolumeId) -> Option<u64> {
        let waiting = &self.map.volumes[usize::from(id.0)].waiting;
        match self.volume(id).settings.destage_order {
            DestageOrder::Elevator | DestageOrder::Lru | DestageOrder::Ordered => {
                let cursor = self.volume(id).destage.cursor;
                waiting.next_from(cursor).or_else(|| waiting.next_from(0))
            }
            DestageOrder::Fifo => self.oldest_waiting(id),
        }
    }

    /// The waiting block that was written first: segments age as a whole, slots in their order.
    fn oldest_waiting(&self, id: VolumeId) -> Option<u64> {
        let waiting = &self.map.volumes[usize::from(id.0)].waiting;
        let mut numbers: Vec<u32> = (0..self.map.segments.len() as u32)
            .filter(|number| self.map.segments[*number as usize].unclean > 0)
            .collect();
        numbers.sort_unstable_by_key(|number| self.map.segments[*number as usize].born);
        numbers.into_iter().find_map(|number| {
            let segment = &self.map.segments[number as usize];
            (0..self.map.geometry.segment_blocks).find_map(|index| {
                let key = segment.key(index);
                let found = segment.state(index) == State::Dirty
                    && key.volume() == id
                    && waiting.contains(key.block());
                found.then(|| key.block())
            })
        })
    }

    /// Tries to start an extent at `block`.
    fn pick(&mut self, id: VolumeId, block: u64) -> Pick {
        self.volume_mut(id).destage.cursor = block + 1;
        let slot = self.map.slot_to_destage(Key::new(id, block)).expect("a waiting block is in the map");
        if !self.is_destageable(slot) {
            if (self.cache_flush.unflushed || self.cache_flush.is_running())
                && !self.cache_flush.waits(Waiter::Nobody)
            {
                self.flush(Device::Cache, Waiter::Nobody);
            }
            return Pick::Wait;
        }
        let pages = self.pages.available(PageUse::Destage).min(EXTENT_BLOCKS_MAX);
        if pages == 0 {
            return Pick::Wait;
        }
        let mut slots = alloc::vec![slot];
        let mask = self.map.mask(slot);
        if mask == MASK_FULL {
            while (slots.len() as u32) < pages {
                let Some(next) = self.joins(id, block + slots.len() as u64) else { break };
                slots.push(next);
            }
        }
        let extent = Extent { volume: id, first: block, slots, pages: Vec::new(), pending: 1, failed: false };
        if !self.backing_locks.try_acquire(extent.blocks()) {
            return Pick::Busy;
        }
        self.volume_mut(id).destage.cursor = block + extent.slots.len() as u64;
        self.start_extent(extent);
        Pick::Started
    }

    fn is_destageable(&self, slot: u32) -> bool {
        self.map.is_durable(slot) || self.planted(PlantedBug::DestageBeforeDurable)
    }

    /// The slot of a block that can be added to an extent ending just before it.
    fn joins(&self, id: VolumeId, block: u64) -> Option<u32> {
        let key = Key::new(id, block);
        if !self.map.volumes[usize::from(id.0)].waiting.contains(block)
            || !self.backing_locks.is_idle(BlockRange { first: key, last: key })
        {
            return None;
        }
        self.map
            .slot_to_destage(key)
            .filter(|slot| self.map.mask(*slot) == MASK_FULL && self.is_destageable(*slot))
    }

    fn start_extent(&mut self, extent: Extent) {
        let id = extent.volume;
        self.volume_mut(id).destage.in_flight += 1;
        let first = extent.first;
        let number = self.extents.insert(extent);
        for at in 0..self.extents.get(number).slots.len() {
            let page = self.pages.take(PageUse::Destage).expect("pages were counted");
            let extent = self.extents.get_mut(number);
            extent.pages.push(page);
            let slot = extent.slots[at];
            self.map.volumes[usize::from(id.0)].waiting.remove(first + at as u64);
            self.map.pin(slot);
        }
        let mut at = 0;
        while at < self.extents.get(number).slots.len() {
            let slots = &self.extents.get(number).slots;
            let slot = slots[at];
            let room = (self.map.geometry.segment_blocks - self.map.place(slot).1) as usize;
            let mut count = 1;
            while at + count < slots.len() && count < room && slots[at + count] == slot + count as u32 {
                count += 1;
            }
            self.read_extent_part(number, at, count, 1);
            at += count;
        }
        self.extent_part_read(number, true);
    }

    fn read_extent_part(&mut self, number: u32, at: usize, count: usize, tries: u32) {
        let extent = self.extents.get_mut(number);
        extent.pending += 1;
        let slot = extent.slots[at];
        let mut spans: Vec<Span> = Vec::new();
        for page in &extent.pages[at..at + count] {
            push_span(&mut spans, page.span());
        }
        let kind = OpKind::DestageRead { extent: number, slot, count: count as u32, tries };
        self.read(Device::Cache, self.map.offset(slot), &spans, true, kind);
    }

    pub(crate) fn destage_read(
        &mut self,
        number: u32,
        slot: u32,
        count: u32,
        tries: u32,
        ok: bool,
        crcs: &[u32],
    ) {
        let trust = self.planted(PlantedBug::SkipChecksum);
        let mut fine = true;
        for index in 0..count {
            let slot = slot + index;
            if ok && (trust || crcs.get(index as usize) == Some(&self.map.crc(slot))) {
                continue;
            }
            if tries < CACHE_READ_TRIES {
                let extent = self.extents.get(number);
                let at = extent.slots.iter().position(|other| *other == slot).expect("a slot of the extent");
                self.read_extent_part(number, at, 1, tries + 1);
                continue;
            }
            fine = false;
            if self.map.state(slot) == State::Dirty {
                self.give_up(slot);
            }
        }
        self.extent_part_read(number, fine);
    }

    fn extent_part_read(&mut self, number: u32, ok: bool) {
        let extent = self.extents.get_mut(number);
        extent.failed |= !ok;
        extent.pending -= 1;
        if extent.pending > 0 {
            return;
        }
        if extent.failed {
            self.end_extent_io(number);
            self.retry_extent(number);
        } else {
            self.write_extent(number);
        }
    }

    fn write_extent(&mut self, number: u32) {
        let extent = self.extents.get(number);
        let (id, first) = (extent.volume, extent.first);
        let mask = self.map.mask(extent.slots[0]);
        if mask != MASK_FULL {
            let mask = self.block_mask(id, first) & mask;
            let page = extent.pages[0];
            let runs: Vec<(u32, u32)> = sector_runs(mask).collect();
            self.extents.get_mut(number).pending = runs.len() as u32;
            for (from, to) in runs {
                let offset = first * BLOCK + u64::from(from);
                let kind = OpKind::DestageWrite { extent: number };
                self.write_backing(id, offset, &[page.part(from, to)], kind);
            }
            return;
        }
        let mut spans: Vec<Span> = Vec::new();
        for (at, page) in extent.pages.iter().enumerate() {
            let len = self.block_len(id, first + at as u64) as u32;
            push_span(&mut spans, page.part(0, len));
        }
        self.extents.get_mut(number).pending = 1;
        self.write_backing(id, first * BLOCK, &spans, OpKind::DestageWrite { extent: number });
    }

    pub(crate) fn destage_written(&mut self, number: u32, ok: bool) {
        let extent = self.extents.get_mut(number);
        extent.failed |= !ok;
        extent.pending -= 1;
        if extent.pending > 0 {
            return;
        }
        let (id, failed, blocks) = (extent.volume, extent.failed, extent.slots.len() as u64);
        self.end_extent_io(number);
        self.volume_mut(id).flusher.unflushed = true;
        if failed {
            self.back_off(id);
            self.retry_extent(number);
            return;
        }
        let destage = &mut self.volume_mut(id).destage;
        destage.written.push(number);
        destage.written_blocks += blocks;
        if self.planted(PlantedBug::CleanBeforeBackingFlush) {
            let early = core::mem::take(&mut self.volume_mut(id).destage.written);
            self.volume_mut(id).destage.flushing.extend(early);
            self.extents_flushed(id, true);
        }
    }

    /// Device work for an extent is over: others may write these blocks of the backing store.
    fn end_extent_io(&mut self, number: u32) {
        let extent = self.extents.get_mut(number);
        let (id, range) = (extent.volume, extent.blocks());
        for page in core::mem::take(&mut extent.pages) {
            self.pages.give(PageUse::Destage, page);
        }
        self.volume_mut(id).destage.in_flight -= 1;
        self.release_backing(range);
    }

    /// An extent could not be written: its blocks wait again.
    fn retry_extent(&mut self, number: u32) {
        let extent = self.extents.remove(number);
        for slot in extent.slots {
            self.map.wait_again(slot);
            self.map.unpin(slot);
        }
    }

    fn back_off(&mut self, id: VolumeId) {
        let now = self.now;
        let destage = &mut self.volume_mut(id).destage;
        let retry_in = destage.backoff;
        destage.backoff_until = now + retry_in;
        destage.backoff = (retry_in * 2).min(*BACKOFF_NS.end());
        self.notice(Notice::DestageFailed { volume: id, retry_in });
    }

    /// Flushes the backing store if that is worth it, or if there is nothing else to do for it.
    fn flush_extents(&mut self, id: VolumeId) {
        let volume = self.volume(id);
        let destage = &volume.destage;
        let due = destage.in_flight == 0 || destage.written_blocks >= FLUSH_WORTH_BLOCKS;
        if !destage.written.is_empty()
            && due
            && !volume.flusher.is_running()
            && self.now >= destage.backoff_until
        {
            self.volume_mut(id).destage.written_blocks = 0;
            self.flush(Device::Backing(id), Waiter::Nobody);
        }
    }

    /// A backing flush has ended: the extents that it covers are destaged, or wait again.
    pub(crate) fn extents_flushed(&mut self, id: VolumeId, ok: bool) {
        let extents = core::mem::take(&mut self.volume_mut(id).destage.flushing);
        if extents.is_empty() {
            return;
        }
        if !ok {
            self.back_off(id);
            for number in extents {
                self.retry_extent(number);
            }
            return;
        }
        let mut blocks = 0;
        for number in extents {
            let extent = self.extents.remove(number);
            for slot in extent.slots {
                if self.map.state(slot) == State::Dirty {
                    self.map.set_state(slot, State::Destaged);
                    self.add_mark(slot);
                    blocks += 1;
                }
                self.map.unpin(slot);
            }
        }
        self.stats.destaged_blocks += blocks;
        let busy = self.throttle.has_waiting();
        self.throttle.note_destaged(self.now, blocks, busy);
        self.volume_mut(id).destage.backoff = *BACKOFF_NS.start();
    }

    /// What was written back of these blocks is about to be written over: whatever a flush makes durable, it is not
    /// their content (`slots` is sorted). They are dirty, until the write past the cache drops them, and stay it if that write fails.
    pub(crate) fn undo_destage(&mut self, id: VolumeId, slots: &[u32]) {
        if slots.is_empty() {
            return;
        }
        let destage = &self.volume(id).destage;
        let extents: Vec<u32> = destage.written.iter().chain(&destage.flushing).copied().collect();
        for number in extents {
            let all = core::mem::take(&mut self.extents.get_mut(number).slots);
            let (undone, kept) = all.into_iter().partition(|slot| slots.binary_search(slot).is_ok());
            self.extents.get_mut(number).slots = kept;
            let undone: Vec<u32> = undone;
            for slot in undone {
                self.map.unpin(slot);
            }
        }
        for slot in slots {
            match self.map.state(*slot) {
                State::Destaged => self.map.set_state(*slot, State::Dirty),
                _ => self.map.wait_again(*slot),
            }
        }
    }

    /// Flushes the backing stores before a shutdown; returns true while that is under way.
    pub(crate) fn flush_backings_for_shutdown(&mut self) -> bool {
        let mut busy = false;
        for index in 0..self.volumes.len() {
            let Some(volume) = &self.volumes[index] else { continue };
            let id = volume.id;
            if volume.flusher.is_running() {
                busy = true;
            } else if volume.flusher.unflushed && !volume.gave_up {
                self.volume_mut(id).gave_up = true;
                self.flush(Device::Backing(id), Waiter::Nobody);
                busy = true;
            }
        }
        busy
    }
}

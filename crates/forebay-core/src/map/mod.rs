//! The cache map: location and state of each cached block. Index, slot tables and counts are in one
//! place, so that they cannot diverge.
//!
//! Invariants (asserted by [`CacheMap::check`]):
//! - the index maps each key to its only slot that is neither void nor a shadow, and holds nothing
//!   else (I6);
//! - a shadow is an unclean slot of an ordered volume, older than the one that the index gives
//!   (I24);
//! - a block waits for destage only if its slot is dirty;
//! - counts of live, unclean, dirty and cached blocks equal those of a walk over all slots.

pub(crate) mod ages;
pub(crate) mod changes;
pub(crate) mod destage_queue;
mod filter;
pub(crate) mod index;
pub(crate) mod load;
mod memory;
mod occupancy;
pub(crate) mod recent;
pub(crate) mod segment;
pub(crate) mod shadow;

use crate::base::bitset::BlockSet;
use crate::fault::{self, PlantedBug};
use crate::map::ages::{AgeHistogram, WriteTime};
use crate::map::changes::Changes;
use crate::map::destage_queue::Waiting;
use crate::map::index::Index;
use crate::map::memory::SegmentMemory;
use crate::map::occupancy::{Occupancy, STRETCH_BLOCKS_MAX};
use crate::map::segment::{BlockState, Key, Segment, SegmentPhase};
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use forebay_format::{Geometry, SECTORS_PER_BLOCK, StreamKind, VolumeId};

/// Sector mask of a whole block.
pub(crate) const MASK_FULL: u8 = 0xff;
/// CRC32C of 4096 zero bytes.
pub(crate) const ZERO_BLOCK_CRC: u32 = 0x98f9_4189;
const _: () = assert!(SECTORS_PER_BLOCK == 8);
/// While the index is incomplete, a walk over more blocks than this scans all slots instead. The
/// longest request with a buffer.
pub(crate) const UNSETTLED_LOOKUPS_MAX: u64 = 8192;
/// The same for a range whose keys were not prepared before.
pub(crate) const UNSETTLED_STATUS_MAX: u64 = 64;

/// Per-volume part of the map.
#[derive(Debug, Default)]
pub(crate) struct VolumeMap {
    /// Dirty blocks not yet picked for destage.
    pub(crate) waiting: Waiting,
    /// Blocks whose newest content is a discard that waits for destage. Only in memory: after a
    /// restart they are zero blocks.
    discarded: BlockSet,
    pub(crate) dirty: u64,
    pub(crate) destaged: u64,
    pub(crate) cached: u64,
    /// Stretches in which the cached blocks lie.
    occupancy: Occupancy,
    pub(crate) lost: u64,
    pub(crate) pinned: u64,
    /// Dirty blocks (except lost ones) by the time they were written.
    pub(crate) ages: AgeHistogram,
}

impl VolumeMap {
    /// Returns the memory in bytes.
    fn bytes(&self) -> usize {
        self.waiting.bytes() + self.discarded.bytes() + self.ages.bytes() + self.occupancy.bytes()
    }
}

#[derive(Debug)]
pub(crate) struct CacheMap {
    pub(crate) geometry: Geometry,
    pub(crate) segments: Vec<Segment>,
    pub(crate) volumes: Vec<VolumeMap>,
    /// Volumes from this number on have never had an unclean block.
    pub(crate) known_volumes: usize,
    pub(crate) index: Index,
    /// Stretches of [`Occupancy`] have `2^` this many blocks.
    stretch_shift: u32,
    /// Recovery loads slots now and indexes them later.
    loading: bool,
    /// Sector masks of partial blocks, by slot.
    pub(crate) partial: BTreeMap<u32, u8>,
    /// Blocks whose only copy is damaged: all of them are dirty and in the index.
    pub(crate) lost: BTreeSet<Key>,
    /// Segments that have become empty since [`CacheMap::take_emptied`].
    emptied: Vec<u32>,
    /// Empty segments from which operations still read, or whose slots they will check. A hint,
    /// verified on use.
    empty_in_use: BTreeSet<u32>,
    /// Segments in use by age: sequence of the first batch, number.
    by_age: BTreeSet<(u64, u32)>,
    /// Write time of blocks that are inserted now.
    pub(crate) clock: WriteTime,
    /// Slots and segments visited in long walks, see [`crate::Engine::looked_at`].
    pub(crate) looked_at: Cell<u64>,
    /// Memory that segments have allocated.
    memory: RefCell<SegmentMemory>,
    /// Counts changes that can make a segment reclaimable: it was sealed, or has fewer unclean
    /// blocks.
    pub(crate) relief: u64,
    /// Segments that were taken into use, and those of them for writes and fills.
    pub(crate) begun: u64,
    pub(crate) begun_for_clients: u64,
    /// See [`CacheMap::has_unrecorded_drops`].
    unrecorded_drops: bool,
    /// Changes since the checkpoint in effect.
    pub(crate) changes: Changes,
}

impl CacheMap {
    /// Creates an empty map. `stretch_blocks` is as in [`crate::EngineConfig`].
    pub(crate) fn new(geometry: Geometry, stretch_blocks: u64) -> Self {
        assert!(stretch_blocks.is_power_of_two() && stretch_blocks <= STRETCH_BLOCKS_MAX);
        let mut segments = Vec::new();
        segments.resize_with(geometry.segment_count as usize, Segment::free);
        let mut volumes = Vec::new();
        volumes.resize_with(forebay_format::geometry::VOLUMES_MAX as usize, VolumeMap::default);
        let index = Index::new(geometry.slot_count());
        Self {
            geometry,
            segments,
            volumes,
            known_volumes: 0,
            index,
            stretch_shift: stretch_blocks.trailing_zeros(),
            loading: false,
            partial: BTreeMap::new(),
            lost: BTreeSet::new(),
            emptied: Vec::new(),
            empty_in_use: BTreeSet::new(),
            by_age: BTreeSet::new(),
            clock: WriteTime::default(),
            looked_at: Cell::new(0),
            memory: RefCell::default(),
            begun: 0,
            begun_for_clients: 0,
            unrecorded_drops: false,
            changes: Changes::default(),
            relief: 0,
        }
    }

    /// Adds segments at the end, or removes empty ones there.
    pub(crate) fn resize(&mut self, geometry: Geometry) {
        self.emptied.retain(|number| *number < geometry.segment_count);
        for segment in self.segments.iter().skip(geometry.segment_count as usize) {
            assert!(segment.live == 0 && segment.pins == 0, "I22: only empty segments are taken away");
        }
        self.segments.resize_with(geometry.segment_count as usize, Segment::free);
        self.geometry = geometry;
        self.index.resize(geometry.slot_count());
        self.relief += 1;
    }

    /// Returns the volumes that might have unclean blocks, by number from 0.
    pub(crate) fn known_volumes(&self) -> &[VolumeMap] {
        &self.volumes[..self.known_volumes]
    }

    pub(crate) fn place(&self, slot: u32) -> (u32, u32) {
        (slot / self.geometry.segment_blocks, slot % self.geometry.segment_blocks)
    }

    pub(crate) fn slot(&self, segment: u32, index: u32) -> u32 {
        segment * self.geometry.segment_blocks + index
    }

    fn segment_of_mut(&mut self, slot: u32) -> (&mut Segment, u32) {
        let (segment, index) = self.place(slot);
        (&mut self.segments[segment as usize], index)
    }

    /// Returns the byte offset of a slot on the cache device.
    pub(crate) fn offset(&self, slot: u32) -> u64 {
        let (segment, index) = self.place(slot);
        self.geometry.segment_offset(segment, index)
    }

    pub(crate) fn key(&self, slot: u32) -> Key {
        key_of(&self.segments, self.geometry.segment_blocks, slot)
    }

    pub(crate) fn crc(&self, slot: u32) -> u32 {
        let (segment, index) = self.place(slot);
        self.segments[segment as usize].crc(index)
    }

    pub(crate) fn state(&self, slot: u32) -> BlockState {
        // The segment might have been removed since: its slots are void too.
        let (segment, index) = self.place(slot);
        let segment = self.segments.get(segment as usize).filter(|segment| segment.has_table());
        segment.map_or(BlockState::Void, |segment| segment.state(index))
    }

    pub(crate) fn mask(&self, slot: u32) -> u8 {
        let (segment, index) = self.place(slot);
        if self.segments[segment as usize].is_partial(index) { self.partial[&slot] } else { MASK_FULL }
    }

    pub(crate) fn is_durable(&self, slot: u32) -> bool {
        let (segment, index) = self.place(slot);
        index < self.segments[segment as usize].durable
    }

    pub(crate) fn lookup(&self, key: Key) -> Option<u32> {
        if fault::planted(PlantedBug::OverlookListed) && self.index.is_listed(key) {
            return None;
        }
        self.index.get(key, |slot| self.key(slot))
    }

    pub(crate) fn set_hit(&mut self, slot: u32) {
        let (segment, index) = self.segment_of_mut(slot);
        segment.set_hit(index);
    }

    pub(crate) fn is_hit(&self, slot: u32) -> bool {
        let (segment, index) = self.place(slot);
        self.segments[segment as usize].is_hit(index)
    }

    pub(crate) fn clear_hit(&mut self, slot: u32) {
        let (segment, index) = self.segment_of_mut(slot);
        segment.clear_hit(index);
    }

    /// Returns the number of pinned blocks of all volumes.
    pub(crate) fn pinned_blocks(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.pinned).sum()
    }

    pub(crate) fn is_pinned(&self, slot: u32) -> bool {
        let (segment, index) = self.place(slot);
        let segment = &self.segments[segment as usize];
        segment.has_table() && segment.is_pinned(index)
    }

    /// Pins a block: reclaim keeps it if possible, until its content ends (I26).
    pub(crate) fn set_pinned(&mut self, slot: u32) {
        if self.state(slot) != BlockState::Void && !self.is_pinned(slot) {
            let key = self.key(slot);
            self.volumes[usize::from(key.volume().0)].pinned += 1;
            let (segment, index) = self.segment_of_mut(slot);
            segment.set_pinned(index, true);
        }
    }

    pub(crate) fn clear_pinned(&mut self, slot: u32) {
        if self.is_pinned(slot) {
            let key = self.key(slot);
            self.volumes[usize::from(key.volume().0)].pinned -= 1;
            let (segment, index) = self.segment_of_mut(slot);
            segment.set_pinned(index, false);
        }
    }

    pub(crate) fn pin(&mut self, slot: u32) {
        self.segment_of_mut(slot).0.pins += 1;
    }

    pub(crate) fn unpin(&mut self, slot: u32) {
        let (number, _) = self.place(slot);
        let segment = &mut self.segments[number as usize];
        segment.pins -= 1;
        self.note_if_empty(number);
    }

    /// Describes a slot that was written. It counts only once it is inserted, but the description
    /// does not change until its segment is reused.
    pub(crate) fn describe(&mut self, slot: u32, key: Key, crc: u32, mask: u8) {
        debug_assert!(mask != 0);
        let (segment, index) = self.segment_of_mut(slot);
        segment.describe(index, key, crc);
        if mask != MASK_FULL {
            segment.set_partial(index);
            self.partial.insert(slot, mask);
        }
    }

    /// Takes a segment into use, see [`Segment::begin`].
    pub(crate) fn begin_segment(
        &mut self,
        number: u32,
        phase: SegmentPhase,
        stream: StreamKind,
        first: (u64, u64),
    ) {
        let blocks = self.geometry.segment_blocks;
        self.begun += 1;
        self.changes.touch(number);
        self.begun_for_clients += u64::from(stream != StreamKind::Survivor);
        let segment = &mut self.segments[number as usize];
        self.by_age.remove(&(segment.first_sequence, number));
        segment.begin(phase, stream, first, blocks);
        self.by_age.insert((segment.first_sequence, number));
    }

    /// Returns the oldest segment in use that is not older than `from` (sequence of its first
    /// batch, number).
    pub(crate) fn next_by_age(&self, from: (u64, u32)) -> Option<(u64, u32)> {
        self.by_age.range(from..).next().copied()
    }

    /// Notes that reclaim begins or ends moving a block out of its segment.
    pub(crate) fn leaves(&mut self, slot: u32, begins: bool) {
        let segment = self.segment_of_mut(slot).0;
        segment.leaving = if begins { segment.leaving + 1 } else { segment.leaving - 1 };
        self.relief += u64::from(!begins);
    }

    /// Ends the use of an empty segment.
    pub(crate) fn end_segment(&mut self, number: u32, phase: SegmentPhase) {
        let first = self.slot(number, 0);
        let last = first + (self.geometry.segment_blocks - 1);
        while let Some((slot, _)) = self.partial.range(first..=last).next() {
            let slot = *slot;
            self.partial.remove(&slot);
        }
        self.changes.touch(number);
        let segment = &mut self.segments[number as usize];
        self.by_age.remove(&(segment.first_sequence, number));
        segment.end(phase);
    }

    /// Makes `slot`, which [`CacheMap::describe`] has described, the slot of its key. Voids the
    /// former slot and returns its state.
    pub(crate) fn insert(&mut self, slot: u32, state: BlockState) -> Option<BlockState> {
        let key = self.key(slot);
        self.forget_discard(key);
        self.insert_key(key, slot, state, self.clock)
    }

    /// Marks a whole block that was just inserted as a discard: destage may punch a hole in the
    /// backing store for it.
    pub(crate) fn note_discard(&mut self, key: Key) {
        self.volumes[usize::from(key.volume().0)].discarded.insert(key.block());
    }

    fn forget_discard(&mut self, key: Key) {
        if !fault::planted(PlantedBug::KeepDiscard) {
            self.volumes[usize::from(key.volume().0)].discarded.remove(key.block());
        }
    }

    /// Returns true if destage may punch a hole for a slot. The checksum is verified too: only
    /// zeroes become a hole.
    pub(crate) fn is_discarded(&self, slot: u32) -> bool {
        let key = self.key(slot);
        self.volumes[usize::from(key.volume().0)].discarded.contains(key.block())
            && !self.is_shadow(slot)
            && self.mask(slot) == MASK_FULL
            && (self.crc(slot) == ZERO_BLOCK_CRC || fault::planted(PlantedBug::KeepDiscard))
    }

    /// Returns the time when the current data of a dirty block was written.
    pub(crate) fn write_time(&self, slot: u32) -> WriteTime {
        let (segment, index) = self.place(slot);
        self.segments[segment as usize].written.of(index)
    }

    /// As [`CacheMap::insert`], for a block that was written at another time.
    pub(crate) fn insert_written_at(
        &mut self,
        slot: u32,
        state: BlockState,
        time: WriteTime,
    ) -> Option<BlockState> {
        self.insert_key(self.key(slot), slot, state, time)
    }

    fn insert_key(&mut self, key: Key, slot: u32, state: BlockState, time: WriteTime) -> Option<BlockState> {
        debug_assert!(state != BlockState::Void);
        self.settle_key(key);
        let blocks = self.geometry.segment_blocks;
        let old = self.index.insert(key, slot, |slot| key_of(&self.segments, blocks, slot));
        let mut old_state = None;
        if let Some(old) = old {
            assert!(old != slot, "a slot is inserted once");
            old_state = Some(self.state(old));
            self.succeed(key, old, slot, state);
        } else {
            self.count_cached(key, 1);
        }
        if state != BlockState::Clean {
            let (segment, index) = self.segment_of_mut(slot);
            segment.written.note(index, time);
            if state == BlockState::Dirty && old_state.is_some() {
                // Use of a block predicts its next use, regardless of its content.
                segment.set_hit(index);
            }
        }
        self.set_state_of(key, slot, state);
        old_state
    }

    /// Counts `blocks` neighbouring blocks as cached.
    fn count_cached(&mut self, first: Key, blocks: u64) {
        count_cached(&mut self.volumes, self.stretch_shift, first, blocks);
    }

    fn count_uncached(&mut self, key: Key) {
        let volume = &mut self.volumes[usize::from(key.volume().0)];
        volume.cached -= 1;
        volume.occupancy.remove(self.stretch_shift, key.block());
    }

    /// Notes when the content of a slot that is about to become unclean was written.
    pub(crate) fn note_write_time(&mut self, slot: u32, time: WriteTime) {
        let (segment, index) = self.segment_of_mut(slot);
        segment.written.note(index, time);
    }

    /// Removes a block; returns its slot.
    pub(crate) fn remove(&mut self, key: Key) -> Option<u32> {
        self.settle_key(key);
        let blocks = self.geometry.segment_blocks;
        let slot = self.index.remove(key, |slot| key_of(&self.segments, blocks, slot))?;
        self.count_uncached(key);
        self.forget_discard(key);
        self.unrecorded_drops |= self.state(slot) == BlockState::Dirty;
        self.end_shadows(key, key, 0);
        self.void(slot);
        Some(slot)
    }

    /// As [`CacheMap::remove`], for a removal that the log records.
    pub(crate) fn remove_recorded(&mut self, key: Key) {
        let before = self.unrecorded_drops;
        self.remove(key);
        self.unrecorded_drops = before;
    }

    /// Returns true if dirty blocks were dropped without a record in the log.
    pub(crate) fn has_unrecorded_drops(&self) -> bool {
        self.unrecorded_drops
    }

    /// Notes that a snapshot was taken, which records the drops.
    pub(crate) fn drops_recorded(&mut self) {
        self.unrecorded_drops = false;
    }

    pub(crate) fn void(&mut self, slot: u32) {
        self.set_state(slot, BlockState::Void);
        let (number, _) = self.place(slot);
        self.note_if_empty(number);
    }

    /// Changes the state of a slot and updates all counts.
    pub(crate) fn set_state(&mut self, slot: u32, state: BlockState) {
        self.set_state_of(self.key(slot), slot, state);
    }

    fn set_state_of(&mut self, key: Key, slot: u32, state: BlockState) {
        let epoch = (self.epoch(slot), self.is_shadow(slot));
        let are_lost = self.changes.are_lost();
        let (segment, index) = self.segment_of_mut(slot);
        let old = segment.state(index);
        let lost = segment.is_lost(index);
        let pinned = segment.is_pinned(index);
        let packed = (!are_lost).then(|| segment.packed_state(index));
        segment.set_state(index, state);
        let packed_now = (!are_lost).then(|| segment.packed_state(index));
        let time = segment.written.of(index);
        if let Some(state) = packed_now.filter(|_| packed != packed_now) {
            self.changes.note(slot, state);
        }
        let number = usize::from(key.volume().0);
        self.known_volumes = self.known_volumes.max(number + 1);
        let volume = &mut self.volumes[number];
        volume.pinned -= u64::from(pinned && state == BlockState::Void);
        self.relief += u64::from(old != BlockState::Void && state != BlockState::Dirty);
        match old {
            BlockState::Dirty if lost => {
                volume.lost -= 1;
                self.lost.remove(&key);
            }
            BlockState::Dirty => {
                volume.dirty -= 1;
                volume.ages.remove(time);
            }
            BlockState::Destaged => volume.destaged -= 1,
            BlockState::Void | BlockState::Clean => {}
        }
        match state {
            BlockState::Dirty => {
                volume.dirty += 1;
                volume.ages.add(time);
            }
            BlockState::Destaged => volume.destaged += 1,
            BlockState::Void | BlockState::Clean => {}
        }
        if state == BlockState::Dirty {
            self.enter(slot);
        } else if old == BlockState::Dirty {
            let (epoch, shadow) = epoch;
            volume.waiting.leave(slot, key.block(), epoch, shadow);
        }
        if matches!(state, BlockState::Destaged | BlockState::Clean) && !epoch.1 {
            self.forget_discard(key);
        }
    }

    /// Marks a dirty block whose only copy is damaged as lost: it is not destaged, and reads of it
    /// fail.
    pub(crate) fn set_lost(&mut self, slot: u32) {
        let key = self.key(slot);
        let (segment, index) = self.segment_of_mut(slot);
        assert!(segment.state(index) == BlockState::Dirty, "only dirty data can be lost");
        if !segment.is_lost(index) {
            segment.set_lost(index);
            let time = segment.written.of(index);
            let volume = &mut self.volumes[usize::from(key.volume().0)];
            volume.dirty -= 1;
            volume.ages.remove(time);
            volume.lost += 1;
            self.lost.insert(key);
            self.leave(slot);
        }
    }

    pub(crate) fn is_lost(&self, slot: u32) -> bool {
        let (segment, index) = self.place(slot);
        self.segments[segment as usize].is_lost(index)
    }

    /// Returns a block to the waiting set after a failed destage.
    pub(crate) fn wait_again(&mut self, slot: u32) {
        if self.state(slot) == BlockState::Dirty && !self.is_lost(slot) {
            self.enter(slot);
        }
    }

    fn note_if_empty(&mut self, number: u32) {
        let segment = &self.segments[number as usize];
        if segment.phase != SegmentPhase::Sealed || segment.live > 0 {
            return;
        }
        if segment.pins > 0 {
            self.empty_in_use.insert(number);
        } else {
            self.empty_in_use.remove(&number);
            self.emptied.push(number);
        }
    }

    /// Returns true if at least `least` segments are empty but still in use.
    pub(crate) fn are_empty_in_use(&mut self, least: usize) -> bool {
        if self.empty_in_use.len() < least {
            return false;
        }
        let segments = &self.segments;
        self.empty_in_use.retain(|number| {
            let segment = segments.get(*number as usize);
            segment.is_some_and(|segment| {
                segment.phase == SegmentPhase::Sealed && segment.live == 0 && segment.pins > 0
            })
        });
        self.empty_in_use.len() >= least
    }

    /// Notes that a segment was sealed. It might be empty already.
    pub(crate) fn sealed(&mut self, number: u32) {
        self.relief += 1;
        self.changes.touch(number);
        self.note_if_empty(number);
    }

    /// Returns a sealed and empty segment; each is returned once.
    #[inline]
    pub(crate) fn take_emptied(&mut self) -> Option<u32> {
        while let Some(number) = self.emptied.pop() {
            let segment = &self.segments[number as usize];
            if segment.phase == SegmentPhase::Sealed && segment.live == 0 && segment.pins == 0 {
                return Some(number);
            }
        }
        None
    }

    /// Calls `f` with the slot of every cached block of `volume` in `first..=last`.
    pub(crate) fn for_each_in(&self, volume: VolumeId, first: u64, last: u64, mut f: impl FnMut(u32)) {
        if self.volumes[usize::from(volume.0)].cached == 0 {
            return;
        }
        // While the index is incomplete, looking up many blocks takes longer than a scan of all
        // slots.
        let few = if self.is_unsettled() { UNSETTLED_LOOKUPS_MAX } else { self.index.len() as u64 };
        if last - first >= few && self.reach(volume, first, last, few) < last {
            return self.scan_for_each_in(volume, first, last, &mut f);
        }
        for (from, to) in self.occupied(volume, first, last) {
            self.look_at(to - from + 1);
            for block in from..=to {
                if let Some(slot) = self.lookup(Key::new(volume, block)) {
                    f(slot);
                }
            }
        }
    }

    /// Returns the parts of a range in which blocks might be cached.
    fn occupied(&self, volume: VolumeId, first: u64, last: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.volumes[usize::from(volume.0)].occupancy.parts(self.stretch_shift, first, last)
    }

    /// Returns the last block of `first..=last` that a walk from `first` reaches if it looks up at
    /// most `blocks` blocks (at least one). The walk skips parts without cached blocks.
    pub(crate) fn reach(&self, volume: VolumeId, first: u64, last: u64, blocks: u64) -> u64 {
        let mut left = blocks.max(1);
        for (from, to) in self.occupied(volume, first, last) {
            if to - from >= left {
                return from + left - 1;
            }
            left -= to - from + 1;
            if left == 0 {
                return self.occupied(volume, to + 1, last).next().map_or(last, |(next, _)| next - 1);
            }
        }
        last
    }

    /// Counts slots or segments that are visited.
    pub(crate) fn look_at(&self, count: u64) {
        self.looked_at.set(self.looked_at.get() + count);
    }

    /// As [`CacheMap::for_each_in`], by a scan of all slots.
    pub(crate) fn scan_for_each_in(&self, volume: VolumeId, first: u64, last: u64, f: &mut impl FnMut(u32)) {
        for number in 0..self.segments.len() as u32 {
            let segment = &self.segments[number as usize];
            if segment.live == 0 {
                continue;
            }
            self.look_at(self.geometry.segment_blocks.into());
            for index in 0..self.geometry.segment_blocks {
                if segment.state(index) != BlockState::Void && !segment.is_shadow(index) {
                    let key = segment.key(index);
                    if key.volume() == volume && (first..=last).contains(&key.block()) {
                        f(self.slot(number, index));
                    }
                }
            }
        }
    }

    /// Returns the clean blocks for which `f` is true.
    pub(crate) fn clean(&self, f: impl Fn(Key) -> bool) -> Vec<Key> {
        let mut keys = Vec::new();
        for segment in self.segments.iter().filter(|segment| segment.live > segment.unclean) {
            self.look_at(self.geometry.segment_blocks.into());
            segment.for_each_live(|_, key, state| {
                if state == BlockState::Clean && f(key) {
                    keys.push(key);
                }
            });
        }
        keys
    }

    pub(crate) fn cached_blocks(&self) -> u64 {
        self.index.len() as u64
    }

    /// Returns the number of blocks that cannot be evicted until something more was written: dirty
    /// or destaged ones. Lost blocks wait for nothing.
    pub(crate) fn unclean_blocks(&self) -> u64 {
        self.known_volumes().iter().map(|volume| volume.dirty + volume.destaged).sum()
    }

    /// Returns the bytes of memory used by index, slot tables and sets.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory.borrow_mut().bytes(&self.segments)
            + self.segments.capacity() * size_of::<Segment>()
            + self.index.bytes()
            + self.volumes.iter().map(VolumeMap::bytes).sum::<usize>()
            + self.by_age.len() * 24
            + self.changes.bytes()
            + (self.partial.len() + self.lost.len()) * 16
    }

    /// Walks everything and panics if an invariant does not hold. Slow: for tests and the
    /// simulator.
    pub(crate) fn check(&self) {
        let (mut cached, mut shadows) = (0, 0);
        let mut stretches: BTreeMap<(VolumeId, u64), u16> = BTreeMap::new();
        let mut counts: Vec<[u64; 5]> = Vec::new();
        counts.resize(self.volumes.len(), [0; 5]);
        for number in 0..self.segments.len() as u32 {
            let segment = &self.segments[number as usize];
            if !segment.has_table() {
                assert!(segment.live == 0 && segment.unclean == 0, "no table, no blocks");
                continue;
            }
            let (mut live, mut unclean, mut fixed, mut pinned, mut all_lost) = (0, 0, 0, 0, 0);
            for index in 0..self.geometry.segment_blocks {
                let state = segment.state(index);
                if state == BlockState::Void {
                    continue;
                }
                let slot = self.slot(number, index);
                let key = segment.key(index);
                live += 1;
                fixed += u32::from(segment.is_fixed(index));
                if segment.is_shadow(index) {
                    self.check_shadow(slot);
                    shadows += 1;
                } else {
                    let found = self.index.is_listed(key) || self.lookup(key) == Some(slot);
                    assert!(found, "I6: the index points at every live slot");
                    cached += 1;
                    *stretches.entry((key.volume(), key.block() >> self.stretch_shift)).or_default() += 1;
                }
                unclean += u32::from(state != BlockState::Clean);
                pinned += u32::from(segment.is_pinned(index));
                let lost = segment.is_lost(index);
                assert!(!lost || self.lost.contains(&key), "every lost block is listed");
                all_lost += u32::from(lost);
                let count = &mut counts[usize::from(key.volume().0)];
                count[0] += u64::from(!segment.is_shadow(index));
                count[1] += u64::from(state == BlockState::Dirty && !lost);
                count[2] += u64::from(state == BlockState::Destaged);
                count[3] += u64::from(lost);
                count[4] += u64::from(segment.is_pinned(index));
            }
            let counts = (segment.live, segment.unclean, segment.fixed, segment.pinned, segment.lost);
            let counted = (live, unclean, fixed, pinned, all_lost);
            assert_eq!(counted, counts, "segment counts; I26: a pin ends with its content");
        }
        assert_eq!(cached, self.index.len(), "I6: the index holds nothing else");
        for (volume, count) in self.volumes.iter().zip(counts) {
            let counted = [volume.cached, volume.dirty, volume.destaged, volume.lost, volume.pinned];
            assert_eq!(counted, count, "volume counts");
            assert_eq!(volume.ages.len(), volume.dirty, "every dirty block has one age");
            assert!(volume.waiting.len() <= volume.dirty, "only dirty blocks wait for destage");
            let unclean = volume.dirty + volume.lost;
            assert!(
                volume.discarded.len() <= unclean || fault::planted(PlantedBug::KeepDiscard),
                "only dirty blocks are discards that wait"
            );
            volume.waiting.check();
        }
        let counted = (0..).zip(&self.volumes).flat_map(|(number, volume)| {
            volume.occupancy.counts().map(move |(stretch, count)| ((VolumeId(number), stretch), count))
        });
        let right = fault::planted(PlantedBug::MiscountStretch) || counted.eq(stretches);
        assert!(right, "the blocks of each stretch are counted");
        let lost: u64 = self.volumes.iter().map(|volume| volume.lost).sum();
        assert_eq!(lost, self.lost.len() as u64, "nothing else is listed as lost");
        let known: usize = self.volumes.iter().map(|volume| volume.waiting.shadows()).sum();
        assert_eq!(shadows, known, "I24: every shadow is known");
    }
}

/// Counts `blocks` neighbouring blocks as cached.
fn count_cached(volumes: &mut [VolumeMap], stretch_shift: u32, first: Key, blocks: u64) {
    let volume = &mut volumes[usize::from(first.volume().0)];
    volume.cached += blocks;
    volume.occupancy.add(stretch_shift, first.block(), blocks);
}

pub(crate) fn key_of(segments: &[Segment], segment_blocks: u32, slot: u32) -> Key {
    segments[(slot / segment_blocks) as usize].key(slot % segment_blocks)
}

/// Returns the number of slots that one step of a sweep visits: some microseconds of work. In a
/// small cache they are so few that as many other events interleave as in a large one.
pub(crate) fn sweep_slots(slot_count: u32) -> u32 {
    (slot_count / 64).clamp(16, 4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_zero_block_is_right() {
        assert_eq!(super::ZERO_BLOCK_CRC, crc32c::crc32c(&[0; 4096]));
    }

    #[test]
    fn unrecorded_drop_of_dirty_data_is_noticed() {
        let geometry = Geometry::for_device(16 << 20, Some(16)).expect("it has room");
        for (state, recorded, noticed) in [
            (BlockState::Dirty, false, true),
            (BlockState::Dirty, true, false),
            (BlockState::Clean, false, false),
        ] {
            let mut map = CacheMap::new(geometry, 16);
            map.begin_segment(3, SegmentPhase::Sealed, StreamKind::Write, (1, 1));
            let (key, slot) = (Key::new(VolumeId(0), 7), map.slot(3, 1));
            map.describe(slot, key, 0, MASK_FULL);
            map.insert(slot, state);
            if recorded {
                map.remove_recorded(key);
            } else {
                map.remove(key);
            }
            assert_eq!(map.has_unrecorded_drops(), noticed, "{state:?}, recorded: {recorded}");
        }
    }
}

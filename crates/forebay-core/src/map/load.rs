//! Loads a cache map from the result of recovery: equivalent to inserting block by block, but
//! without a lookup of other cached blocks, since every block of a checkpoint has one slot. (If a
//! device lost writes, a violation of this is found when the slots get their cells, see
//! [`CacheMap::settle_key`].)
//!
//! 1. [`CacheMap::load_segment`]: the slots of each segment, in any order of segments.
//! 2. [`CacheMap::index_loaded`]: all of them enter the index. By now the changes by the log behind
//!    the checkpoint are known, and those blocks are prepared at once (I46).
//! 3. Replay applies the log, then calls [`CacheMap::replayed`].

use crate::map::ages::WriteTime;
use crate::map::segment::{BlockState, Key};
use crate::map::{CacheMap, MASK_FULL, VolumeMap, count_cached, key_of};
use alloc::vec::Vec;

/// A slot as recovery found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundSlot {
    /// Number in its segment.
    pub(crate) index: u32,
    pub(crate) key: Key,
    pub(crate) crc: u32,
    pub(crate) mask: u8,
    /// `Void`: it does not count, but its content is known.
    pub(crate) state: BlockState,
}

/// Neighbouring blocks of one volume to be counted.
#[derive(Clone, Copy, Default)]
struct Run {
    /// Key of the first one.
    first: u64,
    blocks: u64,
    state: Option<BlockState>,
    /// Of dirty blocks.
    time: WriteTime,
}

impl CacheMap {
    /// Begins loading slots. No volume is ordered.
    pub(crate) fn begin_loading(&mut self) {
        self.loading = true;
    }

    /// Returns true while slots are loaded, and none is in the index yet.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading
    }

    /// Loads slots of a segment, in ascending order.
    pub(crate) fn load_segment(&mut self, number: u32, found: impl Iterator<Item = FoundSlot>) {
        let (first, now) = (self.slot(number, 0), self.clock);
        let segment = &mut self.segments[number as usize];
        // If the segment had no times before, all of these slots get one time.
        let (fresh, mut last_dirty) = (segment.written.is_empty(), None);
        let (mut run, mut ages) = (Run::default(), (0, now, 0));
        found.for_each(|slot| {
            if segment.state(slot.index) != BlockState::Void {
                return; // It was found before, from another source.
            }
            segment.load(slot.index, slot.key, slot.crc, slot.state);
            if slot.mask != MASK_FULL {
                segment.set_partial(slot.index);
                self.partial.insert(first + slot.index, slot.mask);
            }
            if slot.state == BlockState::Void {
                return;
            }
            let mut time = now;
            if slot.state == BlockState::Dirty {
                if !fresh || last_dirty.is_none() {
                    time = segment.written.note(slot.index, now);
                }
                last_dirty = Some(slot.index);
            }
            let follows = run.first + run.blocks == slot.key.0 && slot.key.block() > 0;
            if !follows || (run.state, run.time) != (Some(slot.state), time) {
                count_loaded(&mut self.volumes, self.stretch_shift, run, &mut ages);
                run = Run { first: slot.key.0, blocks: 0, state: Some(slot.state), time };
            }
            run.blocks += 1;
        });
        if let Some(last) = last_dirty {
            segment.written.note(last, now);
        }
        count_loaded(&mut self.volumes, self.stretch_shift, run, &mut ages);
        self.volumes[ages.0].ages.add_many(ages.1, ages.2);
        let known = self.volumes.iter().rposition(|volume| volume.cached > 0);
        self.known_volumes = self.known_volumes.max(known.map_or(0, |known| known + 1));
    }

    /// Enters all loaded slots into the index, before replay changes the blocks `changed`. Drops
    /// clean blocks for which `forgets` is true; returns their number.
    pub(crate) fn index_loaded(&mut self, changed: &[Key], forgets: impl Fn(Key) -> bool) -> u64 {
        self.loading = false;
        let blocks = self.geometry.segment_blocks;
        let (mut displaced, mut forgotten) = (Vec::new(), Vec::new());
        let entries: u64 = self.segments.iter().map(|segment| u64::from(segment.live)).sum();
        self.index.begin_loading(entries as usize, changed);
        for (number, segment) in (0..).zip(&self.segments).filter(|(_, segment)| segment.live > 0) {
            segment.for_each_live(|at, key, state| {
                let slot = number * blocks + at;
                if state == BlockState::Clean && forgets(key) {
                    forgotten.push(slot);
                    return;
                }
                displaced.extend(self.index.load(key, slot, |slot| key_of(&self.segments, blocks, slot)));
            });
        }
        self.index.end_loading();
        for slot in displaced {
            self.displace(slot);
        }
        for slot in &forgotten {
            self.count_uncached(self.key(*slot));
            self.void(*slot);
        }
        forgotten.len() as u64
    }

    /// Ends replay.
    pub(crate) fn replayed(&mut self) {
        let (segments, blocks) = (&self.segments, self.geometry.segment_blocks);
        self.index.end_early(|slot| key_of(segments, blocks, slot));
    }

    /// Prepares the index for a change of this key.
    pub(crate) fn settle_key(&mut self, key: Key) {
        if self.index.is_listed(key) {
            self.expand(self.index.group(key));
        }
    }

    /// Prepares the index for some more keys; returns false if none is left.
    pub(crate) fn settle_some(&mut self) -> bool {
        let group = self.index.any_listed();
        if let Some(group) = group {
            self.expand(group);
        }
        group.is_some()
    }

    /// Returns true if some keys are not prepared yet.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.index.is_listing()
    }

    fn expand(&mut self, group: usize) {
        let (segments, blocks) = (&self.segments, self.geometry.segment_blocks);
        for slot in self.index.expand(group, |slot| key_of(segments, blocks, slot)) {
            self.displace(slot);
        }
    }

    /// Voids a slot that is no longer in the index because another one was loaded for its block.
    /// Recovery finds that only after a device has lost flushed data.
    fn displace(&mut self, slot: u32) {
        let key = self.key(slot);
        let waits = self.volumes[usize::from(key.volume().0)].waiting.has(key.block());
        self.count_uncached(key);
        self.void(slot);
        if let Some(slot) = self.lookup(key).filter(|_| waits) {
            self.wait_again(slot);
        }
    }
}

/// Counts a run. `ages` has the volume, the time and the number of blocks that are not added to
/// the ages yet.
fn count_loaded(volumes: &mut [VolumeMap], stretch_shift: u32, run: Run, ages: &mut (usize, WriteTime, u32)) {
    let Some(state) = run.state else { return };
    let first = Key(run.first);
    let number = usize::from(first.volume().0);
    count_cached(volumes, stretch_shift, first, run.blocks);
    let volume = &mut volumes[number];
    if state == BlockState::Dirty {
        volume.dirty += run.blocks;
        volume.waiting.load(first.block(), run.blocks);
        if (ages.0, ages.1) != (number, run.time) {
            volumes[ages.0].ages.add_many(ages.1, ages.2);
            *ages = (number, run.time, 0);
        }
        ages.2 += run.blocks as u32;
    }
}

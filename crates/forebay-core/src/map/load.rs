//! Loading a cache map from what recovery has read: the same that inserting block by block would
//! make of it, but without a look at what else is cached, since every block of a checkpoint has one
//! slot. (What a device that lost writes makes of that is found when the slots get their cells, see
//! [`CacheMap::settle_key`].)

use crate::map::ages::Born;
use crate::map::segment::{BlockState, Key};
use crate::map::{CacheMap, MASK_FULL, key_of};

/// A slot as recovery found it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundSlot {
    /// Number in its segment.
    pub(crate) index: u32,
    pub(crate) key: Key,
    pub(crate) crc: u32,
    pub(crate) mask: u8,
    /// `Void`: it does not count, but it is known what it holds.
    pub(crate) state: BlockState,
}

/// Blocks to count for one volume.
#[derive(Default)]
struct Tally {
    volume: usize,
    born: Born,
    cached: u64,
    dirty: u64,
}

impl CacheMap {
    /// What [`CacheMap::load_segment`] brings is only listed, `blocks` blocks in all.
    pub(crate) fn begin_loading(&mut self, blocks: usize) {
        self.index.begin_loading(blocks);
    }

    /// Takes in the slots of a segment, in ascending order. No volume has an order.
    pub(crate) fn load_segment(&mut self, number: u32, found: impl Iterator<Item = FoundSlot>) {
        let first = self.slot(number, 0);
        let mut tally = Tally::default();
        let now = self.clock;
        for slot in found {
            let segment = &mut self.segments[number as usize];
            if segment.state(slot.index) != BlockState::Void {
                continue; // It was found before, in another way.
            }
            segment.describe(slot.index, slot.key, slot.crc);
            if slot.mask != MASK_FULL {
                segment.set_partial(slot.index);
                self.partial.insert(first + slot.index, slot.mask);
            }
            if slot.state == BlockState::Void {
                continue;
            }
            if !self.index.load(slot.key, first + slot.index) {
                self.insert(first + slot.index, slot.state);
                continue;
            }
            let volume = usize::from(slot.key.volume().0);
            let segment = &mut self.segments[number as usize];
            segment.set_state(slot.index, slot.state);
            let mut born = tally.born;
            if slot.state == BlockState::Dirty {
                born = segment.written.note(slot.index, now);
                self.volumes[volume].waiting.load(slot.key.block());
            }
            if (volume, born) != (tally.volume, tally.born) {
                self.count_loaded(core::mem::replace(
                    &mut tally,
                    Tally { volume, born, cached: 0, dirty: 0 },
                ));
            }
            tally.cached += 1;
            tally.dirty += u64::from(slot.state == BlockState::Dirty);
        }
        self.count_loaded(tally);
    }

    fn count_loaded(&mut self, tally: Tally) {
        self.known_volumes = self.known_volumes.max(tally.volume + 1);
        let volume = &mut self.volumes[tally.volume];
        volume.cached += tally.cached;
        volume.dirty += tally.dirty;
        volume.births.add_many(tally.born, tally.dirty as u32);
    }

    /// Prepares the index for a change of this key.
    pub(crate) fn settle_key(&mut self, key: Key) {
        if self.index.is_listed(key) {
            self.expand(self.index.group(key));
        }
    }

    /// Prepares the index for some more keys; false if there are none that need it.
    pub(crate) fn settle_some(&mut self) -> bool {
        let group = self.index.any_listed();
        if let Some(group) = group {
            self.expand(group);
        }
        group.is_some()
    }

    /// Some keys are not prepared yet.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.index.is_listing()
    }

    fn expand(&mut self, group: usize) {
        let (segments, blocks) = (&self.segments, self.geometry.segment_blocks);
        for slot in self.index.expand(group, |slot| key_of(segments, blocks, slot)) {
            // Two slots for one block: only a device that lost what it had flushed can make
            // recovery find that.
            let key = self.key(slot);
            let waits = self.volumes[usize::from(key.volume().0)].waiting.has(key.block());
            self.volumes[usize::from(key.volume().0)].cached -= 1;
            self.void(slot);
            if let Some(slot) = self.lookup(key).filter(|_| waits) {
                self.wait_again(slot);
            }
        }
    }
}

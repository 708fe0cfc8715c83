//! Shadows: older versions of dirty blocks that stay until they are destaged, because their volume
//! is destaged flush epoch by flush epoch (I24). The part of [`CacheMap`] that handles them.

use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, Key};
use alloc::vec::Vec;
use forebay_format::VolumeId;

impl CacheMap {
    /// Returns the flush epoch of a slot: 0 if it has none, or one from before the order began.
    pub(crate) fn epoch(&self, slot: u32) -> u64 {
        let (segment, index) = self.place(slot);
        let low = self.segments[segment as usize].epoch(index);
        let volume = &self.volumes[usize::from(self.key(slot).volume().0)];
        volume.waiting.order.as_ref().map_or(0, |order| order.widen(low))
    }

    pub(crate) fn is_shadow(&self, slot: u32) -> bool {
        let (segment, index) = self.place(slot);
        let segment = &self.segments[segment as usize];
        segment.has_table() && segment.is_shadow(index)
    }

    /// Returns true if a move would lose the slot's position in the destage order.
    pub(crate) fn is_fixed(&self, slot: u32) -> bool {
        let (segment, index) = self.place(slot);
        self.segments[segment as usize].is_fixed(index)
    }

    /// Sets the flush epoch of a slot that was just described.
    pub(crate) fn set_epoch(&mut self, slot: u32, epoch: u32) {
        let (segment, index) = self.place(slot);
        self.segments[segment as usize].set_epoch(index, epoch);
    }

    /// Returns the slot of a block that may be destaged: the one in the index, or a shadow whose
    /// turn has come.
    pub(crate) fn slot_to_destage(&self, key: Key) -> Option<u32> {
        let waiting = &self.volumes[usize::from(key.volume().0)].waiting;
        waiting.queued(key.block()).or_else(|| self.lookup(key))
    }

    /// Adds a dirty slot to the waiting set.
    pub(crate) fn enter(&mut self, slot: u32) {
        let (key, epoch, shadow) = (self.key(slot), self.epoch(slot), self.is_shadow(slot));
        self.volumes[usize::from(key.volume().0)].waiting.enter(slot, key.block(), epoch, shadow);
    }

    /// Removes a slot from the waiting set.
    pub(crate) fn leave(&mut self, slot: u32) {
        let (key, epoch, shadow) = (self.key(slot), self.epoch(slot), self.is_shadow(slot));
        self.volumes[usize::from(key.volume().0)].waiting.leave(slot, key.block(), epoch, shadow);
    }

    /// Handles the replacement of `old` by `slot` in the index, with this state; both are of `key`.
    /// The old slot becomes a shadow if its content must reach the backing store first; otherwise
    /// it becomes void.
    pub(crate) fn succeed(&mut self, key: Key, old: u32, slot: u32, state: BlockState) {
        if self.volumes[usize::from(key.volume().0)].waiting.order.is_none() {
            self.void(old);
            return;
        }
        let epoch = if state == BlockState::Dirty { self.epoch(slot) } else { 0 };
        let unclean =
            matches!(self.state(old), BlockState::Dirty | BlockState::Destaged) && !self.is_lost(old);
        if unclean && self.epoch(old) < epoch && !fault::planted(PlantedBug::CoalesceEpochs) {
            self.make_shadow(old);
        } else {
            self.void(old);
        }
        // Shadows that are not of an earlier epoch are not older versions.
        self.end_shadows(key, key, epoch);
    }

    fn make_shadow(&mut self, slot: u32) {
        let (key, epoch) = (self.key(slot), self.epoch(slot));
        let waiting = &self.volumes[usize::from(key.volume().0)].waiting;
        let other = waiting.shadow_in(key.block(), key.block(), epoch);
        if let Some(other) = other.filter(|other| self.epoch(*other) == epoch) {
            self.end_shadow(other); // Recovery after lost writes can find older slots.
        }
        self.clear_pinned(slot); // I26: its newer version is other content.
        let (segment, index) = self.place(slot);
        let segment = &mut self.segments[segment as usize];
        segment.set_shadow(index);
        let packed = segment.packed_state(index);
        self.changes.note(slot, packed);
        self.volumes[usize::from(key.volume().0)].waiting.add_shadow(slot, key.block(), epoch);
    }

    /// Inserts a shadow that recovery found in the checkpoint; the slot is described.
    pub(crate) fn insert_shadow(&mut self, slot: u32) {
        self.make_shadow(slot);
        self.note_write_time(slot, self.clock);
        self.set_state(slot, BlockState::Dirty);
    }

    /// Ends a shadow.
    pub(crate) fn end_shadow(&mut self, slot: u32) {
        let (key, epoch) = (self.key(slot), self.epoch(slot));
        self.void(slot);
        self.volumes[usize::from(key.volume().0)].waiting.end_shadow(key.block(), epoch);
    }

    /// Ends the shadows of blocks `first..=last` of one volume that are not older than `epoch`.
    pub(crate) fn end_shadows(&mut self, first: Key, last: Key, epoch: u64) {
        let volume = usize::from(first.volume().0);
        while let Some(slot) = self.volumes[volume].waiting.shadow_in(first.block(), last.block(), epoch) {
            self.end_shadow(slot);
        }
    }

    /// Marks a slot clean: the backing store has its block, and the log records that. Ends the
    /// older versions of the block.
    pub(crate) fn mark_clean(&mut self, slot: u32) {
        if self.is_shadow(slot) {
            self.end_shadow(slot);
            return;
        }
        let key = self.key(slot);
        self.set_state(slot, BlockState::Clean);
        self.end_shadows(key, key, 0);
    }

    /// Ends the shadows of a block that have none of the sectors in `kept`.
    pub(crate) fn end_shadows_outside(&mut self, key: Key, kept: u8) {
        let volume = usize::from(key.volume().0);
        let outside = |slot: &u32| self.mask(*slot) & kept == 0;
        let slots: Vec<u32> = self.volumes[volume].waiting.shadows_of(key.block()).filter(outside).collect();
        for slot in slots {
            self.drop_shadow(slot);
        }
    }

    /// As [`CacheMap::end_shadow`], for a removal that the log does not record.
    pub(crate) fn drop_shadow(&mut self, slot: u32) {
        self.unrecorded_drops = true;
        self.end_shadow(slot);
    }

    /// Returns true if a shadow of a block has sectors outside `mask`.
    pub(crate) fn shadows_reach_beyond(&self, key: Key, mask: u8) -> bool {
        let waiting = &self.volumes[usize::from(key.volume().0)].waiting;
        waiting.shadows_of(key.block()).any(|slot| self.mask(slot) & !mask != 0)
    }

    /// Ends the order of a volume: shadows become void, all other blocks wait as a set, and may be
    /// moved.
    pub(crate) fn dissolve_order(&mut self, volume: usize) {
        while let Some(slot) = self.volumes[volume].waiting.shadow_in(0, u64::MAX, 0) {
            self.drop_shadow(slot);
        }
        for slot in self.volumes[volume].waiting.dissolve() {
            let (segment, index) = self.place(slot);
            self.segments[segment as usize].clear_epoch(index);
        }
        self.relief += 1; // Slots that could not be moved can be now.
    }

    /// Returns true if every shadow of a volume is older than a dirty slot of its block. Recovery
    /// finds otherwise only after a cache device has lost flushed data.
    pub(crate) fn shadows_are_sound(&self, volume: VolumeId) -> bool {
        let waiting = &self.volumes[usize::from(volume.0)].waiting;
        waiting.each_shadow().all(|(block, slot)| {
            self.lookup(Key::new(volume, block)).is_some_and(|newest| {
                self.state(newest) == BlockState::Dirty && self.epoch(slot) < self.epoch(newest)
            })
        })
    }

    /// Panics if a shadow violates an invariant.
    pub(crate) fn check_shadow(&self, slot: u32) {
        let (key, epoch) = (self.key(slot), self.epoch(slot));
        let newest = self.lookup(key).expect("I24: a shadow has a newer version");
        let of_newest = (self.state(newest), self.epoch(newest));
        assert!(
            of_newest.0 == BlockState::Dirty && epoch < of_newest.1,
            "I24: {key:?} has a shadow of epoch {epoch} in slot {slot}, and {of_newest:?} in slot {newest}"
        );
        assert!(
            matches!(self.state(slot), BlockState::Dirty | BlockState::Destaged),
            "I24: a shadow is unclean"
        );
        assert!(!self.is_pinned(slot), "I26: a pin ends with its content");
        let waiting = &self.volumes[usize::from(key.volume().0)].waiting;
        let known = waiting.shadow_in(key.block(), key.block(), epoch);
        assert!(known == Some(slot), "I24: a shadow is known by its block and epoch");
    }
}

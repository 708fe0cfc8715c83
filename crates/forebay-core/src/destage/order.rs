//! Destage order: selects the next dirty block to write back.
//!
//! - **elevator**: the next one by address behind the last one written, wrapping around at the end.
//! - **fifo**: the block that was written first: segments by age, slots in their order.
//! - **lru**: as fifo, but it spares a block once if it was read since it was written: passes that
//!   spare such blocks alternate with passes that take all (an overwrite moves a block to the
//!   youngest segment, so writes need no extra rule). An approximation: within a segment, and among
//!   blocks that were read, age decides.
//! - **ordered**: see `ordered`; within a flush epoch as elevator.
//!
//! The operator can choose any order at any time: all waiting blocks are in one set
//! ([`crate::base::bitset::BlockSet`]) that is independent of the order, and the walk by age falls
//! back to the sweep, so no block is left behind. For fifo and lru a block that reclaim moved is as
//! young as its copy (not for `flush_period`).

use crate::api::settings::DestageOrder;
use crate::context::Context;
use crate::destage::state::DestageWalk;
use crate::map::CacheMap;
use crate::map::segment::BlockState;
use forebay_format::VolumeId;

/// Slots that one pick examines before it falls back to the sweep: bounds the work of an event.
const SCAN_SLOTS_MAX: u32 = 8192;

impl CacheMap {
    /// Returns the next waiting block in the walk's segment.
    fn walk_segment(
        &self,
        id: VolumeId,
        spare: bool,
        walk: &mut DestageWalk,
        budget: &mut u32,
    ) -> Option<u64> {
        let segment = &self.segments[walk.segment.1 as usize];
        *budget -= 1;
        if segment.unclean == 0 {
            return None;
        }
        let waiting = &self.volumes[usize::from(id.0)].waiting;
        while walk.slot < segment.completed && *budget > 0 {
            let slot = walk.slot;
            walk.slot += 1;
            *budget -= 1;
            if segment.state(slot) == BlockState::Dirty && !(spare && segment.is_hit(slot)) {
                let key = segment.key(slot);
                if key.volume() == id && waiting.contains(key.block()) {
                    return Some(key.block());
                }
            }
        }
        None
    }
}

impl Context {
    fn next_in_sweep(&self, id: VolumeId) -> Option<u64> {
        let waiting = &self.map.volumes[usize::from(id.0)].waiting;
        waiting.next_from(self.volume(id).destage.cursor).or_else(|| waiting.next_from(0))
    }

    /// Continues the walk from the oldest segment to the youngest.
    fn next_by_age(&mut self, id: VolumeId, spare: bool) -> Option<u64> {
        if self.map.volumes[usize::from(id.0)].waiting.len() == 0 {
            return None;
        }
        let mut walk = self.volume(id).destage.walk;
        let (mut budget, mut turns, mut found) = (SCAN_SLOTS_MAX, 0, None);
        while found.is_none() && budget > 0 && turns <= 2 {
            let Some(next) = self.map.next_by_age(walk.segment) else {
                walk = DestageWalk { takes_hits: !walk.takes_hits, ..DestageWalk::default() };
                turns += 1;
                continue;
            };
            if next != walk.segment {
                (walk.segment, walk.slot) = (next, 0);
            }
            found = self.map.walk_segment(id, spare && !walk.takes_hits, &mut walk, &mut budget);
            if found.is_none() && budget > 0 {
                walk.segment.1 += 1;
                walk.slot = 0;
            }
        }
        self.volume_mut(id).destage.walk = walk;
        found
    }

    /// Moves the walk back to a block that waits again, so that an old block does not wait for a
    /// whole pass.
    pub(crate) fn rewind_walk(&mut self, id: VolumeId, slot: u32) {
        let (number, index) = self.map.place(slot);
        let segment = (self.map.segments[number as usize].first_sequence, number);
        let walk = &mut self.volume_mut(id).destage.walk;
        if (segment, index) < (walk.segment, walk.slot) {
            (walk.segment, walk.slot) = (segment, index);
        }
    }

    /// Returns the next block to write back, if any waits.
    pub(crate) fn next_to_destage(&mut self, id: VolumeId) -> Option<u64> {
        if self.failure.runs_without_cache()
            && let Some(urgent) = self.next_urgent(id, self.volume(id).destage.cursor)
        {
            return Some(urgent);
        }
        let by_age = match self.volume(id).settings.destage_order {
            DestageOrder::Elevator | DestageOrder::Ordered => None,
            DestageOrder::Fifo => self.next_by_age(id, false),
            DestageOrder::Lru => self.next_by_age(id, true),
        };
        by_age.or_else(|| self.next_in_sweep(id))
    }
}

//! Permanently damaged cached blocks.

use crate::api::Notice;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::streams::Stream;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, Segment, SegmentPhase};
use alloc::vec::Vec;
use forebay_format::StreamKind;

/// Reads of a cached block before it is damaged for good.
pub(crate) const CACHE_READ_TRIES: u32 = 3;

/// Effect of the damage of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// It was the only copy: reads of its sectors fail until they are overwritten.
    Lost,
    /// The backing store has it; the cache has dropped it.
    Dropped,
    /// The backing store has it, but no mark in the log records that yet, so the cache must not
    /// drop it (I5).
    Kept,
}

impl Context {
    /// True if data waits for a segment, and none will become free: except for the open segments,
    /// each has a lost block, which cannot be relocated. An overwrite of it would have to wait as
    /// well, so the device has failed.
    pub(crate) fn waits_for_lost_room(&self) -> bool {
        let queue = &self.log.streams[StreamKind::Write.index()].queue;
        let free = &self.free;
        let some_come =
            !free.pool.is_empty() || free.retired_from.is_some() || free.discards.under_way.is_some();
        if self.map.lost.is_empty() || some_come || !queue.iter().any(|item| item.span.is_some()) {
            return false;
        }
        let open: Vec<u32> = self.log.streams.iter().filter_map(Stream::open_segment).collect();
        // Half of a column becomes free with the other half.
        let other_is_open = |number: u32| {
            let halves = self.members.mirror().map(|mirror| mirror.halves(number));
            halves.is_some_and(|(first, twin)| open.contains(&(first + twin - number)))
        };
        let stays = |(number, segment): (u32, &Segment)| match segment.phase {
            SegmentPhase::Free | SegmentPhase::Twin => true,
            SegmentPhase::Freed => other_is_open(number),
            SegmentPhase::Open => open.contains(&number),
            SegmentPhase::Sealed => segment.lost > 0,
        };
        (0..).zip(&self.map.segments).all(stays) && !fault::planted(PlantedBug::WaitForLostRoom)
    }

    /// A cached block is damaged for good.
    pub(crate) fn give_up(&mut self, slot: u32) -> Damage {
        let key = self.map.key(slot);
        let damage = match self.map.state(slot) {
            BlockState::Dirty if self.map.is_shadow(slot) => {
                self.break_order(key);
                self.map.drop_shadow(slot);
                Damage::Dropped
            }
            BlockState::Dirty if self.failure.runs_without_cache() => {
                self.lose(slot);
                Damage::Lost
            }
            BlockState::Dirty if self.map.is_lost(slot) => return Damage::Lost,
            BlockState::Dirty => {
                self.break_order(key);
                self.map.set_lost(slot);
                self.volumes.note_lost(key.volume());
                Damage::Lost
            }
            BlockState::Destaged => Damage::Kept,
            BlockState::Clean | BlockState::Void => {
                self.map.remove(key);
                self.stats.read_invalidated_blocks += 1;
                self.counters.of(key.volume()).read_invalidated_blocks += 1;
                Damage::Dropped
            }
        };
        self.stats.damaged_blocks += 1;
        self.counters.of(key.volume()).damaged_blocks += 1;
        let lost = damage == Damage::Lost;
        self.coverage.add(if lost { CoverageMark::DirtyLost } else { CoverageMark::CleanDamaged });
        self.actions.notice(Notice::BlockDamaged { volume: key.volume(), block: key.block(), lost });
        damage
    }
}

//! Cached blocks that are damaged for good.

use crate::api::Notice;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::map::segment::BlockState;

/// Reads of a cached block before it is given up as damaged.
pub(crate) const CACHE_READ_TRIES: u32 = 3;

/// What became of a damaged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Damage {
    /// It was the only copy: its sectors answer with errors until they are written again.
    Lost,
    /// The backing store has it; the cache has forgotten it.
    Dropped,
    /// The backing store has it, but the log does not say so yet, so the cache must not forget it
    /// (I5).
    Kept,
}

impl Context {
    /// A cached block is damaged for good.
    pub(crate) fn give_up(&mut self, slot: u32) -> Damage {
        let key = self.map.key(slot);
        let damage = match self.map.state(slot) {
            BlockState::Dirty if self.map.is_shadow(slot) => {
                self.break_order(key);
                self.map.drop_shadow(slot);
                Damage::Dropped
            }
            BlockState::Dirty if self.runs_without_cache() => {
                self.lose(slot);
                Damage::Lost
            }
            BlockState::Dirty if self.map.is_lost(slot) => return Damage::Lost,
            BlockState::Dirty => {
                self.break_order(key);
                self.map.set_lost(slot);
                self.note_lost(key.volume());
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
        self.cover(if lost { CoverageMark::DirtyLost } else { CoverageMark::CleanDamaged });
        self.notice(Notice::BlockDamaged { volume: key.volume(), block: key.block(), lost });
        damage
    }
}

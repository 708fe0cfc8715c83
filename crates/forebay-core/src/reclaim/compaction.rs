//! Compaction: while there is room nothing is evicted.
//!
//! Overwrites and headers leave holes, so a log can be full although much of it holds nothing. As
//! long as there is room, reclaim takes the segments with the most holes, weighed by age, and moves
//! all that counts in them: data that fits stays whole. If no segment has enough holes just now,
//! and there is no hurry, it waits for overwrites to make some.
//!
//! **What it costs** is bounded by the endurance budget (`survivors_max_pct`): of a victim no more
//! than that share may count, so at 75 % three moves buy room for one block. Nor is there room to
//! compact for once more of the cache counts than that and [`SPREAD_PCT`]: the moves for each block
//! of room grow without bound, and what is kept for them hardly returns. Then the policy evicts.
//! Segments that are nearly empty are compacted whatever the budget ([`LEAST_PCT`]).
//!
//! **Progress** (I25). A victim has at most [`Keeping::kept_max`] blocks that count, so each one
//! gains an eighth of a segment. Nothing is compacted if nothing can be moved, nor once so many
//! victims were emptied that it must be in vain. Once segments are short nobody waits for
//! overwrites.

use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::mirror::Standing;
use crate::fault::{self, PlantedBug};
use crate::reclaim::FILL_RESERVE;
use crate::reclaim::policy::{Choice, Keeping, Victims, View, listed};

/// The emptiest segments have so much less that counts than the cache as a whole, percent of their
/// blocks. Measured with `examples/policies`: with 10 an avoided miss costs 46 blocks written
/// instead of 12, where data takes 85 % of the device.
const SPREAD_PCT: u32 = 5;
/// The least budget for compaction, percent of a segment: three moves make room for five blocks.
const LEAST_PCT: u32 = 37;

/// Victims that were skipped in one step, because they wait for something, before no other is
/// tried.
const SKIPPED_MAX: usize = 64;

/// Choosing victims to compact: a part of reclaim.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    victims: Victims,
    /// All segments were looked at in vain: not again until so many have been taken into use.
    barren_until: u64,
}

/// What compaction says.
pub(super) enum Compacting {
    /// This segment is worth it.
    Take(Choice),
    /// There is room, but no segment with enough holes now, and no hurry: overwrites make more.
    Wait,
    /// It is no help now.
    No,
}

/// Share of a segment that may count for it to be compacted, percent.
fn budget_pct(cx: &Context) -> u32 {
    cx.survivors_max_pct().max(LEAST_PCT)
}

/// What counts leaves room: it is better put together than evicted.
fn has_room(cx: &Context) -> bool {
    let (cached, space) = (cx.map.cached_blocks(), cx.space());
    let (held, space) = match &cx.mirror {
        None => (cached, space),
        Some(mirror) if mirror.standing == Standing::Whole => (cached + cx.map.unclean_blocks(), space),
        Some(_) => (cached, space / 2),
    };
    held * 100 < space * u64::from(budget_pct(cx) + SPREAD_PCT)
        || fault::planted(PlantedBug::CompactWithoutBound)
}

/// Most blocks that count in a segment that is worth compacting.
fn densest(cx: &Context) -> u32 {
    let blocks = cx.map.geometry.segment_blocks;
    if fault::planted(PlantedBug::CompactWithoutBound) {
        return blocks;
    }
    (blocks * budget_pct(cx) / 100).min(Keeping::kept_max(blocks))
}

impl Compaction {
    /// What to do while there is room. `view` is what eviction would go by.
    pub(super) fn choose(
        &mut self,
        cx: &mut Context,
        (view, round): (&View, u64),
        skipped: &[u32],
    ) -> Compacting {
        if !cx.can_relocate() || cx.spares_flash() || !has_room(cx) {
            return Compacting::No;
        }
        if cx.map.begun >= self.barren_until && skipped.len() < SKIPPED_MAX {
            let view = View { densest: Some(densest(cx)), ..*view };
            if let Some(choice) = cx.choose_from(&mut self.victims, (&view, round), skipped) {
                cx.cover(CoverageMark::Compacted);
                return Compacting::Take(choice);
            }
            // A pass over n segments is paid for by n/512 segments that are written.
            let pause = (listed(cx.map.geometry.segment_count) / 8).max(1);
            self.barren_until = cx.map.begun + pause as u64;
        }
        let hurries = cx.is_short_of_segments() || cx.free_segments() <= FILL_RESERVE;
        if hurries { Compacting::No } else { Compacting::Wait }
    }
}

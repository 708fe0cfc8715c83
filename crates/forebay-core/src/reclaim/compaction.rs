//! Compaction: while there is room, nothing is evicted.
//!
//! Overwrites and headers leave holes, so a log can be full although much of it holds nothing.
//! While there is room, reclaim takes the segments with the most holes, weighed by age, and
//! relocates all their live blocks: data that fits stays in the cache. If no segment has enough
//! holes now, and segments are not short, it waits for overwrites to make some.
//!
//! The endurance budget (`survivors_max_pct`) bounds **the cost**: no more than that share of a
//! victim may be live, so at 75 % three relocations gain room for one block. There is no room to
//! compact once the live share of the cache exceeds the budget by more than [`SPREAD_PCT`]: the
//! relocations for each block gained grow without bound, and the blocks kept by them are hardly
//! hit. Then the policy evicts. Segments that are nearly empty are compacted with any budget
//! ([`LEAST_PCT`]).
//!
//! **Progress** (I25). A victim has at most [`Keeping::kept_max`] live blocks, so each one gains an
//! eighth of a segment. Nothing is compacted if nothing can be relocated, nor after so many victims
//! that it must be in vain. Once segments are short, compaction does not wait for overwrites.

use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::fault::{self, PlantedBug};
use crate::reclaim::FILL_RESERVE;
use crate::reclaim::victims::{Choice, Keeping, Victims, View, listed};

/// The live share of the emptiest segments is lower by this much than that of the whole cache,
/// percent of their blocks. Measured with `examples/policies`: with 10 an avoided miss costs 46
/// blocks written instead of 12, at a utilisation of 85 % of the device.
const SPREAD_PCT: u32 = 5;
/// The smallest budget for compaction, percent of a segment: three relocations make room for five
/// blocks.
const LEAST_PCT: u32 = 37;

/// Maximum number of victims skipped in one step because they wait for something; then no other is
/// tried.
const SKIPPED_MAX: usize = 64;

/// Chooses victims to compact: a part of reclaim.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    victims: Victims,
    /// A pass found nothing: no other one until this many segments have been taken into use.
    barren_until: u64,
}

/// Decision of compaction.
pub(super) enum Compacting {
    /// Compact this segment.
    Take(Choice),
    /// There is room, but no segment has enough holes now, and segments are not short: overwrites
    /// make more.
    Wait,
    /// Compaction does not help now.
    No,
}

/// Share of a segment that may be live for it to be compacted, percent.
fn budget_pct(cx: &Context) -> u32 {
    cx.survivors_max_pct().max(LEAST_PCT)
}

/// True if the live blocks leave room: then compaction is better than eviction.
fn has_room(cx: &Context) -> bool {
    let (cached, space) = (cx.map.cached_blocks(), cx.space());
    let (held, space) = match cx.members.mirror() {
        None => (cached, space),
        Some(mirror) if mirror.is_whole() => (cached + cx.map.unclean_blocks(), space),
        Some(_) => (cached, space / 2),
    };
    held * 100 < space * u64::from(budget_pct(cx) + SPREAD_PCT)
        || fault::planted(PlantedBug::CompactWithoutBound)
}

/// Maximum number of live blocks in a segment that is worth compacting.
fn densest(cx: &Context) -> u32 {
    let blocks = cx.map.geometry.segment_blocks;
    if fault::planted(PlantedBug::CompactWithoutBound) {
        return blocks;
    }
    (blocks * budget_pct(cx) / 100).min(Keeping::kept_max(blocks))
}

impl Compaction {
    /// Decides while there is room. `view` is that of eviction.
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
                cx.coverage.add(CoverageMark::Compacted);
                return Compacting::Take(choice);
            }
            // The cost of a pass over n segments is spread over n/512 segments that are written.
            let pause = (listed(cx.map.geometry.segment_count) / 8).max(1);
            self.barren_until = cx.map.begun + pause as u64;
        }
        let hurries = cx.free.is_short_of_segments() || cx.free.free_segments() <= FILL_RESERVE;
        if hurries { Compacting::No } else { Compacting::Wait }
    }
}

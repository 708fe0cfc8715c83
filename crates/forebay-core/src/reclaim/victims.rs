//! Victims: which segment to reclaim, and which of its blocks to keep. These rules decide, without
//! side effects; `policy` has those of each policy.
//!
//! A victim is *compacted* (all live blocks are kept) while there is room, see `compaction`;
//! otherwise the policy chooses the blocks to *evict*. Compaction ranks by benefit and cost under
//! every policy, and all blocks weigh the same, since all are relocated.
//!
//! **Lists.** On a large cache, looking at all segments for every choice would cost more than the
//! rest of reclaim. So one pass ranks them all and keeps a short list of the best (one in 64, at
//! most 64) of each queue. The next choices come from it, and each candidate is checked again. The
//! cost of a pass over n segments is spread over n/64 choices.
//!
//! **Progress** (I25). No victim keeps more than 7/8 of its blocks, pinned ones and those within a
//! minimum share included. Segments with too many pinned blocks are victims of last resort, and
//! then lose those that cannot be relocated.

use crate::api::settings::{Priority, ReclaimPolicy};
use crate::policy::rules::{MAIN, PROBATION, Segment};
use alloc::vec::Vec;

/// Choices served by one pass: one in this many segments, and at most this many.
const LISTED_ONE_IN: u32 = 64;

/// A policy's view of a segment that could be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub(crate) segment: u32,
    /// Sequence of its first batch: lower is older.
    pub(crate) first_sequence: u64,
    /// Blocks that must be relocated or destaged before it can be freed.
    pub(crate) unclean: u32,
    /// Pinned blocks, some of which may be unclean.
    pub(crate) pinned: u32,
    /// Live blocks, unclean ones included.
    pub(crate) live: u32,
    /// Holds fills or writes, no survivors.
    pub(crate) probation: bool,
}

/// Inputs of a choice besides the segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct View {
    pub(crate) policy: ReclaimPolicy,
    /// Blocks of a segment.
    pub(crate) segment_blocks: u32,
    /// Bound of the blocks that a victim may have to relocate, exclusive.
    pub(crate) movable: u32,
    /// Sequence of the next batch.
    pub(crate) newest: u64,
    /// Share of the cache for probation, see `policy::ghosts`.
    pub(crate) probation_share: u64,
    /// Compaction: maximum number of live blocks in a victim. `None`: eviction.
    pub(crate) densest: Option<u32>,
}

/// A segment to reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Choice {
    pub(crate) segment: u32,
    /// Taken for its holes: its live blocks are kept.
    pub(crate) compacts: bool,
    /// A victim of last resort: pinned blocks that cannot be relocated are evicted.
    pub(crate) forced: bool,
}

impl View {
    /// True if few enough of its blocks must be relocated.
    fn is_movable(&self, candidate: &Candidate) -> bool {
        candidate.unclean < self.movable
    }

    /// The same, with its pinned blocks included, or for compaction all live blocks.
    fn is_easy(&self, candidate: &Candidate) -> bool {
        match self.densest {
            Some(densest) => self.is_movable(candidate) && candidate.live <= densest,
            None => candidate.unclean + candidate.pinned < self.movable,
        }
    }

    /// Benefit of reclaiming a segment; comparable within a queue.
    fn rank(&self, candidate: &Candidate) -> u128 {
        let segment = Segment {
            age: self.newest.saturating_sub(candidate.first_sequence) + 1,
            blocks: self.segment_blocks,
            live: candidate.live,
            unclean: candidate.unclean,
        };
        match self.densest {
            Some(_) => segment.benefit(2 * segment.live),
            None => self.policy.rank(&segment),
        }
    }

    fn queue(&self, candidate: &Candidate) -> usize {
        if self.densest.is_some() { PROBATION } else { self.policy.queue(!candidate.probation) }
    }
}

/// The short lists of victims. Only a hint: every candidate is checked again.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    /// By queue: rank and segment, the best last.
    lists: [Vec<(u128, u32)>; 2],
    /// Segments in each queue, as counted by the last pass, minus those taken since.
    sizes: [u32; 2],
    made_for: Option<ReclaimPolicy>,
    /// Made by the last pass, and nothing was taken yet.
    fresh: bool,
    /// The last pass found nothing, in this state of the map.
    barren: Option<(u64, u32)>,
    /// Number of passes, for tests.
    pub(crate) passes: u64,
}

impl Victims {
    /// True if the last pass found nothing, and nothing has changed that could help.
    pub(crate) fn is_barren(&self, relief: u64, view: &View) -> bool {
        self.barren == Some((relief, view.movable))
    }

    /// True if there are victims for the next choices, too.
    pub(crate) fn has_more(&self) -> bool {
        self.lists.iter().any(|list| !list.is_empty())
    }

    /// The best segment of the lists that is still eligible; `look` returns its current state.
    pub(crate) fn next(&mut self, view: &View, look: impl Fn(u32) -> Option<Candidate>) -> Option<Choice> {
        if self.made_for != Some(view.policy) {
            self.lists.iter_mut().for_each(Vec::clear);
        }
        for list in &mut self.lists {
            while let Some((_, segment)) = list.last() {
                if look(*segment).is_some_and(|candidate| view.is_easy(&candidate)) {
                    break;
                }
                list.pop();
            }
        }
        let mut queue = view.policy.queue_to_serve(self.sizes.map(u64::from), view.probation_share);
        if self.lists[queue].is_empty() {
            if self.sizes[queue] > 0 && !self.fresh {
                return None; // The list is empty, but not the queue: a new pass is needed.
            }
            queue = 1 - queue;
        }
        if queue == PROBATION && self.spares_probation(view, look) {
            queue = MAIN;
        }
        self.fresh = false;
        let (_, segment) = self.lists[queue].pop()?;
        self.sizes[queue] = self.sizes[queue].saturating_sub(1);
        Some(Choice { segment, compacts: view.densest.is_some(), forced: false })
    }

    /// True if the policy spares the next segment of probation and takes that of main.
    fn spares_probation(&self, view: &View, look: impl Fn(u32) -> Option<Candidate>) -> bool {
        let unclean = |list: &[(u128, u32)]| {
            let next = list.last().and_then(|(_, segment)| look(*segment));
            next.map(|candidate| candidate.unclean)
        };
        match (unclean(&self.lists[PROBATION]), unclean(&self.lists[MAIN])) {
            (Some(new), Some(old)) => view.policy.spares_probation([new, old], view.segment_blocks),
            _ => false,
        }
    }

    /// Ranks all segments again and chooses. `relief` is the state of the map, `None` if segments
    /// that are excluded now may become available at any time.
    pub(crate) fn pass(
        &mut self,
        view: &View,
        relief: Option<u64>,
        candidates: impl Iterator<Item = Candidate>,
        segments: u32,
        look: impl Fn(u32) -> Option<Candidate>,
    ) -> Option<Choice> {
        self.passes += 1;
        self.made_for = Some(view.policy);
        self.lists.iter_mut().for_each(Vec::clear);
        self.sizes = [0; 2];
        let most = listed(segments);
        let mut last_resort: Option<(u128, u32)> = None;
        for candidate in candidates {
            let queue = view.queue(&candidate);
            self.sizes[queue] += 1;
            let entry = (view.rank(&candidate), candidate.segment);
            if view.is_easy(&candidate) {
                enlist(&mut self.lists[queue], entry, most);
            } else if view.densest.is_none() && view.is_movable(&candidate) {
                last_resort = last_resort.max(Some(entry));
            }
        }
        self.fresh = true;
        let choice = self.next(view, look);
        let forced = last_resort.map(|(_, segment)| Choice { segment, compacts: false, forced: true });
        let choice = choice.or(forced);
        self.barren = relief.filter(|_| choice.is_none()).map(|relief| (relief, view.movable));
        choice
    }
}

/// Length of the list that one pass over `segments` segments makes.
pub(crate) fn listed(segments: u32) -> usize {
    (segments / LISTED_ONE_IN).clamp(1, LISTED_ONE_IN) as usize
}

/// Inserts into a list of at most `most` entries, sorted with the best last.
fn enlist(list: &mut Vec<(u128, u32)>, entry: (u128, u32), most: usize) {
    if list.len() == most && list.first().is_some_and(|worst| *worst >= entry) {
        return;
    }
    let at = list.partition_point(|other| *other < entry);
    list.insert(at, entry);
    if list.len() > most {
        list.remove(0);
    }
}

/// Fate of a clean block of a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    /// It is evicted.
    No,
    /// It is relocated, or evicted if that is not possible now.
    IfPossible,
    /// It is relocated; the victim waits until that is possible.
    Must,
}

/// A clean block of a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) hit: bool,
    pub(crate) pinned: bool,
    /// Not a survivor yet.
    pub(crate) probation: bool,
    /// Priority of its volume, relative to the others.
    pub(crate) priority: Priority,
    /// Its volume is not above its minimum share.
    pub(crate) within_minimum: bool,
    /// Its volume is above its maximum share.
    pub(crate) above_maximum: bool,
}

/// Blocks of a victim that were kept so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub(crate) choice: Choice,
    /// Blocks relocated because they were hit.
    pub(crate) hits: u32,
    /// Blocks relocated, or to relocate, for any reason.
    pub(crate) all: u32,
}

/// The rules for keeping blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    pub(crate) policy: ReclaimPolicy,
    pub(crate) segment_blocks: u32,
    /// Share of a segment kept because it was hit, percent: the endurance budget.
    pub(crate) survivors_max_pct: u32,
}

impl Keeping {
    /// Maximum number of blocks of a segment that are relocated instead of evicted: reclaim gains
    /// the rest (I25).
    pub(crate) fn kept_max(segment_blocks: u32) -> u32 {
        if segment_blocks < 64 {
            return segment_blocks / 2; // Batch headers take much of such a small segment.
        }
        segment_blocks - segment_blocks / 8 - 2
    }

    pub(crate) fn decide(&self, block: &Block, kept: &Kept) -> Keep {
        if kept.choice.compacts {
            // A victim of compaction has no more blocks than may be kept.
            return if block.above_maximum && !block.pinned { Keep::No } else { Keep::Must };
        }
        let most =
            if kept.choice.forced { self.segment_blocks / 4 } else { Self::kept_max(self.segment_blocks) };
        if kept.all >= most {
            return Keep::No;
        }
        if block.pinned {
            return if kept.choice.forced { Keep::IfPossible } else { Keep::Must };
        }
        if block.above_maximum {
            return Keep::No;
        }
        let second_chance = self.policy.gives_second_chance(block.priority, block.hit, !block.probation);
        let in_budget = kept.hits < self.segment_blocks * self.survivors_max_pct / 100;
        if block.within_minimum || second_chance && in_budget { Keep::IfPossible } else { Keep::No }
    }
}

#[cfg(test)]
#[path = "victims_tests.rs"]
mod tests;

//! Small interfaces behind which policies are chosen: which segment to reclaim, what of it to keep.

/// What an eviction policy sees of a segment that could be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Candidate {
    pub(crate) segment: u32,
    /// Sequence of its first batch: lower is older.
    pub(crate) born: u64,
    /// Blocks that must be moved or destaged before it can be freed.
    pub(crate) unclean: u32,
    /// Blocks that count, unclean ones included.
    pub(crate) live: u32,
}

/// Chooses the next segment to reclaim and which of its clean blocks to keep.
pub(crate) trait Eviction {
    /// The segment to reclaim, of those on offer (in no particular order).
    fn victim(&self, candidates: &mut [Candidate]) -> Option<u32>;

    /// Whether to keep a clean block, given whether it was hit and how many were kept of this segment already.
    fn keeps(&self, hit: bool, kept: u32) -> bool;
}

/// First in, first out by segment, with a second chance for blocks that were hit.
///
/// Among the oldest quarter of the segments the one with the least unclean blocks is taken: age decides roughly, the
/// cost of moving dirty data decides among equals. If all old ones are mostly unclean, the cheapest of all is taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecondChance {
    /// Most blocks kept of a segment because they were hit: the endurance budget.
    pub(crate) survivors_max: u32,
    /// Unclean blocks above which a segment is not worth reclaiming while it is old.
    pub(crate) unclean_max: u32,
}

impl Eviction for SecondChance {
    fn victim(&self, candidates: &mut [Candidate]) -> Option<u32> {
        candidates.sort_unstable_by_key(|candidate| candidate.born);
        let old = candidates.len().div_ceil(4).max(candidates.len().min(4));
        let cheapest = |of: &[Candidate]| of.iter().min_by_key(|candidate| candidate.unclean).copied();
        let first = cheapest(&candidates[..old]).filter(|candidate| candidate.unclean <= self.unclean_max);
        first.or_else(|| cheapest(candidates)).map(|candidate| candidate.segment)
    }

    fn keeps(&self, hit: bool, kept: u32) -> bool {
        hit && kept < self.survivors_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: SecondChance = SecondChance { survivors_max: 2, unclean_max: 8 };

    fn candidate(segment: u32, born: u64, unclean: u32) -> Candidate {
        Candidate { segment, born, unclean, live: 16 }
    }

    #[test]
    fn the_cheapest_of_the_oldest_quarter_is_reclaimed() {
        let mut candidates: Vec<_> = (0..40).map(|n| candidate(n, u64::from(n), 5)).collect();
        candidates[7].unclean = 1;
        candidates[30].unclean = 0;
        assert_eq!(POLICY.victim(&mut candidates), Some(7));
    }

    #[test]
    fn a_younger_segment_is_taken_when_all_old_ones_are_unclean() {
        let mut candidates: Vec<_> = (0..40).map(|n| candidate(n, u64::from(n), 12)).collect();
        candidates[30].unclean = 3;
        assert_eq!(POLICY.victim(&mut candidates), Some(30));
        assert_eq!(POLICY.victim(&mut []), None);
    }

    #[test]
    fn hit_blocks_are_kept_up_to_the_budget() {
        assert!(POLICY.keeps(true, 1) && !POLICY.keeps(true, 2) && !POLICY.keeps(false, 0));
    }

    use alloc::vec::Vec;
}

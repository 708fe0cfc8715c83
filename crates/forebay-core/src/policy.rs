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
    fn victim(&self, candidates: &[Candidate]) -> Option<u32>;

    /// Whether to keep a clean block, given whether it was hit and how many were kept of this segment already.
    fn keeps(&self, hit: bool, kept: u32) -> bool;
}

/// Cost and benefit by segment, with a second chance for blocks that were hit.
///
/// The segment with the most space to win for the work, weighed by its age, is taken: `(1 - u) * age / (1 + u)`, the rule
/// of log-structured file systems (Rosenblum and Ousterhout, 1991), where `u` is the share of blocks that still count.
/// Unclean blocks weigh twice, since they must be moved; clean ones weigh too, since each may be wanted again. So what
/// was overwritten goes first, then what is old, and a segment full of clean, hot blocks stays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SecondChance {
    /// Most blocks kept of a segment because they were hit: the endurance budget.
    pub(crate) survivors_max: u32,
    /// Blocks of a segment.
    pub(crate) segment_blocks: u32,
}

impl SecondChance {
    /// Worth of reclaiming a segment, in units without meaning; `newest` is the youngest segment's first sequence.
    fn worth(&self, candidate: &Candidate, newest: u64) -> u128 {
        let all = 2 * self.segment_blocks;
        let counts = (candidate.live + candidate.unclean).min(all);
        let age = newest - candidate.born + 1;
        // One is added so that age decides among segments that are full.
        u128::from(all - counts + 1) * u128::from(age) * 1024 / u128::from(all + counts)
    }
}

impl Eviction for SecondChance {
    fn victim(&self, candidates: &[Candidate]) -> Option<u32> {
        let newest = candidates.iter().map(|candidate| candidate.born).max()?;
        let best =
            candidates.iter().max_by_key(|candidate| (self.worth(candidate, newest), candidate.segment));
        best.map(|candidate| candidate.segment)
    }

    fn keeps(&self, hit: bool, kept: u32) -> bool {
        hit && kept < self.survivors_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: SecondChance = SecondChance { survivors_max: 2, segment_blocks: 16 };

    fn candidate(segment: u32, born: u64, live: u32, unclean: u32) -> Candidate {
        Candidate { segment, born, unclean, live }
    }

    #[test]
    fn among_equals_the_oldest_is_reclaimed() {
        let candidates = [candidate(1, 30, 10, 0), candidate(2, 10, 10, 0), candidate(3, 20, 10, 0)];
        assert_eq!(POLICY.victim(&candidates), Some(2));
        assert_eq!(POLICY.victim(&[]), None);
    }

    #[test]
    fn what_was_overwritten_goes_before_what_is_full_and_clean() {
        let candidates = [candidate(1, 10, 16, 0), candidate(2, 12, 4, 2), candidate(3, 90, 16, 0)];
        assert_eq!(POLICY.victim(&candidates), Some(2));
    }

    #[test]
    fn moving_dirty_blocks_costs_more_than_dropping_clean_ones() {
        let candidates = [candidate(1, 10, 8, 8), candidate(2, 10, 8, 0), candidate(3, 11, 16, 16)];
        assert_eq!(POLICY.victim(&candidates), Some(2));
    }

    #[test]
    fn hit_blocks_are_kept_up_to_the_budget() {
        assert!(POLICY.keeps(true, 1) && !POLICY.keeps(true, 2) && !POLICY.keeps(false, 0));
    }
}

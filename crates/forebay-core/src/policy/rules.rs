//! The interface of a reclaim policy.

use crate::map::segment::Key;
use crate::policy::ghosts::Ghosts;

/// The queue of blocks that are new.
pub(crate) const PROBATION: usize = 0;
/// The queue of blocks that have survived under a policy with two queues.
pub(crate) const MAIN: usize = 1;

/// A policy's view of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    /// Batches written since its first one, that one included.
    pub(crate) age: u64,
    /// Blocks that it has room for.
    pub(crate) blocks: u32,
    /// Live blocks, unclean ones included.
    pub(crate) live: u32,
    /// Blocks that must be relocated or destaged before it can be freed.
    pub(crate) unclean: u32,
}

impl Segment {
    /// Benefit and cost of reclaiming a segment (see `lru`), if emptying it costs `cost` half
    /// blocks.
    pub(crate) fn benefit(&self, cost: u32) -> u128 {
        let all = 2 * self.blocks;
        let cost = cost.min(all);
        // One is added so that age decides among full segments.
        u128::from(all - cost + 1) * u128::from(self.age) * 1024 / u128::from(all + cost)
    }
}

/// What distinguishes policies. The defaults are those of a policy with one queue, by age.
pub(super) trait Policy {
    /// Blocks that were hit get a second chance.
    const KEEPS_HITS: bool = true;

    /// Benefit of reclaiming a segment; comparable within a queue.
    fn rank(segment: &Segment) -> u128 {
        segment.age.into()
    }

    /// The queue of a block or segment.
    fn queue(_is_survivor: bool) -> usize {
        PROBATION
    }

    /// The queue that gives up the next victim, by their sizes, if both have one. Under a policy
    /// with one queue, the survivors of an earlier policy go first.
    fn queue_to_serve(_sizes: [u64; 2], _ghosts_share: u64) -> usize {
        MAIN
    }

    /// True if probation is spared, because its next victim has `unclean[0]` unclean blocks of
    /// `blocks`, and that of main `unclean[1]`.
    fn spares_probation(_unclean: [u32; 2], _blocks: u32) -> bool {
        false
    }

    /// A block of this queue is evicted from a cache of `capacity` blocks.
    fn evicted(_ghosts: &mut Ghosts, _key: Key, _queue: usize, _capacity: u64) {}

    /// A block enters a cache of `capacity` blocks. True if it was evicted recently and has proved
    /// its use.
    fn returns(_ghosts: &mut Ghosts, _key: Key, _capacity: u64) -> bool {
        false
    }

    /// Most blocks of a cache of `capacity` blocks that may be on probation; 0 without such a
    /// limit.
    fn probation_limit(_ghosts: &Ghosts, _capacity: u64) -> u64 {
        0
    }
}

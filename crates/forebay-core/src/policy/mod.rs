//! Reclaim policies, one file each. The engine and the miniature caches of the miss-ratio curve
//! (`context::curve`) run the same code, so that the advice follows the engine.
//!
//! A policy ranks segments, assigns blocks to the two queues, selects the queue that gives up the
//! next victim, decides on second chances, and uses the memory of evicted blocks ([`Ghosts`]). It
//! has no state: the users keep queues and ghosts.
//!
//! **What stays with the users.** The engine empties segments: it keeps short lists of the best
//! ones (`reclaim::victims`) and adds bounds for pins, shares and the endurance budget. A miniature
//! evicts single blocks in the order of its log. There a rank would decide nothing: of two full
//! segments of equal cleanliness, each policy takes the older one first.
//!
//! **A new policy** is a file here, its line in `with_policy!`, and its name in the settings:
//! [`ReclaimPolicy`] and `choices.rs` and `engine.rs` of forebay-config.
//! `curve_matches_engines_of_other_sizes` compares engine and miniatures under each policy of
//! `ReclaimPolicy::ALL`.

mod fifo;
pub(crate) mod ghosts;
mod lru;
mod s3fifo;

use crate::api::settings::{Priority, ReclaimPolicy};
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
trait Policy {
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

/// Evaluates an expression for the type of a policy.
macro_rules! with_policy {
    ($policy:expr, $type:ident => $body:expr) => {
        match $policy {
            ReclaimPolicy::Fifo => {
                type $type = fifo::Fifo;
                $body
            }
            ReclaimPolicy::Lru => {
                type $type = lru::Lru;
                $body
            }
            ReclaimPolicy::S3Fifo => {
                type $type = s3fifo::S3Fifo;
                $body
            }
        }
    };
}

/// See [`Policy`].
impl ReclaimPolicy {
    pub(crate) fn rank(self, segment: &Segment) -> u128 {
        with_policy!(self, P => P::rank(segment))
    }

    pub(crate) fn queue(self, is_survivor: bool) -> usize {
        with_policy!(self, P => P::queue(is_survivor))
    }

    pub(crate) fn queue_to_serve(self, sizes: [u64; 2], ghosts_share: u64) -> usize {
        with_policy!(self, P => P::queue_to_serve(sizes, ghosts_share))
    }

    pub(crate) fn spares_probation(self, unclean: [u32; 2], blocks: u32) -> bool {
        with_policy!(self, P => P::spares_probation(unclean, blocks))
    }

    /// True if a clean block gets a second chance for its hits, or its priority.
    pub(crate) fn gives_second_chance(self, priority: Priority, is_hit: bool, is_survivor: bool) -> bool {
        let is_hit = is_hit && with_policy!(self, P => P::KEEPS_HITS);
        match priority {
            Priority::Low => false,
            Priority::Normal => is_hit,
            Priority::High => is_hit || !is_survivor,
        }
    }

    pub(crate) fn evicted(self, ghosts: &mut Ghosts, key: Key, queue: usize, capacity: u64) {
        with_policy!(self, P => P::evicted(ghosts, key, queue, capacity));
    }

    #[inline]
    pub(crate) fn returns(self, ghosts: &mut Ghosts, key: Key, capacity: u64) -> bool {
        with_policy!(self, P => P::returns(ghosts, key, capacity))
    }

    pub(crate) fn probation_limit(self, ghosts: &Ghosts, capacity: u64) -> u64 {
        with_policy!(self, P => P::probation_limit(ghosts, capacity))
    }
}

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
pub(crate) mod rules;
mod s3fifo;

use crate::api::settings::{Priority, ReclaimPolicy};
use crate::map::segment::Key;
use crate::policy::ghosts::Ghosts;
use crate::policy::rules::{Policy, Segment};

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

/// See `Policy`.
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

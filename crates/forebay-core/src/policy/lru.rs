//! `lru`: cost-benefit, `(1 - u) * age / (1 + u)`, the rule of log-structured file systems
//! (Rosenblum and Ousterhout, 1991), where `u` is the share of live blocks; unclean blocks weigh
//! twice, since they must be relocated. Blocks that were hit get a second chance.

use super::rules::{Policy, Segment};

pub(super) struct Lru;

impl Policy for Lru {
    fn rank(segment: &Segment) -> u128 {
        segment.benefit(segment.live + segment.unclean)
    }
}

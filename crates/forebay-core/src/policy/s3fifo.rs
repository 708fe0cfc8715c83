//! `s3fifo`: two queues by age (Yang and others, 2023): fills and writes are on *probation*,
//! survivors are *main*. Blocks that were hit get a second chance, in main.
//!
//! Victims come from probation while it holds more than its share, which follows the returns of
//! evicted blocks ([`Ghosts`]), unless its next victim is not clean yet and that of main is
//! cleaner.

use super::rules::{MAIN, PROBATION, Policy};
use crate::map::segment::Key;
use crate::policy::ghosts::{Ghosts, WHOLE};

/// Unclean part of a segment on probation, percent, above which a cleaner segment of main is the
/// victim instead. Relocating a dirty block costs a write, and the block is clean a little later.
/// Of random writes over four times the cache, 2.37 blocks are written for each without this, 2.35
/// with 50, 1.66 with 25, 1.50 with 12; the misses of the trace of a virtual machine change by less
/// than their noise (decision 0038 has the command).
const UNCLEAN_MAX_PCT: u32 = 25;

pub(super) struct S3Fifo;

impl Policy for S3Fifo {
    fn queue(is_survivor: bool) -> usize {
        if is_survivor { MAIN } else { PROBATION }
    }

    fn queue_to_serve(sizes: [u64; 2], ghosts_share: u64) -> usize {
        let (all, whole) = (u128::from(sizes[PROBATION] + sizes[MAIN]), u128::from(WHOLE));
        let share = ((all * u128::from(ghosts_share) + whole / 2) / whole).max(1) as u64;
        if sizes[PROBATION] > share { PROBATION } else { MAIN }
    }

    fn spares_probation(unclean: [u32; 2], blocks: u32) -> bool {
        unclean[PROBATION] * 100 > blocks * UNCLEAN_MAX_PCT && unclean[MAIN] < unclean[PROBATION]
    }

    fn evicted(ghosts: &mut Ghosts, key: Key, queue: usize, capacity: u64) {
        ghosts.note(key, queue == PROBATION, capacity);
    }

    fn returns(ghosts: &mut Ghosts, key: Key, capacity: u64) -> bool {
        ghosts.returns(key, capacity)
    }

    fn probation_limit(ghosts: &Ghosts, capacity: u64) -> u64 {
        (u128::from(capacity) * u128::from(ghosts.probation_share()) / u128::from(WHOLE)) as u64
    }
}

//! Recently evicted blocks, and the share of probation that their return decides.
//!
//! Under `s3fifo` new blocks are on probation, and blocks that were used again are in the main
//! queue. The best share of probation depends on the workload: a tenth for a database, most of the
//! cache where blocks return late. So the share adapts, as in ARC (Megiddo and Modha, FAST 2003):
//! the return of a block that was evicted from probation increases it, and the return of one that
//! was evicted from the main queue decreases it. If few blocks of one kind are remembered, each of
//! them weighs more. Unlike in ARC only blocks count that were evicted just before: a somewhat
//! larger queue would have kept no others. In a loop much longer than the cache all blocks return,
//! and none of them is a reason for a larger queue.
//!
//! **Promotion.** A block that returns enters the main queue only if it was evicted from probation
//! for a shorter time than the main queue keeps a block that is not used, as in LIRS (Jiang and
//! Zhang, SIGMETRICS 2002): else it would replace blocks that return sooner. Time is counted in
//! evictions from probation. The main queue is a queue by age: it keeps a block while as many
//! others enter as it holds.

use crate::map::recent::{AGES, Recent};
use crate::map::segment::Key;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// The unit of shares: the whole cache.
pub(crate) const WHOLE: u64 = 1 << 40;
/// Initial share of probation: a tenth, as in S3-FIFO.
const SHARE_FIRST: u64 = WHOLE / 10;
/// Limits of the share, a fiftieth and nineteen twentieths, so that both queues are always tried.
const SHARE_LEAST: u64 = WHOLE / 50;
const SHARE_MOST: u64 = WHOLE / 20 * 19;
/// Youngest ages, of [`AGES`], at which a block that returns moves the share, by a block or more.
const RECENT: u64 = 1;
/// Blocks that return are promoted up to this part of the time that the main queue keeps a block:
/// one over so many. A block has to return again before it is reached in the main queue.
const PROMOTED_ONE_IN: u64 = 2;

/// Memory of blocks that are not in the map. Lost with the process: it affects hit rates only,
/// never correctness.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// Recently evicted blocks, from probation and from the main queue.
    evicted: [Option<Recent>; 2],
    /// Approximate number of remembered blocks of each queue.
    known: [u64; 2],
    /// Cache size in blocks for which both tables were built.
    capacity: u64,
    /// Share of the cache for probation, of [`WHOLE`].
    probation: u64,
    /// Recent evictions from probation, and blocks that entered the main queue: by promotion, or
    /// because they were kept. Both are halved from time to time.
    flow: [u64; 2],
    /// How often the number of each volume was freed, so that a new volume does not inherit ghosts.
    owners: Vec<u64>,
}

impl Ghosts {
    pub(crate) fn new() -> Self {
        let owners = alloc::vec![0; VOLUMES_MAX as usize];
        Self {
            evicted: [None, None],
            known: [0; 2],
            capacity: 0,
            probation: SHARE_FIRST,
            flow: [0; 2],
            owners,
        }
    }

    /// Returns the key under which a block is remembered. Keys of blocks leave the upper 18 bits
    /// free.
    pub(crate) fn remembered(&self, key: Key) -> Key {
        Key(key.0 | self.owners[usize::from(key.volume().0)] << 46)
    }

    /// Notes that the number of a volume was freed.
    pub(crate) fn volume_gone(&mut self, id: VolumeId) {
        self.owners[usize::from(id.0)] += 1;
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.evicted.iter().flatten().map(Recent::bytes).sum()
    }

    /// Returns the share of the cache for probation, of [`WHOLE`].
    pub(crate) fn probation_share(&self) -> u64 {
        self.probation
    }

    /// Notes an eviction from a cache of `capacity` blocks.
    pub(crate) fn note(&mut self, key: Key, probation: bool, capacity: u64) {
        if self.capacity != capacity {
            (self.evicted, self.known, self.capacity) = ([None, None], [0; 2], capacity);
        }
        let (key, queue) = (self.remembered(key), usize::from(!probation));
        self.evicted[queue].get_or_insert_with(|| Recent::new(capacity)).note(key);
        self.known[queue] = (self.known[queue] + 1).min(capacity);
        if probation {
            self.count(0, capacity);
        }
    }

    /// Notes that reclaim keeps a block, in the main queue of a cache of `capacity` blocks.
    pub(crate) fn note_kept(&mut self, capacity: u64) {
        self.count(1, capacity);
    }

    fn count(&mut self, what: usize, capacity: u64) {
        self.flow[what] += 1;
        if self.flow[0] + self.flow[1] > capacity {
            self.flow = self.flow.map(|count| count / 2);
        }
    }

    /// True if a block that was evicted from probation at this age returns sooner than the main
    /// queue forgets an unused block.
    fn returns_soon(&self, age: u64) -> bool {
        let [evicted, entered] = self.flow.map(|count| u128::from(count + 1));
        let main = u128::from(WHOLE - self.probation);
        // Both sides are evictions from probation: in the middle of the age's step, and while the
        // main queue moves on by its length.
        u128::from(2 * age + 1) * entered * u128::from(WHOLE * PROMOTED_ONE_IN)
            <= u128::from(2 * AGES) * evicted * main
    }

    /// Returns true if the block was evicted recently.
    pub(crate) fn knows(&self, key: Key) -> bool {
        let key = self.remembered(key);
        self.evicted.iter().flatten().any(|recent| recent.contains(key))
    }

    /// Notes that a block enters a cache of `capacity` blocks, and adapts the share of probation if
    /// it was evicted just before. Returns true if it was evicted from probation and returns soon:
    /// it has proved its use. A block from the main queue starts again on probation: in a loop
    /// longer than the cache every block returns, and the main queue keeps its content.
    #[inline]
    pub(crate) fn returns(&mut self, key: Key, capacity: u64) -> bool {
        self.known != [0; 2] && self.returned(key, capacity)
    }

    fn returned(&mut self, key: Key, capacity: u64) -> bool {
        let key = self.remembered(key);
        let take = |recent: &mut Option<Recent>| recent.as_mut().and_then(|recent| recent.take_aged(key));
        let ages = self.evicted.iter_mut().map(take).enumerate();
        let found = ages.filter_map(|(queue, age)| age.map(|age| (queue, age))).next();
        let Some((queue, age)) = found else { return false };
        let weight = (self.known[1 - queue] / self.known[queue].max(1)).clamp(1, capacity);
        self.known[queue] = self.known[queue].saturating_sub(1);
        if age < RECENT {
            let step = WHOLE / capacity.max(1) * weight;
            let share = if queue == 0 { self.probation + step } else { self.probation.saturating_sub(step) };
            self.probation = share.clamp(SHARE_LEAST, SHARE_MOST);
        }
        let promoted = queue == 0 && self.returns_soon(age);
        if promoted {
            self.count(1, capacity);
        }
        promoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> Key {
        Key::new(VolumeId(3), block)
    }

    /// Evicts blocks from one queue of a cache of 1000 blocks.
    fn evict(ghosts: &mut Ghosts, blocks: core::ops::Range<u64>, probation: bool) {
        blocks.for_each(|block| ghosts.note(key(block), probation, 1000));
    }

    /// Returns how many of the blocks are promoted.
    fn promoted(ghosts: &mut Ghosts, blocks: core::ops::Range<u64>) -> usize {
        blocks.filter(|block| ghosts.returns(key(*block), 1000)).count()
    }

    #[test]
    fn probation_share_follows_blocks_evicted_just_before() {
        let mut ghosts = Ghosts::new();
        assert!(!ghosts.returns(key(1), 1000), "nothing was evicted yet");
        evict(&mut ghosts, 0..250, true);
        evict(&mut ghosts, 250..500, false);
        assert!(promoted(&mut ghosts, 150..250) > 90);
        let grown = ghosts.probation_share();
        assert!(grown > SHARE_FIRST + WHOLE * 35 / 1000, "{grown}");
        assert_eq!(promoted(&mut ghosts, 400..500), 0, "what has left the main queue begins anew");
        assert!(ghosts.probation_share() < grown, "but probation is too large");
        assert!(ghosts.knows(key(399)), "it is among the last");
        assert!(promoted(&mut ghosts, 150..250) < 5, "each returns once");
    }

    #[test]
    fn long_loop_does_not_enlarge_probation() {
        let mut ghosts = Ghosts::new();
        evict(&mut ghosts, 0..1000, true);
        // Nearly all of these were evicted long before they return.
        promoted(&mut ghosts, 0..200);
        let share = ghosts.probation_share();
        assert!(share < SHARE_FIRST + WHOLE / 50, "{share}: a queue of some more blocks helps none of them");
    }

    #[test]
    fn main_queue_that_is_used_takes_only_what_returns_soon() {
        let mut ghosts = Ghosts::new();
        evict(&mut ghosts, 0..1000, true);
        assert!(promoted(&mut ghosts, 0..100) > 50, "main is still: what returns late is better");
        // Each block that is evicted comes with three that main keeps: it moves on fast.
        for block in 1000..2000 {
            (0..3).for_each(|_| ghosts.note_kept(1000));
            evict(&mut ghosts, block..block + 1, true);
        }
        assert!(promoted(&mut ghosts, 1000..1200) < 20, "main would lose blocks that return sooner");
        assert!(promoted(&mut ghosts, 1950..2000) > 35, "these return sooner than those of main");
    }

    #[test]
    fn both_queues_always_have_a_share() {
        for (probation, end) in [(true, SHARE_MOST), (false, SHARE_LEAST)] {
            let mut ghosts = Ghosts::new();
            for block in 0..100_000 {
                ghosts.note(key(block), probation, 64);
                ghosts.returns(key(block), 64);
            }
            assert_eq!(ghosts.probation_share(), end);
        }
    }

    #[test]
    fn ghosts_of_a_deleted_volume_are_forgotten() {
        let mut ghosts = Ghosts::new();
        ghosts.note(key(1), true, 64);
        ghosts.volume_gone(VolumeId(3));
        assert!(!ghosts.knows(key(1)) && !ghosts.returns(key(1), 64));
    }
}

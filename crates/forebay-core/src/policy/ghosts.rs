//! Recently evicted blocks, and the share of probation that their return decides.
//!
//! Under `s3fifo` new blocks are on probation, and blocks that were used again are in the main
//! queue. The best share of probation depends on the workload: a tenth for a database, most of the
//! cache where blocks return late. So the share adapts, as in ARC (Megiddo and Modha, FAST 2003):
//! the return of a block that was evicted from probation increases it, and the return of one that
//! was evicted from the main queue decreases it. If few blocks of one kind are remembered, each of
//! them weighs more.

use crate::map::recent::Recent;
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
/// A block that returns moves the share by a fifth of a block: slower than ARC, which moves it by a
/// whole one.
const RETURNS_A_BLOCK: u64 = 5;

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
    /// How often the number of each volume was freed, so that a new volume does not inherit ghosts.
    owners: Vec<u64>,
}

impl Ghosts {
    pub(crate) fn new() -> Self {
        let owners = alloc::vec![0; VOLUMES_MAX as usize];
        Self { evicted: [None, None], known: [0; 2], capacity: 0, probation: SHARE_FIRST, owners }
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
    }

    /// Returns true if the block was evicted recently.
    pub(crate) fn knows(&self, key: Key) -> bool {
        let key = self.remembered(key);
        self.evicted.iter().flatten().any(|recent| recent.contains(key))
    }

    /// Notes that a block enters a cache of `capacity` blocks, and adapts the share of probation if
    /// it was evicted recently. Returns true if it was evicted from probation: it has proved its
    /// use. A block from the main queue starts again on probation: in a loop longer than the cache
    /// every block returns, and the main queue keeps its content.
    #[inline]
    pub(crate) fn returns(&mut self, key: Key, capacity: u64) -> bool {
        self.known != [0; 2] && self.returned(key, capacity)
    }

    fn returned(&mut self, key: Key, capacity: u64) -> bool {
        let key = self.remembered(key);
        let was_in = |recent: &mut Option<Recent>| recent.as_mut().is_some_and(|recent| recent.take(key));
        let Some(queue) = self.evicted.iter_mut().position(was_in) else { return false };
        self.known[queue] = self.known[queue].saturating_sub(1);
        let weight = (self.known[1 - queue] / self.known[queue].max(1)).clamp(1, capacity);
        let step = WHOLE / capacity.max(1) * weight / RETURNS_A_BLOCK;
        let share = if queue == 0 { self.probation + step } else { self.probation.saturating_sub(step) };
        self.probation = share.clamp(SHARE_LEAST, SHARE_MOST);
        queue == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(block: u64) -> Key {
        Key::new(VolumeId(3), block)
    }

    #[test]
    fn probation_share_follows_returning_blocks() {
        let mut ghosts = Ghosts::new();
        assert!(!ghosts.returns(key(1), 1000), "nothing was evicted yet");
        (0..500).for_each(|block| ghosts.note(key(block), block < 250, 1000));
        let returned = (0..200).filter(|block| ghosts.returns(key(*block), 1000)).count();
        assert!(returned > 190, "{returned}");
        let grown = ghosts.probation_share();
        assert!(grown > SHARE_FIRST + WHOLE * 35 / 1000, "{grown}");
        let returned = (250..400).filter(|block| ghosts.returns(key(*block), 1000)).count();
        assert_eq!(returned, 0, "what has left the main queue begins anew");
        assert!(ghosts.probation_share() < grown, "but probation is too large");
        assert!(ghosts.knows(key(499)), "it is among the last");
        let returned = (0..200).filter(|block| ghosts.returns(key(*block), 1000)).count();
        assert!(returned < 5, "each returns once");
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

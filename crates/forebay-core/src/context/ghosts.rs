//! Blocks that were evicted not long ago, whose they were, and what their return says.
//!
//! Under `S3Fifo` new blocks are on probation, and what proved its use is in the main queue. How
//! much of the cache is best for probation differs from load to load: a tenth for a database, most
//! of it where blocks come back late. So the share follows what comes back, as in ARC (Megiddo and
//! Modha, FAST 2003): a block that had been evicted from probation says that probation is too
//! small, and one that had been evicted from the main queue that it is too large. Where few are
//! remembered of one kind, each of them weighs more.

use crate::map::recent::Recent;
use crate::map::segment::Key;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// The whole cache, as shares are counted.
pub(crate) const WHOLE: u64 = 1 << 40;
/// Share of probation at the start: a tenth, as in S3-FIFO.
const SHARE_FIRST: u64 = WHOLE / 10;
/// The share stays between a fiftieth and nineteen twentieths: both queues are always tried.
const SHARE_LEAST: u64 = WHOLE / 50;
const SHARE_MOST: u64 = WHOLE / 20 * 19;
/// A block that returns moves the share by a fifth of a block: slower than ARC, which moves it by a
/// whole one.
const RETURNS_A_BLOCK: u64 = 5;

/// What is remembered of blocks that are not in the map. Lost with the process: nothing here
/// decides what is right, only what is cached.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// Blocks evicted not long ago, from probation and from the main queue.
    evicted: [Option<Recent>; 2],
    /// About how many of each are remembered.
    known: [u64; 2],
    /// Blocks of the cache that both tables are made for.
    capacity: u64,
    /// Share of the cache for probation, of [`WHOLE`].
    probation: u64,
    /// How often the number of a volume has become free: what is remembered of the one that had it
    /// is of no other.
    owners: Vec<u64>,
}

impl Ghosts {
    pub(crate) fn new() -> Self {
        let owners = alloc::vec![0; VOLUMES_MAX as usize];
        Self { evicted: [None, None], known: [0; 2], capacity: 0, probation: SHARE_FIRST, owners }
    }

    /// The key under which a block is remembered. Keys of blocks leave the upper 18 bits free.
    pub(crate) fn remembered(&self, key: Key) -> Key {
        Key(key.0 | self.owners[usize::from(key.volume().0)] << 46)
    }

    /// The number of a volume has become free.
    pub(crate) fn volume_gone(&mut self, id: VolumeId) {
        self.owners[usize::from(id.0)] += 1;
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.evicted.iter().flatten().map(Recent::bytes).sum()
    }

    /// Share of the cache for probation, of [`WHOLE`].
    pub(crate) fn probation_share(&self) -> u64 {
        self.probation
    }

    /// A block was evicted, of a cache of `capacity` blocks.
    pub(crate) fn note(&mut self, key: Key, probation: bool, capacity: u64) {
        if self.capacity != capacity {
            (self.evicted, self.known, self.capacity) = ([None, None], [0; 2], capacity);
        }
        let (key, queue) = (self.remembered(key), usize::from(!probation));
        self.evicted[queue].get_or_insert_with(|| Recent::new(capacity)).note(key);
        self.known[queue] = (self.known[queue] + 1).min(capacity);
    }

    /// The block was evicted not long ago.
    pub(crate) fn knows(&self, key: Key) -> bool {
        let key = self.remembered(key);
        self.evicted.iter().flatten().any(|recent| recent.contains(key))
    }

    /// A block comes into a cache of `capacity` blocks. If it was evicted not long ago the share of
    /// probation follows. True if it was evicted from probation, and has proved its use now. What
    /// had been in the main queue begins anew: in a loop longer than the cache everything returns,
    /// and the main queue keeps what it has.
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
    fn the_share_of_probation_follows_what_comes_back() {
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
    fn what_is_remembered_of_a_volume_that_is_gone_is_of_no_other() {
        let mut ghosts = Ghosts::new();
        ghosts.note(key(1), true, 64);
        ghosts.volume_gone(VolumeId(3));
        assert!(!ghosts.knows(key(1)) && !ghosts.returns(key(1), 64));
    }
}

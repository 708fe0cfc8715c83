//! Blocks that were evicted not long ago, and whose they were.

use crate::map::recent::Recent;
use crate::map::segment::Key;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// What is remembered of blocks that are not in the map. Lost with the process: nothing here
/// decides what is right, only what is cached.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// Blocks evicted from probation not long ago.
    pub(crate) evicted: Option<Recent>,
    /// How often the number of a volume has become free: what is remembered of the one that had it
    /// is of no other.
    owners: Vec<u64>,
}

impl Ghosts {
    pub(crate) fn new() -> Self {
        Self { evicted: None, owners: alloc::vec![0; VOLUMES_MAX as usize] }
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
        self.evicted.as_ref().map_or(0, Recent::bytes)
    }
}

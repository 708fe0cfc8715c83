//! Dirty levels: the dirty part of a volume and of the pool, and the limits between which writers
//! are slowed (`throttle`).

/// Largest slope from unthrottled to destage speed, percent of the cache.
const SLOPE_PCT: u64 = 10;
/// The unit of shares.
pub(crate) const DELAY_UNIT: u64 = 1024;

/// Current dirty blocks, and the limits between which writers are slowed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) dirty: u64,
    pub(crate) soft: u64,
    pub(crate) high: u64,
}

impl Level {
    /// Returns true if writers are not slowed.
    pub(crate) fn is_free(self) -> bool {
        self.dirty <= self.soft
    }

    pub(crate) fn fits(self, blocks: u64) -> bool {
        self.is_free() || self.dirty + blocks <= self.high
    }

    /// Returns the position between soft and high limit, of [`DELAY_UNIT`].
    pub(crate) fn risen(self) -> u64 {
        let slope = (self.high - self.soft).max(1);
        self.dirty.saturating_sub(self.soft).min(slope) * DELAY_UNIT / slope
    }
}

/// Levels of a volume and of the pool, at the same instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    /// Blocks of data that the cache holds.
    pub(crate) capacity: u64,
    pub(crate) volume: Level,
    pub(crate) pool: Level,
}

impl Levels {
    /// Returns true if writers are not slowed.
    pub(crate) fn are_free(&self) -> bool {
        self.volume.is_free() && self.pool.is_free()
    }
}

/// Returns the level of `dirty` blocks. Dirty blocks of volumes that are not attached cannot be
/// written back, so `capacity` excludes them.
pub(crate) fn level(dirty: u64, capacity: u64, high_pct: u32) -> Level {
    let high = capacity * u64::from(high_pct) / 100;
    let slope = (capacity * SLOPE_PCT / 100).min(high / 4);
    Level { dirty, soft: high - slope, high }
}

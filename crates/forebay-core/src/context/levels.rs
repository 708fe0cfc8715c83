//! Dirty levels: how much of a volume, and of the pool, is dirty, and between which limits writers
//! are slowed down (`throttle` says how).

/// Share of the cache over which the slope from free to destage speed stretches at most, percent.
const SLOPE_PCT: u64 = 10;
/// A whole, of which shares are parts.
pub(crate) const TOLL_UNIT: u64 = 1024;

/// Dirty blocks now, and between which limits writers are slowed down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) dirty: u64,
    pub(crate) soft: u64,
    pub(crate) high: u64,
}

impl Level {
    /// Writers pass freely.
    pub(crate) fn is_free(self) -> bool {
        self.dirty <= self.soft
    }

    pub(crate) fn fits(self, blocks: u64) -> bool {
        self.is_free() || self.dirty + blocks <= self.high
    }

    /// How far it has risen from soft to high, of [`TOLL_UNIT`].
    pub(crate) fn risen(self) -> u64 {
        let slope = (self.high - self.soft).max(1);
        self.dirty.saturating_sub(self.soft).min(slope) * TOLL_UNIT / slope
    }
}

/// Where a volume and the pool are between their limits, looked at together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Levels {
    /// Blocks of data that the cache holds.
    pub(crate) capacity: u64,
    pub(crate) volume: Level,
    pub(crate) pool: Level,
}

impl Levels {
    /// Writers pass freely.
    pub(crate) fn are_free(&self) -> bool {
        self.volume.is_free() && self.pool.is_free()
    }
}

/// What volumes that are not attached have dirty cannot be written back: the others share
/// `capacity`, which is what is left.
pub(crate) fn level(dirty: u64, capacity: u64, high_pct: u32) -> Level {
    let high = capacity * u64::from(high_pct) / 100;
    let slope = (capacity * SLOPE_PCT / 100).min(high / 4);
    Level { dirty, soft: high - slope, high }
}

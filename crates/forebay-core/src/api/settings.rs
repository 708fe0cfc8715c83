//! Settings that an operator can change while the engine runs: per volume, and for the whole pool.
//!
//! A change takes effect with the next decision that uses it; requests in flight complete under the
//! old settings. The engine accepts any combination of values in range at any time:
//! [`VolumeSettings::check`] refuses contradictions (a low limit above the high one) first.

use crate::api::Nanos;
use crate::api::endurance::EnduranceBudget;
use core::ops::RangeInclusive;
use forebay_format::checkpoint::Mode;
use thiserror::Error;

/// Order in which destage writes dirty blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DestageOrder {
    /// Ascending block address, sweep after sweep; adjacent blocks merge into large writes.
    #[default]
    Elevator,
    /// Oldest first.
    Fifo,
    /// Least recently used first.
    Lru,
    /// Flush epoch by flush epoch: the backing store alone is always a crash-consistent, older
    /// image of the volume. In force once [`crate::Engine::is_ordered`] returns true.
    Ordered,
}

/// Which missed blocks the engine fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Admission {
    /// All.
    #[default]
    Always,
    /// Those that were missed before, recently.
    SecondAccess,
    /// None.
    Never,
}

/// Which segment reclaim empties, and which of its blocks it keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReclaimPolicy {
    /// The oldest segment; keeps no blocks because of hits.
    Fifo,
    /// The least recently used one: cost and benefit by segment, with a second chance for blocks
    /// that were hit.
    Lru,
    /// A small probation queue in front of a main one: evicts blocks used only once early.
    #[default]
    S3Fifo,
}

impl ReclaimPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fifo, Self::Lru, Self::S3Fifo];
}

/// Priority of a volume among those of its pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Priority {
    /// Its blocks are evicted first.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Its blocks are evicted last.
    High,
}

/// Treatment of one request by the owner's rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Treatment {
    /// As the volume's settings specify.
    #[default]
    Cache,
    /// Bypassing the cache: reads are not filled, writes go to the backing store at once.
    Bypass,
    /// Cached always, and kept as long as possible.
    Pin,
    /// Cached, and acknowledged only once the backing store has it.
    WriteThrough,
}

/// Settings of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeSettings {
    /// How the cache is used.
    pub mode: Mode,
    /// Order of destage.
    pub destage_order: DestageOrder,
    /// Longest time that a block may stay dirty after its data was written, in nanoseconds; destage
    /// is paced evenly to keep it. 0: no limit; less than a second counts as a second. The age of
    /// blocks that are dirty when it is set counts from then.
    pub flush_period: Nanos,
    /// Destage drains a volume completely after this time without requests, in nanoseconds. 0:
    /// never for that reason.
    pub idle_delay: Nanos,
    /// Destage starts when dirty blocks of this volume exceed this share of the pool, percent.
    pub dirty_low_pct: u32,
    /// Writers of the volume are slowed to the speed of the backing store when its dirty blocks
    /// reach this share of the pool, percent.
    pub dirty_high_pct: u32,
    /// Maximum destage writes per second, also in a drain and when writers wait. 0: no limit.
    pub max_destage_iops: u32,
    /// Maximum bytes destaged per second, also in a drain and when writers wait. 0: no limit.
    pub max_destage_bytes_per_s: u64,
    /// Latency target of foreground operations on the backing store (95th percentile, in
    /// nanoseconds), above which destage yields unless data is due or writers wait. 0: it does not
    /// yield.
    pub latency_target: Nanos,
    /// Destage operations in flight under pressure, at least 1.
    pub destage_depth_max: u32,
    /// Widest gap between dirty blocks, in bytes, that destage writes along with them where that is
    /// faster. 0: none.
    pub destage_gap_bytes: u64,
    /// Which missed blocks are filled.
    pub admission: Admission,
    /// A stream of consecutive requests longer than this bypasses the cache. 0: none does for that
    /// reason.
    pub skip_sequential_bytes: u64,
    /// Share of the pool below which the volume's clean blocks are not evicted, percent.
    pub min_share_pct: u32,
    /// Share of the pool that the volume may take, percent.
    pub max_share_pct: u32,
    /// Weight against the other volumes.
    pub priority: Priority,
    /// Zeroes and discards of at least this many bytes go to the backing store at once instead of
    /// through the log.
    pub zero_direct_min_bytes: u64,
}

impl VolumeSettings {
    /// Range of `dirty_low_pct`.
    pub const DIRTY_LOW_PCT: RangeInclusive<u32> = 0..=100;
    /// Range of `dirty_high_pct`.
    pub const DIRTY_HIGH_PCT: RangeInclusive<u32> = 1..=90;
    /// Range of `destage_depth_max`.
    pub const DESTAGE_DEPTH_MAX: RangeInclusive<u32> = 1..=256;
    /// Range of `min_share_pct`.
    pub const MIN_SHARE_PCT: RangeInclusive<u32> = 0..=100;
    /// Range of `max_share_pct`.
    pub const MAX_SHARE_PCT: RangeInclusive<u32> = 1..=100;
    /// The defaults.
    pub const DEFAULT: Self = Self {
        mode: Mode::Writeback,
        destage_order: DestageOrder::Elevator,
        flush_period: 0,
        idle_delay: 5_000_000_000,
        dirty_low_pct: 10,
        dirty_high_pct: 70,
        max_destage_iops: 0,
        max_destage_bytes_per_s: 0,
        latency_target: 20_000_000,
        destage_depth_max: 16,
        destage_gap_bytes: 512 << 10,
        admission: Admission::Always,
        skip_sequential_bytes: 0,
        min_share_pct: 0,
        max_share_pct: 100,
        priority: Priority::Normal,
        zero_direct_min_bytes: 1 << 20,
    };
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Settings of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolSettings {
    /// Which segment reclaim empties.
    pub reclaim_policy: ReclaimPolicy,
    /// Share of a reclaimed segment that reclaim may move instead of evicting, because there is
    /// room or it was hit, percent. Bounds the flash writes of reclaim.
    pub survivors_max_pct: u32,
    /// Maximum dirty share of the pool over all volumes, percent.
    pub dirty_limit_pct: u32,
    /// Batches in flight per append stream, at least 1.
    pub batches_in_flight: u32,
    /// Discard empty segments of the cache device.
    pub discard_freed: bool,
    /// Bytes that the engine may write to the cache devices per day.
    pub endurance_budget: EnduranceBudget,
}

impl PoolSettings {
    /// Range of `survivors_max_pct`.
    pub const SURVIVORS_MAX_PCT: RangeInclusive<u32> = 0..=90;
    /// Range of `dirty_limit_pct`.
    pub const DIRTY_LIMIT_PCT: RangeInclusive<u32> = 1..=90;
    /// Range of `batches_in_flight`.
    pub const BATCHES_IN_FLIGHT: RangeInclusive<u32> = 1..=64;
    /// The defaults.
    pub const DEFAULT: Self = Self {
        reclaim_policy: ReclaimPolicy::S3Fifo,
        survivors_max_pct: 75,
        dirty_limit_pct: 80,
        batches_in_flight: 4,
        discard_freed: false,
        endurance_budget: EnduranceBudget::Unlimited,
    };
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Settings out of range, or in contradiction to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SettingsError {
    /// Low limit above high limit.
    #[error("dirty_low_pct ({low}) is above dirty_high_pct ({high}): lower the first or raise the second")]
    DirtyLimits {
        /// Low limit, percent.
        low: u32,
        /// High limit, percent.
        high: u32,
    },
    /// Smallest share above largest share.
    #[error("min_share_pct ({min}) is above max_share_pct ({max}): lower the first or raise the second")]
    Shares {
        /// Smallest share, percent.
        min: u32,
        /// Largest share, percent.
        max: u32,
    },
    /// A value outside its range.
    #[error("{what} must be from {least} to {most}, not {value}")]
    Range {
        /// Name of the setting.
        what: &'static str,
        /// Smallest value.
        least: u32,
        /// Largest value.
        most: u32,
        /// The value.
        value: u32,
    },
}

impl VolumeSettings {
    /// Checks ranges, and that the settings do not contradict each other.
    ///
    /// # Errors
    /// The first [`SettingsError`] found.
    pub fn check(&self) -> Result<(), SettingsError> {
        range("dirty_low_pct", self.dirty_low_pct, Self::DIRTY_LOW_PCT)?;
        range("dirty_high_pct", self.dirty_high_pct, Self::DIRTY_HIGH_PCT)?;
        range("destage_depth_max", self.destage_depth_max, Self::DESTAGE_DEPTH_MAX)?;
        range("min_share_pct", self.min_share_pct, Self::MIN_SHARE_PCT)?;
        range("max_share_pct", self.max_share_pct, Self::MAX_SHARE_PCT)?;
        if self.dirty_low_pct > self.dirty_high_pct {
            return Err(SettingsError::DirtyLimits { low: self.dirty_low_pct, high: self.dirty_high_pct });
        }
        if self.min_share_pct > self.max_share_pct {
            return Err(SettingsError::Shares { min: self.min_share_pct, max: self.max_share_pct });
        }
        Ok(())
    }
}

impl PoolSettings {
    /// Checks ranges.
    ///
    /// # Errors
    /// The first [`SettingsError`] found.
    pub fn check(&self) -> Result<(), SettingsError> {
        range("survivors_max_pct", self.survivors_max_pct, Self::SURVIVORS_MAX_PCT)?;
        range("dirty_limit_pct", self.dirty_limit_pct, Self::DIRTY_LIMIT_PCT)?;
        range("batches_in_flight", self.batches_in_flight, Self::BATCHES_IN_FLIGHT)
    }
}

fn range(what: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), SettingsError> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err(SettingsError::Range { what, least: *range.start(), most: *range.end(), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_check_refuses_contradictions() {
        VolumeSettings::default().check().unwrap();
        PoolSettings::default().check().unwrap();
        let low = VolumeSettings { dirty_low_pct: 80, ..VolumeSettings::default() };
        assert_eq!(low.check(), Err(SettingsError::DirtyLimits { low: 80, high: 70 }));
        let shares = VolumeSettings { min_share_pct: 50, max_share_pct: 40, ..VolumeSettings::default() };
        assert_eq!(shares.check(), Err(SettingsError::Shares { min: 50, max: 40 }));
        let none = PoolSettings { batches_in_flight: 0, ..PoolSettings::default() };
        assert!(none.check().is_err());
    }
}

//! Destage as an operator sees it: drains, rates, ages, and the reason why it is not faster.

use crate::api::Nanos;
use core::fmt;

/// Whether, and how, a volume is being emptied of dirty data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// It is not.
    #[default]
    Off,
    /// All of it, but clients that wait for the backing store go first; it ends all the same.
    Background,
    /// As fast as the backing store goes, within the operator's limits.
    Full,
}

/// What keeps destage of a volume from going faster, just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Limit {
    /// No dirty block waits.
    #[default]
    NothingToDo,
    /// Little is dirty: it waits until the volume has been idle for `idle_delay`.
    IdleDelay,
    /// The rate that keeps `flush_period`.
    AgeDeadline,
    /// The rate that keeps the dirty level, or none since it is low and `idle_delay` is off.
    DirtyLevel,
    /// Clients wait for the backing store and go first.
    ForegroundLatency,
    /// The operator's limit of operations.
    MaxIops,
    /// The operator's limit of bytes.
    MaxBandwidth,
    /// It is as fast as the backing store goes.
    BackingStore,
    /// The backing store failed; the pause before the next attempt.
    RetryAfterFailure,
    /// What is dirty must become durable on the cache device first.
    CacheFlush,
    /// Memory for the blocks under way.
    Scratch,
    /// The blocks that are next are being written past the cache.
    BusyBlocks,
    /// The cache device is fenced, or the engine is stopping.
    Stopped,
}

impl Limit {
    /// In a few words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::NothingToDo => "nothing to do",
            Self::IdleDelay => "idle delay",
            Self::AgeDeadline => "age deadline",
            Self::DirtyLevel => "dirty_low_pct",
            Self::ForegroundLatency => "foreground latency",
            Self::MaxIops => "max_destage_iops",
            Self::MaxBandwidth => "max_destage_bandwidth",
            Self::BackingStore => "backing store",
            Self::RetryAfterFailure => "retry after failure",
            Self::CacheFlush => "cache flush",
            Self::Scratch => "destage memory (scratch_size)",
            Self::BusyBlocks => "busy blocks",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// How destage of a volume is going.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DestageReport {
    /// Blocks written back per second, of the last seconds.
    pub rate_blocks_per_s: u64,
    /// The rate aimed at; `None`: as fast as the backing store goes.
    pub target_blocks_per_s: Option<u64>,
    /// Blocks that become dirty per second, of the last seconds; overwrites of dirty blocks are not
    /// counted.
    pub incoming_blocks_per_s: u64,
    /// What keeps it from going faster.
    pub limited_by: Limit,
    /// Time since the oldest dirty data was written; 0 if nothing is dirty.
    pub oldest_dirty_age: Nanos,
    /// Write-backs under way.
    pub in_flight: u32,
    /// Blocks that only the cache has.
    pub dirty_blocks: u64,
    /// Writes, zeroes and discards under way that were taken while the volume was in a write-back
    /// mode: what they write may be dirty once they end, whatever the mode is by now.
    pub write_back_requests: u64,
    /// Blocks that count against the limits: dirty, or not yet marked clean in the log.
    pub unclean_blocks: u64,
    /// Write operations on the backing store for destage since the start.
    pub destage_writes: u64,
    /// Mean latency of clients' operations on the backing store, recent ones counting most; 0 if
    /// there were none.
    pub foreground_mean: Nanos,
    /// Estimate of the 95th percentile of the same.
    pub foreground_p95: Nanos,
    /// Time until the next attempt after a failure.
    pub retry_in: Nanos,
    /// Writes, zeroes and discards of this volume that wait because too much is dirty.
    pub throttled_requests: u64,
}

//! Destage for operators: drains, rates, ages, and the reason why it is not faster.

use crate::api::Nanos;
use core::fmt;

/// Whether, and how, destage drains a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// No drain.
    #[default]
    Off,
    /// A complete drain that yields to clients waiting for the backing store; it ends all the same.
    Background,
    /// A complete drain, as fast as the backing store goes, within the operator's limits.
    Full,
}

/// Present limit of a volume's destage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Limit {
    /// No dirty block waits.
    #[default]
    NothingToDo,
    /// Few blocks are dirty: destage waits until the volume has been idle for `idle_delay`.
    IdleDelay,
    /// The rate that keeps `flush_period`.
    AgeDeadline,
    /// The rate that keeps the dirty level, or none because it is low and `idle_delay` is off.
    DirtyLevel,
    /// Clients wait for the backing store and go first.
    ForegroundLatency,
    /// The operator's limit on operations.
    MaxIops,
    /// The operator's limit on bytes.
    MaxBandwidth,
    /// The speed of the backing store.
    BackingStore,
    /// The backing store failed: a pause before the next attempt.
    RetryAfterFailure,
    /// The dirty blocks must become durable on the cache device first.
    CacheFlush,
    /// Memory for the blocks in flight.
    Scratch,
    /// Bypass writes hold the next blocks.
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

/// State of a volume's destage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DestageReport {
    /// Blocks written back per second, over the last seconds.
    pub rate_blocks_per_s: u64,
    /// Target rate; `None`: as fast as the backing store goes.
    pub target_blocks_per_s: Option<u64>,
    /// Blocks that become dirty per second, over the last seconds; excludes overwrites of dirty
    /// blocks.
    pub incoming_blocks_per_s: u64,
    /// Present limit.
    pub limited_by: Limit,
    /// Time since the oldest dirty data was written; 0 if no block is dirty.
    pub oldest_dirty_age: Nanos,
    /// Write-backs in flight.
    pub in_flight: u32,
    /// Dirty blocks.
    pub dirty_blocks: u64,
    /// Writes, write-zeroes and discards in flight that arrived while the volume was in a
    /// write-back mode: their blocks may be dirty once they complete, regardless of the present
    /// mode.
    pub write_back_requests: u64,
    /// Blocks that count towards the limits: dirty, or not yet marked clean in the log.
    pub unclean_blocks: u64,
    /// Write operations on the backing store for destage since the start.
    pub destage_writes: u64,
    /// Mean latency of clients' operations on the backing store, weighted towards recent ones; 0 if
    /// there were none.
    pub foreground_mean: Nanos,
    /// Estimate of the 95th percentile of the same.
    pub foreground_p95: Nanos,
    /// Time until the next attempt after a failure.
    pub retry_in: Nanos,
    /// Writes, write-zeroes and discards of this volume that wait because of too many dirty blocks.
    pub throttled_requests: u64,
}

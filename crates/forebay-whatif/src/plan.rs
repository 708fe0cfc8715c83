//! What to try.

use crate::devices::{DiskKind, FlashTimes};
use forebay_core::{PoolSettings, VolumeSettings};
use thiserror::Error;

/// When requests come.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// As recorded, so many times faster. Latencies begin when a request comes, also if it has to
    /// wait until fewer are in flight.
    Recorded {
        /// 1 is as recorded, 2 is twice as fast.
        speed: f64,
    },
    /// As soon as fewer are in flight than there may be. Latencies begin when a request is made.
    AsFast,
}

/// A cache, its devices and its client.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Size of the cache device, in bytes.
    pub cache_bytes: u64,
    /// Size of the volume, in bytes: at least what the trace needs.
    pub volume_bytes: u64,
    /// Settings of the pool.
    pub pool: PoolSettings,
    /// Settings of the volume.
    pub volume: VolumeSettings,
    /// Blocks of memory for destage, fills and merges.
    pub scratch_blocks: u32,
    /// Blocks of a segment, if not as the size suggests.
    pub segment_blocks: Option<u32>,
    /// Rules would send every request past the cache.
    pub bypass: bool,
    /// The cache device.
    pub flash: FlashTimes,
    /// The backing store.
    pub disk: DiskKind,
    /// Time that each request takes beside what the devices take, however many there are, in
    /// nanoseconds.
    pub path_ns: u64,
    /// Time that each request needs of the one processor that serves all of them, in nanoseconds.
    pub processor_ns: u64,
    /// When requests come.
    pub pace: Pace,
    /// Requests in flight at most.
    pub depth: usize,
}

/// Why a plan cannot be tried.
#[derive(Debug, Error)]
pub enum PlanError {
    /// There is no cache of this size.
    #[error("a cache of {bytes} bytes: {why}")]
    Cache {
        /// The size.
        bytes: u64,
        /// What is wrong with it.
        why: String,
    },
    /// The trace needs a larger volume.
    #[error("the trace has requests up to byte {end}, and the volume has {volume_bytes} bytes")]
    Volume {
        /// Where the last request ends.
        end: u64,
        /// Size of the volume.
        volume_bytes: u64,
    },
    /// Nothing happens any more, though requests wait: a defect of the engine or of a model.
    #[error("{open} requests are never answered; please report this, with the trace")]
    Stuck {
        /// How many wait.
        open: usize,
    },
}

//! The parameters of a try.

use crate::devices::{DiskKind, FlashTimes};
use forebay_core::{PoolSettings, VolumeSettings};
use thiserror::Error;

/// The arrival times of requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// At the recorded times, accelerated. Latencies begin when a request arrives, also if it has
    /// to wait for the limit of requests in flight.
    Recorded {
        /// Factor: 1 is as recorded, 2 is twice as fast.
        speed: f64,
    },
    /// As soon as the limit of requests in flight permits. Latencies begin when a request is
    /// submitted.
    AsFast,
}

/// A cache, its devices and its client.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Size of the cache device, in bytes.
    pub cache_bytes: u64,
    /// Size of the volume, in bytes: at least the end of the trace's last request.
    pub volume_bytes: u64,
    /// Settings of the pool.
    pub pool: PoolSettings,
    /// Settings of the volume.
    pub volume: VolumeSettings,
    /// Blocks of memory for destage, fills and merges.
    pub scratch_blocks: u32,
    /// Blocks of a segment; `None`: as the size suggests.
    pub segment_blocks: Option<u32>,
    /// Every request bypasses the cache, as if by rules.
    pub bypass: bool,
    /// The cache device.
    pub flash: FlashTimes,
    /// The backing store.
    pub disk: DiskKind,
    /// Time of each request in addition to the devices' time, regardless of concurrency, in
    /// nanoseconds.
    pub path_ns: u64,
    /// Time of each request on the one processor that serves all of them, in nanoseconds.
    pub processor_ns: u64,
    /// Arrival times of requests.
    pub pace: Pace,
    /// Limit of requests in flight.
    pub depth: usize,
}

/// The reason why a plan cannot be tried.
#[derive(Debug, Error)]
pub enum PlanError {
    /// There is no cache of this size.
    #[error("a cache of {bytes} bytes: {why}")]
    Cache {
        /// The size, in bytes.
        bytes: u64,
        /// The reason.
        why: String,
    },
    /// The trace needs a larger volume.
    #[error("the trace has requests up to byte {end}, and the volume has {volume_bytes} bytes")]
    Volume {
        /// End of the last request, in bytes.
        end: u64,
        /// Size of the volume, in bytes.
        volume_bytes: u64,
    },
    /// No progress although requests wait: a defect of the engine or of a model.
    #[error("{open} requests are never answered; please report this, with the trace")]
    Stuck {
        /// Number of waiting requests.
        open: usize,
    },
}

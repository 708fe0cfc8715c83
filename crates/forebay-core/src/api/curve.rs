//! The miss-ratio curve: estimated misses of caches of other sizes.

use crate::api::Nanos;
use alloc::vec::Vec;

/// Number of sizes of a curve.
pub const CURVE_POINTS: usize = 11;

/// The sizes, in eighths of the cache's present size.
pub const CURVE_EIGHTHS: [u64; CURVE_POINTS] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Reads of a period, and the misses that caches of other sizes would have had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissRatioCurve {
    /// Start of the period.
    pub since: Nanos,
    /// Blocks read since then that may be cached.
    pub read_blocks: u64,
    /// By size, smallest first; empty if there was no read yet.
    pub points: Vec<CurvePoint>,
}

/// Misses of a cache of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CurvePoint {
    /// Its size, in eighths of the cache's present size.
    pub eighths: u64,
    /// Reads of sampled blocks.
    pub sampled_blocks: u64,
    /// Of those, misses of a cache of this size.
    pub sampled_miss_blocks: u64,
    /// Expected reads at this sampling rate: the sample deviates if clients read single blocks very
    /// often.
    pub expected_sample_blocks: u64,
    /// A cache of this size would not have evicted a block yet: the misses are an upper bound.
    pub is_upper_bound: bool,
}

impl CurvePoint {
    /// Misses per read, from 0 to 1. `None` if the sample is empty.
    #[must_use]
    pub fn miss_ratio(&self) -> Option<f64> {
        let reads = self.expected_sample_blocks.max(self.sampled_miss_blocks);
        (reads > 0).then(|| self.sampled_miss_blocks as f64 / reads as f64)
    }
}

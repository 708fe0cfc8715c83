//! The miss-ratio curve: what caches of other sizes would miss.

use crate::api::Nanos;
use alloc::vec::Vec;

/// Sizes of a curve.
pub const CURVE_POINTS: usize = 11;

/// The sizes, in eighths of what the cache has now.
pub const CURVE_EIGHTHS: [u64; CURVE_POINTS] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];

/// Reads of a time, and what caches of other sizes would have missed of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissRatioCurve {
    /// The first moment that is counted.
    pub since: Nanos,
    /// Blocks read since then that may be cached.
    pub read_blocks: u64,
    /// By size, smallest first; none if nothing was read yet.
    pub points: Vec<CurvePoint>,
}

/// What a cache of one size would have missed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CurvePoint {
    /// Its size, in eighths of that of the cache.
    pub eighths: u64,
    /// Blocks of the sample that were read.
    pub sampled_blocks: u64,
    /// Of those, blocks that it would have missed.
    pub sampled_miss_blocks: u64,
    /// Blocks that a sample of this rate should have: it has more or less if single blocks are read
    /// very often.
    pub expected_sample_blocks: u64,
    /// Nothing had to give way yet in a cache of this size: it would miss so much or less.
    pub is_upper_bound: bool,
}

impl CurvePoint {
    /// Misses for each read, from 0 to 1. `None` if the sample is empty.
    #[must_use]
    pub fn miss_ratio(&self) -> Option<f64> {
        let reads = self.expected_sample_blocks.max(self.sampled_miss_blocks);
        (reads > 0).then(|| self.sampled_miss_blocks as f64 / reads as f64)
    }
}

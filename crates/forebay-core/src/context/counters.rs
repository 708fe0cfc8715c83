//! Counters and gauges of single volumes, next to the pool-wide [`crate::Stats`]. An array by
//! volume number: counting is an addition.

use crate::api::{Nanos, Request, RequestKind, RequestOutcome};
use crate::map::segment::BlockState;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// Counters and gauges of a volume. Counters start at zero when it is attached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct VolumeStats {
    /// Read requests taken.
    pub reads: u64,
    /// Write requests taken.
    pub writes: u64,
    /// FLUSH requests taken.
    pub flushes: u64,
    /// Discard and write-zeroes requests taken.
    pub zeroes: u64,
    /// Prefetch requests taken.
    pub prefetches: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Bytes of write requests.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub failed_requests: u64,
    /// Summed time of completed reads, in nanoseconds.
    pub read_time_ns: u64,
    /// Summed time of completed writes, in nanoseconds.
    pub write_time_ns: u64,
    /// Summed time of completed flushes, in nanoseconds.
    pub flush_time_ns: u64,
    /// Blocks of reads that were in the cache.
    pub read_hit_blocks: u64,
    /// Blocks of reads that were not in the cache and may be cached.
    pub read_miss_blocks: u64,
    /// Blocks of reads that were not in the cache and may not be cached: neither hit nor miss.
    pub read_bypass_blocks: u64,
    /// Of those, blocks read by a sequential stream.
    pub read_sequential_blocks: u64,
    /// Blocks, whole or partial, of writes that went to the backing store and were not cached.
    pub write_bypass_blocks: u64,
    /// Of those, blocks written by a sequential stream.
    pub write_sequential_blocks: u64,
    /// Blocks that went through the log.
    pub logged_blocks: u64,
    /// Of those, blocks that were in the cache before.
    pub write_hit_blocks: u64,
    /// Of those, blocks that were dirty: written twice, and once to the backing store.
    pub dirty_write_hit_blocks: u64,
    /// Blocks read from the backing store and added to the cache.
    pub filled_blocks: u64,
    /// Clean blocks dropped because the cache device returned an error or data with a wrong
    /// checksum.
    pub read_invalidated_blocks: u64,
    /// Fills cancelled because the block was changed meanwhile.
    pub fill_cancelled_blocks: u64,
    /// Fills that admission accepted, but for which there was no memory or no room in the log.
    pub fill_no_room_blocks: u64,
    /// Writes, zeroes and discards that waited for another one on the same block.
    pub lock_waits: u64,
    /// Bypass writes that waited for destage of their blocks.
    pub direct_waits: u64,
    /// Blocks that became dirty and were clean or not cached before.
    pub dirtied_blocks: u64,
    /// Clean blocks dropped to make room.
    pub evicted_blocks: u64,
    /// Cached blocks dropped by a bypass write.
    pub invalidated_blocks: u64,
    /// Blocks written back and durable on the backing store.
    pub destaged_blocks: u64,
    /// Reads of which a part came from the backing store and may not be cached.
    pub uncached_reads: u64,
    /// Writes that went to the backing store and were not cached.
    pub uncached_writes: u64,
    /// Writes that went to the cache and the backing store.
    pub through_writes: u64,
    /// Reads that bypassed the cache because they continued a sequential stream.
    pub sequential_bypassed_reads: u64,
    /// Writes that bypassed the cache because they continued a sequential stream.
    pub sequential_bypassed_writes: u64,
    /// Writes that were slowed because too much was dirty.
    pub throttled_writes: u64,
    /// Reads of the backing store that failed.
    pub backing_read_errors: u64,
    /// Writes to the backing store that failed.
    pub backing_write_errors: u64,
    /// Flushes of the backing store that failed.
    pub backing_flush_errors: u64,
    /// Reads of the cache device that failed.
    pub cache_read_errors: u64,
    /// Cached blocks whose checksum did not match or that could not be read.
    pub damaged_blocks: u64,
    /// Blocks in the cache, now.
    pub cached_blocks: u64,
    /// Dirty blocks, now. Lost ones are excluded.
    pub dirty_blocks: u64,
    /// Blocks with lost data, now.
    pub lost_blocks: u64,
    /// Bytes that are lost, now.
    pub lost_bytes: u64,
    /// Blocks that are pinned, now.
    pub pinned_blocks: u64,
}

/// The counters of all volumes.
#[derive(Debug)]
pub(crate) struct Counters(Vec<VolumeStats>);

impl Counters {
    pub(crate) fn new() -> Self {
        Self(alloc::vec![VolumeStats::default(); VOLUMES_MAX as usize])
    }

    /// Resets the counters of a volume that is attached.
    pub(crate) fn begin(&mut self, id: VolumeId) {
        *self.of(id) = VolumeStats::default();
    }

    pub(crate) fn get(&self, id: VolumeId) -> VolumeStats {
        self.0[usize::from(id.0)]
    }

    pub(crate) fn of(&mut self, id: VolumeId) -> &mut VolumeStats {
        &mut self.0[usize::from(id.0)]
    }

    pub(crate) fn request(&mut self, request: &Request<'_>) {
        let stats = self.of(request.volume);
        match request.kind {
            RequestKind::Read => {
                stats.reads += 1;
                stats.read_bytes += request.len;
            }
            RequestKind::Write { .. } => {
                stats.writes += 1;
                stats.written_bytes += request.len;
            }
            RequestKind::Flush => stats.flushes += 1,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => stats.zeroes += 1,
            RequestKind::Prefetch => stats.prefetches += 1,
        }
    }

    pub(crate) fn reply(&mut self, id: VolumeId, path: RequestOutcome, failed: bool, took: Nanos) {
        let stats = self.of(id);
        stats.failed_requests += u64::from(failed);
        match path {
            RequestOutcome::ReadHit | RequestOutcome::ReadMiss | RequestOutcome::ReadBypass => {
                stats.read_time_ns += took;
                stats.uncached_reads += u64::from(path == RequestOutcome::ReadBypass);
            }
            RequestOutcome::Write | RequestOutcome::WriteThrough | RequestOutcome::WritePast => {
                stats.write_time_ns += took;
                stats.through_writes += u64::from(path == RequestOutcome::WriteThrough);
                stats.uncached_writes += u64::from(path == RequestOutcome::WritePast);
            }
            RequestOutcome::Flush => stats.flush_time_ns += took,
            RequestOutcome::Zero | RequestOutcome::Prefetch | RequestOutcome::Refused => {}
        }
    }

    /// Counts a block of a client's write that has entered the map and replaced one in the state
    /// `old`.
    pub(crate) fn logged(&mut self, id: VolumeId, old: Option<BlockState>) {
        let stats = self.of(id);
        stats.logged_blocks += 1;
        stats.write_hit_blocks += u64::from(old.is_some());
        stats.dirty_write_hit_blocks += u64::from(old == Some(BlockState::Dirty));
        stats.dirtied_blocks += u64::from(old != Some(BlockState::Dirty));
    }
}

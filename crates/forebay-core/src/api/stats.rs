//! Counters and gauges of the engine, with units in their names.

use crate::api::written::WrittenBytes;
use crate::api::{Device, Nanos, Request, RequestKind};

/// Counters and gauges. Every counter starts at zero when the engine is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Read requests taken.
    pub reads: u64,
    /// Write requests taken.
    pub writes: u64,
    /// FLUSH requests taken.
    pub flushes: u64,
    /// Discard and write-zeroes requests taken.
    pub zeroes: u64,
    /// Bytes requested by reads.
    pub read_bytes: u64,
    /// Bytes of write requests.
    pub written_bytes: u64,
    /// Requests that failed.
    pub failed_requests: u64,
    /// Blocks that reads found in the cache.
    pub read_hit_blocks: u64,
    /// Blocks that reads did not find in the cache and that may be cached.
    pub read_miss_blocks: u64,
    /// Blocks that reads did not find in the cache and that must not be cached: neither hit nor
    /// miss.
    pub read_bypass_blocks: u64,
    /// Of those, blocks read by a long sequential stream.
    pub read_sequential_blocks: u64,
    /// Blocks, including partial ones, of writes that went to the backing store and were not
    /// cached.
    pub write_bypass_blocks: u64,
    /// Of those, blocks written by a long sequential stream.
    pub write_sequential_blocks: u64,
    /// Blocks read from the backing store and added to the cache.
    pub filled_blocks: u64,
    /// Total time of completed reads, in nanoseconds.
    pub read_time_ns: u64,
    /// Total time of completed writes, in nanoseconds.
    pub write_time_ns: u64,
    /// Total time of completed flushes, in nanoseconds.
    pub flush_time_ns: u64,
    /// Read operations on the cache device.
    pub cache_reads: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Write operations on the cache device.
    pub cache_writes: u64,
    /// Bytes written to the cache device, metadata included.
    pub cache_written_bytes: u64,
    /// Of those bytes, data of clients' writes. All counters `cache_written_*_bytes` add up to
    /// `cache_written_bytes`.
    pub cache_written_client_bytes: u64,
    /// Copies of data that clients wrote through to the backing store.
    pub cache_written_copy_bytes: u64,
    /// Blocks that were read from the backing store.
    pub cache_written_fill_bytes: u64,
    /// Clean blocks that reclaim moved to keep them cached.
    pub cache_written_kept_bytes: u64,
    /// Blocks that had to be moved.
    pub cache_written_moved_bytes: u64,
    /// Headers of batches and summaries of segments.
    pub cache_written_header_bytes: u64,
    /// Checkpoints, superblocks and extensions of the append window.
    pub cache_written_checkpoint_bytes: u64,
    /// Data that members of a mirrored cache lacked.
    pub cache_written_rebuild_bytes: u64,
    /// Data that a start rewrote.
    pub cache_written_restart_bytes: u64,
    /// Data that copies of cache devices wrote to the new ones.
    pub cache_written_device_copy_bytes: u64,
    /// Fills, and copies of write-through, skipped because of the endurance budget.
    pub endurance_unfilled_blocks: u64,
    /// Clean blocks that reclaim would have kept without the endurance budget.
    pub endurance_unkept_blocks: u64,
    /// Blocks that reads missed and that the endurance budget had skipped: an upper bound of its
    /// cost.
    pub endurance_missed_blocks: u64,
    /// Flushes of the cache device.
    pub cache_flushes: u64,
    /// Read operations on backing stores.
    pub backing_reads: u64,
    /// Bytes read from backing stores.
    pub backing_read_bytes: u64,
    /// Write operations on backing stores.
    pub backing_writes: u64,
    /// Bytes written to backing stores.
    pub backing_written_bytes: u64,
    /// Flushes of backing stores.
    pub backing_flushes: u64,
    /// Blocks written back and durable on the backing store.
    pub destaged_blocks: u64,
    /// Write operations on backing stores for destage.
    pub destage_writes: u64,
    /// Destage writes, and flushes after them, that failed.
    pub destage_failures: u64,
    /// Blocks written back together with a block behind them: added in front of the selected one.
    pub front_merged_blocks: u64,
    /// Blocks written back together with a block before them: added behind the selected one.
    pub back_merged_blocks: u64,
    /// Blocks between dirty ones that were written along with them, with their present content.
    pub gap_filled_blocks: u64,
    /// Clean blocks dropped because the cache device returned a wrong checksum or an error.
    pub read_invalidated_blocks: u64,
    /// Fills cancelled because the block changed meanwhile.
    pub fill_cancelled_blocks: u64,
    /// Fills that admission accepted, and for which there was no memory or no space in the log.
    pub fill_no_room_blocks: u64,
    /// Writes, write-zeroes and discards that waited for another one on the same block.
    pub lock_waits: u64,
    /// Bypass writes that waited for destage of their blocks.
    pub direct_waits: u64,
    /// Blocks that became dirty and were clean or not cached before.
    pub dirtied_blocks: u64,
    /// Writes to the cache device without data blocks: batches of marks or intents alone,
    /// summaries, checkpoints and superblocks.
    pub cache_metadata_writes: u64,
    /// Writes and flushes of the cache device that failed.
    pub cache_write_errors: u64,
    /// Discards of empty segments.
    pub cache_discards: u64,
    /// Bytes of those discards.
    pub cache_discarded_bytes: u64,
    /// Discards that failed.
    pub cache_discard_errors: u64,
    /// Clean blocks evicted.
    pub evicted_blocks: u64,
    /// Blocks that reclaim moved to the survivor stream.
    pub relocated_blocks: u64,
    /// Of the blocks queued for relocation, clean ones kept because they were hit:
    /// `survivors_max_pct` and the endurance budget limit these.
    pub survivor_hit_blocks: u64,
    /// The same, kept because they were pinned.
    pub survivor_pinned_blocks: u64,
    /// The same, kept for the share of their volume.
    pub survivor_share_blocks: u64,
    /// The same, dirty or destaged blocks, which must be moved.
    pub survivor_unclean_blocks: u64,
    /// Clean blocks that reclaim moved because there is room for them.
    pub survivor_compacted_blocks: u64,
    /// Clean blocks dropped because their volume exceeded its maximum share; also counted as
    /// evicted.
    pub trimmed_blocks: u64,
    /// Fills that went straight to the survivor stream because the block had recently been evicted.
    pub readmitted_blocks: u64,
    /// Reads that bypassed the cache because they belong to a long sequential stream.
    pub sequential_bypassed_reads: u64,
    /// Writes that bypassed the cache because they belong to a long sequential stream.
    pub sequential_bypassed_writes: u64,
    /// Batches written.
    pub batches: u64,
    /// Checkpoints in effect since the start.
    pub checkpoints: u64,
    /// Extensions of the append window since the start.
    pub window_extensions: u64,
    /// Writes that had to wait because of too many dirty blocks.
    pub throttled_writes: u64,
    /// Cached blocks with a wrong checksum, or that could not be read.
    pub damaged_blocks: u64,
    /// Dirty blocks, now.
    pub dirty_blocks: u64,
    /// Blocks with lost sectors, now.
    pub lost_blocks: u64,
    /// Lost bytes, now.
    pub lost_bytes: u64,
    /// Pinned blocks, now.
    pub pinned_blocks: u64,
    /// Blocks in the cache, now.
    pub cached_blocks: u64,
    /// Blocks that the cache could hold.
    pub capacity_blocks: u64,
    /// Blocks that may be on probation under `s3fifo`, now; 0 under other policies.
    pub probation_limit_blocks: u64,
    /// Free segments, now.
    pub free_segments: u64,
    /// Segments of the cache device.
    pub segments: u64,
    /// Memory of index and tables, now, in bytes.
    pub index_memory_bytes: u64,
    /// Requests in flight, now.
    pub requests_in_flight: u64,
}

impl Stats {
    pub(crate) fn count_request(&mut self, request: &Request<'_>) {
        match request.kind {
            RequestKind::Read => {
                self.reads += 1;
                self.read_bytes += request.len;
            }
            RequestKind::Write { .. } => {
                self.writes += 1;
                self.written_bytes += request.len;
            }
            RequestKind::Flush => self.flushes += 1,
            RequestKind::Discard { .. } | RequestKind::WriteZeroes { .. } => self.zeroes += 1,
            RequestKind::Prefetch => {}
        }
    }

    pub(crate) fn count_reply(&mut self, kind: RequestKind, failed: bool, took: Nanos) {
        self.failed_requests += u64::from(failed);
        match kind {
            RequestKind::Read => self.read_time_ns += took,
            RequestKind::Write { .. } => self.write_time_ns += took,
            RequestKind::Flush => self.flush_time_ns += took,
            _ => {}
        }
    }

    pub(crate) fn count_read(&mut self, device: Device, len: u32) {
        let (count, bytes) = match device {
            Device::Cache => (&mut self.cache_reads, &mut self.cache_read_bytes),
            Device::Backing(_) => (&mut self.backing_reads, &mut self.backing_read_bytes),
        };
        *count += 1;
        *bytes += u64::from(len);
    }

    pub(crate) fn count_backing_write(&mut self, len: u32) {
        self.backing_writes += 1;
        self.backing_written_bytes += u64::from(len);
    }

    pub(crate) fn count_cache_writes(&mut self, writes: u64, written: &WrittenBytes) {
        self.cache_writes += writes;
        self.cache_written_bytes += written.total();
        self.cache_written_client_bytes += written.clients;
        self.cache_written_copy_bytes += written.copies;
        self.cache_written_fill_bytes += written.fills;
        self.cache_written_kept_bytes += written.kept;
        self.cache_written_moved_bytes += written.moved;
        self.cache_written_header_bytes += written.headers;
        self.cache_written_checkpoint_bytes += written.checkpoints;
        self.cache_written_rebuild_bytes += written.rebuilds;
        self.cache_written_restart_bytes += written.restarts;
        self.cache_written_device_copy_bytes += written.copied;
    }

    /// Bytes written to the cache devices, by cause.
    #[must_use]
    pub fn written(&self) -> WrittenBytes {
        WrittenBytes {
            clients: self.cache_written_client_bytes,
            copies: self.cache_written_copy_bytes,
            fills: self.cache_written_fill_bytes,
            kept: self.cache_written_kept_bytes,
            moved: self.cache_written_moved_bytes,
            headers: self.cache_written_header_bytes,
            checkpoints: self.cache_written_checkpoint_bytes,
            rebuilds: self.cache_written_rebuild_bytes,
            restarts: self.cache_written_restart_bytes,
            copied: self.cache_written_device_copy_bytes,
        }
    }
}

/// Results of a scrub so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Blocks compared; in a mirrored cache both copies of blocks that have two.
    pub checked_blocks: u64,
    /// Blocks, or copies, that were in the cache when it began.
    pub total_blocks: u64,
    /// Blocks, or copies, that did not hold the written data.
    pub damaged_blocks: u64,
    /// Of those, clean ones fetched again from the backing store (the next read fetches the
    /// others), and copies rewritten from the other one.
    pub repaired_blocks: u64,
    /// Of those, dirty ones: the cache held the only copy.
    pub lost_blocks: u64,
    /// Dirty blocks that could not be read, which may be temporary: they are unchanged.
    pub unreadable_blocks: u64,
}

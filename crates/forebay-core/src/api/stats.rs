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
    /// Bytes asked for by read requests.
    pub read_bytes: u64,
    /// Bytes brought by write requests.
    pub written_bytes: u64,
    /// Requests answered with an error.
    pub failed_requests: u64,
    /// Blocks that reads found in the cache.
    pub read_hit_blocks: u64,
    /// Blocks that reads did not find and that may be cached.
    pub read_miss_blocks: u64,
    /// Blocks that reads did not find and that may not be cached: neither hit nor miss.
    pub read_bypass_blocks: u64,
    /// Of those, blocks read by a long stream.
    pub read_sequential_blocks: u64,
    /// Blocks, counted in part too, of writes that went to the backing store and were not cached.
    pub write_bypass_blocks: u64,
    /// Of those, blocks written by a long stream.
    pub write_sequential_blocks: u64,
    /// Blocks read from the backing store and added to the cache.
    pub filled_blocks: u64,
    /// Time that completed reads took, summed, in nanoseconds.
    pub read_time_ns: u64,
    /// Time that completed writes took, summed, in nanoseconds.
    pub write_time_ns: u64,
    /// Time that completed flushes took, summed, in nanoseconds.
    pub flush_time_ns: u64,
    /// Read operations on the cache device.
    pub cache_reads: u64,
    /// Bytes read from the cache device.
    pub cache_read_bytes: u64,
    /// Write operations on the cache device.
    pub cache_writes: u64,
    /// Bytes written to the cache device, metadata included.
    pub cache_written_bytes: u64,
    /// Of those bytes, data of clients' writes. All that are called `cache_written_` and something
    /// add up to `cache_written_bytes`.
    pub cache_written_client_bytes: u64,
    /// Copies of what clients wrote through to the backing store.
    pub cache_written_copy_bytes: u64,
    /// Blocks that were read from the backing store.
    pub cache_written_fill_bytes: u64,
    /// Clean blocks that reclaim moved because they are worth it.
    pub cache_written_kept_bytes: u64,
    /// Blocks that had to be moved.
    pub cache_written_moved_bytes: u64,
    /// Headers of batches and summaries of segments.
    pub cache_written_header_bytes: u64,
    /// Checkpoints, superblocks and extensions of the append window.
    pub cache_written_checkpoint_bytes: u64,
    /// What members of a mirrored cache lacked.
    pub cache_written_rebuild_bytes: u64,
    /// What a start wrote again.
    pub cache_written_restart_bytes: u64,
    /// What copies of cache devices gave the new ones.
    pub cache_written_device_copy_bytes: u64,
    /// Fills, and copies of write-through, left out because of the endurance budget.
    pub endurance_unfilled_blocks: u64,
    /// Clean blocks that reclaim would have kept without the endurance budget.
    pub endurance_unkept_blocks: u64,
    /// Blocks that reads missed and that the endurance budget had left out: what it cost at most.
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
    /// Blocks written back together with a block behind them: added in front of the one that was
    /// picked.
    pub front_merged_blocks: u64,
    /// Blocks written back together with a block before them: added behind the one that was picked.
    pub back_merged_blocks: u64,
    /// Blocks between dirty ones that were written along with them, with what they held.
    pub gap_filled_blocks: u64,
    /// Clean blocks dropped because what the cache device returned had a wrong checksum, or was an
    /// error.
    pub read_invalidated_blocks: u64,
    /// Fills given up because the block was changed meanwhile.
    pub fill_cancelled_blocks: u64,
    /// Fills that admission wanted, and for which there was no memory or no room in the log.
    pub fill_no_room_blocks: u64,
    /// Writes, zeroes and discards that waited for another one on the same block.
    pub lock_waits: u64,
    /// Writes past the cache that waited for destage of their blocks.
    pub direct_waits: u64,
    /// Blocks that became dirty, having been clean or not in the cache.
    pub dirtied_blocks: u64,
    /// Writes to the cache device without any block of data: batches of marks or intents alone,
    /// summaries, checkpoints and superblocks.
    pub cache_metadata_writes: u64,
    /// Writes and flushes of the cache device that failed.
    pub cache_write_errors: u64,
    /// Discards of segments that hold nothing.
    pub cache_discards: u64,
    /// Bytes of those.
    pub cache_discarded_bytes: u64,
    /// Discards that failed.
    pub cache_discard_errors: u64,
    /// Clean blocks dropped to make room.
    pub evicted_blocks: u64,
    /// Blocks that reclaim moved to the survivor stream.
    pub relocated_blocks: u64,
    /// Of those asked to be moved, clean blocks kept because they were hit: what the endurance
    /// budget limits.
    pub survivor_hit_blocks: u64,
    /// The same, kept because they were pinned.
    pub survivor_pinned_blocks: u64,
    /// The same, kept for the share of their volume.
    pub survivor_share_blocks: u64,
    /// The same, dirty or destaged blocks, that had to be moved.
    pub survivor_unclean_blocks: u64,
    /// Clean blocks that reclaim moved because there is room for them.
    pub survivor_compacted_blocks: u64,
    /// Clean blocks dropped because their volume had more than its largest share; evicted blocks,
    /// too.
    pub trimmed_blocks: u64,
    /// Fills that went straight to the survivors because the block had been evicted not long ago.
    pub readmitted_blocks: u64,
    /// Reads that went past the cache because they belong to a long stream.
    pub sequential_bypassed_reads: u64,
    /// Writes that went past the cache because they belong to a long stream.
    pub sequential_bypassed_writes: u64,
    /// Batches written.
    pub batches: u64,
    /// Checkpoints in effect since the start.
    pub checkpoints: u64,
    /// Extensions of the append window since the start.
    pub window_extensions: u64,
    /// Writes that had to wait because too much was dirty.
    pub throttled_writes: u64,
    /// Cached blocks whose checksum did not match or that could not be read.
    pub damaged_blocks: u64,
    /// Blocks that only the cache has, now.
    pub dirty_blocks: u64,
    /// Blocks of which something is lost, now: nobody has it any more.
    pub lost_blocks: u64,
    /// Bytes that are lost, now.
    pub lost_bytes: u64,
    /// Blocks that are pinned, now.
    pub pinned_blocks: u64,
    /// Blocks in the cache, now.
    pub cached_blocks: u64,
    /// Blocks that the cache could hold.
    pub capacity_blocks: u64,
    /// Blocks that may be on probation under `s3fifo`, now; 0 under other policies.
    pub probation_limit_blocks: u64,
    /// Segments that hold nothing, now.
    pub free_segments: u64,
    /// Segments of the cache device.
    pub segments: u64,
    /// Memory of index and tables, now, in bytes.
    pub index_memory_bytes: u64,
    /// Requests that have not been answered, now.
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

/// What a scrub has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScrubReport {
    /// Blocks compared; in a mirrored cache both copies of those that have two.
    pub checked_blocks: u64,
    /// Blocks, or copies, that were in the cache when it began.
    pub total_blocks: u64,
    /// Blocks, or copies, that were not what was written.
    pub damaged_blocks: u64,
    /// Of those, clean ones that were fetched again from the backing store (the others are fetched
    /// when somebody reads them), and copies that were written again from the other one.
    pub repaired_blocks: u64,
    /// Of those, dirty ones: nobody else has them.
    pub lost_blocks: u64,
    /// Dirty blocks that could not be read, which may pass: they are as they were.
    pub unreadable_blocks: u64,
}

//! All counters, in one list: JSON, Prometheus, the OpenAPI document and the rates are made from
//! it.
//!
//! The names are part of the contract with scripts. Units come last in them; a name without one
//! counts things.

macro_rules! counters {
    ($($kind:ident $name:ident = $help:literal;)*) => {
        /// Counters since the start of the engine, and gauges of this instant.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $(#[doc = $help] pub $name: u64,)*
        }

        /// Every number of [`Counters`].
        pub const FIELDS: &[Field] = &[$(Field {
            name: stringify!($name),
            per_s: concat!(stringify!($name), "_per_s"),
            kind: CounterKind::$kind,
            help: $help,
            get: |counters| counters.$name,
            set: |counters, value| counters.$name = value,
        },)*];

        impl Counters {
            /// The increase between two samples, with the gauges of `now`.
            pub(super) fn between(from: &Self, to: &Self, now: &Self) -> Self {
                Self { $($name: match CounterKind::$kind {
                    CounterKind::Gauge => now.$name,
                    _ => to.$name.saturating_sub(from.$name),
                },)* }
            }
        }
    };
}

/// How a value behaves over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterKind {
    /// Grows from zero at the start of the engine.
    Counter,
    /// A counter of nanoseconds, of which a mean is more telling than a rate.
    Time,
    /// A current value.
    Gauge,
}

/// One number of [`Counters`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in every format.
    pub name: &'static str,
    /// Name of its rate.
    pub per_s: &'static str,
    /// How it behaves over time.
    pub kind: CounterKind,
    /// One sentence for people.
    pub help: &'static str,
    /// Its value.
    pub get: fn(&Counters) -> u64,
    /// Changes its value.
    pub set: fn(&mut Counters, u64),
}

counters! {
    Counter reads = "Read requests taken";
    Counter writes = "Write requests taken";
    Counter flushes = "FLUSH requests taken";
    Counter zeroes = "Discard and write-zeroes requests taken";
    Counter prefetches = "Prefetch requests taken";
    Counter read_bytes = "Bytes requested by read requests";
    Counter written_bytes = "Bytes sent by write requests";
    Counter failed_requests = "Requests answered with an error";
    Counter read_hit_blocks = "Blocks that reads found in the cache";
    Counter read_miss_blocks = "Blocks that reads did not find in the cache, and that may be cached";
    Counter read_bypass_blocks = "Blocks of reads that bypassed the cache by mode, rule or because they were sequential; neither hit nor miss";
    Counter read_sequential_blocks = "Of the blocks of bypass reads, those of a sequential stream";
    Counter written_blocks = "Blocks that write requests touched";
    Counter write_hit_blocks = "Written blocks of which the cache had a valid copy, clean or dirty, when the write arrived";
    Counter dirty_write_hit_blocks = "Of those, blocks whose copy was dirty: writes that destage is spared";
    Counter write_bypass_blocks = "Blocks written to the backing store only, by mode, rule or because they were sequential";
    Counter write_sequential_blocks = "Of the blocks of bypass writes, those of a sequential stream";
    Counter uncached_reads = "Read requests of which a part came from the backing store and was not to be cached";
    Counter uncached_writes = "Write requests that went to the backing store and were not cached";
    Counter through_writes = "Write requests that went to the cache and to the backing store";
    Counter sequential_bypassed_reads = "Read requests that bypassed the cache because they continued a long stream";
    Counter sequential_bypassed_writes = "Write requests that bypassed the cache because they continued a long stream";
    Counter write_invalidated_blocks = "Cached blocks dropped because a bypass write superseded them";
    Counter read_invalidated_blocks = "Clean cached blocks dropped because a read found them damaged";
    Counter filled_blocks = "Blocks read from the backing store and added to the cache";
    Counter fill_cancelled_blocks = "Fills abandoned because the block was changed meanwhile";
    Counter fill_no_room_blocks = "Fills that admission accepted but for which there was no memory or no room in the log";
    Time read_time_ns = "Time that completed reads took, summed, in nanoseconds";
    Time write_time_ns = "Time that completed writes took, summed, in nanoseconds";
    Time flush_time_ns = "Time that completed flushes took, summed, in nanoseconds";
    Counter lock_waits = "Writes, zeroes and discards that waited for another change of the same block";
    Counter direct_waits = "Bypass writes that waited for destage, or for another bypass write, of their blocks";
    Counter throttled_writes = "Writes that had to wait because there was too much dirty data";
    Counter cache_reads = "Read operations on the cache device";
    Counter cache_read_bytes = "Bytes read from the cache device";
    Counter cache_writes = "Write operations on the cache device";
    Counter cache_written_bytes = "Bytes written to the cache device, metadata included";
    Counter cache_written_client_bytes = "Of those bytes, data of clients' writes; in a mirrored cache both copies, here and below";
    Counter cache_written_copy_bytes = "Of those bytes, cached copies of write-through data";
    Counter cache_written_fill_bytes = "Of those bytes, blocks that were read from the backing store";
    Counter cache_written_kept_bytes = "Of those bytes, clean blocks that reclaim moved because they are worth keeping";
    Counter cache_written_moved_bytes = "Of those bytes, blocks that had to be moved: dirty ones, and those that a change of a size moved";
    Counter cache_written_header_bytes = "Of those bytes, headers of batches and summaries of segments";
    Counter cache_written_checkpoint_bytes = "Of those bytes, checkpoints, superblocks and extensions of the append window";
    Counter cache_written_rebuild_bytes = "Of those bytes, data that rebuilds wrote to devices of a mirrored cache";
    Counter cache_written_restart_bytes = "Of those bytes, data that a start rewrote because it may not have been durable";
    Counter endurance_unfilled_blocks = "Fills, and cached copies of write-through data, left out because of endurance_budget";
    Counter endurance_unkept_blocks = "Clean blocks that reclaim would have kept without endurance_budget";
    Counter endurance_missed_blocks = "Read misses of blocks that endurance_budget had left out: the most that it can have cost";
    Counter cache_metadata_writes = "Writes to the cache device without any block of data: batches of marks or intents alone, summaries, checkpoints and superblocks";
    Counter cache_flushes = "Flushes of the cache device";
    Counter cache_read_errors = "Read operations on the cache device that failed";
    Counter cache_write_errors = "Writes and flushes of the cache device that failed";
    Counter cache_discards = "Discards of empty segments, see discard_freed";
    Counter cache_discarded_bytes = "Bytes of those discards";
    Counter cache_discard_errors = "Discards of the cache device that failed";
    Counter backing_reads = "Read operations on the backing store";
    Counter backing_read_bytes = "Bytes read from the backing store";
    Counter backing_writes = "Write operations on the backing store";
    Counter backing_written_bytes = "Bytes written to the backing store";
    Counter backing_flushes = "Flushes of the backing store";
    Counter backing_read_errors = "Read operations on the backing store that failed";
    Counter backing_write_errors = "Writes and flushes of the backing store that failed";
    Counter dirtied_blocks = "Blocks that became dirty, having been clean or not in the cache";
    Counter destaged_blocks = "Blocks written back and durable on the backing store";
    Counter destage_writes = "Write operations on the backing store for destage";
    Counter destage_failures = "Destage writes, and flushes after them, that failed";
    Counter front_merged_blocks = "Dirty blocks that joined a destage write because they lie directly before the block it was started for";
    Counter back_merged_blocks = "Dirty blocks that joined a destage write because they lie directly behind the block it was started for";
    Counter evicted_blocks = "Clean blocks dropped to make room";
    Counter trimmed_blocks = "Of those, blocks dropped because their volume exceeded its maximum share";
    Counter relocated_blocks = "Blocks that reclaim moved out of the way";
    Counter gap_filled_blocks = "Clean blocks between dirty ones that were written back along with them, to save seeks";
    Counter survivor_hit_blocks = "Clean blocks that reclaim kept because they were hit";
    Counter survivor_pinned_blocks = "Clean blocks that reclaim kept because they are pinned";
    Counter survivor_share_blocks = "Clean blocks that reclaim kept for the share or the priority of their volume";
    Counter survivor_unclean_blocks = "Blocks that reclaim had to move because the backing store does not have them durably";
    Counter survivor_compacted_blocks = "Clean blocks that reclaim kept because there is room for them";
    Counter readmitted_blocks = "Fills that were kept like hits at once because the block had been evicted recently";
    Counter batches = "Batches written to the log";
    Counter checkpoints = "Checkpoints that took effect";
    Counter window_extensions = "Extensions of the append window between checkpoints";
    Counter io_steps = "Receives, sends, transfers and the like that the pool handed to the kernel";
    Counter io_thread_steps = "Of those, carried out by I/O threads, because the pool's thread was busy: see io_threads";
    Counter damaged_blocks = "Cached blocks whose checksum did not match or that could not be read";
    Gauge dirty_blocks = "Dirty blocks: only the cache has their data";
    Gauge lost_blocks = "Blocks with lost data: dirty data that the cache cannot return";
    Gauge lost_bytes = "Bytes of lost data: dirty data that the cache cannot return";
    Gauge pinned_blocks = "Blocks that reclaim is asked to keep";
    Gauge cached_blocks = "Blocks in the cache";
    Gauge capacity_blocks = "Blocks that the cache could hold";
    Gauge probation_limit_blocks = "Blocks that may be on probation under s3fifo: the share adapts to evicted blocks that return";
    Gauge free_segments = "Empty segments";
    Gauge segments = "Segments of the cache device";
    Gauge index_memory_bytes = "Memory of index and tables, in bytes";
    Gauge requests_in_flight = "Requests that have not been answered";
    Counter cache_written_device_copy_bytes = "Of cache_written_bytes, data copied from replaced cache devices to new ones";
}

/// A number that follows from others; `None` while it cannot be computed.
#[derive(Clone, Copy, Debug)]
pub struct Derived {
    /// Its name in every format.
    pub name: &'static str,
    /// One sentence for people.
    pub help: &'static str,
    /// The counters and gauges in it.
    pub of: &'static [&'static str],
    /// Computes it, from counters since the start or from those of a window.
    pub get: fn(&Counters) -> Option<f64>,
}

/// Numbers that people would otherwise compute by hand.
pub const DERIVED: &[Derived] = &[
    Derived {
        name: "read_hit_ratio",
        help: "Share of the blocks looked for by reads that were in the cache, 0 to 1",
        of: &["read_hit_blocks", "read_miss_blocks"],
        get: |c| ratio(c.read_hit_blocks, c.read_hit_blocks + c.read_miss_blocks),
    },
    Derived {
        name: "write_hit_ratio",
        help: "Share of the blocks written that were in the cache, 0 to 1",
        of: &["write_hit_blocks", "written_blocks"],
        get: |c| ratio(c.write_hit_blocks, c.written_blocks),
    },
    Derived {
        name: "dirty_write_hit_ratio",
        help: "Share of the blocks written that were dirty in the cache, 0 to 1",
        of: &["dirty_write_hit_blocks", "written_blocks"],
        get: |c| ratio(c.dirty_write_hit_blocks, c.written_blocks),
    },
    Derived {
        name: "read_latency_mean_us",
        help: "Mean time of a read, in microseconds",
        of: &["read_time_ns", "reads"],
        get: |c| ratio(c.read_time_ns, c.reads).map(|ns| ns / 1e3),
    },
    Derived {
        name: "write_latency_mean_us",
        help: "Mean time of a write, in microseconds",
        of: &["write_time_ns", "writes"],
        get: |c| ratio(c.write_time_ns, c.writes).map(|ns| ns / 1e3),
    },
    Derived {
        name: "flush_latency_mean_us",
        help: "Mean time of a flush, in microseconds",
        of: &["flush_time_ns", "flushes"],
        get: |c| ratio(c.flush_time_ns, c.flushes).map(|ns| ns / 1e3),
    },
    Derived {
        name: "dirty_ratio",
        help: "Share of the cache that is dirty, 0 to 1",
        of: &["dirty_blocks", "capacity_blocks"],
        get: |c| ratio(c.dirty_blocks, c.capacity_blocks),
    },
    Derived {
        name: "cache_write_amplification",
        help: "Bytes written to the cache device per byte that clients wrote or that was filled",
        of: &["cache_written_bytes", "written_bytes", "filled_blocks"],
        get: |c| ratio(c.cache_written_bytes, c.written_bytes + c.filled_blocks * super::format::BLOCK),
    },
    Derived {
        name: "cache_written_bytes_per_user_byte",
        help: "Bytes written to the cache device per byte that clients read or wrote",
        of: &["cache_written_bytes", "read_bytes", "written_bytes"],
        get: |c| ratio(c.cache_written_bytes, c.read_bytes + c.written_bytes),
    },
    Derived {
        name: "backing_write_mean_bytes",
        help: "Mean size of a write to the backing store, in bytes",
        of: &["backing_written_bytes", "backing_writes"],
        get: |c| ratio(c.backing_written_bytes, c.backing_writes),
    },
];

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

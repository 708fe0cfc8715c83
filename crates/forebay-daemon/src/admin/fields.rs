//! The one list of what the engine counts, from which JSON, Prometheus and the OpenAPI document are made.
//!
//! Invariant: every field of [`forebay_core::Stats`] is in [`FIELDS`], under its own name (a test compares them).

use serde_json::{Map, Value};

use super::Snapshot;
use forebay_core::Stats;

/// Whether a value only grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Grows from zero at the start of the engine.
    Counter,
    /// What is true now.
    Gauge,
}

/// One number of the engine.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
    pub(super) get: fn(&Stats) -> u64,
}

macro_rules! fields {
    ($($kind:ident $name:ident = $help:literal;)*) => {
        /// Every field of the engine's statistics.
        pub(super) const FIELDS: &[Field] = &[$(
            Field { name: stringify!($name), kind: Kind::$kind, help: $help, get: |stats| stats.$name },
        )*];
    };
}

fields! {
    Counter reads = "Read requests taken";
    Counter writes = "Write requests taken";
    Counter flushes = "FLUSH requests taken";
    Counter zeroes = "Discard and write-zeroes requests taken";
    Counter read_bytes = "Bytes asked for by read requests";
    Counter written_bytes = "Bytes brought by write requests";
    Counter failed_requests = "Requests answered with an error";
    Counter read_hit_blocks = "Blocks that reads found in the cache";
    Counter read_miss_blocks = "Blocks that reads did not find in the cache";
    Counter filled_blocks = "Blocks read from the backing store and added to the cache";
    Counter read_time_ns = "Time that completed reads took, summed, in nanoseconds";
    Counter write_time_ns = "Time that completed writes took, summed, in nanoseconds";
    Counter flush_time_ns = "Time that completed flushes took, summed, in nanoseconds";
    Counter cache_reads = "Read operations on the cache device";
    Counter cache_read_bytes = "Bytes read from the cache device";
    Counter cache_writes = "Write operations on the cache device";
    Counter cache_written_bytes = "Bytes written to the cache device, metadata included";
    Counter cache_flushes = "Flushes of the cache device";
    Counter backing_reads = "Read operations on the backing store";
    Counter backing_read_bytes = "Bytes read from the backing store";
    Counter backing_writes = "Write operations on the backing store";
    Counter backing_written_bytes = "Bytes written to the backing store";
    Counter backing_flushes = "Flushes of the backing store";
    Counter destaged_blocks = "Blocks written back and durable on the backing store";
    Counter destage_writes = "Write operations on the backing store for destage";
    Counter destage_failures = "Destage writes, and flushes after them, that failed";
    Counter front_merged_blocks = "Blocks written back together with a picked block behind them";
    Counter back_merged_blocks = "Blocks written back together with a picked block before them";
    Counter evicted_blocks = "Clean blocks dropped to make room";
    Counter relocated_blocks = "Blocks that reclaim moved out of the way";
    Counter batches = "Batches written to the log";
    Counter checkpoints = "Checkpoints that took effect";
    Counter throttled_writes = "Writes that had to wait because too much was dirty";
    Counter damaged_blocks = "Cached blocks whose checksum did not match or that could not be read";
    Gauge dirty_blocks = "Blocks that only the cache has";
    Gauge lost_blocks = "Dirty blocks whose only copy is damaged";
    Gauge cached_blocks = "Blocks in the cache";
    Gauge capacity_blocks = "Blocks that the cache could hold";
    Gauge free_segments = "Segments that hold nothing";
    Gauge segments = "Segments of the cache device";
    Gauge index_memory_bytes = "Memory of index and tables, in bytes";
    Gauge requests_in_flight = "Requests that have not been answered";
}

/// A number that follows from others; `None` as long as there is nothing to compute it from.
pub(super) struct Derived {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) get: fn(&Stats) -> Option<f64>,
}

/// What people would otherwise compute by hand. Means are since the start.
pub(super) const DERIVED: &[Derived] = &[
    Derived {
        name: "read_hit_ratio",
        help: "Share of the blocks read that were in the cache, 0 to 1",
        get: |stats| ratio(stats.read_hit_blocks, stats.read_hit_blocks + stats.read_miss_blocks),
    },
    Derived {
        name: "read_latency_mean_us",
        help: "Mean time of a read, in microseconds",
        get: |stats| ratio(stats.read_time_ns, stats.reads).map(|ns| ns / 1e3),
    },
    Derived {
        name: "write_latency_mean_us",
        help: "Mean time of a write, in microseconds",
        get: |stats| ratio(stats.write_time_ns, stats.writes).map(|ns| ns / 1e3),
    },
    Derived {
        name: "flush_latency_mean_us",
        help: "Mean time of a flush, in microseconds",
        get: |stats| ratio(stats.flush_time_ns, stats.flushes).map(|ns| ns / 1e3),
    },
    Derived {
        name: "dirty_ratio",
        help: "Share of the cache that is dirty, 0 to 1",
        get: |stats| ratio(stats.dirty_blocks, stats.capacity_blocks),
    },
    Derived {
        name: "cache_write_amplification",
        help: "Bytes written to the cache device per byte that clients wrote or that was filled",
        get: |stats| ratio(stats.cache_written_bytes, stats.written_bytes + stats.filled_blocks * 4096),
    },
];

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

/// What is known of the volume and the process besides the engine's statistics: name and value.
pub(super) fn surroundings(snapshot: &Snapshot) -> [(&'static str, &'static str, Value); 7] {
    [
        ("volume", "Name of the volume", snapshot.volume.clone().into()),
        ("mode", "How the volume uses the cache", snapshot.mode.into()),
        ("size_bytes", "Size of the volume", snapshot.size_bytes.into()),
        ("uptime_ns", "Time since the start, in nanoseconds", snapshot.uptime_ns.into()),
        ("connections", "Clients connected", snapshot.connections.into()),
        ("io_engine", "How operations reach the kernel", snapshot.io_engine.into()),
        ("rss_bytes", "Memory of the process, in bytes", snapshot.rss_bytes.into()),
    ]
}

/// Everything as one flat JSON object.
pub(super) fn object(snapshot: &Snapshot) -> Map<String, Value> {
    let mut object = Map::new();
    for (name, _, value) in surroundings(snapshot) {
        object.insert(name.into(), value);
    }
    for field in FIELDS {
        object.insert(field.name.into(), (field.get)(&snapshot.stats).into());
    }
    for derived in DERIVED {
        object.insert(derived.name.into(), (derived.get)(&snapshot.stats).into());
    }
    object
}

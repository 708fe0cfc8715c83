//! The names of FlashCache, for scripts that read its `flashcache_stats` and `flashcache_errors`.
//!
//! The format is that of its files under `/proc/flashcache`: `key=value` with spaces between, reads
//! and writes on a line of their own, whole numbers. The same keys are present in every mode, while
//! FlashCache leaves out those that its write-around does not have. The errors follow on a third
//! line. [`KEYS`] defines the meaning of each key, and `docs/use/flashcache-names.md` is made from
//! it. Keys without a counter are left out: a 0 would claim that the event never happened.

use super::super::Counters;
use std::fmt::Write;

/// A key of FlashCache.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// FlashCache's name.
    pub name: &'static str,
    /// The counters from which it is computed.
    pub ours: &'static str,
    /// How that differs from FlashCache's count; empty if it does not, apart from the unit.
    pub differs: &'static str,
    /// Its value.
    pub get: fn(&Counters) -> u64,
}

macro_rules! keys {
    ($($name:ident = $ours:literal, $differs:literal, $get:expr;)*) => {
        &[$(Key { name: stringify!($name), ours: $ours, differs: $differs, get: $get },)*]
    };
}

/// Keys of the first line of `flashcache_stats`.
const HEAD: usize = 2;

/// Keys of `flashcache_stats`, in its order.
pub const KEYS: &[Key] = keys! {
    reads = "`read_hit_blocks` + `read_miss_blocks` + `read_bypass_blocks`",
        "FlashCache counts requests after the kernel split them into cache blocks; so blocks are counted here", reads;
    writes = "`written_blocks`", "the same; at least the number of requests", writes;
    read_hits = "`read_hit_blocks`", "", |c| c.read_hit_blocks;
    read_hit_percent = "`read_hits` of `reads`", "", |c| percent(c.read_hit_blocks, reads(c));
    write_hits = "`write_hit_blocks`", "", |c| c.write_hit_blocks;
    write_hit_percent = "`write_hits` of `writes`", "", |c| percent(c.write_hit_blocks, writes(c));
    dirty_write_hits = "`dirty_write_hit_blocks`", "", |c| c.dirty_write_hit_blocks;
    dirty_write_hit_percent = "`dirty_write_hits` of `writes`", "", |c| percent(c.dirty_write_hit_blocks, writes(c));
    replacement = "`evicted_blocks`",
        "whole segments are emptied ahead of need, so the cause is not known: all evictions are here", |c| c.evicted_blocks;
    write_replacement = "0", "see `replacement`", |_| 0;
    write_invalidates = "`write_invalidated_blocks`", "", |c| c.write_invalidated_blocks;
    read_invalidates = "`read_invalidated_blocks`",
        "an uncached read invalidates nothing here; clean blocks found damaged are dropped", |c| c.read_invalidated_blocks;
    pending_enqueues = "`lock_waits`", "requests that waited for another one on the same block", |c| c.lock_waits;
    pending_inval = "`fill_cancelled_blocks`", "fills that were not kept because the block was changed meanwhile", |c| c.fill_cancelled_blocks;
    metadata_dirties = "`dirtied_blocks`", "the entry travels in the header of the batch: no write of its own", |c| c.dirtied_blocks;
    metadata_cleans = "`destaged_blocks`", "marks are gathered in the log: hardly any write of their own", |c| c.destaged_blocks;
    metadata_batch = "`dirtied_blocks` + `destaged_blocks` - `cache_metadata_writes`",
        "changes of metadata that needed no device write of their own",
        |c| (c.dirtied_blocks + c.destaged_blocks).saturating_sub(c.cache_metadata_writes);
    metadata_ssd_writes = "`cache_metadata_writes`", "writes that carry no data: marks alone, summaries, checkpoints, superblocks", |c| c.cache_metadata_writes;
    cleanings = "`destaged_blocks`", "counted when the backing store has flushed them, not when written", |c| c.destaged_blocks;
    no_room = "`throttled_writes` + `fill_no_room_blocks`",
        "a write never bypasses the cache for lack of room: it waits", |c| c.throttled_writes + c.fill_no_room_blocks;
    front_merge = "`front_merged_blocks`", "", |c| c.front_merged_blocks;
    back_merge = "`back_merged_blocks`", "", |c| c.back_merged_blocks;
    disk_reads = "`backing_reads`", "operations of any size, not blocks", |c| c.backing_reads;
    disk_writes = "`backing_writes`", "operations of any size, not blocks", |c| c.backing_writes;
    ssd_reads = "`cache_reads`", "operations of any size, not blocks", |c| c.cache_reads;
    ssd_writes = "`cache_writes`", "operations of any size, not blocks; metadata is included", |c| c.cache_writes;
    uncached_reads = "`read_bypass_blocks`", "", |c| c.read_bypass_blocks;
    uncached_writes = "`write_bypass_blocks`", "writes of any size can be cached here, so there are fewer", |c| c.write_bypass_blocks;
    uncached_IO_requeue = "`direct_waits`", "bypass writes that waited for destage of their blocks", |c| c.direct_waits;
    uncached_sequential_reads = "`read_sequential_blocks`", "", |c| c.read_sequential_blocks;
    uncached_sequential_writes = "`write_sequential_blocks`", "", |c| c.write_sequential_blocks;
};

/// Keys of `flashcache_errors`, in its order.
pub const ERROR_KEYS: &[Key] = keys! {
    disk_read_errors = "`backing_read_errors`", "", |c| c.backing_read_errors;
    disk_write_errors = "`backing_write_errors`", "flushes included; FlashCache sends none", |c| c.backing_write_errors;
    ssd_read_errors = "`cache_read_errors`", "", |c| c.cache_read_errors;
    ssd_write_errors = "`cache_write_errors`", "flushes included; FlashCache sends none", |c| c.cache_write_errors;
};

fn reads(c: &Counters) -> u64 {
    c.read_hit_blocks + c.read_miss_blocks + c.read_bypass_blocks
}

/// Every write touches at least one block.
fn writes(c: &Counters) -> u64 {
    c.written_blocks.max(c.writes)
}

/// A whole percentage, rounded down as FlashCache does.
fn percent(part: u64, of: u64) -> u64 {
    (u128::from(part) * 100).checked_div(of.into()).map_or(0, |percent| percent as u64)
}

/// Both files as one text.
pub fn text(counters: &Counters) -> String {
    let mut text = String::new();
    for (at, keys) in [&KEYS[..HEAD], &KEYS[HEAD..], ERROR_KEYS].into_iter().enumerate() {
        for (index, key) in keys.iter().enumerate() {
            let space = if index > 0 { " " } else { "" };
            let _ = write!(text, "{space}{}={}", key.name, (key.get)(counters)); // cannot fail
        }
        text += if at == 0 { " \n" } else { "\n" };
    }
    text
}

/// The table of `docs/use/flashcache-names.md`.
pub fn markdown(keys: &[Key]) -> String {
    let mut text = String::from("| FlashCache | Forebay | how it differs |\n| --- | --- | --- |\n");
    for Key { name, ours, differs, .. } in keys {
        text += &format!("| `{name}` | {ours} | {differs} |\n").replace("|  |", "| |");
    }
    text
}

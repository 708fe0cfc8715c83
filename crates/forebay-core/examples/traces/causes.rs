//! Where misses of the default policy come from: each step adds one difference between an exact
//! policy and the engine.
//!
//! - `exact`: the best of LRU, ARC, LIRS and S3-FIFO, with all blocks of the device;
//! - `ranking`: our ranking (`ranking`), with all blocks of the device: more misses are a matter of
//!   rank;
//! - `room`: the same, with the blocks that the engine held in the end, headers and reserves
//!   excluded;
//! - `engine`: the engine with one request in flight: segments, and bounds on what reclaim keeps;
//! - `in_flight`: the same with 64 requests: fills without memory or room.

use crate::exact::{self, Access, Policy};
use crate::ranking::Ranking;
use crate::replayed;
use crate::trace::Trace;
use forebay_core::{PoolSettings, Stats};

/// Prints an object with the misses of each step, in percent of reads, and the bytes that the last
/// one wrote to the cache for each byte filled or written.
pub(crate) fn print(number: usize, share: u64, trace: &Trace) {
    let blocks = trace.footprint * share / 100;
    if forebay_format::Geometry::for_device(blocks * 4096, None).is_err() {
        eprintln!("traces: trace {number}, {share} %: {blocks} blocks are too small for a cache");
        return;
    }
    let accesses: Vec<Access> = trace.accesses().collect();
    let online = [Policy::Lru, Policy::Arc, Policy::Lirs, Policy::S3Fifo];
    let best = online.map(|policy| exact::misses_pct(policy, blocks as usize, &accesses));
    let best = best.into_iter().fold(100.0, f64::min);
    let ranking = |blocks: u64| exact::misses_of(&mut Ranking::new(blocks as usize), &accesses);
    let engine = |depth| replayed(PoolSettings::default(), blocks, trace, depth).engine.stats();
    let (alone, in_flight) = (engine(Some(1)), engine(None));
    let held = alone.cached_blocks.clamp(1, blocks);
    let asked = in_flight.written_bytes + in_flight.filled_blocks * 4096;
    println!(
        "{{\"trace\": {number}, \"share_pct\": {share}, \"held_pct\": {:.1}, \"exact\": {best:.2}, \
         \"ranking\": {:.2}, \"room\": {:.2}, \"engine\": {:.2}, \"in_flight\": {:.2}, \"written\": {:.2}}}",
        held as f64 * 100.0 / blocks as f64,
        ranking(blocks),
        ranking(held),
        misses_pct(&alone),
        misses_pct(&in_flight),
        in_flight.cache_written_bytes as f64 / asked.max(1) as f64
    );
}

fn misses_pct(stats: &Stats) -> f64 {
    let reads = stats.read_hit_blocks + stats.read_miss_blocks;
    stats.read_miss_blocks as f64 * 100.0 / reads.max(1) as f64
}

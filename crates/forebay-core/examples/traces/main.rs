//! Replays block traces through the engine in virtual time, next to exact policies: `traces SHARES
//! FILE...`, for instance `traces 10,40 vm.bin`. `bench/traces` unpacks files, calls this, and
//! makes tables of it.
//!
//! The cache gets a share of the trace's footprint (in percent), and exact policies get as many
//! blocks as its device has bytes: headers, reserves and checkpoints are the engine's own cost.
//! Prints a JSON object for each trace (numbered from 0) and share, in a line: `sizes` to replay it
//! elsewhere, and for each column misses of reads in percent. Of the engine also bytes written to
//! the cache for each that was filled or written, and which share of the missed blocks found no
//! room; its misses are null on a device that is too small.
//!
//! `traces --curve SHARES FILE...` compares the miss-ratio curve of a cache with engines of the
//! sizes that it speaks of.

mod curve;
mod exact;
#[path = "../../tests/it/rig/mod.rs"]
mod rig;
mod trace;

use exact::{Access, Policy};
use forebay_core::{PoolSettings, ReclaimPolicy, RequestKind, Treatment, VolumeSettings};
use rig::Rig;
use std::process::ExitCode;
use trace::Trace;

const POLICIES: [(&str, ReclaimPolicy); 3] =
    [("fifo", ReclaimPolicy::Fifo), ("lru", ReclaimPolicy::Lru), ("s3fifo", ReclaimPolicy::S3Fifo)];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let curve = arguments.next_if(|argument| argument == "--curve").is_some();
    let shares: Option<Vec<u64>> = arguments
        .next()
        .and_then(|list| list.split(',').map(|share| share.parse().ok().filter(|pct| *pct > 0)).collect());
    let files: Vec<String> = arguments.collect();
    let Some(shares) = shares.filter(|_| !files.is_empty()) else {
        eprintln!(
            "traces: usage: traces [--curve] SHARES FILE..., with shares of the footprint in percent: 10,40"
        );
        return ExitCode::from(2);
    };
    for (number, file) in files.iter().enumerate() {
        let trace = match Trace::read(file) {
            Ok(trace) => trace,
            Err(error) => {
                eprintln!("traces: {file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        for share in shares.iter().filter(|_| curve) {
            curve::print(number, *share, &trace);
        }
        for share in shares.iter().filter(|_| !curve) {
            println!("{{\"trace\": {number}, \"share_pct\": {share}, {}}}", row(*share, &trace));
        }
    }
    ExitCode::SUCCESS
}

/// What follows a trace and a share in their line.
fn row(share: u64, trace: &Trace) -> String {
    let blocks = trace.footprint * share / 100;
    let fits = forebay_format::Geometry::for_device(blocks * 4096, None).is_ok();
    let engine = POLICIES.map(|(name, policy)| {
        let figures = if fits { played(policy, blocks, trace) } else { "\"misses_pct\": null".into() };
        format!("\"{name}\": {{{figures}}}")
    });
    let accesses: Vec<Access> = trace.accesses().collect();
    let exact = Policy::ALL.map(|policy| {
        let misses = if blocks > 0 { exact::misses_pct(policy, blocks as usize, &accesses) } else { 100.0 };
        format!("\"{}\": {{\"misses_pct\": {misses:.3}}}", policy.name())
    });
    format!(
        "\"sizes\": {{\"cache_blocks\": {blocks}, \"footprint_blocks\": {}, \"volume_blocks\": {}}}, \
         \"engine\": {{{}}}, \"exact\": {{{}}}",
        trace.footprint,
        trace.end,
        engine.join(", "),
        exact.join(", ")
    )
}

/// What the engine makes of a trace, on a device of so many blocks.
fn played(policy: ReclaimPolicy, blocks: u64, trace: &Trace) -> String {
    let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
    let stats = replayed(pool, blocks, trace, None).engine.stats();
    let misses = stats.read_miss_blocks;
    let asked = stats.written_bytes + stats.filled_blocks * 4096;
    let pct = |part: u64, whole: u64| part as f64 * 100.0 / whole.max(1) as f64;
    format!(
        "\"misses_pct\": {:.3}, \"written\": {:.4}, \"no_room_pct\": {:.3}",
        pct(misses, stats.read_hit_blocks + misses),
        stats.cache_written_bytes as f64 / asked.max(1) as f64,
        pct(stats.fill_no_room_blocks, misses)
    )
}

/// The engine after a trace, on a device of so many blocks, with so many requests in flight.
fn replayed(pool: PoolSettings, blocks: u64, trace: &Trace, depth: Option<u64>) -> Rig {
    let mut rig = Rig::on_device(blocks * 4096, trace.end, &[VolumeSettings::default()], pool);
    rig.depth = depth.unwrap_or(rig.depth);
    for request in &trace.requests {
        let kind = if request.writes { RequestKind::Write { fua: false } } else { RequestKind::Read };
        rig.request(0, kind, request.first, request.blocks, Treatment::Cache);
    }
    rig
}

//! Replays block traces through the engine in virtual time, and prints misses of reads and bytes
//! written beside exact policies: `traces SHARES FILE...`, for instance `traces 10,40 vm.bin`.
//!
//! The cache gets a share of the trace's footprint (in percent), and exact policies get as many
//! blocks as its device has bytes: headers, reserves and checkpoints are the engine's own cost. A
//! record is 24 bytes, little endian: u64 nanoseconds, u64 first block of 4 KiB, u32 blocks, u32
//! write (0 or 1). `bench/traces` unpacks files and calls this.

mod exact;
#[path = "../../tests/rig/mod.rs"]
mod rig;

use exact::{Access, Policy};
use forebay_core::{PoolSettings, ReclaimPolicy, RequestKind, Treatment, VolumeSettings};
use rig::Rig;
use std::collections::HashSet;
use std::process::ExitCode;

const RECORD: usize = 24;
const POLICIES: [ReclaimPolicy; 3] = [ReclaimPolicy::Fifo, ReclaimPolicy::Lru, ReclaimPolicy::S3Fifo];

/// A request of a trace.
struct Request {
    first: u64,
    blocks: u64,
    writes: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let shares: Option<Vec<u64>> = arguments
        .next()
        .and_then(|list| list.split(',').map(|share| share.parse().ok().filter(|pct| *pct > 0)).collect());
    let files: Vec<String> = arguments.collect();
    let Some(shares) = shares.filter(|_| !files.is_empty()) else {
        eprintln!("traces: usage: traces SHARES FILE..., with shares of the footprint in percent: 10,40");
        return ExitCode::from(2);
    };
    println!("misses of reads in percent (bytes written to the cache for each that was filled or written)\n");
    let exact: Vec<&str> = Policy::ALL.iter().map(|policy| policy.name()).collect();
    println!("| trace | cache | fifo | lru | s3fifo | {} |", exact.join(" | "));
    println!("{}", "| --- ".repeat(5 + exact.len()) + "|");
    for file in files {
        let trace = match read(&file) {
            Ok(trace) => trace,
            Err(error) => {
                eprintln!("traces: {file}: {error}");
                return ExitCode::FAILURE;
            }
        };
        shares.iter().for_each(|share| row(&file, *share, &trace));
    }
    ExitCode::SUCCESS
}

fn read(file: &str) -> Result<Vec<Request>, String> {
    let bytes = std::fs::read(file).map_err(|error| error.to_string())?;
    if bytes.is_empty() || bytes.len() % RECORD != 0 {
        return Err(format!("{} bytes are no records of {RECORD} bytes", bytes.len()));
    }
    let request = |record: &[u8]| {
        let word = |at: usize, len: usize| {
            record[at..at + len].iter().rev().fold(0_u64, |word, byte| word << 8 | u64::from(*byte))
        };
        Request { first: word(8, 8), blocks: word(16, 4).max(1), writes: word(20, 4) != 0 }
    };
    Ok(bytes.chunks_exact(RECORD).map(request).collect())
}

fn row(file: &str, share: u64, trace: &[Request]) {
    let each = || trace.iter().flat_map(|request| request.first..request.first + request.blocks);
    let footprint = each().collect::<HashSet<_>>().len() as u64;
    let end = each().max().unwrap_or(0) + 1;
    let blocks = footprint * share / 100;
    let name = std::path::Path::new(file).file_stem().map_or(file.into(), |name| name.to_string_lossy());
    let mut row = format!("| {name} | {share} %");
    let fits = forebay_format::Geometry::for_device(blocks * 4096, None).is_ok();
    for policy in POLICIES {
        row += &if fits { played(policy, blocks, end, trace) } else { " | too small".into() };
    }
    let accesses: Vec<Access> = trace
        .iter()
        .flat_map(|one| (one.first..one.first + one.blocks).map(|block| Access { block, writes: one.writes }))
        .collect();
    for policy in Policy::ALL {
        row += &format!(" | {:.1}", exact::misses_pct(policy, blocks as usize, &accesses));
    }
    println!("{row} |");
}

/// What the engine makes of a trace, on a device of so many blocks.
fn played(policy: ReclaimPolicy, blocks: u64, end: u64, trace: &[Request]) -> String {
    let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
    let mut rig = Rig::on_device(blocks * 4096, end, &[VolumeSettings::default()], pool);
    for request in trace {
        let kind = if request.writes { RequestKind::Write { fua: false } } else { RequestKind::Read };
        rig.request(0, kind, request.first, request.blocks, Treatment::Cache);
    }
    let stats = rig.engine.stats();
    let reads = stats.read_hit_blocks + stats.read_miss_blocks;
    let asked = stats.written_bytes + stats.filled_blocks * 4096;
    format!(
        " | {:.1} ({:.2})",
        stats.read_miss_blocks as f64 * 100.0 / reads.max(1) as f64,
        stats.cache_written_bytes as f64 / asked.max(1) as f64
    )
}

//! Random overwrites of data that fills a share of the cache device, compared with the device
//! alone, in virtual time: the throughput that the log and its reclaim leave of a device,
//! independent of the machine.
//!
//! ```text
//! cargo run --release -p forebay-sim --example overwrite-bench [DEPTH]
//! ```
//!
//! The device takes 80 us for an operation, of which 10 us and 2 us a block are exclusive: so it
//! does 83,000 random writes of 4 KiB a second, and moves 1.7 GB a second in operations of 128 KiB.
//! A flush takes half a millisecond. *Held back*: no destage. *Destaged*: default settings and a
//! fast disk.

#[path = "../tests/it/figures/mod.rs"]
mod figures;

use crate::figures::arm::{ArmDisk, ArmTimes};
use crate::figures::machine::{Flash, Machine, Reply, Setup};
use forebay_core::{EngineConfig, PoolSettings, RequestKind, Stats, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_sim::rng::Rng;

const BLOCK: u64 = 4096;
const CACHE_BYTES: u64 = 512 << 20;
const FLASH: Flash =
    Flash { op_ns: 70_000, block_ns: 2_000, each_ns: 10_000, flush_ns: 500_000, shared: true };
const DISK_NS: u64 = 200_000;
const SECOND: u64 = 1_000_000_000;

/// The parameters of a row.
struct Row {
    share_pct: u64,
    held_back: bool,
}

fn settings(row: &Row) -> (VolumeSettings, PoolSettings) {
    let mut volume = VolumeSettings::default();
    let mut pool = PoolSettings::default();
    if row.held_back {
        (volume.dirty_low_pct, volume.dirty_high_pct, volume.idle_delay) = (90, 90, 0);
        pool.dirty_limit_pct = 90;
    }
    (volume, pool)
}

fn machine(row: &Row) -> (Machine<ArmDisk>, u64) {
    let volume_bytes = CACHE_BYTES * row.share_pct / 100 / (1 << 20) * (1 << 20);
    let (settings, pool) = settings(row);
    let setup = Setup {
        cache_bytes: CACHE_BYTES,
        segment_blocks: None,
        volume_bytes,
        settings,
        engine: EngineConfig { pool, ..EngineConfig::default() },
        flash: FLASH,
    };
    let mut disk = ArmDisk::new(volume_bytes, ArmTimes::default());
    disk.set_fast(Some(DISK_NS));
    (Machine::new(&setup, vec![disk]), volume_bytes / BLOCK)
}

/// Keeps `depth` requests in flight until this many are answered. Returns the duration.
fn write(
    machine: &mut Machine<ArmDisk>,
    depth: usize,
    count: u64,
    mut next: impl FnMut(u64) -> (u64, u32),
) -> u64 {
    let began = machine.now;
    let mut replies: Vec<Reply> = Vec::new();
    let (mut sent, mut answered) = (0, 0);
    while answered < count {
        while sent < count && machine.open() < depth {
            let (block, blocks) = next(sent);
            let kind = RequestKind::Write { fua: false };
            machine.submit_blocks(VolumeId(0), kind, block, blocks, Treatment::Cache);
            sent += 1;
        }
        machine.pump();
        assert!(machine.step(u64::MAX, None), "requests are open, and nothing goes on");
        machine.take_replies(&mut replies);
        answered += replies.len() as u64;
    }
    machine.now - began
}

fn line(row: &Row, depth: usize) -> String {
    let (mut machine, blocks) = machine(row);
    let mut rng = Rng::new(7);
    write(&mut machine, 8, blocks / 64, |at| (at * 64, 64));
    write(&mut machine, depth, 2 * blocks, |_| (rng.below(blocks), 1));
    let before = machine.engine.stats();
    let took = write(&mut machine, depth, 2 * blocks, |_| (rng.below(blocks), 1));
    let after = machine.engine.stats();
    let of = |what: fn(&Stats) -> u64| what(&after) - what(&before);
    let a_second = (2 * blocks * SECOND) as f64 / took as f64;
    let raw = depth as f64 * SECOND as f64 / raw_ns(depth) as f64;
    let written = of(|stats| stats.written_bytes) as f64;
    format!(
        "| {} %, {} | {:.0} | {:.2} | {:.2} | {:.2} | {:.1} | {:.1} |",
        row.share_pct,
        if row.held_back { "held back" } else { "destaged" },
        a_second,
        a_second / raw,
        of(|stats| stats.cache_written_bytes) as f64 / written,
        of(|stats| stats.cache_read_bytes) as f64 / written,
        of(|stats| stats.cache_reads) as f64 * 1e3 / (2 * blocks) as f64,
        of(|stats| stats.cache_flushes) as f64 * SECOND as f64 / took as f64,
    )
}

/// Returns the time of the device alone for this many random writes at once.
fn raw_ns(depth: usize) -> u64 {
    let each = FLASH.each_ns + FLASH.block_ns;
    (depth as u64 * each).max(each + FLASH.op_ns)
}

fn main() {
    let depth = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(32);
    println!(
        "| data of the device | writes/s | to raw | bytes written | bytes read | reads for 1000 | flushes/s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for share_pct in [33, 60, 75, 85] {
        for held_back in [true, false] {
            println!("{}", line(&Row { share_pct, held_back }, depth));
        }
    }
}

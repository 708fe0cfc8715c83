//! What the engine does for a request, as scenarios that `bench/instructions` runs under callgrind.
//!
//! ```text
//! instructions --list     names of all scenarios, with what one operation of each is
//! instructions NAME       runs one; prints how many operations were counted, and the bytes that they moved
//! ```
//!
//! Only what the engine does between [`Rig::count`]`(true)` and `(false)` is counted: not the
//! setup, and not the owner of the engine, which completes everything at once. Every scenario is
//! the same on every run, to the instruction.

#[path = "../tests/it/rig/mod.rs"]
mod rig;

use forebay_core::{Drain, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;
use rig::{Dice, GATHERED_NS, Rig};
use std::process::ExitCode;

/// Segments of the cache, and blocks of each: 256 MiB.
const SEGMENTS: (u32, u32) = (64, 1024);
/// Blocks of the volume: 16 times the cache.
const VOLUME_BLOCKS: u64 = 1 << 20;
/// Operations that are counted, where they are requests.
const OPERATIONS: u64 = 20_000;
/// Half of the cache, roughly: for what must not make reclaim begin.
const HALF: u64 = 30_000;
const WRITE: RequestKind = RequestKind::Write { fua: false };

/// A scenario: its name, what one operation is, and how it is run. It returns the number of
/// operations.
struct Scenario(&'static str, &'static str, fn() -> (Rig, u64));

const SCENARIOS: &[Scenario] = &[
    Scenario("read-hit", "4 KiB read of a cached block", read_hit),
    Scenario("read-miss-fill", "4 KiB read that is filled, cache not full", read_miss_fill),
    Scenario("read-miss-fill-full", "the same, cache full: reclaim of clean segments", read_miss_fill_full),
    Scenario("write-1", "4 KiB write of a new block, one at a time", || append(1)),
    Scenario("write-8", "the same, 8 in flight", || append(8)),
    Scenario("write-32", "the same, 32 in flight", || append(32)),
    Scenario("overwrite-1", "4 KiB write of a dirty block, one at a time", || overwrite(1)),
    Scenario("overwrite-32", "the same, 32 in flight", || overwrite(32)),
    Scenario("overwrite-32-full", "the same, log full: reclaim with survivors", overwrite_full),
    Scenario("write-through", "4 KiB write of a new block, write-through", write_through),
    Scenario("flush", "FLUSH after a write", flush),
    Scenario("destage-scattered", "a dirty block without neighbours, written back", || destage(1)),
    Scenario("destage-adjacent", "a dirty block among 64 in a row, written back", || destage(64)),
    Scenario("checkpoint", "a slot in the checkpoint of an orderly stop", checkpoint),
    Scenario("recovery-clean", "a block, start after an orderly stop", || recovery(true)),
    Scenario("recovery-kill", "a block, start after a kill", || recovery(false)),
];

fn main() -> ExitCode {
    let word = std::env::args().nth(1).unwrap_or_default();
    if word == "--list" {
        SCENARIOS.iter().for_each(|Scenario(name, what, _)| println!("{name}\t{what}"));
        return ExitCode::SUCCESS;
    }
    let Some(Scenario(_, _, run)) = SCENARIOS.iter().find(|Scenario(name, ..)| *name == word) else {
        eprintln!("usage: instructions --list | NAME (bench/instructions runs this, and counts)");
        return ExitCode::from(2);
    };
    let (rig, operations) = run();
    let moved = rig.moved;
    println!(
        "{{\"operations\": {operations}, \"copied\": {}, \"zeroed\": {}, \"cache_read\": {}, \
         \"cache_written\": {}, \"backing_read\": {}, \"backing_written\": {}}}",
        moved.copied,
        moved.zeroed,
        moved.cache_read,
        moved.cache_written,
        moved.backing_read,
        moved.backing_written
    );
    ExitCode::SUCCESS
}

/// A cache that holds back destage, with one request in flight.
fn rig(mode: Mode) -> Rig {
    let settings = VolumeSettings {
        mode,
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        ..VolumeSettings::default()
    };
    let pool = PoolSettings { dirty_limit_pct: 90, ..PoolSettings::default() };
    let mut rig = Rig::new(SEGMENTS, VOLUME_BLOCKS, &[settings], pool);
    rig.depth = 1;
    rig
}

/// The `at`-th block of a walk over the volume that meets each block once, and neighbours far
/// apart.
fn scattered(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b1) % VOLUME_BLOCKS
}

/// Writes so many blocks, as [`scattered`] has them; many at a time, or half of the log would be
/// headers.
fn fill(rig: &mut Rig, blocks: u64) {
    let depth = std::mem::replace(&mut rig.depth, 32);
    (0..blocks).for_each(|at| rig.write(0, scattered(at)));
    rig.rest(GATHERED_NS);
    rig.depth = depth;
}

/// Counts what `work` does, and what follows from it.
fn counted(mut rig: Rig, operations: u64, work: impl FnOnce(&mut Rig)) -> (Rig, u64) {
    rig.count(true);
    work(&mut rig);
    rig.rest(GATHERED_NS);
    rig.count(false);
    (rig, operations)
}

fn read_hit() -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    fill(&mut rig, HALF);
    let mut dice = Dice(1);
    let outcome = counted(rig, OPERATIONS, |rig| {
        (0..OPERATIONS).for_each(|_| rig.read(0, scattered(dice.below(HALF))));
    });
    assert_eq!(outcome.0.engine.stats().read_hit_blocks, OPERATIONS);
    outcome
}

fn read_miss_fill() -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    fill(&mut rig, HALF);
    let outcome = counted(rig, OPERATIONS, |rig| {
        (HALF..HALF + OPERATIONS).for_each(|at| rig.read(0, scattered(at)));
    });
    let stats = outcome.0.engine.stats();
    assert_eq!((stats.filled_blocks, stats.relocated_blocks), (OPERATIONS, 0), "nothing had to move");
    outcome
}

fn read_miss_fill_full() -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    let warm = rig.capacity * 3 / 2;
    (0..warm).for_each(|at| rig.read(0, scattered(at)));
    rig.rest(GATHERED_NS);
    let evicted = rig.engine.stats().evicted_blocks;
    assert!(evicted > 0, "the cache is full");
    let outcome = counted(rig, OPERATIONS, |rig| {
        (warm..warm + OPERATIONS).for_each(|at| rig.read(0, scattered(at)));
    });
    assert!(outcome.0.engine.stats().evicted_blocks > evicted + OPERATIONS / 2, "room is made all the time");
    outcome
}

fn append(depth: u64) -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    fill(&mut rig, 1024);
    rig.depth = depth;
    counted(rig, OPERATIONS, |rig| {
        (1024..1024 + OPERATIONS).for_each(|at| rig.write(0, scattered(at)));
    })
}

fn overwrite(depth: u64) -> (Rig, u64) {
    let blocks = 10_000;
    let mut rig = rig(Mode::Writeback);
    fill(&mut rig, blocks);
    rig.depth = depth;
    let mut dice = Dice(2);
    let outcome = counted(rig, OPERATIONS, |rig| {
        (0..OPERATIONS).for_each(|_| rig.write(0, scattered(dice.below(blocks))));
    });
    assert_eq!(outcome.0.engine.stats().relocated_blocks, 0, "nothing had to move");
    outcome
}

fn overwrite_full() -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    rig.depth = 32;
    let mut dice = Dice(3);
    let blocks = rig.capacity / 2;
    fill(&mut rig, blocks);
    (0..2 * blocks).for_each(|_| rig.write(0, scattered(dice.below(blocks))));
    rig.rest(GATHERED_NS);
    let before = rig.engine.stats().relocated_blocks;
    let outcome = counted(rig, OPERATIONS, |rig| {
        (0..OPERATIONS).for_each(|_| rig.write(0, scattered(dice.below(blocks))));
    });
    assert!(outcome.0.engine.stats().relocated_blocks > before, "there are survivors");
    outcome
}

fn write_through() -> (Rig, u64) {
    let mut rig = rig(Mode::Writethrough);
    fill(&mut rig, 1024);
    counted(rig, OPERATIONS, |rig| {
        (1024..1024 + OPERATIONS).for_each(|at| rig.write(0, scattered(at)));
    })
}

fn flush() -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    fill(&mut rig, 1024);
    for at in 1024..1024 + OPERATIONS {
        rig.write(0, scattered(at));
        rig.count(true);
        rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.count(false);
    }
    (rig, OPERATIONS)
}

/// Everything is dirty, `run` blocks in a row at a time, and is drained.
fn destage(run: u64) -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    let mut settings = rig.engine.volume_settings(VolumeId(0)).expect("it is attached");
    settings.destage_gap_bytes = 0;
    rig.engine.configure_volume(rig.now(), VolumeId(0), settings).expect("the settings are legal");
    for at in 0..OPERATIONS / run {
        // Never the neighbour of another run: between any two there is room for one.
        let place = scattered(at) % (VOLUME_BLOCKS / (2 * run)) * 2 * run;
        rig.request(0, WRITE, place, run, Treatment::Cache);
    }
    rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
    let dirty = rig.engine.stats().dirty_blocks;
    rig.engine.set_drain(rig.now(), VolumeId(0), Drain::Full);
    rig.count(true);
    for _ in 0..1000 {
        if rig.engine.stats().dirty_blocks > 0 {
            rig.rest(100_000_000);
        }
    }
    rig.count(false);
    assert_eq!(rig.engine.stats().dirty_blocks, 0, "drained within 100 seconds");
    (rig, dirty)
}

/// A cache that is half full, and can be opened again.
fn kept() -> (Rig, u64) {
    let mut rig = rig(Mode::Writeback);
    rig.keeps = true;
    rig.depth = 32;
    fill(&mut rig, HALF);
    let blocks = rig.engine.stats().cached_blocks;
    assert_eq!(blocks, HALF);
    (rig, blocks)
}

fn checkpoint() -> (Rig, u64) {
    let (mut rig, blocks) = kept();
    rig.count(true);
    rig.stop();
    rig.count(false);
    (rig, blocks)
}

fn recovery(clean: bool) -> (Rig, u64) {
    let (mut rig, blocks) = kept();
    if clean {
        rig.stop();
    }
    rig.count(true);
    rig.reopen();
    // After an orderly stop the index is built behind the first requests.
    rig.rest(GATHERED_NS);
    rig.count(false);
    assert_eq!(rig.engine.stats().cached_blocks, blocks, "nothing is lost");
    (rig, blocks)
}

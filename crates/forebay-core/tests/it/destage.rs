//! Destage of dirty blocks: number and purpose of its operations.

use crate::rig::Rig;
use forebay_core::{Drain, Limit, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;

const BLOCK: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);

fn settings() -> VolumeSettings {
    VolumeSettings {
        dirty_low_pct: 40,
        idle_delay: SECOND_NS,
        latency_target: 20_000_000,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    }
}

fn rig() -> Rig {
    Rig::new((16, 1024), 1 << 20, &[settings()], PoolSettings::default())
}

/// Operations that destage the blocks from the first on, once the volume is idle.
fn write_backs(rig: &mut Rig, blocks: impl Iterator<Item = u64>) -> u64 {
    let before = rig.engine.stats().destage_writes;
    blocks.for_each(|block| rig.write(0, block));
    rig.rest(60 * SECOND_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
    rig.engine.stats().destage_writes - before
}

#[test]
fn destage_stops_yielding_after_reads_end() {
    let undisturbed = write_backs(&mut rig(), 0..2048);
    let mut rig = rig();
    // A miss, and a write inside of a sector that is not cached: both read the backing store.
    rig.read(0, 5000);
    rig.request_bytes(0, RequestKind::Write { fua: false }, (6000 * BLOCK + 100, 50), Treatment::Cache);
    rig.rest(60 * SECOND_NS);
    assert_eq!(rig.engine.stats().backing_reads, 2);
    assert_eq!(write_backs(&mut rig, 0..2048), undisturbed);
}

#[test]
fn first_eight_extents_are_without_gaps() {
    let mut rig = rig();
    assert_eq!(write_backs(&mut rig, (0..8).map(|at| 2 * at)), 8);
    assert_eq!(rig.engine.stats().gap_filled_blocks, 0);
    write_backs(&mut rig, (0..64).map(|at| 1000 + 2 * at));
    assert!(rig.engine.stats().gap_filled_blocks > 0, "then they are");
}

#[test]
fn gaps_are_limited_by_the_setting() {
    for (gap, fills) in [(4, true), (5, false)] {
        let mut rig = rig();
        let narrow = VolumeSettings { destage_gap_bytes: 4 * BLOCK, ..settings() };
        rig.engine.configure_volume(rig.now(), VOLUME, narrow).expect("these settings");
        write_backs(&mut rig, (0..72).map(|at| (gap + 1) * at));
        let filled = rig.engine.stats().gap_filled_blocks;
        assert!(fills == (filled > 0) && filled.is_multiple_of(gap), "{filled} blocks in gaps of {gap}");
    }
}

#[test]
fn unreadable_gap_suspends_gap_filling() {
    let mut rig = rig();
    write_backs(&mut rig, (0..8).map(|at| 2 * at));
    rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
    let gaps_of_run = |rig: &mut Rig, first: u64| {
        let before = rig.engine.stats().gap_filled_blocks;
        (0..32).for_each(|at| rig.write(0, first + 2 * at));
        rig.rest(SECOND_NS / 2);
        assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
        rig.engine.stats().gap_filled_blocks - before
    };
    rig.failing_backing_reads = 1;
    assert!(gaps_of_run(&mut rig, 1000) > 0, "it was tried");
    assert_eq!((rig.failed, rig.failing_backing_reads), (1, 0));
    assert_eq!(gaps_of_run(&mut rig, 2000), 0);
    rig.rest(600 * SECOND_NS);
    assert!(gaps_of_run(&mut rig, 3000) > 0, "it is tried again");
}

#[test]
fn destage_holds_the_level_under_load() {
    let level = VolumeSettings { dirty_low_pct: 10, dirty_high_pct: 50, idle_delay: 0, ..settings() };
    let mut rig = rig();
    rig.engine.configure_volume(rig.now(), VOLUME, level).expect("these settings");
    rig.depth = 1;
    let (low, high) = (rig.capacity / 10, rig.capacity / 2);
    for at in 0..40_000 {
        rig.write(0, at);
        rig.rest(SECOND_NS / 100);
    }
    let report = rig.engine.destage_report(VOLUME).expect("it is attached");
    println!("{report:?}, low {low}, high {high}");
    let dirty = report.dirty_blocks;
    assert!(dirty > low + low / 10 && dirty < high, "{dirty} blocks between {low} and {high}");
    assert!((50..200).contains(&report.rate_blocks_per_s), "as much as comes: {report:?}");
}

#[test]
fn hanging_flush_is_reported_as_the_limit() {
    let mut rig = rig();
    let limit = |rig: &Rig| rig.engine.destage_report(VOLUME).expect("it is attached").limited_by;
    rig.hangs_flushes = true;
    (0..8).for_each(|at| rig.write(0, at));
    rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
    rig.rest(SECOND_NS);
    assert_eq!(limit(&rig), Limit::BackingStore, "{:?}", rig.engine.destage_report(VOLUME));
    rig.release();
    rig.rest(SECOND_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
    assert_eq!(limit(&rig), Limit::NothingToDo);
}

#[test]
fn gap_written_by_a_client_delays_nothing() {
    let write = RequestKind::Write { fua: false };
    for writes_gap in [true, false] {
        let mut rig = rig();
        write_backs(&mut rig, (0..8).map(|at| 2 * at)); // From now on gaps are filled.
        rig.request(0, write, 1009, 1, Treatment::Bypass); // The next one needs no intent.
        (0..6).for_each(|at| rig.write(0, 1000 + 2 * at));
        rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.rest(SECOND_NS / 2);
        let before = rig.engine.stats();
        assert_eq!(before.dirty_blocks, 6);
        if writes_gap {
            rig.request(0, write, 1009, 1, Treatment::Bypass);
            rig.start(); // It is in flight.
        }
        rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
        rig.rest(SECOND_NS / 2);
        let stats = rig.engine.stats();
        assert_eq!(stats.dirty_blocks, 0);
        let destaged = stats.destage_writes - before.destage_writes;
        let filled = stats.gap_filled_blocks - before.gap_filled_blocks;
        assert_eq!((destaged, filled), if writes_gap { (6, 0) } else { (1, 5) });
    }
}

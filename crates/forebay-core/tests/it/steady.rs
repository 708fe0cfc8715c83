//! The effect of a long load on log, checkpoints and reclaim: how often they act, and that they do
//! not come to a standstill.
//!
//! No crash test shows the consequences of these decisions: they are right or wrong only in
//! numbers.

use crate::rig::{Dice, GATHERED_NS, Rig};
use forebay_core::{CoverageMark, DestageOrder, Drain, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

const SECOND_NS: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);

fn rig(segments: (u32, u32), volume: VolumeSettings) -> Rig {
    Rig::new(segments, 1 << 15, &[volume], PoolSettings::default())
}

fn writeback() -> VolumeSettings {
    VolumeSettings { dirty_low_pct: 40, dirty_high_pct: 90, ..VolumeSettings::default() }
}

#[test]
fn excess_marks_go_to_several_batches() {
    // Segments of real size: in a smaller cache marks are logged before so many accumulate.
    let mut rig = rig((16, 1024), VolumeSettings { dirty_low_pct: 0, idle_delay: 1, ..writeback() });
    rig.depth = 1;
    // Every other slot is a header: no two marks have neighbours.
    (0..400).for_each(|block| rig.write(0, 3 * block));
    rig.rest(10 * SECOND_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
    rig.engine.check_invariants();
}

#[test]
fn an_idle_cache_takes_no_checkpoints() {
    let mut rig = rig((16, 16), writeback());
    rig.write(0, 1);
    rig.rest(SECOND_NS);
    let before = rig.engine.stats().checkpoints;
    for _ in 0..20 {
        rig.rest(60 * SECOND_NS);
        rig.read(0, 1);
    }
    assert_eq!(rig.engine.stats().checkpoints, before);
}

#[test]
fn intent_only_checkpoints_are_30_s_apart() {
    let past = VolumeSettings { mode: Mode::Writearound, ..VolumeSettings::default() };
    let mut rig = rig((16, 16), past);
    let before = rig.engine.stats().checkpoints;
    for second in 0..300 {
        rig.write(0, second);
        rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.rest(SECOND_NS);
    }
    let taken = rig.engine.stats().checkpoints - before;
    assert!((8..=11).contains(&taken), "{taken} checkpoints in 300 s");
}

#[test]
fn batches_in_flight_obey_the_setting() {
    for most in [1, 2, 4] {
        let pool = PoolSettings { batches_in_flight: most, ..PoolSettings::default() };
        let mut rig = Rig::new((16, 256), 1 << 15, &[writeback()], pool);
        rig.depth = u64::MAX;
        let before = rig.engine.stats().batches;
        for block in 0..100 {
            rig.write(0, block);
            rig.start(); // and nothing completes
        }
        assert_eq!(rig.engine.stats().batches - before, u64::from(most));
        rig.rest(SECOND_NS);
        assert_eq!(rig.engine.stats().requests_in_flight, 0);
    }
}

#[test]
fn one_checkpoint_serves_many_segments() {
    let mut rig = rig((320, 16), VolumeSettings { dirty_low_pct: 10, ..writeback() });
    let mut dice = Dice(5);
    let before = rig.engine.stats();
    for _ in 0..30_000 {
        rig.write(0, dice.below(4000));
    }
    rig.rest(10 * SECOND_NS);
    let stats = rig.engine.stats();
    // In such a small cache a checkpoint is due once each segment was in the window.
    let (batches, taken) = (stats.batches - before.batches, stats.checkpoints - before.checkpoints);
    let segments = (stats.cache_written_bytes - before.cache_written_bytes) / (16 * 4096);
    println!("{taken} checkpoints, {batches} batches, {segments} segments");
    assert!(taken >= segments / 320 && taken <= segments / 40, "{taken} checkpoints for {segments} segments");
    assert!(stats.relocated_blocks > 0, "what counts was put together");
    rig.engine.check_invariants();
}

#[test]
fn log_full_of_ordered_writes_is_freed() {
    // A lone write takes a header and a block: the log is full long before destage begins on its
    // own.
    let ordered = VolumeSettings {
        destage_order: DestageOrder::Ordered,
        dirty_low_pct: 85,
        idle_delay: 0,
        flush_period: 0,
        ..writeback()
    };
    let mut rig = rig((16, 16), ordered);
    rig.depth = 1;
    for block in 0..2000 {
        rig.write(0, block);
        if block % 7 == 0 {
            rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        }
    }
    rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
    rig.rest(100 * SECOND_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0, "{}", rig.engine.describe());
    rig.engine.check_invariants();
}

#[test]
fn flush_epochs_drain_without_pauses() {
    let ordered = VolumeSettings {
        destage_order: DestageOrder::Ordered,
        dirty_low_pct: 85,
        idle_delay: 0,
        flush_period: 0,
        ..writeback()
    };
    let mut rig = rig((16, 256), ordered);
    rig.depth = 1;
    rig.rest(SECOND_NS);
    for block in 0..200 {
        rig.write(0, block);
        rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
    }
    rig.rest(SECOND_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 200);
    rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
    // Marks without a waiter are written once a second.
    rig.rest(SECOND_NS / 2);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0, "{}", rig.engine.describe());
}

#[test]
fn log_filled_during_store_failure_is_freed() {
    // A lone write takes a header and a block. When the backing store takes writes again there is
    // no room even for marks.
    let mut rig = rig((16, 16), VolumeSettings { dirty_low_pct: 85, idle_delay: 0, ..writeback() });
    rig.depth = 1;
    rig.failing_backing_writes = u32::MAX;
    let mut block = 0;
    // Some may wait only for an extension of the window.
    while rig.engine.stats().requests_in_flight < 20 {
        while rig.engine.stats().requests_in_flight < 20 {
            rig.write(0, 2 * block);
            block += 1;
        }
        assert!(block < 1000, "nothing makes room in the end");
        rig.rest(100 * SECOND_NS);
    }
    rig.failing_backing_writes = 0;
    rig.rest(100 * SECOND_NS);
    assert_eq!(rig.engine.stats().requests_in_flight, 0, "{}", rig.engine.describe());
    assert!(rig.engine.coverage().contains(CoverageMark::CheckpointOfFullLog));
    rig.engine.check_invariants();
}

#[test]
fn pinned_blocks_are_moved_and_not_evicted() {
    let mut rig = rig((32, 64), writeback());
    for block in (0..128).step_by(8) {
        rig.request(0, RequestKind::Read, block, 8, Treatment::Pin);
    }
    rig.rest(GATHERED_NS);
    assert_eq!(rig.engine.pinned_blocks(VOLUME), 128);
    let mut dice = Dice(9);
    for _ in 0..10_000 {
        rig.read(0, 1000 + dice.below(20_000));
    }
    rig.rest(SECOND_NS);
    assert_eq!(rig.engine.pinned_blocks(VOLUME), 128);
    assert!(rig.engine.stats().relocated_blocks >= 128);
}

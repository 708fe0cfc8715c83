//! Running without the cache after its device has failed: dirty data is rescued, and acknowledged
//! data is durable on the backing store.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{Loss, Notice, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;

const BLOCK: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);
const DIRTY: u64 = 40;

fn settings() -> VolumeSettings {
    VolumeSettings {
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        flush_period: 0,
        ..VolumeSettings::default()
    }
}

/// A volume with every other block dirty, and destage held back.
fn rig() -> Rig {
    let mut rig = Rig::new((16, 64), 1 << 15, &[settings()], PoolSettings::default());
    (0..DIRTY).for_each(|at| rig.write(0, 2 * at));
    rig.rest(GATHERED_NS);
    rig
}

fn flush(rig: &mut Rig) {
    rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
}

/// Fails the cache device by a flush.
fn fail(rig: &mut Rig) {
    rig.unflushable = true;
    flush(rig);
    rig.rest(10 * SECOND_NS);
}

fn told(rig: &Rig, what: &Notice) -> usize {
    rig.notices.iter().filter(|notice| *notice == what).count()
}

#[test]
fn dirty_data_is_rescued_and_flush_succeeds() {
    let mut rig = rig();
    fail(&mut rig);
    assert!(rig.engine.runs_without_cache() && rig.engine.is_rescue_over());
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
    let stats = rig.engine.stats();
    assert_eq!((stats.requests_in_flight, stats.lost_blocks), (0, 0));
    assert_eq!(stats.gap_filled_blocks, 0, "nothing is rewritten that nobody asks for");
    for what in [Notice::CacheFenced, Notice::RunsWithoutCache, Notice::RescueEnded { lost_blocks: 0 }] {
        assert_eq!(told(&rig, &what), 1, "{what:?}");
    }
}

#[test]
fn flush_without_cache_flushes_after_writes() {
    let mut rig = rig();
    fail(&mut rig);
    for at in 0..5 {
        let before = rig.engine.stats().backing_flushes;
        rig.write(0, at);
        rig.rest(SECOND_NS / 1000);
        assert_eq!(rig.engine.stats().backing_flushes, before, "nobody has asked for it");
        flush(&mut rig);
        rig.rest(SECOND_NS / 1000);
        assert_eq!(rig.engine.stats().backing_flushes, before + 1);
        flush(&mut rig);
        rig.rest(SECOND_NS / 1000);
        assert_eq!(rig.engine.stats().backing_flushes, before + 1, "nothing was written since");
    }
}

#[test]
fn fua_write_without_cache_flushes_store() {
    let mut rig = rig();
    fail(&mut rig);
    let before = rig.engine.stats().backing_flushes;
    rig.request(0, RequestKind::Write { fua: true }, 500, 1, Treatment::Cache);
    rig.rest(SECOND_NS);
    let stats = rig.engine.stats();
    assert_eq!((stats.backing_flushes, stats.requests_in_flight), (before + 1, 0));
}

#[test]
fn fua_write_does_not_wait_for_the_rescue() {
    let mut rig = rig();
    let slow = VolumeSettings { max_destage_bytes_per_s: 4096, ..settings() };
    rig.engine.configure_volume(rig.now(), VOLUME, slow).expect("these settings");
    rig.unflushable = true;
    flush(&mut rig);
    rig.rest(SECOND_NS);
    assert!(
        rig.engine.runs_without_cache() && rig.engine.dirty_blocks(VOLUME) > DIRTY / 2,
        "the rescue takes its time"
    );
    rig.request(0, RequestKind::Write { fua: true }, 500, 1, Treatment::Cache);
    rig.rest(SECOND_NS / 1000);
    // The first FLUSH waits for the data that it has to make durable.
    assert_eq!(rig.engine.stats().requests_in_flight, 1);
    rig.rest(100 * SECOND_NS);
    assert_eq!(rig.engine.stats().requests_in_flight, 0);
}

#[test]
fn stop_does_not_wait_for_a_failing_rescue() {
    let mut rig = rig();
    rig.errors = Some(0);
    rig.failing_backing_writes = u32::MAX;
    fail(&mut rig);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), DIRTY);
    assert_eq!(rig.errors, Some(1), "what it should make durable is not");
    rig.stop_within(600 * SECOND_NS);
}

#[test]
fn blocks_rescued_since_record_are_listed() {
    let mut rig = rig();
    let slow = VolumeSettings { max_destage_bytes_per_s: 4 * BLOCK, ..settings() };
    rig.engine.configure_volume(rig.now(), VOLUME, slow).expect("these settings");
    let blocks = |losses: Vec<(VolumeId, Vec<Loss>)>| {
        losses.iter().flat_map(|(_, losses)| losses).map(|loss| loss.bytes / BLOCK).sum::<u64>()
    };
    assert_eq!(blocks(rig.engine.at_risk()), DIRTY);
    rig.unflushable = true;
    flush(&mut rig);
    let mut most = 0;
    for _ in 0..50 {
        rig.rest(SECOND_NS / 10);
        let safe = blocks(rig.engine.made_safe().expect("these few can be remembered"));
        assert!(safe + blocks(rig.engine.at_risk()) <= DIRTY, "no block is both");
        most = most.max(safe);
    }
    assert!(rig.engine.runs_without_cache() && rig.engine.dirty_blocks(VOLUME) > 0, "the rescue goes on");
    assert!((2..10).contains(&most), "{most} blocks in a second, after which a record knows them");
}

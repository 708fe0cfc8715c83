//! Errors of devices are counted for the volume concerned, for any kind of operation.

use crate::rig::{Dice, Fault, GATHERED_NS, Rig};
use forebay_core::{
    DetachHow, Drain, Notice, PoolSettings, RequestKind, Treatment, VolumeSettings, VolumeStats,
};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

const BLOCK: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
/// The volume and the block with errors.
const VOLUME: VolumeId = VolumeId(1);
const AT: u64 = 40;
const PART: RequestKind = RequestKind::Write { fua: false };

fn settings() -> VolumeSettings {
    VolumeSettings { skip_sequential_bytes: 0, ..VolumeSettings::default() }
}

/// Two volumes with cached blocks of both. One block of the second volume is pinned and unreadable.
fn damaged() -> Rig {
    let mut rig = Rig::new((32, 64), 1 << 15, &[settings(), settings()], PoolSettings::default());
    rig.depth = 8;
    for block in (0..64).step_by(8) {
        for volume in [0, 1] {
            rig.request(volume, RequestKind::Read, block, 8, Treatment::Cache);
        }
    }
    rig.request(1, RequestKind::Read, AT, 1, Treatment::Pin);
    rig.rest(GATHERED_NS);
    let place = rig.place_of(1, AT);
    rig.faults.insert(place, Fault::Unreadable);
    rig
}

fn of(rig: &Rig, volume: VolumeId) -> VolumeStats {
    rig.engine.volume_stats(volume).expect("it is attached")
}

#[test]
fn cache_read_errors_count_for_their_volume() {
    type Work = fn(&mut Rig);
    let works: [(&str, Work); 4] = [
        ("a read", |rig| rig.read(1, AT)),
        ("a write of a part", |rig| rig.request_bytes(1, PART, (AT * BLOCK + 1, 1), Treatment::Cache)),
        ("a scrub", |rig| rig.engine.begin_scrub(rig.now(), 1 << 30).expect("nothing is in its way")),
        ("reclaim", |rig| {
            let mut dice = Dice(9);
            (0..30_000).for_each(|_| rig.read(0, 1000 + dice.below(20_000)));
        }),
    ];
    for (what, work) in works {
        let mut rig = damaged();
        work(&mut rig);
        rig.rest(SECOND_NS);
        let (one, other) = (of(&rig, VOLUME), of(&rig, VolumeId(0)));
        assert!(rig.failed > 0, "{what}: something has failed");
        assert_eq!((one.cache_read_errors, other.cache_read_errors), (rig.failed, 0), "{what}");
        assert_eq!((one.damaged_blocks, one.read_invalidated_blocks), (1, 1), "{what}");
        assert_eq!((other.damaged_blocks, other.read_invalidated_blocks), (0, 0), "{what}");
    }
}

#[test]
fn backing_read_errors_count_per_volume() {
    type Work = fn(&mut Rig);
    let works: [(&str, Work); 2] = [
        ("a miss", |rig| rig.read(1, 500)),
        ("a write of a part", |rig| rig.request_bytes(1, PART, (500 * BLOCK + 1, 1), Treatment::Cache)),
    ];
    for (what, work) in works {
        let mut rig = damaged();
        rig.errors = Some(0);
        rig.failing_backing_reads = 1;
        work(&mut rig);
        rig.rest(SECOND_NS);
        assert_eq!((rig.failed, rig.errors), (1, Some(0)), "{what}: it is read again");
        let (one, other) = (of(&rig, VOLUME), of(&rig, VolumeId(0)));
        assert_eq!((one.backing_read_errors, other.backing_read_errors), (1, 0), "{what}");
    }
}

#[test]
fn destage_failures_are_counted_and_noticed() {
    let mut rig = damaged();
    rig.write(1, 500);
    rig.failing_backing_writes = 1;
    rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
    rig.rest(10 * SECOND_NS);
    assert_eq!((rig.failed, rig.engine.dirty_blocks(VOLUME)), (1, 0), "it is tried again");
    assert_eq!(rig.engine.stats().destage_failures, 1);
    assert_eq!((of(&rig, VOLUME).backing_write_errors, of(&rig, VolumeId(0)).backing_write_errors), (1, 0));
    let told = |notice: &Notice| matches!(notice, Notice::DestageFailed { volume: VOLUME, .. });
    assert_eq!(rig.notices.iter().filter(|notice| told(notice)).count(), 1);
}

#[test]
fn failed_bypass_write_is_an_error() {
    let mut rig = damaged();
    rig.errors = Some(0);
    let past = VolumeSettings { mode: Mode::Writearound, ..settings() };
    rig.engine.configure_volume(rig.now(), VOLUME, past).expect("these settings");
    rig.failing_backing_writes = 1;
    rig.write(1, 500);
    rig.rest(SECOND_NS);
    assert_eq!((rig.failed, rig.errors), (1, Some(1)));
    let (one, other) = (of(&rig, VOLUME), of(&rig, VolumeId(0)));
    assert_eq!((one.backing_write_errors, one.failed_requests), (1, 1));
    assert_eq!((other.backing_write_errors, other.failed_requests), (0, 0));
}

/// I82: the engine flushes a backing store some time after a bypass write. Data that this flush has
/// dropped is lost, and no later flush makes it durable.
#[test]
fn lost_flush_fails_next_flush_or_detach() {
    let dropped = || {
        let mut rig = damaged();
        let past = VolumeSettings { mode: Mode::Writethrough, ..settings() };
        rig.engine.configure_volume(rig.now(), VOLUME, past).expect("these settings");
        rig.write(1, 500);
        rig.failing_backing_flushes = 1;
        rig.rest(10 * SECOND_NS);
        assert_eq!(rig.failing_backing_flushes, 0, "it was flushed");
        rig.errors = Some(0);
        rig
    };
    let flush = |rig: &mut Rig| {
        let before = rig.errors;
        rig.request(1, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.rest(SECOND_NS);
        rig.errors != before
    };
    let mut rig = dropped();
    assert!(flush(&mut rig), "no FLUSH told of it");
    assert!(!flush(&mut rig), "it is told once");

    let mut rig = dropped();
    for fails in [true, false] {
        rig.engine.detach_volume(rig.now(), VOLUME, DetachHow::Drained).expect("nothing is dirty");
        rig.rest(SECOND_NS);
        let told = rig.notices.iter().filter(|notice| matches!(notice, Notice::DetachFailed { .. }));
        assert_eq!((told.count(), rig.engine.volume_size_bytes(VOLUME).is_some()), (1, fails));
    }
}

/// I84: a part of a write may have reached the backing store before a flush that fails, and be
/// dropped with the rest. The write had not been answered then, so the failed FLUSH does not report
/// it.
#[test]
fn write_in_flight_at_a_failed_flush_fails() {
    for kind in [PART, RequestKind::Write { fua: true }] {
        let mut rig = damaged();
        let past = VolumeSettings { mode: Mode::Writearound, ..settings() };
        rig.engine.configure_volume(rig.now(), VOLUME, past).expect("these settings");
        rig.write(1, 500);
        rig.rest(SECOND_NS / 2);
        rig.errors = Some(0);
        rig.failing_backing_flushes = 1;
        rig.request(1, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.request(1, kind, 600, 64, Treatment::Cache);
        rig.rest(SECOND_NS);
        assert_eq!((rig.failing_backing_flushes, rig.errors), (0, Some(2)), "{kind:?}");
    }
}

//! Discards of empty segments, if enabled: which segments, how fast, and the behaviour if the
//! device refuses them.

use crate::rig::{Discards, GATHERED_NS, Rig};
use forebay_core::{DetachHow, PoolSettings, VolumeSettings};

const SEGMENTS: (u32, u32) = (128, 16);
const SECOND: u64 = 1_000_000_000;
/// Maximum rate of discards, bytes per second.
const BYTES_PER_S: u64 = 256 << 20;

fn pool() -> PoolSettings {
    PoolSettings { discard_freed: true, ..PoolSettings::default() }
}

fn rig(settings: PoolSettings) -> Rig {
    Rig::new(SEGMENTS, 1 << 13, &[VolumeSettings::default()], settings)
}

/// Writes more blocks in turn than the cache holds; time passes.
fn go_round(rig: &mut Rig, rounds: u64) {
    for round in 0..rounds {
        (0..64).for_each(|block| rig.write(0, (64 * round + block) % 4096));
        rig.rest(GATHERED_NS);
    }
}

#[test]
fn empty_segments_are_discarded_if_enabled() {
    let mut rig = rig(PoolSettings::default());
    go_round(&mut rig, 100);
    assert!(rig.discarded.is_empty(), "nobody asked for it");
    rig.engine.configure_pool(rig.now(), pool()).expect("it can be changed");
    go_round(&mut rig, 20);
    rig.rest(SECOND);
    let at_rest = rig.engine.stats();
    assert_eq!(at_rest.cache_discards, rig.discarded.len() as u64);
    assert!(at_rest.cache_discards > 0, "some segments have held nothing");
    rig.rest(10 * SECOND);
    assert_eq!(rig.engine.stats().cache_discards, at_rest.cache_discards, "each once");
    go_round(&mut rig, 100);
    let stats = rig.engine.stats();
    assert!(stats.cache_discards > 2 * at_rest.cache_discards, "again once they were in use");
    let segment = rig.engine.geometry().segment_bytes();
    assert_eq!(stats.cache_discarded_bytes, stats.cache_discards * segment);
    rig.engine.configure_pool(rig.now(), PoolSettings::default()).expect("it can be changed");
    rig.rest(SECOND);
    let before = rig.discarded.len();
    go_round(&mut rig, 100);
    assert_eq!(rig.discarded.len(), before, "nobody wants it any more");
}

#[test]
fn discards_of_an_empty_cache_are_limited() {
    let mut rig = rig(pool());
    let (began, segment) = (rig.now(), rig.engine.geometry().segment_bytes());
    let count = u64::from(rig.engine.geometry().segment_count);
    while rig.engine.stats().cache_discards < count - 1 {
        assert!(rig.now() < began + 60 * SECOND, "{} of {count}", rig.engine.stats().cache_discards);
        rig.rest(100_000);
    }
    let least = (count - 2) * segment * SECOND / BYTES_PER_S;
    assert!(rig.now() - began >= least, "{} ns for {count} segments", rig.now() - began);
}

#[test]
fn a_device_without_discards_is_asked_once() {
    let mut rig = rig(pool());
    rig.rest(SECOND);
    rig.discards = Discards::Unknown;
    rig.discarded.clear();
    go_round(&mut rig, 200);
    let stats = rig.engine.stats();
    assert_eq!((rig.discarded.len(), stats.cache_discard_errors, stats.cache_write_errors), (1, 1, 0));
    assert!(!rig.engine.is_fenced());
}

#[test]
fn failed_discard_is_counted_and_harmless() {
    let mut rig = rig(pool());
    rig.rest(SECOND);
    let before = rig.engine.stats().cache_discards;
    rig.discards = Discards::Failing;
    rig.discarded.clear();
    go_round(&mut rig, 200);
    let stats = rig.engine.stats();
    assert!(rig.discarded.len() > 10, "it goes on");
    assert_eq!((stats.cache_discards, stats.cache_discard_errors), (before, rig.discarded.len() as u64));
    assert!(!rig.engine.is_fenced());
}

#[test]
fn cache_works_without_a_hanging_discard() {
    for segments in [SEGMENTS, (16, 16)] {
        let mut rig = Rig::new(segments, 1 << 13, &[VolumeSettings::default()], PoolSettings::default());
        go_round(&mut rig, 100);
        rig.discards = Discards::Hanging;
        rig.cache_writes = Some(Vec::new());
        rig.engine.configure_pool(rig.now(), pool()).expect("it can be changed");
        go_round(&mut rig, 400);
        let [hangs] = &rig.discarded[..] else { panic!("one discard hangs: {:?}", rig.discarded) };
        let (writes, hangs) = (rig.cache_writes.take().expect("they were counted"), hangs.clone());
        let beside = writes.iter().find(|(offset, len)| *offset < hangs.end && hangs.start < offset + len);
        assert_eq!(beside, None, "it is not written meanwhile");
        assert!(writes.len() > 2000, "the log goes round and round");
        rig.discards = Discards::Taken;
        rig.release();
        go_round(&mut rig, 400);
        assert!(rig.discarded.len() > 10, "it has gone on");
    }
}

/// The checkpoint that records the detach comes first.
#[test]
fn space_of_discarded_volume_is_discarded() {
    let settings = [VolumeSettings::default(), VolumeSettings::default()];
    let mut rig = Rig::new(SEGMENTS, 1 << 13, &settings, pool());
    (0..1024).for_each(|block| rig.write(1, block));
    rig.rest(10 * SECOND);
    let (before, free) = (rig.engine.stats().cache_discards, rig.engine.stats().free_segments);
    rig.detach(1, DetachHow::Discard);
    rig.rest(SECOND);
    let after = rig.engine.stats();
    let freed = after.free_segments - free;
    assert!(freed > 50, "{freed} segments hold nothing any more");
    assert!(after.cache_discards - before >= freed, "{} of {freed}", after.cache_discards - before);
}

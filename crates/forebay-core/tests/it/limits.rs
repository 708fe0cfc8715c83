//! Limits of dirty data, of a volume and of the pool, hold for requests of every size (I19).

use crate::rig::Rig;
use forebay_core::{DetachHow, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;

const BLOCK: u64 = 4096;

/// Dirty blocks of the pool, and of the first volume, after writes of `blocks` blocks each to both
/// volumes, twice as much as the cache holds, with almost no destage.
fn dirty(blocks: u64, volume_pct: u32, pool_pct: u32) -> (u64, u64, u64) {
    let slow = VolumeSettings {
        dirty_low_pct: 1,
        dirty_high_pct: volume_pct,
        max_destage_bytes_per_s: BLOCK,
        idle_delay: 0,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    };
    let pool = PoolSettings { dirty_limit_pct: pool_pct, ..PoolSettings::default() };
    let mut rig = Rig::new((32, 64), 1 << 15, &[slow, slow], pool);
    rig.depth = 1;
    let write = RequestKind::Write { fua: false };
    for at in 0..rig.capacity / blocks {
        rig.request(0, write, at * blocks, blocks, Treatment::Cache);
        rig.request(1, write, at * blocks, blocks, Treatment::Cache);
    }
    // Below a limit a write waits as long as the destage of its blocks takes, here a second for
    // each.
    rig.rest(20_000_000_000);
    let stats = rig.engine.stats();
    assert!(stats.throttled_writes > 0 && stats.requests_in_flight > 0, "the others wait");
    (stats.dirty_blocks, rig.engine.dirty_blocks(VolumeId(0)), rig.capacity)
}

#[test]
fn volume_stays_below_its_high_limit() {
    for blocks in [1, 2, 8] {
        let (_, volume, capacity) = dirty(blocks, 30, 90);
        let high = capacity * 30 / 100;
        println!("writes of {blocks} blocks: {volume} blocks of at most {high}");
        assert!(
            volume <= high && volume > high / 2,
            "writes of {blocks} blocks: {volume} blocks of at most {high}"
        );
    }
}

#[test]
fn volumes_together_stay_below_pool_limit() {
    for blocks in [1, 8] {
        let (all, _, capacity) = dirty(blocks, 90, 40);
        let high = capacity * 40 / 100;
        println!("writes of {blocks} blocks: {all} blocks of at most {high}");
        assert!(all <= high && all > high / 2, "writes of {blocks} blocks: {all} blocks of at most {high}");
    }
}

/// Writers at the limit of a volume whose backing store fails every write.
fn writers_in_vain() -> Rig {
    let settings = VolumeSettings {
        dirty_low_pct: 0,
        dirty_high_pct: 20,
        idle_delay: 0,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    };
    let mut rig = Rig::new((32, 64), 1 << 15, &[settings], PoolSettings::default());
    rig.depth = 1;
    (rig.failing_backing_writes, rig.errors) = (u32::MAX, Some(0));
    for at in 0..rig.capacity / 16 {
        let write = RequestKind::Write { fua: false };
        rig.request(0, write, at * 8, 8, Treatment::Cache);
    }
    rig.rest(2_000_000_000);
    let stats = rig.engine.stats();
    assert!(stats.throttled_writes > 0 && stats.requests_in_flight > 0, "the others wait");
    rig
}

#[test]
fn stop_refuses_throttled_writers() {
    writers_in_vain().stop_within(1_000_000_000);
}

#[test]
fn detach_refuses_throttled_writers() {
    writers_in_vain().detach(0, DetachHow::Keep);
}

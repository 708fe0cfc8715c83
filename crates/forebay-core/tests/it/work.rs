//! How much one call of the engine looks at: during a call nothing else of the pool makes progress.

use crate::rig;
use crate::rig::{Dice, Rig};
use forebay_core::{PoolSettings, ReclaimPolicy, RequestKind, Treatment, VolumeSettings};
use forebay_format::checkpoint::Mode;

/// Segments, and blocks of each: lists of victims have 16 entries.
const CACHE: (u32, u32) = (1024, 64);
const SEGMENTS: u64 = CACHE.0 as u64;
const SLOTS: u64 = SEGMENTS * CACHE.1 as u64;
const VOLUME_BLOCKS: u64 = 1 << 20;
const REQUESTS: u64 = 20_000;

/// Slots and segments that a full cache looks at under reads and writes: at most in one call, and
/// in total for each segment that is written.
fn under_load(policy: ReclaimPolicy, min_share_pct: u32) -> (u64, u64) {
    let volume = |min_share_pct| VolumeSettings { min_share_pct, ..VolumeSettings::default() };
    let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
    let volumes = [volume(0), volume(min_share_pct)];
    let mut rig = Rig::new(CACHE, VOLUME_BLOCKS, &volumes, pool);
    let mut dice = Dice(1);
    let mut ask = |rig: &mut Rig, count: u64| {
        for at in 0..count {
            let (volume, block) = ((at % 4 == 3) as u16, dice.below(2 * rig.capacity / 8) * 8);
            let kind = if at % 2 == 0 { RequestKind::Read } else { RequestKind::Write { fua: false } };
            rig.request(volume, kind, block, 8, Treatment::Cache);
        }
    };
    // Twice around the log.
    let warm = rig.capacity / 4;
    ask(&mut rig, warm);
    rig.longest = 0;
    let (before, looked_at) = (rig.engine.stats(), rig.engine.looked_at());
    ask(&mut rig, REQUESTS);
    let stats = rig.engine.stats();
    let written = (stats.cache_written_bytes - before.cache_written_bytes) / (64 * 4096);
    let snapshots = (stats.checkpoints - before.checkpoints) * SLOTS;
    let each = (rig.engine.looked_at() - looked_at).saturating_sub(snapshots) / written.max(1);
    println!("{policy:?} {min_share_pct}: {} in one call, {each} for each segment", rig.longest);
    (rig.longest, each)
}

#[test]
fn one_pass_finds_many_victims() {
    for policy in [ReclaimPolicy::Fifo, ReclaimPolicy::Lru] {
        let (longest, each) = under_load(policy, 0);
        assert!(longest <= 4 * SEGMENTS && each <= SEGMENTS / 4, "{policy:?}: {longest}, {each}");
    }
}

/// `cargo test --workspace` has the feature; `cargo test -p forebay-core` needs `--features
/// planted-bugs`. Benchmarks must not have it.
#[cfg(feature = "planted-bugs")]
#[test]
fn a_pass_for_each_victim_is_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::PassForEachVictim));
    let (longest, each) = under_load(ReclaimPolicy::Lru, 0);
    assert!(longest > 4 * SEGMENTS || each > SEGMENTS / 4, "the test does not see it: {longest}, {each}");
}

#[test]
fn one_call_visits_each_slot_at_most_once() {
    for share in [0, 60] {
        let (longest, each) = under_load(ReclaimPolicy::S3Fifo, share);
        assert!(longest <= SLOTS && each <= 4 * SEGMENTS, "{share} %: {longest}, {each}");
    }
}

/// Segments of 1,024 blocks: a dozen of them refill an empty window.
#[test]
fn one_call_evicts_only_part_of_a_segment() {
    let clean = VolumeSettings { mode: Mode::Writethrough, ..VolumeSettings::default() };
    for policy in [ReclaimPolicy::Fifo, ReclaimPolicy::S3Fifo] {
        let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
        let mut rig = Rig::new((1024, 1024), 1 << 24, &[clean], pool);
        rig.most_evicted = Some(0);
        for at in 0..rig.capacity / 64 * 5 / 4 {
            rig.request(0, RequestKind::Write { fua: false }, 64 * at, 64, Treatment::Cache);
        }
        rig.rest(rig::GATHERED_NS);
        let (stats, most) = (rig.engine.stats(), rig.most_evicted.unwrap_or(0));
        println!("{policy:?}: {most} of {} evicted in one call", stats.evicted_blocks);
        assert!(stats.evicted_blocks > rig.capacity / 10, "{policy:?}: it was full");
        assert!(most <= 512, "{policy:?}: {most}");
    }
}

/// Three walks over each step, of 16,384 blocks.
#[test]
fn a_discard_of_everything_is_done_in_steps() {
    let mut rig = Rig::new(CACHE, VOLUME_BLOCKS, &[VolumeSettings::default()], PoolSettings::default());
    for at in 0..rig.capacity / 16 {
        rig.request(0, RequestKind::Write { fua: false }, 8 * at, 8, Treatment::Cache);
    }
    rig.rest(rig::GATHERED_NS);
    rig.longest = 0;
    rig.request(0, RequestKind::Discard { fua: false }, 0, VOLUME_BLOCKS, Treatment::Cache);
    rig.rest(10_000_000_000);
    println!("{} in one call", rig.longest);
    assert_eq!(rig.engine.stats().cached_blocks, 0, "all of it");
    assert!(rig.longest <= 3 * 16384, "{} in one call", rig.longest);
}

//! Several volumes in one pool: shares are respected, content is replaced, pins stay, streams
//! bypass.

use crate::rig::{Dice, GATHERED_NS, Rig, Zipf};
use forebay_core::{
    Admission, PoolSettings, Priority, ReclaimPolicy, RequestKind, Treatment, VolumeSettings,
};
use forebay_format::VolumeId;

const SEGMENTS: (u32, u32) = (96, 64);
const VOLUME_BLOCKS: u64 = 1 << 15;
/// Tolerance of a share, in percent of the pool.
const TOLERANCE_PCT: u64 = 4;

fn settings() -> VolumeSettings {
    VolumeSettings::default()
}

fn rig(policy: ReclaimPolicy, volumes: &[VolumeSettings]) -> Rig {
    Rig::new(
        SEGMENTS,
        VOLUME_BLOCKS,
        volumes,
        PoolSettings { reclaim_policy: policy, ..PoolSettings::default() },
    )
}

fn cached(rig: &Rig, volume: u16) -> u64 {
    let mut blocks = 0;
    rig.engine.block_status(VolumeId(volume), 0, VOLUME_BLOCKS, &mut |count, cached, _| {
        blocks += if cached { count } else { 0 };
        true
    });
    blocks
}

fn cached_pct(rig: &Rig, volume: u16) -> u64 {
    cached(rig, volume) * 100 / rig.capacity
}

/// Reads all volumes at random, `weights[v]` of every ten requests from volume v.
fn mingle(rig: &mut Rig, dice: &mut Dice, requests: u32, weights: &[u64]) {
    let flat = Zipf::new(VOLUME_BLOCKS, 0.5);
    let all = weights.iter().sum();
    for _ in 0..requests {
        let mut at = dice.below(all);
        let volume = weights.iter().position(|weight| {
            let here = at < *weight;
            at = at.wrapping_sub(*weight);
            here
        });
        rig.read(volume.expect("a volume was drawn") as u16, flat.draw(dice));
    }
}

#[test]
fn maximum_share_is_held_and_others_keep() {
    for policy in ReclaimPolicy::ALL {
        let limited = VolumeSettings { max_share_pct: 20, ..settings() };
        let mut rig = rig(policy, &[limited, settings(), settings()]);
        let dice = &mut Dice(1);
        for _ in 0..10 {
            mingle(&mut rig, dice, 20_000, &[8, 1, 1]);
            let share = cached_pct(&rig, 0);
            assert!(share <= 20 + TOLERANCE_PCT, "{policy:?}: {share} %");
        }
        assert!(cached_pct(&rig, 0) >= 20 - TOLERANCE_PCT, "{policy:?}: its share is used");
        let others = cached_pct(&rig, 1) + cached_pct(&rig, 2);
        assert!(others >= 30, "{policy:?}: the others, a fifth of the requests, have {others} %");
        rig.engine.check_invariants();
    }
}

#[test]
fn volume_at_maximum_share_renews_content() {
    for policy in ReclaimPolicy::ALL {
        let mut rig = rig(policy, &[VolumeSettings { max_share_pct: 10, ..settings() }]);
        (0..20_000).for_each(|block| rig.read(0, block));
        let before = rig.engine.stats();
        let latest = 20_000 - rig.capacity / 20;
        (latest..20_000).for_each(|block| rig.read(0, block));
        let hits = rig.engine.stats().read_hit_blocks - before.read_hit_blocks;
        let asked = 20_000 - latest;
        assert!(hits * 10 >= asked * 3, "{policy:?}: {hits} of the last {asked} blocks are there");
        assert!(cached_pct(&rig, 0) <= 10 + TOLERANCE_PCT);
    }
}

#[test]
fn minimum_share_holds_against_neighbours() {
    for policy in ReclaimPolicy::ALL {
        let quiet = VolumeSettings { min_share_pct: 30, ..settings() };
        let mut rig = rig(policy, &[quiet, settings(), settings()]);
        let wanted = rig.capacity * 30 / 100;
        (0..wanted).for_each(|block| rig.read(0, block));
        mingle(&mut rig, &mut Dice(2), 80_000, &[0, 5, 5]);
        let share = cached_pct(&rig, 0);
        assert!(share >= 30 - TOLERANCE_PCT, "{policy:?}: {share} % after the neighbours were busy");
        rig.engine.check_invariants();
    }
}

#[test]
fn neighbours_displace_an_unshared_volume() {
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[settings(), settings()]);
    let wanted = rig.capacity * 30 / 100;
    (0..wanted).for_each(|block| rig.read(0, block));
    mingle(&mut rig, &mut Dice(2), 80_000, &[0, 10]);
    assert!(cached_pct(&rig, 0) < 5, "the test above can fail");
}

#[test]
fn excessive_minimum_shares_allow_fills() {
    let greedy = VolumeSettings { min_share_pct: 100, ..settings() };
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[greedy, greedy]);
    mingle(&mut rig, &mut Dice(3), 100_000, &[5, 5]);
    let before = rig.engine.stats().filled_blocks;
    mingle(&mut rig, &mut Dice(4), 10_000, &[5, 5]);
    assert!(rig.engine.stats().filled_blocks > before + 1000, "misses are still filled");
}

#[test]
fn high_priority_gives_way_after_low() {
    for policy in ReclaimPolicy::ALL {
        let low = VolumeSettings { priority: Priority::Low, ..settings() };
        let high = VolumeSettings { priority: Priority::High, ..settings() };
        let mut rig = rig(policy, &[low, high]);
        mingle(&mut rig, &mut Dice(5), 80_000, &[5, 5]);
        let (low, high) = (cached(&rig, 0), cached(&rig, 1));
        assert!(high > low * 3 / 2, "{policy:?}: low has {low}, high {high}");
    }
}

#[test]
fn pins_last_until_release_or_overwrite() {
    for policy in ReclaimPolicy::ALL {
        let mut rig = rig(policy, &[settings(), settings()]);
        for block in (0..rig.capacity / 4).step_by(8) {
            rig.request(0, RequestKind::Read, block, 8, Treatment::Pin);
            rig.rest(1000);
        }
        let pins = rig.engine.pinned_blocks(VolumeId(0));
        assert!(pins >= rig.capacity / 5, "{pins} were pinned");
        mingle(&mut rig, &mut Dice(6), 80_000, &[0, 10]);
        let kept = rig.engine.pinned_blocks(VolumeId(0));
        assert!(kept >= pins * 98 / 100, "{policy:?}: {kept} of {pins}");
        assert_eq!(kept, cached(&rig, 0), "nothing else of the volume was used");
        rig.write(0, 0);
        rig.rest(GATHERED_NS);
        assert!(!rig.engine.is_pinned(VolumeId(0), 0), "a pin ends with its content");
        let now = rig.now();
        rig.engine.unpin_all(now, VolumeId(0));
        rig.rest(1_000_000_000);
        assert_eq!(rig.engine.pinned_blocks(VolumeId(0)), 0);
        mingle(&mut rig, &mut Dice(7), 80_000, &[0, 10]);
        assert!(cached(&rig, 0) < pins / 10, "{policy:?}: they give way now");
    }
}

#[test]
fn at_most_half_of_the_pool_is_pinned() {
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[settings()]);
    for block in (0..rig.capacity * 2).step_by(8) {
        rig.request(0, RequestKind::Read, block, 8, Treatment::Pin);
    }
    let pinned = rig.engine.pinned_blocks(VolumeId(0));
    assert!(pinned <= rig.capacity / 2, "{pinned} of {}", rig.capacity);
    assert!(pinned >= rig.capacity * 4 / 10, "{pinned} of {}", rig.capacity);
}

#[test]
fn clean_blocks_can_be_forgotten() {
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[settings(), settings()]);
    (0..2000).for_each(|block| rig.read(0, block));
    (0..1000).for_each(|block| rig.read(1, block));
    rig.rest(GATHERED_NS);
    let now = rig.now();
    rig.engine.forget_clean(now, VolumeId(0));
    rig.rest(1_000_000_000);
    assert_eq!((cached(&rig, 0), cached(&rig, 1)), (0, 1000));
    rig.engine.check_invariants();
}

#[test]
fn admission_second_access_and_never_hold() {
    let second = VolumeSettings { admission: Admission::SecondAccess, ..settings() };
    let never = VolumeSettings { admission: Admission::Never, ..settings() };
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[second, never]);
    let mut turn = |expected: (u64, u64)| {
        (0..640).for_each(|block| rig.read(0, block));
        (0..640).for_each(|block| rig.read(1, block));
        rig.rest(GATHERED_NS);
        assert_eq!((cached(&rig, 0), cached(&rig, 1)), expected);
    };
    turn((0, 0));
    turn((640, 0));
    turn((640, 0));
    rig.request(1, RequestKind::Read, 0, 8, Treatment::Pin);
    rig.rest(GATHERED_NS);
    assert_eq!(cached(&rig, 1), 8, "who pins is not asked");
}

#[test]
fn long_streams_bypass_and_hits_still_count() {
    let skip = VolumeSettings { skip_sequential_bytes: 1 << 20, ..settings() };
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[skip]);
    for block in (0..2048).step_by(16) {
        rig.request(0, RequestKind::Read, block, 16, Treatment::Cache);
    }
    rig.rest(GATHERED_NS);
    let first = cached(&rig, 0);
    assert!((200..=256).contains(&first), "the first MiB of the stream, as far as there was room: {first}");
    let stats = rig.engine.stats();
    assert_eq!(stats.sequential_bypassed_reads, (2048 - 256) / 16);
    assert_eq!((stats.read_sequential_blocks, stats.read_bypass_blocks), (2048 - 256, 2048 - 256));
    assert_eq!(stats.read_miss_blocks, 256);
    for block in (8192..8192 + 1024).step_by(16) {
        rig.request(0, RequestKind::Write { fua: false }, block, 16, Treatment::Cache);
    }
    rig.rest(GATHERED_NS);
    let stats = rig.engine.stats();
    assert_eq!(stats.sequential_bypassed_writes, (1024 - 256) / 16);
    assert_eq!((stats.write_sequential_blocks, stats.write_bypass_blocks), (1024 - 256, 1024 - 256));
    let volume = rig.engine.volume_stats(VolumeId(0)).expect("it is attached");
    assert_eq!(volume.sequential_bypassed_reads, stats.sequential_bypassed_reads);
    assert_eq!(volume.sequential_bypassed_writes, stats.sequential_bypassed_writes);
    assert_eq!(volume.read_sequential_blocks, stats.read_sequential_blocks);
    assert_eq!(volume.write_sequential_blocks, stats.write_sequential_blocks);
    assert_eq!(cached(&rig, 0), first + 256, "and of the other one, dirty or not");
}

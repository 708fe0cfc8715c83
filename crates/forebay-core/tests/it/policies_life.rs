//! Policies and the life cycle: memory of a volume is dropped with it, and pins survive a shrink of
//! the pool.

use crate::rig::{Dice, GATHERED_NS, Rig};
use forebay_core::{
    Admission, DetachHow, PoolSettings, ReclaimPolicy, RequestKind, Treatment, VolumeSettings,
};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

const SEGMENTS: (u32, u32) = (96, 64);
const VOLUME_BLOCKS: u64 = 1 << 15;

fn settings() -> VolumeSettings {
    VolumeSettings::default()
}

fn rig(policy: ReclaimPolicy, volumes: &[VolumeSettings]) -> Rig {
    let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
    Rig::new(SEGMENTS, VOLUME_BLOCKS, volumes, pool)
}

fn pin(rig: &mut Rig, volume: u16, blocks: u64) -> u64 {
    for block in (0..blocks).step_by(8) {
        rig.request(volume, RequestKind::Read, block, 8, Treatment::Pin);
        rig.rest(1000);
    }
    rig.rest(GATHERED_NS);
    rig.engine.pinned_blocks(VolumeId(volume))
}

fn cached(rig: &Rig, volume: u16) -> u64 {
    rig.engine.volume_stats(VolumeId(volume)).expect("it is attached").cached_blocks
}

#[test]
fn pending_write_back_request_is_reported() {
    let mut rig = rig(ReclaimPolicy::Fifo, &[settings()]);
    rig.write(0, 7);
    let through = VolumeSettings { mode: Mode::Writethrough, ..settings() };
    let now = rig.now();
    rig.engine.configure_volume(now, VolumeId(0), through).unwrap();
    let report = |rig: &Rig| {
        let report = rig.engine.destage_report(VolumeId(0)).unwrap();
        (report.dirty_blocks, report.write_back_requests)
    };
    assert_eq!(report(&rig), (0, 1), "nothing is dirty yet, and a drain is not done");
    rig.rest(1000);
    assert_eq!(report(&rig), (1, 0), "it was acknowledged since, and is dirty");
}

#[test]
fn statistics_include_the_probation_limit() {
    for policy in ReclaimPolicy::ALL {
        let mut rig = rig(policy, &[settings()]);
        let limit = |rig: &Rig| rig.engine.stats().probation_limit_blocks;
        let (capacity, first) = (rig.capacity, limit(&rig));
        // Blocks evicted from probation return, again and again.
        let mut most = first;
        (0..8 * capacity).for_each(|at| {
            rig.read(0, at % (capacity * 5 / 4));
            most = most.max(if at % 64 == 0 { limit(&rig) } else { 0 });
        });
        if policy == ReclaimPolicy::S3Fifo {
            assert_eq!(first, capacity / 10, "it begins with a tenth");
            assert!(most > first * 5 / 4 && most < capacity, "{most} at most, {first} at first");
        } else {
            assert_eq!((first, limit(&rig)), (0, 0), "{policy:?} has no probation");
        }
    }
}

#[test]
fn misses_of_an_old_volume_do_not_admit() {
    let second = VolumeSettings { admission: Admission::SecondAccess, ..settings() };
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[second, settings()]);
    (0..640).for_each(|block| rig.read(0, block));
    rig.detach(0, DetachHow::Discard);
    rig.attach(0, &second);
    (0..640).for_each(|block| rig.read(0, block));
    rig.rest(GATHERED_NS);
    assert_eq!(cached(&rig, 0), 0, "these blocks were missed once");
    (0..640).for_each(|block| rig.read(0, block));
    rig.rest(GATHERED_NS);
    assert_eq!(cached(&rig, 0), 640, "the test can fail");
}

#[test]
fn kept_volume_loses_only_pins_and_streams() {
    let skip = VolumeSettings { skip_sequential_bytes: 1 << 20, ..settings() };
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[skip, settings()]);
    assert_eq!(pin(&mut rig, 0, 256), 256);
    for block in (4096..4096 + 512).step_by(16) {
        rig.request(0, RequestKind::Read, block, 16, Treatment::Cache);
    }
    rig.rest(GATHERED_NS);
    assert!(rig.engine.stats().sequential_bypassed_reads > 0, "the stream was found");
    let warm = cached(&rig, 0);
    rig.detach(0, DetachHow::Keep);
    assert_eq!(rig.engine.pinned_blocks(VolumeId(0)), 0, "nobody could release them");
    rig.attach(0, &skip);
    assert_eq!(cached(&rig, 0), warm, "it comes back warm");
    rig.request(0, RequestKind::Read, 4096 + 512, 16, Treatment::Cache);
    rig.rest(GATHERED_NS);
    let stats = rig.engine.volume_stats(VolumeId(0)).expect("it is attached");
    assert_eq!(stats.sequential_bypassed_reads, 0, "the stream is not known any more");
    rig.engine.check_invariants();
}

#[test]
fn sweep_of_old_volume_spares_its_successor() {
    let mut rig = rig(ReclaimPolicy::S3Fifo, &[settings(), settings()]);
    (0..640).for_each(|block| rig.read(0, block));
    rig.rest(GATHERED_NS);
    let now = rig.now();
    rig.engine.forget_clean(now, VolumeId(0));
    rig.engine.detach_volume(now, VolumeId(0), DetachHow::Discard).expect("it can be detached");
    rig.rest(1_000_000_000);
    assert!(!rig.engine.is_sweeping(VolumeId(0)));
    rig.attach(0, &settings());
    (0..640).for_each(|block| rig.read(0, block));
    rig.rest(1_000_000_000);
    assert_eq!(cached(&rig, 0), 640);
}

#[test]
fn pinned_blocks_move_when_the_pool_shrinks() {
    for policy in ReclaimPolicy::ALL {
        let mut rig = rig(policy, &[settings(), settings()]);
        let dice = &mut Dice(8);
        // Every segment gets some blocks of each kind.
        for block in (0..rig.capacity / 5).step_by(8) {
            rig.request(0, RequestKind::Read, block, 8, Treatment::Pin);
            (0..32).for_each(|_| rig.read(1, dice.below(VOLUME_BLOCKS)));
        }
        let pins = rig.engine.pinned_blocks(VolumeId(0));
        assert!(pins > rig.capacity / 8, "{pins} were pinned");
        rig.shrink(48);
        let kept = rig.engine.pinned_blocks(VolumeId(0));
        assert!(kept >= pins * 98 / 100, "{policy:?}: {kept} of {pins}");
        (0..20_000).for_each(|_| rig.read(1, dice.below(VOLUME_BLOCKS)));
        assert!(rig.engine.pinned_blocks(VolumeId(0)) >= pins * 95 / 100, "{policy:?}: and stay");
        rig.engine.check_invariants();
    }
}

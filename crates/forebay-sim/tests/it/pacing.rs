//! Promised figures of the rate controller, on an emulated 7200 rpm disk in virtual time.

use crate::figures::machine::{Flash, Machine, Setup};
use crate::rig::{CACHE_BYTES, Hdd, Load, Rig, SECOND, evenness, quantile};
use forebay_core::{
    DestageOrder, Drain, EngineConfig, Limit, PlantedBug, RequestKind, Treatment, VolumeSettings, fault,
};
use forebay_format::VolumeId;
use forebay_models::hdd::HddModel;

const VOLUME: VolumeId = VolumeId(0);

fn writes(writes_per_s: u64) -> Load {
    Load { writes_per_s, readers: 0 }
}

/// No destage without a need.
fn lazy() -> VolumeSettings {
    VolumeSettings { dirty_low_pct: 60, dirty_high_pct: 70, idle_delay: 0, ..VolumeSettings::default() }
}

#[test]
fn flush_period_destages_evenly_and_in_time() {
    let mut rig = Rig::new(VolumeSettings { flush_period: 60 * SECOND, ..lazy() });
    rig.run(writes(200), 120);
    rig.samples.clear();
    rig.run(writes(200), 200);
    let (front, front_cv) = evenness(&rig.samples, |sample| sample.writes);
    let (back, back_cv) = evenness(&rig.samples, |sample| sample.backing_blocks);
    assert!(front_cv <= 0.1 && back_cv <= 0.1, "coefficients of variation {front_cv} and {back_cv}");
    assert!(front >= 199.0 && back >= 190.0, "{front} in, {back} out");
    let oldest = rig.samples.iter().map(|sample| sample.oldest_age_ns).max().unwrap();
    assert!(oldest <= 60 * SECOND && oldest > 20 * SECOND, "{oldest}");
    assert!(rig.samples.iter().all(|sample| sample.limited_by == Limit::AgeDeadline));
}

#[test]
fn destage_needs_low_level_or_flush_period() {
    let mut rig = Rig::new(lazy());
    rig.run(writes(200), 60);
    assert_eq!(rig.machine.engine.stats().destage_writes, 0);
    assert_eq!(rig.machine.engine.destage_report(VOLUME).unwrap().limited_by, Limit::DirtyLevel);
    assert_eq!(rig.machine.engine.dirty_ages(VOLUME).iter().sum::<u64>(), rig.dirty_blocks());
    assert!(rig.machine.engine.dirty_ages(VOLUME)[2] > 5_000, "{:?}", rig.machine.engine.dirty_ages(VOLUME));
}

#[test]
fn background_drain_at_most_doubles_latency() {
    let reader = Load { writes_per_s: 0, readers: 1 };
    let mut rig = Rig::new(lazy());
    rig.run(writes(200), 10);
    rig.run(reader, 10);
    let p99 = |rig: &Rig| quantile(rig.samples.iter().flat_map(|sample| sample.read_ns.clone()), 0.99);
    rig.samples.clear();
    rig.run(reader, 60);
    let alone = p99(&rig);
    rig.samples.clear();
    rig.set_drain(Drain::Background);
    let mut seconds = 0;
    while rig.dirty_blocks() > 0 {
        rig.run(reader, 1);
        seconds += 1;
        assert!(seconds < 1000, "the drain does not end: {}", rig.machine.engine.describe());
    }
    let beside = p99(&rig);
    assert!(beside <= 2 * alone, "p99 {alone} ns alone, {beside} ns beside the drain");
}

#[test]
fn latency_target_holds_while_room_is_left() {
    let run = |latency_target: u64, dirty_low_pct: u32, seconds: u64| {
        let mut rig = Rig::new(VolumeSettings { dirty_low_pct, latency_target, ..lazy() });
        rig.run(writes(200), 60);
        let load = Load { writes_per_s: 50, readers: 1 };
        rig.run(load, 10);
        rig.samples.clear();
        rig.run(load, seconds);
        let reads = rig.samples.iter().flat_map(|sample| sample.read_ns.clone());
        (quantile(reads, 0.95), rig.dirty_blocks())
    };
    let (alone, _) = run(0, 60, 60);
    let (off, _) = run(0, 5, 60);
    let (kept, filling) = run(SECOND / 50, 5, 60);
    let (loose, _) = run(SECOND / 5, 5, 60);
    assert!(kept <= alone * 5 / 4 && kept <= SECOND / 50 * 5 / 4, "{alone} alone, {kept} kept");
    assert!(
        off > alone * 3 / 2 && loose > alone * 3 / 2,
        "{alone} alone, {off} without, {loose} with a loose one"
    );
    // Destage still keeps up in time: no writer waits.
    let (_, later) = run(SECOND / 50, 5, 1200);
    assert!(later > filling && later < CACHE_BYTES / 4096 * 60 / 100, "{filling}, {later} blocks are dirty");
}

#[test]
fn limits_hold_during_a_full_drain() {
    let mut rig = Rig::new(VolumeSettings { max_destage_iops: 40, ..lazy() });
    rig.run(writes(100), 10);
    rig.set_drain(Drain::Full);
    let before = rig.machine.engine.stats().destage_writes;
    for second in 1..=20 {
        rig.run(writes(0), 1);
        let written = rig.machine.engine.stats().destage_writes - before;
        assert!(written <= 40 * second + 1, "{written} writes in {second} s");
        assert_eq!(rig.machine.engine.destage_report(VOLUME).unwrap().limited_by, Limit::MaxIops);
    }
    rig.run(writes(0), 10);
    assert_eq!(rig.dirty_blocks(), 0);
    assert_eq!(rig.machine.engine.destage_report(VOLUME).unwrap().limited_by, Limit::NothingToDo);
}

#[test]
fn a_limit_counts_from_when_it_is_set() {
    // Half a minute of destage without a limit, then a limit is set, lowered and set once more.
    let mut rig = Rig::new(VolumeSettings { dirty_low_pct: 0, ..lazy() });
    rig.run(writes(200), 30);
    let unlimited = rig.machine.engine.stats().destage_writes;
    assert!(unlimited > 1_000, "{unlimited} writes");
    for (max_destage_iops, max_destage_bytes_per_s) in [(2_000, 0), (20, 0), (0, 1 << 20), (10, 1 << 20)] {
        let limits = VolumeSettings { max_destage_iops, max_destage_bytes_per_s, ..lazy() };
        rig.run(writes(400), 1);
        rig.machine.engine.configure_volume(rig.machine.now, VOLUME, limits).unwrap();
        rig.set_drain(Drain::Full);
        let before = rig.machine.engine.stats().destage_writes;
        rig.run(writes(0), 2);
        let written = rig.machine.engine.stats().destage_writes - before;
        assert!(written >= 15, "{written} writes in 2 s, {limits:?}");
    }
}

#[test]
fn failed_disk_is_retried_seldom() {
    let mut rig = Rig::new(VolumeSettings { flush_period: 30 * SECOND, ..lazy() });
    rig.run(writes(100), 60);
    rig.set_failing(true);
    rig.run(writes(100), 60);
    let failures = rig.machine.engine.stats().destage_failures;
    assert!((6..30).contains(&failures), "{failures} attempts in a minute");
    assert_eq!(rig.machine.engine.destage_report(VOLUME).unwrap().limited_by, Limit::RetryAfterFailure);
    rig.set_failing(false);
    rig.run(writes(100), 25);
    assert!(rig.samples.last().unwrap().oldest_age_ns < 30 * SECOND);
}

#[test]
fn orders_merge_both_ways_and_can_change() {
    let orders = [DestageOrder::Fifo, DestageOrder::Lru, DestageOrder::Elevator];
    for (order, next) in orders.into_iter().zip(orders.into_iter().cycle().skip(1)) {
        let mut rig = Rig::new(VolumeSettings { destage_order: order, ..lazy() });
        for run in 0..64 {
            for block in (0..16).rev() {
                rig.write_block(VOLUME, run * 100 + block);
            }
        }
        rig.run(writes(50), 1);
        rig.set_drain(Drain::Full);
        rig.run(writes(50), 1);
        let settings = VolumeSettings { destage_order: next, ..lazy() };
        rig.machine.engine.configure_volume(rig.machine.now, VOLUME, settings).unwrap();
        rig.run(writes(0), 10);
        assert_eq!(rig.dirty_blocks(), 0, "{order:?}");
        let stats = rig.machine.engine.stats();
        let merged = stats.front_merged_blocks + stats.back_merged_blocks;
        assert!(merged >= 64 * 15, "{order:?}: {merged} merged");
        if order == DestageOrder::Fifo {
            assert!(stats.front_merged_blocks >= 64, "the highest block was written first");
        }
    }
}

#[test]
fn volume_at_its_limit_delays_no_other() {
    let mut rig = Rig::new(VolumeSettings { dirty_low_pct: 1, dirty_high_pct: 5, ..lazy() });
    rig.run(writes(20_000), 5);
    let limit = CACHE_BYTES / 4096 / 20;
    assert!(rig.dirty_blocks() <= limit, "{}", rig.dirty_blocks());
    assert!(rig.machine.engine.destage_report(VOLUME).unwrap().throttled_requests > 50);
    let writes_before = rig.machine.engine.dirty_blocks(VolumeId(1));
    for block in 0..100 {
        rig.write_block(VolumeId(1), block * 1000);
    }
    rig.run_until(rig.machine.now + SECOND / 200);
    assert_eq!(rig.machine.engine.dirty_blocks(VolumeId(1)) - writes_before, 100, "they pass at once");
}

/// Returns the longest wait of several bypass writes, in nanoseconds, on a cache device that takes
/// `flush_ns` for a flush, while other blocks are continuously written, destaged and marked; `None`
/// if one is not answered within 40 flushes.
fn longest_direct_write(flush_ns: u64, planted: Option<PlantedBug>) -> Option<u64> {
    let setup = Setup {
        cache_bytes: 2 << 30,
        segment_blocks: None,
        volume_bytes: 1 << 30,
        settings: VolumeSettings { dirty_low_pct: 0, dirty_high_pct: 1, ..lazy() },
        engine: EngineConfig::default(),
        flash: Flash { op_ns: 80_000, block_ns: 2_000, each_ns: 0, flush_ns, shared: false },
    };
    let _planting = fault::plant(planted);
    let mut machine = Machine::new(&setup, vec![Hdd(HddModel::new(setup.volume_bytes))]);
    let write = RequestKind::Write { fua: false };
    let (mut direct, mut longest, mut replies) = (None, 0, Vec::new());
    for tick in 0..10_000_u64 {
        let end = machine.now + SECOND / 200;
        while machine.step(end, None) {}
        machine.now = end;
        machine.tick();
        machine.take_replies(&mut replies);
        for reply in replies.drain(..) {
            if Some(reply.id) == direct {
                (direct, longest) = (None, longest.max(reply.took));
            }
        }
        if machine.open() < 200 {
            // The lower half goes through the cache, the upper half bypasses it.
            machine.submit(VOLUME, write, (tick * 40_503) % (1 << 17), Treatment::Cache);
        }
        if direct.is_none() && (2_000..6_000).contains(&tick) {
            direct = Some(machine.submit(VOLUME, write, (1 << 17) + tick, Treatment::Bypass));
        }
        machine.pump();
    }
    let stats = machine.engine.stats();
    assert!(stats.destaged_blocks > 2_000, "{stats:?}");
    direct.is_none().then_some(longest)
}

#[test]
fn bypass_write_does_not_wait_for_marks() {
    let flush_ns = 5 * SECOND / 2;
    let longest = longest_direct_write(flush_ns, None).expect("every one is answered");
    assert!(longest <= 5 * flush_ns, "{longest} ns");
    let chasing = longest_direct_write(flush_ns, Some(PlantedBug::ChaseMarks));
    assert!(chasing.is_none_or(|longest| longest > 5 * flush_ns), "the test does not see it: {chasing:?}");
}

//! Draws settings, times, faults and frequencies of requests.

use super::types::{FaultPlan, Mix, VolumePlan};
use crate::device::{Faults, Latency};
use crate::rng::Rng;
use forebay_core::{
    Admission, DestageOrder, EnduranceBudget, EngineConfig, PoolSettings, Priority, ReclaimPolicy,
    VolumeSettings,
};
use forebay_format::checkpoint::Mode;
use forebay_format::{BLOCK_BYTES, Geometry};

pub(super) fn modes(rng: &mut Rng) -> Vec<Mode> {
    match rng.below(6) {
        0 | 1 => vec![Mode::Writeback],
        2 => vec![Mode::Writeback, Mode::Writeonly],
        3 => vec![Mode::Writethrough, Mode::Writearound, Mode::Passthrough],
        4 => vec![Mode::Writeback, Mode::Writethrough, Mode::Writearound],
        _ => Mode::ALL.to_vec(),
    }
}

pub(super) fn orders(rng: &mut Rng) -> Vec<DestageOrder> {
    use DestageOrder::{Elevator, Fifo, Lru, Ordered};
    match rng.below(5) {
        0 => vec![Elevator],
        1 => vec![Elevator, Fifo, Lru],
        2 | 3 => vec![Ordered],
        _ => vec![Elevator, Fifo, Ordered, Ordered],
    }
}

pub(super) fn volume(modes: &[Mode], rng: &mut Rng) -> VolumePlan {
    let sector_bytes = rng.pick(&[512, 512, 4096]);
    let unit = u64::from(sector_bytes);
    let bytes = rng.range((256 << 10) / unit, (1 << 20) / unit) * unit;
    VolumePlan { bytes, bytes_max: bytes + (128 << 10), sector_bytes, mode: rng.pick(modes) }
}

pub(super) fn engine(rng: &mut Rng) -> EngineConfig {
    EngineConfig {
        scratch_blocks: rng.pick(&[64, 128, 256]),
        pool: pool_settings(rng),
        ..EngineConfig::default()
    }
}

/// Draws settings of a pool.
pub(crate) fn pool_settings(rng: &mut Rng) -> PoolSettings {
    PoolSettings {
        batches_in_flight: rng.range(1, 4) as u32,
        survivors_max_pct: rng.pick(&[0, 30, 50, 90]),
        reclaim_policy: rng.pick(&ReclaimPolicy::ALL),
        dirty_limit_pct: rng.pick(&[10, 40, 60, 90]),
        discard_freed: false,
        endurance_budget: EnduranceBudget::Unlimited,
    }
}

/// Returns an endurance budget: from nothing over some blocks a second to no limit.
pub(crate) fn endurance_budget(choice: u32) -> EnduranceBudget {
    const GB: u64 = 1_000_000_000;
    match choice % 6 {
        0 => EnduranceBudget::Bytes(1),
        1 => EnduranceBudget::Bytes(4 * GB),
        2 => EnduranceBudget::Bytes(40 * GB),
        3 => EnduranceBudget::BytesOfEachDevice(20 * GB),
        4 => EnduranceBudget::Bytes(400 * GB),
        _ => EnduranceBudget::Bytes(u64::MAX),
    }
}

/// Draws settings of a volume.
pub(crate) fn settings(rng: &mut Rng) -> VolumeSettings {
    let dirty_low_pct = rng.pick(&[0, 10, 10, 40]);
    let (min_share_pct, max_share_pct) =
        rng.pick(&[(0, 100), (0, 100), (0, 100), (0, 5), (0, 20), (30, 100), (10, 40), (90, 100)]);
    VolumeSettings {
        dirty_low_pct,
        dirty_high_pct: dirty_low_pct + rng.pick(&[10, 30, 50]),
        idle_delay: rng.pick(&[0, 10_000_000, 200_000_000, 5_000_000_000]),
        destage_depth_max: rng.pick(&[1, 4, 16]),
        destage_gap_bytes: rng.pick(&[0, 8 << 10, 64 << 10, 1 << 20]),
        flush_period: rng.pick(&[0, 0, 1_000_000_000, 8_000_000_000, 60_000_000_000]),
        max_destage_iops: rng.pick(&[0, 0, 0, 50, 500]),
        max_destage_bytes_per_s: rng.pick(&[0, 0, 0, 1 << 20, 16 << 20]),
        latency_target: rng.pick(&[0, 1_000_000, 20_000_000]),
        zero_direct_min_bytes: rng.pick(&[16 << 10, 64 << 10, 1 << 20]),
        admission: rng.pick(&[
            Admission::Always,
            Admission::Always,
            Admission::SecondAccess,
            Admission::Never,
        ]),
        skip_sequential_bytes: rng.pick(&[0, 0, 4 << 10, 32 << 10, 128 << 10]),
        min_share_pct,
        max_share_pct,
        priority: rng.pick(&[Priority::Low, Priority::Normal, Priority::Normal, Priority::High]),
        ..VolumeSettings::default()
    }
}

pub(super) fn cache_latency(rng: &mut Rng) -> Latency {
    Latency {
        read_ns: 50_000,
        write_ns: 20_000,
        flush_ns: rng.pick(&[50_000, 500_000]),
        block_ns: 1_000,
        spread: rng.pick(&[0, 1, 4, 20]),
        slow_ppm: rng.pick(&[0, 0, 2_000, 20_000]),
        slow_ns: 20_000_000,
    }
}

pub(super) fn backing_latency(rng: &mut Rng) -> Latency {
    Latency {
        read_ns: rng.pick(&[50_000, 1_000_000, 4_000_000]),
        write_ns: rng.pick(&[50_000, 1_000_000, 4_000_000]),
        flush_ns: rng.pick(&[100_000, 8_000_000]),
        block_ns: 25_000,
        spread: rng.pick(&[0, 1, 4]),
        slow_ppm: rng.pick(&[0, 0, 2_000, 20_000]),
        slow_ns: 500_000_000,
    }
}

fn transient(rng: &mut Rng) -> Faults {
    let rates = [0, 0, 1_000, 10_000, 50_000];
    Faults {
        read_error: rng.pick(&rates),
        write_error: rng.pick(&rates),
        flush_error: rng.pick(&rates),
        ..Faults::default()
    }
}

pub(super) fn faults(rng: &mut Rng) -> FaultPlan {
    let mut plan = FaultPlan::default();
    let style = rng.below(10);
    if style >= 6 {
        if rng.chance(1, 2) {
            plan.cache = transient(rng);
        }
        if rng.chance(2, 3) {
            plan.backing = transient(rng);
        }
    }
    if style == 5 || style == 9 {
        let rates = [0, 0, 5_000, 30_000];
        (plan.rot, plan.spoil) = (rng.pick(&rates), rng.pick(&rates));
        (plan.cache.lost, plan.cache.misdirected) = (rng.pick(&rates), rng.pick(&rates));
    }
    plan
}

pub(super) fn requests(rng: &mut Rng) -> Mix {
    Mix {
        read: rng.pick(&[10, 30, 60]),
        write: rng.pick(&[20, 50, 80]),
        flush: rng.pick(&[0, 2, 6, 15]),
        zero: rng.pick(&[0, 0, 3, 12]),
        prefetch: rng.pick(&[0, 0, 2, 8]),
        mode: rng.pick(&[0, 1, 4]),
        tune: rng.pick(&[0, 0, 1, 4]),
        drain: rng.pick(&[0, 0, 1, 3]),
        sweep: rng.pick(&[0, 0, 0, 1, 3]),
        pause: rng.pick(&[0, 0, 1, 3]),
        invalid: rng.pick(&[0, 0, 1]),
        restart: rng.pick(&[0, 0, 1]),
        lifecycle: rng.pick(&[0, 0, 1, 4]),
        pool: rng.pick(&[0, 0, 0, 1, 3]),
        scrub: rng.pick(&[0, 0, 1, 5]),
        fua_pct: rng.pick(&[0, 0, 5, 30]),
        sector_pct: rng.pick(&[0, 10, 40]),
        byte_pct: rng.pick(&[0, 0, 10, 30]),
        rule_pct: rng.pick(&[0, 0, 0, 5, 30]),
        large_pct: rng.pick(&[0, 2, 10, 30]),
        huge_of: 0,
        hot_pct: rng.pick(&[0, 20, 50, 80]),
        run_pct: rng.pick(&[0, 10, 40]),
    }
}

pub(super) fn geometry(segment_blocks: u32, segments: u32) -> Geometry {
    let mut blocks = u64::from(segment_blocks) * u64::from(segments);
    loop {
        match Geometry::for_device(blocks * BLOCK_BYTES as u64, Some(segment_blocks)) {
            Ok(geometry) if geometry.segment_count >= segments => return geometry,
            Ok(_) | Err(_) => blocks += u64::from(segment_blocks),
        }
    }
}

pub(super) fn mirrored_geometry(segment_blocks: u32, columns: u32) -> Geometry {
    let mut blocks = u64::from(segment_blocks) * u64::from(columns);
    loop {
        match Geometry::mirrored(blocks * BLOCK_BYTES as u64, Some(segment_blocks)) {
            Ok(geometry) if geometry.columns() >= columns => return geometry,
            Ok(_) | Err(_) => blocks += u64::from(segment_blocks),
        }
    }
}

//! The miss-ratio curve compared with engines of the sizes that it predicts.

use crate::rig::{Dice, Rig, Zipf};
use forebay_core::{
    Admission, CURVE_EIGHTHS, CURVE_POINTS, DetachHow, EnduranceBudget, MissRatioCurve, PoolSettings,
    ReclaimPolicy, RequestKind, Treatment, VolumeSettings,
};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

const SEGMENTS: u32 = 128;
const REQUESTS: u64 = 100_000;
/// Loads that differ only in the location of the blocks, and so in which of them are in the sample.
const PLACES: u64 = 4;
const HOURS: u64 = 23;
const HOUR_NS: u64 = 3_600_000_000_000;

/// An engine after a load of reads and writes, four times as large as the cache of 128 segments.
/// Each request ends before the next begins: a block that is requested twice at once is two misses
/// of the engine, and one of the curve.
fn loaded(segments: u32, policy: ReclaimPolicy, settings: VolumeSettings, place: u64) -> Rig {
    let (blocks, first) = (4 * 64 * u64::from(SEGMENTS), place * 1_000_003);
    let pool = PoolSettings { reclaim_policy: policy, ..PoolSettings::default() };
    let mut rig = Rig::new((segments, 64), first + blocks, &[settings], pool);
    rig.depth = 1;
    let (mut random, zipf) = (Dice(7), Zipf::new(blocks, 0.9));
    for _ in 0..REQUESTS {
        let block = first + zipf.draw(&mut random);
        if random.below(4) == 0 { rig.write(0, block) } else { rig.read(0, block) }
    }
    rig
}

fn measured(rig: &Rig) -> f64 {
    let stats = rig.engine.stats();
    stats.read_miss_blocks as f64 / (stats.read_hit_blocks + stats.read_miss_blocks) as f64
}

fn modelled(curve: &MissRatioCurve, eighths: u64) -> f64 {
    let point = curve.points.iter().find(|point| point.eighths == eighths).expect("all sizes are in it");
    point.miss_ratio().expect("something was read")
}

/// The mean of the curves of all places, by size.
fn mean(policy: ReclaimPolicy, settings: VolumeSettings) -> [f64; CURVE_POINTS] {
    let mut mean = [0.0; CURVE_POINTS];
    for place in 0..PLACES {
        let curve = loaded(SEGMENTS, policy, settings, place).engine.miss_ratio_curve(None, HOURS);
        assert!(curve.points[10].is_upper_bound, "eight times the cache has room for all");
        for (sum, eighths) in mean.iter_mut().zip(CURVE_EIGHTHS) {
            *sum += modelled(&curve, eighths) / PLACES as f64;
        }
    }
    mean
}

#[test]
fn curve_matches_engines_of_other_sizes() {
    for policy in ReclaimPolicy::ALL {
        let curve = mean(policy, VolumeSettings::default());
        for (eighths, model) in
            CURVE_EIGHTHS.into_iter().zip(curve).filter(|(size, _)| [4, 8, 16].contains(size))
        {
            let segments = SEGMENTS * eighths as u32 / 8;
            let engine = measured(&loaded(segments, policy, VolumeSettings::default(), 0));
            // A log of so few segments holds less than its size: that is most of the difference.
            assert!((model - engine).abs() < 0.04, "{policy:?} {eighths}: {model:.3}, engine {engine:.3}");
        }
        assert!(curve.windows(2).all(|pair| pair[1] < pair[0] + 0.01), "{curve:?}");
    }
}

#[test]
fn the_curve_follows_admission_and_mode() {
    let second = VolumeSettings { admission: Admission::SecondAccess, ..VolumeSettings::default() };
    let around = VolumeSettings { mode: Mode::Writearound, ..VolumeSettings::default() };
    let through = VolumeSettings { mode: Mode::Writethrough, ..VolumeSettings::default() };
    for settings in [second, around, through] {
        let model = mean(ReclaimPolicy::S3Fifo, settings)[4];
        let engine = measured(&loaded(SEGMENTS, ReclaimPolicy::S3Fifo, settings, 0));
        assert!((model - engine).abs() < 0.04, "{settings:?}: {model:.3}, engine {engine:.3}");
    }
    let nothing = VolumeSettings { mode: Mode::Passthrough, ..VolumeSettings::default() };
    let rig = loaded(SEGMENTS, ReclaimPolicy::S3Fifo, nothing, 0);
    let curve = rig.engine.miss_ratio_curve(None, HOURS);
    assert_eq!(curve.read_blocks, 0, "what is not cached in any size is neither hit nor miss");
}

/// An engine after ten hours of load under a budget, and the misses that its curve predicts for
/// this size.
fn loaded_under(budget: EnduranceBudget, place: u64) -> (Rig, f64) {
    let (blocks, first) = (4 * 64 * u64::from(SEGMENTS), place * 1_000_003);
    let pool = PoolSettings { endurance_budget: budget, ..PoolSettings::default() };
    let mut rig = Rig::new((SEGMENTS, 64), first + blocks, &[VolumeSettings::default()], pool);
    rig.depth = 1;
    let (mut random, zipf) = (Dice(7), Zipf::new(blocks, 0.9));
    for _ in 0..REQUESTS {
        let block = first + zipf.draw(&mut random);
        if random.below(20) == 0 {
            rig.write(0, block)
        } else {
            rig.read(0, block)
        }
        rig.rest(10 * HOUR_NS / REQUESTS);
    }
    let model = modelled(&rig.engine.miss_ratio_curve(None, HOURS), 8);
    (rig, model)
}

#[test]
fn curve_follows_the_endurance_budget() {
    let free = measured(&loaded_under(EnduranceBudget::Unlimited, 0).0);
    for megabytes in [60, 120, 240] {
        let runs =
            (0..PLACES).map(|place| loaded_under(EnduranceBudget::Bytes(megabytes * 1_000_000), place));
        let (engines, models): (Vec<f64>, Vec<f64>) =
            runs.map(|(rig, model)| (measured(&rig), model)).unzip();
        let [engine, model] = [engines, models].map(|all| all.iter().sum::<f64>() / PLACES as f64);
        println!("{megabytes} MB a day: {model:.3}, engine {engine:.3}, without a budget {free:.3}");
        assert!(engine > free + 0.05, "{megabytes}: the budget holds nothing back: {engine:.3}, {free:.3}");
        assert!((model - engine).abs() < 0.03, "{megabytes} MB a day: {model:.3}, engine {engine:.3}");
    }
}

#[test]
fn a_curve_is_of_a_volume_and_ends_with_it() {
    let pool = PoolSettings::default();
    let mut rig = Rig::new((64, 64), 10_000, &[VolumeSettings::default(); 2], pool);
    (0..2000).for_each(|block| rig.read(0, block % 500));
    (0..1000).for_each(|block| rig.read(1, block));
    rig.request(1, RequestKind::Prefetch, 5000, 8, Treatment::Cache);
    let of = |rig: &Rig, volume| rig.engine.miss_ratio_curve(volume, HOURS);
    let reads = |rig: &Rig, volume| of(rig, volume).read_blocks;
    assert_eq!([reads(&rig, Some(VolumeId(0))), reads(&rig, Some(VolumeId(1)))], [2000, 1000]);
    assert_eq!(reads(&rig, None), 3000, "a prefetch is no read");
    assert!(modelled(&of(&rig, Some(VolumeId(1))), 8) > 0.9, "each block was read once");
    assert!(modelled(&of(&rig, Some(VolumeId(0))), 8) < 0.35, "and here four times");
    rig.detach(1, DetachHow::Drained);
    assert_eq!(reads(&rig, None), 2000);
}

#[test]
fn a_curve_has_its_memory() {
    let pool = PoolSettings::default();
    // Large enough that all sizes but the smallest are samples.
    let mut rig = Rig::new((1024, 64), 1 << 20, &[VolumeSettings::default()], pool);
    let before = rig.engine.stats().index_memory_bytes;
    rig.read(0, 1);
    let mut random = Dice(3);
    let first = rig.engine.stats().index_memory_bytes;
    assert!(first - before > 100_000, "it is made with the first request: {first} after {before}");
    for _ in 0..600_000 {
        let block = random.below(1 << 20);
        if random.below(2) == 0 { rig.write(0, block) } else { rig.read(0, block) }
    }
    let bytes = rig.engine.curve_memory_bytes();
    assert!((500_000..1 << 20).contains(&bytes), "{bytes}");
}

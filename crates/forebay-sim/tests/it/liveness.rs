//! Liveness under endless load: however many requests come after it, each one is answered within a
//! bounded number of flushes of the slowest device.
//!
//! The cache is and stays full, a new request follows each reply, and reclaim runs permanently.
//! Flushes take 8 ms, all other operations a hundredth of that: so latencies are counted in
//! flushes. The simulator's own limit (ten minutes) does not reveal starvation, because its loads
//! end: an overtaken request gets its turn then.

use crate::figures::machine::{Disk, DiskOp, Flash, Machine, Setup};
use forebay_core::{
    DestageOrder, EngineConfig, PlantedBug, PoolSettings, RequestKind, Treatment, VolumeSettings, fault,
};
use forebay_format::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

const VOLUME: VolumeId = VolumeId(0);
const FLUSH_NS: u64 = 8_000_000;
const OP_NS: u64 = 80_000;

/// A store on which each operation takes its own time, in parallel.
#[derive(Default)]
struct Store {
    due: BTreeSet<(u64, u64)>,
}

impl Disk for Store {
    fn submit(&mut self, now: u64, id: u64, op: DiskOp, _offset: u64, _len: u64) {
        let took = if op == DiskOp::Flush { FLUSH_NS } else { OP_NS };
        self.due.insert((now + took, id));
    }

    fn next_event(&self) -> Option<u64> {
        self.due.first().map(|(at, _)| *at)
    }

    fn advance(&mut self, now: u64, done: &mut Vec<u64>) {
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            done.extend(self.due.pop_first().map(|(_, id)| id));
        }
    }
}

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum LoadKind {
    Read,
    Write,
    Fua,
    /// A bypass write.
    Past,
    Flush,
    Discard,
    /// A write of many blocks.
    Large,
}

const EVERYTHING: &[LoadKind] = &[
    LoadKind::Write,
    LoadKind::Write,
    LoadKind::Write,
    LoadKind::Write,
    LoadKind::Read,
    LoadKind::Read,
    LoadKind::Fua,
    LoadKind::Past,
    LoadKind::Flush,
    LoadKind::Discard,
];
const WRITES: &[LoadKind] = &[LoadKind::Write];

/// An endless load.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Segments, and blocks of each.
    cache: (u64, u32),
    /// Requests in flight.
    depth: usize,
    /// Blocks of the volume that are in use.
    blocks: u64,
    /// Largest request, in blocks.
    most: u64,
    /// Low and high dirty limit, percent.
    dirty: (u32, u32),
    order: DestageOrder,
    /// Kinds of requests, as often as they are listed; in addition one in this many is of
    /// [`LARGE_BLOCKS`].
    mix: &'static [LoadKind],
    large: Option<u64>,
}

/// A cache of the smallest kind, full of dirty data.
const SMALL: Load = Load {
    cache: (40, 16),
    depth: 16,
    blocks: 4_000,
    most: 8,
    dirty: (90, 90),
    order: DestageOrder::Elevator,
    mix: WRITES,
    large: None,
};

const LARGE_BLOCKS: u64 = 64;
/// Limit of later requests that are answered while an earlier one waits.
const OVERTAKEN_MAX: u64 = 500;

/// The longest latency of each kind of request, in flushes.
type Longest = BTreeMap<LoadKind, u64>;

struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn machine(load: &Load) -> Machine<Store> {
    let ((segments, segment_blocks), (dirty_low_pct, dirty_high_pct)) = (load.cache, load.dirty);
    let settings = VolumeSettings {
        dirty_low_pct,
        dirty_high_pct,
        idle_delay: 0,
        destage_order: load.order,
        ..VolumeSettings::default()
    };
    let pool = PoolSettings { dirty_limit_pct: dirty_high_pct, ..PoolSettings::default() };
    let setup = Setup {
        // In addition to the segments there is room for two checkpoints that may grow.
        cache_bytes: (segments * u64::from(segment_blocks) + segments + 160) * 4096,
        segment_blocks: Some(segment_blocks),
        volume_bytes: 128 << 20,
        settings,
        engine: EngineConfig { pool, ..EngineConfig::default() },
        flash: Flash { op_ns: OP_NS, block_ns: 2_000, each_ns: 0, flush_ns: FLUSH_NS, shared: false },
    };
    Machine::new(&setup, vec![Store::default()])
}

/// Submits requests until this many are answered. `None` if one is still in flight after
/// [`OVERTAKEN_MAX`] later ones were answered.
fn bear(load: &Load, count: u64, planted: Option<PlantedBug>) -> Option<Longest> {
    let _planting = fault::plant(planted);
    let mut machine = machine(load);
    let (mut dice, mut longest) = (Dice(7), Longest::new());
    // By number: its kind, and the number of requests submitted up to it.
    let mut open: BTreeMap<u64, (LoadKind, u64)> = BTreeMap::new();
    let (mut made, mut answered, mut replies) = (0, 0, Vec::new());
    while answered < count {
        while open.len() < load.depth {
            made += 1;
            let large = load.large.is_some_and(|of| made % of == 0);
            let kind =
                if large { LoadKind::Large } else { load.mix[dice.below(load.mix.len() as u64) as usize] };
            let blocks = if large { LARGE_BLOCKS } else { 1 + dice.below(load.most) };
            let block = dice.below(load.blocks - blocks);
            let asked = match kind {
                LoadKind::Read => RequestKind::Read,
                LoadKind::Write | LoadKind::Past | LoadKind::Large => RequestKind::Write { fua: false },
                LoadKind::Fua => RequestKind::Write { fua: true },
                LoadKind::Flush => RequestKind::Flush,
                LoadKind::Discard => RequestKind::Discard { fua: false },
            };
            let treatment = if kind == LoadKind::Past { Treatment::Bypass } else { Treatment::Cache };
            let id = machine.submit_blocks(VOLUME, asked, block, blocks as u32, treatment);
            open.insert(id, (kind, made));
        }
        machine.pump();
        machine.take_replies(&mut replies);
        if replies.is_empty() {
            assert!(machine.step(u64::MAX, None), "a stall: {}", machine.engine.describe());
            machine.take_replies(&mut replies);
        }
        for reply in replies.drain(..) {
            answered += 1;
            let (kind, _) = open.remove(&reply.id).expect("it was asked for");
            let longest = longest.entry(kind).or_default();
            *longest = (*longest).max(reply.took.div_ceil(FLUSH_NS));
        }
        // All requests not in flight are answered.
        if open.values().next().is_some_and(|(_, first)| made > first + OVERTAKEN_MAX) {
            return None;
        }
    }
    Some(longest)
}

/// Requests that wait for room in the log wait for checkpoints, four flushes each, that free a
/// segment or two, of which survivors take a part: most in the smallest caches. Since an overwrite
/// counts as a hit, they wait up to 72 flushes there.
fn flushes_max(kind: LoadKind) -> u64 {
    match kind {
        LoadKind::Read => 1,
        LoadKind::Flush => 3,
        LoadKind::Write | LoadKind::Fua | LoadKind::Past | LoadKind::Discard | LoadKind::Large => 80,
    }
}

/// Returns the kinds that waited longer than that.
fn late(longest: &Longest) -> Vec<(LoadKind, u64)> {
    longest.iter().filter(|(kind, flushes)| **flushes > flushes_max(**kind)).map(|(k, f)| (*k, *f)).collect()
}

fn assert_lively(load: &Load) {
    assert_lively_for(load, 3_000);
}

fn assert_lively_for(load: &Load, count: u64) {
    let longest = bear(load, count, None).unwrap_or_else(|| panic!("one waits without end: {load:?}"));
    println!("{longest:?}");
    assert!(late(&longest).is_empty(), "flushes that they waited for: {:?}, {load:?}", late(&longest));
}

#[test]
fn full_cache_writes_wait_for_few_flushes() {
    for cache in [(18, 16), (40, 16), (20, 64)] {
        for dirty in [(90, 90), (5, 90)] {
            for (depth, most) in [(1, 1), (1, 8), (16, 1), (16, 8)] {
                assert_lively(&Load { cache, dirty, depth, most, ..SMALL });
            }
        }
    }
}

/// Reclaim compacts: its moves must not delay writers.
#[test]
fn overwrites_of_fitting_data_do_not_stall() {
    for cache in [(300, 16), (256, 64)] {
        for fill_pct in [70, 85, 95] {
            let blocks = cache.0 * u64::from(cache.1) * fill_pct / 100;
            let mix = &[LoadKind::Write, LoadKind::Write, LoadKind::Read];
            let load = Load { cache, blocks, most: 4, dirty: (5, 90), mix, ..SMALL };
            assert_lively_for(&load, 20_000);
        }
    }
}

#[test]
fn every_request_is_answered_under_load() {
    for (cache, blocks) in [((18, 16), 4_000), ((40, 16), 4_000), ((20, 64), 4_000), ((200, 64), 30_000)] {
        for dirty in [(90, 90), (5, 90), (10, 50)] {
            assert_lively(&Load { cache, blocks, dirty, mix: EVERYTHING, large: Some(50), ..SMALL });
        }
    }
}

#[test]
fn ordered_volume_answers_all_requests() {
    for cache in [(40, 16), (20, 64)] {
        let ordered = Load { cache, order: DestageOrder::Ordered, large: Some(50), ..SMALL };
        assert_lively(&ordered);
        // A bypass write waits until all flush epochs before its own are destaged: the earlier
        // ones, not later ones.
        let mixed = Load { mix: EVERYTHING, ..ordered };
        assert!(bear(&mixed, 3_000, None).is_some(), "one waits without end: {mixed:?}");
    }
}

#[test]
fn throttled_writers_do_not_wait_for_marks() {
    let mut found = 0;
    for cache in [(40, 16), (200, 64)] {
        for depth in [1, 4] {
            let load = Load { cache, depth, dirty: (5, 10), blocks: 20_000, large: Some(50), ..SMALL };
            assert_lively(&load);
            let dawdling = bear(&load, 3_000, Some(PlantedBug::DawdleWithMarks));
            found += u32::from(dawdling.is_none_or(|longest| !late(&longest).is_empty()));
        }
    }
    assert!(found > 0, "the test does not see it");
}

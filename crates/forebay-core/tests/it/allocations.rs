//! Allocations of the engine for a request: none, once its tables have their size, unless the
//! backing store is needed.

use crate::rig::{Dice, GATHERED_NS, Rig};
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::checkpoint::Mode;

const REQUESTS: u64 = 4000;
/// Blocks written before the count: a fraction of the cache, several segments.
const WARM: u64 = 8192;

/// A cache of 64 segments that holds back destage, with some blocks in it.
fn rig(mode: Mode, depth: u64) -> Rig {
    let settings = VolumeSettings {
        mode,
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        ..VolumeSettings::default()
    };
    let mut rig = Rig::new((64, 1024), 1 << 20, &[settings], PoolSettings::default());
    rig.depth = depth;
    for _ in 0..2 {
        (0..WARM).for_each(|block| rig.write(0, block));
        (WARM..2 * WARM).for_each(|block| rig.read(0, block));
    }
    rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
    rig.rest(GATHERED_NS);
    rig
}

/// Allocations of [`REQUESTS`] requests.
fn allocations(rig: &mut Rig, mut request: impl FnMut(&mut Rig, u64)) -> u64 {
    allocation_counter::measure(|| (0..REQUESTS).for_each(|at| request(rig, at))).count_total
}

#[test]
fn hits_allocate_nothing() {
    for depth in [1, 32] {
        let mut rig = rig(Mode::Writeback, depth);
        let mut dice = Dice(1);
        let count = allocations(&mut rig, |rig, _| rig.read(0, dice.below(WARM)));
        assert_eq!(count, 0, "{depth} in flight");
    }
}

/// Occasional growth: tables of segments and sets, and the buffers of a checkpoint.
const GROWTH: u64 = REQUESTS / 16;

#[test]
fn overwrites_allocate_only_for_tables() {
    for depth in [1, 32] {
        let mut rig = rig(Mode::Writeback, depth);
        let mut dice = Dice(2);
        let count = allocations(&mut rig, |rig, at| match at % 2 {
            0 => rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache),
            _ => rig.write(0, dice.below(WARM)),
        });
        assert!(count <= GROWTH, "{count} for {REQUESTS} requests, {depth} in flight");
    }
}

#[test]
fn new_blocks_allocate_only_for_tables() {
    let mut rig = rig(Mode::Writeback, 1);
    let count = allocations(&mut rig, |rig, at| rig.write(0, 4 * WARM + at * 7));
    assert!(count <= GROWTH, "{count} for {REQUESTS} requests");
}

/// Not zero: a miss is entered in a tree, and a direct write has three lists of its own.
#[test]
fn backing_store_requests_allocate_little() {
    let mut filling = rig(Mode::Writeback, 1);
    let count = allocations(&mut filling, |rig, at| rig.read(0, 4 * WARM + at * 7));
    assert!(count <= REQUESTS, "{count} for {REQUESTS} misses");
    let mut through = rig(Mode::Writethrough, 1);
    let count = allocations(&mut through, |rig, at| rig.write(0, 4 * WARM + at * 7));
    assert!(count <= 3 * REQUESTS + GROWTH, "{count} for {REQUESTS} direct writes");
}

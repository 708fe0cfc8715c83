//! The engine allocates nothing for a request once its tables have their size.

mod rig;

use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::checkpoint::Mode;
use rig::{Dice, GATHERED_NS, Rig};

const REQUESTS: u64 = 4000;
/// Blocks that are written before anything is counted: a fraction of the cache, several segments.
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

/// Allocations of so many requests.
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

#[test]
fn overwrites_and_flushes_allocate_nothing() {
    for depth in [1, 32] {
        let mut rig = rig(Mode::Writeback, depth);
        let mut dice = Dice(2);
        let count = allocations(&mut rig, |rig, at| match at % 8 {
            0 => rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache),
            _ => rig.write(0, dice.below(WARM)),
        });
        // A segment of the log that is begun gets its table, and the checkpoint that makes room its bytes.
        assert!(count <= REQUESTS / 50, "{count} for {REQUESTS} requests, {depth} in flight");
    }
}

#[test]
fn new_blocks_allocate_only_where_tables_grow() {
    for (mode, writes) in [(Mode::Writeback, true), (Mode::Writeback, false), (Mode::Writethrough, true)] {
        let mut rig = rig(mode, 1);
        let count = allocations(&mut rig, |rig, at| {
            let block = 4 * WARM + at * 7;
            if writes { rig.write(0, block) } else { rig.read(0, block) }
        });
        assert!(count <= REQUESTS / 50, "{count} for {REQUESTS} requests, {mode:?}, writes: {writes}");
    }
}

//! Data that fits the cache stays in it: reclaim compacts live blocks, and evicts nothing.

use crate::rig::{Dice, Rig};
use forebay_core::{PoolSettings, ReclaimPolicy, RequestKind, Stats, Treatment, VolumeSettings};
use forebay_format::VolumeId;

const CACHE: (u32, u32) = (256, 128);
/// So many segments that a pass does not run for each written segment.
const LARGE: (u32, u32) = (4096, 64);
const PAGE_BLOCKS: u64 = 4;

fn blocks(cache: (u32, u32)) -> u64 {
    u64::from(cache.0) * u64::from(cache.1)
}

/// Reads data of this share of the device, then overwrites it at random, twelve times around
/// the log, with as many reads. Returns the statistics before and after the second half.
fn overwritten(pool: PoolSettings, share_pct: u64, volume: VolumeSettings) -> (Stats, Stats) {
    overwritten_in((CACHE, 12), (pool, volume), share_pct)
}

fn overwritten_in(
    (cache, rounds): ((u32, u32), u64),
    (pool, volume): (PoolSettings, VolumeSettings),
    share_pct: u64,
) -> (Stats, Stats) {
    let pages = blocks(cache) * share_pct / 100 / PAGE_BLOCKS;
    let mut rig = Rig::new(cache, pages * PAGE_BLOCKS, &[volume], pool);
    let mut dice = Dice(5);
    let ask = |rig: &mut Rig, page: u64, writes: bool| {
        let kind = if writes { RequestKind::Write { fua: false } } else { RequestKind::Read };
        rig.request(0, kind, page * PAGE_BLOCKS, PAGE_BLOCKS, Treatment::Cache);
    };
    (0..pages).for_each(|page| ask(&mut rig, page, false));
    let mut half = |rig: &mut Rig| {
        for at in 0..rounds * blocks(cache) / PAGE_BLOCKS {
            ask(rig, dice.below(pages), at % 2 == 0);
        }
        rig.engine.stats()
    };
    (half(&mut rig), half(&mut rig))
}

fn pool(reclaim_policy: ReclaimPolicy, survivors_max_pct: u32) -> PoolSettings {
    PoolSettings { reclaim_policy, survivors_max_pct, ..PoolSettings::default() }
}

fn missed((before, after): &(Stats, Stats)) -> u64 {
    after.read_miss_blocks - before.read_miss_blocks
}

/// Relocated blocks for each written block.
fn moved((before, after): &(Stats, Stats)) -> f64 {
    let written = (after.written_bytes - before.written_bytes) / 4096;
    (after.relocated_blocks - before.relocated_blocks) as f64 / written as f64
}

#[test]
fn fitting_data_is_never_evicted() {
    for policy in ReclaimPolicy::ALL {
        for share_pct in [55, 70] {
            let figures = overwritten(pool(policy, 75), share_pct, VolumeSettings::default());
            let (before, after) = &figures;
            assert_eq!(after.evicted_blocks, before.evicted_blocks, "{policy:?}, {share_pct} %");
            assert_eq!(missed(&figures), 0, "{policy:?}, {share_pct} %");
            assert!(
                after.survivor_compacted_blocks > before.survivor_compacted_blocks,
                "that is no accident"
            );
        }
    }
}

#[test]
fn large_cache_compacts_too() {
    let missed = |budget, share_pct| {
        let settings = (pool(ReclaimPolicy::S3Fifo, budget), VolumeSettings::default());
        missed(&overwritten_in((LARGE, 3), settings, share_pct))
    };
    assert_eq!(missed(75, 70), 0);
    assert!(missed(75, 85) * 4 < missed(20, 85) * 3);
}

#[test]
fn budget_trades_moves_against_misses() {
    let of = |budget| overwritten(pool(ReclaimPolicy::S3Fifo, budget), 85, VolumeSettings::default());
    let [little, default, much] = [20, 75, 90].map(of);
    assert!(missed(&little) > missed(&default) && missed(&default) > 10 * missed(&much));
    assert!(moved(&little) < moved(&default) && moved(&default) < moved(&much));
}

/// More than fits: the room is not worth the relocations.
fn moved_of_too_much() -> f64 {
    moved(&overwritten(pool(ReclaimPolicy::S3Fifo, 75), 120, VolumeSettings::default()))
}

#[test]
fn oversized_data_moves_by_policy_only() {
    assert!(moved_of_too_much() < 3.0, "{:.2}", moved_of_too_much());
}

#[cfg(feature = "planted-bugs")]
#[test]
fn compaction_without_bound_is_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::CompactWithoutBound));
    // Either it relocates far too much, or it does not come to rest.
    let moved = std::panic::catch_unwind(moved_of_too_much);
    assert!(moved.is_err() || moved.is_ok_and(|moved| moved > 4.0), "the test does not see it");
}

#[test]
fn volume_above_maximum_is_not_compacted() {
    let settings = VolumeSettings { max_share_pct: 40, ..VolumeSettings::default() };
    let (_, after) = overwritten(pool(ReclaimPolicy::S3Fifo, 75), 65, settings);
    let (evicted, compacted) = (after.evicted_blocks, after.survivor_compacted_blocks);
    assert!(
        evicted > blocks(CACHE) && compacted < blocks(CACHE) / 32,
        "{evicted} evicted, {compacted} moved"
    );
}

/// Few blocks in a segment, and many concurrent requests: writers take the room that relocations
/// have counted on.
const NARROW: [(u32, u32); 2] = [(300, 16), (128, 16)];

/// Random reads and overwrites, of partial or whole blocks, with data of `share_pct` percent of the
/// device and `depth` requests at once. The last ones have just been made.
fn overloaded(cache: (u32, u32), mirrored: bool, share_pct: u64, depth: u64) -> Rig {
    let volume_blocks = blocks(cache) * share_pct / 100;
    let settings = VolumeSettings { dirty_low_pct: 5, dirty_high_pct: 80, ..VolumeSettings::default() };
    let build = if mirrored { Rig::mirrored } else { Rig::new };
    let mut rig = build(cache, volume_blocks, &[settings], PoolSettings::default());
    let mut dice = Dice(share_pct);
    rig.depth = depth;
    for _ in 0..60_000 {
        let (block, len) = (dice.below(volume_blocks), 512 * (1 + dice.below(8)));
        if dice.below(10) < 3 {
            rig.read(0, block);
        } else {
            let write = RequestKind::Write { fua: false };
            rig.request_bytes(0, write, (block * 4096, len), Treatment::Cache);
        }
    }
    rig
}

/// Number of requests that are never answered.
fn unanswered(cache: (u32, u32), mirrored: bool, share_pct: u64, depth: u64) -> u64 {
    let mut rig = overloaded(cache, mirrored, share_pct, depth);
    rig.rest(60_000_000_000);
    rig.engine.stats().requests_in_flight
}

#[test]
fn moves_without_room_block_no_request() {
    for (cache, mirrored) in NARROW.into_iter().flat_map(|cache| [(cache, false), (cache, true)]) {
        for share_pct in [80, 110] {
            for depth in [16, 300] {
                let unanswered = unanswered(cache, mirrored, share_pct, depth);
                assert_eq!(unanswered, 0, "{cache:?}, mirrored {mirrored}, {share_pct} %, {depth} at once");
            }
        }
    }
}

#[test]
fn stuck_moves_do_not_block_an_orderly_stop() {
    for (cache, mirrored) in NARROW.into_iter().flat_map(|cache| [(cache, false), (cache, true)]) {
        overloaded(cache, mirrored, 110, 299).stop_within(60_000_000_000);
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn moves_that_wait_for_room_are_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::KeepStuckMoves));
    let seen = NARROW.into_iter().any(|cache| unanswered(cache, false, 110, 300) > 0);
    assert!(seen, "the test does not see it");
}

/// Random overwrites leave holes of a block or two between relocated blocks.
#[test]
fn nearby_survivors_are_read_together() {
    let mut rig =
        Rig::new(CACHE, blocks(CACHE) * 70 / 100, &[VolumeSettings::default()], PoolSettings::default());
    let mut dice = Dice(9);
    let volume_blocks = blocks(CACHE) * 70 / 100;
    for _ in 0..8 * blocks(CACHE) / PAGE_BLOCKS {
        let first = dice.below(volume_blocks / PAGE_BLOCKS) * PAGE_BLOCKS;
        rig.request(0, RequestKind::Write { fua: false }, first, PAGE_BLOCKS, Treatment::Cache);
        rig.write(0, dice.below(volume_blocks));
    }
    let stats = rig.engine.stats();
    let (moved, reads) = (stats.relocated_blocks, stats.cache_reads - stats.destage_writes);
    println!("{reads} reads for {moved} blocks");
    assert!(moved > blocks(CACHE) && reads * 4 < moved, "{reads} reads for {moved} blocks");
}

/// Overwrites, of which many are destaged and relocated at the same time, on a store that fails now
/// and then. Returns the number of blocks that are still dirty after enough time.
fn dirty_after_failures() -> u64 {
    let volume_blocks = blocks(CACHE) * 60 / 100;
    let settings = VolumeSettings { dirty_low_pct: 0, ..VolumeSettings::default() };
    let mut rig = Rig::new(CACHE, volume_blocks, &[settings], PoolSettings::default());
    let mut dice = Dice(3);
    for at in 0..6 * blocks(CACHE) {
        rig.write(0, dice.below(volume_blocks));
        if at % 2_000 == 0 {
            rig.failing_backing_writes = 1;
            rig.rest(500_000_000); // Destage pauses after a failure.
        }
    }
    rig.failing_backing_writes = 0;
    (0..60).for_each(|_| rig.rest(10_000_000_000));
    rig.engine.check_invariants();
    let stats = rig.engine.stats();
    let (failures, moved) = (stats.destage_failures, stats.survivor_unclean_blocks);
    assert!(failures > 10 && moved > 1_000, "{failures} failures, {moved} dirty blocks moved");
    rig.engine.dirty_blocks(VolumeId(0))
}

#[test]
fn block_moved_while_destaged_becomes_clean() {
    assert_eq!(dirty_after_failures(), 0);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_moved_extent_that_is_lost_is_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::LoseMovedExtent));
    assert!(dirty_after_failures() > 0, "the test does not see it");
}

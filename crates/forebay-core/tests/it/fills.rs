//! A block that was read from the backing store, and waits for its batch, is served from its page.

use crate::rig::{Dice, GATHERED_NS, Rig};
use forebay_core::{Drain, PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

fn rig() -> Rig {
    let mut rig = Rig::new((64, 64), 4096, &[VolumeSettings::default()], PoolSettings::default());
    // Each request and everything that follows from it completes before the next one.
    rig.depth = 1;
    rig
}

#[test]
fn waiting_fill_answers_reads_as_hits() {
    let mut rig = rig();
    rig.read(0, 7);
    let once = rig.engine.stats();
    assert_eq!((once.filled_blocks, once.read_miss_blocks), (0, 1), "it waits for others");
    rig.read(0, 7);
    let twice = rig.engine.stats();
    assert_eq!((twice.read_hit_blocks, twice.read_miss_blocks), (1, 1));
    assert_eq!(twice.backing_reads, once.backing_reads, "the backing store is not asked again");
    rig.rest(GATHERED_NS);
    assert_eq!(rig.engine.stats().filled_blocks, 1);
}

#[test]
fn changed_block_is_not_read_from_the_fill() {
    for kind in [RequestKind::Write { fua: false }, RequestKind::WriteZeroes { fua: false, may_unmap: false }]
    {
        let mut rig = rig();
        rig.read(0, 7);
        // Bypass: the map has nothing of the block afterwards.
        rig.request(0, kind, 7, 1, Treatment::Bypass);
        let before = rig.engine.stats();
        rig.read(0, 7);
        let after = rig.engine.stats();
        let answered =
            (after.read_hit_blocks - before.read_hit_blocks, after.backing_reads - before.backing_reads);
        assert!(matches!(answered, (0, 1) | (1, 0)), "{kind:?}: {answered:?}");
        if matches!(kind, RequestKind::Write { .. }) {
            assert_eq!(answered, (0, 1), "what was written past the cache is read from there");
        }
    }
}

/// Blocks that reclaim kept because they were hit, after block 7 was written so often, destaged,
/// and then left alone while reads filled the cache.
fn kept_after_writes(writes: u32) -> u64 {
    let mut rig = Rig::new((64, 64), 1 << 20, &[VolumeSettings::default()], PoolSettings::default());
    (0..writes).for_each(|_| rig.write(0, 7));
    // Others after it, so that its segment is full.
    (0..200).for_each(|at| rig.write(0, 500_000 + at));
    let now = rig.now();
    rig.engine.set_drain(now, VolumeId(0), Drain::Full);
    rig.rest(5_000_000_000);
    assert_eq!(rig.engine.stats().dirty_blocks, 0);
    (0..4 * rig.capacity).for_each(|at| rig.read(0, 1000 + at));
    rig.engine.stats().survivor_hit_blocks
}

#[test]
fn an_overwrite_is_a_hit() {
    assert_eq!(kept_after_writes(1), 0);
    assert_eq!(kept_after_writes(2), 1);
}

#[test]
fn a_pin_holds_for_a_block_that_waits() {
    let mut rig = rig();
    rig.read(0, 7);
    rig.request(0, RequestKind::Read, 7, 1, Treatment::Pin);
    rig.rest(GATHERED_NS);
    assert!(rig.engine.is_pinned(VolumeId(0), 7));
}

#[test]
fn pass_through_ignores_waiting_fills() {
    let mut rig = rig();
    rig.read(0, 7);
    let (now, before) = (rig.now(), rig.engine.stats().backing_reads);
    let settings = VolumeSettings { mode: Mode::Passthrough, ..VolumeSettings::default() };
    rig.engine.configure_volume(now, VolumeId(0), settings).expect("the settings are legal");
    rig.read(0, 7);
    assert_eq!(rig.engine.stats().backing_reads, before + 1);
}

#[test]
fn shrink_waits_for_a_read_of_the_cut_block() {
    let mut rig = rig();
    rig.depth = 64; // The read is started, and does not complete.
    rig.request_bytes(0, RequestKind::Read, (99 * 4096, 512), Treatment::Bypass);
    rig.start();
    let (now, bytes) = (rig.now(), 99 * 4096 + 512);
    rig.engine.resize_volume(now, VolumeId(0), bytes).expect("it can shrink");
    rig.start();
    let table = |rig: &Rig| rig.engine.volume_table()[0].size_bytes;
    assert_eq!(table(&rig), 4096 * 4096, "the read is under way, and reads the whole block");
    rig.rest(1_000_000_000);
    assert_eq!(table(&rig), bytes);
}

/// Reads of the backing store, and the number of hit and missed blocks.
fn asked(rig: &Rig) -> (u64, u64, u64) {
    let stats = rig.engine.stats();
    (stats.backing_reads, stats.read_hit_blocks, stats.read_miss_blocks)
}

#[test]
fn concurrent_misses_share_one_read() {
    let mut rig = rig();
    rig.depth = 64; // No operation completes before all are started.
    (0..5).for_each(|_| rig.read(0, 7));
    rig.rest(GATHERED_NS);
    assert_eq!(asked(&rig), (1, 4, 1), "the store is asked once");
    assert_eq!(rig.engine.stats().filled_blocks, 1);
    // A longer read leaves out a block that another read is fetching if it is at an end, not in
    // the middle.
    for (block, blocks, reads, hits) in [(107, 4, 1, 1), (204, 4, 1, 1), (305, 5, 1, 0), (407, 1, 0, 1)] {
        let before = asked(&rig);
        rig.read(0, block / 100 * 100 + 7);
        rig.request(0, RequestKind::Read, block, blocks, Treatment::Cache);
        rig.rest(GATHERED_NS);
        let after = asked(&rig);
        assert_eq!((after.0 - before.0, after.1 - before.1), (1 + reads, hits), "{block}");
        assert_eq!(after.2 - before.2, 1 + blocks - hits, "{block}");
    }
}

#[test]
fn bypass_reads_join_and_pins_hold() {
    let mut rig = rig();
    rig.depth = 64;
    rig.read(0, 7);
    rig.request(0, RequestKind::Read, 7, 1, Treatment::Bypass);
    rig.request(0, RequestKind::Read, 7, 1, Treatment::Pin);
    rig.rest(GATHERED_NS);
    assert_eq!(asked(&rig), (1, 2, 1));
    assert!(rig.engine.is_pinned(VolumeId(0), 7));
}

#[test]
fn joined_reads_retry_alone_after_an_error() {
    let mut rig = rig();
    rig.depth = 64;
    rig.errors = Some(0);
    (0..3).for_each(|_| rig.read(0, 7));
    // Both attempts of the first read, and one of another.
    rig.failing_backing_reads = 3;
    rig.rest(GATHERED_NS);
    assert_eq!((rig.errors, rig.failed), (Some(1), 3), "one client is told");
    assert_eq!(asked(&rig).1, 0);
    rig.read(0, 7);
    rig.rest(GATHERED_NS);
    assert_eq!(rig.errors, Some(1));
}

#[test]
fn read_does_not_join_an_outdated_read() {
    let mut rig = rig();
    rig.depth = 64;
    rig.hangs_backing = Some(7 * 4096);
    rig.read(0, 7);
    rig.start();
    rig.request(0, RequestKind::Write { fua: false }, 7, 1, Treatment::Bypass);
    rig.rest(GATHERED_NS);
    let before = asked(&rig);
    rig.read(0, 7);
    rig.rest(GATHERED_NS);
    assert_eq!((asked(&rig).0 - before.0, asked(&rig).1), (1, 0), "it reads what was written");
    rig.release();
    rig.rest(GATHERED_NS);
}

#[test]
fn overlapping_reads_are_all_answered() {
    for seed in 1..=20 {
        let pool = PoolSettings::default();
        let mut rig = Rig::new((64, 64), 4096, &[VolumeSettings::default()], pool);
        (rig.depth, rig.errors) = (64, Some(0));
        let mut dice = Dice(seed);
        for round in 0..2000 {
            let (block, blocks) = (dice.below(60), 1 + dice.below(16));
            let treatment = [Treatment::Cache, Treatment::Cache, Treatment::Bypass, Treatment::Pin];
            let treatment = treatment[dice.below(4) as usize];
            let kind = match dice.below(12) {
                0 => RequestKind::Write { fua: false },
                1 => RequestKind::Discard { fua: false },
                2 => RequestKind::Prefetch,
                _ => RequestKind::Read,
            };
            let treatment = if kind == RequestKind::Prefetch { Treatment::Cache } else { treatment };
            rig.request(0, kind, block, blocks, treatment);
            if round % 97 == 0 {
                rig.failing_backing_reads = dice.below(5) as u32;
            }
            // Drops the cached blocks, so that they are missed again.
            if round % 50 == 0 {
                rig.request(0, RequestKind::Write { fua: false }, 0, 80, Treatment::Bypass);
            }
        }
        rig.rest(10_000_000_000);
        let said = rig.engine.describe();
        assert!(said.starts_with("0 requests, 0 operations"), "{said}");
        rig.engine.check_invariants();
    }
}

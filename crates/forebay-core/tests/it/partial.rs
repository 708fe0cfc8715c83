//! Partially cached blocks: how reads are served, how they are counted, and how the blocks become
//! whole. And fills without room.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{PoolSettings, RequestKind, Stats, Treatment, VolumeSettings};

const BLOCK: u64 = 4096;
/// Enough time for destage and clean marks.
const DESTAGED_NS: u64 = 20_000_000_000;

fn rig(idle_delay: u64) -> Rig {
    let settings = VolumeSettings { idle_delay, ..VolumeSettings::default() };
    Rig::new((96, 64), 1 << 15, &[settings], PoolSettings::default())
}

/// Changes by a request: hits, misses, reads of the backing store, fills.
fn read(rig: &mut Rig, offset: u64, len: u64) -> [u64; 4] {
    let of = |stats: Stats| {
        [stats.read_hit_blocks, stats.read_miss_blocks, stats.backing_reads, stats.filled_blocks]
    };
    let before = of(rig.engine.stats());
    rig.request_bytes(0, RequestKind::Read, (offset, len), Treatment::Cache);
    rig.rest(GATHERED_NS);
    let after = of(rig.engine.stats());
    [0, 1, 2, 3].map(|at| after[at] - before[at])
}

fn write_sector(rig: &mut Rig, offset: u64) {
    rig.request_bytes(0, RequestKind::Write { fua: false }, (offset, 512), Treatment::Cache);
    rig.rest(GATHERED_NS);
}

#[test]
fn dirty_part_hits_and_the_rest_misses() {
    let mut rig = rig(0);
    write_sector(&mut rig, 5 * BLOCK + 1024);
    assert_eq!(rig.engine.stats().dirty_blocks, 1);
    assert_eq!(read(&mut rig, 5 * BLOCK + 1024, 512), [1, 0, 0, 0], "the sector is there");
    assert_eq!(read(&mut rig, 5 * BLOCK + 1100, 100), [1, 0, 0, 0], "so is a part of it");
    assert_eq!(read(&mut rig, 5 * BLOCK, 512), [0, 1, 1, 0], "this one is not");
    assert_eq!(read(&mut rig, 5 * BLOCK, BLOCK), [0, 1, 1, 0], "nor are all");
    assert_eq!(rig.engine.stats().dirty_blocks, 1, "nothing gave way to what is on the backing store");
    rig.engine.check_invariants();
}

#[test]
fn clean_part_is_healed_by_reading_the_rest() {
    let mut rig = rig(10_000_000);
    write_sector(&mut rig, 7 * BLOCK + 512);
    rig.rest(DESTAGED_NS);
    assert_eq!(rig.engine.stats().dirty_blocks, 0, "it was written back");
    assert_eq!(read(&mut rig, 7 * BLOCK + 512, 512), [1, 0, 0, 0], "the sector is there");
    assert_eq!(read(&mut rig, 7 * BLOCK + 2048, 512), [0, 1, 1, 1], "this one is not, and all of it comes");
    assert_eq!(read(&mut rig, 7 * BLOCK, BLOCK), [1, 0, 0, 0], "it is whole");
    rig.engine.check_invariants();
}

#[test]
fn fills_without_room_are_counted() {
    let mut rig = rig(0);
    let blocks = 4096;
    let [hits, misses, _, filled] = read(&mut rig, 0, blocks * BLOCK);
    let stats = rig.engine.stats();
    assert_eq!((hits, misses), (0, blocks));
    assert!(stats.fill_no_room_blocks > 0, "so much cannot be on its way at once");
    assert_eq!(
        filled + stats.fill_no_room_blocks,
        blocks,
        "every miss was kept, or is counted as one that was not"
    );
    assert_eq!(
        rig.engine.volume_stats(forebay_format::VolumeId(0)).unwrap().fill_no_room_blocks,
        stats.fill_no_room_blocks
    );
}

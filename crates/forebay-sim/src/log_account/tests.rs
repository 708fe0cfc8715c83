//! Tests of the account of the log.

use super::LogAccount;
use forebay_format::batch::Entry;
use forebay_format::{BLOCK_BYTES, Geometry, Slot, VolumeId};

const SEGMENT_BLOCKS: u32 = 16;

fn account() -> (LogAccount, impl Fn(usize) -> u64) {
    let bytes = 400 * BLOCK_BYTES as u64;
    let geometry = Geometry::for_device(bytes, Some(SEGMENT_BLOCKS)).unwrap();
    let start = geometry.segments_start_block;
    let at = move |slot: usize| (start + slot as u64) * BLOCK_BYTES as u64;
    (LogAccount::new(&geometry, bytes, Some(vec![100])), at)
}

fn data(block: u64, dirty: bool) -> Entry {
    Entry::Data { volume: VolumeId(0), block, crc32c: 0, sector_mask: 0xff, dirty, flush_epoch: 0 }
}

#[test]
fn damage_hits_dirty_blocks_only() {
    let (mut log, at) = account();
    log.take(0, &[data(7, true), data(8, false), data(9, true)]);
    let hit: Vec<_> = log.hit(at(1), 2 * BLOCK_BYTES as u64).collect();
    assert_eq!(hit, [(0, 7)]);
    assert_eq!(log.hit(at(3), 1).collect::<Vec<_>>(), [(0, 9)]);
}

#[test]
fn doubt_begins_at_the_damaged_segment() {
    let (mut log, at) = account();
    log.take(0, &[data(1, true)]);
    log.take(16, &[data(2, true)]);
    log.take(32, &[data(3, true)]);
    assert!(log.behind_damage().is_empty());
    log.note_damage(at(17), 1);
    assert_eq!(log.behind_damage(), [(0, 2), (0, 3)]);
    // A mark names the block in its slot.
    log.take(18, &[Entry::CleanMark { slot: Slot(1), count: 1 }]);
    assert_eq!(log.behind_damage(), [(0, 1), (0, 2), (0, 3)]);
}

#[test]
fn reuse_of_a_segment_ends_its_damage() {
    let (mut log, at) = account();
    log.take(0, &[data(1, true)]);
    log.note_damage(at(1), 1);
    log.take(16, &[data(2, true)]);
    log.take(0, &[data(3, true)]);
    assert!(log.behind_damage().is_empty());
}

#[test]
fn an_intent_names_its_region_up_to_the_end() {
    let (mut log, at) = account();
    log.take(0, &[data(1, true)]);
    log.note_damage(at(0), 1);
    log.take(16, &[Entry::Intent { volume: VolumeId(0), region: 0, count: 1 }]);
    assert_eq!(log.behind_damage().len(), 100);
}

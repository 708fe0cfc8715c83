//! Blocks that the cache device returns wrong, or not at all: found by a scrub, by reads, by
//! partial writes.

use crate::rig::{Fault, GATHERED_NS, Rig};
use forebay_core::{
    DetachHow, Drain, LifecycleError, Notice, PoolSettings, RequestKind, ScrubReport, Treatment,
    VolumeSettings,
};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

const SECOND_NS: u64 = 1_000_000_000;
const BLOCK: u64 = 4096;
const VOLUME: VolumeId = VolumeId(0);
/// Number of cached blocks.
const BLOCKS: u64 = 200;

fn settings() -> VolumeSettings {
    VolumeSettings {
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        flush_period: 0,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    }
}

/// A cache with clean blocks in the first half and dirty ones in the second, and destage held back.
fn rig() -> Rig {
    let mut rig = Rig::new((16, 64), 1 << 15, &[settings()], PoolSettings::default());
    rig.depth = 8;
    (0..BLOCKS / 2).for_each(|block| rig.read(0, block));
    rig.rest(GATHERED_NS);
    (BLOCKS / 2..BLOCKS).for_each(|block| rig.write(0, block));
    rig.rest(GATHERED_NS);
    let stats = rig.engine.stats();
    assert_eq!((stats.cached_blocks, stats.dirty_blocks), (BLOCKS, BLOCKS / 2));
    rig
}

/// Scrubs everything, and returns the report and the bytes that were read for it.
fn scrub(rig: &mut Rig) -> (ScrubReport, u64) {
    rig.notices.clear();
    let before = rig.engine.stats().cache_read_bytes;
    rig.engine.begin_scrub(rig.now(), 1 << 30).expect("nothing is in its way");
    rig.rest(SECOND_NS);
    let ended = rig.notices.iter().filter_map(|notice| match notice {
        Notice::ScrubEnded { report, complete: true } => Some(*report),
        _ => None,
    });
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended.len(), 1, "it ends once: {:?}", rig.notices);
    (ended[0], rig.engine.stats().cache_read_bytes - before)
}

fn damaged(rig: &Rig) -> Vec<(u64, bool)> {
    let told = rig.notices.iter().filter_map(|notice| match notice {
        Notice::BlockDamaged { block, lost, .. } => Some((*block, *lost)),
        _ => None,
    });
    told.collect()
}

#[test]
fn scrub_reads_each_sound_block_once() {
    let mut rig = rig();
    let before = rig.engine.stats();
    let (report, bytes) = scrub(&mut rig);
    let sound = ScrubReport { total_blocks: BLOCKS, checked_blocks: BLOCKS, ..ScrubReport::default() };
    assert_eq!((report, bytes), (sound, BLOCKS * BLOCK));
    let stats = rig.engine.stats();
    assert_eq!((stats.cached_blocks, stats.batches), (before.cached_blocks, before.batches));
}

#[test]
fn scrub_refetches_damaged_clean_blocks() {
    for fault in [Fault::Wrong, Fault::Unreadable] {
        let mut rig = rig();
        let place = rig.place_of(0, 7);
        rig.faults.insert(place, fault);
        let (report, _) = scrub(&mut rig);
        assert_eq!((report.total_blocks, report.checked_blocks), (BLOCKS, BLOCKS), "{fault:?}");
        assert_eq!(
            (report.damaged_blocks, report.repaired_blocks, report.lost_blocks),
            (1, 1, 0),
            "{fault:?}"
        );
        assert_eq!(damaged(&rig), [(7, false)]);
        rig.rest(GATHERED_NS);
        // It is elsewhere now, and intact.
        assert_ne!(rig.place_of(0, 7), place);
        assert_eq!(rig.engine.stats().cached_blocks, BLOCKS);
        let (report, _) = scrub(&mut rig);
        assert_eq!((report.checked_blocks, report.damaged_blocks), (BLOCKS, 0), "{fault:?}");
    }
}

#[test]
fn scrub_fetches_nothing_in_pass_through() {
    let mut rig = rig();
    let place = rig.place_of(0, 7);
    rig.faults.insert(place, Fault::Wrong);
    let past = VolumeSettings { mode: Mode::Passthrough, ..settings() };
    rig.engine.configure_volume(rig.now(), VOLUME, past).expect("these settings");
    let reads = rig.engine.stats().backing_reads;
    let (report, _) = scrub(&mut rig);
    assert_eq!((report.damaged_blocks, report.repaired_blocks), (1, 0));
    assert_eq!((rig.engine.stats().backing_reads, rig.engine.stats().cached_blocks), (reads, BLOCKS - 1));
}

#[test]
fn scrub_rereads_before_reporting_damage() {
    let mut rig = rig();
    let place = rig.place_of(0, 150);
    rig.faults.insert(place, Fault::Wrong);
    let (report, bytes) = scrub(&mut rig);
    assert_eq!((report.damaged_blocks, report.lost_blocks, report.repaired_blocks), (1, 1, 0));
    assert_eq!(damaged(&rig), [(150, true)]);
    // Three times, as every read does.
    assert_eq!(bytes, (BLOCKS + 2) * BLOCK);
    let stats = rig.engine.stats();
    assert_eq!((stats.lost_blocks, stats.lost_bytes), (1, BLOCK));
    // It is known now, and not checked again.
    let (report, bytes) = scrub(&mut rig);
    assert_eq!((report.checked_blocks, report.damaged_blocks, bytes), (BLOCKS - 1, 0, (BLOCKS - 1) * BLOCK));
}

#[test]
fn scrub_leaves_unreadable_dirty_blocks() {
    let mut rig = rig();
    let place = rig.place_of(0, 150);
    rig.faults.insert(place, Fault::Unreadable);
    let (report, _) = scrub(&mut rig);
    assert_eq!((report.checked_blocks, report.unreadable_blocks, report.damaged_blocks), (BLOCKS, 1, 0));
    assert_eq!(rig.engine.stats().lost_blocks, 0);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), BLOCKS / 2);
}

#[test]
fn readers_wait_for_unreadable_dirty_block() {
    type Need = fn(&mut Rig);
    let needs: [(&str, Need); 4] = [
        ("a read", |rig| rig.read(0, 150)),
        ("a write of a part", |rig| {
            rig.request_bytes(0, RequestKind::Write { fua: false }, (150 * BLOCK + 1, 1), Treatment::Cache);
        }),
        ("destage", |rig| rig.engine.set_drain(rig.now(), VOLUME, Drain::Full)),
        ("reclaim", |rig| {
            // Its neighbours go elsewhere: a segment full of dirty blocks is not reclaimed.
            (BLOCKS / 2..BLOCKS).filter(|block| *block != 150).for_each(|block| rig.write(0, block));
            (0..4000).for_each(|block| rig.read(0, 1000 + block));
        }),
    ];
    for (who, need) in needs {
        let mut rig = rig();
        let place = rig.place_of(0, 150);
        rig.faults.insert(place, Fault::Unreadable);
        need(&mut rig);
        rig.rest(SECOND_NS / 2);
        assert!(rig.failed > 0, "{who} needs it");
        rig.faults.clear();
        rig.rest(60 * SECOND_NS);
        let stats = rig.engine.stats();
        assert_eq!(
            (stats.lost_blocks, stats.damaged_blocks),
            (0, 0),
            "{who}: the path to the device came back"
        );
        assert_eq!(stats.requests_in_flight, 0, "{who}");
        rig.engine.check_invariants();
    }
}

#[test]
fn partial_write_takes_rest_from_the_store() {
    for fault in [Fault::Wrong, Fault::Unreadable] {
        let mut rig = rig();
        let place = rig.place_of(0, 7);
        rig.faults.insert(place, fault);
        let before = rig.engine.stats();
        let write = RequestKind::Write { fua: false };
        rig.request_bytes(0, write, (7 * BLOCK + 100, 50), Treatment::Cache);
        rig.rest(GATHERED_NS);
        let stats = rig.engine.stats();
        assert_eq!(
            stats.cache_reads - before.cache_reads,
            3,
            "{fault:?}: read three times before it is given up"
        );
        assert_eq!(stats.backing_reads - before.backing_reads, 1, "{fault:?}");
        assert_eq!(damaged(&rig), [(7, false)]);
        rig.place_of(0, 7);
        assert_eq!(rig.engine.dirty_blocks(VOLUME), BLOCKS / 2 + 1);
        rig.engine.check_invariants();
    }
}

#[test]
fn whole_sectors_need_nothing_of_bad_block() {
    let mut rig = rig();
    let place = rig.place_of(0, 7);
    rig.faults.insert(place, Fault::Wrong);
    let before = rig.engine.stats();
    rig.request_bytes(0, RequestKind::Write { fua: false }, (7 * BLOCK + 512, 1024), Treatment::Cache);
    rig.rest(GATHERED_NS);
    let stats = rig.engine.stats();
    assert_eq!(damaged(&rig), [(7, false)]);
    assert_eq!(stats.backing_reads, before.backing_reads);
    assert_eq!(stats.dirty_blocks, before.dirty_blocks + 1);
    rig.engine.check_invariants();
}

#[test]
fn full_write_heals_a_damaged_dirty_block() {
    let mut rig = rig();
    rig.errors = Some(0);
    let place = rig.place_of(0, 150);
    rig.faults.insert(place, Fault::Wrong);
    let write = RequestKind::Write { fua: false };
    rig.request_bytes(0, write, (150 * BLOCK + 100, 50), Treatment::Cache);
    rig.rest(GATHERED_NS);
    assert_eq!((rig.errors, damaged(&rig)), (Some(1), vec![(150, true)]));
    // Only one FLUSH reports a loss.
    for _ in 0..2 {
        rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.rest(GATHERED_NS);
    }
    assert_eq!(rig.errors, Some(2));
    rig.write(0, 150);
    rig.rest(GATHERED_NS);
    rig.place_of(0, 150);
    rig.rest(GATHERED_NS);
    assert_eq!((rig.errors, rig.engine.stats().lost_blocks), (Some(2), 0));
}

/// Writes blocks from `first` on, one in 16 of which is lost, so that each segment has one; the
/// others are intact.
fn lose_some(rig: &mut Rig, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let first = rig.spoilt.start;
        if block % 16 == 0 {
            rig.write(0, first + block / 16);
            rig.read(0, first + block / 16);
        } else {
            rig.write(0, block);
        }
    }
    rig.rest(GATHERED_NS);
}

/// A cache of `segments` small segments; requests run one after the other and may fail.
fn small(segments: u32, mirrored: bool) -> Rig {
    let build = if mirrored { Rig::mirrored } else { Rig::new };
    let mut rig = build((segments, 16), 1 << 12, &[settings()], PoolSettings::default());
    (rig.depth, rig.errors, rig.spoilt) = (1, Some(0), 2_000..3_000);
    rig
}

#[test]
fn segment_can_be_emptied_after_rewrites() {
    let mut rig = small(32, false);
    let left = rig.engine.geometry().segments_start_block + 24 * 16;
    lose_some(&mut rig, 0..16 * 16);
    assert_eq!(rig.engine.stats().lost_blocks, 16);
    rig.engine.resize_pool(rig.now(), left * BLOCK, rig.engine.members()).ok();
    rig.rest(10 * SECOND_NS);
    let refused = rig.engine.resize_pool(rig.now(), left * BLOCK, rig.engine.members());
    assert!(matches!(refused, Err(LifecycleError::Lost { .. })), "{refused:?}");
    rig.spoilt = 0..0;
    (0..16).for_each(|block| rig.write(0, 2_000 + block));
    rig.rest(GATHERED_NS);
    assert_eq!(rig.engine.stats().lost_blocks, 0);
    rig.shrink(8);
    rig.engine.check_invariants();
}

#[test]
fn lost_blocks_of_kept_volume_are_counted() {
    let mut rig = Rig::new((32, 16), 1 << 12, &[settings(), settings()], PoolSettings::default());
    (rig.depth, rig.errors, rig.spoilt) = (1, Some(0), 2_000..3_000);
    lose_some(&mut rig, 0..16 * 16);
    rig.engine.set_drain(rig.now(), VolumeId(0), Drain::Full);
    rig.rest(10 * SECOND_NS);
    assert_eq!((rig.engine.stats().dirty_blocks, rig.engine.stats().lost_blocks), (0, 16));
    rig.detach(0, DetachHow::Keep);
    // The other volume's limits are the remainder that the kept one leaves.
    rig.write(1, 5);
    rig.rest(SECOND_NS);
    rig.engine.check_invariants();
    assert_eq!((rig.engine.stats().lost_blocks, rig.errors), (16, Some(16)));
}

/// Loses blocks until writes find no room in the cache. Returns the rig, and the number of
/// unanswered requests.
fn filled_with_losses(mirrored: bool) -> (Rig, u64) {
    let mut rig = small(16, mirrored);
    lose_some(&mut rig, 0..64 * 16);
    rig.rest(60 * SECOND_NS);
    let unanswered = rig.engine.stats().requests_in_flight;
    (rig, unanswered)
}

#[test]
fn cache_full_of_lost_blocks_is_given_up() {
    for mirrored in [false, true] {
        let (mut rig, unanswered) = filled_with_losses(mirrored);
        assert_eq!(unanswered, 0, "mirrored {mirrored}");
        assert!(rig.engine.runs_without_cache(), "there is no room for a write");
        let lost = rig.engine.stats().lost_blocks;
        assert!(lost >= 12, "{lost} lost blocks do not hold 16 segments");
        // A write heals a lost block.
        let errors = rig.errors;
        rig.write(0, rig.spoilt.start);
        rig.read(0, rig.spoilt.start);
        rig.rest(SECOND_NS);
        assert_eq!((rig.errors, rig.engine.stats().lost_blocks), (errors, lost - 1));
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn writes_that_wait_for_lost_room_are_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::WaitForLostRoom));
    assert!(filled_with_losses(false).1 > 0, "the test does not see it");
}

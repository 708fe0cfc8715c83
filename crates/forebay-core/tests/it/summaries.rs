//! Summaries of segments: which segments have one, and that nothing waits for it.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::checkpoint::{Checkpoint, SegmentState};
use forebay_format::{BLOCK_BYTES, VolumeId};

const VOLUME: VolumeId = VolumeId(0);

/// A cache of 16 segments of `segment_blocks` blocks, with destage held back.
fn rig(segment_blocks: u32) -> Rig {
    let held =
        VolumeSettings { dirty_low_pct: 90, dirty_high_pct: 90, idle_delay: 0, ..VolumeSettings::default() };
    let mut rig = Rig::new((16, segment_blocks), 1 << 12, &[held], PoolSettings::default());
    rig.keeps = true;
    rig.reopen(); // From now on everything is kept.
    rig
}

/// For each sealed segment of the newest checkpoint: does it have a summary? (The last one that the
/// previous run wrote to was not full.)
fn summaries(rig: &Rig) -> Vec<bool> {
    let geometry = rig.engine.geometry();
    let slot_bytes = geometry.checkpoint_slot_blocks * BLOCK_BYTES as u32;
    let slot = |generation| rig.load(geometry.checkpoint_offset(generation, 0), slot_bytes);
    let checkpoints = (0..2).filter_map(|generation| Checkpoint::decode(&slot(generation)).ok());
    let newest = checkpoints.max_by_key(|checkpoint| checkpoint.generation).expect("there is one");
    let sealed = newest.segments.iter().filter(|segment| segment.state == SegmentState::Sealed);
    let mut sealed: Vec<_> = sealed.collect();
    sealed.sort_by_key(|segment| segment.first_sequence);
    sealed.iter().rev().skip(1).map(|segment| segment.summary_block > 0).collect()
}

#[test]
fn only_a_large_segment_ends_with_a_summary() {
    for (segment_blocks, has_one) in [(64, false), (128, true)] {
        let mut rig = rig(segment_blocks);
        (0..2 * u64::from(segment_blocks)).for_each(|block| rig.write(0, block));
        rig.rest(GATHERED_NS);
        rig.reopen();
        let found = summaries(&rig);
        assert!(found.len() > 1 && found.iter().all(|has| *has == has_one), "{segment_blocks}: {found:?}");
        assert_eq!(rig.engine.dirty_blocks(VOLUME), 2 * u64::from(segment_blocks));
    }
}

#[test]
fn nothing_waits_for_a_summary() {
    let mut rig = rig(128);
    rig.depth = 1;
    rig.write(0, 0);
    // A header and a block 63 times, and then the summary.
    let end = rig.place_of(0, 0) + 125 * BLOCK_BYTES as u64;
    rig.hangs = Some(end);
    (1..80).for_each(|block| rig.write(0, block));
    assert_eq!(rig.hangs, None, "the summary is on its way");
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 80, "what was written after it counts");
    rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
    rig.release();
    rig.rest(GATHERED_NS);
    rig.reopen();
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 80);
}

//! Checkpoints on the cache device when writes of them fail.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::checkpoint::{Checkpoint, Mode};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, VolumeId};

/// The superblock of a copy, if it is valid.
fn superblock(rig: &Rig, copy: usize) -> Option<Superblock> {
    Superblock::decode(&rig.load(Geometry::superblock_offset(copy), BLOCK_BYTES as u32)).ok()
}

/// I13: whichever copy of the superblock survives, it names the checkpoint in effect, and both
/// copies of that exist.
fn check_named(rig: &Rig, when: &str) {
    let geometry = rig.engine.geometry();
    let named = [0, 1].map(|copy| superblock(rig, copy).map(|found| found.checkpoint_generation));
    assert!(named[0].is_some() && named[0] == named[1], "{when}: {named:?}");
    for (copy, generation) in named.into_iter().flatten().enumerate() {
        for half in 0..2 {
            let at = geometry.checkpoint_offset(generation, half);
            let bytes = rig.load(at, geometry.checkpoint_slot_blocks * BLOCK_BYTES as u32);
            let found = Checkpoint::decode(&bytes).map(|checkpoint| checkpoint.generation);
            assert_eq!(found.ok(), Some(generation), "{when}: superblock {copy}, checkpoint {half}");
        }
    }
}

#[test]
fn write_failed_once_at_open_is_retried() {
    let held =
        VolumeSettings { dirty_low_pct: 90, dirty_high_pct: 90, idle_delay: 0, ..VolumeSettings::default() };
    for damaged in [None, Some(0), Some(1)] {
        for spared in 0..10 {
            let when = format!("superblock {damaged:?} was damaged, write {spared} failed");
            let mut rig = Rig::new((16, 16), 1 << 15, &[held], PoolSettings::default());
            rig.keeps = true;
            rig.reopen(); // From now on everything is kept.
            (0..20).for_each(|block| rig.write(0, block));
            rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache); // Nothing is left to rewrite.
            rig.rest(GATHERED_NS);
            if let Some(copy) = damaged {
                rig.store(Geometry::superblock_offset(copy), &[0; BLOCK_BYTES]);
            }
            rig.failing_writes = (spared, 1);
            rig.reopen();
            check_named(&rig, &when);
            assert_eq!(rig.engine.dirty_blocks(VolumeId(0)), 20, "{when}");
            assert!(spared > 5 || rig.failing_writes.1 == 0, "{when}: it did");
        }
    }
}

/// 2,048 segments of 512 blocks: a whole checkpoint has 81 blocks.
#[test]
fn busy_large_cache_writes_only_increments() {
    let through = VolumeSettings { mode: Mode::Writethrough, ..VolumeSettings::default() };
    let mut rig = Rig::new((2048, 512), 1 << 24, &[through], PoolSettings::default());
    let fill = |rig: &mut Rig, from: u64, count: u64| {
        for at in from..from + count {
            rig.request(0, RequestKind::Write { fua: false }, 64 * at, 64, Treatment::Cache);
        }
        rig.rest(GATHERED_NS);
    };
    let around = rig.capacity / 64;
    fill(&mut rig, 0, around);
    let before = rig.engine.stats().checkpoints;
    rig.longest_meta = 0;
    fill(&mut rig, around, around);
    let taken = rig.engine.stats().checkpoints - before;
    println!("{taken} checkpoints, {} bytes at once", rig.longest_meta);
    assert!(taken >= 10, "{taken} checkpoints");
    assert!(rig.longest_meta <= 64 * BLOCK_BYTES, "{} bytes at once", rig.longest_meta);
}

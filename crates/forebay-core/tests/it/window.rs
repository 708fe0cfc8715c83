//! The append window between checkpoints: it is extended, and a restart knows the extension.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{PoolSettings, VolumeSettings};
use forebay_format::extension::EXTENSION_BLOCKS;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, Geometry, VolumeId, WindowExtension};

const SEGMENTS: (u32, u32) = (128, 16);

/// A cache in use whose log has wrapped around: the window was extended since the last checkpoint.
/// More blocks were written in turn than it holds; some stay dirty.
fn gone_round() -> Rig {
    let settings =
        VolumeSettings { dirty_low_pct: 20, dirty_high_pct: 90, idle_delay: 0, ..VolumeSettings::default() };
    let mut rig = Rig::new(SEGMENTS, 1 << 13, &[settings], PoolSettings::default());
    rig.keeps = true;
    rig.reopen(); // From now on everything is kept.
    for round in 0.. {
        (0..64).for_each(|block| rig.write(0, (64 * round + block) % 4096));
        rig.rest(GATHERED_NS);
        let (now, extended) = (rig.engine.stats(), in_effect(&rig).map_or(0, |found| found.number));
        if now.checkpoints > 4 && extended > 2 {
            break;
        }
        assert!(round < 1000, "{} extensions, {} checkpoints", now.window_extensions, now.checkpoints);
    }
    rig
}

/// The newest extension of the checkpoint in effect.
fn in_effect(rig: &Rig) -> Option<WindowExtension> {
    let superblock =
        Superblock::decode(&rig.load(Geometry::superblock_offset(0), BLOCK_BYTES as u32)).ok()?;
    let copies = EXTENSION_BLOCKS.as_flattened().iter().map(|block| block * BLOCK_BYTES as u64);
    let found = copies.filter_map(|at| WindowExtension::decode(&rig.load(at, BLOCK_BYTES as u32)).ok());
    found
        .filter(|found| found.checkpoint_generation == superblock.checkpoint_generation)
        .max_by_key(|found| found.number)
}

fn damage(rig: &mut Rig, slot: usize, copies: &[usize]) {
    for copy in copies {
        rig.store(EXTENSION_BLOCKS[slot][*copy] * BLOCK_BYTES as u64, &[0xa5; BLOCK_BYTES]);
    }
}

#[test]
fn extensions_outnumber_checkpoints() {
    let mut rig = gone_round();
    let before = rig.engine.stats();
    (0..20_000).for_each(|block| rig.write(0, block % 4096));
    let after = rig.engine.stats();
    let (extensions, checkpoints) =
        (after.window_extensions - before.window_extensions, after.checkpoints - before.checkpoints);
    assert!(extensions > 2 * checkpoints, "{extensions} extensions, {checkpoints} checkpoints");
}

#[test]
fn restart_finds_extension_despite_damage() {
    for damaged in [&[][..], &[0], &[1], &[0, 1]] {
        let mut rig = gone_round();
        let newest = in_effect(&rig).expect("it was waited for");
        assert!(newest.segments.len() >= newest.number as usize, "it lists all that were added");
        let dirty = rig.engine.dirty_blocks(VolumeId(0));
        assert!(dirty > 100, "many are dirty");
        damage(&mut rig, (newest.number % 2) as usize, damaged);
        rig.reopen();
        assert_eq!(rig.engine.dirty_blocks(VolumeId(0)), dirty, "copies {damaged:?} were damaged");
        let copies = EXTENSION_BLOCKS.as_flattened().iter().map(|block| block * BLOCK_BYTES as u64);
        let mut read = copies.map(|at| WindowExtension::read(&rig.load(at, BLOCK_BYTES as u32)));
        assert!(read.all(|copy| copy.is_ok()), "what was damaged is written anew");
        rig.engine.check_invariants();
    }
}

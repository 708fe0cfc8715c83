//! A backing store that was removed and is reopened as another device (I83).

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_format::checkpoint::Mode;

const BLOCK: u64 = 4096;
const VOLUME: VolumeId = VolumeId(0);
const SECOND_NS: u64 = 1_000_000_000;

fn rig(mode: Mode) -> Rig {
    let settings = VolumeSettings { mode, skip_sequential_bytes: 0, ..VolumeSettings::default() };
    Rig::new((32, 64), 1 << 15, &[settings], PoolSettings::default())
}

fn reopen(rig: &mut Rig) {
    rig.engine.backing_reopened(rig.now(), VOLUME);
}

fn cached(rig: &Rig) -> Vec<u64> {
    let (mut block, mut found) = (0, Vec::new());
    rig.engine.block_status(VOLUME, 0, 1024, &mut |count, cached, _| {
        found.extend((block..block + count).filter(|_| cached));
        block += count;
        true
    });
    found
}

/// Whether a FLUSH fails.
fn flush_fails(rig: &mut Rig) -> bool {
    rig.errors = Some(0);
    rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
    rig.rest(SECOND_NS);
    rig.errors.take() != Some(0)
}

#[test]
fn reopened_store_fails_flush_of_old_writes() {
    let mut rig = rig(Mode::Writethrough);
    rig.write(0, 5);
    rig.rest(SECOND_NS / 100); // less than the engine waits before it flushes by itself
    reopen(&mut rig);
    assert!(flush_fails(&mut rig), "what was written before may be gone");
    rig.write(0, 6);
    assert!(!flush_fails(&mut rig), "that was told");
}

#[test]
fn no_flush_fails_if_all_was_flushed() {
    let mut rig = rig(Mode::Writethrough);
    rig.write(0, 5);
    assert!(!flush_fails(&mut rig));
    reopen(&mut rig);
    rig.write(0, 6);
    assert!(!flush_fails(&mut rig));
}

#[test]
fn reopened_store_keeps_only_dirty_blocks() {
    let mut rig = rig(Mode::Writeback);
    (0..10).for_each(|block| rig.read(0, block));
    (20..30).for_each(|block| rig.write(0, block));
    rig.rest(GATHERED_NS);
    assert_eq!(cached(&rig).len(), 20);
    reopen(&mut rig);
    assert!(rig.engine.is_sweeping(VOLUME));
    rig.rest(SECOND_NS / 100);
    assert!(!rig.engine.is_sweeping(VOLUME));
    assert_eq!(cached(&rig), (20..30).collect::<Vec<_>>());
    rig.engine.check_invariants();
}

#[test]
fn reopened_store_drops_a_fill_in_flight() {
    let mut rig = rig(Mode::Writeback);
    rig.depth = 8;
    rig.hangs_backing = Some(7 * BLOCK);
    rig.request(0, RequestKind::Read, 7, 1, Treatment::Cache);
    rig.rest(SECOND_NS);
    reopen(&mut rig);
    rig.release();
    rig.rest(SECOND_NS);
    assert_eq!(cached(&rig), []);
    rig.read(0, 7);
    rig.rest(GATHERED_NS);
    assert_eq!(cached(&rig), [7]);
    rig.engine.check_invariants();
}

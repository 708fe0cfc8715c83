//! Discards that are too small to go to the backing store at once are issued there by destage,
//! merged like data.
//!
//! All data of the rig is zeroes, with their checksum: discards follow from the requests, not from
//! contents.

use crate::rig::Rig;
use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};

const BLOCK: u64 = 4096;
const DISCARD: RequestKind = RequestKind::Discard { fua: false };

/// Blocks discarded on the backing store, and blocks written to it, after `work` and the destage
/// that follows.
fn destaged(work: impl FnOnce(&mut Rig)) -> (u64, u64) {
    let settings =
        VolumeSettings { dirty_low_pct: 0, idle_delay: 1_000_000_000, ..VolumeSettings::default() };
    let mut rig = Rig::new((32, 64), 1 << 15, &[settings], PoolSettings::default());
    rig.count(true);
    work(&mut rig);
    rig.rest(60_000_000_000);
    rig.engine.check_invariants();
    assert_eq!(rig.engine.stats().dirty_blocks, 0, "all of it was destaged");
    (rig.moved.backing_unmapped / BLOCK, (rig.moved.backing_written - rig.moved.backing_unmapped) / BLOCK)
}

#[test]
fn small_discards_are_merged_and_destaged() {
    let given_back = destaged(|rig| {
        for piece in 0..64 {
            rig.request(0, DISCARD, 128 + piece * 4, 4, Treatment::Cache);
        }
    });
    assert_eq!(given_back, (256, 0));
}

#[test]
fn only_last_discarded_blocks_are_discarded() {
    let given_back = destaged(|rig| {
        (0..16).for_each(|block| rig.write(0, block));
        rig.request(0, DISCARD, 16, 16, Treatment::Cache);
        rig.write(0, 20); // written after it was discarded
        rig.request(0, RequestKind::WriteZeroes { fua: false, may_unmap: false }, 32, 8, Treatment::Cache);
        rig.request(0, RequestKind::WriteZeroes { fua: false, may_unmap: true }, 40, 8, Treatment::Cache);
        rig.write(0, 60);
        rig.request(0, DISCARD, 60, 1, Treatment::Cache); // discarded after it was written
    });
    assert_eq!(given_back, (15 + 8 + 1, 16 + 1 + 8));
}

#[test]
fn destaged_discard_leaves_no_trace() {
    let given_back = destaged(|rig| {
        rig.request(0, DISCARD, 0, 8, Treatment::Cache);
        rig.rest(60_000_000_000);
        (0..8).for_each(|block| rig.write(0, block));
    });
    assert_eq!(given_back, (8, 8));
}

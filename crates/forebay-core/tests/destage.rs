//! How dirty blocks are written back: in how many operations, and what for.

#[path = "rig/mod.rs"]
mod rig;

use forebay_core::{PoolSettings, RequestKind, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use rig::Rig;

const BLOCK: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);

fn rig() -> Rig {
    let idle = VolumeSettings {
        dirty_low_pct: 40,
        idle_delay: SECOND_NS,
        latency_target: 20_000_000,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    };
    Rig::new((16, 1024), 1 << 20, &[idle], PoolSettings::default())
}

/// Operations in which the blocks from the first on are written back, once the volume is idle.
fn write_backs(rig: &mut Rig, blocks: impl Iterator<Item = u64>) -> u64 {
    let before = rig.engine.stats().destage_writes;
    blocks.for_each(|block| rig.write(0, block));
    rig.rest(60 * SECOND_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
    rig.engine.stats().destage_writes - before
}

#[test]
fn destage_yields_to_nobody_once_the_reads_of_clients_have_ended() {
    let undisturbed = write_backs(&mut rig(), 0..2048);
    let mut rig = rig();
    // A miss, and a write inside of a sector that is not cached: both read the backing store.
    rig.read(0, 5000);
    rig.request_bytes(0, RequestKind::Write { fua: false }, (6000 * BLOCK + 100, 50), Treatment::Cache);
    rig.rest(60 * SECOND_NS);
    assert_eq!(rig.engine.stats().backing_reads, 2);
    assert_eq!(write_backs(&mut rig, 0..2048), undisturbed);
}

#[test]
fn eight_of_the_first_extents_are_written_without_gaps() {
    let mut rig = rig();
    assert_eq!(write_backs(&mut rig, (0..8).map(|at| 2 * at)), 8);
    assert_eq!(rig.engine.stats().gap_filled_blocks, 0);
    write_backs(&mut rig, (0..64).map(|at| 1000 + 2 * at));
    assert!(rig.engine.stats().gap_filled_blocks > 0, "then they are");
}

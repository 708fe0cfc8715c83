//! The engine reports as much memory as it has allocated: operators size machines by this number.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{DestageOrder, PoolSettings, RequestKind, Treatment, VolumeSettings};

const BLOCKS: u64 = 1 << 24;

/// A cache that keeps dirty data, after everything that allocates memory permanently on first use.
fn rig(segments: (u32, u32), volume: VolumeSettings) -> Rig {
    let held =
        VolumeSettings { dirty_low_pct: 90, dirty_high_pct: 90, idle_delay: 0, flush_period: 0, ..volume };
    let mut rig = Rig::new(segments, BLOCKS, &[held], PoolSettings::default());
    for block in 0..2000 {
        rig.write(0, block % 50);
        rig.read(0, 100 + block % 50);
        rig.request_bytes(0, RequestKind::Write { fua: false }, (4096 * (block % 50), 512), Treatment::Cache);
        if block % 100 == 0 {
            rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        }
    }
    rig.rest(GATHERED_NS);
    rig
}

/// Bytes that some work has made the engine allocate permanently, and the growth of the reported
/// number.
fn grows(mut rig: Rig, work: impl FnOnce(&mut Rig)) -> (i64, i64) {
    let said = |rig: &Rig| rig.engine.stats().index_memory_bytes as i64;
    let before = said(&rig);
    let kept = &mut rig;
    let measured = allocation_counter::measure(|| {
        work(kept);
        kept.rest(GATHERED_NS);
    });
    (measured.bytes_current, said(&rig) - before)
}

/// Checks that both are equal, within `pct` percent.
fn compare(pct: i64, (allocated, said): (i64, i64)) {
    println!("{allocated} bytes allocated, {said} said");
    assert!((allocated - said).abs() <= allocated * pct / 100, "{allocated} bytes allocated, {said} said");
}

#[test]
fn memory_of_slow_dirty_blocks_is_reported() {
    let work = |rig: &mut Rig| {
        for at in 0..8000 {
            rig.write(0, 1000 + at);
            if at % 4 == 0 {
                rig.rest(1_000_000_000);
            }
        }
    };
    compare(12, grows(rig((256, 64), VolumeSettings::default()), work));
}

#[test]
fn memory_of_sparse_blocks_is_reported() {
    let work = |rig: &mut Rig| (0..8000).for_each(|at| rig.write(0, at * 2000));
    compare(5, grows(rig((64, 1024), VolumeSettings::default()), work));
}

#[test]
fn memory_of_clean_blocks_is_reported() {
    let work = |rig: &mut Rig| (0..30_000).for_each(|at| rig.read(0, at * 3));
    compare(12, grows(rig((64, 1024), VolumeSettings::default()), work));
}

#[test]
fn memory_of_partial_blocks_is_reported() {
    let work = |rig: &mut Rig| {
        (0..20_000).for_each(|at| {
            rig.request_bytes(
                0,
                RequestKind::Write { fua: false },
                (4096 * (1000 + at), 512),
                Treatment::Cache,
            );
        });
    };
    compare(12, grows(rig((64, 1024), VolumeSettings::default()), work));
}

#[test]
fn memory_of_flush_epochs_is_reported() {
    // Their tree has partially filled nodes.
    let ordered = VolumeSettings { destage_order: DestageOrder::Ordered, ..VolumeSettings::default() };
    let work = |rig: &mut Rig| {
        for at in 0..20_000 {
            rig.write(0, at);
            if at % 100 == 0 {
                rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
            }
        }
    };
    compare(25, grows(rig((64, 1024), ordered), work));
}

//! Volumes that are detached or resized, and changes that are cancelled.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{
    DestageOrder, DetachHow, LifecycleError, Notice, PoolSettings, RequestKind, Treatment, VolumeSettings,
};
use forebay_format::checkpoint::Mode;
use forebay_format::{Members, VolumeId};

const BLOCK: u64 = 4096;
const VOLUME: VolumeId = VolumeId(0);

fn settings() -> VolumeSettings {
    VolumeSettings {
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        flush_period: 0,
        ..VolumeSettings::default()
    }
}

/// A volume with twenty dirty blocks, and destage held back.
fn rig() -> Rig {
    rig_with(settings())
}

fn rig_with(settings: VolumeSettings) -> Rig {
    let mut rig = Rig::new((16, 64), 1 << 10, &[settings], PoolSettings::default());
    (0..20).for_each(|block| rig.write(0, block));
    rig.rest(GATHERED_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 20);
    rig.notices.clear();
    rig
}

fn dirty_after_a_write(rig: &mut Rig, block: u64) -> u64 {
    rig.write(0, block);
    rig.rest(GATHERED_NS);
    rig.engine.dirty_blocks(VOLUME)
}

#[test]
fn retagging_a_pool_needs_one_checkpoint() {
    let mut rig = rig();
    let (geometry, checkpoints) = (rig.engine.geometry(), rig.engine.stats().checkpoints);
    let members = Members::new(&[7]).expect("a tag");
    rig.engine.resize_pool(rig.now(), geometry.device_blocks * BLOCK, members).expect("it can be changed");
    rig.rest(GATHERED_NS);
    assert!(rig.notices.contains(&Notice::PoolResized { segments: geometry.segment_count }));
    assert_eq!((rig.engine.members(), rig.engine.geometry()), (members, geometry));
    assert_eq!(rig.engine.stats().checkpoints, checkpoints + 1);
    assert_eq!(dirty_after_a_write(&mut rig, 21), 21);
}

#[test]
fn waiting_detach_can_be_cancelled() {
    for how in [DetachHow::Keep, DetachHow::Discard] {
        let mut rig = rig();
        rig.write(0, 20);
        rig.engine.detach_volume(rig.now(), VOLUME, how).expect("it can be detached");
        rig.engine.cancel_detach(rig.now(), VOLUME).expect("a request is still open");
        rig.rest(GATHERED_NS);
        let cancelled = Notice::DetachFailed { volume: VOLUME, error: LifecycleError::Cancelled };
        assert_eq!(rig.notices, [cancelled], "{how:?}");
        assert_eq!(dirty_after_a_write(&mut rig, 21), 22, "{how:?}");
    }
}

#[test]
fn completed_detach_cannot_be_cancelled() {
    let mut rig = rig();
    rig.engine.detach_volume(rig.now(), VOLUME, DetachHow::Discard).expect("it can be detached");
    rig.start();
    assert!(rig.engine.volume_stats(VOLUME).is_none(), "it is not served any more");
    assert_eq!(rig.engine.cancel_detach(rig.now(), VOLUME), Err(LifecycleError::Busy));
    rig.rest(GATHERED_NS);
    assert!(rig.notices.contains(&Notice::Detached { volume: VOLUME }));
    assert_eq!(rig.engine.cancel_detach(rig.now(), VOLUME), Err(LifecycleError::NotAttached));
}

#[test]
fn detaching_volume_gets_no_dirty_blocks() {
    let mut rig = rig();
    rig.engine.begin_detach(rig.now(), VOLUME).expect("it is attached");
    rig.write(0, 30);
    rig.rest(10 * GATHERED_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0);
    assert_eq!(rig.engine.stats().cached_blocks, 21, "it is cached all the same");
    rig.engine.cancel_detach(rig.now(), VOLUME).expect("nothing has left");
    assert_eq!(dirty_after_a_write(&mut rig, 31), 1);
}

#[test]
fn kept_volume_can_only_be_discarded() {
    let mut rig = rig();
    rig.detach(0, DetachHow::Keep);
    for how in [DetachHow::Keep, DetachHow::Drained] {
        assert_eq!(
            rig.engine.detach_volume(rig.now(), VOLUME, how),
            Err(LifecycleError::NotAttached),
            "{how:?}"
        );
    }
    let unknown = rig.engine.detach_volume(rig.now(), VolumeId(5), DetachHow::Discard);
    assert_eq!(unknown, Err(LifecycleError::NotAttached));
    rig.attach(0, &settings());
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 20);
    rig.detach(0, DetachHow::Keep);
    rig.detach(0, DetachHow::Discard);
    assert!(rig.engine.volume_table().is_empty());
}

#[test]
fn kept_volume_refuses_another_store() {
    let mut rig = rig();
    rig.detach(0, DetachHow::Keep);
    rig.attach_backing(0, &settings(), [1, 3]);
    let error = LifecycleError::BackingChanged { dirty_blocks: 20 };
    assert!(rig.notices.contains(&Notice::AttachFailed { volume: VOLUME, error }), "{:?}", rig.notices);
    rig.attach(0, &settings());
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 20);
}

/// Cuts the volume, and checks that the engine and the table have the new size.
fn cut(rig: &mut Rig, bytes: u64) {
    rig.notices.clear();
    rig.engine.resize_volume(rig.now(), VOLUME, bytes).expect("it can be cut");
    rig.rest(GATHERED_NS);
    assert!(rig.notices.contains(&Notice::VolumeResized { volume: VOLUME, bytes }), "{:?}", rig.notices);
    assert_eq!(rig.engine.volume_size_bytes(VOLUME), Some(bytes));
    assert_eq!(rig.engine.volume_table()[0].size_bytes, bytes);
    rig.engine.check_invariants();
}

#[test]
fn shrunk_volume_has_nothing_beyond_its_end() {
    let mut rig = rig();
    cut(&mut rig, 12 * BLOCK);
    assert_eq!((rig.engine.dirty_blocks(VOLUME), rig.engine.stats().cached_blocks), (12, 12));
    // A partially cut block stays, with its remaining sectors.
    cut(&mut rig, 11 * BLOCK + 512);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 12);
    rig.errors = Some(0);
    rig.request_bytes(0, RequestKind::Read, (11 * BLOCK, 512), Treatment::Cache);
    rig.request_bytes(0, RequestKind::Read, (11 * BLOCK + 512, 512), Treatment::Cache);
    rig.rest(GATHERED_NS);
    assert_eq!(rig.errors, Some(1), "what is beyond the end is refused");
}

#[test]
fn block_cached_only_beyond_new_end_is_void() {
    let write = RequestKind::Write { fua: false };
    let mut rig = rig();
    rig.request_bytes(0, write, (100 * BLOCK + 2048, 512), Treatment::Cache);
    rig.rest(GATHERED_NS);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 21);
    cut(&mut rig, 100 * BLOCK + 3072);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 21, "the sector is inside of the volume");
    cut(&mut rig, 100 * BLOCK + 2048);
    assert_eq!((rig.engine.dirty_blocks(VOLUME), rig.engine.stats().cached_blocks), (20, 20));
}

#[test]
fn growth_destages_the_cut_block_first() {
    // A block of a flush epoch cannot be relocated to a copy without the sectors beyond the end.
    let ordered = VolumeSettings { destage_order: DestageOrder::Ordered, ..settings() };
    let mut rig = rig_with(ordered);
    assert!(rig.engine.is_ordered(VOLUME));
    cut(&mut rig, 11 * BLOCK + 512);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 12);
    let bytes = 1 << 20;
    rig.engine.resize_volume(rig.now(), VOLUME, bytes).expect("it can grow");
    rig.rest(60_000_000_000);
    assert!(rig.notices.contains(&Notice::VolumeResized { volume: VOLUME, bytes }), "{:?}", rig.notices);
    rig.engine.check_invariants();
}

/// A volume ends inside of a block, and grows while a bypass write to this block, which must be
/// merged, waits for the backing store. Returns the bytes that are read from it and written to it.
fn merged_while_growing() -> (u64, u64) {
    let past = VolumeSettings { mode: Mode::Writearound, ..settings() };
    let mut rig = Rig::new((16, 64), 1 << 10, &[past], PoolSettings::default());
    (rig.depth, rig.keeps) = (8, true);
    let end = 100 * BLOCK + 2560;
    cut(&mut rig, end);
    rig.count(true);
    rig.engine.resize_volume(rig.now(), VOLUME, 1 << 21).expect("it can grow");
    rig.start(); // Its checkpoint is in progress.
    rig.hangs_backing = Some(100 * BLOCK);
    rig.request_bytes(0, RequestKind::Write { fua: false }, (100 * BLOCK + 10, 100), Treatment::Cache);
    rig.rest(GATHERED_NS);
    rig.release();
    rig.rest(GATHERED_NS);
    assert!(rig.notices.contains(&Notice::VolumeResized { volume: VOLUME, bytes: 1 << 21 }));
    rig.engine.check_invariants();
    (rig.moved.backing_read, rig.moved.backing_written)
}

#[test]
fn write_at_a_growing_end_keeps_read_data() {
    let (read, written) = merged_while_growing();
    assert_eq!(read, written);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn unlocked_growth_is_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::GrowUnlocked));
    let (read, written) = merged_while_growing();
    assert_ne!(read, written, "the test does not see it");
}

const FIRST: u64 = 2000;

/// Some dirty blocks are in relocation from segments that a shrink of the pool removes, and wait
/// for one whose read hangs. Meanwhile they are destaged, so they are clean, and dropped. Then they
/// are appended, with entries that record them as dirty. The first is overwritten by a bypass
/// write, and the cache is opened again: how many are dirty?
fn dirty_of_dropped() -> u64 {
    let mut rig = Rig::new((26, 64), 1 << 12, &[settings()], PoolSettings::default());
    rig.depth = 8;
    rig.keeps = true;
    rig.reopen(); // From now on everything is kept.
    (0..1240).for_each(|block| rig.read(0, block));
    rig.rest(GATHERED_NS);
    (FIRST..FIRST + 21).for_each(|block| rig.write(0, block));
    // The last one is read alone: its neighbour is somewhere else now.
    (FIRST + 12..FIRST + 20).for_each(|block| rig.write(0, block));
    rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
    // Makes room for the relocated blocks.
    rig.request(0, RequestKind::Discard { fua: false }, 0, 600, Treatment::Cache);
    rig.rest(GATHERED_NS);
    let geometry = rig.engine.geometry();
    let left = geometry.device_blocks - 10 * u64::from(geometry.segment_blocks);
    let at = rig.place_of(0, FIRST + 20);
    assert!(at > left * BLOCK, "they have to move");
    rig.hangs = Some(at);
    rig.engine.resize_pool(rig.now(), left * BLOCK, rig.engine.members()).expect("it can be smaller");
    rig.rest(10_000_000_000);
    assert_eq!(rig.engine.dirty_blocks(VOLUME), 0, "they were written back");
    rig.engine.cancel_pool_resize(rig.now()).expect("it waits for them");
    rig.release();
    rig.rest(GATHERED_NS);
    let past = VolumeSettings { mode: Mode::Writearound, ..settings() };
    rig.engine.configure_volume(rig.now(), VOLUME, past).expect("these settings");
    rig.write(0, FIRST);
    rig.rest(1_000_000);
    rig.reopen();
    rig.engine.dirty_blocks(VOLUME)
}

#[test]
fn block_dropped_while_moving_stays_dropped() {
    assert_eq!(dirty_of_dropped(), 0);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn forgotten_drop_record_is_seen() {
    let _planting = forebay_core::fault::plant(Some(forebay_core::PlantedBug::ForgetRecordOfDropped));
    assert!(dirty_of_dropped() > 0, "the test does not see it");
}

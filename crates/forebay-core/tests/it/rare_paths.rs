//! Paths of the engine that the simulator's seeds hardly ever take: each test creates the
//! situation, and checks the guarantees of the path.
//!
//! `RARE` in `crates/forebay-sim/tests/it/coverage.rs` lists their coverage marks. The mark of an
//! order that yields is in `yields.rs`.

use crate::rig::{GATHERED_NS, Rig};
use forebay_core::{
    CoverageMark, Drain, OpenError, PoolSettings, RequestId, RequestKind, Status, Treatment, VolumeSettings,
};
use forebay_format::checkpoint::SlotState;
use forebay_format::extension::EXTENSION_BLOCKS;
use forebay_format::superblock::Superblock;
use forebay_format::{Geometry, VolumeId, WindowExtension};
use std::collections::BTreeMap;
use std::ops::Range;

const BLOCK: u64 = 4096;
const SECOND_NS: u64 = 1_000_000_000;
const VOLUME: VolumeId = VolumeId(0);
const WRITE: RequestKind = RequestKind::Write { fua: false };

/// Settings that hold back destage.
fn held() -> (VolumeSettings, PoolSettings) {
    let settings = VolumeSettings {
        dirty_low_pct: 90,
        dirty_high_pct: 90,
        idle_delay: 0,
        flush_period: 0,
        skip_sequential_bytes: 0,
        ..VolumeSettings::default()
    };
    (settings, PoolSettings { dirty_limit_pct: 90, ..PoolSettings::default() })
}

/// A cache with this layout and one volume, which keeps its metadata. Each write of a client is
/// a batch of its own.
fn kept(layout: (u32, u32)) -> Rig {
    let (settings, pool) = held();
    let mut rig = Rig::new(layout, 1 << 13, &[settings], pool);
    (rig.depth, rig.keeps) = (1, true);
    rig.reopen(); // From now on everything is kept.
    rig
}

/// The segment of an offset on the cache device.
fn segment_of(rig: &Rig, place: u64) -> u32 {
    let geometry = rig.engine.geometry();
    ((place - geometry.segment_offset(0, 0)) / geometry.segment_bytes()) as u32
}

fn took(rig: &Rig, mark: CoverageMark) -> bool {
    rig.engine.coverage().contains(mark)
}

/// Three concurrent reads of a block, while `failing` reads of the backing store fail: which of
/// them succeeded?
fn read_together(rig: &mut Rig, failing: u32) -> [bool; 3] {
    (rig.errors, rig.replies, rig.failing_backing_reads) = (Some(0), Some(Vec::new()), failing);
    let ids = [(); 3].map(|()| {
        rig.read(0, 500);
        RequestId(rig.now()) // The rig uses the time as the request number.
    });
    rig.rest(GATHERED_NS);
    assert_eq!(rig.failing_backing_reads, 0, "so many did");
    let replies: BTreeMap<_, _> = rig.replies.take().into_iter().flatten().collect();
    assert_eq!(replies.len(), 3, "each has one answer: {replies:?}");
    ids.map(|id| replies[&id])
}

#[test]
fn joined_reads_of_a_failed_read_read_alone() {
    // Two attempts are one error.
    for (failing, answers, reads) in [(2, [false, true, true], 4), (6, [false; 3], 6)] {
        let mut rig = Rig::new((16, 64), 1 << 13, &[held().0], PoolSettings::default());
        rig.count(true);
        assert_eq!(read_together(&mut rig, failing), answers);
        assert!(took(&rig, CoverageMark::JoinedReadFailed));
        // The first read that succeeds fills the cache.
        let filled = u64::from(answers.contains(&true));
        let stats = rig.engine.stats();
        assert_eq!((stats.backing_reads, stats.cached_blocks), (reads, filled));
        assert_eq!(rig.moved.copied, filled * BLOCK, "nobody was given what could not be read");
        rig.errors = None;
        rig.read(0, 500);
        rig.rest(GATHERED_NS);
        assert_eq!(rig.engine.stats().cached_blocks, 1);
        rig.engine.check_invariants();
    }
}

/// A mirrored cache with some dirty blocks. The next write is in flight to both members when one of
/// them fails; then it fails on the other one, which is the only active one from now on.
fn half_written(refuses_note: bool) -> Rig {
    let (settings, pool) = held();
    let mut rig = Rig::mirrored((32, 64), 1 << 13, &[settings], pool);
    rig.keeps = true;
    rig.reopen(); // From now on everything is kept.
    (0..20).for_each(|block| rig.write(0, block));
    rig.rest(GATHERED_NS);
    rig.replies = Some(Vec::new());
    rig.refuses_notes = refuses_note;
    rig.failing_writes = (1, 1);
    rig.write(0, 20);
    rig.start();
    assert_eq!(rig.failing_writes, (0, 0), "both halves are under way");
    rig.engine.member_gone(rig.now(), 0);
    rig.rest(SECOND_NS / 2);
    rig
}

#[test]
fn half_written_batch_is_rewritten() {
    for refuses_note in [false, true] {
        let mut rig = half_written(refuses_note);
        assert!(took(&rig, CoverageMark::HalfRewritten));
        let answered = rig.replies.as_ref().map(Vec::len);
        assert_eq!(answered, Some(usize::from(!refuses_note)), "not before the note is durable");
        rig.refuses_notes = false;
        rig.rest(10 * SECOND_NS);
        assert_eq!(rig.replies.as_ref().map(Vec::len), Some(1), "it succeeded");
        assert_eq!(rig.engine.mirror_state().map(|state| (state.out, state.noted)), Some((Some(0), true)));
        let place = rig.place_of(0, 20);
        assert_eq!(rig.engine.geometry().mirror_place(place).0, 1);
        rig.engine.check_invariants();
        rig.reopen();
        assert_eq!((rig.place_of(0, 20), rig.engine.dirty_blocks(VOLUME)), (place, 21), "it is found again");
        rig.engine.check_invariants();
    }
}

#[test]
fn unreadable_gap_does_not_stop_destage() {
    let mut rig = Rig::new((16, 1024), 1 << 13, &[held().0], PoolSettings::default());
    let write_back = |rig: &mut Rig, first: u64, blocks: u64| {
        (0..blocks).for_each(|at| rig.write(0, first + 2 * at));
        rig.request(0, RequestKind::Flush, 0, 0, Treatment::Cache);
        rig.rest(SECOND_NS);
        assert_eq!(rig.engine.dirty_blocks(VOLUME), blocks);
        rig.engine.set_drain(rig.now(), VOLUME, Drain::Full);
        rig.rest(SECOND_NS / 2);
        rig.engine.set_drain(rig.now(), VOLUME, Drain::Off);
    };
    write_back(&mut rig, 0, 8); // From now on gaps are filled.
    let before = rig.engine.stats();
    rig.failing_backing_reads = 1;
    rig.count(true);
    write_back(&mut rig, 1000, 6);
    assert!(took(&rig, CoverageMark::GapUnreadable));
    let stats = rig.engine.stats();
    assert_eq!((rig.failed, stats.dirty_blocks), (1, 0), "destage goes on");
    assert!(stats.gap_filled_blocks > before.gap_filled_blocks, "it was tried");
    assert_eq!(stats.destage_writes - before.destage_writes, 6);
    assert_eq!(rig.moved.backing_written, 6 * BLOCK, "nothing was written to the gaps");
    // The gaps are unlocked again: a bypass write does not wait for them.
    rig.request(0, WRITE, 1001, 1, Treatment::Bypass);
    rig.rest(SECOND_NS);
    assert_eq!((rig.moved.backing_written, rig.engine.stats().requests_in_flight), (7 * BLOCK, 0));
    rig.engine.check_invariants();
}

/// The refusal writes nothing.
#[test]
fn cache_with_lost_dirty_segment_is_refused() {
    for unreadable in [false, true] {
        let mut rig = kept((16, 64));
        (0..10).for_each(|block| rig.write(0, block));
        rig.request(0, WRITE, 10, 3, Treatment::Cache);
        (13..20).for_each(|block| rig.write(0, block));
        let header = rig.place_of(0, 10) - BLOCK;
        let segment = segment_of(&rig, header);
        rig.stop();
        let sound = rig.load(header, BLOCK as u32);
        if unreadable {
            rig.unreadable_meta = header..header + BLOCK;
        } else {
            rig.store(header, &[0xa5; BLOCK as usize]);
        }
        rig.cache_writes = Some(Vec::new());
        let refused = Status::Failed(OpenError::SegmentLost { segment, dirty_blocks: 3 });
        assert_eq!(rig.try_reopen(), refused);
        assert!(took(&rig, CoverageMark::SegmentLost));
        assert_eq!(rig.cache_writes.take(), Some(Vec::new()), "it may be read by other means yet");
        rig.unreadable_meta = 0..0;
        rig.store(header, &sound);
        rig.reopen();
        assert_eq!((rig.engine.dirty_blocks(VOLUME), rig.place_of(0, 10)), (20, header + BLOCK));
        rig.engine.check_invariants();
    }
}

/// Blocks that are written in turn, so many that the log soon returns to slots that are live in a
/// checkpoint. They and the others are dirty.
const IN_TURN: u64 = 600;
/// Blocks that are written at first, and then not until the checkpoint in effect.
const OTHERS: Range<u64> = IN_TURN..IN_TURN + 2;

/// A cache whose log has reached a segment that a window extension has added. No flush covers its
/// three batches: a power cut may drop the first one and leave the others, with newer versions of
/// blocks that the checkpoint has elsewhere.
struct Added {
    rig: Rig,
    /// Where each block was last written before the log reached the segment.
    before: BTreeMap<u64, u64>,
    /// Offset of the segment, and its first block in its earlier use.
    head: u64,
    earlier_head: Vec<u8>,
}

fn added() -> Added {
    let mut rig = kept((128, 16));
    let (mut before, mut heads) = (BTreeMap::new(), BTreeMap::new());
    for block in OTHERS.chain((0..IN_TURN).cycle().take(100_000)) {
        let (place, flushes) = write_one(&mut rig, block);
        let segment = segment_of(&rig, place);
        let head = rig.engine.geometry().segment_offset(segment, 0);
        if place == head + BLOCK {
            let earlier_head = heads.insert(segment, rig.load(head, BLOCK as u32));
            if !flushes && is_added(&rig, segment) {
                for block in OTHERS {
                    let (place, flushes) = write_one(&mut rig, block);
                    assert!(segment_of(&rig, place) == segment && !flushes);
                }
                let earlier_head = earlier_head.expect("the checkpoint counts its earlier use");
                return Added { rig, before, head, earlier_head };
            }
        }
        before.insert(block, place);
    }
    panic!("the log does not come to such a segment");
}

/// Offset of the block that is written next, and whether the cache device was flushed meanwhile.
fn write_one(rig: &mut Rig, block: u64) -> (u64, bool) {
    let flushes = rig.engine.stats().cache_flushes;
    rig.cache_writes = Some(Vec::new());
    rig.write(0, block);
    let start = rig.engine.geometry().segment_offset(0, 0);
    let all = rig.cache_writes.take().into_iter().flatten();
    let batches: Vec<_> = all.filter(|(offset, _)| *offset >= start).collect();
    let [(offset, len)] = batches[..] else { panic!("one batch for each write: {batches:?}") };
    assert_eq!(len, 2 * BLOCK, "a header and a block");
    (offset + BLOCK, rig.engine.stats().cache_flushes > flushes)
}

/// True if an extension has added the segment, and the first three blocks of its earlier use are
/// live in the checkpoint in effect.
fn is_added(rig: &Rig, segment: u32) -> bool {
    let superblock = Superblock::decode(&rig.load(Geometry::superblock_offset(0), BLOCK as u32));
    let superblock = superblock.expect("it is there");
    let (offset, len) = superblock.checkpoint_place(0);
    let checkpoint = superblock.read_checkpoint(&rig.load(offset, len as u32)).expect("it is there");
    let copies = EXTENSION_BLOCKS.as_flattened().iter().map(|block| block * BLOCK);
    let mut extensions = copies.filter_map(|at| WindowExtension::decode(&rig.load(at, BLOCK as u32)).ok());
    let adds = |extension: WindowExtension| {
        extension.checkpoint_generation == checkpoint.generation && extension.segments.contains(&segment)
    };
    let slots = &checkpoint.segments[segment as usize].slots;
    [1, 3, 5].iter().all(|index| slots.get(*index) == SlotState::Dirty) && extensions.any(adds)
}

#[test]
fn segment_without_head_and_entry_is_void() {
    for torn in [false, true] {
        let Added { mut rig, before, head, earlier_head } = added();
        let damage = [0xa5; BLOCK as usize];
        // The write was torn, or has not reached the device.
        rig.store(head, if torn { &damage } else { &earlier_head });
        EXTENSION_BLOCKS.as_flattened().iter().for_each(|block| rig.store(block * BLOCK, &damage));
        assert_eq!(rig.try_reopen(), Status::Ready);
        assert!(took(&rig, CoverageMark::LaterUseFound));
        let blocks = 0..OTHERS.end;
        assert_eq!(rig.engine.dirty_blocks(VOLUME), blocks.end);
        let found: BTreeMap<_, _> = blocks.map(|block| (block, rig.place_of(0, block))).collect();
        assert_eq!(found, before, "all that was written before is there, and nothing later");
        rig.engine.check_invariants();
    }
}

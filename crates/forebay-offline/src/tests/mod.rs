//! Handmade caches in files, and the verdicts on them.

use super::image::Image;
use super::mirror::Noted;
use super::salvage::{OnlyCopies, Salvage, Worth};
use super::space::Given;
use super::verdict::{Verdict, verify};
use super::{Findings, Severity};
use crate::{Key, Refusal};
use forebay_core::{FormatParams, format_cache};
use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::checkpoint::{Mode, SegmentEntry, SegmentState, SlotState, SlotStates, VolumeEntry};
use forebay_format::extension::EXTENSION_BLOCKS;
use forebay_format::summary::SummaryItem;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, Slot, StreamKind, VolumeId, WindowExtension};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

mod chains;
mod mirrored;

const UUID: CacheUuid = CacheUuid([7; 16]);

/// A cache in a file.
struct Cache {
    _folder: tempfile::TempDir,
    path: PathBuf,
    file: File,
    geometry: Geometry,
    /// Next sequence, and next stream sequence of the write stream.
    next: (u64, u64),
}

impl Cache {
    /// Creates a new, empty cache, as after a crash right after its first start.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let file = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        let geometry = Geometry::for_device(8 << 20, Some(16)).unwrap();
        file.set_len(8 << 20).unwrap();
        for (offset, bytes) in format_cache(&params(geometry)).unwrap() {
            file.write_all_at(&bytes, offset).unwrap();
        }
        let cache = Self { _folder: folder, path, file, geometry, next: (1, 1) };
        cache.superblock(|superblock| superblock.state = CacheState::Open);
        cache
    }

    fn superblock(&self, change: impl Fn(&mut Superblock)) {
        for copy in 0..2 {
            let mut block = vec![0; BLOCK_BYTES];
            self.file.read_exact_at(&mut block, Geometry::superblock_offset(copy)).unwrap();
            let mut superblock = Superblock::decode(&block).unwrap();
            change(&mut superblock);
            self.file.write_all_at(&superblock.encode(), Geometry::superblock_offset(copy)).unwrap();
        }
    }

    /// Appends a batch to the write stream, at a block of a segment. Returns the block behind it.
    fn batch(&mut self, segment: u32, at: u32, entries: &[Entry], payload: &[u8]) -> u32 {
        let header = header(segment, at, self.next, (payload.len() / BLOCK_BYTES) as u16);
        self.put(&header, entries, payload);
        self.next = (self.next.0 + 1, self.next.1 + 1);
        at + 1 + u32::from(header.payload_blocks)
    }

    /// Writes a summary to a block of a segment.
    fn summary(&self, segment: u32, at: u32, sequence: u64, payload: &[u8]) {
        let entry = Entry::Summary { slots: at, crc32c: forebay_format::checksum(payload) };
        let header = header(segment, at, (sequence, sequence), (payload.len() / BLOCK_BYTES) as u16);
        self.put(&BatchHeader { kind: BatchKind::Summary, ..header }, &[entry], payload);
    }

    /// Puts a checkpoint into effect with this entry of a segment, and these of its slots dirty.
    fn checkpoint(&self, segment: u32, entry: SegmentEntry, dirty: &[u32]) {
        let image = Image::open(std::slice::from_ref(&self.path)).unwrap();
        let mut checkpoint = image.checkpoint().unwrap().clone();
        checkpoint.generation += 1;
        checkpoint.window.retain(|number| *number != segment);
        (checkpoint.epoch, checkpoint.next_sequence, checkpoint.next_stream_sequence) = (2, 20, [20, 1, 1]);
        let mut packed = vec![0; checkpoint.segment_blocks.div_ceil(4) as usize];
        for slot in dirty {
            packed[*slot as usize / 4] |= (SlotState::Dirty as u8) << (slot % 4 * 2);
        }
        checkpoint.segments[segment as usize] =
            SegmentEntry { slots: SlotStates::from_packed(packed), ..entry };
        for copy in 0..2 {
            let offset = self.geometry.checkpoint_offset(checkpoint.generation, copy);
            self.file.write_all_at(&checkpoint.encode(), offset).unwrap();
        }
        drop(image);
        self.superblock(|superblock| {
            (superblock.checkpoint_generation, superblock.epoch) = (checkpoint.generation, 2);
        });
    }

    /// Returns the result of salvage, after `say` has changed its parameters.
    fn found(&self, say: impl FnOnce(&mut Salvage)) -> Found {
        let (mut salvage, mut findings) =
            opened(std::slice::from_ref(&self.path), &mut |_| {}, &|_, _| Ok(None)).unwrap();
        say(&mut salvage);
        extracted(&salvage, &mut findings)
    }

    fn put(&self, header: &BatchHeader, entries: &[Entry], payload: &[u8]) {
        let offset = self.geometry.segment_offset(header.segment, header.block_in_segment);
        self.file.write_all_at(&in_bytes(header, entries, payload), offset).unwrap();
    }

    fn damage(&self, segment: u32, block: u32) {
        let offset = self.geometry.segment_offset(segment, block) + 100;
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, offset).unwrap();
        self.file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
    }

    fn verdict(&self) -> (Verdict, Findings) {
        let image = Image::open(std::slice::from_ref(&self.path)).unwrap();
        let mut findings = Findings::default();
        image.judge(&mut findings);
        let verdict = verify(&image, image.checkpoint().unwrap(), &mut findings, &mut |_, _| {});
        (verdict, findings)
    }

    /// Returns the numbers of dirty and clean blocks, and of findings above notes.
    fn counts(&self) -> (u64, u64, u64) {
        let (verdict, findings) = self.verdict();
        (verdict.total().dirty, verdict.total().clean, findings.faults())
    }
}

/// Returns the parameters of a cache with one volume.
fn params(geometry: Geometry) -> FormatParams {
    let volume = VolumeEntry {
        name: "v".into(),
        size_bytes: 1 << 30,
        mode: Mode::Writeback,
        ..VolumeEntry::default()
    };
    FormatParams {
        geometry,
        uuid: UUID,
        encryption: None,
        volumes: vec![volume],
        members: Default::default(),
        created_unix_s: 0,
        written_by: "test".into(),
    }
}

/// Returns the header of a batch of the write stream at a block of a segment.
fn header(segment: u32, at: u32, number: (u64, u64), payload_blocks: u16) -> BatchHeader {
    BatchHeader {
        kind: BatchKind::Records,
        stream: StreamKind::Write,
        uuid_tag: UUID.tag(),
        epoch: 1,
        sequence: number.0,
        stream_sequence: number.1,
        flushed_stream_sequence: 0,
        segment,
        block_in_segment: at,
        payload_blocks,
    }
}

fn in_bytes(header: &BatchHeader, entries: &[Entry], payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    header.encode(entries, &mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn data(block: u64, fill: u8, dirty: bool) -> (Entry, Vec<u8>) {
    let bytes = vec![fill; BLOCK_BYTES];
    let crc32c = forebay_format::checksum(&bytes);
    (Entry::Data { volume: VolumeId(0), block, crc32c, sector_mask: 0xff, dirty, flush_epoch: 0 }, bytes)
}

/// Returns entries and payload of dirty blocks.
fn dirty(blocks: &[u64]) -> (Vec<Entry>, Vec<u8>) {
    let (entries, bytes): (Vec<_>, Vec<_>) =
        blocks.iter().map(|block| data(*block, *block as u8 + 1, true)).unzip();
    (entries, bytes.concat())
}

#[test]
fn a_new_cache_is_whole_and_empty() {
    assert_eq!(Cache::new().counts(), (0, 0, 0));
}

#[test]
fn log_counts_and_its_newest_copy_wins() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1, 2, 3]);
    let at = cache.batch(0, 0, &entries, &bytes);
    let (entries, bytes) = dirty(&[3, 4]);
    cache.batch(0, at, &entries, &bytes);
    assert_eq!(cache.counts(), (4, 0, 0));
    cache.damage(0, 3); // the old copy of block 3: its batch is invalid, and so are the next ones
    assert_eq!(cache.counts(), (0, 0, 0));
}

#[test]
fn marks_change_the_state_of_slots() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1, 2, 3]);
    let at = cache.batch(0, 0, &entries, &bytes);
    let marks = [Entry::CleanMark { slot: Slot(1), count: 1 }, Entry::DropMark { slot: Slot(3), count: 1 }];
    let at = cache.batch(0, at, &marks, &[]);
    assert_eq!(cache.counts(), (1, 1, 0));
    cache.batch(0, at, &[Entry::Intent { volume: VolumeId(0), region: 0, count: 1 }], &[]);
    let (verdict, findings) = cache.verdict();
    assert_eq!((verdict.total().dirty, verdict.total().clean, verdict.total().dropped), (1, 0, 1));
    assert_eq!(findings.faults(), 0);
}

#[test]
fn log_continues_in_the_window_until_a_gap() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1]);
    cache.batch(0, 0, &entries, &bytes);
    let (entries, bytes) = dirty(&[2]);
    cache.batch(1, 0, &entries, &bytes);
    assert_eq!(cache.counts(), (2, 0, 0));
    cache.next.1 += 1; // a batch that was never written
    let (entries, bytes) = dirty(&[3]);
    cache.batch(2, 0, &entries, &bytes);
    assert_eq!(cache.counts(), (2, 0, 0));
}

#[test]
fn log_continues_in_added_segments() {
    for damaged in [&[][..], &[4], &[20], &[4, 20]] {
        let mut cache = Cache::new();
        let number = cache.geometry.segment_count - 1;
        let (entries, bytes) = dirty(&[1, 2]);
        cache.batch(number, 0, &entries, &bytes);
        assert_eq!(cache.counts(), (0, 0, 0), "nothing says that it was added");
        let extension = WindowExtension {
            uuid: UUID,
            checkpoint_generation: 1,
            epoch: 1,
            number: 2,
            segments: vec![number],
        };
        for block in EXTENSION_BLOCKS[0] {
            cache.file.write_all_at(&extension.encode(), block * BLOCK_BYTES as u64).unwrap();
        }
        for block in damaged {
            cache.file.write_all_at(&[0xa5], block * BLOCK_BYTES as u64 + 99).unwrap();
        }
        assert_eq!(cache.counts(), (2, 0, damaged.len() as u64), "blocks {damaged:?} are damaged");
        let salvaged = cache.found(|_| {}).len();
        assert_eq!(salvaged, 2, "salvage follows it, too");
    }
}

#[test]
fn batches_before_checkpoint_are_ignored() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1]);
    cache.next = (0, 1); // sequence below the checkpoint's; the stream sequence would fit
    cache.batch(0, 0, &entries, &bytes);
    assert_eq!(cache.counts(), (0, 0, 0));
}

#[test]
fn a_flushed_batch_that_is_gone_is_found() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1]);
    let at = cache.batch(0, 0, &entries, &bytes);
    let mut header = header(0, at + 2, (9, 3), 0);
    header.flushed_stream_sequence = 3;
    cache.put(&header, &[], &[]);
    let (verdict, findings) = cache.verdict();
    assert_eq!((verdict.replayed, findings.lost), (1, 1));
    assert!(findings.worst().unwrap().what.contains("batch 2 is gone"));
}

#[test]
fn damaged_copy_is_found_and_the_other_used() {
    let cache = Cache::new();
    cache.file.write_all_at(&[0xff; 64], Geometry::superblock_offset(1) + 100).unwrap();
    cache.file.write_all_at(&[0xff; 64], cache.geometry.checkpoint_offset(1, 0) + 4096).unwrap();
    let (_, findings) = cache.verdict();
    assert_eq!((findings.damaged, findings.lost), (2, 0));
    cache.file.write_all_at(&[0xff; 64], cache.geometry.checkpoint_offset(1, 1) + 4096).unwrap();
    let image = Image::open(std::slice::from_ref(&cache.path)).unwrap();
    let mut findings = Findings::default();
    image.judge(&mut findings);
    assert!(image.checkpoint().is_none() && findings.lost == 2);
}

#[test]
fn interrupted_superblock_update_is_a_note() {
    let cache = Cache::new();
    let mut block = vec![0; BLOCK_BYTES];
    cache.file.read_exact_at(&mut block, Geometry::superblock_offset(0)).unwrap();
    let mut newer = Superblock::decode(&block).unwrap();
    newer.generation += 1;
    cache.file.write_all_at(&newer.encode(), Geometry::superblock_offset(0)).unwrap();
    let (_, findings) = cache.verdict();
    assert_eq!(findings.faults(), 0);
    assert_eq!(findings.kept[0].severity, Severity::Note);
}

#[test]
fn foreign_device_is_refused_with_a_reason() {
    let cache = Cache::new();
    let refused =
        |cache: &Cache| Image::open(std::slice::from_ref(&cache.path)).map(drop).unwrap_err().to_string();
    cache.file.set_len(4 << 20).unwrap();
    assert!(refused(&cache).contains("truncated"));
    cache.file.set_len(100).unwrap();
    assert!(refused(&cache).contains("superblock"));
    cache.file.set_len(0).unwrap();
    assert!(!refused(&cache).is_empty());
}

#[test]
fn no_byte_anywhere_makes_it_panic() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1, 2, 3]);
    let at = cache.batch(0, 0, &entries, &bytes);
    cache.batch(0, at, &[Entry::CleanMark { slot: Slot(u32::MAX), count: 1 }], &[]);
    let whole = std::fs::read(&cache.path).unwrap();
    let mut random = 1_u64;
    for _ in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..3 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let structures = [0, 16, 32, 33, 32 + u64::from(cache.geometry.checkpoint_slot_blocks) * 2];
            let segment = cache.geometry.segment_offset(0, 0) / BLOCK_BYTES as u64;
            let block = match random >> 60 {
                0..8 => structures[(random >> 40) as usize % structures.len()],
                _ => segment + (random >> 40) % 5,
            };
            let at = block as usize * BLOCK_BYTES + (random >> 20) as usize % 200;
            bytes[at] = random as u8;
        }
        std::fs::write(&cache.path, &bytes).unwrap();
        if let Ok(image) = Image::open(std::slice::from_ref(&cache.path)) {
            let mut findings = Findings::default();
            image.judge(&mut findings);
            if let Some(checkpoint) = image.checkpoint() {
                verify(&image, checkpoint, &mut findings, &mut |_, _| {});
            }
        }
    }
}

/// Salvages states after simulated crashes to the backing stores: no data may be missing and none
/// may be old.
#[test]
fn salvage_restores_all_promised_data() {
    let (mut dirty, mut images) = (0, 0);
    for seed in 1..25 {
        for left in forebay_sim::crashed::CrashedState::after_crashes(seed, false).unwrap() {
            let found = salvaged(&left.cache(), |_| {});
            images += 1;
            dirty += found.iter().filter(|(_, _, worth, _)| *worth == Worth::Dirty).count();
            assert!(
                found.iter().all(|(_, _, worth, _)| *worth == Worth::Dirty),
                "seed {seed}: nothing is damaged"
            );
            for (volume, mut contents) in left.backings().into_iter().enumerate() {
                apply(&mut contents, volume, &found);
                left.check(volume, &contents)
                    .unwrap_or_else(|why| panic!("seed {seed}, volume {volume}: {why}"));
            }
        }
    }
    assert!(images > 100 && dirty > 3_000, "{images} images, {dirty} pieces");
}

/// The same with both superblocks lost, or damaged in both copies of the checkpoint: data reported
/// as dirty is still right.
#[test]
fn dirty_data_is_right_despite_damage() {
    let (mut certain, mut uncertain) = (0, 0);
    for seed in 40..50 {
        for (at, left) in
            forebay_sim::crashed::CrashedState::after_crashes(seed, false).unwrap().iter().enumerate()
        {
            let whole = salvaged(&left.cache(), |_| {});
            let found = salvaged(&left.cache(), |cache| damage_metadata(cache, at % 2 == 0));
            for (volume, offset, worth, bytes) in &found {
                match worth {
                    Worth::Dirty => {
                        certain += 1;
                        let same =
                            |other: &&(u16, u64, Worth, Vec<u8>)| (other.0, other.1) == (*volume, *offset);
                        let right = whole.iter().find(same);
                        assert_eq!(
                            right.map(|right| &right.3),
                            Some(bytes),
                            "seed {seed}: {volume} at {offset}"
                        );
                    }
                    _ => uncertain += 1,
                }
            }
            let kept = |offset: u64, volume: u16| {
                found.iter().any(|other| {
                    other.0 == volume && other.1 <= offset && offset < other.1 + other.3.len() as u64
                })
            };
            assert!(
                whole.iter().all(|piece| kept(piece.1, piece.0)),
                "seed {seed}: something dirty is not found"
            );
        }
    }
    assert!(certain > 100 && uncertain > 100, "{certain} certain, {uncertain} uncertain");
}

/// Creates a cache with a segment in its second use, of which the write of the second batch was
/// lost: the batch of the first use is there.
fn lost_write(summary: bool) -> Cache {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[90]);
    cache.batch(3, 0, &entries, &bytes);
    let (entries, bytes) = dirty(&[91, 92]);
    let old = cache.batch(3, 2, &entries, &bytes);
    cache.next = (10, 10);
    let (entries, bytes) = dirty(&[1]);
    let at = cache.batch(3, 0, &entries, &bytes);
    cache.next = (12, 12);
    let (entries, bytes) = dirty(&[4]);
    let end = cache.batch(3, old, &entries, &bytes);
    let item = |block: u64| {
        let bytes = vec![block as u8 + 1; BLOCK_BYTES];
        let crc32c = forebay_format::checksum(&bytes);
        Some(SummaryItem { volume: VolumeId(0), block, sector_mask: 0xff, crc32c, flush_epoch: 0 })
    };
    let items = [None, item(1), None, item(2), item(3), None, item(4)];
    assert_eq!((at, old, end as usize), (2, 5, items.len()));
    let payload = forebay_format::summary::encode(items.into_iter());
    if summary {
        cache.summary(3, end, 13, &payload);
    }
    let entry = SegmentEntry {
        state: SegmentState::Sealed,
        stream: StreamKind::Write as u8,
        first_stream_sequence: 10,
        first_sequence: 10,
        used_blocks: end,
        summary_block: if summary { end } else { 0 },
        slots: SlotStates::default(),
    };
    cache.checkpoint(3, entry, &[1, 3, 4, 6]);
    cache
}

#[test]
fn older_batch_of_a_lost_write_is_ignored() {
    for summary in [true, false] {
        let cache = lost_write(summary);
        let (verdict, findings) = cache.verdict();
        let total = verdict.total();
        let unknown = (total.dirty, total.dirty_bad, verdict.unknown_dirty);
        assert_eq!(unknown, if summary { (4, 2, 0) } else { (2, 0, 2) }, "{findings:?}");
        assert!(findings.kept.iter().any(|finding| finding.what.contains("the device lost a write")));
        let found = cache.found(|_| {});
        let of = |worth| {
            found.iter().filter(|piece| piece.2 == worth).map(|piece| piece.1 / 4096).collect::<Vec<_>>()
        };
        assert_eq!((of(Worth::Dirty), of(Worth::Uncertain)), (vec![1, 4], vec![]));
        assert_eq!(of(Worth::Lost), if summary { vec![2, 3] } else { vec![] });
    }
}

#[test]
fn older_summary_of_a_lost_write_is_ignored() {
    let cache = lost_write(true);
    let item = |block: u64| {
        let bytes = vec![block as u8 + 1; BLOCK_BYTES];
        let crc32c = forebay_format::checksum(&bytes);
        Some(SummaryItem { volume: VolumeId(0), block, sector_mask: 0xff, crc32c, flush_epoch: 0 })
    };
    let old = [None, item(90), None, item(91), item(92), None, item(93)];
    cache.summary(3, 7, 3, &forebay_format::summary::encode(old.into_iter()));
    let found = cache.found(|_| {});
    let blocks: Vec<_> = found.iter().map(|piece| (piece.1 / 4096, piece.2)).collect();
    assert_eq!(blocks, [(1, Worth::Dirty), (4, Worth::Dirty)]);
    assert_eq!(cache.verdict().0.unknown_dirty, 2);
}

#[test]
fn last_summary_of_a_killed_start_counts() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1, 2]);
    let end = cache.batch(3, 0, &entries, &bytes);
    let item = |block: u64| {
        let crc32c = forebay_format::checksum(&[block as u8 + 1; BLOCK_BYTES]);
        Some(SummaryItem { volume: VolumeId(0), block, sector_mask: 0xff, crc32c, flush_epoch: 0 })
    };
    let payload = forebay_format::summary::encode([None, item(1), item(2)].into_iter());
    cache.summary(3, end, 20, &payload);
    let entry = SegmentEntry {
        state: SegmentState::Sealed,
        stream: StreamKind::Write as u8,
        first_stream_sequence: 1,
        first_sequence: 1,
        used_blocks: end + 2,
        summary_block: end,
        slots: SlotStates::default(),
    };
    cache.checkpoint(3, entry, &[1, 2]); // of start 2, which continues with number 20
    assert!(cache.verdict().1.kept.is_empty(), "{:?}", cache.verdict().1);
    // The start that took the checkpoint cannot have written it before.
    let header = BatchHeader { kind: BatchKind::Summary, epoch: 2, ..header(3, end, (20, 20), 1) };
    cache.put(
        &header,
        &[Entry::Summary { slots: end, crc32c: forebay_format::checksum(&payload) }],
        &payload,
    );
    let (verdict, findings) = cache.verdict();
    assert_eq!((verdict.total().dirty, verdict.unknown_dirty, findings.kept.len()), (2, 0, 2));
}

#[test]
fn earlier_batch_with_reused_number_is_void() {
    let cache = lost_write(false);
    let (entries, bytes) = dirty(&[91, 92]);
    let again = header(3, 2, (11, 11), 2);
    cache.put(&again, &entries, &bytes); // as if no write was lost
    assert_eq!(cache.verdict().0.unknown_dirty, 0);
    for (at, number) in [(0, 10), (5, 12)] {
        let mut header = header(3, at, (number, number), 1);
        header.epoch = 2;
        let (entries, bytes) = dirty(&[u64::from(at) + 1]);
        cache.put(&header, &entries, &bytes);
    }
    let found = cache.found(|_| {});
    assert_eq!(found.iter().map(|piece| piece.1 / 4096).collect::<Vec<_>>(), [1, 6]);
    assert_eq!(cache.verdict().0.unknown_dirty, 2);
}

#[test]
fn summary_overrules_headers_with_doubt() {
    let cache = lost_write(true);
    let (mut entries, bytes) = dirty(&[2, 3]);
    if let Entry::Data { block, .. } = &mut entries[0] {
        *block = 50;
    }
    cache.put(&header(3, 2, (11, 11), 2), &entries, &bytes);
    let found = cache.found(|_| {});
    let blocks: Vec<_> = found.iter().map(|piece| (piece.1 / 4096, piece.2)).collect();
    assert_eq!(blocks, [(1, Worth::Dirty), (2, Worth::Uncertain), (3, Worth::Dirty), (4, Worth::Dirty)]);
}

#[test]
fn failed_cache_yields_only_recorded_ranges() {
    let mut cache = Cache::new();
    let (entries, bytes) = dirty(&[1, 2]);
    cache.batch(0, 0, &entries, &bytes);
    assert!(cache.found(|_| {}).iter().all(|piece| piece.2 == Worth::Dirty));
    let found = cache.found(|salvage| {
        salvage.restrict(OnlyCopies {
            record: "record".into(),
            failed_unix_s: 0,
            volumes: vec![(0, vec![(8192, 1024)])],
        });
    });
    let ranges: Vec<_> = found.iter().map(|piece| (piece.1, piece.3.len(), piece.2)).collect();
    assert_eq!(ranges, [(8192, 1024, Worth::Uncertain)]);
}

#[test]
fn memory_without_checkpoint_is_announced() {
    let notes = |cache: &Cache| {
        let mut notes = Vec::new();
        let mut note = |memory_bytes: u64| notes.push(memory_bytes);
        opened(std::slice::from_ref(&cache.path), &mut note, &|_, _| Ok(None)).unwrap();
        notes
    };
    let cache = Cache::new();
    assert!(notes(&cache).is_empty());
    for copy in 0..2 {
        cache.file.write_all_at(&[0xff; 64], cache.geometry.checkpoint_offset(1, copy) + 4096).unwrap();
    }
    assert!(matches!(notes(&cache)[..], [memory_bytes] if memory_bytes > 0));
}

/// The volume table may be that of an older checkpoint: volumes may have been created or have grown
/// since.
#[test]
fn volumes_missing_in_table_are_salvaged() {
    let mut cache = Cache::new();
    let (mut entries, bytes) = dirty(&[1, 2]);
    if let Entry::Data { volume, .. } = &mut entries[0] {
        *volume = VolumeId(5);
    }
    if let Entry::Data { block, .. } = &mut entries[1] {
        *block = (1 << 30) / 4096 + 1;
    }
    cache.batch(0, 0, &entries, &bytes);
    assert!(cache.found(|_| {}).is_empty(), "it was being removed");
    for copy in 0..2 {
        cache.file.write_all_at(&[0xff; 512], Geometry::superblock_offset(copy)).unwrap();
    }
    let found = cache.found(|salvage| assert!(!salvage.knows_volumes && !salvage.doubts.is_empty()));
    let blocks: Vec<_> = found.iter().map(|piece| (piece.0, piece.1, piece.2)).collect();
    assert_eq!(blocks, [(5, 4096, Worth::Uncertain), (0, (1 << 30) + 4096, Worth::Uncertain)]);
}

#[test]
fn needless_key_differs_from_lost_identity() {
    let cache = Cache::new();
    for copy in 0..2 {
        // Its identity is still readable, and is tried with the key.
        cache.file.write_all_at(&[0xff; 4], Geometry::superblock_offset(copy) + 508).unwrap();
    }
    let bytes: Vec<u8> = (0..64).collect();
    let key = Key::new("key", forebay_crypt::FileKey::parse(&bytes).unwrap());
    let refused = || {
        let given = Given { paths: std::slice::from_ref(&cache.path), key: Some(&key) };
        opened(given, &mut |_| {}, &|_, _| Ok(None)).map(drop).unwrap_err()
    };
    let failure = refused();
    assert!(failure.to_string().contains("not encrypted is intact"), "{failure}");
    for copy in 0..2 {
        cache.file.write_all_at(&[0xff; 64], cache.geometry.checkpoint_offset(1, copy)).unwrap();
    }
    let failure = refused();
    assert!(failure.to_string().contains("no intact checkpoint"), "{failure}");
}

type Found = Vec<(u16, u64, Worth, Vec<u8>)>;

/// Salvages a cache given as bytes, after `change`.
fn salvaged(cache: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Found {
    let mut bytes = cache.to_vec();
    change(&mut bytes);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let (salvage, mut findings) =
        opened(&[file.path().to_owned()][..], &mut |_| {}, &|_, _| Ok(None)).unwrap();
    extracted(&salvage, &mut findings)
}

fn opened<'a>(
    given: impl Into<Given<'a>>,
    note: &mut dyn FnMut(u64),
    noted: Noted<'_>,
) -> Result<(Salvage, Findings), Refusal> {
    let mut findings = Findings::default();
    let salvage = Salvage::open(given, None, &mut findings, note, &mut |_, _| {}, noted)?;
    Ok((salvage, findings))
}

fn extracted(salvage: &Salvage, findings: &mut Findings) -> Found {
    let mut found = Vec::new();
    salvage.extract(findings, &mut |_, _| {}, &mut |piece| {
        found.push((piece.volume, piece.offset, piece.worth, piece.bytes.to_vec()));
    });
    found
}

fn apply(contents: &mut [u8], volume: usize, found: &Found) {
    for (_, offset, _, bytes) in found.iter().filter(|piece| usize::from(piece.0) == volume) {
        contents[*offset as usize..*offset as usize + bytes.len()].copy_from_slice(bytes);
    }
}

/// Overwrites both superblocks, or damages both copies of the checkpoint in effect.
fn damage_metadata(cache: &mut [u8], superblocks: bool) {
    let copies = [0, 1]
        .map(|copy| Superblock::decode(&cache[Geometry::superblock_offset(copy) as usize..][..BLOCK_BYTES]));
    let superblock = Superblock::choose(copies).unwrap();
    for copy in 0..2 {
        match superblocks {
            true => cache[Geometry::superblock_offset(copy) as usize..][..512].fill(0xff),
            false => {
                let offset =
                    superblock.geometry.checkpoint_offset(superblock.checkpoint_generation, copy as u64);
                cache[offset as usize + 5000] ^= 1;
            }
        }
    }
}

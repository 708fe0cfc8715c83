//! Handmade mirrored caches in two files.

use super::{data, extracted, header, in_bytes, opened, params};
use crate::Findings;
use crate::image::Image;
use crate::mirror::together;
use crate::salvage::Worth;
use crate::verdict::verify;
use forebay_core::format_mirrored;
use forebay_format::batch::{BatchHeader, BatchKind, Entry};
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState, SlotState, SlotStates};
use forebay_format::summary::SummaryItem;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, Geometry, StreamKind, VolumeId};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A mirrored cache in two files, with one dirty block in slot 1 of the pair of column 2.
struct Pair {
    _folder: tempfile::TempDir,
    paths: [PathBuf; 2],
    files: [File; 2],
    geometry: Geometry,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        let geometry = Geometry::mirrored(8 << 20, Some(16)).unwrap();
        let create = |path: &PathBuf| {
            let file = File::options().create_new(true).read(true).write(true).open(path).unwrap();
            file.set_len(geometry.member_bytes()).unwrap();
            file
        };
        let pair = Self { files: [create(&paths[0]), create(&paths[1])], _folder: folder, paths, geometry };
        for (offset, bytes) in format_mirrored(&params(geometry), [5, 9]).unwrap() {
            let (member, offset) = geometry.mirror_place(offset);
            pair.files[member].write_all_at(&bytes, offset).unwrap();
        }
        pair.fill();
        pair
    }

    fn superblock(&self, member: usize, change: impl Fn(&mut Superblock)) {
        for copy in 0..2 {
            let mut block = vec![0; BLOCK_BYTES];
            let offset = Geometry::superblock_offset(copy);
            self.files[member].read_exact_at(&mut block, offset).unwrap();
            let mut superblock = Superblock::decode(&block).unwrap();
            change(&mut superblock);
            self.files[member].write_all_at(&superblock.encode(), offset).unwrap();
        }
    }

    /// Writes the batch, and a checkpoint that accounts for it.
    fn fill(&self) {
        self.batch(&[0, 1], &header(2, 0, (1, 1), 1), (7, 8, true));
        let mut packed = vec![0; 4];
        packed[0] = (SlotState::Dirty as u8) << 2;
        let entry = SegmentEntry {
            state: SegmentState::Sealed,
            stream: StreamKind::Write as u8,
            first_stream_sequence: 1,
            first_sequence: 1,
            used_blocks: 2,
            summary_block: 0,
            slots: SlotStates::from_packed(packed),
        };
        let twin = 2 + self.geometry.columns() as usize;
        self.checkpoint(|checkpoint| {
            checkpoint.window.retain(|number| *number != 2);
            (checkpoint.next_sequence, checkpoint.next_stream_sequence) = (20, [20, 1, 1]);
            checkpoint.segments[2] = entry;
            checkpoint.segments[twin].state = SegmentState::Twin;
        });
    }

    /// Puts a changed next checkpoint into effect.
    fn checkpoint(&self, change: impl FnOnce(&mut Checkpoint)) {
        let mut checkpoint = Image::open(&self.paths[..]).unwrap().checkpoint().unwrap().clone();
        checkpoint.generation += 1;
        change(&mut checkpoint);
        for member in 0..2 {
            for copy in 0..2 {
                let offset = self.geometry.checkpoint_offset(checkpoint.generation, copy);
                self.files[member].write_all_at(&checkpoint.encode(), offset).unwrap();
            }
            self.superblock(member, |superblock| {
                superblock.checkpoint_generation = checkpoint.generation;
                superblock.state = CacheState::Open;
            });
        }
    }

    /// Changes the dirty block on one device.
    fn damage(&self, member: usize) {
        self.files[member].write_all_at(b"x", self.geometry.segment_offset(2, 1) + 100).unwrap();
    }

    /// Returns the results of check: dirty and clean blocks, the same through either device, and
    /// findings.
    fn checked(&self) -> ([u64; 2], Findings) {
        let mut image = Image::open(&self.paths[..]).unwrap();
        let views = image.mirror().unwrap().views();
        let (mut each, mut held) = (Vec::new(), Vec::new());
        for view in views {
            image.look_through(view).unwrap();
            let mut findings = Findings::default();
            image.judge(&mut findings);
            image.mirror().unwrap().judge(&mut findings);
            let checkpoint = image.localized(image.checkpoint().unwrap()).into_owned();
            let total = verify(&image, &checkpoint, &mut findings, &mut |_, _| {}).total();
            held.push([total.dirty, total.clean]);
            each.push(findings);
        }
        assert!(held.iter().all(|seen| *seen == held[0]), "{held:?}");
        let mut findings = each.remove(0);
        if let Some(second) = each.pop() {
            let first = std::mem::take(&mut findings);
            together(first, second, &mut findings);
        }
        (held[0], findings)
    }

    /// Returns the results of salvage on these devices: for each dirty block its number, its
    /// certainty and its first byte, in order.
    fn salvaged(&self, members: &[usize], note: Option<bool>) -> Result<Vec<(u64, Worth, u8)>, String> {
        let paths: Vec<PathBuf> = members.iter().map(|member| self.paths[*member].clone()).collect();
        // The second device is the one that may be noted.
        let opened = opened(&paths[..], &mut |_| {}, &|_, tag| Ok(note.map(|out| out && tag == 9)));
        let (salvage, mut findings) = opened.map_err(|failure| failure.to_string())?;
        let found = extracted(&salvage, &mut findings).into_iter();
        let mut found: Vec<_> = found
            .map(|(_, offset, worth, bytes)| {
                (offset / BLOCK_BYTES as u64, worth, bytes.first().copied().unwrap_or(0))
            })
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Writes a batch of one block to its place on these devices.
    fn batch(&self, members: &[usize], header: &BatchHeader, (block, fill, dirty): (u64, u8, bool)) {
        let (entry, payload) = data(block, fill, dirty);
        let bytes = in_bytes(header, &[entry], &payload);
        let column = header.segment % self.geometry.columns();
        for member in members {
            let offset = self.geometry.segment_offset(column, header.block_in_segment);
            self.files[*member].write_all_at(&bytes, offset).unwrap();
        }
    }

    /// Logs two batches after the checkpoint, in a pair: block 7 again, and block 8.
    fn log(&self, members: &[usize]) {
        self.batch(members, &header(3, 0, (20, 20), 1), (7, 9, true));
        self.batch(members, &header(3, 2, (21, 21), 1), (8, 10, true));
    }

    /// Damages a block of the pair of column 3 on a device.
    fn damage_log(&self, member: usize, block: u32) {
        self.files[member].write_all_at(b"x", self.geometry.segment_offset(3, block) + 100).unwrap();
    }

    /// Damages both copies of a checkpoint on a device.
    fn damage_checkpoint(&self, member: usize, generation: u64) {
        for copy in 0..2 {
            let offset = self.geometry.checkpoint_offset(generation, copy) + 4096;
            self.files[member].write_all_at(&[0xff; 64], offset).unwrap();
        }
    }
}

/// The data logged by [`Pair::log`].
const LOGGED: [(u64, Worth, u8); 2] = [(7, Worth::Dirty, 9), (8, Worth::Dirty, 10)];

#[test]
fn damage_on_one_device_is_no_loss() {
    let pair = Pair::new();
    let (held, findings) = pair.checked();
    assert_eq!((held, findings.faults()), ([1, 0], 0), "{findings:?}");
    pair.damage(1);
    let (_, findings) = pair.checked();
    assert_eq!((findings.lost, findings.damaged), (0, 1), "{findings:?}");
    assert!(findings.kept[0].what.contains("the copy on the other device is intact"), "{findings:?}");
    pair.damage(0);
    assert_eq!(pair.checked().1.lost, 1);
}

#[test]
fn a_device_that_was_put_out_does_not_count() {
    let pair = Pair::new();
    pair.superblock(0, |superblock| {
        superblock.generation += 1;
        if let Some(mark) = &mut superblock.mirror {
            mark.out = Some(1);
        }
    });
    pair.damage(1);
    let (held, findings) = pair.checked();
    assert_eq!((held, findings.lost, findings.damaged), ([1, 0], 0, 1), "{findings:?}");
    assert!(findings.kept[0].what.contains("failed out"), "{findings:?}");
    let image = Image::open(&pair.paths[..]).unwrap();
    assert_eq!(image.mirror().unwrap().standing().map(|(_, word)| word), ["counts", "out"]);
}

#[test]
fn split_mirror_is_refused() {
    let pair = Pair::new();
    for (member, other) in [(0, 1), (1, 0)] {
        pair.superblock(member, |superblock| {
            superblock.generation += 1;
            superblock.mirror.as_mut().unwrap().out = Some(other);
        });
    }
    let refused = Image::open(&pair.paths[..]).unwrap_err().to_string();
    assert!(refused.contains("do not show which of them is current"), "{refused}");
    assert!(pair.salvaged(&[0, 1], None).unwrap_err().contains("do not show which of them is current"));
    assert_eq!(pair.salvaged(&[1], None).unwrap()[0].1, Worth::Uncertain);
}

#[test]
fn salvage_uses_the_right_copy_of_a_mirror() {
    let pair = Pair::new();
    let dirty = Ok(vec![(7, Worth::Dirty, 8)]);
    assert_eq!(pair.salvaged(&[0, 1], None), dirty);
    assert_eq!(pair.salvaged(&[0], Some(false)), dirty);
    assert_eq!(pair.salvaged(&[1, 0], Some(true)), dirty);
    let alone = pair.salvaged(&[0], None).unwrap();
    assert_eq!(alone[0].1, Worth::Uncertain, "nobody knows whether the other one went on alone");
    assert!(pair.salvaged(&[1], Some(true)).unwrap_err().contains("failed out"));
    pair.damage(0);
    assert_eq!(pair.salvaged(&[0, 1], Some(false)), dirty);
    assert_eq!(pair.salvaged(&[0], Some(false)).unwrap()[0].1, Worth::Lost);
}

#[test]
fn salvage_needs_one_right_copy_per_block() {
    for member in 0..2 {
        for block in 0..4 {
            let pair = Pair::new();
            pair.log(&[0, 1]);
            pair.damage_log(member, block);
            let other = 1 - member;
            assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), LOGGED, "device {member}, block {block}");
            pair.damage_log(other, (block + 2) % 4);
            pair.damage_log(other, (block + 3) % 4);
            assert_eq!(pair.salvaged(&[1, 0], None).unwrap(), LOGGED, "devices {member}, {other}");
        }
        let pair = Pair::new();
        pair.log(&[0, 1]);
        pair.files[member].set_len(pair.geometry.segment_offset(3, 0)).unwrap();
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), LOGGED, "device {member} cannot read it");
    }
}

#[test]
fn salvage_reads_the_log_of_a_lone_device() {
    for member in 0..2 {
        let pair = Pair::new();
        let earlier = header(3, 0, (9, 9), 1);
        pair.batch(&[0, 1], &earlier, (7, 3, true));
        pair.log(&[member]);
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), LOGGED, "only device {member} has the log");
        let torn = header(3, 0, (20, 20), 1);
        pair.batch(&[1 - member], &torn, (7, 9, true));
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), LOGGED, "the other one has its beginning");
    }
}

#[test]
fn newer_mirror_batch_counts_whole_or_not() {
    let pair = Pair::new();
    pair.batch(&[0], &header(3, 0, (20, 20), 1), (7, 3, true));
    pair.batch(&[1], &header(3, 0, (22, 20), 1), (7, 9, true));
    assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), [(7, Worth::Dirty, 9)]);
    pair.damage_log(1, 1);
    assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), [(7, Worth::Dirty, 8)], "the log ends there");
}

#[test]
fn salvage_uses_checkpoint_of_either_device() {
    for member in 0..2 {
        let pair = Pair::new();
        pair.log(&[0, 1]);
        pair.damage_checkpoint(member, 2);
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), LOGGED, "device {member}");
    }
}

#[test]
fn heads_identify_pairs_without_checkpoint() {
    let pair = Pair::new();
    pair.batch(&[0, 1], &header(3, 0, (20, 2), 1), (7, 9, true));
    pair.batch(&[0, 1], &header(3, 2, (21, 3), 1), (8, 10, true));
    pair.damage_log(0, 0);
    pair.damage_log(1, 2);
    (0..2).for_each(|member| pair.damage_checkpoint(member, 2));
    let uncertain = |found: Vec<(u64, Worth, u8)>| {
        assert!(found.iter().all(|piece| piece.1 == Worth::Uncertain), "{found:?}");
        found.iter().map(|piece| (piece.0, piece.2)).collect::<Vec<_>>()
    };
    assert_eq!(uncertain(pair.salvaged(&[0, 1], None).unwrap()), [(7, 9), (8, 10)]);
    assert_eq!(uncertain(pair.salvaged(&[1], Some(false)).unwrap()), [(7, 9)]);
}

#[test]
fn each_copy_is_checked_against_the_summary() {
    for member in 0..2 {
        let pair = Pair::new();
        let crc32c = forebay_format::checksum(&[8; BLOCK_BYTES]);
        let item = SummaryItem { volume: VolumeId(0), block: 7, sector_mask: 0xff, crc32c, flush_epoch: 0 };
        let payload = forebay_format::summary::encode([None, Some(item)].into_iter());
        let header_of_it = BatchHeader { kind: BatchKind::Summary, ..header(2, 2, (2, 2), 1) };
        let entry = Entry::Summary { slots: 2, crc32c: forebay_format::checksum(&payload) };
        let bytes = in_bytes(&header_of_it, &[entry], &payload);
        for device in &pair.files {
            device.write_all_at(&bytes, pair.geometry.segment_offset(2, 2)).unwrap();
        }
        pair.checkpoint(|checkpoint| checkpoint.segments[2].summary_block = 2);
        // One device has lost the write of the batch; on the other one the header is damaged.
        let mut earlier = header(2, 0, (0, 0), 1);
        earlier.epoch = 0;
        pair.batch(&[1 - member], &earlier, (40, 4, true));
        pair.files[member].write_all_at(b"x", pair.geometry.segment_offset(2, 0) + 9).unwrap();
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), [(7, Worth::Dirty, 8)], "device {member}");
    }
}

/// Clean blocks were logged in halves of columns on which the devices still have the earlier pair.
#[test]
fn fills_over_earlier_pairs_are_no_damage() {
    let fills = |pair: &Pair, first: bool| {
        let twin = 5 + pair.geometry.columns();
        for (segment, member, number) in [(4, 0, (20, 1)), (twin, 1, (21, 2))] {
            let mut header = header(segment, 0, number, 1);
            header.stream = StreamKind::Fill;
            header.flushed_stream_sequence = number.1;
            if first || member == 1 {
                pair.batch(&[member], &header, (20 + number.1, 1, false));
            }
        }
        // The second device has the newer superblock, as a crash leaves it.
        pair.superblock(1, |superblock| superblock.generation += 1);
    };
    for first in [true, false] {
        let pair = Pair::new();
        for segment in [4, 5] {
            let earlier = header(segment, 0, (u64::from(segment), u64::from(segment)), 1);
            pair.batch(&[0, 1], &earlier, (30, 2, true));
        }
        fills(&pair, first);
        let (held, findings) = pair.checked();
        let clean = if first { 2 } else { 0 };
        assert_eq!((held, findings.faults()), ([1, clean], 0), "{findings:?}");
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), [(7, Worth::Dirty, 8)]);
        pair.log(&[0, 1]);
        pair.damage_log(0, 0);
        assert_eq!(pair.salvaged(&[0, 1], None).unwrap(), LOGGED);
    }
}

#[test]
fn missing_clean_blocks_cause_no_doubt() {
    let pair = Pair::new();
    let mut behind_a_hole = header(3, 0, (23, 21), 1);
    behind_a_hole.flushed_stream_sequence = 21;
    pair.batch(&[0, 1], &behind_a_hole, (8, 10, true));
    let mut fill = header(4, 0, (30, 5), 1);
    (fill.stream, fill.flushed_stream_sequence) = (StreamKind::Fill, 5);
    pair.batch(&[0], &fill, (20, 1, false));
    let found = pair.salvaged(&[0, 1], None).unwrap();
    assert_eq!(found, [(7, Worth::Uncertain, 8), (8, Worth::Dirty, 10)]);
}

//! A mirrored cache, seen through one of its two devices.
//!
//! Either device must do without the other, so each is looked at alone: its superblocks, its checkpoints, its copies of what both have
//! (*pairs*). What only one of them has (clean blocks) is read where it is. Which segments are pairs the checkpoint says, by the
//! twins; of a column that was free then, the first header of a batch says it.
//!
//! A device counts if the superblock with the highest generation lists it. That one of them was put out may be known only to the
//! notes of its daemon; who knows where those are asks them.

use std::collections::BTreeSet;

use forebay_format::batch::BatchHeader;
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, StreamKind};
use forebay_io::Device;

use super::{Findings, Severity};
use crate::failure::Failure;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Says whether the notes of a daemon call a device out, by its tag; `None` if there are no notes of this cache.
pub(crate) type Noted<'a> = &'a dyn Fn(CacheUuid, u64) -> Result<Option<bool>, Failure>;

/// One of the two devices.
#[derive(Debug)]
struct Mate {
    device: Device,
    superblock: Superblock,
    /// What is on it counts.
    counts: bool,
    /// There are notes of this cache.
    noted: bool,
}

/// The two devices of a mirrored cache, as far as they were given.
#[derive(Debug)]
pub(crate) struct Mates {
    mates: [Option<Mate>; 2],
    geometry: Geometry,
    /// The device that it is seen through.
    view: usize,
    /// Columns that are used for pairs.
    pairs: BTreeSet<u32>,
}

impl Mates {
    /// Devices with these superblocks, all of which are of mirrored caches.
    pub(super) fn new(found: Vec<(Device, Superblock)>, noted: Noted<'_>) -> Result<Self, Failure> {
        let newest =
            found.iter().map(|(_, superblock)| superblock).max_by_key(|superblock| superblock.generation);
        let Some(newest) = newest.cloned() else { return Err(Failure::new("no device")) };
        newest.geometry.validate_mirrored().map_err(|error| Failure::new(error.to_string()))?;
        let mut mates = [None, None];
        for (device, superblock) in found {
            let path = device.path().display().to_string();
            let Some(mark) = superblock.mirror else {
                return Err(Failure::new(format!("{path}: a cache that is not mirrored"))
                    .hint("give the devices of one cache"));
            };
            if superblock.uuid != newest.uuid {
                return Err(Failure::new(format!(
                    "{path} belongs to the cache {}, not to {}",
                    superblock.uuid, newest.uuid
                ))
                .hint("give the two devices of one cache"));
            }
            let member = usize::from(mark.member);
            let tag = mark.tags[member];
            let note = noted(superblock.uuid, tag)?;
            let listed = newest
                .mirror
                .is_some_and(|newest| newest.out != Some(mark.member) && newest.tags[member] == tag);
            let recent =
                newest.generation - superblock.generation <= 1 && newest.geometry == superblock.geometry;
            let counts = listed && recent && note != Some(true);
            if mates[member].is_some() {
                return Err(Failure::new(format!(
                    "{path}: two devices say that they are device {}",
                    member + 1
                ))
                .hint("one of them is a copy, or was replaced: leave it out"));
            }
            mates[member] = Some(Mate { device, superblock, counts, noted: note.is_some() });
        }
        let counts = |member: &usize| {
            mates[*member].as_ref().filter(|mate| mate.counts).map(|mate| mate.superblock.generation)
        };
        let Some(view) = (0..2).rev().filter(|member| counts(member).is_some()).max_by_key(counts) else {
            return Err(none_counts(&mates));
        };
        Ok(Self { mates, geometry: newest.geometry, view, pairs: BTreeSet::new() })
    }

    /// The devices that count.
    pub(crate) fn views(&self) -> Vec<usize> {
        (0..2).filter(|member| self.counts(*member)).collect()
    }

    fn counts(&self, member: usize) -> bool {
        self.mates[member].as_ref().is_some_and(|mate| mate.counts)
    }

    /// Only one device counts, and no notes say that it is the one.
    pub(crate) fn is_doubtful(&self) -> bool {
        self.views().len() == 1
            && self.mates.iter().flatten().any(|mate| mate.counts && !mate.noted)
            && self.mates.iter().flatten().count() == 1
    }

    /// Looks through the other device; it must count.
    pub(super) fn look_through(&mut self, member: usize) {
        self.view = member;
    }

    /// The device that it is seen through.
    pub(super) fn device(&self) -> &Device {
        match &self.mates {
            [Some(mate), _] if self.view == 0 => &mate.device,
            [_, Some(mate)] => &mate.device,
            [Some(mate), None] => &mate.device,
            [None, None] => unreachable!("the device that it is seen through counts"),
        }
    }

    /// Bytes of the pool's space.
    pub(super) fn bytes(&self) -> u64 {
        2 * self.geometry.member_bytes()
    }

    /// Reads bytes that lie in the metadata, or in one segment.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        let (start, unit) = (self.geometry.segments_start_block * BLOCK, self.geometry.segment_bytes());
        let Some(inside) = offset.checked_sub(start) else { return self.read_from(self.view, offset, bytes) };
        let columns = u64::from(self.geometry.columns());
        let (number, rest) = (inside / unit, inside % unit);
        let column = number % columns;
        let pair = self.pairs.contains(&(column as u32));
        let member = if pair { self.view } else { usize::from(number >= columns) };
        self.read_from(member, start + column * unit + rest, bytes)
    }

    fn read_from(&self, member: usize, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        let device = &self.mates[member].as_ref().filter(|mate| mate.counts).ok_or(())?.device;
        let end = offset.checked_add(bytes.len() as u64).ok_or(())?;
        if end > device.size_bytes() { Err(()) } else { device.read_at(offset, bytes).map_err(drop) }
    }

    /// A block of a pair as the other device has it.
    pub(super) fn other_copy(&self, segment: u32, index: u32) -> Option<Vec<u8>> {
        let column = segment % self.geometry.columns();
        let offset = self.geometry.segment_offset(column, index);
        let mut block = vec![0; BLOCK_BYTES];
        let pair = self.pairs.contains(&column);
        (pair && self.read_from(1 - self.view, offset, &mut block).is_ok()).then_some(block)
    }

    // --- what a checkpoint says

    /// Learns which columns are pairs.
    pub(super) fn learn(&mut self, checkpoint: &Checkpoint) {
        let columns = self.geometry.columns();
        let state = |number: u32| checkpoint.segments.get(number as usize).map(|entry| entry.state);
        self.pairs =
            (0..columns).filter(|first| state(first + columns) == Some(SegmentState::Twin)).collect();
        let free = |number: u32| state(number) == Some(SegmentState::Free);
        for number in &checkpoint.window {
            let first = number % columns;
            if free(first) && free(first + columns) && self.holds_pair(first, checkpoint) {
                self.pairs.insert(first);
            }
        }
    }

    /// Whether a column that the checkpoint calls free was used for a pair since.
    fn holds_pair(&self, first: u32, checkpoint: &Checkpoint) -> bool {
        let mut block = vec![0; BLOCK_BYTES];
        if self.read_from(self.view, self.geometry.segment_offset(first, 0), &mut block).is_err() {
            return true; // The log may go on there: not knowing it is no less than a pair that cannot be read.
        }
        let mut entries = Vec::new();
        BatchHeader::decode(&block, &mut entries).is_ok_and(|header| {
            header.check_place(checkpoint.uuid, first, 0).is_ok() && header.stream != StreamKind::Fill
        })
    }

    /// The checkpoint without what lay on a device that does not count, and with both halves of free columns in its window.
    pub(super) fn localized(&self, checkpoint: &Checkpoint) -> Checkpoint {
        let columns = self.geometry.columns();
        let there = |number: u32| {
            self.pairs.contains(&(number % columns)) || self.counts(usize::from(number >= columns))
        };
        let mut checkpoint = checkpoint.clone();
        for (number, entry) in (0..).zip(&mut checkpoint.segments) {
            if entry.state != SegmentState::Twin && !there(number) {
                *entry = SegmentEntry::default();
            }
        }
        let halves = |number: &u32| {
            let first = number % columns;
            let single = !self.pairs.contains(&first);
            [Some(first), single.then_some(first + columns)].into_iter().flatten()
        };
        let free = |number: &u32| {
            checkpoint.segments.get(*number as usize).is_some_and(|entry| entry.state == SegmentState::Free)
        };
        let window: BTreeSet<u32> = checkpoint
            .window
            .iter()
            .flat_map(halves)
            .filter(|number| free(number) && there(*number))
            .collect();
        checkpoint.window = window.into_iter().collect();
        checkpoint
    }

    /// True if clean blocks may be missing from the log: a device does not count.
    pub(super) fn lacks_fills(&self) -> bool {
        self.views().len() < 2
    }

    // --- for people

    /// How the devices stand: for each its path, if it was given, and a word.
    pub(crate) fn standing(&self) -> [(String, &'static str); 2] {
        [0, 1].map(|member| match &self.mates[member] {
            None => (format!("device {}", member + 1), "not given"),
            Some(mate) => {
                (mate.device.path().display().to_string(), if mate.counts { "counts" } else { "out" })
            }
        })
    }

    /// What there is to say about the devices.
    pub(crate) fn judge(&self, findings: &mut Findings) {
        for (path, standing) in self.standing() {
            match standing {
                "counts" => {}
                "out" => findings.add(
                    Severity::Damaged,
                    path,
                    "it was put out of the mirrored cache, which goes on with the other device: what is on it is old",
                ),
                _ => findings.add(
                    Severity::Damaged,
                    format!("{path} of the mirrored cache"),
                    "it was not given: if a daemon went on with it alone, what is here is old",
                ),
            }
        }
    }
}

fn none_counts(mates: &[Option<Mate>; 2]) -> Failure {
    let paths: Vec<String> =
        mates.iter().flatten().map(|mate| mate.device.path().display().to_string()).collect();
    let what = format!(
        "{}: put out of a mirrored cache, which went on with the other device: what is here is old",
        paths.join(", ")
    );
    Failure::new(what).hint("give the device that was used last")
}

/// What was found through each device as one: what only one of them has damaged is not lost.
pub(crate) fn together(first: Findings, second: Findings, into: &mut Findings) {
    let lost_in = |findings: &Findings, place: &str| {
        findings.kept.iter().any(|other| other.severity == Severity::Lost && other.place == place)
    };
    let lost_of = |findings: &Findings| findings.kept.iter().filter(|f| f.severity == Severity::Lost).count();
    let unlisted = |findings: &Findings| findings.lost.saturating_sub(lost_of(findings) as u64);
    let both = unlisted(&first).min(unlisted(&second));
    for finding in &first.kept {
        let spared = finding.severity == Severity::Lost && !lost_in(&second, &finding.place);
        add(into, finding, spared);
    }
    for finding in second.kept.iter().filter(|finding| !first.kept.contains(finding)) {
        let lost = finding.severity == Severity::Lost;
        if !(lost && lost_in(&first, &finding.place)) {
            add(into, finding, lost);
        }
    }
    into.lost += both;
    into.damaged += unlisted(&first).max(unlisted(&second)) - both;
}

fn add(into: &mut Findings, finding: &super::Finding, spared: bool) {
    if spared {
        let what = format!("{}; the copy on the other device is intact", finding.what);
        into.add(Severity::Damaged, finding.place.clone(), what);
    } else {
        into.add(finding.severity, finding.place.clone(), finding.what.clone());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::cache::image::Image;
    use crate::cache::salvage::{Salvage, Worth};
    use crate::cache::verdict::verify;
    use forebay_core::{FormatParams, format_mirrored};
    use forebay_format::VolumeId;
    use forebay_format::batch::{BatchKind, Entry};
    use forebay_format::checkpoint::{Mode, SlotState, SlotStates, VolumeEntry};
    use forebay_format::superblock::CacheState;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    const UUID: CacheUuid = CacheUuid([7; 16]);

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
            let pair =
                Self { files: [create(&paths[0]), create(&paths[1])], _folder: folder, paths, geometry };
            let volume = VolumeEntry {
                name: "v".into(),
                size_bytes: 1 << 30,
                mode: Mode::Writeback,
                ..VolumeEntry::default()
            };
            let params = FormatParams {
                geometry,
                uuid: UUID,
                encryption: None,
                volumes: vec![volume],
                members: Default::default(),
                created_unix_s: 0,
                written_by: "test".into(),
            };
            for (offset, bytes) in format_mirrored(&params, [5, 9]).unwrap() {
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

        /// The batch, and a checkpoint that accounts for it.
        fn fill(&self) {
            let (mut bytes, payload) = (vec![0; BLOCK_BYTES], vec![8; BLOCK_BYTES]);
            let entry = Entry::Data {
                volume: VolumeId(0),
                block: 7,
                crc32c: forebay_format::checksum(&payload),
                sector_mask: 0xff,
                dirty: true,
                flush_epoch: 0,
            };
            let header = BatchHeader {
                kind: BatchKind::Records,
                stream: StreamKind::Write,
                uuid_tag: UUID.tag(),
                epoch: 1,
                sequence: 1,
                stream_sequence: 1,
                flushed_stream_sequence: 0,
                segment: 2,
                block_in_segment: 0,
                payload_blocks: 1,
            };
            header.encode(&[entry], &mut bytes);
            bytes.extend_from_slice(&payload);
            let image = Image::open(&self.paths[..]).unwrap();
            let mut checkpoint = image.checkpoint().unwrap().clone();
            drop(image);
            checkpoint.window.retain(|number| *number != 2);
            (checkpoint.generation, checkpoint.next_sequence) = (2, 20);
            checkpoint.next_stream_sequence = [20, 1, 1];
            let mut packed = vec![0; 4];
            packed[0] = (SlotState::Dirty as u8) << 2;
            checkpoint.segments[2] = SegmentEntry {
                state: SegmentState::Sealed,
                stream: StreamKind::Write as u8,
                first_stream_sequence: 1,
                first_sequence: 1,
                used_blocks: 2,
                summary_block: 0,
                slots: SlotStates::from_packed(packed),
            };
            let twin = 2 + self.geometry.columns();
            checkpoint.segments[twin as usize].state = SegmentState::Twin;
            for member in 0..2 {
                self.files[member].write_all_at(&bytes, self.geometry.segment_offset(2, 0)).unwrap();
                for copy in 0..2 {
                    let offset = self.geometry.checkpoint_offset(2, copy);
                    self.files[member].write_all_at(&checkpoint.encode(), offset).unwrap();
                }
                self.superblock(member, |superblock| {
                    (superblock.checkpoint_generation, superblock.state) = (2, CacheState::Open);
                });
            }
        }

        /// Changes the dirty block on one device.
        fn damage(&self, member: usize) {
            self.files[member].write_all_at(b"x", self.geometry.segment_offset(2, 1) + 100).unwrap();
        }

        /// What check says: dirty blocks, and findings.
        fn checked(&self) -> (u64, Findings) {
            let mut image = Image::open(&self.paths[..]).unwrap();
            let views = image.mates().unwrap().views();
            let mut each = Vec::new();
            let mut dirty = 0;
            for view in views {
                image.look_through(view).unwrap();
                let mut findings = Findings::default();
                image.judge(&mut findings);
                image.mates().unwrap().judge(&mut findings);
                let checkpoint = image.localized(image.checkpoint().unwrap()).into_owned();
                dirty = verify(&image, &checkpoint, &mut findings, &mut |_, _| {}).total().dirty;
                each.push(findings);
            }
            let mut findings = each.remove(0);
            if let Some(second) = each.pop() {
                let first = std::mem::take(&mut findings);
                together(first, second, &mut findings);
            }
            (dirty, findings)
        }

        /// What salvage finds of the dirty block on these devices.
        fn salvaged(&self, members: &[usize], note: Option<bool>) -> Result<Vec<(Worth, Vec<u8>)>, String> {
            let paths: Vec<PathBuf> = members.iter().map(|member| self.paths[*member].clone()).collect();
            let mut findings = Findings::default();
            // The second device is the one that may have been noted.
            let noted = |_, tag| Ok(note.map(|out| out && tag == 9));
            let salvage = Salvage::open(&paths[..], None, &mut findings, &mut |_| {}, &mut |_, _| {}, &noted);
            let salvage = salvage.map_err(|failure| failure.to_string())?;
            let mut found = Vec::new();
            salvage.extract(&mut findings, &mut |_, _| {}, &mut |piece| {
                assert_eq!((piece.volume, piece.offset, piece.len), (0, 7 * BLOCK, BLOCK));
                found.push((piece.worth, piece.bytes.to_vec()));
            });
            Ok(found)
        }
    }

    #[test]
    fn damage_on_one_device_is_no_loss() {
        let pair = Pair::new();
        let (dirty, findings) = pair.checked();
        assert_eq!((dirty, findings.faults()), (1, 0), "{findings:?}");
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
        let (dirty, findings) = pair.checked();
        assert_eq!((dirty, findings.lost, findings.damaged), (1, 0, 1), "{findings:?}");
        assert!(findings.kept[0].what.contains("put out"), "{findings:?}");
        let image = Image::open(&pair.paths[..]).unwrap();
        assert_eq!(image.mates().unwrap().standing().map(|(_, word)| word), ["counts", "out"]);
    }

    #[test]
    fn salvage_takes_whichever_copy_is_right_and_no_device_that_was_put_out() {
        let pair = Pair::new();
        let dirty = Ok(vec![(Worth::Dirty, vec![8; BLOCK_BYTES])]);
        assert_eq!(pair.salvaged(&[0, 1], None), dirty);
        assert_eq!(pair.salvaged(&[0], Some(false)), dirty);
        assert_eq!(pair.salvaged(&[1, 0], Some(true)), dirty);
        let alone = pair.salvaged(&[0], None).unwrap();
        assert_eq!(alone[0].0, Worth::Uncertain, "nobody knows whether the other one went on alone");
        assert!(pair.salvaged(&[1], Some(true)).unwrap_err().contains("put out"));
        pair.damage(0);
        assert_eq!(pair.salvaged(&[0, 1], Some(false)), dirty);
        assert_eq!(pair.salvaged(&[0], Some(false)).unwrap()[0].0, Worth::Lost);
    }
}

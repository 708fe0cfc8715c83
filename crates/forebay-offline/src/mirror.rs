//! A mirrored cache, read through both of its devices or through one of them.
//!
//! Salvage reads both devices together, as recovery does: checkpoints and *pairs* (segments that
//! both devices have) are taken from the intact copy. Check reads through each device alone,
//! because each must work without the other. Clean blocks that only one device has are read there.
//!
//! The checkpoint names the pairs, by their twins. A column that was free then is a pair if the
//! first batch header in it was written since and is not of the fill stream. All other segments
//! hold only fills.
//!
//! [`crate::mirror_members`] and the notes of the daemon decide which devices count.

use forebay_admin::MessageId;
use std::collections::BTreeSet;
use std::path::Path;

use forebay_format::batch::BatchHeader;
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry, StreamKind};
use forebay_io::Device;

use crate::Refusal;
use crate::mirror_members::{MirrorMember, check_both, stale_tag};
use crate::{Findings, Severity};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Returns whether the notes of a daemon record a device as out, by its tag; `None` if there are no
/// notes of this cache.
pub type Noted<'a> = &'a dyn Fn(CacheUuid, u64) -> Result<Option<bool>, Refusal>;

/// One of the two devices.
#[derive(Debug)]
struct Given {
    is: MirrorMember,
    /// Its content counts.
    counts: bool,
    /// There are notes of this cache.
    noted: bool,
}

/// The given devices of a mirrored cache.
#[derive(Debug)]
pub struct Mirror {
    mirror: [Option<Given>; 2],
    geometry: Geometry,
    /// The device to read through: the source of superblocks, and of all other intact data.
    view: usize,
    /// No shared data is read from the other device.
    alone: bool,
    /// Columns that are used for pairs.
    pairs: BTreeSet<u32>,
}

impl Mirror {
    /// Creates a mirror from devices with superblocks of mirrored caches.
    pub(crate) fn new(found: Vec<(Device, Superblock)>, noted: Noted<'_>) -> Result<Self, Refusal> {
        let newest =
            found.iter().map(|(_, superblock)| superblock).max_by_key(|superblock| superblock.generation);
        let Some(newest) = newest.cloned() else {
            return Err(Refusal::new(MessageId::PoolNoDevice, "no device"));
        };
        newest
            .geometry
            .validate_mirrored()
            .map_err(|error| Refusal::new(MessageId::CacheDamaged, error.to_string()))?;
        let mut mirror: [Option<Given>; 2] = [None, None];
        for (device, superblock) in found {
            let path = device.path().display().to_string();
            let Some(is) = MirrorMember::new(device, superblock) else {
                return Err(Refusal::new(
                    MessageId::CacheNotMirrored,
                    format!("{path}: a cache that is not mirrored"),
                )
                .hint("give the devices of one cache"));
            };
            for other in mirror.iter().flatten() {
                check_both(&is, &other.is)?;
            }
            let note = noted(is.superblock.uuid, is.tag())?;
            let counts = is.superblock.geometry == newest.geometry && note != Some(true);
            let member = usize::from(is.member());
            mirror[member] = Some(Given { is, counts, noted: note.is_some() });
        }
        if let [Some(a), Some(b)] = &mut mirror
            && a.counts
            && b.counts
        {
            let stale = stale_tag(&a.is, &b.is)?;
            for given in [a, b] {
                given.counts = stale != Some(given.is.tag());
            }
        }
        let counts = |member: &usize| {
            mirror[*member].as_ref().filter(|found| found.counts).map(|found| found.is.superblock.generation)
        };
        let Some(view) = (0..2).rev().filter(|member| counts(member).is_some()).max_by_key(counts) else {
            return Err(none_counts(&mirror));
        };
        Ok(Self { mirror, geometry: newest.geometry, view, alone: false, pairs: BTreeSet::new() })
    }

    /// Returns the devices that count.
    pub fn views(&self) -> Vec<usize> {
        (0..2).filter(|member| self.counts(*member)).collect()
    }

    fn counts(&self, member: usize) -> bool {
        self.mirror[member].as_ref().is_some_and(|found| found.counts)
    }

    /// Returns true if only one device counts, without notes that confirm it.
    pub fn is_doubtful(&self) -> bool {
        self.views().len() == 1
            && self.mirror.iter().flatten().any(|found| found.counts && !found.noted)
            && self.mirror.iter().flatten().count() == 1
    }

    /// Reads only through one device from now on; it must count.
    pub(crate) fn look_through(&mut self, member: usize) {
        (self.view, self.alone) = (member, true);
    }

    /// Returns the other device, if its data is used too.
    pub(crate) fn other(&self) -> Option<usize> {
        let other = 1 - self.view;
        (!self.alone && self.counts(other)).then_some(other)
    }

    /// Returns the device with the other copy of this segment, if it is of a pair and that copy is
    /// used too.
    pub(crate) fn other_of_pair(&self, segment: u32) -> Option<usize> {
        self.other().filter(|_| self.is_pair(segment))
    }

    /// Returns true if the column of this segment is a pair. Else the segment has only fills.
    pub(crate) fn is_pair(&self, segment: u32) -> bool {
        self.pairs.contains(&(segment % self.geometry.columns()))
    }

    /// Returns the device to read through.
    pub(crate) fn device(&self) -> &Device {
        match &self.mirror {
            [Some(found), _] if self.view == 0 => &found.is.device,
            [_, Some(found)] => &found.is.device,
            [Some(found), None] => &found.is.device,
            [None, None] => unreachable!("the device that it is seen through counts"),
        }
    }

    /// Returns the bytes of the pool's space.
    pub(crate) fn bytes(&self) -> u64 {
        2 * self.geometry.member_bytes()
    }

    /// Reads bytes within the metadata, or within one segment.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        let (start, unit) = (self.geometry.segments_start_block * BLOCK, self.geometry.segment_bytes());
        let Some(inside) = offset.checked_sub(start) else { return self.read_from(self.view, offset, bytes) };
        let columns = u64::from(self.geometry.columns());
        let (number, rest) = (inside / unit, inside % unit);
        let column = number % columns;
        let pair = self.pairs.contains(&(column as u32));
        let member = if pair { self.view } else { usize::from(number >= columns) };
        self.read_from(member, start + column * unit + rest, bytes)
    }

    /// Reads bytes of one of the devices, if it counts.
    pub(crate) fn read_from(&self, member: usize, offset: u64, bytes: &mut [u8]) -> Result<(), ()> {
        let device = &self.mirror[member].as_ref().filter(|found| found.counts).ok_or(())?.is.device;
        let end = offset.checked_add(bytes.len() as u64).ok_or(())?;
        if end > device.size_bytes() { Err(()) } else { device.read_at(offset, bytes).map_err(drop) }
    }

    /// Returns the devices in use.
    fn seen(&self) -> impl Iterator<Item = usize> {
        [Some(self.view), self.other()].into_iter().flatten()
    }

    /// Returns the copies of a block of a pair.
    pub(crate) fn copies(&self, segment: u32, index: u32) -> impl Iterator<Item = Vec<u8>> {
        let offset = self.geometry.segment_offset(segment % self.geometry.columns(), index);
        self.seen().filter(move |_| self.is_pair(segment)).filter_map(move |member| {
            let mut block = vec![0; BLOCK_BYTES];
            self.read_from(member, offset, &mut block).is_ok().then_some(block)
        })
    }

    fn superblock(&self) -> Option<&Superblock> {
        self.mirror[self.view].as_ref().map(|found| &found.is.superblock)
    }

    // --- information from a checkpoint

    /// Determines which columns are pairs.
    pub(crate) fn learn(&mut self, checkpoint: &Checkpoint) {
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

    /// Returns true if a column that is free in the checkpoint was used for a pair since. Remains
    /// of an earlier use do not count.
    fn holds_pair(&self, first: u32, checkpoint: &Checkpoint) -> bool {
        let epoch = self.superblock().map(|superblock| superblock.epoch);
        let since =
            |head: &BatchHeader| Some(head.epoch) == epoch && head.sequence >= checkpoint.next_sequence;
        let (mut holds, mut readable) = (false, false);
        for head in self.seen().map(|member| self.head(member, first)) {
            readable |= head.is_ok();
            holds |= matches!(head, Ok(Some(head)) if since(&head) && head.stream != StreamKind::Fill);
        }
        // The log may continue there: unreadable headers are as bad as an unreadable pair.
        holds || !readable
    }

    /// Returns the header at the start of a segment on a device; an error if it is unreadable.
    fn head(&self, member: usize, segment: u32) -> Result<Option<BatchHeader>, ()> {
        let mut block = vec![0; BLOCK_BYTES];
        let offset = self.geometry.segment_offset(segment % self.geometry.columns(), 0);
        self.read_from(member, offset, &mut block)?;
        let header = BatchHeader::decode(&block, &mut Vec::new()).ok();
        let uuid = self.superblock().map(|superblock| superblock.uuid);
        Ok(header.filter(|header| uuid.is_some_and(|uuid| header.check_place(uuid, segment, 0).is_ok())))
    }

    /// Determines which columns are pairs without the checkpoint in effect: by the latest header,
    /// else by an older checkpoint.
    pub(crate) fn learn_by_heads(&mut self, base: &Checkpoint) {
        let columns = self.geometry.columns();
        let is_pair = |first: &u32| {
            let places = self.seen().flat_map(|member| [(member, *first), (member, *first + columns)]);
            let heads = places.filter_map(|(member, segment)| self.head(member, segment).ok()?);
            let latest = heads.max_by_key(|head| (head.epoch, head.sequence));
            let twin = base.segments.get((*first + columns) as usize).map(|entry| entry.state);
            latest.map_or(twin == Some(SegmentState::Twin), |head| head.stream != StreamKind::Fill)
        };
        self.pairs = (0..columns).filter(is_pair).collect();
    }

    /// Returns the checkpoint without the data of a device that does not count, and with both
    /// halves of free columns in its window.
    pub(crate) fn localized(&self, checkpoint: &Checkpoint) -> Checkpoint {
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

    // --- output

    /// Returns the path of a device, if it was given.
    pub(crate) fn path(&self, member: usize) -> Option<&Path> {
        self.mirror[member].as_ref().map(|found| found.is.device.path())
    }

    /// Returns the state of each device: its path, if it was given, and a word.
    pub fn standing(&self) -> [(String, &'static str); 2] {
        [0, 1].map(|member| match &self.mirror[member] {
            None => (format!("device {}", member + 1), "not given"),
            Some(found) => {
                (found.is.device.path().display().to_string(), if found.counts { "counts" } else { "out" })
            }
        })
    }

    /// Adds findings about the devices.
    pub fn judge(&self, findings: &mut Findings) {
        for (path, standing) in self.standing() {
            match standing {
                "counts" => {}
                "out" => findings.add(
                    Severity::Damaged,
                    path,
                    "it was failed out of the mirrored cache, which continues with the other device: its data is stale",
                ),
                _ => findings.add(
                    Severity::Damaged,
                    format!("{path} of the mirrored cache"),
                    "it was not given: if a daemon continued with it alone, the data here is stale",
                ),
            }
        }
    }
}

fn none_counts(mirror: &[Option<Given>; 2]) -> Refusal {
    let paths: Vec<String> =
        mirror.iter().flatten().map(|found| found.is.device.path().display().to_string()).collect();
    let what = format!(
        "{}: failed out of a mirrored cache, which continued with the other device: the data here is stale",
        paths.join(", ")
    );
    Refusal::new(MessageId::CacheMemberStale, what).hint("give the device that was used last")
}

/// Combines the findings through each device: data damaged on only one of them is not lost.
pub fn together(first: Findings, second: Findings, into: &mut Findings) {
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

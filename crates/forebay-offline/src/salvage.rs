//! Finds the dirty and current data of a cache, also if the engine would refuse the cache.
//!
//! Reads an undamaged cache as recovery does: the checkpoint in effect, and the log after it. Of a
//! damaged one it reads the best remains:
//!
//! | damaged | read instead | certain data |
//! | --- | --- | --- |
//! | one copy of a structure, or one device of a mirrored cache | the other copy | everything |
//! | both superblocks | checkpoints, searched for (`rebuild`) | everything, if the latest is provably whole |
//! | the log (flushed batches are gone) | all segments (`scan`) | everything logged behind the last hole |
//! | the log (its end is unreadable) | all segments | nothing |
//! | both copies of the checkpoint | an earlier one, or none, and all segments | nothing |
//! | headers and summary of a segment | - | all other segments |
//! | a batch whose write was lost (an older one is there) | the summary of its segment | blocks that match it |
//! | headers and summary disagree | the summary | all slots on which they agree |
//! | a dirty block | - | all other blocks |
//!
//! *Certain* data is the newest acknowledged version of its sector, and the backing store has
//! nothing newer. *Uncertain* data has the right checksum, but lost data may have superseded it. Or
//! the backing store got it and newer data since, and the clean mark or drop mark for that is lost.
//! Uncertain blocks are mixed with certain ones only on request.
//!
//! A daemon may have given the cache up and continued without it ([`OnlyCopies`]). Then only the
//! ranges in its record can be current. All of them are uncertain, because the record lags by some
//! seconds.

use forebay_admin::MessageId;
use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SlotState, VolumeEntry};
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, CacheUuid, FormatError, SECTOR_BYTES};

use crate::Refusal;
use crate::device::superblocks;
use crate::image::{self, Image};
use crate::log::{self, Batch};
use crate::mirror::{Mirror, Noted};
use crate::space::{Given, Space};
use crate::verdict::{self, Block, Verdict, Watcher};
use crate::{Findings, Severity, rebuild, scan};

/// Only one device of a mirrored cache was given, and there is no proof that it was the last one in
/// use.
const ALONE: &str = "only one device of the mirrored cache was given, and no notes of its daemon prove that \
    the other one did not continue without it (--state-dir names their folder)";
/// The superblock records a failed cache.
const GIVEN_UP: &str = "its daemon gave the cache up, and its volumes continued without it \
    (state_dir/failed-caches has a record of its dirty data; --state-dir names the folder)";
/// Maximum memory per block in the log, in bytes, with the tables grown to twice their content.
const MEMORY_PER_SLOT: u64 = 320;
const SECTOR: u64 = SECTOR_BYTES as u64;

/// The certainty about some sectors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Worth {
    /// Current and dirty.
    Dirty,
    /// It may be older than the last acknowledged data, or than the backing store.
    Uncertain,
    /// It was dirty, and its bytes are wrong or unreadable.
    Lost,
}

impl Worth {
    /// Returns the word for it in files and documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dirty => "dirty",
            Self::Uncertain => "uncertain",
            Self::Lost => "lost",
        }
    }
}

/// Some sectors of a volume.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'a> {
    /// Number of the volume.
    pub volume: u16,
    /// Offset in the volume, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Their certainty.
    pub worth: Worth,
    /// The bytes; empty if they are lost.
    pub bytes: &'a [u8],
}

/// The dirty ranges of a failed cache, by the record of its daemon. All other data on it is older
/// than its backing stores (I52).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnlyCopies {
    /// Path of the record.
    pub record: PathBuf,
    /// Time at which the cache was given up, in seconds since 1970.
    pub failed_unix_s: u64,
    /// For each volume number: offset and length of every range, in bytes.
    pub volumes: Vec<(u16, Vec<(u64, u64)>)>,
}

/// A cache that is read for its dirty data.
#[derive(Debug)]
pub struct Salvage {
    image: Image,
    base: Checkpoint,
    batches: Vec<Batch>,
    /// Everything live in the checkpoint is certain.
    base_certain: bool,
    /// Everything logged from this sequence on is certain.
    certain_from: u64,
    /// The reasons why not everything is certain.
    pub doubts: Vec<String>,
    /// The volume table in effect was readable. The table of a possibly older checkpoint names
    /// volumes, but may lack some, or have old sizes.
    pub knows_volumes: bool,
    only: Option<OnlyCopies>,
}

/// The cache was in use, and a part of its space is missing.
const LOG_MAY_GO_ON: &str = "the cache was in use, and part of its space is missing: the last writes may \
                             have been there";

impl Salvage {
    /// Opens a cache and determines the sources of information. `note` gets the maximum memory in
    /// bytes, if that is a lot; `progress` the number of segments read, and of all.
    ///
    /// # Errors
    /// Refuses if the devices cannot be read, do not belong together, or have no information on the
    /// layout.
    pub fn open<'a>(
        given: impl Into<Given<'a>>,
        identity: Option<CacheUuid>,
        findings: &mut Findings,
        note: &mut dyn FnMut(u64),
        progress: &mut dyn FnMut(u64, u64),
        noted: Noted<'_>,
    ) -> Result<Self, Refusal> {
        let (mut image, superblock_certain) = open_image(given.into(), identity, findings, noted)?;
        image.judge(findings);
        if let Some(mirror) = image.mirror() {
            mirror.judge(findings);
        }
        let (base, base_in_effect) = base(&mut image);
        let mut salvage = Self {
            knows_volumes: base_in_effect && superblock_certain != Some(false),
            image,
            base,
            batches: Vec::new(),
            base_certain: true,
            certain_from: 0,
            doubts: Vec::new(),
            only: None,
        };
        match superblock_certain {
            _ if !base_in_effect => {
                salvage.warn_of_memory(note);
                salvage.without_checkpoint(progress);
            }
            None => salvage.by_the_log(findings, progress),
            Some(certain) => salvage.without_superblock(certain, progress),
        }
        let alone = salvage.image.mirror().is_some_and(Mirror::is_doubtful);
        let doubts = [(alone, ALONE), (salvage.image.is_failed(), GIVEN_UP)];
        for (_, doubt) in doubts.into_iter().filter(|(applies, _)| *applies) {
            salvage.doubt_all(doubt.into());
        }
        Ok(salvage)
    }

    /// Returns the superblock of the cache.
    pub fn superblock(&self) -> &Superblock {
        &self.image.superblock
    }

    /// Returns the paths of the devices, for messages.
    pub fn shown(&self) -> String {
        self.image.shown()
    }

    /// Restricts the result to a daemon's record: the daemon gave the cache up, so only the ranges
    /// in the record can be current.
    pub fn restrict(&mut self, mut only: OnlyCopies) {
        for (_, ranges) in &mut only.volumes {
            ranges.sort_unstable();
        }
        self.only = Some(only);
    }

    /// Makes everything uncertain: other information shows that this is not the latest state of the
    /// cache, or that another one took its place.
    pub fn doubt_all(&mut self, why: String) {
        self.doubts.push(why);
        (self.base_certain, self.certain_from) = (false, u64::MAX);
    }

    /// Returns the known volumes.
    pub fn volumes(&self) -> &[VolumeEntry] {
        &self.base.volumes
    }

    /// Reads the log of a cache with intact superblock and checkpoint.
    fn by_the_log(&mut self, findings: &mut Findings, progress: &mut dyn FnMut(u64, u64)) {
        let replay = log::after_checkpoint(&self.image, &self.base, findings);
        self.batches = replay.batches;
        if let Some(doubt) = replay.doubt {
            let log = scan::everything(&self.image, &self.base, true, progress);
            self.doubt_log(log, doubt);
        } else if self.image.is_unclean() && self.image.lacks_space() {
            // The end of the log is unknown: a batch behind the missing part, which would confirm
            // those before it, may be missing too.
            self.doubt_all(LOG_MAY_GO_ON.into());
        }
    }

    fn without_superblock(&mut self, certain: bool, progress: &mut dyn FnMut(u64, u64)) {
        let generation = self.base.generation;
        let log = scan::everything(&self.image, &self.base, true, progress);
        if log.certain_from > self.base.next_sequence {
            self.doubt_log(
                log,
                "both superblocks are lost, and batches that had been flushed are missing".into(),
            );
        } else {
            self.batches = log.batches;
        }
        if !certain {
            self.doubts.push(format!(
                "both superblocks are lost, and it is unknown whether checkpoint {generation} was the latest"
            ));
            (self.base_certain, self.certain_from) = (false, u64::MAX);
        }
    }

    fn without_checkpoint(&mut self, progress: &mut dyn FnMut(u64, u64)) {
        let lost = self.image.superblock.checkpoint_generation;
        let instead = match self.base.generation {
            0 => "no other one is intact: names and sizes of volumes are unknown".into(),
            older => format!(
                "read from checkpoint {older} and from the log; names and sizes of volumes may be older"
            ),
        };
        self.doubts.push(format!("checkpoint {lost} is lost in both copies; {instead}"));
        let log = scan::everything(&self.image, &self.base, false, progress);
        // The older checkpoint's entries of segments that were rewritten since are invalid.
        for batch in &log.batches {
            let entry = &mut self.base.segments[batch.segment as usize];
            if batch.start < entry.used_blocks {
                *entry = SegmentEntry::default();
            }
        }
        self.batches = log.batches;
        (self.base_certain, self.certain_from) = (false, u64::MAX);
    }

    /// Reports the memory use. Without any checkpoint the log of the whole cache counts, and all of
    /// it is kept.
    fn warn_of_memory(&self, note: &mut dyn FnMut(u64)) {
        if self.base.generation == 0 {
            let most = u64::from(self.image.geometry().slot_count()) * MEMORY_PER_SLOT;
            note(most);
        }
    }

    fn doubt_log(&mut self, log: scan::Log, why: String) {
        let missing = match log.missing {
            0 => String::new(),
            n => format!(
                " ({n} batches are missing, of {} blocks at most each)",
                forebay_format::batch::ENTRIES_MAX
            ),
        };
        self.doubts.push(format!("{why}{missing}"));
        (self.base_certain, self.certain_from) = (false, log.certain_from);
        self.batches = log.batches;
    }

    /// Reads all dirty data and passes it to `take` piece by piece, in no particular order.
    pub fn extract(
        &self,
        findings: &mut Findings,
        progress: &mut dyn FnMut(u64, u64),
        take: &mut dyn FnMut(Piece<'_>),
    ) -> Verdict {
        let sizes: BTreeMap<u16, u64> =
            self.base.volumes.iter().map(|entry| (entry.id.0, entry.size_bytes)).collect();
        let mut block = |block: Block<'_>| {
            if block.state != SlotState::Dirty {
                return; // A shadow: another slot has the newest version.
            }
            let volume = block.key.0.0;
            // Blocks of volumes that the table does not list, or beyond their end, were being
            // removed.
            let end = match self.knows_volumes {
                true => sizes.get(&volume).copied().unwrap_or(0),
                false => u64::MAX,
            };
            self.sectors(&block, end, take);
        };
        let watcher = Watcher { progress, block: &mut block, dirty_only: true };
        verdict::walk(&self.image, &self.base, &self.batches, findings, watcher)
    }

    /// Passes on the valid sectors of a dirty block that lie before `end`, in as few pieces as
    /// possible.
    fn sectors(&self, block: &Block<'_>, end: u64, take: &mut dyn FnMut(Piece<'_>)) {
        let volume = block.key.0.0;
        let start = block.key.1.saturating_mul(BLOCK_BYTES as u64);
        let certain = match block.sequence {
            None => self.base_certain && !block.disputed,
            Some(sequence) => sequence >= self.certain_from,
        };
        let worth = match block.bytes {
            None => Worth::Lost,
            Some(_) if certain && self.only.is_none() => Worth::Dirty,
            Some(_) => Worth::Uncertain,
        };
        let counts = |sector: u64| {
            let offset = start + sector * SECTOR;
            block.sector_mask >> sector & 1 == 1 && offset < end && self.is_only_copy(volume, offset)
        };
        let sectors = (BLOCK_BYTES / SECTOR_BYTES) as u64;
        let mut sector = 0;
        while sector < sectors {
            let first = sector;
            while sector < sectors && counts(sector) {
                sector += 1;
            }
            if sector == first {
                sector += 1;
                continue;
            }
            let (from, to) = ((first * SECTOR) as usize, (sector * SECTOR) as usize);
            let bytes = block.bytes.map_or(&[][..], |bytes| &bytes[from..to]);
            take(Piece { volume, offset: start + from as u64, len: (to - from) as u64, worth, bytes });
        }
    }

    /// Returns true if only this cache may have a sector: in a cache that was given up, if the
    /// record lists it.
    fn is_only_copy(&self, volume: u16, offset: u64) -> bool {
        let Some(only) = &self.only else { return true };
        let of_volume = only.volumes.iter().find(|(number, _)| *number == volume);
        of_volume.is_some_and(|(_, ranges)| {
            let before = ranges.partition_point(|(from, _)| *from <= offset);
            before.checked_sub(1).is_some_and(|at| offset - ranges[at].0 < ranges[at].1)
        })
    }
}

/// Opens the cache. If the superblocks had to be rebuilt, also returns whether they are certain.
fn open_image(
    Given { paths, key }: Given<'_>,
    identity: Option<CacheUuid>,
    findings: &mut Findings,
    noted: Noted<'_>,
) -> Result<(Image, Option<bool>), Refusal> {
    let mut space = Space::open(paths, noted)?;
    let superblocks = superblocks(space.first());
    let (superblock, rebuilt) = match Superblock::choose(superblocks.clone()) {
        Ok(superblock) => {
            space.unlock(&superblock, key)?;
            (superblock, None)
        }
        Err(error @ FormatError::Version { .. }) => {
            return Err(image::refusal(&space, error));
        }
        Err(error) => {
            let rebuilt = match key {
                Some(key) => rebuild::rebuild_encrypted(&mut space, key, identity),
                None => rebuild::rebuild(&space),
            };
            let rebuilt = rebuilt.ok_or_else(|| nothing_to_rebuild(&mut space, &error, key.is_some()))?;
            findings.add(
                Severity::Damaged,
                "superblocks",
                "both are lost; the layout was found by the checkpoints",
            );
            (rebuilt.superblock, Some(rebuilt.certain))
        }
    };
    for problem in space.arrange_what_is_there(&superblock) {
        findings.add(Severity::Lost, "devices", problem);
    }
    let (needed, there) =
        (superblock.geometry.device_blocks.saturating_mul(BLOCK_BYTES as u64), space.bytes());
    superblock.geometry.validate(needed.max(there)).map_err(|error| {
        Refusal::new(MessageId::SalvageNothing, format!("{}: {error}", space.shown()))
            .hint("its layout is not known, so nothing on it can be found")
    })?;
    if there < needed {
        let what = format!("{there} bytes where the cache has {needed}: the rest cannot be read");
        findings.add(Severity::Lost, "devices", what);
    }
    Ok((Image::with(space, superblocks, superblock), rebuilt))
}

/// Returns the reason for not reading a cache without superblocks: no checkpoint was found, with
/// the key if one was given.
fn nothing_to_rebuild(space: &mut Space, error: &FormatError, with_key: bool) -> Refusal {
    space.read_plainly();
    let (what, hint) = match with_key {
        // An encrypted cache may be in the place of an earlier one.
        true if rebuild::rebuild(space).is_some() => (
            "no checkpoint can be read with this key, but one that is not encrypted is intact",
            "leave --key-file out if the cache is not encrypted; if it is, give its identity with --uuid",
        ),
        true => (
            "there is no intact checkpoint either",
            "nothing can be read with this key: give the identity of the cache with --uuid, if it is known",
        ),
        false => (
            "there is no intact checkpoint either",
            "nothing on it shows that it is a cache, or its layout; if it is encrypted, give --key-file",
        ),
    };
    Refusal::new(MessageId::SalvageNothing, format!("{}: {error}, and {what}", space.shown())).hint(hint)
}

/// Returns the checkpoint to use, and whether it is the one in effect: else an earlier one, else an
/// empty one.
fn base(image: &mut Image) -> (Checkpoint, bool) {
    if let Some(checkpoint) = image.checkpoint() {
        return (image.localized(checkpoint).into_owned(), true);
    }
    let empty = || Checkpoint {
        uuid: image.superblock.uuid,
        segment_blocks: image.geometry().segment_blocks,
        segments: vec![SegmentEntry::default(); image.geometry().segment_count as usize],
        ..Checkpoint::default()
    };
    let base = image.newest_left().unwrap_or_else(empty);
    image.learn_by_heads(&base);
    (image.localized(&base).into_owned(), false)
}

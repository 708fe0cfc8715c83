//! A cache opened for reading: its superblocks and checkpoints.

use std::borrow::Cow;

use forebay_format::checkpoint::Checkpoint;
use forebay_format::geometry::CHECKPOINT_SLOTS;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, FormatError, Geometry, SettingsCopy, StreamKind};

use crate::Refusal;
pub use crate::batch::Bytes;
use crate::chain::Found;
use crate::copies;
use crate::device::{settings_copies, superblocks};
use crate::extension;
use crate::mirror::Mirror;
use crate::space::{Given, Space};
use crate::{Findings, Severity};

/// Largest accepted checkpoint, in bytes (that of a cache of some hundred TiB).
const CHECKPOINT_BYTES_MAX: u64 = 1 << 36;

/// A cache with its superblock and the readable copies of its checkpoint.
#[derive(Debug)]
pub struct Image {
    pub(crate) space: Space,
    /// Both copies.
    pub superblocks: [Result<Superblock, FormatError>; 2],
    /// The copy in effect.
    pub superblock: Superblock,
    /// Both copies of the checkpoint that the superblock names.
    pub checkpoints: [Result<Checkpoint, FormatError>; 2],
}

impl Image {
    /// Opens a cache that is not in use: all of its devices, in any order.
    pub fn open<'a>(given: impl Into<Given<'a>>) -> Result<Self, Refusal> {
        let Given { paths, key } = given.into();
        let mut space = Space::open(paths, &|_, _| Ok(None))?;
        let superblocks = superblocks(space.first());
        let superblock = Superblock::choose(superblocks.clone()).map_err(|error| refusal(&space, error))?;
        space.unlock(&superblock, key)?;
        space.arrange(&superblock)?;
        superblock.geometry.validate(space.bytes()).map_err(|error| refusal(&space, error))?;
        Ok(Self::with(space, superblocks, superblock))
    }

    /// Creates a cache with this superblock, for which the caller is responsible.
    pub(crate) fn with(
        space: Space,
        superblocks: [Result<Superblock, FormatError>; 2],
        superblock: Superblock,
    ) -> Self {
        let mut image = Self {
            space,
            superblocks,
            superblock,
            checkpoints: [0, 1].map(|_| Err(FormatError::Magic { structure: "checkpoint header" })),
        };
        image.read_checkpoints();
        image
    }

    fn read_checkpoints(&mut self) {
        self.checkpoints =
            [0, 1].map(|copy| self.checkpoint_copy(copy).and_then(|found| extension::extended(self, found)));
        let learned = self.checkpoints.iter().find_map(|copy| copy.as_ref().ok());
        if let (Some(mirror), Some(checkpoint)) = (self.space.mirror_mut(), learned) {
            mirror.learn(checkpoint);
        }
    }

    /// Returns the two devices, if the cache is mirrored.
    pub fn mirror(&self) -> Option<&Mirror> {
        self.space.mirror()
    }

    /// Returns true if batches of this stream may be missing: in a mirrored cache, clean blocks,
    /// which only one device has, and can lose.
    pub fn may_lack(&self, stream: StreamKind) -> bool {
        stream == StreamKind::Fill && self.mirror().is_some()
    }

    /// Returns true if this segment can have only clean blocks: in a mirrored cache, any segment
    /// that is not part of a pair.
    pub fn holds_only_fills(&self, number: u32) -> bool {
        self.mirror().is_some_and(|mirror| !mirror.is_pair(number))
    }

    /// Reads a mirrored cache only through this device, which must count.
    pub fn look_through(&mut self, member: usize) -> Result<(), Refusal> {
        if let Some(mirror) = self.space.mirror_mut() {
            mirror.look_through(member);
            self.superblocks = superblocks(self.space.first());
            self.superblock =
                Superblock::choose(self.superblocks.clone()).map_err(|error| refusal(&self.space, error))?;
            self.read_checkpoints();
        }
        Ok(())
    }

    /// Returns the checkpoint to follow here: for a mirrored cache, without the data of a device
    /// that does not count.
    pub fn localized<'a>(&self, checkpoint: &'a Checkpoint) -> Cow<'a, Checkpoint> {
        self.mirror().map_or(Cow::Borrowed(checkpoint), |mirror| Cow::Owned(mirror.localized(checkpoint)))
    }

    /// Returns the paths of its devices, for messages.
    pub fn shown(&self) -> String {
        self.space.shown()
    }

    /// Returns the layout of the device.
    pub fn geometry(&self) -> &Geometry {
        &self.superblock.geometry
    }

    /// Returns the size of all devices, in bytes.
    pub fn device_bytes(&self) -> u64 {
        self.space.bytes()
    }

    /// Returns true if a device is missing, or shorter than its used part.
    pub(crate) fn lacks_space(&self) -> bool {
        let there = self.space.bytes();
        there < self.geometry().device_blocks.saturating_mul(BLOCK_BYTES as u64)
    }

    /// Returns true if the last daemon did not stop in an orderly way.
    pub fn is_unclean(&self) -> bool {
        self.superblock.state != CacheState::Clean
    }

    /// Returns true if the last daemon gave the cache up, and its volumes went on without it.
    pub fn is_failed(&self) -> bool {
        self.superblock.state == CacheState::Failed
    }

    /// Returns the settings that an export wrote to the cache, if there are any. The cache may have
    /// been opened again since.
    ///
    /// # Errors
    /// Returns an error if they are damaged.
    pub fn settings_copy(&self) -> Result<Option<SettingsCopy>, FormatError> {
        match SettingsCopy::choose(settings_copies(self.space.first())) {
            Err(FormatError::Magic { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Returns the checkpoint in effect, if a copy of it is intact.
    pub fn checkpoint(&self) -> Option<&Checkpoint> {
        self.checkpoints.iter().find_map(|copy| copy.as_ref().ok())
    }

    /// Reads one copy of the checkpoint that the superblock names; for a mirrored cache, from
    /// either device.
    fn checkpoint_copy(&self, copy: u64) -> Result<Checkpoint, FormatError> {
        let found = self.checkpoint_by(copy, |at, bytes| self.space.read(at, bytes));
        let Some((mirror, other)) = self.other_device() else { return found };
        found.or_else(|error| {
            let there = self.checkpoint_by(copy, |at, bytes| mirror.read_from(other, at, bytes));
            there.map_err(|_| error)
        })
    }

    /// Returns the other device of a mirrored cache, if that counts.
    fn other_device(&self) -> Option<(&Mirror, usize)> {
        self.mirror().and_then(|mirror| Some((mirror, mirror.other()?)))
    }

    fn checkpoint_by(
        &self,
        copy: u64,
        read: impl Fn(u64, &mut [u8]) -> Result<(), ()>,
    ) -> Result<Checkpoint, FormatError> {
        let (offset, len) = self.superblock.checkpoint_place(copy);
        if len > CHECKPOINT_BYTES_MAX {
            return Err(FormatError::Geometry(format!("a checkpoint of {len} bytes")));
        }
        let bytes = read_blocks(len, |at, bytes| read(offset + at, bytes)).bytes;
        self.superblock.read_checkpoint(&bytes)
    }

    /// Returns the newest checkpoint with remains in the slots: the beginning of the chain in
    /// effect, or an earlier checkpoint.
    pub(crate) fn newest_left(&self) -> Option<Checkpoint> {
        let mut found = self.left_by(|at, bytes| self.space.read(at, bytes));
        if let Some((mirror, other)) = self.other_device() {
            found.extend(self.left_by(|at, bytes| mirror.read_from(other, at, bytes)));
        }
        found.into_iter().max_by_key(|left| (left.epoch, left.generation))
    }

    /// Returns the remains in each copy of each slot.
    fn left_by(&self, read: impl Fn(u64, &mut [u8]) -> Result<(), ()>) -> Vec<Checkpoint> {
        let geometry = self.geometry();
        let slot_blocks = u64::from(geometry.checkpoint_slot_blocks);
        let read = |block: u64, bytes: &mut [u8]| read(block * BLOCK_BYTES as u64, bytes);
        let left = |slot: u64| {
            let block = geometry.checkpoint_offset(slot / 2, slot % 2) / BLOCK_BYTES as u64;
            let mut found = Found::at(block, block + slot_blocks, &read)?;
            let state = found.state();
            let is_ours = state.uuid == self.superblock.uuid
                && state.segments.len() == geometry.segment_count as usize
                && state.segment_blocks == geometry.segment_blocks;
            if !is_ours {
                return None;
            }
            found.follow(slot_blocks, &read);
            found.checkpoint()
        };
        (0..CHECKPOINT_SLOTS).filter_map(left).collect()
    }

    /// Reads a whole segment; of a pair, both copies merged.
    pub fn segment(&self, number: u32) -> Bytes {
        let (geometry, len) = (self.geometry(), self.geometry().segment_bytes());
        let here = self.read(geometry.segment_offset(number, 0), len);
        let Some((mirror, other)) =
            self.mirror().and_then(|mirror| Some((mirror, mirror.other_of_pair(number)?)))
        else {
            return here;
        };
        let offset = geometry.segment_offset(number % geometry.columns(), 0);
        let there = read_blocks(len, |at, bytes| mirror.read_from(other, offset + at, bytes));
        copies::merged(here, there, self.superblock.uuid, number)
    }

    /// Reads the first block of a segment.
    pub fn segment_head(&self, number: u32) -> Bytes {
        self.read(self.geometry().segment_offset(number, 0), BLOCK_BYTES as u64)
    }

    /// Reads whole blocks; unreadable ones are zeroes.
    pub(crate) fn read(&self, offset: u64, len: u64) -> Bytes {
        read_blocks(len, |at, bytes| self.space.read(offset + at, bytes))
    }

    /// Determines by the first headers of all columns which of them are pairs: the checkpoint in
    /// effect is lost.
    pub(crate) fn learn_by_heads(&mut self, base: &Checkpoint) {
        if let Some(mirror) = self.space.mirror_mut() {
            mirror.learn_by_heads(base);
        }
    }

    /// Adds findings about superblocks and checkpoints.
    pub fn judge(&self, findings: &mut Findings) {
        let names = ["A", "B"];
        for (copy, name) in self.superblocks.iter().zip(names) {
            let place = format!("superblock {name}");
            match copy {
                Ok(copy) if copy.uuid != self.superblock.uuid => {
                    findings.add(Severity::Damaged, place, "belongs to another cache");
                }
                Ok(copy) if copy.generation != self.superblock.generation => {
                    let (older, newer) = (copy.generation, self.superblock.generation);
                    let what = format!(
                        "generation {older} next to {newer}: an update was interrupted between the copies"
                    );
                    findings.add(Severity::Note, place, what);
                }
                Ok(_) => {}
                Err(error) => {
                    let error = error.to_string();
                    let what = error.trim_start_matches("superblock: ");
                    let after_power_cut = match self.is_unclean() {
                        true => " (a power cut during an update looks like this)",
                        false => "",
                    };
                    let instead = match self.superblocks.iter().any(Result::is_ok) {
                        true => "; the other copy counts",
                        false => "",
                    };
                    findings.add(Severity::Damaged, place, format!("{what}{after_power_cut}{instead}"));
                }
            }
        }
        extension::judge(self, findings);
        let generation = self.superblock.checkpoint_generation;
        for (copy, name) in self.checkpoints.iter().zip(names) {
            let Err(error) = copy else { continue };
            let place = format!("checkpoint {generation}, copy {name}");
            match self.checkpoint() {
                Some(_) => {
                    findings.add(Severity::Damaged, place, format!("{error}; the other copy is intact"))
                }
                None => findings.add(Severity::Lost, place, error.to_string()),
            }
        }
    }
}

/// Returns the reason for not reading a cache without a usable superblock.
pub(crate) fn refusal(space: &Space, error: FormatError) -> Refusal {
    let hint = match error {
        FormatError::Magic { .. } => "this was never a cache, or both superblocks are overwritten",
        FormatError::Version { .. } => "a newer forebay made it; nothing was changed",
        FormatError::Geometry(_) => "nothing was changed",
        _ => {
            "both superblocks are unusable; nothing was changed; `forebay salvage CACHE --to FOLDER` extracts the remaining data"
        }
    };
    Refusal::new(crate::message::of_format(&error), format!("{}: {error}", space.first().path().display()))
        .hint(hint)
}

/// Reads this many bytes with `read`, which takes an offset; unreadable blocks are zeroes.
fn read_blocks(len: u64, read: impl Fn(u64, &mut [u8]) -> Result<(), ()>) -> Bytes {
    let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
    let mut unreadable = Vec::new();
    if read(0, &mut bytes).is_err() {
        for (index, block) in bytes.chunks_mut(BLOCK_BYTES).enumerate() {
            if read((index * BLOCK_BYTES) as u64, block).is_err() {
                block.fill(0);
                unreadable.push(index as u32);
            }
        }
    }
    Bytes { bytes, unreadable }
}

//! Superblocks, and the checkpoint that the valid one names.

use crate::api::DeviceFailure;
use crate::api::open_error::OpenError;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::recovery_reads::{CopyOf, RecoveryTarget};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::recovery::state::Recovery;
use alloc::vec::Vec;
use forebay_format::checkpoint::{Checkpoint, SegmentState};
use forebay_format::geometry::VOLUMES_MAX;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{BLOCK_BYTES, FormatError, Geometry};

impl Context {
    /// I75: a superblock below the generation that is known to be durable is out of date. One that
    /// marks the cache as failed is refused, too.
    pub(crate) fn check_generation(&self, superblock: &Superblock) -> Result<(), OpenError> {
        if superblock.state == CacheState::Failed {
            return Err(OpenError::GivenUp);
        }
        let older = superblock.generation < self.config.known.generation;
        if older && !fault::planted(PlantedBug::BelieveOlderCopy) {
            return Err(OpenError::Older);
        }
        Ok(())
    }

    /// The valid superblock is known.
    pub(crate) fn begin_map_of(&mut self, superblock: Superblock) {
        self.map = CacheMap::new(superblock.geometry, self.config.stretch_blocks);
        self.superblock = superblock;
    }

    /// Checks that a checkpoint is the one that the superblock names.
    pub(super) fn fits(&self, checkpoint: Checkpoint) -> Result<Checkpoint, FormatError> {
        let check = |field, expected: u64, found: u64| {
            if expected == found {
                return Ok(());
            }
            Err(FormatError::Misplaced { structure: "checkpoint header", field, expected, found })
        };
        check("uuid", self.superblock.uuid.tag(), checkpoint.uuid.tag())?;
        check("generation", self.superblock.checkpoint_generation, checkpoint.generation)?;
        check("segment_count", u64::from(self.map.geometry.segment_count), checkpoint.segments.len() as u64)?;
        check(
            "segment_blocks",
            u64::from(self.map.geometry.segment_blocks),
            u64::from(checkpoint.segment_blocks),
        )?;
        let bad = |field, value| FormatError::Field { structure: "checkpoint body", field, value };
        for entry in &checkpoint.segments {
            if entry.used_blocks > checkpoint.segment_blocks
                || entry.summary_block >= checkpoint.segment_blocks
            {
                return Err(bad("used_blocks", u64::from(entry.used_blocks)));
            }
        }
        for number in &checkpoint.window {
            let entry = checkpoint.segments.get(*number as usize);
            if entry.is_none_or(|entry| entry.state != SegmentState::Free) {
                return Err(bad("window", u64::from(*number)));
            }
        }
        if let Some(number) = self.members.wrong_twin(&checkpoint) {
            return Err(bad("state", number));
        }
        for volume in &checkpoint.volumes {
            if u32::from(volume.id.0) >= VOLUMES_MAX {
                return Err(bad("volume", u64::from(volume.id.0)));
            }
        }
        Ok(checkpoint)
    }
}

impl Recovery {
    pub(super) fn superblock_read(
        &mut self,
        cx: &mut Context,
        copy: CopyOf,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let only_first = fault::planted(PlantedBug::DropSecondSuperblock);
        let recovery = &mut *self;
        let missing = FormatError::TooShort { structure: "superblock", needed: BLOCK_BYTES, found: 0 };
        recovery.unreadable += usize::from(result.is_err());
        recovery.superblocks.push((copy, result.map_or(Err(missing), Superblock::decode)));
        if recovery.superblocks.len() < recovery.expected {
            return Ok(());
        }
        if recovery.unreadable == recovery.expected {
            return Err(OpenError::Unreadable);
        }
        let mut all = core::mem::take(&mut recovery.superblocks);
        all.sort_by_key(|(copy, _)| *copy);
        if cx.members.is_mirrored() {
            return self.choose_member(cx, all);
        }
        let copies: [_; 2] = core::array::from_fn(|copy| all[copy].1.clone());
        let recovery = &mut *self;
        let chosen = if only_first { copies[0].clone() } else { Superblock::choose(copies.clone()) };
        let superblock = chosen.map_err(OpenError::Superblock)?;
        let device_bytes = recovery.device_bytes;
        let right = [0, 1].map(|copy: usize| copies[copy].as_ref() == Ok(&superblock));
        if !right[0] {
            cx.coverage.add(CoverageMark::SecondSuperblock);
        }
        // First the stale one; the other one may not be durable.
        let mut again = Vec::from([0, 1]);
        again.sort_by_key(|copy| right[*copy]);
        cx.plan_superblocks(
            again
                .into_iter()
                .map(|copy| (right[copy], (Geometry::superblock_offset(copy), superblock.encode())))
                .filter(|_| !only_first),
        );
        superblock.geometry.validate(device_bytes).map_err(OpenError::Superblock)?;
        cx.check_generation(&superblock)?;
        if superblock.mirror.is_some() {
            return Err(OpenError::Mirrored);
        }
        self.checkpoints = [(0, 0), (0, 1)].into();
        cx.begin_map_of(superblock);
        self.read_checkpoint(cx, 0);
        Ok(())
    }

    pub(crate) fn read_checkpoint(&mut self, cx: &mut Context, at: usize) {
        let (member, copy) = self.checkpoints[at];
        let (offset, len) = cx.superblock.checkpoint_place(copy);
        self.read(cx, RecoveryTarget::Checkpoint(at), cx.map.geometry.mirror_meta(member, offset), len);
    }

    pub(super) fn checkpoint_read(
        &mut self,
        cx: &mut Context,
        at: usize,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        let generation = cx.superblock.checkpoint_generation;
        let missing = FormatError::TooShort { structure: "checkpoint header", needed: BLOCK_BYTES, found: 0 };
        let decoded = result.map_or(Err(missing), |bytes| cx.superblock.read_checkpoint(bytes));
        match decoded.and_then(|checkpoint| cx.fits(checkpoint)) {
            Ok(checkpoint) => {
                if at > 0 {
                    cx.coverage.add(CoverageMark::SecondCheckpoint);
                }
                self.read_extensions(cx, checkpoint);
                Ok(())
            }
            Err(_) if at + 1 < self.checkpoints.len() => {
                self.read_checkpoint(cx, at + 1);
                Ok(())
            }
            Err(error) => Err(OpenError::CheckpointLost { generation, error }),
        }
    }
}

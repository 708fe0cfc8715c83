//! Reading the window extension, between the checkpoint and the segments.
//!
//! If both copies of a slot are damaged (a crash can tear both, and a device can lose both), the
//! segments show which of them were added: the first block of one that was written since the
//! checkpoint has its epoch and a later sequence. That is a read for each segment. If a power cut
//! dropped the first block, later blocks show it (`segments`).

use crate::api::DeviceFailure;
use crate::api::open_error::OpenError;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::recovery_reads::RecoveryTarget;
use crate::context::sectors::BLOCK;
use crate::fault::{self, PlantedBug};
use crate::recovery::state::Recovery;
use alloc::vec::Vec;
use forebay_format::WindowExtension;
use forebay_format::checkpoint::{Checkpoint, SegmentState};
use forebay_format::extension::{Chosen, EXTENSION_BLOCKS};
use forebay_format::superblock::CacheState;

/// The search for the segments that were added to the window of the checkpoint.
#[derive(Debug, Default)]
pub(super) struct Extending {
    /// The checkpoint, until its window is known.
    checkpoint: Checkpoint,
    /// The blocks that were read, by slot and copy.
    blocks: [[Option<Vec<u8>>; 2]; 2],
    /// Segments that were written since the checkpoint.
    found: Vec<u32>,
    /// Blocks or segments that are being read.
    left: u32,
    /// Segments whose first blocks are still to read.
    heads: Vec<u32>,
}

/// Maximum number of reads of first blocks in flight.
const HEADS_IN_FLIGHT: u32 = 32;

impl Recovery {
    /// The checkpoint is known: reads the extensions of its window.
    pub(super) fn read_extensions(&mut self, cx: &mut Context, checkpoint: Checkpoint) {
        let ended_orderly = cx.superblock.state != CacheState::Open;
        if ended_orderly || cx.members.is_mirrored() || fault::planted(PlantedBug::OverlookExtension) {
            self.checkpoint = checkpoint;
            self.plan_segments(cx);
            return;
        }
        self.extending = Extending { checkpoint, left: 4, ..Extending::default() };
        for (slot, copies) in EXTENSION_BLOCKS.iter().enumerate() {
            for (copy, block) in copies.iter().enumerate() {
                self.read(cx, RecoveryTarget::Extension(slot, copy), block * BLOCK, BLOCK);
            }
        }
    }

    pub(super) fn extension_read(
        &mut self,
        cx: &mut Context,
        (slot, copy): (usize, usize),
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        self.extending.blocks[slot][copy] = result.ok().map(Into::into);
        self.extending.left -= 1;
        if self.extending.left > 0 {
            return Ok(());
        }
        let blocks = self.extending.blocks.each_ref().map(|copies| copies.each_ref().map(Option::as_deref));
        let is_damaged =
            |block: &Option<&[u8]>| block.is_none_or(|block| WindowExtension::read(block).is_err());
        self.extensions_damaged = blocks.as_flattened().iter().any(is_damaged);
        match WindowExtension::choose(&self.extending.checkpoint, blocks) {
            Chosen::Added(segments) => self.window_is_known(cx, segments),
            Chosen::AtLeast(segments) => {
                cx.coverage.add(CoverageMark::ExtensionSearched);
                self.extending.found = segments;
                let (checkpoint, found) = (&self.extending.checkpoint, &self.extending.found);
                let passed_over = |number: u32| {
                    fault::planted(PlantedBug::PassOverOpen)
                        && checkpoint.segments[number as usize].state == SegmentState::Open
                };
                let unknown =
                    checkpoint.addable().filter(|number| !found.contains(number) && !passed_over(*number));
                self.extending.heads = unknown.collect();
                self.search(cx)
            }
        }
    }

    /// True if extensions must be rewritten.
    pub(crate) fn found_damaged_extensions(&self) -> bool {
        self.extensions_damaged
    }

    /// Reads the first blocks of segments, [`HEADS_IN_FLIGHT`] at a time.
    fn search(&mut self, cx: &mut Context) -> Result<(), OpenError> {
        while self.extending.left < HEADS_IN_FLIGHT
            && let Some(number) = self.extending.heads.pop()
        {
            self.extending.left += 1;
            self.read(cx, RecoveryTarget::Searched(number), cx.map.geometry.segment_offset(number, 0), BLOCK);
        }
        if self.extending.left > 0 {
            return Ok(());
        }
        let mut found = core::mem::take(&mut self.extending.found);
        found.sort_unstable();
        self.window_is_known(cx, found)
    }

    pub(super) fn searched(
        &mut self,
        cx: &mut Context,
        number: u32,
        result: Result<&[u8], DeviceFailure>,
    ) -> Result<(), OpenError> {
        self.extending.left -= 1;
        if result.is_ok_and(|head| self.extending.checkpoint.precedes(number, head)) {
            self.extending.found.push(number);
        }
        self.search(cx)
    }

    fn window_is_known(&mut self, cx: &mut Context, added: Vec<u32>) -> Result<(), OpenError> {
        let Extending { mut checkpoint, .. } = core::mem::take(&mut self.extending);
        let generation = checkpoint.generation;
        checkpoint.extend_window(&added).map_err(|error| OpenError::CheckpointLost { generation, error })?;
        self.checkpoint = checkpoint;
        self.plan_segments(cx);
        Ok(())
    }
}

//! Writes a base: the state of all segments, in pieces, while the cache is in use.
//!
//! A base is the start of the next chain of increments ([`super::chain`]). The engine writes it to
//! the slots that the checkpoint in effect does not use (I13), one piece after the other with
//! pauses, so that no call takes long and no other I/O waits behind it. The base describes each
//! segment at the time of its encoding: increments taken meanwhile go to both chains, so the new
//! one has every change since the base began.
//!
//! The entries of all segments are first, then the slot tables of the segments whose entry lists
//! them as in use, then the header. If a base cannot be completed, the engine gives it up: writes
//! in flight complete before anything else is written to its slots.

use crate::api::Nanos;
use crate::base::bitset::BlockSet;
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::operations::OpKind;
use crate::fault::{self, PlantedBug};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use forebay_format::checkpoint::Checkpoint;
use forebay_format::checkpoint::increment::{BaseEncoder, base_blocks};
use forebay_format::{BLOCK_BYTES, Geometry};

/// Attempts at each piece before the base is given up.
const WRITE_TRIES: u32 = 4;

/// A base that is being written, or waits for the first increment of its chain.
#[derive(Debug)]
pub(super) struct BaseWriter {
    encoder: BaseEncoder,
    geometry: Geometry,
    members: Range<usize>,
    /// Number of segments whose entry, and of those whose table, has been encoded.
    entries: u32,
    tables: u32,
    /// Segments that get a table.
    used: BlockSet,
    /// Encoded bytes not yet written.
    rest: Vec<u8>,
    /// Block in the slot at which the current piece begins, and the piece.
    at: u64,
    piece: Arc<Vec<u8>>,
    stage: Stage,
    failed: bool,
    tries: u32,
    /// When the next piece may be written.
    next_at: Nanos,
    /// Blocks of the increments behind it.
    pub(super) increments: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Body,
    Header,
    Complete,
}

impl BaseWriter {
    fn begin(cx: &mut Context) -> Self {
        let generation = cx.next_checkpoint_generation();
        cx.reserved_generation = generation;
        let geometry = cx.map.geometry;
        let rest = Checkpoint {
            uuid: cx.superblock.uuid,
            generation,
            epoch: cx.superblock.epoch,
            segment_blocks: geometry.segment_blocks,
            ..Checkpoint::default()
        };
        let follows = cx.superblock.checkpoint_generation;
        Self {
            encoder: BaseEncoder::new(rest, follows, geometry.segment_count),
            geometry,
            members: cx.members.meta_members(),
            entries: 0,
            tables: 0,
            used: BlockSet::default(),
            rest: Vec::new(),
            at: 0,
            piece: Arc::default(),
            stage: Stage::Body,
            failed: false,
            tries: 0,
            next_at: cx.now,
            increments: 0,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        self.encoder.generation()
    }

    /// Members that have it.
    pub(super) fn members(&self) -> Range<usize> {
        self.members.clone()
    }

    /// Block of its slots at which its increments begin.
    pub(super) fn start(&self) -> u64 {
        base_blocks(self.geometry.segment_count, self.geometry.segment_blocks)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.stage == Stage::Complete
    }

    /// Byte offset of a block of one copy of its slot.
    pub(super) fn place(&self, block: u64, copy: u64) -> u64 {
        self.geometry.checkpoint_offset(self.generation(), copy) + block * BLOCK_BYTES as u64
    }

    /// Encodes the next piece.
    fn next_piece(&mut self, cx: &Context) {
        self.tries = 0;
        self.at += if self.at == 0 { 1 } else { (self.piece.len() / BLOCK_BYTES) as u64 };
        let size = cx.config.checkpoint.piece_blocks.max(1) as usize * BLOCK_BYTES;
        while self.rest.len() < size && self.encode_next(cx) {}
        if self.rest.is_empty() {
            (self.stage, self.at) = (Stage::Header, 0);
            self.piece = Arc::new(self.encoder.header());
            return;
        }
        let whole = if self.rest.len() < size { self.rest.len() } else { size };
        let mut piece: Vec<u8> = self.rest.drain(..whole).collect();
        piece.resize(whole.next_multiple_of(BLOCK_BYTES), 0);
        self.piece = Arc::new(piece);
    }

    /// Encodes one more entry or table. Returns false if there are no more.
    fn encode_next(&mut self, cx: &Context) -> bool {
        let count = self.geometry.segment_count;
        if self.entries < count {
            let entry = cx.map.segment_entry(self.entries);
            if entry.state.has_slots() {
                self.used.insert(self.entries.into());
            }
            self.encoder.entry(&entry, &mut self.rest);
            self.entries += 1;
            return true;
        }
        let Some(number) = self.used.next_from(self.tables.into()) else { return false };
        let segment = &cx.map.segments[number as usize];
        // A segment that became free meanwhile has no table. An increment records that.
        let append = |to: &mut Vec<u8>| {
            if segment.has_table() {
                segment.pack_states(to);
            }
        };
        self.encoder.table(append, &mut self.rest);
        self.tables = number as u32 + 1;
        true
    }
}

impl Checkpoints {
    /// Begins a base if one is due; gives up one that is no longer useful.
    #[inline]
    pub(super) fn step_base(&mut self, cx: &mut Context) {
        if self.base.is_some() {
            if self.base_is_useless(cx) {
                self.drop_base(cx);
                // If changes overflow again while a checkpoint waits, they may do so forever.
                self.base_given_up = self.broken || !cx.map.changes.are_lost();
                return;
            }
            self.go_on_with_base(cx);
        } else if self.wants_base(cx) {
            self.begin_base(cx);
        }
    }

    fn base_is_useless(&self, cx: &Context) -> bool {
        let Some(base) = &self.base else { return false };
        let changed = base.geometry != cx.map.geometry || base.members != cx.members.meta_members();
        changed || cx.map.changes.are_lost() || !self.is_running(cx)
    }

    pub(super) fn drop_base(&mut self, cx: &mut Context) {
        cx.coverage.add(CoverageMark::BaseDropped);
        self.base = None;
        self.base_given_up = true;
    }

    #[cold]
    pub(super) fn begin_base(&mut self, cx: &mut Context) {
        cx.coverage.add(CoverageMark::BaseBegun);
        if cx.map.changes.are_lost() {
            // No increment can follow in the chain in effect. The new one needs the changes from
            // here on.
            cx.coverage.add(CoverageMark::ChangesLost);
            self.broken = true;
            cx.map.changes.begin(self.limits.changes);
        }
        let base = BaseWriter::begin(cx);
        let in_use = base.generation() % 2 == self.image % 2;
        assert!(!in_use, "I13: a base is written to the slots that are not in effect");
        self.base = Some(Box::new(base));
        self.go_on_with_base(cx);
    }

    /// Writes the next piece, if it is due.
    fn go_on_with_base(&mut self, cx: &mut Context) {
        let Some(base) = self.base.as_ref().filter(|base| !base.is_complete()) else { return };
        let next_at = if self.waits_for_base(cx) { cx.now } else { base.next_at };
        if self.base_writes > 0 {
            return;
        }
        if cx.now >= next_at { self.write_next_piece(cx) } else { cx.wake_in(next_at - cx.now) }
    }

    fn write_next_piece(&mut self, cx: &mut Context) {
        if let Some(base) = &mut self.base {
            base.next_piece(cx);
            cx.map.look_at(u64::from(cx.config.checkpoint.piece_blocks));
            self.write_piece(cx);
        }
    }

    fn write_piece(&mut self, cx: &mut Context) {
        let Some(base) = &mut self.base else { return };
        base.failed = false;
        for member in base.members.clone() {
            for copy in 0..2 {
                let offset = base.geometry.mirror_meta(member, base.place(base.at, copy));
                self.base_writes += 1;
                cx.write_meta(offset, base.piece.clone(), OpKind::CheckpointBase);
            }
        }
    }

    /// Handles the completion of the write of a piece to one of its places.
    pub(crate) fn base_written(&mut self, cx: &mut Context, member: u8, ok: bool) {
        cx.flushes.cache.note_write();
        let ok = ok || cx.goes_on_without(member);
        self.base_writes -= 1;
        self.write_held_back(cx);
        let Some(base) = &mut self.base else { return };
        base.failed |= !ok;
        if self.base_writes > 0 {
            return;
        }
        if base.failed {
            base.tries += 1;
            let again = base.tries < WRITE_TRIES && !cx.failure.is_fenced();
            return if again { self.write_piece(cx) } else { self.drop_base(cx) };
        }
        match base.stage {
            Stage::Body => base.next_at = cx.now + cx.config.checkpoint.piece_pause,
            Stage::Header | Stage::Complete => {
                base.stage = Stage::Complete;
                base.piece = Arc::default();
            }
        }
        if fault::planted(PlantedBug::BaseNamedEarly)
            && let Some(base) = &mut self.base
            && base.at > 0
        {
            base.stage = Stage::Complete;
        }
    }
}

//! Batches, flushes and metadata of a mirrored cache: which member gets what, and when batches are
//! committed (I60).
//!
//! A batch that failed on an active member is written again, as in a cache that is not mirrored,
//! unless the record that fails this member out is pending: then it waits for that. A copy on an
//! inactive member, a new one or one that is about to be failed out, never commits a batch.

use crate::api::{Device, IoAction, OpId};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::mirror::{Members, Mirror, Standing};
use crate::context::operations::OpKind;
use crate::context::streams::{Batch, NO_OP};
use crate::fault::{self, PlantedBug};
use crate::map::segment::SegmentPhase;
use forebay_format::superblock::Superblock;
use forebay_format::{BLOCK_BYTES, MirrorMark, StreamKind};

impl Mirror {
    /// True if a batch that has ended is committed, false if it never will be; `None`: it waits for
    /// the owner's record.
    fn verdict(&self, batch: &Batch, pair: bool) -> Option<bool> {
        let has = |member: u8| batch.kept >> member & 1 == 1;
        if !pair {
            // Clean blocks on a member that is out were dropped, or will be soon (I62).
            let member = self.member_of(batch.segment);
            return Some(has(member) && self.standing() != Standing::Out(member));
        }
        match self.standing() {
            Standing::Whole => Some(batch.kept == 0b11),
            Standing::Out(out) => Some(has(1 - out)),
            Standing::Asking(out) if !has(1 - out) => Some(false),
            Standing::Asking(out) => has(out).then_some(true),
        }
    }

    /// Planted bugs: a copy on any member commits a batch.
    fn loose_verdict(&self, batch: &Batch) -> Option<bool> {
        let waits = matches!(self.standing(), Standing::Asking(member) if batch.missing >> member & 1 == 1);
        if waits && batch.kept != 0 { None } else { Some(batch.kept != 0) }
    }
}

impl Members {
    /// Members that checkpoints are written to: one that is being rebuilt gets only the one that
    /// lists it. Until then its beginning stays empty, so that a start after a crash finds an empty
    /// device, and starts to rebuild it again.
    pub(crate) fn meta_members(&self) -> core::ops::Range<usize> {
        let listing = self.is_listing();
        self.members_that(|mirror, member| mirror.counts(member) || listing && mirror.takes(member))
    }

    /// The members for which this is true; at least one.
    fn members_that(&self, which: impl Fn(&Mirror, u8) -> bool) -> core::ops::Range<usize> {
        match self.mirror() {
            None => 0..1,
            Some(mirror) => match (which(mirror, 0), which(mirror, 1)) {
                (true, true) => 0..2,
                (false, _) => 1..2,
                (true, false) => 0..1,
            },
        }
    }

    /// Members whose superblocks are written now. At the end of a rebuild that is first the active
    /// one, and the new one only when both copies of the former are durable: if the new member is
    /// later found alone, the other one must list it (I64). Until then the new one gets none: a
    /// superblock that lists its own device as out is invalid.
    pub(crate) fn superblock_members(&self, second: bool) -> core::ops::Range<usize> {
        match self.joining_member() {
            Some(new) if second => new..new + 1,
            Some(new) => 1 - new..2 - new,
            None if fault::planted(PlantedBug::OutInItsOwnWords) => self.members_that(Mirror::takes),
            None if fault::planted(PlantedBug::ListAtOnce) && self.is_listing() => self.meta_members(),
            None => self.members_that(Mirror::counts),
        }
    }
}

impl Context {
    /// The superblock of a member, with the given state of the members.
    pub(crate) fn superblock_of(&self, member: usize, mark: Option<MirrorMark>) -> Superblock {
        let mirror = mark.map(|mark| MirrorMark { member: member as u8, ..mark });
        Superblock { mirror, ..self.superblock.clone() }
    }

    /// Submits a batch of a mirrored cache: if it belongs to a pair, to each member that takes
    /// writes.
    pub(crate) fn submit_to_members(&mut self, kind: StreamKind, batch: &mut Batch) {
        let Some(mirror) = self.members.mirror() else { return };
        (batch.twin, batch.kept, batch.missing) = (NO_OP, 0, 0);
        let (segment, start) = (batch.segment, batch.start);
        if !self.members.is_pair(&self.map, segment) {
            self.write_half(batch.op, batch, segment, start);
            return;
        }
        let twin = segment + mirror.columns();
        match (mirror.takes(0), mirror.takes(1)) {
            (true, true) => {
                batch.twin = self.ops.copy(batch.op, kind, self.now);
                self.write_half(batch.op, batch, segment, start);
                self.write_half(batch.twin, batch, twin, start);
            }
            (true, false) => self.write_half(batch.op, batch, segment, start),
            _ => self.write_half(batch.op, batch, twin, start),
        }
    }

    fn write_half(&mut self, op: u32, batch: &Batch, segment: u32, start: u32) {
        let offset = self.map.geometry.segment_offset(segment, start);
        let len = batch.blocks * BLOCK_BYTES as u32;
        self.count_cache_write(op, offset, len);
        self.ops.get_mut(op).member = self.member_at(offset);
        self.actions.push_io(if batch.is_summary {
            IoAction::WriteMeta { op: OpId(op), offset }
        } else {
            IoAction::Write { op: OpId(op), device: Device::Cache, offset, len }
        });
    }

    /// A write of a batch to a member has ended.
    pub(crate) fn half_written(&mut self, kind: StreamKind, op: u32, member: u8, ok: bool) {
        let stream = &mut self.log.streams[kind.index()];
        let batch = stream.incomplete(|batch| batch.op == op || batch.twin == op);
        if batch.is_none() && fault::planted(PlantedBug::CountHalfBatches) {
            return;
        }
        let batch = batch.expect("each half of a batch completes once");
        if batch.op == op {
            batch.op = NO_OP;
        } else {
            batch.twin = NO_OP;
        }
        batch.kept |= u8::from(ok) << member;
        batch.missing |= u8::from(!ok) << member;
        self.flushes.cache.note_write();
        if !ok {
            self.member_failed(member);
        }
        self.decide_batches(kind);
        self.settle_batches(kind);
    }

    /// Decides which ended batches are committed: those that every active member has. A batch that
    /// has not entered the map yet is not, if it was on a member that has been failed out
    /// meanwhile.
    fn decide_batches(&mut self, kind: StreamKind) {
        let fenced = self.failure.is_fenced() && !fault::planted(PlantedBug::CountAfterFence);
        let early = fault::planted(PlantedBug::CountHalfBatches);
        let loose = early || fault::planted(PlantedBug::CountAnywhere);
        let keeps = fault::planted(PlantedBug::KeepLostFill);
        let Some(mirror) = self.members.mirror() else { return };
        let mut half = false;
        for batch in self.log.streams[kind.index()].all_in_flight() {
            let ended = batch.op == NO_OP && batch.twin == NO_OP;
            let pair = self.map.segments.get((batch.segment + mirror.columns()) as usize);
            let pair = pair.is_some_and(|twin| twin.phase == SegmentPhase::Twin);
            if batch.completed == Some(true) && !pair && !keeps {
                batch.completed = mirror.verdict(batch, pair);
            }
            if batch.completed.is_some() || !(ended || early && batch.kept != 0) {
                continue;
            }
            batch.completed = match fenced {
                true => Some(false),
                false if loose || keeps && !pair => mirror.loose_verdict(batch),
                false => mirror.verdict(batch, pair),
            };
            half |= !fenced && pair && batch.kept != 0 && batch.completed == Some(false);
        }
        if half {
            self.coverage.add(CoverageMark::HalfRewritten);
        }
    }

    /// The owner has answered, or the cache was fenced: decides the batches that waited for that.
    pub(crate) fn settle_all_batches(&mut self) {
        if !self.members.is_mirrored() {
            return;
        }
        for kind in StreamKind::ALL {
            self.decide_batches(kind);
            self.settle_batches(kind);
        }
    }

    /// Metadata could not be written to a member. True if the cache continues with the other member
    /// alone.
    pub(crate) fn goes_on_without(&mut self, member: u8) -> bool {
        self.member_failed(member);
        !self.failure.is_fenced() && self.members.mirror().is_some_and(|mirror| !mirror.counts(member))
    }

    /// Flushes the members for a flush of the cache.
    pub(crate) fn flush_members(&mut self) {
        let Some(mirror) = self.members.mirror_mut() else { return };
        let one = mirror.failed().is_none() && fault::planted(PlantedBug::FlushOneMember);
        for member in mirror.begin_flush([true, !one]) {
            let op = self.ops.begin(OpKind::Flush(Device::Cache), self.now);
            self.ops.get_mut(op).member = member;
            self.actions.push_io(IoAction::FlushMember { op: OpId(op), member });
        }
    }

    pub(crate) fn member_flushed(&mut self, member: u8, ok: bool) {
        let Some(mirror) = self.members.mirror_mut() else { return };
        mirror.member_flushed(member, ok);
        if !ok {
            self.member_failed(member);
        }
        if self.members.mirror_mut().is_some_and(Mirror::await_end_of_flush) {
            self.end_waiting_flush();
        }
    }

    /// Ends a flush of the cache, unless it waits for the owner's answer.
    pub(crate) fn end_waiting_flush(&mut self) {
        let fenced = self.failure.is_fenced();
        let asks = self.members.asks();
        let Some(mirror) = self.members.mirror_mut() else { return };
        let Some(good) = mirror.waiting_flush() else { return };
        if asks && good && !fenced {
            self.coverage.add(CoverageMark::FlushWaitsForNote);
            return;
        }
        mirror.end_flush();
        self.flushed(Device::Cache, good);
    }
}

//! Taking checkpoints, and the append window that each one opens.
//!
//! ```text
//! Idle -> Holding -> Flushing -> Writing -> Settling -> SuperA -> FlushA -> SuperB -> FlushB -> Idle
//!                        |          ^
//!                        +- Mending +   (only when a cache is opened)
//! ```
//!
//! - *Holding*: no new batch is started until those in flight have completed. Then the map is exactly what the log up
//!   to here says, and the snapshot is taken: a fraction of a millisecond without appends.
//! - *Flushing*: the cache device is flushed, so that everything that the snapshot speaks of is durable.
//! - *Mending*: after a crash between the superblock copies, or damage to one, the other copy still names an older
//!   checkpoint, whose slots are about to be written over. It is brought up to date first, one copy after the other: whichever
//!   survives must name a checkpoint that is there (I13).
//! - *Writing*, *Settling*: both copies are written to the slots that the checkpoint in effect does not use; flush.
//! - *Super…*: superblock copy A, flush, copy B, flush. From the first of them on the new checkpoint is in effect. At the end of a
//!   rebuild (`mirror::rebuild`) once more, for the new member.
//!
//! Only at the end may the segments that the new checkpoint calls free be written (I7): a crash before that finds the
//! old checkpoint, and everything that it points at, untouched.

pub(crate) mod create;

use crate::api::{Device, Nanos, Notice};
use crate::context::Context;
use crate::context::Status;
use crate::context::coverage::CoverageMark;
use crate::context::operations::OpKind;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::log::ledger::Waiter;
use crate::log::streams::Item;
use crate::map::segment::{BlockState, SegmentPhase};
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState, SlotStates, VolumeEntry};
use forebay_format::superblock::CacheState;
use forebay_format::{Geometry, MirrorMark, StreamKind};

/// Attempts at each write of a checkpoint before the cache is fenced.
const WRITE_TRIES: u32 = 4;
/// A checkpoint only to end intents is not taken more often than this.
const INTENTS_PAUSE_NS: Nanos = 30_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum CheckpointStep {
    #[default]
    Idle,
    Holding,
    Flushing,
    Mending,
    MendingFlush,
    Writing,
    Settling,
    SuperA,
    FlushA,
    SuperB,
    FlushB,
}

/// What the checkpoint under way is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Purpose {
    #[default]
    Running,
    Opening,
    Closing,
}

#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    step: CheckpointStep,
    purpose: Purpose,
    pending: u32,
    tries: u32,
    failed: bool,
    bytes: Arc<Vec<u8>>,
    /// Segments that join the window when this checkpoint is in effect.
    joining: Vec<u32>,
    /// Slots that this checkpoint calls clean: no mark is needed for them.
    absorbed: Vec<u32>,
    /// Drop marks and intents that this checkpoint makes durable: they need not be appended.
    settled: Vec<Item>,
    /// Where superblock copies lie that differ from the one in effect, and what belongs there, in the order in which they are mended.
    pub(crate) stale_superblocks: Vec<(u64, Vec<u8>)>,
    /// What the superblock under way says of the members of a mirrored cache: it stays the same in all copies, whatever happens to them.
    mark: Option<MirrorMark>,
    /// The superblock of a new member is written, after that of the other one.
    second: bool,
    last_at: Nanos,
    /// Generation of the checkpoint in effect, once one was taken since the start.
    pub(crate) in_effect: u64,
    /// Generation of the superblock that says so, durable in both copies.
    pub(crate) super_generation: u64,
}

impl CheckpointState {
    pub(crate) fn is_idle(&self) -> bool {
        self.step == CheckpointStep::Idle
    }

    pub(crate) fn describe(&self) -> alloc::string::String {
        alloc::format!("{:?} {:?}", self.step, self.purpose)
    }
}

/// Segments in an append window: enough that checkpoints are rare (their cost is some percent of what the window
/// takes), few enough that a restart reads little, never so many that they cost the cache much of its space.
pub(crate) fn window_size(segments: u32) -> u32 {
    (segments / 16).clamp(4, 256)
}

impl Context {
    fn segment_entry(&self, number: usize) -> SegmentEntry {
        let segment = &self.map.segments[number];
        let state = match segment.phase {
            SegmentPhase::Free | SegmentPhase::Freed => return SegmentEntry::default(),
            SegmentPhase::Twin => {
                return SegmentEntry { state: SegmentState::Twin, ..SegmentEntry::default() };
            }
            SegmentPhase::Open => SegmentState::Open,
            SegmentPhase::Sealed => SegmentState::Sealed,
        };
        SegmentEntry {
            state,
            stream: segment.stream as u8,
            first_stream_sequence: segment.first_stream_sequence,
            first_sequence: segment.born,
            used_blocks: segment.completed,
            summary_block: segment.summary_block,
            slots: SlotStates::default(),
        }
    }
}

impl Engine {
    /// Has a checkpoint taken as soon as that is possible; [`Notice::Checkpointed`] tells when it is in effect.
    pub fn take_checkpoint(&mut self, now: Nanos) {
        self.begin(now);
        self.cx.want_checkpoint();
    }

    fn checkpoint_is_due(&self) -> bool {
        let state = &self.checkpoint;
        match self.cx.status {
            Status::Opening => return self.cx.checkpoint_wanted, // There is no map yet to judge by.
            Status::Failed(_) => return false,                   // There may be no geometry either.
            Status::Ready | Status::Stopping => {}
        }
        let (window, pool) = (self.cx.free.window.len(), self.cx.free.pool.len());
        let low = self.cx.free.window_size as usize / 2;
        self.cx.checkpoint_wanted
            || window <= low && pool >= (self.cx.free.window_size as usize / 4).max(1)
            || window <= 2 && pool > 0
            || self.wants_marks_by_checkpoint()
            || self.cx.has_ended_intents() && self.cx.now >= state.last_at + INTENTS_PAUSE_NS
    }

    /// Segments that hold nothing are about to join the window: a checkpoint that lists them is under way, or due.
    pub(crate) fn is_room_coming(&self) -> bool {
        let state = &self.checkpoint;
        !self.cx.fenced
            && (!state.joining.is_empty() || !self.cx.free.pool.is_empty() && self.checkpoint_is_due())
    }

    /// There is no space in the log even for marks and intents: a checkpoint says the same without it.
    fn wants_marks_by_checkpoint(&self) -> bool {
        let stream = &self.cx.log.streams[StreamKind::Write.index()];
        self.cx.free.window.len() <= 1
            && stream.room(self.cx.batch_blocks()) == 0
            && (!self.cx.log.marks.is_empty() || stream.waits_without_payload())
    }

    pub(crate) fn checkpoint_deadline(&self) -> Option<Nanos> {
        let due = self.checkpoint.last_at + INTENTS_PAUSE_NS;
        (self.checkpoint.is_idle() && self.may_checkpoint() && self.cx.has_ended_intents()).then_some(due)
    }

    /// A checkpoint may begin. Not when the final one is near, unless moves are under way that may need segments to end.
    fn may_checkpoint(&self) -> bool {
        let is_closing = self.cx.is_winding_down()
            && self.relocations.len() == 0
            && self.checkpoint.purpose != Purpose::Opening;
        !self.cx.fenced && !is_closing
    }

    /// The checkpoint that ends recovery.
    pub(crate) fn begin_opening_checkpoint(&mut self) {
        self.checkpoint.purpose = Purpose::Opening;
        self.cx.checkpoint_wanted = true;
    }

    /// The checkpoint that ends everything.
    pub(crate) fn begin_final_checkpoint(&mut self) {
        self.checkpoint.purpose = Purpose::Closing;
        if self.cx.fenced {
            // No promise can be made; the cache stays marked as open and is recovered at the next start.
            self.cx.actions.push_back(crate::api::Action::Closed);
            return;
        }
        self.hold();
        self.hold_and_snapshot();
    }

    #[inline]
    pub(crate) fn step_checkpoint(&mut self) {
        match self.checkpoint.step {
            CheckpointStep::Idle if self.may_checkpoint() && self.checkpoint_is_due() => {
                self.hold();
                self.hold_and_snapshot();
                self.dispatch();
            }
            CheckpointStep::Holding => {
                self.hold_and_snapshot();
                self.dispatch();
            }
            _ => {}
        }
    }

    fn hold(&mut self) {
        self.checkpoint.step = CheckpointStep::Holding;
        self.cx.log.on_hold = true;
    }

    fn hold_and_snapshot(&mut self) {
        if self.cx.fenced || !self.cx.log.streams.iter().all(crate::log::streams::Stream::nothing_in_flight) {
            if self.cx.fenced {
                self.checkpoint.step = CheckpointStep::Idle;
                self.cx.log.on_hold = false;
            }
            return;
        }
        self.cx.checkpoint_wanted = false;
        self.checkpoint.last_at = self.cx.now;
        if self.wants_marks_by_checkpoint() {
            self.cx.cover(CoverageMark::CheckpointOfFullLog);
        }
        self.apply_pool_job();
        self.cx.apply_rebuild();
        let snapshot = self.snapshot();
        self.cx.map.look_at(self.cx.map.geometry.slot_count().into());
        let segments = &self.cx.map.segments;
        self.checkpoint.bytes = Arc::new(snapshot.encode_with(|number, to| segments[number].pack_states(to)));
        self.checkpoint.step = CheckpointStep::Flushing;
        self.cx.log.on_hold = false;
        self.cx.flush(Device::Cache, Waiter::Checkpoint);
    }

    /// The map as it is now, but for the states of slots. Nothing is in flight, so it is what the log says.
    fn snapshot(&mut self) -> Checkpoint {
        self.checkpoint.absorbed = core::mem::take(&mut self.cx.log.marks);
        self.checkpoint.settled = self.cx.log.streams[StreamKind::Write.index()].take_without_payload();
        for item in self.checkpoint.settled.clone() {
            self.cx.apply_drop(item.kind);
        }
        if !self.checkpoint.absorbed.is_empty() {
            self.cx.cover(CoverageMark::MarksByCheckpoint);
        }
        if !self.checkpoint.settled.is_empty() {
            self.cx.cover(CoverageMark::ItemsByCheckpoint);
        }
        if self.cx.has_ended_intents() {
            self.cx.cover(CoverageMark::IntentCleared);
        }
        let size = self.cx.free.window_size as usize;
        let joining = size.saturating_sub(self.cx.free.window.len()).min(self.cx.free.pool.len());
        self.checkpoint.joining = self.cx.free.pool.drain(..joining).collect();
        let spare = self.cx.mirror.as_ref().and_then(|mirror| mirror.spare());
        let window =
            self.cx.free.window.iter().chain(&self.checkpoint.joining).copied().chain(spare).collect();
        let intents = self.cx.settle_intents();
        let opening = self.checkpoint.purpose == Purpose::Opening;
        self.cx.superblock.epoch += u64::from(opening);
        self.cx.superblock.checkpoint_generation += 1;
        self.cx.note_order_claims();
        Checkpoint {
            uuid: self.cx.superblock.uuid,
            generation: self.cx.superblock.checkpoint_generation,
            epoch: self.cx.superblock.epoch,
            next_sequence: self.cx.log.next_sequence,
            next_stream_sequence: [0, 1, 2].map(|index| self.cx.log.streams[index].next_sequence),
            segment_blocks: self.cx.map.geometry.segment_blocks,
            volumes: self.volume_table(),
            segments: (0..self.cx.map.segments.len()).map(|number| self.cx.segment_entry(number)).collect(),
            window,
            intents,
        }
    }

    /// The volume table as the next checkpoint will have it: volumes that are not attached included.
    #[must_use]
    pub fn volume_table(&self) -> Vec<VolumeEntry> {
        let closing = self.checkpoint.purpose == Purpose::Closing;
        let mut table = self.cx.volume_table.clone();
        for entry in &mut table {
            entry.flush_epoch = self.cx.order_claim(entry.id);
            let Some(Some(volume)) = self.cx.volumes.get(usize::from(entry.id.0)) else { continue };
            entry.mode = volume.settings.mode;
            entry.size_bytes = volume.table_bytes;
            entry.backing = volume.backing.clone();
            if !closing {
                // While in use the backing store changes under our own hands: no stamp, no samples.
                entry.backing.stamp_ns = None;
                entry.backing.samples.clear();
            }
        }
        table
    }

    pub(crate) fn checkpoint_flushed(&mut self, ok: bool) {
        if !ok {
            self.abandon_checkpoint();
            return;
        }
        match self.checkpoint.step {
            CheckpointStep::Flushing => self.mend_superblock(),
            CheckpointStep::MendingFlush => {
                self.checkpoint.stale_superblocks.remove(0);
                self.mend_superblock();
            }
            CheckpointStep::Settling => self.write_superblock(0),
            CheckpointStep::FlushA if fault::planted(PlantedBug::DropSecondSuperblock) => {
                self.checkpoint_in_effect()
            }
            CheckpointStep::FlushA => self.write_superblock(1),
            CheckpointStep::FlushB if self.cx.joining_member().is_some() && !self.checkpoint.second => {
                self.checkpoint.second = true;
                self.write_superblock(0);
            }
            CheckpointStep::FlushB => self.checkpoint_in_effect(),
            step => unreachable!("no flush is awaited in {step:?}"),
        }
    }

    fn mend_superblock(&mut self) {
        if self.cx.mirror.is_some() {
            let mut stale = core::mem::take(&mut self.checkpoint.stale_superblocks);
            stale.retain(|(offset, _)| {
                self.cx.meta_members().contains(&usize::from(self.cx.member_at(*offset)))
            });
            self.checkpoint.stale_superblocks = stale;
        }
        let Some((offset, bytes)) = self.checkpoint.stale_superblocks.first().cloned() else {
            self.write_copies();
            return;
        };
        self.checkpoint.step = CheckpointStep::Mending;
        self.checkpoint.pending = 1;
        self.checkpoint.failed = false;
        self.cx.write_meta(offset, Arc::new(bytes), OpKind::Checkpoint);
    }

    fn write_copies(&mut self) {
        self.checkpoint.step = CheckpointStep::Writing;
        let members = self.cx.meta_members();
        self.checkpoint.pending = 2 * members.len() as u32;
        self.checkpoint.failed = false;
        let (generation, geometry) = (self.cx.superblock.checkpoint_generation, self.cx.map.geometry);
        for (member, copy) in members.flat_map(|member| [(member, 0), (member, 1)]) {
            let offset = geometry.mirror_meta(member, geometry.checkpoint_offset(generation, copy));
            let bytes = self.checkpoint.bytes.clone();
            self.cx.write_meta(offset, bytes, OpKind::Checkpoint);
        }
    }

    fn write_superblock(&mut self, copy: usize) {
        self.checkpoint.step = [CheckpointStep::SuperA, CheckpointStep::SuperB][copy];
        let second = self.checkpoint.second;
        let members = self.cx.superblock_members(second);
        self.checkpoint.pending = members.len() as u32;
        self.checkpoint.failed = false;
        if copy == 0 && self.checkpoint.tries == 0 && !second {
            self.checkpoint.mark = self.cx.superblock.mirror;
            // A member that goes on alone counts by two: then its superblock is newer than any that the other one was left with.
            let alone = self.checkpoint.mark.is_some_and(|mark| mark.out.is_some());
            self.cx.superblock.generation += 1 + u64::from(alone);
        }
        let closing = self.checkpoint.purpose == Purpose::Closing;
        self.cx.superblock.state = if closing { CacheState::Clean } else { CacheState::Open };
        for member in members {
            let offset = self.cx.map.geometry.mirror_meta(member, Geometry::superblock_offset(copy));
            let bytes = self.cx.superblock_of(member, self.checkpoint.mark).encode();
            self.cx.write_meta(offset, Arc::new(bytes), OpKind::Checkpoint);
        }
    }

    pub(crate) fn checkpoint_written(&mut self, member: u8, ok: bool) {
        self.cx.flushes.cache.unflushed = true;
        let ok = ok || self.cx.goes_on_without(member);
        let state = &mut self.checkpoint;
        state.failed |= !ok;
        state.pending -= 1;
        if state.pending > 0 {
            return;
        }
        if state.failed {
            self.cx.coverage.add(CoverageMark::CheckpointRetried);
            state.tries += 1;
            let tries = state.tries;
            match state.step {
                _ if tries >= WRITE_TRIES => self.abandon_checkpoint(),
                CheckpointStep::Mending => self.mend_superblock(),
                CheckpointStep::Writing => self.write_copies(),
                CheckpointStep::SuperA => self.write_superblock(0),
                _ => self.write_superblock(1),
            }
            return;
        }
        state.tries = 0;
        state.step = match state.step {
            CheckpointStep::Mending => CheckpointStep::MendingFlush,
            CheckpointStep::Writing => CheckpointStep::Settling,
            CheckpointStep::SuperA => CheckpointStep::FlushA,
            _ => CheckpointStep::FlushB,
        };
        self.cx.flush(Device::Cache, Waiter::Checkpoint);
    }

    /// The cache device does not take a checkpoint: stop promising anything.
    fn abandon_checkpoint(&mut self) {
        self.checkpoint.step = CheckpointStep::Idle;
        self.cx.fence();
        for item in core::mem::take(&mut self.checkpoint.settled) {
            self.cx.item_done(item, None);
        }
        match self.checkpoint.purpose {
            Purpose::Opening => self.fail_opening(crate::recovery::OpenError::CacheWrite),
            Purpose::Closing => self.cx.actions.push_back(crate::api::Action::Closed),
            Purpose::Running => {}
        }
    }

    fn checkpoint_in_effect(&mut self) {
        self.checkpoint.step = CheckpointStep::Idle;
        self.checkpoint.second = false;
        self.checkpoint.bytes = Arc::default();
        for number in core::mem::take(&mut self.checkpoint.joining) {
            self.cx.map.end_segment(number, SegmentPhase::Free);
            self.cx.column_is_free(number);
            if !self.cx.keep_retired(number) {
                self.cx.free.window.push_back(number);
            }
        }
        for slot in core::mem::take(&mut self.checkpoint.absorbed) {
            if self.cx.map.state(slot) == BlockState::Destaged {
                self.cx.map.mark_clean(slot);
            }
        }
        self.cx.orders_checkpointed();
        self.cx.rebuild_checkpointed();
        if self.checkpoint.mark != self.cx.superblock.mirror {
            self.cx.want_checkpoint(); // A member was put out meanwhile.
        }
        for item in core::mem::take(&mut self.checkpoint.settled) {
            self.cx.item_done(item, Some(0));
        }
        self.checkpoint.in_effect = self.cx.superblock.checkpoint_generation;
        self.checkpoint.super_generation = self.cx.superblock.generation;
        self.cx.stats.checkpoints += 1;
        self.cx.notice(Notice::Checkpointed { generation: self.cx.superblock.checkpoint_generation });
        match core::mem::take(&mut self.checkpoint.purpose) {
            Purpose::Running => {}
            Purpose::Opening => {
                self.recovery = None;
                self.cx.status = Status::Ready;
            }
            Purpose::Closing => {
                // What only waited for a checkpoint has it now.
                self.step_lifecycle();
                self.step_pool();
                self.cx.actions.push_back(crate::api::Action::Closed);
            }
        }
    }
}

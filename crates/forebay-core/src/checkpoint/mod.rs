//! Takes checkpoints, and opens an append window with each.
//!
//! ```text
//! Idle -> Holding -> Flushing -> Writing -> Settling -> SuperA -> FlushA -> SuperB -> FlushB -> Idle
//!                        |          ^
//!                        +Repairing +   (only when a cache is opened)
//! ```
//!
//! - *Holding*: the log starts no new batch until those in flight have completed. Then the map
//!   equals the log up to here exactly, and the snapshot is taken: a fraction of a millisecond
//!   without appends.
//! - *Flushing*: a flush of the cache device makes everything that the snapshot refers to durable.
//! - *Repairing*: after a crash between the writes of the superblock copies, or damage to one, the
//!   stale copy still names an older checkpoint, whose slots are about to be overwritten. The
//!   engine updates stale copies first, one after the other: any surviving copy must name an
//!   existing checkpoint (I13).
//! - *Writing*, *Settling*: writes both copies of the checkpoint to the slots that the one in
//!   effect does not use; flush.
//! - *Super…*: superblock copy A, flush, copy B, flush. From the first of them on, recovery may use
//!   the new checkpoint; the engine treats it as in effect after the last. At the end of a rebuild
//!   (`mirror::rebuild`) once more, for the new member.
//!
//! The snapshot covers all segments, or the changes since the checkpoint in effect ([`chain`]).
//!
//! Only at the end may the log write the segments that the new checkpoint lists as free (I7): after
//! a crash before that, recovery finds the old checkpoint, and all that it refers to, unchanged.
//! Between checkpoints, separate steps extend the window ([`extend`]).

mod base;
mod chain;
pub(crate) mod create;
mod extend;

use crate::api::OwnerAction;
use crate::api::open_error::OpenError;
use crate::api::{Device, Nanos, Notice};
use crate::checkpoint::base::BaseWriter;
use crate::checkpoint::chain::Limits;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::Waiter;
use crate::context::operations::OpKind;
use crate::context::streams::Item;
use crate::context::{Context, Status};
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::{BlockState, SegmentPhase};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use forebay_format::checkpoint::{Checkpoint, SegmentEntry, SegmentState, SlotStates, VolumeEntry};
use forebay_format::superblock::CacheState;
use forebay_format::{Geometry, MirrorMark, StreamKind};

/// Attempts at each write of a checkpoint before the cache is fenced.
const WRITE_TRIES: u32 = 4;
/// Shortest interval between checkpoints taken only to end intents.
const INTENTS_PAUSE_NS: Nanos = 30_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum CheckpointStep {
    #[default]
    Idle,
    ExtendFlushing,
    Extending,
    ExtendSettling,
    Holding,
    Flushing,
    Repairing,
    RepairingFlush,
    Writing,
    Settling,
    SuperA,
    FlushA,
    SuperB,
    FlushB,
}

/// Purpose of the checkpoint in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Purpose {
    #[default]
    Running,
    Opening,
    Closing,
}

#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    step: CheckpointStep,
    purpose: Purpose,
    pending: u32,
    tries: u32,
    failed: bool,
    bytes: Arc<Vec<u8>>,
    /// Byte offsets at which they are written on each member.
    places: Vec<u64>,
    /// Segments that join the window when this checkpoint is in effect.
    joining: Vec<u32>,
    /// Slots that this checkpoint records as clean: they need no mark.
    absorbed: Vec<u32>,
    /// Drop marks and intents that this checkpoint makes durable: the log need not append them.
    settled: Vec<Item>,
    /// Members of a mirrored cache as the superblock in progress records them: the same in all
    /// copies, even if a member fails meanwhile.
    mark: Option<MirrorMark>,
    /// The superblock of a new member is being written, after that of the other one.
    second: bool,
    last_at: Nanos,
    /// The cache flush that covers its completed writes.
    ticket: u64,
    /// Generation of the checkpoint in effect, once one was taken since the start.
    in_effect: u64,
    /// Generation of the superblock that names it, durable in both copies.
    super_generation: u64,
    /// First sequence that the checkpoint in effect does not account for, and that of the one in
    /// progress.
    accounted: u64,
    accounts_for: u64,
    /// The window of the checkpoint in progress.
    listing: Vec<u32>,
    /// Segments that have been in the window since the checkpoint in effect.
    listed: Vec<u32>,
    /// Of those, how many the checkpoint listed itself; extensions have added the others.
    listed_first: usize,
    /// Extensions since the checkpoint in effect.
    extensions: u64,
    /// Slots of extensions still to rewrite because recovery found damage there.
    unrepaired: u32,
    /// Generation of the whole checkpoint or base with which the checkpoint in effect begins:
    /// determines the slots in use.
    image: u64,
    /// Block of its slots at which its increments begin.
    start: u64,
    /// Geometry of the chain, and the members that have all of it.
    image_geometry: Option<Geometry>,
    image_members: Range<usize>,
    limits: Limits,
    /// The next chain, and writes of bases in flight.
    base: Option<Box<BaseWriter>>,
    base_writes: u32,
    /// No increment can follow the checkpoint in effect: changes are missing.
    broken: bool,
    /// A whole checkpoint waits for writes of a base that was given up: they are in its slots.
    held_back: bool,
    /// A base was given up since the checkpoint in effect.
    base_given_up: bool,
    /// See [`crate::Engine::last_snapshot`].
    kept: Option<Box<Checkpoint>>,
}

impl Checkpoints {
    /// Generation of the superblock of the last checkpoint, durable in both copies; 0 before the
    /// first one since the start.
    pub(crate) fn super_generation(&self) -> u64 {
        self.super_generation
    }

    /// Returns true if a checkpoint of this generation, or a later one, is in effect.
    pub(crate) fn is_in_effect(&self, generation: u64) -> bool {
        self.in_effect >= generation
    }

    /// See [`crate::Engine::last_snapshot`].
    pub(crate) fn last_snapshot(&self) -> Option<&Checkpoint> {
        self.kept.as_deref()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.step == CheckpointStep::Idle
    }

    pub(crate) fn describe(&self) -> alloc::string::String {
        alloc::format!("{:?} {:?}", self.step, self.purpose)
    }
}

/// Segments in an append window: enough for the log to continue during an extension, few enough to
/// cost little space: a 64th of the cache, from 8 to 64; below 8 (but at least 4) if that exceeds a
/// sixteenth. In a mirrored cache, where every extension is a checkpoint, enough to keep
/// checkpoints rare.
pub(crate) fn window_size(segments: u32, mirrored: bool) -> u32 {
    let least = (segments / 16).clamp(4, 8);
    if mirrored { (segments / 16).clamp(4, 256) } else { (segments / 64).clamp(least, 64) }
}

impl CacheMap {
    fn segment_entry(&self, number: u32) -> SegmentEntry {
        let segment = &self.segments[number as usize];
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
            first_sequence: segment.first_sequence,
            used_blocks: segment.completed,
            summary_block: segment.summary_block,
            slots: SlotStates::default(),
        }
    }
}

impl Context {
    /// Returns true if the log has no space even for marks and intents: a checkpoint records them
    /// instead.
    fn wants_marks_by_checkpoint(&self) -> bool {
        let stream = &self.log.streams[StreamKind::Write.index()];
        self.free.window.len() <= 1
            && stream.room(self.batch_blocks()) == 0
            && (self.log.marks.len() > 0 || stream.waits_without_payload())
    }
}

impl Checkpoints {
    #[inline]
    fn is_due(&self, cx: &Context) -> bool {
        match cx.status {
            Status::Opening => return cx.checkpoint_wanted, // The map is not complete yet.
            Status::Failed(_) => return false,              // There may be no geometry either.
            Status::Ready | Status::Stopping => {}
        }
        cx.free.wants_to_join() || self.is_due_besides(cx)
    }

    /// Returns true if a checkpoint is due that a window extension cannot replace.
    #[inline]
    fn is_due_besides(&self, cx: &Context) -> bool {
        cx.checkpoint_wanted
            || cx.wants_marks_by_checkpoint()
            || cx.volumes.has_ended_intents() && cx.now >= self.last_at + INTENTS_PAUSE_NS
    }

    /// Returns true if empty segments are about to join the window: a checkpoint or extension that
    /// lists them is in progress, or due.
    pub(crate) fn is_room_coming(&self, cx: &Context) -> bool {
        !cx.failure.is_fenced() && (!self.joining.is_empty() || !cx.free.pool.is_empty() && self.is_due(cx))
    }

    pub(crate) fn deadline(&self, cx: &Context) -> Option<Nanos> {
        let due = self.last_at + INTENTS_PAUSE_NS;
        let may = self.is_idle() && self.may_checkpoint(cx) && !self.waits_for_base(cx);
        (may && cx.volumes.has_ended_intents()).then_some(due)
    }

    /// Returns true if a checkpoint may begin: not just before the final one, unless relocations in
    /// flight may need segments to complete.
    #[inline]
    fn may_checkpoint(&self, cx: &Context) -> bool {
        let is_closing = cx.is_winding_down() && cx.log.moves == 0 && self.purpose != Purpose::Opening;
        !cx.failure.is_fenced() && !is_closing
    }

    /// Begins the checkpoint that ends recovery. Afterwards the engine rewrites both slots of
    /// extensions if one of their copies was damaged.
    pub(crate) fn begin_opening(&mut self, cx: &mut Context, extensions_are_damaged: bool) {
        self.unrepaired = if extensions_are_damaged { 2 } else { 0 };
        self.purpose = Purpose::Opening;
        self.image = cx.superblock.image_generation();
        cx.checkpoint_wanted = true;
    }

    /// Begins the final checkpoint.
    pub(crate) fn begin_final(&mut self, cx: &mut Context) {
        self.purpose = Purpose::Closing;
        if cx.failure.is_fenced() {
            // No checkpoint is possible: the cache stays marked as open, and the next start
            // recovers it.
            cx.actions.push_owner(OwnerAction::Closed);
            return;
        }
        self.hold(cx);
    }

    /// Holds the log if a checkpoint is due. Returns true once no batch is in flight: the snapshot
    /// can be taken.
    #[inline(always)] // called in every settling
    pub(crate) fn is_ready_for_snapshot(&mut self, cx: &mut Context) -> bool {
        self.step_base(cx);
        match self.step {
            CheckpointStep::Idle if self.may_checkpoint(cx) && self.is_due(cx) => {
                if !self.is_due_besides(cx) && self.extend_window(cx) {
                    return false;
                }
                if self.needs_base_now(cx) {
                    self.begin_base(cx);
                }
                if self.waits_for_base(cx) {
                    cx.coverage.add(CoverageMark::CheckpointWaits);
                    return false;
                }
                self.hold(cx);
            }
            CheckpointStep::Holding => {}
            _ => return false,
        }
        if cx.failure.is_fenced() {
            self.step = CheckpointStep::Idle;
            cx.log.on_hold = false;
            return false;
        }
        cx.log.streams.iter().all(crate::context::streams::Stream::nothing_in_flight)
    }

    /// Takes the snapshot, after the changes that belong to this checkpoint.
    pub(crate) fn take_snapshot(&mut self, cx: &mut Context) {
        cx.checkpoint_wanted = false;
        self.last_at = cx.now;
        if cx.wants_marks_by_checkpoint() {
            cx.coverage.add(CoverageMark::CheckpointOfFullLog);
        }
        let follows = cx.superblock.checkpoint_generation;
        let rest = self.snapshot(cx);
        if cx.config.checkpoint.keep_snapshot {
            self.kept = Some(Box::new(cx.map.whole_checkpoint(&rest)));
        }
        if self.may_increment(cx, &rest) {
            self.encode_increment(cx, rest, follows);
        } else {
            self.encode_whole(cx, rest);
        }
        self.step = CheckpointStep::Flushing;
        cx.log.on_hold = false;
        cx.flush(Device::Cache, Waiter::Checkpoint);
    }

    fn hold(&mut self, cx: &mut Context) {
        self.step = CheckpointStep::Holding;
        cx.log.on_hold = true;
    }

    /// Returns the present state without the segments. No batch is in flight, so it equals the log.
    fn snapshot(&mut self, cx: &mut Context) -> Checkpoint {
        self.absorbed = cx.log.marks.take_all();
        self.settled = cx.log.streams[StreamKind::Write.index()].take_without_payload();
        for item in self.settled.clone() {
            cx.map.apply_drop(item.kind);
        }
        if !self.absorbed.is_empty() {
            cx.coverage.add(CoverageMark::MarksByCheckpoint);
        }
        if !self.settled.is_empty() {
            cx.coverage.add(CoverageMark::ItemsByCheckpoint);
        }
        if cx.volumes.has_ended_intents() {
            cx.coverage.add(CoverageMark::IntentCleared);
        }
        let joining = cx.free.may_join().min(cx.free.pool.len());
        self.joining = cx.free.pool.drain(..joining).collect();
        self.accounts_for = cx.log.next_sequence;
        cx.map.drops_recorded();
        let spare = cx.members.mirror().and_then(|mirror| mirror.spare());
        let window: Vec<u32> = cx
            .free
            .window
            .iter()
            .chain(&self.joining)
            .copied()
            .chain(spare)
            .chain(cx.free.held_of_window())
            .collect();
        self.listing.clone_from(&window);
        let intents = cx.volumes.settle_intents();
        let opening = self.purpose == Purpose::Opening;
        cx.superblock.epoch += u64::from(opening);
        cx.superblock.checkpoint_generation = cx.next_checkpoint_generation();
        cx.map.note_order_claims();
        Checkpoint {
            uuid: cx.superblock.uuid,
            generation: cx.superblock.checkpoint_generation,
            epoch: cx.superblock.epoch,
            next_sequence: cx.log.next_sequence,
            next_stream_sequence: [0, 1, 2].map(|index| cx.log.streams[index].next_sequence),
            segment_blocks: cx.map.geometry.segment_blocks,
            volumes: self.table_to_write(cx),
            segments: Vec::new(),
            window,
            intents,
        }
    }

    /// The volume table as the next checkpoint will have it, including volumes that are not
    /// attached.
    pub(crate) fn table_to_write(&self, cx: &Context) -> Vec<VolumeEntry> {
        let closing = self.purpose == Purpose::Closing;
        let mut table = cx.volume_table.clone();
        for entry in &mut table {
            entry.flush_epoch = cx.map.order_claim(entry.id);
            let Some(volume) = cx.volumes.get(entry.id) else { continue };
            entry.mode = volume.settings.mode;
            entry.size_bytes = volume.table_bytes;
            entry.backing = volume.backing.clone();
            if !closing {
                // The engine itself writes to a backing store in use: no stamp, no samples.
                entry.backing.stamp_ns = None;
                entry.backing.samples.clear();
            }
        }
        table
    }

    pub(crate) fn flushed(&mut self, cx: &mut Context, ok: bool) {
        if !ok {
            self.abandon(cx);
            return;
        }
        match self.step {
            CheckpointStep::ExtendFlushing => self.write_extension(cx),
            CheckpointStep::ExtendSettling => self.window_extended(cx),
            CheckpointStep::Flushing => self.repair_superblock(cx),
            CheckpointStep::RepairingFlush => {
                cx.stale_superblocks.remove(0);
                self.repair_superblock(cx);
            }
            CheckpointStep::Settling => self.write_superblock(cx, 0),
            CheckpointStep::FlushA if fault::planted(PlantedBug::DropSecondSuperblock) => {
                self.takes_effect(cx)
            }
            CheckpointStep::FlushA => self.write_superblock(cx, 1),
            CheckpointStep::FlushB if cx.members.joining_member().is_some() && !self.second => {
                self.second = true;
                self.write_superblock(cx, 0);
            }
            CheckpointStep::FlushB => self.takes_effect(cx),
            step => unreachable!("no flush is awaited in {step:?}"),
        }
    }

    fn repair_superblock(&mut self, cx: &mut Context) {
        if cx.members.is_mirrored() {
            let mut stale = core::mem::take(&mut cx.stale_superblocks);
            stale.retain(|(offset, _)| {
                cx.members.meta_members().contains(&usize::from(cx.member_at(*offset)))
            });
            cx.stale_superblocks = stale;
        }
        let Some((offset, bytes)) = cx.stale_superblocks.first().cloned() else {
            self.write_copies(cx);
            return;
        };
        self.step = CheckpointStep::Repairing;
        self.pending = 1;
        self.failed = false;
        cx.write_meta(offset, Arc::new(bytes), OpKind::Checkpoint);
    }

    fn write_copies(&mut self, cx: &mut Context) {
        let whole_over_image =
            cx.superblock.chain.is_none() && cx.superblock.checkpoint_generation % 2 == self.image % 2;
        assert!(!whole_over_image, "I13: a checkpoint is written to the slots that are not in effect");
        self.step = CheckpointStep::Writing;
        self.held_back = cx.superblock.chain.is_none() && self.base_writes > 0;
        if self.held_back {
            return;
        }
        let members = cx.members.meta_members();
        self.pending = (self.places.len() * members.len()) as u32;
        self.failed = false;
        for member in members {
            for place in &self.places {
                let offset = cx.map.geometry.mirror_meta(member, *place);
                cx.write_meta(offset, self.bytes.clone(), OpKind::Checkpoint);
            }
        }
    }

    /// Writes the checkpoint if it waited for writes of a base to its slots.
    fn write_held_back(&mut self, cx: &mut Context) {
        if self.held_back && self.base_writes == 0 {
            self.write_copies(cx);
        }
    }

    fn write_superblock(&mut self, cx: &mut Context, copy: usize) {
        let flushed = cx.flushes.cache.has_covered(self.ticket);
        assert!(flushed, "I13: a superblock names only what was flushed");
        self.step = [CheckpointStep::SuperA, CheckpointStep::SuperB][copy];
        let second = self.second;
        let members = cx.members.superblock_members(second);
        self.pending = members.len() as u32;
        self.failed = false;
        if copy == 0 && self.tries == 0 && !second {
            self.mark = cx.superblock.mirror;
            // A member that continues alone increments by two: then its superblock is newer than
            // any on the other one.
            let alone = self.mark.is_some_and(|mark| mark.out.is_some());
            cx.superblock.generation += 1 + u64::from(alone);
        }
        let closing = self.purpose == Purpose::Closing;
        cx.superblock.state = if closing { CacheState::Clean } else { CacheState::Open };
        for member in members {
            let offset = cx.map.geometry.mirror_meta(member, Geometry::superblock_offset(copy));
            let bytes = cx.superblock_of(member, self.mark).encode();
            cx.write_meta(offset, Arc::new(bytes), OpKind::Checkpoint);
        }
    }

    pub(crate) fn written(&mut self, cx: &mut Context, member: u8, ok: bool) {
        cx.flushes.cache.note_write();
        let ok = ok || cx.goes_on_without(member);
        let state = &mut *self;
        state.failed |= !ok;
        state.pending -= 1;
        if state.pending > 0 {
            return;
        }
        if state.failed {
            cx.coverage.add(CoverageMark::CheckpointRetried);
            state.tries += 1;
            let tries = state.tries;
            match state.step {
                _ if tries >= WRITE_TRIES => self.abandon(cx),
                CheckpointStep::Extending => self.write_extension(cx),
                CheckpointStep::Repairing => self.repair_superblock(cx),
                CheckpointStep::Writing => self.write_copies(cx),
                CheckpointStep::SuperA => self.write_superblock(cx, 0),
                _ => self.write_superblock(cx, 1),
            }
            return;
        }
        state.tries = 0;
        state.step = match state.step {
            CheckpointStep::Extending => CheckpointStep::ExtendSettling,
            CheckpointStep::Repairing => CheckpointStep::RepairingFlush,
            CheckpointStep::Writing => CheckpointStep::Settling,
            CheckpointStep::SuperA => CheckpointStep::FlushA,
            _ => CheckpointStep::FlushB,
        };
        self.ticket = cx.flushes.cache.ticket();
        cx.flush(Device::Cache, Waiter::Checkpoint);
    }

    /// Fences the cache, because its device does not take a checkpoint.
    fn abandon(&mut self, cx: &mut Context) {
        self.step = CheckpointStep::Idle;
        cx.fence();
        for item in core::mem::take(&mut self.settled) {
            cx.item_done(item, None);
        }
        match self.purpose {
            Purpose::Opening => cx.emit(Event::OpeningFailed(Box::new(OpenError::CacheWrite))),
            Purpose::Closing => cx.actions.push_owner(OwnerAction::Closed),
            Purpose::Running => {}
        }
    }

    fn takes_effect(&mut self, cx: &mut Context) {
        self.step = CheckpointStep::Idle;
        self.second = false;
        self.bytes = Arc::default();
        self.accounted = self.accounts_for;
        self.listed = core::mem::take(&mut self.listing);
        (self.extensions, self.listed_first) = (0, self.listed.len());
        for number in core::mem::take(&mut self.joining) {
            cx.map.end_segment(number, SegmentPhase::Free);
            cx.members.column_is_free(&mut cx.map, number);
            if !cx.free.keep_retired(number) {
                cx.free.window.push_back(number);
            }
        }
        for slot in core::mem::take(&mut self.absorbed) {
            if cx.map.state(slot) == BlockState::Destaged {
                cx.map.mark_clean(slot);
            }
        }
        cx.map.orders_checkpointed();
        cx.rebuild_checkpointed();
        cx.free.look_for_stale();
        if self.mark != cx.superblock.mirror {
            cx.want_checkpoint(); // A member was failed out meanwhile.
        }
        for item in core::mem::take(&mut self.settled) {
            cx.item_done(item, Some(0));
        }
        self.in_effect = cx.superblock.checkpoint_generation;
        self.image = cx.superblock.image_generation();
        self.note_members(cx);
        self.base_given_up = false;
        self.super_generation = cx.superblock.generation;
        cx.stats.checkpoints += 1;
        cx.actions.notice(Notice::Checkpointed { generation: cx.superblock.checkpoint_generation });
        match core::mem::take(&mut self.purpose) {
            Purpose::Running => {}
            Purpose::Opening => {
                cx.emit(Event::Opened);
                self.mend_extensions(cx);
            }
            Purpose::Closing => cx.emit(Event::Closing),
        }
    }
}

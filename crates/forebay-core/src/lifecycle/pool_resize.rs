//! The pool becomes larger or smaller while it is in use.
//!
//! Segments are added, or left out, at the end. The geometry changes in one instant, that of a
//! checkpoint's snapshot: this checkpoint has as many segment entries as the superblock that names
//! it says, so that whichever superblock copy a crash leaves, it fits the checkpoint that it names
//! (I22). New segments are free like any others, and join a window by the same checkpoint.
//!
//! Before that, segments at the end are *retired*: none of them is taken any more, open ones are
//! closed, clean blocks are dropped, pinned and dirty ones move to the survivor stream; dirty ones
//! are written back if there is no room for them or if they must keep their place in the order of
//! destage. Until the snapshot a shrink can be cancelled.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Nanos, Notice};
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, SegmentPhase};
use crate::map::sweep_slots;
use crate::reclaim::Reclaim;
use crate::reclaim::relocate::Relocations;
use forebay_format::geometry::SEGMENTS_MIN;
use forebay_format::{Geometry, Members, StreamKind};

/// Time until another attempt to move what could not be moved.
const RETRY_NS: Nanos = 1_000_000;

/// The same if nothing is being moved: it must be written back, which takes longer.
const DESTAGE_NS: Nanos = 10_000_000;

/// A change of the pool's size.
#[derive(Debug)]
struct PoolJob {
    geometry: Geometry,
    members: Members,
    /// Where the walk over the retired segments is.
    segment: u32,
    index: u32,
    /// Ready for the next snapshot.
    ready: bool,
    /// The checkpoint that has the new geometry, once there is one.
    ticket: Option<u64>,
}

/// The change of the pool's size that is under way, if any: a part of the engine.
#[derive(Debug, Default)]
pub(crate) struct PoolResize {
    job: Option<PoolJob>,
}

impl PoolResize {
    /// Begins to change the size of the pool.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context,
        device_bytes: u64,
        members: Members,
    ) -> Result<(), LifecycleError> {
        cx.may_change_pool()?;
        if self.job.is_some() {
            return Err(LifecycleError::Busy);
        }
        if cx.mirror.is_some() {
            return Err(LifecycleError::Mirrored);
        }
        let old = cx.map.geometry;
        let Ok(geometry) = old.resized(device_bytes) else {
            let blocks = device_bytes / crate::context::sectors::BLOCK;
            let wanted = blocks.saturating_sub(old.segments_start_block) / u64::from(old.segment_blocks);
            return Err(LifecycleError::PoolRange { wanted, least: SEGMENTS_MIN, most: old.segments_max() });
        };
        let count = geometry.segment_count;
        if count < old.segment_count {
            may_shrink(cx, count)?;
        }
        let job = PoolJob { geometry, members, segment: count, index: 0, ready: false, ticket: None };
        if !fault::planted(PlantedBug::AppendToRetired) {
            for list in [&mut cx.free.window, &mut cx.free.pool] {
                cx.free.retired.extend(list.iter().copied().filter(|number| *number >= count));
                list.retain(|number| *number < count);
            }
        }
        cx.free.window_size = crate::checkpoint::window_size(count, false);
        cx.free.retired_from = Some(count);
        self.job = Some(job);
        Ok(())
    }

    /// Goes back to the size that the pool has, if that is possible still.
    pub(crate) fn cancel(&mut self, cx: &mut Context) -> Result<(), LifecycleError> {
        match &self.job {
            Some(job) if job.ticket.is_none() => {
                self.end(cx, LifecycleError::Cancelled);
                Ok(())
            }
            Some(_) => Err(LifecycleError::Busy),
            None => Err(LifecycleError::Cancelled),
        }
    }

    fn end(&mut self, cx: &mut Context, error: LifecycleError) {
        let Some(job) = self.job.take() else { return };
        cx.free.window_size = crate::checkpoint::window_size(cx.map.geometry.segment_count, false);
        cx.map.relief += 1; // What was retired can be reclaimed again.
        let retired = cx.free.end_retiring();
        if job.ticket.is_none() {
            cx.free.pool.extend(retired);
        }
        cx.cover(CoverageMark::ChangeFailed);
        cx.notice(Notice::PoolResizeFailed { error });
    }

    /// Goes on with a change of the pool's size.
    #[inline]
    pub(crate) fn step(&mut self, cx: &mut Context, relocations: &mut Relocations, checkpoint: &Checkpoints) {
        if self.job.is_some() {
            self.go_on(cx, relocations, checkpoint);
        }
    }

    fn go_on(&mut self, cx: &mut Context, relocations: &mut Relocations, checkpoint: &Checkpoints) {
        let Some(job) = &self.job else { return };
        if let Some(ticket) = job.ticket {
            if checkpoint.is_in_effect(ticket) {
                self.job = None;
                cx.free.end_retiring();
                let segments = cx.map.geometry.segment_count;
                cx.notice(Notice::PoolResized { segments });
            } else if cx.fenced {
                self.end(cx, LifecycleError::Fenced);
            }
            return;
        }
        if cx.fenced || cx.stopping {
            self.end(cx, if cx.fenced { LifecycleError::Fenced } else { LifecycleError::NotServing });
        } else if !job.ready && self.evacuate(cx, relocations, checkpoint) {
            if let Some(job) = &mut self.job {
                job.ready = true;
            }
            cx.want_checkpoint();
        }
    }

    /// Empties retired segments; true once they all are.
    fn evacuate(
        &mut self,
        cx: &mut Context,
        relocations: &mut Relocations,
        checkpoint: &Checkpoints,
    ) -> bool {
        let count = cx.segments_staying();
        let retired = cx.map.geometry.segment_count - count;
        for kind in StreamKind::ALL {
            cx.close_from(kind, count);
        }
        let Some(job) = &self.job else { return false };
        if cx.free.retired.len() == retired as usize || fault::planted(PlantedBug::AppendToRetired) {
            return true;
        }
        let mut left = sweep_slots(cx.map.geometry.slot_count());
        let (mut segment, mut index) = (job.segment, job.index);
        let mut blocked = false;
        while left > 0 && (segment as usize) < cx.map.segments.len() {
            let table = &cx.map.segments[segment as usize];
            if table.lost > 0 {
                let blocks = lost_from(cx, count);
                self.end(cx, LifecycleError::Lost { blocks });
                return false;
            }
            left -= 1;
            if table.phase != SegmentPhase::Sealed
                || table.live == 0
                || index >= cx.map.geometry.segment_blocks
            {
                (segment, index) = (segment + 1, 0);
                continue;
            }
            let room_comes = Reclaim::is_busy_relocating(cx, checkpoint);
            blocked |= !evacuate_slot(cx, relocations, (segment, index), room_comes);
            index += 1;
        }
        // Round and round: what could not be moved this time may have been written back the next
        // time.
        let ended = segment as usize >= cx.map.segments.len();
        let Some(job) = &mut self.job else { return false };
        (job.segment, job.index) = if ended { (count, 0) } else { (segment, index) };
        cx.reclaim_wants_destage |= blocked;
        let moving = cx.log.moves > 0;
        cx.wake_in(match ended || blocked {
            true if moving => RETRY_NS,
            true => DESTAGE_NS,
            false => 1,
        });
        false
    }

    /// Called with every snapshot, before it is taken: the geometry changes now or not in this
    /// checkpoint.
    pub(crate) fn apply(&mut self, cx: &mut Context, reclaim: &mut Reclaim) {
        let generation = cx.superblock.checkpoint_generation + 1;
        let Some(job) = &mut self.job else { return };
        if !job.ready || job.ticket.is_some() {
            return;
        }
        job.ticket = Some(generation);
        let (geometry, members) = (job.geometry, job.members);
        let old = cx.map.geometry.segment_count;
        forget_segments(cx, geometry.segment_count);
        reclaim.forget_segments(geometry.segment_count);
        cx.map.resize(geometry);
        (old..geometry.segment_count).for_each(|number| cx.free.add(number));
        cx.superblock.geometry = geometry;
        cx.superblock.members = members;
    }
}

/// What stays must hold the dirty data that nobody can write back, and blocks that are lost
/// cannot be moved.
fn may_shrink(cx: &Context, count: u32) -> Result<(), LifecycleError> {
    let most = Context::kept_dirty_max(cx.capacity_of(count));
    let blocks = cx.kept_dirty();
    if blocks > most {
        return Err(LifecycleError::TooDirty { blocks, most });
    }
    match lost_from(cx, count) {
        0 => Ok(()),
        blocks => Err(LifecycleError::Lost { blocks }),
    }
}

/// Lost blocks in segments from `count` on.
fn lost_from(cx: &Context, count: u32) -> u64 {
    cx.map.segments[count as usize..].iter().map(|segment| u64::from(segment.lost)).sum()
}

/// False if the block has to stay for now.
fn evacuate_slot(
    cx: &mut Context,
    relocations: &mut Relocations,
    (segment, index): (u32, u32),
    room_comes: bool,
) -> bool {
    let slot = cx.map.slot(segment, index);
    match cx.map.state(slot) {
        BlockState::Void => true,
        BlockState::Clean if cx.map.is_pinned(slot) && moves_pinned(cx, relocations, slot, room_comes) => {
            true
        }
        BlockState::Clean => {
            let key = cx.map.key(slot);
            cx.map.remove(key);
            cx.stats.evicted_blocks += 1;
            cx.counters.of(key.volume()).evicted_blocks += 1;
            true
        }
        BlockState::Dirty if cx.map.is_lost(slot) => false,
        BlockState::Dirty | BlockState::Destaged => {
            cx.yield_order_of(slot);
            cx.cover(CoverageMark::Evacuated);
            relocations.relocate(cx, slot)
        }
    }
}

/// A pinned block moves with the dirty ones, if it can, and as far as half of what stays may be
/// pinned (I26). True if it does, or may later.
fn moves_pinned(cx: &mut Context, relocations: &mut Relocations, slot: u32, room_comes: bool) -> bool {
    cx.map.pinned_blocks() * 2 <= cx.data_capacity()
        && (relocations.relocate(cx, slot) || cx.log.moves > 0 || room_comes)
}

/// Nothing may name a segment from `count` on any more.
fn forget_segments(cx: &mut Context, count: u32) {
    let slots = count.saturating_mul(cx.map.geometry.segment_blocks);
    cx.flushes.undurable.retain(|number| *number < count);
    cx.flushes.flushing.retain(|(number, _)| *number < count);
    cx.log.marks.retain(|slot| *slot < slots);
    cx.free.forget_from(count);
    if fault::planted(PlantedBug::AppendToRetired) {
        cx.free.window.retain(|number| *number < count);
        cx.free.pool.retain(|number| *number < count);
    }
}

//! Changing the size of a pool in use.
//!
//! Segments are added or removed at the end. The geometry changes at one instant, that of a
//! checkpoint's snapshot: this checkpoint has as many segment entries as the superblock that names
//! it states, so that after a crash each superblock copy fits the checkpoint that it names (I22).
//! New segments are free like any others, and the same checkpoint may add them to the window.
//!
//! Before that, segments at the end are *retired*: no stream takes them, open ones are closed,
//! clean blocks are dropped, pinned and dirty ones are relocated to the survivor stream. Dirty ones
//! are destaged instead if there is no room for them or if they must keep their place in the
//! destage order. A shrink can be cancelled until the snapshot.

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

/// Time until another attempt to relocate blocks.
const RETRY_NS: Nanos = 1_000_000;

/// The same if no relocation is in flight: the blocks must be destaged, which takes longer.
const DESTAGE_NS: Nanos = 10_000_000;

/// A change of the pool's size.
#[derive(Debug)]
struct PoolJob {
    geometry: Geometry,
    members: Members,
    /// Position of the walk over the retired segments.
    segment: u32,
    index: u32,
    /// Ready for the next snapshot.
    ready: bool,
    /// The checkpoint that has the new geometry, once there is one.
    ticket: Option<u64>,
}

/// The change of the pool's size in progress, if any: a part of the engine.
#[derive(Debug, Default)]
pub(crate) struct PoolResize {
    job: Option<PoolJob>,
}

impl PoolResize {
    /// Checks that the pool can get this size now; returns the new geometry.
    pub(crate) fn check(&self, cx: &Context, device_bytes: u64) -> Result<Geometry, LifecycleError> {
        cx.may_change_pool()?;
        if self.job.is_some() {
            return Err(LifecycleError::Busy);
        }
        if cx.members.is_mirrored() {
            return Err(LifecycleError::Mirrored);
        }
        let old = cx.map.geometry;
        let Ok(geometry) = old.resized(device_bytes) else {
            let blocks = device_bytes / crate::context::sectors::BLOCK;
            let wanted = blocks.saturating_sub(old.segments_start_block) / u64::from(old.segment_blocks);
            return Err(LifecycleError::PoolRange { wanted, least: SEGMENTS_MIN, most: old.segments_max() });
        };
        if geometry.segment_count < old.segment_count {
            may_shrink(cx, geometry.segment_count)?;
        }
        Ok(geometry)
    }

    /// Starts to change the size of the pool.
    pub(crate) fn begin(
        &mut self,
        cx: &mut Context,
        device_bytes: u64,
        members: Members,
    ) -> Result<(), LifecycleError> {
        let geometry = self.check(cx, device_bytes)?;
        let count = geometry.segment_count;
        if fault::planted(PlantedBug::ListDeviceEarly) {
            cx.superblock.members = members;
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

    /// Returns to the current size of the pool, if that is still possible.
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
        cx.map.relief += 1; // Retired segments can be reclaimed again.
        let retired = cx.free.end_retiring();
        if job.ticket.is_none() {
            cx.free.pool.extend(retired);
        }
        cx.coverage.add(CoverageMark::ChangeFailed);
        cx.actions.notice(Notice::PoolResizeFailed { error });
    }

    /// Continues a change of the pool's size.
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
                cx.actions.notice(Notice::PoolResized { segments });
            } else if cx.failure.is_fenced() {
                self.end(cx, LifecycleError::Fenced);
            }
            return;
        }
        if cx.failure.is_fenced() || cx.stopping {
            self.end(
                cx,
                if cx.failure.is_fenced() { LifecycleError::Fenced } else { LifecycleError::NotServing },
            );
        } else if !job.ready && self.evacuate(cx, relocations, checkpoint) {
            if let Some(job) = &mut self.job {
                job.ready = true;
            }
            cx.want_checkpoint();
        }
    }

    /// Empties retired segments; true once all are empty.
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
        // Start over: blocks that could not be relocated in this round may be destaged by the next
        // one.
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

    /// Called with every snapshot, before it is taken: the geometry changes with this checkpoint or
    /// not.
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

/// Refuses a shrink if the remaining segments cannot hold the dirty data that cannot be destaged,
/// or if the others have lost blocks, which cannot be relocated.
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

/// Relocates or drops a block of a retired segment. False if it has to stay for now.
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
            cx.coverage.add(CoverageMark::Evacuated);
            relocations.relocate(cx, slot)
        }
    }
}

/// Relocates a pinned block like a dirty one, if possible, and as long as at most half of the
/// remaining capacity is pinned (I26). True if it is relocated, or may be later.
fn moves_pinned(cx: &mut Context, relocations: &mut Relocations, slot: u32, room_comes: bool) -> bool {
    cx.map.pinned_blocks() * 2 <= cx.data_capacity()
        && (relocations.relocate(cx, slot) || cx.log.moves > 0 || room_comes)
}

/// Removes every reference to segments from `count` on.
fn forget_segments(cx: &mut Context, count: u32) {
    let slots = count.saturating_mul(cx.map.geometry.segment_blocks);
    cx.flushes.forget_segments(count);
    cx.log.marks.forget_slots(slots);
    cx.free.forget_from(count);
    if fault::planted(PlantedBug::AppendToRetired) {
        cx.free.window.retain(|number| *number < count);
        cx.free.pool.retain(|number| *number < count);
    }
}

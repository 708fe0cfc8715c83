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

use crate::api::config::CacheMark;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Nanos, Notice};
use crate::context::coverage::CoverageMark;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, SegmentPhase};
use crate::map::sweep_slots;
use forebay_format::geometry::SEGMENTS_MIN;
use forebay_format::{Geometry, Members, StreamKind};

/// Time until another attempt to move what could not be moved.
const RETRY_NS: Nanos = 1_000_000;

/// The same if nothing is being moved: it must be written back, which takes longer.
const DESTAGE_NS: Nanos = 10_000_000;

/// A change of the pool's size.
#[derive(Debug)]
pub(crate) struct PoolJob {
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

impl Engine {
    /// The cache device has become longer: takes its new end into use. [`Notice::PoolResized`] or
    /// [`Notice::PoolResizeFailed`] follows.
    ///
    /// # Errors
    /// Something else is under way, or the cache cannot grow so far ([`Geometry::segments_max`]).
    pub fn grow_pool(&mut self, now: Nanos, device_bytes: u64) -> Result<(), LifecycleError> {
        let members = self.cx.superblock.members;
        self.resize_pool(now, device_bytes, members)
    }

    /// The cache device is to become shorter: empties its end. It may be cut only after
    /// [`Notice::PoolResized`]; [`Notice::PoolResizeFailed`] says that it cannot be, and that
    /// everything is as it was.
    ///
    /// # Errors
    /// Something else is under way, too few segments would be left, or too few for what must stay
    /// in the cache.
    pub fn shrink_pool(&mut self, now: Nanos, device_bytes: u64) -> Result<(), LifecycleError> {
        self.grow_pool(now, device_bytes)
    }

    /// As [`Engine::grow_pool`] and [`Engine::shrink_pool`], with other members: the superblock
    /// lists them from the same checkpoint on. The headers of new members must be durable before.
    ///
    /// # Errors
    /// As there.
    pub fn resize_pool(
        &mut self,
        now: Nanos,
        device_bytes: u64,
        members: Members,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        self.cx.may_change_pool()?;
        if self.pool_job.is_some() {
            return Err(LifecycleError::Busy);
        }
        if self.cx.mirror.is_some() {
            return Err(LifecycleError::Mirrored);
        }
        let old = self.cx.map.geometry;
        let Ok(geometry) = old.resized(device_bytes) else {
            let blocks = device_bytes / crate::context::sectors::BLOCK;
            let wanted = blocks.saturating_sub(old.segments_start_block) / u64::from(old.segment_blocks);
            return Err(LifecycleError::PoolRange { wanted, least: SEGMENTS_MIN, most: old.segments_max() });
        };
        let count = geometry.segment_count;
        if count < old.segment_count {
            self.may_shrink(count)?;
        }
        let job = PoolJob { geometry, members, segment: count, index: 0, ready: false, ticket: None };
        if !fault::planted(PlantedBug::AppendToRetired) {
            for list in [&mut self.cx.free.window, &mut self.cx.free.pool] {
                self.cx.free.retired.extend(list.iter().copied().filter(|number| *number >= count));
                list.retain(|number| *number < count);
            }
        }
        self.cx.free.window_size = crate::checkpoint::window_size(count);
        self.cx.free.retired_from = Some(count);
        self.pool_job = Some(job);
        Ok(())
    }

    /// What stays must hold the dirty data that nobody can write back, and blocks that are lost
    /// cannot be moved.
    fn may_shrink(&self, count: u32) -> Result<(), LifecycleError> {
        let most = Self::kept_dirty_max(self.cx.capacity_of(count));
        let blocks = self.cx.kept_dirty();
        if blocks > most {
            return Err(LifecycleError::TooDirty { blocks, most });
        }
        let retired = &self.cx.map.segments[count as usize..];
        let unreclaimable = retired.iter().filter(|segment| segment.unreclaimable).count() as u64;
        if unreclaimable > 0 { Err(LifecycleError::Lost { blocks: unreclaimable }) } else { Ok(()) }
    }

    /// Goes back to the size that the pool has. [`Notice::PoolResizeFailed`] follows.
    ///
    /// # Errors
    /// It is too late, or nothing is under way.
    pub fn cancel_pool_resize(&mut self, now: Nanos) -> Result<(), LifecycleError> {
        self.begin(now);
        match &self.pool_job {
            Some(job) if job.ticket.is_none() => {
                self.end_pool_job(LifecycleError::Cancelled);
                Ok(())
            }
            Some(_) => Err(LifecycleError::Busy),
            None => Err(LifecycleError::Cancelled),
        }
    }

    /// Identity of the cache.
    #[must_use]
    pub fn uuid(&self) -> forebay_format::CacheUuid {
        self.cx.superblock.uuid
    }

    /// How far the cache has come, for a record outside of its device
    /// ([`EngineConfig::known`](crate::EngineConfig)).
    #[must_use]
    pub fn mark(&self) -> CacheMark {
        if self.checkpoint.super_generation() == 0 {
            return self.cx.config.known; // Not open yet.
        }
        let flushed = core::array::from_fn(|stream| self.cx.log.streams[stream].flushed_sequence);
        CacheMark { generation: self.checkpoint.super_generation(), flushed }
    }

    /// How the device is divided now.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.cx.map.geometry
    }

    /// Devices that the cache lies on.
    #[must_use]
    pub fn members(&self) -> Members {
        self.cx.superblock.members
    }

    fn end_pool_job(&mut self, error: LifecycleError) {
        let Some(job) = self.pool_job.take() else { return };
        self.cx.free.window_size = crate::checkpoint::window_size(self.cx.map.geometry.segment_count);
        self.cx.map.relief += 1; // What was retired can be reclaimed again.
        let retired = self.cx.free.end_retiring();
        if job.ticket.is_none() {
            self.cx.free.pool.extend(retired);
        }
        self.cx.cover(CoverageMark::ChangeFailed);
        self.cx.notice(Notice::PoolResizeFailed { error });
    }

    pub(crate) fn step_pool(&mut self) {
        let Some(job) = &self.pool_job else { return };
        if let Some(ticket) = job.ticket {
            if self.is_checkpointed(ticket) {
                self.pool_job = None;
                self.cx.free.end_retiring();
                let segments = self.cx.map.geometry.segment_count;
                self.cx.notice(Notice::PoolResized { segments });
            } else if self.cx.fenced {
                self.end_pool_job(LifecycleError::Fenced);
            }
            return;
        }
        if self.cx.fenced || self.cx.stopping {
            self.end_pool_job(if self.cx.fenced {
                LifecycleError::Fenced
            } else {
                LifecycleError::NotServing
            });
        } else if !job.ready && self.evacuate() {
            if let Some(job) = &mut self.pool_job {
                job.ready = true;
            }
            self.cx.want_checkpoint();
        }
        self.dispatch();
    }

    /// Empties retired segments; true once they all are.
    fn evacuate(&mut self) -> bool {
        let count = self.cx.segments_staying();
        let retired = self.cx.map.geometry.segment_count - count;
        for kind in StreamKind::ALL {
            self.cx.close_from(kind, count);
        }
        let Some(job) = &self.pool_job else { return false };
        if self.cx.free.retired.len() == retired as usize || fault::planted(PlantedBug::AppendToRetired) {
            return true;
        }
        let mut left = sweep_slots(self.cx.map.geometry.slot_count());
        let (mut segment, mut index) = (job.segment, job.index);
        let mut blocked = false;
        while left > 0 && (segment as usize) < self.cx.map.segments.len() {
            let table = &self.cx.map.segments[segment as usize];
            if table.unreclaimable {
                self.end_pool_job(LifecycleError::Lost { blocks: 1 });
                return false;
            }
            left -= 1;
            if table.phase != SegmentPhase::Sealed
                || table.live == 0
                || index >= self.cx.map.geometry.segment_blocks
            {
                (segment, index) = (segment + 1, 0);
                continue;
            }
            blocked |= !self.evacuate_slot(segment, index);
            index += 1;
        }
        // Round and round: what could not be moved this time may have been written back the next
        // time.
        let ended = segment as usize >= self.cx.map.segments.len();
        let Some(job) = &mut self.pool_job else { return false };
        (job.segment, job.index) = if ended { (count, 0) } else { (segment, index) };
        self.cx.reclaim_wants_destage |= blocked;
        let moving = self.cx.log.moves > 0;
        self.wake_in(match ended || blocked {
            true if moving => RETRY_NS,
            true => DESTAGE_NS,
            false => 1,
        });
        false
    }

    /// False if the block has to stay for now.
    fn evacuate_slot(&mut self, segment: u32, index: u32) -> bool {
        let slot = self.cx.map.slot(segment, index);
        match self.cx.map.state(slot) {
            BlockState::Void => true,
            BlockState::Clean if self.cx.map.is_pinned(slot) && self.moves_pinned(slot) => true,
            BlockState::Clean => {
                let key = self.cx.map.key(slot);
                self.cx.map.remove(key);
                self.cx.stats.evicted_blocks += 1;
                self.cx.counters.of(key.volume()).evicted_blocks += 1;
                true
            }
            BlockState::Dirty if self.cx.map.is_lost(slot) => {
                self.cx.map.segments[segment as usize].unreclaimable = true;
                false
            }
            BlockState::Dirty | BlockState::Destaged => {
                self.cx.yield_order_of(slot);
                self.cx.cover(CoverageMark::Evacuated);
                self.relocate(slot)
            }
        }
    }

    /// A pinned block moves with the dirty ones, if it can, and as far as half of what stays may be
    /// pinned (I26). True if it does, or may later.
    fn moves_pinned(&mut self, slot: u32) -> bool {
        self.cx.map.pinned_blocks() * 2 <= self.cx.data_capacity()
            && (self.relocate(slot) || self.cx.log.moves > 0)
    }

    /// Called with every snapshot, before it is taken: the geometry changes now or not in this
    /// checkpoint.
    pub(crate) fn apply_pool_job(&mut self) {
        let generation = self.cx.superblock.checkpoint_generation + 1;
        let Some(job) = &mut self.pool_job else { return };
        if !job.ready || job.ticket.is_some() {
            return;
        }
        job.ticket = Some(generation);
        let (geometry, members) = (job.geometry, job.members);
        let old = self.cx.map.geometry.segment_count;
        self.forget_segments(geometry.segment_count);
        self.cx.map.resize(geometry);
        self.cx.free.pool.extend(old..geometry.segment_count);
        self.cx.superblock.geometry = geometry;
        self.cx.superblock.members = members;
    }

    /// Nothing may name a segment from `count` on any more.
    fn forget_segments(&mut self, count: u32) {
        let slots = count.saturating_mul(self.cx.map.geometry.segment_blocks);
        self.cx.flushes.undurable.retain(|number| *number < count);
        self.cx.flushes.flushing.retain(|(number, _)| *number < count);
        self.cx.log.marks.retain(|slot| *slot < slots);
        if fault::planted(PlantedBug::AppendToRetired) {
            self.cx.free.window.retain(|number| *number < count);
            self.cx.free.pool.retain(|number| *number < count);
        }
        if self.reclaim.as_ref().is_some_and(|reclaim| reclaim.segment() >= count) {
            self.reclaim = None;
        }
    }
}

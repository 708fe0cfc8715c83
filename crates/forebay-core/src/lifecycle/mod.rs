//! The life cycle of volumes: they come, change their size and go, while the others are served.
//!
//! Each volume has at most one *job* at a time. A job moves on in [`Engine::step_lifecycle`], once
//! per settling, and never does more than a bounded amount of work at once. The jobs themselves are
//! in `life_attach`, `life_detach` and `life_resize`; the pool's own changes are in `pool`.
//!
//! All jobs follow one pattern:
//!
//! 1. *Refuse*: requests that contradict the change are refused from now on.
//! 2. *Wait*: requests, fills, and with the block locks and the backing locks of the range
//!    everything else that is under way there, end. Until here a job can be cancelled, and a
//!    failure leaves everything as it was.
//! 3. *Point of no return*: the volume table in memory changes. Any checkpoint taken from now on
//!    says so, and recovery counts nothing that does not belong to a volume of the table: so the
//!    change is atomic.
//! 4. *Sweep*: what does not belong to a volume any more leaves the map, some slots at a time,
//!    under the locks, so that reclaim does not move it from where the sweep will come to where it
//!    has been.
//! 5. *Checkpoint*, forced; when it is in effect the owner is told. Only now may the number of the
//!    volume, or the range, be used again (I20): what the checkpoint in effect and the log behind
//!    it know of it is nothing.

pub(crate) mod attach;
pub(crate) mod detach;
pub(crate) mod pool_resize;
pub(crate) mod resize;

use crate::api::config::Attachment;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Nanos, Notice};
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::ledger::Waiter;
use crate::context::locks::{BlockRange, LockOwner, whole_volume};
use crate::context::pages::Page;
use crate::context::{Context, Status};
use crate::engine::Engine;
use crate::lifecycle::attach::Attaching;
use crate::lifecycle::detach::Detaching;
use crate::lifecycle::resize::Resizing;
use crate::map::segment::{BLOCK_LAST, BlockState};
use crate::map::sweep_slots;
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::{NAME_BYTES_MAX, VolumeEntry};
use forebay_format::geometry::VOLUMES_MAX;

/// What is under way for a volume.
#[derive(Debug)]
pub(crate) enum Job {
    Attach(Box<Attaching>),
    Detach(Detaching),
    Resize(Resizing),
}

/// Locks that a job asks for: first the blocks, then the backing store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Locks {
    #[default]
    None,
    /// Asked for the block lock.
    Waiting,
    /// Has it and has asked for the backing lock.
    Half,
    /// Has both.
    Held,
}

/// A walk over all slots that forgets blocks, some at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sweep {
    pub(crate) first_block: u64,
    /// Only clean blocks go.
    pub(crate) clean_only: bool,
    /// Blocks that went: clean ones, and others.
    pub(crate) dropped: u64,
    pub(crate) discarded: u64,
    segment: u32,
    index: u32,
}

impl Sweep {
    pub(crate) fn new(first_block: u64, clean_only: bool) -> Self {
        Self { first_block, clean_only, dropped: 0, discarded: 0, segment: 0, index: 0 }
    }
}

/// All jobs.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    jobs: Vec<(VolumeId, Job)>,
    locks: Vec<(VolumeId, BlockRange, Locks)>,
    /// Flushes of backing stores that have ended for a job, and how.
    flushed: Vec<(VolumeId, bool)>,
    /// When there is something to do again, though nothing happens until then.
    wake_at: Option<Nanos>,
    /// Pages into which samples of backing stores are read.
    pub(crate) pages: Vec<(VolumeId, Page)>,
}

/// How a step of a job ended.
pub(crate) enum Progress {
    /// It waits for something that happens elsewhere.
    Waits(Job),
    /// It can go on at once.
    Goes(Job),
    /// It is over.
    Done,
}

impl Context {
    pub(crate) fn is_attached(&self, id: VolumeId) -> bool {
        self.volumes.get(usize::from(id.0)).is_some_and(Option::is_some)
    }

    /// What every change of the pool needs.
    pub(crate) fn may_change_pool(&self) -> Result<(), LifecycleError> {
        if self.status != Status::Ready || self.stopping {
            return Err(LifecycleError::NotServing);
        }
        if self.fenced { Err(LifecycleError::Fenced) } else { Ok(()) }
    }

    fn sweep_slot(&mut self, id: VolumeId, sweep: &mut Sweep) {
        let state = self.map.segments[sweep.segment as usize].state(sweep.index);
        if state == BlockState::Void || sweep.clean_only && state != BlockState::Clean {
            return;
        }
        let key = self.map.segments[sweep.segment as usize].key(sweep.index);
        if key.volume() == id && key.block() >= sweep.first_block {
            self.map.remove(key);
            sweep.dropped += u64::from(state == BlockState::Clean);
            sweep.discarded += u64::from(state != BlockState::Clean);
        }
    }

    /// The last word on a job that failed.
    pub(crate) fn job_failed(&mut self, notice: Notice) -> Progress {
        self.cover(CoverageMark::ChangeFailed);
        self.notice(notice);
        Progress::Done
    }

    /// Dirty blocks of volumes that are not attached.
    pub(crate) fn kept_dirty(&self) -> u64 {
        let kept = |(index, map): (usize, &crate::map::VolumeMap)| {
            let attached = self.volumes.get(index).is_some_and(Option::is_some);
            if attached { 0 } else { map.dirty + map.lost }
        };
        self.map.known_volumes().iter().enumerate().map(kept).sum()
    }

    pub(crate) fn table_entry(&self, id: VolumeId) -> Option<&VolumeEntry> {
        self.volume_table.iter().find(|entry| entry.id == id)
    }
}

impl Engine {
    /// The smallest number that a new volume may have, if there is any left.
    #[must_use]
    pub fn free_volume_id(&self) -> Option<VolumeId> {
        (0..VOLUMES_MAX as u16)
            .map(VolumeId)
            .find(|id| self.cx.table_entry(*id).is_none() && !self.has_job(*id))
    }

    pub(crate) fn has_job(&self, id: VolumeId) -> bool {
        self.lifecycle.jobs.iter().any(|(volume, _)| *volume == id)
    }

    pub(crate) fn job_mut(&mut self, id: VolumeId) -> Option<&mut Job> {
        self.lifecycle.jobs.iter_mut().find(|(volume, _)| *volume == id).map(|(_, job)| job)
    }

    pub(crate) fn jobs_of(&self, id: VolumeId) -> impl Iterator<Item = &Job> {
        self.lifecycle.jobs.iter().filter(move |(volume, _)| *volume == id).map(|(_, job)| job)
    }

    pub(crate) fn has_lifecycle_jobs(&self) -> bool {
        !self.lifecycle.jobs.is_empty()
    }

    /// What every change of a volume needs: a cache that can make it durable, and nothing else
    /// under way for it.
    pub(crate) fn may_change(&self, id: VolumeId) -> Result<(), LifecycleError> {
        self.cx.may_change_pool()?;
        if self.has_job(id) { Err(LifecycleError::Busy) } else { Ok(()) }
    }

    pub(crate) fn begin_job(&mut self, id: VolumeId, job: Job) {
        self.lifecycle.jobs.push((id, job));
        self.publish_jobs();
    }

    /// What destage must know of jobs, in the volumes that they are about.
    pub(crate) fn publish_jobs(&mut self) {
        for volume in self.cx.volumes.iter_mut().flatten() {
            (volume.shrinking, volume.drains_to_leave) = (false, false);
        }
        for (id, job) in &self.lifecycle.jobs {
            let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(id.0)) else { continue };
            match job {
                Job::Resize(job) => volume.shrinking = job.is_cut(),
                Job::Detach(job) => volume.drains_to_leave = job.drains_to_leave(),
                Job::Attach(_) => {}
            }
        }
    }

    /// Checks that an entry can be stored in the volume table.
    pub(crate) fn check_entry(entry: &VolumeEntry, attachment: &Attachment) -> Result<(), LifecycleError> {
        let sound = entry.id == attachment.volume
            && u32::from(entry.id.0) < VOLUMES_MAX
            && entry.name.len() <= NAME_BYTES_MAX
            && attachment.size_bytes > 0
            && attachment.size_bytes.is_multiple_of(u64::from(attachment.backing_sector_bytes).max(512))
            && attachment.size_bytes / 4096 < BLOCK_LAST;
        if sound { Ok(()) } else { Err(LifecycleError::OutOfRange) }
    }

    /// Lets every job move on as far as it can.
    #[inline]
    pub(crate) fn step_lifecycle(&mut self) {
        if !self.lifecycle.jobs.is_empty() {
            self.step_jobs();
        }
    }

    fn step_jobs(&mut self) {
        for (id, job) in core::mem::take(&mut self.lifecycle.jobs) {
            let mut job = Some(job);
            while let Some(now) = job.take() {
                let progress = match now {
                    Job::Attach(attaching) => self.step_attach(id, attaching),
                    Job::Detach(detaching) => self.step_detach(id, detaching),
                    Job::Resize(resizing) => self.step_resize(id, resizing),
                };
                match progress {
                    Progress::Goes(next) => job = Some(next),
                    Progress::Waits(next) => self.lifecycle.jobs.push((id, next)),
                    Progress::Done => {
                        self.unlock(id);
                        // Destage and reclaim, which come before this step, may have found what the
                        // job held back.
                        self.cx.settle_again();
                    }
                }
            }
        }
        self.publish_jobs();
        self.dispatch();
    }

    pub(crate) fn lifecycle_deadline(&self) -> Option<Nanos> {
        self.lifecycle.wake_at
    }

    /// Has [`Engine::tick`] called again after this time.
    pub(crate) fn wake_in(&mut self, pause: Nanos) {
        let at = self.cx.now + pause;
        self.lifecycle.wake_at = Some(self.lifecycle.wake_at.map_or(at, |other| other.min(at)));
    }

    /// Forgets when it wanted to be called, as it is called now.
    pub(crate) fn lifecycle_wakes(&mut self) {
        self.lifecycle.wake_at = None;
    }

    // --- waiting

    /// True if no request of the volume is under way, and no block of it is on its way into the
    /// cache.
    pub(crate) fn is_quiet(&self, id: VolumeId) -> bool {
        self.cx.reqs.iter().all(|req| req.volume != id) && !self.cx.fills.any_in(whole_volume(id))
    }

    /// Asks for the locks of a range, both kinds, one after the other. True when they are held.
    pub(crate) fn lock_for_lifecycle(&mut self, id: VolumeId, range: BlockRange) -> bool {
        let at = self.lifecycle.locks.iter().position(|(volume, ..)| *volume == id);
        let at = at.unwrap_or_else(|| {
            self.lifecycle.locks.push((id, range, Locks::None));
            self.lifecycle.locks.len() - 1
        });
        if self.lifecycle.locks[at].2 == Locks::None {
            let taken = self.cx.locks.acquire(range, lifecycle_owner(id));
            self.lifecycle.locks[at].2 = if taken { Locks::Half } else { Locks::Waiting };
            if taken {
                self.lock_backing_for_lifecycle(at);
            }
        }
        self.lifecycle.locks[at].2 == Locks::Held
    }

    fn lock_backing_for_lifecycle(&mut self, at: usize) {
        let (id, range, _) = self.lifecycle.locks[at];
        let taken = self.cx.backing_locks.acquire(range, lifecycle_owner(id));
        self.lifecycle.locks[at].2 = if taken { Locks::Held } else { Locks::Half };
    }

    /// A lock that a job waited for was granted; false if the owner is none.
    pub(crate) fn lifecycle_lock_granted(&mut self, owner: LockOwner) -> bool {
        let Some(at) = self.lifecycle.locks.iter().position(|(id, ..)| lifecycle_owner(*id) == owner) else {
            return false;
        };
        match self.lifecycle.locks[at].2 {
            Locks::Waiting => self.lock_backing_for_lifecycle(at),
            _ => self.lifecycle.locks[at].2 = Locks::Held,
        }
        true
    }

    /// Gives the locks of a job back. Only whole pairs are ever given back: a job that waits for
    /// one is not over.
    pub(crate) fn unlock(&mut self, id: VolumeId) {
        let Some(at) = self.lifecycle.locks.iter().position(|(volume, ..)| *volume == id) else { return };
        let (_, range, locks) = self.lifecycle.locks.swap_remove(at);
        let mut granted = Vec::new();
        match locks {
            Locks::None => return,
            Locks::Waiting => self.cx.locks.forget(range, lifecycle_owner(id), &mut granted),
            Locks::Half => {
                let mut backing = Vec::new();
                self.cx.backing_locks.forget(range, lifecycle_owner(id), &mut backing);
                self.cx.events.extend(backing.into_iter().map(Event::BackingLock));
                self.cx.release_blocks(range);
            }
            Locks::Held => {
                self.cx.release_backing(range);
                self.cx.release_blocks(range);
            }
        }
        self.cx.events.extend(granted.into_iter().map(Event::BlockLock));
    }

    pub(crate) fn lifecycle_flush(&mut self, id: VolumeId) {
        self.lifecycle.flushed.retain(|(volume, _)| *volume != id);
        self.cx.flush(crate::api::Device::Backing(id), Waiter::Lifecycle(id));
    }

    pub(crate) fn lifecycle_flush_ended(&mut self, id: VolumeId, ok: bool) {
        self.lifecycle.flushed.push((id, ok));
    }

    /// How the flush that a job asked for ended, once.
    pub(crate) fn take_lifecycle_flush(&mut self, id: VolumeId) -> Option<bool> {
        let at = self.lifecycle.flushed.iter().position(|(volume, _)| *volume == id)?;
        Some(self.lifecycle.flushed.swap_remove(at).1)
    }

    // --- sweeping and checkpoint

    /// Goes on with a sweep, by a bounded number of slots; true when it is at its end. The range is
    /// locked.
    pub(crate) fn step_sweep(&mut self, id: VolumeId, sweep: &mut Sweep) -> bool {
        let blocks = self.cx.map.geometry.segment_blocks;
        let mut left = sweep_slots(self.cx.map.geometry.slot_count());
        while (sweep.segment as usize) < self.cx.map.segments.len() {
            let segment = &self.cx.map.segments[sweep.segment as usize];
            if segment.live == 0 || sweep.index >= blocks {
                (sweep.segment, sweep.index) = (sweep.segment + 1, 0);
                left = left.saturating_sub(1);
            } else {
                self.cx.sweep_slot(id, sweep);
                sweep.index += 1;
                left -= 1;
            }
            if left == 0 {
                self.wake_in(1);
                return false;
            }
        }
        true
    }

    /// Forces a checkpoint of everything up to now; the ticket is for [`Engine::is_checkpointed`].
    pub(crate) fn force_checkpoint(&mut self) -> u64 {
        self.cx.want_checkpoint();
        self.cx.superblock.checkpoint_generation + 1
    }

    pub(crate) fn is_checkpointed(&self, ticket: u64) -> bool {
        self.checkpoint.is_in_effect(ticket)
    }

    /// Most dirty blocks of volumes that are not attached: nobody can write them back, and reclaim
    /// must still find room.
    pub(crate) fn kept_dirty_max(capacity: u64) -> u64 {
        capacity / 4
    }
}

/// Jobs ask for locks under numbers that no request and no direct write has.
fn lifecycle_owner(id: VolumeId) -> LockOwner {
    LockOwner(u32::MAX - u32::from(id.0))
}

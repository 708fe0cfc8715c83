//! The life cycle of volumes: attach, resize and detach, while the others are served.
//!
//! Each volume has at most one *job* at a time. [`Lifecycle::step`] advances the jobs once per
//! settling, by a bounded amount of work. The jobs themselves are in `attach`, `detach` and
//! `resize`; the pool's own changes are in `pool_resize`.
//!
//! All jobs follow one pattern:
//!
//! 1. *Refuse*: requests that contradict the change are refused from now on.
//! 2. *Wait* for requests, fills, and, with the block locks and the backing locks of the range,
//!    everything else that is in flight there. Until then a job can be cancelled, and a failure
//!    leaves everything as it was.
//! 3. *Point of no return*: the volume table in memory changes. Any later checkpoint contains it,
//!    and recovery drops everything outside the volumes of the table: so the change is atomic.
//! 4. *Sweep*: blocks that no longer belong to a volume leave the map in bounded pieces, under the
//!    locks, so that reclaim does not relocate them from behind the sweep to where it has already
//!    been.
//! 5. *Checkpoint*, forced; when it is in effect the owner gets a notice. Only now may the number
//!    of the volume, or the range, be reused (I20): the checkpoint in effect and the log behind it
//!    have nothing of its old use.

pub(crate) mod attach;
pub(crate) mod detach;
mod job;
pub(crate) mod pool_resize;
pub(crate) mod resize;

use crate::api::config::Attachment;
use crate::api::destage::Drain;
use crate::api::lifecycle_error::LifecycleError;
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::locks::LockOwner;
use crate::lifecycle::attach::Attaching;
use crate::lifecycle::detach::{DetachHow, Detaching};
use crate::lifecycle::job::{Progress, Waits};
use crate::lifecycle::resize::Resizing;
use crate::reclaim::relocate::Relocations;
use alloc::boxed::Box;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::geometry::VOLUMES_MAX;

/// The change of a volume in progress.
#[derive(Debug)]
pub(crate) enum Job {
    Attach(Box<Attaching>),
    Detach(Detaching),
    Resize(Resizing),
}

/// Jobs of volumes: a part of the engine.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    jobs: Vec<(VolumeId, Job)>,
    waits: Waits,
}

impl Lifecycle {
    /// The smallest free number for a new volume, if there is one.
    pub(crate) fn free_volume_id(&self, cx: &Context) -> Option<VolumeId> {
        (0..VOLUMES_MAX as u16).map(VolumeId).find(|id| cx.table_entry(*id).is_none() && !self.has_job(*id))
    }

    fn has_job(&self, id: VolumeId) -> bool {
        self.jobs.iter().any(|(volume, _)| *volume == id)
    }

    fn job_mut(&mut self, id: VolumeId) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|(volume, _)| *volume == id).map(|(_, job)| job)
    }

    /// Checks the requirements of every change of a volume: a cache that can make it durable, and
    /// no other change of the volume in progress.
    fn may_change(&self, cx: &Context, id: VolumeId) -> Result<(), LifecycleError> {
        cx.may_change_pool()?;
        if self.has_job(id) { Err(LifecycleError::Busy) } else { Ok(()) }
    }

    /// As [`Lifecycle::may_change`], for an attached volume.
    fn may_change_attached(&self, cx: &Context, id: VolumeId) -> Result<(), LifecycleError> {
        self.may_change(cx, id)?;
        if cx.volumes.is_attached(id) { Ok(()) } else { Err(LifecycleError::NotAttached) }
    }

    fn begin_job(&mut self, cx: &mut Context, id: VolumeId, job: Job) {
        self.jobs.push((id, job));
        self.publish(cx);
    }

    /// Publishes the state of the jobs that destage needs, in the volumes concerned.
    fn publish(&self, cx: &mut Context) {
        for volume in cx.volumes.iter_mut() {
            (volume.shrinking, volume.drains_to_leave) = (false, false);
        }
        for (id, job) in &self.jobs {
            let Some(volume) = cx.volumes.get_mut(*id) else { continue };
            match job {
                Job::Resize(job) => volume.shrinking = job.is_cut(),
                Job::Detach(job) => volume.drains_to_leave = job.drains_to_leave(),
                Job::Attach(_) => {}
            }
        }
    }

    /// True if a volume is being attached, detached or resized.
    #[inline]
    pub(crate) fn is_changing(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// True if the volume is leaving and takes no more requests.
    #[inline]
    pub(crate) fn is_leaving(&self, id: VolumeId) -> bool {
        let leaves = |job: &Job| matches!(job, Job::Detach(job) if job.refuses_requests());
        !self.jobs.is_empty() && self.jobs.iter().any(|(volume, job)| *volume == id && leaves(job))
    }

    /// Starts to attach a volume; without the cache it is attached at once.
    pub(crate) fn attach(
        &mut self,
        cx: &mut Context,
        entry: VolumeEntry,
        attachment: Attachment,
    ) -> Result<(), LifecycleError> {
        let id = entry.id;
        let without_cache = cx.failure.runs_without_cache() && !cx.stopping && !self.has_job(id);
        if !without_cache {
            self.may_change(cx, id)?;
        }
        let job = Attaching::begin(cx, entry, attachment)?;
        if without_cache {
            // Its dirty data cannot be compared with a backing store now.
            if cx.map.dirty_blocks(id) > 0 {
                return Err(LifecycleError::Fenced);
            }
            job.end_without_cache(cx);
            return Ok(());
        }
        self.begin_job(cx, id, Job::Attach(Box::new(job)));
        Ok(())
    }

    /// Starts to drain a volume to the end: from now on nothing of it becomes dirty.
    pub(crate) fn begin_detach(&self, cx: &mut Context, id: VolumeId) -> Result<(), LifecycleError> {
        self.may_change_attached(cx, id)?;
        let volume = cx.volume_mut(id);
        (volume.ending, volume.destage.rate.drain) = (true, Drain::Full);
        Ok(())
    }

    /// Returns to normal service, if that is still possible.
    pub(crate) fn cancel_detach(&mut self, cx: &mut Context, id: VolumeId) -> Result<(), LifecycleError> {
        let attached = cx.volumes.is_attached(id);
        match self.job_mut(id) {
            Some(Job::Detach(job)) => {
                job.cancel()?;
                self.publish(cx);
            }
            Some(_) => return Err(LifecycleError::Busy),
            None if !attached => return Err(LifecycleError::NotAttached),
            None => {}
        }
        if attached {
            let volume = cx.volume_mut(id);
            (volume.ending, volume.destage.rate.drain) = (false, Drain::Off);
        }
        Ok(())
    }

    /// Starts to detach a volume.
    pub(crate) fn detach(
        &mut self,
        cx: &mut Context,
        id: VolumeId,
        how: DetachHow,
    ) -> Result<(), LifecycleError> {
        self.may_change(cx, id)?;
        let job = Detaching::begin(cx, id, how)?;
        self.begin_job(cx, id, Job::Detach(job));
        Ok(())
    }

    /// Passes on the owner's answer: the state of the backing store of a volume that is kept.
    pub(crate) fn finish_detach(
        &mut self,
        id: VolumeId,
        backing: BackingRecord,
    ) -> Result<(), LifecycleError> {
        match self.job_mut(id) {
            Some(Job::Detach(job)) => job.answer(backing),
            _ => Err(LifecycleError::Cancelled),
        }
    }

    /// Starts to resize a volume.
    pub(crate) fn resize(
        &mut self,
        cx: &mut Context,
        id: VolumeId,
        bytes: u64,
    ) -> Result<(), LifecycleError> {
        self.may_change_attached(cx, id)?;
        let job = Resizing::begin(cx, id, bytes)?;
        self.begin_job(cx, id, Job::Resize(job));
        Ok(())
    }

    /// Advances every job as far as possible.
    #[inline]
    pub(crate) fn step(&mut self, cx: &mut Context, relocations: &mut Relocations, checkpoint: &Checkpoints) {
        if !self.jobs.is_empty() {
            self.step_jobs(cx, relocations, checkpoint);
        }
    }

    fn step_jobs(&mut self, cx: &mut Context, relocations: &mut Relocations, checkpoint: &Checkpoints) {
        for (id, mut job) in core::mem::take(&mut self.jobs) {
            loop {
                let waits = &mut self.waits;
                let progress = match &mut job {
                    Job::Attach(job) => job.step(cx, waits, checkpoint, id),
                    Job::Detach(job) => job.step(cx, waits, checkpoint, id),
                    Job::Resize(job) => job.step(cx, waits, checkpoint, relocations, id),
                };
                match progress {
                    Progress::Goes => continue,
                    Progress::Waits => self.jobs.push((id, job)),
                    Progress::Done => {
                        self.waits.unlock(cx, id);
                        // Destage and reclaim, which run before this step, may have found blocks
                        // that the job has just released.
                        cx.settle_again();
                    }
                }
                break;
            }
        }
        self.publish(cx);
    }

    /// A lock was granted; false if no job waits for it.
    pub(crate) fn lock_granted(&mut self, cx: &mut Context, owner: LockOwner) -> bool {
        self.waits.lock_granted(cx, owner)
    }

    /// A flush that a job requested has ended.
    pub(crate) fn flush_ended(&mut self, id: VolumeId, ok: bool) {
        self.waits.flush_ended(id, ok);
    }

    /// A sample of the backing store of a volume that is being attached was read.
    pub(crate) fn sample_read(&mut self, cx: &mut Context, id: VolumeId, ok: bool, crcs: &[u32]) {
        self.waits.sample_read(cx, id);
        if let Some(Job::Attach(job)) = self.job_mut(id) {
            job.sample_read(ok, crcs);
        }
    }

    /// The backing store of a volume that is being attached was flushed.
    pub(crate) fn store_flushed(&mut self, id: VolumeId, ok: bool) {
        if let Some(Job::Attach(job)) = self.job_mut(id) {
            job.store_flushed(ok);
        }
    }
}

//! The life cycle of volumes: they come, change their size and go, while the others are served.
//!
//! Each volume has at most one *job* at a time. A job moves on in [`Lifecycle::step`], once
//! per settling, and never does more than a bounded amount of work at once. The jobs themselves are
//! in `attach`, `detach` and `resize`; the pool's own changes are in `pool_resize`.
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

/// What is under way for a volume.
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
    /// The smallest number that a new volume may have, if there is any left.
    pub(crate) fn free_volume_id(&self, cx: &Context) -> Option<VolumeId> {
        (0..VOLUMES_MAX as u16).map(VolumeId).find(|id| cx.table_entry(*id).is_none() && !self.has_job(*id))
    }

    fn has_job(&self, id: VolumeId) -> bool {
        self.jobs.iter().any(|(volume, _)| *volume == id)
    }

    fn job_mut(&mut self, id: VolumeId) -> Option<&mut Job> {
        self.jobs.iter_mut().find(|(volume, _)| *volume == id).map(|(_, job)| job)
    }

    /// What every change of a volume needs: a cache that can make it durable, and nothing else
    /// under way for it.
    fn may_change(&self, cx: &Context, id: VolumeId) -> Result<(), LifecycleError> {
        cx.may_change_pool()?;
        if self.has_job(id) { Err(LifecycleError::Busy) } else { Ok(()) }
    }

    /// As [`Lifecycle::may_change`], for a volume that is attached.
    fn may_change_attached(&self, cx: &Context, id: VolumeId) -> Result<(), LifecycleError> {
        self.may_change(cx, id)?;
        if cx.is_attached(id) { Ok(()) } else { Err(LifecycleError::NotAttached) }
    }

    fn begin_job(&mut self, cx: &mut Context, id: VolumeId, job: Job) {
        self.jobs.push((id, job));
        self.publish(cx);
    }

    /// What destage must know of jobs, in the volumes that they are about.
    fn publish(&self, cx: &mut Context) {
        for volume in cx.volumes.iter_mut().flatten() {
            (volume.shrinking, volume.drains_to_leave) = (false, false);
        }
        for (id, job) in &self.jobs {
            let Some(Some(volume)) = cx.volumes.get_mut(usize::from(id.0)) else { continue };
            match job {
                Job::Resize(job) => volume.shrinking = job.is_cut(),
                Job::Detach(job) => volume.drains_to_leave = job.drains_to_leave(),
                Job::Attach(_) => {}
            }
        }
    }

    /// True if some volume comes, goes or is resized.
    #[inline]
    pub(crate) fn is_changing(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// True if the volume is leaving and takes no requests any more.
    #[inline]
    pub(crate) fn is_leaving(&self, id: VolumeId) -> bool {
        let leaves = |job: &Job| matches!(job, Job::Detach(job) if job.refuses_requests());
        !self.jobs.is_empty() && self.jobs.iter().any(|(volume, job)| *volume == id && leaves(job))
    }

    /// Begins to attach a volume; without the cache it is attached at once.
    pub(crate) fn attach(
        &mut self,
        cx: &mut Context,
        entry: VolumeEntry,
        attachment: Attachment,
    ) -> Result<(), LifecycleError> {
        let id = entry.id;
        let without_cache = cx.runs_without_cache() && !cx.stopping && !self.has_job(id);
        if !without_cache {
            self.may_change(cx, id)?;
        }
        let job = Attaching::begin(cx, entry, attachment)?;
        if without_cache {
            // What only the cache has of it cannot be compared with a backing store any more.
            if cx.dirty_blocks(id) > 0 {
                return Err(LifecycleError::Fenced);
            }
            job.end_without_cache(cx);
            return Ok(());
        }
        self.begin_job(cx, id, Job::Attach(Box::new(job)));
        Ok(())
    }

    /// Begins to drain a volume to the end: from now on nothing of it becomes dirty.
    pub(crate) fn begin_detach(&self, cx: &mut Context, id: VolumeId) -> Result<(), LifecycleError> {
        self.may_change_attached(cx, id)?;
        let volume = cx.volume_mut(id);
        (volume.ending, volume.destage.rate.drain) = (true, Drain::Full);
        Ok(())
    }

    /// Goes back to serving, if that is possible still.
    pub(crate) fn cancel_detach(&mut self, cx: &mut Context, id: VolumeId) -> Result<(), LifecycleError> {
        let attached = cx.is_attached(id);
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

    /// Begins to take a volume away.
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

    /// What the backing store of a volume that is to be kept looks like now.
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

    /// Begins to change the size of a volume.
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

    /// Lets every job move on as far as it can.
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
                        // Destage and reclaim, which come before this step, may have found what the
                        // job held back.
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

    /// A flush that a job asked for has ended.
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

//! Detaching a volume from a running cache.
//!
//! [`Engine::begin_detach`] is for a drain under load: from then on nothing becomes dirty, so the
//! drain ends. [`Engine::detach_volume`] ends the service and takes the volume away:
//!
//! - *Drained*: nothing of it is dirty, its backing store is flushed and stands for itself. The
//!   table forgets it.
//! - *Keep*: its blocks stay, dirty ones too, and so does its entry, with what its backing store
//!   looked like when it was let go, so that it can be attached again with a warm cache. Its flush
//!   epochs stay as well: they go on when it comes back.
//! - *Discard*: the table forgets it, and its dirty data is gone.

use crate::api::destage::Drain;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Action, Nanos, Notice};
use crate::context::Context;
use crate::context::locks::whole_volume;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::{Job, Progress, Sweep};
use forebay_format::VolumeId;
use forebay_format::checkpoint::BackingRecord;

/// What becomes of a volume's blocks when it is detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachHow {
    /// The backing store has everything; refused as long as it does not.
    Drained,
    /// Everything stays in the cache until the volume is attached again.
    Keep,
    /// What only the cache has is given up.
    Discard,
}

#[derive(Debug)]
enum DetachStage {
    /// Until all requests have ended, and, to be drained, their last blocks are written back.
    Quieting,
    /// Until nothing else is under way.
    Locking,
    Flushing,
    /// Until the owner says what the backing store looks like now.
    Asking(Option<BackingRecord>),
    Sweeping(Sweep),
    Checkpoint(u64),
}

/// A volume that is being detached.
#[derive(Debug)]
pub(crate) struct Detaching {
    how: DetachHow,
    cancelled: bool,
    stage: DetachStage,
}

impl Detaching {
    fn can_be_cancelled(&self) -> bool {
        !matches!(self.stage, DetachStage::Sweeping(_) | DetachStage::Checkpoint(_))
    }

    fn refuses_requests(&self) -> bool {
        !self.cancelled
    }
}

impl Context {
    fn unclean_of(&self, id: VolumeId) -> u64 {
        let map = &self.map.volumes[usize::from(id.0)];
        map.dirty + map.lost
    }

    /// Something is on its way to the backing store, or waits there for a flush.
    fn is_destaging(&self, id: VolumeId) -> bool {
        let volume = self.volume(id);
        volume.flusher.is_running() || volume.destage.is_under_way()
    }
}

impl Detaching {
    /// The volume leaves as soon as nothing of it is dirty: what requests under way have made dirty
    /// since must not wait for its time.
    pub(super) fn drains_to_leave(&self) -> bool {
        self.how == DetachHow::Drained && !self.cancelled
    }
}

impl Engine {
    /// Begins to drain a volume to the end: writes go to the backing store at once from now on,
    /// beside being cached, so nothing becomes dirty and the drain ends however much is written.
    /// [`Engine::cancel_detach`] undoes it.
    ///
    /// # Errors
    /// The volume is not attached, or something else is under way.
    pub fn begin_detach(&mut self, now: Nanos, volume: VolumeId) -> Result<(), LifecycleError> {
        self.begin(now);
        self.may_change(volume)?;
        if !self.cx.is_attached(volume) {
            return Err(LifecycleError::NotAttached);
        }
        let volume = self.cx.volume_mut(volume);
        (volume.ending, volume.destage.rate.drain) = (true, Drain::Full);
        Ok(())
    }

    /// Goes back to serving: after [`Engine::begin_detach`], or after [`Engine::detach_volume`] as
    /// long as that has not passed the point of no return. In the latter case
    /// [`Notice::DetachFailed`] with [`LifecycleError::Cancelled`] follows, and requests are taken
    /// again at once.
    ///
    /// # Errors
    /// It is too late, or there is nothing to cancel.
    pub fn cancel_detach(&mut self, now: Nanos, volume: VolumeId) -> Result<(), LifecycleError> {
        self.begin(now);
        let attached = self.cx.is_attached(volume);
        match self.job_mut(volume) {
            Some(Job::Detach(job)) if job.can_be_cancelled() => {
                job.cancelled = true;
                self.publish_jobs();
            }
            Some(_) => return Err(LifecycleError::Busy),
            None if !attached => return Err(LifecycleError::NotAttached),
            None => {}
        }
        if attached {
            let volume = self.cx.volume_mut(volume);
            (volume.ending, volume.destage.rate.drain) = (false, Drain::Off);
        }
        Ok(())
    }

    /// Takes a volume away. Its requests under way end; later ones get `RequestError::Shutdown`. To
    /// keep it, [`Action::VolumeQuiet`] follows, to be answered by [`Engine::finish_detach`]. Then
    /// [`Notice::Detached`] or [`Notice::DetachFailed`] follows; after the latter the volume is
    /// served as before. A volume of the table that is not attached can be discarded.
    ///
    /// # Errors
    /// Something else is under way, or the volume has blocks that the chosen way does not allow
    /// for.
    pub fn detach_volume(
        &mut self,
        now: Nanos,
        volume: VolumeId,
        how: DetachHow,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        self.may_change(volume)?;
        let attached = self.cx.is_attached(volume);
        if !attached && (how != DetachHow::Discard || self.cx.table_entry(volume).is_none()) {
            return Err(LifecycleError::NotAttached);
        }
        let map = &self.cx.map.volumes[usize::from(volume.0)];
        let (dirty, lost) = (map.dirty, map.lost);
        match how {
            DetachHow::Drained if dirty > 0 && !fault::planted(PlantedBug::ForgetDirtyAtDetach) => {
                return Err(LifecycleError::Dirty { blocks: dirty });
            }
            DetachHow::Drained if lost > 0 => return Err(LifecycleError::Lost { blocks: lost }),
            DetachHow::Keep => self.may_keep(dirty + lost)?,
            _ => {}
        }
        let stage = if attached { DetachStage::Quieting } else { DetachStage::Locking };
        self.begin_job(volume, Job::Detach(Detaching { how, cancelled: false, stage }));
        Ok(())
    }

    fn may_keep(&self, unclean: u64) -> Result<(), LifecycleError> {
        let (blocks, most) = (self.cx.kept_dirty() + unclean, Self::kept_dirty_max(self.cx.data_capacity()));
        if blocks > most { Err(LifecycleError::TooDirty { blocks, most }) } else { Ok(()) }
    }

    /// Answers [`Action::VolumeQuiet`]: what the backing store looks like now that nothing writes
    /// to it. Samples must be of blocks that are not dirty ([`Engine::block_status`]). Nobody may
    /// write to it until `Detached` or `DetachFailed` has come.
    ///
    /// # Errors
    /// Nobody asked, or it was cancelled meanwhile: there is nothing to do.
    pub fn finish_detach(
        &mut self,
        now: Nanos,
        volume: VolumeId,
        backing: BackingRecord,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        match self.job_mut(volume) {
            Some(Job::Detach(Detaching { stage: DetachStage::Asking(answer), .. })) => {
                *answer = Some(backing);
                Ok(())
            }
            _ => Err(LifecycleError::Cancelled),
        }
    }

    /// True if the volume is leaving and takes no requests any more.
    pub(crate) fn is_leaving(&self, id: VolumeId) -> bool {
        self.has_lifecycle_jobs()
            && self.jobs_of(id).any(|job| matches!(job, Job::Detach(job) if job.refuses_requests()))
    }

    pub(crate) fn step_detach(&mut self, id: VolumeId, mut job: Detaching) -> Progress {
        let attached = self.cx.is_attached(id);
        if job.can_be_cancelled() && attached {
            let error = match () {
                () if job.cancelled => Some(LifecycleError::Cancelled),
                () if self.cx.fenced => Some(LifecycleError::Fenced),
                () if self.cx.stopping => Some(LifecycleError::NotServing),
                () => None,
            };
            if let Some(error) = error {
                // A flush under way for this job ends by itself.
                return self.cx.job_failed(Notice::DetachFailed { volume: id, error });
            }
        }
        if self.cx.fenced {
            return self.cx.job_failed(Notice::DetachFailed { volume: id, error: LifecycleError::Fenced });
        }
        match &mut job.stage {
            DetachStage::Quieting => {
                let dirty = job.how == DetachHow::Drained
                    && self.cx.dirty_blocks(id) > 0
                    && !fault::planted(PlantedBug::ForgetDirtyAtDetach);
                let lost = self.cx.map.volumes[usize::from(id.0)].lost;
                if job.how == DetachHow::Drained && lost > 0 {
                    let error = LifecycleError::Lost { blocks: lost };
                    return self.cx.job_failed(Notice::DetachFailed { volume: id, error });
                }
                if !self.is_quiet(id) || dirty {
                    return Progress::Waits(Job::Detach(job));
                }
                job.stage = DetachStage::Locking;
            }
            DetachStage::Locking => {
                if !self.lock_for_lifecycle(id, whole_volume(id)) || attached && self.cx.is_destaging(id) {
                    return Progress::Waits(Job::Detach(job));
                }
                if !attached || job.how == DetachHow::Discard {
                    return self.leave_table(id, job);
                }
                self.lifecycle_flush(id);
                job.stage = DetachStage::Flushing;
                return Progress::Waits(Job::Detach(job));
            }
            DetachStage::Flushing => match self.take_lifecycle_flush(id) {
                None => return Progress::Waits(Job::Detach(job)),
                Some(false) => {
                    let error = LifecycleError::BackingFlush;
                    return self.cx.job_failed(Notice::DetachFailed { volume: id, error });
                }
                Some(true) if job.how == DetachHow::Drained => return self.leave_table(id, job),
                Some(true) => {
                    if let Err(error) = self.may_keep(self.cx.unclean_of(id)) {
                        return self.cx.job_failed(Notice::DetachFailed { volume: id, error });
                    }
                    job.stage = DetachStage::Asking(None);
                    self.cx.actions.push_back(Action::VolumeQuiet { volume: id });
                    return Progress::Waits(Job::Detach(job));
                }
            },
            DetachStage::Asking(None) => return Progress::Waits(Job::Detach(job)),
            DetachStage::Asking(Some(backing)) => {
                let backing = backing.clone();
                self.keep_in_table(id, backing);
                job.stage = DetachStage::Checkpoint(self.force_checkpoint());
            }
            DetachStage::Sweeping(sweep) => {
                let mut sweep = *sweep;
                if !self.step_sweep(id, &mut sweep) {
                    job.stage = DetachStage::Sweeping(sweep);
                    return Progress::Waits(Job::Detach(job));
                }
                job.stage = DetachStage::Checkpoint(self.force_checkpoint());
            }
            DetachStage::Checkpoint(ticket) => {
                if !self.is_checkpointed(*ticket) {
                    return Progress::Waits(Job::Detach(job));
                }
                self.cx.notice(Notice::Detached { volume: id });
                return Progress::Done;
            }
        }
        Progress::Goes(Job::Detach(job))
    }

    /// The point of no return: the entry stays, and the volume is let go.
    fn keep_in_table(&mut self, id: VolumeId, backing: BackingRecord) {
        let volume = self.cx.volumes[usize::from(id.0)].take().expect("a volume that is kept is attached");
        let entry = self.cx.volume_table.iter_mut().find(|entry| entry.id == id);
        let entry = entry.expect("an attached volume is in the table");
        (entry.mode, entry.size_bytes, entry.backing) = (volume.settings.mode, volume.table_bytes, backing);
        self.forget_policies(id, false);
        self.unlock(id);
    }

    /// The point of no return: whoever reads a checkpoint that is taken from now on does not know
    /// the volume.
    fn leave_table(&mut self, id: VolumeId, mut job: Detaching) -> Progress {
        if let Some(volume) = self.cx.volumes.get_mut(usize::from(id.0)) {
            *volume = None;
        }
        self.cx.volume_table.retain(|entry| entry.id != id);
        self.cx.forget_order(id);
        self.forget_policies(id, true);
        if fault::planted(PlantedBug::ReuseVolumeEarly) {
            self.cx.notice(Notice::Detached { volume: id });
            return Progress::Done;
        }
        job.stage = DetachStage::Sweeping(Sweep::new(0, false));
        Progress::Goes(Job::Detach(job))
    }
}

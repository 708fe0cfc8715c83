//! Attaching a volume to a running cache: a new one, or one of the table that nobody has attached
//! since the start.
//!
//! A volume of the table is judged as at the end of recovery (`attach`): its backing store must be
//! what the cache left behind. Its flush epochs were recovered with everything else, or have been
//! here since it was detached: they go on, unless the backing store has changed (`ordered`). Until
//! a checkpoint with its entry is in effect it takes no request: a write that was acknowledged
//! before would belong to a volume that recovery does not know.

use crate::api::config::{Attachment, OnBackingChange};
use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Action, Device, Notice, OpId};
use crate::context::locks::whole_volume;
use crate::context::operations::OpKind;
use crate::context::pages::PageUse;
use crate::context::sectors::BLOCK;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::{Job, Progress, Sweep};
use crate::recovery::attach::Verdict;
use alloc::boxed::Box;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

/// Time until another attempt to get a page for a sample.
const RETRY_NS: u64 = 1_000_000;

#[derive(Debug)]
enum AttachStage {
    /// Until nothing moves the blocks of the volume.
    Locking,
    /// Samples of the backing store are read and compared, one at a time.
    Sampling {
        reading: bool,
    },
    /// The backing store is flushed: what was compared may have been in a volatile cache.
    Flushing {
        started: bool,
        ended: Option<bool>,
    },
    Sweeping(Sweep),
    Checkpoint(u64),
}

/// A volume that is being attached.
#[derive(Debug)]
pub(crate) struct Attaching {
    entry: VolumeEntry,
    attachment: Attachment,
    /// Not in the table before.
    new: bool,
    verdict: Verdict,
    unreadable: bool,
    changed: bool,
    stage: AttachStage,
}

impl Engine {
    /// Attaches a volume while the cache is in use. `entry.id` is a number of the table, and then
    /// `entry.uuid` must be the one there, or a free one ([`Engine::free_volume_id`]).
    /// [`Notice::Attached`] or [`Notice::AttachFailed`] follows; requests are taken from the former
    /// on.
    ///
    /// # Errors
    /// It cannot be attached now; nothing was changed.
    pub fn attach_volume(
        &mut self,
        now: crate::api::Nanos,
        entry: VolumeEntry,
        attachment: Attachment,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        let id = entry.id;
        let without_cache = self.cx.runs_without_cache() && !self.cx.stopping && !self.has_job(id);
        if !without_cache {
            self.may_change(id)?;
        }
        Self::check_entry(&entry, &attachment)?;
        if self.cx.is_attached(id) {
            return Err(LifecycleError::Attached);
        }
        let known = self.cx.table_entry(id).cloned();
        let new = known.is_none();
        if let Some(known) = &known {
            if known.uuid != entry.uuid {
                return Err(LifecycleError::OtherVolume(id));
            }
            if attachment.size_bytes < known.size_bytes {
                let (recorded, now) = (known.size_bytes, attachment.size_bytes);
                return Err(LifecycleError::BackingShrunk { recorded, now });
            }
        }
        if without_cache {
            // What only the cache has of it cannot be compared with a backing store any more.
            if self.cx.dirty_blocks(id) > 0 {
                return Err(LifecycleError::Fenced);
            }
            self.cx.attach_without_cache(known.unwrap_or(entry), &attachment);
            return Ok(());
        }
        let entry = known.unwrap_or(entry);
        let stage = AttachStage::Locking;
        let verdict = Verdict::default();
        let attaching =
            Attaching { entry, attachment, new, verdict, unreadable: false, changed: false, stage };
        self.begin_job(id, Job::Attach(Box::new(attaching)));
        Ok(())
    }

    pub(crate) fn step_attach(&mut self, id: VolumeId, mut job: Box<Attaching>) -> Progress {
        if self.cx.fenced || self.cx.stopping && !matches!(job.stage, AttachStage::Checkpoint(_)) {
            if job.is_waiting_for_device() {
                return Progress::Waits(Job::Attach(job));
            }
            let error = if self.cx.fenced { LifecycleError::Fenced } else { LifecycleError::NotServing };
            return self.attach_failed(id, &job, error);
        }
        match &mut job.stage {
            AttachStage::Locking => {
                if !self.lock_for_lifecycle(id, whole_volume(id)) {
                    return Progress::Waits(Job::Attach(job));
                }
                if job.new {
                    return self.enter_table(id, job);
                }
                job.verdict = self.cx.suspect_online(&job.attachment, &job.entry);
                job.stage = AttachStage::Sampling { reading: false };
            }
            AttachStage::Sampling { reading: true } => return Progress::Waits(Job::Attach(job)),
            AttachStage::Sampling { reading } => {
                if job.unreadable {
                    return self.attach_failed(id, &job, LifecycleError::BackingUnreadable);
                }
                if let Some(block) = job.verdict.next_sample() {
                    let Some(page) = self.cx.pages.take(PageUse::Destage) else {
                        self.wake_in(RETRY_NS);
                        return Progress::Waits(Job::Attach(job));
                    };
                    *reading = true;
                    let kind = OpKind::Sample { volume: id, index: 0 };
                    self.cx.read(Device::Backing(id), block * BLOCK, &[page.span()], true, kind);
                    self.lifecycle.pages.push((id, page));
                    return Progress::Waits(Job::Attach(job));
                }
                job.stage = AttachStage::Flushing { started: false, ended: None };
            }
            AttachStage::Flushing { started, ended } => match ended {
                None if !*started => {
                    *started = true;
                    self.cx.stats.backing_flushes += 1;
                    let op = self.cx.new_op(OpKind::LifecycleFlush(id));
                    self.cx.actions.push_back(Action::Flush { op: OpId(op), device: Device::Backing(id) });
                    return Progress::Waits(Job::Attach(job));
                }
                None => return Progress::Waits(Job::Attach(job)),
                Some(false) => return self.attach_failed(id, &job, LifecycleError::BackingFlush),
                Some(true) => return self.judge_online(id, job),
            },
            AttachStage::Sweeping(sweep) => {
                let mut sweep = *sweep;
                let ended = self.step_sweep(id, &mut sweep);
                if !ended {
                    job.stage = AttachStage::Sweeping(sweep);
                    return Progress::Waits(Job::Attach(job));
                }
                let (volume, dropped, discarded) = (id, sweep.dropped, sweep.discarded);
                self.cx.notice(match job.verdict.is_uncertain() {
                    true => Notice::BackingUncertain { volume, dropped },
                    false => Notice::BackingChanged { volume, dropped, discarded },
                });
                return self.enter_table(id, job);
            }
            AttachStage::Checkpoint(ticket) => {
                let ticket = *ticket;
                if !self.is_checkpointed(ticket) {
                    return Progress::Waits(Job::Attach(job));
                }
                self.cx.notice(Notice::Attached { volume: id });
                self.cx.enter_volume(&job.attachment);
                self.cx.counters.begin(id);
                return Progress::Done;
            }
        }
        Progress::Goes(Job::Attach(job))
    }

    pub(crate) fn lifecycle_sample_read(&mut self, id: VolumeId, ok: bool, crcs: &[u32]) {
        if let Some(at) = self.lifecycle.pages.iter().position(|(volume, _)| *volume == id) {
            let (_, page) = self.lifecycle.pages.swap_remove(at);
            self.cx.pages.give(PageUse::Destage, page);
        }
        if let Some(Job::Attach(job)) = self.job_mut(id) {
            job.unreadable |= !ok;
            job.verdict.compare(crcs.first().copied());
            job.stage = AttachStage::Sampling { reading: false };
        }
    }

    pub(crate) fn lifecycle_flushed(&mut self, id: VolumeId, ok: bool) {
        if let Some(Job::Attach(job)) = self.job_mut(id) {
            job.stage = AttachStage::Flushing { started: true, ended: Some(ok) };
        }
    }

    fn judge_online(&mut self, id: VolumeId, mut job: Box<Attaching>) -> Progress {
        if job.verdict.is_uncertain() {
            job.stage = AttachStage::Sweeping(Sweep::new(0, true));
            return Progress::Goes(Job::Attach(job));
        }
        job.changed = job.verdict.is_changed();
        if !job.changed {
            return self.enter_table(id, job);
        }
        let dirty_blocks = self.cx.dirty_blocks(id);
        let policy = job.attachment.on_change;
        if policy == OnBackingChange::Refuse && dirty_blocks > 0 {
            return self.attach_failed(id, &job, LifecycleError::BackingChanged { dirty_blocks });
        }
        // The forced checkpoint says so before anything is destaged.
        self.cx.forget_order(id);
        job.stage = AttachStage::Sweeping(Sweep::new(0, policy != OnBackingChange::DiscardDirty));
        Progress::Goes(Job::Attach(job))
    }

    /// From here on every checkpoint knows the volume as one that is in use.
    fn enter_table(&mut self, id: VolumeId, mut job: Box<Attaching>) -> Progress {
        job.attachment.size_bytes = self.cx.size_to_serve(&job.attachment, &job.entry);
        let mut entry = job.entry.clone();
        entry.mode = job.attachment.settings.mode;
        entry.size_bytes = job.attachment.size_bytes;
        entry.backing = job.attachment.backing.clone();
        entry.backing.stamp_ns = None;
        entry.backing.samples.clear();
        self.cx.volume_table.retain(|other| other.id != id);
        self.cx.volume_table.push(entry);
        if fault::planted(PlantedBug::ForgetOrderAtAttach) {
            self.cx.forget_order(id);
        }
        let ticket = self.force_checkpoint();
        let early = fault::planted(PlantedBug::ServeBeforeCheckpoint);
        job.stage = AttachStage::Checkpoint(if early { 0 } else { ticket });
        Progress::Goes(Job::Attach(job))
    }

    fn attach_failed(&mut self, id: VolumeId, job: &Attaching, error: LifecycleError) -> Progress {
        if matches!(job.stage, AttachStage::Checkpoint(_)) {
            // No checkpoint can be taken any more, so what the table in memory says does not
            // matter.
            self.cx.volume_table.retain(|other| other.id != id || !job.new);
        }
        self.cx.job_failed(Notice::AttachFailed { volume: id, error })
    }
}

impl Attaching {
    fn is_waiting_for_device(&self) -> bool {
        matches!(
            self.stage,
            AttachStage::Sampling { reading: true } | AttachStage::Flushing { started: true, ended: None }
        )
    }
}

//! Detaching a volume from a running cache.
//!
//! [`Engine::begin_detach`](crate::Engine::begin_detach) starts a drain under load: from then on
//! nothing becomes dirty, so the drain ends.
//! [`Engine::detach_volume`](crate::Engine::detach_volume) ends the service and removes the volume:
//!
//! - *Drained*: the volume has no dirty blocks, and its backing store is flushed and complete. Its
//!   entry leaves the table.
//! - *Keep*: its blocks stay, dirty ones too, and so does its entry, with the state of its backing
//!   store at the detach, so that it can be attached again with a warm cache. Its flush epochs stay
//!   as well and continue at the next attach.
//! - *Discard*: its entry leaves the table, and its dirty data is dropped.

use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Notice, OwnerAction};
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::events::Event;
use crate::context::locks::whole_volume;
use crate::context::volume::Volume;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::job::{Progress, Sweep, Waits};
use crate::map::CacheMap;
use forebay_format::VolumeId;
use forebay_format::checkpoint::BackingRecord;

/// Fate of a volume's blocks when it is detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DetachHow {
    /// The backing store has all data; refused while blocks are dirty or lost.
    Drained,
    /// Everything stays in the cache until the volume is attached again.
    Keep,
    /// Dirty data is dropped.
    Discard,
}

#[derive(Debug)]
enum DetachStage {
    /// Until all requests have ended and, for `Drained`, the last dirty blocks are destaged.
    Quieting,
    /// Until nothing else is in flight.
    Locking,
    Flushing,
    /// Drops the clean blocks: they may hold writes that a failed flush has dropped
    /// ([`Intents::keep`]), and the next attach must not find them.
    ///
    /// [`Intents::keep`]: crate::context::intents::Intents::keep
    Forgetting(Sweep),
    /// Until the owner reports the state of the backing store.
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

impl CacheMap {
    fn unclean_of(&self, id: VolumeId) -> u64 {
        let map = &self.volumes[usize::from(id.0)];
        map.dirty + map.lost
    }
}

impl Volume {
    /// True if a write or a flush of the backing store is in flight, or destaged data waits for a
    /// flush.
    fn is_destaging(&self) -> bool {
        self.flusher.is_running() || self.destage.is_under_way()
    }
}

impl Detaching {
    fn ask(&mut self, cx: &mut Context, id: VolumeId) {
        self.stage = DetachStage::Asking(None);
        cx.actions.push_owner(OwnerAction::VolumeQuiet { volume: id });
    }

    fn can_be_cancelled(&self) -> bool {
        !matches!(self.stage, DetachStage::Sweeping(_) | DetachStage::Checkpoint(_))
    }

    pub(super) fn refuses_requests(&self) -> bool {
        !self.cancelled
    }

    /// True if the volume leaves as soon as it has no dirty blocks: blocks that requests in flight
    /// made dirty meanwhile must not wait for their time.
    pub(super) fn drains_to_leave(&self) -> bool {
        self.how == DetachHow::Drained && !self.cancelled
    }

    pub(super) fn begin(cx: &Context, id: VolumeId, how: DetachHow) -> Result<Self, LifecycleError> {
        let attached = cx.volumes.is_attached(id);
        if !attached && (how != DetachHow::Discard || cx.table_entry(id).is_none()) {
            return Err(LifecycleError::NotAttached);
        }
        let map = &cx.map.volumes[usize::from(id.0)];
        let (dirty, lost) = (map.dirty, map.lost);
        match how {
            DetachHow::Drained if dirty > 0 && !fault::planted(PlantedBug::ForgetDirtyAtDetach) => {
                return Err(LifecycleError::Dirty { blocks: dirty });
            }
            DetachHow::Drained if lost > 0 => return Err(LifecycleError::Lost { blocks: lost }),
            DetachHow::Keep => may_keep(cx, dirty + lost)?,
            _ => {}
        }
        let stage = if attached { DetachStage::Quieting } else { DetachStage::Locking };
        Ok(Self { how, cancelled: false, stage })
    }

    /// Makes the job end soon without a change, unless it is too late.
    pub(super) fn cancel(&mut self) -> Result<(), LifecycleError> {
        if !self.can_be_cancelled() {
            return Err(LifecycleError::Busy);
        }
        self.cancelled = true;
        Ok(())
    }

    /// Stores the owner's answer: the state of the backing store.
    pub(super) fn answer(&mut self, backing: BackingRecord) -> Result<(), LifecycleError> {
        let DetachStage::Asking(answer) = &mut self.stage else { return Err(LifecycleError::Cancelled) };
        *answer = Some(backing);
        Ok(())
    }

    pub(super) fn step(
        &mut self,
        cx: &mut Context,
        waits: &mut Waits,
        checkpoint: &Checkpoints,
        id: VolumeId,
    ) -> Progress {
        let attached = cx.volumes.is_attached(id);
        if self.can_be_cancelled() && attached {
            let error = match () {
                () if self.cancelled => Some(LifecycleError::Cancelled),
                () if cx.failure.is_fenced() => Some(LifecycleError::Fenced),
                () if cx.stopping => Some(LifecycleError::NotServing),
                () => None,
            };
            if let Some(error) = error {
                // A flush in flight for this job ends by itself.
                return cx.job_failed(Notice::DetachFailed { volume: id, error });
            }
        }
        if cx.failure.is_fenced() {
            return cx.job_failed(Notice::DetachFailed { volume: id, error: LifecycleError::Fenced });
        }
        match &mut self.stage {
            DetachStage::Quieting => {
                let dirty = self.how == DetachHow::Drained
                    && cx.map.dirty_blocks(id) > 0
                    && !fault::planted(PlantedBug::ForgetDirtyAtDetach);
                let lost = cx.map.volumes[usize::from(id.0)].lost;
                if self.how == DetachHow::Drained && lost > 0 {
                    let error = LifecycleError::Lost { blocks: lost };
                    return cx.job_failed(Notice::DetachFailed { volume: id, error });
                }
                if !cx.is_quiet(id) || dirty {
                    return Progress::Waits;
                }
                self.stage = DetachStage::Locking;
            }
            DetachStage::Locking => {
                if !waits.lock(cx, id, whole_volume(id)) || attached && cx.volume(id).is_destaging() {
                    return Progress::Waits;
                }
                if !attached || self.how == DetachHow::Discard {
                    return self.leave_table(cx, id);
                }
                waits.flush(cx, id);
                self.stage = DetachStage::Flushing;
                return Progress::Waits;
            }
            DetachStage::Flushing => match waits.take_flush(id) {
                None => return Progress::Waits,
                // Its clients cannot get an error for an earlier failed flush any longer: the
                // detach reports it.
                Some(ok) if !ok || cx.volume(id).untold_drop => {
                    cx.volume_mut(id).untold_drop = false;
                    let error = LifecycleError::BackingFlush;
                    return cx.job_failed(Notice::DetachFailed { volume: id, error });
                }
                Some(_) if self.how == DetachHow::Drained => return self.leave_table(cx, id),
                Some(_) => {
                    if let Err(error) = may_keep(cx, cx.map.unclean_of(id)) {
                        return cx.job_failed(Notice::DetachFailed { volume: id, error });
                    }
                    if cx.volume(id).intents.any_kept() && !fault::planted(PlantedBug::EndDroppedIntents) {
                        self.stage = DetachStage::Forgetting(Sweep::new(0, true));
                        return Progress::Goes;
                    }
                    self.ask(cx, id);
                    return Progress::Waits;
                }
            },
            DetachStage::Forgetting(sweep) => {
                let mut sweep = *sweep;
                if !sweep.step(cx, id) {
                    self.stage = DetachStage::Forgetting(sweep);
                    return Progress::Waits;
                }
                self.ask(cx, id);
                return Progress::Waits;
            }
            DetachStage::Asking(None) => return Progress::Waits,
            DetachStage::Asking(Some(backing)) => {
                let mut backing = backing.clone();
                if cx.volume(id).may_lack_writes() {
                    backing.samples.clear();
                }
                keep_in_table(cx, waits, id, backing);
                self.stage = DetachStage::Checkpoint(cx.force_checkpoint());
            }
            DetachStage::Sweeping(sweep) => {
                let mut sweep = *sweep;
                if !sweep.step(cx, id) {
                    self.stage = DetachStage::Sweeping(sweep);
                    return Progress::Waits;
                }
                self.stage = DetachStage::Checkpoint(cx.force_checkpoint());
            }
            DetachStage::Checkpoint(ticket) => {
                if !checkpoint.is_in_effect(*ticket) {
                    return Progress::Waits;
                }
                cx.actions.notice(Notice::Detached { volume: id });
                return Progress::Done;
            }
        }
        Progress::Goes
    }

    /// The point of no return: checkpoints that are taken from now on do not list the volume.
    fn leave_table(&mut self, cx: &mut Context, id: VolumeId) -> Progress {
        cx.volumes.remove(id);
        cx.volume_table.retain(|entry| entry.id != id);
        cx.map.forget_order(id);
        cx.ghosts.volume_gone(id);
        cx.curve.volume_gone(id);
        cx.emit(Event::VolumeLeft { volume: id, goes: true });
        if fault::planted(PlantedBug::ReuseVolumeEarly) {
            cx.actions.notice(Notice::Detached { volume: id });
            return Progress::Done;
        }
        self.stage = DetachStage::Sweeping(Sweep::new(0, false));
        Progress::Goes
    }
}

/// Limits dirty data of volumes that are not attached: it cannot be destaged.
fn may_keep(cx: &Context, unclean: u64) -> Result<(), LifecycleError> {
    let (blocks, most) = (cx.kept_dirty() + unclean, Context::kept_dirty_max(cx.data_capacity()));
    if blocks > most { Err(LifecycleError::TooDirty { blocks, most }) } else { Ok(()) }
}

/// The point of no return: the entry stays, and the volume is no longer served.
fn keep_in_table(cx: &mut Context, waits: &mut Waits, id: VolumeId, backing: BackingRecord) {
    let volume = cx.volumes.remove(id).expect("a volume that is kept is attached");
    let entry = cx.volume_table.iter_mut().find(|entry| entry.id == id);
    let entry = entry.expect("an attached volume is in the table");
    (entry.mode, entry.size_bytes, entry.backing) = (volume.settings.mode, volume.table_bytes, backing);
    cx.emit(Event::VolumeLeft { volume: id, goes: false });
    waits.unlock(cx, id);
}

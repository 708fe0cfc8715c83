//! Attaching a volume to a running cache: a new one, or one of the table that was not attached
//! since the start.
//!
//! A volume of the table is judged as at the end of recovery (`attach`): its backing store must
//! still match the cache. Its flush epochs were recovered with everything else, or have stayed in
//! the cache since it was detached: they continue, unless the backing store has changed
//! (`ordered`). The volume takes no request until a checkpoint with its entry is in effect: an
//! earlier write would belong to a volume that recovery does not know.

use crate::api::config::{Attachment, OnBackingChange};
use crate::api::lifecycle_error::LifecycleError;
use crate::api::{Device, IoAction, Notice, OpId};
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::locks::whole_volume;
use crate::context::operations::OpKind;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::job::{Progress, Sweep, Waits};
use crate::recovery::state::Verdict;
use forebay_format::VolumeId;
use forebay_format::checkpoint::{NAME_BYTES_MAX, VolumeEntry};
use forebay_format::geometry::VOLUMES_MAX;

/// Time until another attempt to get a page for a sample.
const RETRY_NS: u64 = 1_000_000;

#[derive(Debug)]
enum AttachStage {
    /// Until nothing relocates the blocks of the volume.
    Locking,
    /// Samples of the backing store are read and compared, one at a time.
    Sampling {
        reading: bool,
    },
    /// The backing store is flushed: the compared data may have been in a volatile cache.
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

impl Attaching {
    pub(super) fn begin(
        cx: &Context,
        entry: VolumeEntry,
        attachment: Attachment,
    ) -> Result<Self, LifecycleError> {
        let id = entry.id;
        check_entry(&entry, &attachment)?;
        if cx.volumes.is_attached(id) {
            return Err(LifecycleError::Attached);
        }
        let known = cx.table_entry(id).cloned();
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
        let entry = known.unwrap_or(entry);
        let verdict = Verdict::default();
        let stage = AttachStage::Locking;
        Ok(Self { entry, attachment, new, verdict, unreadable: false, changed: false, stage })
    }

    /// Attaches it to an engine without a cache: there is nothing to make durable.
    pub(super) fn end_without_cache(self, cx: &mut Context) {
        cx.attach_without_cache(self.entry, &self.attachment);
    }

    pub(super) fn step(
        &mut self,
        cx: &mut Context,
        waits: &mut Waits,
        checkpoint: &Checkpoints,
        id: VolumeId,
    ) -> Progress {
        if cx.failure.is_fenced() || cx.stopping && !matches!(self.stage, AttachStage::Checkpoint(_)) {
            if self.is_waiting_for_device() {
                return Progress::Waits;
            }
            let error =
                if cx.failure.is_fenced() { LifecycleError::Fenced } else { LifecycleError::NotServing };
            return self.attach_failed(cx, id, error);
        }
        match &mut self.stage {
            AttachStage::Locking => {
                if !waits.lock(cx, id, whole_volume(id)) {
                    return Progress::Waits;
                }
                if self.new {
                    return self.enter_table(cx, id);
                }
                self.verdict = cx.suspect_online(&self.attachment, &self.entry);
                self.stage = AttachStage::Sampling { reading: false };
            }
            AttachStage::Sampling { reading: true } => return Progress::Waits,
            AttachStage::Sampling { reading } => {
                if self.unreadable {
                    return self.attach_failed(cx, id, LifecycleError::BackingUnreadable);
                }
                if let Some(block) = self.verdict.next_sample() {
                    *reading = waits.read_sample(cx, id, block);
                    if !*reading {
                        cx.wake_in(RETRY_NS);
                    }
                    return Progress::Waits;
                }
                self.stage = AttachStage::Flushing { started: false, ended: None };
            }
            AttachStage::Flushing { started, ended } => match ended {
                None if !*started => {
                    *started = true;
                    cx.stats.backing_flushes += 1;
                    let op = cx.ops.begin(OpKind::LifecycleFlush(id), cx.now);
                    cx.actions.push_io(IoAction::Flush { op: OpId(op), device: Device::Backing(id) });
                    return Progress::Waits;
                }
                None => return Progress::Waits,
                Some(false) => return self.attach_failed(cx, id, LifecycleError::BackingFlush),
                Some(true) => return self.judge_online(cx, id),
            },
            AttachStage::Sweeping(sweep) => {
                let mut sweep = *sweep;
                let ended = sweep.step(cx, id);
                if !ended {
                    self.stage = AttachStage::Sweeping(sweep);
                    return Progress::Waits;
                }
                let (volume, dropped, discarded) = (id, sweep.dropped, sweep.discarded);
                cx.actions.notice(match self.verdict.is_uncertain() {
                    true => Notice::BackingUncertain { volume, dropped },
                    false => Notice::BackingChanged { volume, dropped, discarded },
                });
                return self.enter_table(cx, id);
            }
            AttachStage::Checkpoint(ticket) => {
                let ticket = *ticket;
                if !checkpoint.is_in_effect(ticket) {
                    return Progress::Waits;
                }
                cx.actions.notice(Notice::Attached { volume: id });
                cx.enter_volume(&self.attachment);
                cx.counters.begin(id);
                return Progress::Done;
            }
        }
        Progress::Goes
    }

    /// A sample was read.
    pub(super) fn sample_read(&mut self, ok: bool, crcs: &[u32]) {
        self.unreadable |= !ok;
        self.verdict.compare(crcs.first().copied());
        self.stage = AttachStage::Sampling { reading: false };
    }

    /// The backing store was flushed.
    pub(super) fn store_flushed(&mut self, ok: bool) {
        self.stage = AttachStage::Flushing { started: true, ended: Some(ok) };
    }

    fn judge_online(&mut self, cx: &mut Context, id: VolumeId) -> Progress {
        if self.verdict.is_uncertain() {
            self.stage = AttachStage::Sweeping(Sweep::new(0, true));
            return Progress::Goes;
        }
        self.changed = self.verdict.is_changed();
        if !self.changed {
            return self.enter_table(cx, id);
        }
        let dirty_blocks = cx.map.dirty_blocks(id);
        let policy = self.attachment.on_change;
        if policy == OnBackingChange::Refuse && dirty_blocks > 0 {
            return self.attach_failed(cx, id, LifecycleError::BackingChanged { dirty_blocks });
        }
        // The forced checkpoint records this before anything is destaged.
        cx.map.forget_order(id);
        self.stage = AttachStage::Sweeping(Sweep::new(0, policy != OnBackingChange::DiscardDirty));
        Progress::Goes
    }

    /// From here on every checkpoint lists the volume as in use.
    fn enter_table(&mut self, cx: &mut Context, id: VolumeId) -> Progress {
        self.attachment.size_bytes = cx.map.size_to_serve(&self.attachment, &self.entry);
        let mut entry = self.entry.clone();
        entry.mode = self.attachment.settings.mode;
        entry.size_bytes = self.attachment.size_bytes;
        entry.backing = self.attachment.backing.clone();
        entry.backing.stamp_ns = None;
        entry.backing.samples.clear();
        cx.volume_table.retain(|other| other.id != id);
        cx.volume_table.push(entry);
        if fault::planted(PlantedBug::ForgetOrderAtAttach) {
            cx.map.forget_order(id);
        }
        let ticket = cx.force_checkpoint();
        let early = fault::planted(PlantedBug::ServeBeforeCheckpoint);
        self.stage = AttachStage::Checkpoint(if early { 0 } else { ticket });
        Progress::Goes
    }

    fn attach_failed(&self, cx: &mut Context, id: VolumeId, error: LifecycleError) -> Progress {
        if matches!(self.stage, AttachStage::Checkpoint(_)) {
            // No checkpoint can be taken after this, so the table in memory does not matter.
            cx.volume_table.retain(|other| other.id != id || !self.new);
        }
        cx.job_failed(Notice::AttachFailed { volume: id, error })
    }

    fn is_waiting_for_device(&self) -> bool {
        matches!(
            self.stage,
            AttachStage::Sampling { reading: true } | AttachStage::Flushing { started: true, ended: None }
        )
    }
}

/// Checks that an entry can be stored in the volume table.
fn check_entry(entry: &VolumeEntry, attachment: &Attachment) -> Result<(), LifecycleError> {
    let sound = entry.id == attachment.volume
        && u32::from(entry.id.0) < VOLUMES_MAX
        && entry.name.len() <= NAME_BYTES_MAX;
    if !sound {
        return Err(LifecycleError::OutOfRange);
    }
    super::resize::check_size(attachment.size_bytes, attachment.backing_sector_bytes)
}

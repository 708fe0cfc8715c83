//! The operator's calls: settings, drains, and changes of volumes and of the pool.

use crate::api::Nanos;
use crate::api::config::Attachment;
use crate::api::destage::Drain;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::settings::{PoolSettings, SettingsError, VolumeSettings};
use crate::context::locks::whole_volume;
use crate::engine::Engine;
use crate::fault::{self, PlantedBug};
use crate::lifecycle::detach::DetachHow;
use crate::reclaim::shares::SweepTask;
use forebay_format::checkpoint::{BackingRecord, VolumeEntry};
use forebay_format::{Members, VolumeId};

impl Engine {
    /// Changes settings of a volume; requests in flight complete under the old settings.
    ///
    /// # Errors
    /// The settings are out of range or contradict each other; nothing was changed.
    pub fn configure_volume(
        &mut self,
        now: Nanos,
        id: VolumeId,
        settings: VolumeSettings,
    ) -> Result<(), SettingsError> {
        settings.check()?;
        self.begin(now);
        if let Some(volume) = self.cx.volumes.get_mut(id) {
            let was = core::mem::replace(&mut volume.settings, settings);
            if !fault::planted(PlantedBug::ChargeUnlimited) {
                volume.destage.rate.limits_set(&was, &settings);
            }
            if was.flush_period != settings.flush_period {
                volume.destage.rate.period_set(now);
            }
            if was.destage_order != settings.destage_order && fault::planted(PlantedBug::ForgetOnOrderChange)
            {
                self.cx.map.volumes[usize::from(id.0)].waiting = Default::default();
            }
        }
        Ok(())
    }

    /// Changes settings of the pool.
    ///
    /// # Errors
    /// The settings are out of range; nothing was changed.
    pub fn configure_pool(&mut self, now: Nanos, settings: PoolSettings) -> Result<(), SettingsError> {
        settings.check()?;
        self.begin(now);
        self.cx.settle_endurance();
        self.cx.config.pool = settings;
        self.cx.settle_endurance();
        self.cx.free.look_for_stale();
        Ok(())
    }

    /// Starts or ends a drain, see [`Drain`]. It does not end by itself: blocks that become dirty
    /// later are drained as well.
    pub fn set_drain(&mut self, now: Nanos, volume: VolumeId, drain: Drain) {
        self.begin(now);
        if let Some(volume) = self.cx.volumes.get_mut(volume) {
            volume.destage.rate.drain = drain;
        }
    }

    /// Releases all pins of a volume, for instance after the operator has removed the rule that set
    /// them. Works incrementally; it may also release pins set meanwhile.
    pub fn unpin_all(&mut self, now: Nanos, volume: VolumeId) {
        self.begin(now);
        self.shares.sweep(volume, SweepTask::Unpin);
    }

    /// Drops the clean blocks of a volume, including pinned ones. Works incrementally; blocks
    /// filled meanwhile may stay. Dirty blocks stay.
    pub fn forget_clean(&mut self, now: Nanos, volume: VolumeId) {
        self.begin(now);
        self.shares.sweep(volume, SweepTask::DropClean);
    }

    /// Handles a backing store that disappeared and was reopened as another device, such as an
    /// unplugged disk. It may have lost acknowledged writes that were not flushed, so its next
    /// flush fails if it has such writes (I83), and destage writes their blocks again. Another
    /// system may have changed it, so the engine drops the volume's clean blocks: the owner may
    /// submit operations to it once [`Engine::is_sweeping`] returns false. No operation of the
    /// volume may be in flight on the old device. Does nothing if the volume is not attached.
    pub fn backing_reopened(&mut self, now: Nanos, volume: VolumeId) {
        self.begin(now);
        let Some(attached) = self.cx.volumes.get_mut(volume) else { return };
        attached.distrust_flushes();
        self.cx.cancel_fills(whole_volume(volume));
        self.shares.sweep(volume, SweepTask::DropClean);
    }

    /// Returns the smallest free number for a new volume, if there is any.
    #[must_use]
    pub fn free_volume_id(&self) -> Option<VolumeId> {
        self.lifecycle.free_volume_id(&self.cx)
    }

    /// Attaches a volume while the cache is in use. `entry.id` is either a number in the volume
    /// table, whose entry must have the same `entry.uuid`, or a free one
    /// ([`Engine::free_volume_id`]). [`Notice::Attached`](crate::Notice::Attached) or
    /// [`Notice::AttachFailed`](crate::Notice::AttachFailed) follows; the engine takes requests
    /// from the former on.
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
        self.lifecycle.attach(&mut self.cx, entry, attachment)
    }

    /// Begins to drain a volume to the end: from now on writes are written through to the backing
    /// store, so no block becomes dirty and the drain ends however much clients write.
    /// [`Engine::cancel_detach`] undoes it.
    ///
    /// # Errors
    /// The volume is not attached, or another change is in progress.
    pub fn begin_detach(&mut self, now: Nanos, volume: VolumeId) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.begin_detach(&mut self.cx, volume)
    }

    /// Returns to normal service after [`Engine::begin_detach`], or after [`Engine::detach_volume`]
    /// up to its point of no return. In the latter case
    /// [`Notice::DetachFailed`](crate::Notice::DetachFailed) with [`LifecycleError::Cancelled`]
    /// follows, and the engine takes requests again at once.
    ///
    /// # Errors
    /// It is too late, another change is in progress, or the volume is not attached.
    pub fn cancel_detach(&mut self, now: Nanos, volume: VolumeId) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.cancel_detach(&mut self.cx, volume)
    }

    /// Detaches a volume. Requests in flight complete; later ones fail with
    /// `RequestError::Shutdown`. If the volume is kept,
    /// [`OwnerAction::VolumeQuiet`](crate::OwnerAction::VolumeQuiet) follows, which the owner
    /// answers with [`Engine::finish_detach`]. Then [`Notice::Detached`](crate::Notice::Detached)
    /// or [`Notice::DetachFailed`](crate::Notice::DetachFailed) follows; after the latter the
    /// engine serves the volume as before. `DetachHow::Discard` also accepts a volume of the table
    /// that is not attached.
    ///
    /// # Errors
    /// Another change is in progress, or the volume has dirty or lost blocks that `how` does not
    /// permit.
    pub fn detach_volume(
        &mut self,
        now: Nanos,
        volume: VolumeId,
        how: DetachHow,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.detach(&mut self.cx, volume, how)
    }

    /// Answers [`OwnerAction::VolumeQuiet`](crate::OwnerAction::VolumeQuiet) with the state of the
    /// backing store, now that no writes are in flight. Samples must be of blocks that are not
    /// dirty ([`Engine::block_status`]). Nothing may write to the store until `Detached` or
    /// `DetachFailed` follows.
    ///
    /// # Errors
    /// No `VolumeQuiet` is pending, or the detach was cancelled meanwhile: the owner need do
    /// nothing.
    pub fn finish_detach(
        &mut self,
        now: Nanos,
        volume: VolumeId,
        backing: BackingRecord,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.finish_detach(volume, backing)
    }

    /// Changes the size of a volume. The owner enlarges the backing store before, and may shrink it
    /// only after [`Notice::VolumeResized`](crate::Notice::VolumeResized). From now on the engine
    /// refuses requests beyond a smaller end, and it drops the cached blocks there.
    ///
    /// # Errors
    /// The volume is not attached, another change is in progress, or the size is not a multiple of
    /// the backing store's sector size.
    pub fn resize_volume(&mut self, now: Nanos, volume: VolumeId, bytes: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.resize(&mut self.cx, volume, bytes)
    }

    /// Changes the size of the cache, and its members, which the superblock lists from the same
    /// checkpoint on. A larger cache extends over new space of its devices; the owner must have
    /// made the headers of new members durable. Of a smaller one the end is emptied: the owner may
    /// shrink its device only after [`Notice::PoolResized`](crate::Notice::PoolResized).
    /// [`Notice::PoolResizeFailed`](crate::Notice::PoolResizeFailed) reports that nothing has
    /// changed.
    ///
    /// # Errors
    /// Another change is in progress, the cache is mirrored, it cannot grow to this size
    /// ([`Geometry::segments_max`](forebay_format::Geometry::segments_max)), or too few segments
    /// would be left for it or for the blocks that must stay.
    pub fn resize_pool(
        &mut self,
        now: Nanos,
        device_bytes: u64,
        members: Members,
    ) -> Result<(), LifecycleError> {
        self.begin(now);
        self.pool_resize.begin(&mut self.cx, device_bytes, members)
    }

    /// Checks that [`Engine::resize_pool`] would begin now.
    ///
    /// # Errors
    /// As [`Engine::resize_pool`].
    pub fn may_resize_pool(&self, device_bytes: u64) -> Result<(), LifecycleError> {
        self.pool_resize.check(&self.cx, device_bytes).map(drop)
    }

    /// Cancels a resize; the pool keeps its size.
    /// [`Notice::PoolResizeFailed`](crate::Notice::PoolResizeFailed) follows.
    ///
    /// # Errors
    /// It is too late, or no resize is in progress.
    pub fn cancel_pool_resize(&mut self, now: Nanos) -> Result<(), LifecycleError> {
        self.begin(now);
        self.pool_resize.cancel(&mut self.cx)
    }
}

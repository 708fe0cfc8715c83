//! Calls of the operator: settings, drains, and changes of volumes and of the pool.

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
    /// Changes settings of a volume; requests already under way end as they began.
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
        if let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(id.0)) {
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

    /// Starts or ends a drain, see [`Drain`]. It does not end by itself: what becomes dirty later
    /// is drained as well.
    pub fn set_drain(&mut self, now: Nanos, volume: VolumeId, drain: Drain) {
        self.begin(now);
        if let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(volume.0)) {
            volume.destage.rate.drain = drain;
        }
    }

    /// Releases all pins of a volume, as when the rule that made them is gone. Takes effect bit by
    /// bit; pins made meanwhile may be released too.
    pub fn unpin_all(&mut self, now: Nanos, volume: VolumeId) {
        self.begin(now);
        self.shares.sweep(volume, SweepTask::Unpin);
    }

    /// Forgets the clean blocks of a volume, pinned ones included. Takes effect bit by bit; what is
    /// filled meanwhile may stay. Blocks that only the cache has are not touched.
    pub fn forget_clean(&mut self, now: Nanos, volume: VolumeId) {
        self.begin(now);
        self.shares.sweep(volume, SweepTask::DropClean);
    }

    /// The backing store of a volume was taken away, and is open again as another device: a disk
    /// that was unplugged. It may lack what it acknowledged and had not flushed, so the first flush
    /// from now on fails (I83), and what was written back is written again. It may have been
    /// changed elsewhere, so its clean blocks are forgotten: operations may go to it when
    /// [`Engine::is_sweeping`] is false. No operation of the volume may be under way on the old
    /// device. Nothing follows if the volume is not attached.
    pub fn backing_reopened(&mut self, now: Nanos, volume: VolumeId) {
        self.begin(now);
        let Some(Some(attached)) = self.cx.volumes.get_mut(usize::from(volume.0)) else { return };
        attached.distrust_flushes();
        self.cx.cancel_fills(whole_volume(volume));
        self.shares.sweep(volume, SweepTask::DropClean);
    }

    /// The smallest number that a new volume may have, if there is any left.
    #[must_use]
    pub fn free_volume_id(&self) -> Option<VolumeId> {
        self.lifecycle.free_volume_id(&self.cx)
    }

    /// Attaches a volume while the cache is in use. `entry.id` is a number of the table, and then
    /// `entry.uuid` must be the one there, or a free one ([`Engine::free_volume_id`]).
    /// [`Notice::Attached`](crate::Notice::Attached) or
    /// [`Notice::AttachFailed`](crate::Notice::AttachFailed) follows; requests are taken from the
    /// former on.
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

    /// Begins to drain a volume to the end: writes go to the backing store at once from now on,
    /// beside being cached, so nothing becomes dirty and the drain ends however much is written.
    /// [`Engine::cancel_detach`] undoes it.
    ///
    /// # Errors
    /// The volume is not attached, or something else is under way.
    pub fn begin_detach(&mut self, now: Nanos, volume: VolumeId) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.begin_detach(&mut self.cx, volume)
    }

    /// Goes back to serving: after [`Engine::begin_detach`], or after [`Engine::detach_volume`] as
    /// long as that has not passed the point of no return. In the latter case
    /// [`Notice::DetachFailed`](crate::Notice::DetachFailed) with [`LifecycleError::Cancelled`]
    /// follows, and requests are taken again at once.
    ///
    /// # Errors
    /// It is too late, or there is nothing to cancel.
    pub fn cancel_detach(&mut self, now: Nanos, volume: VolumeId) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.cancel_detach(&mut self.cx, volume)
    }

    /// Takes a volume away. Its requests under way end; later ones get `RequestError::Shutdown`. To
    /// keep it, [`Action::VolumeQuiet`](crate::Action::VolumeQuiet) follows, to be answered by
    /// [`Engine::finish_detach`]. Then [`Notice::Detached`](crate::Notice::Detached) or
    /// [`Notice::DetachFailed`](crate::Notice::DetachFailed) follows; after the latter the volume
    /// is served as before. A volume of the table that is not attached can be discarded.
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
        self.lifecycle.detach(&mut self.cx, volume, how)
    }

    /// Answers [`Action::VolumeQuiet`](crate::Action::VolumeQuiet): what the backing store looks
    /// like now that nothing writes to it. Samples must be of blocks that are not dirty
    /// ([`Engine::block_status`]). Nobody may write to it until `Detached` or `DetachFailed` has
    /// come.
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
        self.lifecycle.finish_detach(volume, backing)
    }

    /// Changes the size of a volume. A larger backing store must be there before, and a smaller one
    /// may be cut only after [`Notice::VolumeResized`](crate::Notice::VolumeResized). Requests
    /// beyond a smaller end are refused from now on, and what the cache has of it is given up.
    ///
    /// # Errors
    /// The volume is not attached, something else is under way, or the size is not a multiple of
    /// the backing store's sectors.
    pub fn resize_volume(&mut self, now: Nanos, volume: VolumeId, bytes: u64) -> Result<(), LifecycleError> {
        self.begin(now);
        self.lifecycle.resize(&mut self.cx, volume, bytes)
    }

    /// The cache device has become longer: takes its new end into use.
    /// [`Notice::PoolResized`](crate::Notice::PoolResized) or
    /// [`Notice::PoolResizeFailed`](crate::Notice::PoolResizeFailed) follows.
    ///
    /// # Errors
    /// Something else is under way, or the cache cannot grow so far
    /// ([`Geometry::segments_max`](forebay_format::Geometry::segments_max)).
    pub fn grow_pool(&mut self, now: Nanos, device_bytes: u64) -> Result<(), LifecycleError> {
        let members = self.cx.superblock.members;
        self.resize_pool(now, device_bytes, members)
    }

    /// The cache device is to become shorter: empties its end. It may be cut only after
    /// [`Notice::PoolResized`](crate::Notice::PoolResized);
    /// [`Notice::PoolResizeFailed`](crate::Notice::PoolResizeFailed) says that it cannot be, and
    /// that everything is as it was.
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
        self.pool_resize.begin(&mut self.cx, device_bytes, members)
    }

    /// Goes back to the size that the pool has.
    /// [`Notice::PoolResizeFailed`](crate::Notice::PoolResizeFailed) follows.
    ///
    /// # Errors
    /// It is too late, or nothing is under way.
    pub fn cancel_pool_resize(&mut self, now: Nanos) -> Result<(), LifecycleError> {
        self.begin(now);
        self.pool_resize.cancel(&mut self.cx)
    }
}

//! The table of attached volumes.

use crate::api::Nanos;
use crate::api::config::Attachment;
use crate::api::lifecycle_error::LifecycleError;
use crate::context::Context;
use crate::context::dirty_limits::{Levels, level};
use crate::context::volume::Volume;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

impl Context {
    /// Attaches a volume. The table ends at the highest number ever attached, because every
    /// settling walks all of it.
    pub(crate) fn enter_volume(&mut self, attachment: &Attachment) {
        let number = usize::from(attachment.volume.0);
        if self.volumes.len() <= number {
            self.volumes.resize_with(number + 1, || None);
        }
        let mut volume = Volume::new(attachment, self.now);
        // New clients have had no error for earlier losses.
        volume.losses_found = u64::from(self.map.volumes[number].lost > 0);
        self.volumes[number] = Some(volume);
    }

    /// Returns when a volume has work to do, even if no event arrives.
    pub(crate) fn volume_deadline(&self, volume: &Volume) -> Option<Nanos> {
        let destage = &volume.destage;
        let waiting = self.map.volumes[usize::from(volume.id.0)].waiting.len() > 0
            && (!self.fenced || self.failure.runs_without_cache());
        let wake = destage.rate.wake().filter(|_| waiting);
        let flush = destage.flush_deadline().filter(|_| !volume.flusher.is_running());
        let destage = wake.into_iter().chain(flush).min();
        [destage, self.intents_deadline(volume)].into_iter().flatten().min()
    }

    /// Returns the dirty levels of a volume and of the pool.
    pub(crate) fn levels(&self, id: VolumeId) -> Levels {
        let (kept, capacity) = (self.kept_dirty(), self.data_capacity());
        let shared = capacity.saturating_sub(kept);
        let (map, volume) = (&self.map.volumes[usize::from(id.0)], self.volume(id));
        let dirty = map.dirty + map.destaged + volume.logging_blocks;
        let all = self.map.unclean_blocks().saturating_sub(kept) + self.log.logging_blocks;
        Levels {
            capacity,
            volume: level(dirty, shared, volume.settings.dirty_high_pct),
            pool: level(all, shared, self.config.pool.dirty_limit_pct),
        }
    }

    pub(crate) fn is_attached(&self, id: VolumeId) -> bool {
        self.volumes.get(usize::from(id.0)).is_some_and(Option::is_some)
    }

    /// Checks that the pool can be changed.
    pub(crate) fn may_change_pool(&self) -> Result<(), LifecycleError> {
        if !self.is_ready() || self.stopping {
            return Err(LifecycleError::NotServing);
        }
        if self.fenced { Err(LifecycleError::Fenced) } else { Ok(()) }
    }

    /// Returns the number of dirty blocks of volumes that are not attached.
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

    /// Returns the maximum of dirty blocks of volumes that are not attached: they cannot be written
    /// back, and reclaim must still find room.
    pub(crate) fn kept_dirty_max(capacity: u64) -> u64 {
        capacity / 4
    }
}

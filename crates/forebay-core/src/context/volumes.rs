//! The table of attached volumes.

use crate::api::Nanos;
use crate::api::config::Attachment;
use crate::api::lifecycle_error::LifecycleError;
use crate::api::settings::VolumeSettings;
use crate::context::Context;
use crate::context::dirty_limits::{Levels, level};
use crate::context::volume::Volume;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

/// The attached volumes, by number.
#[derive(Debug, Default)]
pub(crate) struct Volumes(Vec<Option<Volume>>);

impl Volumes {
    pub(crate) fn get(&self, id: VolumeId) -> Option<&Volume> {
        self.0.get(usize::from(id.0))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: VolumeId) -> Option<&mut Volume> {
        self.0.get_mut(usize::from(id.0))?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Volume> {
        self.0.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Volume> {
        self.0.iter_mut().flatten()
    }

    /// Returns all numbers up to the highest one ever attached.
    pub(crate) fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        (0..self.0.len() as u16).map(VolumeId)
    }

    /// Adds a volume. The table ends at the highest number ever attached, because every settling
    /// walks all of it.
    fn insert(&mut self, volume: Volume) {
        let number = usize::from(volume.id.0);
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        self.0[number] = Some(volume);
    }

    /// Removes a volume that was detached.
    pub(crate) fn remove(&mut self, id: VolumeId) -> Option<Volume> {
        self.0.get_mut(usize::from(id.0))?.take()
    }

    /// Returns the settings of an attached volume.
    pub(crate) fn settings(&self, volume: VolumeId) -> Option<VolumeSettings> {
        self.get(volume).map(|volume| volume.settings)
    }

    pub(crate) fn is_attached(&self, id: VolumeId) -> bool {
        self.get(id).is_some()
    }
}

impl Context {
    /// Attaches a volume.
    pub(crate) fn enter_volume(&mut self, attachment: &Attachment) {
        let number = usize::from(attachment.volume.0);
        let mut volume = Volume::new(attachment, self.now);
        // New clients have had no error for earlier losses.
        volume.losses_found = u64::from(self.map.volumes[number].lost > 0);
        self.volumes.insert(volume);
    }

    /// Returns when a volume has work to do, even if no event arrives.
    pub(crate) fn volume_deadline(&self, volume: &Volume) -> Option<Nanos> {
        let destage = &volume.destage;
        let waiting = self.map.volumes[usize::from(volume.id.0)].waiting.len() > 0
            && (!self.failure.is_fenced() || self.failure.runs_without_cache());
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

    /// Checks that the pool can be changed.
    pub(crate) fn may_change_pool(&self) -> Result<(), LifecycleError> {
        if !self.status.is_ready() || self.stopping {
            return Err(LifecycleError::NotServing);
        }
        if self.failure.is_fenced() { Err(LifecycleError::Fenced) } else { Ok(()) }
    }

    /// Returns the number of dirty blocks of volumes that are not attached.
    pub(crate) fn kept_dirty(&self) -> u64 {
        let kept = |(index, map): (usize, &crate::map::VolumeMap)| {
            let attached = self.volumes.get(VolumeId(index as u16)).is_some();
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

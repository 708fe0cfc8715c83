//! The table of attached volumes.

use crate::api::Nanos;
use crate::api::config::Attachment;
use crate::context::Context;
use crate::context::levels::{Levels, level};
use crate::context::volume::Volume;
use forebay_format::VolumeId;

impl Context {
    /// Attaches a volume. The table is only as long as the highest number that was attached needs
    /// it: every settling walks it from end to end.
    pub(crate) fn enter_volume(&mut self, attachment: &Attachment) {
        let number = usize::from(attachment.volume.0);
        if self.volumes.len() <= number {
            self.volumes.resize_with(number + 1, || None);
        }
        let mut volume = Volume::new(attachment, self.now);
        // Clients that come now were told of nothing that was lost before.
        volume.losses_found = u64::from(self.map.volumes[number].lost > 0);
        self.volumes[number] = Some(volume);
    }

    /// When something is due for a volume though nothing happens.
    pub(crate) fn volume_deadline(&self, volume: &Volume) -> Option<Nanos> {
        let destage = &volume.destage;
        let waiting = self.map.volumes[usize::from(volume.id.0)].waiting.len() > 0
            && (!self.fenced || self.runs_without_cache());
        let wake = destage.rate.wake().filter(|_| waiting);
        let flush = destage.flush_deadline().filter(|_| !volume.flusher.is_running());
        let destage = wake.into_iter().chain(flush).min();
        [destage, self.intents_deadline(volume)].into_iter().flatten().min()
    }

    /// Where a volume and the pool are between their limits.
    pub(crate) fn levels(&self, id: VolumeId) -> Levels {
        let (kept, capacity) = (self.kept_dirty(), self.data_capacity());
        let shared = capacity.saturating_sub(kept);
        let map = &self.map.volumes[usize::from(id.0)];
        let dirty = map.dirty + map.destaged + self.volume(id).logging_blocks;
        let all = self.map.unclean_blocks().saturating_sub(kept) + self.log.logging_blocks;
        Levels {
            capacity,
            volume: level(dirty, shared, self.volume(id).settings.dirty_high_pct),
            pool: level(all, shared, self.config.pool.dirty_limit_pct),
        }
    }
}

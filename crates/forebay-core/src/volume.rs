//! What the engine keeps per attached volume.

use crate::api::Nanos;
use crate::destage::Destage;
use crate::direct::Intents;
use crate::engine::Engine;
use crate::flush::Flusher;
use crate::settings::{Admission, Treatment, VolumeSettings};
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, Mode};

/// An attached volume.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) settings: VolumeSettings,
    pub(crate) size_bytes: u64,
    /// Smallest unit that the backing store writes: 512 or 4096.
    pub(crate) sector_bytes: u32,
    pub(crate) flusher: Flusher,
    /// A write past the cache completed since the last backing flush was started.
    pub(crate) direct_unflushed: bool,
    /// The running backing flush covers such a write.
    pub(crate) direct_flushing: bool,
    pub(crate) intents: Intents,
    pub(crate) destage: Destage,
    pub(crate) draining: bool,
    /// The flush before a shutdown has been tried; if it failed the intents stay.
    pub(crate) gave_up: bool,
    pub(crate) last_active: Nanos,
    /// Foreground reads of the backing store under way.
    pub(crate) misses_in_flight: u32,
    /// What the volume table says of the backing store.
    pub(crate) backing: BackingRecord,
}

impl Volume {
    pub(crate) fn is_write_back(&self) -> bool {
        matches!(self.settings.mode, Mode::Writeback | Mode::Writeonly)
    }

    /// When the volume counts as idle, if nothing happens before; `None` if it never does.
    pub(crate) fn idle_at(&self) -> Option<Nanos> {
        let delay = self.settings.idle_delay;
        (delay > 0).then(|| self.last_active.saturating_add(delay))
    }

    /// Whether a write with this treatment goes through the log, and whether it is cached if it does not.
    pub(crate) fn writes(&self, treatment: Treatment) -> (bool, bool) {
        let write_back =
            self.is_write_back() && !matches!(treatment, Treatment::Bypass | Treatment::WriteThrough);
        let copies = match treatment {
            Treatment::Bypass => false,
            Treatment::WriteThrough => self.is_write_back() || self.settings.mode == Mode::Writethrough,
            Treatment::Cache => {
                self.settings.mode == Mode::Writethrough && self.settings.admission != Admission::Never
            }
            Treatment::Pin => self.settings.mode == Mode::Writethrough,
        };
        (write_back, copies)
    }

    /// True if blocks read from the backing store are to be cached.
    pub(crate) fn fills(&self) -> bool {
        matches!(self.settings.mode, Mode::Writeback | Mode::Writethrough | Mode::Writearound)
    }
}

impl Engine {
    /// When something is due for a volume though nothing happens.
    pub(crate) fn volume_deadline(&self, volume: &Volume) -> Option<Nanos> {
        let waiting = self.map.volumes[usize::from(volume.id.0)].waiting.len() > 0;
        let unfinished = waiting || !volume.destage.written.is_empty();
        let destage = if !unfinished || self.fenced && volume.destage.written.is_empty() {
            None
        } else if volume.destage.backoff_until > self.now {
            Some(volume.destage.backoff_until)
        } else {
            volume.idle_at().filter(|due| *due > self.now)
        };
        [destage, self.intents_deadline(volume)].into_iter().flatten().min()
    }
}

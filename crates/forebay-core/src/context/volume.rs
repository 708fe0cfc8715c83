//! An attached volume, as the engine keeps it.

use crate::api::Nanos;
use crate::api::config::Attachment;
use crate::api::settings::{Admission, Treatment, VolumeSettings};
use crate::context::failure::Promised;
use crate::context::intents::Intents;
use crate::context::ledger::Flusher;
use crate::destage::state::Destage;
use crate::fault::{self, PlantedBug};
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, Mode};

/// An attached volume.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) settings: VolumeSettings,
    /// Size as it is served: where blocks end.
    pub(crate) size_bytes: u64,
    /// Requests beyond this are refused: less than the size while the volume is about to shrink.
    pub(crate) limit_bytes: u64,
    /// Size as the next checkpoint has it: more than the size while the volume is about to grow.
    pub(crate) table_bytes: u64,
    /// It is being drained to its end: nothing becomes dirty any more.
    pub(crate) ending: bool,
    /// It shrinks, and has given up blocks that a crash would bring back.
    pub(crate) shrinking: bool,
    /// It leaves as soon as nothing of it is dirty.
    pub(crate) drains_to_leave: bool,
    /// Writers wait at a dirty limit.
    pub(crate) writers_wait: usize,
    /// Blocks on their way to the log and not in the map yet.
    pub(crate) logging_blocks: u64,
    /// Smallest unit that the backing store writes: 512 or 4096.
    pub(crate) sector_bytes: u32,
    pub(crate) flusher: Flusher,
    /// Flushes up to this one (by [`Flusher::ended`]) fail, whatever the backing store answers.
    distrusted_flush: u64,
    /// A write past the cache completed since the last backing flush was started.
    pub(crate) direct_unflushed: bool,
    /// The running backing flush covers such a write.
    pub(crate) direct_flushing: bool,
    pub(crate) intents: Intents,
    pub(crate) destage: Destage,
    /// The flush before a shutdown has been tried; if it failed the intents stay.
    pub(crate) gave_up: bool,
    pub(crate) last_active: Nanos,
    /// Foreground reads of the backing store under way.
    pub(crate) misses_in_flight: u32,
    /// What the volume table says of the backing store.
    pub(crate) backing: BackingRecord,
    /// What FLUSHes have promised (`failure`).
    pub(crate) promised: Promised,
    /// Losses that were found, failed backing flushes among them, and of those the ones that came
    /// before the last FLUSH that failed.
    pub(crate) losses_found: u64,
    pub(crate) losses_reported: u64,
    /// A failed flush may have dropped writes, and neither a FLUSH nor a detach has failed since.
    pub(crate) untold_drop: bool,
    /// The last change of what is at risk (`failure`).
    pub(crate) safer_at: u64,
    /// The backing store does not take what is to be rescued: nobody waits for that any longer.
    pub(crate) rescue_failed: bool,
    /// The same during a shutdown, which does not wait either.
    pub(crate) rescue_given_up: bool,
}

impl Volume {
    /// A volume that nothing was asked of yet.
    pub(crate) fn new(attachment: &Attachment, now: Nanos) -> Self {
        Self {
            id: attachment.volume,
            settings: attachment.settings,
            size_bytes: attachment.size_bytes,
            limit_bytes: attachment.size_bytes,
            table_bytes: attachment.size_bytes,
            ending: false,
            shrinking: false,
            drains_to_leave: false,
            writers_wait: 0,
            logging_blocks: 0,
            sector_bytes: attachment.backing_sector_bytes,
            flusher: Flusher::default(),
            distrusted_flush: 0,
            direct_unflushed: false,
            direct_flushing: false,
            intents: Intents::default(),
            destage: Destage::default(),
            gave_up: false,
            last_active: now,
            misses_in_flight: 0,
            backing: attachment.backing.clone(),
            promised: Promised::default(),
            losses_found: 0,
            losses_reported: 0,
            untold_drop: false,
            safer_at: 0,
            rescue_failed: false,
            rescue_given_up: false,
        }
    }

    pub(crate) fn is_write_back(&self) -> bool {
        matches!(self.settings.mode, Mode::Writeback | Mode::Writeonly)
    }

    /// When the volume counts as idle, if nothing happens before; `None` if it never does.
    pub(crate) fn idle_at(&self) -> Option<Nanos> {
        let delay = self.settings.idle_delay;
        (delay > 0).then(|| self.last_active.saturating_add(delay))
    }

    /// Whether a write with this treatment goes through the log, and whether it is cached if it
    /// does not.
    pub(crate) fn writes(&self, treatment: Treatment) -> (bool, bool) {
        if self.ending && self.is_write_back() {
            let unwanted = treatment == Treatment::Cache && self.settings.admission == Admission::Never;
            return (false, treatment != Treatment::Bypass && !unwanted);
        }
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

    /// A failed flush may have dropped acknowledged writes that only the backing store had.
    pub(crate) fn note_dropped_writes(&mut self) {
        if !fault::planted(PlantedBug::ForgetFailedFlush) {
            self.losses_found += 1;
            self.untold_drop = true;
        }
        self.keep_intents();
    }

    /// The intents of writes past the cache that a failed flush may have dropped do not end in this
    /// life of the engine.
    pub(crate) fn keep_intents(&mut self) {
        if !fault::planted(PlantedBug::EndDroppedIntents) {
            self.intents.keep(self.flusher.succeeded);
        }
    }

    /// What the backing store has acknowledged and not flushed may be gone: the flush under way and
    /// the next one fail (I83).
    pub(crate) fn distrust_flushes(&mut self) {
        let flusher = &self.flusher;
        if (flusher.running || flusher.unflushed) && !fault::planted(PlantedBug::TrustOldDevice) {
            self.distrusted_flush = flusher.ended + 1 + u64::from(flusher.running);
        }
    }

    /// Whether the flush that is ending counts, if the backing store answers that it succeeded.
    pub(crate) fn trusts_flush(&self) -> bool {
        self.flusher.ended >= self.distrusted_flush
    }

    /// A flush of the backing store has failed: its blocks need not look after a loss of power as
    /// they look now, so samples of them prove nothing.
    pub(crate) fn may_lack_writes(&self) -> bool {
        self.flusher.unflushed || self.intents.any_kept()
    }

    /// True if blocks read from the backing store are to be cached.
    pub(crate) fn fills(&self) -> bool {
        matches!(self.settings.mode, Mode::Writeback | Mode::Writethrough | Mode::Writearound)
    }
}

//! State of an attached volume.

use crate::api::Nanos;
use crate::api::config::Attachment;
use crate::api::settings::{Admission, Treatment, VolumeSettings};
use crate::context::failure::Promised;
use crate::context::flush_ledger::Flusher;
use crate::context::intents::Intents;
use crate::context::sectors::{BLOCK, sector_mask};
use crate::destage::state::Destage;
use crate::fault::{self, PlantedBug};
use forebay_format::VolumeId;
use forebay_format::checkpoint::{BackingRecord, Mode};

/// An attached volume.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) id: VolumeId,
    pub(crate) settings: VolumeSettings,
    /// Size in service: where blocks end.
    pub(crate) size_bytes: u64,
    /// Requests beyond this are refused: less than the size before a shrink.
    pub(crate) limit_bytes: u64,
    /// Size in the next checkpoint: more than the size before a growth.
    pub(crate) table_bytes: u64,
    /// It is being drained to the end: nothing becomes dirty any longer.
    pub(crate) ending: bool,
    /// It shrinks, and has dropped blocks that a crash would bring back.
    pub(crate) shrinking: bool,
    /// It is detached as soon as nothing of it is dirty.
    pub(crate) drains_to_leave: bool,
    /// Writers that wait at a dirty limit.
    pub(crate) writers_wait: usize,
    /// Blocks on their way to the log and not in the map yet.
    pub(crate) logging_blocks: u64,
    /// Smallest unit that the backing store writes: 512 or 4096.
    pub(crate) sector_bytes: u32,
    pub(crate) flusher: Flusher,
    /// Flushes up to this one (by [`Flusher::ended`]) fail even if the backing store reports
    /// success.
    distrusted_flush: u64,
    /// A bypass write completed since the last backing flush was submitted.
    pub(crate) direct_unflushed: bool,
    /// The running backing flush covers a bypass write.
    pub(crate) direct_flushing: bool,
    pub(crate) intents: Intents,
    pub(crate) destage: Destage,
    /// The flush before a shutdown has been tried; if it failed the intents stay.
    pub(crate) gave_up: bool,
    pub(crate) last_active: Nanos,
    /// Foreground reads of the backing store in flight.
    pub(crate) misses_in_flight: u32,
    /// Record of the backing store in the volume table.
    pub(crate) backing: BackingRecord,
    /// Guarantees of earlier FLUSHes (`failure`).
    pub(crate) promised: Promised,
    /// Losses found, including failed backing flushes, and how many of them preceded the last FLUSH
    /// that failed.
    pub(crate) losses_found: u64,
    pub(crate) losses_reported: u64,
    /// A failed flush might have dropped writes, and neither a FLUSH nor a detach has failed since.
    pub(crate) untold_drop: bool,
    /// The last change of the data at risk (`failure`).
    pub(crate) safer_at: u64,
    /// The backing store rejects writes of the rescue: no request waits for it any longer.
    pub(crate) rescue_failed: bool,
    /// The same during a shutdown, which does not wait for it either.
    pub(crate) rescue_given_up: bool,
}

impl Volume {
    /// Creates a volume without requests.
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

    /// Returns when the volume becomes idle without further requests; `None` if never.
    pub(crate) fn idle_at(&self) -> Option<Nanos> {
        let delay = self.settings.idle_delay;
        (delay > 0).then(|| self.last_active.saturating_add(delay))
    }

    /// Returns whether a write with this treatment goes through the log, and if not, whether it is
    /// cached.
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

    /// Notes that a failed flush might have dropped acknowledged writes that only the backing store
    /// had.
    pub(crate) fn note_dropped_writes(&mut self) {
        if !fault::planted(PlantedBug::ForgetFailedFlush) {
            self.losses_found += 1;
            self.untold_drop = true;
        }
        self.keep_intents();
    }

    /// Keeps the intents of bypass writes that a failed flush might have dropped until the next
    /// start.
    pub(crate) fn keep_intents(&mut self) {
        if !fault::planted(PlantedBug::EndDroppedIntents) {
            self.intents.keep(self.flusher.succeeded());
        }
    }

    /// Makes the running backing flush and the next one fail: writes that the backing store
    /// acknowledged and has not flushed might be gone (I83).
    pub(crate) fn distrust_flushes(&mut self) {
        let flusher = &self.flusher;
        if flusher.is_needed() && !fault::planted(PlantedBug::TrustOldDevice) {
            self.distrusted_flush = flusher.ended() + 1 + u64::from(flusher.is_running());
        }
    }

    /// Returns true if success of the flush that is ending can be trusted.
    pub(crate) fn trusts_flush(&self) -> bool {
        self.flusher.ended() >= self.distrusted_flush
    }

    /// Returns true if a loss of power could change the content of the backing store, because it
    /// has unflushed writes or a flush has failed. Samples of it then prove nothing.
    pub(crate) fn may_lack_writes(&self) -> bool {
        self.flusher.has_unflushed() || self.intents.any_kept()
    }

    /// Returns true if a FLUSH fails, which also marks the losses as reported. Every FLUSH in
    /// flight when something was lost fails, or else the next one, and later ones do not: as with
    /// `fsync`. `reported`: losses reported before the FLUSH was taken.
    pub(crate) fn flush_fails(&mut self, reported: u64, failed: bool) -> bool {
        let silent = fault::planted(PlantedBug::FlushOverLoss);
        let fails = failed || self.losses_found > reported && !silent;
        if fails {
            self.losses_reported = self.losses_found;
            self.untold_drop = false;
        }
        fails
    }

    /// Returns the bytes of a block that lie inside the volume: less than a block at an odd end.
    pub(crate) fn block_len(&self, block: u64) -> u64 {
        (self.size_bytes - block * BLOCK).min(BLOCK)
    }

    /// Returns the sectors of a block that lie inside the volume.
    pub(crate) fn block_mask(&self, block: u64) -> u8 {
        sector_mask(0, self.block_len(block))
    }

    /// Serves the volume with a new size.
    pub(crate) fn serve_size(&mut self, bytes: u64) {
        (self.size_bytes, self.limit_bytes) = (bytes, bytes);
    }

    /// Returns true if blocks read from the backing store are cached.
    pub(crate) fn fills(&self) -> bool {
        matches!(self.settings.mode, Mode::Writeback | Mode::Writethrough | Mode::Writearound)
    }
}

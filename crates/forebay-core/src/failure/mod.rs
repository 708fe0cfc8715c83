//! Going on without the cache device (decision 0019).
//!
//! A cache device that fails takes nothing more that could be promised: the engine is *fenced*
//! (I14). From there
//!
//! ```text
//! Sound -> Asking -> WithoutCache   the owner has made durable that this cache must never be opened again
//!             |        ^
//!             v        |
//!          Refused ----+            it could not: changes answer with an error, until it can
//! ```
//!
//! - *Asking*: [`Action::RecordLoss`] asks the owner. What would fail now waits (I50). Nothing
//!   enters the map any more, not even batches that were under way: what the record says is at risk
//!   can only become less (I52).
//! - *WithoutCache*: recovery from this cache will never happen, so there are no intents, marks,
//!   batches, checkpoints and flush epochs any more. Clean copies do not count. Every dirty block
//!   that can still be read is written to its backing store at once (the *rescue*), durable on the
//!   cache or not: I11 was there for recovery. One that cannot be read is lost: exactly its sectors
//!   answer with an error until they are written again (I53). Requests go past the cache; those
//!   that the failure interrupted are done over (their data is still in the client's buffer), so no
//!   client sees an error.
//! - A FLUSH waits until what it promises newly is rescued, and for a record that says so (I54):
//!   that is readable after a crash too. What earlier ones had promised is rescued after that. A
//!   write waits for such a record if the last one lists something of it. If something was lost,
//!   every FLUSH that was waiting when that was found answers with an error, or else the next one,
//!   and those after it do not: as `fsync` does.
//!
//! An engine can also begin like this
//! ([`Engine::open_without_cache`](crate::Engine::open_without_cache)): after a crash, with what
//! the record says.
//!
//! Here: detection, the owner's answer, and requests that wait for it. `loss`: what is at risk,
//! safe, or lost. `promise`: what FLUSHes had promised before. `rescue`: what a FLUSH waits for.

pub(crate) mod damage;
mod loss;
mod promise;
pub(crate) mod read_retry;
mod rescue;

pub use loss::{AtRisk, RiskWalk};

use crate::api::config::Attachment;
use crate::api::{Action, Nanos, Notice};
use crate::context::Context;
use crate::context::events::Event;
use crate::context::failure::{FailureStage, Held};
use crate::context::requests::Req;
use crate::context::sectors::{BLOCK, sector_mask};
use crate::fault::{self, PlantedBug};
use crate::map::segment::BlockState;

use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

/// Failed reads of so many different segments, without one that succeeded between them, mean that
/// the device has failed, not some of its sectors.
const READS_FAILED_MAX: usize = 8;
/// The record is brought up to date at most this often if nobody waits for that.
const RECORD_PAUSE_NS: Nanos = 1_000_000_000;
/// Blocks of which is remembered that they came to be safe; beyond, the next record is a whole one.
const SAFE_BLOCKS_MAX: usize = 1 << 20;

impl Req {
    /// Sectors of a block that the request is about.
    pub(crate) fn sectors_of(&self, block: u64) -> u8 {
        let start = block * BLOCK;
        sector_mask(self.offset.max(start) - start, self.end().min(start + BLOCK) - start)
    }
}

impl Context {
    pub(crate) fn serve_without_cache(&mut self, attachment: &Attachment) {
        self.enter_volume(attachment);
        self.counters.begin(attachment.volume);
        // What was written before this engine began may still be volatile: the first FLUSH covers
        // it too.
        let volume = self.volume_mut(attachment.volume);
        (volume.direct_unflushed, volume.flusher.unflushed) = (true, true);
    }

    /// The cache device failed, and the engine serves its volumes without it.
    pub(crate) fn runs_without_cache(&self) -> bool {
        self.failure.stage == FailureStage::WithoutCache
    }

    /// A read of the cache device has ended, of this slot.
    pub(crate) fn note_cache_read(&mut self, slot: Option<u32>, member: u8, ok: bool) {
        let Some(slot) = slot else { return };
        if ok {
            self.read_retry.restart();
        }
        if self.mirror.is_some() {
            self.note_member_read(member, slot, ok);
            return;
        }
        if ok {
            self.failure.unreadable.clear();
            return;
        }
        let segment = self.map.place(slot).0;
        if !self.fenced && !self.failure.unreadable.contains(&segment) {
            self.failure.unreadable.push(segment);
            if self.failure.unreadable.len() >= READS_FAILED_MAX {
                self.fence();
            }
        }
    }

    /// The cache was fenced just now: the owner is asked to give it up.
    pub(crate) fn ask_to_go_on(&mut self) {
        if self.is_ready() && self.failure.stage == FailureStage::Sound {
            self.failure.stage = FailureStage::Asking;
            self.ask_record();
            if fault::planted(PlantedBug::PassBeforeRecord) {
                self.go_on_without_cache();
            }
        }
    }

    fn ask_record(&mut self) {
        if self.failure.pending.is_some() {
            return;
        }
        self.failure.last_ticket += 1;
        self.failure.pending = Some((self.failure.last_ticket, self.failure.changes));
        self.actions.push_back(Action::RecordLoss { ticket: self.failure.last_ticket });
    }

    fn record_ended(&mut self, changes: u64, ok: bool) {
        if ok {
            self.note_recorded(changes);
        }
        let all = core::mem::take(&mut self.failure.recording);
        let (served, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|(needed, _)| *needed <= changes);
        self.failure.recording = left;
        if !self.failure.recording.is_empty() {
            self.ask_record();
        }
        for (_, req) in served {
            self.safe_part_done(req, ok);
        }
    }

    /// The record is durable: from here on the cache is no more than a place from which dirty
    /// blocks are rescued.
    fn go_on_without_cache(&mut self) {
        self.failure.stage = FailureStage::WithoutCache;
        self.notice(Notice::RunsWithoutCache);
        for index in 0..self.map.volumes.len() {
            let volume = VolumeId(index as u16);
            if self.order(volume).is_some() {
                if self.is_ordered(volume) && self.is_attached(volume) {
                    self.notice(Notice::OrderEnded { volume });
                }
                self.map.dissolve_order(index);
            }
        }
        self.log.marks.clear();
        self.tell(Event::WithoutCache);
        self.move_lost();
        self.find_urgent();
        self.release_held();
        self.settle_again();
    }

    /// What was found to be lost before is kept with what will be.
    fn move_lost(&mut self) {
        let lost = |map: &crate::map::CacheMap, number: u32, index: u32| {
            let segment = &map.segments[number as usize];
            segment.state(index) == BlockState::Dirty && segment.is_lost(index)
        };
        for number in 0..self.map.segments.len() as u32 {
            if self.map.segments[number as usize].unclean == 0 {
                continue;
            }
            for index in 0..self.map.geometry.segment_blocks {
                if lost(&self.map, number, index) {
                    self.lose(self.map.slot(number, index));
                }
            }
        }
    }

    /// True if a request that changes something cannot succeed.
    pub(crate) fn refuses_changes(&self) -> bool {
        self.fenced && matches!(self.failure.stage, FailureStage::Sound | FailureStage::Refused)
    }

    /// True if what fails now because of the cache may succeed without it.
    fn may_redo(&self, req: u32) -> bool {
        let undecided = matches!(self.failure.stage, FailureStage::Asking | FailureStage::WithoutCache);
        undecided && !self.reqs.get(req).redone
    }

    /// A write, zero or discard has got its block lock. True if it waits for the owner's answer.
    pub(crate) fn hold_mutation(&mut self, req: u32) -> bool {
        match self.failure.stage {
            FailureStage::Sound | FailureStage::Refused => false,
            FailureStage::Asking => {
                self.reqs.get_mut(req).pending = 1;
                self.failure.held.push_back(Held::Redo(req));
                true
            }
            FailureStage::WithoutCache => {
                let request = self.reqs.get_mut(req);
                (request.redone, request.write_back, request.copies) = (true, false, false);
                false
            }
        }
    }

    /// All parts of a mutation have ended, and one of them failed. True if it is to be done over.
    pub(crate) fn may_redo_mutation(&mut self, req: u32) -> bool {
        if !self.may_redo(req) {
            return false;
        }
        self.reqs.get_mut(req).failed = false;
        true
    }

    /// A FLUSH or FUA while the cache is fenced: waits for the owner's answer, or for what makes it
    /// durable without the cache.
    pub(crate) fn flush_fenced(&mut self, req: u32) {
        match self.failure.stage {
            FailureStage::Sound | FailureStage::Refused => self.reqs.get_mut(req).failed = true,
            FailureStage::Asking => {
                self.reqs.get_mut(req).pending += 1;
                self.failure.held.push_back(Held::Durable(req));
            }
            FailureStage::WithoutCache => self.make_safe(req),
        }
    }

    /// The device flushes for a FLUSH or FUA have ended while the cache is fenced. True if it goes
    /// on.
    pub(crate) fn flush_again(&mut self, req: u32) -> bool {
        if self.reqs.get(req).failed || !self.may_redo(req) {
            return false;
        }
        self.flush_fenced(req);
        self.reqs.get(req).pending > 0
    }

    /// The owner has answered.
    fn release_held(&mut self) {
        let refused = self.failure.stage == FailureStage::Refused;
        for held in core::mem::take(&mut self.failure.held) {
            match held {
                Held::Redo(req) if refused => self.tell(Event::Refused(req)),
                Held::Redo(req) => self.tell(Event::Redo(req)),
                Held::Durable(req) => {
                    self.reqs.get_mut(req).pending -= 1;
                    self.flush_fenced(req);
                    if self.reqs.get(req).pending == 0 {
                        self.reply(req);
                    }
                }
            }
        }
    }

    /// Attaches a volume to an engine that has no cache: there is nothing to make durable.
    pub(crate) fn attach_without_cache(&mut self, entry: VolumeEntry, attachment: &Attachment) {
        let id = entry.id;
        self.volume_table.retain(|other| other.id != id);
        self.volume_table.push(entry);
        self.serve_without_cache(attachment);
        // Clients that come now were told of nothing that was lost before.
        self.volume_mut(id).losses_found = u64::from(self.lost_blocks(id) > 0);
        self.notice(Notice::Attached { volume: id });
    }

    /// The owner knows that the cache device is gone: it need not be found out one error after the
    /// other.
    pub(crate) fn cache_gone(&mut self) {
        if self.is_ready() {
            self.read_retry.end_for_good();
            self.fence();
        }
    }

    /// Asks for the record once more, after the owner could not make it.
    pub(crate) fn record_again(&mut self) {
        if self.failure.stage == FailureStage::Refused {
            self.ask_record();
        }
    }

    /// Answers [`Action::RecordLoss`]: the record is durable, or could not be made so.
    pub(crate) fn loss_recorded(&mut self, ticket: u64, ok: bool) {
        let Some((_, changes)) = self.failure.pending.take_if(|(pending, _)| *pending == ticket) else {
            return;
        };
        self.failure.record_failed = !ok;
        match self.failure.stage {
            FailureStage::Sound => {}
            FailureStage::Asking | FailureStage::Refused if ok => {
                self.note_recorded(changes);
                self.go_on_without_cache();
            }
            FailureStage::Asking | FailureStage::Refused => {
                self.failure.stage = FailureStage::Refused;
                self.release_held();
            }
            FailureStage::WithoutCache => self.record_ended(changes, ok),
        }
        self.failure.recorded_at = self.now;
    }
}

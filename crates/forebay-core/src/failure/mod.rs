//! Running without the cache device (decision 0019).
//!
//! After a failure of the cache device the engine guarantees nothing new: it is *fenced* (I14).
//! From there
//!
//! ```text
//! Sound -> Asking -> WithoutCache   the owner has made durable that this cache must never be opened again
//!             |        ^
//!             v        |
//!          Refused ----+            it could not: changes fail until it can
//! ```
//!
//! - *Asking*: [`RecordLoss`](crate::OwnerAction::RecordLoss) asks the owner. Requests that would
//!   fail now wait (I50). Nothing enters the map, not even batches in flight: the data that the
//!   record lists as at risk can only become less (I52).
//! - *WithoutCache*: this cache will never be recovered, so there are no intents, marks, batches,
//!   checkpoints and flush epochs. Clean copies are not live. Destage writes every readable dirty
//!   block to its backing store at once (the *rescue*), whether it is durable on the cache or not:
//!   I11 serves only recovery. An unreadable one is lost: reads of exactly its sectors fail until
//!   they are overwritten (I53). Requests bypass the cache; those that the failure interrupted are
//!   repeated (their data is still in the client's buffer), so no client sees an error.
//! - A FLUSH waits until the data that it covers and no earlier FLUSH did is rescued, and for a
//!   record of that (I54): the data is then readable after a crash too. Data that earlier ones
//!   covered is rescued afterwards. A write waits for a new record if the last one lists some of
//!   its sectors. After a loss, every FLUSH that was waiting when it was detected fails, or else
//!   the next one, and later ones do not: as with `fsync`.
//!
//! After a crash, [`Engine::open_without_cache`](crate::Engine::open_without_cache) starts an
//! engine in this state, from the content of the record.
//!
//! Here: detection, the owner's answer, and requests that wait for it. `loss`: data at risk, safe,
//! or lost. `promise`: data that earlier FLUSHes covered. `rescue`: the waits of a FLUSH.

pub(crate) mod damage;
mod loss;
mod promise;
pub(crate) mod read_retry;
mod rescue;

pub use loss::{AtRisk, RiskWalk};

use crate::api::Notice;
use crate::api::config::Attachment;
use crate::context::Context;
use crate::context::actions::ActionQueue;
use crate::context::events::Event;
use crate::context::failure::CacheFailure;
use crate::context::failure::{FailureStage, Held};
use crate::context::requests::Req;
use crate::context::sectors::{BLOCK, sector_mask};
use crate::fault::{self, PlantedBug};
use crate::map::segment::BlockState;

use forebay_format::VolumeId;
use forebay_format::checkpoint::VolumeEntry;

/// Failed reads of this many different segments, without a successful one in between, mean that the
/// device has failed, not some of its sectors.
const READS_FAILED_MAX: usize = 8;

impl Req {
    /// Sectors of a block that the request covers.
    pub(crate) fn sectors_of(&self, block: u64) -> u8 {
        let start = block * BLOCK;
        sector_mask(self.offset.max(start) - start, self.end().min(start + BLOCK) - start)
    }
}

impl CacheFailure {
    /// True if a request that changes data cannot succeed.
    pub(crate) fn refuses_changes(&self) -> bool {
        self.is_fenced() && matches!(self.stage(), FailureStage::Sound | FailureStage::Refused)
    }

    /// True if a request that fails now because of the cache may succeed without it.
    fn may_redo(&self, request: &Req) -> bool {
        matches!(self.stage(), FailureStage::Asking | FailureStage::WithoutCache) && !request.redone
    }

    /// A write, zero or discard has acquired its block lock. True if it waits for the owner's
    /// answer.
    pub(crate) fn hold_mutation(&mut self, req: u32, request: &mut Req) -> bool {
        match self.stage() {
            FailureStage::Sound | FailureStage::Refused => false,
            FailureStage::Asking => {
                request.pending = 1;
                self.hold(Held::Redo(req));
                true
            }
            FailureStage::WithoutCache => {
                (request.redone, request.write_back, request.copies) = (true, false, false);
                false
            }
        }
    }

    /// All parts of a mutation have ended, and one of them failed. True if it must be repeated.
    pub(crate) fn may_redo_mutation(&mut self, request: &mut Req) -> bool {
        let may = self.may_redo(request);
        if may {
            request.failed = false;
        }
        may
    }

    /// Requests the record again after the owner failed to write it.
    pub(crate) fn record_again(&mut self, actions: &mut ActionQueue) {
        if self.stage() == FailureStage::Refused {
            self.ask_record(actions);
        }
    }
}

impl Context {
    pub(crate) fn serve_without_cache(&mut self, attachment: &Attachment) {
        self.enter_volume(attachment);
        self.counters.begin(attachment.volume);
        // Writes from before this engine began may still be volatile: the first FLUSH covers them
        // too.
        let volume = self.volume_mut(attachment.volume);
        volume.direct_unflushed = true;
        volume.flusher.note_write();
    }

    /// A read of this slot of the cache device has ended.
    pub(crate) fn note_cache_read(&mut self, slot: Option<u32>, member: u8, ok: bool) {
        let Some(slot) = slot else { return };
        if ok {
            self.read_retry.restart();
        }
        if self.members.is_mirrored() {
            self.note_member_read(member, slot, ok);
            return;
        }
        if ok {
            self.failure.note_readable();
            return;
        }
        let segment = self.map.place(slot).0;
        if !self.failure.is_fenced() && self.failure.note_unreadable(segment) >= READS_FAILED_MAX {
            self.fence();
        }
    }

    /// The cache has just been fenced: asks the owner to record that.
    pub(crate) fn ask_to_go_on(&mut self) {
        if self.status.is_ready() && self.failure.stage() == FailureStage::Sound {
            self.failure.begin_asking();
            self.failure.ask_record(&mut self.actions);
            if fault::planted(PlantedBug::PassBeforeRecord) {
                self.go_on_without_cache();
            }
        }
    }

    fn record_ended(&mut self, changes: u64, ok: bool) {
        if ok {
            self.failure.note_recorded(changes);
        }
        let served = self.failure.take_recorded(changes);
        if self.failure.is_record_awaited() {
            self.failure.ask_record(&mut self.actions);
        }
        for req in served {
            self.safe_part_done(req, ok);
        }
    }

    /// The record is durable: from now on the cache only provides the dirty blocks to rescue.
    fn go_on_without_cache(&mut self) {
        self.failure.go_on_without_cache();
        self.actions.notice(Notice::RunsWithoutCache);
        for index in 0..self.map.volumes.len() {
            let volume = VolumeId(index as u16);
            if self.map.order(volume).is_some() {
                if self.is_ordered(volume) && self.volumes.is_attached(volume) {
                    self.actions.notice(Notice::OrderEnded { volume });
                }
                self.map.dissolve_order(index);
            }
        }
        self.log.marks.clear();
        self.emit(Event::WithoutCache);
        self.move_lost();
        self.find_urgent();
        self.release_held();
        self.settle_again();
    }

    /// Adds the blocks that were lost earlier to those lost from now on.
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

    /// A FLUSH or FUA while the cache is fenced: waits for the owner's answer, or makes the data
    /// durable without the cache.
    pub(crate) fn flush_fenced(&mut self, req: u32) {
        match self.failure.stage() {
            FailureStage::Sound | FailureStage::Refused => self.reqs.get_mut(req).failed = true,
            FailureStage::Asking => {
                self.reqs.get_mut(req).pending += 1;
                self.failure.hold(Held::Durable(req));
            }
            FailureStage::WithoutCache => self.make_safe(req),
        }
    }

    /// The device flushes for a FLUSH or FUA have ended while the cache is fenced. True if the
    /// request continues.
    pub(crate) fn flush_again(&mut self, req: u32) -> bool {
        if self.reqs.get(req).failed || !self.failure.may_redo(self.reqs.get(req)) {
            return false;
        }
        self.flush_fenced(req);
        self.reqs.get(req).pending > 0
    }

    /// The owner has answered: releases the requests that waited for that.
    fn release_held(&mut self) {
        let refused = self.failure.stage() == FailureStage::Refused;
        for held in self.failure.take_held() {
            match held {
                Held::Redo(req) if refused => self.emit(Event::Refused(req)),
                Held::Redo(req) => self.emit(Event::Redo(req)),
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

    /// Attaches a volume to an engine without a cache: there is nothing to make durable.
    pub(crate) fn attach_without_cache(&mut self, entry: VolumeEntry, attachment: &Attachment) {
        let id = entry.id;
        self.volume_table.retain(|other| other.id != id);
        self.volume_table.push(entry);
        self.serve_without_cache(attachment);
        // New clients have seen no report of earlier losses.
        self.volume_mut(id).losses_found = u64::from(self.lost_blocks(id) > 0);
        self.actions.notice(Notice::Attached { volume: id });
    }

    /// The owner has noticed that the cache device is gone: fences the cache without waiting for
    /// errors.
    pub(crate) fn cache_gone(&mut self) {
        if self.status.is_ready() {
            self.read_retry.end_for_good();
            self.fence();
        }
    }

    /// Answers [`OwnerAction::RecordLoss`](crate::OwnerAction::RecordLoss): the record is durable,
    /// or could not be written.
    pub(crate) fn loss_recorded(&mut self, ticket: u64, ok: bool) {
        let Some(changes) = self.failure.record_answered(ticket, ok) else { return };
        match self.failure.stage() {
            FailureStage::Sound => {}
            FailureStage::Asking | FailureStage::Refused if ok => {
                self.failure.note_recorded(changes);
                self.go_on_without_cache();
            }
            FailureStage::Asking | FailureStage::Refused => {
                self.failure.refuse();
                self.release_held();
            }
            FailureStage::WithoutCache => self.record_ended(changes, ok),
        }
        self.failure.pause_records(self.now);
    }
}

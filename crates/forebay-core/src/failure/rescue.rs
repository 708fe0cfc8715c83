//! The rescue: without the cache, a FLUSH waits for it, and it always ends (I54).

use crate::api::{Device, Nanos, Notice, RequestKind};
use crate::context::Context;
use crate::context::actions::ActionQueue;
use crate::context::failure::CacheFailure;
use crate::context::flush_ledger::Waiter;
use crate::context::requests::Req;
use crate::context::volume::Volume;
use crate::fault::{self, PlantedBug};
use forebay_format::VolumeId;

impl CacheFailure {
    /// A write, zero or discard has ended without the cache: the record must not list its sectors.
    pub(crate) fn make_readable(&mut self, req: u32, request: &mut Req, actions: &mut ActionQueue) {
        let needed = self.unrecorded_in(request.range());
        if !fault::planted(PlantedBug::AcknowledgeUnrecorded) {
            self.wait_for_record(req, request, needed, actions);
        }
    }

    /// True if a sector that the request wrote is lost.
    fn is_any_lost(&self, request: &Req) -> bool {
        let mut gone = self.gone_in(request.range());
        gone.any(|(key, gone)| gone.mask & request.sectors_of(key.block()) != 0)
    }

    /// Returns when a record is due without another event.
    pub(crate) fn deadline(&self, stopping: bool) -> Option<Nanos> {
        let waits = self.runs_without_cache() && self.has_unrecorded() && !self.is_recording() && !stopping;
        waits.then(|| self.next_record_at())
    }
}

impl Context {
    pub(super) fn make_safe(&mut self, req: u32) {
        let request = self.reqs.get_mut(req);
        request.redone = true;
        let (volume, range) = (request.volume, request.range());
        // A FUA covers the dirty data of its blocks, even that of a later write without a reply.
        let covers_dirty = request.kind == RequestKind::Flush || self.hasten(range);
        if covers_dirty && self.has_urgent(volume) && !fault::planted(PlantedBug::FlushBeforeRescue) {
            self.reqs.get_mut(req).pending += 1;
            self.failure.wait_for_rescue(req);
            return;
        }
        self.make_safe_parts(req);
    }

    /// Only data that earlier FLUSHes covered is still at risk: makes the request durable.
    fn make_safe_parts(&mut self, req: u32) {
        let request = self.reqs.get(req);
        let (volume, range) = (request.volume, request.range());
        let is_flush = request.kind == RequestKind::Flush;
        if !is_flush && self.failure.is_any_lost(self.reqs.get(req)) {
            self.reqs.get_mut(req).failed = true;
        }
        let state = self.volume(volume);
        let needed = if is_flush { state.safer_at } else { self.failure.unrecorded_in(range) };
        if state.direct_unflushed || state.direct_flushing {
            self.reqs.get_mut(req).pending += 1;
            self.flush(Device::Backing(volume), Waiter::Request(req));
        }
        if !fault::planted(PlantedBug::FlushBeforeRecord) {
            self.failure.wait_for_record(req, self.reqs.get_mut(req), needed, &mut self.actions);
        }
    }

    pub(super) fn safe_part_done(&mut self, req: u32, ok: bool) {
        let request = self.reqs.get_mut(req);
        request.pending -= 1;
        request.failed |= !ok;
        if request.pending == 0 {
            self.reply(req);
        }
    }

    /// Continues requests that wait for the urgent blocks of their volume, and reports the end of
    /// the rescue.
    pub(crate) fn step_failure(&mut self) {
        if !self.failure.runs_without_cache() {
            return;
        }
        for id in self.volumes.ids() {
            let Some(volume) = self.volumes.get_mut(id) else { continue };
            let failed = core::mem::take(&mut volume.rescue_failed);
            if self.failure.is_rescue_awaited() && (failed || !self.has_urgent(id)) {
                self.serve_waiting(id, failed);
            }
        }
        if !self.failure.has_rescue_ended() && self.is_rescue_over() {
            self.failure.end_rescue();
            let lost_blocks = self.failure.lost_blocks();
            self.actions.notice(Notice::RescueEnded { lost_blocks });
        }
        let due = self.failure.has_rescue_ended() && !self.failure.has_record_failed()
            || self.now >= self.failure.next_record_at();
        if self.failure.has_unrecorded() && due && !self.stopping {
            self.failure.ask_record(&mut self.actions);
        }
    }

    /// True if the rescue has ended: every dirty block of an attached volume is safe or lost.
    pub(crate) fn is_rescue_over(&self) -> bool {
        self.failure.runs_without_cache()
            && self.volumes.iter().all(|volume| self.map.dirty_blocks(volume.id) == 0)
    }

    fn serve_waiting(&mut self, id: VolumeId, failed: bool) {
        for req in self.failure.take_rescued(|req| self.reqs.get(req).volume == id) {
            let request = self.reqs.get_mut(req);
            request.pending -= 1;
            request.failed |= failed;
            if !failed {
                self.make_safe_parts(req);
            }
            if self.reqs.get(req).pending == 0 {
                self.reply(req);
            }
        }
    }

    /// True while a shutdown has to wait: for the owner, for the rescue, for the last record.
    pub(crate) fn is_rescue_busy(&mut self) -> bool {
        if self.failure.is_recording() {
            return true;
        }
        if !self.failure.runs_without_cache() {
            return false;
        }
        let gives_up = |volume: &Volume| volume.rescue_given_up;
        let rescues =
            self.volumes.iter().any(|volume| self.map.dirty_blocks(volume.id) > 0 && !gives_up(volume));
        if !rescues && self.failure.has_unrecorded() && !self.failure.has_record_failed() {
            self.failure.ask_record(&mut self.actions);
        }
        rescues || self.failure.is_recording()
    }
}

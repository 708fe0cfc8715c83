//! The rescue: without the cache, a FLUSH waits for it, and it always ends (I54).

use super::RECORD_PAUSE_NS;
use crate::api::{Device, Nanos, Notice, RequestKind};
use crate::context::Context;
use crate::context::failure::FailureStage;
use crate::context::flush_ledger::Waiter;
use crate::context::volume::Volume;
use crate::fault::{self, PlantedBug};
use alloc::vec::Vec;
use forebay_format::VolumeId;

impl Context {
    pub(super) fn make_safe(&mut self, req: u32) {
        let request = self.reqs.get_mut(req);
        request.redone = true;
        let (volume, range) = (request.volume, request.range());
        // A FUA covers the dirty data of its blocks, even that of a later write without a reply.
        let covers_dirty = request.kind == RequestKind::Flush || self.hasten(range);
        if covers_dirty && self.has_urgent(volume) && !fault::planted(PlantedBug::FlushBeforeRescue) {
            self.reqs.get_mut(req).pending += 1;
            self.failure.waiting.push(req);
            return;
        }
        self.make_safe_parts(req);
    }

    /// Only data that earlier FLUSHes covered is still at risk: makes the request durable.
    fn make_safe_parts(&mut self, req: u32) {
        let request = self.reqs.get(req);
        let (volume, range) = (request.volume, request.range());
        let is_flush = request.kind == RequestKind::Flush;
        if !is_flush && self.is_any_lost(req) {
            self.reqs.get_mut(req).failed = true;
        }
        let state = self.volume(volume);
        let needed = if is_flush { state.safer_at } else { self.failure.unrecorded_in(range) };
        if state.direct_unflushed || state.direct_flushing {
            self.reqs.get_mut(req).pending += 1;
            self.flush(Device::Backing(volume), Waiter::Request(req));
        }
        if !fault::planted(PlantedBug::FlushBeforeRecord) {
            self.wait_for_record(req, needed);
        }
    }

    /// A write, zero or discard has ended without the cache: the record must not list its sectors.
    pub(crate) fn make_readable(&mut self, req: u32) {
        let needed = self.failure.unrecorded_in(self.reqs.get(req).range());
        if !fault::planted(PlantedBug::AcknowledgeUnrecorded) {
            self.wait_for_record(req, needed);
        }
    }

    fn wait_for_record(&mut self, req: u32, needed: u64) {
        if needed > self.failure.recorded {
            self.reqs.get_mut(req).pending += 1;
            self.failure.recording.push((needed, req));
            self.ask_record();
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

    /// True if a sector that the request wrote is lost.
    fn is_any_lost(&self, req: u32) -> bool {
        let request = self.reqs.get(req);
        let range = request.range();
        let mut gone = self.failure.gone.range(range.first..=range.last);
        gone.any(|(key, gone)| gone.mask & request.sectors_of(key.block()) != 0)
    }

    /// Continues requests that wait for the urgent blocks of their volume, and reports the end of
    /// the rescue.
    pub(crate) fn step_failure(&mut self) {
        if self.failure.stage != FailureStage::WithoutCache {
            return;
        }
        for id in self.volumes.ids() {
            let Some(volume) = self.volumes.get_mut(id) else { continue };
            let failed = core::mem::take(&mut volume.rescue_failed);
            if !self.failure.waiting.is_empty() && (failed || !self.has_urgent(id)) {
                self.serve_waiting(id, failed);
            }
        }
        if !self.failure.told && self.is_rescue_over() {
            self.failure.told = true;
            let lost_blocks = self.failure.lost_blocks();
            self.notice(Notice::RescueEnded { lost_blocks });
        }
        let due = self.failure.told && !self.failure.record_failed
            || self.now >= self.failure.recorded_at.saturating_add(RECORD_PAUSE_NS);
        if self.failure.changes > self.failure.recorded && due && !self.stopping {
            self.ask_record();
        }
    }

    /// True if the rescue has ended: every dirty block of an attached volume is safe or lost.
    pub(crate) fn is_rescue_over(&self) -> bool {
        self.failure.runs_without_cache()
            && self.volumes.iter().all(|volume| self.map.dirty_blocks(volume.id) == 0)
    }

    fn serve_waiting(&mut self, id: VolumeId, failed: bool) {
        let all = core::mem::take(&mut self.failure.waiting);
        let (served, left): (Vec<u32>, Vec<u32>) =
            all.into_iter().partition(|req| self.reqs.get(*req).volume == id);
        self.failure.waiting = left;
        for req in served {
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

    pub(crate) fn failure_deadline(&self) -> Option<Nanos> {
        let failure = &self.failure;
        let waits = failure.stage == FailureStage::WithoutCache
            && failure.changes > failure.recorded
            && failure.pending.is_none()
            && !self.stopping;
        waits.then(|| failure.recorded_at.saturating_add(RECORD_PAUSE_NS))
    }

    /// True while a shutdown has to wait: for the owner, for the rescue, for the last record.
    pub(crate) fn is_rescue_busy(&mut self) -> bool {
        if self.failure.pending.is_some() {
            return true;
        }
        if self.failure.stage != FailureStage::WithoutCache {
            return false;
        }
        let gives_up = |volume: &Volume| volume.rescue_given_up;
        let rescues =
            self.volumes.iter().any(|volume| self.map.dirty_blocks(volume.id) > 0 && !gives_up(volume));
        if !rescues && self.failure.changes > self.failure.recorded && !self.failure.record_failed {
            self.ask_record();
        }
        rescues || self.failure.pending.is_some()
    }
}

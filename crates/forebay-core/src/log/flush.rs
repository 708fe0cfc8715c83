//! The flush ledger: which data must be durable, and which device flush makes it so.
//!
//! A flush covers the writes that had completed when it was started. A waiter that needs durability
//! takes a ticket: the number of the next flush to be *started*. One flush of a device runs at a
//! time; all waiters that arrive while it runs share the next one. This file and the module docs of
//! `direct` and `destage` are the only definition of the meaning of a client's FLUSH and FUA:
//!
//! - the cache device is flushed if any cache write completed since its last flush was started;
//! - the backing store is flushed too if a bypass write completed since its last flush was started;
//! - a failed flush of the backing store may have dropped such writes, and no later flush brings
//!   them back. The cache has no copy of them. So a FLUSH fails for it (I82), even if the engine
//!   itself requested that flush. The same applies to writes that were in flight or ended while
//!   that flush ran: a part of them may have reached the store before it. Those that have not been
//!   answered fail, and destage repeats its own writes (I84);
//! - a disk that was removed and returned may have lost acknowledged writes that were not flushed.
//!   So the first flush that starts after it was reopened fails, too (I83).

use crate::api::{Device, IoAction, Notice, OpId, RequestKind};
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::events::Event;
use crate::context::flush_ledger::{Flusher, Waiter};
use crate::context::operations::OpKind;
use crate::fault::{self, PlantedBug};

impl Context {
    fn flusher(&mut self, device: Device) -> &mut Flusher {
        match device {
            Device::Cache => &mut self.flushes.cache,
            Device::Backing(volume) => &mut self.volume_mut(volume).flusher,
        }
    }

    /// Flushes a device and notifies `waiter` afterwards.
    pub(crate) fn flush(&mut self, device: Device, waiter: Waiter) {
        if self.flusher(device).enter(waiter) {
            self.start_device_flush(device);
        }
    }

    /// Makes completed writes to the cache device durable soon; without a notification.
    pub(crate) fn want_cache_flush(&mut self) {
        let cache = &self.flushes.cache;
        if cache.is_needed() && !cache.waits(Waiter::None) {
            self.flush(Device::Cache, Waiter::None);
        }
    }

    /// Starts the flush that a waiter requested while another one ran, unless it has started since.
    pub(crate) fn flush_is_due(&mut self, device: Device) {
        if !self.flusher(device).is_running() {
            self.start_device_flush(device);
        }
    }

    fn start_device_flush(&mut self, device: Device) {
        self.flusher(device).begin();
        match device {
            Device::Cache => {
                self.stats.cache_flushes += 1;
                self.flushes.note_covered(&self.map);
                for stream in &mut self.log.streams {
                    stream.flushing = stream.completed_sequence;
                }
            }
            Device::Backing(volume) => {
                self.stats.backing_flushes += 1;
                let volume = self.volume_mut(volume);
                volume.direct_flushing = core::mem::take(&mut volume.direct_unflushed);
                volume.destage.flushing = core::mem::take(&mut volume.destage.written);
            }
        }
        if device == Device::Cache && self.members.is_mirrored() {
            self.flush_members();
            return;
        }
        let op = self.ops.begin(OpKind::Flush(device), self.now);
        self.actions.push_io(IoAction::Flush { op: OpId(op), device });
    }

    pub(crate) fn flushed(&mut self, device: Device, ok: bool) {
        // A failed flush may have dropped unwritten data, which no later one makes durable (I14).
        let trusts = fault::planted(PlantedBug::TrustFlushAfterFailure);
        let ok = ok
            && match device {
                Device::Cache => !self.failure.is_fenced() || trusts,
                Device::Backing(volume) => self.volume(volume).trusts_flush(),
            };
        let mut served = self.flushes.take_served();
        let more = self.flusher(device).end(ok, &mut served);
        match device {
            Device::Cache if ok => self.cache_is_durable(),
            Device::Cache => self.fence(),
            Device::Backing(id) => {
                let trusts = fault::planted(PlantedBug::TrustWritesInFlight);
                let volume = self.volume_mut(id);
                let dropped = !ok && (volume.direct_flushing || volume.direct_unflushed && !trusts);
                volume.direct_unflushed |= dropped;
                volume.direct_flushing = false;
                if dropped {
                    volume.note_dropped_writes();
                }
                volume.intents.flushed(volume.flusher.succeeded());
                self.emit(Event::StoreFlushed { volume: id, ok });
            }
        }
        if more {
            self.emit(Event::FlushDue(device));
        }
        for waiter in served.drain(..) {
            match waiter {
                Waiter::None => {}
                // Only the reply depends on it, unless the cache has failed.
                Waiter::Request(req) if !self.failure.is_fenced() => self.request_part_done(req, device, ok),
                waiter => self.emit(Event::Flushed { waiter, device, ok }),
            }
        }
        self.flushes.give_back(served);
    }

    fn cache_is_durable(&mut self) {
        assert!(!self.failure.is_fenced(), "I14: no flush is trusted after one that failed");
        self.flushes.make_durable(&mut self.map);
        for stream in &mut self.log.streams {
            stream.flushed_sequence = stream.flushing;
        }
    }

    /// After a failed flush no write can be guaranteed: fail-stop for writes.
    pub(crate) fn fence(&mut self) {
        if !self.failure.is_fenced() {
            self.failure.fence();
            self.coverage.add(CoverageMark::Fenced);
            self.actions.notice(Notice::CacheFenced);
            self.ask_to_go_on();
            self.fail_queued_items();
            self.end_mirroring();
        }
    }

    /// Starts a client's FLUSH.
    pub(crate) fn start_flush(&mut self, req: u32) {
        self.follow_flush(req);
        self.flush_for(req);
        if self.reqs.get(req).pending == 0 {
            self.reply(req);
        }
    }

    /// Adds the device flushes that a FLUSH or FUA of this volume needs to the parts of a request.
    pub(crate) fn flush_for(&mut self, req: u32) {
        let volume = self.reqs.get(req).volume;
        self.end_flush_epoch(volume, self.reqs.get(req).kind);
        if self.failure.is_fenced() {
            self.flush_fenced(req);
            return;
        }
        let cache = self.flushes.cache.is_needed();
        let cache = cache && !fault::planted(PlantedBug::SkipDeviceFlush);
        assert!(self.flushes.covers_all(cache), "I3: a FLUSH waits for a flush of all that was acknowledged");
        if cache {
            self.reqs.get_mut(req).pending += 1;
            self.flush(Device::Cache, Waiter::Request(req));
        }
        let state = self.volume(volume);
        if state.direct_unflushed || state.direct_flushing {
            self.reqs.get_mut(req).pending += 1;
            self.flush(Device::Backing(volume), Waiter::Request(req));
        }
    }

    /// A part of a FLUSH or of the flush after a FUA write has ended.
    pub(crate) fn request_part_done(&mut self, req: u32, device: Device, ok: bool) {
        let of_cache = device == Device::Cache;
        let request = self.reqs.get_mut(req);
        request.pending -= 1;
        request.failed |= !ok && !of_cache;
        request.cache_failed |= !ok && of_cache;
        debug_assert!(request.kind == RequestKind::Flush || !request.locked);
        let (pending, failed) = (request.pending, request.cache_failed);
        let again =
            self.failure.is_fenced() && (failed || !fault::planted(PlantedBug::TrustFlushAfterFailure));
        if pending > 0 || again && self.flush_again(req) {
            return;
        }
        let request = self.reqs.get_mut(req);
        request.failed |= request.cache_failed && !request.redone;
        self.reply(req);
    }
}

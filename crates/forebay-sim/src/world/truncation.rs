//! Truncated devices, which end early for a while: truncated files, disks that drop off the bus.
//!
//! While a device is too short, [`DeviceFailure::Ended`] is the result of every read that reaches
//! beyond the end, and of every write, zeroing and flush, none of which has any effect. The bytes
//! behind the end are back afterwards.
//!
//! - A backing store: requests that need it may fail meanwhile, with no other effect. Reads must
//!   not return made-up bytes behind the end.
//! - A cache device, for less than the engine waits: no effect except the delay.
//! - A cache device, for longer: the engine gives it up, with a record, and rescues the readable
//!   dirty data.
//! - One member of a mirrored cache: it is failed out as soon as the engine notices.
//!
//! An unplugged backing store ends at once, and comes back as another device, without some of its
//! unflushed data. The owner tells the engine when nothing is in flight on the old device, and
//! admits operations to the new one once the clean blocks are forgotten (I83).

use super::state::{FlightKind, Short, Unplugged};
use super::{ANSWER_LIMIT_NS, World};
use crate::disks::{CACHE, device_of};
use crate::ensure::ensure;
use crate::plan::{BRIEF_NS, TruncatedDevice};
use forebay_core::{DeviceFailure, PlantedBug, Status, fault};
use forebay_format::VolumeId;

/// Time after the return until the cache device may end again: by then the engine has repeated an
/// operation that began to wait at the first end.
const NEXT_NS: u64 = 6_500_000_000;

impl World {
    /// Truncates a device, if its time has come.
    pub(crate) fn shorten_device(&mut self) {
        let rest = |short: Short| if short.is_harmless { NEXT_NS } else { 0 };
        let is_over = |short: Short| short.unplugged.is_none() && self.now >= short.until + rest(short);
        if self.short.is_some_and(is_over) {
            self.short = None;
        }
        let next = self.plan.truncations.get(self.truncations_done).copied();
        let serves = self.engine.status() == Status::Ready && !self.stopping;
        let Some(end) = next.filter(|end| self.counters.requests >= end.at && serves) else { return };
        if self.short.is_some() {
            return;
        }
        self.truncations_done += 1;
        let (device, bytes) = match end.what {
            TruncatedDevice::Cache if self.fenced || self.without_cache => return,
            TruncatedDevice::Cache => (CACHE, self.disks.cache_bytes),
            TruncatedDevice::Backing(volume)
                if end.unplugged && !self.disks.volumes[volume].is_attached() =>
            {
                return;
            }
            TruncatedDevice::Backing(volume) => (1 + volume, self.disks.volumes[volume].bytes),
            TruncatedDevice::Member(member) => {
                // The last member that counts must keep its data.
                let whole = self.engine.mirror_state().is_some_and(|state| state.out.is_none());
                let device = device_of(&self.plan, member);
                if !whole || self.fenced || self.disks.devices[device_of(&self.plan, 1 - member)].is_dead() {
                    return;
                }
                (device, self.disks.devices[device].bytes())
            }
        };
        self.counters.faults += 1;
        self.short = Some(Short {
            device,
            bytes: bytes * end.kept_pct / 100 / 512 * 512,
            until: self.now + end.ns,
            is_harmless: end.what == TruncatedDevice::Cache && end.ns <= BRIEF_NS,
            unplugged: end.unplugged.then_some(Unplugged::Away),
        });
    }

    /// Restores the end of a device that is too short now.
    pub(crate) fn restore_device(&mut self) -> Result<(), String> {
        let limit = self.now + ANSWER_LIMIT_NS;
        if let Some(short) = self.short.as_mut().filter(|short| short.unplugged.is_some()) {
            short.until = self.now;
            self.plug_in()?;
        }
        while self.short.is_some_and(|short| short.unplugged.is_some()) && !self.stopped {
            ensure!(self.step(limit)?, "a device that is plugged in again is not used");
        }
        self.short = None;
        Ok(())
    }

    /// Plugs an unplugged backing store in again, if its time has come.
    pub(crate) fn plug_in(&mut self) -> Result<(), String> {
        let back = self.short.filter(|short| self.now >= short.until);
        let Some((short, unplugged)) = back.and_then(|short| Some((short, short.unplugged?))) else {
            return Ok(());
        };
        let (device, volume) = (short.device, short.device - 1);
        let id = VolumeId(volume as u16);
        let serves = self.engine.status() == Status::Ready && !self.stopping;
        if !serves || !self.disks.volumes[volume].is_attached() {
            self.short = None; // the next engine, or the next attach, starts from scratch
            return Ok(());
        }
        if unplugged == Unplugged::Reopened {
            if !self.engine.is_sweeping(id) {
                self.short = None;
            }
            return Ok(());
        }
        let refused = |kind: &FlightKind| matches!(kind, FlightKind::Refused | FlightKind::Held(_));
        if self.flights.values().any(|flight| flight.device == device && !refused(&flight.kind)) {
            return Ok(());
        }
        self.disks.devices[device].replug(&mut self.rng);
        self.oracle.dropped(volume);
        self.flush_failed_at[volume] = Some(self.oracle.begin());
        self.fault(device, 0, 0);
        self.reopened.insert(device);
        self.short = Some(Short { unplugged: Some(Unplugged::Reopened), ..short });
        self.engine.backing_reopened(self.now, id);
        self.crash_point();
        self.pump()
    }

    fn short(&self, device: usize) -> Option<Short> {
        self.short
            .filter(|short| short.device == device && (self.now < short.until || short.unplugged.is_some()))
    }

    /// Returns true if writes and flushes of this device have no effect.
    pub(crate) fn is_short(&self, device: usize) -> bool {
        self.short(device).is_some()
    }

    /// Fails a read that reaches beyond the present end.
    pub(crate) fn read_to_end(
        &self,
        device: usize,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), DeviceFailure> {
        let Some(short) = self.short(device) else { return Ok(()) };
        let there = short.bytes.saturating_sub(offset);
        if there >= bytes.len() as u64 {
            return Ok(());
        }
        if fault::planted(PlantedBug::EndIsZeroes) && !self.is_cache(device) {
            bytes[there as usize..].fill(0);
            return Ok(());
        }
        Err(DeviceFailure::Ended)
    }

    /// Counts the end of a device as a failure before the engine is notified. A cache device that
    /// is back in time must have no effect, except on the last steps of a stop of a mirrored cache,
    /// which do not wait for it: that stop ends as a crash does.
    pub(crate) fn note_ended(&mut self, device: usize, offset: u64, len: u64) {
        self.books.note_ended();
        let waits = match self.engine.status() {
            Status::Ready => true,
            Status::Stopping => self.engine.mirror_state().is_none(),
            _ => false,
        };
        let harmless = waits && self.short.is_some_and(|short| short.device == device && short.is_harmless);
        if harmless {
            self.counters.faults += 1;
        } else {
            self.fault(device, offset, len);
        }
    }

    /// Checks the engine after a notice that a device has ended: if it is one of two members, it
    /// must no longer count.
    pub(crate) fn check_ended(&self, device: usize) -> Result<(), String> {
        let Some(state) = self.engine.mirror_state() else { return Ok(()) };
        let concerned =
            self.is_cache(device) && self.engine.status() == Status::Ready && !self.engine.is_fenced();
        ensure!(!concerned || state.out.is_some(), "device {device} has ended, and both members count");
        Ok(())
    }
}

//! Truncated devices: they end before the end that they had, and have it again later. Files that
//! are cut, disks that drop off the bus.
//!
//! While a device is too short its owner tells the engine so ([`DeviceFailure::Ended`]): of every
//! read that meets the end, and of every write, zeroing and flush, of which nothing is done then.
//! What is behind the end is back afterwards.
//!
//! - A backing store: requests that need it may fail meanwhile, and nothing else follows. Nothing
//!   that it does not have is read as something.
//! - A cache device, for less than the engine waits: nothing at all follows, but for the time that
//!   it takes.
//! - A cache device, for longer: it is given up, with a record, and what it has is rescued as far
//!   as it can be read.
//! - One member of a mirrored cache: it is put out as soon as it is noticed.

use crate::mirror::device_of;
use crate::plan::{Needs, Plan};
use crate::rng::Rng;
use crate::world::{CACHE, World, ensure};
use forebay_core::{DeviceFailure, PlantedBug, Status, fault};

/// A cache device that is back after so many nanoseconds must not be given up (I71: 6.35 s).
const BRIEF_NS: u64 = 6_000_000_000;
/// And only so long after that it may end again: an operation that began to wait for it the first
/// time has been asked for again by then.
const NEXT_NS: u64 = 6_500_000_000;

/// Which device ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TruncatedDevice {
    /// The cache device, which is not mirrored.
    Cache,
    /// The backing store of a volume.
    Backing(usize),
    /// A member of a mirrored cache.
    Member(usize),
}

/// A device ends for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TruncationPlan {
    /// After so many requests of a main line.
    pub at: u64,
    /// Which one.
    pub what: TruncatedDevice,
    /// How much of it is left, in percent.
    pub kept_pct: u64,
    /// For so long.
    pub ns: u64,
}

impl TruncationPlan {
    /// Draws what ends in a run; `needs`: of the planted bug.
    pub(crate) fn draw(plan: &Plan, needs: Option<Needs>, rng: &mut Rng) -> Vec<Self> {
        let count = rng.range(1, 3);
        let mut all: Vec<Self> = (0..count).map(|_| Self::draw_one(plan, needs, rng)).collect();
        all.sort_by_key(|end| end.at);
        all
    }

    /// A member of a mirrored cache ends.
    pub(crate) fn is_of_member(&self) -> bool {
        matches!(self.what, TruncatedDevice::Member(_))
    }

    fn draw_one(plan: &Plan, needs: Option<Needs>, rng: &mut Rng) -> Self {
        let backing = TruncatedDevice::Backing(rng.below(plan.volumes.len() as u64) as usize);
        let sound = plan.death.is_none() && !plan.faults.damages();
        let what = match needs {
            Some(Needs::ShortBacking) => backing,
            Some(_) => TruncatedDevice::Cache,
            None if plan.mirror.is_some() && rng.chance(2, 3) => {
                TruncatedDevice::Member(rng.below(2) as usize)
            }
            None if plan.mirror.is_none() && sound && rng.chance(2, 3) => TruncatedDevice::Cache,
            None => backing,
        };
        let brief = rng.range(20_000_000, BRIEF_NS);
        let long = rng.range(10_000_000_000, 60_000_000_000);
        let lasts = needs.is_none() && plan.outage.is_none() && rng.chance(1, 2);
        // Often early: not every run goes on to its end.
        let requests = u64::from(plan.requests);
        let (first, last) =
            if rng.chance(1, 2) { (1, requests / 10) } else { (requests / 10, requests * 9 / 10) };
        Self {
            at: rng.range(first, last.max(first + 1)),
            what,
            kept_pct: rng.pick(&[0, 0, 10, 50, 90]),
            ns: if lasts { long } else { brief },
        }
    }
}

/// A device that is too short now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Short {
    device: usize,
    bytes: u64,
    until: u64,
    /// It is a cache device, and back in time.
    is_harmless: bool,
}

impl World {
    /// A device ends, if its time has come.
    pub(crate) fn shorten_device(&mut self) {
        let rest = |short: Short| if short.is_harmless { NEXT_NS } else { 0 };
        if self.short.is_some_and(|short| self.now >= short.until + rest(short)) {
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
            TruncatedDevice::Backing(volume) => (1 + volume, self.disks.tenants[volume].bytes),
            TruncatedDevice::Member(member) => {
                // The last one that counts never loses what it has.
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
        });
    }

    /// A device that is too short now has its old end again.
    pub(crate) fn restore_device(&mut self) {
        self.short = None;
    }

    fn short(&self, device: usize) -> Option<Short> {
        self.short.filter(|short| short.device == device && self.now < short.until)
    }

    /// Nothing is written to this device, and no flush of it means anything.
    pub(crate) fn is_short(&self, device: usize) -> bool {
        self.short(device).is_some()
    }

    /// What a read meets that may go beyond the end.
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

    /// The engine is about to hear that a device has ended. Of one that is back in time nothing may
    /// follow, but for the last steps of a stop of a mirrored cache, which do not wait for it: that
    /// stop ends as a crash does.
    pub(crate) fn note_ended(&mut self, device: usize, offset: u64, len: u64) {
        self.note_ended_operation();
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

    /// The engine has heard that a device has ended: if it is one member of two it must not count
    /// any more.
    pub(crate) fn check_ended(&self, device: usize) -> Result<(), String> {
        let Some(state) = self.engine.mirror_state() else { return Ok(()) };
        let concerned =
            self.is_cache(device) && self.engine.status() == Status::Ready && !self.engine.is_fenced();
        ensure!(!concerned || state.out.is_some(), "device {device} has ended, and both members count");
        Ok(())
    }
}

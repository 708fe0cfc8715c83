//! Checks the limit of an endurance budget: copies, fills and kept blocks write no more than the
//! rate of the budget allows since the engine was opened.
//!
//! The bound is that of `forebay_core`'s account for an engine that begins without savings
//! (`context/endurance.rs`), computed from the settings and from the bytes of each operation.
//! Client writes make it smaller; the check does not count them, so the bound holds with any client
//! load.

use crate::ensure::ensure;
use forebay_core::{EnduranceBudget, WrittenBytes};

const DAY_NS: u128 = 86_400_000_000_000;
/// The last of the budget may admit a block and its header.
const LAST_BYTES: u128 = 2 * 4096;

/// Allowed and written bytes since the engine was opened, in bytes times nanoseconds of a day.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct EnduranceCheck {
    budget: Option<u64>,
    /// The budget is that of each device.
    pub(crate) is_per_device: bool,
    at: u64,
    /// The sum of the budget so far, at most a day's.
    given: u128,
    allowed: u128,
    taken_bytes: u128,
}

impl EnduranceCheck {
    /// Sets the budget from now on. `in_flight_bytes`: operations that may have begun under
    /// another.
    pub(crate) fn set(&mut self, budget: EnduranceBudget, devices: u64, now: u64, in_flight_bytes: u64) {
        self.settle(now);
        let was = self.budget;
        self.is_per_device = matches!(budget, EnduranceBudget::BytesOfEachDevice(_));
        self.budget = match budget {
            EnduranceBudget::Bytes(bytes) => Some(bytes),
            EnduranceBudget::BytesOfEachDevice(bytes) => Some(bytes.saturating_mul(devices)),
            EnduranceBudget::Unlimited | EnduranceBudget::DeviceWrites(_) => None,
        };
        if was.is_some() && was != self.budget {
            self.allowed += u128::from(in_flight_bytes) * DAY_NS;
        }
    }

    fn settle(&mut self, now: u64) {
        let passed = u128::from(now - std::mem::replace(&mut self.at, now));
        let Some(budget) = self.budget.map(u128::from) else { return };
        self.given = (self.given + budget * passed).min(budget * DAY_NS);
        self.allowed += (budget + 3 * self.given / DAY_NS).min(4 * budget) * passed;
    }

    /// Checks a write. `sound`: no write was repeated after a failure.
    pub(crate) fn note(&mut self, written: &WrittenBytes, now: u64, sound: bool) -> Result<(), String> {
        self.settle(now);
        self.taken_bytes += u128::from(written.optional());
        let Some(budget) = self.budget.filter(|_| sound && written.optional() > 0) else { return Ok(()) };
        let (taken, allowed) = (self.taken_bytes, self.allowed / DAY_NS + LAST_BYTES);
        ensure!(
            taken <= allowed,
            "with a budget of {budget} bytes a day, {taken} bytes of {allowed} were written"
        );
        Ok(())
    }
}

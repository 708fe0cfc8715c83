//! A token bucket that keeps a debt: units taken add to the debt, which decays at the rate, and the
//! bucket is open only while the debt is (nearly) zero. Unlike a bucket that fills up, it
//! accumulates no tokens while idle, so there are no bursts after a pause; and a change of the rate
//! applies at once to the present debt.
//!
//! In any window of length `T` callers take at most `rate * (T + BURST)` units and one request.

use crate::api::Nanos;

/// Debt, as time at the present rate, up to which the bucket is open: hides the granularity of
/// events.
pub(crate) const BURST_NS: Nanos = 10_000_000;

const NANO: u128 = 1_000_000_000;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// Units taken and not yet worked off, times 10^9.
    debt: u128,
    at: Nanos,
}

impl Bucket {
    /// Reduces the debt at `rate` units per second for the time up to `now`.
    pub(crate) fn settle(&mut self, now: Nanos, rate: u64) {
        if self.debt > 0 {
            let passed = u128::from(now.saturating_sub(self.at)) * u128::from(rate);
            self.debt = self.debt.saturating_sub(passed);
        }
        self.at = now;
    }

    /// Returns true if the caller may take more now, at `rate`.
    pub(crate) fn is_open(&self, rate: u64) -> bool {
        self.debt <= u128::from(rate) * u128::from(BURST_NS)
    }

    /// Returns when the caller may take more at `rate`; `None` if it is zero.
    pub(crate) fn opens_at(&self, rate: u64) -> Option<Nanos> {
        let owed = self.debt.saturating_sub(u128::from(rate) * u128::from(BURST_NS));
        let wait = owed.checked_div(u128::from(rate))?;
        Some(self.at.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX).saturating_add(1)))
    }

    pub(crate) fn take(&mut self, units: u64) {
        self.debt = self.debt.saturating_add(u128::from(units) * NANO);
    }

    /// Forgets the debt beyond `units`.
    pub(crate) fn forgive(&mut self, units: u64) {
        self.debt = self.debt.min(u128::from(units) * NANO);
    }
}

/// A rate as an exponentially weighted mean: events of the last seconds count most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meter {
    pending: u64,
    since: Nanos,
    milli_per_s: u64,
}

/// Time constant of a [`Meter`].
const METER_NS: u64 = 4_000_000_000;
/// Shortest interval between updates of a [`Meter`].
const METER_STEP_NS: u64 = 250_000_000;

impl Meter {
    pub(crate) fn count(&mut self, units: u64) {
        self.pending += units;
    }

    pub(crate) fn settle(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.since);
        if passed < METER_STEP_NS {
            return;
        }
        let (passed, pending) = (u128::from(passed), u128::from(self.pending));
        let recent = pending * 1000 * NANO / passed;
        // First-order low pass: weight dt / (dt + tau).
        let tau = u128::from(METER_NS);
        let mixed = (recent * passed + u128::from(self.milli_per_s) * tau) / (passed + tau);
        self.milli_per_s = u64::try_from(mixed).unwrap_or(u64::MAX);
        (self.pending, self.since) = (0, now);
    }

    /// Units per second, in thousandths.
    pub(crate) fn milli_per_s(&self) -> u64 {
        self.milli_per_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn a_bucket_holds_its_rate_over_any_window() {
        let (mut bucket, mut taken) = (Bucket::default(), Vec::new());
        let mut now = 5 * SECOND;
        for step in 0..20_000_u64 {
            bucket.settle(now, 100);
            while bucket.is_open(100) {
                bucket.take(7);
                taken.push(now);
            }
            // Uneven steps, and a pause in which the bucket must not accumulate tokens.
            now += if step == 10_000 { 60 * SECOND } else { (step * 7919) % 9_000_000 };
        }
        for (first, start) in taken.iter().enumerate() {
            let inside = taken[first..].iter().take_while(|time| **time <= start + SECOND).count();
            assert!(inside * 7 <= 100 + 1 + 2 * 7, "{inside} helpings in a second");
        }
    }

    #[test]
    fn higher_rate_applies_to_existing_debt() {
        let mut bucket = Bucket::default();
        bucket.settle(SECOND, 1);
        bucket.take(100);
        assert!(bucket.opens_at(1).unwrap() > 100 * SECOND);
        bucket.settle(2 * SECOND, 1_000);
        assert!(bucket.opens_at(1_000).unwrap() <= 2 * SECOND + 1);
        bucket.take(100);
        bucket.forgive(1);
        assert!(bucket.opens_at(1).unwrap() < 4 * SECOND);
        assert_eq!(bucket.opens_at(0), None);
    }

    #[test]
    fn a_meter_finds_a_rate_and_forgets_it() {
        let mut meter = Meter::default();
        for tenth in 0..600_u64 {
            meter.count(20);
            meter.settle(tenth * SECOND / 10);
        }
        assert!((190_000..=210_000).contains(&meter.milli_per_s()), "{}", meter.milli_per_s());
        meter.settle(3600 * SECOND);
        assert!(meter.milli_per_s() < 1_000);
    }
}

//! Time for events and jobs: two readings from one source, so that tests can control the clock.
//!
//! Ages, rates and deadlines are taken from the monotonic reading only; the wall clock is for
//! display and may jump.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Source of time. Both readings are cheap and never block.
pub trait Clock: Send + Sync + 'static {
    /// Returns nanoseconds since a fixed instant of this process; never decreases.
    fn monotonic_ns(&self) -> u64;
    /// Returns nanoseconds since 1970-01-01 00:00 UTC by the system's clock.
    fn unix_ns(&self) -> u64;
}

/// The system's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Creates a clock whose monotonic reading starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic_ns(&self) -> u64 {
        saturating_ns(self.start.elapsed())
    }

    fn unix_ns(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, saturating_ns)
    }
}

/// A clock that tests and simulations advance.
#[derive(Debug)]
pub struct ManualClock {
    start_unix_ns: u64,
    elapsed_ns: AtomicU64,
}

impl ManualClock {
    /// Creates a clock that stands at `start_unix_ns`; its monotonic reading is 0.
    #[must_use]
    pub fn new(start_unix_ns: u64) -> Self {
        Self { start_unix_ns, elapsed_ns: AtomicU64::new(0) }
    }

    /// Advances both readings.
    pub fn advance(&self, by: Duration) {
        self.elapsed_ns.fetch_add(saturating_ns(by), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn monotonic_ns(&self) -> u64 {
        self.elapsed_ns.load(Ordering::Relaxed)
    }

    fn unix_ns(&self) -> u64 {
        self.start_unix_ns.saturating_add(self.monotonic_ns())
    }
}

/// Converts a duration to nanoseconds, saturating at 584 years.
pub(crate) fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_moves_only_on_request() {
        let clock = ManualClock::new(1_000);
        assert_eq!((clock.monotonic_ns(), clock.unix_ns()), (0, 1_000));
        clock.advance(Duration::from_nanos(5));
        assert_eq!((clock.monotonic_ns(), clock.unix_ns()), (5, 1_005));
    }

    #[test]
    fn system_clock_is_later_than_2020() {
        let clock = SystemClock::new();
        let before = clock.monotonic_ns();
        assert!(clock.unix_ns() > 1_577_836_800_000_000_000);
        assert!(clock.monotonic_ns() >= before);
    }
}

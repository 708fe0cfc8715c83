//! Time as events and jobs see it: two readings from one place, so that tests can hold the clock.
//!
//! Ages, rates and deadlines are taken from the monotonic reading only; the wall clock is for
//! people and may jump.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where time comes from. Both readings are cheap and never block.
pub trait Clock: Send + Sync + 'static {
    /// Nanoseconds since a fixed instant of this process; never goes back.
    fn monotonic_ns(&self) -> u64;
    /// Nanoseconds since 1970-01-01 00:00 UTC, as far as the system knows.
    fn unix_ns(&self) -> u64;
}

/// The clocks of the system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic reading starts now.
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

/// A clock that moves only when told to, for tests and simulations.
#[derive(Debug)]
pub struct ManualClock {
    start_unix_ns: u64,
    elapsed_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that stands at `start_unix_ns`; its monotonic reading is 0.
    #[must_use]
    pub fn new(start_unix_ns: u64) -> Self {
        Self { start_unix_ns, elapsed_ns: AtomicU64::new(0) }
    }

    /// Moves both readings forward.
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

/// A duration in nanoseconds; more than 584 years is as much as fits.
pub(crate) fn saturating_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new(1_000);
        assert_eq!((clock.monotonic_ns(), clock.unix_ns()), (0, 1_000));
        clock.advance(Duration::from_nanos(5));
        assert_eq!((clock.monotonic_ns(), clock.unix_ns()), (5, 1_005));
    }

    #[test]
    fn the_system_clock_knows_that_it_is_after_2020() {
        let clock = SystemClock::new();
        let before = clock.monotonic_ns();
        assert!(clock.unix_ns() > 1_577_836_800_000_000_000);
        assert!(clock.monotonic_ns() >= before);
    }
}

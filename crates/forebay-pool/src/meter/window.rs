//! The windows of time that statistics cover.
//!
//! Windows end with the last complete second, because a second that has just begun has few data. So
//! that few slots suffice, the longest one begins at a multiple of ten seconds: it covers 300 to
//! 309 seconds. Rates are divided by the time that is actually covered, which is less in a young
//! daemon.

use forebay_core::Nanos;
use std::ops::Range;

/// Nanoseconds of a second.
pub(super) const SECOND_NS: Nanos = 1_000_000_000;
/// Seconds in a slot of the longest window.
pub(super) const TEN: u64 = 10;
/// Slots of ten seconds in the longest window.
pub(super) const TENS: u64 = 30;

/// A period of time that ends now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// The last complete second.
    Second,
    /// The last ten complete seconds.
    TenSeconds,
    /// The last 300 to 309 complete seconds.
    FiveMinutes,
    /// Since the start, to this instant.
    Total,
}

impl Window {
    /// All of them, shortest first.
    pub const ALL: [Self; 4] = [Self::Second, Self::TenSeconds, Self::FiveMinutes, Self::Total];

    /// Its name in every format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "1s",
            Self::TenSeconds => "10s",
            Self::FiveMinutes => "5min",
            Self::Total => "total",
        }
    }

    /// Complete seconds that belong to the window at `now`. Those of [`Window::Total`] are not
    /// used.
    pub(super) fn seconds(self, now: Nanos) -> Range<u64> {
        let end = second_of(now);
        match self {
            Self::Second => end.saturating_sub(1)..end,
            Self::TenSeconds => end.saturating_sub(TEN)..end,
            Self::FiveMinutes => (end / TEN).saturating_sub(TENS) * TEN..end,
            Self::Total => 0..end + 1,
        }
    }

    /// Time that the window covers at `now`, if counting started at `started`.
    pub(super) fn span_ns(self, started: Nanos, now: Nanos) -> Nanos {
        let Range { start, end } = self.seconds(now);
        let end = if self == Self::Total { now } else { end * SECOND_NS };
        end.saturating_sub(started.max(start * SECOND_NS))
    }
}

/// The number of the second that an instant is in.
#[inline]
pub(super) fn second_of(now: Nanos) -> u64 {
    now / SECOND_NS
}

/// `count` in `span_ns` as a rate per second; `None` if no time is covered.
pub(super) fn per_second(count: u64, span_ns: Nanos) -> Option<f64> {
    (span_ns > 0).then(|| count as f64 * SECOND_NS as f64 / span_ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No window begins before the start of the meter.
    #[test]
    fn windows_end_with_whole_seconds() {
        let now = 1234 * SECOND_NS + 5;
        let spans = Window::ALL.map(|window| window.span_ns(0, now) / SECOND_NS);
        assert_eq!(spans, [1, 10, 304, 1234]);
        let late = 1230 * SECOND_NS + SECOND_NS / 2;
        assert_eq!(Window::TenSeconds.span_ns(late, now), 3 * SECOND_NS + SECOND_NS / 2);
        assert_eq!(Window::FiveMinutes.span_ns(late, now), Window::TenSeconds.span_ns(late, now));
        assert_eq!(Window::Second.span_ns(now, now), 0);
        assert_eq!(per_second(5, 0), None);
        assert_eq!(per_second(5, 2 * SECOND_NS), Some(2.5));
    }
}

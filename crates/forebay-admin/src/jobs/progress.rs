//! Progress of a job: share, rate and time left, from readings of the remaining work.
//!
//! The rate is an exponentially weighted mean: bytes done and time elapsed are both summed with
//! weights that fall by 1/e in [`MEMORY`], and divided. It needs no start value, and readings may
//! come at any interval. Destage makes blocks clean in bursts (after a flush of the backing store),
//! so the memory is several bursts long. The rate falls while no readings come, because no progress
//! was seen.
//!
//! Invariants: an unknown value is `None`; the time left is never negative and never derived from a
//! rate of zero.

use super::job::Phase;
use std::time::Duration;

/// Time constant of the rate.
const MEMORY: Duration = Duration::from_secs(10);
/// A rate over a shorter time is not reported.
const OBSERVED_MIN: Duration = Duration::from_secs(1);
/// A longer time left is reported as unknown.
const ETA_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Number of bytes left, and how they are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Bytes that were dirty when the job began and still are. Data written meanwhile does not
    /// count, so this never grows: a greater reading (for example, because the engine counts by log
    /// position and blocks moved) counts as no change.
    OfStart(u64),
    /// All bytes that are dirty now, including data written meanwhile. Used if the engine cannot
    /// tell them apart, or if the job needs all of them. When the reading exceeds the total, the
    /// total grows; the percentage may fall, and while writers are as fast as destage, the time
    /// left is unknown.
    All(u64),
    /// Not known, or not counted in bytes.
    Unknown,
}

/// Periodic report of the runner about a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// Work left.
    pub left: Left,
    /// Current activity.
    pub phase: Phase,
    /// Its current limit, in words; for example "the backing store refuses writes: no space".
    pub limited_by: Option<String>,
    /// Errors so far.
    pub errors: u64,
}

impl Report {
    /// Draining, with this much left and no particular limit.
    #[must_use]
    pub fn draining(left: Left) -> Self {
        Self { left, phase: Phase::Draining, limited_by: None, errors: 0 }
    }
}

/// Progress of a job at one instant.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Progress {
    /// Total work: the greatest amount left at any time.
    pub bytes_total: Option<u64>,
    /// Work left.
    pub bytes_left: Option<u64>,
    /// Part done, 0 to 100, rounded down to a tenth: 100 means that nothing is left.
    pub percent: Option<f64>,
    /// Rate at which the rest shrinks.
    pub rate_bytes_per_s: Option<u64>,
    /// Time until nothing is left, at the current rate.
    pub eta: Option<Duration>,
}

/// Sums of one job's readings.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    /// Greatest and last reading, with their times.
    reading: Option<Reading>,
    /// Weighted bytes done; negative if the rest grew.
    done_bytes: f64,
    /// Weighted seconds.
    time_s: f64,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    total: u64,
    left: u64,
    at_ns: u64,
    /// Time of the first reading.
    since_ns: u64,
}

impl Meter {
    /// Adds a reading.
    pub(super) fn observe(&mut self, now_ns: u64, left: Left) {
        let Some(last) = self.reading else {
            let (Left::OfStart(left) | Left::All(left)) = left else {
                return;
            };
            self.reading = Some(Reading { total: left, left, at_ns: now_ns, since_ns: now_ns });
            return;
        };
        let left = match left {
            Left::OfStart(left) => left.min(last.left),
            Left::All(left) => left,
            Left::Unknown => return,
        };
        (self.done_bytes, self.time_s) = self.weighted(now_ns, last);
        self.done_bytes += last.left as f64 - left as f64;
        self.reading = Some(Reading { total: last.total.max(left), left, at_ns: now_ns, ..last });
    }

    /// Returns the sums at `now_ns`, assuming no work since the last reading.
    fn weighted(&self, now_ns: u64, last: Reading) -> (f64, f64) {
        let passed_s = now_ns.saturating_sub(last.at_ns) as f64 / 1e9;
        let weight = (-passed_s / MEMORY.as_secs_f64()).exp();
        (self.done_bytes * weight, self.time_s * weight + passed_s)
    }

    /// Returns the progress now.
    pub(super) fn progress(&self, now_ns: u64) -> Progress {
        let Some(last) = self.reading else {
            return Progress::default();
        };
        let (done_bytes, time_s) = self.weighted(now_ns, last);
        let rate = done_bytes / time_s;
        let observed = Duration::from_nanos(now_ns.saturating_sub(last.since_ns));
        let rate = (observed >= OBSERVED_MIN && rate >= 1.0).then_some(rate);
        let percent = match last.total {
            0 => 100.0,
            total => floor_tenth(100.0 * (total - last.left) as f64 / total as f64),
        };
        Progress {
            bytes_total: Some(last.total),
            bytes_left: Some(last.left),
            percent: Some(percent),
            rate_bytes_per_s: rate.map(|rate| rate as u64),
            eta: eta(last.left, rate),
        }
    }
}

fn eta(left: u64, rate: Option<f64>) -> Option<Duration> {
    if left == 0 {
        return Some(Duration::ZERO);
    }
    let eta = Duration::try_from_secs_f64(left as f64 / rate?).ok()?;
    (eta <= ETA_MAX).then_some(eta)
}

/// Rounds down to a tenth.
pub(super) fn floor_tenth(number: f64) -> f64 {
    (number * 10.0).floor() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const MB: u64 = 1_000_000;

    #[test]
    fn a_steady_drain_has_its_rate_and_time() {
        let mut meter = Meter::default();
        assert_eq!(meter.progress(0), Progress::default());
        for tenth in 0..=100 {
            meter.observe(tenth * S / 10, Left::OfStart(100 * MB - tenth * MB / 10));
            let progress = meter.progress(tenth * S / 10);
            assert_eq!(progress.eta.is_some(), tenth >= 10, "no rate before a second has passed");
        }
        let progress = meter.progress(10 * S);
        assert_eq!((progress.bytes_total, progress.bytes_left), (Some(100 * MB), Some(90 * MB)));
        assert_eq!(progress.percent, Some(10.0));
        assert!((999_999..=1_000_001).contains(&progress.rate_bytes_per_s.unwrap()), "{progress:?}");
        assert!((89.9..90.1).contains(&progress.eta.unwrap().as_secs_f64()), "{progress:?}");
    }

    #[test]
    fn bursts_are_smoothed() {
        let mut meter = Meter::default();
        for tenth in 0..400 {
            meter.observe(tenth * S / 10, Left::OfStart(1_000 * MB - tenth / 20 * 20 * MB)); // 20 MB every 2 s
            if tenth > 200 {
                let rate = meter.progress(tenth * S / 10).rate_bytes_per_s.unwrap();
                assert!((8 * MB..=12 * MB).contains(&rate), "{rate} after {tenth} tenths");
            }
        }
    }

    #[test]
    fn dirty_total_of_the_start_never_grows() {
        let mut meter = Meter::default();
        for (second, left) in [(0, 100), (1, 50), (2, 80), (3, 40)] {
            meter.observe(second * S, Left::OfStart(left * MB));
        }
        assert_eq!(meter.progress(2 * S).bytes_left, Some(40 * MB));
        assert_eq!(meter.progress(3 * S).bytes_total, Some(100 * MB));
    }

    #[test]
    fn growing_total_has_no_remaining_time() {
        let mut meter = Meter::default();
        for second in 0..10 {
            meter.observe(second * S, Left::All((100 + second) * MB));
        }
        let progress = meter.progress(9 * S);
        assert_eq!((progress.bytes_total, progress.percent), (Some(109 * MB), Some(0.0)));
        assert_eq!((progress.rate_bytes_per_s, progress.eta), (None, None));
        meter.observe(10 * S, Left::All(0));
        assert_eq!(meter.progress(10 * S).percent, Some(100.0));
    }

    #[test]
    fn standstill_extends_the_remaining_time() {
        let mut meter = Meter::default();
        (0..20).for_each(|second| meter.observe(second * S, Left::OfStart((100 - second) * MB)));
        let eta = |at: u64| meter.progress(at).eta;
        assert!(eta(19 * S) < eta(25 * S) && eta(25 * S) < eta(60 * S));
        assert_eq!(eta(400 * S), None);
        assert_eq!(meter.progress(400 * S).rate_bytes_per_s, None);
    }

    #[test]
    fn extreme_amounts_give_sane_progress() {
        let mut meter = Meter::default();
        meter.observe(5, Left::Unknown);
        assert_eq!(meter.progress(9), Progress::default());
        meter.observe(10, Left::All(0));
        let nothing = meter.progress(10);
        assert_eq!((nothing.percent, nothing.eta), (Some(100.0), Some(Duration::ZERO)));
        meter.observe(11, Left::All(u64::MAX));
        meter.observe(11 + S, Left::All(u64::MAX - 1));
        meter.observe(12, Left::Unknown); // and tolerates a clock that goes back
        let most = meter.progress(11);
        assert_eq!((most.bytes_total, most.percent, most.eta), (Some(u64::MAX), Some(0.0), None));
        let mut fast = Meter::default();
        fast.observe(0, Left::OfStart(1_000_000));
        fast.observe(2 * S, Left::OfStart(1));
        assert_eq!(fast.progress(2 * S).percent, Some(99.9), "never 100 while something is left");
    }
}

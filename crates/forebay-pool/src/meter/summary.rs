//! Summaries of the counted durations. They are computed on the thread that requests them, not on
//! the one that serves.

use super::series::{Series, Sum, Totals};
use super::window::{per_second, second_of};
use super::{TimedPath, Window};
use forebay_core::Nanos;

/// Upper bounds of the buckets for Prometheus, in nanoseconds: 1, 2 and 5 times each power of ten,
/// from 10 us to 50 s.
pub(super) const BUCKET_BOUNDS_NS: [u64; 21] = bounds();

const fn bounds() -> [u64; 21] {
    let mut bounds = [0; 21];
    let (mut at, mut decade) = (0, 10_000);
    while at < bounds.len() {
        bounds[at] = decade * [1, 2, 5][at % 3];
        at += 1;
        if at.is_multiple_of(3) {
            decade *= 10;
        }
    }
    bounds
}

/// A copy of a [`super::Meter`] at one instant.
#[derive(Clone, Debug)]
pub struct Capture {
    started: Nanos,
    now: Nanos,
    /// In the order of [`TimedPath::ALL`]; paths that were never taken are left out.
    series: Vec<Option<Series>>,
}

/// Statistics of all paths at one instant.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MeterSnapshot {
    /// One for each path that was ever taken, in the order of [`TimedPath::ALL`].
    pub paths: Vec<PathSnapshot>,
}

/// Statistics of one path.
#[derive(Clone, PartialEq, Debug)]
pub struct PathSnapshot {
    /// The path.
    pub path: TimedPath,
    /// In the order of [`Window::ALL`].
    pub windows: [Summary; 4],
    /// Sum of all durations since the start, in nanoseconds.
    pub sum_ns: u64,
    /// For each upper bound in nanoseconds, the number of durations since the start up to it and
    /// longer than the previous bound. The last bound is `u64::MAX`.
    pub buckets: Vec<(u64, u64)>,
}

/// One path in one window.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Summary {
    /// Number of operations that ended.
    pub count: u64,
    /// The same per second; `None` if the window covers no time yet.
    pub per_s: Option<f64>,
    /// Bytes per second.
    pub bytes_per_s: Option<f64>,
    /// Their durations; `None` if there were none.
    pub times: Option<Times>,
}

/// Durations of operations, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Times {
    /// Arithmetic mean, exact.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The longest, exact.
    pub max_ns: u64,
}

impl Capture {
    pub(super) fn new(started: Nanos, now: Nanos, series: &[Series]) -> Self {
        let series = series.iter().map(|series| (!series.is_empty()).then(|| series.clone())).collect();
        Self { started, now, series }
    }

    /// Merges slots and computes percentiles.
    pub fn summarize(mut self) -> MeterSnapshot {
        let mut sum = Sum::new();
        let mut paths = Vec::new();
        for (path, series) in TimedPath::ALL.iter().zip(&mut self.series) {
            let Some(series) = series else { continue };
            series.roll(second_of(self.now));
            let windows = Window::ALL.map(|window| {
                sum.clear();
                series.add_to(&mut sum, window, self.now);
                Summary::new(&sum, window.span_ns(self.started, self.now))
            });
            // The last window is the total: its sum is still there.
            let (sum_ns, buckets) = (sum.totals.sum_ns, buckets(&sum));
            paths.push(PathSnapshot { path: *path, windows, sum_ns, buckets });
        }
        MeterSnapshot { paths }
    }
}

impl Summary {
    fn new(sum: &Sum, span_ns: Nanos) -> Self {
        let Totals { count, bytes, sum_ns, max_ns } = sum.totals;
        let at = |quantile| sum.counts.value_at_quantile(quantile).min(max_ns);
        let times = (count > 0).then(|| Times {
            mean_ns: sum_ns / count,
            p50_ns: at(0.5),
            p95_ns: at(0.95),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns,
        });
        Self { count, per_s: per_second(count, span_ns), bytes_per_s: per_second(bytes, span_ns), times }
    }
}

/// Durations by the bounds of Prometheus. A bucket of the histogram that straddles a bound counts
/// as above it.
fn buckets(sum: &Sum) -> Vec<(u64, u64)> {
    let mut recorded = sum.counts.iter_recorded().peekable();
    let bounds = BUCKET_BOUNDS_NS.iter().chain([&u64::MAX]);
    let counts = bounds.map(|bound| {
        let mut count = 0;
        while let Some(bucket) = recorded.next_if(|bucket| bucket.value_iterated_to() <= *bound) {
            count += bucket.count_at_value();
        }
        (*bound, count)
    });
    counts.collect()
}

//! The figures of a try.

use forebay_core::{MissRatioCurve, RequestOutcome, Stats};
use hdrhistogram::Histogram;

/// Longest recorded latency, in nanoseconds: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Latencies of the requests with one outcome.
#[derive(Clone, Debug)]
pub struct PathFigures {
    /// The outcome.
    pub path: RequestOutcome,
    /// Latencies, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    sum_ns: u128,
}

impl PathFigures {
    pub(crate) fn new(path: RequestOutcome) -> Self {
        let latency_ns = Histogram::new_with_max(LATENCY_NS_MAX, 3);
        let latency_ns = latency_ns.unwrap_or_else(|_| unreachable!("these are bounds that it takes"));
        Self { path, latency_ns, sum_ns: 0 }
    }

    pub(crate) fn add(&mut self, ns: u64) {
        self.latency_ns.saturating_record(ns);
        self.sum_ns += u128::from(ns);
    }

    /// Returns the number of requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.latency_ns.len()
    }

    /// Returns the exact mean, in nanoseconds; 0 without requests.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        (self.sum_ns / u128::from(self.count().max(1))) as u64
    }
}

/// The results of a try.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Counters of the engine at the last reply.
    pub stats: Stats,
    /// The engine's estimate for caches of other sizes, as in `forebay advise`.
    pub curve: MissRatioCurve,
    /// By outcome of requests; only those that occurred.
    pub paths: Vec<PathFigures>,
    /// Time from the first request to the last reply, in nanoseconds.
    pub took_ns: u64,
    /// Requests submitted: a long one of the trace counts as several.
    pub requests: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Longest wait of a request for the limit of requests in flight, in nanoseconds.
    pub waited_ns_max: u64,
    /// Requests that had to wait for the limit of requests in flight.
    pub waited: u64,
    /// Limits of the speed of destage, with their share of the time in percent, the largest first.
    pub limits: Vec<(&'static str, f64)>,
}

impl Figures {
    /// Returns read hits in percent of the blocks read; `None` if none were read, or none could
    /// hit.
    #[must_use]
    pub fn hit_pct(&self) -> Option<f64> {
        let (hits, misses) = (self.stats.read_hit_blocks, self.stats.read_miss_blocks);
        (hits + misses > 0).then(|| hits as f64 * 100.0 / (hits + misses) as f64)
    }

    /// Returns all requests with some outcomes together.
    #[must_use]
    pub fn together(&self, wanted: impl Fn(RequestOutcome) -> bool) -> PathFigures {
        let mut all = PathFigures::new(RequestOutcome::ReadHit);
        for path in self.paths.iter().filter(|path| wanted(path.path)) {
            // The bounds are the same, so this cannot fail.
            let _ = all.latency_ns.add(&path.latency_ns);
            all.sum_ns += path.sum_ns;
        }
        all
    }
}

/// Returns the index of an outcome among all of them.
#[must_use]
pub(crate) fn index(path: RequestOutcome) -> usize {
    use RequestOutcome::{
        Flush, Prefetch, ReadBypass, ReadHit, ReadMiss, Refused, Write, WritePast, WriteThrough, Zero,
    };
    let all = [ReadHit, ReadMiss, ReadBypass, Write, WriteThrough, WritePast, Flush, Zero, Prefetch, Refused];
    all.iter().position(|one| *one == path).unwrap_or(all.len() - 1)
}

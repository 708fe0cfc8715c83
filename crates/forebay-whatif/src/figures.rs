//! What a try is measured by.

use forebay_core::{MissRatioCurve, RequestOutcome, Stats};
use hdrhistogram::Histogram;

/// Longest latency that is told apart, in nanoseconds: an hour.
const LATENCY_NS_MAX: u64 = 3_600_000_000_000;

/// Latencies of the requests that went one way.
#[derive(Clone, Debug)]
pub struct PathFigures {
    /// The way.
    pub path: RequestOutcome,
    /// In nanoseconds.
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

    /// Requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.latency_ns.len()
    }

    /// The mean, exactly, in nanoseconds; 0 without requests.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        (self.sum_ns / u128::from(self.count().max(1))) as u64
    }
}

/// What came of a try.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Counters of the engine when the last request was answered.
    pub stats: Stats,
    /// What the engine says of caches of other sizes, as `forebay advise` has it.
    pub curve: MissRatioCurve,
    /// By the way that requests went; only those that some went.
    pub paths: Vec<PathFigures>,
    /// Time from the first request to the last answer, in nanoseconds.
    pub took_ns: u64,
    /// Requests that were made: long ones of the trace are several.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub failed: u64,
    /// The longest time that a request waited until fewer were in flight, in nanoseconds.
    pub waited_ns_max: u64,
    /// Requests that came while as many were in flight as there may be.
    pub waited: u64,
    /// What kept destage from going faster, with the share of the time in percent, the largest
    /// first.
    pub limits: Vec<(&'static str, f64)>,
}

impl Figures {
    /// Hits of reads in percent of the blocks that were read; `None` if none were, or none could be
    /// hits.
    #[must_use]
    pub fn hit_pct(&self) -> Option<f64> {
        let (hits, misses) = (self.stats.read_hit_blocks, self.stats.read_miss_blocks);
        (hits + misses > 0).then(|| hits as f64 * 100.0 / (hits + misses) as f64)
    }

    /// All requests of some ways together.
    #[must_use]
    pub fn together(&self, wanted: impl Fn(RequestOutcome) -> bool) -> PathFigures {
        let mut all = PathFigures::new(RequestOutcome::ReadHit);
        for path in self.paths.iter().filter(|path| wanted(path.path)) {
            // Of the same bounds, so that nothing can be refused.
            let _ = all.latency_ns.add(&path.latency_ns);
            all.sum_ns += path.sum_ns;
        }
        all
    }
}

/// The place of a way among all of them.
#[must_use]
pub(crate) fn index(path: RequestOutcome) -> usize {
    use RequestOutcome::{
        Flush, Prefetch, ReadBypass, ReadHit, ReadMiss, Refused, Write, WritePast, WriteThrough, Zero,
    };
    let all = [ReadHit, ReadMiss, ReadBypass, Write, WriteThrough, WritePast, Flush, Zero, Prefetch, Refused];
    all.iter().position(|one| *one == path).unwrap_or(all.len() - 1)
}

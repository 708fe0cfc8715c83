//! Statistics: durations of requests and device operations, and counts of the last seconds and
//! minutes.
//!
//! Two parts, both owned by the thread that serves the volume, so neither has a lock:
//!
//! - [`Meter`] takes the duration of every request and device operation by [`TimedPath`] and
//!   returns percentiles by [`Window`];
//! - [`History`] keeps samples of the [`Counters`] and returns rates by [`Window`].
//!
//! A [`Report`] combines both with the other properties of the volume; [`format`](mod@format)
//! writes it for other programs.
//!
//! Invariants
//! - Recording takes no lock, makes no system call and allocates nothing: [`Meter::new`] allocates
//!   all memory, which stays below 4 MiB.
//! - The caller passes the time, which never goes back. No thread is woken: recording and reading
//!   move the windows.
//! - Counts, sums and maxima are exact. Percentiles are rounded up, by less than a hundredth as a
//!   rule; `series` describes the exceptions.

mod age;
mod convert;
mod counters;
pub mod format;
mod history;
mod process;
mod report;
mod series;
mod summary;
mod window;

#[cfg(test)]
mod tests;

pub use age::{AGE_BOUNDS, DirtyAge};
pub use counters::{CounterKind, Counters, DERIVED, Derived, FIELDS, Field};
pub use history::{History, Rates};
pub use process::resident_bytes;
pub use report::{About, MemberState};
pub use report::{Report, Snapshot};
pub use summary::{Capture, MeterSnapshot, PathSnapshot, Summary, Times};
pub use window::Window;

use forebay_core::Nanos;
use series::Series;

macro_rules! paths {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        /// The subject of a duration: a kind of request, from its arrival to its reply, or a kind
        /// of device operation, from its submission to its completion.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum TimedPath { $($(#[$doc])* $name,)* }

        impl TimedPath {
            /// All of them: requests first, then the cache device, then the backing store.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in every format.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

paths! {
    /// A read hit.
    ReadHit = "read_hit";
    /// A read for which at least a part was read from the backing store, and that admission could
    /// fill from.
    ReadMiss = "read_miss";
    /// A read that was not cached: by mode, by a rule, or because it was sequential.
    ReadBypass = "read_bypass";
    /// A write that was acknowledged from the log.
    Write = "write";
    /// A write that went to the backing store and to the cache.
    WriteThrough = "write_through";
    /// A bypass write.
    WritePast = "write_past";
    /// A FLUSH.
    Flush = "flush";
    /// A discard or a write of zeroes.
    Zero = "zero";
    /// A read of the cache device.
    CacheRead = "cache_read";
    /// A write to the cache device.
    CacheWrite = "cache_write";
    /// A device flush of the cache device.
    CacheFlush = "cache_flush";
    /// A discard of a segment of the cache device.
    CacheDiscard = "cache_discard";
    /// A read of the backing store.
    BackingRead = "backing_read";
    /// A write to the backing store: destage, a bypass write, or zeroes.
    BackingWrite = "backing_write";
    /// A device flush of the backing store.
    BackingFlush = "backing_flush";
}

/// Durations by [`TimedPath`], of one volume.
#[derive(Clone, Debug)]
pub struct Meter {
    started: Nanos,
    series: Box<[Series]>,
}

impl Meter {
    /// An empty meter; windows do not extend back beyond `now`.
    pub fn new(now: Nanos) -> Self {
        Self { started: now, series: TimedPath::ALL.iter().map(|_| Series::new()).collect() }
    }

    /// Records that an operation ended at `now`, took `took` and moved `bytes`.
    #[inline]
    pub fn record(&mut self, path: TimedPath, took: Nanos, bytes: u64, now: Nanos) {
        self.series[path as usize].record(took, bytes, window::second_of(now));
    }

    /// A copy for another thread: the owner only copies, [`Capture::summarize`] computes.
    pub fn capture(&self, now: Nanos) -> Capture {
        Capture::new(self.started, now, &self.series)
    }

    /// Everything, by path and window.
    pub fn snapshot(&self, now: Nanos) -> MeterSnapshot {
        self.capture(now).summarize()
    }

    /// Memory used, in bytes. It does not change.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.series.iter().map(Series::memory_bytes).sum::<usize>()
    }
}

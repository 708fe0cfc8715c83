//! All statistics of a volume at one instant: the source of the formats.

use super::{Capture, Counters, DirtyAge, MeterSnapshot, Rates};
use forebay_core::{Nanos, WrittenBytes};

/// State of a device of a mirrored cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// It is current.
    Ok,
    /// It replaces a failed one, and is not complete yet.
    Filling,
    /// It failed, or is stale.
    Out,
    /// It failed or is missing, and is not open.
    Missing,
}

impl MemberState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Filling, Self::Out, Self::Missing];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Filling => "filling",
            Self::Out => "out",
            Self::Missing => "missing",
        }
    }
}

/// Properties of a volume and its process that are not counted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct About {
    /// Name of the pool; empty if there is none.
    pub pool: String,
    /// Name of the volume.
    pub volume: String,
    /// Name of its mode.
    pub mode: &'static str,
    /// Size of the volume.
    pub size_bytes: u64,
    /// Time since the engine was opened.
    pub uptime_ns: Nanos,
    /// Clients connected now.
    pub connections: u64,
    /// Name of the I/O engine in use.
    pub io_engine: &'static str,
    /// Resident memory of the process, in bytes.
    pub rss_bytes: u64,
    /// The limit on the speed of destage, in a few words; `None` if unknown.
    pub limited_by: Option<&'static str>,
    /// State of the devices, of a pool with a mirrored cache.
    pub members: Option<[MemberState; 2]>,
    /// Bytes written to each device since the start; of a pool only.
    pub devices_written: Vec<(String, WrittenBytes)>,
}

/// Statistics of a volume at one instant.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// Properties that are not counted.
    pub about: About,
    /// Counts since the start, and current values.
    pub counters: Counters,
    /// In the order of [`super::Window::ALL`].
    pub rates: [Rates; 4],
    /// Durations by path.
    pub latency: MeterSnapshot,
    /// Dirty blocks by age; `None` if unknown.
    pub dirty_age: Option<DirtyAge>,
}

/// Data from the thread that serves, from which the requesting thread makes a [`Report`].
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Properties that are not counted.
    pub about: About,
    /// Counts since the start, and current values.
    pub counters: Counters,
    /// In the order of [`super::Window::ALL`].
    pub rates: [Rates; 4],
    /// Durations by path.
    pub latency: Capture,
    /// Dirty blocks by age; `None` if unknown.
    pub dirty_age: Option<DirtyAge>,
}

impl Snapshot {
    /// Performs the longer computations.
    pub fn report(self) -> Report {
        let Self { about, counters, rates, latency, dirty_age } = self;
        Report { about, counters, rates, latency: latency.summarize(), dirty_age }
    }
}

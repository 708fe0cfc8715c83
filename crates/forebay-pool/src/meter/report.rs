//! Everything that is known of a volume at one instant: what the formats are made from.

use super::{Capture, Counters, DirtyAge, MeterSnapshot, Rates};
use forebay_core::{Nanos, WrittenBytes};

/// How a device of a mirrored cache stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemberState {
    /// It counts.
    Ok,
    /// It takes the place of one that failed, and does not have everything yet.
    Filling,
    /// It failed, or is stale.
    Out,
    /// It failed or is missing, and is not open.
    Missing,
}

impl MemberState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Ok, Self::Filling, Self::Out, Self::Missing];

    /// The word for it.
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

/// What is known of a volume and its process besides what is counted.
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
    /// Memory of the process.
    pub rss_bytes: u64,
    /// What keeps destage from being faster, in a few words; `None` if that is not known.
    pub limited_by: Option<&'static str>,
    /// How the devices stand, of a pool whose cache is mirrored.
    pub members: Option<[MemberState; 2]>,
    /// What was written to each device since the start; of a pool only.
    pub devices_written: Vec<(String, WrittenBytes)>,
}

/// Statistics of a volume at one instant.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Report {
    /// What does not count anything.
    pub about: About,
    /// Since the start, and now.
    pub counters: Counters,
    /// In the order of [`super::Window::ALL`].
    pub rates: [Rates; 4],
    /// Durations by path.
    pub latency: MeterSnapshot,
    /// Dirty blocks by age; `None` if that is not known.
    pub dirty_age: Option<DirtyAge>,
}

/// What the thread that serves hands over to the one that asks, which makes a [`Report`] of it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What does not count anything.
    pub about: About,
    /// Since the start, and now.
    pub counters: Counters,
    /// In the order of [`super::Window::ALL`].
    pub rates: [Rates; 4],
    /// Durations by path.
    pub latency: Capture,
    /// Dirty blocks by age; `None` if that is not known.
    pub dirty_age: Option<DirtyAge>,
}

impl Snapshot {
    /// Computes what takes longer.
    pub fn report(self) -> Report {
        let Self { about, counters, rates, latency, dirty_age } = self;
        Report { about, counters, rates, latency: latency.summarize(), dirty_age }
    }
}

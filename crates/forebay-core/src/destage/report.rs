//! What an operator can ask of destage, and what it tells: drains, rates, ages, and why it is not
//! faster.

use crate::api::Nanos;
use crate::api::RequestKind;
use crate::context::Context;
use crate::engine::Engine;
use core::fmt;
use forebay_format::VolumeId;

/// Whether, and how, a volume is being emptied of dirty data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Drain {
    /// It is not.
    #[default]
    Off,
    /// All of it, but clients that wait for the backing store go first; it ends all the same.
    Background,
    /// As fast as the backing store goes, within the operator's limits.
    Full,
}

/// What keeps destage of a volume from going faster, just now.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Limit {
    /// No dirty block waits.
    #[default]
    NothingToDo,
    /// Little is dirty: it waits until the volume has been idle for `idle_delay`.
    IdleDelay,
    /// The rate that keeps `flush_period`.
    AgeDeadline,
    /// The rate that keeps the dirty level, or none since it is low and `idle_delay` is off.
    DirtyLevel,
    /// Clients wait for the backing store and go first.
    ForegroundLatency,
    /// The operator's limit of operations.
    MaxIops,
    /// The operator's limit of bytes.
    MaxBandwidth,
    /// It is as fast as the backing store goes.
    BackingStore,
    /// The backing store failed; the pause before the next attempt.
    RetryAfterFailure,
    /// What is dirty must become durable on the cache device first.
    CacheFlush,
    /// Memory for the blocks under way.
    Scratch,
    /// The blocks that are next are being written past the cache.
    BusyBlocks,
    /// The cache device is fenced, or the engine is stopping.
    Stopped,
}

impl Limit {
    /// In a few words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::NothingToDo => "nothing to do",
            Self::IdleDelay => "idle delay",
            Self::AgeDeadline => "age deadline",
            Self::DirtyLevel => "dirty level",
            Self::ForegroundLatency => "foreground latency",
            Self::MaxIops => "max_destage_iops",
            Self::MaxBandwidth => "max_destage_bandwidth",
            Self::BackingStore => "backing store",
            Self::RetryAfterFailure => "retry after failure",
            Self::CacheFlush => "cache flush",
            Self::Scratch => "scratch memory",
            Self::BusyBlocks => "busy blocks",
            Self::Stopped => "stopped",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// How destage of a volume is going.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DestageReport {
    /// Blocks written back per second, of the last seconds.
    pub rate_blocks_per_s: u64,
    /// The rate aimed at; `None`: as fast as the backing store goes.
    pub target_blocks_per_s: Option<u64>,
    /// Blocks that become dirty per second, of the last seconds; overwrites of dirty blocks are not
    /// counted.
    pub incoming_blocks_per_s: u64,
    /// What keeps it from going faster.
    pub limited_by: Limit,
    /// Time since the oldest dirty data was written; 0 if nothing is dirty.
    pub oldest_dirty_age: Nanos,
    /// Write-backs under way.
    pub in_flight: u32,
    /// Blocks that only the cache has.
    pub dirty_blocks: u64,
    /// Writes, zeroes and discards under way that were taken while the volume was in a write-back
    /// mode: what they write may be dirty once they end, whatever the mode is by now.
    pub write_back_requests: u64,
    /// Blocks that count against the limits: dirty, or not yet marked clean in the log.
    pub unclean_blocks: u64,
    /// Write operations on the backing store for destage since the start.
    pub destage_writes: u64,
    /// Mean latency of clients' operations on the backing store, recent ones counting most; 0 if
    /// there were none.
    pub foreground_mean: Nanos,
    /// Estimate of the 95th percentile of the same.
    pub foreground_p95: Nanos,
    /// Time until the next attempt after a failure.
    pub retry_in: Nanos,
    /// Writes, zeroes and discards of this volume that wait because too much is dirty.
    pub throttled_requests: u64,
}

impl Context {
    fn write_back_requests(&self, volume: VolumeId) -> u64 {
        let writes = |kind: RequestKind| {
            matches!(
                kind,
                RequestKind::Write { .. } | RequestKind::WriteZeroes { .. } | RequestKind::Discard { .. }
            )
        };
        self.reqs.iter().filter(|req| req.volume == volume && req.write_back && writes(req.kind)).count()
            as u64
    }
}

impl Engine {
    /// Starts or ends a drain, see [`Drain`]. It does not end by itself: what becomes dirty later
    /// is drained as well.
    pub fn set_drain(&mut self, now: Nanos, volume: VolumeId, drain: Drain) {
        self.begin(now);
        if let Some(Some(volume)) = self.cx.volumes.get_mut(usize::from(volume.0)) {
            volume.destage.rate.drain = drain;
        }
    }

    /// How destage of a volume is going, and what limits it. `None` if it is not attached.
    #[must_use]
    pub fn destage_report(&self, volume: VolumeId) -> Option<DestageReport> {
        let state = self.cx.volumes.get(usize::from(volume.0))?.as_ref()?;
        let (map, control) = (&self.cx.map.volumes[usize::from(volume.0)], &state.destage.rate);
        let (incoming, outgoing) = control.rates(self.cx.now);
        Some(DestageReport {
            rate_blocks_per_s: outgoing,
            target_blocks_per_s: control.target(),
            incoming_blocks_per_s: incoming,
            limited_by: control.limit(),
            oldest_dirty_age: map.births.oldest().map_or(0, |born| born.age(self.cx.now)),
            in_flight: state.destage.in_flight(),
            dirty_blocks: map.dirty,
            write_back_requests: self.cx.write_back_requests(volume),
            unclean_blocks: map.dirty + map.destaged,
            destage_writes: control.writes(),
            foreground_mean: control.foreground().0,
            foreground_p95: control.foreground().1,
            retry_in: control.backoff_until().saturating_sub(self.cx.now),
            throttled_requests: self.throttle.waiting_of(volume) as u64,
        })
    }

    /// Dirty blocks of a volume by the time since their present bytes were written: below 1 s, 10
    /// s, 1 min, 5 min, 15 min, 1 h, and more. Precise to a quarter of a second or 3 %, never too
    /// young; counted from the opening of the cache for what was dirty then.
    #[must_use]
    pub fn dirty_ages(&self, volume: VolumeId) -> [u64; 7] {
        let map = self.cx.map.volumes.get(usize::from(volume.0));
        map.map_or([0; 7], |map| map.births.classes(self.cx.now))
    }
}

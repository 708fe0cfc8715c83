//! The registry of tunables: the one table from which configuration keys, `forebay get` and `set`,
//! the API, control files, documents, the JSON schema and completions are generated.
//!
//! A tunable is one line in [`VolumeTunables`] or [`PoolTunables`]: its name, its type, its
//! default, its accepted values, when a change applies, and a line of help. The line generates the
//! entry of `TABLE` and the typed field, so that they cannot differ. Names carry the unit where the
//! type does not.

use super::choices::*;
use super::settings::Settings;
use super::value::{AsValue, Choice, Value, ValueKind, nearest};
use crate::KeySource;
use crate::endurance::Endurance;
use crate::rules::DefaultAction;
use forebay_admin::size::ByteSize;
use forebay_core::{
    Admission, DestageOrder, OnBackingChange, PoolSettings, Priority, ReclaimPolicy, VolumeSettings,
};
use forebay_format::checkpoint::Mode;
use forebay_io::{DeviceModel, EnginePreference};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Owner of a tunable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Scope {
    /// A pool.
    Pool,
    /// A volume.
    Volume,
}

impl Scope {
    /// Returns the word, also the name of the section in the configuration file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Volume => "volume",
        }
    }

    /// Returns its tunables.
    #[must_use]
    pub fn tunables(self) -> &'static [Tunable] {
        match self {
            Self::Pool => PoolTunables::TABLE,
            Self::Volume => VolumeTunables::TABLE,
        }
    }
}

/// When a change of a tunable applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applies {
    /// At once, while requests run.
    Live,
    /// When the volume is attached.
    AtAttach,
    /// When the daemon opens the pool.
    AtStart,
    /// Only when the cache is created.
    AtCreation,
}

impl Applies {
    /// Returns words for tables and messages.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::AtAttach => "at attach",
            Self::AtStart => "at start",
            Self::AtCreation => "at creation",
        }
    }
}

/// One tunable.
#[derive(Clone, Copy, Debug)]
pub struct Tunable {
    /// Name.
    pub name: &'static str,
    /// Its owner.
    pub scope: Scope,
    /// Accepted values.
    pub kind: ValueKind,
    /// The default.
    pub default: fn() -> Value,
    /// When a change applies.
    pub applies: Applies,
    /// Its effect, in one line.
    pub help: &'static str,
}

impl Tunable {
    /// Returns the words of a choice; empty for other kinds.
    #[must_use]
    pub fn choices(&self) -> &'static [Choice] {
        if let ValueKind::Choice(choices) = self.kind { choices } else { &[] }
    }
}

/// Returns all tunables, pools first.
pub fn all() -> impl Iterator<Item = &'static Tunable> {
    Scope::Pool.tunables().iter().chain(Scope::Volume.tunables())
}

/// Returns the tunable of a scope with this name.
#[must_use]
pub fn find(scope: Scope, name: &str) -> Option<&'static Tunable> {
    scope.tunables().iter().find(|tunable| tunable.name == name)
}

/// Names of FlashCache that no tunable has. The nearest tunable is often another one, so the page
/// that translates them is the hint.
const FLASHCACHE: &[&str] = &[
    "cache_all",
    "clean_on_read_miss",
    "clean_on_write_miss",
    "dirty_thresh_pct",
    "do_pid_expiry",
    "do_sync",
    "fallow_clean_speed",
    "fallow_delay",
    "fast_remove",
    "io_latency_hist",
    "lru_hot_pct",
    "lru_promote_thresh",
    "max_clean_ios_set",
    "max_clean_ios_total",
    "max_pids",
    "new_style_write_merge",
    "pid_expiry_secs",
    "stop_sync",
    "zero_stats",
];

/// Returns a suggestion for a name that is no tunable of this scope and none of `others`.
#[must_use]
pub fn hint(scope: Scope, name: &str, others: &[&'static str]) -> Option<String> {
    if FLASHCACHE.contains(&name) {
        return Some("that is a name of FlashCache; what it is here: forebay help from-flashcache".into());
    }
    let other = if scope == Scope::Pool { Scope::Volume } else { Scope::Pool };
    if let Some(tunable) = find(other, name) {
        let (name, other, scope) = (tunable.name, other.name(), scope.name());
        return Some(format!("`{name}` belongs to a {other}, not to a {scope}"));
    }
    let known = scope.tunables().iter().map(|tunable| tunable.name).chain(others.iter().copied());
    nearest(name, known).map(|name| format!("did you mean `{name}`?"))
}

/// Generates the typed structure and the table of a scope from the same lines.
macro_rules! tunables {
    ($(#[$doc:meta])* $structure:ident, $scope:ident {
        $($name:ident: $type:ty = $default:expr, $kind:expr, $applies:ident, $help:literal;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $structure { $(#[doc = $help] pub $name: $type,)* }

        impl $structure {
            /// The tunables, in the order of the documents.
            pub const TABLE: &'static [Tunable] = &[$(Tunable {
                name: stringify!($name),
                scope: Scope::$scope,
                kind: $kind,
                default: || <$type>::into_value($default),
                applies: Applies::$applies,
                help: $help,
            },)*];

            /// Takes set values, and defaults for the rest.
            ///
            /// # Panics
            /// If the settings are of another scope.
            #[must_use]
            pub fn new(settings: &Settings) -> Self {
                assert_eq!(settings.scope(), Scope::$scope, "settings of another scope");
                let value = |name| settings.value(name).expect("tested: every line is found by its name");
                Self { $($name: AsValue::from_value(value(stringify!($name)))
                    .expect("tested: the kind of each line gives its type"),)* }
            }
        }

        impl Default for $structure {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }
    };
}

/// Defaults of the engine.
const VOLUME: VolumeSettings = VolumeSettings::DEFAULT;
const POOL: PoolSettings = PoolSettings::DEFAULT;

/// Returns a time of the engine, in nanoseconds, where 0 is off.
const fn time(ns: u64) -> Option<Duration> {
    if ns == 0 { None } else { Some(Duration::from_nanos(ns)) }
}

const fn percent(range: RangeInclusive<u32>) -> ValueKind {
    ValueKind::Percent { min: *range.start() as u64, max: *range.end() as u64 }
}

const fn count(range: RangeInclusive<u32>, unit: &'static str) -> ValueKind {
    let (min, max) = (*range.start() as u64, *range.end() as u64);
    ValueKind::Count { min, max, unit, zero: None, auto: false }
}

const fn size(min: u64, max: u64) -> ValueKind {
    ValueKind::Size { min, max, power_of_two: false, auto: false }
}

const fn duration(min: Duration, max: Duration, off: bool) -> ValueKind {
    ValueKind::Duration { min, max, off }
}

/// Maximum of all wait times and ages.
const DAYS_30: Duration = Duration::from_secs(30 * 24 * 3600);
/// Shortest useful interval of work that the engine does many times per second.
const MS: Duration = Duration::from_millis(1);
const IOPS: ValueKind = ValueKind::Count {
    min: 0,
    max: 10_000_000,
    unit: "operations per second",
    zero: Some("unlimited"),
    auto: false,
};
const KIB: ValueKind = ValueKind::Count { min: 0, max: 1 << 30, unit: "KiB", zero: Some("off"), auto: false };

tunables! {
    /// Settings of one volume, checked.
    VolumeTunables, Volume {
        mode: Mode = VOLUME.mode, ValueKind::Choice(Mode::CHOICES), Live,
            "how the volume uses its cache";
        destage_order: DestageOrder = VOLUME.destage_order, ValueKind::Choice(DestageOrder::CHOICES), Live,
            "which dirty block is written back first";
        flush_period: Option<Duration> = time(VOLUME.flush_period), duration(Duration::from_secs(1), DAYS_30, true), Live,
            "no block stays dirty for longer; destage of due blocks is spread evenly over the period";
        idle_delay: Option<Duration> = time(VOLUME.idle_delay), duration(MS, DAYS_30, true), Live,
            "a volume without requests for this long is written back completely";
        dirty_low_pct: u32 = VOLUME.dirty_low_pct, percent(VolumeSettings::DIRTY_LOW_PCT), Live,
            "destage begins above this dirty share of the pool's capacity";
        dirty_high_pct: u32 = VOLUME.dirty_high_pct, percent(VolumeSettings::DIRTY_HIGH_PCT), Live,
            "writers are slowed to the speed of the backing store at this dirty share of the pool's capacity";
        max_destage_iops: u32 = VOLUME.max_destage_iops, IOPS, Live,
            "destage writes at most this many times a second";
        max_destage_bandwidth: ByteSize = ByteSize(VOLUME.max_destage_bytes_per_s), ValueKind::Rate, Live,
            "destage writes at most this much a second";
        latency_target: Option<Duration> = time(VOLUME.latency_target), duration(MS, Duration::from_secs(10), true), Live,
            "destage yields when requests wait longer than this for the backing store";
        destage_depth_max: u32 = VOLUME.destage_depth_max, count(VolumeSettings::DESTAGE_DEPTH_MAX, "operations"), Live,
            "destage operations in flight under pressure";
        destage_gap_kb: u64 = VOLUME.destage_gap_bytes / 1024, KIB, Live,
            "widest gap between dirty blocks that is written along with them where that is faster";
        admission: Admission = VOLUME.admission, ValueKind::Choice(Admission::CHOICES), Live,
            "which read misses are stored in the cache";
        skip_seq_thresh_kb: u64 = VOLUME.skip_sequential_bytes / 1024, KIB, Live,
            "a sequential stream bypasses the cache once it is this long";
        min_share_pct: u32 = VOLUME.min_share_pct, percent(VolumeSettings::MIN_SHARE_PCT), Live,
            "share of the pool's capacity that other volumes cannot take from this one";
        max_share_pct: u32 = VOLUME.max_share_pct, percent(VolumeSettings::MAX_SHARE_PCT), Live,
            "share of the pool's capacity that this volume can have";
        priority: Priority = VOLUME.priority, ValueKind::Choice(Priority::CHOICES), Live,
            "whose dirty data is written back first when volumes share a backing device or a pool";
        zero_direct_min: ByteSize = ByteSize(VOLUME.zero_direct_min_bytes), size(4096, 1 << 40), Live,
            "zeroes and discards from this size on go to the backing store at once";
        default_action: DefaultAction = DefaultAction::Cache, ValueKind::Choice(DefaultAction::CHOICES), Live,
            "what happens to a request that no rule matches";
        on_backing_change: OnBackingChange = OnBackingChange::Refuse, ValueKind::Choice(OnBackingChange::CHOICES), AtAttach,
            "what to do if the backing store was changed while the cache was away";
        connections_max: u32 = 1024, count(1..=60_000, "connections"), AtAttach,
            "connections to this volume at once; further ones are refused";
        store_timeout: Option<Duration> = None, duration(Duration::from_secs(1), DAYS_30, true), AtAttach,
            "how long requests wait for a network store that is away, before they fail";
        store_quarantine: Duration = Duration::from_secs(30), duration(Duration::from_secs(1), Duration::from_secs(3600), false), AtAttach,
            "how long the server of a network store must have answered again before a write whose connection broke is repeated";
        emulate: Option<DeviceModel> = None, ValueKind::Device, AtAttach,
            "a device to imitate in front of the backing store, for demonstrations and measurements";
    }
}

tunables! {
    /// Settings of one pool, checked.
    PoolTunables, Pool {
        reclaim_policy: ReclaimPolicy = POOL.reclaim_policy, ValueKind::Choice(ReclaimPolicy::CHOICES), Live,
            "which blocks are evicted when the cache is full";
        survivors_max_pct: u32 = POOL.survivors_max_pct, percent(PoolSettings::SURVIVORS_MAX_PCT), Live,
            "share of a reclaimed segment that may be moved instead of evicted, because there is room or it was hit: bounds extra writes to the flash";
        dirty_limit_pct: u32 = POOL.dirty_limit_pct, percent(PoolSettings::DIRTY_LIMIT_PCT), Live,
            "dirty share of the pool's capacity that all volumes together do not exceed";
        batches_in_flight: u32 = POOL.batches_in_flight, count(PoolSettings::BATCHES_IN_FLIGHT, "writes"), Live,
            "log writes in flight for each stream";
        discard_freed: bool = POOL.discard_freed, ValueKind::Choice(DISCARD_FREED), Live,
            "discard empty segments on the cache device, one after the other";
        endurance_budget: Option<Endurance> = None, ValueKind::Endurance { rating: false }, Live,
            "bytes that may be written to the pool's devices in a day: fills and kept blocks are held back, clients never";
        endurance_rating: Option<Endurance> = None, ValueKind::Endurance { rating: true }, Live,
            "bytes that may be written to each device in its life, by its data sheet";
        buffer_memory: ByteSize = ByteSize(512 << 20), size(192 << 20, 1 << 40), AtStart,
            "memory for requests in flight, all clients of the pool together";
        pool_connections_max: u32 = 1024, count(1..=60_000, "connections"), AtStart,
            "connections to all volumes of the pool at once; further ones are closed";
        scratch_size: ByteSize = ByteSize(16 << 20), size(1 << 20, 32 << 20), AtStart,
            "memory for destage, fills and merges";
        spin: Duration = Duration::from_micros(50), duration(Duration::ZERO, Duration::from_millis(10), false), AtStart,
            "poll at most this long for completions before sleeping; how long is learned, an idle pool sleeps";
        nice_boost: u32 = 10, count(0..=20, "steps"), AtStart,
            "raise the priority of the pool's thread by this much niceness, if the process may; 0: do not";
        io_threads: Option<u32> = None,
            ValueKind::Count { min: 0, max: 16, unit: "threads", zero: None, auto: true }, AtStart,
            "threads that take over work when the pool's thread is busy; auto: one for four processors, four at most";
        io_threads_busy_pct: u32 = 90, percent(0..=100), AtStart,
            "they get work if the pool's thread is busy for this share of the time; 0: always everything";
        io: EnginePreference = EnginePreference::Auto, ValueKind::Choice(EnginePreference::CHOICES), AtStart,
            "how operations reach the kernel";
        emulate_cache: Option<DeviceModel> = None, ValueKind::Device, AtStart,
            "a device to imitate in front of each cache device, for measurements";
        encryption_key_file: Option<KeySource> = None, ValueKind::Key, AtStart,
            "the cache is encrypted with the key in this file, or in this credential of the service; a cache is made with it or without";
        segment_size: Option<ByteSize> = None,
            ValueKind::Size { min: 64 << 10, max: 64 << 20, power_of_two: true, auto: true }, AtCreation,
            "the unit in which the cache is filled and emptied; auto: by the size of the cache";
        cache_allocation: CacheAllocation = CacheAllocation::Full, ValueKind::Choice(CacheAllocation::CHOICES), AtCreation,
            "how the space of a new cache file is allocated";
        mirror: Mirror = Mirror::Off, ValueKind::Choice(Mirror::CHOICES), AtCreation,
            "keep dirty data on both devices of the cache";
    }
}

#[cfg(test)]
#[path = "tunables_tests.rs"]
mod tests;

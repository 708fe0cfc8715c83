//! The registry of tunables: the one table from which configuration keys, `forebay get` and `set`,
//! the API, control files, documents, the JSON schema and completions are generated.
//!
//! A tunable is one line in [`VolumeTunables`] or [`PoolTunables`]: its name, its type, its default
//! as text, its accepted values, when a change applies, and a line of help. The line generates the
//! entry of `TABLE` and the typed field, so that they cannot differ. Names carry the unit where the
//! type does not.

use super::choices::*;
use super::settings::Settings;
use super::value::{Choice, Value, ValueError, ValueKind, nearest};
use crate::KeySource;
use crate::endurance::Endurance;
use forebay_export::size::ByteSize;
use forebay_io::DeviceModel;
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

/// Translation of values under another name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Translate {
    /// None.
    Same,
    /// A plain number is seconds, and 0 is off.
    Seconds,
    /// By these words; other values are read unchanged.
    Words(&'static [(&'static str, &'static str)]),
}

/// FlashCache's name for a tunable. It is accepted wherever the name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Alias {
    /// The other name; or the same name, if only the values differ.
    pub name: &'static str,
    /// Translation of its values.
    pub translate: Translate,
}

/// One tunable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tunable {
    /// Name.
    pub name: &'static str,
    /// Its owner.
    pub scope: Scope,
    /// Accepted values.
    pub kind: ValueKind,
    /// Default, as text.
    pub default: &'static str,
    /// When a change applies.
    pub applies: Applies,
    /// Its effect, in one line.
    pub help: &'static str,
    /// Other names.
    pub aliases: &'static [Alias],
}

impl Tunable {
    /// Reads a value given under `name`, the name of the tunable or of an alias.
    ///
    /// # Errors
    /// If the text is no such value, or out of range.
    pub fn parse_as(&self, name: &str, text: &str) -> Result<Value, ValueError> {
        let translate = self.aliases.iter().find(|alias| alias.name == name).map(|alias| alias.translate);
        match translate {
            Some(Translate::Seconds) if text == "0" => self.kind.parse("off"),
            Some(Translate::Seconds) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.kind.parse(&format!("{text}s"))
            }
            Some(Translate::Words(words)) => {
                let ours = words.iter().find(|(theirs, _)| *theirs == text);
                self.kind.parse(ours.map_or(text, |(_, ours)| ours))
            }
            _ => self.kind.parse(text),
        }
    }

    /// Returns the default as a value.
    ///
    /// # Panics
    /// If the table is wrong, which a test excludes.
    #[must_use]
    pub fn default_value(&self) -> Value {
        self.kind.parse(self.default).expect("tested: every default is a value of its kind")
    }

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

/// Returns the tunable of a scope with this name or alias.
#[must_use]
pub fn find(scope: Scope, name: &str) -> Option<&'static Tunable> {
    let table = scope.tunables();
    let by_name = table.iter().find(|tunable| tunable.name == name);
    by_name.or_else(|| table.iter().find(|tunable| tunable.aliases.iter().any(|alias| alias.name == name)))
}

/// Returns a suggestion for a name that is no tunable of this scope and none of `others`.
#[must_use]
pub fn hint(scope: Scope, name: &str, others: &[&'static str]) -> Option<String> {
    if let Some((_, instead)) = FLASHCACHE_OTHERWISE.iter().find(|(theirs, _)| *theirs == name) {
        return Some((*instead).to_owned());
    }
    let other = if scope == Scope::Pool { Scope::Volume } else { Scope::Pool };
    if let Some(tunable) = find(other, name) {
        let (name, other, scope) = (tunable.name, other.name(), scope.name());
        return Some(format!("`{name}` belongs to a {other}, not to a {scope}"));
    }
    let known = scope.tunables().iter().map(|tunable| tunable.name).chain(others.iter().copied());
    nearest(name, known).map(|name| format!("did you mean `{name}`?"))
}

/// Settings of FlashCache that correspond to something other than a tunable.
pub const FLASHCACHE_OTHERWISE: &[(&str, &str)] = &[
    ("do_sync", "FlashCache's do_sync is a command here: forebay flush VOLUME"),
    ("stop_sync", "FlashCache's stop_sync is a command here: forebay jobs ID --cancel"),
    ("zero_stats", "counters are not reset here: take the difference of two readings"),
    ("fast_remove", "the command decides what a volume leaves in the cache: forebay volume detach"),
    ("max_clean_ios_set", "there are no sets here; destage_depth_max limits the whole"),
    (
        "fallow_clean_speed",
        "there are no sets here; max_destage_iops and max_destage_bandwidth limit the whole",
    ),
    ("max_pids", "lists of processes are rules here: [[volume.NAME.rule]]"),
    ("do_pid_expiry", "a rule has its own `expires`: [[volume.NAME.rule]]"),
    ("pid_expiry_secs", "a rule has its own `expires`: [[volume.NAME.rule]]"),
    ("io_latency_hist", "histograms of latency are always on: forebay stats VOLUME"),
    ("lru_promote_thresh", "no such number here; reclaim_policy chooses the policy"),
    ("lru_hot_pct", "survivors_max_pct limits how many blocks are kept because of hits"),
];

/// Types that a value can be converted to.
pub(crate) trait FromValue: Sized {
    /// Returns nothing if the value is of another kind.
    fn from_value(value: Value) -> Option<Self>;
}

impl FromValue for u64 {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Count(number) = value { Some(number) } else { None }
    }
}

impl FromValue for u32 {
    fn from_value(value: Value) -> Option<Self> {
        u64::from_value(value).and_then(|number| number.try_into().ok())
    }
}

impl FromValue for Option<u32> {
    fn from_value(value: Value) -> Option<Self> {
        if value == Value::Auto { Some(None) } else { u32::from_value(value).map(Some) }
    }
}

impl FromValue for ByteSize {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Size(size) = value { Some(size) } else { None }
    }
}

impl FromValue for Option<ByteSize> {
    fn from_value(value: Value) -> Option<Self> {
        if value == Value::Auto { Some(None) } else { ByteSize::from_value(value).map(Some) }
    }
}

impl FromValue for Duration {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Duration(time) = value { Some(time) } else { None }
    }
}

impl FromValue for Option<KeySource> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Off => Some(None),
            Value::Key(source) => Some(Some(source)),
            _ => None,
        }
    }
}

impl FromValue for Option<Endurance> {
    fn from_value(value: Value) -> Option<Self> {
        match value {
            Value::Off => Some(None),
            Value::Endurance(amount) => Some(Some(amount)),
            _ => None,
        }
    }
}

impl FromValue for Option<DeviceModel> {
    fn from_value(value: Value) -> Option<Self> {
        if let Value::Device(model) = value { Some(model) } else { None }
    }
}

impl FromValue for Option<Duration> {
    fn from_value(value: Value) -> Option<Self> {
        if value == Value::Off { Some(None) } else { Duration::from_value(value).map(Some) }
    }
}

/// Generates the typed structure and the table of a scope from the same lines.
macro_rules! tunables {
    ($(#[$doc:meta])* $structure:ident, $scope:ident {
        $($name:ident: $type:ty = $default:literal, $kind:expr, $applies:ident, $help:literal $(, [$($alias:expr),*])?;)*
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
                default: $default,
                applies: Applies::$applies,
                help: $help,
                aliases: &[$($($alias),*)?],
            },)*];

            /// Takes set values, and defaults for the rest.
            ///
            /// # Panics
            /// If the settings are of another scope.
            #[must_use]
            pub fn new(settings: &Settings) -> Self {
                assert_eq!(settings.scope(), Scope::$scope, "settings of another scope");
                let value = |name| settings.value(name).expect("tested: every line is found by its name");
                Self { $($name: FromValue::from_value(value(stringify!($name)))
                    .expect("tested: the kind of each line gives its type"),)* }
            }
        }

        impl Default for $structure {
            fn default() -> Self {
                Self::new(&Settings::new(Scope::$scope))
            }
        }
    };
}

const fn percent(min: u64, max: u64) -> ValueKind {
    ValueKind::Percent { min, max }
}

const fn count(min: u64, max: u64, unit: &'static str) -> ValueKind {
    ValueKind::Count { min, max, unit, zero: None, auto: false }
}

const fn size(min: u64, max: u64) -> ValueKind {
    ValueKind::Size { min, max, power_of_two: false, auto: false }
}

const fn duration(min: Duration, max: Duration, off: bool) -> ValueKind {
    ValueKind::Duration { min, max, off }
}

const fn same(name: &'static str) -> Alias {
    Alias { name, translate: Translate::Same }
}

const fn words(name: &'static str, words: &'static [(&'static str, &'static str)]) -> Alias {
    Alias { name, translate: Translate::Words(words) }
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
        mode: VolumeMode = "writeback", ValueKind::Choice(VolumeMode::CHOICES), Live,
            "how the volume uses its cache";
        destage_order: DestageOrder = "elevator", ValueKind::Choice(DestageOrder::CHOICES), Live,
            "which dirty block is written back first";
        flush_period: Option<Duration> = "off", duration(Duration::from_secs(1), DAYS_30, true), Live,
            "no block stays dirty for longer; destage of due blocks is spread evenly over the period";
        idle_delay: Option<Duration> = "5s", duration(MS, DAYS_30, true), Live,
            "a volume without requests for this long is written back completely",
            [Alias { name: "fallow_delay", translate: Translate::Seconds }];
        dirty_low_pct: u32 = "10", percent(0, 100), Live,
            "destage begins above this dirty share of the pool's capacity", [same("dirty_thresh_pct")];
        dirty_high_pct: u32 = "70", percent(1, 90), Live,
            "writers are slowed to the speed of the backing store at this dirty share of the pool's capacity";
        max_destage_iops: u32 = "0", IOPS, Live,
            "destage writes at most this many times a second";
        max_destage_bandwidth: ByteSize = "0", ValueKind::Rate, Live,
            "destage writes at most this much a second";
        latency_target: Option<Duration> = "20ms", duration(MS, Duration::from_secs(10), true), Live,
            "destage yields when requests wait longer than this for the backing store";
        destage_depth_max: u32 = "16", count(1, 256, "operations"), Live,
            "destage operations in flight under pressure", [same("max_clean_ios_total")];
        destage_gap_kb: u64 = "512", KIB, Live,
            "widest gap between dirty blocks that is written along with them where that is faster";
        admission: Admission = "always", ValueKind::Choice(Admission::CHOICES), Live,
            "which read misses are stored in the cache";
        skip_seq_thresh_kb: u64 = "0", KIB, Live,
            "a sequential stream bypasses the cache once it is this long", [same("skip_seq_thresh_kb")];
        min_share_pct: u32 = "0", percent(0, 100), Live,
            "share of the pool's capacity that other volumes cannot take from this one";
        max_share_pct: u32 = "100", percent(1, 100), Live,
            "share of the pool's capacity that this volume can have";
        priority: Priority = "normal", ValueKind::Choice(Priority::CHOICES), Live,
            "whose dirty data is written back first when volumes share a backing device or a pool";
        zero_direct_min: ByteSize = "1MiB", size(4096, 1 << 40), Live,
            "zeroes and discards from this size on go to the backing store at once";
        default_action: DefaultAction = "cache", ValueKind::Choice(DefaultAction::CHOICES), Live,
            "what happens to a request that no rule matches", [words("cache_all", &[("1", "cache"), ("0", "bypass")])];
        on_backing_change: OnBackingChange = "refuse", ValueKind::Choice(OnBackingChange::CHOICES), AtAttach,
            "what to do if the backing store was changed while the cache was away";
        connections_max: u32 = "1024", count(1, 60_000, "connections"), AtAttach,
            "connections to this volume at once; further ones are refused";
        emulate: Option<DeviceModel> = "none", ValueKind::Device, AtAttach,
            "a device to imitate in front of the backing store, for demonstrations and measurements";
    }
}

tunables! {
    /// Settings of one pool, checked.
    PoolTunables, Pool {
        reclaim_policy: ReclaimPolicy = "s3fifo", ValueKind::Choice(ReclaimPolicy::CHOICES), Live,
            "which blocks are evicted when the cache is full", [words("reclaim_policy", &[("0", "fifo"), ("1", "lru")])];
        survivors_max_pct: u32 = "75", percent(0, 90), Live,
            "share of a reclaimed segment that may be moved instead of evicted, because there is room or it was hit: bounds extra writes to the flash";
        dirty_limit_pct: u32 = "80", percent(1, 90), Live,
            "dirty share of the pool's capacity that all volumes together do not exceed";
        batches_in_flight: u32 = "4", count(1, 64, "writes"), Live,
            "log writes in flight for each stream";
        discard_freed: DiscardFreed = "off", ValueKind::Choice(DiscardFreed::CHOICES), Live,
            "discard empty segments on the cache device, one after the other";
        endurance_budget: Option<Endurance> = "off", ValueKind::Endurance { rating: false }, Live,
            "bytes that may be written to the pool's devices in a day: fills and kept blocks are held back, clients never";
        endurance_rating: Option<Endurance> = "off", ValueKind::Endurance { rating: true }, Live,
            "bytes that may be written to each device in its life, by its data sheet";
        buffer_memory: ByteSize = "512MiB", size(192 << 20, 1 << 40), AtStart,
            "memory for requests in flight, all clients of the pool together";
        pool_connections_max: u32 = "1024", count(1, 60_000, "connections"), AtStart,
            "connections to all volumes of the pool at once; further ones are closed";
        scratch_size: ByteSize = "16MiB", size(1 << 20, 32 << 20), AtStart,
            "memory for destage, fills and merges";
        spin: Duration = "50us", duration(Duration::ZERO, Duration::from_millis(10), false), AtStart,
            "poll at most this long for completions before sleeping; how long is learned, an idle pool sleeps";
        nice_boost: u32 = "10", count(0, 20, "steps"), AtStart,
            "raise the priority of the pool's thread by this much niceness, if the process may; 0: do not";
        io_threads: Option<u32> = "auto",
            ValueKind::Count { min: 0, max: 16, unit: "threads", zero: None, auto: true }, AtStart,
            "threads that take over work when the pool's thread is busy; auto: one for four processors, four at most";
        io_threads_busy_pct: u32 = "90", percent(0, 100), AtStart,
            "they get work if the pool's thread is busy for this share of the time; 0: always everything";
        io: IoEngine = "auto", ValueKind::Choice(IoEngine::CHOICES), AtStart,
            "how operations reach the kernel";
        emulate_cache: Option<DeviceModel> = "none", ValueKind::Device, AtStart,
            "a device to imitate in front of each cache device, for measurements";
        encryption_key_file: Option<KeySource> = "off", ValueKind::Key, AtStart,
            "the cache is encrypted with the key in this file, or in this credential of the service; a cache is made with it or without";
        segment_size: Option<ByteSize> = "auto",
            ValueKind::Size { min: 64 << 10, max: 64 << 20, power_of_two: true, auto: true }, AtCreation,
            "the unit in which the cache is filled and emptied; auto: by the size of the cache";
        cache_allocation: CacheAllocation = "full", ValueKind::Choice(CacheAllocation::CHOICES), AtCreation,
            "how the space of a new cache file is allocated";
        mirror: Mirror = "off", ValueKind::Choice(Mirror::CHOICES), AtCreation,
            "keep dirty data on both devices of the cache";
    }
}

#[cfg(test)]
#[path = "tunables_tests.rs"]
mod tests;

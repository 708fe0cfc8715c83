//! Answers to the operator: states, and results of changes.

use crate::flash::{EnduranceInfo, FlashInfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DaemonInfo {
    /// Version of the program.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Start time, in seconds since 1970.
    pub started_unix_s: u64,
    /// Configuration file; `None` for `forebay run`.
    pub config: Option<String>,
    /// Memory of the process in bytes.
    pub resident_bytes: u64,
    /// Names of the pools.
    pub pools: Vec<String>,
    /// Names of the volumes.
    pub volumes: Vec<String>,
    /// Address and port where `/metrics` is served without a token.
    #[serde(default)]
    pub metrics: Option<String>,
    /// Result of the last upgrade that this process knows of.
    #[serde(default)]
    pub upgrade: Option<UpgradeInfo>,
}

/// Result of an upgrade, from the successor that took over, or from the daemon that continues
/// because the successor could not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UpgradeInfo {
    /// Process id of the predecessor.
    pub from_pid: u32,
    /// Version of the predecessor.
    pub from_version: String,
    /// Process id of the successor.
    pub to_pid: u32,
    /// How long clients had to wait, in milliseconds.
    pub paused_ms: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// An upgrade has begun: the successor runs and has read the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UpgradeBegun {
    /// Process id of the predecessor.
    pub from_pid: u32,
    /// Process id of the successor.
    pub pid: u32,
    /// Version of the successor.
    pub version: String,
    /// Admin socket of the successor, if the configuration file now names another one.
    #[serde(default)]
    pub admin_socket: Option<String>,
}

/// A cache device of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceInfo {
    /// Path.
    pub path: String,
    /// Bytes that the pool uses.
    pub size_bytes: u64,
    /// `deleted`, `unlinked`, `renamed` or `unreachable` if its path no longer leads to it, `short`
    /// if it has fewer bytes than the pool uses. Otherwise, in a mirrored cache: `ok`, `filling`
    /// (it replaces a device that failed), or `out` (it is recorded as stale); otherwise empty.
    #[serde(default)]
    pub state: String,
    /// Copy onto the device that will replace it, while one runs.
    #[serde(default)]
    pub copied: Option<CopyInfo>,
    /// Writes to it; only while the pool is open.
    #[serde(default)]
    pub flash: Option<FlashInfo>,
}

/// Copy of a device onto its replacement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CopyInfo {
    /// Path of the replacement.
    pub to: String,
    /// Bytes left to copy; 0 while the replacement takes effect.
    pub left_bytes: u64,
}

/// An imported pool, or, in a dry run, a pool to import.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImportInfo {
    /// Name of the pool on this host.
    pub pool: String,
    /// Identity of its cache.
    pub cache: String,
    /// Host that exported it.
    pub exported_by: String,
    /// When it was exported, in seconds since 1970.
    pub exported_unix_s: u64,
    /// Its cache devices in the order of their space.
    pub devices: Vec<String>,
    /// Path of the key of an encrypted cache.
    #[serde(default)]
    pub key_file: Option<String>,
    /// The signature with the cache's key proves that its own export wrote the settings.
    #[serde(default)]
    pub signed: bool,
    /// Its volumes.
    pub volumes: Vec<ImportedVolume>,
    /// Volumes without settings that have dirty data in the cache: they were not attached when the
    /// pool was exported. Empty in a dry run, which does not open the cache.
    #[serde(default)]
    pub absent: Vec<VolumeInfo>,
    /// Options that the command lacks, in a dry run: the values that they name take effect only if
    /// the operator gives the option.
    #[serde(default)]
    pub unconfirmed: Vec<String>,
    /// Nothing was changed.
    pub dry_run: bool,
}

/// A volume of an imported pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImportedVolume {
    /// Name.
    pub name: String,
    /// URI of its backing store.
    pub backing: String,
    /// Former URI of its backing store, if it differs.
    #[serde(default)]
    pub was: Option<String>,
    /// Its exports, as URIs.
    #[serde(default)]
    pub exports: Vec<String>,
    /// The volume is served; in a dry run: its backing store is present.
    pub attached: bool,
    /// Why it is not attached.
    #[serde(default)]
    pub why: Option<String>,
    /// Bytes of lost data: the cache can no longer return them. 0 in a dry run.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Warnings, as in `VolumeInfo`.
    #[serde(default)]
    pub warnings: Vec<WarningInfo>,
}

/// A pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct PoolInfo {
    /// Name.
    pub name: String,
    /// Cache devices in the order of their space.
    pub devices: Vec<DeviceInfo>,
    /// Capacity for blocks, in bytes.
    pub capacity_bytes: u64,
    /// Bytes of cached blocks.
    pub cached_bytes: u64,
    /// Bytes of dirty blocks.
    pub dirty_bytes: u64,
    /// Largest size to which it can grow, in bytes.
    pub growable_to_bytes: u64,
    /// The cache device failed: writes wait until that is recorded, or, with `cache_failed`, bypass
    /// it.
    pub fenced: bool,
    /// The cache device failed, and the volumes are served without it.
    #[serde(default)]
    pub cache_failed: bool,
    /// State of a mirrored cache: `whole`, `degraded` (one device is recorded as stale), or
    /// `rebuilding N of M segments`; empty if it is not mirrored.
    #[serde(default)]
    pub mirror: String,
    /// Bytes of lost data: reads of them return errors until they are rewritten.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Number of lost ranges.
    #[serde(default)]
    pub lost_ranges: u64,
    /// How I/O operations reach the kernel: `io_uring` or `psync`.
    pub io_engine: String,
    /// Job that runs on the pool as a whole.
    #[serde(default)]
    pub job: Option<String>,
    /// State of its endurance budget, if it has one.
    #[serde(default)]
    pub endurance: Option<EnduranceInfo>,
    /// Names of its volumes.
    pub volumes: Vec<String>,
    /// Volumes that are not attached and have data in the cache, with the bytes of dirty data.
    pub absent: BTreeMap<String, u64>,
    /// The pool is configured, and could not be opened or has stopped by itself: only the recorded
    /// state of its cache is known.
    #[serde(default)]
    pub not_open: bool,
    /// The pool is open and does not answer: only the recorded state of its cache is known.
    #[serde(default)]
    pub not_answering: bool,
    /// Why it is not open, if known, or how long it has not answered.
    #[serde(default)]
    pub why: Option<String>,
    /// Record of its cache in the state directory, outside of its devices.
    #[serde(default)]
    pub recorded: Option<RecordedInfo>,
}

impl PoolInfo {
    /// Returns whether only the recorded state of its cache is known.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.not_open || self.not_answering
    }

    /// Creates the answer for a pool that is not open.
    #[must_use]
    pub fn closed(name: String, devices: Vec<DeviceInfo>, recorded: Option<RecordedInfo>) -> Self {
        Self {
            name,
            devices,
            recorded,
            capacity_bytes: 0,
            cached_bytes: 0,
            dirty_bytes: 0,
            growable_to_bytes: 0,
            fenced: false,
            cache_failed: false,
            mirror: String::new(),
            lost_bytes: 0,
            lost_ranges: 0,
            io_engine: String::new(),
            job: None,
            endurance: None,
            volumes: Vec::new(),
            absent: BTreeMap::new(),
            not_open: true,
            not_answering: false,
            why: None,
        }
    }
}

/// Record of a cache outside of its devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RecordedInfo {
    /// Identity of the cache.
    pub cache: String,
    /// Path of the record.
    pub path: String,
    /// Generation of its superblock: a device with a lower one is an older copy.
    pub generation: u64,
    /// The cache is open, or had no orderly stop.
    pub in_use: bool,
    /// Bytes of dirty data at the time of the record.
    pub dirty_bytes: u64,
    /// Time of the record, in seconds since 1970.
    pub recorded_unix_s: u64,
}

/// State of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Being attached.
    Attaching,
    /// Served.
    Serving,
    /// Served, but an export ended without the daemon: another program unmounted or covered its
    /// file, or removed its block device.
    ExportLost,
    /// Being drained for a detach; still served, and writes go through to the backing store.
    Draining,
    /// Being detached; no longer served.
    Detaching,
    /// Not served: it is configured and could not be attached, or the cache has dirty data of it
    /// from an earlier time.
    Absent,
    /// Its pool does not answer.
    Unknown,
}

impl VolumeState {
    /// Returns whether the pool serves the volume and no attach or detach is in progress.
    pub fn is_served(self) -> bool {
        matches!(self, VolumeState::Serving | VolumeState::ExportLost)
    }

    /// Returns the name in the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            VolumeState::Attaching => "attaching",
            VolumeState::Serving => "serving",
            VolumeState::ExportLost => "export-lost",
            VolumeState::Draining => "draining",
            VolumeState::Detaching => "detaching",
            VolumeState::Absent => "absent",
            VolumeState::Unknown => "unknown",
        }
    }
}

/// A volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeInfo {
    /// Name.
    pub name: String,
    /// Pool that caches it.
    pub pool: String,
    /// Its state.
    pub state: VolumeState,
    /// URI of the backing store.
    pub backing: String,
    /// State of the backing store of an attached volume: `ok`; `short` (it has fewer bytes than the
    /// volume uses); `unplugged` (the kernel has removed the device); `away` (the server of a
    /// network store does not answer); `failing` (the last read, write or flush failed, and none
    /// has succeeded since); or, if its path no longer leads to it, `deleted` (it is gone when it
    /// is closed), `unlinked` (it has other names), `renamed` or `unreachable`.
    #[serde(default)]
    pub backing_state: String,
    /// Its problem, and the suggested action.
    #[serde(default)]
    pub backing_why: Option<String>,
    /// URIs under which clients reach it.
    pub exports: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Sector of the backing store, 512 (also of files) or 4096 bytes, which block devices and
    /// disks of virtual machines report too; 0 while it is not attached.
    #[serde(default)]
    pub sector_bytes: u32,
    /// Mode.
    pub mode: String,
    /// Bytes of cached blocks; null if unknown, because its pool is not open or does not answer.
    pub cached_bytes: Option<u64>,
    /// Bytes of dirty blocks; null as `cached_bytes`.
    pub dirty_bytes: Option<u64>,
    /// Age of the oldest dirty block.
    pub oldest_dirty_age_ns: u64,
    /// Current limit of destage, in words.
    pub destage_limited_by: String,
    /// The backing store alone is an older, crash-consistent image (`destage_order = ordered`, in
    /// effect).
    pub ordered: bool,
    /// Number of users: connected clients, and open handles of its file.
    pub connections: u64,
    /// Job that changes it or writes it back; recordings do not count.
    pub job: Option<String>,
    /// Bytes of lost data: reads of them return errors until they are rewritten.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Number of lost ranges; `/losses` lists them.
    #[serde(default)]
    pub lost_ranges: u64,
    /// Why it is not attached, if its state is absent.
    #[serde(default)]
    pub why: Option<String>,
    /// How requests of its files reach the daemon, for each mounted `fuse:` export.
    #[serde(default)]
    pub files: Vec<FileInfo>,
    /// Settings that are allowed but look like mistakes: the warnings of `forebay config check`.
    #[serde(default)]
    pub warnings: Vec<WarningInfo>,
}

/// A setting that is allowed but looks like a mistake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct WarningInfo {
    /// Id of the message, for scripts.
    pub id: String,
    /// In words.
    pub what: String,
    /// Suggested action.
    pub hint: String,
}

/// How requests of a volume's file reach the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    /// URI of the export.
    pub export: String,
    /// `io_uring`, or `/dev/fuse`.
    pub over: String,
    /// In words: the number of concurrent requests; or why io_uring is not used, and how to enable
    /// it.
    pub detail: String,
}

/// A range of lost data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LossInfo {
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// When the oldest of them were written, in seconds since 1970.
    pub written_unix_s: u64,
}

/// Predicted effect of other cache sizes on a volume, or on a whole pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AdviceInfo {
    /// Pool.
    pub pool: String,
    /// Volume; empty if the advice is about the whole pool.
    pub volume: String,
    /// Time since counting began, in seconds.
    pub seen_s: u64,
    /// Bytes of cacheable reads since then.
    pub read_bytes: u64,
    /// Current capacity of the cache, in bytes.
    pub capacity_bytes: u64,
    /// Mean time of a read hit, in microseconds, since the start; `null` if there was none.
    pub read_hit_mean_us: Option<f64>,
    /// Mean time of a read that needed the backing store, likewise.
    pub read_miss_mean_us: Option<f64>,
    /// By size, smallest first; empty until something is read.
    pub sizes: Vec<AdviceSize>,
    /// Advice in one sentence.
    #[serde(default)]
    pub verdict: String,
    /// Estimated error of the shares of hits, in percentage points (two standard errors); `null` if
    /// too little was read.
    #[serde(default)]
    pub error_points: Option<f64>,
    /// Time until the error is below one point if the load stays as it is, in seconds; `null` if it
    /// is already.
    #[serde(default)]
    pub ask_again_s: Option<u64>,
}

/// Predicted effect of one cache size.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AdviceSize {
    /// Its size, as a multiple of the current one.
    pub times: f64,
    /// Its capacity, in bytes.
    pub capacity_bytes: u64,
    /// Share of the bytes read that would hit, in percent.
    pub hit_pct: f64,
    /// `hit_pct` is a lower bound: a cache of this size would not be full yet.
    pub is_lower_bound: bool,
    /// Bytes read of the sample.
    pub sampled_bytes: u64,
    /// Mean time of a read, in microseconds, if hits and misses take as long as now; `null` while
    /// one of them is unknown.
    pub read_mean_us: Option<f64>,
}

/// Rates of a pool or a volume over the last ten seconds. Unknown values, such as a mean of
/// nothing, are null.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RatesInfo {
    /// Time since the pool was opened, in seconds.
    pub uptime_s: u64,
    /// Read requests per second.
    pub reads_per_s: Option<f64>,
    /// Write requests per second.
    pub writes_per_s: Option<f64>,
    /// Bytes per second read by clients.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes per second written by clients.
    pub written_bytes_per_s: Option<f64>,
    /// Blocks per second that reads looked up and found.
    pub read_hit_blocks_per_s: Option<f64>,
    /// Blocks per second that reads looked up and did not find.
    pub read_miss_blocks_per_s: Option<f64>,
    /// Share of the looked-up blocks that was found, 0 to 1.
    pub read_hit_ratio: Option<f64>,
    /// Mean time of a read, in microseconds.
    pub read_latency_mean_us: Option<f64>,
    /// Mean time of a write, in microseconds.
    pub write_latency_mean_us: Option<f64>,
    /// Bytes per second that became dirty.
    pub dirtied_bytes_per_s: Option<f64>,
    /// Bytes per second written back.
    pub destaged_bytes_per_s: Option<f64>,
    /// Writes per second that had to wait because too much was dirty.
    pub throttled_writes_per_s: Option<f64>,
    /// Of a pool: bytes per second written to its cache devices, metadata included.
    pub flash_written_bytes_per_s: Option<f64>,
    /// Of a pool: bytes written to its cache devices since it was opened.
    pub flash_written_bytes: Option<u64>,
    /// Of a pool: share of its capacity that may be dirty, in percent.
    pub dirty_limit_pct: Option<u32>,
}

/// Rates of all open pools and attached volumes, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RatesOfAll {
    /// Pools.
    pub pools: BTreeMap<String, RatesInfo>,
    /// Attached volumes.
    pub volumes: BTreeMap<String, RatesInfo>,
}

/// Current state of one tunable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingInfo {
    /// Value, in its canonical form.
    pub value: String,
    /// Value if not set.
    pub default: String,
    /// Accepted values.
    pub takes: String,
    /// It can be changed while the volume is served.
    pub live: bool,
    /// Its purpose, in one line.
    pub help: String,
}

/// Result of a change of tunables.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingsDone {
    /// Changed tunables: key, old value, new value.
    #[schema(value_type = Vec<[String; 3]>)]
    // A tuple would have a description that JSON Schema 2020-12 does not know.
    pub changed: Vec<(String, String, String)>,
    /// Settings that already had their value, but only until the next start: the configuration file
    /// has it now.
    pub written: Vec<String>,
    /// The job that drains, if one began.
    pub job: Option<String>,
}

/// Result of a reload.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ReloadDone {
    /// Changes that were applied, in words.
    pub changed: Vec<String>,
    /// Changes that were refused because they need a detach or a restart, with the reason.
    pub refused: Vec<String>,
}

/// Events from the files that outlive the daemon.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct EventHistory {
    /// Oldest first, as `/v1/events` has them.
    #[schema(value_type = Vec<Object>)]
    pub events: Vec<serde_json::Value>,
    /// There were older events, which are left out.
    pub more: bool,
}

/// Result of a test of the alarm program.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AlarmTested {
    /// Program and arguments.
    pub command: Vec<String>,
    /// How long it ran, in milliseconds.
    pub took_ms: u64,
}

/// State of a job: the one JSON form of [`crate::jobs::JobView`]. Unknown values are null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobInfo {
    /// Id.
    pub id: String,
    /// `flush`, `detach`, `mode-change`, `resize`, `record`, `shrink`, `replace`, `scrub`,
    /// `rebuild`, `remove`, `export`.
    pub kind: String,
    /// Parameters of the request besides the kind: the new `mode`, the new `size_bytes`,
    /// `bytes_per_s`, `how` to detach, where to `save_to`, `erase`; or null.
    pub parameters: serde_json::Value,
    /// Pool.
    pub pool: String,
    /// Volume, if the job concerns one.
    pub volume: Option<String>,
    /// `queued`, `running`, `completed`, `failed`, `cancelled`.
    pub state: String,
    /// Why it failed.
    pub error: Option<String>,
    /// Id of the error that it failed with, for scripts.
    #[serde(default)]
    pub error_id: Option<String>,
    /// Its current activity, in words.
    pub phase: String,
    /// The job that this one rides on.
    pub follows: Option<String>,
    /// Bytes to write back in total.
    pub bytes_total: Option<u64>,
    /// Bytes left.
    pub bytes_left: Option<u64>,
    /// Part done, in percent.
    pub percent: Option<f64>,
    /// Current rate.
    pub rate_bytes_per_s: Option<u64>,
    /// Time left, if the rate is known, in seconds.
    pub eta_s: Option<f64>,
    /// Time allowed, in seconds.
    pub deadline_s: Option<f64>,
    /// It will not meet its deadline at this rate.
    pub deadline_at_risk: bool,
    /// Time from the request until now, or until its end, in seconds.
    pub elapsed_s: f64,
    /// Its current limit, in words.
    pub limited_by: Option<String>,
    /// Failed write attempts.
    pub errors: u64,
    /// It was cancelled, or failed its deadline, and its changes are being undone.
    pub stopping: bool,
    /// Time of the request, in UTC.
    #[schema(format = DateTime)]
    pub requested: String,
    /// Time of its end, in UTC.
    #[schema(format = DateTime)]
    pub finished: Option<String>,
}

//! Answers to the operator: the state of things, and the results of changes.

use crate::flash::{EnduranceInfo, FlashInfo};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DaemonInfo {
    /// Version of the program.
    pub version: String,
    /// Process.
    pub pid: u32,
    /// Seconds since 1970 when it was started.
    pub started_unix_s: u64,
    /// Configuration file; `None` for `forebay run`.
    pub config: Option<String>,
    /// Memory of the process in bytes.
    pub resident_bytes: u64,
    /// Names of the pools.
    pub pools: Vec<String>,
    /// Names of the volumes.
    pub volumes: Vec<String>,
    /// Where `/metrics` is served without a token: address and port.
    #[serde(default)]
    pub metrics: Option<String>,
    /// How the last upgrade that this process knows of ended.
    #[serde(default)]
    pub upgrade: Option<UpgradeInfo>,
}

/// How an upgrade ended: in the successor that took over, or in the daemon that goes on because it
/// could not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UpgradeInfo {
    /// Process that was to be followed.
    pub from_pid: u32,
    /// Its version.
    pub from_version: String,
    /// Process that was to take over.
    pub to_pid: u32,
    /// How long clients have waited, in milliseconds.
    pub paused_ms: u64,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

/// An upgrade has begun: the successor is there, and has read the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct UpgradeBegun {
    /// Process of the daemon that goes.
    pub from_pid: u32,
    /// Process of the successor.
    pub pid: u32,
    /// Version of the successor.
    pub version: String,
    /// Admin socket of the successor, if the configuration file names another one now.
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
    /// `deleted`, `unlinked`, `renamed` or `unreachable` if its path does not lead to it any more,
    /// `short` if it has less bytes than are used of it. Else, of a mirrored cache: `ok`, `filling`
    /// (it takes the place of one that failed), or `out` (what is on it does not count); else
    /// empty.
    #[serde(default)]
    pub state: String,
    /// It is being copied onto another device, which is to take its place.
    #[serde(default)]
    pub copied: Option<CopyInfo>,
    /// What was written to it; of a pool that is open.
    #[serde(default)]
    pub flash: Option<FlashInfo>,
}

/// A device that another one is copied onto, to take its place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct CopyInfo {
    /// Path of the other one.
    pub to: String,
    /// Bytes that it still has to get; none are left while it takes the place.
    pub left_bytes: u64,
}

/// A pool that was imported, or, in a dry run, would be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImportInfo {
    /// Name of the pool here.
    pub pool: String,
    /// Identity of its cache.
    pub cache: String,
    /// Host that exported it.
    pub exported_by: String,
    /// When, in seconds since 1970.
    pub exported_unix_s: u64,
    /// Its cache devices in the order of their space.
    pub devices: Vec<String>,
    /// Where the key of an encrypted cache is.
    #[serde(default)]
    pub key_file: Option<String>,
    /// The key of the cache tells that its own export wrote the settings.
    #[serde(default)]
    pub signed: bool,
    /// Its volumes.
    pub volumes: Vec<ImportedVolume>,
    /// Volumes without settings of which only the cache has something: they were not attached when
    /// the pool was exported. Empty in a dry run, which does not open the cache.
    #[serde(default)]
    pub absent: Vec<VolumeInfo>,
    /// Options that the command lacks, in a dry run: what they name is taken only if the operator
    /// names it.
    #[serde(default)]
    pub unconfirmed: Vec<String>,
    /// Nothing was done.
    pub dry_run: bool,
}

/// A volume of a pool that was imported.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct ImportedVolume {
    /// Name.
    pub name: String,
    /// URI of its backing store.
    pub backing: String,
    /// What its backing store was called before, if that was otherwise.
    #[serde(default)]
    pub was: Option<String>,
    /// Its exports, as URIs.
    #[serde(default)]
    pub exports: Vec<String>,
    /// It is served; in a dry run: its backing store is there.
    pub attached: bool,
    /// Why it is not.
    #[serde(default)]
    pub why: Option<String>,
    /// Bytes of it that are lost: the cache had them, and cannot read them any more. 0 in a dry
    /// run.
    #[serde(default)]
    pub lost_bytes: u64,
    /// As those of the volume.
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
    /// Bytes that blocks can take.
    pub capacity_bytes: u64,
    /// Bytes of cached blocks.
    pub cached_bytes: u64,
    /// Bytes of blocks that only the cache has.
    pub dirty_bytes: u64,
    /// Largest size that it can be grown to.
    pub growable_to_bytes: u64,
    /// The cache device failed: writes wait until that is recorded, or, with `cache_failed`, go
    /// past it.
    pub fenced: bool,
    /// The cache device failed, and the volumes are served without it.
    #[serde(default)]
    pub cache_failed: bool,
    /// A mirrored cache: `whole`, `degraded` (one device does not count), or `rebuilding N of M
    /// segments`; empty if it is not mirrored.
    #[serde(default)]
    pub mirror: String,
    /// Bytes that only the cache had, and that it cannot give back: they answer with errors until
    /// they are written.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Ranges that they are in.
    #[serde(default)]
    pub lost_ranges: u64,
    /// How operations reach the kernel: `io_uring` or `psync`.
    pub io_engine: String,
    /// Job that is at work on the pool as a whole.
    #[serde(default)]
    pub job: Option<String>,
    /// How its endurance budget stands, if it has one.
    #[serde(default)]
    pub endurance: Option<EnduranceInfo>,
    /// Names of its volumes.
    pub volumes: Vec<String>,
    /// Volumes that it holds data of but that are not attached, with the bytes of dirty data.
    pub absent: BTreeMap<String, u64>,
    /// It is configured, and could not be opened or has stopped by itself: of its cache only what
    /// is recorded is known.
    #[serde(default)]
    pub not_open: bool,
    /// It is open, and does not answer: of its cache only what is recorded is known.
    #[serde(default)]
    pub not_answering: bool,
    /// Why it is not open, if that is known, or for how long it has not answered.
    #[serde(default)]
    pub why: Option<String>,
    /// What is recorded of its cache outside of its devices, in the state directory.
    #[serde(default)]
    pub recorded: Option<RecordedInfo>,
}

impl PoolInfo {
    /// Nothing is known of what is in its cache but what is recorded.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.not_open || self.not_answering
    }

    /// A pool that is not open.
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

/// What is recorded of a cache outside of its devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct RecordedInfo {
    /// Identity of the cache.
    pub cache: String,
    /// The file that says so.
    pub path: String,
    /// Generation of its superblock: a device with less is an older copy.
    pub generation: u64,
    /// It is open, or was not closed in an orderly way.
    pub in_use: bool,
    /// Bytes that only it had when this was recorded.
    pub dirty_bytes: u64,
    /// When this was recorded, in seconds since 1970.
    pub recorded_unix_s: u64,
}

/// Where a volume is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// Being attached.
    Attaching,
    /// Served.
    Serving,
    /// Served, but an export of it has gone without the daemon: its file was unmounted or covered,
    /// or its block device removed, by another program.
    ExportLost,
    /// Being drained for a detach; still served, writes go through to the backing store.
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
    /// True if the pool serves the volume, and nothing is at work on that.
    pub fn is_served(self) -> bool {
        matches!(self, VolumeState::Serving | VolumeState::ExportLost)
    }

    /// Its name, as the HTTP API has it.
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
    /// Where it is in its life.
    pub state: VolumeState,
    /// URI of the backing store.
    pub backing: String,
    /// How the backing store is, of a volume that is attached: `ok`; `short` (it has less bytes
    /// than are used of it); `unplugged` (the kernel does not have the device any more); `failing`
    /// (the last read, write or flush failed, and none has succeeded since); or, if its path does
    /// not lead to it any more, `deleted` (it is gone when it is closed), `unlinked` (it has other
    /// names), `renamed` or `unreachable`.
    #[serde(default)]
    pub backing_state: String,
    /// What is wrong with it, and what to do.
    #[serde(default)]
    pub backing_why: Option<String>,
    /// URIs under which clients find it.
    pub exports: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Sector of the backing store, 512 (also of files) or 4096 bytes, as block devices and disks
    /// of virtual machines have it; 0 while it is not attached.
    #[serde(default)]
    pub sector_bytes: u32,
    /// Mode.
    pub mode: String,
    /// Bytes of cached blocks; null: not known, as its pool is not open or does not answer.
    pub cached_bytes: Option<u64>,
    /// Bytes of blocks that only the cache has; null as `cached_bytes`.
    pub dirty_bytes: Option<u64>,
    /// Age of the oldest dirty block.
    pub oldest_dirty_age_ns: u64,
    /// What holds destage back just now, in words.
    pub destage_limited_by: String,
    /// The backing store alone is a crash-consistent older image (`destage_order = ordered`, in
    /// force).
    pub ordered: bool,
    /// Who uses it: clients that are connected, and open handles of its file.
    pub connections: u64,
    /// Job that changes it or writes it back; a recording is none.
    pub job: Option<String>,
    /// Bytes that only the cache had, and that it cannot give back: they answer with errors until
    /// they are written.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Ranges that they are in; `/losses` lists them.
    #[serde(default)]
    pub lost_ranges: u64,
    /// Why it is not attached, if it is absent.
    #[serde(default)]
    pub why: Option<String>,
    /// How requests of its files reach the daemon, one for each `fuse:` export that is mounted.
    #[serde(default)]
    pub files: Vec<FileInfo>,
    /// What is allowed in its configuration, and looks like a mistake: as `forebay config check`
    /// says it.
    #[serde(default)]
    pub warnings: Vec<WarningInfo>,
}

/// What is allowed, and looks like a mistake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct WarningInfo {
    /// What it is about, for scripts.
    pub id: String,
    /// In words.
    pub what: String,
    /// What to do.
    pub hint: String,
}

/// How requests of a volume's file reach the daemon.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct FileInfo {
    /// URI of the export.
    pub export: String,
    /// `io_uring`, or `/dev/fuse`.
    pub over: String,
    /// In words: how many at once; or why not over io_uring, and what would enable it.
    pub detail: String,
}

/// A range of a volume that only the cache had, and that it cannot give back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct LossInfo {
    /// First byte.
    pub offset_bytes: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// When the oldest of them were written, in seconds since 1970.
    pub written_unix_s: u64,
}

/// What caches of other sizes would do for a volume, or for all of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AdviceInfo {
    /// Pool.
    pub pool: String,
    /// Volume; empty if it is about all of the pool.
    pub volume: String,
    /// How long ago the counting began, in seconds.
    pub seen_s: u64,
    /// Bytes read since then that may be cached.
    pub read_bytes: u64,
    /// What the cache can hold now.
    pub capacity_bytes: u64,
    /// Mean time of a read that the cache answered, in microseconds, since the start; `null` if
    /// there was none.
    pub read_hit_mean_us: Option<f64>,
    /// The same of a read that needed the backing store.
    pub read_miss_mean_us: Option<f64>,
    /// By size, the smallest first; none as long as nothing was read.
    pub sizes: Vec<AdviceSize>,
}

/// What a cache of one size would do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AdviceSize {
    /// Its size, as a multiple of the present one.
    pub times: f64,
    /// What it can hold.
    pub capacity_bytes: u64,
    /// Share of the bytes read that it would have, in percent.
    pub hit_pct: f64,
    /// It would have so much or more: a cache of this size is not full yet.
    pub is_lower_bound: bool,
    /// Bytes of the sample that were read.
    pub sampled_bytes: u64,
    /// Mean time of a read, in microseconds, if hits and misses take as long as now; `null` as long
    /// as one of them is not known.
    pub read_mean_us: Option<f64>,
}

/// What a pool or a volume did in the last ten seconds. What is not known, such as an average of
/// nothing, is null.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct RatesInfo {
    /// Time since the pool was opened, in seconds.
    pub uptime_s: u64,
    /// Read requests in a second.
    pub reads_per_s: Option<f64>,
    /// Write requests in a second.
    pub writes_per_s: Option<f64>,
    /// Bytes read by clients in a second.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes written by clients in a second.
    pub written_bytes_per_s: Option<f64>,
    /// Blocks in a second that reads looked for and found.
    pub read_hit_blocks_per_s: Option<f64>,
    /// Blocks in a second that reads looked for and did not find.
    pub read_miss_blocks_per_s: Option<f64>,
    /// Share of the blocks looked for that was found, 0 to 1.
    pub read_hit_ratio: Option<f64>,
    /// Mean time of a read, in microseconds.
    pub read_latency_mean_us: Option<f64>,
    /// Mean time of a write, in microseconds.
    pub write_latency_mean_us: Option<f64>,
    /// Bytes in a second that became dirty.
    pub dirtied_bytes_per_s: Option<f64>,
    /// Bytes written back in a second.
    pub destaged_bytes_per_s: Option<f64>,
    /// Writes in a second that had to wait because too much was dirty.
    pub throttled_writes_per_s: Option<f64>,
    /// Of a pool: bytes written to its cache devices in a second, metadata included.
    pub flash_written_bytes_per_s: Option<f64>,
    /// Of a pool: the same since it was opened.
    pub flash_written_bytes: Option<u64>,
    /// Of a pool: share of its capacity that may be dirty, in percent.
    pub dirty_limit_pct: Option<u32>,
}

/// Rates of everything that is open, by name.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct RatesOfAll {
    /// Of pools.
    pub pools: BTreeMap<String, RatesInfo>,
    /// Of volumes that are attached.
    pub volumes: BTreeMap<String, RatesInfo>,
}

/// One tunable as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingInfo {
    /// Value, in its canonical form.
    pub value: String,
    /// Value if nobody sets it.
    pub default: String,
    /// What it takes.
    pub takes: String,
    /// It can be changed while the volume is served.
    pub live: bool,
    /// What it does, in one line.
    pub help: String,
}

/// What a change of tunables did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingsDone {
    /// What was changed: key, old value, new value.
    #[schema(value_type = Vec<[String; 3]>)]
    // a tuple would be described in a way that JSON Schema 2020-12 does not know
    pub changed: Vec<(String, String, String)>,
    /// Settings that had their value already, but until the next start only: the configuration file
    /// has it now.
    pub written: Vec<String>,
    /// The job that drains, if one was begun.
    pub job: Option<String>,
}

/// What a reload did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ReloadDone {
    /// What was changed, in words.
    pub changed: Vec<String>,
    /// What was not, and why: it needs a detach or a restart.
    pub refused: Vec<String>,
}

/// Events of the files that outlive the daemon.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct EventHistory {
    /// Oldest first, as `/v1/events` has them.
    #[schema(value_type = Vec<Object>)]
    pub events: Vec<serde_json::Value>,
    /// There were older ones, which are left out.
    pub more: bool,
}

/// A test of the program that is run for alarms.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct AlarmTested {
    /// Program and arguments.
    pub command: Vec<String>,
    /// How long it has run.
    pub took_ms: u64,
}

/// A job as it stands: the one JSON form of [`crate::jobs::JobView`]. What is not known is null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobInfo {
    /// Id.
    pub id: String,
    /// `flush`, `detach`, `mode-change`, `resize`, `shrink`, `scrub`, `rebuild`, `remove`.
    pub kind: String,
    /// What was asked for besides the kind: the new `mode`, the new `size_bytes`, `bytes_per_s`,
    /// `how` to detach, where to `save_to`, `erase`; or null.
    pub parameters: serde_json::Value,
    /// Pool.
    pub pool: String,
    /// Volume, if it is about one.
    pub volume: Option<String>,
    /// `queued`, `running`, `completed`, `failed`, `cancelled`.
    pub state: String,
    /// Why it failed.
    pub error: Option<String>,
    /// The id of the error that it failed with, for scripts.
    #[serde(default)]
    pub error_id: Option<String>,
    /// What it is doing, in words.
    pub phase: String,
    /// The job whose work does for this one.
    pub follows: Option<String>,
    /// Bytes to write back in all.
    pub bytes_total: Option<u64>,
    /// Bytes left.
    pub bytes_left: Option<u64>,
    /// Done, in percent.
    pub percent: Option<f64>,
    /// Rate just now.
    pub rate_bytes_per_s: Option<u64>,
    /// Time left, if there is a rate.
    pub eta_s: Option<f64>,
    /// Time that it was given.
    pub deadline_s: Option<f64>,
    /// It will not meet its deadline at this rate.
    pub deadline_at_risk: bool,
    /// Time since it was asked for, until now or until its end.
    pub elapsed_s: f64,
    /// What holds it back, in words.
    pub limited_by: Option<String>,
    /// Failed attempts at writing back.
    pub errors: u64,
    /// It was cancelled, or failed its deadline, and what it began is being undone.
    pub stopping: bool,
    /// When it was asked for, in UTC.
    #[schema(format = DateTime)]
    pub requested: String,
    /// When it ended, in UTC.
    #[schema(format = DateTime)]
    pub finished: Option<String>,
}

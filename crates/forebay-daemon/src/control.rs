//! What an operator can ask of the daemon, whichever way the question comes: HTTP, the control file system, or the
//! `run` command in the same process.
//!
//! [`Control`] is the one interface; the structures are what the HTTP API speaks, so their names and fields are part
//! of its contract (see `docs/api.md`). Sizes are bytes, times are seconds since 1970 or durations in nanoseconds, and
//! names say so.
//!
//! Invariants
//! - A call that fails has changed nothing.
//! - What takes longer than a moment (drains, and what needs one) is a job; the call returns it at once.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use thiserror::Error;
use utoipa::ToSchema;

/// Why something was not done. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, ToSchema)]
#[error("{what}")]
pub struct ControlError {
    /// Kind, for scripts.
    pub kind: ErrorKind,
    /// What was wrong, and where.
    pub what: String,
    /// What to do; may be empty.
    pub hint: String,
}

/// Kinds of [`ControlError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// No pool, volume, job, rule or alarm of that name.
    NotFound,
    /// The request makes no sense whatever the state: unknown key, value out of range, contradiction.
    Invalid,
    /// Not in this state: the name is taken, the volume is being detached, the pool is in use.
    Conflict,
    /// A device, file or socket did not do what was asked.
    Failed,
    /// The daemon is stopping, or too busy to answer in time.
    Unavailable,
    /// Whoever asks may not.
    Denied,
}

impl ControlError {
    /// An error of a kind.
    #[must_use]
    pub fn new(kind: ErrorKind, what: impl ToString, hint: impl ToString) -> Self {
        Self { kind, what: what.to_string(), hint: hint.to_string() }
    }

    /// There is no such thing; `known` are the names that there are.
    #[must_use]
    pub fn not_found(what: &str, name: &str, known: &[&str]) -> Self {
        let known = if known.is_empty() {
            format!("there is no {what} yet")
        } else {
            format!("there are: {}", known.join(", "))
        };
        Self::new(ErrorKind::NotFound, format!("no {what} \"{name}\""), known)
    }
}

/// What was not asked for is not sent: an older daemon does not know of it.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

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
    /// How the last upgrade that this process knows of ended.
    #[serde(default)]
    pub upgrade: Option<UpgradeInfo>,
}

/// How an upgrade ended: in the successor that took over, or in the daemon that goes on because it could not.
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
}

/// A cache device of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeviceInfo {
    /// Path.
    pub path: String,
    /// Bytes that the pool uses.
    pub size_bytes: u64,
    /// Of a mirrored cache: `ok`, `filling` (it takes the place of one that failed), or `out` (what is on it does not count); else empty.
    #[serde(default)]
    pub state: String,
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
    /// The cache device failed: writes wait until that is recorded, or, with `cache_failed`, go past it.
    pub fenced: bool,
    /// The cache device failed, and the volumes are served without it.
    #[serde(default)]
    pub cache_failed: bool,
    /// A mirrored cache: `whole`, `degraded` (one device does not count), or `rebuilding N of M segments`; empty if it is not mirrored.
    #[serde(default)]
    pub mirror: String,
    /// Bytes that only the cache had, and that it cannot give back: they answer with errors until they are written.
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
    /// Names of its volumes.
    pub volumes: Vec<String>,
    /// Volumes that it holds data of but that are not attached, with the bytes of dirty data.
    pub absent: BTreeMap<String, u64>,
    /// It is configured, and could not be opened or has stopped by itself: of its cache only what is recorded is known.
    #[serde(default)]
    pub not_open: bool,
    /// What is recorded of its cache outside of its devices, in the state directory.
    #[serde(default)]
    pub recorded: Option<RecordedInfo>,
}

impl PoolInfo {
    /// A pool that is not open.
    pub(crate) fn closed(name: String, devices: Vec<DeviceInfo>, recorded: Option<RecordedInfo>) -> Self {
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
            volumes: Vec::new(),
            absent: BTreeMap::new(),
            not_open: true,
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
    /// Being drained for a detach; still served, writes go through to the backing store.
    Draining,
    /// Being detached; no longer served.
    Detaching,
    /// Not served: it is configured and could not be attached, or the cache has dirty data of it from an earlier time.
    Absent,
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
    /// URIs under which clients find it.
    pub exports: Vec<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Mode.
    pub mode: String,
    /// Bytes of cached blocks.
    pub cached_bytes: u64,
    /// Bytes of blocks that only the cache has.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty block.
    pub oldest_dirty_age_ns: u64,
    /// What holds destage back just now, in words.
    pub destage_limited_by: String,
    /// The backing store alone is a crash-consistent older image (`destage_order = ordered`, in force).
    pub ordered: bool,
    /// Who uses it: clients that are connected, and open handles of its file.
    pub connections: u64,
    /// Job that is at work on it.
    pub job: Option<String>,
    /// Bytes that only the cache had, and that it cannot give back: they answer with errors until they are written.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Ranges that they are in; `/losses` lists them.
    #[serde(default)]
    pub lost_ranges: u64,
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

/// A new cache for a pool whose cache has failed, or a new device for a mirrored one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// An empty device, or a file to make.
    pub device: DeviceRequest,
    /// The second one, if both devices of a mirrored pool have failed.
    #[serde(default)]
    pub other: Option<DeviceRequest>,
    /// What is lost is given up: the volumes have there what their backing stores have, which is older.
    #[serde(default)]
    pub discard_lost: bool,
    /// Take a device that is there and begins with zeroes, and fill a file system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force: bool,
}

/// A cache device as an operator names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceRequest {
    /// File or block device.
    pub path: String,
    /// Size to make a new file with, such as `10GiB`.
    #[serde(default)]
    pub size: Option<String>,
}

/// A pool to create.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolRequest {
    /// Name.
    pub name: String,
    /// Cache devices, at least one.
    pub devices: Vec<DeviceRequest>,
    /// Tunables, as text.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Take a device that is there and begins with zeroes, fill a file system, and give up a recorded cache of this name or on these
    /// devices that may hold dirty data.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force: bool,
}

/// What an operator allows when a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenHow {
    /// Make a new cache where the recorded one is not there, and give that one up: it is refused should it come back.
    #[serde(default)]
    pub new_cache: bool,
    /// Take a device that is there and begins with zeroes, and fill a file system.
    #[serde(default)]
    pub force: bool,
}

/// How a pool is to grow: one of the two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowRequest {
    /// A further cache device.
    #[serde(default)]
    pub device: Option<DeviceRequest>,
    /// New size of the last cache device (`20GiB`); `max` for all of a block device.
    #[serde(default)]
    pub size: Option<String>,
    /// Take a device that is there and begins with zeroes, and fill a file system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub force: bool,
}

/// How a pool is to shrink: one of the two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShrinkRequest {
    /// Give up the last cache device; its path, to be sure.
    #[serde(default)]
    pub device: Option<String>,
    /// New size of the last cache device.
    #[serde(default)]
    pub size: Option<String>,
}

/// How a pool is to be scrubbed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubRequest {
    /// Most bytes read from the cache in a second, as text (`64MiB`, which is also the default).
    #[serde(default)]
    pub rate: Option<String>,
}

/// A volume to attach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRequest {
    /// Name.
    pub name: String,
    /// Pool that is to cache it; may be left out if there is only one.
    #[serde(default)]
    pub pool: Option<String>,
    /// URI of the backing store.
    pub backing: String,
    /// URIs under which clients are to find it.
    #[serde(default)]
    pub exports: Vec<String>,
    /// Tunables, as text.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// What becomes of dirty data when a volume is detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DetachHow {
    /// It is written back first; the backing store is whole afterwards.
    #[default]
    Drain,
    /// It stays in the cache, and the backing store is not to be used without it; attaching again is warm.
    Keep,
    /// It is thrown away.
    Discard,
}

/// What a change of mode away from write-back does with dirty data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Leaving {
    /// New writes follow the new mode at once; dirty data is written back in its own time.
    #[default]
    Lazy,
    /// A job writes everything back.
    Drain,
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

/// Tunables to change. All are changed or none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// Key to new value, as text; `null` sets the default.
    pub set: BTreeMap<String, Option<String>>,
    /// Until the next start only: the configuration file stays as it is.
    #[serde(default)]
    pub temporary: bool,
    /// What to do with dirty data if the mode leaves write-back.
    #[serde(default)]
    pub leaving: Leaving,
}

/// What a change of tunables did.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettingsDone {
    /// What was changed: key, old value, new value.
    #[schema(value_type = Vec<[String; 3]>)]
    // a tuple would be described in a way that JSON Schema 2020-12 does not know
    pub changed: Vec<(String, String, String)>,
    /// The job that drains, if one was begun.
    pub job: Option<String>,
}

/// A rule to add.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    /// The rule as it is typed: `bypass exe=rsync direction=read`.
    pub rule: String,
    /// Place in the list, from 0; at its end if left out.
    #[serde(default)]
    pub position: Option<usize>,
}

/// What a reload did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ReloadDone {
    /// What was changed, in words.
    pub changed: Vec<String>,
    /// What was not, and why: it needs a detach or a restart.
    pub refused: Vec<String>,
}

/// A pool or a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// A pool by name.
    Pool(&'a str),
    /// A volume by name.
    Volume(&'a str),
}

/// Everything an operator can ask for. Calls may block for some seconds; they are made from threads that may.
pub trait Control: Send + Sync + 'static {
    /// About the daemon itself.
    fn daemon(&self) -> DaemonInfo;
    /// All pools.
    fn pools(&self) -> Result<Vec<PoolInfo>, ControlError>;
    /// One pool.
    fn pool(&self, name: &str) -> Result<PoolInfo, ControlError>;
    /// Creates a pool, or opens one that is on these devices already.
    fn create_pool(&self, request: PoolRequest) -> Result<PoolInfo, ControlError>;
    /// Opens a pool that is configured and not open, because that failed or because it has stopped by itself, and attaches its
    /// volumes.
    fn open_pool(&self, name: &str, how: OpenHow) -> Result<PoolInfo, ControlError> {
        let _ = how;
        Err(ControlError::new(ErrorKind::Conflict, format!("pool {name} is open"), ""))
    }
    /// Makes a pool larger, while it is used.
    fn grow_pool(&self, name: &str, request: GrowRequest) -> Result<PoolInfo, ControlError>;
    /// Makes a pool smaller, while it is used: a job.
    fn shrink_pool(&self, name: &str, request: ShrinkRequest) -> Result<JobInfo, ControlError>;
    /// Compares everything in the cache of a pool with its checksums, while it is used: a job.
    fn scrub_pool(&self, name: &str, request: ScrubRequest) -> Result<JobInfo, ControlError>;
    /// Gives a pool whose cache has failed a new, empty one: its clients are disconnected for a moment. Gives a mirrored pool another
    /// device in place of one that failed, while it is used: a job fills it.
    fn replace_cache(&self, name: &str, request: ReplaceRequest) -> Result<PoolInfo, ControlError>;
    /// Closes a pool that has no volumes, and forgets it: a job. What is cached stays on its devices unless `erase`. One that cannot be
    /// opened is forgotten with its volumes with `force`, whatever only its cache has.
    fn remove_pool(&self, name: &str, erase: bool, force: bool) -> Result<JobInfo, ControlError>;

    /// All volumes.
    fn volumes(&self) -> Result<Vec<VolumeInfo>, ControlError>;
    /// One volume.
    fn volume(&self, name: &str) -> Result<VolumeInfo, ControlError>;
    /// What was lost of a volume with its cache, by address.
    fn losses(&self, name: &str) -> Result<Vec<LossInfo>, ControlError>;
    /// Attaches a volume to its backing store and serves it.
    fn attach_volume(&self, request: VolumeRequest) -> Result<VolumeInfo, ControlError>;
    /// Detaches a volume: a job. One that is in use (by a connection, or because its file is open) is refused unless `force`.
    fn detach_volume(&self, name: &str, how: DetachHow, force: bool) -> Result<JobInfo, ControlError>;
    /// Gives a volume another size (`size` as text, or `max` for all of the backing store): a job, short if it grows. One that is in
    /// use gets smaller only with `force`.
    fn resize_volume(&self, name: &str, size: &str, force: bool) -> Result<JobInfo, ControlError>;

    /// All tunables of a pool or volume.
    fn settings(&self, target: Target<'_>) -> Result<BTreeMap<String, SettingInfo>, ControlError>;
    /// Changes tunables.
    fn set(&self, target: Target<'_>, request: SettingsRequest) -> Result<SettingsDone, ControlError>;

    /// Writes everything back that is dirty now: a job.
    fn flush_volume(&self, name: &str, deadline: Option<Duration>) -> Result<JobInfo, ControlError>;
    /// All jobs, the newest last.
    fn jobs(&self) -> Vec<JobInfo>;
    /// One job.
    fn job(&self, id: &str) -> Result<JobInfo, ControlError>;
    /// Waits until a job has ended, or for so long.
    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, ControlError>;
    /// Cancels a job.
    fn cancel_job(&self, id: &str) -> Result<JobInfo, ControlError>;

    /// The rules of a volume, in order, with their counters, as JSON.
    fn rules(&self, volume: &str) -> Result<serde_json::Value, ControlError>;
    /// Adds a rule; returns it, with a warning if an earlier rule hides it, as JSON.
    fn add_rule(&self, volume: &str, request: RuleRequest) -> Result<serde_json::Value, ControlError>;
    /// Deletes a rule.
    fn delete_rule(&self, volume: &str, id: &str) -> Result<(), ControlError>;

    /// Statistics as JSON: of one volume, or of everything.
    fn stats(&self, volume: Option<&str>) -> Result<serde_json::Value, ControlError>;
    /// Statistics of a volume under FlashCache's names.
    fn flashcache(&self, volume: &str) -> Result<String, ControlError>;
    /// Statistics for Prometheus.
    fn metrics(&self) -> Result<String, ControlError>;

    /// Reads the configuration file again and does what has changed in it.
    fn reload(&self) -> Result<ReloadDone, ControlError>;

    /// Starts a successor (the program that lies where this one was started from), and passes everything to it once it has read
    /// the configuration. Returns when that begins.
    fn upgrade(&self) -> Result<UpgradeBegun, ControlError> {
        Err(ControlError::new(ErrorKind::Conflict, "this daemon cannot be followed by another", "restart it"))
    }
}

/// A job as it stands: the one JSON form of [`crate::jobs::JobView`]. What is not known is null.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, ToSchema)]
pub struct JobInfo {
    /// Id.
    pub id: String,
    /// `flush`, `detach`, `mode-change`, `resize`, `shrink`, `scrub`, `rebuild`, `remove`.
    pub kind: String,
    /// What was asked for besides the kind: the new `mode`, the new `size_bytes`, `bytes_per_s`, `how` to detach, `erase`; or null.
    pub parameters: serde_json::Value,
    /// Pool.
    pub pool: String,
    /// Volume, if it is about one.
    pub volume: Option<String>,
    /// `queued`, `running`, `completed`, `failed`, `cancelled`.
    pub state: String,
    /// Why it failed.
    pub error: Option<String>,
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

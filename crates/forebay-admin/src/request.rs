//! Requests of an operator.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Flags that are not set are not sent: an older daemon does not know them.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// Text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MetricsForm {
    /// Prometheus text format, version 0.0.4, which all collectors read.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// Replaces a healthy device, a failed cache (with a new, empty one), or a failed device of a
/// mirrored cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// An empty device, or a file to create.
    pub device: DeviceRequest,
    /// The second device, if both devices of a mirrored pool have failed.
    #[serde(default)]
    pub other: Option<DeviceRequest>,
    /// Path of the device to replace, if the cache is healthy. Optional if it is the only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// Gives up lost data: there the volumes have the content of their backing stores, which is
    /// older.
    #[serde(default)]
    pub discard_lost: bool,
    /// Takes a device that is not blank but begins with zeroes, and overwrites its content.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Creates a cache file that leaves less than a tenth of its file system free.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fill: bool,
}

/// Permissions for devices on which a cache is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taking {
    /// A device that is not blank but begins with zeroes may be taken.
    pub overwrite: bool,
    /// A cache file may leave less than a tenth of its file system free.
    pub fill: bool,
}

impl GrowRequest {
    /// Returns the permissions for its device.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

impl ReplaceRequest {
    /// Returns the permissions for its devices.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

impl PoolRequest {
    /// Returns the permissions for its devices.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

impl OpenHow {
    /// Returns the permissions for the pool's devices.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

/// A cache device as an operator names it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceRequest {
    /// File or block device.
    pub path: String,
    /// Size of a new file, such as `10GiB`.
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
    /// Takes a device that is not blank but begins with zeroes, and overwrites its content.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Creates a cache file that leaves less than a tenth of its file system free.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fill: bool,
    /// Gives up a recorded cache of this name or on these devices that may hold dirty data: the
    /// daemon refuses it if it returns.
    #[serde(default, skip_serializing_if = "is_false")]
    pub new_cache: bool,
}

/// Permissions for opening a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenHow {
    /// Creates a new cache if the recorded one is missing, and gives that one up: the daemon
    /// refuses it if it returns.
    #[serde(default)]
    pub new_cache: bool,
    /// Takes a device that is not blank but begins with zeroes, and overwrites its content.
    #[serde(default)]
    pub overwrite: bool,
    /// Creates a cache file that leaves less than a tenth of its file system free.
    #[serde(default)]
    pub fill: bool,
}

/// How to export a pool for another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// Writes all dirty data back first. Otherwise it stays in the cache and moves with it.
    #[serde(default)]
    pub drain: bool,
    /// Exports the pool even if clients use its volumes: they are disconnected.
    #[serde(default)]
    pub force: bool,
}

/// A pool that was exported, here or on another host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// All devices of its cache, in any order.
    pub devices: Vec<String>,
    /// A new name for the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Backing stores, as URIs, by volume. A cache without a key requires all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backing: BTreeMap<String, String>,
    /// Exports, as URIs, by volume; an empty list for a volume without exports. A cache without a
    /// key requires all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exports: BTreeMap<String, Vec<String>>,
    /// Key of an encrypted cache: a path, or `credential:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Only reports what an import would do.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
}

/// How to grow a pool: exactly one of the two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GrowRequest {
    /// A cache device to add.
    #[serde(default)]
    pub device: Option<DeviceRequest>,
    /// New size of the last cache device (`20GiB`); `max` for the whole block device.
    #[serde(default)]
    pub size: Option<String>,
    /// Takes a device that is not blank but begins with zeroes, and overwrites its content.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Creates a cache file that leaves less than a tenth of its file system free.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fill: bool,
}

/// How to shrink a pool: exactly one of the two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShrinkRequest {
    /// Path of the cache device to give up, one of several.
    #[serde(default)]
    pub device: Option<String>,
    /// New size of the last cache device.
    #[serde(default)]
    pub size: Option<String>,
}

/// How to scrub a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScrubRequest {
    /// Most bytes read from the cache per second, as text (`64MiB`, which is also the default).
    #[serde(default)]
    pub rate: Option<String>,
}

/// How to record the requests of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordRequest {
    /// Seconds after which the recording ends, at most 2,592,000 (30 days).
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub for_s: u64,
    /// Maximum size of the trace, in bytes; 1 GiB by default.
    #[serde(default)]
    #[schema(minimum = 4096)]
    pub max_bytes: Option<u64>,
}

/// A volume to attach.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRequest {
    /// Name.
    pub name: String,
    /// Pool that caches it; optional if there is only one.
    #[serde(default)]
    pub pool: Option<String>,
    /// URI of the backing store; empty if the volume is configured. For a volume that is configured
    /// and not attached: the new place of its backing store.
    pub backing: String,
    /// URIs under which clients reach it.
    #[serde(default)]
    pub exports: Vec<String>,
    /// Tunables, as text.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
}

/// Treatment of dirty data when a volume is detached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DetachHow {
    /// It is written back first; the backing store is complete afterwards.
    #[default]
    Drain,
    /// It stays in the cache, and the backing store must not be used without it; the next attach is
    /// warm.
    Keep,
    /// It is discarded.
    Discard,
}

/// How to detach a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DetachRequest {
    /// Treatment of dirty data.
    pub how: DetachHow,
    /// Detaches the volume even if clients use it.
    pub force: bool,
    /// Path to which the backing file is written after the drain, before it is closed: for a file
    /// that has lost its name. The path must not exist.
    pub save_to: Option<String>,
}

/// Treatment of dirty data in a change of mode away from write-back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Leaving {
    /// New writes follow the new mode at once; dirty data is destaged at the usual pace.
    #[default]
    Lazy,
    /// A job writes all dirty data back.
    Drain,
}

/// Tunables to change: all or none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettingsRequest {
    /// Key to new value, as text; `null` sets the default.
    pub set: BTreeMap<String, Option<String>>,
    /// Until the next start only: the configuration file is not changed.
    #[serde(default)]
    pub temporary: bool,
    /// Treatment of dirty data if the mode changes away from write-back.
    #[serde(default)]
    pub leaving: Leaving,
}

/// A rule to add.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleRequest {
    /// The rule in text form: `bypass exe=rsync direction=read`.
    pub rule: String,
    /// Index in the list, from 0; at the end by default.
    #[serde(default)]
    pub position: Option<usize>,
}

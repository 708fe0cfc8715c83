//! Requests of an operator.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// What was not asked for is not sent: an older daemon does not know of it.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_false(value: &bool) -> bool {
    !*value
}

/// In which text metrics are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MetricsForm {
    /// Prometheus' own text format, version 0.0.4: what everything reads.
    #[default]
    Text,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

/// Another device in place of a sound one, a new cache for a pool whose cache has failed, or a new
/// device for a mirrored one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRequest {
    /// An empty device, or a file to make.
    pub device: DeviceRequest,
    /// The second one, if both devices of a mirrored pool have failed.
    #[serde(default)]
    pub other: Option<DeviceRequest>,
    /// The device that leaves, if the cache is sound: its path. May be left out if it is the only
    /// one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// What is lost is given up: the volumes have there what their backing stores have, which is
    /// older.
    #[serde(default)]
    pub discard_lost: bool,
    /// Take a device that is not blank but begins with zeroes: what is on it is overwritten.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Make a cache file that leaves less than a tenth of its file system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fill: bool,
}

/// What an operator allows of devices on which a cache is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taking {
    /// One that is not blank but begins with zeroes may be taken.
    pub overwrite: bool,
    /// A cache file may leave less than a tenth of its file system.
    pub fill: bool,
}

impl GrowRequest {
    /// What it allows of its device.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

impl ReplaceRequest {
    /// What it allows of its devices.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

impl PoolRequest {
    /// What it allows of its devices.
    #[must_use]
    pub fn taking(&self) -> Taking {
        Taking { overwrite: self.overwrite, fill: self.fill }
    }
}

impl OpenHow {
    /// What it allows of the pool's devices.
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
    /// Take a device that is not blank but begins with zeroes: what is on it is overwritten.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Make a cache file that leaves less than a tenth of its file system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fill: bool,
    /// Give up a recorded cache of this name or on these devices that may hold dirty data: it is
    /// refused should it come back.
    #[serde(default, skip_serializing_if = "is_false")]
    pub new_cache: bool,
}

/// What an operator allows when a pool is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenHow {
    /// Make a new cache where the recorded one is not there, and give that one up: it is refused
    /// should it come back.
    #[serde(default)]
    pub new_cache: bool,
    /// Take a device that is not blank but begins with zeroes: what is on it is overwritten.
    #[serde(default)]
    pub overwrite: bool,
    /// Make a cache file that leaves less than a tenth of its file system.
    #[serde(default)]
    pub fill: bool,
}

/// How a pool leaves for another host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// Write everything back first. Otherwise dirty data stays in the cache and moves with it.
    #[serde(default)]
    pub drain: bool,
    /// Also if clients use its volumes: they are cut off.
    #[serde(default)]
    pub force: bool,
}

/// A pool that was exported, here or on another host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// All devices of its cache, in any order.
    pub devices: Vec<String>,
    /// Another name for the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Backing stores, as URIs, by volume. Those of a cache without a key must all be named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub backing: BTreeMap<String, String>,
    /// Exports, as URIs, by volume; an empty list for a volume that is to have none. Those of a
    /// cache without a key must all be named.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub exports: BTreeMap<String, Vec<String>>,
    /// The key of an encrypted cache: a path, or `credential:NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<String>,
    /// Only say what would be done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dry_run: bool,
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
    /// Take a device that is not blank but begins with zeroes: what is on it is overwritten.
    #[serde(default, skip_serializing_if = "is_false")]
    pub overwrite: bool,
    /// Make a cache file that leaves less than a tenth of its file system.
    #[serde(default, skip_serializing_if = "is_false")]
    pub fill: bool,
}

/// How a pool is to shrink: one of the two.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ShrinkRequest {
    /// Give up this cache device, one of several: its path.
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

/// How the requests of a volume are to be recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecordRequest {
    /// Seconds after which it ends, at most 2,592,000 (30 days).
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub for_s: u64,
    /// Size in bytes that the trace does not exceed; 1 GiB if left out.
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
    /// Pool that is to cache it; may be left out if there is only one.
    #[serde(default)]
    pub pool: Option<String>,
    /// URI of the backing store; empty if the volume is configured. Of one that is configured and
    /// not attached: where its backing store is now.
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
    /// It stays in the cache, and the backing store is not to be used without it; attaching again
    /// is warm.
    Keep,
    /// It is thrown away.
    Discard,
}

/// How a volume is detached.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DetachRequest {
    /// What becomes of dirty data.
    pub how: DetachHow,
    /// Also if clients use it.
    pub force: bool,
    /// Drained, and then its backing file is written to this path, before it is closed: the way out
    /// for one that has lost its name. Nothing may be there.
    pub save_to: Option<String>,
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

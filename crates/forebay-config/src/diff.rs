//! Differences of two configurations, as steps from one to the other. SIGHUP and a reload over the
//! API use them.
//!
//! Changes come in an order in which they can be applied: volumes are removed before their pools,
//! and pools are added before their volumes. Differences that cannot be applied while the daemon
//! runs are refused with the reason and the suggested action; the caller decides whether to apply
//! the rest.

use super::device_name::node_of;
use super::model::{Config, DaemonConfig, PoolConfig, VolumeConfig};
use super::settings::Settings;
use super::tunables::{Applies, Scope};
use super::value::Value;
use crate::CacheSpec;
use forebay_export::uri::ExportUri;
use std::fmt;

/// One step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Detach a volume.
    VolumeRemoved {
        /// Its name.
        volume: String,
    },
    /// Close a pool, whose volumes are already detached.
    PoolRemoved {
        /// Its name.
        pool: String,
    },
    /// The daemon's log level.
    LogLevel,
    /// Where the daemon serves metrics without a token.
    MetricsListen,
    /// The alarm program.
    AlarmCommand,
    /// Open or create a pool.
    PoolAdded {
        /// Its name.
        pool: String,
    },
    /// Grow or shrink a pool, or exchange its devices.
    PoolDevices {
        /// Its name.
        pool: String,
        /// New devices.
        added: Vec<CacheSpec>,
        /// Devices to empty and remove.
        removed: Vec<CacheSpec>,
        /// Devices with a changed size, with the new one.
        resized: Vec<CacheSpec>,
    },
    /// A live setting.
    Setting {
        /// Of a pool or volume.
        scope: Scope,
        /// Its name.
        name: String,
        /// The setting.
        key: &'static str,
        /// Old value.
        from: Value,
        /// New value.
        to: Value,
    },
    /// Attach a volume.
    VolumeAdded {
        /// Its name.
        volume: String,
    },
    /// Exports of a volume.
    VolumeExports {
        /// Its name.
        volume: String,
        /// New exports.
        added: Vec<ExportUri>,
        /// Exports to close.
        removed: Vec<ExportUri>,
    },
    /// Served size of a volume.
    VolumeSize {
        /// Its name.
        volume: String,
        /// Old value.
        from_bytes: Option<u64>,
        /// New value.
        to_bytes: Option<u64>,
    },
    /// All rules of a volume.
    VolumeRules {
        /// Its name.
        volume: String,
    },
}

impl Change {
    /// Returns the pool or volume that it concerns; `None` for the daemon.
    #[must_use]
    pub fn target(&self) -> Option<(Scope, &str)> {
        match self {
            Self::LogLevel | Self::MetricsListen | Self::AlarmCommand => None,
            Self::PoolRemoved { pool } | Self::PoolAdded { pool } | Self::PoolDevices { pool, .. } => {
                Some((Scope::Pool, pool))
            }
            Self::Setting { scope, name, .. } => Some((*scope, name)),
            Self::VolumeRemoved { volume }
            | Self::VolumeAdded { volume }
            | Self::VolumeExports { volume, .. }
            | Self::VolumeSize { volume, .. }
            | Self::VolumeRules { volume } => Some((Scope::Volume, volume)),
        }
    }
}

/// A difference that cannot be applied while the daemon runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Key of the difference in the file: `volume.db.backing`.
    pub what: String,
    /// Why it cannot be applied.
    pub reason: String,
    /// Suggested action.
    pub remedy: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.reason, self.remedy)
    }
}

/// All differences.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// In an order in which they can be applied.
    pub changes: Vec<Change>,
    /// Differences that cannot be applied now.
    pub refused: Vec<Refusal>,
}

impl Diff {
    /// Returns whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.refused.is_empty()
    }

    fn refuse(&mut self, what: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) {
        self.refused.push(Refusal { what: what.into(), reason: reason.into(), remedy: remedy.into() });
    }
}

/// Returns the steps from `old` to `new`.
#[must_use]
pub fn diff(old: &Config, new: &Config) -> Diff {
    let mut diff = Diff::default();
    let gone = old.volumes.keys().filter(|volume| !new.volumes.contains_key(*volume));
    diff.changes.extend(gone.map(|volume| Change::VolumeRemoved { volume: volume.clone() }));
    let gone = old.pools.keys().filter(|pool| !new.pools.contains_key(*pool));
    diff.changes.extend(gone.map(|pool| Change::PoolRemoved { pool: pool.clone() }));
    daemon(&mut diff, &old.daemon, &new.daemon);
    for (name, pool) in &new.pools {
        match old.pools.get(name) {
            Some(old) => pool_changes(&mut diff, name, old, pool),
            None => diff.changes.push(Change::PoolAdded { pool: name.clone() }),
        }
    }
    for (name, volume) in &new.volumes {
        match old.volumes.get(name) {
            Some(old) => volume_changes(&mut diff, name, old, volume),
            None => diff.changes.push(Change::VolumeAdded { volume: name.clone() }),
        }
    }
    diff
}

fn daemon(diff: &mut Diff, old: &DaemonConfig, new: &DaemonConfig) {
    if old.log_level != new.log_level {
        diff.changes.push(Change::LogLevel);
    }
    if old.alarm_command != new.alarm_command {
        diff.changes.push(Change::AlarmCommand);
    }
    if old.metrics_listen != new.metrics_listen {
        diff.changes.push(Change::MetricsListen);
    }
    for (key, differs) in [
        ("admin_socket", old.admin_socket != new.admin_socket),
        ("admin_mode", old.admin_mode != new.admin_mode),
        ("admin_group", old.admin_group != new.admin_group),
        ("allowed_paths", old.allowed_paths != new.allowed_paths),
        ("admin_tcp", old.admin_tcp != new.admin_tcp),
        ("admin_operate or admin_read", old.admin_users != new.admin_users),
        ("control_fs", old.control_fs != new.control_fs),
        ("lock_memory", old.lock_memory != new.lock_memory),
        ("state_dir", old.state_dir != new.state_dir),
    ] {
        if differs {
            diff.refuse(format!("daemon.{key}"), "the daemon reads it when it starts", "restart the daemon");
        }
    }
}

/// How to change a setting of a volume that is fixed while it is attached. A detach by command
/// would remove the volume from the file.
const REATTACH: &str =
    "restart the daemon; or remove the volume from the file, reload, put it back, and reload";

/// Returns the elements of `these` that are not in `those`.
fn without<T: PartialEq + Clone>(these: &[T], those: &[T]) -> Vec<T> {
    these.iter().filter(|one| !those.contains(one)).cloned().collect()
}

fn pool_changes(diff: &mut Diff, name: &str, old: &PoolConfig, new: &PoolConfig) {
    // Another name of the same device is the same device.
    let is = |a: &CacheSpec, b: &CacheSpec| a.path == b.path || node_of(&a.path) == node_of(&b.path);
    let has = |pool: &PoolConfig, device: &CacheSpec| pool.devices.iter().any(|other| is(other, device));
    let without = |these: &PoolConfig, those: &PoolConfig| -> Vec<CacheSpec> {
        let same = |a: &CacheSpec, b: &CacheSpec| is(a, b) && a.size_bytes == b.size_bytes;
        these
            .devices
            .iter()
            .filter(|one| !those.devices.iter().any(|other| same(one, other)))
            .cloned()
            .collect()
    };
    let (mut added, mut removed) = (without(new, old), without(old, new));
    let resized: Vec<CacheSpec> = added.iter().filter(|device| has(old, device)).cloned().collect();
    added.retain(|device| !has(old, device));
    removed.retain(|device| !has(new, device));
    if !(added.is_empty() && removed.is_empty() && resized.is_empty()) {
        diff.changes.push(Change::PoolDevices { pool: name.into(), added, removed, resized });
    }
    settings(diff, Scope::Pool, name, &old.settings, &new.settings);
}

fn volume_changes(diff: &mut Diff, name: &str, old: &VolumeConfig, new: &VolumeConfig) {
    let again = || REATTACH.to_owned();
    if old.pool != new.pool {
        let reason = format!("its dirty data is in pool `{}`", old.pool);
        diff.refuse(format!("volume.{name}.pool"), reason, again());
    }
    if old.backing != new.backing && node_of(old.backing.path()) != node_of(new.backing.path()) {
        let reason = format!("its dirty data belongs to {}", old.backing);
        diff.refuse(format!("volume.{name}.backing"), reason, again());
    }
    let (added, removed) = (without(&new.exports, &old.exports), without(&old.exports, &new.exports));
    if !(added.is_empty() && removed.is_empty()) {
        diff.changes.push(Change::VolumeExports { volume: name.into(), added, removed });
    }
    if old.size_bytes != new.size_bytes {
        let (from_bytes, to_bytes) = (old.size_bytes, new.size_bytes);
        diff.changes.push(Change::VolumeSize { volume: name.into(), from_bytes, to_bytes });
    }
    settings(diff, Scope::Volume, name, &old.settings, &new.settings);
    if old.rules != new.rules {
        diff.changes.push(Change::VolumeRules { volume: name.into() });
    }
}

fn settings(diff: &mut Diff, scope: Scope, name: &str, old: &Settings, new: &Settings) {
    for ((tunable, from), (_, to)) in old.effective().zip(new.effective()) {
        if from == to {
            continue;
        }
        let key = tunable.name;
        let what = format!("{}.{name}.{key}", scope.name());
        match tunable.applies {
            Applies::Live => {
                diff.changes.push(Change::Setting { scope, name: name.into(), key, from, to });
            }
            // The daemon reads it at the next attach, so the change has no effect before.
            Applies::AtAttach if key == "on_backing_change" => {
                diff.changes.push(Change::Setting { scope, name: name.into(), key, from, to });
            }
            Applies::AtAttach => {
                diff.refuse(what, format!("it is {from} until the volume is attached again"), REATTACH);
            }
            Applies::AtStart => {
                diff.refuse(
                    what,
                    format!("it is {from} until the pool is opened again"),
                    "restart the daemon",
                );
            }
            Applies::AtCreation => {
                let remedy = format!("put {from} back, or make a new pool and move the volumes");
                diff.refuse(what, "it was decided when the cache was made", remedy);
            }
        }
    }
}

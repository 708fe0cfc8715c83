//! Interface of the operator to the daemon. HTTP, the control files and the process itself use it.
//!
//! [`Admin`] is the one interface. The structures are what the HTTP API speaks, so their names and
//! fields are part of its contract (see `docs/operate/api.md`). Sizes are bytes, times are seconds
//! since 1970 or durations in nanoseconds, and names say so.
//!
//! Invariants
//! - A call that fails has changed nothing.
//! - What takes longer than a moment (drains, and what needs one) is a job; the call returns it at
//!   once.

use crate::MessageId;
use crate::error::AdminError;
use crate::events::Filter;
use crate::info::{
    AdviceInfo, AlarmTested, DaemonInfo, EventHistory, ImportInfo, JobInfo, LossInfo, PoolInfo, RatesOfAll,
    ReloadDone, SettingInfo, SettingsDone, UpgradeBegun, VolumeInfo,
};
use crate::request::{
    DetachRequest, ExportRequest, GrowRequest, ImportRequest, MetricsForm, OpenHow, PoolRequest,
    RecordRequest, ReplaceRequest, RuleRequest, ScrubRequest, SettingsRequest, ShrinkRequest, VolumeRequest,
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Where the bytes of a trace go.
pub type TraceSender = tokio::sync::mpsc::Sender<Vec<u8>>;

/// A pool or a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// A pool by name.
    Pool(&'a str),
    /// A volume by name.
    Volume(&'a str),
}

/// Everything an operator can ask for. Calls may block for some seconds; they are made from threads
/// that may.
pub trait Admin: Send + Sync + 'static {
    /// About the daemon itself.
    fn daemon(&self) -> DaemonInfo;
    /// What of the daemon itself can be changed while it runs.
    fn daemon_settings(&self) -> BTreeMap<String, SettingInfo> {
        BTreeMap::new()
    }
    /// Changes settings of the daemon.
    fn set_daemon(&self, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        let _ = request;
        Err(AdminError::new(MessageId::SettingUnsupported, "this daemon has no settings", ""))
    }
    /// All pools.
    fn pools(&self) -> Result<Vec<PoolInfo>, AdminError>;
    /// One pool.
    fn pool(&self, name: &str) -> Result<PoolInfo, AdminError>;
    /// Creates a pool, or opens one that is on these devices already.
    fn create_pool(&self, request: PoolRequest) -> Result<PoolInfo, AdminError>;
    /// Opens a pool that is configured and not open, because that failed or because it has stopped
    /// by itself, and attaches its volumes.
    fn open_pool(&self, name: &str, how: OpenHow) -> Result<PoolInfo, AdminError> {
        let _ = how;
        Err(AdminError::new(MessageId::PoolOpen, format!("pool {name} is open"), ""))
    }
    /// Makes a pool larger, while it is used.
    fn grow_pool(&self, name: &str, request: GrowRequest) -> Result<PoolInfo, AdminError>;
    /// Makes a pool smaller, while it is used: a job.
    fn shrink_pool(&self, name: &str, request: ShrinkRequest) -> Result<JobInfo, AdminError>;
    /// Compares everything in the cache of a pool with its checksums, while it is used: a job.
    fn scrub_pool(&self, name: &str, request: ScrubRequest) -> Result<JobInfo, AdminError>;
    /// Gives a pool whose cache has failed a new, empty one: its clients are disconnected for a
    /// moment. Gives a mirrored pool another device in place of one that failed, while it is used:
    /// a job fills it.
    fn replace_cache(&self, name: &str, request: ReplaceRequest) -> Result<PoolInfo, AdminError>;
    /// Closes a pool that has no volumes, and forgets it: a job. What is cached stays on its
    /// devices unless `erase`. One that cannot be opened is forgotten with its volumes with
    /// `force`, whatever only its cache has.
    fn remove_pool(&self, name: &str, erase: bool, force: bool) -> Result<JobInfo, AdminError>;
    /// Closes a pool with its volumes, writes their settings onto its cache, and forgets it: a job.
    /// Refused while volumes are in use unless `force`.
    fn export_pool(&self, name: &str, request: ExportRequest) -> Result<JobInfo, AdminError>;
    /// Opens a pool that was exported, with its settings, and attaches its volumes. One whose
    /// backing store is not there yet is attached when it comes.
    fn import_pool(&self, request: ImportRequest) -> Result<ImportInfo, AdminError>;

    /// All volumes.
    fn volumes(&self) -> Result<Vec<VolumeInfo>, AdminError>;
    /// One volume.
    fn volume(&self, name: &str) -> Result<VolumeInfo, AdminError>;
    /// What was lost of a volume with its cache, by address.
    fn losses(&self, name: &str) -> Result<Vec<LossInfo>, AdminError>;
    /// What caches of other sizes would have done for a pool, or for a volume, in this hour and the
    /// `hours` before it.
    fn advise(&self, target: Target<'_>, hours: u64) -> Result<AdviceInfo, AdminError>;
    /// Records the requests of a volume: a job. The bytes of the trace go to `to`, which is closed
    /// at the end. If they are not taken records are lost, and counted in the trace.
    fn record_volume(
        &self,
        name: &str,
        request: RecordRequest,
        to: TraceSender,
    ) -> Result<JobInfo, AdminError>;
    /// Attaches a volume to its backing store and serves it.
    fn attach_volume(&self, request: VolumeRequest) -> Result<VolumeInfo, AdminError>;
    /// Detaches a volume: a job. One that is in use (by a connection, or because its file is open)
    /// is refused unless `force`. One whose backing file has no name any more is refused unless it
    /// is written to another path, or given up with what is dirty.
    fn detach_volume(&self, name: &str, request: DetachRequest) -> Result<JobInfo, AdminError>;
    /// Gives a volume another size (`size` as text, or `max` for all of the backing store): a job,
    /// short if it grows. One that is in use gets smaller only with `force`.
    fn resize_volume(&self, name: &str, size: &str, force: bool) -> Result<JobInfo, AdminError>;

    /// All tunables of a pool or volume.
    fn settings(&self, target: Target<'_>) -> Result<BTreeMap<String, SettingInfo>, AdminError>;
    /// Changes tunables.
    fn set(&self, target: Target<'_>, request: SettingsRequest) -> Result<SettingsDone, AdminError>;

    /// Writes everything back that is dirty now: a job.
    fn flush_volume(&self, name: &str, deadline: Option<Duration>) -> Result<JobInfo, AdminError>;
    /// All jobs, the newest last.
    fn jobs(&self) -> Vec<JobInfo>;
    /// One job.
    fn job(&self, id: &str) -> Result<JobInfo, AdminError>;
    /// Waits until a job has ended, or for so long.
    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, AdminError>;
    /// Cancels a job.
    fn cancel_job(&self, id: &str) -> Result<JobInfo, AdminError>;

    /// The rules of a volume, in order, with their counters, as JSON.
    fn rules(&self, volume: &str) -> Result<serde_json::Value, AdminError>;
    /// Adds a rule; returns it, with a warning if an earlier rule hides it, as JSON.
    fn add_rule(&self, volume: &str, request: RuleRequest) -> Result<serde_json::Value, AdminError>;
    /// Deletes a rule.
    fn delete_rule(&self, volume: &str, id: &str) -> Result<(), AdminError>;

    /// Statistics as JSON: of one volume, or of everything.
    fn stats(&self, volume: Option<&str>) -> Result<serde_json::Value, AdminError>;
    /// Rates of everything that is open, in the last seconds: little work, for who looks often.
    fn rates(&self) -> Result<RatesOfAll, AdminError>;
    /// Statistics of a volume under FlashCache's names.
    fn flashcache(&self, volume: &str) -> Result<String, AdminError>;
    /// Statistics for Prometheus.
    fn metrics(&self, form: MetricsForm) -> Result<String, AdminError>;

    /// Reads the configuration file again and does what has changed in it.
    fn reload(&self) -> Result<ReloadDone, AdminError>;

    /// Events since a time, of this run of the daemon and of earlier ones: the newest 10,000.
    ///
    /// # Errors
    /// None are kept, or the files cannot be read in time.
    fn event_history(&self, since_unix_ns: u64, filter: Filter) -> Result<EventHistory, AdminError> {
        let _ = (since_unix_ns, filter);
        Err(AdminError::new(
            MessageId::EventsNotKept,
            "this daemon keeps no events in files",
            "forebay events",
        ))
    }

    /// Runs the program for alarms (`alarm_command`) once, with a test alarm, and waits for it.
    ///
    /// # Errors
    /// There is none, or it fails.
    fn test_alarm_command(&self) -> Result<AlarmTested, AdminError> {
        Err(AdminError::new(MessageId::AlarmNoCommand, "this daemon runs no program for alarms", ""))
    }

    /// Starts a successor (the program that lies where this one was started from), and passes
    /// everything to it once it has read the configuration. Returns when that begins.
    fn upgrade(&self) -> Result<UpgradeBegun, AdminError> {
        Err(AdminError::new(
            MessageId::UpgradeUnsupported,
            "this daemon cannot be followed by another",
            "restart it",
        ))
    }
}

//! Interface of the operator to the daemon. HTTP, the control files and the process itself use it.
//!
//! [`Admin`] is the one interface. The HTTP API transfers these structures, so their names and
//! fields are part of its contract (see `docs/operate/api.md`). Sizes are bytes, times are seconds
//! since 1970 or durations in nanoseconds, as their names state.
//!
//! Invariants
//! - A call that fails has changed nothing.
//! - Work that takes longer than a moment (drains, and changes that need one) is a job; the call
//!   returns it at once.

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

/// Receives the bytes of a trace.
pub type TraceSender = tokio::sync::mpsc::Sender<Vec<u8>>;

/// A pool or a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// A pool by name.
    Pool(&'a str),
    /// A volume by name.
    Volume(&'a str),
}

/// All requests of an operator. Calls may block for some seconds, so callers need threads that may
/// block.
pub trait Admin: Send + Sync + 'static {
    /// Returns the state of the daemon.
    fn daemon(&self) -> DaemonInfo;
    /// Returns the daemon's settings that can be changed while it runs.
    fn daemon_settings(&self) -> BTreeMap<String, SettingInfo> {
        BTreeMap::new()
    }
    /// Changes settings of the daemon.
    fn set_daemon(&self, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        let _ = request;
        Err(AdminError::new(MessageId::SettingUnsupported, "this daemon has no settings", ""))
    }
    /// Returns all pools.
    fn pools(&self) -> Result<Vec<PoolInfo>, AdminError>;
    /// Returns one pool.
    fn pool(&self, name: &str) -> Result<PoolInfo, AdminError>;
    /// Creates a pool, or opens the one that these devices hold.
    fn create_pool(&self, request: PoolRequest) -> Result<PoolInfo, AdminError>;
    /// Opens a pool that is configured and not open, because opening failed or because it has
    /// stopped by itself, and attaches its volumes.
    fn open_pool(&self, name: &str, how: OpenHow) -> Result<PoolInfo, AdminError> {
        let _ = how;
        Err(AdminError::new(MessageId::PoolOpen, format!("pool {name} is open"), ""))
    }
    /// Grows a pool online.
    fn grow_pool(&self, name: &str, request: GrowRequest) -> Result<PoolInfo, AdminError>;
    /// Shrinks a pool online: a job.
    fn shrink_pool(&self, name: &str, request: ShrinkRequest) -> Result<JobInfo, AdminError>;
    /// Compares all cached blocks of a pool with their checksums, online: a job.
    fn scrub_pool(&self, name: &str, request: ScrubRequest) -> Result<JobInfo, AdminError>;
    /// Gives a pool whose cache has failed a new, empty one, and disconnects its clients for a
    /// moment. Replaces a failed device of a mirrored pool online; a job fills the new one.
    fn replace_cache(&self, name: &str, request: ReplaceRequest) -> Result<PoolInfo, AdminError>;
    /// Closes a pool that has no volumes, and forgets it: a job. Cached data stays on its devices
    /// unless `erase`. With `force`, also forgets a pool that cannot be opened, with its volumes
    /// and the dirty data in its cache.
    fn remove_pool(&self, name: &str, erase: bool, force: bool) -> Result<JobInfo, AdminError>;
    /// Closes a pool with its volumes, writes their settings onto its cache, and forgets it: a job.
    /// Refuses while volumes are in use unless `force`.
    fn export_pool(&self, name: &str, request: ExportRequest) -> Result<JobInfo, AdminError>;
    /// Opens an exported pool with its settings, and attaches its volumes. A volume whose backing
    /// store is missing is attached when it appears.
    fn import_pool(&self, request: ImportRequest) -> Result<ImportInfo, AdminError>;

    /// Returns all volumes.
    fn volumes(&self) -> Result<Vec<VolumeInfo>, AdminError>;
    /// Returns one volume.
    fn volume(&self, name: &str) -> Result<VolumeInfo, AdminError>;
    /// Returns a volume's lost ranges, by address.
    fn losses(&self, name: &str) -> Result<Vec<LossInfo>, AdminError>;
    /// Predicts the effect of other cache sizes on a pool or a volume, from this hour and the
    /// `hours` before it.
    fn advise(&self, target: Target<'_>, hours: u64) -> Result<AdviceInfo, AdminError>;
    /// Records the requests of a volume: a job. The bytes of the trace go to `to`, which the job
    /// closes at its end. If the receiver is too slow, records are lost, and the trace counts them.
    fn record_volume(
        &self,
        name: &str,
        request: RecordRequest,
        to: TraceSender,
    ) -> Result<JobInfo, AdminError>;
    /// Attaches a volume to its backing store and serves it.
    fn attach_volume(&self, request: VolumeRequest) -> Result<VolumeInfo, AdminError>;
    /// Detaches a volume: a job. Refuses while the volume is in use (by a connection, or because
    /// its file is open) unless `force`. Refuses if its backing file no longer has a name, unless
    /// the request writes it to another path or gives up its dirty data.
    fn detach_volume(&self, name: &str, request: DetachRequest) -> Result<JobInfo, AdminError>;
    /// Resizes a volume (`size` as text, or `max` for the whole backing store): a job, short if it
    /// grows. A volume in use shrinks only with `force`.
    fn resize_volume(&self, name: &str, size: &str, force: bool) -> Result<JobInfo, AdminError>;

    /// Returns all tunables of a pool or volume.
    fn settings(&self, target: Target<'_>) -> Result<BTreeMap<String, SettingInfo>, AdminError>;
    /// Changes tunables.
    fn set(&self, target: Target<'_>, request: SettingsRequest) -> Result<SettingsDone, AdminError>;

    /// Writes back all data that is dirty now: a job.
    fn flush_volume(&self, name: &str, deadline: Option<Duration>) -> Result<JobInfo, AdminError>;
    /// Returns all jobs, newest last.
    fn jobs(&self) -> Vec<JobInfo>;
    /// Returns one job.
    fn job(&self, id: &str) -> Result<JobInfo, AdminError>;
    /// Waits until a job has ended, for at most `timeout`.
    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, AdminError>;
    /// Cancels a job.
    fn cancel_job(&self, id: &str) -> Result<JobInfo, AdminError>;

    /// Returns the rules of a volume, in order, with their counters, as JSON.
    fn rules(&self, volume: &str) -> Result<serde_json::Value, AdminError>;
    /// Adds a rule; returns it as JSON, with a warning if earlier rules shadow it.
    fn add_rule(&self, volume: &str, request: RuleRequest) -> Result<serde_json::Value, AdminError>;
    /// Deletes a rule.
    fn delete_rule(&self, volume: &str, id: &str) -> Result<(), AdminError>;

    /// Returns statistics as JSON: of one volume, or of everything.
    fn stats(&self, volume: Option<&str>) -> Result<serde_json::Value, AdminError>;
    /// Returns the rates of all open pools and attached volumes over the last seconds: cheap, for
    /// frequent calls.
    fn rates(&self) -> Result<RatesOfAll, AdminError>;
    /// Returns the statistics of a volume under FlashCache's names.
    fn flashcache(&self, volume: &str) -> Result<String, AdminError>;
    /// Returns statistics for Prometheus.
    fn metrics(&self, form: MetricsForm) -> Result<String, AdminError>;

    /// Reads the configuration file again and applies the changes.
    fn reload(&self) -> Result<ReloadDone, AdminError>;

    /// Returns events since a time, of this run of the daemon and of earlier ones: the newest
    /// 10,000.
    ///
    /// No events are kept, or the files cannot be read in time.
    fn event_history(&self, since_unix_ns: u64, filter: Filter) -> Result<EventHistory, AdminError> {
        let _ = (since_unix_ns, filter);
        Err(AdminError::new(
            MessageId::EventsNotKept,
            "this daemon keeps no events in files",
            "forebay events",
        ))
    }

    /// Runs the alarm program (`alarm_command`) once, with a test alarm, and waits for it.
    ///
    /// No program is set, or it fails.
    fn test_alarm_command(&self) -> Result<AlarmTested, AdminError> {
        Err(AdminError::new(MessageId::AlarmNoCommand, "this daemon runs no program for alarms", ""))
    }

    /// Starts a successor (the program at the path from which this daemon was started), and hands
    /// everything over once it has read the configuration. Returns when the handover begins.
    fn upgrade(&self) -> Result<UpgradeBegun, AdminError> {
        Err(AdminError::new(
            MessageId::UpgradeUnsupported,
            "this daemon cannot hand over to a successor",
            "restart it",
        ))
    }
}

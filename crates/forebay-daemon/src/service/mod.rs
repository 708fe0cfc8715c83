//! The management side of the daemon: [`Admin`] over pools, configuration, jobs and events.
//!
//! - One change at a time: the thread that makes a change holds [`Service::changing`]. Queries do
//!   not wait for it.
//! - The order of the steps of a change allows undoing a failure: first check it as a whole, then
//!   write it into the configuration file (if there is one), then apply it. If the last step fails,
//!   the file gets its old text back.
//! - A long operation is a job with its own thread (`work`); it holds [`Service::changing`] only
//!   for the steps that change something, not while it drains.
//! - An operation that attaches or detaches a volume holds it exclusively from the pool's step to
//!   the configuration's (`holds`). So the two agree regardless of concurrent requests.
//!
//! Files: `start` (opening everything at startup, stopping it), `pools`, `mirror` (mirrored ones),
//! `replace` (another device for a healthy one), `export` and `import` (moving a pool to and from
//! another host), `confirm` (the operator's decisions on an imported pool), `stores` (its backing
//! stores), `volumes`, `holds`, `settings`, `daemon_settings` (of the daemon itself), `reload`,
//! `work`, `saving` (detaching a volume whose file was unlinked), `absent` (volumes that are not
//! attached), `closed` (pools that are not open), `opening` (cache devices, which may hang),
//! `locked` (devices that are missing or held by another process), `handover` (handing everything
//! over to a successor), `info` (state reports), `looks` (pools that do not answer), `wear` (of the
//! flash), `metrics` (for Prometheus), `event_bridge` (turns reports of pools into events and
//! alarms).

mod absent;
mod advice;
mod closed;
mod confirm;
mod daemon_settings;
mod event_bridge;
mod export;
mod handover;
mod holds;
mod import;
mod info;
mod job_numbers;
mod leaving;
mod locked;
mod looks;
mod metrics;
mod mirror;
mod moved;
mod opening;
mod pools;
mod recording;
mod records;
mod reload;
mod replace;
mod saving;
mod settings;
mod start;
mod stores;
mod telling;
mod volumes;
mod wear;
mod work;

use crate::api::MetricsPort;
use forebay_admin::events::{AlarmKey, EventKind, Filter, Hub};
use forebay_admin::jobs::{JobFilter, JobId, JobKind, JobSpec, JobView, Jobs, WaitError};
use forebay_admin::{
    Admin, AdminError, AdviceInfo, AlarmTested, DaemonInfo, DetachRequest, ErrorKind, EventHistory,
    ExportRequest, GrowRequest, ImportInfo, ImportRequest, JobInfo, LossInfo, MessageId, MetricsForm,
    OpenHow, PoolInfo, PoolRequest, RatesOfAll, RecordRequest, ReloadDone, ReplaceRequest, RuleRequest,
    ScrubRequest, SettingInfo, SettingsDone, SettingsRequest, ShrinkRequest, Target, TraceSender,
    UpgradeBegun, UpgradeInfo, VolumeInfo, VolumeRequest,
};
use forebay_config::rules::RuleSet;
use forebay_config::{Config, ConfigFile};
use forebay_pool::guard::GuardBook;
use forebay_pool::handover::ListenerStore;
use forebay_pool::register::Entry;
use forebay_pool::{Pool, PoolGone, PoolHandle};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

pub(crate) use handover::{Estate, UpgradeAnswer, Upgrader};
pub(crate) use start::{ServiceEvent, ServiceStart, load};

/// Locks a mutex even if a thread panicked while it held it: the guarded state changes in single
/// steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running pools and the configuration.
#[derive(Debug, Default)]
struct Running {
    pools: BTreeMap<String, Arc<PoolHandle>>,
    /// Records of the caches of open pools.
    entries: BTreeMap<String, Arc<Entry>>,
    /// Cache files created since the start.
    made: BTreeMap<String, Vec<PathBuf>>,
    /// The configuration, with live changes.
    config: Config,
    /// Rules of attached volumes.
    rules: BTreeMap<String, Arc<RuleSet>>,
    /// Identities in the former cache of volumes that are about to be attached to a new one. Their
    /// block devices (`ublk:`), which are found by these identities, may still be in use.
    identities: BTreeMap<String, [u8; 16]>,
}

/// See the top of this file.
pub(crate) struct Service {
    /// Reference to itself, for reporters.
    me: Weak<Self>,
    running: RwLock<Running>,
    /// The configuration file; held during changes.
    changing: Mutex<Option<ConfigFile>>,
    hub: Hub,
    jobs: Jobs,
    /// Certificates and allow lists by name.
    guards: Arc<GuardBook>,
    /// Sockets that outlive this process.
    listener_store: Arc<ListenerStore>,
    /// Port that serves metrics without a token.
    metrics: MetricsPort,
    /// Requests an upgrade from the main thread, where upgrades are possible.
    upgrader: Option<Upgrader>,
    /// A request for an upgrade is not answered yet, or a successor takes over.
    upgrading: AtomicBool,
    /// The admin API is served.
    has_api: bool,
    /// Result of the last upgrade.
    upgraded: Mutex<Option<UpgradeInfo>>,
    /// Notifies job threads that there is a job to start, or that the daemon stops.
    work: Mutex<work::Work>,
    work_changed: Condvar,
    /// Recordings that have not begun.
    recordings: Mutex<BTreeMap<JobId, recording::Asked>>,
    /// Devices that threads wait for.
    places: forebay_pool::time_limit::PathLimiter,
    /// Volumes that an operation holds exclusively.
    holds: holds::Holds,
    /// Pools and volumes that are retried until their devices can be opened.
    locked: Mutex<locked::Locked>,
    /// Those of them that are only late so far, each with the error to report if its device does
    /// not appear.
    late: Mutex<BTreeMap<locked::Place, AdminError>>,
    /// Mirrored pools that cannot be opened with one device: the only one found is stale.
    need_both: Mutex<BTreeSet<String>>,
    /// Job numbers that later starts do not reuse.
    job_numbers: Mutex<job_numbers::Noted>,
    /// A waiting pool or volume is being opened.
    opens_late: AtomicBool,
    /// Devices may still appear until then.
    patience_until: Instant,
    /// Known wear of cache devices.
    wear: Mutex<crate::wear::Wear>,
    started_unix_s: u64,
    config_path: Option<String>,
    log_threshold: crate::log_level::LogThreshold,
    /// Receives lines for the log.
    on_event: Mutex<Box<dyn FnMut(ServiceEvent) + Send>>,
}

impl Service {
    fn running(&self) -> std::sync::RwLockReadGuard<'_, Running> {
        self.running.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn running_mut(&self) -> std::sync::RwLockWriteGuard<'_, Running> {
        self.running.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// Another process has the pools, or is about to have them: a change here would be lost, or
    /// open a pool that this process does not own.
    fn changing(&self) -> Result<MutexGuard<'_, Option<ConfigFile>>, AdminError> {
        let file = lock(&self.changing);
        lock(&self.work).check_not_passed_on()?;
        Ok(file)
    }

    /// Returns a running pool.
    fn handle(&self, pool: &str) -> Result<Arc<PoolHandle>, AdminError> {
        let running = self.running();
        running.pools.get(pool).cloned().ok_or_else(|| {
            if running.config.pools.contains_key(pool) {
                let why = self
                    .hub
                    .alarms()
                    .into_iter()
                    .find(|alarm| alarm.key == AlarmKey::pool(EventKind::PoolFailed, pool));
                let why = why.map_or_else(String::new, |alarm| format!(": {}", alarm.message));
                let what = format!("pool {pool} is configured, but not open{why}");
                return AdminError::new(MessageId::PoolNotOpen, what, format!("forebay pool open {pool}"));
            }
            let known: Vec<&str> = running.pools.keys().map(String::as_str).collect();
            AdminError::not_found(MessageId::PoolUnknown, "pool", pool, &known)
        })
    }

    /// Returns the pool of a configured volume, and its name.
    fn pool_of(&self, volume: &str) -> Result<(String, Arc<PoolHandle>), AdminError> {
        let pool = {
            let running = self.running();
            let found = running.config.volumes.get(volume);
            found.map(|found| found.pool.clone()).ok_or_else(|| {
                let known: Vec<&str> = running.config.volumes.keys().map(String::as_str).collect();
                self.kept_apart(volume).unwrap_or_else(|| {
                    AdminError::not_found(MessageId::VolumeUnknown, "volume", volume, &known)
                })
            })?
        };
        let handle = self.handle(&pool)?;
        Ok((pool, handle))
    }

    /// Runs a closure in a pool and returns its result.
    fn ask<T: Send + 'static>(
        handle: &PoolHandle,
        what: impl FnOnce(&mut Pool) -> T + Send + 'static,
    ) -> Result<T, AdminError> {
        handle.ask(what).map_err(gone)
    }

    fn begin_job(&self, spec: JobSpec) -> Result<JobInfo, AdminError> {
        let id = {
            let work = lock(&self.work);
            work.check_not_passed_on()?;
            self.jobs.start(spec)?
        };
        self.work_changed.notify_all();
        self.job_info(id)
    }

    fn job_info(&self, id: JobId) -> Result<JobInfo, AdminError> {
        let view: JobView = self.jobs.get(id)?;
        Ok(JobInfo::from(&view))
    }

    fn job_id(id: &str) -> Result<JobId, AdminError> {
        id.parse().map_err(|error| AdminError::new(MessageId::JobUnknown, error, "`forebay jobs` lists them"))
    }
}

fn gone(error: PoolGone) -> AdminError {
    let id = match error {
        PoolGone::Stopped => MessageId::PoolStopped,
        PoolGone::Late | PoolGone::Silent | PoolGone::Stuck => MessageId::Event(EventKind::PoolNotAnswering),
    };
    AdminError::new(id, error, "look at the log of the daemon").of_kind(ErrorKind::Unavailable)
}

impl Admin for Service {
    fn daemon(&self) -> DaemonInfo {
        let running = self.running();
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_unix_s: self.started_unix_s,
            config: self.config_path.clone(),
            resident_bytes: forebay_pool::meter::resident_bytes(),
            pools: running.pools.keys().cloned().collect(),
            volumes: running.config.volumes.keys().cloned().collect(),
            metrics: self.metrics.address().map(|address| address.to_string()),
            upgrade: lock(&self.upgraded).clone(),
        }
    }

    fn daemon_settings(&self) -> BTreeMap<String, SettingInfo> {
        self.daemon_setting_infos()
    }

    fn set_daemon(&self, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        self.change_daemon(&request)
    }

    fn pools(&self) -> Result<Vec<PoolInfo>, AdminError> {
        let looked = self.look_at_all(|pool| pool.snapshot());
        let mut all: Vec<PoolInfo> =
            looked.answers.iter().map(|(name, snapshot)| self.pool_info_of(name, snapshot)).collect();
        all.extend(looked.silent.iter().map(|name| self.silent_info(name)));
        all.extend(self.closed_infos());
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    fn pool(&self, name: &str) -> Result<PoolInfo, AdminError> {
        let closed = self.closed_infos().into_iter().find(|pool| pool.name == name);
        closed.map_or_else(|| self.pool_info(name), Ok)
    }

    fn create_pool(&self, mut request: PoolRequest) -> Result<PoolInfo, AdminError> {
        request.devices.iter_mut().for_each(pools::keep_name);
        self.create(request)
    }

    fn open_pool(&self, name: &str, how: OpenHow) -> Result<PoolInfo, AdminError> {
        self.reopen(name, how)
    }

    fn grow_pool(&self, name: &str, mut request: GrowRequest) -> Result<PoolInfo, AdminError> {
        request.device.iter_mut().for_each(pools::keep_name);
        self.grow(name, request)
    }

    fn shrink_pool(&self, name: &str, request: ShrinkRequest) -> Result<JobInfo, AdminError> {
        self.holds.check_devices_free(name)?;
        let kind = self.shrink_wanted(name, &request)?;
        self.begin_job(JobSpec::pool(kind, name))
    }

    fn scrub_pool(&self, name: &str, request: ScrubRequest) -> Result<JobInfo, AdminError> {
        let bytes_per_s = self.scrub_rate(name, &request)?;
        self.begin_job(JobSpec::pool(JobKind::Scrub(bytes_per_s), name))
    }

    fn replace_cache(&self, name: &str, mut request: ReplaceRequest) -> Result<PoolInfo, AdminError> {
        pools::keep_name(&mut request.device);
        request.other.iter_mut().for_each(pools::keep_name);
        self.replace(name, &request)
    }

    fn remove_pool(&self, name: &str, erase: bool, force: bool) -> Result<JobInfo, AdminError> {
        self.check_removable(name, erase, force)?;
        self.begin_job(JobSpec::pool(JobKind::Remove { erase }, name).force(force))
    }

    fn export_pool(&self, name: &str, request: ExportRequest) -> Result<JobInfo, AdminError> {
        self.begin_export(name, request)
    }

    fn import_pool(&self, request: ImportRequest) -> Result<ImportInfo, AdminError> {
        self.import(&request)
    }

    fn volumes(&self) -> Result<Vec<VolumeInfo>, AdminError> {
        Ok(self.volume_infos())
    }

    fn volume(&self, name: &str) -> Result<VolumeInfo, AdminError> {
        self.volume_info(name)
    }

    fn losses(&self, name: &str) -> Result<Vec<LossInfo>, AdminError> {
        self.losses_of(name)
    }

    fn advise(&self, target: Target<'_>, hours: u64) -> Result<AdviceInfo, AdminError> {
        self.advice(target, hours)
    }

    fn record_volume(
        &self,
        name: &str,
        request: RecordRequest,
        to: TraceSender,
    ) -> Result<JobInfo, AdminError> {
        self.begin_recording(name, &request, to)
    }

    fn attach_volume(&self, request: VolumeRequest) -> Result<VolumeInfo, AdminError> {
        self.attach(request)
    }

    fn detach_volume(&self, name: &str, request: DetachRequest) -> Result<JobInfo, AdminError> {
        self.holds.check_free(name)?;
        self.begin_detach(name, request)
    }

    fn resize_volume(&self, name: &str, size: &str, force: bool) -> Result<JobInfo, AdminError> {
        self.holds.check_free(name)?;
        let (pool, handle, bytes) = self.size_wanted(name, size)?;
        let volume = name.to_owned();
        if !force && Self::ask(&handle, move |pool| pool.is_smaller(&volume, bytes))? {
            let unused = Self::await_unused(&handle, name);
            drop(unused.map_err(|users| users.refuse("shrink", name))?);
        }
        self.begin_job(JobSpec::volume(JobKind::Resize(bytes), &pool, name).force(force))
    }

    fn settings(&self, target: Target<'_>) -> Result<BTreeMap<String, SettingInfo>, AdminError> {
        self.settings_of(target)
    }

    fn set(&self, target: Target<'_>, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        self.change_settings(target, request)
    }

    fn flush_volume(&self, name: &str, deadline: Option<Duration>) -> Result<JobInfo, AdminError> {
        let (pool, _) = self.attached(name)?;
        let spec = JobSpec::volume(JobKind::Flush, &pool, name);
        let spec = match deadline {
            Some(within) => spec.deadline(within, forebay_admin::jobs::OnMiss::Fail),
            None => spec,
        };
        self.begin_job(spec)
    }

    fn jobs(&self) -> Vec<JobInfo> {
        self.jobs.list(&JobFilter::default()).iter().map(JobInfo::from).collect()
    }

    fn job(&self, id: &str) -> Result<JobInfo, AdminError> {
        self.job_info(Self::job_id(id)?)
    }

    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, AdminError> {
        match self.jobs.wait(Self::job_id(id)?, timeout) {
            Ok(view) => Ok(JobInfo::from(&view)),
            Err(WaitError::TimedOut(view)) => Ok(JobInfo::from(&*view)),
            Err(error) => Err(AdminError::new(MessageId::JobUnknown, error, "`forebay jobs` lists them")),
        }
    }

    fn cancel_job(&self, id: &str) -> Result<JobInfo, AdminError> {
        let id = Self::job_id(id)?;
        self.jobs.cancel(id)?;
        self.forget_recordings();
        self.work_changed.notify_all();
        self.job_info(id)
    }

    fn rules(&self, volume: &str) -> Result<serde_json::Value, AdminError> {
        self.list_rules(volume)
    }

    fn add_rule(&self, volume: &str, request: RuleRequest) -> Result<serde_json::Value, AdminError> {
        self.new_rule(volume, request)
    }

    fn delete_rule(&self, volume: &str, id: &str) -> Result<(), AdminError> {
        self.drop_rule(volume, id)
    }

    fn stats(&self, volume: Option<&str>) -> Result<serde_json::Value, AdminError> {
        self.statistics(volume)
    }

    fn rates(&self) -> Result<RatesOfAll, AdminError> {
        Ok(self.rates_of_all())
    }

    fn flashcache(&self, volume: &str) -> Result<String, AdminError> {
        self.flashcache_text(volume)
    }

    fn metrics(&self, form: MetricsForm) -> Result<String, AdminError> {
        self.metrics_text(form)
    }

    fn reload(&self) -> Result<ReloadDone, AdminError> {
        self.reload_and_tell()
    }

    fn event_history(&self, since_unix_ns: u64, filter: Filter) -> Result<EventHistory, AdminError> {
        self.events_of_files(since_unix_ns, filter)
    }

    fn test_alarm_command(&self) -> Result<AlarmTested, AdminError> {
        self.run_test_alarm()
    }

    fn upgrade(&self) -> Result<UpgradeBegun, AdminError> {
        self.ask_for_upgrade()
    }
}

#[cfg(test)]
mod tests;

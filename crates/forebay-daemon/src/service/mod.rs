//! The management side of the daemon: [`Admin`] over pools, configuration, jobs and events.
//!
//! - One change at a time: the thread that makes a change holds [`Service::changing`]. Queries do
//!   not wait for it.
//! - The order of the steps of a change allows undoing a failure: first check it as a whole, then
//!   write it into the configuration file (if there is one), then apply it. If the last step fails,
//!   the file is edited back (`catalog`).
//! - A long operation is a job with its own thread (`work`); it holds [`Service::changing`] only
//!   for the steps that change something, not while it drains.
//! - An operation that attaches or detaches a volume holds it exclusively from the pool's step to
//!   the configuration's (`holds`). So the two agree regardless of concurrent requests.
//!
//! [`Service`] is the facade over owners with private state that do not know each other: `catalog`
//! (the configuration), `open_pools` with `pool_query`, `attached_volumes`, `holds`, `job_table`
//! with `job_numbers`, `opening` (cache devices, which may hang), `deferred_places` and
//! `telemetry`. These files, `errors`, `requests` and `volume_use` do not import the service. A
//! thread that has the running configuration ([`Catalog::config`]) may ask `open_pools`, not the
//! other way round.
//!
//! The other files are operations over several owners: `start` (opening everything at startup,
//! stopping it), `pools`, `mirror` (mirrored ones), `replace` (another device for a healthy one),
//! `export` and `import` (moving a pool to and from another host), `confirm` (the operator's
//! decisions on an imported pool), `import_backing` (its backing stores), `pool_removal`,
//! `volumes`, `relocated_backing`, `settings`, `daemon_settings` (of the daemon itself), `reload`,
//! `work` (jobs), `recording`, `saving` (detaching a volume whose file was unlinked), `absent`
//! (volumes that are not attached), `unopened_pools`, `deferred_open` (devices that are missing or
//! held by another process), `records` (of caches), `handover` (to a successor), `info` (state
//! reports), `advice`, `wear` (of the flash), `metrics` (for Prometheus), `telling` (alarm program,
//! earlier events), `event_bridge` (turns reports of pools into events and alarms).

mod absent;
mod advice;
mod attached_volumes;
mod catalog;
mod confirm;
mod daemon_settings;
mod deferred_open;
mod deferred_places;
mod errors;
mod event_bridge;
mod export;
mod handover;
mod holds;
mod import;
mod import_backing;
mod info;
mod job_numbers;
mod job_table;
mod locking;
mod metrics;
mod mirror;
mod open_pools;
mod opening;
mod pool_query;
mod pool_removal;
mod pools;
mod recording;
mod records;
mod reload;
mod relocated_backing;
mod replace;
mod requests;
mod saving;
mod settings;
mod start;
mod telemetry;
mod telling;
mod unopened_pools;
mod volume_use;
mod volumes;
mod wear;
mod work;

use crate::api::MetricsPort;
use crate::upgrade::Upgrader;
use forebay_admin::events::{AlarmKey, EventKind, Filter, Hub};
use forebay_admin::jobs::{JobKind, JobSpec, WaitError};
use forebay_admin::{
    Admin, AdminError, AdviceInfo, AlarmTested, DaemonInfo, DetachRequest, EventHistory, ExportRequest,
    GrowRequest, ImportInfo, ImportRequest, JobInfo, LossInfo, MessageId, MetricsForm, OpenHow, PoolInfo,
    PoolRequest, RatesOfAll, RecordRequest, ReloadDone, ReplaceRequest, RuleRequest, ScrubRequest,
    SettingInfo, SettingsDone, SettingsRequest, ShrinkRequest, Target, TraceSender, UpgradeBegun, VolumeInfo,
    VolumeRequest,
};
use forebay_pool::PoolHandle;
use forebay_pool::guard::GuardBook;
use forebay_pool::handover::ListenerStore;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use attached_volumes::AttachedVolumes;
use catalog::{Catalog, StoredConfig};
use deferred_places::DeferredOpens;
use job_table::{JobTable, job_id};
use locking::lock;
use open_pools::OpenPools;
use opening::DeviceOpener;
use pool_query::ask;
use requests::keep_name;
use volume_use::await_unused;

pub(crate) use catalog::load;
pub(crate) use start::ServiceStart;
pub(crate) use telemetry::{ServiceEvent, Telemetry};

/// See the top of this file.
pub(crate) struct Service {
    /// Reference to itself, for the API.
    me: Weak<Self>,
    catalog: Catalog,
    pools: OpenPools,
    attached_volumes: AttachedVolumes,
    hub: Hub,
    jobs: JobTable,
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
    /// Devices that threads wait for.
    places: forebay_pool::time_limit::PathLimiter,
    /// Volumes that an operation holds exclusively.
    holds: holds::Holds,
    devices: DeviceOpener,
    deferred: DeferredOpens,
    telemetry: Arc<Telemetry>,
    log_threshold: crate::log_level::LogThreshold,
}

impl Service {
    /// # Errors
    /// Another process has the pools, or is about to have them: a change here would be lost, or
    /// open a pool that this process does not own.
    fn changing(&self) -> Result<MutexGuard<'_, StoredConfig>, AdminError> {
        let file = self.catalog.lock_file();
        self.jobs.check_not_passed_on()?;
        Ok(file)
    }

    /// Returns what reports the state of the daemon.
    pub(crate) fn telemetry(&self) -> &Telemetry {
        &self.telemetry
    }

    /// Returns a running pool.
    fn handle(&self, pool: &str) -> Result<Arc<PoolHandle>, AdminError> {
        self.pools.get(pool).ok_or_else(|| {
            if self.catalog.has_pool(pool) {
                let why = self.telemetry.message_of(&AlarmKey::pool(EventKind::PoolFailed, pool));
                let why = why.map_or_else(String::new, |message| format!(": {message}"));
                let what = format!("pool {pool} is configured, but not open{why}");
                return AdminError::new(MessageId::PoolNotOpen, what, format!("forebay pool open {pool}"));
            }
            let open = self.pools.names();
            let known: Vec<&str> = open.iter().map(String::as_str).collect();
            AdminError::not_found(MessageId::PoolUnknown, "pool", pool, &known)
        })
    }

    /// Returns the pool of a configured volume, and its name.
    fn pool_of(&self, volume: &str) -> Result<(String, Arc<PoolHandle>), AdminError> {
        let pool = self.catalog.pool_of(volume).ok_or_else(|| {
            self.kept_apart(volume).unwrap_or_else(|| {
                let config = self.catalog.config();
                let known: Vec<&str> = config.volumes.keys().map(String::as_str).collect();
                AdminError::not_found(MessageId::VolumeUnknown, "volume", volume, &known)
            })
        })?;
        let handle = self.handle(&pool)?;
        Ok((pool, handle))
    }
}

impl Admin for Service {
    fn daemon(&self) -> DaemonInfo {
        DaemonInfo {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            started_unix_s: self.telemetry.started_unix_s(),
            config: self.catalog.path().map(str::to_owned),
            resident_bytes: forebay_pool::meter::resident_bytes(),
            pools: self.pools.names(),
            volumes: self.catalog.config().volumes.keys().cloned().collect(),
            metrics: self.metrics.address().map(|address| address.to_string()),
            upgrade: self.telemetry.last_upgrade(),
        }
    }

    fn daemon_settings(&self) -> BTreeMap<String, SettingInfo> {
        self.daemon_setting_infos()
    }

    fn set_daemon(&self, request: SettingsRequest) -> Result<SettingsDone, AdminError> {
        self.change_daemon(&request)
    }

    fn pools(&self) -> Result<Vec<PoolInfo>, AdminError> {
        let looked = self.pools.look_at_all(|pool| pool.snapshot());
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
        request.devices.iter_mut().for_each(keep_name);
        self.create(request)
    }

    fn open_pool(&self, name: &str, how: OpenHow) -> Result<PoolInfo, AdminError> {
        self.reopen(name, how)
    }

    fn grow_pool(&self, name: &str, mut request: GrowRequest) -> Result<PoolInfo, AdminError> {
        request.device.iter_mut().for_each(keep_name);
        self.grow(name, request)
    }

    fn shrink_pool(&self, name: &str, request: ShrinkRequest) -> Result<JobInfo, AdminError> {
        self.holds.check_devices_free(name)?;
        let kind = self.shrink_wanted(name, &request)?;
        self.jobs.begin(JobSpec::pool(kind, name))
    }

    fn scrub_pool(&self, name: &str, request: ScrubRequest) -> Result<JobInfo, AdminError> {
        let bytes_per_s = self.scrub_rate(name, &request)?;
        self.jobs.begin(JobSpec::pool(JobKind::Scrub(bytes_per_s), name))
    }

    fn replace_cache(&self, name: &str, mut request: ReplaceRequest) -> Result<PoolInfo, AdminError> {
        keep_name(&mut request.device);
        request.other.iter_mut().for_each(keep_name);
        self.replace(name, &request)
    }

    fn remove_pool(&self, name: &str, erase: bool, force: bool) -> Result<JobInfo, AdminError> {
        self.check_removable(name, erase, force)?;
        self.jobs.begin(JobSpec::pool(JobKind::Remove { erase }, name).force(force))
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
        if !force && ask(&handle, move |pool| pool.is_smaller(&volume, bytes))? {
            let unused = await_unused(&handle, name);
            drop(unused.map_err(|users| users.refuse("shrink", name))?);
        }
        self.jobs.begin(JobSpec::volume(JobKind::Resize(bytes), &pool, name).force(force))
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
        self.jobs.begin(spec)
    }

    fn jobs(&self) -> Vec<JobInfo> {
        self.jobs.all().iter().map(JobInfo::from).collect()
    }

    fn job(&self, id: &str) -> Result<JobInfo, AdminError> {
        self.jobs.info(job_id(id)?)
    }

    fn wait_for_job(&self, id: &str, timeout: Duration) -> Result<JobInfo, AdminError> {
        match self.jobs.wait(job_id(id)?, timeout) {
            Ok(view) => Ok(JobInfo::from(&view)),
            Err(WaitError::TimedOut(view)) => Ok(JobInfo::from(&*view)),
            Err(error) => Err(AdminError::new(MessageId::JobUnknown, error, "`forebay jobs` lists them")),
        }
    }

    fn cancel_job(&self, id: &str) -> Result<JobInfo, AdminError> {
        self.jobs.cancel(job_id(id)?)
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

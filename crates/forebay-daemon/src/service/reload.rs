//! Reloads the configuration file, and applies its changes.
//!
//! Other operations change the file and the running state concurrently, and each has changed both
//! when it is done. So a reload compares each of its changes with the file and the running state
//! once more while it holds [`Service::changing`], and applies it under that lock. Long operations
//! are only started there: as a job, or with a hold on the volume (`holds`).

use super::catalog::StoredConfig;
use super::deferred_places::Place;
use super::errors::stopped;
use super::job_table::job_id;
use super::opening::Allowed;
use super::pool_query::ask;
use super::{Service, ServiceEvent};
use forebay_admin::events::{EventKind, NewEvent};
use forebay_admin::jobs::{JobKind, JobSpec, OnMiss, WaitError};
use forebay_admin::{AdminError, DetachHow, ErrorKind, JobInfo, MessageId, ReloadDone, Target};
use forebay_config::{Change, Config, Diff, Scope, diff};
use forebay_export::uri::ExportUri;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Time that a reload waits for each of its jobs, which continue after that.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The right to make a change.
type Changing<'a> = MutexGuard<'a, StoredConfig>;

/// Content of the file when it was last read.
struct Said {
    text: String,
    config: Config,
}

impl Service {
    /// Reloads the file, and reports the result: in the log, and by an event if a change was
    /// refused.
    pub(super) fn reload_and_tell(&self) -> Result<ReloadDone, AdminError> {
        let result = self.reload_file();
        let refused = match &result {
            Ok(done) => {
                let nothing = done.changed.is_empty() && done.refused.is_empty();
                let changed =
                    done.changed.iter().cloned().chain(nothing.then(|| "nothing has changed".into()));
                changed.for_each(|line| {
                    self.telemetry
                        .emit(ServiceEvent::Note(MessageId::ConfigReloaded, format!("reloaded: {line}")))
                });
                done.refused.iter().map(|line| format!("not fully reloaded: {line}")).collect()
            }
            Err(error) => vec![format!("not reloaded, the old configuration stays in force: {}", error.what)],
        };
        for message in &refused {
            self.telemetry
                .emit(ServiceEvent::Problem(MessageId::Event(EventKind::ConfigRefused), message.clone()));
        }
        if !refused.is_empty() {
            self.hub.publish(NewEvent::new(EventKind::ConfigRefused, refused.join("; ")));
        }
        result.map_err(|error| match error.hint.is_empty() {
            true => AdminError { hint: "the old configuration stays in force".into(), ..error },
            false => error,
        })
    }

    pub(super) fn reload_file(&self) -> Result<ReloadDone, AdminError> {
        let mut done = ReloadDone::default();
        let (mut said, differences) = self.begin_reload(&mut done)?;
        done.refused.extend(differences.refused.iter().map(ToString::to_string));
        for change in &differences.changes {
            match self.make(change, &mut said) {
                Ok(Some(what)) => done.changed.push(what),
                Ok(None) => {} // already applied, or the file has changed again
                Err(error) => done.refused.push(format!("{}: {}", describe(change), error.what)),
            }
        }
        Ok(done)
    }

    /// Reads the file, and compares it with the running state.
    fn begin_reload(&self, done: &mut ReloadDone) -> Result<(Said, Diff), AdminError> {
        let mut file = self.changing()?;
        let Some(new) = file.reload()? else {
            return Err(AdminError::new(
                MessageId::DaemonNoConfigFile,
                "there is no configuration file: the daemon was started with `forebay run`",
                "",
            ));
        };
        self.forget_lost_exports(&new)?;
        let running = self.catalog.config().clone();
        let differences = diff(&self.as_it_runs(running, &new)?, &new);
        self.catalog.take_names(&new);
        self.update_guards(&new, done);
        Ok((Said { text: file.text().to_owned(), config: new }, differences))
    }

    /// Returns the running configuration, for comparison with the file. Volumes that could not be
    /// attached are left out, so that they are retried with the present file; those being attached
    /// count as attached. Exports that other programs have taken away are left out: they are
    /// recreated, as if they were new in the file.
    fn as_it_runs(&self, mut running: Config, new: &Config) -> Result<Config, AdminError> {
        for name in new.volumes.keys() {
            let open = running.volumes.get(name).is_some_and(|volume| self.handle(&volume.pool).is_ok());
            if open && self.holds.check_free(name).is_ok() && !self.is_attached(name)? {
                running.volumes.remove(name);
            }
        }
        for (name, volume) in &mut running.volumes {
            let lost = self.lost_exports(name, &volume.pool)?;
            volume.exports.retain(|uri| !lost.contains(uri));
        }
        running.volumes.extend(self.holds.attaching());
        Ok(running)
    }

    fn lost_exports(&self, volume: &str, pool: &str) -> Result<Vec<ExportUri>, AdminError> {
        let Ok(handle) = self.handle(pool) else { return Ok(Vec::new()) };
        let name = volume.to_owned();
        ask(&handle, move |pool| pool.lost_exports(&name))
    }

    /// Forgets exports that other programs have taken away and that the file no longer has.
    fn forget_lost_exports(&self, new: &Config) -> Result<(), AdminError> {
        let running = self.catalog.config().clone();
        for (name, volume) in &running.volumes {
            let configured = new.volumes.get(name).map_or(&[][..], |volume| &volume.exports[..]);
            let mut lost = self.lost_exports(name, &volume.pool)?;
            lost.retain(|uri| !configured.contains(uri));
            if lost.is_empty() {
                continue;
            }
            self.catalog.change_volume(name, |volume| volume.exports.retain(|uri| !lost.contains(uri)));
            let (handle, name) = (self.handle(&volume.pool)?, name.clone());
            ask(&handle, move |pool| pool.forget_lost_exports(&name, &lost))?;
        }
        Ok(())
    }

    /// Reloads certificates, even if their paths in the file are unchanged; allow lists apply at
    /// once, including to connected clients.
    fn update_guards(&self, new: &Config, done: &mut ReloadDone) {
        let updated = self.guards.update(new);
        done.changed.extend(updated.changed);
        done.refused.extend(updated.refused);
        self.catalog.take_guards(new);
        if updated.access {
            for (_, pool) in self.pools.all() {
                let _ = pool.ask(forebay_pool::Pool::look_at_clients_again); // a stopped pool has no clients
            }
        }
    }

    /// Makes one change if the file still requires it; returns a description of it.
    fn make(&self, change: &Change, said: &mut Said) -> Result<Option<String>, AdminError> {
        let mut file = self.changing()?;
        if !file.exists() {
            return Ok(None);
        }
        if file.text() != said.text
            && let Some(config) = file.last()?
        {
            *said = Said { text: file.text().to_owned(), config };
        }
        let new = part(&said.config, change);
        let running = part(&self.catalog.config(), change);
        if !diff(&self.as_it_runs(running, &new)?, &new).changes.contains(change) {
            return Ok(None);
        }
        if let Some((Scope::Volume, name)) = change.target() {
            self.holds.check_free(name)?;
        }
        match change {
            Change::VolumeRemoved { volume } => return self.remove_by_reload(change, volume, file).map(Some),
            Change::VolumeAdded { volume } => self.attach_by_reload(volume, &new, file)?,
            Change::VolumeExports { .. } => self.exports_by_reload(change, &new, file)?,
            Change::VolumeSize { volume, to_bytes, .. } => {
                return self.resize_by_reload(change, volume, *to_bytes, file).map(Some);
            }
            other => self.make_now(other, &new, &mut file)?,
        }
        Ok(Some(describe(change)))
    }

    /// Makes a change that waits for nothing but pools and cache devices.
    fn make_now(&self, change: &Change, new: &Config, file: &mut StoredConfig) -> Result<(), AdminError> {
        match change {
            // As at a start with such a file: the record of its cache stays.
            Change::PoolRemoved { pool } if self.is_closed(pool) => self.forget_closed(pool, None),
            Change::PoolRemoved { pool } => self.close_now(pool, false, false, file),
            Change::LogLevel => {
                self.catalog.change_daemon(|daemon| daemon.log_level = new.daemon.log_level);
                self.log_threshold.set(new.daemon.log_level);
                Ok(())
            }
            Change::AlarmCommand => {
                let command = new.daemon.alarm_command.clone();
                self.catalog.change_daemon(|daemon| daemon.alarm_command = command);
                Ok(())
            }
            Change::MetricsListen => self.listen_for_metrics(new.daemon.metrics_listen),
            Change::PoolAdded { pool } => {
                let config = &new.pools[pool];
                // The pool is configured, whether it opens or not, as at a start; if not, `forebay
                // pool open` opens it.
                self.catalog.put_pool(pool, config.clone());
                self.open_pool(pool, config, Allowed::default()).map_err(|error| {
                    let place = Place::Pool(pool.clone());
                    let error = self.try_again_if_locked(place.clone(), error);
                    self.raise_if_configured(&place, &format!("{}; {}", error.what, error.hint));
                    error
                })
            }
            Change::PoolDevices { pool, added, removed, resized } => {
                self.change_devices(pool, (added, removed, resized), file)
            }
            Change::Setting { scope, name, key, .. } => self.setting_by_reload(*scope, name, key, new),
            Change::VolumeRules { volume } => self.rules_by_reload(volume, new),
            Change::VolumeRemoved { .. }
            | Change::VolumeAdded { .. }
            | Change::VolumeExports { .. }
            | Change::VolumeSize { .. } => Ok(()), // these wait for other operations, see `make`
        }
    }

    /// Drains and detaches a volume that the file no longer has, as if the operator had requested
    /// it.
    fn remove_by_reload(
        &self,
        change: &Change,
        volume: &str,
        file: Changing<'_>,
    ) -> Result<String, AdminError> {
        let pool = self.catalog.pool_of(volume);
        let pool = pool.unwrap_or_default();
        if self.is_closed(&pool) || !self.is_attached(volume)? {
            self.catalog.remove_volume(volume);
            return Ok(describe(change));
        }
        let spec = JobSpec::volume(JobKind::Detach(DetachHow::Drain), &pool, volume);
        let spec = spec.deadline(Duration::from_secs(24 * 3600), OnMiss::Warn);
        let id = self.jobs.begin(spec)?.id;
        drop(file);
        self.outcome(change, &id)
    }

    /// Waits a limited time for a job of a reload. Returns its result; if the job continues, the
    /// text names it.
    fn outcome(&self, change: &Change, id: &str) -> Result<String, AdminError> {
        let job = match self.jobs.wait(job_id(id)?, TIMEOUT) {
            Ok(view) => JobInfo::from(&view),
            Err(WaitError::TimedOut(_)) => {
                return Ok(format!("{}: not yet, job {id} continues", describe(change)));
            }
            Err(error) => return Err(AdminError::new(MessageId::JobUnknown, error, "")),
        };
        let Some(error) = job.error else { return Ok(describe(change)) };
        let id = job.error_id.as_deref().and_then(MessageId::from_name);
        let id = id.unwrap_or(MessageId::Event(EventKind::JobFailed));
        Err(AdminError::new(id, error, "").of_kind(ErrorKind::Failed))
    }

    fn attach_by_reload(&self, volume: &str, new: &Config, file: Changing<'_>) -> Result<(), AdminError> {
        let config = &new.volumes[volume];
        let hold = self.holds.attach(volume, config)?;
        drop(file);
        let attached = self.attach_configured(volume, config);
        let file = self.catalog.lock_file();
        if attached.is_ok() || self.catalog.has_volume(volume) {
            self.catalog.put_volume(volume, config.clone());
        }
        drop((hold, file));
        attached.inspect(|()| self.warn_of(volume))
    }

    fn exports_by_reload(&self, change: &Change, new: &Config, file: Changing<'_>) -> Result<(), AdminError> {
        let Change::VolumeExports { volume, added, removed } = change else { return Ok(()) };
        let (pool, handle) = self.attached(volume)?;
        let hold = self.holds.change(volume, &pool)?;
        drop(file);
        let (name, more, less) = (volume.clone(), added.clone(), removed.clone());
        let promise = ask(&handle, move |pool| pool.change_exports(&name, &more, &less))?;
        promise.wait().ok_or_else(stopped)??;
        let file = self.catalog.lock_file();
        self.catalog.change_volume(volume, |config| config.exports = new.volumes[volume].exports.clone());
        drop((hold, file));
        self.warn_of(volume);
        Ok(())
    }

    fn resize_by_reload(
        &self,
        change: &Change,
        volume: &str,
        to_bytes: Option<u64>,
        file: Changing<'_>,
    ) -> Result<String, AdminError> {
        let (pool, _) = self.attached(volume)?;
        let hold = self.holds.change(volume, &pool)?;
        drop(file);
        let size = to_bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
        let (_, _, bytes) = self.size_wanted(volume, &size)?;
        let job = self.jobs.begin(JobSpec::volume(JobKind::Resize(bytes), &pool, volume))?;
        drop(hold);
        self.outcome(change, &job.id)
    }

    fn rules_by_reload(&self, volume: &str, new: &Config) -> Result<(), AdminError> {
        let tables = new.volumes[volume].rules.clone();
        let rules = tables.iter().map(forebay_config::RuleTable::rule).collect::<Result<Vec<_>, _>>()?;
        let set = self.attached_volumes.rules(volume);
        if let Some(set) = set {
            set.replace_all(rules, Instant::now())?;
            self.release_pins(volume, &set)?;
        }
        self.catalog.change_volume(volume, |config| config.rules = tables);
        Ok(())
    }

    /// Changes only this setting: other changed settings in the file may be refused, and then keep
    /// their values.
    fn setting_by_reload(&self, scope: Scope, name: &str, key: &str, new: &Config) -> Result<(), AdminError> {
        let (target, wanted) = match scope {
            Scope::Pool => (Target::Pool(name), &new.pools[name].settings),
            Scope::Volume => (Target::Volume(name), &new.volumes[name].settings),
        };
        let mut settings = self.configured(&self.catalog.config(), target)?;
        let set = match wanted.explicit(key) {
            Some(value) => settings.set(key, &value.to_string()),
            None => settings.unset(key),
        };
        set.map_err(|error| {
            AdminError::new(error.id, format!("{key}: {error}"), "").of_kind(ErrorKind::Invalid)
        })?;
        self.apply_settings(target, &settings)?;
        self.catalog.note_settings(target, settings);
        Ok(())
    }
}

/// Returns the part of a configuration that a change affects.
fn part(config: &Config, change: &Change) -> Config {
    let mut part = Config { daemon: config.daemon.clone(), ..Config::default() };
    match change.target() {
        Some((Scope::Pool, name)) => {
            let pool = config.pools.get(name).cloned();
            part.pools.extend(pool.map(|pool| (name.to_owned(), pool)));
        }
        Some((Scope::Volume, name)) => {
            let volume = config.volumes.get(name).cloned();
            part.volumes.extend(volume.map(|volume| (name.to_owned(), volume)));
        }
        None => {}
    }
    part
}

/// Describes a change for messages.
fn describe(change: &Change) -> String {
    match change {
        Change::VolumeRemoved { volume } => format!("volume {volume} detached"),
        Change::PoolRemoved { pool } => format!("pool {pool} closed"),
        Change::LogLevel => "log level".into(),
        Change::AlarmCommand => "alarm_command".into(),
        Change::MetricsListen => "metrics_listen".into(),
        Change::PoolAdded { pool } => format!("pool {pool} opened"),
        Change::PoolDevices { pool, .. } => format!("devices of pool {pool}"),
        Change::Setting { name, key, from, to, .. } => format!("{key} of {name}: {from} -> {to}"),
        Change::VolumeAdded { volume } => format!("volume {volume} attached"),
        Change::VolumeExports { volume, .. } => format!("exports of {volume}"),
        Change::VolumeSize { volume, .. } => format!("size of {volume}"),
        Change::VolumeRules { volume } => format!("rules of {volume}"),
    }
}

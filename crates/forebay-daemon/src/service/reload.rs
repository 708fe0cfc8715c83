//! Reading the configuration file again, and doing what has changed in it.

use super::records::Allowed;
use super::settings::stored;
use super::start::check_rules;
use super::{Service, ServiceEvent};
use forebay_admin::events::{AlarmKey, EventKind, NewEvent, Severity};
use forebay_admin::jobs::{JobKind, JobSpec, OnMiss};
use forebay_admin::{AdminError, DetachHow, ErrorKind, ReloadDone, Target};
use forebay_config::device_name::node_of;
use forebay_config::{Change, Config, Scope, diff};
use std::time::{Duration, Instant};

/// How long a reload waits for each of its drains; the job goes on after that.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Service {
    /// Reads the file again, and tells what came of it: in the log, and by an event if anything was
    /// refused.
    pub(super) fn reload_and_tell(&self) -> Result<ReloadDone, AdminError> {
        let result = self.reload_file();
        let refused = match &result {
            Ok(done) => {
                let nothing = done.changed.is_empty() && done.refused.is_empty();
                let changed =
                    done.changed.iter().cloned().chain(nothing.then(|| "nothing has changed".into()));
                changed.for_each(|line| self.emit(ServiceEvent::Note(format!("reloaded: {line}"))));
                done.refused.iter().map(|line| format!("not reloaded, it stays as it was: {line}")).collect()
            }
            Err(error) => vec![format!("not reloaded, the old configuration stays in force: {}", error.what)],
        };
        for message in &refused {
            self.emit(ServiceEvent::Problem(message.clone()));
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
        let new = {
            let mut file = self.changing()?;
            let Some(file) = file.as_mut() else {
                return Err(AdminError::new(
                    ErrorKind::Conflict,
                    "there is no configuration file: the daemon was started with `forebay run`",
                    "",
                ));
            };
            file.reload(&check_rules).map_err(|error| stored(&error))?.config
        };
        let mut old = self.running().config.clone();
        // What could not be attached is tried again as the file says now.
        for name in new.volumes.keys() {
            let open = old.volumes.get(name).is_some_and(|volume| self.handle(&volume.pool).is_ok());
            if open && !self.is_attached(name)? {
                old.volumes.remove(name);
            }
        }
        let differences = diff(&old, &new);
        self.take_names(&new);
        let mut done = ReloadDone::default();
        self.update_guards(&new, &mut done);
        done.refused.extend(differences.refused.iter().map(ToString::to_string));
        for change in &differences.changes {
            match self.make(change, &new) {
                Ok(what) => done.changed.push(what),
                Err(error) => done.refused.push(format!("{}: {}", describe(change), error.what)),
            }
        }
        Ok(done)
    }

    /// The file may name the same devices otherwise.
    fn take_names(&self, new: &Config) {
        let mut running = self.running_mut();
        for (name, pool) in &mut running.config.pools {
            for (device, named) in
                pool.devices.iter_mut().zip(new.pools.get(name).iter().flat_map(|new| &new.devices))
            {
                if node_of(&device.path) == node_of(&named.path) {
                    device.path.clone_from(&named.path);
                }
            }
        }
        for (name, volume) in &mut running.config.volumes {
            let named = new.volumes.get(name).map(|new| &new.backing);
            if let Some(named) = named.filter(|named| node_of(named.path()) == node_of(volume.backing.path()))
            {
                volume.backing.clone_from(named);
            }
        }
    }

    /// Certificates are read again, also if the file says the same as before; allow lists hold at
    /// once, for those who are connected too.
    fn update_guards(&self, new: &Config, done: &mut ReloadDone) {
        let updated = self.guards.update(new);
        done.changed.extend(updated.changed);
        done.refused.extend(updated.refused);
        {
            let mut running = self.running_mut();
            running.config.tls.clone_from(&new.tls);
            running.config.access.clone_from(&new.access);
        }
        if updated.access {
            let pools: Vec<_> = self.running().pools.values().cloned().collect();
            for pool in pools {
                let _ = pool.ask(forebay_pool::Pool::look_at_clients_again); // one that has stopped has no clients
            }
        }
    }

    /// Makes one change; says what was done.
    fn make(&self, change: &Change, new: &Config) -> Result<String, AdminError> {
        super::lock(&self.work).check_not_passed_on()?;
        match change {
            Change::VolumeRemoved { volume } => self.remove_by_reload(volume)?,
            // As at a start with such a file: what is recorded of its cache stays.
            Change::PoolRemoved { pool } if self.is_closed(pool) => self.forget_closed(pool, None)?,
            Change::PoolRemoved { pool } => self.close_pool(pool, false, false)?,
            Change::LogLevel => {
                self.running_mut().config.daemon.log_level = new.daemon.log_level;
                self.log_threshold.set(new.daemon.log_level);
            }
            Change::MetricsListen => self.listen_for_metrics(new.daemon.metrics_listen)?,
            Change::PoolAdded { pool } => {
                let config = &new.pools[pool];
                // It is configured, open or not, as at a start: `forebay pool open` is the way
                // then.
                self.running_mut().config.pools.insert(pool.clone(), config.clone());
                self.open_pool(pool, config, Allowed::default()).inspect_err(|error| {
                    self.hub.raise(AlarmKey::pool(EventKind::PoolFailed, pool), Severity::Error, &error.what);
                })?;
            }
            Change::PoolDevices { pool, added, removed, resized } => {
                self.change_devices(pool, (added, removed, resized))?;
            }
            Change::Setting { scope, name, key, .. } => self.setting_by_reload(*scope, name, key, new)?,
            Change::VolumeAdded { volume } => {
                let config = &new.volumes[volume];
                let attached = self.attach_configured(volume, config);
                let mut running = self.running_mut();
                if attached.is_ok() || running.config.volumes.contains_key(volume) {
                    running.config.volumes.insert(volume.clone(), config.clone());
                }
                drop(running);
                attached?;
            }
            Change::VolumeExports { volume, added, removed } => {
                let (_, handle) = self.attached(volume)?;
                let (name, more, less) = (volume.clone(), added.clone(), removed.clone());
                let promise = Self::ask(&handle, move |pool| pool.change_exports(&name, &more, &less))?;
                let stopped = || AdminError::new(ErrorKind::Unavailable, "the pool stopped meanwhile", "");
                promise.wait().ok_or_else(stopped)??;
                if let Some(config) = self.running_mut().config.volumes.get_mut(volume) {
                    config.exports = new.volumes[volume].exports.clone();
                }
            }
            Change::VolumeSize { volume, to_bytes, .. } => {
                let size = to_bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
                let (pool, _, bytes) = self.size_wanted(volume, &size)?;
                let job = self.begin_job(JobSpec::volume(JobKind::Resize(bytes), &pool, volume))?;
                return Ok(format!("{}: job {}", describe(change), job.id));
            }
            Change::VolumeRules { volume } => {
                let tables = new.volumes[volume].rules.clone();
                let rules =
                    tables.iter().map(forebay_config::RuleTable::rule).collect::<Result<Vec<_>, _>>()?;
                let set = self.running().rules.get(volume).cloned();
                if let Some(set) = set {
                    set.replace_all(rules, Instant::now())?;
                    self.release_pins(volume, &set)?;
                }
                if let Some(config) = self.running_mut().config.volumes.get_mut(volume) {
                    config.rules = tables;
                }
            }
        }
        Ok(describe(change))
    }

    /// A volume that is in the file no more is drained and detached, as if the operator had asked
    /// for it.
    fn remove_by_reload(&self, volume: &str) -> Result<(), AdminError> {
        let pool = self.running().config.volumes.get(volume).map(|volume| volume.pool.clone());
        let pool = pool.unwrap_or_default();
        if self.is_closed(&pool) || !self.is_serving(volume) {
            self.running_mut().config.volumes.remove(volume);
            return Ok(());
        }
        let spec = JobSpec::volume(JobKind::Detach(DetachHow::Drain), &pool, volume);
        let spec = spec.deadline(Duration::from_secs(24 * 3600), OnMiss::Warn);
        let id = self.begin_job(spec)?.id;
        let job = forebay_admin::Admin::wait_for_job(self, &id, TIMEOUT)?;
        match job.error {
            Some(error) => Err(AdminError::new(ErrorKind::Failed, error, "")),
            None => Ok(()),
        }
    }

    /// Only this one: others that are different in the file may be refused, and then are what they
    /// were.
    fn setting_by_reload(&self, scope: Scope, name: &str, key: &str, new: &Config) -> Result<(), AdminError> {
        let (target, wanted) = match scope {
            Scope::Pool => (Target::Pool(name), &new.pools[name].settings),
            Scope::Volume => (Target::Volume(name), &new.volumes[name].settings),
        };
        let mut settings = Self::configured(&self.running().config, target)?;
        let set = match wanted.explicit(key) {
            Some(value) => settings.set(key, &value.to_string()),
            None => settings.unset(key),
        };
        set.map_err(|error| AdminError::new(ErrorKind::Invalid, format!("{key}: {error}"), ""))?;
        self.apply_settings(target, &settings)?;
        self.note_settings(target, settings);
        Ok(())
    }
}

/// A change in messages.
fn describe(change: &Change) -> String {
    match change {
        Change::VolumeRemoved { volume } => format!("volume {volume} detached"),
        Change::PoolRemoved { pool } => format!("pool {pool} closed"),
        Change::LogLevel => "log level".into(),
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

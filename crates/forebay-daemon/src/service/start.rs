//! Opens everything at startup, and stops it.

use super::locked::Place;
use super::{Running, Service, Upgrader, lock};
use crate::api::MetricsPort;
use crate::log_level::LogThreshold;
use forebay_admin::Taking;
use forebay_admin::clock::SystemClock;
use forebay_admin::events::{AlarmKey, EventKind, Hub, HubLimits, NewEvent, Severity};
use forebay_admin::jobs::{JobId, Jobs, JobsLimits};
use forebay_admin::{AdminError, MessageId, OpenHow};
use forebay_config::{Checked, Config, ConfigFile, Diagnostic, RuleTable};
use forebay_core::Drain;
use forebay_pool::handover::ListenerStore;
use forebay_pool::{PoolEvent, PoolHandle};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval of the expiry check of rules.
const RULES_EVERY: Duration = Duration::from_secs(1);
/// Interval of retries for devices that cannot be opened.
const LOCKED_EVERY: Duration = Duration::from_secs(1);
/// Time limit for stopping. A pool stops waiting for its devices by itself; this limit is for one
/// whose thread hangs in a system call.
const STOP_WITHIN: Duration = Duration::from_secs(40);
/// Time limit for jobs, which check every tenth of a second whether to end.
const JOBS_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for recordings to send the end of their traces before pools are requested to stop.
const RECORDINGS_END_WITHIN: Duration = Duration::from_secs(1);

/// A line for the log of the daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ServiceEvent {
    /// An event of a pool.
    Pool {
        /// Name of the pool.
        pool: String,
        /// The event.
        event: PoolEvent,
    },
    /// An operation failed; the rest continues.
    Problem(MessageId, String),
    /// An operation was completed.
    Note(MessageId, String),
}

/// Parameters to start a service.
pub(crate) struct ServiceStart {
    /// The configuration to run.
    pub(crate) config: Config,
    /// Its file; `None` for `forebay run`.
    pub(crate) file: Option<ConfigFile>,
    /// Path of the file in messages.
    pub(crate) path: Option<String>,
    /// Whether a problem with one pool or volume ends the start.
    pub(crate) strict: bool,
    /// Pools that may get a new cache although one is recorded.
    pub(crate) new_cache: Vec<String>,
    /// Permitted use of existing cache devices.
    pub(crate) taking: Taking,
    /// Time during which devices may still appear.
    pub(crate) patience: Duration,
    /// Lowest level of logged messages; follows the configuration.
    pub(crate) log_threshold: LogThreshold,
    /// Receives lines for the log.
    pub(crate) on_event: Box<dyn FnMut(ServiceEvent) + Send>,
    /// Inherited sockets.
    pub(crate) listener_store: Arc<ListenerStore>,
    /// Requests an upgrade, where upgrades are possible.
    pub(crate) upgrader: Option<Upgrader>,
    /// The admin API is served.
    pub(crate) has_api: bool,
}

/// Checks the rules of the file with the module that defines their meaning.
pub(super) fn check_rules(volume: &str, tables: &[RuleTable]) -> Vec<Diagnostic> {
    forebay_config::rule_table::check(volume, tables)
}

impl Service {
    /// Opens all pools and attaches all volumes.
    ///
    /// # Errors
    /// If `strict`: the first problem. Otherwise problems become alarms, and the rest is served.
    pub(crate) fn start(start: ServiceStart) -> Result<Arc<Self>, AdminError> {
        let clock = Arc::new(SystemClock::new());
        let hub = Hub::new(clock.clone(), HubLimits::default());
        let first = match start.path {
            Some(_) => super::job_numbers::first(&start.config.daemon.state_dir),
            None => JobId(1),
        };
        let jobs = Jobs::new(hub.clone(), clock, JobsLimits::default(), first);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let service = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            running: RwLock::new(Running { config: start.config.clone(), ..Running::default() }),
            changing: Mutex::new(start.file),
            hub,
            jobs,
            guards: Arc::default(),
            metrics: MetricsPort::new(Arc::clone(&start.listener_store)),
            listener_store: start.listener_store,
            upgrader: start.upgrader,
            upgrading: AtomicBool::new(false),
            has_api: start.has_api,
            upgraded: Mutex::default(),
            work: Mutex::default(),
            work_changed: Condvar::new(),
            recordings: Mutex::default(),
            places: forebay_pool::time_limit::PathLimiter::default(),
            holds: super::holds::Holds::default(),
            locked: Mutex::default(),
            wear: Mutex::new(crate::wear::Wear::begin(&start.config.daemon.state_dir)),
            late: Mutex::default(),
            need_both: Mutex::default(),
            job_numbers: Mutex::default(),
            opens_late: AtomicBool::new(false),
            patience_until: Instant::now() + start.patience,
            started_unix_s: now.map_or(0, |since| since.as_secs()),
            config_path: start.path,
            log_threshold: start.log_threshold,
            on_event: Mutex::new(start.on_event),
        });
        service.log_threshold.set(start.config.daemon.log_level);
        let how = |pool: &str| OpenHow {
            new_cache: start.new_cache.iter().any(|wanted| wanted == pool),
            overwrite: start.taking.overwrite,
            fill: start.taking.fill,
        };
        let opened = service.open_all(&start.config, start.strict, &how);
        if let Err(error) = opened {
            service.stop();
            service.unmake();
            return Err(error);
        }
        if let Err(error) = service.spawn_helpers() {
            service.stop();
            service.unmake();
            return Err(AdminError::no_thread(&error));
        }
        if service.config_path.is_none() {
            // For a file its reader reports them.
            start.config.volumes.keys().for_each(|name| service.warn_of(name));
        }
        Ok(service)
    }

    fn open_all(
        &self,
        config: &Config,
        strict: bool,
        how: &dyn Fn(&str) -> OpenHow,
    ) -> Result<(), AdminError> {
        for problem in self.guards.update(config).refused {
            self.emit(ServiceEvent::Problem(MessageId::ConfigValue, problem)); // exports that need it fail, and report it
        }
        self.settle_leaving();
        for (name, pool) in &config.pools {
            if !strict && let Some(error) = self.to_be_awaited(name) {
                self.trouble(&Place::Pool(name.clone()), &error, strict)?;
                continue;
            }
            if let Err(error) = self.open_pool(name, pool, how(name).into()) {
                let error =
                    if strict { error } else { self.try_again_if_locked(Place::Pool(name.clone()), error) };
                self.trouble(&Place::Pool(name.clone()), &error, strict)?;
            }
        }
        for (name, volume) in &config.volumes {
            if self.handle(&volume.pool).is_err() {
                continue; // the pool's own alarm suffices
            }
            match self.attach_configured(name, volume) {
                Ok(()) => {
                    let message = format!("{name} is attached");
                    self.hub.publish(NewEvent::new(EventKind::VolumeAttached, message).volume(name));
                }
                Err(error) => {
                    let place = Place::Volume(name.clone());
                    let error = if strict { error } else { self.try_again_if_locked(place.clone(), error) };
                    self.trouble(&place, &error, strict)?;
                }
            }
        }
        config.pools.keys().for_each(|pool| self.look_for_absent(pool));
        Ok(())
    }

    fn trouble(&self, place: &Place, error: &AdminError, strict: bool) -> Result<(), AdminError> {
        if strict {
            return Err(error.clone());
        }
        if !self.tell_late(place, error) {
            self.raise_failed(place, error);
        }
        Ok(())
    }

    /// Raises the failure of a configured pool or volume that could not be opened.
    pub(super) fn raise_failed(&self, place: &Place, error: &AdminError) {
        let hint = if error.hint.is_empty() { String::new() } else { format!("; {}", error.hint) };
        let message = format!("{}{hint}", error.what);
        if self.raise_if_configured(place, &message) {
            self.emit(ServiceEvent::Problem(error.id, format!("{place}: {message}")));
        }
    }

    /// Starts the helper threads. Without one of them jobs would wait forever, records become
    /// outdated, or rules outlive their time, so the start fails.
    fn spawn_helpers(self: &Arc<Self>) -> std::io::Result<()> {
        let beginner = Arc::clone(self);
        let (looker, opener) = (Arc::downgrade(self), Arc::downgrade(self));
        let (follower, wearer) = (Arc::downgrade(self), Arc::downgrade(self));
        if self.config_path.is_some() {
            crate::alarm_command::spawn(Arc::downgrade(self), &self.hub)?;
            let state_dir = self.running().config.daemon.state_dir.clone();
            crate::event_files::spawn(Arc::downgrade(self), &self.hub, &state_dir)?;
        }
        let threads = [
            std::thread::Builder::new().name("records".into()).spawn(move || Self::follow_caches(&follower)),
            std::thread::Builder::new().name("wear".into()).spawn(move || Self::follow_wear(&wearer)),
            std::thread::Builder::new().name("jobs".into()).spawn(move || beginner.begin_jobs()),
            std::thread::Builder::new().name("rules".into()).spawn(move || {
                while let Some(service) = looker.upgrade() {
                    if lock(&service.work).stopping {
                        return;
                    }
                    let any = service.running().rules.values().any(|rules| rules.has_transient());
                    if any {
                        service.expire_rules();
                    }
                    drop(service);
                    std::thread::sleep(RULES_EVERY);
                }
            }),
        ];
        let opens = std::thread::Builder::new().name("locked".into()).spawn(move || {
            while let Some(service) = opener.upgrade() {
                if lock(&service.work).stopping {
                    return;
                }
                service.open_what_is_free();
                drop(service);
                std::thread::sleep(LOCKED_EVERY);
            }
        });
        threads.into_iter().chain([opens]).try_for_each(|thread| thread.map(drop))
    }

    /// Returns the interfaces behind the API.
    pub(crate) fn services(self: &Arc<Self>) -> crate::api::Services {
        crate::api::Services { admin: self.clone(), jobs: self.jobs.clone(), events: self.hub.clone() }
    }

    /// Destages a volume as fast as possible, from now on.
    pub(crate) fn drain(&self, volume: &str) -> Result<(), AdminError> {
        let (_, handle) = self.pool_of(volume)?;
        let volume = volume.to_owned();
        Self::ask(&handle, move |pool| pool.set_drain(&volume, Drain::Full))?
    }

    /// Returns true once a pool has ended by itself: nothing is left to serve it.
    pub(crate) fn ended(&self) -> bool {
        self.running().pools.values().any(|pool| pool.has_ended_by_itself())
    }

    /// Removes pools that have ended by themselves from the table: their clients are disconnected,
    /// the others continue.
    pub(crate) fn look_for_ended_pools(&self) {
        if !self.ended() {
            return;
        }
        let mut ended = Vec::new();
        self.running_mut().pools.retain(|name, pool| {
            let keep = !pool.has_ended_by_itself();
            if !keep {
                ended.push((name.clone(), Arc::clone(pool)));
            }
            keep
        });
        for (name, pool) in ended {
            self.running_mut().entries.remove(&name);
            let why = match pool.stop() {
                Ok(()) => "it ended by itself".to_owned(),
                Err(error) => error.to_string(),
            };
            let message = format!(
                "pool {name} has stopped: {why}; its volumes are not served. To open it again: forebay pool open {name}"
            );
            self.hub.clear(&AlarmKey::pool(EventKind::StateUnwritable, &name));
            self.hub.clear(&AlarmKey::pool(EventKind::PoolNotAnswering, &name));
            self.hub.clear(&AlarmKey::pool(EventKind::CacheWear, &name));
            self.hub.raise(AlarmKey::pool(EventKind::PoolFailed, &name), Severity::Error, &message);
            self.emit(ServiceEvent::Problem(MessageId::Event(EventKind::PoolFailed), message));
        }
    }

    /// Stops everything in an orderly way, within [`STOP_WITHIN`] even if something hangs; may be
    /// called repeatedly.
    ///
    /// # Errors
    /// The errors that ended pools earlier, and pools that could not be closed.
    pub(crate) fn stop(&self) -> Vec<forebay_pool::RunError> {
        let pools = self.begin_stop();
        self.settle_job_numbers();
        let until = Instant::now() + STOP_WITHIN;
        let mut errors = Vec::new();
        for (name, pool) in &pools {
            let mut goes_on = || {
                if let Some(manager) = self.listener_store.manager() {
                    manager.needs_more(STOP_WITHIN + JOBS_WITHIN);
                }
            };
            if pool.ends_or_goes_on(until, STOP_WITHIN, &mut goes_on) {
                errors.extend(pool.stop().err());
                continue;
            }
            let is_named = !self.has_alarm(&AlarmKey::pool(EventKind::DevicePathLost, name));
            let safe = if is_named { ". Acknowledged writes are safe in its cache" } else { "" };
            let what = format!(
                "pool {name} was not closed within {} s: a system call of its thread hangs{safe}",
                STOP_WITHIN.as_secs()
            );
            self.emit(ServiceEvent::Problem(MessageId::PoolNotStopped, what.clone()));
            errors.push(forebay_pool::RunError::failed(
                MessageId::PoolNotStopped,
                what,
                "the next start recovers as after a crash",
            ));
        }
        self.await_jobs(JOBS_WITHIN);
        errors
    }

    fn has_alarm(&self, key: &AlarmKey) -> bool {
        self.hub.alarms().iter().any(|alarm| alarm.key == *key)
    }

    /// Requests jobs and pools to stop, and waits only for the end of recordings. All begin at
    /// once; each takes as long as its devices take.
    pub(crate) fn tell_to_stop(&self) {
        self.stop_jobs();
        self.await_recordings(RECORDINGS_END_WITHIN);
        for pool in self.running().pools.values() {
            pool.order(forebay_pool::Pool::stop);
        }
    }

    /// Requests everything to stop, without waiting; returns the pools, which are stopping.
    pub(super) fn begin_stop(&self) -> BTreeMap<String, Arc<PoolHandle>> {
        self.tell_to_stop();
        self.hub.close();
        std::mem::take(&mut self.running_mut().pools)
    }

    pub(crate) fn emit(&self, what: ServiceEvent) {
        (lock(&self.on_event))(what);
    }
}

/// Reads and checks a configuration file.
///
/// # Errors
/// The file cannot be read, or is wrong; the error lists every problem.
pub(crate) fn load(path: &std::path::Path) -> Result<(ConfigFile, Checked), forebay_config::StoreError> {
    ConfigFile::load(path, &check_rules)
}

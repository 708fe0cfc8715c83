//! Opens everything at startup, and stops it.

use super::Service;
use super::catalog::Catalog;
use super::deferred_places::{DeferredOpens, Place};
use super::job_numbers::JobNumbers;
use super::job_table::JobTable;
use super::opening::DeviceOpener;
use super::pool_query::ask;
use super::telemetry::{ServiceEvent, Telemetry};
use crate::api::MetricsPort;
use crate::log_level::LogThreshold;
use crate::upgrade::Upgrader;
use forebay_admin::Taking;
use forebay_admin::clock::SystemClock;
use forebay_admin::events::{AlarmKey, EventKind, Hub, HubLimits, NewEvent, Severity};
use forebay_admin::{AdminError, MessageId, OpenHow};
use forebay_config::{Config, ConfigFile};
use forebay_core::Drain;
use forebay_pool::PoolHandle;
use forebay_pool::handover::ListenerStore;
use forebay_pool::time_limit::PathLimiter;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

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

impl Service {
    /// Opens all pools and attaches all volumes.
    ///
    /// # Errors
    /// If `strict`: the first problem. Otherwise problems become alarms, and the rest is served.
    pub(crate) fn start(start: ServiceStart) -> Result<Arc<Self>, AdminError> {
        let clock = Arc::new(SystemClock::new());
        let hub = Hub::new(clock.clone(), HubLimits::default());
        let places = PathLimiter::default();
        let state_dir = start.path.is_some().then(|| start.config.daemon.state_dir.clone());
        if let Some(state_dir) = &state_dir {
            crate::event_files::restore_alarms(&hub, state_dir);
        }
        let jobs = JobTable::new(hub.clone(), clock, JobNumbers::new(state_dir, places.clone()));
        let wear = crate::wear::Wear::begin(&start.config.daemon.state_dir);
        let telemetry = Telemetry::new(hub.clone(), start.on_event, wear);
        let service = Arc::new_cyclic(|me| Self {
            me: me.clone(),
            catalog: Catalog::new(start.config.clone(), start.file, start.path),
            pools: Default::default(),
            attached_volumes: Default::default(),
            hub,
            jobs,
            guards: Arc::default(),
            metrics: MetricsPort::new(Arc::clone(&start.listener_store)),
            listener_store: start.listener_store,
            upgrader: start.upgrader,
            upgrading: AtomicBool::new(false),
            has_api: start.has_api,
            devices: DeviceOpener::new(places.clone()),
            places,
            holds: super::holds::Holds::default(),
            deferred: DeferredOpens::new(start.patience),
            log_threshold: start.log_threshold,
            telemetry: Arc::new(telemetry),
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
        if service.catalog.path().is_none() {
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
            self.telemetry.emit(ServiceEvent::Problem(MessageId::ConfigValue, problem)); // exports that need it fail, and report it
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
            self.telemetry.emit(ServiceEvent::Problem(error.id, format!("{place}: {message}")));
        }
    }

    /// Starts the helper threads. Without one of them jobs would wait forever, records become
    /// outdated, or rules outlive their time, so the start fails.
    fn spawn_helpers(self: &Arc<Self>) -> std::io::Result<()> {
        let beginner = Arc::clone(self);
        let (looker, opener) = (Arc::downgrade(self), Arc::downgrade(self));
        let (follower, wearer) = (Arc::downgrade(self), Arc::downgrade(self));
        if self.catalog.path().is_some() {
            crate::alarm_command::spawn(Arc::downgrade(self), &self.hub)?;
            let state_dir = self.catalog.state_dir();
            crate::event_files::spawn(Arc::downgrade(&self.telemetry), &self.hub, &state_dir)?;
        }
        let threads = [
            std::thread::Builder::new().name("records".into()).spawn(move || Self::follow_caches(&follower)),
            std::thread::Builder::new().name("wear".into()).spawn(move || Self::follow_wear(&wearer)),
            std::thread::Builder::new().name("jobs".into()).spawn(move || beginner.begin_jobs()),
            std::thread::Builder::new().name("rules".into()).spawn(move || {
                while let Some(service) = looker.upgrade() {
                    if service.jobs.is_stopping() {
                        return;
                    }
                    let all = service.attached_volumes.all_rules();
                    if all.iter().any(|(_, rules)| rules.has_transient()) {
                        service.expire_rules();
                    }
                    drop(service);
                    std::thread::sleep(RULES_EVERY);
                }
            }),
        ];
        let opens = std::thread::Builder::new().name("locked".into()).spawn(move || {
            while let Some(service) = opener.upgrade() {
                if service.jobs.is_stopping() {
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
        crate::api::Services { admin: self.clone(), jobs: self.jobs.shared(), events: self.hub.clone() }
    }

    /// Destages a volume as fast as possible, from now on.
    pub(crate) fn drain(&self, volume: &str) -> Result<(), AdminError> {
        let (_, handle) = self.pool_of(volume)?;
        let volume = volume.to_owned();
        ask(&handle, move |pool| pool.set_drain(&volume, Drain::Full))?
    }

    /// Returns true once a pool has ended by itself: nothing is left to serve it.
    pub(crate) fn ended(&self) -> bool {
        self.pools.any_ended()
    }

    /// Removes pools that have ended by themselves from the table: their clients are disconnected,
    /// the others continue.
    pub(crate) fn look_for_ended_pools(&self) {
        if !self.ended() {
            return;
        }
        for (name, pool) in self.pools.take_ended() {
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
            self.telemetry.emit(ServiceEvent::Problem(MessageId::Event(EventKind::PoolFailed), message));
        }
    }

    /// Stops everything in an orderly way, within [`STOP_WITHIN`] even if something hangs; may be
    /// called repeatedly.
    ///
    /// # Errors
    /// The errors that ended pools earlier, and pools that could not be closed.
    pub(crate) fn stop(&self) -> Vec<forebay_pool::RunError> {
        let pools = self.begin_stop();
        self.jobs.settle_numbers();
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
            let is_named = !self.telemetry.has_alarm(&AlarmKey::pool(EventKind::DevicePathLost, name));
            let safe = if is_named { ". Acknowledged writes are safe in its cache" } else { "" };
            let what = format!(
                "pool {name} was not closed within {} s: a system call of its thread hangs{safe}",
                STOP_WITHIN.as_secs()
            );
            self.telemetry.emit(ServiceEvent::Problem(MessageId::PoolNotStopped, what.clone()));
            errors.push(forebay_pool::RunError::failed(
                MessageId::PoolNotStopped,
                what,
                "the next start recovers as after a crash",
            ));
        }
        self.jobs.await_threads(JOBS_WITHIN);
        errors
    }

    /// Requests jobs and pools to stop, and waits only for the end of recordings. All begin at
    /// once; each takes as long as its devices take.
    pub(crate) fn tell_to_stop(&self) {
        self.jobs.stop();
        self.jobs.await_recordings(RECORDINGS_END_WITHIN);
        for (_, pool) in self.pools.all() {
            pool.order(forebay_pool::Pool::stop);
        }
    }

    /// Requests everything to stop, without waiting; returns the pools, which are stopping.
    pub(super) fn begin_stop(&self) -> BTreeMap<String, Arc<PoolHandle>> {
        self.tell_to_stop();
        self.hub.close();
        self.pools.take_all()
    }
}

//! `forebay serve`: runs the daemon from its configuration file until it stops or a successor takes
//! over.
//!
//! `forebay run` serves in the same way, with a configuration that has no file (`run`).
//!
//! This module also carries out upgrades: it starts a successor while service continues. Then the
//! API and the control files close, and the service quiesces and hands everything over
//! (`service::handover`). If the successor serves, this process ends. If not, a new service takes
//! everything back. See `handover` for the invariants.

use crate::api::{ApiError, ApiOptions, ApiServer, ReadyApi};
use crate::control_files::{self, AlarmSource, ControlFiles};
use crate::late_devices;
use crate::log_level::LogThreshold;
use crate::main_thread::{
    LOOK, Message, SignalledReloads, event_sender, pass_on_events, run_event, start_service, stop,
    watch_signals,
};
use crate::service::{Service, ServiceStart};
use crate::state_lock::StateLock;
use crate::upgrade::{HandoverManifest, HandoverState, Predecessor, Successor, UpgradeAnswer, Upgrader};
use crate::{RunEvent, ServeOptions};
use forebay_admin::Taking;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId, UpgradeBegun, UpgradeInfo};
use forebay_config::{Config, ConfigFile, DaemonConfig};
use forebay_pool::MayWait;
use forebay_pool::RunError;
use forebay_pool::encryption::read_key;
use forebay_pool::handover::{ListenerStore, Manager};
use forebay_pool::open::check_key;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

type Report<'a> = &'a mut dyn FnMut(RunEvent);

/// Serves the configuration file until SIGINT or SIGTERM; SIGHUP reloads the file, SIGUSR2 starts a
/// successor.
///
/// # Errors
/// The file is wrong (the message contains every error), or the admin API cannot be served. A
/// failure of one pool or volume does not keep the others from being served: the daemon reports it
/// and raises an alarm. A successor ends with an error if it cannot serve everything that its
/// predecessor has served; the predecessor then continues.
pub fn serve(options: &ServeOptions, report: &mut dyn FnMut(RunEvent)) -> Result<(), RunError> {
    // Read now: later the path may lead to a newer program, or this program may have another path.
    let program = std::env::current_exe().map_err(|error| {
        RunError::failed(
            MessageId::DaemonSystem,
            format!("cannot determine the path of this program: {error}"),
            "is /proc mounted?",
        )
    })?;
    let predecessor = match options.successor {
        true => Some(
            Predecessor::from_stdin()
                .map_err(|error| RunError::failed(MessageId::DaemonRunsAlready, error, USE_UPGRADE))?,
        ),
        false => None,
    };
    let file = ServedFile { program: &program, config: &options.config };
    let origin = Origin {
        file: Some(file),
        new_cache: &options.new_cache,
        taking: Taking::default(),
        has_api: true,
        drain: None,
        log_threshold: LogThreshold::default(),
    };
    let mut report = |event: RunEvent| {
        if origin.log_threshold.lets_through(&event) {
            report(event);
        }
    };
    let served = serve_after(predecessor.as_ref(), &file, &origin, &mut report);
    if let (Some(predecessor), Err(error)) = (&predecessor, &served) {
        predecessor.give_up(&error.to_string()); // no effect if the predecessor has ended
    }
    served
}

/// Source of a daemon's configuration, and what its start permits.
pub(crate) struct Origin<'a> {
    /// Without a file the first problem at startup ends the daemon, as does the end of a pool.
    pub(crate) file: Option<ServedFile<'a>>,
    /// Pools that may get a new cache although one is recorded.
    pub(crate) new_cache: &'a [String],
    /// Permitted use of existing cache devices.
    pub(crate) taking: Taking,
    /// Whether to serve the admin API.
    pub(crate) has_api: bool,
    /// Volume to drain as fast as possible.
    pub(crate) drain: Option<&'a str>,
    /// Lowest level of logged messages.
    pub(crate) log_threshold: LogThreshold,
}

/// Parameters to start a successor with.
#[derive(Clone, Copy)]
pub(crate) struct ServedFile<'a> {
    program: &'a Path,
    config: &'a Path,
}

const USE_UPGRADE: &str = "a running daemon starts its successor itself: forebay upgrade";

fn serve_after(
    predecessor: Option<&Predecessor>,
    served: &ServedFile<'_>,
    origin: &Origin<'_>,
    report: Report<'_>,
) -> Result<(), RunError> {
    let load = || {
        let loaded = crate::service::load(served.config)
            .map_err(|error| RunError::failed(error.id(), error, "nothing was started"))?;
        // A successor must be able to open the pools that the predecessor closes.
        predecessor.map_or(Ok(()), |_| check_keys(&loaded.1.config))?;
        Ok::<_, RunError>(loaded)
    };
    let (mut file, mut checked) = load()?;
    for (found, line) in checked.warnings.diagnostics().iter().zip(checked.warnings.lines()) {
        report(RunEvent::Problem(found.id, line));
    }
    crate::limits::lock_memory(checked.config.daemon.lock_memory)?;
    let manager = Manager::from_env();
    let (listener_store, manifest) = match predecessor {
        Some(predecessor) => {
            let (sockets, manifest) = predecessor
                .hello()
                .map_err(|error| RunError::failed(MessageId::DaemonRunsAlready, error, USE_UPGRADE))?;
            // The predecessor may have changed the file until it quiesced.
            (file, checked) = load()?;
            (ListenerStore::parked(sockets, manager, manifest.passed), Some(manifest))
        }
        None => (ListenerStore::from_manager(manager), None),
    };
    let followed = predecessor.zip(manifest.as_ref());
    serve_on(origin, checked.config, Some(file), listener_store, followed, report)
}

/// Serves a configuration without a file, until SIGINT or SIGTERM, or until its pool ends.
///
/// # Errors
/// A device, the cache or a socket cannot be used, or the pool has ended by itself.
pub(crate) fn serve_config(origin: &Origin<'_>, config: Config, report: Report<'_>) -> Result<(), RunError> {
    serve_on(origin, config, None, ListenerStore::default(), None, report)
}

fn serve_on(
    origin: &Origin<'_>,
    config: Config,
    file: Option<ConfigFile>,
    listener_store: ListenerStore,
    followed: Option<(&Predecessor, &HandoverManifest)>,
    report: Report<'_>,
) -> Result<(), RunError> {
    crate::limits::raise_descriptors();
    let messages = mpsc::channel();
    watch_signals(&messages.0, origin.file.is_some())?;
    // Otherwise the daemon would serve clients of the pools for a moment at each attempt of a
    // service manager.
    if origin.has_api && followed.is_none() {
        crate::api::check(&ApiOptions::from(&config.daemon), &listener_store).map_err(api_failed)?;
    }
    // The devices that a predecessor has served are present.
    let patience = if followed.is_some() { Duration::ZERO } else { late_devices::patience() };
    let mut daemon =
        Daemon::open(origin, config, (file, patience), Arc::new(listener_store), &messages, report)?;
    match daemon.begin(origin, followed, report) {
        Ok(()) => daemon.keep_on(origin, &messages, report),
        Err(error) => Err(daemon.close(&messages.1, report).err().unwrap_or(error)),
    }
}

/// Checks that the configured keys can open the caches of all pools.
fn check_keys(config: &Config) -> Result<(), RunError> {
    for pool in config.pools.values() {
        let key = pool.tunables().encryption_key_file.as_ref().map(read_key).transpose()?;
        pool.devices.first().map_or(Ok(()), |spec| check_key(&MayWait::here(), spec, key.as_ref()))?;
    }
    Ok(())
}

/// Everything that is open while the daemon serves.
struct Daemon {
    service: Arc<Service>,
    listener_store: Arc<ListenerStore>,
    daemon: DaemonConfig,
    /// Lock of a daemon with a configuration file; released for a successor.
    state_lock: Option<StateLock>,
    api: Api,
    control_files: Option<ControlFiles>,
    /// Latest time to notify the service manager of readiness; `None` once it was notified. The
    /// daemon notifies it when it waits for no more devices, or at this time, after opening the
    /// devices that are present.
    ready_by: Option<Instant>,
    /// Time and text of the last status report to the service manager.
    told: Option<(Instant, String)>,
}

/// The admin API.
enum Api {
    /// Its sockets are open.
    Ready(Box<ReadyApi>),
    Serving(ApiServer),
    /// The API has ended, or is being changed.
    Gone,
}

type Messages = (mpsc::Sender<Message>, mpsc::Receiver<Message>);

impl Daemon {
    /// Opens pools and volumes.
    fn open(
        origin: &Origin<'_>,
        config: Config,
        (file, patience): (Option<ConfigFile>, Duration),
        listener_store: Arc<ListenerStore>,
        messages: &Messages,
        report: Report<'_>,
    ) -> Result<Self, RunError> {
        let daemon = config.daemon.clone();
        let state_lock = match origin.file {
            Some(_) => StateLock::take(&daemon.state_dir)?,
            None => None,
        };
        let start = ServiceStart {
            config,
            file,
            path: origin.file.map(|file| file.config.display().to_string()),
            strict: origin.file.is_none(),
            new_cache: origin.new_cache.to_vec(),
            taking: origin.taking,
            log_threshold: origin.log_threshold.clone(),
            on_event: event_sender(&messages.0),
            listener_store: Arc::clone(&listener_store),
            upgrader: origin.file.map(|_| upgrader(&messages.0)),
            has_api: origin.has_api,
            patience,
        };
        let service = start_service(start, messages, report)?;
        let ready_by = Some(Instant::now() + patience);
        let (api, control_files, told) = (Api::Gone, None, None);
        Ok(Self { service, listener_store, daemon, state_lock, api, control_files, ready_by, told })
    }

    /// Opens the sockets of the API.
    fn open_api(&mut self) -> Result<(), RunError> {
        let options = ApiOptions::from(&self.daemon);
        let ready = ReadyApi::open(&options, self.service.services(), Arc::clone(&self.listener_store));
        self.api = Api::Ready(Box::new(ready.map_err(api_failed)?));
        self.service.open_metrics();
        Ok(())
    }

    /// Starts answering clients; `followed` if they have waited for it.
    fn begin(
        &mut self,
        origin: &Origin<'_>,
        followed: Option<(&Predecessor, &HandoverManifest)>,
        report: Report<'_>,
    ) -> Result<(), RunError> {
        if let Some(volume) = origin.drain {
            self.service.drain(volume)?;
        }
        if origin.has_api {
            self.open_api()?;
        }
        if let Some((predecessor, manifest)) = followed {
            let ready = self.service.check_manifest(manifest);
            ready
                .and_then(|()| predecessor.ready().map_err(|error| error.to_string()))
                .map_err(|why| RunError::failed(MessageId::Event(EventKind::DaemonUpgradeFailed), why, ""))?;
            self.service.go_on();
            self.service.telemetry().note_upgrade(UpgradeInfo {
                from_pid: manifest.pid,
                from_version: manifest.version.clone(),
                to_pid: std::process::id(),
                paused_ms: since(manifest),
                error: None,
            });
        }
        self.listener_store.close_rest();
        self.open_control_files(report)?;
        self.tell_ready();
        report(RunEvent::Serving);
        Ok(())
    }

    /// Notifies the service manager of readiness, once it is due: units ordered after the daemon
    /// then find the volumes whose devices came late.
    fn tell_ready(&mut self) {
        let Some(by) = self.ready_by else { return };
        let waits = self.service.awaits_devices() && Instant::now() < by;
        if waits || self.service.opens_late() {
            return;
        }
        self.ready_by = None;
        if let Some(manager) = self.listener_store.manager() {
            manager.ready();
        }
    }

    /// Reports the status to the service manager if it has changed.
    fn tell_status(&mut self) {
        let Some(manager) = self.listener_store.manager() else { return };
        if self.told.as_ref().is_some_and(|(at, _)| at.elapsed() < LOOK) {
            return;
        }
        let line = self.service.status_line();
        if self.told.as_ref().is_none_or(|(_, told)| *told != line) {
            manager.status(&line);
        }
        self.told = Some((Instant::now(), line));
    }

    /// Opens the API and the control files.
    fn open_control_files(&mut self, report: Report<'_>) -> Result<(), RunError> {
        if let Api::Ready(ready) = std::mem::replace(&mut self.api, Api::Gone) {
            self.api = Api::Serving(ready.serve().map_err(api_failed)?);
            report(RunEvent::Admin(self.daemon.admin_socket.clone()));
            self.service.serve_metrics();
        }
        self.control_files =
            self.daemon.control_fs.as_ref().and_then(|path| show_files(path, &self.service, report));
        Ok(())
    }

    /// Serves until a signal requests a stop, or a successor serves.
    fn keep_on(
        mut self,
        origin: &Origin<'_>,
        messages: &Messages,
        report: Report<'_>,
    ) -> Result<(), RunError> {
        let reloads = SignalledReloads::default();
        loop {
            self.tell_ready();
            self.tell_status();
            match messages.1.recv_timeout(LOOK) {
                Ok(Message::Event(event)) => report(run_event(event)),
                Ok(Message::Reload) => reloads.begin(&self.service),
                Ok(Message::Upgrade(answer)) => {
                    if self.upgrade(answer, origin, messages, report)? {
                        return Ok(());
                    }
                }
                Ok(Message::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return self.close(&messages.1, report);
                }
                Err(mpsc::RecvTimeoutError::Timeout) if origin.file.is_some() => {
                    self.service.look_for_ended_pools();
                }
                Err(mpsc::RecvTimeoutError::Timeout) if self.service.ended() => {
                    return self.close(&messages.1, report);
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Stops in an orderly way.
    fn close(self, received: &mpsc::Receiver<Message>, report: Report<'_>) -> Result<(), RunError> {
        // A successor that gives up is not yet known to the service manager as the daemon.
        if let Some(manager) = self.listener_store.manager().filter(|_| !self.listener_store.is_parked()) {
            manager.stopping();
        }
        // Stop the pools first: a control call that waits for a device must not delay them.
        self.service.tell_to_stop();
        drop(self.control_files);
        drop(self.api);
        self.service.close_metrics();
        stop(&self.service, received, report)
    }

    /// Hands everything over to a successor; returns true if it serves, and this process must end.
    /// Otherwise service continues.
    ///
    /// # Errors
    /// There is no successor, and taking back the pools and clients failed too.
    fn upgrade(
        &mut self,
        answer: Option<UpgradeAnswer>,
        origin: &Origin<'_>,
        messages: &Messages,
        report: Report<'_>,
    ) -> Result<bool, RunError> {
        self.service.set_upgrading(true);
        let followed = self.pass_on(answer, origin, messages, report)?;
        self.service.set_upgrading(followed);
        Ok(followed)
    }

    fn pass_on(
        &mut self,
        answer: Option<UpgradeAnswer>,
        origin: &Origin<'_>,
        messages: &Messages,
        report: Report<'_>,
    ) -> Result<bool, RunError> {
        let Some(served) = origin.file else { return Ok(false) };
        let service = &self.service;
        let possible = service.check_upgradable().and_then(|()| service.check_recordable());
        let possible = possible.and_then(|()| service.check_file_keeps_volumes());
        let successor = possible.and_then(|()| {
            Successor::start(served.program, served.config).map_err(|failed| {
                RunError::failed(
                    MessageId::Event(EventKind::DaemonUpgradeFailed),
                    format!("no upgrade: {failed}"),
                    "everything continues as before; the log of the daemon may have details",
                )
                .into()
            })
        });
        let successor = match successor {
            Ok(successor) => successor,
            Err(error) => {
                self.service.telemetry().tell_no_upgrade(&error);
                answer_upgrade(answer, Err(error));
                return Ok(false);
            }
        };
        let begun = UpgradeBegun {
            from_pid: std::process::id(),
            pid: successor.pid(),
            version: successor.version().to_owned(),
            admin_socket: self.service.moved_admin_socket(),
        };
        if !answer_upgrade(answer, Ok(begun)) {
            report(RunEvent::Problem(
                MessageId::Event(EventKind::DaemonUpgradeFailed),
                "no upgrade: the client that requested it no longer waits".into(),
            ));
            return Ok(false);
        }
        self.control_files = None;
        let mut listeners = match std::mem::replace(&mut self.api, Api::Gone) {
            Api::Serving(api) => api.into_listeners(),
            _ => Vec::new(),
        };
        listeners.extend(self.service.give_metrics_away());
        let pid = successor.pid();
        let failed = |why: String, paused_ms| UpgradeInfo {
            from_pid: std::process::id(),
            from_version: env!("CARGO_PKG_VERSION").to_owned(),
            to_pid: pid,
            paused_ms,
            error: Some(why),
        };
        match self.service.hand_over() {
            Ok((mut state, manifest)) => {
                state.sockets.listeners.extend(listeners);
                self.state_lock = None;
                let passed = match state.unclosed.take() {
                    Some(why) => Err(why),
                    None => {
                        successor.pass(&state.sockets, manifest.clone()).map_err(|failed| failed.to_string())
                    }
                };
                let Err(why) = passed else {
                    if let Some(manager) = self.listener_store.manager() {
                        manager.main_pid(pid);
                    }
                    successor.let_go();
                    pass_on_stop(pid, pass_on_events(&messages.1, report));
                    return Ok(true);
                };
                drop(successor); // its process has ended after this
                self.take_back(origin, state, messages, report)?;
                self.service.telemetry().note_upgrade(failed(why, since(&manifest)));
            }
            Err(error) => {
                drop(successor);
                self.listener_store
                    .put_back(forebay_pool::handover::HandoverSockets { listeners, guests: Vec::new() });
                self.service.telemetry().note_upgrade(failed(error.to_string(), 0));
            }
        }
        // If the API cannot be served, the daemon still serves clients and receives signals.
        let opened = self.open_api().and_then(|()| self.open_control_files(report));
        self.listener_store.close_rest();
        if let Err(error) = opened {
            report(RunEvent::Problem(
                MessageId::Event(EventKind::DaemonUpgradeFailed),
                format!("there is no admin API until the next upgrade or restart: {error}"),
            ));
        }
        Ok(false)
    }

    /// Reopens the pools and clients that were handed over to a successor that has ended.
    fn take_back(
        &mut self,
        origin: &Origin<'_>,
        state: HandoverState,
        messages: &Messages,
        report: Report<'_>,
    ) -> Result<(), RunError> {
        let HandoverState { sockets, config, file, unclosed: _ } = state;
        self.listener_store.put_back(sockets);
        let daemon = Self::open(
            origin,
            config,
            (file, Duration::ZERO),
            Arc::clone(&self.listener_store),
            messages,
            report,
        )?;
        *self = Self { ready_by: None, ..daemon };
        self.service.go_on();
        Ok(())
    }
}

/// Answers the request for an upgrade, if there was one; returns false if the requester no longer
/// waits.
fn answer_upgrade(answer: Option<UpgradeAnswer>, what: Result<UpgradeBegun, AdminError>) -> bool {
    answer.is_none_or(|answer| answer.try_send(what).is_ok())
}

/// Forwards a stop request that this process received while a successor was running.
fn pass_on_stop(pid: u32, asked: bool) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let (Some(pid), true) = (pid, asked) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

/// Returns the milliseconds since clients began to wait.
fn since(manifest: &HandoverManifest) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let waited = now.saturating_sub(u128::from(manifest.quiesced_since_unix_ns)) / 1_000_000;
    u64::try_from(waited).unwrap_or(u64::MAX)
}

fn upgrader(messages: &mpsc::Sender<Message>) -> Upgrader {
    let messages = messages.clone();
    Box::new(move |answer| {
        let _ = messages.send(Message::Upgrade(Some(answer))); // no receiver once the main thread is done
    })
}

/// Mounts the control file system. If that fails, the daemon serves without it.
fn show_files(path: &Path, service: &Arc<Service>, report: &mut dyn FnMut(RunEvent)) -> Option<ControlFiles> {
    let hub = service.services().events;
    let alarms: AlarmSource =
        Arc::new(move || hub.alarms().iter().map(forebay_admin::events::Alarm::to_json).collect());
    let options = control_files::Options { alarms: Some(alarms) };
    match control_files::mount_with(path, service.clone(), options) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            report(RunEvent::Problem(
                MessageId::ControlFailed,
                format!("the control file system is not available: {error}"),
            ));
            None
        }
    }
}

fn api_failed(error: ApiError) -> RunError {
    if let ApiError::Thread(error) = error {
        return AdminError::no_thread(&error).into();
    }
    let hint = "another one: admin_socket or admin_tcp in [daemon] of the configuration, `--admin SOCKET` of `forebay run`";
    RunError::failed(MessageId::ApiListen, error, hint)
}

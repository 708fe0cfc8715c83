//! `forebay run`, and what it has in common with `forebay serve` (`serve`): both start the same service; they differ in where its
//! configuration comes from, and in what a problem at the start means.

use crate::api::{ApiError, ApiOptions, ReadyApi};
use crate::config::{Config, DaemonConfig, PoolConfig, VolumeConfig};
use crate::control::{ControlError, ErrorKind};
use crate::error::RunError;
use crate::handover::ListenerStore;
use crate::service::{Service, ServiceEvent, ServiceStart, UpgradeAnswer};
use crate::settings::Plan;
use crate::{CacheSpec, RunEvent, RunOptions};
use forebay_export::uri::ExportUri;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How often the daemon looks whether a pool has ended by itself.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// How often is looked whether everything has stopped.
const STOP_LOOK: Duration = Duration::from_millis(5);
/// Name of the volume of `forebay run` if its export has none.
const UNNAMED: &str = "volume";
/// Name of the pool of `forebay run`.
const RUN_POOL: &str = "run";

/// What the main thread waits for.
pub(crate) enum Message {
    Event(ServiceEvent),
    Signal(i32),
    /// Somebody asks for a successor; the answer goes there.
    Upgrade(Option<UpgradeAnswer>),
}

/// Serves one volume until SIGINT or SIGTERM.
///
/// # Errors
/// [`RunError::Usage`] if the options make no sense; [`RunError::Failed`] if a device, the cache or a socket cannot be
/// used. Nothing was changed on the devices then, unless the message says so.
pub fn run(options: RunOptions, report: &mut dyn FnMut(RunEvent)) -> Result<(), RunError> {
    let Plan { settings, pool_settings, drain } = crate::settings::plan(&options)?;
    let volume = volume_name(&options.exports);
    let pool = PoolConfig { devices: options.caches.clone(), settings: pool_settings };
    let volume_config = VolumeConfig {
        pool: RUN_POOL.into(),
        backing: options.backing.clone(),
        exports: options.exports.clone(),
        size_bytes: None,
        settings,
        rules: Vec::new(),
    };
    for CacheSpec { path, .. } in &options.caches {
        if path.exists() && crate::cache_device::is_same(path, options.backing.path()) {
            return Err(RunError::failed(
                format!("cache and backing store are the same: {}", path.display()),
                "give the cache a file or device of its own",
            ));
        }
    }
    let config = Config {
        daemon: DaemonConfig { state_dir: state_dir(), ..DaemonConfig::default() },
        pools: [(RUN_POOL.to_owned(), pool)].into(),
        volumes: [(volume.clone(), volume_config)].into(),
        ..Config::default()
    };
    if let Some(problem) = crate::config::mounts::problems(&config, config.volumes.iter()).into_iter().next()
    {
        return Err(RunError::failed(problem.message, problem.help));
    }
    crate::limits::raise_descriptors();
    let messages = mpsc::channel();
    watch_signals(&messages.0, &[SIGINT, SIGTERM])?;
    let start = ServiceStart {
        config,
        file: None,
        path: None,
        strict: true,
        new_cache: if options.new_cache { vec![RUN_POOL.to_owned()] } else { Vec::new() },
        force: options.force,
        on_event: event_sender(&messages.0),
        listener_store: Arc::default(),
        upgrader: None,
    };
    let service = start_service(start, &messages, report)?;
    if drain {
        service.drain(&volume)?;
    }
    let daemon = |socket: &PathBuf| DaemonConfig { admin_socket: socket.clone(), ..DaemonConfig::default() };
    let admin = options.admin.as_ref().map(|socket| {
        open_api(&daemon(socket), &service, &Arc::default()).and_then(|api| api.serve().map_err(api_failed))
    });
    let admin = admin.transpose();
    let admin = match admin {
        Ok(admin) => admin,
        Err(error) => return Err(stop(&service, &messages.1, report).err().unwrap_or(error)),
    };
    wait(&service, &messages.1, report);
    drop(admin);
    stop(&service, &messages.1, report)
}

/// Where `forebay run` records that a cache failed: what systemd gives, else the usual place of the user.
#[must_use]
pub fn state_dir() -> std::path::PathBuf {
    let given =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(std::path::PathBuf::from);
    let own = || {
        let home = || given("HOME").map(|home| home.join(".local/state"));
        (!rustix::process::geteuid().is_root()).then(|| given("XDG_STATE_HOME").or_else(home)).flatten()
    };
    let own = given("STATE_DIRECTORY").or_else(|| own().map(|folder| folder.join("forebay")));
    own.unwrap_or_else(|| DaemonConfig::default().state_dir)
}

/// The volume of `forebay run` has the name of its first export that has one.
fn volume_name(exports: &[ExportUri]) -> String {
    let named = exports.iter().find_map(|uri| match uri {
        ExportUri::Nbd { name, .. } if !name.is_empty() => Some(name.clone()),
        ExportUri::Fuse { path } => path.file_name().map(|name| name.to_string_lossy().into_owned()),
        ExportUri::Nbd { .. } => None,
    });
    let mut name = named.unwrap_or_else(|| UNNAMED.to_owned());
    while name.len() > forebay_format::checkpoint::NAME_BYTES_MAX {
        name.pop();
    }
    name
}

pub(crate) fn event_sender(messages: &mpsc::Sender<Message>) -> Box<dyn FnMut(ServiceEvent) + Send> {
    let messages = messages.clone();
    Box::new(move |event| {
        let _ = messages.send(Message::Event(event)); // nobody listens once the main thread is done
    })
}

pub(crate) fn start_service(
    start: ServiceStart,
    (messages, received): &(mpsc::Sender<Message>, mpsc::Receiver<Message>),
    report: &mut dyn FnMut(RunEvent),
) -> Result<Arc<Service>, RunError> {
    let service = Service::start(start);
    if pass_on_events(received, report) {
        let _ = messages.send(Message::Signal(SIGTERM)); // for whoever waits for it once everything is open
    }
    service.map_err(RunError::from)
}

pub(crate) fn open_api(
    daemon: &DaemonConfig,
    service: &Arc<Service>,
    listeners: &Arc<ListenerStore>,
) -> Result<ReadyApi, RunError> {
    ReadyApi::open(&ApiOptions::from(daemon), service.services(), Arc::clone(listeners)).map_err(api_failed)
}

pub(crate) fn api_failed(error: ApiError) -> RunError {
    RunError::failed(error, "correct [daemon] of the configuration, or choose another socket")
}

/// Signals reach the main thread; a second SIGINT or SIGTERM ends the process at once (the next start recovers).
pub(crate) fn watch_signals(messages: &mpsc::Sender<Message>, signals: &[i32]) -> Result<(), RunError> {
    let fail = |error| RunError::failed(format!("cannot watch signals: {error}"), "");
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asked)).map_err(fail)?;
        signal_hook::flag::register(signal, Arc::clone(&asked)).map_err(fail)?;
    }
    let mut signals = Signals::new(signals).map_err(fail)?;
    let messages = messages.clone();
    let watch = move || {
        for signal in signals.forever() {
            if messages.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok(())
}

pub(crate) fn run_event(event: ServiceEvent) -> RunEvent {
    match event {
        // The only pool of `forebay run` needs no name.
        ServiceEvent::Pool { pool, event } if pool == RUN_POOL => {
            RunEvent::Pool { pool: String::new(), event }
        }
        ServiceEvent::Pool { pool, event } => RunEvent::Pool { pool, event },
        ServiceEvent::Problem(what) => RunEvent::Problem(what),
    }
}

/// Passes on what has been said so far; true if a signal asked to stop.
pub(crate) fn pass_on_events(received: &mpsc::Receiver<Message>, report: &mut dyn FnMut(RunEvent)) -> bool {
    let mut asked = false;
    while let Ok(word) = received.try_recv() {
        match word {
            Message::Event(event) => report(run_event(event)),
            Message::Signal(signal) => asked |= ![SIGHUP, SIGUSR2].contains(&signal),
            Message::Upgrade(_) => {} // it is too early, or too late
        }
    }
    asked
}

/// Serves until a signal asks to stop, or the pool has ended by itself.
fn wait(service: &Service, received: &mpsc::Receiver<Message>, report: &mut dyn FnMut(RunEvent)) {
    loop {
        match received.recv_timeout(LOOK) {
            Ok(Message::Event(event)) => report(run_event(event)),
            Ok(Message::Signal(_)) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) if service.ended() => return,
            Ok(Message::Upgrade(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

pub(crate) fn stop(
    service: &Service,
    received: &mpsc::Receiver<Message>,
    report: &mut dyn FnMut(RunEvent),
) -> Result<(), RunError> {
    // What is told meanwhile is passed on at once: a stop that waits for a device must not be silent.
    let mut errors = std::thread::scope(|scope| {
        let stops = scope.spawn(|| service.stop());
        while !stops.is_finished() {
            match received.recv_timeout(STOP_LOOK) {
                Ok(Message::Event(event)) => report(run_event(event)),
                Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        stops.join().unwrap_or_else(|_| vec![RunError::failed("the stop has panicked", "see the log")])
    });
    pass_on_events(received, report);
    if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
}

impl From<ControlError> for RunError {
    fn from(error: ControlError) -> Self {
        match error.kind {
            ErrorKind::Invalid if error.hint.is_empty() => Self::Usage(error.what),
            ErrorKind::Invalid => Self::Usage(format!("{}; {}", error.what, error.hint)),
            _ => Self::failed(error.what, error.hint),
        }
    }
}

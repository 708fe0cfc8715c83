//! `forebay run`, and what it has in common with `forebay serve` (`serve`): both start the same service; they differ in where its
//! configuration comes from, and in what a problem at the start means.

use crate::api::{ApiError, ApiOptions, ReadyApi};
use crate::config::{Config, DaemonConfig, PoolConfig, VolumeConfig};
use crate::control::{ControlError, ErrorKind};
use crate::error::RunError;
use crate::handover::Keeper;
use crate::service::{Service, ServiceStart, Told, UpgradeAnswer};
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
pub(crate) enum Word {
    Told(Told),
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
    let words = mpsc::channel();
    watch_signals(&words.0, &[SIGINT, SIGTERM])?;
    let start = ServiceStart {
        config,
        file: None,
        path: None,
        strict: true,
        new_cache: if options.new_cache { vec![RUN_POOL.to_owned()] } else { Vec::new() },
        force: options.force,
        told: teller(&words.0),
        keeper: Arc::default(),
        upgrader: None,
    };
    let service = start_service(start, &words, report)?;
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
        Err(error) => return Err(stop(&service, &words.1, report).err().unwrap_or(error)),
    };
    wait(&service, &words.1, report);
    drop(admin);
    stop(&service, &words.1, report)
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

pub(crate) fn teller(words: &mpsc::Sender<Word>) -> Box<dyn FnMut(Told) + Send> {
    let words = words.clone();
    Box::new(move |told| {
        let _ = words.send(Word::Told(told)); // nobody listens once the main thread is done
    })
}

pub(crate) fn start_service(
    start: ServiceStart,
    (words, heard): &(mpsc::Sender<Word>, mpsc::Receiver<Word>),
    report: &mut dyn FnMut(RunEvent),
) -> Result<Arc<Service>, RunError> {
    let service = Service::start(start);
    if hear(heard, report) {
        let _ = words.send(Word::Signal(SIGTERM)); // for whoever waits for it once everything is open
    }
    service.map_err(RunError::from)
}

pub(crate) fn open_api(
    daemon: &DaemonConfig,
    service: &Arc<Service>,
    keeper: &Arc<Keeper>,
) -> Result<ReadyApi, RunError> {
    ReadyApi::open(&ApiOptions::from(daemon), service.services(), Arc::clone(keeper)).map_err(api_failed)
}

pub(crate) fn api_failed(error: ApiError) -> RunError {
    RunError::failed(error, "correct [daemon] of the configuration, or choose another socket")
}

/// Signals reach the main thread; a second SIGINT or SIGTERM ends the process at once (the next start recovers).
pub(crate) fn watch_signals(words: &mpsc::Sender<Word>, signals: &[i32]) -> Result<(), RunError> {
    let fail = |error| RunError::failed(format!("cannot watch signals: {error}"), "");
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&asked)).map_err(fail)?;
        signal_hook::flag::register(signal, Arc::clone(&asked)).map_err(fail)?;
    }
    let mut signals = Signals::new(signals).map_err(fail)?;
    let words = words.clone();
    let watch = move || {
        for signal in signals.forever() {
            if words.send(Word::Signal(signal)).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok(())
}

pub(crate) fn say(told: Told) -> RunEvent {
    match told {
        // The only pool of `forebay run` needs no name.
        Told::Pool { pool, event } if pool == RUN_POOL => RunEvent::Pool { pool: String::new(), event },
        Told::Pool { pool, event } => RunEvent::Pool { pool, event },
        Told::Problem(what) => RunEvent::Problem(what),
    }
}

/// Passes on what has been said so far; true if a signal asked to stop.
pub(crate) fn hear(heard: &mpsc::Receiver<Word>, report: &mut dyn FnMut(RunEvent)) -> bool {
    let mut asked = false;
    while let Ok(word) = heard.try_recv() {
        match word {
            Word::Told(told) => report(say(told)),
            Word::Signal(signal) => asked |= ![SIGHUP, SIGUSR2].contains(&signal),
            Word::Upgrade(_) => {} // it is too early, or too late
        }
    }
    asked
}

/// Serves until a signal asks to stop, or the pool has ended by itself.
fn wait(service: &Service, heard: &mpsc::Receiver<Word>, report: &mut dyn FnMut(RunEvent)) {
    loop {
        match heard.recv_timeout(LOOK) {
            Ok(Word::Told(told)) => report(say(told)),
            Ok(Word::Signal(_)) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
            Err(mpsc::RecvTimeoutError::Timeout) if service.ended() => return,
            Ok(Word::Upgrade(_)) | Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}

pub(crate) fn stop(
    service: &Service,
    heard: &mpsc::Receiver<Word>,
    report: &mut dyn FnMut(RunEvent),
) -> Result<(), RunError> {
    // What is told meanwhile is passed on at once: a stop that waits for a device must not be silent.
    let mut errors = std::thread::scope(|scope| {
        let stops = scope.spawn(|| service.stop());
        while !stops.is_finished() {
            match heard.recv_timeout(STOP_LOOK) {
                Ok(Word::Told(told)) => report(say(told)),
                Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        stops.join().unwrap_or_else(|_| vec![RunError::failed("the stop has panicked", "see the log")])
    });
    hear(heard, report);
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

//! The main thread of the daemon: it receives log lines, signals and upgrade requests, and stops
//! the service.

use crate::RunEvent;
use crate::service::{Service, ServiceEvent, ServiceStart};
use crate::upgrade::UpgradeAnswer;
use forebay_admin::{Admin, MessageId};
use forebay_pool::RunError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// Interval at which the daemon checks whether a pool has ended by itself.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// Interval at which it checks whether everything has stopped.
const STOP_LOOK: Duration = Duration::from_millis(5);
/// Repeated stop signals within this time have no effect.
const REPEATS: Duration = Duration::from_secs(5);
/// Name of the pool of `forebay run`.
pub(crate) const RUN_POOL: &str = "run";

/// Messages to the main thread.
pub(crate) enum Message {
    Event(ServiceEvent),
    /// A signal requests an orderly stop.
    Stop,
    /// A signal requests a reload of the configuration file.
    Reload,
    /// A request for a successor: by a client, with the destination of the answer, or by a signal.
    Upgrade(Option<UpgradeAnswer>),
}

/// Reloads requested by signals. A reload waits for drains and for devices, so each has its own
/// thread. A signal that arrives while another reload waits for its turn has no effect.
#[derive(Default)]
pub(crate) struct SignalledReloads {
    waits: Arc<AtomicBool>,
    turn: Arc<Mutex<()>>,
}

impl SignalledReloads {
    pub(crate) fn begin(&self, service: &Arc<Service>) {
        if self.waits.swap(true, Ordering::SeqCst) {
            return;
        }
        let (waits, turn) = (Arc::clone(&self.waits), Arc::clone(&self.turn));
        let reloads = Arc::clone(service);
        let reload = move || {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            waits.store(false, Ordering::SeqCst); // from here on this reload may miss later edits
            let _ = reloads.reload(); // it reports its result
        };
        let thread = std::thread::Builder::new().name("reload".into());
        if let Err(error) = thread.spawn(reload) {
            self.waits.store(false, Ordering::SeqCst);
            service.telemetry().tell_reload_failed(&error);
        }
    }
}

pub(crate) fn event_sender(messages: &mpsc::Sender<Message>) -> Box<dyn FnMut(ServiceEvent) + Send> {
    let messages = messages.clone();
    Box::new(move |event| {
        let _ = messages.send(Message::Event(event)); // no receiver once the main thread is done
    })
}

pub(crate) fn start_service(
    start: ServiceStart,
    (messages, received): &(mpsc::Sender<Message>, mpsc::Receiver<Message>),
    report: &mut dyn FnMut(RunEvent),
) -> Result<Arc<Service>, RunError> {
    let service = Service::start(start);
    if pass_on_events(received, report) {
        let _ = messages.send(Message::Stop); // received once everything is open
    }
    service.map_err(RunError::from)
}

/// Forwards signals to the main thread. SIGINT and SIGTERM begin an orderly stop; without a
/// configuration file to reload, SIGHUP does too: the terminal has been closed. Shells, service
/// managers and users repeat such a signal: within [`REPEATS`] that has no effect. After that one
/// ends the process at once, with exit code 1 (the next start recovers).
pub(crate) fn watch_signals(messages: &mpsc::Sender<Message>, has_file: bool) -> Result<(), RunError> {
    let fail =
        |error| RunError::failed(MessageId::DaemonSystem, format!("cannot watch signals: {error}"), "");
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGXFSZ]).map_err(fail)?;
    if has_file {
        signals.add_signal(SIGUSR2).map_err(fail)?;
    }
    let messages = messages.clone();
    let watch = move || {
        let mut stopping: Option<Instant> = None;
        for signal in signals.forever() {
            let message = match (signal, stopping) {
                (SIGXFSZ, _) => continue, // the write beyond the limit of file sizes fails with EFBIG
                (SIGHUP, _) if has_file => Message::Reload,
                (SIGUSR2, _) => Message::Upgrade(None),
                (_, None) => Message::Stop,
                (_, Some(since)) if since.elapsed() < REPEATS => stops_already(),
                (_, Some(_)) => signal_hook::low_level::exit(1),
            };
            if matches!(message, Message::Stop) {
                stopping = Some(Instant::now());
            }
            let _ = messages.send(message); // no receiver once the main thread is done
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok(())
}

fn stops_already() -> Message {
    let what = format!(
        "the daemon is already stopping; another signal, {} s or more after the first one, ends it at once, \
         and the next start recovers",
        REPEATS.as_secs()
    );
    Message::Event(ServiceEvent::Note(MessageId::DaemonStopping, what))
}

pub(crate) fn run_event(event: ServiceEvent) -> RunEvent {
    match event {
        // The only pool of `forebay run` needs no name.
        ServiceEvent::Pool { pool, event } if pool == RUN_POOL => {
            RunEvent::Pool { pool: String::new(), event }
        }
        ServiceEvent::Pool { pool, event } => RunEvent::Pool { pool, event },
        ServiceEvent::Problem(id, what) => RunEvent::Problem(id, what),
        ServiceEvent::Note(id, what) => RunEvent::Note(id, what),
    }
}

/// Forwards the events received so far; returns true if a signal requested a stop.
pub(crate) fn pass_on_events(received: &mpsc::Receiver<Message>, report: &mut dyn FnMut(RunEvent)) -> bool {
    let mut asked = false;
    while let Ok(word) = received.try_recv() {
        match word {
            Message::Event(event) => report(run_event(event)),
            Message::Stop => asked = true,
            Message::Reload | Message::Upgrade(_) => {} // too early, or too late
        }
    }
    asked
}

pub(crate) fn stop(
    service: &Service,
    received: &mpsc::Receiver<Message>,
    report: &mut dyn FnMut(RunEvent),
) -> Result<(), RunError> {
    // Forward events at once meanwhile: a stop that waits for a device must not be silent.
    let mut errors = std::thread::scope(|scope| {
        let stops = std::thread::Builder::new().name("stop".into());
        // Without a thread for it, forward the events afterwards.
        let Ok(stops) = stops.spawn_scoped(scope, || service.stop()) else { return service.stop() };
        while !stops.is_finished() {
            match received.recv_timeout(STOP_LOOK) {
                Ok(Message::Event(event)) => report(run_event(event)),
                Ok(_) | Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        stops.join().unwrap_or_else(|_| {
            vec![RunError::failed(MessageId::DaemonStopFailed, "the stop panicked", "see the log")]
        })
    });
    pass_on_events(received, report);
    if errors.is_empty() { Ok(()) } else { Err(errors.remove(0)) }
}

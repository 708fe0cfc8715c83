//! The main thread of the daemon: it receives log lines, signals and upgrade requests, and stops
//! the service.

use crate::RunEvent;
use crate::service::{Service, ServiceEvent, ServiceStart, UpgradeAnswer};
use forebay_pool::RunError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
use signal_hook::iterator::Signals;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// How often the daemon looks whether a pool has ended by itself.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// How often is looked whether everything has stopped.
const STOP_LOOK: Duration = Duration::from_millis(5);
/// Name of the pool of `forebay run`.
pub(crate) const RUN_POOL: &str = "run";

/// What the main thread waits for.
pub(crate) enum Message {
    Event(ServiceEvent),
    Signal(i32),
    /// Somebody asks for a successor; the answer goes there.
    Upgrade(Option<UpgradeAnswer>),
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

/// Signals reach the main thread; a second SIGINT or SIGTERM ends the process at once (the next
/// start recovers).
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
        ServiceEvent::Note(what) => RunEvent::Note(what),
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

pub(crate) fn stop(
    service: &Service,
    received: &mpsc::Receiver<Message>,
    report: &mut dyn FnMut(RunEvent),
) -> Result<(), RunError> {
    // What is told meanwhile is passed on at once: a stop that waits for a device must not be
    // silent.
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

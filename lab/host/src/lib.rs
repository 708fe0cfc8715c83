//! Serves one volume without an engine of Forebay: the export path of a pool with another handler.
//!
//! Connections, mounts, protocols, buffers, checksums and system calls are those of a pool, in the
//! same kind of loop on one thread; only the engine is missing. A [`RequestHandler`] replaces it:
//! an empty one ([`crate::null`]), or another cache to compare with Forebay under the same
//! conditions.
//!
//! Invariants
//! - [`RequestHandler::act`] answers every request once, also during a stop.
//! - A stop first removes mounts and listeners, then lets the volume finish, then waits for the
//!   last answers.
#![forbid(unsafe_code)]

pub mod null;

use forebay_admin::MessageId;
use forebay_config::PoolTunables;
use forebay_config::rules::{ClientCache, DefaultAction, RuleSet};
use forebay_core::OpId;
use forebay_export::directory::ExportInfo;
use forebay_export::uri::{BackingUri, ExportUri, Guards};
use forebay_format::VolumeId;
use forebay_io::fuse::FuseMount;
use forebay_io::{Completion, Device, DeviceModel, EnginePreference, IoFailure, Limits, Reactor, Waker};
use forebay_pool::client_request::ClientEngine;
use forebay_pool::fuse_server::{BUFFER_BYTES_DEFAULT, FuseOptions, FuseServer};
use forebay_pool::mounting::{Made, reserve, ring_bytes};
use forebay_pool::open::BackingOptions;
use forebay_pool::server::{Offer, Server, reserve_request_buffer};
use forebay_pool::token::{FrontendOp, Protocol, Token};
use forebay_pool::{MayWait, RunError};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

pub use forebay_core::{BufId, Nanos, Request, RequestError, RequestId, RequestKind};

const VOLUME: VolumeId = VolumeId(0);
/// Longest wait at the end for replies that clients do not take.
const LAST_REPLIES: Duration = Duration::from_secs(3);
/// Interval of checks for the end.
const END_LOOK: Duration = Duration::from_millis(10);

/// The answer to a request.
pub type Answer = (RequestId, Result<(), RequestError>);

/// Answers the requests of clients in place of a pool's engine. `now` is in nanoseconds since the
/// start.
pub trait RequestHandler {
    /// Takes a request; [`RequestHandler::act`] returns its answer. Its range lies inside the
    /// volume. [`Request`] describes the layout of its buffer.
    fn submit(&mut self, now: Nanos, request: Request<'_>);

    /// Calls `f(blocks, cached, dirty)` for runs of equal blocks of 4096 bytes of a range, until it
    /// returns false.
    fn block_status(&self, first_block: u64, blocks: u64, f: &mut dyn FnMut(u64, bool, bool) -> bool);

    /// Starts operations that are due, under tokens of [`token`], and appends answers. Returns true
    /// if it did anything.
    fn act(&mut self, now: Nanos, reactor: &mut Reactor, answers: &mut Vec<Answer>) -> bool;

    /// Handles the completion of the operation submitted under [`token`]`(number)`.
    fn completed(
        &mut self,
        _now: Nanos,
        _reactor: &mut Reactor,
        _number: u32,
        _result: Result<u32, IoFailure>,
    ) {
    }

    /// Latest time of the next [`RequestHandler::tick`].
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Called in every turn of the loop.
    fn tick(&mut self, _now: Nanos) {}

    /// Handles SIGUSR1.
    fn poke(&mut self, _now: Nanos) {}

    /// Announces the end of requests; the handler must answer the outstanding ones.
    fn stop(&mut self, _now: Nanos) {}

    /// Returns whether the work after [`RequestHandler::stop`] is complete.
    fn is_stopped(&self) -> bool {
        true
    }
}

/// The token under which a [`RequestHandler`] submits its operations to the reactor.
#[must_use]
pub const fn token(number: u32) -> u64 {
    Token::Engine(OpId(number)).encode()
}

/// The volume to serve, and its exports.
#[derive(Clone, Debug)]
pub struct HostOptions<'a> {
    /// URIs at which clients find the volume.
    pub exports: &'a [ExportUri],
    /// Size of the volume in bytes.
    pub size_bytes: u64,
    /// The I/O engine to use.
    pub io: EnginePreference,
}

/// An event while a volume is served.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HostEvent {
    /// Clients find the volume at this URI.
    Ready(String),
    /// A message for the operator.
    Note(String),
}

/// Serves a volume until SIGINT or SIGTERM, and returns it. `make` creates it, and adds its devices
/// to the reactor.
///
/// # Errors
/// An export cannot be created, the kernel allows no I/O, `make` fails, or a second signal arrives
/// before the volume has stopped.
pub fn serve<V: RequestHandler>(
    options: &HostOptions<'_>,
    make: impl FnOnce(&mut Reactor) -> Result<V, RunError>,
    report: &mut dyn FnMut(HostEvent),
) -> Result<V, RunError> {
    let defaults = PoolTunables::default();
    // As in a pool, it is not an error if the process lacks permission.
    let _ = forebay_pool::thread_priority::boost(defaults.nice_boost);
    let buffer_bytes = defaults.buffer_memory.0 as usize;
    let limits = Limits { buffer_bytes_max: buffer_bytes, spin: defaults.spin, ..Limits::default() };
    let (mut reactor, note) = Reactor::open(options.io, limits)
        .map_err(|error| RunError::failed(MessageId::DaemonIoEngine, error, "try --io psync"))?;
    note.into_iter().for_each(|note| report(HostEvent::Note(note)));
    reserve_request_buffer(reactor.pool_mut());
    let (signals, stopper) = watch_signals(reactor.waker())?;
    let volume = make(&mut reactor)?;
    let mut server = Server::new(Arc::default(), defaults.pool_connections_max, buffer_bytes);
    let rules = Arc::new(RuleSet::new(DefaultAction::Cache, options.size_bytes));
    server.add_volume(VOLUME, Arc::clone(&rules));
    let mut host = Host {
        reactor,
        server,
        rules,
        mounts: Vec::new(),
        volume,
        answers: Vec::new(),
        origin: Instant::now(),
        signals,
        stopping: false,
        buffer_bytes,
    };
    let opened = options.exports.iter().try_for_each(|uri| {
        report(HostEvent::Ready(host.export(uri, options.size_bytes)?));
        Ok(())
    });
    let outcome = opened.and_then(|()| host.run(report));
    host.reactor.emulation_notes().into_iter().for_each(|note| report(HostEvent::Note(note)));
    host.begin_stop(report);
    stopper.close();
    outcome.map(|()| host.volume)
}

/// Forwards signals to a channel, and wakes the reactor.
fn watch_signals(waker: Waker) -> Result<(mpsc::Receiver<i32>, signal_hook::iterator::Handle), RunError> {
    let fail =
        |error| RunError::failed(MessageId::DaemonSystem, format!("cannot watch signals: {error}"), "");
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGUSR1]).map_err(fail)?;
    let handle = signals.handle();
    let (sender, receiver) = mpsc::channel();
    let watch = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
            waker.wake();
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(fail)?;
    Ok((receiver, handle))
}

/// A volume as seen by NBD connections and mounts.
struct EngineAdapter<'a, V>(&'a mut V);

impl<V: RequestHandler> ClientEngine for EngineAdapter<'_, V> {
    fn submit(&mut self, now: Nanos, request: Request<'_>) {
        self.0.submit(now, request);
    }

    fn block_status(
        &self,
        _volume: VolumeId,
        first_block: u64,
        blocks: u64,
        f: &mut dyn FnMut(u64, bool, bool) -> bool,
    ) {
        self.0.block_status(first_block, blocks, f);
    }
}

struct Mounted {
    server: FuseServer,
    /// `None` once it is unmounted.
    mount: Option<FuseMount>,
}

/// The state that the thread owns.
struct Host<V> {
    reactor: Reactor,
    server: Server,
    rules: Arc<RuleSet>,
    mounts: Vec<Mounted>,
    volume: V,
    answers: Vec<Answer>,
    origin: Instant,
    signals: mpsc::Receiver<i32>,
    stopping: bool,
    buffer_bytes: usize,
}

impl<V: RequestHandler> Host<V> {
    fn now(&self) -> Nanos {
        self.origin.elapsed().as_nanos() as u64
    }

    /// Creates an export; returns the URI for clients.
    fn export(&mut self, uri: &ExportUri, size_bytes: u64) -> Result<String, RunError> {
        match uri {
            ExportUri::Nbd { endpoint, name, guards, permissions } => {
                if *guards != Guards::default() {
                    return Err(RunError::usage(
                        MessageId::ExportUnsupported,
                        "there is no configuration here that could have certificates or lists".into(),
                    ));
                }
                let info = ExportInfo::new(name, size_bytes);
                let (mark, connections_max) = (String::new(), u32::MAX);
                let (tls, access) = (None, None);
                let offer =
                    Offer { endpoint, permissions, volume: VOLUME, info, mark, connections_max, tls, access };
                let wanted = self.server.must_listen(endpoint, permissions);
                let made = wanted
                    .map(|wanted| wanted.listen(&MayWait::here()))
                    .transpose()
                    .and_then(|mut socket| self.server.export(&mut self.reactor, offer, &mut socket));
                made.map_err(|error| {
                    RunError::failed(MessageId::ExportFailed, error, "choose another socket or port")
                })
            }
            ExportUri::VhostUser { .. } => Err(RunError::usage(
                MessageId::ExportUnsupported,
                "this host has no vhost-user exports; use nbd+unix: or fuse:".into(),
            )),
            ExportUri::Fuse { path } => {
                let made = self.mount(path, size_bytes);
                made.map_err(|error| {
                    RunError::failed(MessageId::ExportFailed, error, "choose another place")
                })?;
                Ok(uri.to_string())
            }
            ExportUri::Ublk { .. } => Err(RunError::usage(
                MessageId::ExportUnsupported,
                "there are no block devices (ublk:) here: use nbd: or fuse:".into(),
            )),
        }
    }

    fn mount(&mut self, path: &Path, size_bytes: u64) -> Result<(), String> {
        let options = FuseOptions {
            volume: VOLUME,
            slot: self.mounts.len() as u16,
            buffer_bytes: BUFFER_BYTES_DEFAULT.min(self.buffer_bytes / 8),
        };
        let memory = reserve(self.reactor.pool_mut(), self.mounts.len(), self.buffer_bytes)?;
        let ring_bytes = ring_bytes(self.reactor.pool(), self.mounts.len(), self.buffer_bytes);
        let made = Made::at(&MayWait::here(), path)?;
        let clients = ClientCache::new(Arc::clone(&self.rules), "fuse");
        let (server, mount) =
            made.serve(&mut self.reactor, size_bytes, options, memory, ring_bytes, clients)?;
        self.mounts.push(Mounted { server, mount: Some(mount) });
        Ok(())
    }

    /// Serves until a signal arrives, and then until all work is complete.
    fn run(&mut self, report: &mut dyn FnMut(HostEvent)) -> Result<(), RunError> {
        let mut completions = Vec::new();
        let mut timeout = None;
        loop {
            self.work();
            if self.stopping && self.volume.is_stopped() {
                let until = *timeout.get_or_insert_with(|| Instant::now() + LAST_REPLIES);
                if self.is_quiet() || Instant::now() >= until {
                    return Ok(());
                }
            }
            let pause = self.pause();
            let waited = self.reactor.wait(pause, &mut completions).map_err(|error| {
                RunError::failed(MessageId::DaemonIoEngine, format!("the I/O engine failed: {error}"), "")
            })?;
            for completion in completions.drain(..) {
                self.completed(completion);
            }
            let now = self.now();
            self.volume.tick(now);
            if waited.woken {
                self.heed_signals(report)?;
            }
            self.server.wake_blocked();
            if let Some(refused) = self.server.take_refused() {
                report(HostEvent::Note(refused.what));
            }
        }
    }

    /// Repeats until nothing progresses, because each step can let another one continue.
    fn work(&mut self) {
        loop {
            let now = self.now();
            let mut engine = EngineAdapter(&mut self.volume);
            let mut moved = self.server.turn(&mut engine, &mut self.reactor, now);
            let at = Instant::now();
            for mounted in &mut self.mounts {
                moved |= mounted.server.turn(&mut engine, &mut self.reactor, now, at);
            }
            moved |= self.volume.act(now, &mut self.reactor, &mut self.answers);
            let mut answers = std::mem::take(&mut self.answers);
            for (id, result) in answers.drain(..) {
                match FrontendOp::of_request(id) {
                    FrontendOp { protocol: Protocol::Fuse, slot, .. } => {
                        self.mounts[usize::from(slot)].server.replied(&mut self.reactor, id, result);
                    }
                    _ => self.server.replied(&mut self.reactor, id, result),
                }
            }
            self.answers = answers;
            if !moved {
                break;
            }
        }
        self.server.send_all(&mut self.reactor);
    }

    /// Longest time that the loop may sleep without events.
    fn pause(&mut self) -> Option<Duration> {
        let now = self.now();
        let due = self.volume.deadline().map(|due| Duration::from_nanos(due.saturating_sub(now)));
        let end = (self.stopping && self.volume.is_stopped()).then_some(END_LOOK);
        due.into_iter().chain(end).chain(self.server.timers(&mut self.reactor)).min()
    }

    fn completed(&mut self, completion: Completion) {
        match Token::decode(completion.token) {
            Token::Frontend(op) if op.protocol == Protocol::Fuse => {
                self.mounts[usize::from(op.slot)].server.completed(&mut self.reactor, op, completion.result);
            }
            Token::Frontend(op) => self.server.completed(&mut self.reactor, op, completion.result),
            Token::Engine(OpId(number)) => {
                let now = self.now();
                self.volume.completed(now, &mut self.reactor, number, completion.result);
            }
            Token::SecondDevice(_) | Token::Copy => unreachable!("there is no cache device"),
        }
    }

    fn heed_signals(&mut self, report: &mut dyn FnMut(HostEvent)) -> Result<(), RunError> {
        while let Ok(signal) = self.signals.try_recv() {
            let now = self.now();
            match signal {
                SIGUSR1 => self.volume.poke(now),
                _ if self.stopping => {
                    return Err(RunError::failed(
                        MessageId::DaemonStopForced,
                        "told to stop twice: ended before everything was done",
                        "",
                    ));
                }
                _ => self.begin_stop(report),
            }
        }
        Ok(())
    }

    /// Refuses new clients, and starts the stop of the volume.
    fn begin_stop(&mut self, report: &mut dyn FnMut(HostEvent)) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        for mounted in &mut self.mounts {
            if let Some(Err(error)) = mounted.mount.take().map(FuseMount::unmount) {
                report(HostEvent::Note(format!("cannot unmount: {error}")));
            }
            mounted.server.close(&mut self.reactor);
        }
        self.server.close(&mut self.reactor);
        self.server.take_files().into_iter().for_each(|(file, path)| file.remove(&path));
        let now = self.now();
        self.volume.stop(now);
    }

    /// Returns whether every request is answered, and every answer sent.
    fn is_quiet(&self) -> bool {
        self.server.is_quiet() && self.mounts.iter().all(|mounted| mounted.server.is_quiet())
    }
}

/// An open backing store.
#[derive(Debug)]
pub struct HostBacking {
    /// The device.
    pub device: Device,
    /// Size that can be served, in bytes: the device's, rounded down to a multiple of 512.
    pub size_bytes: u64,
    /// Messages for the operator.
    pub notes: Vec<String>,
}

/// Opens a backing store as a pool does.
///
/// # Errors
/// It does not exist, is in use, is empty, or has sectors of an unsupported size.
pub fn open_backing(uri: &BackingUri, emulate: Option<DeviceModel>) -> Result<HostBacking, RunError> {
    let options = BackingOptions { emulate, ..BackingOptions::default() };
    let opened = forebay_pool::open::open_backing(&MayWait::here(), uri, &options)?;
    Ok(HostBacking { device: opened.device, size_bytes: opened.size_bytes, notes: opened.notes })
}

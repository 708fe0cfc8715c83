//! The loop: completions in, requests and completions to the engine, actions out.
//!
//! One thread owns reactor, engine and connections. Every turn takes all completions that there are, lets connections
//! parse what came, carries out what the engine wants, and sends the replies; so requests that arrive together share
//! log batches and system calls.

use crate::admin::{AdminServer, Snapshot, Source};
use crate::engine_io::EngineIo;
use crate::error::RunError;
use crate::server::{Server, ServerToken};
use crate::settings::Plan;
use crate::setup::{Parts, VOLUME};
use crate::{RunEvent, RunOptions};
use forebay_core::{Action, Engine, Notice, OpId, OpenError, Status};
use forebay_export::directory::ExportInfo;
use forebay_export::uri::{Endpoint, ExportUri};
use forebay_format::BLOCK_BYTES;
use forebay_io::{Completion, DeviceId, Limits, Reactor, Waker, listen_tcp, listen_unix};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const KIND_SHIFT: u32 = 56;
const KIND_ENGINE: u64 = 1;
const KIND_ACCEPT: u64 = 2;
const KIND_RECEIVE: u64 = 3;
const KIND_SEND: u64 = 4;

/// Replies that clients do not take are waited for this long at the end.
const LAST_REPLIES: Duration = Duration::from_secs(3);
/// How long the admin API waits for the engine's thread.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(2);

fn token(what: ServerToken) -> u64 {
    let (kind, index) = match what {
        ServerToken::Accept(index) => (KIND_ACCEPT, index),
        ServerToken::Receive(index) => (KIND_RECEIVE, index),
        ServerToken::Send(index) => (KIND_SEND, index),
    };
    kind << KIND_SHIFT | u64::from(index)
}

/// Questions from other threads.
enum Question {
    Snapshot(mpsc::SyncSender<Snapshot>),
}

/// The admin API's way to the loop.
struct Asker {
    questions: Mutex<mpsc::Sender<Question>>,
    waker: Waker,
}

impl Source for Asker {
    fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.questions.lock().ok()?.send(Question::Snapshot(answer)).ok()?;
        self.waker.wake();
        answered.recv_timeout(SNAPSHOT_PATIENCE).ok()
    }
}

/// Everything that one thread owns.
struct Runner<'a> {
    reactor: Reactor,
    engine: Engine,
    io: EngineIo,
    server: Server,
    backing: DeviceId,
    questions: mpsc::Receiver<Question>,
    stop: Arc<AtomicBool>,
    started: Instant,
    volume_name: String,
    mode: &'static str,
    size_bytes: u64,
    completions: Vec<Completion>,
    report: &'a mut dyn FnMut(RunEvent),
    closed: bool,
    sockets: Vec<PathBuf>,
}

pub(crate) fn run(
    options: RunOptions,
    plan: Plan,
    parts: Parts,
    report: &mut dyn FnMut(RunEvent),
) -> Result<(), RunError> {
    let limits = Limits { buffer_bytes_max: plan.buffer_bytes, spin: plan.spin, ..Limits::default() };
    let (mut reactor, note) = Reactor::open(options.io, limits)
        .map_err(|error| RunError::failed(error, "the kernel must allow either io_uring or plain threads"))?;
    if let Some(note) = note {
        report(RunEvent::Note(note));
    }
    let scratch_bytes = plan.engine.scratch_blocks as usize * BLOCK_BYTES;
    let scratch = reactor
        .pool_mut()
        .alloc(scratch_bytes)
        .ok_or_else(|| RunError::failed("no memory for the scratch buffer", "raise buffer_memory"))?;
    reactor.pool_mut().bytes_mut(scratch).fill(0);
    let device_bytes = parts.cache.size_bytes();
    let size_bytes = parts.attachment.size_bytes;
    let cache = reactor.add_device(parts.cache);
    let backing = reactor.add_device(parts.backing);
    let io = EngineIo::new(cache, backing, scratch, KIND_ENGINE << KIND_SHIFT);
    let engine = Engine::open(plan.engine.clone(), device_bytes, vec![parts.attachment], io.now());
    let (asking, questions) = mpsc::channel();
    let stop = Arc::new(AtomicBool::new(false));
    watch_signals(&stop, reactor.waker())?;
    let exports =
        options.exports.iter().map(|uri| ExportInfo::new(crate::export_name(uri), size_bytes)).collect();
    let mut runner = Runner {
        engine,
        io,
        server: Server::new(exports, token),
        backing,
        questions,
        stop,
        started: Instant::now(),
        volume_name: crate::export_name(&options.exports[0]).to_string(),
        mode: options.mode.name(),
        size_bytes,
        completions: Vec::new(),
        report,
        closed: false,
        sockets: Vec::new(),
        reactor,
    };
    runner.open(parts.created)?;
    if plan.drain {
        let now = runner.io.now();
        runner.engine.set_drain(now, VOLUME, true);
    }
    // Listeners first: a socket in use is an error before anybody is told that we are ready.
    let uris = runner.listen(&options.exports)?;
    let source = Asker { questions: Mutex::new(asking), waker: runner.reactor.waker() };
    let _admin = start_admin(&options, source)?;
    for export in uris {
        (runner.report)(RunEvent::Ready { export });
    }
    runner.serve()
}

fn start_admin(options: &RunOptions, source: Asker) -> Result<Option<AdminServer>, RunError> {
    let Some(path) = &options.admin else { return Ok(None) };
    let server = crate::admin::serve(path, Arc::new(source));
    server.map(Some).map_err(|error| RunError::failed(error, "choose another --admin socket"))
}

/// SIGINT and SIGTERM ask the loop to stop; a second one ends the process at once (the next start recovers).
fn watch_signals(stop: &Arc<AtomicBool>, waker: Waker) -> Result<(), RunError> {
    let fail = |error| RunError::failed(format!("cannot watch signals: {error}"), "");
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(stop)).map_err(fail)?;
        signal_hook::flag::register(signal, Arc::clone(stop)).map_err(fail)?;
    }
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(fail)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                waker.wake();
            }
        })
        .map_err(fail)?;
    Ok(())
}

impl Runner<'_> {
    /// Runs recovery.
    fn open(&mut self, created: bool) -> Result<(), RunError> {
        let began = Instant::now();
        while self.engine.status() == Status::Opening {
            self.turn()?;
            if self.stop.load(Ordering::Relaxed) {
                return Err(RunError::failed("stopped while the cache was being opened", "nothing was lost"));
            }
        }
        if let Status::Failed(error) = self.engine.status() {
            return Err(open_error(&error));
        }
        // The engine may serve less than the backing store has: see `forebay_core::Attachment`.
        if let Some(size) = self.engine.volume_size_bytes(VOLUME) {
            self.size_bytes = size;
            self.server.set_size_bytes(size);
        }
        let stats = self.engine.stats();
        (self.report)(RunEvent::Opened {
            created,
            took: began.elapsed(),
            cached_blocks: stats.cached_blocks,
            dirty_blocks: stats.dirty_blocks,
        });
        Ok(())
    }

    fn listen(&mut self, exports: &[ExportUri]) -> Result<Vec<String>, RunError> {
        let mut opened: Vec<Endpoint> = Vec::new();
        let mut uris = Vec::new();
        for uri in exports {
            let ExportUri::Nbd { endpoint, name } = uri;
            let mut actual = endpoint.clone();
            if !opened.contains(endpoint) {
                let socket = match endpoint {
                    Endpoint::Unix(path) => {
                        let fd = listen_unix(path, 0o660).map_err(|error| RunError::failed(error, ""))?;
                        self.sockets.push(path.clone());
                        fd
                    }
                    Endpoint::Tcp { host, port } => {
                        let address = (host.as_str(), *port)
                            .to_socket_addrs()
                            .ok()
                            .and_then(|mut addresses| addresses.next())
                            .ok_or_else(|| RunError::failed(format!("no address for {host}"), ""))?;
                        let (fd, bound) = listen_tcp(address).map_err(|error| RunError::failed(error, ""))?;
                        actual = Endpoint::Tcp { host: host.clone(), port: bound.port() };
                        fd
                    }
                };
                let listener = self
                    .reactor
                    .add_listener(socket)
                    .map_err(|error| RunError::failed(format!("cannot listen: {error}"), ""))?;
                self.server.listen(&mut self.reactor, listener);
                opened.push(endpoint.clone());
            }
            uris.push(ExportUri::Nbd { endpoint: actual, name: name.clone() }.to_string());
        }
        Ok(uris)
    }

    fn serve(mut self) -> Result<(), RunError> {
        let mut stopping = false;
        while !self.closed {
            self.turn()?;
            if !stopping && self.stop.load(Ordering::Relaxed) {
                stopping = true;
                (self.report)(RunEvent::Stopping);
                self.server.close(&mut self.reactor);
                let now = self.io.now();
                self.engine.begin_shutdown(now);
            }
        }
        let patience = Instant::now() + LAST_REPLIES;
        while !self.server.is_quiet() && Instant::now() < patience {
            self.turn()?;
        }
        for path in &self.sockets {
            let _ = std::fs::remove_file(path);
        }
        let dirty_bytes = self.engine.stats().dirty_blocks * BLOCK_BYTES as u64;
        (self.report)(RunEvent::Stopped { dirty_bytes });
        Ok(())
    }

    /// One turn of the loop.
    fn turn(&mut self) -> Result<(), RunError> {
        // Whatever one step starts may let another go on: repeat until nothing moves, then sleep.
        loop {
            let now = self.io.now();
            let started = self.server.turn(&mut self.engine, &mut self.reactor, now);
            let acted = self.act();
            if !started && !acted {
                break;
            }
        }
        self.server.send_all(&mut self.reactor);
        let timeout = self
            .engine
            .next_deadline()
            .map(|due| Duration::from_nanos(due.saturating_sub(self.io.now())).max(Duration::from_micros(1)));
        let timeout = if self.closed { Some(Duration::from_millis(10)) } else { timeout };
        let resume = self.server.resume_accepting(&mut self.reactor);
        let timeout = timeout.into_iter().chain(resume).min();
        self.completions.clear();
        let waited = self
            .reactor
            .wait(timeout, &mut self.completions)
            .map_err(|error| RunError::failed(format!("the I/O engine failed: {error}"), ""))?;
        for completion in std::mem::take(&mut self.completions) {
            self.completed(completion);
        }
        if waited.completions == 0 {
            self.engine.tick(self.io.now());
        }
        if waited.woken {
            self.answer();
        }
        self.server.wake_starved();
        Ok(())
    }

    fn completed(&mut self, completion: Completion) {
        let index = completion.token as u32;
        match completion.token >> KIND_SHIFT {
            KIND_ENGINE => {
                let ok = completion.result.is_ok();
                self.io.complete(&mut self.engine, &mut self.reactor, OpId(index), ok);
            }
            KIND_ACCEPT => self.server.accepted(&mut self.reactor, index, completion.result),
            KIND_RECEIVE => self.server.received(index, completion.result),
            KIND_SEND => self.server.sent(&mut self.reactor, index, completion.result.is_ok()),
            _ => unreachable!("no such token is submitted"),
        }
    }

    /// Carries out everything that the engine wants now; true if there was anything.
    fn act(&mut self) -> bool {
        let mut any = false;
        loop {
            while let Some(action) = self.engine.next_action() {
                any = true;
                let left = self.io.perform(&mut self.engine, &mut self.reactor, action);
                match left {
                    Some(Action::Reply { request, result, .. }) => {
                        self.server.replied(&mut self.reactor, request, result);
                    }
                    Some(Action::Notice(notice)) => self.notice(notice),
                    Some(Action::Quiesced) => self.quiesced(),
                    Some(Action::Closed) => self.closed = true,
                    _ => {}
                }
            }
            if !self.io.complete_ready(&mut self.engine) {
                return any;
            }
            any = true;
        }
    }

    fn quiesced(&mut self) {
        let record = self.reactor.device(self.backing).map(crate::setup::final_record);
        let records: Vec<_> = match record {
            Some(Ok(record)) => vec![(VOLUME, record)],
            Some(Err(error)) => {
                (self.report)(RunEvent::Note(format!("cannot note the state of the backing store: {error}")));
                Vec::new()
            }
            None => Vec::new(),
        };
        let now = self.io.now();
        self.engine.finish_shutdown(now, &records);
    }

    fn notice(&mut self, notice: Notice) {
        let text = match notice {
            Notice::BlockDamaged { block, lost: true, .. } => format!(
                "LOST: block {block} (bytes {} to {}) was damaged on the cache device, which had its only copy",
                block * BLOCK_BYTES as u64,
                (block + 1) * BLOCK_BYTES as u64
            ),
            Notice::BlockDamaged { block, .. } => {
                format!("block {block} was damaged on the cache device; it is read from the backing store again")
            }
            Notice::DestageFailed { retry_in, .. } => format!(
                "writing back to the backing store failed; the data stays in the cache, next attempt in {} ms",
                retry_in / 1_000_000
            ),
            Notice::OrderBroken { block, .. } => format!(
                "block {block} could not be destaged in order: the backing store alone is no consistent image until what is dirty \
                 now has been written back"
            ),
            Notice::CacheWriteFailed { segment } => {
                format!("a write to segment {segment} of the cache device failed; it is repeated elsewhere")
            }
            Notice::CacheFenced => {
                "the cache device failed to flush: writes are refused from now on. Replace the device; what it \
                 holds can still be read"
                    .into()
            }
            Notice::BackingChanged { dropped, .. } => format!(
                "the backing store was changed while the cache was away: {dropped} clean blocks were dropped from the cache"
            ),
            Notice::Checkpointed { .. } => return,
        };
        (self.report)(RunEvent::Note(text));
    }

    fn answer(&mut self) {
        while let Ok(Question::Snapshot(answer)) = self.questions.try_recv() {
            let _ = answer.try_send(Snapshot {
                volume: self.volume_name.clone(),
                mode: self.mode,
                size_bytes: self.size_bytes,
                uptime_ns: self.started.elapsed().as_nanos() as u64,
                stats: self.engine.stats(),
                connections: self.server.connections(),
                io_engine: match self.reactor.engine() {
                    forebay_io::EngineKind::Uring => "io_uring",
                    forebay_io::EngineKind::Psync => "psync",
                },
                rss_bytes: rss_bytes(),
            });
        }
    }
}

/// Resident memory of this process.
fn rss_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn open_error(error: &OpenError) -> RunError {
    let hint = match error {
        OpenError::BackingChanged { .. } => {
            "if the backing store is the right one and what changed on it may be lost: --set on_backing_change=keep-dirty; \
             if the data in the cache may be lost: --set on_backing_change=discard-dirty; if it is the wrong one, give \
             the one that belongs to this cache"
        }
        OpenError::BackingShrunk { .. } => {
            "give the backing store that belongs to this cache, at its full size"
        }
        OpenError::BackingUnreadable | OpenError::BackingFlush => {
            "check the backing device; nothing was changed"
        }
        OpenError::CacheWrite => "check the cache device; its contents are as they were",
        OpenError::Superblock(_) => {
            "give the cache that belongs to this volume; if nothing on it is needed, erase it and make a new one"
        }
        _ => "do not erase this cache: it may hold the only copy of data",
    };
    RunError::failed(format!("cannot open the cache: {error}"), hint)
}

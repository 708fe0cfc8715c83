//! A running pool: one thread that owns reactor, engine, connections and devices.
//!
//! Every turn of the loop takes all completions and lets connections parse the received bytes. Then
//! it carries out the engine's actions, and sends the replies. So requests that arrive together
//! share log batches and system calls.
//!
//! Other threads never touch this state: they call [`PoolHandle::ask`], which runs a closure on
//! this thread between two turns. A task longer than a turn (attaching, detaching, resizing) begins
//! that way, and a [`Promise`] returns its result once the engine's notice has come.
//!
//! Files: `absent` (volumes that are not attached), `cache_failure` (failure of the cache device),
//! `paths` (files that have lost their names), `saving` (writing one to another path),
//! `before_stop` (data that a stop saves first), `mirror` (failure of a member of a mirrored
//! cache), `handle` (calls from other threads), `stall_watchdog` (closing devices that may hang),
//! `volumes` (attach, detach, resize, settings), `clients` (front ends, and users of volumes),
//! `lost_exports` (exports that other programs remove or hide), `quiesce` (pausing, for a
//! successor), `recordings` (of requests), `replace` (replacing a healthy device), `size` (growing
//! and shrinking the pool), `report` (reports to the operator), `losses` (lost data), `snapshot`
//! (current state and statistics), `store_state` (state of a backing store), `unplugged` (disks
//! that come back as new devices).

mod absent;
mod before_stop;
mod cache_failure;
mod clients;
mod devices;
mod handle;
mod holes;
mod losses;
mod lost_exports;
mod mirror;
mod paths;
mod quiesce;
mod recordings;
mod remote;
mod replace;
mod replaced_member_fencing;
mod report;
mod saving;
mod scrub;
mod size;
mod snapshot;
mod stall_watchdog;
mod store_state;
mod unplugged;
mod volumes;

pub use absent::{AbsentVolume, ahead_in_all};
pub use devices::Back;
pub use handle::{Look, PoolGone, PoolHandle, Promise, PromiseSender};
pub use losses::Lost;
pub use mirror::Rebuilding;
pub use paths::{Gone, Reach};
pub use replace::CopyProgress;
pub use report::PoolEvent;
pub use saving::Saving;
pub use scrub::Scrubbed;
pub use snapshot::{CopiedDevice, Mirrored, PoolSnapshot, VolumeSnapshot};
pub(crate) use volumes::Served;
pub use volumes::{Destaging, VolumeSpec};

use crate::background::BackgroundTasks;
use crate::cipher::CipherStage;
use crate::engine_io::{CacheDevices, EngineIo, Timed};
use crate::engine_memory::Reserve;
use crate::error::RunError;
use crate::frontends::{DeviceDisposition, ExclusiveOpens, Frontends, SendTask};
use crate::guard::GuardBook;
use crate::handover::ListenerStore;
use crate::loss_record::LossRecord;
use crate::may_wait::MayWait;
use crate::meter::{History, Meter};
use crate::open::PoolParts;
use crate::recorder::{Recorder, TracedEngine};
use crate::register::{Entry, Facts, older_hint, record_path};
use crate::server::{Refused, Server, reserve_request_buffer};
use crate::token::Token;
use cache_failure::CacheFailure;
use devices::DeviceWatch;
use forebay_admin::events::EventKind;
use forebay_admin::{AdminError, MessageId};
use forebay_core::{Action, Engine, EngineConfig, OpenError, OwnerAction, Status};
use forebay_format::{BLOCK_BYTES, CacheUuid};
use forebay_io::{Completion, DeviceId, EnginePreference, IoFailure, Limits, Reactor};
use handle::PoolTask;
use size::Resizing;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Completions for each connection that the loop processes before it submits the resulting
/// operations to the kernel.
const PIECE: usize = 8;
/// Time limit for recording that the cache was closed.
const RECORD_TIMEOUT: Duration = Duration::from_secs(5);
/// At the end, time limit for replies that clients do not take.
const LAST_REPLIES: Duration = Duration::from_secs(3);

/// Processors for each I/O thread, and the most threads of use: with three processors or fewer, the
/// pool's thread, its clients and the kernel's work for both leave none to spare.
const PROCESSORS_PER_IO_THREAD: usize = 4;
const IO_THREADS_MAX: usize = 4;

/// Returns the number of I/O threads for the processors that this process may use.
fn io_threads_of_machine() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (processors / PROCESSORS_PER_IO_THREAD).min(IO_THREADS_MAX) as u32
}

/// Parameters of a pool's start.
#[derive(Clone, Debug)]
pub struct PoolStart {
    /// Name.
    pub name: String,
    /// Settings of the engine.
    pub engine: EngineConfig,
    /// Memory for requests in flight.
    pub buffer_bytes: usize,
    /// Most connections at once.
    pub connections_max: u32,
    /// Time to poll before sleeping.
    pub spin: Duration,
    /// Steps by which the nice value of its thread is lowered, for a higher priority.
    pub nice_boost: u32,
    /// Which I/O engine to use.
    pub io: EnginePreference,
    /// Threads that take work off the pool's thread; `None`: by the number of processors.
    pub io_threads: Option<u32>,
    /// They get work if that thread is busy this percentage of the time; 0: always all of it.
    pub io_threads_busy_pct: u32,
    /// Certificates and allow lists by name.
    pub guards: Arc<GuardBook>,
    /// Sockets that outlive this process.
    pub listener_store: Arc<ListenerStore>,
    /// Folder for the record of a failed cache.
    pub state_dir: PathBuf,
    /// Record of a cache that has failed before, and must not be opened.
    pub without_cache: Option<LossRecord>,
    /// Requests to the daemon that its messages may suggest.
    pub reach: Reach,
}

/// All state that the pool's thread owns.
pub struct Pool {
    name: String,
    reactor: Reactor,
    engine: Engine,
    io: EngineIo,
    frontends: Frontends,
    /// For threads that work for a front end.
    frontend_tasks: SendTask,
    background: BackgroundTasks,
    /// Threads that search backing stores for holes.
    hole_looks: Vec<std::thread::JoinHandle<()>>,
    /// By volume number.
    volumes: Vec<Option<Served>>,
    /// Latencies of the cache device, and counters of the whole pool.
    meter: Meter,
    history: History,
    recorder: Recorder,
    buffer_bytes: usize,
    guards: Arc<GuardBook>,
    /// The change of the pool's size in progress, with the caller that waits for it.
    resizing: Option<Resizing>,
    /// Changes of the pool's size so far.
    resized: u64,
    replacing: replace::Replacing,
    replaced_member_fencing: Option<replaced_member_fencing::ReplacedMemberFencing>,
    /// The caller that waits until every connection is quiesced.
    quiescing: Option<handle::PromiseSender<()>>,
    scrubbing: Option<scrub::Done>,
    discarding: Vec<absent::Discarding>,
    tasks: mpsc::Receiver<PoolTask>,
    /// For threads that work for this pool.
    myself: mpsc::Sender<PoolTask>,
    cache_failure: CacheFailure,
    losses: losses::Losses,
    mirror: mirror::Mirror,
    watch: DeviceWatch,
    paths: paths::PathWatch,
    before_stop: before_stop::BeforeStop,
    /// Grows as long as a stop progresses: destage advances, or operations complete.
    progress: Arc<AtomicU64>,
    reach: Reach,
    /// The record of the cache outside its devices, once it is open.
    entry: Option<Arc<Entry>>,
    stall_watchdog: stall_watchdog::StallWatchdog,
    started: Instant,
    completions: Vec<Completion>,
    report: Box<dyn FnMut(PoolEvent) + Send>,
    stopping: bool,
    closed: bool,
}

impl Pool {
    /// Opens the cache and runs recovery. No volume is attached at the end.
    fn open(
        start: PoolStart,
        parts: PoolParts,
        (myself, tasks, progress): (mpsc::Sender<PoolTask>, mpsc::Receiver<PoolTask>, Arc<AtomicU64>),
        mut report: Box<dyn FnMut(PoolEvent) + Send>,
    ) -> Result<Self, RunError> {
        // Before the first operation: the kernel's workers inherit the priority of the thread that
        // they work for. Lack of permission is no failure: most users who try Forebay are not root.
        let raised_by = crate::thread_priority::boost(start.nice_boost).unwrap_or(0);
        let limits = Limits {
            buffer_bytes_max: start.buffer_bytes,
            spin: start.spin,
            io_threads: start.io_threads.unwrap_or_else(io_threads_of_machine),
            io_threads_busy_pct: start.io_threads_busy_pct,
            raised_by,
            ..Limits::default()
        };
        let (mut reactor, note) = Reactor::open(start.io, limits).map_err(|error| {
            RunError::failed(
                MessageId::DaemonIoEngine,
                error,
                "the kernel must allow either io_uring or plain threads",
            )
        })?;
        if let Some(note) = note {
            report(PoolEvent::Note(MessageId::PoolNote, note));
        }
        let scratch = reactor
            .pool_mut()
            .alloc(start.engine.scratch_blocks as usize * BLOCK_BYTES)
            .ok_or_else(|| {
                RunError::failed(
                    MessageId::PoolMemory,
                    "no memory for the scratch buffer",
                    "raise buffer_memory",
                )
            })?;
        reactor.pool_mut().bytes_mut(scratch).fill(0);
        let reserve = Reserve::new(reactor.pool_mut()).ok_or_else(|| {
            RunError::failed(
                MessageId::PoolMemory,
                "no memory for headers and metadata",
                "raise buffer_memory",
            )
        })?;
        if !reserve_request_buffer(reactor.pool_mut()) {
            return Err(RunError::failed(
                MessageId::PoolMemory,
                "no memory for a request of the longest kind",
                "raise buffer_memory",
            ));
        }
        for note in parts.notes {
            report(PoolEvent::Note(MessageId::PoolNote, note));
        }
        let ids: Vec<DeviceId> = parts.devices.into_iter().map(|device| reactor.add_device(device)).collect();
        ids.iter().for_each(|id| reactor.prefer_device(*id));
        let cache = CacheDevices { ids, map: parts.map };
        let mut io = EngineIo::new(cache, scratch, reserve);
        if let Some(cipher) = parts.cipher {
            let cipher = CipherStage::new(cipher, reactor.pool_mut()).ok_or_else(|| {
                RunError::failed(MessageId::PoolMemory, "no memory for encryption", "raise buffer_memory")
            })?;
            reactor.set_cipher(cipher.for_reactor());
            io.set_cipher(cipher);
        }
        let config = EngineConfig { known: parts.known, ..start.engine };
        let engine = match &start.without_cache {
            None => match parts.mirror {
                Some(devices) => Engine::open_mirrored(config, devices, Vec::new(), io.now()),
                None => Engine::open(config, parts.pool_bytes, Vec::new(), io.now()),
            },
            Some(record) => {
                let (entries, losses) = (record.entries(), record.losses());
                Engine::open_without_cache(config, entries, Vec::new(), &losses, io.now())
            }
        };
        let without_cache = start.without_cache.is_some();
        let mut pool = Self {
            background: BackgroundTasks::new(&start.name),
            name: start.name,
            engine,
            frontends: Frontends::new(Server::new(
                start.listener_store,
                start.connections_max,
                start.buffer_bytes,
            )),
            hole_looks: Vec::new(),
            volumes: Vec::new(),
            meter: Meter::new(io.now()),
            history: History::new(io.now()),
            recorder: Recorder::default(),
            buffer_bytes: start.buffer_bytes,
            guards: start.guards,
            resizing: None,
            resized: 0,
            replacing: replace::Replacing::default(),
            replaced_member_fencing: None,
            quiescing: None,
            scrubbing: None,
            discarding: Vec::new(),
            tasks,
            frontend_tasks: frontend_tasks(myself.clone()),
            myself,
            cache_failure: CacheFailure::new(start.state_dir, start.without_cache),
            losses: losses::Losses::default(),
            mirror: mirror::Mirror::new(parts.mirror_notes),
            watch: DeviceWatch::default(),
            paths: paths::PathWatch::default(),
            before_stop: before_stop::BeforeStop::default(),
            progress,
            reach: start.reach,
            entry: None,
            stall_watchdog: stall_watchdog::StallWatchdog::default(),
            started: Instant::now(),
            completions: Vec::new(),
            report,
            stopping: false,
            closed: false,
            io,
            reactor,
        };
        pool.frontends.nbd.look_for_holes();
        if without_cache {
            pool.opened_without_cache();
        } else {
            pool.name_devices();
            if let Err(error) = pool.recover(parts.new_cache.is_some()) {
                // Operations that hang would block this thread, and the callers that wait for it.
                pool.leave_reactor();
                return Err(error);
            }
            pool.note_cache_ends();
            pool.take_fresh(parts.fresh);
        }
        Ok(pool)
    }

    fn recover(&mut self, created: bool) -> Result<(), RunError> {
        let began = Instant::now();
        self.stall_watchdog.waits(true);
        while self.engine.status() == Status::Opening {
            if self.is_stuck() {
                return Err(self.opening_hangs());
            }
            self.turn()?;
            // Tasks answer the engine's requests to its owner.
            self.run_tasks();
        }
        self.stall_watchdog.waits(false);
        if let Status::Failed(error) = self.engine.status() {
            return Err(self.open_error(&error));
        }
        self.say_if_degraded();
        let stats = self.engine.stats();
        if stats.dirty_blocks > 0 {
            let now = self.io.now();
            self.engine.check_dirty(now, losses::CHECK_BYTES_PER_S);
        }
        (self.report)(PoolEvent::Opened {
            created,
            took: began.elapsed(),
            cached_blocks: stats.cached_blocks,
            dirty_blocks: stats.dirty_blocks,
        });
        Ok(())
    }

    /// Serves until the pool is asked to stop.
    fn serve(mut self) -> Result<(), RunError> {
        while !self.closed {
            if self.is_stuck() {
                return Err(self.give_up());
            }
            self.turn()?;
        }
        let timeout = Instant::now() + LAST_REPLIES;
        while !(self.frontends.are_idle() && self.background.are_done() && self.copy_is_quiet())
            && Instant::now() < timeout
        {
            self.turn()?;
        }
        self.tell_losses();
        let dirty_bytes = self.engine.stats().dirty_blocks * BLOCK_BYTES as u64;
        if self.engine.is_fenced() && !self.engine.runs_without_cache() {
            let devices = self.cache_paths();
            let event = PoolEvent::NotClosed { devices, dirty_bytes };
            let error = RunError::failed(
                MessageId::PoolNotClosed,
                format!("pool {}: {event}", self.name),
                "bring the device back, then start the daemon again",
            );
            self.emit(event);
            return Err(error);
        }
        self.record_end();
        let (lost, losers) = (self.lost_in_all(), self.losers());
        let absent = self.absent().into_iter().filter(AbsentVolume::is_ahead);
        let absent = absent.map(|volume| volume.name).collect();
        let gone = self.gone();
        let untold = self.engine.untold_drops().map(|id| self.name_of(id)).collect();
        let event = PoolEvent::Stopped { dirty_bytes, lost, losers, absent, gone: gone.clone(), untold };
        let result = match gone.loses(dirty_bytes) {
            false => Ok(()),
            true => Err(RunError::failed(
                MessageId::Event(EventKind::DevicePathLost),
                format!("pool {}: {event}", self.name),
                "restore the lost data from a backup",
            )),
        };
        (self.report)(event);
        if self.copy_hangs() {
            self.leave_reactor();
        }
        result
    }

    /// Current state of the cache for its record; `None` if it has failed.
    pub fn facts(&self) -> Option<(CacheUuid, Facts)> {
        if self.engine.is_fenced() || self.engine.runs_without_cache() {
            return None;
        }
        let stats = self.engine.stats();
        let facts = Facts {
            mark: self.engine.mark(),
            dirty_bytes: stats.dirty_blocks * BLOCK_BYTES as u64 + stats.lost_bytes,
            devices: self.devices().into_iter().map(|(path, _)| path).collect(),
        };
        Some((self.engine.uuid(), facts))
    }

    /// Volumes whose backing-store record could not be written at the last attempt.
    pub fn unrecorded_stores(&self) -> Vec<String> {
        self.io.unrecorded().map(|volume| self.name_of(volume)).collect()
    }

    /// The record exists; the end of the pool will be entered into it.
    pub fn keep_record(&mut self, entry: Arc<Entry>) {
        self.entry = Some(entry);
    }

    /// Records that the cache was closed, unless the state directory hangs. Then the record has
    /// less information, which is harmless.
    fn record_end(&mut self) {
        let (Some(entry), Some((_, facts))) = (self.entry.take(), self.facts()) else { return };
        let (done, ended) = mpsc::sync_channel(1);
        let work = move |may_wait: &MayWait| drop(done.send(entry.end(may_wait, &facts)));
        let spawned = MayWait::spawn(format!("end-{}", self.name), work);
        let result = match spawned {
            Ok(_) => ended.recv_timeout(RECORD_TIMEOUT).unwrap_or_else(|error| Err(error.to_string())),
            Err(error) => Err(format!("cannot start a thread: {error}")),
        };
        if let Err(why) = result {
            (self.report)(PoolEvent::Note(
                MessageId::Event(EventKind::StateUnwritable),
                format!("cannot record that the cache was closed: {why}"),
            ));
        }
    }

    fn open_error(&self, error: &OpenError) -> RunError {
        let what = format!("cannot open the cache: {error}");
        if *error != OpenError::Older {
            return RunError::failed(crate::message::of_open(error), what, report::open_hint(error));
        }
        let path = self.devices().first().map_or_else(String::new, |(path, _)| path.display().to_string());
        RunError::failed(
            MessageId::CacheOlderCopy,
            what,
            older_hint(&path, &record_path(self.cache_failure.state_dir(), self.engine.uuid())),
        )
    }

    /// Checks connected clients against the changed allow lists.
    pub fn look_at_clients_again(&mut self) {
        self.frontends.nbd.look_at_clients_again();
    }

    /// Begins an orderly stop; the loop ends when the engine has closed the cache, or when devices
    /// do not answer.
    pub fn stop(&mut self) {
        if !self.stopping && !self.stop_waits() {
            self.stall_watchdog.waits(true);
            self.stop_without_limit(DeviceDisposition::RemoveUnused);
        }
    }

    /// Like [`Pool::stop`], for a pool that leaves this host with its volumes: the pool removes
    /// their block devices and leaves nothing to another process.
    ///
    /// # Errors
    /// A volume is in use, and `force` is not set. The pool cannot see users of block devices: the
    /// caller has claimed the devices, and nothing can open them while `claims` exist.
    pub fn stop_for_good(&mut self, force: bool, claims: ExclusiveOpens) -> Result<(), AdminError> {
        let used = self.names().into_iter().map(|name| (self.users(&name), name));
        let used = used.into_iter().find(|(users, _)| !force && !users.is_empty());
        if let Some((users, name)) = used {
            crate::time_limit::drop_in_background(claims);
            return Err(users.refuse("export", &name));
        }
        if self.stopping {
            crate::time_limit::drop_in_background(claims);
            return Ok(());
        }
        self.stall_watchdog.waits(true);
        self.stop_without_limit(DeviceDisposition::Remove(claims));
        Ok(())
    }

    /// Like [`Pool::stop`] without a time limit for devices: for a process that continues, and may
    /// open the pool again. `devices`: the fate of its block devices.
    pub(super) fn stop_without_limit(&mut self, devices: DeviceDisposition) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        (self.report)(PoolEvent::Stopping);
        self.with_frontends(|frontends, cx| frontends.close(cx, None, devices));
        self.forget_all_lost_exports();
        if !self.begin_last_drain() {
            let now = self.io.now();
            self.engine.begin_shutdown(now);
        }
    }

    /// One turn of the loop.
    fn turn(&mut self) -> Result<(), RunError> {
        self.work();
        let (record, note) = (self.look_after_record(), self.look_after_note());
        let losses = self.look_after_losses();
        let (look, frontends) = (self.look_after_devices(), self.with_frontends(Frontends::tend));
        let losses = losses.into_iter().chain(self.look_after_last_drain());
        let stores = self.look_after_stores();
        let stores = stores.into_iter().chain(self.background.tend()).chain(self.look_after_copy());
        let others = record.into_iter().chain(note).chain(losses).chain(look).chain(frontends).chain(stores);
        let timeout = self.sleep().into_iter().chain(others).min();
        self.completions.clear();
        let waited = self.reactor.wait(timeout, &mut self.completions).map_err(io_failed)?;
        self.io.read_clock();
        self.keep_history();
        self.take_completions()?;
        if waited.completions == 0 {
            self.engine.tick(self.io.now());
        }
        if waited.woken {
            self.run_tasks();
        }
        self.with_frontends(Frontends::reap);
        self.look_for_recovery();
        self.answer_if_quiesced();
        if let Some(Refused { what, others }) = self.frontends.nbd.take_refused() {
            (self.report)(PoolEvent::ClientRefused { what, others });
        }
        Ok(())
    }

    /// One step may enable another: repeats until no step makes progress, and collects the data to
    /// send.
    fn work(&mut self) {
        loop {
            let now = self.io.read_clock();
            let mut engine = TracedEngine { engine: &mut self.engine, recorder: &mut self.recorder };
            let started = self.frontends.poll(&mut self.reactor, &mut engine, now);
            let acted = self.act();
            if !started && !acted {
                break;
            }
        }
        self.begin_hole_looks();
        self.frontends.send_replies(&mut self.reactor);
        self.io.read_clock();
    }

    /// Processes the completions of a turn. If there are many, it works in pieces and submits the
    /// resulting operations of each piece to the kernel before the next: otherwise the clients,
    /// this loop and the devices would take turns instead of working in parallel. The more clients
    /// are active, the less that helps, and the more it costs.
    fn take_completions(&mut self) -> Result<(), RunError> {
        let mut completions = std::mem::take(&mut self.completions);
        let mut left = completions.len();
        let piece = if left <= PIECE {
            left
        } else {
            PIECE * (self.frontends.nbd.busy_connections() as usize).max(1)
        };
        for (number, completion) in completions.drain(..).enumerate() {
            self.completed(completion);
            left -= 1;
            if left > 0 && (number + 1).is_multiple_of(piece) {
                self.work();
                self.reactor.hand_over().map_err(io_failed)?;
            }
        }
        self.completions = completions;
        Ok(())
    }

    /// How long the loop may sleep if nothing happens.
    fn sleep(&mut self) -> Option<Duration> {
        if self.closed {
            return Some(Duration::from_millis(10));
        }
        let now = self.io.now();
        let due = self.engine.next_deadline();
        let due = due.map(|due| Duration::from_nanos(due.saturating_sub(now)).max(Duration::from_micros(1)));
        let resume = self.frontends.timers(&mut self.reactor);
        due.into_iter().chain(resume).min()
    }

    fn run_tasks(&mut self) {
        while let Ok(task) = self.tasks.try_recv() {
            task(self);
        }
    }

    /// An operation of a device has completed, so a stop progresses.
    fn note_move(&mut self) {
        if self.stall_watchdog.moves() {
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn completed(&mut self, completion: Completion) {
        match Token::decode(completion.token) {
            Token::Engine(op) => {
                self.note_move();
                let done = self.io.complete(&mut self.engine, &mut self.reactor, op, &completion);
                self.operation_done(done);
            }
            Token::SecondDevice(number) => {
                self.note_move();
                let io = &mut self.io;
                let done = io.second_completed(&mut self.engine, &mut self.reactor, number, completion);
                self.operation_done(done);
            }
            Token::Copy => self.copy_completed(completion.result),
            Token::Frontend(op) => {
                self.frontends.on_completion(&mut self.reactor, op, completion.result);
            }
        }
    }

    fn operation_done(&mut self, done: Option<(Timed, Option<IoFailure>)>) {
        let Some((timed, failure)) = done else { return };
        self.note_outcome(&timed, failure);
        if let Some(failure) = failure {
            self.operation_failed(&timed, failure);
        }
        self.time_operation(timed);
    }

    /// Carries out all current actions of the engine; returns true if there were any.
    fn act(&mut self) -> bool {
        let mut any = false;
        loop {
            while let Some(action) = self.engine.next_action() {
                any = true;
                match action {
                    Action::Io(action) => self.io.perform(&mut self.engine, &mut self.reactor, action),
                    Action::Owner(action) => self.handle(action),
                }
            }
            let let_go = self.io.complete_let_go(&mut self.engine, &mut self.reactor);
            any |= !let_go.is_empty();
            let none = let_go.is_empty();
            let_go.into_iter().for_each(|done| self.operation_done(Some(done)));
            if !self.io.complete_ready(&mut self.engine) && none {
                return any;
            }
            any = true;
        }
    }

    fn handle(&mut self, action: OwnerAction) {
        match action {
            OwnerAction::Reply { request, result, path, took, volume, bytes } => {
                self.time_request(volume, path, took, bytes);
                self.recorder.replied(request, result.is_ok(), path, took);
                self.frontends.on_reply(&mut self.reactor, request, result);
            }
            OwnerAction::VolumeQuiet { volume } => self.volume_quiet(volume),
            OwnerAction::RecordLoss { ticket } => self.record_loss(ticket),
            OwnerAction::RecordOut { ticket, member } => self.record_out(ticket, member),
            OwnerAction::Notice(notice) => self.notice(notice),
            OwnerAction::Quiesced => self.quiesced(),
            OwnerAction::Closed => self.closed = true,
        }
    }
}

/// Returns how threads that work for a front end send it closures.
fn frontend_tasks(tasks: mpsc::Sender<PoolTask>) -> SendTask {
    Arc::new(move |task| tasks.send(Box::new(move |pool: &mut Pool| pool.with_frontends(task))).is_ok())
}

fn io_failed(error: IoFailure) -> RunError {
    RunError::failed(MessageId::DaemonIoEngine, format!("the I/O engine failed: {error}"), "")
}

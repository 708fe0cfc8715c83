//! Drives a lane: a thread with non-blocking sockets, behind the interface of a remote store.
//!
//! Invariants
//! - The callers of [`RemoteStore::submit`] add to a queue and wake the thread; they wait for
//!   nothing. The queue is as long as their operations in flight, which their own buffers bound.
//! - Each accepted operation ends exactly once, also if the store is dropped: the thread ends only
//!   after [`RemoteStore::close`], which fails what is left.
//! - Names are resolved and sockets connected on threads of their own, so that no session waits.

mod sockets;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_export::nbd::codec::Errno;
use forebay_export::uri::Endpoint;
use forebay_io::{IoFailure, RemoteDone, RemoteOp, RemoteStore, RemoteTrouble};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::Timespec;
use rustix::io::Errno as Kernel;

use crate::connect::Transport;
use crate::lane::{Action, Lane, LaneConfig, LaneError, LaneState, Trouble};
use sockets::Sockets;

/// Longest sleep, for deadlines beyond what the kernel takes.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// An event for the thread.
enum Input {
    Submit(RemoteOp, RemoteDone),
    Connected(u64, io::Result<Transport>),
    Close,
}

/// The state as other threads see it.
#[derive(Debug)]
struct Status {
    state: LaneState,
    size_bytes: u64,
    sector_bytes: u32,
    waiting: usize,
    quarantined: usize,
}

struct Shared {
    /// `None` once the thread has ended.
    inputs: Mutex<Option<Vec<Input>>>,
    wake: std::os::fd::OwnedFd,
    status: Mutex<Status>,
    changed: Condvar,
    origin: Instant,
    trusts: std::sync::atomic::AtomicBool,
}

impl Shared {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn push(&self, input: Input) {
        match &mut *lock(&self.inputs) {
            Some(inputs) => inputs.push(input),
            None => return refuse(input),
        }
        // The counter cannot overflow: the thread resets it.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A remote store over NBD. It is closed when the last handle is dropped.
pub struct NbdStore {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for NbdStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NbdStore").field("status", &*lock(&self.shared.status)).finish_non_exhaustive()
    }
}

/// Why a store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The first attempt to connect failed.
    #[error("{0}")]
    Trouble(Trouble),
    /// The thread could not be started.
    #[error("cannot start the thread of the store: {0}")]
    Thread(#[from] io::Error),
}

impl NbdStore {
    /// Opens the export at `endpoint` and waits for the first session, at most as long as
    /// [`LaneConfig::connect_timeout`] permits. Changes wait for the quarantine until
    /// [`RemoteStore::trust_earlier`].
    ///
    /// # Errors
    /// The server does not answer, or the export cannot be a backing store.
    pub fn open(endpoint: Endpoint, config: LaneConfig) -> Result<NbdStore, OpenError> {
        let status = Status {
            state: LaneState::Connecting { trouble: None },
            size_bytes: 0,
            sector_bytes: 512,
            waiting: 0,
            quarantined: 0,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let shared = Arc::new(Shared {
            inputs: Mutex::new(Some(Vec::new())),
            wake,
            status: Mutex::new(status),
            changed: Condvar::new(),
            origin: Instant::now(),
            trusts: false.into(),
        });
        let driver = Driver {
            shared: Arc::clone(&shared),
            sockets: Sockets::new(endpoint, config.connect_timeout),
            lane: Lane::new(config, true),
            done: HashMap::new(),
            next_id: 1,
        };
        std::thread::Builder::new().name("store-nbd".into()).spawn(move || driver.run())?;
        let store = NbdStore { shared };
        let mut status = lock(&store.shared.status);
        loop {
            match &status.state {
                LaneState::Connecting { trouble: None } => {}
                LaneState::Connecting { trouble: Some(trouble) } => {
                    return Err(OpenError::Trouble(trouble.clone()));
                }
                _ => break,
            }
            status = store.shared.changed.wait(status).unwrap_or_else(PoisonError::into_inner);
        }
        drop(status);
        Ok(store)
    }
}

impl Drop for NbdStore {
    fn drop(&mut self) {
        self.shared.push(Input::Close);
    }
}

impl RemoteStore for NbdStore {
    fn size_bytes(&self) -> u64 {
        lock(&self.shared.status).size_bytes
    }

    fn sector_bytes(&self) -> u32 {
        lock(&self.shared.status).sector_bytes
    }

    fn submit(&self, op: RemoteOp, done: RemoteDone) {
        self.shared.push(Input::Submit(op, done));
    }

    fn trouble(&self) -> Option<RemoteTrouble> {
        let status = lock(&self.shared.status);
        let (since, trouble, fails) = match &status.state {
            LaneState::Away { since, trouble } => (since, trouble, false),
            LaneState::Failing { since, trouble } => (since, trouble, true),
            LaneState::Connecting { .. } | LaneState::Up | LaneState::Closed => return None,
        };
        let away = self.shared.now().saturating_sub(*since);
        Some(RemoteTrouble { away, why: trouble.to_string(), fails, waiting: status.waiting })
    }

    fn trust_earlier(&self) {
        self.shared.trusts.store(true, std::sync::atomic::Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
    }

    fn close(&self) {
        self.shared.push(Input::Close);
    }
}

/// The thread's side.
struct Driver {
    shared: Arc<Shared>,
    lane: Lane,
    sockets: Sockets,
    done: HashMap<u64, RemoteDone>,
    next_id: u64,
}

impl Driver {
    fn run(mut self) {
        self.lane.tick(self.shared.now());
        let mut is_closed = false;
        while !is_closed || !self.done.is_empty() {
            is_closed |= self.take_inputs();
            let now = self.shared.now();
            if self.lane.deadline().is_some_and(|due| due <= now) {
                self.lane.tick(now);
            }
            self.act();
            self.sockets.send(&mut self.lane, &self.shared);
            self.act();
            self.publish();
            if !is_closed {
                self.wait();
            }
        }
        let late = lock(&self.shared.inputs).take();
        late.into_iter().flatten().for_each(refuse);
    }

    /// Takes what other threads have queued; true after the end.
    fn take_inputs(&mut self) -> bool {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count); // it is non-blocking
        if self.shared.trusts.swap(false, std::sync::atomic::Ordering::AcqRel) {
            self.lane.gone(self.shared.now(), 0);
        }
        let mut ends = false;
        let inputs = lock(&self.shared.inputs).as_mut().map(std::mem::take);
        for input in inputs.into_iter().flatten() {
            let now = self.shared.now();
            match input {
                Input::Submit(op, done) => {
                    let id = self.next_id;
                    self.next_id += 1;
                    self.done.insert(id, done);
                    self.lane.submit(now, id, op);
                }
                // Too late: the lane has given the attempt up.
                Input::Connected(session, Ok(_)) if !self.lane.has_session(session) => {}
                Input::Connected(session, Ok(transport)) => match self.sockets.add(session, transport) {
                    Ok(()) => self.lane.connected(now, session),
                    Err(error) => self.lane.ended(now, session, &error.to_string()),
                },
                Input::Connected(session, Err(error)) => {
                    let why = format!("cannot connect to {}: {error}", self.sockets.address());
                    self.lane.ended(now, session, &why);
                }
                Input::Close => {
                    self.lane.close(now);
                    ends = true;
                }
            }
        }
        ends
    }

    fn act(&mut self) {
        while let Some(action) = self.lane.action() {
            match action {
                Action::Connect { session } => self.sockets.connect(session, &self.shared),
                Action::Close { session, last } => self.sockets.close(session, &last),
                Action::Complete { id, result } => {
                    if let Some(done) = self.done.remove(&id) {
                        done(result.map_err(failure));
                    }
                }
                Action::State => {}
            }
        }
    }

    fn publish(&self) {
        let mut status = lock(&self.shared.status);
        status.waiting = self.lane.in_flight();
        status.quarantined = self.lane.quarantined();
        if status.state != *self.lane.state() {
            status.state = self.lane.state().clone();
            if let Some(facts) = self.lane.facts() {
                status.sector_bytes = if facts.unit_bytes() <= 512 { 512 } else { 4096 };
                status.size_bytes = facts.size_bytes;
            }
            self.shared.changed.notify_all();
        }
    }

    /// Sleeps until there is something to do, and takes what the sockets have received.
    fn wait(&mut self) {
        let now = self.shared.now();
        let until = self.lane.deadline().map_or(SLEEP_MAX, |due| due.saturating_sub(now).min(SLEEP_MAX));
        // Rounded up, so that the deadline has passed afterwards.
        let until = until + Duration::from_micros(100);
        let timeout = Timespec { tv_sec: until.as_secs() as i64, tv_nsec: until.subsec_nanos().into() };
        let ready: Vec<u64> = {
            let (sessions, mut polled) = self.sockets.polled(&mut self.lane);
            polled.push(PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN));
            if poll(&mut polled, Some(&timeout)).is_err() {
                return; // interrupted
            }
            let is_ready = |(_, fd): &(u64, &PollFd<'_>)| {
                fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR)
            };
            sessions.into_iter().zip(&polled).filter(is_ready).map(|(session, _)| session).collect()
        };
        self.sockets.try_all();
        for session in ready {
            self.sockets.receive(session, &mut self.lane, &self.shared);
        }
    }
}

/// The store is closed.
fn refuse(input: Input) {
    if let Input::Submit(_, done) = input {
        done(Err(failure(LaneError::Closed)));
    }
}

/// The failure as the kernel would report it.
fn failure(error: LaneError) -> IoFailure {
    let errno = match error {
        LaneError::Server(Errno::NotPermitted) => Kernel::PERM,
        LaneError::Server(Errno::NoMemory) => Kernel::NOMEM,
        LaneError::Server(Errno::Invalid) => Kernel::INVAL,
        LaneError::Server(Errno::NoSpace) => Kernel::NOSPC,
        LaneError::Server(Errno::Overflow) | LaneError::OutOfRange => Kernel::OVERFLOW,
        LaneError::Server(Errno::NotSupported) => Kernel::OPNOTSUPP,
        LaneError::Server(Errno::Io | Errno::Shutdown) => Kernel::IO,
        LaneError::TimedOut => Kernel::TIMEDOUT,
        LaneError::Closed => Kernel::CANCELED,
    };
    IoFailure::from_errno(errno.raw_os_error())
}

/// The address of an export as text, for messages.
#[must_use]
pub fn address(endpoint: &Endpoint) -> PathBuf {
    match endpoint {
        Endpoint::Unix(path) => path.clone(),
        Endpoint::Tcp { host, port } => PathBuf::from(format!("{host}:{port}")),
    }
}

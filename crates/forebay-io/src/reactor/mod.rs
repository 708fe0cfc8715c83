//! The reactor: one thread's operations on devices, sockets and FUSE connections.
//!
//! `submit` queues, `wait` hands everything to the kernel in one system call and reports what is
//! done.
//!
//! Contract with the caller:
//! - Every submitted operation is reported exactly once, by `wait`, under its token; a malformed
//!   one with [`IoFailureKind::Invalid`](crate::IoFailureKind::Invalid). `submit` itself never
//!   fails, blocks or reports.
//! - Nothing is promised about the order of completions, nor that operations in flight together
//!   take effect in order. A caller that needs order waits for a completion. A flush covers what
//!   was *reported* as written before the flush was submitted (on both descriptors of the device).
//! - Exceptions: sends on one socket go out whole and in order of submission; receives on one
//!   socket are served in order of submission.
//! - Transfers are complete: short device transfers and short sends are continued inside. Bytes
//!   read past the recorded end of a device ([`Device::end_bytes`](crate::Device::end_bytes)) are
//!   zeroes. A write or zeroing that reaches past the end fails with
//!   [`IoFailureKind::OutOfRange`](crate::IoFailureKind::OutOfRange) and does nothing.
//! - On a device that is shorter than its recorded end a read that meets the end, and every write,
//!   zeroing and flush, fails with [`IoFailureKind::Ended`](crate::IoFailureKind::Ended). Once it
//!   is as long as it was, everything goes on. (A file that is cut between that look and the write
//!   itself may be made longer again by that write.)
//! - A receive reports what one `recv` brought: 1 byte up to the span's length, or 0 when the peer
//!   has closed.
//! - The reactor may be made on one thread and moved to another before its first `wait`; from then
//!   on it stays.
//!
//! Crash and drop: dropping the reactor cancels socket operations and waits for device operations;
//! memory the kernel might still write is leaked rather than freed when that takes longer than a
//! few seconds, or when the reactor is dropped on a thread other than the one that ran it.

mod devices;
mod finish;
mod fuse;
mod sockets;
mod start;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::buffer::{BufPool, Span, map_zeroed, unmap};
use crate::device::Device;
use crate::emulate::Emulation;
use crate::engine::psync::Psync;
use crate::engine::uring::Uring;
use crate::engine::{Engine, Lane, StepDone};
use crate::error::{IoFailure, IoSetupError};
use crate::slots::{OpKind, Slots, ZeroPhase};
use crate::spin::Spin;
use crate::waker::Waker;
use devices::DeviceTable;
use sockets::{Listener, SocketTable};
use start::DeviceEntry;

/// A device of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub u16);

/// A connected socket of the reactor. A number is not used again before 65,536 sockets were closed
/// in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId(pub u32);

/// A FUSE connection of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FuseId(pub u32);

/// A listening socket of the reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub u32);

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnginePreference {
    /// io_uring where it works, otherwise psync, with a message.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads and `ppoll`.
    Psync,
}

impl EnginePreference {
    /// The name as typed by people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Psync => "psync",
        }
    }
}

/// The engine in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring.
    Uring,
    /// Threads and `ppoll`.
    Psync,
}

/// Sizes of the reactor.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most memory the buffer pool takes, in bytes.
    pub buffer_bytes_max: usize,
    /// Entries of the ring's submission queue: how many steps one system call hands over.
    pub ring_entries: u32,
    /// Device steps of each lane (see [`Reactor::prefer_device`]) in the kernel's ring at once;
    /// more wait in memory, in order.
    pub in_flight_max: u32,
    /// Threads of the psync engine for each lane.
    pub psync_threads: u32,
    /// How long `wait` polls at most before it sleeps; how long it does is learned from how long
    /// waits take.
    pub spin: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            buffer_bytes_max: 512 << 20,
            ring_entries: 256,
            in_flight_max: 1024,
            psync_threads: 16,
            spin: Duration::ZERO,
        }
    }
}

/// An operation. Spans must stay allocated and, where the kernel writes, be left alone until it is
/// reported.
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Reads from a device into the spans; reports the bytes of all spans.
    Read {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Where the bytes go, in order.
        spans: &'a [Span],
    },
    /// Writes the spans to a device; reports the bytes of all spans.
    Write {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Where the bytes come from, in order.
        spans: &'a [Span],
    },
    /// Makes durable what was reported as written so far; reports 0.
    Flush {
        /// The device.
        device: DeviceId,
    },
    /// Makes a range read as zeroes; reports 0. Not durable without a flush, like a write.
    Zero {
        /// The device.
        device: DeviceId,
        /// First byte on the device; any value.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// May the space be given back (a hole)?
        may_unmap: bool,
    },
    /// Accepts one connection; reports the number of its [`SocketId`].
    Accept {
        /// The listener.
        listener: ListenerId,
    },
    /// Receives what is there, at least one byte, at most the span; reports the bytes, 0 at the end
    /// of the stream.
    Recv {
        /// The socket.
        socket: SocketId,
        /// Where the bytes go.
        span: Span,
    },
    /// Sends all bytes of the spans; reports their number.
    Send {
        /// The socket.
        socket: SocketId,
        /// What to send, in order.
        spans: &'a [Span],
    },
    /// Takes one request from a FUSE connection; reports its bytes. Many may be posted at once. The
    /// failure `ENODEV` means that the mount is gone; with `ENOENT` the request was withdrawn
    /// meanwhile: submit again.
    FuseReceive {
        /// The connection.
        fuse: FuseId,
        /// Where the first bytes go. With 80 of them (`fuse_in_header` and `fuse_write_in`) the
        /// payload of a write starts exactly where `data` does.
        header: Span,
        /// Where the rest goes; as long as the largest write that was agreed on.
        data: Span,
    },
    /// Answers a request of a FUSE connection with the bytes of all spans, as one message; reports
    /// their number. The failure `ENOENT` means that nobody waits for the answer any more.
    FuseReply {
        /// The connection.
        fuse: FuseId,
        /// The answer, in order.
        spans: &'a [Span],
    },
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token given to `submit`.
    pub token: u64,
    /// Bytes, or the number of the new [`SocketId`] for an accept; 0 where the operation says so.
    pub result: Result<u32, IoFailure>,
}

/// Why `wait` returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// Completions appended.
    pub completions: usize,
    /// The waker fired since the last `wait` returned.
    pub woken: bool,
}

/// Counts since the reactor was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Steps handed to the engine.
    pub steps: u64,
    /// Device transfers continued because the kernel did only a part.
    pub short_transfers: u64,
    /// Reads that reached past the end of the device and were filled with zeroes.
    pub reads_past_end: u64,
    /// Device transfers that went through the page cache although the device does direct I/O.
    pub unaligned_transfers: u64,
    /// Writes held back until a neighbour in the same page was done.
    pub page_conflicts: u64,
    /// Zero operations that had to write zeroes.
    pub zeroes_written: u64,
}

/// Bytes of the page of zeroes that zeroing by writing repeats.
pub(crate) const ZERO_PAGE_BYTES: usize = 256 << 10;

/// What the kernel may be reading or writing; leaked when it cannot be told that it has finished.
struct Memory {
    pool: BufPool,
    slots: Slots,
    zeroes: NonNull<u8>,
}

impl Drop for Memory {
    fn drop(&mut self) {
        unmap(self.zeroes, ZERO_PAGE_BYTES);
    }
}

/// The reactor; see the head of this file.
pub struct Reactor {
    engine: ManuallyDrop<Engine>,
    memory: ManuallyDrop<Memory>,
    devices: DeviceTable,
    sockets: SocketTable,
    listeners: Vec<Option<Listener>>,
    fuses: Vec<Option<fuse::Fuse>>,
    /// Completions not yet handed out.
    ready: Vec<Completion>,
    /// Reused lists.
    steps_done: Vec<StepDone>,
    model_done: Vec<u32>,
    /// Steps at the engine.
    at_engine: usize,
    /// Operations whose next step rests until then, in order of time.
    resting: VecDeque<(Instant, u32)>,
    waker: Waker,
    spin: Spin,
    clock: Instant,
    emulates: bool,
    stats: ReactorStats,
}

// SAFETY: the raw pointers inside point to memory the reactor owns; nothing in it is tied to a
// thread before the first `wait` (the ring refuses other threads afterwards, with an error).
unsafe impl Send for Reactor {}

impl Reactor {
    /// Makes a reactor. The message says that io_uring was not available and what that means.
    ///
    /// # Errors
    /// [`IoSetupError::UringUnavailable`] with [`EnginePreference::Uring`] only,
    /// [`IoSetupError::System`].
    pub fn open(
        preference: EnginePreference,
        limits: Limits,
    ) -> Result<(Reactor, Option<String>), IoSetupError> {
        let system = |what| move |source| IoSetupError::System { what, source };
        let psync = || {
            Psync::new(limits.psync_threads).map(Engine::Psync).map_err(system("starting the I/O threads"))
        };
        let ring = || {
            Uring::new(limits.ring_entries, limits.in_flight_max).map(|ring| Engine::Uring(Box::new(ring)))
        };
        let (engine, message) = match preference {
            EnginePreference::Psync => (psync()?, None),
            EnginePreference::Uring => {
                (ring().map_err(|reason| IoSetupError::UringUnavailable { reason })?, None)
            }
            EnginePreference::Auto => match ring() {
                Ok(engine) => (engine, None),
                Err(reason) => (psync()?, Some(fallback_message(&reason))),
            },
        };
        let out_of_memory = || std::io::Error::from_raw_os_error(libc::ENOMEM);
        let zeroes =
            map_zeroed(ZERO_PAGE_BYTES).ok_or_else(out_of_memory).map_err(system("mapping memory"))?;
        let pool = BufPool::new(limits.buffer_bytes_max);
        let reactor = Reactor {
            engine: ManuallyDrop::new(engine),
            memory: ManuallyDrop::new(Memory { pool, slots: Slots::default(), zeroes }),
            devices: DeviceTable::default(),
            sockets: SocketTable::default(),
            listeners: Vec::new(),
            fuses: Vec::new(),
            ready: Vec::new(),
            steps_done: Vec::new(),
            model_done: Vec::new(),
            at_engine: 0,
            resting: VecDeque::new(),
            waker: Waker::new().map_err(system("making an event counter"))?,
            spin: Spin::new(limits.spin),
            clock: Instant::now(),
            emulates: false,
            stats: ReactorStats::default(),
        };
        Ok((reactor, message))
    }

    /// The engine in use.
    pub fn engine(&self) -> EngineKind {
        match *self.engine {
            Engine::Uring(_) => EngineKind::Uring,
            Engine::Psync(_) => EngineKind::Psync,
        }
    }

    /// The buffers.
    pub fn pool(&self) -> &BufPool {
        &self.memory.pool
    }

    /// The buffers.
    pub fn pool_mut(&mut self) -> &mut BufPool {
        &mut self.memory.pool
    }

    /// Counts since the reactor was made.
    pub fn stats(&self) -> ReactorStats {
        self.stats
    }

    /// Operations submitted and not yet reported.
    pub fn in_flight(&self) -> usize {
        self.memory.slots.live_count() + self.ready.len()
    }

    /// A handle with which other threads make `wait` return.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Changes how long `wait` polls at most before it sleeps.
    pub fn set_spin(&mut self, most: Duration) {
        self.spin = Spin::new(most);
    }

    /// Adds a device; it stays until the reactor is dropped.
    ///
    /// # Panics
    /// When there are 65,536 already.
    pub fn add_device(&mut self, device: Device) -> DeviceId {
        let emulation = device.emulation().map(|model| Emulation::new(model, device.size_bytes()));
        self.emulates |= emulation.is_some();
        let served = device.is_served_elsewhere();
        for fd in device.descriptors() {
            self.engine.set_served(fd, served);
        }
        self.devices.add(DeviceEntry::new(device, emulation))
    }

    /// Operations on this device never wait for those on others that hang: what serves hits while
    /// backing stores do not answer.
    pub fn prefer_device(&mut self, id: DeviceId) {
        if let Some(entry) = self.devices.get_mut(id) {
            entry.lane = Lane::Fast;
        }
    }

    /// Takes a device away; its number may be given to another one. `None` if there is no such
    /// device, or if an operation on it has not been reported yet.
    pub fn remove_device(&mut self, id: DeviceId) -> Option<Device> {
        let slots = &self.memory.slots;
        if slots.live().any(|index| slots.get(index).kind.device() == Some(id.0)) {
            return None;
        }
        self.devices.remove(id)
    }

    /// A device.
    pub fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id).map(|entry| &entry.device)
    }

    /// A device, to refresh its size.
    pub fn device_mut(&mut self, id: DeviceId) -> Option<&mut Device> {
        self.devices.get_mut(id).map(|entry| &mut entry.device)
    }

    /// Queues an operation; `token` comes back with its completion.
    pub fn submit(&mut self, token: u64, op: Op<'_>) {
        let kind = match self.kind_of(op) {
            Ok(kind) => kind,
            Err(failure) => return self.ready.push(Completion { token, result: Err(failure) }),
        };
        let index = self.memory.slots.take(token, kind);
        let planned = match op {
            Op::Read { offset, spans, .. } => self.fill_slot(index, offset, spans),
            Op::Write { offset, spans, .. } => self.fill_slot(index, offset, spans),
            Op::Zero { offset, len, .. } => {
                let slot = self.memory.slots.get_mut(index);
                (slot.offset, slot.len) = (offset, len);
                Ok(())
            }
            Op::Flush { .. } | Op::Accept { .. } => Ok(()),
            Op::Recv { span, .. } => self.fill_slot(index, 0, &[span]),
            Op::Send { spans, .. } | Op::FuseReply { spans, .. } => self.fill_slot(index, 0, spans),
            Op::FuseReceive { header, data, .. } => self.fill_slot(index, 0, &[header, data]),
        };
        match planned {
            Ok(()) => self.start(index),
            Err(failure) => self.finish_unstarted(index, failure),
        }
    }

    fn kind_of(&self, op: Op<'_>) -> Result<OpKind, IoFailure> {
        let known = |id: DeviceId| self.devices.get(id).map(|_| id.0).ok_or(IoFailure::INVALID);
        Ok(match op {
            Op::Read { device, .. } => OpKind::Read { device: known(device)? },
            Op::Write { device, .. } => OpKind::Write { device: known(device)? },
            Op::Flush { device } => OpKind::Flush { device: known(device)? },
            Op::Zero { device, may_unmap, .. } => {
                let phase = if may_unmap { ZeroPhase::Punch } else { ZeroPhase::ZeroRange };
                OpKind::Zero { device: known(device)?, phase }
            }
            Op::Accept { listener } => OpKind::Accept { listener: self.open_listener(listener)? },
            Op::Recv { socket, .. } => OpKind::Recv { socket: self.sockets.open(socket)? },
            Op::Send { socket, .. } => OpKind::Send { socket: self.sockets.open(socket)? },
            Op::FuseReceive { fuse, .. } => {
                OpKind::FuseReceive { fuse: self.open_fuse(fuse)?, watches: false }
            }
            Op::FuseReply { fuse, .. } => OpKind::FuseReply { fuse: self.open_fuse(fuse)? },
        })
    }

    /// Hands all queued operations to the kernel and appends completions to `out`.
    ///
    /// Returns when at least one operation is done, the waker fired, or `timeout` has passed
    /// (`None`: no limit; zero: look only).
    ///
    /// # Errors
    /// When the kernel refuses to work at all; the reactor is of no use then.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<Waited, IoFailure> {
        // The clock is read only where its answer is needed: that can be a system call, and most
        // turns find work at once.
        let mut deadline = None;
        let mut left = timeout;
        let mut woken = false;
        loop {
            self.advance_models();
            self.end_rests();
            woken |= self.waker.take();
            let look_only = woken || !self.ready.is_empty();
            let sleep = if look_only { Some(Duration::ZERO) } else { self.sleep_time(left) };
            if !look_only && deadline.is_none() {
                deadline = timeout.map(|timeout| Instant::now() + timeout);
            }
            for (buffer, mapping) in self.memory.pool.take_unmapped() {
                self.engine.forget_buffer(buffer, mapping);
            }
            self.wait_at_engine(sleep)?;
            self.settle_steps();
            self.advance_models();
            woken |= self.waker.take();
            if !woken && self.ready.is_empty() {
                left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            }
            if woken || left == Some(Duration::ZERO) || !self.ready.is_empty() {
                let completions = self.ready.len();
                out.append(&mut self.ready);
                return Ok(Waited { completions, woken });
            }
        }
    }

    /// Waits, and learns from it for how long to poll the next time.
    fn wait_at_engine(&mut self, sleep: Option<Duration>) -> Result<(), IoFailure> {
        let learns = self.spin.is_allowed() && sleep != Some(Duration::ZERO);
        let began = learns.then(Instant::now);
        self.engine.wait(sleep, self.spin.window(), &self.waker, &mut self.steps_done)?;
        if let Some(began) = began {
            self.spin.note(began.elapsed());
        }
        Ok(())
    }

    /// Hands all queued operations to the kernel, without waiting for any and without reporting
    /// completions.
    ///
    /// # Errors
    /// When the kernel refuses to work at all; the reactor is of no use then.
    pub fn hand_over(&mut self) -> Result<(), IoFailure> {
        self.engine.hand_over()
    }

    /// Time until the deadline, the end of a rest or the next event of a disk model, whichever is
    /// first.
    fn sleep_time(&self, until_deadline: Option<Duration>) -> Option<Duration> {
        let until_rested =
            self.resting.front().map(|(until, _)| until.saturating_duration_since(Instant::now()));
        let until_deadline = [until_deadline, until_rested].into_iter().flatten().min();
        if !self.emulates {
            return until_deadline;
        }
        let now_ns = self.now_ns();
        let emulations = self.devices.iter().filter_map(|entry| entry.emulation.as_ref());
        let until_event = emulations
            .filter_map(Emulation::next_event_ns)
            .min()
            .map(|event_ns| Duration::from_nanos(event_ns.saturating_sub(now_ns)));
        [until_deadline, until_event].into_iter().flatten().min()
    }

    /// The clock of the disk models.
    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Adds a connected stream socket. The reactor owns it and may change its blocking mode.
    ///
    /// # Errors
    /// When the descriptor's mode cannot be set, or there are 65,536 sockets already.
    pub fn add_socket(&mut self, fd: OwnedFd) -> Result<SocketId, IoFailure> {
        self.insert_socket(fd)
    }
}

fn fallback_message(reason: &str) -> String {
    format!("io_uring is not available ({reason}): using psync threads; expect lower throughput")
}

/// How long a dropped reactor waits for the kernel to finish with its memory.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

impl Drop for Reactor {
    fn drop(&mut self) {
        let quiet = self.quiesce(DROP_PATIENCE);
        // SAFETY: nothing uses the engine after this.
        unsafe { ManuallyDrop::drop(&mut self.engine) };
        if quiet {
            // SAFETY: no step is at the engine, so the kernel and the threads know none of this
            // memory any more.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

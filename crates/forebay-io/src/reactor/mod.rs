//! The reactor: one thread's operations on devices, sockets, FUSE connections and block devices.
//!
//! `submit` queues operations; `wait` hands all of them to the kernel in one system call and
//! reports completions.
//!
//! Contract with the caller:
//! - `wait` reports every submitted operation exactly once, under its token; a malformed one with
//!   [`IoFailureKind::Invalid`](crate::IoFailureKind::Invalid). `submit` itself never fails, blocks
//!   or reports.
//! - The order of completions is not guaranteed, nor that operations in flight together take effect
//!   in order. A caller that needs order waits for a completion. A flush covers writes *reported*
//!   before the flush was submitted (on both descriptors of the device).
//! - Exceptions: sends on one socket go out whole and in order of submission; receives on one
//!   socket are served in order of submission.
//! - Transfers are complete: the reactor continues short device transfers and short sends. Bytes
//!   read past the recorded end of a device ([`Device::end_bytes`](crate::Device::end_bytes)) are
//!   zeroes. A write or zeroing that reaches past the end fails with
//!   [`IoFailureKind::OutOfRange`](crate::IoFailureKind::OutOfRange) and has no effect.
//! - On a device that is shorter than its recorded end a read that meets the end, and every write,
//!   zeroing and flush, fails with [`IoFailureKind::Ended`](crate::IoFailureKind::Ended). Once the
//!   device has its former length, operations succeed again. (If a file is truncated between the
//!   check and a write, that write can extend it again.)
//! - A receive reports the result of one `recv`: 1 byte up to the span's length, or 0 when the peer
//!   has closed.
//! - The reactor may be created on one thread and moved to another before its first `wait`; from
//!   then on it stays there.
//!
//! Crash and drop: dropping the reactor cancels socket operations and waits for device operations.
//! Memory that the kernel might still write is leaked rather than freed in two cases: the wait
//! takes longer than a few seconds, or the reactor is dropped on a thread that did not run it.

mod connections;
mod devices;
mod events;
mod finish;
mod fuse;
mod fuse_ring;
mod interface;
mod pages;
mod remote;
mod sockets;
mod start;
mod ublk;

pub use crate::engine::EngineKind;
pub use devices::DeviceInUse;
pub use events::EventCounter;
use interface::Checksums;
pub use interface::{
    Completion, DeviceId, EnginePreference, EventId, FuseId, Limits, ListenerId, Op, ReactorStats, SocketId,
    UblkId, Waited,
};

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::{BufPool, map_zeroed, unmap};
use crate::buffer_transform::PlaceCipher;
use crate::device::Device;
use crate::emulate::Emulation;
use crate::engine::psync::Psync;
use crate::engine::threads::IoThreads;
use crate::engine::uring::Uring;
use crate::engine::{Engine, Lane, StepDone};
use crate::error::{IoFailure, IoSetupError};
use crate::slots::{OpKind, Slots, ZeroPhase};
use crate::spin::Spin;
use crate::waker::Waker;
use connections::{Event, Fuse, Listener, SocketTable};
use devices::{DeviceEntry, DeviceTable};
use remote::RemoteEnds;
use ublk::Ublk;

/// Bytes of the zero page that zeroing by writes repeats.
pub(crate) const ZERO_PAGE_BYTES: usize = 256 << 10;

/// Memory that the kernel might access; leaked if the kernel might not have finished with it.
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

/// The reactor; see the module documentation.
pub struct Reactor {
    engine: ManuallyDrop<Box<dyn Engine>>,
    memory: ManuallyDrop<Memory>,
    devices: DeviceTable,
    sockets: SocketTable,
    listeners: Vec<Option<Listener>>,
    fuses: Vec<Option<Fuse>>,
    ublks: Vec<Option<Ublk>>,
    events: Vec<Option<Event>>,
    /// Completions not yet returned, and the checksums of the reads among them.
    ready: Vec<Completion>,
    ready_checksums: Vec<u32>,
    /// Checksums of the completions returned last.
    checksums: Vec<u32>,
    /// Reused lists.
    steps_done: Vec<StepDone>,
    model_done: Vec<u32>,
    /// Steps at the engine.
    at_engine: usize,
    /// Operations whose next step pauses until then, in order of time.
    resting: VecDeque<(Instant, u32)>,
    waker: Waker,
    /// Some device is a remote store.
    has_remote: bool,
    remote_ends: RemoteEnds,
    cipher: Option<Arc<dyn PlaceCipher>>,
    spin: Spin,
    clock: Instant,
    emulates: bool,
    stats: ReactorStats,
}

// SAFETY: the raw pointers inside point to memory the reactor owns; nothing in it is tied to a
// thread before the first `wait` (the ring refuses other threads afterwards, with an error).
unsafe impl Send for Reactor {}

impl Reactor {
    /// Creates a reactor. The message explains that io_uring was not available, and the
    /// consequence.
    ///
    /// # Errors
    /// [`IoSetupError::UringUnavailable`] with [`EnginePreference::Uring`] only,
    /// [`IoSetupError::System`].
    pub fn open(
        preference: EnginePreference,
        limits: Limits,
    ) -> Result<(Reactor, Option<String>), IoSetupError> {
        let system = |what| move |source| IoSetupError::System { what, source };
        let psync = || -> Result<Box<dyn Engine>, IoSetupError> {
            Ok(Box::new(Psync::new(limits.psync_threads).map_err(system("starting the I/O threads"))?))
        };
        let waker = Waker::new().map_err(system("making an event counter"))?;
        let (engine, message) = match preference {
            EnginePreference::Psync => (psync()?, None),
            EnginePreference::Uring => {
                rings(limits, &waker).map_err(|reason| IoSetupError::UringUnavailable { reason })?
            }
            EnginePreference::Auto => match rings(limits, &waker) {
                Ok(rings) => rings,
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
            ublks: Vec::new(),
            events: Vec::new(),
            ready: Vec::new(),
            ready_checksums: Vec::new(),
            checksums: Vec::new(),
            steps_done: Vec::new(),
            model_done: Vec::new(),
            at_engine: 0,
            resting: VecDeque::new(),
            has_remote: false,
            remote_ends: RemoteEnds::new(waker.clone()),
            waker,
            cipher: None,
            spin: Spin::new(limits.spin),
            clock: Instant::now(),
            emulates: false,
            stats: ReactorStats::default(),
        };
        Ok((reactor, message))
    }

    /// The engine in use.
    pub fn engine(&self) -> EngineKind {
        self.engine.kind()
    }

    /// The buffers.
    pub fn pool(&self) -> &BufPool {
        &self.memory.pool
    }

    /// The buffers.
    pub fn pool_mut(&mut self) -> &mut BufPool {
        &mut self.memory.pool
    }

    /// Counters since the creation of the reactor.
    pub fn stats(&self) -> ReactorStats {
        ReactorStats { steps_given: self.engine.steps_given(), ..self.stats }
    }

    /// Operations submitted and not yet reported.
    pub fn in_flight(&self) -> usize {
        self.memory.slots.live_count() + self.ready.len()
    }

    /// A handle for other threads to make `wait` return.
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Adds a device; it stays until it is removed or the reactor is dropped.
    ///
    /// # Panics
    /// When there are 65,536 already.
    pub fn add_device(&mut self, device: Device) -> DeviceId {
        let emulation = device.emulation().map(|model| Emulation::new(model, device.size_bytes()));
        self.emulates |= emulation.is_some();
        self.has_remote |= device.remote_store().is_some();
        let served = device.is_served_elsewhere();
        for fd in device.descriptors() {
            self.engine.set_served(fd, served);
        }
        self.devices.add(DeviceEntry::new(device, emulation))
    }

    /// Keeps operations on this device from waiting for those on others that hang: for the device
    /// that serves hits while backing stores do not respond.
    pub fn prefer_device(&mut self, id: DeviceId) {
        if let Some(entry) = self.devices.get_mut(id) {
            entry.lane = Lane::Fast;
        }
    }

    /// Returns whether every operation on a device has been reported.
    pub fn is_idle(&self, id: DeviceId) -> bool {
        let slots = &self.memory.slots;
        !slots.live().any(|index| slots.get(index).kind.device() == Some(id.0))
    }

    /// Removes a device; its number may be reused. Returns `None` if there is no such device, or if
    /// an operation on it has not been reported yet.
    pub fn remove_device(&mut self, id: DeviceId) -> Option<Device> {
        if self.is_idle(id) { self.devices.remove(id) } else { None }
    }

    /// A device.
    pub fn device(&self, id: DeviceId) -> Option<DeviceInUse<'_>> {
        self.devices.get(id).map(|entry| DeviceInUse(&entry.device))
    }

    /// A sentence for each device with an emulated card: the card's work so far.
    pub fn emulation_notes(&self) -> Vec<String> {
        let note = |entry: &DeviceEntry| {
            let (model, did) = (entry.device.emulation()?, entry.emulation.as_ref()?.did()?);
            Some(format!("{} as {model}: {did}", entry.device.path().display()))
        };
        self.devices.iter().filter_map(note).collect()
    }

    /// As [`Device::set_size`].
    pub fn set_device_size(&mut self, id: DeviceId, size_bytes: u64) {
        self.devices.get_mut(id).into_iter().for_each(|entry| entry.device.set_size(size_bytes));
    }

    /// As [`Device::set_end`].
    pub fn set_device_end(&mut self, id: DeviceId, end_bytes: u64) {
        self.devices.get_mut(id).into_iter().for_each(|entry| entry.device.set_end(end_bytes));
    }

    /// Sets the cipher of operations that name a place for it.
    pub fn set_cipher(&mut self, cipher: Arc<dyn PlaceCipher>) {
        self.cipher = Some(cipher);
    }

    /// Queues an operation; its completion carries `token`.
    pub fn submit(&mut self, token: u64, op: Op<'_>) {
        let kind = match self.kind_of(op) {
            Ok(kind) => kind,
            Err(failure) => {
                let checksums = Checksums::default();
                return self.ready.push(Completion { token, result: Err(failure), checksums });
            }
        };
        let index = self.memory.slots.take(token, kind);
        self.note_work(index, op);
        let planned = match op {
            Op::Read { offset, spans, .. } | Op::CheckedRead { offset, spans, .. } => {
                self.fill_slot(index, offset, spans)
            }
            Op::Write { offset, spans, .. } | Op::EncryptedWrite { offset, spans, .. } => {
                self.fill_slot(index, offset, spans)
            }
            Op::Zero { offset, len, .. } | Op::Discard { offset, len, .. } => {
                let slot = self.memory.slots.get_mut(index);
                (slot.offset, slot.len) = (offset, len);
                Ok(())
            }
            Op::Flush { .. } | Op::Accept { .. } => Ok(()),
            Op::UblkNext { .. } | Op::TakeEvent { .. } | Op::Signal { .. } => Ok(()),
            Op::Recv { span, .. } => self.fill_slot(index, 0, &[span]),
            Op::Send { spans, .. } | Op::FuseReply { spans, .. } => self.fill_slot(index, 0, spans),
            Op::FuseReceive { header, data, .. } => self.fill_slot(index, 0, &[header, data]),
            Op::FuseRing { head, payload, .. } => self.fill_slot(index, 0, &[head, payload]),
        };
        match planned {
            Ok(()) => self.start(index),
            Err(failure) => self.report(index, Err(failure)),
        }
    }

    /// Runs `job` on another thread; reports 0 when it has ended, also by a panic.
    pub fn run(&mut self, token: u64, job: impl FnOnce() + Send + 'static) {
        let index = self.memory.slots.take(token, OpKind::Run);
        let guarded = || drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
        *self.memory.slots.get_mut(index).job.get_mut() = Some(Box::new(guarded));
        self.push_step(index);
    }

    /// Records the computation over the bytes of an operation.
    fn note_work(&mut self, index: u32, op: Op<'_>) {
        let (wants_checksums, place) = match op {
            Op::CheckedRead { place, .. } => (true, place),
            Op::EncryptedWrite { place, .. } => (false, Some(place)),
            _ => return,
        };
        let work = self.memory.slots.get_mut(index).work.get_mut();
        work.wants_checksums = wants_checksums;
        work.cipher = place.map(|place| {
            let cipher = self.cipher.as_ref().expect("whoever names places has set a cipher");
            (Arc::clone(cipher), place)
        });
    }

    fn kind_of(&self, op: Op<'_>) -> Result<OpKind, IoFailure> {
        let known = |id: DeviceId| self.devices.get(id).map(|_| id.0).ok_or(IoFailure::INVALID);
        Ok(match op {
            Op::Read { device, .. } | Op::CheckedRead { device, .. } => {
                OpKind::Read { device: known(device)? }
            }
            Op::Write { device, .. } | Op::EncryptedWrite { device, .. } => {
                OpKind::Write { device: known(device)? }
            }
            Op::Flush { device } => OpKind::Flush { device: known(device)? },
            Op::Zero { device, may_unmap, .. } => {
                let phase = if may_unmap { ZeroPhase::Punch } else { ZeroPhase::ZeroRange };
                OpKind::Zero { device: known(device)?, phase }
            }
            Op::Discard { device, .. } => OpKind::Discard { device: known(device)? },
            Op::Accept { listener } => OpKind::Accept { listener: self.open_listener(listener)? },
            Op::Recv { socket, .. } => OpKind::Recv { socket: self.sockets.open(socket)? },
            Op::Send { socket, .. } => OpKind::Send { socket: self.sockets.open(socket)? },
            Op::FuseReceive { fuse, .. } => {
                OpKind::FuseReceive { fuse: self.open_fuse(fuse)?, watches: false }
            }
            Op::FuseReply { fuse, .. } => OpKind::FuseReply { fuse: self.open_fuse(fuse)? },
            Op::FuseRing { fuse, queue, answered, head, payload } => OpKind::FuseRing {
                fuse: self.open_fuse_queue(fuse, queue, [head, payload])?,
                queue,
                answered,
            },
            Op::UblkNext { ublk, tag, answer } => {
                OpKind::UblkNext { ublk: self.open_ublk(ublk, tag)?, tag, answer }
            }
            Op::TakeEvent { event } => OpKind::TakeEvent { event: self.open_event(event)? },
            Op::Signal { event } => OpKind::Signal { event: self.open_event(event)? },
        })
    }

    /// The checksums of a successful checked read, until the next call of `wait`; empty for any
    /// other operation.
    pub fn checksums(&self, completion: &Completion) -> &[u32] {
        let Checksums { first, count } = completion.checksums;
        &self.checksums[first as usize..][..count as usize]
    }

    /// Hands all queued operations to the kernel and appends completions to `out`.
    ///
    /// Returns when at least one operation has completed, the waker fired, or `timeout` has passed
    /// (`None`: no limit; zero: only check).
    ///
    /// # Errors
    /// When the kernel refuses all work; the reactor is then unusable.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<Waited, IoFailure> {
        // The clock is read only where needed: that can be a system call, and most turns find work
        // at once.
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
            if self.has_remote {
                self.settle_remote();
            }
            self.advance_models();
            woken |= self.waker.take();
            if !woken && self.ready.is_empty() {
                left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            }
            if woken || left == Some(Duration::ZERO) || !self.ready.is_empty() {
                let completions = self.ready.len();
                out.append(&mut self.ready);
                self.checksums.clear();
                std::mem::swap(&mut self.checksums, &mut self.ready_checksums);
                return Ok(Waited { completions, woken });
            }
        }
    }

    /// Waits, and learns from it how long to poll next time.
    fn wait_at_engine(&mut self, sleep: Option<Duration>) -> Result<(), IoFailure> {
        let learns = self.spin.is_allowed() && sleep != Some(Duration::ZERO);
        let began = learns.then(Instant::now);
        let window = self.spin.window();
        let spin = sleep.map_or(window, |sleep| sleep.min(window));
        let rest = sleep.map(|sleep| sleep - spin);
        self.engine.wait(spin, rest, &self.waker, &mut self.steps_done)?;
        if let Some(began) = began {
            self.spin.note(began.elapsed());
        }
        Ok(())
    }

    /// Hands all queued operations to the kernel, without waiting for any and without reporting
    /// completions.
    ///
    /// # Errors
    /// When the kernel refuses all work; the reactor is then unusable.
    pub fn hand_over(&mut self) -> Result<(), IoFailure> {
        self.engine.hand_over()
    }

    /// Time until the deadline, the end of a pause or the next event of a model, whichever is
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

    /// The clock of the models.
    fn now_ns(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }
}

/// Creates the engine with the loop's own ring and those of I/O threads. Returns a message if the
/// configured I/O threads are missing.
fn rings(limits: Limits, waker: &Waker) -> Result<(Box<dyn Engine>, Option<String>), String> {
    let new =
        || Uring::new(limits.ring_entries, limits.in_flight_max).map(|ring| ring.raised_by(limits.raised_by));
    if limits.io_threads == 0 {
        return Ok((Box::new(new()?), None));
    }
    let others = (0..limits.io_threads).map(|_| new()).collect::<Result<_, _>>();
    let threads = others.and_then(|others| {
        let threads = IoThreads::new(new()?, others, limits.io_threads_busy_pct, waker);
        threads.map_err(|error| error.to_string())
    });
    match threads {
        Ok(threads) => Ok((Box::new(threads), None)),
        Err(why) => {
            let what = format!("no I/O threads ({why}): expect lower throughput of a busy pool");
            Ok((Box::new(new()?), Some(what)))
        }
    }
}

fn fallback_message(reason: &str) -> String {
    format!("io_uring is not available ({reason}): using psync threads; expect lower throughput")
}

/// Longest time that a dropped reactor waits for the kernel to finish with its memory.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

impl Drop for Reactor {
    fn drop(&mut self) {
        let quiet = self.quiesce(DROP_TIMEOUT);
        // SAFETY: nothing uses the engine after this.
        unsafe { ManuallyDrop::drop(&mut self.engine) };
        if quiet {
            // SAFETY: no step is at the engine, so neither the kernel nor the threads use this
            // memory.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

//! The fallback engine: a fixed pool of threads for devices, `ppoll` in the loop's thread for
//! sockets and FUSE.
//!
//! For kernels and sandboxes without io_uring. Same contract, lower throughput: each device step
//! costs two thread switches.
//!
//! Invariants:
//! - Each lane has its own threads. They take steps in the order of `push` and run them in
//!   parallel, as in the kernel's ring: the order in which they take effect is not guaranteed.
//! - Only the loop's thread touches sockets and FUSE connections; a step that would block waits in
//!   `pending` for `ppoll`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Engine, EngineKind, KernelStep, Lane, StepDone, Syscall};
use crate::error::IoFailure;
use crate::sys;
use crate::waker::Waker;

/// `_IO(0x12, 119)` of `<linux/fs.h>`.
const BLKDISCARD: u32 = 0x1277;

#[derive(Default)]
struct Jobs {
    queue: VecDeque<KernelStep>,
    stop: bool,
}

/// Steps of one lane, and a condition for the threads that wait for them.
#[derive(Default)]
struct Line {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

struct Shared {
    fast: Line,
    slow: Line,
    done: Mutex<Vec<StepDone>>,
    /// Raised when `done` becomes non-empty.
    done_counter: OwnedFd,
}

impl Shared {
    fn line(&self, lane: Lane) -> &Line {
        match lane {
            Lane::Fast => &self.fast,
            Lane::Slow => &self.slow,
        }
    }
}

pub(crate) struct Psync {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Steps on sockets that would have blocked, and watches.
    pending: Vec<KernelStep>,
    /// Completed steps of the loop's thread, not yet reported.
    ready: Vec<StepDone>,
    /// Reused list for `ppoll`: the waker, the threads' counter, then one entry per pending step.
    polled: Vec<libc::pollfd>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Psync {
    pub(crate) fn new(threads: u32) -> io::Result<Psync> {
        Psync::with(threads, 0)
    }

    /// The niceness of its threads is `below` steps above that of the calling thread.
    pub(crate) fn with(threads: u32, below: u32) -> io::Result<Psync> {
        let shared = Arc::new(Shared {
            fast: Line::default(),
            slow: Line::default(),
            done: Mutex::default(),
            done_counter: sys::eventfd()?,
        });
        let mut engine = Psync {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            pending: Vec::new(),
            ready: Vec::new(),
            polled: Vec::new(),
        };
        for number in 0..threads.clamp(1, 256) {
            for lane in [Lane::Fast, Lane::Slow] {
                let shared = Arc::clone(&shared);
                let thread = std::thread::Builder::new().name(format!("io-{number}"));
                let run = move || {
                    sys::stand_back(below);
                    work(&shared, lane);
                };
                engine.threads.push(thread.spawn(run)?);
            }
        }
        Ok(engine)
    }

    /// A descriptor that is readable when completed device steps wait to be taken.
    pub(crate) fn done_fd(&self) -> RawFd {
        self.shared.done_counter.as_raw_fd()
    }

    /// Takes completed device steps, after that descriptor became readable.
    pub(crate) fn take_done(&self, done: &mut Vec<StepDone>) {
        sys::eventfd_drain(self.done_fd());
        done.append(&mut lock(&self.shared.done));
    }

    /// Performs a step on a socket or FUSE connection if it does not block; otherwise leaves it for
    /// `ppoll`.
    fn try_now(&mut self, step: KernelStep) {
        let waits = !matches!(
            step.request,
            Syscall::TakeMessage { .. } | Syscall::PutMessage { .. } | Syscall::Raise { .. }
        );
        match perform(step.request) {
            result if waits && result == -libc::EAGAIN => self.pending.push(step),
            result => self.ready.push(StepDone { key: step.key, result }),
        }
    }

    /// Runs one `ppoll` and handles its result; returns true when anything was ready.
    fn poll(&mut self, timeout: Option<Duration>, waker: &Waker) -> io::Result<bool> {
        let watch = |fd, events| libc::pollfd { fd, events, revents: 0 };
        self.polled.clear();
        self.polled.push(watch(waker.fd(), libc::POLLIN));
        self.polled.push(watch(self.shared.done_counter.as_raw_fd(), libc::POLLIN));
        self.polled.extend(self.pending.iter().map(|step| match step.request {
            Syscall::Send { fd, .. } => watch(fd, libc::POLLOUT),
            Syscall::Accept { fd } | Syscall::Recv { fd, .. } | Syscall::Watch { fd } => {
                watch(fd, libc::POLLIN)
            }
            _ => watch(-1, 0),
        }));
        let time = timeout.map(sys::timespec);
        let time = time.as_ref().map_or(std::ptr::null(), |t| &raw const *t);
        let count = self.polled.len() as libc::nfds_t;
        // SAFETY: the list has `count` entries, the time is null or valid, there is no signal mask.
        let ready =
            sys::check(unsafe { libc::ppoll(self.polled.as_mut_ptr(), count, time, std::ptr::null()) });
        match ready {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            Err(error) => return Err(error),
            Ok(0) => return Ok(false),
            Ok(_) => {}
        }
        if self.polled[0].revents != 0 {
            sys::eventfd_drain(waker.fd());
        }
        if self.polled[1].revents != 0 {
            sys::eventfd_drain(self.shared.done_counter.as_raw_fd());
            self.ready.append(&mut lock(&self.shared.done));
        }
        self.retry_ready();
        Ok(true)
    }

    /// Performs pending steps whose descriptor became ready; the others stay, in order.
    fn retry_ready(&mut self) {
        let mut index = 0;
        let (polled, ready) = (&self.polled, &mut self.ready);
        self.pending.retain(|step| {
            index += 1;
            if polled[index + 1].revents == 0 {
                return true;
            }
            let result = perform(step.request);
            if result != -libc::EAGAIN {
                ready.push(StepDone { key: step.key, result });
            }
            result == -libc::EAGAIN
        });
    }
}

impl Engine for Psync {
    fn kind(&self) -> EngineKind {
        EngineKind::Psync
    }

    fn push(&mut self, step: KernelStep) {
        if !step.request.is_on_device() && !matches!(step.request, Syscall::Run { .. }) {
            return self.try_now(step);
        }
        let line = self.shared.line(step.lane);
        lock(&line.jobs).queue.push_back(step);
        line.more.notify_one();
    }

    fn cancel(&mut self, key: u64) {
        if let Some(index) = self.pending.iter().position(|step| step.key == key) {
            self.pending.swap_remove(index);
            self.ready.push(StepDone { key, result: -libc::ECANCELED });
        }
    }

    fn wait(
        &mut self,
        spin: Duration,
        sleep: Option<Duration>,
        waker: &Waker,
        done: &mut Vec<StepDone>,
    ) -> Result<(), IoFailure> {
        let spin_until = (!spin.is_zero()).then(|| Instant::now() + spin);
        loop {
            let spins = spin_until.is_some_and(|until| Instant::now() < until);
            let now = !self.ready.is_empty() || spins;
            let any = self.poll(if now { Some(Duration::ZERO) } else { sleep }, waker)?;
            if !spins || any || !self.ready.is_empty() {
                break;
            }
        }
        done.append(&mut self.ready);
        Ok(())
    }
}

impl Drop for Psync {
    /// Ends the threads: drops steps that have not started, and waits for the others.
    fn drop(&mut self) {
        for line in [&self.shared.fast, &self.shared.slow] {
            let mut jobs = lock(&line.jobs);
            jobs.stop = true;
            jobs.queue.clear();
            drop(jobs);
            line.more.notify_all();
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A worker thread: takes steps until stopped.
fn work(shared: &Shared, lane: Lane) {
    let line = shared.line(lane);
    loop {
        let mut jobs = lock(&line.jobs);
        let step = loop {
            if let Some(step) = jobs.queue.pop_front() {
                break step;
            }
            if jobs.stop {
                return;
            }
            jobs = line.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        };
        drop(jobs);
        step.prepare();
        let result = perform(step.request);
        step.conclude(result);
        let mut done = lock(&shared.done);
        let first = done.is_empty();
        done.push(StepDone { key: step.key, result });
        drop(done);
        if first {
            sys::eventfd_signal(&shared.done_counter);
        }
    }
}

/// Makes the system call of a request; never blocks on sockets. Returns its value or minus the
/// error number.
fn perform(request: Syscall) -> i32 {
    loop {
        let result = perform_once(request);
        if result != -libc::EINTR {
            return result;
        }
    }
}

fn perform_once(request: Syscall) -> i32 {
    // Offsets and lengths were checked against the device's size, which is an off_t.
    let at = |offset: u64| offset as libc::off_t;
    match request {
        Syscall::Read { fd, iov, count, offset, .. } => {
            // SAFETY: the vectors and their memory live until the step is reported (contract of the
            // engine).
            sys::result_of(unsafe { libc::preadv(fd, iov, count as libc::c_int, at(offset)) })
        }
        Syscall::Write { fd, iov, count, offset, .. } => {
            // SAFETY: as above.
            sys::result_of(unsafe { libc::pwritev(fd, iov, count as libc::c_int, at(offset)) })
        }
        Syscall::Sync { fd } => {
            // SAFETY: fdatasync takes no pointers.
            sys::result_of(unsafe { libc::fdatasync(fd) } as libc::ssize_t)
        }
        Syscall::Allocate { fd, mode, offset, len } => {
            // SAFETY: fallocate takes no pointers.
            sys::result_of(unsafe { libc::fallocate(fd, mode, at(offset), at(len)) } as libc::ssize_t)
        }
        Syscall::Discard { fd, offset, len } => {
            let range = [offset, len];
            // SAFETY: the kernel reads two numbers, which live until the call returns.
            let result = unsafe { libc::ioctl(fd, BLKDISCARD as _, range.as_ptr()) };
            sys::result_of(result as libc::ssize_t)
        }
        Syscall::Accept { fd } => {
            let null = std::ptr::null_mut();
            // SAFETY: a null address requests none.
            let accepted = unsafe { libc::accept4(fd, null, std::ptr::null_mut(), libc::SOCK_CLOEXEC) };
            sys::result_of(accepted as libc::ssize_t)
        }
        Syscall::Recv { fd, memory, len } => {
            // SAFETY: `len` writable bytes that live until the step is reported.
            sys::result_of(unsafe { libc::recv(fd, memory.cast(), len as usize, libc::MSG_DONTWAIT) })
        }
        Syscall::TakeMessage { fd, iov, count } => {
            // SAFETY: the vectors and their memory live until the step is reported (contract of the
            // engine).
            sys::result_of(unsafe { libc::readv(fd, iov, count as libc::c_int) })
        }
        Syscall::PutMessage { fd, iov, count } => {
            // SAFETY: as above.
            sys::result_of(unsafe { libc::writev(fd, iov, count as libc::c_int) })
        }
        Syscall::Command { .. } | Syscall::FuseCommand { .. } => -libc::EOPNOTSUPP,
        Syscall::Run { job } => {
            // SAFETY: the job is live and exclusive until the step is reported.
            if let Some(job) = unsafe { (*job).take() } {
                job();
            }
            0
        }
        Syscall::Watch { fd } => {
            let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, and a zero timeout.
            match sys::result_of(unsafe { libc::poll(&raw mut watched, 1, 0) } as libc::ssize_t) {
                0 => -libc::EAGAIN,
                result if result < 0 => result,
                _ => i32::from(watched.revents),
            }
        }
        Syscall::Raise { fd } => {
            // Another process might have made the descriptor blocking, and the counter full.
            let mut room = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one entry, and a zero timeout.
            match sys::result_of(unsafe { libc::poll(&raw mut room, 1, 0) } as libc::ssize_t) {
                0 => return -libc::EAGAIN,
                result if result < 0 => return result,
                _ => {}
            }
            let len = size_of_val(&super::ONE);
            // SAFETY: the static has `len` readable bytes.
            sys::result_of(unsafe { libc::write(fd, (&raw const super::ONE).cast(), len) })
        }
        Syscall::Send { fd, message } => {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: the message, its vectors and their memory live until the step is reported.
            sys::result_of(unsafe { libc::sendmsg(fd, message, flags) })
        }
    }
}

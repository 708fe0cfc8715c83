//! The engines: submit steps to the kernel and return their results.
//!
//! A *step* is one system call's worth of an operation. All policy (short transfers, alignment,
//! splitting, order on a socket) is in the reactor above, so that both engines behave the same.
//!
//! Contract:
//! - `push` never fails and never blocks: steps that do not fit into the kernel's queue wait in
//!   memory, in order.
//! - Every pushed step returns exactly once from `wait`, cancelled or not.
//! - The memory that a step refers to stays valid until then; the reactor's slots and pool
//!   guarantee it.

mod offload_policy;
pub(crate) mod psync;
pub(crate) mod registered;
mod ring;
pub(crate) mod threads;
pub(crate) mod uring;

use std::os::fd::RawFd;
use std::time::Duration;

use crate::buffer::Mapping;
use crate::buffer_transform::BufferTransform;
use crate::error::IoFailure;
use crate::waker::Waker;

/// One system call's worth of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Syscall {
    /// `preadv` into `count` vectors. `mapping`: the memory that contains all of them, if it may be
    /// registered. `work`: the computation over the bytes, run by the I/O thread that reads all of
    /// them.
    Read {
        fd: RawFd,
        iov: *const libc::iovec,
        count: u32,
        offset: u64,
        mapping: Option<Mapping>,
        work: Option<*mut BufferTransform>,
    },
    /// `pwritev` from `count` vectors; `mapping` as for reads. `work`: the computation over the
    /// bytes before the write, run by the thread that writes them.
    Write {
        fd: RawFd,
        iov: *const libc::iovec,
        count: u32,
        offset: u64,
        mapping: Option<Mapping>,
        work: Option<*mut BufferTransform>,
    },
    /// `fdatasync`.
    Sync { fd: RawFd },
    /// `fallocate`.
    Allocate { fd: RawFd, mode: i32, offset: u64, len: u64 },
    /// `BLKDISCARD` of a block device.
    Discard { fd: RawFd, offset: u64, len: u64 },
    /// `accept4` with `SOCK_CLOEXEC`; the result is a descriptor that the reactor owns.
    Accept { fd: RawFd },
    /// `recv`.
    Recv { fd: RawFd, memory: *mut u8, len: u32 },
    /// `sendmsg` with `MSG_NOSIGNAL`.
    Send { fd: RawFd, message: *const libc::msghdr },
    /// `readv` of one message from a non-blocking descriptor; never blocks, can return `EAGAIN`.
    TakeMessage { fd: RawFd, iov: *const libc::iovec, count: u32 },
    /// `writev` of one message to a non-blocking descriptor.
    PutMessage { fd: RawFd, iov: *const libc::iovec, count: u32 },
    /// `poll` for input, errors and hang-up of a descriptor; the result is a set of events.
    Watch { fd: RawFd },
    /// A command that only the file behind the descriptor understands, with 16 bytes of payload;
    /// available on io_uring only.
    Command { fd: RawFd, op: u32, command: [u8; 16] },
    /// A command of a FUSE connection, with 24 bytes of payload and, if it refers to memory,
    /// vectors.
    FuseCommand { fd: RawFd, op: u32, command: [u8; 24], iov: *const libc::iovec, count: u32 },
    /// Adds one to an event counter; `EAGAIN` if the counter is full.
    Raise { fd: RawFd },
    /// Runs a job on a thread, without a system call. The result is 0.
    Run { job: *mut Option<Job> },
}

/// CPU-bound work for a thread.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Increment of a raised counter.
pub(crate) static ONE: u64 = 1;

impl Syscall {
    /// Returns whether it is on a device. Such steps always end; the others can wait for a peer
    /// forever.
    pub(crate) fn is_on_device(&self) -> bool {
        self.device_fd().is_some()
    }

    /// The device that it is on.
    pub(crate) fn device_fd(&self) -> Option<RawFd> {
        use Syscall as R;
        match self {
            R::Read { fd, .. }
            | R::Write { fd, .. }
            | R::Sync { fd }
            | R::Allocate { fd, .. }
            | R::Discard { fd, .. } => Some(*fd),
            _ => None,
        }
    }
}

/// A request and the key of its result. Keys with one of the three top bits set are reserved for
/// the engines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelStep {
    pub(crate) key: u64,
    pub(crate) request: Syscall,
    /// The device steps that it may wait for.
    pub(crate) lane: Lane,
}

/// Device steps of one lane never wait for those of the other: a backing store that hangs must not
/// block reads of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// All steps on sockets, and devices that serve others while slow ones hang.
    Fast,
    /// Devices that can hang.
    Slow,
}

impl KernelStep {
    /// Runs the computation before a write, unless it is done; call it once before the step is
    /// submitted to the kernel.
    pub(crate) fn prepare(&self) {
        if let Syscall::Write { iov, count, work: Some(work), .. } = self.request {
            // SAFETY: vectors, work and memory are live and exclusive until the step returns
            // (contract of the engine), and the kernel does not have them yet.
            unsafe {
                if !(*work).is_done {
                    (*work).before_write(parts(iov, count));
                }
            }
        }
    }

    /// Runs the computation after a read that has read everything; call it once before the step is
    /// reported.
    pub(crate) fn conclude(&self, result: i32) {
        if let Syscall::Read { iov, count, work: Some(work), .. } = self.request {
            // SAFETY: as above; the kernel has finished with them.
            unsafe {
                if usize::try_from(result) == Ok(parts(iov, count).map(|part| part.len()).sum()) {
                    (*work).after_read(parts(iov, count));
                }
            }
        }
    }
}

/// The memory of vectors.
///
/// # Safety
/// The vectors and their memory are live, and not used elsewhere meanwhile.
unsafe fn parts<'a>(iov: *const libc::iovec, count: u32) -> impl Iterator<Item = &'a mut [u8]> {
    // SAFETY: the caller guarantees it.
    let vectors = unsafe { std::slice::from_raw_parts(iov, count as usize) };
    // SAFETY: the caller guarantees it; vectors of one operation do not overlap.
    vectors.iter().map(|one| unsafe { std::slice::from_raw_parts_mut(one.iov_base.cast(), one.iov_len) })
}

// SAFETY: the pointers are only passed on to the kernel, and their targets (slots, pool) do not
// move and outlive the step, whichever thread performs it.
unsafe impl Send for KernelStep {}

/// The result of a step: the return value of the system call, or minus the error number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepDone {
    pub(crate) key: u64,
    pub(crate) result: i32,
}

/// The engine in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// io_uring.
    Uring,
    /// Threads and `ppoll`.
    Psync,
}

/// One of the two engines.
pub(crate) trait Engine: Send {
    /// Kind of the engine.
    fn kind(&self) -> EngineKind;

    fn push(&mut self, step: KernelStep);

    /// Number of steps given to other threads with rings of their own.
    fn steps_given(&self) -> u64 {
        0
    }

    /// Requests an early end of a step on a socket or a watch. The step still returns from `wait`,
    /// cancelled or complete.
    fn cancel(&mut self, key: u64);

    /// Submits all steps to the kernel; waits until one completes, the waker fires, or both times
    /// have passed; then appends completed steps to `done`. It polls for `spin`, then sleeps for
    /// `sleep` (`None`: no limit).
    fn wait(
        &mut self,
        spin: Duration,
        sleep: Option<Duration>,
        waker: &Waker,
        done: &mut Vec<StepDone>,
    ) -> Result<(), IoFailure>;

    /// Submits all steps to the kernel and returns at once.
    fn hand_over(&mut self) -> Result<(), IoFailure> {
        Ok(())
    }

    /// Returns whether it can issue FUSE commands.
    fn has_fuse_commands(&self) -> bool {
        false
    }

    /// Records whether another process or machine serves the file behind a descriptor, and can be
    /// slow to respond even to the kernel.
    fn set_served(&mut self, _fd: RawFd, _is_served: bool) {}

    /// Drops the registration of a chunk of the pool's memory under this generation. Steps that
    /// were pushed before can still use it.
    fn forget_buffer(&mut self, _chunk: u32, _generation: u64) {}
}

//! The engines: what hands one step to the kernel and brings its result back.
//!
//! A *step* is one system call's worth of an operation. All policy (short transfers, alignment,
//! splitting, order on a socket) is above, in the reactor, so that both engines behave the same.
//!
//! Contract:
//! - `push` never fails and never blocks: what does not fit into the kernel's queue waits in order
//!   in memory.
//! - Every pushed step comes back exactly once from `wait`, cancelled or not.
//! - The memory a step points to stays valid until then; the reactor's slots and pool guarantee it.

pub(crate) mod psync;
pub(crate) mod registered;
mod ring;
mod share;
pub(crate) mod threads;
pub(crate) mod uring;

use std::os::fd::RawFd;
use std::time::Duration;

use crate::buffer::Mapping;
use crate::error::IoFailure;
use crate::waker::Waker;
use crate::work::Work;

/// One system call's worth of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Syscall {
    /// `preadv` into `count` vectors. `mapping`: the memory that all of them lie in, if it may be
    /// registered. `work`: what is computed over the
    /// bytes, by an I/O thread that reads all of them.
    Read {
        fd: RawFd,
        iov: *const libc::iovec,
        count: u32,
        offset: u64,
        mapping: Option<Mapping>,
        work: Option<*mut Work>,
    },
    /// `pwritev` from `count` vectors; `mapping` as for reads. `work`: what is computed over the
    /// bytes before, by whoever writes them.
    Write {
        fd: RawFd,
        iov: *const libc::iovec,
        count: u32,
        offset: u64,
        mapping: Option<Mapping>,
        work: Option<*mut Work>,
    },
    /// `fdatasync`.
    Sync { fd: RawFd },
    /// `fallocate`.
    Allocate { fd: RawFd, mode: i32, offset: u64, len: u64 },
    /// `BLKDISCARD` of a block device.
    Discard { fd: RawFd, offset: u64, len: u64 },
    /// `accept4` with `SOCK_CLOEXEC`; the result is a descriptor that belongs to the reactor.
    Accept { fd: RawFd },
    /// `recv`.
    Recv { fd: RawFd, memory: *mut u8, len: u32 },
    /// `sendmsg` with `MSG_NOSIGNAL`.
    Send { fd: RawFd, message: *const libc::msghdr },
    /// `readv` of one message from a non-blocking descriptor; `EAGAIN` is a result, nobody waits.
    TakeMessage { fd: RawFd, iov: *const libc::iovec, count: u32 },
    /// `writev` of one message to a non-blocking descriptor.
    PutMessage { fd: RawFd, iov: *const libc::iovec, count: u32 },
    /// `poll` for input, errors and the end of a descriptor; the result is a set of events.
    Watch { fd: RawFd },
    /// A command that only the file behind the descriptor understands, with 16 bytes for it; the
    /// ring alone can give it.
    Command { fd: RawFd, op: u32, command: [u8; 16] },
    /// A command of a FUSE connection, with 24 bytes for it and, where it names memory, vectors.
    FuseCommand { fd: RawFd, op: u32, command: [u8; 24], iov: *const libc::iovec, count: u32 },
    /// Adds one to an event counter; `EAGAIN` if it is full.
    Raise { fd: RawFd },
    /// No system call: a thread runs what lies there. The result is 0.
    Run { job: *mut Option<Job> },
}

/// Something that takes a processor for a while.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// What a raised counter gains.
pub(crate) static ONE: u64 = 1;

impl Syscall {
    /// Is it on a device? Those always end; the others may wait for a peer for ever.
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

/// A request and the key its result is reported under. Keys with one of the three top bits set are
/// the engines' own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelStep {
    pub(crate) key: u64,
    pub(crate) request: Syscall,
    /// What it may wait behind.
    pub(crate) lane: Lane,
}

/// Device steps of one lane never wait for those of the other: a backing store that hangs must not
/// keep the cache from being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Everything on sockets, and devices that serve others while these hang.
    Fast,
    /// Devices that may hang.
    Slow,
}

impl KernelStep {
    /// The work before a write, if that is not done; to be called once before the step is handed to
    /// the kernel.
    pub(crate) fn prepare(&self) {
        if let Syscall::Write { iov, count, work: Some(work), .. } = self.request {
            // SAFETY: vectors, work and memory are live and nobody else's until the step is back
            // (contract of the engine), and the kernel has them not yet.
            unsafe {
                if !(*work).is_done {
                    (*work).before_write(parts(iov, count));
                }
            }
        }
    }

    /// The work after a read that has read everything; to be called once before the step is
    /// reported.
    pub(crate) fn conclude(&self, result: i32) {
        if let Syscall::Read { iov, count, work: Some(work), .. } = self.request {
            // SAFETY: as above; the kernel is done with them.
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
/// The vectors and what they name are live, and nobody else uses them meanwhile.
unsafe fn parts<'a>(iov: *const libc::iovec, count: u32) -> impl Iterator<Item = &'a mut [u8]> {
    // SAFETY: promised by the caller.
    let vectors = unsafe { std::slice::from_raw_parts(iov, count as usize) };
    // SAFETY: promised by the caller; vectors of one operation do not overlap.
    vectors.iter().map(|one| unsafe { std::slice::from_raw_parts_mut(one.iov_base.cast(), one.iov_len) })
}

// SAFETY: the pointers are only passed on to the kernel, and what they point to (slots, pool) does
// not move and outlives the step, whichever thread performs it.
unsafe impl Send for KernelStep {}

/// The result of a step: what the system call returned, or minus the error number.
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
    /// Which one it is.
    fn kind(&self) -> EngineKind;

    fn push(&mut self, step: KernelStep);

    /// How many of them went to other threads with rings of their own.
    fn steps_given(&self) -> u64 {
        0
    }

    /// Asks that a step on a socket or a watch ends soon; it still comes back from `wait`
    /// (cancelled, or done if it was faster).
    fn cancel(&mut self, key: u64);

    /// Hands all steps to the kernel, waits until one is done, the waker fired, or both times have
    /// passed, and appends what is done to `done`. It polls for `spin`, then sleeps for `sleep`
    /// (`None`: no limit).
    fn wait(
        &mut self,
        spin: Duration,
        sleep: Option<Duration>,
        waker: &Waker,
        done: &mut Vec<StepDone>,
    ) -> Result<(), IoFailure>;

    /// Hands all steps to the kernel and returns at once.
    fn hand_over(&mut self) -> Result<(), IoFailure> {
        Ok(())
    }

    /// Whether it can give commands of FUSE.
    fn has_fuse_commands(&self) -> bool {
        false
    }

    /// Says whether the file behind a descriptor is served by somebody who may be slow to answer
    /// even the kernel.
    fn set_served(&mut self, _fd: RawFd, _is_served: bool) {}

    /// What is registered of a chunk of the pool's memory under this generation is of no use any
    /// more. Steps that were pushed before may use it still.
    fn forget_buffer(&mut self, _chunk: u32, _generation: u64) {}
}

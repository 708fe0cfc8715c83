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
pub(crate) mod uring;

use std::os::fd::RawFd;
use std::time::Duration;

use crate::error::IoFailure;
use crate::waker::Waker;
use registered::Mapping;

/// One system call's worth of work.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Syscall {
    /// `preadv` into `count` vectors. `mapping`: the whole buffer that a single vector lies in, if
    /// it may be registered.
    Read { fd: RawFd, iov: *const libc::iovec, count: u32, offset: u64, mapping: Option<Mapping> },
    /// `pwritev` from `count` vectors; `mapping` as for reads.
    Write { fd: RawFd, iov: *const libc::iovec, count: u32, offset: u64, mapping: Option<Mapping> },
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
}

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

    /// This mapping of a buffer is gone.
    fn forget_buffer(&mut self, _buffer: u32, _mapping: u64) {}
}

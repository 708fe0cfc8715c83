//! Thin wrappers of system calls that several files need. No policy.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Turns a `-1`-or-value return into a result.
pub(crate) fn check(value: libc::c_int) -> io::Result<libc::c_int> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Turns a `-1`-or-value return of a transfer into the ring's convention: bytes, or minus the error
/// number.
pub(crate) fn result_of(value: libc::ssize_t) -> i32 {
    if value < 0 {
        -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        i32::try_from(value).unwrap_or(i32::MAX)
    }
}

/// Creates an event counter, blocking and close-on-exec.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes no pointers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: the descriptor was just created and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an event counter. An error means that the counter is full, hence already readable.
pub(crate) fn eventfd_signal(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer is eight readable bytes.
    let _ = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Drains a readable event counter.
pub(crate) fn eventfd_drain(fd: RawFd) {
    let mut count = [0u8; 8];
    // SAFETY: the buffer is eight writable bytes.
    let _ = unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}

/// Drains an event counter that other processes hold too, without blocking. Returns minus the error
/// number; `EAGAIN` if another holder drained it first.
pub(crate) fn eventfd_take(fd: RawFd) -> i32 {
    let mut count = [0u8; 8];
    let vector = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // `RWF_NOWAIT`, because another holder of the counter can make it blocking at any time.
    // SAFETY: one vector with eight writable bytes; offset -1 means the descriptor's own.
    result_of(unsafe { libc::preadv2(fd, &raw const vector, 1, -1, libc::RWF_NOWAIT) })
}

/// Raises the niceness of the calling thread by `steps`.
pub(crate) fn stand_back(steps: u32) {
    if steps > 0 {
        // SAFETY: no pointers; 0 is the calling thread.
        unsafe {
            libc::setpriority(libc::PRIO_PROCESS, 0, libc::getpriority(libc::PRIO_PROCESS, 0) + steps as i32)
        };
    }
}

/// Processor time that the calling thread has used.
pub(crate) fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is writable.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Returns whether it is an event counter.
pub(crate) fn is_eventfd(fd: RawFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{fd}"))
        .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
}

/// Keeps the kernel from writing back pages when this thread runs short of memory: they can belong
/// to a device that this thread serves, which would wait for itself. Has no effect without
/// `CAP_SYS_RESOURCE`.
pub(crate) fn serve_memory() {
    const PR_SET_IO_FLUSHER: libc::c_int = 57; // Linux 5.6; libc does not have it
    // SAFETY: PR_SET_IO_FLUSHER takes no pointers.
    let _ = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}

/// Sets or clears `O_NONBLOCK` on an open file description.
pub(crate) fn set_nonblocking(fd: RawFd, on: bool) -> io::Result<()> {
    // SAFETY: F_GETFL takes no argument.
    let flags = check(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    let wanted = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    if wanted != flags {
        // SAFETY: F_SETFL takes an integer.
        check(unsafe { libc::fcntl(fd, libc::F_SETFL, wanted) })?;
    }
    Ok(())
}

/// Sets `TCP_NODELAY`; does nothing on other sockets.
pub(crate) fn set_nodelay(fd: RawFd) {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
}

/// Idle time after which the kernel probes a TCP peer,
const KEEP_ALIVE_IDLE_S: libc::c_int = 60;
/// the pause between probes,
const KEEP_ALIVE_PAUSE_S: libc::c_int = 15;
/// and the time without an answer to them, or without an acknowledgement of sent data, after which
/// the connection ends.
const ABSENT_AFTER_MS: libc::c_int = 180_000;

/// Makes the kernel end the connection of a TCP peer that vanished silently; does nothing on other
/// sockets.
pub(crate) fn notice_absence(fd: RawFd) {
    set_int(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEP_ALIVE_PAUSE_S);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ABSENT_AFTER_MS);
}

/// Sets a socket option; does nothing on sockets without it.
fn set_int(fd: RawFd, level: libc::c_int, name: libc::c_int, value: libc::c_int) {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option value is a readable int of the stated size.
    let _ = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
}

/// Bytes given to a socket that the kernel still holds; 0 if it does not report them.
pub(crate) fn unsent_bytes(fd: RawFd) -> u32 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: TIOCOUTQ (SIOCOUTQ of sockets) stores one int through the pointer.
    let told = unsafe { libc::ioctl(fd, libc::TIOCOUTQ as _, &raw mut bytes) };
    if told < 0 { 0 } else { u32::try_from(bytes).unwrap_or(0) }
}

/// Returns whether the other side of a socket has closed it (or a TCP connection was reset). With
/// `half`, a peer that only shut down its sending side counts too, as over TCP the two look alike.
/// Unread data does not hide it. Does not block.
pub(crate) fn has_hung_up(fd: RawFd, half: bool) -> bool {
    let ends = libc::POLLHUP | libc::POLLERR | if half { libc::POLLRDHUP } else { 0 };
    let mut asked = libc::pollfd { fd, events: ends, revents: 0 };
    // SAFETY: the pointer is to one pollfd, and the count says so.
    let answered = unsafe { libc::poll(&raw mut asked, 1, 0) };
    answered > 0 && asked.revents & ends != 0
}

/// Converts a duration for the kernel.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos() as libc::c_long,
    }
}

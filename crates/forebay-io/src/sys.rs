//! Thin wrappers of system calls that more than one file needs. No policy.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Turns a `-1`-or-value return into a result.
pub(crate) fn check(value: libc::c_int) -> io::Result<libc::c_int> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

/// Turns a `-1`-or-value return of a transfer into the ring's convention: bytes, or minus the error number.
pub(crate) fn result_of(value: libc::ssize_t) -> i32 {
    if value < 0 {
        -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
    } else {
        i32::try_from(value).unwrap_or(i32::MAX)
    }
}

/// A new event counter, blocking and close-on-exec.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: eventfd takes no pointers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: the descriptor was just made and belongs to nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Adds one to an event counter. Failure means the counter is full, hence readable: nothing to do.
pub(crate) fn eventfd_signal(fd: &OwnedFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: the buffer is eight readable bytes.
    let _ = unsafe { libc::write(fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
}

/// Takes the count out of a readable event counter.
pub(crate) fn eventfd_drain(fd: RawFd) {
    let mut count = [0u8; 8];
    // SAFETY: the buffer is eight writable bytes.
    let _ = unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
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

/// `TCP_NODELAY`, silently nothing on other sockets.
pub(crate) fn set_nodelay(fd: RawFd) {
    let on: libc::c_int = 1;
    // SAFETY: the option value is a readable int of the stated size.
    let _ = unsafe {
        libc::setsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_NODELAY,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(duration.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: duration.subsec_nanos() as libc::c_long,
    }
}

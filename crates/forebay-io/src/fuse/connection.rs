//! A FUSE connection for threads that may block, such as those of the control file system, without
//! a reactor.
//!
//! Invariants
//! - Any number of threads may receive at once; each request goes to one of them. No thread waits
//!   in a read, which could not be ended from outside: they wait for the descriptor and for the
//!   stop signal, and read without blocking.
//! - A stop is permanent, and reaches every thread.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys;

/// The server's end of a mount, shared by threads. The mount's users get errors once the last
/// reference is dropped.
#[derive(Debug)]
pub struct Connection {
    device: File,
    /// Readable, and never drained, once all threads must stop.
    stop: OwnedFd,
}

impl Connection {
    /// Takes the descriptor that [`super::mount`] returned.
    ///
    /// # Errors
    /// When the descriptor cannot be made non-blocking, or the process is out of descriptors.
    pub fn new(device: OwnedFd) -> io::Result<Connection> {
        sys::set_nonblocking(device.as_raw_fd(), true)?;
        Ok(Connection { device: device.into(), stop: sys::eventfd()? })
    }

    /// Waits for a request and stores it in `buffer`, which must have room for the longest
    /// negotiated write, with its head. Returns its length, or `None` once the mount is gone or
    /// [`Connection::stop`] was called.
    ///
    /// # Errors
    /// The kernel's error of a wait or a read, except those that only require a retry.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            if self.wait()? {
                return Ok(None);
            }
            match (&self.device).read(buffer) {
                Ok(0) => return Ok(None),
                Ok(bytes) => return Ok(Some(bytes)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    // Taken by another thread, withdrawn by its user, or too large (the kernel has
                    // answered it).
                    Some(libc::EAGAIN | libc::EINTR | libc::ENOENT | libc::EIO) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Sends an answer, which must be complete.
    ///
    /// # Errors
    /// The kernel's error, except that no process waits for the answer.
    pub fn reply(&self, answer: &[u8]) -> io::Result<()> {
        match (&self.device).write(answer) {
            Ok(bytes) if bytes == answer.len() => Ok(()),
            Ok(_) => Err(ErrorKind::WriteZero.into()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends all waits for requests, now and later. Answers can still be sent.
    pub fn stop(&self) {
        sys::eventfd_signal(&self.stop);
    }

    /// Waits until there might be a request; returns true to stop.
    fn wait(&self) -> io::Result<bool> {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut watched = [watch(self.stop.as_raw_fd()), watch(self.device.as_raw_fd())];
        // SAFETY: the array has the given number of elements, and outlives the call.
        let ready = unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, FOREVER) };
        match sys::check(ready) {
            // The read reports an error of the device.
            Ok(_) => Ok(watched[0].revents != 0),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// `poll` without a time limit.
const FOREVER: libc::c_int = -1;

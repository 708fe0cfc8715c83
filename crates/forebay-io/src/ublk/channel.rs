//! The file of a device (`/dev/ublkcN`), which delivers its requests, and the shared memory in
//! which the kernel describes them.
//!
//! Invariants
//! - The kernel lets a device's file be opened once at a time: the owner of a channel is its
//!   server.
//! - A description is valid from the arrival of its request until the answer.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::error::UblkError;
use super::wire::{DESCRIPTOR_BYTES, DeviceInfo};

/// Longest wait for a file that udev or the kernel creates.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
const NODE_LOOK: Duration = Duration::from_millis(5);

/// The requests of a device; see the module documentation.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    descriptors: NonNull<u8>,
    depth: u16,
}

// SAFETY: the mapping belongs to the channel alone, and is not tied to a thread.
unsafe impl Send for Channel {}

impl Channel {
    /// Opens the file of a device that no process serves. Waits until the file exists.
    ///
    /// # Errors
    /// [`UblkError`]; also for a device with several queues, which no version of this program
    /// creates.
    pub fn open(info: &DeviceInfo) -> Result<Self, UblkError> {
        let path = format!("/dev/ublkc{}", info.number);
        let what = || format!("open {path}");
        if info.queues != 1 {
            return Err(UblkError::of(what(), io::Error::other(format!("it has {} queues", info.queues))));
        }
        let until = Instant::now() + NODE_TIMEOUT;
        let file = loop {
            match OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < until => {
                    std::thread::sleep(NODE_LOOK);
                }
                result => break result.map_err(|source| UblkError::of(what(), source))?,
            }
        };
        let len = usize::from(info.depth) * DESCRIPTOR_BYTES;
        let (access, kind) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_POPULATE);
        // SAFETY: a new mapping at an address that the kernel chooses; the call fails if the length
        // is zero.
        let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0) };
        let descriptors = NonNull::new(memory.cast()).filter(|_| memory != libc::MAP_FAILED);
        let descriptors =
            descriptors.ok_or_else(|| UblkError::of(format!("map {path}"), io::Error::last_os_error()))?;
        Ok(Self { fd: file.into(), descriptors, depth: info.depth })
    }

    /// Most requests in flight; their tags are below this.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The description of the request of a tag; `None` if there is no such tag.
    pub(crate) fn descriptor(&self, tag: u16) -> Option<[u8; DESCRIPTOR_BYTES]> {
        if tag >= self.depth {
            return None;
        }
        let offset = usize::from(tag) * DESCRIPTOR_BYTES;
        // SAFETY: inside the mapping, which has a description for each tag below the depth. The
        // kernel writes one before it reports the request, and leaves it unchanged until the
        // answer; bytes of another moment would be wrong, but valid.
        Some(unsafe {
            self.descriptors.as_ptr().add(offset).cast::<[u8; DESCRIPTOR_BYTES]>().read_volatile()
        })
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let len = usize::from(self.depth) * DESCRIPTOR_BYTES;
        // SAFETY: the mapping was made with this length, and has no remaining references.
        unsafe { libc::munmap(self.descriptors.as_ptr().cast(), len) };
    }
}

/// Prevents other users from mounting a block device, or building on it, while it exists.
///
/// Dropping it can block: the kernel writes back its cached pages of the device. So it belongs on a
/// thread that may block.
#[derive(Debug)]
pub struct Claim(#[expect(dead_code, reason = "it is held, not used")] std::fs::File);

impl Claim {
    /// Claims `/dev/ublkbN`; `None` if another user has claimed it: it is mounted, part of another
    /// device, or swap.
    ///
    /// # Errors
    /// The device cannot be opened.
    pub fn take(number: u32) -> Result<Option<Self>, UblkError> {
        let path = format!("/dev/ublkb{number}");
        match OpenOptions::new().read(true).custom_flags(libc::O_EXCL | libc::O_CLOEXEC).open(&path) {
            Ok(file) => Ok(Some(Self(file))),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(None),
            Err(source) => Err(UblkError::of(format!("open {path}"), source)),
        }
    }
}

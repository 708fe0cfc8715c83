//! Requirements for serving a FUSE connection over io_uring, apart from the connection: kernel
//! support, the number of queues, and a way to end it.
//!
//! Sources: `fs/fuse/dev_uring.c` and `include/uapi/linux/fuse.h` of Linux 6.18,
//! `Documentation/filesystems/fuse-io-uring.rst`.
//!
//! A command of the ring keeps the connection open, and only the connection's end ends the command.
//! So closing the descriptor is not enough: the connection is *aborted*, through a file of the
//! kernel's `fusectl` file system, which is opened when the mount is created.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

/// Enables the ring for new connections.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Where `fusectl` is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// The possible processors of the kernel: each has a queue, present or not.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// Registers an entry of a queue, and takes its first request.
const CMD_REGISTER: u32 = 1;
/// Answers the request of an entry, and takes its next one.
const CMD_COMMIT_AND_FETCH: u32 = 2;

/// The command for an entry of `queue`, as `struct fuse_uring_cmd_req`: its code and its bytes.
/// `answered` is the request that the entry answers; `None` registers the entry.
pub(crate) fn command(queue: u16, answered: Option<u64>) -> (u32, [u8; 24]) {
    let op = if answered.is_some() { CMD_COMMIT_AND_FETCH } else { CMD_REGISTER };
    let mut bytes = [0; 24]; // flags, none of which is known
    bytes[8..16].copy_from_slice(&answered.unwrap_or(0).to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    (op, bytes)
}

/// Ends a connection with requests in flight: its users get errors.
#[derive(Debug)]
pub(crate) struct Abort(File);

impl Abort {
    /// Aborts the connection. Does not block: it is the kernel's own file.
    pub(crate) fn now(&self) {
        // The connection might already have ended, which is fine.
        let _ = (&self.0).write(b"1");
    }
}

/// Access for serving a mount over the ring.
#[derive(Debug)]
pub struct RingAccess {
    /// Queues that must all be served, one for each possible processor of the kernel.
    pub queues: u16,
    pub(crate) abort: Abort,
}

impl RingAccess {
    /// Opens the access for the mount whose files are on this device.
    ///
    /// # Errors
    /// A text with the reason why it cannot be served over the ring, and a remedy.
    pub(super) fn of(device: Option<(u32, u32)>) -> Result<Self, String> {
        is_switched_on(std::fs::read_to_string(PARAMETER).ok().as_deref())?;
        let minor = device.ok_or("the mount is not in the mount table")?.1;
        let path = PathBuf::from(format!("{CONNECTIONS}/{minor}/abort"));
        let file = OpenOptions::new().write(true).open(&path).map_err(|error| {
            format!(
                "{} cannot be opened ({error}): as root, mount -t fusectl none {CONNECTIONS}, then attach \
                 the volume again",
                path.display()
            )
        })?;
        let possible = std::fs::read_to_string(POSSIBLE).map_err(|error| format!("{POSSIBLE}: {error}"))?;
        let queues = count(&possible).ok_or_else(|| format!("{POSSIBLE} is not understood: {possible}"))?;
        Ok(Self { queues, abort: Abort(file) })
    }
}

/// Checks that the kernel's parameter exists and is on.
fn is_switched_on(parameter: Option<&str>) -> Result<(), String> {
    match parameter.map(str::trim) {
        Some("Y" | "1") => Ok(()),
        Some(_) => Err(format!(
            "it is switched off in the kernel: as root, echo Y > {PARAMETER} (or boot with \
             fuse.enable_uring=1), then attach the volume again, or restart the daemon"
        )),
        None => Err("the kernel does not have it: Linux 6.14 or newer is needed, built with \
                     CONFIG_FUSE_IO_URING, and the module fuse loaded"
            .into()),
    }
}

/// Counts the numbers in a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_kernels_layout() {
        let (op, bytes) = command(3, None);
        assert_eq!((op, &bytes[..16], &bytes[16..]), (1, &[0; 16][..], &[3, 0, 0, 0, 0, 0, 0, 0][..]));
        let (op, bytes) = command(0x0102, Some(0x0a0b_0c0d));
        assert_eq!(op, 2);
        assert_eq!(bytes[8..16], 0x0a0b_0c0du64.to_ne_bytes());
        assert_eq!(bytes[16..18], 0x0102u16.to_ne_bytes());
    }

    #[test]
    fn processors_are_counted() {
        for (list, expected) in [("0\n", Some(1)), ("0-1\n", Some(2)), ("0-3,8,10-11", Some(7))] {
            assert_eq!(count(list), expected, "{list}");
        }
        for list in ["", "x", "3-1", "0-", "0-65535", "-"] {
            assert_eq!(count(list), None, "{list}");
        }
    }

    #[test]
    fn fuse_uring_switched_off_names_the_remedy() {
        assert_eq!(is_switched_on(Some("Y\n")), Ok(()));
        assert!(is_switched_on(Some("N\n")).unwrap_err().contains("echo Y > /sys/module/fuse/parameters"));
        assert!(is_switched_on(None).unwrap_err().contains("Linux 6.14"));
    }
}

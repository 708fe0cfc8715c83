//! Opening a device so that nobody else runs on it.
//!
//! Files take a whole-file advisory lock; block devices are opened with `O_EXCL`, which also keeps
//! out mounts, LVM and RAID. The lock goes away with the descriptor, so also with a killed process.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{DeviceKind, DeviceOptions};
use crate::error::DeviceError;
use crate::sys;

pub(super) fn open_locked(
    path: &Path,
    kind: DeviceKind,
    options: &DeviceOptions,
) -> Result<File, DeviceError> {
    let exclusive = options.lock && kind == DeviceKind::Block;
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(if exclusive { libc::O_EXCL } else { 0 })
        .open(path)
        .map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => DeviceError::InUse {
                path: path.into(),
                holder: "another program or the kernel (file system, LVM, RAID, swap)".into(),
            },
            _ => DeviceError::Open { path: path.into(), source },
        })?;
    if options.lock && kind == DeviceKind::File {
        lock(&file).map_err(|source| match source.raw_os_error() {
            Some(libc::EWOULDBLOCK) => DeviceError::InUse { path: path.into(), holder: holder(&file) },
            _ => DeviceError::Io { path: path.into(), what: "lock", offset: 0, source },
        })?;
    }
    Ok(file)
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: flock takes no pointers.
    sys::check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// Who holds the lock, from the kernel's table; "another process" when it cannot be told.
fn holder(file: &File) -> String {
    let unknown = || "another process".to_owned();
    let Ok(metadata) = file.metadata() else { return unknown() };
    let place =
        format!("{:02x}:{:02x}:{}", libc::major(metadata.dev()), libc::minor(metadata.dev()), metadata.ino());
    let Ok(table) = std::fs::read_to_string("/proc/locks") else { return unknown() };
    // A line: "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"
    let pid = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).find_map(|words| {
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&place.as_str())).then(|| words[4].to_owned())
    });
    let Some(pid) = pid else { return unknown() };
    if pid == std::process::id().to_string() {
        return "this very process".to_owned();
    }
    // "1234 (name) Z ...": its first thread has ended, others have not yet.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ends = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']));
    let ending = if ends { ", which has been killed and still ends" } else { "" };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("another process: {} (pid {pid}{ending})", name.trim()),
        Err(_) => format!("another process (pid {pid})"),
    }
}

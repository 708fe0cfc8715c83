//! Opens a device exclusively.
//!
//! A file gets a whole-file advisory lock (`flock`), which excludes other daemons. A block device
//! is opened with `O_EXCL`, which also excludes mounts, LVM and RAID. Both get byte-range locks as
//! in QEMU, so that QEMU, its tools and other programs that lock files refuse a served file. A
//! device is refused if another process has locks on it, a loop device lies on it, or a process has
//! it open for writing; a loop device also if others use the file below.
//!
//! All locks belong to the open file description: they end with its last descriptor, so also when
//! the process is killed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::others::{self, User};
use super::{DeviceKind, DeviceOptions};
use crate::error::DeviceError;
use crate::sys;

pub(super) fn open_locked(
    path: &Path,
    kind: DeviceKind,
    options: &DeviceOptions,
) -> Result<File, DeviceError> {
    let in_use = |User { holder, way_out }| DeviceError::InUse { path: path.into(), holder, way_out };
    let exclusive = options.lock && kind == DeviceKind::Block;
    if options.lock {
        let metadata = std::fs::metadata(path).ok();
        let below = metadata.as_ref().and_then(others::loop_device);
        let below = below.or_else(|| {
            let metadata = metadata.filter(|_| kind == DeviceKind::Block)?;
            others::user_below(&metadata)
        });
        // Checked before this process opens it for writing. A read-only tool does not disturb
        // writers.
        let user = below.or_else(|| others::writer(path, kind).filter(|_| !options.read_only));
        user.map_or(Ok(()), |user| Err(in_use(user)))?;
    }
    let file = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(if exclusive { libc::O_EXCL } else { 0 })
        .open(path)
        .map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => {
                in_use(User::program("another program or the kernel (file system, LVM, RAID, swap)".into()))
            }
            _ => DeviceError::Open { path: path.into(), source },
        })?;
    let failed = |source| DeviceError::Io { path: path.into(), what: "lock", offset: 0, source };
    if options.lock && kind == DeviceKind::File {
        lock(&file).map_err(|source| match source.raw_os_error() {
            Some(libc::EWOULDBLOCK) => in_use(User::program(holder(&file))),
            _ => failed(source),
        })?;
    }
    if options.lock && kind != DeviceKind::Special {
        lock_bytes(&file, path, options.read_only).map_or(Ok(()), |user| Err(in_use(user)))?;
    }
    Ok(file)
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: flock takes no pointers.
    sys::check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }).map(drop)
}

/// A program that has a lock on an open file. Takes the lock for a moment, so a program that tries
/// to get it at the same time may be refused.
pub(super) fn locked_by(file: &File) -> Option<String> {
    // SAFETY: flock takes no pointers.
    let flock = |how: libc::c_int| sys::check(unsafe { libc::flock(file.as_raw_fd(), how) });
    if flock(libc::LOCK_SH | libc::LOCK_NB).is_err() {
        return Some(holder(file));
    }
    let _ = flock(libc::LOCK_UN);
    let found = range(file, libc::F_OFD_GETLK, libc::F_WRLCK, ALL).ok()?;
    if found.l_type == libc::F_UNLCK as libc::c_short {
        return None;
    }
    Some(match found.l_pid > 0 {
        true => others::program(&found.l_pid.to_string()),
        false => "another program, which has locked it".into(),
    })
}

/// Byte ranges of QEMU's lock scheme (its `block/file-posix.c`): bytes from 100 on stand for the
/// permissions that a program uses, bytes from 200 on for those that it denies others. In each: 0
/// consistent reads, 1 writes, 2 writes of unchanged data, 3 resizes. Data below a cache can be
/// old, so consistent reads are denied too.
const DOES: Bytes = Bytes { start: 100, len: 4 };
const FORBIDS: Bytes = Bytes { start: 200, len: 4 };
/// The bytes before: other programs lock the start of a file, or all of it.
const START: Bytes = Bytes { start: 0, len: 100 };
/// Any lock of another program conflicts.
const ALL: Bytes = Bytes { start: 0, len: 0 };

#[derive(Clone, Copy)]
struct Bytes {
    start: libc::off_t,
    /// 0: to the end of the file.
    len: libc::off_t,
}

/// Takes the byte-range locks, and returns a holder of conflicting ones. Where such locks are not
/// available, excludes no program.
fn lock_bytes(file: &File, path: &Path, read_only: bool) -> Option<User> {
    if has_mandatory_locks(file) {
        return None;
    }
    let start = if read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    let taken = [(START, start), (DOES, libc::F_RDLCK), (FORBIDS, libc::F_RDLCK)].map(|(bytes, kind)| {
        let result = range(file, libc::F_OFD_SETLK, kind, bytes);
        result.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)))
    });
    let found = range(file, libc::F_OFD_GETLK, libc::F_WRLCK, ALL).ok();
    let found = found.filter(|found| found.l_type != libc::F_UNLCK as libc::c_short);
    let pid = match found {
        Some(lock) => (lock.l_pid > 0).then(|| lock.l_pid.to_string()),
        None if taken.contains(&true) => None,
        None => return None,
    };
    let holder = pid.map(|pid| others::program(&pid)).or_else(|| others::opened_by(path, false));
    Some(User::program(holder.unwrap_or_else(|| "another program, which has locked it".into())))
}

fn range(file: &File, command: libc::c_int, kind: libc::c_int, bytes: Bytes) -> io::Result<libc::flock64> {
    // SAFETY: flock64 is a plain struct for which all zeroes is a value.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    (lock.l_start, lock.l_len) = (bytes.start, bytes.len);
    // SAFETY: both commands take a pointer to a `struct flock64`, which lives until the call ends.
    sys::check(unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) })?;
    Ok(lock)
}

/// On SMB byte-range locks are mandatory: locked ranges could not be written.
fn has_mandatory_locks(file: &File) -> bool {
    super::file_system(file).is_some_and(|magic| super::SMB.contains(&magic))
}

/// The holder of the lock according to the kernel's table; "another process" if it is unknown.
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
    pid.map_or_else(unknown, |pid| others::program(&pid))
}

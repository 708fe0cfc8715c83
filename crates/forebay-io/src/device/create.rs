//! Creates the file of a file-backed cache.
//!
//! Crash order: the file is created under its final name and removed again on any failure; its size
//! and name are durable before success is reported. Its initial content is durable before its size
//! is set. So a crash in between leaves a file that is empty, or begins with that content.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::error::DeviceError;
use crate::sys;

/// Creates a file of `size_bytes`, readable and writable by its owner only: `start`, then zeroes.
///
/// With `preallocate` the space is reserved, so that later writes never find the file system full;
/// otherwise the file is sparse. On an error no file is left.
///
/// # Errors
/// [`DeviceError::Exists`], [`DeviceError::NoSpace`], [`DeviceError::CannotPreallocate`],
/// [`DeviceError::Open`], [`DeviceError::Io`].
pub fn create_cache_file(
    path: impl AsRef<Path>,
    size_bytes: u64,
    preallocate: bool,
    start: &[u8],
) -> Result<(), DeviceError> {
    let path = path.as_ref();
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(
        |source| match source.kind() {
            io::ErrorKind::AlreadyExists => DeviceError::Exists { path: path.into() },
            _ => DeviceError::Open { path: path.into(), source },
        },
    )?;
    let begun = file.write_all_at(start, 0).and_then(|()| file.sync_all());
    let made = begun.and_then(|()| size_file(&file, size_bytes, preallocate));
    let made = made.and_then(|()| make_durable(&file, path));
    made.map_err(|source| {
        let _ = std::fs::remove_file(path);
        explain(path, size_bytes, preallocate, source)
    })
}

/// Extends a file: with reserved space if the file system supports it, otherwise sparse.
pub(super) fn lengthen(file: &File, path: &Path, before: u64, size_bytes: u64) -> Result<(), DeviceError> {
    let made = match size_file(file, size_bytes, true) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(size_bytes),
        other => other,
    };
    made.and_then(|()| file.sync_all()).map_err(|source| {
        let _ = file.set_len(before);
        explain(path, size_bytes, false, source)
    })
}

fn size_file(file: &File, size_bytes: u64, preallocate: bool) -> io::Result<()> {
    if !preallocate {
        return file.set_len(size_bytes);
    }
    let len = libc::off_t::try_from(size_bytes).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))?;
    loop {
        // SAFETY: fallocate takes no pointers.
        match sys::check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.map(drop),
        }
    }
}

fn make_durable(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

pub(super) fn explain(path: &Path, size_bytes: u64, preallocate: bool, source: io::Error) -> DeviceError {
    let path_buf = path.to_path_buf();
    match source.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => {
            DeviceError::NoSpace { path: path_buf, wanted_bytes: size_bytes, free_bytes: free_bytes(path) }
        }
        Some(libc::EOPNOTSUPP) if preallocate => DeviceError::CannotPreallocate { path: path_buf },
        _ => DeviceError::Io { path: path_buf, what: "creation", offset: 0, source },
    }
}

/// Bytes an unprivileged user may still write to the file system that would hold `path`; 0 when
/// unknown.
pub(super) fn free_bytes(path: &Path) -> u64 {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(name) = CString::new(parent.as_os_str().as_bytes()) else { return 0 };
    // SAFETY: statvfs is a plain struct for which all zeroes is a value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the name is a C string, the result goes to a struct of the right type.
    if unsafe { libc::statvfs(name.as_ptr(), &raw mut stat) } != 0 {
        return 0;
    }
    (stat.f_bavail as u64).saturating_mul(stat.f_frsize as u64)
}

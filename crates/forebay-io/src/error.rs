//! Errors of this crate.
//!
//! Two layers: [`IoFailure`] is the result of a failed operation in flight (small, `Copy`, for
//! matching on). The enums below are for set-up and tools; they name the problem, its place and the
//! next step, for operators.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why an operation failed: the kernel's error number, and the class that a caller acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoFailure {
    /// The kernel's error number (`EIO`, `ENOSPC`, ...).
    pub errno: i32,
    /// Class of the failure.
    pub kind: IoFailureKind,
}

/// Classes of failures, by what the caller can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoFailureKind {
    /// The medium or the link to it failed (`EIO`, `EREMOTEIO`, `ENODEV`, a write that makes no
    /// progress, ...).
    Device,
    /// The device is shorter than its recorded end ([`crate::Device::end_bytes`]): it was
    /// truncated, or is gone. Nothing was written; bytes that a read returned must not be used. The
    /// device can come back later.
    Ended,
    /// No space is left below a sparse or thin store (`ENOSPC`, `EDQUOT`); an operator can add
    /// space.
    NoSpace,
    /// The range lies (partly) outside the device; nothing was done.
    OutOfRange,
    /// The device or descriptor does not allow this (`EBADF` on a read-only device, `EPERM`,
    /// `EROFS`).
    NotPermitted,
    /// The peer is gone (`ECONNRESET`, `EPIPE`, ...).
    Disconnected,
    /// The socket or listener was closed on this side while the operation waited.
    Cancelled,
    /// The process or system is out of descriptors or memory (`EMFILE`, `ENFILE`, `ENOMEM`), or was
    /// briefly (`EAGAIN`); retry later.
    Exhausted,
    /// The operation is malformed: a span outside its buffer, an unknown device, an unsupported
    /// request.
    Invalid,
    /// Anything else; see the error number.
    Other,
}

impl IoFailure {
    /// Classifies an error number of the kernel.
    pub fn from_errno(errno: i32) -> IoFailure {
        use IoFailureKind as K;
        let kind = match errno {
            libc::EIO
            | libc::EREMOTEIO
            | libc::ENODEV
            | libc::ENXIO
            | libc::ENOMEDIUM
            | libc::ETIMEDOUT
            | libc::EILSEQ
            | libc::ENODATA
            | libc::ENOLINK
            | libc::EBADE
            | libc::ESTALE => K::Device,
            libc::ENOSPC | libc::EDQUOT => K::NoSpace,
            libc::EBADF | libc::EPERM | libc::EACCES | libc::EROFS => K::NotPermitted,
            libc::ECONNRESET | libc::EPIPE | libc::ENOTCONN | libc::ECONNABORTED | libc::EHOSTUNREACH => {
                K::Disconnected
            }
            libc::ECANCELED => K::Cancelled,
            libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EAGAIN => K::Exhausted,
            libc::EINVAL | libc::EOPNOTSUPP | libc::EFAULT => K::Invalid,
            libc::EFBIG | libc::EOVERFLOW => K::OutOfRange,
            _ => K::Other,
        };
        IoFailure { errno, kind }
    }

    /// The device, or the file system that holds it, does not support this operation.
    pub fn is_unsupported(self) -> bool {
        self.errno == libc::EOPNOTSUPP
    }

    /// The failure of an operation outside the device's size.
    pub(crate) const OUT_OF_RANGE: IoFailure =
        IoFailure { errno: libc::ENOSPC, kind: IoFailureKind::OutOfRange };
    /// The failure of an operation on a device that is shorter than its recorded end.
    pub const ENDED: IoFailure = IoFailure { errno: libc::ENXIO, kind: IoFailureKind::Ended };
    /// The failure of a malformed operation.
    pub(crate) const INVALID: IoFailure = IoFailure { errno: libc::EINVAL, kind: IoFailureKind::Invalid };
    /// The failure of an operation that a remote store did not answer in time.
    pub const UNANSWERED: IoFailure = IoFailure { errno: libc::ETIMEDOUT, kind: IoFailureKind::Device };
    /// The failure of an operation that the device does not have.
    pub(crate) const UNSUPPORTED: IoFailure =
        IoFailure { errno: libc::EOPNOTSUPP, kind: IoFailureKind::Invalid };
    /// The failure of an operation that a close on this side cancelled.
    pub(crate) const CANCELLED: IoFailure =
        IoFailure { errno: libc::ECANCELED, kind: IoFailureKind::Cancelled };
}

impl From<io::Error> for IoFailure {
    fn from(error: io::Error) -> IoFailure {
        IoFailure::from_errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for IoFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == IoFailureKind::Ended {
            return write!(f, "the device is shorter than it was (ENXIO, os error {})", self.errno);
        }
        write!(f, "{:?}: {}", self.kind, io::Error::from_raw_os_error(self.errno))
    }
}

impl std::error::Error for IoFailure {}

/// Why a reactor could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoSetupError {
    /// io_uring was requested by name and is not available.
    #[error(
        "io_uring is not available ({reason}): use the psync engine, or allow io_uring (sysctl kernel.io_uring_disabled, seccomp profile of the container)"
    )]
    UringUnavailable {
        /// The kernel's error.
        reason: String,
    },
    /// A system call of the set-up failed.
    #[error("cannot set up the I/O engine: {what}: {source}")]
    System {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Why a tool could not open, create or use a device or backing store.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The path cannot be opened.
    #[error("cannot open {path}: {source}")]
    Open {
        /// The path as given.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// Another process (or this one) uses it.
    #[error("{path} is in use by {holder}: {way_out}, or choose another path")]
    InUse {
        /// The path as given.
        path: PathBuf,
        /// The process that uses it, as far as it can be determined.
        holder: String,
        /// Action that frees it.
        way_out: String,
    },
    /// The block device is write-protected.
    #[error(
        "{path} is write-protected: make it writable (blockdev --setrw {path}), or choose another device"
    )]
    WriteProtected {
        /// The path as given.
        path: PathBuf,
    },
    /// It lies on a mount of this process.
    #[error(
        "{path} lies on {mount}, a FUSE mount of this daemon, which would wait for itself forever: give the \
         file or device below it"
    )]
    OwnMount {
        /// The path as given.
        path: PathBuf,
        /// The mount.
        mount: PathBuf,
    },
    /// The path is a directory, socket, character device, ...
    #[error("{path} is a {found}: give a regular file or a block device")]
    NotADevice {
        /// The path as given.
        path: PathBuf,
        /// Type of the file.
        found: &'static str,
    },
    /// Not enough space for a cache file.
    #[error(
        "no space for {path}: {wanted_bytes} bytes wanted, {free_bytes} bytes free in its file system: choose a smaller size or another place"
    )]
    NoSpace {
        /// The path as given.
        path: PathBuf,
        /// Requested size, in bytes.
        wanted_bytes: u64,
        /// Bytes available to this user.
        free_bytes: u64,
    },
    /// Creating a cache file would overwrite an existing file.
    #[error("{path} exists already: remove it first, or choose another path")]
    Exists {
        /// The path as given.
        path: PathBuf,
    },
    /// The model does not support a device of this size.
    #[error(
        "{path} cannot be used with a model in front of it: {why}: leave the model out, or choose another device"
    )]
    CannotEmulate {
        /// The path as given.
        path: PathBuf,
        /// The limit.
        why: String,
    },
    /// The file system cannot reserve space.
    #[error("the file system of {path} cannot preallocate space: create the file without preallocation")]
    CannotPreallocate {
        /// The path as given.
        path: PathBuf,
    },
    /// A system call on an open device failed.
    #[error("{what} of {path} failed at byte {offset}: {source}")]
    Io {
        /// The path as given.
        path: PathBuf,
        /// `read`, `write`, `flush`, ...
        what: &'static str,
        /// Byte offset of the access, 0 where it has none.
        offset: u64,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Why a listening socket could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// A live server answers on the path.
    #[error("socket {path} is in use by a running server: stop it, or choose another path")]
    InUse {
        /// The path as given.
        path: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("{path} exists and is not a socket: remove it, or choose another path")]
    NotASocket {
        /// The path as given.
        path: PathBuf,
    },
    /// The path does not fit a socket address.
    #[error("{path} is too long for a unix socket (at most {max} bytes): choose a shorter path")]
    TooLong {
        /// The path as given.
        path: PathBuf,
        /// Longest path in bytes.
        max: usize,
    },
    /// Its folder does not exist.
    #[error("cannot listen on {path}: there is no folder {folder}: create it, or choose another path")]
    NoFolder {
        /// The path as given.
        path: PathBuf,
        /// The missing folder.
        folder: PathBuf,
    },
    /// The configured user or group of its file does not exist.
    #[error("cannot listen on {path}: there is no {kind} \"{name}\" on this machine")]
    NoOwner {
        /// The path as given.
        path: PathBuf,
        /// `user` or `group`.
        kind: &'static str,
        /// Its name as given.
        name: String,
    },
    /// The ownership of its file cannot be changed.
    #[error(
        "cannot listen on {path}: its file cannot be given to {owner}: {source} (a daemon that is not root can give files only to groups that its user belongs to: SupplementaryGroups= in its unit)"
    )]
    NotGiven {
        /// The path as given.
        path: PathBuf,
        /// The intended owner.
        owner: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot listen on {address}: {what}: {source}")]
    System {
        /// The path or TCP address as given.
        address: String,
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Why a FUSE mount could not be created or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// FUSE is not available.
    #[error(
        "FUSE is not available (/dev/fuse: {source}): load the module (modprobe fuse), give the container the device, or export the volume over NBD"
    )]
    NoFuse {
        /// The kernel's error.
        source: io::Error,
    },
    /// Another daemon serves this mount.
    #[error(
        "{target} is a mount of a running forebay: stop it, or choose another path (if no forebay runs: fusermount3 -u {target})"
    )]
    InUse {
        /// The mount point.
        target: PathBuf,
    },
    /// This process serves it.
    #[error(
        "{target} is, or lies on, a FUSE mount of a running forebay: give each volume a folder of its own, or a regular file to be mounted on"
    )]
    Own {
        /// The mount point.
        target: PathBuf,
    },
    /// The daemon that serves it does not respond.
    #[error(
        "{target} is a mount of a forebay that does not answer (is it stopped?): end that process, or let it \
         continue; or choose another path"
    )]
    NoAnswer {
        /// The mount point.
        target: PathBuf,
    },
    /// Another mount hides it.
    #[error(
        "{target} stays mounted, and answers with errors: another mount, on {by}, hides it. Unmount that (umount {by}), then this \
         (umount {target})"
    )]
    Covered {
        /// The mount point.
        target: PathBuf,
        /// The mount point of the mount that hides it.
        by: PathBuf,
    },
    /// The path cannot be a mount point.
    #[error("cannot mount at {place}: {problem}: {hint}")]
    BadPlace {
        /// The path as given.
        place: PathBuf,
        /// The problem with it.
        problem: String,
        /// Action for the operator.
        hint: &'static str,
    },
    /// A system call failed.
    #[error("{what} of {target} failed: {source}")]
    System {
        /// The mount point.
        target: PathBuf,
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The helper for users other than root failed.
    #[error("{helper} failed for {target}: {said} (it comes with the package fuse3)")]
    Helper {
        /// The mount point.
        target: PathBuf,
        /// The program.
        helper: &'static str,
        /// Its error output.
        said: String,
    },
}

impl MountError {
    pub(crate) fn system(target: &std::path::Path, what: &'static str, source: io::Error) -> Self {
        Self::System { target: target.into(), what, source }
    }
}

//! Errors of ublk block devices.

use std::io;

/// Why a ublk device could not be created, found, changed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// The driver is not available.
    #[error(
        "block devices (ublk) are not available here ({CONTROL}: {source}): load the module (modprobe ublk_drv; the kernel needs \
         CONFIG_BLK_DEV_UBLK, Linux 6.5 or later), give the container the device, or export the volume over NBD or FUSE"
    )]
    NoDriver {
        /// The kernel's error.
        source: io::Error,
    },
    /// The process lacks permission.
    #[error(
        "this process may not create block devices (ublk: {what}: {source}): it needs CAP_SYS_ADMIN, and \
         read and write access to {CONTROL} and /dev/ublkc*. Run it as root (forebay help boot has the lines \
         for systemd), or export the volume over NBD or FUSE"
    )]
    NotAllowed {
        /// The action.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel is too old.
    #[error(
        "the ublk driver of this kernel cannot {what}: Linux {since} or later can. Export the volume over NBD or FUSE"
    )]
    TooOld {
        /// The missing function.
        what: &'static str,
        /// The first Linux version that has it.
        since: &'static str,
    },
    /// The ring for commands cannot be created.
    #[error("io_uring is not available for commands to ublk: {source}")]
    NoRing {
        /// The kernel's error.
        source: io::Error,
    },
    /// A command timed out.
    #[error("ublk did not {what} within {seconds} s")]
    Late {
        /// The action.
        what: String,
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// A command failed.
    #[error("ublk cannot {what}: {source}")]
    Refused {
        /// The action.
        what: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The file that takes commands.
pub(super) const CONTROL: &str = "/dev/ublk-control";

impl UblkError {
    /// The error of a failed command, or of a device that could not be opened.
    pub(super) fn of(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed { what, source },
            _ => Self::Refused { what, source },
        }
    }

    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::NoDriver { source }
            | Self::NotAllowed { source, .. }
            | Self::NoRing { source }
            | Self::Refused { source, .. } => source.raw_os_error(),
            Self::TooOld { .. } | Self::Late { .. } => None,
        }
    }
}

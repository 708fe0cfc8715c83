//! Why there is no block device.

use std::io;

/// Why a ublk device could not be made, found, changed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UblkError {
    /// There is no driver.
    #[error(
        "block devices (ublk) are not available here ({CONTROL}: {source}): load the module (modprobe ublk_drv; the kernel needs \
         CONFIG_BLK_DEV_UBLK, Linux 6.5 or later), give the container the device, or export the volume over NBD or FUSE"
    )]
    NoDriver {
        /// What the kernel said.
        source: io::Error,
    },
    /// The process may not.
    #[error(
        "this process may not make block devices (ublk: {what}: {source}): it needs CAP_SYS_ADMIN, and {CONTROL} and /dev/ublkc* to \
         read and write. Run it as root (docs/use/ublk.md has the lines for systemd), or export the volume over NBD or FUSE"
    )]
    NotAllowed {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel is too old.
    #[error(
        "the ublk driver of this kernel cannot {what}: Linux {since} or later can. Export the volume over NBD or FUSE"
    )]
    TooOld {
        /// What is missing.
        what: &'static str,
        /// The first version that has it.
        since: &'static str,
    },
    /// The ring for commands cannot be made.
    #[error("io_uring is not available to give commands to ublk: {source}")]
    NoRing {
        /// What the kernel said.
        source: io::Error,
    },
    /// A command did not come to its end.
    #[error("ublk did not {what} within {seconds} s")]
    Late {
        /// What was asked for.
        what: String,
        /// So long was waited.
        seconds: u64,
    },
    /// A command failed.
    #[error("ublk cannot {what}: {source}")]
    Refused {
        /// What was asked for.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The file that takes commands.
pub(super) const CONTROL: &str = "/dev/ublk-control";

impl UblkError {
    /// A command failed, or a device could not be opened.
    pub(super) fn of(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotAllowed { what, source },
            _ => Self::Refused { what, source },
        }
    }

    /// The error number of the kernel, if it said one.
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

//! Detects whether a mount of this process still leads its path to its files. Other programs can
//! unmount it, or mount another file system over it, at any time. The kernel notifies the FUSE
//! connection only of the former, and only once the last file of the mount is closed.
//!
//! The mount table of this process (proc(5)) shows both, without querying any file system. The
//! kernel marks the table as changed for `poll(2)`, so an unchanged one costs one system call.

use super::FuseMount;
use super::table::{Mounts, TABLE};
use crate::error::MountError;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// State of the path of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The mount is visible.
    There,
    /// Another mount hides this one; the path is its mount point.
    Covered(PathBuf),
    /// Another program has unmounted it.
    Gone,
}

/// The mounts of this process.
#[derive(Debug)]
pub struct MountTable(Mounts);

impl MountTable {
    /// Reads the current table.
    pub(super) fn read() -> Result<Self, MountError> {
        Mounts::read().map(Self)
    }

    /// State of a mount as seen by a program that opens `file`: the mount point, or a file in it.
    pub fn standing_of(&self, mount: &FuseMount, file: &Path) -> Standing {
        let Some(own) = &mount.own else { return Standing::There };
        let within = file.strip_prefix(&mount.target).unwrap_or(Path::new(""));
        match self.0.standing(own.point(), own.device(), &own.point().join(within)) {
            None => Standing::Gone,
            Some(None) => Standing::There,
            Some(Some(above)) => Standing::Covered(above.point.clone()),
        }
    }
}

/// Detects changes of the mount table.
#[derive(Debug)]
pub struct MountWatch {
    table: File,
    is_read: bool,
}

impl MountWatch {
    /// Starts watching.
    ///
    /// # Errors
    /// There is no `/proc`, or no free descriptor.
    pub fn begin() -> io::Result<Self> {
        Ok(Self { table: File::open(TABLE)?, is_read: false })
    }

    /// Returns the table if it might have changed since the last call; always on the first call.
    pub fn changed(&mut self) -> Option<MountTable> {
        let mut poll = libc::pollfd { fd: self.table.as_raw_fd(), events: libc::POLLPRI, revents: 0 };
        // SAFETY: one structure, and its number; the call does not wait.
        let changed = unsafe { libc::poll(&raw mut poll, 1, 0) } > 0;
        if self.is_read && !changed {
            return None;
        }
        let mounts = Mounts::read().ok()?;
        self.is_read = true;
        Some(MountTable(mounts))
    }
}

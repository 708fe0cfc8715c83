//! Whether a mount that was made here still leads its path to its files. Other programs may unmount
//! it, or mount something over it, at any time, and the FUSE connection is told only of the former,
//! and only once the last file of it is closed.
//!
//! The mount table of this process (proc(5)) tells both, without asking any file system. The kernel
//! marks the table as changed for `poll(2)`, so an unchanged one costs one system call.

use super::FuseMount;
use super::table::{Mounts, TABLE};
use crate::error::MountError;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// What a path leads to where a mount was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The mount.
    There,
    /// Another mount, which hides this one: where it is mounted.
    Covered(PathBuf),
    /// Not the mount: another program has unmounted it.
    Gone,
}

/// The mounts that there are.
#[derive(Debug)]
pub struct MountTable(Mounts);

impl MountTable {
    /// As it is now.
    pub(super) fn read() -> Result<Self, MountError> {
        Mounts::read().map(Self)
    }

    /// How a mount stands in it, as seen by who opens `file`: where it is mounted, or a file in it.
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

/// Notices changes of the mount table.
#[derive(Debug)]
pub struct MountWatch {
    table: File,
    is_read: bool,
}

impl MountWatch {
    /// Begins to watch.
    ///
    /// # Errors
    /// There is no `/proc`, or no descriptor.
    pub fn begin() -> io::Result<Self> {
        Ok(Self { table: File::open(TABLE)?, is_read: false })
    }

    /// The table, if it may have changed since the last call; at first in any case.
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

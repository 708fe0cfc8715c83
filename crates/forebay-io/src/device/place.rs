//! The place of an open regular file: detects whether its path still leads to it.
//!
//! An open file stays the same when its name is removed, changed, or given to another file. All
//! reads, writes and flushes succeed, and the file is gone once its last descriptor is closed. The
//! kernel reports the name of an open file (`/proc/self/fd/N`) without querying its file system.
//!
//! Invariants:
//! - [`Place::displaced`] never blocks on a file system, so any thread may call it.
//! - It detects changes of the name by this machine: removing, replacing or renaming the file or
//!   one of its folders. It does not detect a symbolic link that leads elsewhere, a file system
//!   mounted over the path, or changes by other machines on a shared file system.
//! - A file whose name the kernel does not report counts as not displaced: without `/proc` that is
//!   every file.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{Device, DeviceKind, statx};

/// Suffix that the kernel appends to the name of a removed file.
const DELETED: &[u8] = b" (deleted)";
/// Prefixes of the names under which file systems of other machines and processes keep a file that
/// is removed while open, until it is closed.
const KEPT_WHILE_OPEN: [&[u8]; 2] = [b".nfs", b".fuse_hidden"];

/// Why a path does not lead to the file that was opened by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Displacement {
    /// The file has no name left: it is gone once its last descriptor is closed.
    Deleted,
    /// This name was removed, but the file has others (hard links).
    OtherNames,
    /// The file now has this name.
    Renamed(PathBuf),
    /// Its file system was unmounted while the file was open, or its name is not reachable.
    Unreachable,
}

impl Displacement {
    /// A one-word name, for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Displacement::Deleted => "deleted",
            Displacement::OtherNames => "unlinked",
            Displacement::Renamed(_) => "renamed",
            Displacement::Unreachable => "unreachable",
        }
    }
}

/// The place of a file when it was opened.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The path without symbolic links.
    path: PathBuf,
    dev: u64,
    ino: u64,
}

impl Place {
    /// The place of a newly opened file; `None` if the kernel does not report it.
    pub(super) fn of(file: &File) -> Option<Place> {
        let metadata = file.metadata().ok()?;
        let link = link_of(file)?;
        let path = match without_suffix(&link) {
            Some(path) if metadata.nlink() == 0 => path, // removed since it was opened
            _ => link,
        };
        Some(Place { path, dev: metadata.dev(), ino: metadata.ino() })
    }

    /// Why the path does not lead to the file, as far as the kernel knows without querying a file
    /// system.
    fn displaced(&self, file: &File, is_remote: bool) -> Option<Displacement> {
        let link = link_of(file)?;
        let names = if is_remote { None } else { names_of(file) };
        if names == Some(0) {
            return Some(Displacement::Deleted);
        }
        if link == self.path {
            return None;
        }
        Some(match (without_suffix(&link), names) {
            (Some(_), Some(_)) => Displacement::OtherNames,
            (Some(_), None) => Displacement::Deleted,
            (None, _) if is_remote && is_kept_while_open(&link) => Displacement::Deleted,
            (None, _) => Displacement::Renamed(link),
        })
    }

    /// Returns whether a path leads to the file. Queries its file system.
    fn is_at(&self, path: &Path) -> bool {
        let found = std::fs::metadata(path);
        found.is_ok_and(|found| (found.dev(), found.ino()) == (self.dev, self.ino))
    }
}

impl Device {
    /// Why the path does not lead to this file; `None` if it does, or if that is unknown. Queries
    /// the kernel but not the file system; the module documentation lists the changes that it
    /// misses.
    pub fn displaced(&self) -> Option<Displacement> {
        let place = self.place.as_ref().filter(|_| self.kind == DeviceKind::File)?;
        place.displaced(&self.buffered, self.is_remote)
    }

    /// Like [`Device::displaced`], but verified on the file system: a name that was recreated is
    /// valid, and a new name is reported only if it leads to the file. Can block.
    pub fn whereabouts(&self) -> Option<Displacement> {
        let (displacement, place) = (self.displaced()?, self.place.as_ref()?);
        if displacement == Displacement::Deleted {
            return Some(displacement);
        }
        if place.is_at(&self.path) {
            return None;
        }
        let link = link_of(&self.buffered)?;
        Some(match displacement {
            _ if place.is_at(&link) => Displacement::Renamed(link),
            Displacement::Renamed(_) => Displacement::Unreachable,
            other => other,
        })
    }

    /// The path by which other programs can read this file while it is open here, regardless of
    /// its name.
    pub fn open_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), self.buffered.as_raw_fd()))
    }
}

fn link_of(file: &File) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// Number of names of a file on a local file system, from the kernel's memory.
fn names_of(file: &File) -> Option<u32> {
    let stat = statx(file, libc::AT_STATX_DONT_SYNC, libc::STATX_NLINK)?;
    (stat.stx_mask & libc::STATX_NLINK != 0).then_some(stat.stx_nlink)
}

fn without_suffix(link: &Path) -> Option<PathBuf> {
    let path = link.as_os_str().as_bytes().strip_suffix(DELETED)?;
    Some(PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())))
}

fn is_kept_while_open(link: &Path) -> bool {
    let name = link.file_name().map_or(&b""[..], OsStr::as_bytes);
    KEPT_WHILE_OPEN.iter().any(|kept| name.starts_with(kept))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceOptions;
    use std::fs;

    fn made(path: &Path) -> Device {
        fs::write(path, [7; 8192]).unwrap();
        opened(path)
    }

    fn opened(path: &Path) -> Device {
        Device::open_backing(path, DeviceOptions::default()).unwrap()
    }

    fn both(device: &Device) -> [Option<Displacement>; 2] {
        [device.displaced(), device.whereabouts()]
    }

    #[test]
    fn unmoved_file_is_not_displaced() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["plain", "ends like one (deleted)", "\u{fc} \n"] {
            let device = made(&folder.path().join(name));
            assert_eq!(both(&device), [None, None], "{name:?}");
        }
    }

    #[test]
    fn removed_or_replaced_file_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["disk", "disk (deleted)"] {
            let path = folder.path().join(name);
            let (removed, clone) = {
                let device = made(&path);
                let clone = device.for_thread().unwrap();
                fs::remove_file(&path).unwrap();
                (device, clone)
            };
            // Another file under the same name is not reported as displaced.
            let other = made(&path);
            assert_eq!(both(&other), [None, None]);
            let deleted = || Some(Displacement::Deleted);
            assert_eq!(both(&removed), [deleted(), deleted()]);
            assert_eq!(both(&clone), [deleted(), deleted()], "the handle of a thread knows it");
            fs::write(folder.path().join("new"), [0; 8192]).unwrap();
            fs::rename(folder.path().join("new"), &path).unwrap();
            assert_eq!(both(&other), [deleted(), deleted()], "another file has taken its name");
            assert_eq!(fs::read(removed.open_path()).unwrap(), [7; 8192], "it can still be read");
        }
    }

    #[test]
    fn renamed_file_or_folder_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, moved) = (folder.path().join("inner"), folder.path().join("moved"));
        fs::create_dir(&inner).unwrap();
        let device = made(&inner.join("disk"));
        fs::rename(inner.join("disk"), inner.join("other")).unwrap();
        let renamed = |path: PathBuf| Some(Displacement::Renamed(fs::canonicalize(path).unwrap()));
        assert_eq!(both(&device), [renamed(inner.join("other")), renamed(inner.join("other"))]);
        fs::rename(inner.join("other"), inner.join("disk")).unwrap();
        assert_eq!(both(&device), [None, None]);
        fs::rename(&inner, &moved).unwrap();
        assert_eq!(both(&device), [renamed(moved.join("disk")), renamed(moved.join("disk"))]);
        fs::rename(&moved, &inner).unwrap();
        assert_eq!(both(&device), [None, None]);
    }

    #[test]
    fn file_with_other_names_is_not_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("disk"), folder.path().join("other"));
        let device = made(&path);
        fs::hard_link(&path, &other).unwrap();
        assert_eq!(both(&device), [None, None]);
        fs::remove_file(&path).unwrap();
        let unlinked = || Some(Displacement::OtherNames);
        assert_eq!(both(&device), [unlinked(), unlinked()]);
        fs::hard_link(&other, &path).unwrap();
        assert_eq!(both(&device), [unlinked(), None], "the path leads there again");
        fs::remove_file(&path).unwrap();
        fs::remove_file(&other).unwrap();
        assert_eq!(both(&device), [Some(Displacement::Deleted), Some(Displacement::Deleted)]);
    }

    #[test]
    fn path_through_a_symlink_is_resolved_once() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("disk"), folder.path().join("link"));
        drop(made(&path));
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let device = opened(&link);
        assert_eq!(both(&device), [None, None]);
        fs::rename(&path, folder.path().join("other")).unwrap();
        assert!(matches!(device.whereabouts(), Some(Displacement::Renamed(_))));
        // The symbolic link leads to the file again.
        fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), &link).unwrap();
        assert_eq!(device.whereabouts(), None);
    }
}

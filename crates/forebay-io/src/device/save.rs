//! Copies an open file to another path: the remedy for a file that has lost its name.
//!
//! Crash order: the copy is created as `PATH.part`. It gets its name once all of it is durable, and
//! then its folder is synced. So a partial copy never appears under the name. A copy that is not
//! named is removed again, except after a kill: then a `.part` file is left, and blocks the next
//! attempt.

use std::ffi::CString;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use super::create::{explain, free_bytes};
use super::{Device, DeviceKind};
use crate::error::DeviceError;
use crate::sys;

/// Bytes copied between two checks whether to continue.
const PIECE: usize = 1 << 20;

/// A durable copy that has no name yet. Dropping it removes the copy.
#[derive(Debug)]
pub struct UnnamedCopy {
    part: PathBuf,
    to: PathBuf,
    is_named: bool,
}

impl UnnamedCopy {
    /// Gives the copy its name, durably.
    ///
    /// # Errors
    /// [`DeviceError::Exists`], [`DeviceError::Io`]; the copy is then removed.
    pub fn name(mut self) -> Result<(), DeviceError> {
        rename_new(&self.part, &self.to).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => DeviceError::Exists { path: self.to.clone() },
            _ => DeviceError::Io { path: self.to.clone(), what: "naming", offset: 0, source },
        })?;
        self.is_named = true;
        let synced = File::open(folder_of(&self.to)).and_then(|folder| folder.sync_all());
        synced.map_err(|source| {
            let _ = std::fs::remove_file(&self.to);
            DeviceError::Io { path: self.to.clone(), what: "flush of the folder", offset: 0, source }
        })
    }
}

impl Drop for UnnamedCopy {
    fn drop(&mut self) {
        if !self.is_named {
            let _ = std::fs::remove_file(&self.part);
        }
    }
}

impl Device {
    /// Checks in advance, as far as possible, that this file can be copied to `to`: it is a regular
    /// file, and nothing exists at the path. Can block.
    ///
    /// # Errors
    /// [`DeviceError::NotADevice`], [`DeviceError::OwnMount`], [`DeviceError::Exists`],
    /// [`DeviceError::Open`].
    pub fn check_copy(&self, to: &Path) -> Result<(), DeviceError> {
        if self.kind != DeviceKind::File {
            return Err(DeviceError::NotADevice { path: self.path.clone(), found: "device, not a file" });
        }
        let folder = folder_of(to);
        if let Some(mount) = crate::fuse::own_mount(folder) {
            return Err(DeviceError::OwnMount { path: to.into(), mount });
        }
        for path in [to.to_owned(), part_of(to)] {
            if path.symlink_metadata().is_ok() {
                return Err(DeviceError::Exists { path });
            }
        }
        let found =
            std::fs::metadata(folder).map_err(|source| DeviceError::Open { path: folder.into(), source })?;
        if found.is_dir() && to.file_name().is_some() {
            return Ok(());
        }
        let source = io::Error::from_raw_os_error(libc::ENOTDIR);
        Err(DeviceError::Open { path: to.into(), source })
    }

    /// Copies all of this file, regardless of its name: holes stay holes, and owner and
    /// permissions are kept as far as this process may. The file must not be written meanwhile.
    /// Calls `go_on` with the number of bytes left; if that returns false, ends the copy and
    /// returns `None`. Can block.
    ///
    /// # Errors
    /// As [`Device::check_copy`], and [`DeviceError::NoSpace`], [`DeviceError::Io`]. The copy is
    /// then removed, and this file is unchanged.
    pub fn copy_to(
        &self,
        to: &Path,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<Option<UnnamedCopy>, DeviceError> {
        self.check_copy(to)?;
        let part = part_of(to);
        let out =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).map_err(|source| {
                match source.kind() {
                    io::ErrorKind::AlreadyExists => DeviceError::Exists { path: part.clone() },
                    _ => DeviceError::Open { path: part.clone(), source },
                }
            })?;
        let copy = UnnamedCopy { part, to: to.into(), is_named: false };
        let metadata = self.buffered.metadata().map_err(|source| self.io_error("stat", 0, source))?;
        if share_blocks(&self.buffered, &out).is_err() {
            let (wanted_bytes, free_bytes) = (metadata.len().min(metadata.blocks() * 512), free_bytes(to));
            if free_bytes < wanted_bytes {
                return Err(DeviceError::NoSpace { path: to.into(), wanted_bytes, free_bytes });
            }
            if !self.copy_data(&out, to, metadata.len(), go_on)? {
                return Ok(None);
            }
        }
        let written = |source| explain(to, metadata.len(), false, source);
        let _ = fchown(&out, Some(metadata.uid()), Some(metadata.gid())); // only root may
        out.set_permissions(Permissions::from_mode(metadata.mode() & 0o7777)).map_err(written)?;
        out.sync_all().map_err(written)?;
        Ok(Some(copy))
    }

    /// Copies all data but no holes; returns `false` if `go_on` ended it.
    fn copy_data(
        &self,
        out: &File,
        to: &Path,
        length: u64,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, DeviceError> {
        let written = |source| explain(to, length, false, source);
        out.set_len(length).map_err(written)?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while let Some(data) = self.next_data(at, length) {
            at = data.start;
            while at < data.end {
                if !go_on(length - at) {
                    return Ok(false);
                }
                let part = &mut piece[..usize::try_from(data.end - at).map_or(PIECE, |left| left.min(PIECE))];
                self.read_at(at, part)?;
                out.write_all_at(part, at).map_err(written)?;
                at += part.len() as u64;
            }
        }
        Ok(go_on(0))
    }
}

fn part_of(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes an empty file share all blocks of another one, if the file system supports it.
fn share_blocks(from: &File, to: &File) -> io::Result<()> {
    // From <linux/fs.h>: _IOW(0x94, 9, int).
    const FICLONE: libc::c_ulong = 0x4004_9409;
    // SAFETY: FICLONE takes a descriptor by value.
    sys::check(unsafe { libc::ioctl(to.as_raw_fd(), FICLONE as _, from.as_raw_fd()) }).map(drop)
}

/// Renames without replacing an existing file.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let [a, b] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (a, b, here) = (a?, b?, libc::AT_FDCWD);
    // SAFETY: both names are C strings that live until the call ends.
    let done = unsafe {
        libc::syscall(libc::SYS_renameat2, here, a.as_ptr(), here, b.as_ptr(), libc::RENAME_NOREPLACE)
    };
    match if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) } {
        // A file system that cannot guarantee that can refuse a second name.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) =>
        {
            std::fs::hard_link(from, to)?;
            std::fs::remove_file(from)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceOptions;
    use std::fs;

    const HOLE: u64 = 8 << 20;

    /// A file with data at its start and after a hole, without a name.
    fn nameless(folder: &Path) -> (Device, Vec<u8>) {
        let path = folder.join("disk");
        let file = File::create(&path).unwrap();
        file.set_permissions(Permissions::from_mode(0o640)).unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        file.write_all_at(&[9; 5000], HOLE).unwrap();
        let bytes = fs::read(&path).unwrap();
        drop(file);
        let device = Device::open_backing(&path, DeviceOptions::default()).unwrap();
        fs::remove_file(&path).unwrap();
        (device, bytes)
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn nameless_file_is_saved_with_its_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (device, bytes) = nameless(folder.path());
        let to = folder.path().join("saved");
        let mut told = Vec::new();
        let copy = device.for_thread().unwrap().copy_to(&to, &mut |left| {
            told.push(left);
            true
        });
        let copy = copy.unwrap().unwrap();
        assert_eq!(names(folder.path()), ["saved.part"], "it has no name before it is durable");
        copy.name().unwrap();
        assert_eq!(names(folder.path()), ["saved"]);
        assert_eq!(fs::read(&to).unwrap(), bytes);
        let saved = fs::metadata(&to).unwrap();
        assert_eq!(saved.mode() & 0o7777, 0o640);
        assert!(saved.blocks() * 512 < HOLE, "the hole was filled: {} blocks", saved.blocks());
        assert!(told.is_sorted_by(|a, b| a >= b), "{told:?}");
    }

    #[test]
    fn copy_overwrites_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (device, _) = nameless(folder.path());
        let to = folder.path().join("saved");
        assert!(device.copy_to(&to, &mut |_| false).unwrap().is_none() || !to.exists());
        assert!(names(folder.path()).is_empty());
        drop(device.copy_to(&to, &mut |_| true).unwrap());
        assert!(names(folder.path()).is_empty(), "a copy without a name is removed");
        // Another process takes the name meanwhile.
        let copy = device.copy_to(&to, &mut |_| true).unwrap().unwrap();
        fs::write(&to, "mine").unwrap();
        assert!(matches!(copy.name(), Err(DeviceError::Exists { .. })));
        assert_eq!((fs::read(&to).unwrap(), names(folder.path()).len()), (b"mine".to_vec(), 1));
        // An existing file, or the rest of a killed attempt, blocks the copy.
        for taken in ["saved", "other.part"] {
            let path = folder.path().join(taken);
            fs::write(&path, "mine").unwrap();
            let to = folder.path().join(taken.strip_suffix(".part").unwrap_or(taken));
            let refused = device.copy_to(&to, &mut |_| true).map(drop);
            assert!(matches!(refused, Err(DeviceError::Exists { path: there }) if there == path));
            assert_eq!(fs::read(&path).unwrap(), b"mine");
        }
        let nowhere = folder.path().join("missing/saved");
        assert!(matches!(device.check_copy(&nowhere), Err(DeviceError::Open { .. })));
        assert!(matches!(device.check_copy(Path::new("/")), Err(DeviceError::Exists { .. })));
    }
}

//! Devices below a file or device, as far as they can be found without queries that can block on a
//! server. So a daemon detects that it would wait for itself.
//!
//! A path leads through symbolic links to a file on a mount. The mount lies on a block device. A
//! block device can consist of others, or of a file (loop devices).

use super::mount_target::volume_claim_in;
use super::table::{Mount, Mounts};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Most files and devices examined for one path.
const LOOKS_MAX: usize = 64;

/// Devices of the mounts that this process serves.
static OWN: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

/// A mount of this process; it is listed as such until this is dropped.
#[derive(Debug)]
pub(super) struct Own {
    device: (u32, u32),
    /// The mount point, without symbolic links.
    point: PathBuf,
}

impl Own {
    /// The new mount at `target`.
    pub(super) fn of(target: &Path) -> Option<Own> {
        let mounts = Mounts::read().ok()?;
        let Mount { device, point, .. } =
            mounts.at(&mounts.resolve(target)).filter(|m| m.is_forebay())?.clone();
        OWN.lock().unwrap_or_else(PoisonError::into_inner).push(device);
        Some(Own { device, point })
    }

    pub(super) fn device(&self) -> (u32, u32) {
        self.device
    }

    pub(super) fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = own.iter().position(|device| *device == self.device) {
            own.swap_remove(at);
        }
    }
}

/// The mount of this process that a file or device lies on, if there is one. Does not block on any
/// server.
pub fn own_mount(path: &Path) -> Option<PathBuf> {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if own.is_empty() {
        return None;
    }
    let mounts = Mounts::read().ok()?;
    let paths = foundations_in(&mounts, path);
    let mut under = paths.iter().filter_map(|path| mounts.covering(path));
    under.find(|mount| own.contains(&mount.device)).map(|mount| mount.point.clone())
}

/// The path itself, without symbolic links, and every file that it lies on. Only the path if the
/// mount table cannot be read.
pub fn foundations(path: &Path) -> Vec<PathBuf> {
    foundations_in(&Mounts::read().unwrap_or_default(), path)
}

/// The path that a volume's file at `path` hides from other programs: the path itself, or its
/// folder. Does not block on any server.
pub fn volume_claim(path: &Path) -> PathBuf {
    volume_claim_in(&Mounts::read().unwrap_or_default(), path)
}

fn foundations_in(mounts: &Mounts, path: &Path) -> Vec<PathBuf> {
    let (mut found, mut devices) = (vec![mounts.resolve(path)], Vec::new());
    let (mut file_at, mut device_at) = (0, 0);
    while file_at + device_at < LOOKS_MAX {
        if let Some(path) = found.get(file_at).cloned() {
            file_at += 1;
            devices.extend(devices_under(mounts, &path));
        } else if let Some(device) = devices.get(device_at).copied() {
            device_at += 1;
            let (file, parts) = made_of(device);
            let file = file.map(|file| mounts.resolve(&file)).filter(|file| !found.contains(file));
            found.extend(file);
            let new: Vec<_> = parts.into_iter().filter(|part| !devices.contains(part)).collect();
            devices.extend(new);
        } else {
            break;
        }
    }
    found
}

/// The block device at a path, and the one that its file system is on.
fn devices_under(mounts: &Mounts, path: &Path) -> Vec<(u32, u32)> {
    let Some(mount) = mounts.covering(path) else { return Vec::new() };
    if mount.is_served_elsewhere() {
        return Vec::new();
    }
    block_device(path).into_iter().chain(device_of(mount)).collect()
}

fn device_of(mount: &Mount) -> Option<(u32, u32)> {
    // The device number of a file system on several devices belongs to no device; its source names
    // one of them.
    if mount.device.0 != 0 { Some(mount.device) } else { block_device(&mount.source) }
}

fn block_device(path: &Path) -> Option<(u32, u32)> {
    let metadata = std::fs::metadata(path).ok().filter(|_| path.is_absolute())?;
    let rdev = metadata.rdev();
    metadata.file_type().is_block_device().then(|| (libc::major(rdev), libc::minor(rdev)))
}

/// The file and the devices that a block device consists of, according to sysfs.
fn made_of((major, minor): (u32, u32)) -> (Option<PathBuf>, Vec<(u32, u32)>) {
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let number = |text: String| {
        let (major, minor) = text.trim().split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    let device = |path: PathBuf| std::fs::read_to_string(path.join("dev")).ok().and_then(number);
    let file = std::fs::read_to_string(node.join("loop/backing_file")).ok();
    let file = file.map(|file| PathBuf::from(file.trim_end_matches('\n')));
    let slaves = std::fs::read_dir(node.join("slaves")).into_iter().flatten().flatten();
    let mut parts: Vec<_> = slaves.filter_map(|slave| device(slave.path())).collect();
    if node.join("partition").exists() {
        parts.extend(node.canonicalize().ok().and_then(|node| device(node.parent()?.into())));
    }
    (file, parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_rests_on_itself_and_its_link_target() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::write(base.join("file"), b"x").unwrap();
        std::os::unix::fs::symlink("file", base.join("link")).unwrap();
        assert_eq!(foundations(&base.join("link"))[0], base.join("file"));
        assert_eq!(own_mount(&base.join("link")), None);
    }

    #[test]
    fn volume_claims_its_file_or_the_folder() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        std::fs::write(base.join("file"), b"x").unwrap();
        assert_eq!(volume_claim(&base.join("file")), base.join("file"));
        assert_eq!(volume_claim(&base.join("mnt/disk")), base.join("mnt"));
        assert_eq!(volume_claim(&base.join("x/../mnt//disk")), base.join("mnt"));
    }
}

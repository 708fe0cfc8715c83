//! Users of a volume on this machine: file systems mounted from its block device or file, and the
//! kernel's block devices on top of it. The daemon counts clients of sockets; it cannot see the
//! users of a block device.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_admin::VolumeInfo;
use forebay_export::uri::ExportUri;

use super::mounts::{DeviceNumber, Mounts};
use crate::screen::harmless;

/// Directory of the block devices of volumes.
const DEVICES: &str = "dev/forebay";

/// Exports of a volume on this machine, and their users.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    /// Block devices, files and URIs, as many as there are exports.
    pub(super) places: Vec<String>,
    /// Mount points, and devices on top of it that are not mounted.
    pub(super) users: Vec<String>,
}

impl Usage {
    /// Returns the usage of a volume. Unreadable information counts as absent; `root` is `/`.
    pub(super) fn of(root: &Path, volume: &VolumeInfo, mounts: &Mounts) -> Self {
        let mut usage = Self::default();
        for export in &volume.exports {
            let (place, numbers) = match export.parse() {
                Ok(ExportUri::Ublk { name }) => {
                    let path = root.join(DEVICES).join(name.as_deref().unwrap_or(&volume.name));
                    (shown(root, &path), number_of(&path).into_iter().collect())
                }
                Ok(ExportUri::Fuse { path }) => (path.display().to_string(), loops_on(root, &path)),
                _ => (export.clone(), Vec::new()),
            };
            usage.places.push(harmless(&place));
            for number in numbers {
                usage.users.extend(users_of(root, number, mounts, &mut BTreeSet::new()));
            }
        }
        usage
    }

    /// Describes the usage, including the clients that the daemon counts.
    pub(super) fn words(&self, clients: u64) -> String {
        let mut words = self.users.clone();
        match clients {
            0 => {}
            1 => words.push("1 client".into()),
            clients => words.push(format!("{clients} clients")),
        }
        if words.is_empty() { "-".into() } else { words.join(", ") }
    }
}

/// Returns the device behind the link, which other programs name.
fn shown(root: &Path, link: &Path) -> String {
    let target = std::fs::canonicalize(link).unwrap_or_else(|_| link.to_owned());
    let below = target.strip_prefix(root).unwrap_or(&target);
    Path::new("/").join(below).display().to_string()
}

fn number_of(path: &Path) -> Option<DeviceNumber> {
    let device = std::fs::metadata(path).ok()?.rdev();
    (device != 0).then(|| (rustix::fs::major(device), rustix::fs::minor(device)))
}

/// Returns the loop devices on a file.
fn loops_on(root: &Path, file: &Path) -> Vec<DeviceNumber> {
    let devices = std::fs::read_dir(root.join("sys/block")).into_iter().flatten().flatten();
    let lies_on = |device: &PathBuf| {
        let below = std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
        Path::new(below.trim_end()) == file
    };
    devices.map(|entry| entry.path()).filter(lies_on).filter_map(|device| number_in(&device)).collect()
}

/// Returns the number of a device from its directory in sysfs.
fn number_in(device: &Path) -> Option<DeviceNumber> {
    let text = std::fs::read_to_string(device.join("dev")).ok()?;
    let (major, minor) = text.trim_end().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the mount points of a device, its partitions and the devices on top of them; the name of
/// a device without any of these.
fn users_of(
    root: &Path,
    number: DeviceNumber,
    mounts: &Mounts,
    seen: &mut BTreeSet<DeviceNumber>,
) -> Vec<String> {
    if !seen.insert(number) {
        return Vec::new();
    }
    let mounted = mounts.0.iter().filter(|mount| mount.device == number);
    let mut users: Vec<String> = mounted.map(|mount| harmless(&mount.point.display().to_string())).collect();
    let folder = root.join(format!("sys/dev/block/{}:{}", number.0, number.1));
    let inside = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let partitions = inside(folder.clone()).filter(|entry| entry.path().join("partition").exists());
    let mut parts: Vec<DeviceNumber> = partitions.filter_map(|entry| number_in(&entry.path())).collect();
    parts.sort_unstable();
    users.extend(parts.into_iter().flat_map(|part| users_of(root, part, mounts, seen)));
    for entry in inside(folder.join("holders")) {
        let above: Vec<String> =
            number_in(&entry.path()).into_iter().flat_map(|at| users_of(root, at, mounts, seen)).collect();
        match above.is_empty() {
            true => users.push(format!("/dev/{}", harmless(&entry.file_name().to_string_lossy()))),
            false => users.extend(above),
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    fn volume(exports: &[&str]) -> VolumeInfo {
        VolumeInfo {
            exports: exports.iter().map(|export| (*export).to_owned()).collect(),
            ..serde_json::from_value(super::super::screens::fixture::database()).unwrap()
        }
    }

    fn mounts(lines: &str) -> Mounts {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("mountinfo");
        write(&table, lines).unwrap();
        Mounts::of(&table).unwrap()
    }

    /// The file `/srv/db` has a loop device with a mounted partition, and one that LVM uses.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for (folder, number) in [
            ("sys/block/loop0", "7:0"),
            ("sys/dev/block/7:0/loop0p1", "259:1"),
            ("sys/dev/block/7:0/loop0p2", "259:2"),
            ("sys/dev/block/259:2/holders/dm-0", "253:0"),
        ] {
            create_dir_all(at(folder)).unwrap();
            write(at(folder).join("dev"), format!("{number}\n")).unwrap();
        }
        write(at("sys/dev/block/7:0/loop0p1/partition"), "1\n").unwrap();
        write(at("sys/dev/block/7:0/loop0p2/partition"), "2\n").unwrap();
        create_dir_all(at("sys/block/loop0/loop")).unwrap();
        write(at("sys/block/loop0/loop/backing_file"), "/srv/db\n").unwrap();
        root
    }

    #[test]
    fn mounts_of_partitions_are_found() {
        let root = machine();
        let mounts = mounts("36 35 259:1 / /mnt/a\\040b rw - ext4 /dev/loop0p1 rw\n");
        let exports = ["fuse:///srv/db", "nbd://localhost/db"];
        let usage = Usage::of(root.path(), &volume(&exports), &mounts);
        assert_eq!(usage.places, ["/srv/db", "nbd://localhost/db"]);
        assert_eq!(usage.users, ["/mnt/a b", "/dev/dm-0"]);
        assert_eq!(usage.words(2), "/mnt/a b, /dev/dm-0, 2 clients");
    }

    #[test]
    fn a_volume_that_is_not_used_has_no_users() {
        let root = machine();
        let usage = Usage::of(root.path(), &volume(&["fuse:///srv/other", "ublk:"]), &mounts(""));
        assert_eq!(usage.users, Vec::<String>::new());
        assert_eq!(usage.places[0], "/srv/other");
        assert!(usage.places[1].starts_with("/dev/forebay/"), "{usage:?}");
        assert_eq!(usage.words(0), "-");
    }
}

//! Block devices by their names and their description in sysfs. Opens nothing.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_pool::shell_word::quoted;

use super::mounts::{DeviceNumber, Mount};
use super::shell;

/// Mount point of sysfs.
const SYS: &str = "/sys";
/// Maximum number of devices examined below one.
const LOOKS_MAX: usize = 64;

/// Returns the number of the block device at a path.
pub(super) fn number_of(path: &Path) -> Option<DeviceNumber> {
    let meta = std::fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device())?;
    Some((rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())))
}

/// Returns true if both paths lead to the same block device.
pub(super) fn is_same(a: &Path, b: &Path) -> bool {
    number_of(a).is_some_and(|number| number_of(b) == Some(number))
}

/// Returns true if the mount's source is the block device at a path.
pub(super) fn is_mounted_from(mount: &Mount, device: &Path) -> bool {
    number_of(device).is_some_and(|number| number == mount.device || number_of(&mount.source) == Some(number))
}

/// Returns why a mount cannot be cached, or not by this command: as text that continues after the
/// name of the device.
pub(super) fn objection(mount: &Mount) -> Option<(String, String)> {
    objection_in(Path::new(SYS), mount, number_of(&mount.source))
}

fn objection_in(sys: &Path, mount: &Mount, source: Option<DeviceNumber>) -> Option<(String, String)> {
    let said = |what: &str, hint: &str| Some((what.to_owned(), hint.to_owned()));
    let Some(number) = source else {
        return said(
            &format!("is not a block device: {} lies on something else", mount.kind),
            "a file or an export of another host is cached as a volume of its own: forebay volume attach",
        );
    };
    if mount.kind.starts_with("fuse") {
        return said(
            "is served by a program of its own (FUSE)",
            "forebay help attach-disk has the steps by hand",
        );
    }
    if mount.kind == "btrfs" && btrfs_devices(sys, number) > 1 {
        return said("is one of several devices of a btrfs", "cache each device below an LVM or md device");
    }
    if mount.device.0 != 0 && mount.device != number {
        return said(
            "is not, or no longer, the device that is mounted there",
            "mount it again by its present name",
        );
    }
    let below = below(sys, number);
    let is = |name: &str| below.iter().any(|device| kernel_name(sys, *device).starts_with(name));
    if is("ublkb") {
        return said(
            "is on a volume of Forebay already, or of another ublk server",
            "`forebay status` shows them",
        );
    }
    if kernel_name(sys, number).starts_with("loop") {
        let file = std::fs::read(node(sys, number).join("loop/backing_file")).unwrap_or_default();
        let file = PathBuf::from(OsStr::from_bytes(file.trim_ascii_end()));
        return said(
            &format!(
                "is the file {}, behind a loop device whose number changes at the next boot",
                file.display()
            ),
            &format!(
                "unmount it, detach the loop device and attach the file: forebay volume attach NAME --backing {} --export ublk:",
                quoted(format!("file:{}", file.display()))
            ),
        );
    }
    None
}

/// Returns true if the device is encrypted by dm-crypt.
pub(super) fn is_encrypted(device: &Path) -> bool {
    is_encrypted_in(Path::new(SYS), number_of(device))
}

fn is_encrypted_in(sys: &Path, number: Option<DeviceNumber>) -> bool {
    let uuid = |number| std::fs::read_to_string(node(sys, number).join("dm/uuid")).unwrap_or_default();
    let below = number.map(|number| below(sys, number)).unwrap_or_default();
    below.into_iter().any(|number| uuid(number).starts_with("CRYPT-"))
}

fn node(sys: &Path, (major, minor): DeviceNumber) -> PathBuf {
    sys.join(format!("dev/block/{major}:{minor}"))
}

/// Returns the kernel's name for it, empty if it has none.
fn kernel_name(sys: &Path, number: DeviceNumber) -> String {
    let event = std::fs::read_to_string(node(sys, number).join("uevent")).unwrap_or_default();
    event.lines().find_map(|line| line.strip_prefix("DEVNAME=")).unwrap_or_default().to_owned()
}

/// Returns the device and those below it.
fn below(sys: &Path, number: DeviceNumber) -> Vec<DeviceNumber> {
    let mut found = vec![number];
    let mut at = 0;
    while at < found.len() && found.len() < LOOKS_MAX {
        let node = node(sys, found[at]);
        at += 1;
        let parts = std::fs::read_dir(node.join("slaves")).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = parts.map(|part| part.path()).collect();
        if node.join("partition").exists() {
            paths.extend(node.canonicalize().ok().and_then(|node| node.parent().map(Path::to_owned)));
        }
        for number in paths.iter().filter_map(|path| number_in(path)) {
            if !found.contains(&number) {
                found.push(number);
            }
        }
    }
    found
}

fn number_in(node: &Path) -> Option<DeviceNumber> {
    let text = std::fs::read_to_string(node.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the number of devices of the btrfs that a device is part of.
fn btrfs_devices(sys: &Path, number: DeviceNumber) -> usize {
    let systems = std::fs::read_dir(sys.join("fs/btrfs")).into_iter().flatten().flatten();
    let devices = |system: PathBuf| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(system.join("devices")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let all = systems.map(|system| devices(system.path()));
    let is_it = |devices: &Vec<PathBuf>| devices.iter().any(|device| number_in(device) == Some(number));
    all.into_iter().find(is_it).map_or(0, |devices| devices.len())
}

/// Returns whether the first field of a line of fstab names the device at a path; `None` if it
/// names something that cannot be resolved here.
pub(super) fn is_named(source: &OsStr, device: &Path) -> Option<bool> {
    let text = source.to_string_lossy();
    if let Some((tag, value)) = text.split_once('=').filter(|(tag, _)| folder_of(tag).is_some()) {
        let link = Path::new("/dev/disk").join(folder_of(tag).unwrap_or_default()).join(encoded(value));
        return match number_of(&link) {
            Some(number) => Some(number_of(device) == Some(number)),
            None => has_tag(device, tag, value),
        };
    }
    let path = Path::new(source);
    if !path.is_absolute() || !path.starts_with("/dev") {
        return Some(false);
    }
    number_of(path).map(|number| number_of(device) == Some(number))
}

fn folder_of(tag: &str) -> Option<&'static str> {
    match tag {
        "UUID" => Some("by-uuid"),
        "LABEL" => Some("by-label"),
        "PARTUUID" => Some("by-partuuid"),
        "PARTLABEL" => Some("by-partlabel"),
        "ID" => Some("by-id"),
        _ => None,
    }
}

/// Encodes a value as udev does in names (`udev_device_encode_string`).
fn encoded(value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii();
    value
        .chars()
        .map(|c| if is_plain(c) { c.to_string() } else { format!("\\x{:02x}", u32::from(c)) })
        .collect()
}

/// Without udev, `blkid` examines the device itself. `None` if it does not know the tag.
fn has_tag(device: &Path, tag: &str, value: &str) -> Option<bool> {
    let device = device.to_str()?;
    let has = shell::output(&["blkid", "-p", "-s", tag, "-o", "value", device]).ok()?;
    let has = has.trim_end_matches('\n');
    if has.is_empty() { None } else { Some(has.as_bytes() == value.as_bytes()) }
}

/// Returns a name below `/dev` as UTF-8 text.
pub(super) fn text(path: &Path) -> Option<&str> {
    std::str::from_utf8(path.as_os_str().as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::cache::mounts::Mounts;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    /// Creates a sysfs: sdb with a partition, dm-0 on that partition, a ublk device with dm-1 on
    /// it, a loop device, and a btrfs on two of them.
    fn sysfs() -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        let at = |path: &str| sys.path().join(path);
        create_dir_all(at("dev/block")).unwrap();
        for (name, number) in [
            ("sdb", "8:16"),
            ("sdb/sdb1", "8:17"),
            ("dm-0", "253:0"),
            ("dm-1", "253:1"),
            ("ublkb0", "259:3"),
            ("loop0", "7:0"),
        ] {
            create_dir_all(at(&format!("devices/{name}/slaves"))).unwrap();
            write(at(&format!("devices/{name}/dev")), format!("{number}\n")).unwrap();
            let last = name.rsplit('/').next().unwrap();
            write(at(&format!("devices/{name}/uevent")), format!("MAJOR=1\nDEVNAME={last}\n")).unwrap();
            symlink(format!("../../devices/{name}"), at(&format!("dev/block/{number}"))).unwrap();
        }
        write(at("devices/sdb/sdb1/partition"), "1\n").unwrap();
        create_dir_all(at("devices/dm-0/dm")).unwrap();
        write(at("devices/dm-0/dm/uuid"), "CRYPT-LUKS2-1\n").unwrap();
        symlink("../../sdb/sdb1", at("devices/dm-0/slaves/sdb1")).unwrap();
        symlink("../../ublkb0", at("devices/dm-1/slaves/ublkb0")).unwrap();
        create_dir_all(at("fs/btrfs/features")).unwrap();
        create_dir_all(at("fs/btrfs/1-2/devices")).unwrap();
        symlink("../../../../devices/sdb", at("fs/btrfs/1-2/devices/sdb")).unwrap();
        create_dir_all(at("devices/loop0/loop")).unwrap();
        write(at("devices/loop0/loop/backing_file"), "/srv/a b.img\n").unwrap();
        symlink("../../../../devices/loop0", at("fs/btrfs/1-2/devices/loop0")).unwrap();
        sys
    }

    fn mount(device: DeviceNumber, kind: &str) -> Mount {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("mountinfo");
        write(&table, format!("1 0 {}:{} / /x rw - {kind} /dev/x rw\n", device.0, device.1)).unwrap();
        Mounts::of(&table).unwrap().0.remove(0)
    }

    #[test]
    fn uncacheable_disks_are_refused() {
        let sys = sysfs();
        let said = |device, kind, source| {
            objection_in(sys.path(), &mount(device, kind), source).map(|(what, _)| what)
        };
        assert_eq!(said((8, 16), "ext4", Some((8, 16))), None);
        assert_eq!(said((253, 0), "xfs", Some((253, 0))), None, "LVM, md and dm-crypt are fine");
        for (device, kind, source, why) in [
            ((0, 30), "nfs4", None, "not a block device"),
            ((8, 16), "fuseblk", Some((8, 16)), "FUSE"),
            ((0, 31), "btrfs", Some((8, 16)), "several devices"),
            ((8, 16), "ext4", Some((8, 17)), "or no longer"),
            ((259, 3), "ext4", Some((259, 3)), "volume of Forebay already"),
            ((253, 1), "ext4", Some((253, 1)), "volume of Forebay already"),
            ((7, 0), "ext4", Some((7, 0)), "is the file /srv/a b.img, behind a loop device"),
        ] {
            let said = said(device, kind, source).unwrap_or_default();
            assert!(said.contains(why), "{why} is not in: {said}");
        }
        assert_eq!(said((0, 31), "btrfs", Some((8, 17))), None, "a btrfs on one device");
    }

    #[test]
    fn underlying_devices_are_found() {
        let sys = sysfs();
        assert_eq!(below(sys.path(), (253, 0)), [(253, 0), (8, 17), (8, 16)]);
        assert!(is_encrypted_in(sys.path(), Some((253, 0))) && !is_encrypted_in(sys.path(), Some((8, 16))));
    }

    #[test]
    fn names_in_fstab_lead_to_devices() {
        let none = Path::new("/dev/no-such-disk");
        let named = |source: &str| is_named(OsStr::new(source), none);
        assert_eq!(["none", "tmpfs", "host:/share", "//host/share"].map(named), [Some(false); 4]);
        assert_eq!(["/dev/no-such-disk", "UUID=no-such", "LABEL=a b"].map(named), [None; 3]);
        assert_eq!(encoded("a b/ü+x"), "a\\x20b\\x2fü+x");
    }
}

//! Names of devices: which of them persist across reboots, and whether two name one device.
//!
//! The kernel numbers disks in the order in which it finds them, so `/dev/sdb` may be another disk
//! tomorrow. udev gives a disk further names, from its identification data. Only links below `/dev`
//! are read here: no device is opened, and no operation can hang.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Names from a disk's model and serial number, or set by an administrator.
const BY_ID: &str = "/dev/disk/by-id";
/// Names in [`BY_ID`] without model and serial number, which mean nothing to an administrator.
const NUMBERS: [&str; 8] =
    ["wwn-", "nvme-eui.", "nvme-nvme.", "nvme-uuid.", "scsi-2", "scsi-3", "dm-uuid-", "md-uuid-"];
/// These name the content of a device, and move with it to another device.
const OF_CONTENT: [&str; 1] = ["lvm-pv-uuid-"];

/// Returns the node that a path below `/dev` leads to. Returns any other path, and a dangling one,
/// unchanged.
#[must_use]
pub fn node_of(path: &Path) -> PathBuf {
    let node = path.starts_with("/dev").then(|| std::fs::canonicalize(path).ok()).flatten();
    node.unwrap_or_else(|| path.to_owned())
}

/// Returns the persistent name of a device that is given by its kernel name. Returns links
/// unchanged, since a user chose them, and paths without such a name.
#[must_use]
pub fn stable_name(path: &Path) -> PathBuf {
    let is_node = path.starts_with("/dev")
        && std::fs::symlink_metadata(path).is_ok_and(|node| node.file_type().is_block_device());
    let stable = is_node.then(|| best_link(Path::new(BY_ID), path)).flatten();
    stable.unwrap_or_else(|| path.to_owned())
}

/// Returns the link in a folder that leads to a node, the most descriptive if there are several.
fn best_link(folder: &Path, node: &Path) -> Option<PathBuf> {
    let node = std::fs::canonicalize(node).ok()?;
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let starts = |name: &str, with: &[&str]| with.iter().any(|start| name.starts_with(start));
    let ours = names.filter(|name| {
        !starts(name, &OF_CONTENT)
            && std::fs::canonicalize(folder.join(name)).is_ok_and(|target| target == node)
    });
    let best = ours.min_by_key(|name| (starts(name, &NUMBERS), name.len(), name.clone()))?;
    Some(folder.join(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_descriptive_link_is_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let by_id = folder.path().join("by-id");
        std::fs::create_dir(&by_id).unwrap();
        let node = |name: &str| folder.path().join(name);
        for name in ["nvme0n1", "nvme0n1p4", "sdb"] {
            std::fs::write(node(name), "").unwrap();
        }
        for (name, target) in [
            ("nvme-eui.0025", "nvme0n1"),
            ("nvme-Fast_990_S6Z", "nvme0n1"),
            ("nvme-Fast_990_S6Z_1", "nvme0n1"),
            ("nvme-Fast_990_S6Z-part4", "nvme0n1p4"),
            ("lvm-pv-uuid-x", "sdb"),
            ("gone", "sdc"),
        ] {
            std::os::unix::fs::symlink(format!("../{target}"), by_id.join(name)).unwrap();
        }
        let best = |name: &str| best_link(&by_id, &node(name));
        assert_eq!(best("nvme0n1"), Some(by_id.join("nvme-Fast_990_S6Z")));
        assert_eq!(best("nvme0n1p4"), Some(by_id.join("nvme-Fast_990_S6Z-part4")));
        assert_eq!(best("sdb"), None, "what is on a device is not the device");
        std::os::unix::fs::symlink("../sdb", by_id.join("wwn-0x5000")).unwrap();
        assert_eq!(best("sdb"), Some(by_id.join("wwn-0x5000")));
        assert_eq!(best("sdc"), None);
    }

    #[test]
    fn paths_that_are_no_nodes_stay_unchanged() {
        for path in ["/dev/null", "/dev/no-such-disk", "/srv/flash.img", "flash.img"] {
            assert_eq!(stable_name(Path::new(path)), Path::new(path));
            assert_eq!(node_of(Path::new(path)), Path::new(path));
        }
    }

    /// `/dev/shm` is a folder below `/dev` that every user can write.
    #[test]
    fn second_name_of_a_device_is_a_warning() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let at = |name: &str| folder.path().join(name).display().to_string();
        for name in ["flash", "disk"] {
            std::fs::write(at(name), "").unwrap();
            std::os::unix::fs::symlink(name, at(&format!("by-id-{name}"))).unwrap();
        }
        let parse = |flash: &str, disks: &[&str]| {
            let volume = |(n, disk): (usize, &&str)| {
                let disk = at(disk);
                format!("[volume.v{n}]\npool = \"fast\"\nbacking = {disk:?}\nexports = [\"ublk:\"]\n")
            };
            let volumes: String = disks.iter().enumerate().map(volume).collect();
            let text = format!("[pool.fast]\ndevices = [{:?}]\n{volumes}", at(flash));
            crate::parse(Path::new("forebay.toml"), &text).unwrap()
        };
        let warnings =
            |flash, disks: &[&str]| parse(flash, disks).warnings.lines().collect::<Vec<_>>().join("\n");
        assert_eq!(warnings("flash", &["disk"]), "");
        let twice = warnings("flash", &["disk", "by-id-disk"]);
        assert!(twice.contains("is another name of the backing store of volume `v0`"), "{twice}");
        let cached = warnings("flash", &["by-id-flash"]);
        assert!(cached.contains("is another name of a cache device of pool `fast`"), "{cached}");
        let (old, new) = (parse("flash", &["disk"]), parse("by-id-flash", &["by-id-disk"]));
        assert!(crate::diff(&old.config, &new.config).is_empty());
        assert!(!crate::diff(&old.config, &parse("flash", &["other"]).config).is_empty());
    }
}

//! What identifies a device, and tells that it changed while nobody looked.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use super::DeviceKind;

/// Facts that a cache remembers about its backing store, to notice that it was replaced or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// File or block device.
    pub kind: DeviceKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Which one: `file:DEV:INODE`, `serial:TEXT[:partN]` where the system knows a serial number or world-wide
    /// name, otherwise `rdev:MAJOR:MINOR`. Device numbers may change over a reboot: a difference in `file:` or
    /// `rdev:` is a reason to look closer, not proof.
    pub unique: String,
    /// Modification time in nanoseconds since 1970; `None` for block devices, whose time says nothing about
    /// their contents. Our own writes move it too.
    pub mtime_ns: Option<i64>,
}

pub(super) fn identify(kind: DeviceKind, size_bytes: u64, metadata: &Metadata) -> DeviceIdentity {
    let (unique, mtime_ns) = match kind {
        DeviceKind::File => {
            let mtime_ns =
                metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
            (format!("file:{:x}:{}", metadata.dev(), metadata.ino()), Some(mtime_ns))
        }
        DeviceKind::Block | DeviceKind::Special => {
            let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
            let unique = serial(major, minor).unwrap_or_else(|| format!("rdev:{major}:{minor}"));
            (unique, None)
        }
    };
    DeviceIdentity { kind, size_bytes, unique, mtime_ns }
}

/// The serial number or world-wide name that sysfs knows for a disk, with the partition number if it is one.
fn serial(major: u32, minor: u32) -> Option<String> {
    let node = format!("/sys/dev/block/{major}:{minor}");
    let read = |path: String| {
        let text = std::fs::read_to_string(path).ok()?;
        let text = text.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let partition = read(format!("{node}/partition"));
    let disk = if partition.is_some() { format!("{node}/..") } else { node };
    let name = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid"]
        .iter()
        .find_map(|file| read(format!("{disk}/{file}")))?;
    Some(match partition {
        Some(number) => format!("serial:{name}:part{number}"),
        None => format!("serial:{name}"),
    })
}

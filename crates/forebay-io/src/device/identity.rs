//! Identity of a device, and signs that it changed while nobody looked.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::DeviceKind;

/// Facts that a cache remembers about its backing store, to notice that it was replaced or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// File or block device.
    pub kind: DeviceKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Which one: `file:DEV:INODE`, `serial:TEXT[:partN]` where the system knows a serial number or
    /// world-wide name, otherwise `rdev:MAJOR:MINOR`. Device numbers may change over a reboot: a
    /// difference in `file:` or `rdev:` is a reason to look closer, not proof.
    pub unique: String,
    /// Modification time in nanoseconds since 1970; `None` for block devices, whose time says
    /// nothing about their contents. Our own writes move it too.
    pub mtime_ns: Option<i64>,
    /// When anything of it changed, its name or permissions included; as `mtime_ns`.
    pub ctime_ns: Option<i64>,
    /// Of a block device: a number that no other device, and no other use of this one's number, has
    /// had since the machine was started.
    pub generation: Option<u64>,
    /// Of a block device: sectors written or discarded since then, by anybody, as far as the kernel
    /// counts them.
    pub written_sectors: Option<u64>,
    /// Its times are those of another machine or process.
    pub served_elsewhere: bool,
}

pub(super) fn identify(kind: DeviceKind, size_bytes: u64, metadata: &Metadata) -> DeviceIdentity {
    let ns = |s: i64, ns: i64| Some(s.saturating_mul(1_000_000_000).saturating_add(ns));
    let (unique, mtime_ns) = match kind {
        DeviceKind::File => {
            let mtime_ns = ns(metadata.mtime(), metadata.mtime_nsec());
            (format!("file:{:x}:{}", metadata.dev(), metadata.ino()), mtime_ns)
        }
        DeviceKind::Block | DeviceKind::Special => {
            let (major, minor) = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
            let unique = serial(major, minor).unwrap_or_else(|| format!("rdev:{major}:{minor}"));
            (unique, None)
        }
    };
    let ctime_ns = mtime_ns.and_then(|_| ns(metadata.ctime(), metadata.ctime_nsec()));
    let (generation, written_sectors) =
        if kind == DeviceKind::Block { life_of(metadata.rdev()) } else { (None, None) };
    DeviceIdentity {
        kind,
        size_bytes,
        unique,
        mtime_ns,
        ctime_ns,
        generation,
        written_sectors,
        served_elsewhere: false,
    }
}

/// The folder of an open block device in sysfs, if it has one. Its numbers are given to no other
/// device while it is open.
pub(super) fn node_of(device: &File) -> Option<PathBuf> {
    let number = device.metadata().ok()?.rdev();
    let node = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number)));
    node.exists().then_some(node)
}

/// Generation of a block device, and sectors written or discarded.
fn life_of(device: u64) -> (Option<u64>, Option<u64>) {
    let node = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // A partition has the generation and the queue of its disk, and counts for itself.
    let of_disk = |file: &str| {
        let read = |path: String| std::fs::read_to_string(path).ok();
        read(format!("{node}/{file}")).or_else(|| read(format!("{node}/../{file}")))
    };
    let generation = of_disk("diskseq").and_then(|text| text.trim().parse().ok());
    let counts = of_disk("queue/iostats").is_some_and(|text| text.trim() == "1");
    let written = std::fs::read_to_string(format!("{node}/stat")).ok().filter(|_| counts);
    // Documentation/block/stat.rst: the seventh number is sectors written, the fourteenth sectors
    // discarded.
    let written = written.and_then(|text| {
        let numbers: Vec<u64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        Some(numbers.get(6)?.wrapping_add(numbers.get(13).copied().unwrap_or(0)))
    });
    (generation, written)
}

/// The serial number or world-wide name that sysfs knows for a disk, with the partition number if
/// it is one.
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

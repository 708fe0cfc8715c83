//! Identity of a device, and signs that it changed while not in use.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::DeviceKind;

/// Facts that a cache records about its backing store, to detect that it was replaced or changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// File or block device.
    pub kind: DeviceKind,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Unique name: `file:DEV:INODE`; `serial:TEXT[:partN]` if the system knows a serial number or
    /// world-wide name; otherwise `rdev:MAJOR:MINOR`. Device numbers can change over a reboot: a
    /// difference in `file:` or `rdev:` is a reason to look closer, not proof.
    pub unique: String,
    /// Modification time in nanoseconds since 1970; `None` for block devices, whose time does not
    /// reflect their contents. Our own writes change it too.
    pub mtime_ns: Option<i64>,
    /// Time of the last change of any attribute, including name and permissions; otherwise like
    /// `mtime_ns`.
    pub ctime_ns: Option<i64>,
    /// For a block device: a number that no other device, and no earlier use of this device number,
    /// has had since boot.
    pub generation: Option<u64>,
    /// For a block device: sectors written or discarded since then by any process, as far as the
    /// kernel counts them.
    pub written_sectors: Option<u64>,
    /// Another machine or process provides its times.
    pub served_elsewhere: bool,
}

pub(super) fn identify(kind: DeviceKind, size_bytes: u64, metadata: &Metadata) -> DeviceIdentity {
    let ns = |s: i64, ns: i64| Some(s.saturating_mul(1_000_000_000).saturating_add(ns));
    let (unique, mtime_ns) = match kind {
        DeviceKind::File => {
            let mtime_ns = ns(metadata.mtime(), metadata.mtime_nsec());
            (format!("file:{:x}:{}", metadata.dev(), metadata.ino()), mtime_ns)
        }
        DeviceKind::Block | DeviceKind::Special | DeviceKind::Remote => {
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

/// A remote store: its server reports no name, time or count of its own, so the address identifies
/// it.
pub(super) fn of_address(address: &Path, size_bytes: u64) -> DeviceIdentity {
    DeviceIdentity {
        kind: DeviceKind::Remote,
        size_bytes,
        unique: format!("remote:{}", address.display()),
        mtime_ns: None,
        ctime_ns: None,
        generation: None,
        written_sectors: None,
        served_elsewhere: true,
    }
}

/// The sysfs directory of an open block device, if it has one. Its device number is not reused
/// while it is open.
pub(super) fn node_of(device: &File) -> Option<PathBuf> {
    let number = device.metadata().ok()?.rdev();
    let node = PathBuf::from(format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number)));
    node.exists().then_some(node)
}

/// Generation of a block device, and sectors written or discarded.
fn life_of(device: u64) -> (Option<u64>, Option<u64>) {
    let node = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // A partition has the generation and the queue of its disk, and its own counters.
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

/// The serial number or world-wide name of a disk in sysfs, with the partition number for a
/// partition.
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

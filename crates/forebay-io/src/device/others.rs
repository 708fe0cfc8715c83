//! Other users of a file or block device, as far as the kernel reports them.
//!
//! - A loop device that lies on it, mounted or not, found by device and inode.
//! - If it is a loop device itself: another one on the same bytes, if that is in use, and a program
//!   that has locked the file below.
//! - A program that has a file open for writing. The kernel grants a read lease only if there is
//!   none. It grants leases to the owner and with `CAP_LEASE`, on local file systems.
//!
//! Names of programs are for messages. They are looked up by path, so that no file system has to
//! respond.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{DeviceKind, is_served_elsewhere};
use crate::sys;

/// Name of the holder if it is this process.
const OWN: &str = "this very process";

/// A user of a device, and the action that stops it.
#[derive(Debug)]
pub(super) struct User {
    pub(super) holder: String,
    pub(super) way_out: String,
}

impl User {
    /// A program, with its name as far as known.
    pub(super) fn program(holder: String) -> User {
        let way_out = match holder == OWN {
            true => "remove it from the pool or volume that uses it here",
            false => "stop that process (is another forebay using it? is it mounted?)",
        };
        User { holder, way_out: way_out.into() }
    }
}

/// The loop device that lies on a file or block device.
pub(super) fn loop_device(metadata: &Metadata) -> Option<User> {
    let bound = std::fs::read_dir("/sys/block").ok()?.flatten().filter_map(|entry| {
        let name = entry.file_name().into_string().ok().filter(|name| name.starts_with("loop"))?;
        // Exists while the loop device has a backing file.
        let below = std::fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        Some((name, below))
    });
    let name =
        bound.into_iter().find_map(|(name, below)| lies_on(&name, &below, metadata).then_some(name))?;
    let node = format!("/dev/{name}");
    Some(match mounted_at(&name) {
        Some(at) => User {
            holder: format!("the loop device {node}, which is mounted on {at}"),
            way_out: format!("unmount it (umount {at})"),
        },
        None => User {
            holder: format!("the loop device {node}"),
            way_out: format!("detach the loop device (losetup --detach {node})"),
        },
    })
}

/// Returns whether the loop device lies on it. The path is the one given at set-up, perhaps in
/// another mount namespace; the loop device itself knows the inode.
fn lies_on(name: &str, below: &str, wanted: &Metadata) -> bool {
    let is_block = |of: &Metadata| of.file_type().is_block_device();
    let same = |found: &Metadata| {
        (found.dev(), found.ino()) == (wanted.dev(), wanted.ino())
            || (is_block(found) && is_block(wanted) && found.rdev() == wanted.rdev())
    };
    if std::fs::metadata(below.trim_end_matches('\n')).is_ok_and(|found| same(&found)) {
        return true;
    }
    Below::of(name).is_some_and(|below| below.inode == (wanted.dev(), wanted.ino()))
}

/// The user of the bytes below a loop device; `None` if this is no loop device.
pub(super) fn user_below(metadata: &Metadata) -> Option<User> {
    let number = metadata.rdev();
    let node = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    let mut node = std::fs::canonicalize(node).ok()?;
    let sectors = |file: &str| -> Option<u64> {
        std::fs::read_to_string(node.join(file)).ok()?.trim().parse::<u64>().ok()
    };
    let partition =
        sectors("partition").and_then(|_| Some((sectors("start")? * 512, sectors("size")? * 512)));
    if partition.is_some() {
        node.pop();
    }
    // Device mapper passes the request on to a loop device below it.
    let name = node.file_name()?.to_str().filter(|name| name.starts_with("loop"))?;
    let mut below = Below::of(name)?;
    if let Some((start, length)) = partition {
        below.start = below.start.saturating_add(start);
        below.end = below.start.saturating_add(length);
    }
    let others = std::fs::read_dir("/sys/block").ok()?.flatten();
    let others = others.filter_map(|entry| entry.file_name().into_string().ok());
    let beside = others.filter(|other| other != name && other.starts_with("loop")).find_map(|other| {
        let overlaps = Below::of(&other).is_some_and(|others| others.overlaps(&below));
        let at = mounted_at(&other);
        let is_used = overlaps && (at.is_some() || is_claimed(&other));
        let on = at.map_or_else(|| "which is in use".to_owned(), |at| format!("which is mounted on {at}"));
        is_used.then(|| User {
            holder: format!("the loop device /dev/{other} on the same file, {on}"),
            way_out: format!("stop what uses /dev/{other}, or use one loop device for the file"),
        })
    });
    beside.or_else(|| {
        let path = std::fs::read_to_string(node.join("loop/backing_file")).ok()?;
        let file = File::open(path.trim_end_matches('\n')).ok()?;
        let found = file.metadata().ok()?;
        let is_it = below.inode == (found.dev(), found.ino());
        if !is_it {
            return None;
        }
        super::lock::locked_by(&file).map(User::program)
    })
}

/// Whether a program or the kernel has claimed a block device, as file systems and caches do.
fn is_claimed(name: &str) -> bool {
    let node = Path::new("/dev").join(name);
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(node);
    opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// Start of `struct loop_info64` of <linux/loop.h>, with room for all of it.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    /// 0: to the end of the file.
    size_limit: u64,
    others: [u64; 24],
}

/// The bytes that a loop device lies on.
struct Below {
    /// Device and inode of the file.
    inode: (u64, u64),
    start: u64,
    end: u64,
}

impl Below {
    /// The bytes below a loop device; `None` if it has no file, or does not exist.
    fn of(name: &str) -> Option<Below> {
        const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
        let node = File::open(Path::new("/dev").join(name)).ok()?;
        let mut info =
            LoopInfo { device: 0, inode: 0, rdevice: 0, offset: 0, size_limit: 0, others: [0; 24] };
        // SAFETY: LOOP_GET_STATUS64 stores a `struct loop_info64`, 232 bytes, through the pointer.
        sys::check(unsafe { libc::ioctl(node.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut info) }).ok()?;
        // `huge_encode_dev` of the kernel.
        let major = info.device >> 8 & 0xfff;
        let minor = info.device & 0xff | info.device >> 12 & 0xf_ff00;
        let length = if info.size_limit == 0 { u64::MAX } else { info.size_limit };
        Some(Below {
            inode: (libc::makedev(major as u32, minor as u32), info.inode),
            start: info.offset,
            end: info.offset.saturating_add(length),
        })
    }

    fn overlaps(&self, other: &Below) -> bool {
        self.inode == other.inode && self.start < other.end && other.start < self.end
    }
}

/// The mount point of a block device.
fn mounted_at(name: &str) -> Option<String> {
    let number = std::fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    // "36 35 7:0 / /mnt rw - ext4 /dev/loop0 rw"
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        (words.next()? == number.trim()).then(|| words.nth(1).map(str::to_owned))?
    })
}

/// A program that has a file open for writing.
pub(super) fn writer(path: &Path, kind: DeviceKind) -> Option<User> {
    if kind != DeviceKind::File {
        return None;
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    // There the server decides about leases.
    if is_served_elsewhere(&file) || !is_open_for_writing(&file) {
        return None;
    }
    let holder = opened_by(path, true).unwrap_or_else(|| "another program, which has it open".into());
    Some(User::program(holder))
}

fn is_open_for_writing(file: &File) -> bool {
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // Signal to the lease holder when another process opens the file: SIGURG, which is ignored by
    // default, instead of SIGIO, which ends the process.
    // SAFETY: these commands take numbers.
    let set = sys::check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) });
    // SAFETY: as above.
    let lease = |kind: libc::c_int| sys::check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, kind) });
    let refused = set.and_then(|_| lease(libc::F_RDLCK)).err();
    let _ = lease(libc::F_UNLCK);
    refused.is_some_and(|error: io::Error| error.raw_os_error() == Some(libc::EAGAIN))
}

/// A process that has a file open, according to `/proc`; this process only if it has it open for
/// writing and `for_writing` is set.
pub(super) fn opened_by(path: &Path, for_writing: bool) -> Option<String> {
    let path = std::fs::canonicalize(path).ok()?;
    let is_pid = |name: &String| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().into_string().ok().filter(is_pid));
    let own = std::process::id().to_string();
    if for_writing && has_open(&own, &path, true) {
        return Some(program(&own));
    }
    pids.find(|pid| *pid != own && has_open(pid, &path, for_writing)).map(|pid| program(&pid))
}

fn has_open(pid: &str, path: &PathBuf, for_writing: bool) -> bool {
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    descriptors.flatten().any(|entry| {
        std::fs::read_link(entry.path()).is_ok_and(|target| target == *path)
            && (!for_writing || is_writable(pid, &entry.file_name().to_string_lossy()))
    })
}

fn is_writable(pid: &str, descriptor: &str) -> bool {
    let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}")).unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY)
}

/// A process by name and number.
pub(super) fn program(pid: &str) -> String {
    if pid == std::process::id().to_string() {
        return OWN.to_owned();
    }
    // "1234 (name) Z ...": its first thread has ended, but not all others.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let ends = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['Z', 'X']));
    let ending = if ends { ", which was killed and is still ending" } else { "" };
    match std::fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(name) => format!("another process: {} (pid {pid}{ending})", name.trim()),
        Err(_) => format!("another process (pid {pid})"),
    }
}

//! A device: a regular file or a block device that holds a cache or a backing store.
//!
//! Each device has two descriptors of the same file: one for direct I/O (if the file system
//! supports it) and one for I/O through the page cache. Requests that satisfy the alignment of
//! direct I/O use the first. All others use the second (sectors of a 4096-byte device, the tail of
//! a file).
//!
//! Invariants:
//! - Both descriptors refer to the same inode, so the kernel keeps direct I/O and the page cache
//!   coherent. One `fdatasync` on either covers writes through both: it writes back the inode's
//!   pages, then flushes the device. The reactor keeps a buffered write and another write to the
//!   same 4096-byte page from overlapping in time, the one case without a guarantee from the
//!   kernel.
//! - Only `lengthen` and `shorten` of this type change the size. `refresh_size` detects a file that
//!   another process grew.
//! - Up to its *recorded end* a device has bytes. If the device is shorter it has ended: reads,
//!   writes and flushes fail. Only ranges past the recorded end read as zeroes.
//! - A device stays the same file regardless of its name (see `place`).
//! - The locks live as long as the device. They are advisory: they exclude programs that request
//!   them.
//!
//! Not known here: operations in flight (see the reactor), on-disk formats.

mod announce;
mod create;
mod holes;
mod identity;
mod lock;
mod others;
mod place;
mod remote;
mod save;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use announce::announce_change;
pub use create::create_cache_file;
pub use identity::DeviceIdentity;
pub use place::Displacement;
pub use remote::{RemoteDone, RemoteOp, RemoteStore, RemoteTrouble};
pub use save::UnnamedCopy;

use crate::buffer::{BUFFER_ALIGN, map_zeroed, unmap};
use crate::emulate::DeviceModel;
use crate::error::DeviceError;
use crate::sys;

/// Type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A regular file.
    File,
    /// A block device.
    Block,
    /// A character device, accepted only with [`DeviceOptions::special_size_bytes`].
    Special,
    /// A remote store ([`RemoteStore`]).
    Remote,
}

/// How to open a device.
#[derive(Clone, Debug)]
pub struct DeviceOptions {
    /// Open for reading only; every write then fails with `EBADF`.
    pub read_only: bool,
    /// Use direct I/O if possible. Off: all I/O goes through the page cache.
    pub direct: bool,
    /// Take the exclusive lock. Off: for tools that inspect a device in use by another process.
    pub lock: bool,
    /// Model of a slower device to emulate: operations complete no sooner than in the model.
    pub emulate: Option<DeviceModel>,
    /// Accept a character device and treat it as having this size in bytes (tests use `/dev/full`).
    pub special_size_bytes: Option<u64>,
}

impl Default for DeviceOptions {
    fn default() -> DeviceOptions {
        DeviceOptions { read_only: false, direct: true, lock: true, emulate: None, special_size_bytes: None }
    }
}

/// Alignment that direct I/O needs, in bytes; both are powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectAlign {
    /// Of memory addresses.
    pub(crate) memory: u32,
    /// Of file offsets and lengths.
    pub(crate) offset: u32,
}

/// An open device; see the module documentation.
#[derive(Debug)]
pub struct Device {
    path: PathBuf,
    /// Its place when it was opened, if it is a file.
    place: Option<place::Place>,
    /// Its sysfs directory, which exists as long as the device, if it is a block device.
    node: Option<PathBuf>,
    buffered: File,
    direct: Option<(File, DirectAlign)>,
    kind: DeviceKind,
    size_bytes: u64,
    end_bytes: u64,
    /// Another process or machine serves the file system.
    is_remote: bool,
    logical_block_bytes: u32,
    options: DeviceOptions,
    notes: Vec<String>,
    /// Operations go there instead of the descriptors.
    store: Option<Arc<dyn RemoteStore>>,
}

impl Device {
    /// Opens the cache device. Differs from [`Device::open_backing`] only in the notes.
    ///
    /// # Errors
    /// [`DeviceError::Open`], [`DeviceError::InUse`], [`DeviceError::NotADevice`],
    /// [`DeviceError::WriteProtected`], [`DeviceError::CannotEmulate`], [`DeviceError::Io`].
    pub fn open_cache(path: impl AsRef<Path>, options: DeviceOptions) -> Result<Device, DeviceError> {
        Device::open(path.as_ref(), options, "cache")
    }

    /// Opens a backing store.
    ///
    /// # Errors
    /// As [`Device::open_cache`].
    pub fn open_backing(path: impl AsRef<Path>, options: DeviceOptions) -> Result<Device, DeviceError> {
        Device::open(path.as_ref(), options, "backing store")
    }

    fn open(path: &Path, options: DeviceOptions, role: &str) -> Result<Device, DeviceError> {
        let open_error = |source| DeviceError::Open { path: path.into(), source };
        if let Some(mount) = crate::fuse::own_mount(path) {
            return Err(DeviceError::OwnMount { path: path.into(), mount });
        }
        let metadata = std::fs::metadata(path).map_err(open_error)?;
        let kind = kind_of(path, &metadata, &options)?;
        let buffered = lock::open_locked(path, kind, &options)?;
        if !options.read_only && kind == DeviceKind::Block && is_write_protected(&buffered) {
            return Err(DeviceError::WriteProtected { path: path.into() });
        }
        let size_bytes = size_of_file(&buffered, kind, &options).map_err(open_error)?;
        let mut device = Device {
            path: path.into(),
            place: if kind == DeviceKind::File { place::Place::of(&buffered) } else { None },
            node: if kind == DeviceKind::Block { identity::node_of(&buffered) } else { None },
            size_bytes,
            end_bytes: size_bytes,
            is_remote: is_served_elsewhere(&buffered),
            logical_block_bytes: logical_block(&buffered, kind),
            buffered,
            direct: None,
            kind,
            options,
            notes: Vec::new(),
            store: None,
        };
        device.emulate(device.options.emulate)?;
        if device.options.direct && kind != DeviceKind::Special {
            match open_direct(path, &device) {
                Ok(direct) => device.direct = Some(direct),
                Err(error) => device.notes.push(format!(
                    "{}: direct I/O is not possible ({error}): the {role} goes through the page cache",
                    path.display()
                )),
            }
        }
        Ok(device)
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The recorded end: the device must have bytes up to here. Initially its size.
    pub fn end_bytes(&self) -> u64 {
        self.end_bytes
    }

    /// Records another end: the part of the device in use from now on. Users call it when they use
    /// more or less of the device.
    pub fn set_end(&mut self, end_bytes: u64) {
        self.end_bytes = end_bytes;
    }

    /// Returns the current size if the device is shorter than its recorded end. Queries only the
    /// kernel, not the device. On a file system that another process or machine serves this could
    /// block indefinitely: there it returns `None`, and only reads detect the end.
    pub fn ended(&self) -> Option<u64> {
        let now = match self.kind {
            DeviceKind::Special | DeviceKind::Remote => return None,
            DeviceKind::File if self.is_remote => return None,
            DeviceKind::File => known_size(&self.buffered),
            DeviceKind::Block => size_of_file(&self.buffered, self.kind, &self.options).ok(),
        };
        now.filter(|size| *size < self.end_bytes)
    }

    /// Returns whether it is a block device that the kernel has removed: it was unplugged. When
    /// plugged in again it is a new device, and this one fails forever. Queries sysfs, and does not
    /// block on the device.
    pub fn is_unplugged(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !node.exists())
    }

    /// Returns whether it is a block device that is currently write-protected. Queries only the
    /// kernel, not the device.
    pub fn is_write_protected(&self) -> bool {
        self.kind == DeviceKind::Block && is_write_protected(&self.buffered)
    }

    /// Queries the kernel for the size again, after the file or device has grown, and returns it.
    /// The recorded end stays.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn refresh_size(&mut self) -> Result<u64, DeviceError> {
        if self.store.is_some() {
            return Ok(self.size_bytes); // a remote store of another size is refused
        }
        self.size_bytes = size_of_file(&self.buffered, self.kind, &self.options)
            .map_err(|source| self.io_error("size query", 0, source))?;
        Ok(self.size_bytes)
    }

    /// Records a size that another handle of this device ([`Device::for_thread`]) found or set. The
    /// recorded end stays.
    pub fn set_size(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    /// Extends a file, with space reserved if the file system supports it; a block device must
    /// already have that length.
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`], [`DeviceError::Io`]; the length is then unchanged.
    pub fn lengthen(&mut self, size_bytes: u64) -> Result<(), DeviceError> {
        let before = self.refresh_size()?;
        if self.kind == DeviceKind::File && size_bytes > before {
            create::lengthen(&self.buffered, &self.path, before, size_bytes)?;
            self.refresh_size()?;
        }
        if self.size_bytes >= size_bytes {
            return Ok(());
        }
        let wanted = std::io::Error::other(format!("it has {} bytes, not {size_bytes}", self.size_bytes));
        Err(self.io_error("length", size_bytes, wanted))
    }

    /// Truncates a file; leaves a block device unchanged.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn shorten(&mut self, size_bytes: u64) -> Result<(), DeviceError> {
        if self.kind == DeviceKind::File && size_bytes < self.refresh_size()? {
            self.buffered
                .set_len(size_bytes)
                .map_err(|source| self.io_error("cutting", size_bytes, source))?;
            self.refresh_size()?;
            self.end_bytes = self.end_bytes.min(self.size_bytes);
        }
        Ok(())
    }

    /// Logical block size in bytes: of the block device, 512 for files.
    pub fn logical_block_bytes(&self) -> u32 {
        self.logical_block_bytes
    }

    /// Offset alignment below which requests use the page cache; `None` when all of them do.
    pub fn direct_align_bytes(&self) -> Option<u32> {
        self.direct.as_ref().map(|(_, align)| align.offset)
    }

    /// Type of the device.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// The emulated device, if any.
    pub fn emulation(&self) -> Option<DeviceModel> {
        self.options.emulate
    }

    /// Sets or removes the emulation; for a device that is not yet in a reactor.
    ///
    /// # Errors
    /// [`DeviceError::CannotEmulate`].
    pub fn emulate(&mut self, model: Option<DeviceModel>) -> Result<(), DeviceError> {
        let possible = model.map_or(Ok(()), |model| model.check_size(self.size_bytes));
        possible.map_err(|why| DeviceError::CannotEmulate { path: self.path.clone(), why })?;
        self.options.emulate = model;
        Ok(())
    }

    /// Sentences for the operator about how it was opened, for instance that direct I/O is not
    /// possible.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Identity of the device and signs of changes; queries the kernel each time.
    ///
    /// # Errors
    /// [`DeviceError::Io`].
    pub fn identity(&self) -> Result<DeviceIdentity, DeviceError> {
        if self.store.is_some() {
            return Ok(identity::of_address(&self.path, self.size_bytes));
        }
        let metadata = self.buffered.metadata().map_err(|source| self.io_error("stat", 0, source))?;
        let identity = identity::identify(self.kind, self.size_bytes, &metadata);
        Ok(DeviceIdentity { served_elsewhere: self.is_served_elsewhere(), ..identity })
    }

    /// Reads at any offset and length, blocking; bytes past the recorded end read as zeroes. For
    /// offline tools: it must not be mixed with operations in flight on the same range.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; with `ENXIO` if the device ends before its recorded end.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if self.store.is_some() {
            return self.read_store(offset, bytes);
        }
        let mut done = 0;
        while done < bytes.len() {
            match self.buffered.read_at(&mut bytes[done..], offset.saturating_add(done as u64)) {
                Ok(0) if offset.saturating_add(done as u64) < self.end_bytes => {
                    let ended = io::Error::from_raw_os_error(libc::ENXIO);
                    return Err(self.io_error("read", offset + done as u64, ended));
                }
                Ok(0) => {
                    bytes[done..].fill(0);
                    break;
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.io_error("read", offset + done as u64, source)),
            }
        }
        Ok(())
    }

    /// Writes at any offset and length, blocking, never past the end. Like [`Device::read_at`], for
    /// offline tools.
    ///
    /// # Errors
    /// [`DeviceError::Io`]; with `ENOSPC` when the range is not inside the device, with `ENXIO` if
    /// it is shorter than its recorded end (a write would extend a truncated file again, with
    /// zeroes in place of the lost data).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let fits = offset.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.size_bytes);
        let refused = if !fits { Some(libc::ENOSPC) } else { self.ended().map(|_| libc::ENXIO) };
        if let Some(errno) = refused {
            return Err(self.io_error("write", offset, io::Error::from_raw_os_error(errno)));
        }
        if self.store.is_some() {
            let op = RemoteOp::Write { offset, data: bytes.to_vec() };
            return self.ask_store("write", op).map_or(Ok(()), |written| written.map(drop));
        }
        self.buffered.write_all_at(bytes, offset).map_err(|source| self.io_error("write", offset, source))
    }

    /// Makes all completed writes durable, blocking.
    ///
    /// # Errors
    /// [`DeviceError::Io`]. After an error nothing may be assumed about earlier writes.
    pub fn flush(&self) -> Result<(), DeviceError> {
        if let Some(flushed) = self.ask_store("flush", RemoteOp::Flush { reports: false }) {
            return flushed.map(drop);
        }
        self.buffered.sync_data().map_err(|source| self.io_error("flush", 0, source))
    }

    /// Returns another handle of the same device, without direct I/O, for concurrent use by a
    /// thread that may block on it. The lock lives until both are dropped.
    ///
    /// # Errors
    /// [`DeviceError::Io`] if no descriptor is available.
    pub fn for_thread(&self) -> Result<Device, DeviceError> {
        let buffered = self.buffered.try_clone().map_err(|source| self.io_error("descriptor", 0, source))?;
        Ok(Device {
            path: self.path.clone(),
            place: self.place.clone(),
            node: self.node.clone(),
            buffered,
            direct: None,
            options: self.options.clone(),
            notes: Vec::new(),
            store: self.store.clone(),
            ..*self
        })
    }

    /// The descriptors that operations use.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let direct = self.direct.as_ref().map(|(file, _)| file.as_raw_fd());
        std::iter::once(self.buffered.as_raw_fd()).chain(direct)
    }

    /// Returns whether another process or machine serves the file system of the file: there even
    /// the query whether an operation would block can block.
    pub(crate) fn is_served_elsewhere(&self) -> bool {
        self.is_remote
    }

    pub(crate) fn buffered_fd(&self) -> RawFd {
        self.buffered.as_raw_fd()
    }

    pub(crate) fn direct_fd(&self) -> Option<(RawFd, DirectAlign)> {
        self.direct.as_ref().map(|(file, align)| (file.as_raw_fd(), *align))
    }

    fn io_error(&self, what: &'static str, offset: u64, source: io::Error) -> DeviceError {
        DeviceError::Io { path: self.path.clone(), what, offset, source }
    }
}

fn kind_of(
    path: &Path,
    metadata: &std::fs::Metadata,
    options: &DeviceOptions,
) -> Result<DeviceKind, DeviceError> {
    let file_type = metadata.file_type();
    let found = if file_type.is_file() {
        return Ok(DeviceKind::File);
    } else if file_type.is_block_device() {
        return Ok(DeviceKind::Block);
    } else if file_type.is_char_device() && options.special_size_bytes.is_some() {
        return Ok(DeviceKind::Special);
    } else if file_type.is_dir() {
        "directory"
    } else if file_type.is_char_device() {
        "character device"
    } else if file_type.is_socket() {
        "socket"
    } else {
        "pipe or other special file"
    };
    Err(DeviceError::NotADevice { path: path.into(), found })
}

// From <linux/fs.h>: _IO(0x12, 94), _IO(0x12, 104) and _IOR(0x12, 114, size_t).
const BLKROGET: libc::c_ulong = 0x125e;
const BLKSSZGET: libc::c_ulong = 0x1268;
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;

fn size_of_file(file: &File, kind: DeviceKind, options: &DeviceOptions) -> io::Result<u64> {
    match kind {
        DeviceKind::File => Ok(file.metadata()?.len()),
        DeviceKind::Special | DeviceKind::Remote => Ok(options.special_size_bytes.unwrap_or(0)),
        DeviceKind::Block => {
            let mut size = 0u64;
            // SAFETY: BLKGETSIZE64 stores one u64 through the pointer.
            sys::check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64 as _, &raw mut size) })?;
            Ok(size)
        }
    }
}

/// Magic numbers of SMB's file systems.
const SMB: [i64; 2] = [0xff53_4d42, 0xfe53_4d42];

/// Returns whether another process or machine serves the file system of this file.
fn is_served_elsewhere(file: &File) -> bool {
    // Magic numbers of FUSE, NFS, 9p, Ceph, AFS, GFS2 and OCFS2, as in statfs(2).
    const SERVED: [i64; 7] =
        [0x6573_5546, 0x6969, 0x0102_1997, 0x00c3_6400, 0x5346_414f, 0x0116_1970, 0x7461_636f];
    file_system(file).is_some_and(|magic| SERVED.contains(&magic) || SMB.contains(&magic))
}

/// The magic number of the file system of a file.
fn file_system(file: &File) -> Option<i64> {
    // SAFETY: statfs is a plain struct for which all zeroes is a value.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the answer has room for what the kernel writes.
    let known = unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut answer) } == 0;
    known.then_some(answer.f_type as i64)
}

/// Returns whether the kernel refuses writes to a block device, although it allows opening it for
/// writing.
fn is_write_protected(file: &File) -> bool {
    let mut read_only: libc::c_int = 0;
    // SAFETY: BLKROGET stores one int through the pointer.
    let asked = sys::check(unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET as _, &raw mut read_only) });
    asked.is_ok() && read_only != 0
}

/// The size of a file on a local file system, from the kernel's memory.
fn known_size(file: &File) -> Option<u64> {
    let stat = statx(file, libc::AT_STATX_DONT_SYNC, libc::STATX_SIZE)?;
    (stat.stx_mask & libc::STATX_SIZE != 0).then_some(stat.stx_size)
}

fn logical_block(file: &File, kind: DeviceKind) -> u32 {
    let mut bytes: libc::c_int = 512;
    if kind == DeviceKind::Block {
        // SAFETY: BLKSSZGET stores one int through the pointer.
        let _ = unsafe { libc::ioctl(file.as_raw_fd(), BLKSSZGET as _, &raw mut bytes) };
    }
    u32::try_from(bytes).ok().filter(|b| b.is_power_of_two()).unwrap_or(512)
}

/// Opens the direct descriptor, finds its alignment and proves it with one read.
fn open_direct(path: &Path, device: &Device) -> io::Result<(File, DirectAlign)> {
    let file = OpenOptions::new()
        .read(true)
        .write(!device.options.read_only)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    let (opened, locked) = (file.metadata()?, device.buffered.metadata()?);
    if (opened.dev(), opened.ino(), opened.rdev()) != (locked.dev(), locked.ino(), locked.rdev()) {
        return Err(io::Error::other("the path was replaced while it was opened"));
    }
    let stated = stated_align(&file);
    let aligns = match stated {
        Some(align) => vec![align],
        None => vec![
            DirectAlign { memory: device.logical_block_bytes, offset: device.logical_block_bytes },
            DirectAlign { memory: BUFFER_ALIGN as u32, offset: BUFFER_ALIGN as u32 },
        ],
    };
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for align in aligns.into_iter().filter(|a| a.offset <= BUFFER_ALIGN as u32 * 16) {
        match try_direct_read(&file, align) {
            Ok(()) => return Ok((file, align)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn statx(file: &File, flags: libc::c_int, mask: libc::c_uint) -> Option<libc::statx> {
    // SAFETY: statx is a plain struct for which all zeroes is a value.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, flags) = (file.as_raw_fd(), flags | libc::AT_EMPTY_PATH);
    // SAFETY: the path is an empty C string, the result goes to a struct of the right type.
    let done = unsafe { libc::statx(fd, c"".as_ptr(), flags, mask, &raw mut stat) };
    (done == 0).then_some(stat)
}

/// Alignment of direct I/O on this file as reported by the kernel (Linux 6.1 and later).
fn stated_align(file: &File) -> Option<DirectAlign> {
    let stat = statx(file, 0, libc::STATX_DIOALIGN | libc::STATX_TYPE)?;
    let known = stat.stx_mask & libc::STATX_DIOALIGN != 0;
    let sound = |bytes: u32| bytes.is_power_of_two();
    (known && sound(stat.stx_dio_mem_align) && sound(stat.stx_dio_offset_align))
        .then_some(DirectAlign { memory: stat.stx_dio_mem_align, offset: stat.stx_dio_offset_align })
}

fn try_direct_read(file: &File, align: DirectAlign) -> io::Result<()> {
    let len = (align.offset as usize).next_multiple_of(BUFFER_ALIGN);
    let memory = map_zeroed(len).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    // SAFETY: the mapping has `len` bytes and no other user.
    let read = unsafe { libc::pread(file.as_raw_fd(), memory.as_ptr().cast(), align.offset as usize, 0) };
    let result = if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    unmap(memory, len);
    result
}

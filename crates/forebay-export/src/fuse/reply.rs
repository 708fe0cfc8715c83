//! Replies to the kernel, encoded.
//!
//! Every function appends one whole reply (or, for data, its whole header) to a `Vec<u8>`. A reply
//! must reach the kernel as one message.
//!
//! ```text
//! every reply     u32 length  i32 minus the error number  u64 unique   body
//! ```

use std::time::Duration;

use super::wire::{NAME_BYTES_MAX, OUT_HEADER_BYTES, WRITE_OUT_BYTES, mode};

/// Linux error numbers in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Errno {
    /// Not permitted.
    NotPermitted = 1,
    /// No such file or directory.
    NotFound = 2,
    /// The user interrupted it.
    Interrupted = 4,
    /// Input/output error.
    Io = 5,
    /// Bad file descriptor: not open, or not open for this operation.
    BadHandle = 9,
    /// Try again: the kernel repeats the request.
    TryAgain = 11,
    /// Out of memory.
    OutOfMemory = 12,
    /// Access denied.
    Denied = 13,
    /// Busy.
    Busy = 16,
    /// No such device: the mount is gone.
    NoDevice = 19,
    /// Not a directory.
    NotADirectory = 20,
    /// A directory, where a file is needed.
    IsADirectory = 21,
    /// Invalid argument.
    Invalid = 22,
    /// Too many open files.
    TooManyOpen = 23,
    /// Unknown control request.
    NotATerminal = 25,
    /// Too large.
    TooLarge = 27,
    /// No space: beyond the end of a volume.
    NoSpace = 28,
    /// The file system is read-only.
    ReadOnly = 30,
    /// No such operation: the kernel does not repeat the request.
    NoSuchOperation = 38,
    /// No such protocol version.
    Protocol = 71,
    /// Not supported.
    NotSupported = 95,
    /// The server is going away.
    Shutdown = 108,
    /// Cancelled.
    Cancelled = 125,
}

/// Attributes of a node, as `stat(2)` shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// It is a directory; otherwise a regular file.
    pub directory: bool,
    /// Permission bits.
    pub permissions: u16,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated space, in bytes.
    pub allocated_bytes: u64,
    /// Owning user.
    pub uid: u32,
    /// Owning group.
    pub gid: u32,
    /// Seconds since 1970 of the last change.
    pub modified_s: u64,
    /// Preferred length of reads and writes, in bytes.
    pub block_bytes: u32,
    /// How long the kernel may cache these attributes.
    pub valid: Duration,
}

impl Attributes {
    /// Returns type and permissions in the format of `stat(2)`.
    pub fn mode(&self) -> u32 {
        let kind = if self.directory { mode::DIRECTORY } else { mode::REGULAR };
        kind | u32::from(self.permissions & 0o7777)
    }
}

/// Result of the INIT negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitOut {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u32,
    /// Read-ahead in bytes.
    pub readahead_bytes: u32,
    /// Feature flags; see [`super::wire::init`].
    pub flags: u32,
    /// More feature flags.
    pub flags2: u32,
    /// Most concurrent asynchronous requests.
    pub background_max: u16,
    /// Number of requests from which the kernel treats the file system as congested.
    pub congestion_threshold: u16,
    /// Longest write in bytes.
    pub write_bytes_max: u32,
    /// Most pages in one request.
    pub pages_max: u16,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// Node number that `readdir(3)` shows.
    pub node: u64,
    /// It is a directory; otherwise a regular file.
    pub directory: bool,
    /// Name within the directory.
    pub name: Vec<u8>,
}

/// Encodes the header of a reply.
pub fn header(unique: u64, error: i32, body_bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    let length = u32::try_from(OUT_HEADER_BYTES + body_bytes).unwrap_or(u32::MAX);
    let mut bytes = [0; OUT_HEADER_BYTES];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..8].copy_from_slice(&error.wrapping_neg().to_le_bytes());
    bytes[8..].copy_from_slice(&unique.to_le_bytes());
    bytes
}

/// Appends success without a body.
pub fn done(out: &mut Vec<u8>, unique: u64) {
    out.extend_from_slice(&header(unique, 0, 0));
}

/// Appends a failure.
pub fn failed(out: &mut Vec<u8>, unique: u64, errno: Errno) {
    out.extend_from_slice(&header(unique, errno as i32, 0));
}

/// Appends the reply to READ with its data.
pub fn data(out: &mut Vec<u8>, unique: u64, bytes: &[u8]) {
    out.extend_from_slice(&header(unique, 0, bytes.len()));
    out.extend_from_slice(bytes);
}

/// Appends the reply to a WRITE that took `bytes`.
pub fn written(out: &mut Vec<u8>, unique: u64, bytes: u32) {
    out.extend_from_slice(&header(unique, 0, WRITE_OUT_BYTES));
    integers(out, &[bytes, 0]);
}

/// Appends the reply to INIT.
pub fn init(out: &mut Vec<u8>, unique: u64, agreed: &InitOut) {
    out.extend_from_slice(&header(unique, 0, 64));
    integers(out, &[agreed.major, agreed.minor, agreed.readahead_bytes, agreed.flags]);
    out.extend_from_slice(&agreed.background_max.to_le_bytes());
    out.extend_from_slice(&agreed.congestion_threshold.to_le_bytes());
    const TIME_GRANULARITY_NS: u32 = 1;
    integers(out, &[agreed.write_bytes_max, TIME_GRANULARITY_NS]);
    out.extend_from_slice(&agreed.pages_max.to_le_bytes());
    out.extend_from_slice(&[0; 2]); // map_alignment
    integers(out, &[agreed.flags2]);
    out.extend_from_slice(&[0; 7 * 4]); // unused
}

/// Appends the reply to an INIT with another major version: the kernel retries with this one.
pub fn init_other_major(out: &mut Vec<u8>, unique: u64, major: u32, minor: u32) {
    out.extend_from_slice(&header(unique, 0, 8));
    integers(out, &[major, minor]);
}

/// Appends the reply to LOOKUP. Node numbers are never reused for another file, so all have
/// generation 0.
pub fn entry(out: &mut Vec<u8>, unique: u64, node: u64, attributes: &Attributes) {
    out.extend_from_slice(&header(unique, 0, 40 + ATTRIBUTES_BYTES));
    let valid = attributes.valid;
    longs(out, &[node, 0, valid.as_secs(), valid.as_secs()]);
    integers(out, &[valid.subsec_nanos(), valid.subsec_nanos()]);
    attributes_body(out, node, attributes);
}

/// Appends the reply to GETATTR and SETATTR.
pub fn attributes(out: &mut Vec<u8>, unique: u64, node: u64, attributes: &Attributes) {
    out.extend_from_slice(&header(unique, 0, 16 + ATTRIBUTES_BYTES));
    longs(out, &[attributes.valid.as_secs()]);
    integers(out, &[attributes.valid.subsec_nanos(), 0]);
    attributes_body(out, node, attributes);
}

/// Appends the reply to OPEN and OPENDIR; flags are those of [`super::wire::fopen`].
pub fn opened(out: &mut Vec<u8>, unique: u64, handle: u64, flags: u32) {
    out.extend_from_slice(&header(unique, 0, 16));
    longs(out, &[handle]);
    integers(out, &[flags, 0]);
}

/// Appends the reply to STATFS: a file system of that size, without free space.
pub fn stat_fs(out: &mut Vec<u8>, unique: u64, size_bytes: u64, files: u64) {
    const BLOCK_BYTES: u32 = 4096;
    out.extend_from_slice(&header(unique, 0, 80));
    longs(out, &[size_bytes.div_ceil(u64::from(BLOCK_BYTES)), 0, 0, files, 0]);
    integers(out, &[BLOCK_BYTES, NAME_BYTES_MAX as u32, BLOCK_BYTES, 0]);
    out.extend_from_slice(&[0; 6 * 4]);
}

/// Appends the reply to READDIR: as many entries as fit into `length_max` bytes, from the one at
/// `position` on. The position of an entry is one more than its index.
pub fn directory(out: &mut Vec<u8>, unique: u64, entries: &[DirectoryEntry], position: u64, length_max: u32) {
    let start = out.len();
    out.extend_from_slice(&header(unique, 0, 0));
    let skip = usize::try_from(position).unwrap_or(usize::MAX);
    for (index, entry) in entries.iter().enumerate().skip(skip) {
        let length = (ENTRY_HEAD_BYTES + entry.name.len()).next_multiple_of(8);
        let used = out.len() - start - OUT_HEADER_BYTES;
        if used + length > length_max as usize {
            break;
        }
        longs(out, &[entry.node, index as u64 + 1]);
        let kind = if entry.directory { mode::DIRECTORY } else { mode::REGULAR } >> 12;
        integers(out, &[entry.name.len() as u32, kind]);
        out.extend_from_slice(&entry.name);
        out.resize(start + OUT_HEADER_BYTES + used + length, 0);
    }
    let body_bytes = out.len() - start - OUT_HEADER_BYTES;
    out[start..start + OUT_HEADER_BYTES].copy_from_slice(&header(unique, 0, body_bytes));
}

/// Length of `fuse_attr`.
const ATTRIBUTES_BYTES: usize = 88;
/// Length of `fuse_dirent` without the name.
const ENTRY_HEAD_BYTES: usize = 24;

fn attributes_body(out: &mut Vec<u8>, node: u64, attributes: &Attributes) {
    let (time, links) = (attributes.modified_s, if attributes.directory { 2 } else { 1 });
    const SECTOR_BYTES: u64 = 512;
    longs(out, &[node, attributes.size_bytes, attributes.allocated_bytes.div_ceil(SECTOR_BYTES)]);
    longs(out, &[time, time, time]);
    integers(out, &[0, 0, 0]);
    integers(out, &[attributes.mode(), links, attributes.uid, attributes.gid, 0, attributes.block_bytes, 0]);
}

fn integers(out: &mut Vec<u8>, values: &[u32]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn longs(out: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

//! The constants of the FUSE protocol, kernel interface 7.31 to 7.38, and 7.42 for the ring.
//!
//! Source: `include/uapi/linux/fuse.h` of Linux 6.2 (7.38) and
//! `Documentation/filesystems/fuse.rst`. Names are the kernel's, without their prefix.

/// Major version of the interface.
pub const MAJOR: u32 = 7;
/// Newest supported minor version.
pub const MINOR_MAX: u32 = 38;
/// Oldest supported minor version (Linux 5.4).
pub const MINOR_MIN: u32 = 31;
/// The root of every file system.
pub const ROOT_NODE: u64 = 1;

/// Length of `fuse_in_header`, with which every request begins.
pub const IN_HEADER_BYTES: usize = 40;
/// Length of `fuse_write_in`.
pub const WRITE_IN_BYTES: usize = 40;
/// Bytes before the payload of a write. A receive can put them into another buffer, so that the
/// payload is alone.
pub const WRITE_HEAD_BYTES: usize = IN_HEADER_BYTES + WRITE_IN_BYTES;
/// Length of `fuse_out_header`, with which every reply begins.
pub const OUT_HEADER_BYTES: usize = 16;
/// Length of `fuse_write_out`.
pub const WRITE_OUT_BYTES: usize = 8;
/// Longest name in a directory.
pub const NAME_BYTES_MAX: usize = 255;
/// Unit of `max_pages`, in bytes.
pub const PAGE_BYTES: u32 = 4096;

/// Operations.
pub mod opcode {
    /// Find a name in a directory.
    pub const LOOKUP: u32 = 1;
    /// The kernel forgets a node; no reply.
    pub const FORGET: u32 = 2;
    /// Attributes of a node.
    pub const GETATTR: u32 = 3;
    /// Change attributes: size, times, owner, mode.
    pub const SETATTR: u32 = 4;
    /// Open a file.
    pub const OPEN: u32 = 14;
    /// Read an open file.
    pub const READ: u32 = 15;
    /// Write an open file.
    pub const WRITE: u32 = 16;
    /// Size of the file system.
    pub const STATFS: u32 = 17;
    /// The last user has closed an open file.
    pub const RELEASE: u32 = 18;
    /// Make a file's data durable.
    pub const FSYNC: u32 = 20;
    /// One user closes an open file.
    pub const FLUSH: u32 = 25;
    /// Negotiate version and features; always the first.
    pub const INIT: u32 = 26;
    /// Open a directory.
    pub const OPENDIR: u32 = 27;
    /// List an open directory.
    pub const READDIR: u32 = 28;
    /// The last user has closed an open directory.
    pub const RELEASEDIR: u32 = 29;
    /// Make a directory durable.
    pub const FSYNCDIR: u32 = 30;
    /// Check a user's access.
    pub const ACCESS: u32 = 34;
    /// The user of a request was interrupted; no reply.
    pub const INTERRUPT: u32 = 36;
    /// The file system is unmounted.
    pub const DESTROY: u32 = 38;
    /// A control request on an open file.
    pub const IOCTL: u32 = 39;
    /// FORGET of many nodes; no reply.
    pub const BATCH_FORGET: u32 = 42;
    /// Reserve, zero or punch a range of an open file.
    pub const FALLOCATE: u32 = 43;
}

/// Features that both sides may negotiate in INIT, as far as used.
pub mod init {
    /// Reads of one file may overlap.
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Writes may be longer than a page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Direct I/O may be asynchronous.
    pub const ASYNC_DIO: u32 = 1 << 15;
    /// Lookups and listings of one directory may overlap.
    pub const PARALLEL_DIROPS: u32 = 1 << 18;
    /// `max_pages` is given.
    pub const MAX_PAGES: u32 = 1 << 22;
    /// More than 32 flags exist: `flags2` has the rest.
    pub const EXTENDED: u32 = 1 << 30;
    /// Requests come over io_uring (since 7.42). In `flags2`: bit 41 of all.
    pub const OVER_IO_URING: u32 = 1 << (41 - 32);
}

/// Valid fields of SETATTR.
pub mod setattr {
    /// The mode.
    pub const MODE: u32 = 1 << 0;
    /// The owning user.
    pub const UID: u32 = 1 << 1;
    /// The owning group.
    pub const GID: u32 = 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
    /// The request came through an open file.
    pub const FH: u32 = 1 << 6;
}

/// Flags of the reply to OPEN.
pub mod fopen {
    /// No page cache: every read and write of this file reaches the server.
    pub const DIRECT_IO: u32 = 1 << 0;
    /// close(2) sends no FLUSH (since 7.35): a process that ends with the file open must not wait
    /// for this server.
    pub const NOFLUSH: u32 = 1 << 5;
    /// Writes of one file may overlap (since 7.37; unknown bits are ignored by older kernels).
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Modes of `fallocate(2)`.
pub mod falloc {
    /// The size of the file does not change.
    pub const KEEP_SIZE: u32 = 1 << 0;
    /// The range becomes a hole.
    pub const PUNCH_HOLE: u32 = 1 << 1;
    /// The range becomes zeroes and stays allocated.
    pub const ZERO_RANGE: u32 = 1 << 4;
}

/// Flags of `open(2)`.
pub mod open {
    /// Bits of the access mode.
    pub const ACCESS_MODE: u32 = 3;
    /// Only reading.
    pub const READ_ONLY: u32 = 0;
    /// Only writing.
    pub const WRITE_ONLY: u32 = 1;
    /// A write is durable before it returns (`O_SYNC` has this bit too).
    pub const DSYNC: u32 = 0o10_000;
}

/// Types in the mode of a node.
pub mod mode {
    /// A directory.
    pub const DIRECTORY: u32 = 0o040_000;
    /// A regular file.
    pub const REGULAR: u32 = 0o100_000;
}

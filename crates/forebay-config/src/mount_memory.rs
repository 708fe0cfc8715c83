//! Share of a pool's memory that its mounts may use.

use forebay_export::size::ByteSize;

/// Most mounts of a pool.
pub const MOUNTS_MAX: u16 = 64;
/// What a mount has of its own, in bytes (pages that were never used cost nothing).
pub const MOUNT_BYTES: usize = (3 << 20) + (24 << 10);

/// Mounts have at most this part of a pool's memory of their own.
const PART: usize = 2;

/// How many mounts fit into so much memory.
pub fn mounts_max(buffer_bytes: usize) -> usize {
    buffer_bytes / PART / MOUNT_BYTES
}

/// The memory for so many mounts, rounded up to whole MiB.
pub fn memory_for(mounts: usize) -> ByteSize {
    ByteSize((mounts * MOUNT_BYTES * PART).next_multiple_of(1 << 20) as u64)
}

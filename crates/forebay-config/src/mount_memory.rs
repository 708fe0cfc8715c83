//! Share of a pool's memory that its mounts may use.

use forebay_admin::size::ByteSize;

/// Most mounts of a pool.
pub const MOUNTS_MAX: u16 = 64;
/// Memory of each mount, in bytes (pages that were never used cost nothing).
pub const MOUNT_BYTES: usize = (3 << 20) + (24 << 10);

/// Mounts have at most this part of a pool's memory, as a divisor.
const PART: usize = 2;

/// Returns how many mounts fit into this much memory.
pub fn mounts_max(buffer_bytes: usize) -> usize {
    buffer_bytes / PART / MOUNT_BYTES
}

/// Returns the memory for this many mounts, rounded up to whole MiB.
pub fn memory_for(mounts: usize) -> ByteSize {
    ByteSize((mounts * MOUNT_BYTES * PART).next_multiple_of(1 << 20) as u64)
}

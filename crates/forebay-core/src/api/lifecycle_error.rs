//! Errors of changes of a volume or the pool.

use forebay_format::VolumeId;
use thiserror::Error;

/// Reason why a change of a volume or the pool failed. Nothing has changed, unless stated
/// otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LifecycleError {
    /// The engine is not serving.
    #[error("the cache is not open, or is being closed")]
    NotServing,
    /// The cache failed: the engine serves volumes without it, or will.
    #[error(
        "the cache has failed, and nothing can be changed until its device is replaced (forebay pool replace)"
    )]
    Fenced,
    /// A mirrored cache cannot change its size.
    #[error("a mirrored cache does not support this operation")]
    Mirrored,
    /// No member of a mirrored cache is out.
    #[error("there is no member to replace: the cache is not mirrored, or both members are sound")]
    NotMirrored,
    /// The tag of a new member is zero, or that of a member, active or out.
    #[error("the tag of the new device is in use: draw another one")]
    TagInUse,
    /// Another change is in progress.
    #[error("another change is in progress: wait for its end or cancel it")]
    Busy,
    /// No such volume, or it is not attached.
    #[error("the volume is not attached")]
    NotAttached,
    /// It is attached already.
    #[error("the volume is attached already")]
    Attached,
    /// The volume table has another volume under this number.
    #[error("the cache has another volume under number {}: choose a free number", .0.0)]
    OtherVolume(VolumeId),
    /// The volume table cannot store the entry.
    #[error("the number or name of the volume is out of range")]
    OutOfRange,
    /// No volume on this backing store can have this size.
    #[error(
        "{bytes} bytes is not a valid volume size: it must be a multiple of {sector_bytes} bytes, and at most {max_bytes}"
    )]
    Size {
        /// Requested size.
        bytes: u64,
        /// Smallest size, and unit.
        sector_bytes: u64,
        /// Largest size.
        max_bytes: u64,
    },
    /// The volume has dirty blocks.
    #[error(
        "{blocks} blocks of the volume are dirty: drain it first, keep them in the cache, or discard them"
    )]
    Dirty {
        /// Dirty blocks.
        blocks: u64,
    },
    /// The only copies of some blocks are damaged.
    #[error("{blocks} blocks are lost: write them again, or discard them")]
    Lost {
        /// Blocks lost.
        blocks: u64,
    },
    /// Dirty data of kept volumes would take too much of the cache.
    #[error(
        "{blocks} dirty blocks would stay in the cache and slow the other volumes, at most {most} may: drain some first"
    )]
    TooDirty {
        /// Dirty blocks that would stay.
        blocks: u64,
        /// Most that may.
        most: u64,
    },
    /// The backing store has become smaller.
    #[error("the backing store has {now} bytes, but the volume has {recorded}: restore its full size")]
    BackingShrunk {
        /// Volume size in bytes.
        recorded: u64,
        /// Size now.
        now: u64,
    },
    /// The backing store has changed since the cache last used it.
    #[error(
        "the backing store was changed while it was away, or is another one, and the cache holds {dirty_blocks} dirty blocks"
    )]
    BackingChanged {
        /// Dirty blocks of the volume.
        dirty_blocks: u64,
    },
    /// The backing store cannot be read.
    #[error("the backing store cannot be read")]
    BackingUnreadable,
    /// A flush of the backing store failed, just now or since the last FLUSH that reported one
    /// (I82).
    #[error(
        "a flush of the backing store failed: bypass writes since the last good FLUSH may be missing on it"
    )]
    BackingFlush,
    /// The cache was formatted without room for so many segments, or would keep too few.
    #[error("{wanted} segments are out of range: this cache can have from {least} to {most}")]
    PoolRange {
        /// Segments wanted.
        wanted: u64,
        /// Fewest.
        least: u32,
        /// Most.
        most: u32,
    },
    /// The operator cancelled it.
    #[error("cancelled")]
    Cancelled,
}

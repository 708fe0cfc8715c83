//! Errors of opening a cache.

use forebay_format::{FormatError, VolumeId};
use thiserror::Error;

/// Reason why a cache could not be opened. The cache is unchanged, unless one of the writes or
/// flushes that end recovery failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum OpenError {
    /// No usable superblock.
    #[error("{0}")]
    Superblock(FormatError),
    /// Neither superblock could be read.
    #[error("the superblocks cannot be read: the cache device fails")]
    Unreadable,
    /// The checkpoint in effect is damaged in both copies.
    #[error(
        "checkpoint {generation} is damaged in both copies ({error}); extract the remaining data with \
         `forebay salvage CACHE --to FOLDER`"
    )]
    CheckpointLost {
        /// Generation that the superblock names.
        generation: u64,
        /// Error of the second copy.
        error: FormatError,
    },
    /// The block addresses of some dirty slots are lost.
    #[error(
        "segment {segment}: {dirty_blocks} dirty blocks whose addresses cannot be read; extract the \
         remaining data with `forebay salvage CACHE --to FOLDER`"
    )]
    SegmentLost {
        /// The segment.
        segment: u32,
        /// Dirty blocks affected.
        dirty_blocks: u32,
    },
    /// The device cannot be read behind the end of the replayed log.
    #[error(
        "segment {segment} cannot be read where the log may continue: the last writes are unknown; extract \
         the remaining data with `forebay salvage CACHE --to FOLDER`"
    )]
    TailUnreadable {
        /// The segment.
        segment: u32,
    },
    /// The device acknowledged a flush and lost data that the flush covered.
    #[error(
        "the cache device lost writes that it had flushed (stream {stream}: batch {lost} is gone): do not \
         use this device; extract the remaining data with `forebay salvage CACHE --to FOLDER`"
    )]
    LostFlushedBatch {
        /// Stream number.
        stream: u8,
        /// Stream sequence of the first batch that is missing.
        lost: u64,
    },
    /// The cache is behind its known durable progress.
    #[error("it has less data than is recorded: it is an older copy, or its device lost flushed writes")]
    Older,
    /// The superblock records that the cache was given up.
    #[error("it failed, and its volumes continued without it: its data is older than theirs")]
    GivenUp,
    /// The volume table does not have the volume.
    #[error("the cache has no volume {}", .0.0)]
    UnknownVolume(VolumeId),
    /// The backing store has become smaller.
    #[error(
        "the backing store has {now} bytes, but the volume has {recorded}: restore its full size, or discard this cache"
    )]
    BackingShrunk {
        /// Volume size in bytes.
        recorded: u64,
        /// Size of the backing store now.
        now: u64,
    },
    /// The backing store has changed since the cache last used it, and the cache holds newer data
    /// for it.
    #[error(
        "the backing store was changed while the cache was away, or is another one, and the cache holds {dirty_blocks} dirty \
         blocks for it"
    )]
    BackingChanged {
        /// Volume.
        volume: VolumeId,
        /// Dirty blocks.
        dirty_blocks: u64,
    },
    /// The backing store cannot be read.
    #[error("the backing store cannot be read")]
    BackingUnreadable,
    /// The device is one of the two of a mirrored cache.
    #[error("the device is one half of a mirrored cache: open it as such")]
    Mirrored,
    /// Neither member of a mirrored cache has a valid superblock.
    #[error("no device of the mirrored cache has a valid superblock")]
    NoMember,
    /// The two devices belong to different mirrored caches.
    #[error("the two devices belong to different mirrored caches: name the one that belongs to it")]
    OtherCache,
    /// Each of the two devices of a mirrored cache has gone on without the other.
    #[error(
        "the two devices of the mirrored cache contradict each other: each was used without the other; name only the one that is right"
    )]
    SplitMirror,
    /// The owner could not record that a member of a mirrored cache is failed out.
    #[error(
        "one device of the mirrored cache cannot be used, and that could not be recorded: make the state folder writable"
    )]
    NoNote,
    /// A backing store cannot be flushed.
    #[error("the backing store cannot be flushed")]
    BackingFlush,
    /// The cache device cannot be written or flushed.
    #[error("the cache device cannot be written")]
    CacheWrite,
    /// The cache device became shorter during opening.
    #[error(
        "the cache device is shorter than before: it was truncated, or is missing; restore its full length"
    )]
    CacheEnded,
}

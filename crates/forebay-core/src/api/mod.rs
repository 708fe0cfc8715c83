//! The interface of the engine: requests and completions go in, actions come out.
//!
//! The engine makes no system call and never sees a payload byte. Its owner (the daemon's runner,
//! or the simulator) performs every [`Action`] in the order in which it was handed out and reports
//! each one that carries an [`OpId`] with exactly one completion. Retry, splitting, ordering and
//! batching are decided here, so that the owner only translates.

pub mod config;
pub mod curve;
pub(crate) mod destage;
pub mod endurance;
pub(crate) mod lifecycle_error;
pub(crate) mod open_error;
pub mod settings;
pub(crate) mod stats;
pub mod written;

use crate::api::lifecycle_error::LifecycleError;
use crate::api::settings::Treatment;
use crate::api::stats::ScrubReport;
use forebay_format::VolumeId;
use thiserror::Error;

/// Nanoseconds since an origin of the owner's choice; never goes back.
pub type Nanos = u64;

/// A request as numbered by the owner; echoed in [`Action::Reply`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// An operation under way, as numbered by the engine. Reused after its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u32);

/// A buffer of the owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufId(pub u32);

/// The buffer of `EngineConfig::scratch_blocks` blocks, aligned to a block, that the owner keeps
/// for the engine for its whole life. The engine divides it up by itself. The owner fills it with
/// zeroes once, before the first action.
pub const SCRATCH: BufId = BufId(u32::MAX);

/// Where blocks are read to that are read only because they lie between others. Several reads may
/// write to it at once, and nobody looks at what is there.
pub const WASTE: Span = Span { buf: SCRATCH, offset: 0, len: forebay_format::BLOCK_BYTES as u32 };

/// A range of bytes in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The buffer.
    pub buf: BufId,
    /// First byte.
    pub offset: u32,
    /// Number of bytes.
    pub len: u32,
}

/// What a client asks of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Fill the buffer.
    Read,
    /// Store the buffer; with `fua` it is durable before the reply.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Everything acknowledged before this request was made becomes durable before the reply.
    Flush,
    /// The range reads as zeroes afterwards, and space may be given back.
    Discard {
        /// Durable before the reply.
        fua: bool,
    },
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// Space may be given back.
        may_unmap: bool,
    },
    /// Bring the range into the cache; needs a buffer as a read does, whose contents do not matter.
    Prefetch,
}

impl RequestKind {
    /// True if the space of the range may be given back.
    #[must_use]
    pub fn may_unmap(self) -> bool {
        matches!(self, Self::Discard { .. } | Self::WriteZeroes { may_unmap: true, .. })
    }
}

/// One request. The range must lie inside the volume and must not be empty (except for `Flush`).
///
/// **Buffers.** Byte `i` of the buffer stands for byte `offset - offset % 4096 + i` of the volume:
/// the data of an unaligned request starts `offset % 4096` bytes into its buffer, and the buffer
/// covers whole blocks. The padding belongs to the engine while the request lasts. The owner keeps
/// the buffer until the reply.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Echoed in the reply.
    pub id: RequestId,
    /// Volume asked.
    pub volume: VolumeId,
    /// What to do.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. At most [`REQUEST_BYTES_MAX`] for requests with a buffer.
    pub len: u64,
    /// Buffer of a read, write or prefetch.
    pub buf: Option<BufId>,
    /// What the owner's rules say of this request.
    pub treatment: Treatment,
    /// For a write: CRC32C of every block that the request touches, in order; only the values of
    /// blocks that it covers wholly are looked at.
    pub block_crcs: &'a [u32],
}

/// Longest read, write or prefetch, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Why a request was refused or failed. The owner maps this to its protocol's error numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// A device failed, or the data is lost; nothing else is wrong with the volume.
    #[error("input/output error")]
    Io,
    /// The request is not valid: beyond the end, empty, too long, or the volume is unknown.
    #[error("invalid request")]
    Invalid,
    /// The engine is stopping, or the volume is being detached.
    #[error("shutting down")]
    Shutdown,
}

/// A device, as the engine names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Device {
    /// The cache device.
    Cache,
    /// The backing store of a volume.
    Backing(VolumeId),
}

/// Something for the owner to do. `Copy`, `FillZero` and `Crc` must be *finished* before the next
/// action is taken. Device operations may be started later than others that were handed out after
/// them, if the owner cannot start them at once, and may complete in any order: until one has
/// completed its spans, header and metadata stay what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read `len` bytes at `offset` into the spans of [`crate::Engine::spans`]`(op)`; complete with
    /// [`crate::Engine::complete`]. If `crc` is set, the completion brings the CRC32C of each block
    /// read (the last may be shorter than a block).
    Read {
        /// Operation.
        op: OpId,
        /// Device to read.
        device: Device,
        /// Byte offset, a multiple of 512.
        offset: u64,
        /// Bytes, a multiple of 512.
        len: u32,
        /// Checksums wanted.
        crc: bool,
    },
    /// Write `len` bytes at `offset`: first the block [`crate::Engine::header`]`(op)` if there is
    /// one, then the spans of [`crate::Engine::spans`]`(op)`; complete with
    /// [`crate::Engine::complete`]. One device write, sequential.
    Write {
        /// Operation.
        op: OpId,
        /// Device to write.
        device: Device,
        /// Byte offset, a multiple of 512.
        offset: u64,
        /// Bytes, a multiple of 512, header included.
        len: u32,
    },
    /// Read `len` bytes of the cache device and complete with [`crate::Engine::complete_meta`].
    ReadMeta {
        /// Operation.
        op: OpId,
        /// Byte offset, a multiple of 4096.
        offset: u64,
        /// Bytes, a multiple of 4096; at most a segment or a checkpoint slot.
        len: u32,
    },
    /// Write the bytes of [`crate::Engine::meta`]`(op)` to the cache device; complete with
    /// [`crate::Engine::complete`].
    WriteMeta {
        /// Operation.
        op: OpId,
        /// Byte offset, a multiple of 4096.
        offset: u64,
    },
    /// Make every write of the device that has completed so far durable.
    Flush {
        /// Operation.
        op: OpId,
        /// Device to flush.
        device: Device,
    },
    /// As `Flush`, of one member of a mirrored cache.
    FlushMember {
        /// Operation.
        op: OpId,
        /// The member, 0 or 1.
        member: u8,
    },
    /// Make a range of a backing store read as zeroes.
    Zero {
        /// Operation.
        op: OpId,
        /// Volume whose backing store it is.
        volume: VolumeId,
        /// Byte offset, a multiple of 512.
        offset: u64,
        /// Bytes, a multiple of 512.
        len: u64,
        /// Space may be given back.
        may_unmap: bool,
    },
    /// Tell the cache device that nothing counts in a whole segment, which nobody reads or writes
    /// until this has ended. What the segment reads as afterwards does not matter, nor after a
    /// crash.
    DiscardSegment {
        /// Operation.
        op: OpId,
        /// Byte offset, a multiple of 4096.
        offset: u64,
        /// Bytes: those of a segment.
        len: u64,
    },
    /// Copy bytes between buffers; same length, no overlap.
    Copy {
        /// Source.
        from: Span,
        /// Destination.
        to: Span,
    },
    /// Fill with zeroes.
    FillZero {
        /// Destination.
        span: Span,
    },
    /// Compute the CRC32C of a span of one block; complete with it before the next action.
    Crc {
        /// Operation.
        op: OpId,
        /// The block.
        span: Span,
    },
    /// The request is done; the buffer is the owner's again.
    Reply {
        /// The request.
        request: RequestId,
        /// How it ended.
        result: Result<(), RequestError>,
        /// Which way it went.
        path: RequestOutcome,
        /// Time since it was submitted.
        took: Nanos,
        /// Its volume.
        volume: VolumeId,
        /// Bytes that it asked for.
        bytes: u64,
    },
    /// Something that an operator or a test wants to know.
    Notice(Notice),
    /// A volume that is being detached and kept has come to rest: call
    /// [`crate::Engine::finish_detach`].
    VolumeQuiet {
        /// The volume.
        volume: VolumeId,
    },
    /// After [`crate::Engine::begin_shutdown`]: nothing is in flight any more; call
    /// [`crate::Engine::finish_shutdown`].
    Quiesced,
    /// The engine has closed the cache in an orderly way. Nothing follows.
    Closed,
    /// The cache device has failed. Make durable, **outside of it**, that this cache (its identity)
    /// must never be opened again as if it were current, and what is at risk
    /// ([`crate::Engine::at_risk`], asked when this is handed out or later). Then answer with
    /// [`crate::Engine::loss_recorded`]. Until the first such record is durable nothing goes past
    /// the cache: after a restart its old contents would come back. Later ones bring the record up
    /// to date.
    RecordLoss {
        /// Echoed in the answer.
        ticket: u64,
    },
    /// A member of a mirrored cache has failed. Make durable, **outside of the cache**, that the
    /// device with its tag ([`crate::Engine::mirror_state`]) must never be believed again; then
    /// answer with [`crate::Engine::member_recorded`]. Until then nothing counts that only the
    /// other member has.
    RecordOut {
        /// Echoed in the answer.
        ticket: u64,
        /// The member, 0 or 1.
        member: u8,
    },
}

impl Action {
    /// The operation, if this is one of the cache device.
    pub(crate) fn of_cache(&self) -> Option<OpId> {
        match self {
            Self::Read { op, device: Device::Cache, .. }
            | Self::Write { op, device: Device::Cache, .. }
            | Self::Flush { op, device: Device::Cache }
            | Self::WriteMeta { op, .. }
            | Self::FlushMember { op, .. } => Some(*op),
            _ => None,
        }
    }
}

/// Which way a request went, for statistics by path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RequestOutcome {
    /// A read that the cache answered alone.
    ReadHit,
    /// A read that needed the backing store.
    ReadMiss,
    /// A read that needed the backing store and was not to be cached.
    ReadBypass,
    /// A write that was acknowledged by the cache.
    Write,
    /// A write that went to cache and backing store.
    WriteThrough,
    /// A write that went past the cache.
    WritePast,
    /// A FLUSH.
    Flush,
    /// Zeroes or a discard.
    Zero,
    /// A prefetch.
    Prefetch,
    /// Refused before anything was done.
    Refused,
}

/// Bytes of a volume that only the cache had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// Number of bytes, a multiple of 512.
    pub bytes: u64,
    /// Time since the oldest of them were written.
    pub age: Nanos,
}

/// What is lost of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossTotal {
    /// The volume.
    pub volume: VolumeId,
    /// Bytes.
    pub bytes: u64,
    /// Ranges that they are in, none next to another.
    pub ranges: u64,
}

/// A device operation failed. The engine retries what can be retried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeviceFailure {
    /// In some way.
    #[error("device operation failed")]
    Failed,
    /// The device ends before the end that it had: it was cut, or is gone, perhaps for a moment.
    /// Nothing was done, and what was read is not to be used. Says nothing of the data.
    #[error("the device has ended")]
    Ended,
    /// The device does not have this operation, and never will.
    #[error("the device does not have this operation")]
    Unsupported,
}

/// Something worth telling; never needed for correctness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A cached block did not match its checksum (or could not be read). A clean one is refetched;
    /// a dirty one is lost, its valid sectors answer with an I/O error until they are written
    /// again.
    BlockDamaged {
        /// Volume.
        volume: VolumeId,
        /// Block of the volume.
        block: u64,
        /// The only copy was here.
        lost: bool,
    },
    /// A destage write or backing flush failed; it will be retried.
    DestageFailed {
        /// Volume.
        volume: VolumeId,
        /// Time until the retry.
        retry_in: Nanos,
    },
    /// A cache write failed; the batch moves to another segment.
    CacheWriteFailed {
        /// Segment that was being written.
        segment: u32,
    },
    /// The cache device does not have discards: there are no more of them until the next start.
    DiscardsRefused,
    /// The cache device failed: it takes nothing any more. Requests wait until
    /// [`Action::RecordLoss`] is answered.
    CacheFenced,
    /// A member of a mirrored cache failed. Writes wait until [`Action::RecordOut`] is answered.
    MemberFailed {
        /// The member, 0 or 1.
        member: u8,
    },
    /// A member of a mirrored cache does not count any more; everything goes on with the other one.
    MemberOut {
        /// The member, 0 or 1.
        member: u8,
    },
    /// A new member of a mirrored cache has everything that it must have: both count.
    MirrorWhole,
    /// A new member of a mirrored cache failed before it had everything.
    RebuildFailed,
    /// The cache is given up: the engine goes on without it, and writes to the backing stores what
    /// only the cache has.
    RunsWithoutCache,
    /// Everything that a cache that was given up had of attached volumes is on their backing
    /// stores, or lost.
    RescueEnded {
        /// Blocks of which something is lost.
        lost_blocks: u64,
    },
    /// The cache was given up, and with it the guarantee of ordered destage: what is rescued is
    /// written in any order.
    OrderEnded {
        /// Volume.
        volume: VolumeId,
    },
    /// A checkpoint took effect.
    Checkpointed {
        /// Its generation.
        generation: u64,
    },
    /// A version of a block was lost before ordered destage could write it: the backing store alone
    /// is no crash-consistent image any more, until what is dirty now has been written back.
    OrderBroken {
        /// Volume.
        volume: VolumeId,
        /// Block of the volume.
        block: u64,
    },
    /// A volume that is not attached has lost the guarantee of ordered destage, because what it has
    /// dirty had to be moved to make room: when it is attached again its backing store alone is no
    /// crash-consistent image until what is dirty now has been written back.
    OrderYielded {
        /// Volume.
        volume: VolumeId,
    },
    /// The backing store changed while the cache was away: clean blocks were dropped, and dirty
    /// ones if that was asked for.
    BackingChanged {
        /// Volume.
        volume: VolumeId,
        /// Clean blocks dropped.
        dropped: u64,
        /// Dirty blocks thrown away, because the operator wanted that
        /// (`OnBackingChange::DiscardDirty`).
        discarded: u64,
    },
    /// Nobody can tell whether the backing store changed after a crash: clean blocks were dropped,
    /// to be sure.
    BackingUncertain {
        /// Volume.
        volume: VolumeId,
        /// Clean blocks dropped.
        dropped: u64,
    },
    /// A volume is attached: it takes requests from now on.
    Attached {
        /// Volume.
        volume: VolumeId,
    },
    /// A volume could not be attached.
    AttachFailed {
        /// Volume.
        volume: VolumeId,
        /// Why.
        error: LifecycleError,
    },
    /// A volume is detached, durably: the engine does not touch its backing store any more.
    Detached {
        /// Volume.
        volume: VolumeId,
    },
    /// A volume was not detached and is served as before; or the cache is fenced, and it is open
    /// whether the volume is there at the next start ([`crate::Engine::volume_size_bytes`] tells
    /// whether it is served until then).
    DetachFailed {
        /// Volume.
        volume: VolumeId,
        /// Why.
        error: LifecycleError,
    },
    /// A volume has its new size, durably.
    VolumeResized {
        /// Volume.
        volume: VolumeId,
        /// Size in bytes.
        bytes: u64,
    },
    /// A volume keeps its size, or the cache is fenced and it is open which size it has at the next
    /// start.
    ResizeFailed {
        /// Volume.
        volume: VolumeId,
        /// Why.
        error: LifecycleError,
    },
    /// A scrub has ended.
    ScrubEnded {
        /// What it has done.
        report: ScrubReport,
        /// It went through everything; else it was cancelled, or the engine stops or goes on
        /// without its cache.
        complete: bool,
    },
    /// The pool has its new size, durably; what was left out of the device can be taken away.
    PoolResized {
        /// Segments now.
        segments: u32,
    },
    /// The pool keeps its size, or the cache is fenced and it is open which size it has at the next
    /// start.
    PoolResizeFailed {
        /// Why.
        error: LifecycleError,
    },
}

//! The interface of the engine: it takes requests and completions and returns actions.
//!
//! The engine makes no system call and never accesses payload bytes. Its owner (the daemon's
//! runner, or the simulator) performs every [`Action`] in the order in which the engine returned
//! it, and reports exactly one completion for each that carries an [`OpId`]. The engine decides on
//! retry, splitting, ordering and batching, so that the owner only translates.

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

/// The owner's number of a request; echoed in [`OwnerAction::Reply`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// The engine's number of an operation in flight. Reused after its completion.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OpId(pub u32);

/// A buffer of the owner.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufId(pub u32);

/// The buffer of `EngineConfig::scratch_blocks` blocks, aligned to a block, that the owner keeps
/// for the engine for its whole life. The engine allocates from it. The owner fills it with zeroes
/// once, before the first action.
pub const SCRATCH: BufId = BufId(u32::MAX);

/// Target of reads of blocks that are read only because they lie between others. Several reads may
/// write to it concurrently; the engine never uses its content.
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

/// Kind of a client's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestKind {
    /// Fill the buffer.
    Read,
    /// Store the buffer.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make every write acknowledged before this request durable before the reply.
    Flush,
    /// Make the range read as zeroes; the backing store may deallocate its space.
    Discard {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make the range read as zeroes.
    WriteZeroes {
        /// Durable before the reply.
        fua: bool,
        /// The backing store may deallocate the space.
        may_unmap: bool,
    },
    /// Bring the range into the cache; needs a buffer like a read, whose content is undefined.
    Prefetch,
}

impl RequestKind {
    /// Returns true if the backing store may deallocate the space of the range.
    #[must_use]
    pub fn may_unmap(self) -> bool {
        matches!(self, Self::Discard { .. } | Self::WriteZeroes { may_unmap: true, .. })
    }
}

/// One request. The range must lie inside the volume and must not be empty (except for `Flush`).
///
/// **Buffers.** Byte `i` of the buffer is byte `offset - offset % 4096 + i` of the volume: the data
/// of an unaligned request starts `offset % 4096` bytes into its buffer, and the buffer covers
/// whole blocks. The engine may use the padding until the reply. The owner keeps the buffer until
/// the reply.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Echoed in the reply.
    pub id: RequestId,
    /// Volume addressed.
    pub volume: VolumeId,
    /// What to do.
    pub kind: RequestKind,
    /// First byte.
    pub offset: u64,
    /// Number of bytes. At most [`REQUEST_BYTES_MAX`] for requests with a buffer.
    pub len: u64,
    /// Buffer of a read, write or prefetch.
    pub buf: Option<BufId>,
    /// Treatment of this request by the owner's rules.
    pub treatment: Treatment,
    /// For a write: CRC32C of every block that the request touches, in order; the engine uses only
    /// the values of blocks that it covers wholly.
    pub block_crcs: &'a [u32],
}

/// Longest read, write or prefetch, in bytes.
pub const REQUEST_BYTES_MAX: u64 = 32 << 20;

/// Why a request was refused or failed. The owner maps this to its protocol's error numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// A device failed, or the data is lost; the rest of the volume is unaffected.
    #[error("input/output error")]
    Io,
    /// The request is not valid: beyond the end, empty, too long, or the volume is unknown.
    #[error("invalid request")]
    Invalid,
    /// The engine is stopping, or the volume is being detached.
    #[error("shutting down")]
    Shutdown,
}

/// A device of the engine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Device {
    /// The cache device.
    Cache,
    /// The backing store of a volume.
    Backing(VolumeId),
}

/// An action of the engine. A driver matches both enums without a wildcard, so that an action that
/// it does not handle is a compile error and no operation is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// For the devices and buffers.
    Io(IoAction),
    /// For the owner itself.
    Owner(OwnerAction),
}

/// An operation on a device or a buffer. The owner must *finish* `Copy`, `FillZero` and `Crc`
/// before it takes the next action. If it cannot start a device operation at once, it may start it
/// after later ones; operations may complete in any order. Until an operation has completed, its
/// spans, header and metadata do not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoAction {
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
        /// Whether the completion must bring checksums.
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
    /// As `Flush`, for one member of a mirrored cache.
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
        /// Volume of the backing store.
        volume: VolumeId,
        /// Byte offset, a multiple of 512.
        offset: u64,
        /// Bytes, a multiple of 512.
        len: u64,
        /// The backing store may deallocate the space.
        may_unmap: bool,
    },
    /// Discard a whole segment of the cache device, which holds no live data. The engine does not
    /// read or write it until this has completed. Its content is undefined afterwards, also after a
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
}

impl IoAction {
    /// Returns the operation, if this is one of the cache device that the engine may repeat.
    pub(crate) fn of_cache(&self) -> Option<OpId> {
        match self {
            Self::Read { op, device: Device::Cache, .. }
            | Self::Write { op, device: Device::Cache, .. }
            | Self::Flush { op, device: Device::Cache }
            | Self::WriteMeta { op, .. }
            | Self::FlushMember { op, .. } => Some(*op),
            Self::Read { device: Device::Backing(_), .. }
            | Self::Write { device: Device::Backing(_), .. }
            | Self::Flush { device: Device::Backing(_), .. }
            | Self::ReadMeta { .. }
            | Self::Zero { .. }
            | Self::DiscardSegment { .. }
            | Self::Copy { .. }
            | Self::FillZero { .. }
            | Self::Crc { .. } => None,
        }
    }
}

/// A message of the engine to its owner: a reply, a notice, or a request that the owner answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerAction {
    /// Reply to the client: the request is done. The buffer belongs to the owner again.
    Reply {
        /// The request.
        request: RequestId,
        /// How it ended.
        result: Result<(), RequestError>,
        /// Its path.
        path: RequestOutcome,
        /// Time since its submission, in nanoseconds.
        took: Nanos,
        /// Its volume.
        volume: VolumeId,
        /// Bytes requested.
        bytes: u64,
    },
    /// Information for an operator or a test.
    Notice(Notice),
    /// A volume that is being detached and kept has no writes in flight: call
    /// [`crate::Engine::finish_detach`].
    VolumeQuiet {
        /// The volume.
        volume: VolumeId,
    },
    /// After [`crate::Engine::begin_shutdown`]: nothing is in flight; call
    /// [`crate::Engine::finish_shutdown`].
    Quiesced,
    /// The engine has closed the cache, by an orderly stop unless it is fenced. Nothing follows.
    Closed,
    /// The cache device has failed. Write a durable record, **outside the device**, that this cache
    /// (its identity) must never be opened again as if it were current, and of the data at risk
    /// ([`crate::Engine::at_risk`], called now or later). Then answer with
    /// [`crate::Engine::loss_recorded`]. Until the first such record is durable no request bypasses
    /// the cache: after a restart the old content of the cache would return. Later ones update the
    /// record.
    RecordLoss {
        /// Echoed in the answer.
        ticket: u64,
    },
    /// A member of a mirrored cache has failed. Write a durable record, **outside the cache**, that
    /// the device with its tag ([`crate::Engine::mirror_state`]) is stale and must never be used as
    /// a member again; then answer with [`crate::Engine::member_recorded`]. Until then nothing that
    /// only the other member holds counts as durable.
    RecordOut {
        /// Echoed in the answer.
        ticket: u64,
        /// The member, 0 or 1.
        member: u8,
    },
}

/// Path of a request, for statistics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RequestOutcome {
    /// A read that the cache answered alone.
    ReadHit,
    /// A read that needed the backing store.
    ReadMiss,
    /// A read that needed the backing store and was not cacheable.
    ReadBypass,
    /// A write that was acknowledged by the cache.
    Write,
    /// A write to cache and backing store.
    WriteThrough,
    /// A bypass write.
    WritePast,
    /// A FLUSH.
    Flush,
    /// Zeroes or a discard.
    Zero,
    /// A prefetch.
    Prefetch,
    /// A request refused on arrival.
    Refused,
}

/// A range of a volume at risk or lost: only the cache had it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// Number of bytes, a multiple of 512.
    pub bytes: u64,
    /// Time since the oldest of them were written, in nanoseconds.
    pub age: Nanos,
}

/// Total losses of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossTotal {
    /// The volume.
    pub volume: VolumeId,
    /// Bytes.
    pub bytes: u64,
    /// Number of ranges that they form, none adjacent to another.
    pub ranges: u64,
}

/// Failure of a device operation. The engine retries operations where a retry can help.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum DeviceFailure {
    /// Any other failure.
    #[error("device operation failed")]
    Failed,
    /// The device ends before its recorded end: it was truncated, or is gone, perhaps only for a
    /// moment. The operation had no effect, and its read data is not valid. Not a failure of the
    /// data.
    #[error("the device has ended")]
    Ended,
    /// The device does not support this operation.
    #[error("the device does not support this operation")]
    Unsupported,
}

/// Information for events and logs; never needed for correctness.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A cached block did not match its checksum (or could not be read). The engine refetches a
    /// clean one; a dirty one is lost: reads of its valid sectors fail until they are overwritten.
    BlockDamaged {
        /// Volume.
        volume: VolumeId,
        /// Block of the volume.
        block: u64,
        /// The cache held the only copy.
        lost: bool,
    },
    /// A destage write or backing flush failed; it will be retried.
    DestageFailed {
        /// Volume.
        volume: VolumeId,
        /// Time until the retry, in nanoseconds.
        retry_in: Nanos,
    },
    /// A cache write failed; the batch moves to another segment.
    CacheWriteFailed {
        /// Segment of the failed write.
        segment: u32,
    },
    /// The cache device does not support discards: the engine sends no more until the next start.
    DiscardsRefused,
    /// The cache device failed and takes no more writes. Requests wait until the owner answers
    /// [`OwnerAction::RecordLoss`].
    CacheFenced,
    /// A member of a mirrored cache failed. Writes wait until the owner answers
    /// [`OwnerAction::RecordOut`].
    MemberFailed {
        /// The member, 0 or 1.
        member: u8,
    },
    /// A member of a mirrored cache is failed out; the engine continues with the other one.
    MemberOut {
        /// The member, 0 or 1.
        member: u8,
    },
    /// The rebuild of a new member of a mirrored cache is complete: both members are active.
    MirrorWhole,
    /// A new member of a mirrored cache failed before its rebuild was complete.
    RebuildFailed,
    /// The cache is given up: the engine runs without it, and writes its dirty data to the backing
    /// stores.
    RunsWithoutCache,
    /// All dirty data of attached volumes in a cache that was given up is on their backing stores,
    /// or lost.
    RescueEnded {
        /// Blocks with lost sectors.
        lost_blocks: u64,
    },
    /// The cache was given up, and with it the guarantee of ordered destage: the rescue writes
    /// blocks in any order.
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
    /// is not a crash-consistent image until the present dirty blocks have been written back.
    OrderBroken {
        /// Volume.
        volume: VolumeId,
        /// Block of the volume.
        block: u64,
    },
    /// A volume that is not attached has lost the guarantee of ordered destage, because its dirty
    /// blocks had to be moved to make room: once it is attached again, its backing store alone is
    /// not a crash-consistent image until the present dirty blocks have been written back.
    OrderYielded {
        /// Volume.
        volume: VolumeId,
    },
    /// The backing store changed while the volume was not attached: the engine dropped its clean
    /// blocks, and its dirty ones if the operator requested that.
    BackingChanged {
        /// Volume.
        volume: VolumeId,
        /// Clean blocks dropped.
        dropped: u64,
        /// Dirty blocks dropped at the operator's request (`OnBackingChange::DiscardDirty`).
        discarded: u64,
    },
    /// It is unknown whether the backing store changed after a crash: the engine dropped the
    /// volume's clean blocks as a precaution.
    BackingUncertain {
        /// Volume.
        volume: VolumeId,
        /// Clean blocks dropped.
        dropped: u64,
    },
    /// A volume is attached and takes requests from now on.
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
    /// A volume is detached, durably: the engine no longer accesses its backing store.
    Detached {
        /// Volume.
        volume: VolumeId,
    },
    /// A volume was not detached and the engine serves it as before; or the cache is fenced, and it
    /// is undetermined whether the volume exists at the next start
    /// ([`crate::Engine::volume_size_bytes`] returns whether the engine serves it until then).
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
    /// A volume keeps its size, or the cache is fenced and the volume's size at the next start is
    /// undetermined.
    ResizeFailed {
        /// Volume.
        volume: VolumeId,
        /// Why.
        error: LifecycleError,
    },
    /// A scrub has ended.
    ScrubEnded {
        /// Its results.
        report: ScrubReport,
        /// It checked all segments; else it was cancelled, or the engine stops or runs without its
        /// cache.
        complete: bool,
    },
    /// The pool has its new size, durably; the owner may remove the unused end of the device.
    PoolResized {
        /// Segments now.
        segments: u32,
    },
    /// The pool keeps its size, or the cache is fenced and the pool's size at the next start is
    /// undetermined.
    PoolResizeFailed {
        /// Why.
        error: LifecycleError,
    },
}

//! Operations in flight: purpose, and the resources that each holds until it ends.

use crate::api::written::Payload;
use crate::api::{Device, IoAction, Nanos, Span};
use crate::context::pages::Page;
use crate::context::recovery_reads::RecoveryRead;
use crate::map::segment::Key;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::{BLOCK_BYTES, StreamKind, VolumeId};

/// A read of missing blocks: which attempt, and the token of the fills that it registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Miss {
    pub(crate) token: u64,
    pub(crate) tries: u32,
}

/// Purpose of an operation.
#[derive(Debug)]
pub(crate) enum OpKind {
    Batch(StreamKind),
    ReadHit {
        req: u32,
        slot: u32,
        count: u32,
        tries: u32,
    },
    ReadMiss {
        req: u32,
        block: u64,
        count: u32,
        miss: Miss,
    },
    MergeBacking {
        merge: u32,
    },
    MergeCached {
        merge: u32,
        tries: u32,
    },
    MergeCrc {
        merge: u32,
    },
    DirectWrite {
        direct: u32,
    },
    GapRead {
        extent: u32,
    },
    DestageRead {
        extent: u32,
        at: u32,
        count: u32,
        tries: u32,
    },
    DestageWrite {
        extent: u32,
    },
    RelocateRead {
        relocation: u32,
    },
    ScrubRead {
        read: u32,
    },
    ScrubFetch {
        key: Key,
        page: Page,
        token: u64,
    },
    Flush(Device),
    /// An empty segment, or one of the two of a column.
    Discard,
    Checkpoint,
    /// A piece of a base, with which a later checkpoint begins.
    CheckpointBase,
    Recovery(RecoveryRead),
    Sample {
        volume: VolumeId,
        index: u32,
    },
    /// Of the backing store of a volume that is being attached.
    LifecycleFlush(VolumeId),
    /// A copy to a new member of a mirrored cache.
    CopyRead,
    CopyWrite,
    /// A write of data that recovery found on one member only, to the other.
    MemberRepair,
    /// A rewrite of unflushed batches at a start: bytes of a segment, at their location in the
    /// cache.
    RewriteUnflushed {
        segment: u32,
        offset: u64,
        len: u32,
    },
    /// A comparison of the copies of a block on the two members, and a rewrite.
    RepairRead,
    RepairWrite,
}

impl OpKind {
    /// Returns true for operations on the cache device.
    pub(crate) fn is_of_cache(&self) -> bool {
        match self {
            Self::ReadMiss { .. }
            | Self::MergeBacking { .. }
            | Self::MergeCrc { .. }
            | Self::DirectWrite { .. }
            | Self::GapRead { .. }
            | Self::DestageWrite { .. }
            | Self::ScrubFetch { .. }
            | Self::Flush(Device::Backing(_))
            | Self::Sample { .. }
            | Self::LifecycleFlush(_) => false,
            Self::Batch(_)
            | Self::ReadHit { .. }
            | Self::MergeCached { .. }
            | Self::DestageRead { .. }
            | Self::RelocateRead { .. }
            | Self::ScrubRead { .. }
            | Self::Flush(Device::Cache)
            | Self::Discard
            | Self::Checkpoint
            | Self::CheckpointBase
            | Self::Recovery(_)
            | Self::CopyRead
            | Self::CopyWrite
            | Self::MemberRepair
            | Self::RewriteUnflushed { .. }
            | Self::RepairRead
            | Self::RepairWrite => true,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// When it was submitted, and the volume if it reads or writes a backing store.
    pub(crate) started_at: Nanos,
    pub(crate) backing: Option<VolumeId>,
    /// The member of a mirrored cache for which it is.
    pub(crate) member: u8,
    /// The first of the cached blocks that it reads.
    pub(crate) slot: Option<u32>,
    /// Number of the attempt, if it reads one cached block.
    pub(crate) attempt: Option<u32>,
    /// How often it was repeated.
    pub(crate) asked: u8,
    /// The action, if it is on the cache device, and how often it was repeated because the device
    /// was shortened.
    pub(crate) action: Option<IoAction>,
    pub(crate) ended: u8,
    pub(crate) len: u32,
    /// Blocks of a batch.
    pub(crate) payload: Payload,
    pub(crate) spans: Vec<Span>,
    pub(crate) header: Option<Box<[u8; BLOCK_BYTES]>>,
    /// Both copies of a checkpoint are written from the same bytes.
    pub(crate) meta: Option<Arc<Vec<u8>>>,
}

/// An ended operation whose buffers were released.
pub(crate) struct DoneOp {
    pub(crate) id: u32,
    pub(crate) kind: OpKind,
    pub(crate) started_at: Nanos,
    pub(crate) backing: Option<VolumeId>,
    pub(crate) member: u8,
    pub(crate) slot: Option<u32>,
    pub(crate) len: u32,
}

impl DoneOp {
    pub(crate) fn batch_id(&self) -> u32 {
        self.id
    }
}

//! Operations under way: what each is for, and what it needs until it ends.

use crate::api::written::Payload;
use crate::api::{Action, Device, Nanos, Span};
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

/// What an operation is for.
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
    /// A segment that holds nothing, or one of the two of a column.
    Discard,
    Checkpoint,
    /// A piece of a base, which a later checkpoint begins with.
    CheckpointBase,
    Recovery(RecoveryRead),
    Sample {
        volume: VolumeId,
        index: u32,
    },
    /// The backing store of a volume that is being attached.
    LifecycleFlush(VolumeId),
    /// What is copied to a new member of a mirrored cache.
    CopyRead,
    CopyWrite,
    /// What a member lacks that the other one has, found by recovery.
    Mend,
    /// What is written again at a start: bytes of a segment, where they are in the cache.
    RewriteUnflushed {
        segment: u32,
        offset: u64,
        len: u32,
    },
    /// A block of which the copies on the two members are looked at, and written again.
    RepairRead,
    RepairWrite,
}

impl OpKind {
    /// It is one of the cache device.
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
            | Self::Mend
            | Self::RewriteUnflushed { .. }
            | Self::RepairRead
            | Self::RepairWrite => true,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// When it was handed out, and the volume if it reads or writes a backing store.
    pub(crate) started_at: Nanos,
    pub(crate) backing: Option<VolumeId>,
    /// The member of a mirrored cache that it is for.
    pub(crate) member: u8,
    /// The first of the cached blocks that it reads.
    pub(crate) slot: Option<u32>,
    /// It reads one cached block, and this is the so-many-th attempt.
    pub(crate) attempt: Option<u32>,
    /// How often it was asked for again.
    pub(crate) asked: u8,
    /// How it was asked for, if it is one of the cache device, and how often it was asked for again
    /// because that had ended.
    pub(crate) action: Option<Action>,
    pub(crate) ended: u8,
    pub(crate) len: u32,
    /// Blocks of a batch.
    pub(crate) payload: Payload,
    pub(crate) spans: Vec<Span>,
    pub(crate) header: Option<Box<[u8; BLOCK_BYTES]>>,
    /// Both copies of a checkpoint are written from the same bytes.
    pub(crate) meta: Option<Arc<Vec<u8>>>,
}

/// What is left of an operation once its buffers are given back.
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

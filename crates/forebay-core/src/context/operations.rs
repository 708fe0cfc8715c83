//! Operations in flight: purpose, and the resources that each holds until it ends.

use crate::api::written::Payload;
use crate::api::{Device, IoAction, Nanos, OpId, Span};
use crate::base::slab::Slab;
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

/// The operations in flight, with the memory of ended ones for the next.
#[derive(Debug)]
pub(crate) struct Operations {
    all: Slab<Op>,
    spare_spans: Vec<Vec<Span>>,
    spare_headers: Vec<Box<[u8; BLOCK_BYTES]>>,
}

impl Operations {
    pub(crate) fn new() -> Self {
        Self { all: Slab::new(), spare_spans: Vec::new(), spare_headers: Vec::new() }
    }

    /// Begins an operation without buffers; returns its number.
    pub(crate) fn begin(&mut self, kind: OpKind, now: Nanos) -> u32 {
        let spans = self.spare_spans.pop().unwrap_or_default();
        self.all.insert(Op {
            kind,
            started_at: now,
            backing: None,
            member: 0,
            slot: None,
            attempt: None,
            asked: 0,
            action: None,
            ended: 0,
            len: 0,
            payload: Payload::default(),
            spans,
            header: None,
            meta: None,
        })
    }

    /// Begins another write of a batch with the same bytes.
    pub(crate) fn copy(&mut self, op: u32, kind: StreamKind, now: Nanos) -> u32 {
        let copy = self.begin(OpKind::Batch(kind), now);
        let from = self.all.get_mut(op);
        let (spans, meta, header) = (core::mem::take(&mut from.spans), from.meta.clone(), from.header.take());
        let payload = from.payload;
        if let Some(header) = header {
            let mut bytes = self.spare_header();
            bytes.copy_from_slice(&header[..]);
            self.all.get_mut(copy).header = Some(bytes);
            self.all.get_mut(op).header = Some(header);
        }
        let to = self.all.get_mut(copy);
        to.spans.extend_from_slice(&spans);
        (to.meta, to.payload) = (meta, payload);
        self.all.get_mut(op).spans = spans;
        copy
    }

    /// Returns memory for the header of a batch.
    pub(crate) fn spare_header(&mut self) -> Box<[u8; BLOCK_BYTES]> {
        self.spare_headers.pop().unwrap_or_else(|| Box::new([0; BLOCK_BYTES]))
    }

    /// Ends an operation and releases its buffers.
    pub(crate) fn end(&mut self, op: OpId) -> DoneOp {
        let mut done = self.all.remove(op.0);
        done.spans.clear();
        self.spare_spans.push(done.spans);
        if let Some(header) = done.header {
            self.spare_headers.push(header);
        }
        DoneOp {
            id: op.0,
            kind: done.kind,
            started_at: done.started_at,
            backing: done.backing,
            member: done.member,
            slot: done.slot,
            len: done.len,
        }
    }

    /// Forgets an operation that was never submitted.
    pub(crate) fn drop_unused(&mut self, op: u32) {
        self.all.remove(op);
    }

    #[inline]
    pub(crate) fn get(&self, op: u32) -> &Op {
        self.all.get(op)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, op: u32) -> &mut Op {
        self.all.get_mut(op)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Op> {
        self.all.iter()
    }

    /// Returns the number of operations in flight.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }
}

//! Writes to the cache device, by cause: of each operation, and of all.

use crate::api::written::{Payload, WrittenBytes};
use crate::context::Context;
use crate::context::operations::{Op, OpKind};
use crate::context::streams::ItemOwner;
use forebay_format::BLOCK_BYTES;

impl Payload {
    /// Counts a block of a batch.
    #[inline]
    pub(crate) fn add(&mut self, owner: ItemOwner) {
        *match owner {
            ItemOwner::Request(_) | ItemOwner::Merge(..) => &mut self.clients,
            ItemOwner::Copy(_) => &mut self.copies,
            ItemOwner::Fill(..) => &mut self.fills,
            ItemOwner::Kept(_) => &mut self.kept,
            ItemOwner::Survivor(_) => &mut self.moved,
            ItemOwner::Intent(_) | ItemOwner::Drop(_) => return,
        } += 1;
    }
}

impl Op {
    /// Returns the bytes that it writes to the cache device, by cause.
    pub(crate) fn written(&self) -> WrittenBytes {
        let block = BLOCK_BYTES as u64;
        let spans = || self.spans.iter().map(|span| u64::from(span.len)).sum::<u64>();
        let meta = self.meta.as_ref().map_or(0, |meta| meta.len() as u64);
        let mut written = WrittenBytes::default();
        match self.kind {
            OpKind::Batch(_) => {
                let Payload { clients, copies, fills, kept, moved } = self.payload;
                let bytes = |blocks: u16| u64::from(blocks) * block;
                written.headers = meta + if self.header.is_some() { block } else { 0 };
                (written.clients, written.copies, written.fills) =
                    (bytes(clients), bytes(copies), bytes(fills));
                (written.kept, written.moved) = (bytes(kept), bytes(moved));
            }
            OpKind::Checkpoint | OpKind::CheckpointBase => written.checkpoints = meta,
            OpKind::CopyWrite | OpKind::RepairWrite | OpKind::MemberRepair => {
                written.rebuilds = meta + spans()
            }
            OpKind::RewriteUnflushed { .. } => written.restarts = meta + spans(),
            // Reads, flushes, discards, and writes to backing stores.
            OpKind::ReadHit { .. }
            | OpKind::ReadMiss { .. }
            | OpKind::MergeBacking { .. }
            | OpKind::MergeCached { .. }
            | OpKind::MergeCrc { .. }
            | OpKind::DirectWrite { .. }
            | OpKind::GapRead { .. }
            | OpKind::DestageRead { .. }
            | OpKind::DestageWrite { .. }
            | OpKind::RelocateRead { .. }
            | OpKind::ScrubRead { .. }
            | OpKind::ScrubFetch { .. }
            | OpKind::Flush(_)
            | OpKind::Discard
            | OpKind::Recovery(_)
            | OpKind::Sample { .. }
            | OpKind::LifecycleFlush(_)
            | OpKind::CopyRead
            | OpKind::RepairRead => {}
        }
        written
    }
}

impl Context {
    /// Counts a write of `len` bytes to the cache device.
    pub(crate) fn count_cache_write(&mut self, op: u32, offset: u64, len: u32) {
        let written = self.ops.get(op).written();
        assert!(written.total() == u64::from(len), "I78: all that is written has a cause");
        self.stats.count_cache_writes(1, &written);
        let member = self.superblock.mirror.is_some().then(|| self.map.geometry.mirror_place(offset).0);
        self.devices_written.add(member, offset, written);
        self.charge_endurance(&written);
    }

    /// Counts the owner's writes to the device with this key, which is the target of a device copy.
    /// The endurance budget is charged for them, but does not restrain them.
    pub(crate) fn count_copied(&mut self, key: u64, writes: u64, bytes: u64) {
        let written = WrittenBytes { copied: bytes, ..WrittenBytes::default() };
        self.stats.count_cache_writes(writes, &written);
        self.devices_written.add_to_new(key, written);
        self.charge_endurance(&written);
    }
}

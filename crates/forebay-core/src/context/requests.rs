//! Client requests in flight.

use crate::api::settings::Treatment;
use crate::api::{BufId, Nanos, RequestId, RequestKind, Span};
use crate::context::locks::BlockRange;
use crate::context::sectors::BLOCK;
use crate::map::segment::Key;
use alloc::vec::Vec;
use forebay_format::VolumeId;

/// A client request in flight.
#[derive(Debug)]
pub(crate) struct Req {
    pub(crate) id: RequestId,
    pub(crate) volume: VolumeId,
    pub(crate) kind: RequestKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) first_block: u64,
    pub(crate) last_block: u64,
    pub(crate) buf: BufId,
    /// Checksums of the blocks of a write.
    pub(crate) crcs: Vec<u32>,
    /// Parts in flight.
    pub(crate) pending: u32,
    pub(crate) failed: bool,
    /// It fails because its volume ends, not because of a device.
    pub(crate) refused: bool,
    /// A flush of the cache device that it needs failed.
    pub(crate) cache_failed: bool,
    /// It was begun, or repeated, without the cache: its failure is final.
    pub(crate) redone: bool,
    pub(crate) locked: bool,
    /// The volume was in a write-back mode when the request arrived; later changes do not affect
    /// it.
    pub(crate) write_back: bool,
    /// A bypass write leaves a clean copy in the cache.
    pub(crate) copies: bool,
    pub(crate) treatment: Treatment,
    /// Blocks that are counted as on their way to the log but have not started.
    pub(crate) reserved: u64,
    /// The treatment follows from a sequential stream, not from a rule.
    pub(crate) sequential: bool,
    /// A part came from the backing store.
    pub(crate) missed: bool,
    /// A part of it has bypassed the cache, and has ended.
    pub(crate) has_written_past: bool,
    /// It joins no other read.
    pub(crate) reads_itself: bool,
    /// Losses of its volume that had been reported when the request arrived.
    pub(crate) losses_reported: u64,
    pub(crate) started_at: Nanos,
}

impl Req {
    pub(crate) fn range(&self) -> BlockRange {
        BlockRange {
            first: Key::new(self.volume, self.first_block),
            last: Key::new(self.volume, self.last_block),
        }
    }

    /// Returns the span of whole blocks from `block` on in the client's buffer.
    pub(crate) fn block_span(&self, block: u64, blocks: u64) -> Span {
        let offset = ((block - self.first_block) * BLOCK) as u32;
        Span { buf: self.buf, offset, len: (blocks * BLOCK) as u32 }
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }
}

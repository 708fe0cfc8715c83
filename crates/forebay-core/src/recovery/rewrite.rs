//! Rewrites at a start the data that an earlier run may not have made durable.
//!
//! A failed flush is reported only once. If the device is opened again, reads return the data that
//! was not flushed as if nothing had happened (from the page cache, or from the device's own
//! cache), and the next flush succeeds without it. A start cannot know whether a flush failed: the
//! daemon may have been killed, or could not record it. So batches that no later one proves flushed
//! are read once more and rewritten in place, with the same bytes, before the flush that the
//! opening checkpoint relies on (I72). After a crash in between, each sector has the durable
//! content or the content that was read, as before.
//!
//! Batches of fills are left out: if a crash drops them, their blocks are merely no longer cached.
//! If a failed flush dropped them, a later read may find that, and reports a damaged block that the
//! backing store has. In a mirrored cache each active member gets its own copy again.

use crate::api::DeviceFailure;
use crate::api::open_error::OpenError;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::mirror::Members;
use crate::context::operations::OpKind;
use crate::context::recovery_reads::{RecoveryRead, RecoveryTarget};
use crate::context::sectors::BLOCK;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::recovery::state::Recovery;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::{StreamKind, VolumeId};

/// Blocks of one piece.
const PIECE_BLOCKS: u32 = 64;
/// Maximum number of pieces in flight.
const IN_FLIGHT: usize = 16;
/// Number of failed writes after which the cache is not opened.
const FAILURES_MAX: u32 = 4;

impl Members {
    /// Offsets of a block of a segment of dirty data: on each active member.
    fn copies_at(&self, map: &CacheMap, segment: u32, index: u32) -> impl Iterator<Item = u64> + use<> {
        let geometry = map.geometry;
        let twin =
            self.mirror().filter(|_| self.is_pair(map, segment)).map(|mirror| segment + mirror.columns());
        let counts = |half: &u32| self.mirror().is_none_or(|mirror| mirror.counts(mirror.member_of(*half)));
        let halves: Vec<u32> = [Some(segment), twin].into_iter().flatten().filter(counts).collect();
        halves.into_iter().map(move |half| geometry.segment_offset(half, index))
    }
}

impl Context {
    /// True if batches of this stream are rewritten.
    pub(crate) fn rewrites(&self, stream: StreamKind) -> bool {
        stream != StreamKind::Fill && !fault::planted(PlantedBug::TrustWhatIsRead)
    }

    /// Plans the superblocks to rewrite before the first checkpoint, one after the other: those
    /// that are wrong, and those that may not be durable.
    pub(crate) fn plan_superblocks(&mut self, copies: impl Iterator<Item = (bool, (u64, Vec<u8>))>) {
        let trusts = fault::planted(PlantedBug::TrustWhatIsRead);
        let again: Vec<_> = copies.filter(|(right, _)| !(*right && trusts)).collect();
        if again.iter().any(|(right, _)| !right) {
            self.coverage.add(CoverageMark::SuperblockRepaired);
        }
        self.stale_superblocks = again.into_iter().map(|(_, copy)| copy).collect();
    }

    /// True if the member at this offset is still active.
    fn is_rewritten(&self, offset: u64) -> bool {
        self.members.counts(self.member_at(offset))
    }
}

impl Recovery {
    /// Rewrites data that may not be durable; false while that is in progress.
    pub(crate) fn rewrite_unflushed(&mut self, cx: &mut Context, volumes: &[VolumeId]) -> bool {
        let ranges = core::mem::take(&mut self.rewrite.ranges);
        if ranges.is_empty() {
            return true;
        }
        cx.coverage.add(CoverageMark::Rewritten);
        let mut pieces = Vec::new();
        for (segment, from, to) in ranges {
            for start in (from..to).step_by(PIECE_BLOCKS as usize) {
                let bytes = u64::from((to - start).min(PIECE_BLOCKS)) * BLOCK;
                pieces.extend(
                    cx.members.copies_at(&cx.map, segment, start).map(|offset| (segment, offset, bytes)),
                );
            }
        }
        pieces.reverse();
        let rewrite = &mut self.rewrite;
        (rewrite.pieces, rewrite.volumes) = (pieces, volumes.to_vec());
        self.rewrite_more(cx);
        false
    }

    fn rewrite_more(&mut self, cx: &mut Context) {
        loop {
            let rewrite = &mut self.rewrite;
            if rewrite.in_flight == IN_FLIGHT {
                return;
            }
            let Some((segment, offset, len)) = rewrite.pieces.pop() else { break };
            if !cx.is_rewritten(offset) {
                continue;
            }
            self.rewrite.in_flight += 1;
            cx.read_meta(RecoveryRead { target: RecoveryTarget::Rewritten(segment), offset, len, tries: 1 });
        }
        if self.rewrite.in_flight == 0 {
            let volumes = core::mem::take(&mut self.rewrite.volumes);
            self.settle_devices(cx, &volumes);
        }
    }

    /// A piece was read again.
    pub(crate) fn rewrite_read(
        &mut self,
        cx: &mut Context,
        segment: u32,
        offset: u64,
        result: Result<&[u8], DeviceFailure>,
    ) {
        match result {
            _ if !cx.is_rewritten(offset) => self.rewritten(cx, cx.member_at(offset), false),
            Ok(bytes) => {
                let kind = OpKind::RewriteUnflushed { segment, offset, len: bytes.len() as u32 };
                cx.write_meta(offset, Arc::new(bytes.to_vec()), kind);
            }
            Err(_) => {
                let member = cx.member_at(offset);
                if !cx.goes_on_without(member) {
                    cx.fail_opening(OpenError::TailUnreadable { segment });
                    return;
                }
                self.rewritten(cx, member, false);
            }
        }
    }

    /// A piece was rewritten, or cannot be.
    pub(crate) fn rewritten(&mut self, cx: &mut Context, member: u8, ok: bool) {
        if !ok && !cx.goes_on_without(member) {
            cx.fail_opening(OpenError::CacheWrite);
            return;
        }
        self.rewrite.in_flight -= 1;
        self.rewrite_more(cx);
    }

    /// A write of a piece of a segment has ended, `len` bytes from `offset` of the cache. If it
    /// failed, the piece is read and rewritten again.
    pub(crate) fn rewrite_written(
        &mut self,
        cx: &mut Context,
        segment: u32,
        (offset, len): (u64, u32),
        (member, ok): (u8, bool),
    ) {
        self.rewrite.failures += u32::from(!ok);
        if ok || self.rewrite.failures >= FAILURES_MAX {
            self.rewritten(cx, member, ok);
        } else {
            cx.read_meta(RecoveryRead {
                target: RecoveryTarget::Rewritten(segment),
                offset,
                len: len.into(),
                tries: 1,
            });
        }
    }
}

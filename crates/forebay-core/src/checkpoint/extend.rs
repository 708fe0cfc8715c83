//! Extending the append window between checkpoints.
//!
//! ```text
//! Idle -> ExtendFlushing -> Extending -> ExtendSettling -> Idle
//! ```
//!
//! A segment that has become empty may be written again once a restart would know it. A checkpoint
//! says so for all of them, and costs as much as the cache is large. An extension says so for some,
//! and costs one block in two copies ([`forebay_format::extension`]). So the window can be small,
//! and checkpoints are taken only as often as a restart shall have little to read: after
//! [`interval`] segments.
//!
//! - *ExtendFlushing*: what made the segments void (newer records, marks, moves) is flushed first.
//!   A restart that finds the extension believes nothing of what the checkpoint says of them.
//! - *Extending*, *ExtendSettling*: both copies are written to the slot that is not in effect;
//!   flush. Then the segments join the window.
//!
//! A segment is added only if
//!
//! - it was not in the window since the checkpoint in effect;
//! - the checkpoint in effect accounts for all its batches: those that it does not account for are
//!   links of their stream, and a restart has to find them;
//! - nothing unclean was dropped without a record since that checkpoint (a volume that was thrown
//!   away, blocks behind a new end). A checkpoint makes all of that come true at once;
//! - the cache is not mirrored: there a column has two halves with a history each. Mirrored caches
//!   have a window of the old size, and checkpoints only.

use crate::api::Device;
use crate::checkpoint::{CheckpointStep, Checkpoints, Purpose, window_size};
use crate::context::coverage::CoverageMark;
use crate::context::ledger::Waiter;
use crate::context::operations::OpKind;
use crate::context::{Context, Status};
use crate::fault::{self, PlantedBug};
use crate::map::segment::SegmentPhase;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::WindowExtension;
use forebay_format::extension::{EXTENSION_BLOCKS, EXTENSION_SEGMENTS_MAX};
use forebay_format::{BLOCK_BYTES, Geometry};

/// Most segments between two checkpoints: with segments of 4 MiB a restart reads 1 GiB.
const INTERVAL_MAX: usize = 256;
const _: () = assert!(INTERVAL_MAX <= EXTENSION_SEGMENTS_MAX, "an extension has room for all of them");

/// Segments that may be added to a window and written until the next checkpoint, those that it had
/// at the checkpoint included: a restart reads so much. A sixteenth of the cache, or `log_bytes` if
/// that is more: in a small cache a restart reads that much in a moment.
pub(crate) fn interval(geometry: &Geometry, log_bytes: u64) -> usize {
    let segments = geometry.segment_count;
    let windows = 3 * window_size(segments, false) as usize;
    let of_bytes = (log_bytes / geometry.segment_bytes()).min(u64::from(segments));
    (segments as usize / 16).max(of_bytes as usize).clamp(windows, INTERVAL_MAX)
}

impl Checkpoints {
    /// Starts to extend the window, if that is possible and worth it.
    pub(super) fn extend_window(&mut self, cx: &mut Context) -> bool {
        let most = interval(&cx.map.geometry, cx.config.checkpoint.log_bytes);
        let left = most.saturating_sub(self.listed.len());
        let possible = cx.status != Status::Opening
            && self.purpose == Purpose::Running
            && cx.mirror.is_none()
            && !cx.map.has_unrecorded_drops();
        if !possible || left == 0 {
            return false;
        }
        let most = cx.free.may_join().min(left);
        let accounted = self.accounted;
        let anything = fault::planted(PlantedBug::ExtendWithNewSegments);
        // A segment that was in the window may be back: a shrink of the pool retired it, and ended.
        let counts = |number: &u32| {
            let accounted_for = cx.map.segments[*number as usize].last_sequence < accounted;
            !self.listed.contains(number) && (accounted_for || anything)
        };
        let chosen: Vec<u32> = cx.free.pool.iter().copied().filter(counts).take(most).collect();
        if chosen.is_empty() || chosen.len() < cx.free.worth_joining() {
            return false;
        }
        cx.free.pool.retain(|number| !chosen.contains(number));
        cx.cover(CoverageMark::WindowExtended);
        self.begin_extension(cx, chosen);
        true
    }

    fn begin_extension(&mut self, cx: &mut Context, joining: Vec<u32>) {
        self.joining = joining;
        self.step = CheckpointStep::ExtendFlushing;
        self.ticket = cx.flushes.cache.ticket();
        if fault::planted(PlantedBug::ExtendBeforeFlush) {
            self.write_extension(cx);
        } else {
            cx.flush(Device::Cache, Waiter::Checkpoint);
        }
    }

    /// Recovery found damaged copies: each slot gets an extension that adds nothing. Only now: what
    /// was damaged may have been of use until the checkpoint that ended recovery was in effect.
    pub(super) fn mend_extensions(&mut self, cx: &mut Context) {
        if self.unmended > 0 {
            self.unmended -= 1;
            self.begin_extension(cx, Vec::new());
        }
    }

    pub(super) fn write_extension(&mut self, cx: &mut Context) {
        let early = fault::planted(PlantedBug::ExtendBeforeFlush);
        let flushed = cx.flushes.cache.succeeded >= self.ticket || early;
        assert!(flushed, "I7: what made the added segments void is durable before a restart is told");
        self.step = CheckpointStep::Extending;
        self.pending = 2;
        self.failed = false;
        let forgets = fault::planted(PlantedBug::ForgetEarlierExtensions);
        let before = if forgets { &[] } else { &self.listed[self.listed_first..] };
        let extension = WindowExtension {
            uuid: cx.superblock.uuid,
            checkpoint_generation: cx.superblock.checkpoint_generation,
            epoch: cx.superblock.epoch,
            number: self.extensions + 1,
            segments: before.iter().chain(&self.joining).copied().collect(),
        };
        let bytes = Arc::new(extension.encode());
        for block in EXTENSION_BLOCKS[(extension.number % 2) as usize] {
            cx.write_meta(block * BLOCK_BYTES as u64, bytes.clone(), OpKind::Checkpoint);
        }
    }

    /// The extension is durable.
    pub(super) fn window_extended(&mut self, cx: &mut Context) {
        let flushed = cx.flushes.cache.succeeded >= self.ticket;
        assert!(flushed, "I7: a segment is written again only when a restart would know it");
        self.step = CheckpointStep::Idle;
        self.extensions += 1;
        cx.stats.window_extensions += 1;
        for number in core::mem::take(&mut self.joining) {
            self.listed.push(number);
            cx.map.end_segment(number, SegmentPhase::Free);
            if !cx.keep_retired(number) {
                cx.free.window.push_back(number);
            }
        }
        cx.free.look_for_stale();
        self.mend_extensions(cx);
    }
}

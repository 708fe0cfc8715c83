//! Extends the append window between checkpoints.
//!
//! ```text
//! Idle -> ExtendFlushing -> Extending -> ExtendSettling -> Idle
//! ```
//!
//! The log may write an empty segment again once recovery would treat it as empty. A checkpoint
//! records that for all empty segments, at a cost proportional to the cache size. An extension
//! records it for some, at the cost of one block in two copies ([`forebay_format::extension`]). So
//! the window can be small, and the engine takes checkpoints only as often as needed to bound the
//! log that recovery reads: after [`interval`] segments.
//!
//! - *ExtendFlushing*: flushes the records that voided the segments (newer data, marks,
//!   relocations) first. If recovery finds the extension, it ignores the checkpoint's entries for
//!   them.
//! - *Extending*, *ExtendSettling*: writes both copies to the slot that is not in effect; flush.
//!   Then the segments join the window.
//!
//! The engine adds a segment only if
//!
//! - it has not been in the window since the checkpoint in effect;
//! - the checkpoint in effect accounts for all its batches: later batches are links of their
//!   stream, which recovery has to find;
//! - no unclean block was dropped without a record since that checkpoint (of a discarded volume, or
//!   beyond a new end). Only a checkpoint applies all such drops at once;
//! - the cache is not mirrored: there a column has two halves, each with its own history. Mirrored
//!   caches have a larger window, and checkpoints only.

use crate::api::Device;
use crate::checkpoint::{CheckpointStep, Checkpoints, Purpose, window_size};
use crate::context::coverage::CoverageMark;
use crate::context::flush_ledger::Waiter;
use crate::context::operations::OpKind;
use crate::context::{Context, Status};
use crate::fault::{self, PlantedBug};
use crate::map::segment::SegmentPhase;
use alloc::sync::Arc;
use alloc::vec::Vec;
use forebay_format::WindowExtension;
use forebay_format::extension::{EXTENSION_BLOCKS, EXTENSION_SEGMENTS_MAX};
use forebay_format::{BLOCK_BYTES, Geometry};

/// Maximum segments between two checkpoints: with segments of 4 MiB recovery reads 1 GiB.
const INTERVAL_MAX: usize = 256;
const _: () = assert!(INTERVAL_MAX <= EXTENSION_SEGMENTS_MAX, "an extension has room for all of them");

/// Segments that the window may have until the next checkpoint, including those at the last one:
/// bounds the log that recovery reads. A sixteenth of the cache, or `log_bytes` if that is more,
/// which recovery of a small cache reads in a moment; at least three windows, at most
/// [`INTERVAL_MAX`].
pub(crate) fn interval(geometry: &Geometry, log_bytes: u64) -> usize {
    let segments = geometry.segment_count;
    let windows = 3 * window_size(segments, false) as usize;
    let of_bytes = (log_bytes / geometry.segment_bytes()).min(u64::from(segments));
    (segments as usize / 16).max(of_bytes as usize).clamp(windows, INTERVAL_MAX)
}

impl Checkpoints {
    /// Starts to extend the window, if that is possible and worthwhile. Returns true if it did.
    pub(super) fn extend_window(&mut self, cx: &mut Context) -> bool {
        let most = interval(&cx.map.geometry, cx.config.checkpoint.log_bytes);
        let left = most.saturating_sub(self.listed.len());
        let possible = cx.status != Status::Opening
            && self.purpose == Purpose::Running
            && !cx.members.is_mirrored()
            && !cx.map.has_unrecorded_drops();
        if !possible || left == 0 {
            return false;
        }
        let most = cx.free.may_join().min(left);
        let accounted = self.accounted;
        let anything = fault::planted(PlantedBug::ExtendWithNewSegments);
        // A segment of the window may be in the pool again: a shrink retired it and then ended.
        let counts = |number: &u32| {
            let accounted_for = cx.map.segments[*number as usize].last_sequence < accounted;
            !self.listed.contains(number) && (accounted_for || anything)
        };
        let chosen: Vec<u32> = cx.free.pool.iter().copied().filter(counts).take(most).collect();
        if chosen.is_empty() || chosen.len() < cx.free.worth_joining() {
            return false;
        }
        cx.free.pool.retain(|number| !chosen.contains(number));
        cx.coverage.add(CoverageMark::WindowExtended);
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

    /// Writes an extension without segments to each slot, because recovery found damaged copies.
    /// Only now: a damaged slot's other copy may have been needed until the checkpoint that ended
    /// recovery was in effect.
    pub(super) fn mend_extensions(&mut self, cx: &mut Context) {
        if self.unrepaired > 0 {
            self.unrepaired -= 1;
            self.begin_extension(cx, Vec::new());
        }
    }

    pub(super) fn write_extension(&mut self, cx: &mut Context) {
        let early = fault::planted(PlantedBug::ExtendBeforeFlush);
        let flushed = cx.flushes.cache.has_covered(self.ticket) || early;
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

    /// Adds the segments to the window: the extension is durable.
    pub(super) fn window_extended(&mut self, cx: &mut Context) {
        let flushed = cx.flushes.cache.has_covered(self.ticket);
        assert!(flushed, "I7: a segment is written again only when a restart would know it");
        self.step = CheckpointStep::Idle;
        self.extensions += 1;
        cx.stats.window_extensions += 1;
        for number in core::mem::take(&mut self.joining) {
            self.listed.push(number);
            cx.map.end_segment(number, SegmentPhase::Free);
            if !cx.free.keep_retired(number) {
                cx.free.window.push_back(number);
            }
        }
        cx.free.look_for_stale();
        self.mend_extensions(cx);
    }
}

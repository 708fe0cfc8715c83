//! Discards: inform the cache device which segments hold no live data, so that its garbage
//! collection does not preserve their bytes.
//!
//! The engine discards only whole segments (in a mirrored cache, both of a column), one at a time,
//! and only if neither the running engine nor recovery after a crash needs their content (I77):
//!
//! - a segment of the append window: the checkpoint in effect, or the extension of its window,
//!   lists it as free for recovery, regardless of its content. The log may write it at any time, so
//!   recovery does not rely on its content.
//! - a segment that waits to join a window: only once a checkpoint in effect was taken after it had
//!   been freed. Before that, recovery would look there for records that later log records void, or
//!   for links of its stream.
//!
//! During its discard a segment is in neither list, so the log cannot take it; a snapshot still
//! lists a segment of the window there, because it returns to it. The log has priority: no discard
//! begins while reclaim has fewer free segments than it wants, nor of a window segment while the
//! window is short. So a discard that never completes makes the cache smaller by a segment, and
//! only a stop, which has its own time limit, and a shrink of the pool wait for it.
//!
//! The engine counts a discard that fails, and does not discard the segment again until it has been
//! in use.

use crate::api::{DeviceFailure, IoAction, Nanos, Notice, OpId};
use crate::checkpoint::Checkpoints;
use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::free::Discard;
use crate::context::free::FreeSegments;
use crate::context::operations::OpKind;
use crate::fault::{self, PlantedBug};
use crate::map::segment::SegmentPhase;

/// Maximum bytes discarded per second: more than the log writes on most devices, so the limit
/// matters only after a start or a mass drop. Then it leaves a device with slow discards time for
/// other I/O. 256 MiB are 64 segments of 4 MiB.
const BYTES_PER_S: u64 = 256 << 20;
/// Operations in flight from which on the device is too busy for a discard.
const BUSY_OPERATIONS: usize = 32;
/// Segments examined in one call, and the pause before the next ones: right after a mass drop none
/// may be discardable yet.
const LOOKS: u64 = 64;
const LOOKS_PAUSE_NS: Nanos = 1_000_000;

impl FreeSegments {
    /// Returns the next segment to examine, wrapping around at the end.
    fn next_stale(&mut self) -> Option<u32> {
        let discards = &mut self.discards;
        discards.to_look_at -= 1;
        let found = discards.stale.next_from(discards.next).or_else(|| discards.stale.next_from(0))?;
        discards.next = found + 1;
        Some(found as u32)
    }
}

impl Context {
    /// Marks a segment freed: it holds no live data. The checkpoint in effect may still list its
    /// data.
    pub(crate) fn segment_is_freed(&mut self, number: u32) {
        self.map.end_segment(number, SegmentPhase::Freed);
        self.map.segments[number as usize].freed_after = self.superblock.checkpoint_generation;
    }

    /// Begins the next discard, if one is due.
    pub(crate) fn step_discards(&mut self, checkpoint: &Checkpoints) {
        let discards = &self.free.discards;
        let whole = self.members.is_whole();
        let wanted = self.config.pool.discard_freed
            && !discards.refused
            && !self.stopping
            && !self.failure.is_fenced();
        if !wanted || !whole || discards.to_look_at == 0 || discards.under_way.is_some() {
            self.free.discard_due = self.members.is_mirrored();
            return;
        }
        // Reclaim replaces the segment that the discard holds back.
        let enough = self.free.free_segments() >= self.free.window_size as usize;
        if self.ops.len() >= BUSY_OPERATIONS || !enough {
            return;
        }
        if self.now < discards.next_at {
            self.wake_in(discards.next_at - self.now);
            return;
        }
        for _ in 0..LOOKS.min(discards.to_look_at) {
            let Some(number) = self.free.next_stale() else { return };
            let is_void = self.is_void(number, checkpoint) || fault::planted(PlantedBug::DiscardEarly);
            if let Some(of_window) = self.free.hold_back(number, is_void) {
                self.discard(number, of_window);
                return;
            }
        }
        self.wake_in(LOOKS_PAUSE_NS);
    }

    /// Returns the segments to discard: this one, or both of its column.
    fn halves(&self, number: u32) -> (u32, Option<u32>) {
        match self.members.mirror() {
            Some(mirror) => {
                let (first, twin) = mirror.halves(number);
                (first, Some(twin))
            }
            None => (number, None),
        }
    }

    /// Returns true if the checkpoint in effect lists a segment as empty.
    fn is_void(&self, number: u32, checkpoint: &Checkpoints) -> bool {
        let (first, twin) = self.halves(number);
        core::iter::once(first).chain(twin).all(|number| {
            let segment = &self.map.segments[number as usize];
            match segment.phase {
                SegmentPhase::Free => true,
                SegmentPhase::Freed => checkpoint.is_in_effect(segment.freed_after + 1),
                SegmentPhase::Open | SegmentPhase::Sealed | SegmentPhase::Twin => false,
            }
        })
    }

    fn discard(&mut self, number: u32, of_window: bool) {
        self.coverage.add(if of_window {
            CoverageMark::WindowDiscarded
        } else {
            CoverageMark::PoolDiscarded
        });
        if of_window && fault::planted(PlantedBug::WriteUnderDiscard) {
            self.free.window.push_front(number);
        }
        let len = self.map.geometry.segment_bytes();
        let (first, twin) = self.halves(number);
        let discards = &mut self.free.discards;
        discards.stale.remove(number.into());
        let bytes = len * (1 + u64::from(twin.is_some()));
        discards.next_at = self.now + time_of(bytes);
        discards.under_way =
            Some(Discard { segment: number, of_window, pending: 1 + u32::from(twin.is_some()) });
        for number in core::iter::once(first).chain(twin) {
            let offset = self.map.geometry.segment_offset(number, 0);
            let op = self.ops.begin(OpKind::Discard, self.now);
            let member = self.member_at(offset);
            let state = self.ops.get_mut(op);
            (state.member, state.len) = (member, len as u32);
            self.actions.push_io(IoAction::DiscardSegment { op: OpId(op), offset, len });
        }
    }

    /// Handles the end of a discard, and returns the segment to its list.
    pub(crate) fn discard_ended(&mut self, len: u32, result: Result<(), DeviceFailure>) {
        match result {
            Ok(()) => {
                self.stats.cache_discards += 1;
                self.stats.cache_discarded_bytes += u64::from(len);
            }
            Err(DeviceFailure::Unsupported) if !self.free.discards.refused => {
                self.free.discards.refused = true;
                self.coverage.add(CoverageMark::DiscardsRefused);
                self.actions.notice(Notice::DiscardsRefused);
            }
            Err(_) => {}
        }
        let Some(mut discard) = self.free.discards.under_way.take() else { return };
        discard.pending -= 1;
        if discard.pending > 0 {
            self.free.discards.under_way = Some(discard);
            return;
        }
        self.free.discard_due = true;
        if discard.of_window && fault::planted(PlantedBug::WriteUnderDiscard) {
            return;
        }
        if self.free.keep_retired(discard.segment) {
            return;
        }
        let list = if discard.of_window { &mut self.free.window } else { &mut self.free.pool };
        list.push_back(discard.segment);
    }
}

/// Time until the next discard may begin, after one of so many bytes.
fn time_of(bytes: u64) -> Nanos {
    bytes * 1_000_000_000 / BYTES_PER_S
}

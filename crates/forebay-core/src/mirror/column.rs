//! Columns: which segments the streams of a mirrored cache take, and when these are free again.

use crate::context::Context;
use crate::context::coverage::CoverageMark;
use crate::context::free::FreeSegments;
use crate::context::mirror::Members;
use crate::map::segment::{BlockState, SegmentPhase};
use crate::map::{CacheMap, sweep_slots};
use crate::reclaim::FILL_RESERVE;
use crate::reclaim::victims::Choice;
use alloc::vec::Vec;
use forebay_format::StreamKind;

impl Members {
    /// Segments for the computation of windows and limits: columns, in a mirrored cache.
    pub(crate) fn segments_counted(&self, all: u32) -> u32 {
        if self.is_mirrored() { all / 2 } else { all }
    }

    /// A checkpoint lists a column as free.
    pub(crate) fn column_is_free(&mut self, map: &mut CacheMap, first: u32) {
        if let Some(mirror) = self.mirror() {
            let (_, twin) = mirror.halves(first);
            map.end_segment(twin, SegmentPhase::Free);
        }
    }

    /// Frees the columns with two empty halves, after a recovery.
    pub(crate) fn free_columns(&mut self, map: &CacheMap, free: &mut FreeSegments) {
        let Some(mirror) = self.mirror() else { return };
        let columns = mirror.columns();
        for first in 0..columns {
            let is_free = |number: u32| map.segments[number as usize].phase == SegmentPhase::Free;
            if is_free(first) && is_free(first + columns) {
                free.add(first);
            }
        }
    }
}

impl Context {
    /// Takes a column from the window for a pair, or half of one for the fill stream.
    pub(crate) fn take_half(&mut self, stream: StreamKind, reserve: usize) -> Option<u32> {
        let mirror = self.members.mirror_mut()?;
        if stream == StreamKind::Fill
            && let Some(spare) = mirror.take_spare()
        {
            return Some(spare);
        }
        if self.free.window.len() <= reserve {
            return None;
        }
        let column = self.free.take()?;
        if stream != StreamKind::Fill {
            let (first, twin) = mirror.halves(column);
            self.map.segments[twin as usize].phase = SegmentPhase::Twin;
            self.map.changes.touch(twin);
            return Some(first);
        }
        Some(mirror.divide(column))
    }

    /// A segment of a mirrored cache has become empty, and is freed: its column is free if the
    /// other half is.
    pub(crate) fn half_freed(&mut self, number: u32) {
        let Some(mirror) = self.members.mirror_mut() else { return };
        let (first, twin) = mirror.halves(number);
        if self.map.segments[twin as usize].phase == SegmentPhase::Twin {
            mirror.pair_ended(first);
            self.segment_is_freed(twin);
        } else {
            let other = first + twin - number;
            if matches!(self.map.segments[other as usize].phase, SegmentPhase::Open | SegmentPhase::Sealed) {
                mirror.want(other);
                return;
            }
            mirror.joined(other);
        }
        self.free.add(first);
    }

    /// A victim that makes a column whole, if there is one.
    pub(crate) fn half_victim(&mut self, skipped: &[u32]) -> Option<Choice> {
        let mirror = self.members.mirror_mut()?;
        let segment = mirror.take_wanted()?;
        let held = {
            let segment = &self.map.segments[segment as usize];
            segment.phase != SegmentPhase::Sealed || segment.live == 0 || segment.leaving > 0
        };
        let fits = !held && !skipped.contains(&segment);
        fits.then_some(Choice { segment, compacts: false, forced: false })
    }

    /// Drops the clean blocks that only the failed member had, in bounded pieces (I62).
    pub(super) fn sweep_lost(&mut self) {
        let Some(mirror) = self.members.mirror_mut() else { return };
        let Some((mut number, mut index)) = mirror.take_sweep() else { return };
        self.close_lost();
        let mut left = sweep_slots(self.map.geometry.slot_count());
        while left > 0 && (number as usize) < self.map.segments.len() {
            let segment = &self.map.segments[number as usize];
            let skip = !segment.has_table() || segment.live == 0 || !self.members.is_gone(&self.map, number);
            if skip || index >= self.map.geometry.segment_blocks {
                (number, index) = (number + 1, 0);
                left -= 1;
                continue;
            }
            let slot = self.map.slot(number, index);
            if self.map.state(slot) == BlockState::Clean {
                let key = self.map.key(slot);
                self.map.remove(key);
                self.stats.evicted_blocks += 1;
                self.counters.of(key.volume()).evicted_blocks += 1;
            }
            index += 1;
            left -= 1;
        }
        if let Some(mirror) =
            self.members.mirror_mut().filter(|_| (number as usize) < self.map.segments.len())
        {
            mirror.sweep_on((number, index));
        } else {
            self.coverage.add(CoverageMark::LostSwept);
        }
    }

    /// Closes open segments that are on the failed member only.
    fn close_lost(&mut self) {
        let kinds: Vec<StreamKind> = StreamKind::ALL.into();
        for kind in kinds {
            self.leave_lost(kind);
        }
    }

    /// True if the fill stream of a mirrored cache has room to relocate one more clean block.
    pub(crate) fn has_room_for_single(&self, slot: u32) -> bool {
        let Some(mirror) = self.members.mirror().filter(|_| self.map.state(slot) == BlockState::Clean) else {
            return true;
        };
        let (stream, blocks) = (&self.log.streams[StreamKind::Fill.index()], self.batch_blocks());
        let halves = 2 * self.free.window.len().saturating_sub(FILL_RESERVE) as u32;
        let room = stream.room(blocks) + (halves + u32::from(mirror.spare().is_some())) * blocks;
        let waiting = self.log.moves + stream.queue.len();
        (waiting as u32 + 2) * 2 < room
    }
}

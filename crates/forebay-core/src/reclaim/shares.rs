//! Shares of volumes in the pool: minimum and maximum share, priority, and sweeps over all blocks
//! of a volume.
//!
//! **Maximum share.** Reclaim never keeps blocks of a volume above it, and a *trim* removes its
//! clean blocks from the map like the hand of a clock: it spares hit blocks once and pinned ones
//! always. So the volume's own fills rewrite its content, at its own cost. Segments that become
//! nearly empty are reclaimed first, and their blocks of other volumes are relocated, not evicted.
//! Dirty blocks count, but only destage can reduce them: while they alone exceed the share, nothing
//! of the volume is filled. The tolerance is one trim: the fills between two turns.
//!
//! **Minimum share.** Reclaim relocates clean blocks of a volume that is not above it instead of
//! evicting them, as long as reclaim still gains room (I25). Together the minimum shares hold at
//! most [`MINIMA_MAX_PCT`] of the pool; beyond it they shrink in proportion.
//!
//! In a mirrored cache a block with two copies takes the room of two. The known ones are counted:
//! those that are not clean.
//!
//! **Priority** is relative to the other volumes: if all have the same, it has no effect.
//!
//! Trims and sweeps are cut into pieces of bounded work, between the events of the engine.

use crate::api::settings::{Priority, VolumeSettings};
use crate::context::Context;
use crate::fault::{self, PlantedBug};
use crate::map::segment::{BlockState, SegmentPhase};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use forebay_format::VolumeId;
use forebay_format::geometry::VOLUMES_MAX;

/// Share of the pool that all minimum shares together may hold, percent.
const MINIMA_MAX_PCT: u64 = 70;
/// Slots (or empty segments) that trims look at between two events.
const TRIM_STEPS: u32 = 4096;
/// Segments that a sweep looks at between two events.
const SWEEP_SEGMENTS: u32 = 2;
/// Pause of a trim that has found nothing.
const TRIM_PAUSE_NS: u64 = 100_000_000;

/// The clock hand that keeps a volume at its maximum share.
#[derive(Clone, Copy, Debug, Default)]
struct Trim {
    segment: u32,
    index: u32,
    /// Segments looked at since the last block was removed.
    fruitless: u32,
    paused_until: u64,
}

/// Effect of a sweep on the blocks of its volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SweepTask {
    Unpin,
    DropClean,
}

/// A sweep over all segments.
#[derive(Clone, Copy, Debug)]
struct Sweep {
    volume: VolumeId,
    task: SweepTask,
    next_segment: u32,
}

/// Enforces the shares of volumes and sweeps over their blocks: a part of the engine.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Progress of the trims, by volume.
    trims: Vec<Trim>,
    /// Sweeps over all blocks of a volume.
    sweeps: VecDeque<Sweep>,
}

/// Shares of a volume in blocks, and its rank among the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Share {
    pub(crate) minimum: u64,
    pub(crate) maximum: u64,
    pub(crate) priority: Priority,
}

impl Share {
    /// Share in a pool of `capacity` blocks, whose volumes ask for `minima_pct` in total.
    fn new(settings: &VolumeSettings, capacity: u64, minima_pct: u64) -> Self {
        let minimum = capacity * u64::from(settings.min_share_pct) / 100;
        Self {
            minimum: minimum * MINIMA_MAX_PCT / minima_pct.max(MINIMA_MAX_PCT),
            maximum: capacity * u64::from(settings.max_share_pct) / 100,
            priority: settings.priority,
        }
    }
}

impl Context {
    /// Removes a block from the map if it belongs to the volume, is clean and not pinned, and was
    /// not hit since the hand passed.
    fn trim_slot(&mut self, id: VolumeId, slot: u32) -> bool {
        let state = self.map.state(slot);
        let droppable = state == BlockState::Clean
            || state != BlockState::Void && fault::planted(PlantedBug::TrimDirty) && !self.map.is_lost(slot);
        if !droppable || self.map.key(slot).volume() != id || self.map.is_pinned(slot) {
            return false;
        }
        if self.map.is_hit(slot) {
            self.map.clear_hit(slot);
            return false;
        }
        self.map.remove(self.map.key(slot));
        self.stats.evicted_blocks += 1;
        self.counters.of(id).evicted_blocks += 1;
        self.stats.trimmed_blocks += 1;
        true
    }

    /// Blocks that all segments can hold, one copy of each.
    pub(crate) fn space(&self) -> u64 {
        self.capacity_of(self.segments_staying())
    }

    /// Room that the blocks of a volume take of `Context::space`.
    pub(crate) fn held(&self, volume: VolumeId) -> u64 {
        let map = &self.map.volumes[usize::from(volume.0)];
        map.cached + if self.members.is_mirrored() { map.dirty + map.destaged } else { 0 }
    }

    fn maximum(&self, volume: VolumeId) -> u64 {
        let settings = self.volumes.get(volume);
        let pct = settings.map_or(100, |volume| volume.settings.max_share_pct);
        self.space() * u64::from(pct) / 100
    }

    pub(crate) fn is_above_maximum(&self, volume: VolumeId) -> bool {
        self.held(volume) > self.maximum(volume)
    }

    /// True if the volume is so far above its maximum share that nothing may be filled until it has
    /// less: trims do not keep up.
    pub(crate) fn is_far_above_maximum(&self, volume: VolumeId) -> bool {
        let maximum = self.maximum(volume);
        let slack = maximum / 16 + u64::from(self.map.geometry.segment_blocks);
        self.held(volume) > maximum + slack
    }

    /// The share of a volume; all of the pool if it is not attached.
    pub(crate) fn share(&self, volume: VolumeId) -> Share {
        let attached = || self.volumes.iter();
        let capacity = self.space();
        let Some(volume) = self.volumes.get(volume) else {
            return Share { minimum: 0, maximum: capacity, priority: Priority::Normal };
        };
        let minima = attached().map(|volume| u64::from(volume.settings.min_share_pct)).sum();
        let mut share = Share::new(&volume.settings, capacity, minima);
        if attached().all(|other| other.settings.priority == share.priority) {
            share.priority = Priority::Normal;
        }
        share
    }

    fn sweep_segment(&mut self, sweep: Sweep, number: u32) {
        for index in 0..self.map.geometry.segment_blocks {
            let slot = self.map.slot(number, index);
            let state = self.map.state(slot);
            if state == BlockState::Void || self.map.key(slot).volume() != sweep.volume {
                continue;
            }
            match sweep.task {
                SweepTask::Unpin => self.map.clear_pinned(slot),
                SweepTask::DropClean
                    if state == BlockState::Clean
                        || state == BlockState::Destaged && self.failure.runs_without_cache() =>
                {
                    self.map.remove(self.map.key(slot));
                    self.stats.evicted_blocks += 1;
                    self.counters.of(sweep.volume).evicted_blocks += 1;
                }
                SweepTask::DropClean => {}
            }
        }
    }
}

impl Shares {
    pub(crate) fn new() -> Self {
        Self { trims: alloc::vec![Trim::default(); VOLUMES_MAX as usize], sweeps: VecDeque::new() }
    }

    /// A volume was detached: forgets the sweeps over its blocks. If it is kept, a sweep releases
    /// its pins, which nothing else could do; otherwise they end with its blocks.
    pub(crate) fn forget_volume(&mut self, cx: &Context, id: VolumeId, goes: bool) {
        let number = usize::from(id.0);
        self.trims[number] = Trim::default();
        self.sweeps.retain(|sweep| sweep.volume != id);
        if !goes && cx.map.volumes[number].pinned > 0 {
            self.sweep(id, SweepTask::Unpin);
        }
    }

    /// The cache has failed: drops all clean copies.
    pub(crate) fn forget_all_clean(&mut self, cx: &Context) {
        for (index, volume) in cx.map.volumes.iter().enumerate() {
            if volume.cached > 0 {
                self.sweep(VolumeId(index as u16), SweepTask::DropClean);
            }
        }
    }

    /// True if a sweep of a volume is in progress.
    pub(crate) fn is_sweeping(&self, volume: VolumeId) -> bool {
        self.sweeps.iter().any(|sweep| sweep.volume == volume)
    }

    /// Removes clean blocks of volumes above their maximum share from the map.
    pub(crate) fn step(&mut self, cx: &mut Context) {
        let mut steps = TRIM_STEPS;
        for id in cx.volumes.ids() {
            let Some(volume) = cx.volumes.get(id) else { continue };
            if volume.settings.max_share_pct < 100
                && cx.is_above_maximum(id)
                && cx.now >= self.trims[usize::from(id.0)].paused_until
            {
                self.trim(cx, id, &mut steps);
            }
        }
        self.step_sweeps(cx);
    }

    fn trim(&mut self, cx: &mut Context, id: VolumeId, steps: &mut u32) {
        let number = usize::from(id.0);
        let mut trim = self.trims[number];
        let segments = cx.map.segments.len() as u32;
        while *steps > 0 && cx.is_above_maximum(id) {
            *steps -= 1;
            let closed = cx.map.segments.get(trim.segment as usize);
            let useful =
                closed.is_some_and(|segment| segment.phase == SegmentPhase::Sealed && segment.live > 0);
            if !useful || trim.index >= cx.map.geometry.segment_blocks {
                trim.segment = if trim.segment + 1 < segments { trim.segment + 1 } else { 0 };
                trim.index = 0;
                trim.fruitless += 1;
                // Hit blocks are spared once, so the second round takes those that the first one
                // spared.
                if trim.fruitless > 2 * segments {
                    (trim.fruitless, trim.paused_until) = (0, cx.now + TRIM_PAUSE_NS);
                    break;
                }
                continue;
            }
            if cx.trim_slot(id, cx.map.slot(trim.segment, trim.index)) {
                trim.fruitless = 0;
            }
            trim.index += 1;
        }
        self.trims[number] = trim;
    }

    pub(crate) fn sweep(&mut self, volume: VolumeId, task: SweepTask) {
        // One of each kind for a volume; a second one restarts it.
        self.sweeps.retain(|sweep| sweep.volume != volume || sweep.task != task);
        self.sweeps.push_back(Sweep { volume, task, next_segment: 0 });
    }

    #[inline]
    pub(crate) fn step_sweeps(&mut self, cx: &mut Context) {
        if !self.sweeps.is_empty() {
            self.go_on(cx);
        }
    }

    fn go_on(&mut self, cx: &mut Context) {
        for _ in 0..SWEEP_SEGMENTS {
            let Some(mut sweep) = self.sweeps.pop_front() else { return };
            let number = sweep.next_segment;
            if number as usize >= cx.map.segments.len() {
                continue;
            }
            sweep.next_segment += 1;
            self.sweeps.push_front(sweep);
            let segment = &cx.map.segments[number as usize];
            if segment.live > 0 && (sweep.task == SweepTask::DropClean || segment.pinned > 0) {
                cx.sweep_segment(sweep, number);
            }
        }
    }

    /// A sweep continues as soon as it can.
    pub(crate) fn sweeps_deadline(&self, cx: &Context) -> Option<u64> {
        (!self.sweeps.is_empty()).then_some(cx.now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimum_shares_are_scaled_to_fit() {
        let settings = VolumeSettings { min_share_pct: 50, max_share_pct: 60, ..VolumeSettings::default() };
        let alone = Share::new(&settings, 1000, 50);
        assert_eq!((alone.minimum, alone.maximum), (500, 600));
        assert_eq!(Share::new(&settings, 1000, 100).minimum, 350, "two of them hold 70 % of the pool");
    }
}

//! Free segments.

use crate::api::Nanos;
use crate::base::bitset::BlockSet;
use crate::fault::{self, PlantedBug};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Free segments: those that may be written now, and those that wait for a checkpoint that records
/// them as free (I7).
#[derive(Debug, Default)]
pub(crate) struct FreeSegments {
    /// Segments that may be written now.
    pub(crate) window: VecDeque<u32>,
    /// Free segments that are not in the window.
    pub(crate) pool: VecDeque<u32>,
    /// Only the limit of work in one call keeps a segment from being empty already.
    pub(crate) more_comes: bool,
    /// Target size of the window.
    pub(crate) window_size: u32,
    /// While the pool shrinks: segments from this one on are retired.
    pub(crate) retired_from: Option<u32>,
    /// Retired segments that are empty.
    pub(crate) retired: Vec<u32>,
    /// Settling looks for segments to discard; always, once a mirrored cache is open.
    pub(crate) discard_due: bool,
    pub(crate) discards: Box<Discards>,
}

/// State of discards, see `discard`.
#[derive(Debug, Default)]
pub(crate) struct Discards {
    /// Free segments that were not discarded since they became empty. In a mirrored cache, the
    /// first segment of each such column.
    pub(crate) stale: BlockSet,
    /// Segments left to check, from `next` on.
    pub(crate) to_look_at: u64,
    pub(crate) next: u64,
    pub(crate) under_way: Option<Discard>,
    /// When the next one may begin.
    pub(crate) next_at: Nanos,
    /// The device does not support discards.
    pub(crate) refused: bool,
}

/// A discard in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Discard {
    pub(crate) segment: u32,
    /// It was in the append window, and returns there; else to the pool.
    pub(crate) of_window: bool,
    /// Operations in flight.
    pub(crate) pending: u32,
}

impl FreeSegments {
    /// Returns the segments that the window should have now: more if many are free.
    #[inline]
    fn target(&self) -> usize {
        (self.window_size as usize).max((self.pool.len() / 2).min(self.window_size as usize * 4))
    }

    /// Returns the number of segments that may join the window at once.
    pub(crate) fn may_join(&self) -> usize {
        self.target().saturating_sub(self.window.len())
    }

    /// Returns the least number of segments worth joining: 1 if the window is nearly empty.
    pub(crate) fn worth_joining(&self) -> usize {
        if self.window.len() <= 2 { 1 } else { (self.window_size as usize / 4).max(1) }
    }

    /// Returns true if the window should be extended, and there are segments for it.
    #[inline]
    pub(crate) fn wants_to_join(&self) -> bool {
        !self.pool.is_empty()
            && self.window.len() <= (self.target() / 2).max(2)
            && self.pool.len() >= self.worth_joining()
    }

    /// Adds an empty segment, or column.
    pub(crate) fn add(&mut self, number: u32) {
        self.pool.push_back(number);
        self.discards.stale.insert(number.into());
    }

    /// Takes the next segment, or column, out of the window.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let number = self.window.pop_front()?;
        self.discards.stale.remove(number.into());
        Some(number)
    }

    /// Takes a free segment out of the lists for a discard if it is listed and the log can spare it
    /// for a while; `is_void`: a restart knows that it is empty. Returns whether it was in the
    /// window.
    pub(crate) fn hold_back(&mut self, number: u32, is_void: bool) -> Option<bool> {
        // A discard must not make a window extension due.
        let may_spare = self.window.len() > (self.target() / 2).max(2) + 1;
        let place = |list: &VecDeque<u32>| list.iter().position(|other| *other == number);
        if may_spare && let Some(at) = place(&self.window) {
            self.window.remove(at);
            return Some(true);
        }
        let at = if is_void { place(&self.pool)? } else { return None };
        self.pool.remove(at);
        Some(false)
    }

    /// Returns the segment that is being discarded, if it belongs to the window.
    pub(crate) fn held_of_window(&self) -> Option<u32> {
        let listed = |discard: &Discard| discard.of_window && !fault::planted(PlantedBug::UnlistDiscarded);
        self.discards.under_way.filter(listed).map(|discard| discard.segment)
    }

    /// Forgets segments from `count` on, which no longer exist.
    pub(crate) fn forget_from(&mut self, count: u32) {
        while let Some(number) = self.discards.stale.next_from(count.into()) {
            self.discards.stale.remove(number);
        }
    }

    /// Starts another search for segments to discard.
    pub(crate) fn look_for_stale(&mut self) {
        self.discard_due = true;
        self.discards.to_look_at = self.discards.stale.len();
    }

    /// Ends retiring. Returns the retired segments that are empty.
    pub(crate) fn end_retiring(&mut self) -> Vec<u32> {
        self.retired_from = None;
        core::mem::take(&mut self.retired)
    }
}

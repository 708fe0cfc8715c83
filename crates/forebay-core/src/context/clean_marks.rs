//! Clean marks that wait for a batch: destaged slots that the log does not know as clean yet.

use crate::api::Nanos;
use crate::fault::{self, PlantedBug};
use crate::map::CacheMap;
use crate::map::segment::BlockState;
use alloc::vec::Vec;
use forebay_format::Slot;
use forebay_format::batch::{ENTRIES_MAX, Entry};

/// Clean marks wait this long before a batch is written for them alone.
const DELAY_NS: Nanos = 1_000_000_000;
/// Number of clean marks that are worth a batch of their own.
const WORTH_A_BATCH: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct CleanMarks {
    slots: Vec<u32>,
    /// Since when the oldest one waits.
    since: Nanos,
    /// The cache flush that makes the last clean mark in the log durable.
    ticket: u64,
    /// The next flush epoch of some volume can begin only when clean marks are in the log.
    order_waits: bool,
    /// Writers at a dirty limit wait for marks.
    writers_wait: bool,
}

impl CleanMarks {
    /// Queues a clean mark for a slot that is now durable on the backing store.
    pub(crate) fn add(&mut self, slot: u32, now: Nanos) {
        if self.slots.is_empty() {
            self.since = now;
        }
        self.slots.push(slot);
    }

    /// Queues the marks of a failed batch again.
    pub(crate) fn put_back(&mut self, slots: &mut Vec<u32>) {
        self.slots.append(slots);
    }

    /// Returns the number of marks.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns true if marks should be written now, with or without payload. `hurries`: segments
    /// are short.
    pub(crate) fn are_due(&self, now: Nanos, hurries: impl FnOnce() -> bool) -> bool {
        !self.slots.is_empty()
            && (self.slots.len() >= WORTH_A_BATCH
                || now >= self.since + DELAY_NS
                || self.order_waits
                || hurries()
                || self.writers_wait)
    }

    /// Returns when marks are due, if they are not yet.
    pub(crate) fn deadline(&self, now: Nanos) -> Option<Nanos> {
        let due = self.since + DELAY_NS;
        (!self.slots.is_empty() && due > now).then_some(due)
    }

    /// Moves marks into a batch, neighbours as one entry. Skips slots that changed meanwhile.
    pub(crate) fn take_into(
        &mut self,
        map: &CacheMap,
        now: Nanos,
        slots: &mut Vec<u32>,
        entries: &mut Vec<Entry>,
    ) {
        if self.slots.is_empty() {
            return;
        }
        self.slots.sort_unstable();
        self.slots.dedup();
        // Half of the header stays free for data, so that marks never delay writers.
        let twice = fault::planted(PlantedBug::OverfillHeader);
        let most = if twice { 2 * ENTRIES_MAX } else { ENTRIES_MAX / 2 };
        while entries.len() < most {
            let Some(slot) = self.slots.pop() else { break };
            if map.state(slot) != BlockState::Destaged {
                continue;
            }
            slots.push(slot);
            match entries.last_mut() {
                Some(Entry::CleanMark { slot: first, count }) if first.0 == slot + 1 => {
                    *first = Slot(slot);
                    *count += 1;
                }
                _ => entries.push(Entry::CleanMark { slot: Slot(slot), count: 1 }),
            }
        }
        self.since = now;
    }

    /// Takes all marks: a checkpoint records them.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        core::mem::take(&mut self.slots)
    }

    /// Drops the marks of slots from `count` on.
    pub(crate) fn forget_slots(&mut self, count: u32) {
        self.slots.retain(|slot| *slot < count);
    }

    /// Drops all marks: nothing is written to the log any longer.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// Marks are in the log; the flush of this ticket makes them durable.
    pub(crate) fn note_logged(&mut self, ticket: u64) {
        self.ticket = ticket;
    }

    /// Returns the ticket of the flush that makes the last mark in the log durable.
    pub(crate) fn ticket(&self) -> u64 {
        self.ticket
    }

    /// An order of flush epochs waits for marks, or no longer does.
    pub(crate) fn set_order_waits(&mut self, waits: bool) {
        self.order_waits = waits;
    }

    /// Writers wait for marks, or no longer do.
    pub(crate) fn set_writers_wait(&mut self, wait: bool) {
        self.writers_wait = wait;
    }
}

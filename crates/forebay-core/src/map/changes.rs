//! Changes since a checkpoint: slots whose state changed, and segments whose entry changed. An
//! increment lists them ([`forebay_format::checkpoint::increment`]).
//!
//! Changes of slots are kept in their order, runs of neighbours as one. So the last change that
//! names a slot has its current state. The list is bounded: beyond its limit it is dropped, and a
//! checkpoint must describe all segments.

use crate::base::bitset::BlockSet;
use alloc::vec::Vec;
use forebay_format::checkpoint::SlotState;
use forebay_format::checkpoint::increment::{CHANGE_SLOTS_MAX, SlotChange};

/// Changes of slots and segments since [`Changes::begin`] or [`Changes::take`].
#[derive(Debug, Default)]
pub(crate) struct Changes {
    slots: Vec<SlotChange>,
    segments: BlockSet,
    /// Maximum of recorded changes of slots; 0: none are recorded.
    limit: usize,
    /// The limit was exceeded.
    lost: bool,
}

impl Changes {
    /// Drops all changes, and records up to `limit` changes from now on.
    pub(crate) fn begin(&mut self, limit: usize) {
        self.slots.clear();
        self.segments = BlockSet::default();
        (self.limit, self.lost) = (limit, limit == 0);
        if limit == 0 {
            self.slots = Vec::new();
        }
    }

    /// Returns true if changes are missing.
    pub(crate) fn are_lost(&self) -> bool {
        self.lost
    }

    /// Returns the number of recorded changes of slots.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of changed segments.
    pub(crate) fn segments(&self) -> usize {
        self.segments.len() as usize
    }

    /// Records a new state of a slot.
    #[inline]
    pub(crate) fn note(&mut self, slot: u32, state: SlotState) {
        if self.lost {
            return;
        }
        // Overwrites alternate between scattered old slots and a row of new slots. The row stays
        // the last change: moving the other one in front of it is equivalent if they have no slot
        // in common.
        match &mut self.slots[..] {
            [.., last] if continues(last, slot, state) => last.count += 1,
            [.., row, last] if continues(row, slot, state) && !names(last, slot) && are_apart(row, last) => {
                row.count += 1;
                core::mem::swap(row, last);
            }
            _ => self.push(SlotChange { slot, count: 1, state }),
        }
    }

    fn push(&mut self, change: SlotChange) {
        if self.slots.len() < self.limit {
            self.slots.push(change);
        } else {
            self.lost = true;
            self.slots.clear();
        }
    }

    /// Records that the entry of a segment changed.
    pub(crate) fn touch(&mut self, segment: u32) {
        if !self.lost {
            self.segments.insert(segment.into());
        }
    }

    /// Takes the changes in their order, and the segments by number. Records up to `limit` changes
    /// from then on.
    ///
    /// # Panics
    /// If changes are lost.
    pub(crate) fn take(&mut self, limit: usize) -> (Vec<SlotChange>, Vec<u32>) {
        assert!(!self.lost, "an increment lists all that has changed");
        let mut segments = Vec::with_capacity(self.segments());
        let mut from = 0;
        while let Some(next) = self.segments.next_from(from) {
            segments.push(next as u32);
            from = next + 1;
        }
        let slots = core::mem::take(&mut self.slots);
        self.begin(limit);
        (slots, segments)
    }

    /// Reuses the memory of a list returned by [`Changes::take`].
    pub(crate) fn reuse(&mut self, mut slots: Vec<SlotChange>) {
        if self.slots.is_empty() && !self.lost {
            slots.clear();
            self.slots = slots;
        }
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<SlotChange>() + self.segments.bytes()
    }
}

/// Returns true if the slot extends a change.
#[inline]
fn continues(change: &SlotChange, slot: u32, state: SlotState) -> bool {
    change.state == state
        && change.count < CHANGE_SLOTS_MAX
        && change.slot.wrapping_add(change.count.into()) == slot
}

/// Returns true if two changes have no slot in common.
#[inline]
fn are_apart(a: &SlotChange, b: &SlotChange) -> bool {
    !names(a, b.slot) && !names(b, a.slot)
}

#[inline]
fn names(change: &SlotChange, slot: u32) -> bool {
    slot.wrapping_sub(change.slot) < u32::from(change.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_with_one_state_are_one_change() {
        let mut changes = Changes::default();
        changes.note(1, SlotState::Dirty);
        assert!(changes.len() == 0, "nothing is noted before it is wanted");
        changes.begin(3);
        for (slot, state) in
            [(4, SlotState::Dirty), (5, SlotState::Dirty), (6, SlotState::Clean), (4, SlotState::Void)]
        {
            changes.note(slot, state);
        }
        changes.touch(9);
        changes.touch(2);
        changes.touch(9);
        let (slots, segments) = changes.take(1);
        let change = |slot, count, state| SlotChange { slot, count, state };
        let expected =
            [change(4, 2, SlotState::Dirty), change(6, 1, SlotState::Clean), change(4, 1, SlotState::Void)];
        assert_eq!((&slots[..], &segments[..]), (&expected[..], &[2, 9][..]));
        changes.reuse(slots);
        changes.note(7, SlotState::Void);
        assert!(!changes.are_lost() && changes.len() == 1 && changes.segments() == 0);
        changes.note(9, SlotState::Void);
        assert!(changes.are_lost() && changes.len() == 0, "a list with a gap is of no use");
    }

    #[test]
    fn overwrites_are_recorded_as_a_run() {
        let mut changes = Changes::default();
        changes.begin(10);
        for (new, old) in [(100, 7), (101, 40), (102, 3)] {
            changes.note(old, SlotState::Void);
            changes.note(new, SlotState::Dirty);
        }
        assert_eq!(changes.len(), 4);
        let (slots, _) = changes.take(10);
        assert_eq!(slots.last(), Some(&SlotChange { slot: 100, count: 3, state: SlotState::Dirty }));
    }

    #[test]
    fn run_keeps_the_order_of_later_changes() {
        // A new slot that is void before the row continues; and the next slot of the row.
        for other in [100, 101] {
            let mut changes = Changes::default();
            changes.begin(10);
            let noted = [(100, SlotState::Dirty), (other, SlotState::Void), (101, SlotState::Dirty)];
            let mut expected = [SlotState::Clean; 2];
            for (slot, state) in noted {
                changes.note(slot, state);
                expected[slot as usize - 100] = state;
            }
            let mut found = [SlotState::Clean; 2];
            for change in changes.take(10).0 {
                for slot in change.slot..change.slot + u32::from(change.count) {
                    found[slot as usize - 100] = change.state;
                }
            }
            assert_eq!(found, expected, "{other}");
        }
    }

    #[test]
    fn run_length_is_limited_by_its_field() {
        let mut changes = Changes::default();
        changes.begin(10);
        for slot in 0..u32::from(CHANGE_SLOTS_MAX) + 5 {
            changes.note(slot, SlotState::Clean);
        }
        let (slots, _) = changes.take(10);
        assert_eq!(slots.iter().map(|change| change.count).collect::<Vec<_>>(), [CHANGE_SLOTS_MAX, 5]);
    }
}

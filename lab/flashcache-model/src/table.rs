//! The table of slots: their blocks of the disk and their states. Sets, placement, and eviction.
//!
//! Invariants
//! - A valid slot is in the set of its block, and the index finds it; an invalid slot is in its
//!   set's list of those.
//! - Counts of dirty, idle and cached slots are those of the slots. Only valid slots are dirty,
//!   busy or marked idle.
//! - A dirty or busy slot is never evicted.

use crate::api::Nanos;
use crate::config::{Layout, Reclaim};
use crate::lru::Lru;
use std::collections::HashMap;

/// Marks of an unused dirty slot: it is due for cleaning after this number of sweeps.
pub(crate) const FALLOW_MARKS: u8 = 2;

/// A place for one block on the flash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// Block of the disk.
    pub(crate) block: u64,
    pub(crate) valid: bool,
    pub(crate) dirty: bool,
    /// An operation on it is in flight.
    pub(crate) busy: bool,
    /// Sweeps that found it dirty since its last use.
    fallow: u8,
}

/// A set of slots.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    /// Slots without a block, numbered within the set; the last one is taken first.
    invalid: Vec<u16>,
    /// Start of the search for the next slot to evict, within the set.
    fifo_next: u32,
    /// Start of the search for the next victim of cleaning, within the set.
    pub(crate) clean_next: u32,
    pub(crate) dirty: u32,
    /// Dirty slots with [`FALLOW_MARKS`].
    pub(crate) fallow: u32,
    /// Slots under cleaning.
    pub(crate) cleaning: u32,
    /// No sweep before this time.
    pub(crate) swept_until: Nanos,
    /// No cleaning of idle blocks before this time.
    pub(crate) fallow_until: Nanos,
    lru: Option<Lru>,
}

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Table {
    layout: Layout,
    slots: Vec<Slot>,
    sets: Vec<Set>,
    index: HashMap<u64, u32>,
    dirty: u32,
    pub(crate) cleaning: u32,
}

impl Table {
    /// Creates an empty table.
    pub(crate) fn new(layout: Layout, reclaim: Reclaim) -> Self {
        let set = Set {
            invalid: (0..layout.assoc as u16).rev().collect(),
            fifo_next: 0,
            clean_next: 0,
            dirty: 0,
            fallow: 0,
            cleaning: 0,
            swept_until: 0,
            fallow_until: 0,
            lru: (reclaim == Reclaim::Lru).then(|| Lru::new(layout.assoc)),
        };
        Self {
            layout,
            slots: vec![Slot::default(); layout.slots() as usize],
            sets: vec![set; layout.sets as usize],
            index: HashMap::new(),
            dirty: 0,
            cleaning: 0,
        }
    }

    pub(crate) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub(crate) fn set_of_slot(&self, slot: u32) -> u32 {
        slot / self.layout.assoc
    }

    pub(crate) fn set(&self, set: u32) -> &Set {
        &self.sets[set as usize]
    }

    pub(crate) fn set_mut(&mut self, set: u32) -> &mut Set {
        &mut self.sets[set as usize]
    }

    /// Returns the numbers of the slots of a set.
    pub(crate) fn slots_of(&self, set: u32) -> std::ops::Range<u32> {
        set * self.layout.assoc..(set + 1) * self.layout.assoc
    }

    pub(crate) fn dirty(&self) -> u32 {
        self.dirty
    }

    pub(crate) fn cached(&self) -> u32 {
        self.index.len() as u32
    }

    pub(crate) fn find(&self, block: u64) -> Option<u32> {
        self.index.get(&block).copied()
    }

    /// Notes a client's use of a slot: it is no longer idle.
    pub(crate) fn used(&mut self, slot: u32) {
        self.clear_fallow(slot);
        let (set, at) = self.place(slot);
        if let Some(lru) = &mut self.sets[set].lru {
            lru.used(at);
        }
    }

    /// Allocates a slot for a block that is not cached. Also returns whether a clean block was
    /// evicted. `None` if no slot of the set is invalid, or clean and idle.
    pub(crate) fn claim(&mut self, block: u64) -> Option<(u32, bool)> {
        let set = self.layout.set_of(block);
        let invalid = self.sets[set as usize].invalid.pop();
        let first = set * self.layout.assoc;
        let slot = match invalid {
            Some(at) => first + u32::from(at),
            None => self.oldest_clean(set)?,
        };
        let (set, at) = self.place(slot);
        if let Some(lru) = &mut self.sets[set].lru {
            lru.touch(at);
        }
        if invalid.is_none() {
            self.index.remove(&self.slots[slot as usize].block);
        }
        self.index.insert(block, slot);
        self.slots[slot as usize] = Slot { block, valid: true, ..Slot::default() };
        Some((slot, invalid.is_none()))
    }

    fn oldest_clean(&mut self, set: u32) -> Option<u32> {
        let range = self.slots_of(set);
        let gives_way = |slot: &u32| {
            let slot = self.slot(*slot);
            slot.valid && !slot.dirty && !slot.busy
        };
        if let Some(lru) = &self.sets[set as usize].lru {
            return lru.coldest_first().map(|at| range.start + u32::from(at)).find(gives_way);
        }
        let next = range.start + self.sets[set as usize].fifo_next;
        let found = (next..range.end).chain(range.start..next).find(gives_way);
        let after = found.unwrap_or(next) + 1 - range.start;
        self.sets[set as usize].fifo_next = after % self.layout.assoc;
        found
    }

    /// Drops the block of a slot from the cache.
    pub(crate) fn invalidate(&mut self, slot: u32) {
        self.set_dirty(slot, false);
        let (set, at) = self.place(slot);
        self.index.remove(&self.slots[slot as usize].block);
        self.slots[slot as usize] = Slot::default();
        self.sets[set].invalid.push(at);
    }

    pub(crate) fn set_busy(&mut self, slot: u32, busy: bool) {
        self.slots[slot as usize].busy = busy;
    }

    pub(crate) fn set_dirty(&mut self, slot: u32, dirty: bool) {
        if self.slots[slot as usize].dirty == dirty {
            return;
        }
        self.clear_fallow(slot);
        self.slots[slot as usize].dirty = dirty;
        let set = &mut self.sets[(slot / self.layout.assoc) as usize];
        if dirty {
            set.dirty += 1;
            self.dirty += 1;
        } else {
            set.dirty -= 1;
            self.dirty -= 1;
        }
    }

    /// Adds a mark to the dirty idle slots of a set.
    pub(crate) fn sweep(&mut self, set: u32) {
        for slot in self.slots_of(set) {
            let slot = &mut self.slots[slot as usize];
            if slot.dirty && !slot.busy && slot.fallow < FALLOW_MARKS {
                slot.fallow += 1;
                self.sets[set as usize].fallow += u32::from(slot.fallow == FALLOW_MARKS);
            }
        }
    }

    pub(crate) fn is_fallow(&self, slot: u32) -> bool {
        self.slots[slot as usize].fallow >= FALLOW_MARKS
    }

    pub(crate) fn clear_fallow(&mut self, slot: u32) {
        let marks = std::mem::take(&mut self.slots[slot as usize].fallow);
        self.sets[(slot / self.layout.assoc) as usize].fallow -= u32::from(marks >= FALLOW_MARKS);
    }

    /// Returns the slots of a set in the order of the search for victims of cleaning: from its
    /// pointer on, or the coldest first.
    pub(crate) fn victims(&self, set: u32) -> Box<dyn Iterator<Item = u32> + '_> {
        let range = self.slots_of(set);
        if let Some(lru) = &self.sets[set as usize].lru {
            return Box::new(lru.coldest_first().map(move |at| range.start + u32::from(at)));
        }
        let next = range.start + self.sets[set as usize].clean_next;
        Box::new((next..range.end).chain(range.start..next))
    }

    fn place(&self, slot: u32) -> (usize, u16) {
        ((slot / self.layout.assoc) as usize, (slot % self.layout.assoc) as u16)
    }
}

//! A cache in miniature: the blocks of a sample that the current policy would keep.
//!
//! It holds no data, only the blocks of the sample that would be cached, in their order in the log.
//! It models the parts of the real cache that decide hits: room is counted in slots, so overwritten
//! data takes room until it is reclaimed, and so do headers of batches; compaction while few slots
//! are live; queues, second chances and ghosts, by the code of the real cache (`policy`); dirty
//! blocks, which are not evicted; the share of survivors that were hit; admission at a second
//! access; the endurance budget, which restrains it as it currently restrains the real cache,
//! regardless of the miniature's own writes. Segments are one slot long: few blocks of a sample
//! share a segment. Not modelled: pins (a pin counts as a hit), shares of volumes, fills without
//! memory.
//!
//! **Dirty blocks.** While destage works by age, a block becomes clean here when the real cache has
//! written it back, which does not depend on the cache size. While destage works by the dirty
//! level, the same share of a cache of any size is dirty, so a larger one writes each block back
//! later. A block that the real cache has written back is then *due*: it becomes clean here, in the
//! same order, when more than that share is dirty.
//!
//! A block is identified by 32 bits of its hash. Of 3,072 blocks, two collide in one of a thousand
//! caches.

use crate::api::endurance::Restraint;
use crate::api::settings::{Admission, Priority, ReclaimPolicy};
use crate::map::recent::Recent;
use crate::map::segment::Key;
use crate::policy::ghosts::Ghosts;
use crate::policy::rules::{MAIN, PROBATION};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

/// One insertion moves at most one in so many slots: in a sample this small all blocks can be hit,
/// or dirty.
const MOVES_MAX_ONE_IN: u32 = 64;

/// Victims that share a budget for survivors that were hit, as the blocks of a segment do.
const GROUP: u32 = 32;

/// Current settings of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    pub(crate) policy: ReclaimPolicy,
    /// Share of victims kept because they were hit, percent.
    pub(crate) survivors_max_pct: u32,
    /// Slots that are written, in thousandths: all but those of empty and open segments.
    pub(crate) room_permille: u32,
    /// Headers of batches for each incoming block, in thousandths.
    pub(crate) headers_permille: u32,
    /// Destage works by the dirty level.
    pub(crate) by_level: bool,
    /// Maximum of dirty blocks, in thousandths: blocks above it are written back at once.
    pub(crate) dirty_max_permille: u32,
    /// Returning blocks go directly to the survivors.
    pub(crate) returns_survive: bool,
    /// Of the volume being used.
    pub(crate) admission: Admission,
    /// The restraint of the real cache by its endurance budget.
    pub(crate) restraint: Restraint,
    /// Of the volume being used.
    pub(crate) priority: Priority,
}

impl Rules {
    /// The flag of the queue that a block joins.
    fn queue_flag(&self, is_survivor: bool) -> u32 {
        if self.policy.queue(is_survivor) == MAIN { IN_MAIN } else { 0 }
    }
}

/// A client's use of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    /// A read, which caches a missed block. `wanted`: at the first access.
    Read { wanted: bool },
    /// A write to the cache first.
    WriteBack,
    /// A write to the backing store first, and a copy to the cache.
    WriteThrough { wanted: bool },
    /// A bypass write, which removes the block from the cache.
    WritePast,
}

const HIT: u32 = 1 << 31;
const DIRTY: u32 = 1 << 30;
const IN_MAIN: u32 = 1 << 29;
const PRIORITY: u32 = 3 << 27;
const PRIORITY_SHIFT: u32 = 27;
const DUE: u32 = 1 << 26;
const PLACE: u32 = (1 << 26) - 1;

/// Returns the priority in the state of a block.
fn priority(known: u32) -> Priority {
    match (known & PRIORITY) >> PRIORITY_SHIFT {
        low if low == Priority::Low as u32 => Priority::Low,
        high if high == Priority::High as u32 => Priority::High,
        _ => Priority::Normal,
    }
}

/// Entry of a header in a queue. A block with this number is elsewhere.
const HEADER: u32 = u32::MAX;

/// Blocks that become clean in one call because they are due.
const DUE_A_CALL: u32 = 4;

/// The cached blocks: an open-addressing table with the block in the lower half of a word and its
/// state in the upper half. Zero is no entry.
#[derive(Debug)]
struct Entries {
    table: Box<[u64]>,
    len: u32,
    dirty: u32,
}

impl Entries {
    fn new(slots: u32) -> Self {
        // One is always free: it ends a search.
        let size = (slots * 4 / 3).max(slots + 1).next_power_of_two() as usize;
        Self { table: vec![0; size].into(), len: 0, dirty: 0 }
    }

    /// Returns the index of a block, or of its place, and whether it was found.
    fn find(&self, print: u32) -> (usize, bool) {
        let mask = self.table.len() - 1;
        let mut at = print.wrapping_mul(0x9e37_79b1) as usize & mask;
        while self.table[at] != 0 {
            if self.table[at] as u32 == print {
                return (at, true);
            }
            at = (at + 1) & mask;
        }
        (at, false)
    }

    fn get(&self, print: u32) -> Option<u32> {
        let (at, found) = self.find(print);
        found.then(|| (self.table[at] >> 32) as u32)
    }

    fn set(&mut self, print: u32, known: u32) {
        let (at, found) = self.find(print);
        self.len += u32::from(!found);
        self.dirty -= u32::from((self.table[at] >> 32) as u32 & DIRTY != 0);
        self.dirty += u32::from(known & DIRTY != 0);
        self.table[at] = u64::from(known) << 32 | u64::from(print);
    }

    /// Removes a block, and moves up the entries behind it (Knuth, volume 3, algorithm R).
    fn remove(&mut self, print: u32) {
        let (mut hole, found) = self.find(print);
        if !found {
            return;
        }
        self.len -= 1;
        self.dirty -= u32::from((self.table[hole] >> 32) as u32 & DIRTY != 0);
        let mask = self.table.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            if self.table[at] == 0 {
                break;
            }
            let home = (self.table[at] as u32).wrapping_mul(0x9e37_79b1) as usize & mask;
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = 0;
    }
}

/// Blocks in their order in the log. A block that was written again or removed keeps its old entry,
/// which takes room until its turn.
#[derive(Debug, Default)]
struct Queue {
    prints: VecDeque<u32>,
    /// Number of the first entry.
    first: u32,
}

impl Queue {
    /// Adds a block; returns its number.
    fn push(&mut self, print: u32) -> u32 {
        self.prints.push_back(print);
        self.first.wrapping_add(self.prints.len() as u32 - 1) & PLACE
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        let print = self.prints.pop_front()?;
        let place = self.first;
        self.first = self.first.wrapping_add(1) & PLACE;
        Some((print, place))
    }
}

/// A cache in miniature.
#[derive(Debug)]
pub(crate) struct Miniature {
    slots: u32,
    entries: Entries,
    /// Probation and main.
    queues: [Queue; 2],
    ghosts: Ghosts,
    missed: Option<Recent>,
    /// Blocks in the order in which the real cache has written them back. Those still due have the
    /// flag.
    due: VecDeque<u32>,
    /// Headers to write, in thousandths.
    headers: u32,
    /// Victims of this group, and survivors among them that were hit.
    group: (u32, u32),
    /// A block has been evicted: until then it had room for more blocks than were used.
    pub(crate) has_evicted: bool,
}

impl Miniature {
    /// Creates a cache of `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots,
            entries: Entries::new(slots),
            queues: [Queue::default(), Queue::default()],
            ghosts: Ghosts::new(),
            missed: None,
            due: VecDeque::new(),
            headers: 0,
            group: (0, 0),
            has_evicted: false,
        }
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let queues = self.queues.iter().map(|queue| &queue.prints).chain([&self.due]);
        let queues: usize = queues.map(|queue| queue.capacity() * 4).sum();
        let missed = self.missed.as_ref().map_or(0, Recent::bytes);
        self.entries.table.len() * 8 + queues + self.ghosts.bytes() + missed
    }

    /// Uses a block of the sample; returns true if it was cached.
    pub(crate) fn access(&mut self, rules: &Rules, print: u32, what: Use) -> bool {
        self.write_back_due(rules);
        let known = self.entries.get(print);
        match (what, known) {
            (Use::Read { .. }, Some(known)) => self.entries.set(print, known | HIT),
            (Use::Read { wanted }, None) => {
                if self.admits(rules, print, wanted) {
                    let survives = self.returns(rules, print) && rules.returns_survive;
                    self.insert(rules, print, rules.queue_flag(survives));
                }
            }
            (Use::WriteBack, _) => {
                let hit = known.is_some() || self.returns(rules, print);
                self.insert(rules, print, DIRTY | if hit { HIT } else { 0 });
            }
            (Use::WriteThrough { wanted }, _) => {
                // The replaced block has left, so the copy has proved nothing.
                self.entries.remove(print);
                if self.admits(rules, print, wanted || known.is_some()) {
                    self.insert(rules, print, 0);
                }
            }
            (Use::WritePast, _) => self.entries.remove(print),
        }
        known.is_some()
    }

    /// Notes that the real cache has written the block back.
    pub(crate) fn cleaned(&mut self, print: u32, by_level: bool) {
        let Some(known) = self.entries.get(print).filter(|known| known & DIRTY != 0) else { return };
        if !by_level {
            self.entries.set(print, known & !DIRTY & !DUE);
        } else if known & DUE == 0 {
            self.entries.set(print, known | DUE);
            self.due.push_back(print);
            if self.due.len() > self.slots as usize / 2 {
                self.write_back_first();
            }
        }
    }

    fn write_back_due(&mut self, rules: &Rules) {
        for _ in 0..DUE_A_CALL {
            if self.due.is_empty() || rules.by_level && !self.has_too_much_dirty(rules) {
                return;
            }
            self.write_back_first();
        }
    }

    /// Makes the first due block clean, unless it was written again meanwhile.
    fn write_back_first(&mut self) {
        if let Some(print) = self.due.pop_front()
            && let Some(known) = self.entries.get(print).filter(|known| known & DUE != 0)
        {
            self.entries.set(print, known & !DIRTY & !DUE);
        }
    }

    fn has_too_much_dirty(&self, rules: &Rules) -> bool {
        u64::from(self.entries.dirty) * 1000 > u64::from(self.slots) * u64::from(rules.dirty_max_permille)
    }

    /// Decides as `AdmissionMemory::admits` of the real cache.
    fn admits(&mut self, rules: &Rules, print: u32, wanted: bool) -> bool {
        match (rules.admission, rules.restraint) {
            (_, Restraint::None | Restraint::Some) if wanted => return true,
            (Admission::Always, Restraint::None) => return true,
            (Admission::Never, _) if !wanted => return false,
            _ => {}
        }
        let key = Key(u64::from(print));
        let missed = Recent::sized(&mut self.missed, u64::from(self.slots));
        let known = missed.take(key) || self.ghosts.knows(key);
        let admitted = known && rules.restraint != Restraint::All;
        if !admitted {
            missed.note(key);
        }
        admitted
    }

    fn returns(&mut self, rules: &Rules, print: u32) -> bool {
        rules.policy.returns(&mut self.ghosts, Key(u64::from(print)), self.slots.into())
    }

    fn used(&self) -> u32 {
        self.queues.iter().map(|queue| queue.prints.len() as u32).sum()
    }

    /// Puts a block at the end of the log.
    fn insert(&mut self, rules: &Rules, print: u32, flags: u32) {
        self.make_room(rules);
        self.headers += rules.headers_permille;
        if self.headers >= 1000 {
            self.headers -= 1000;
            self.queues[usize::from(flags & IN_MAIN != 0)].push(HEADER);
        }
        self.append(print, flags | (rules.priority as u32) << PRIORITY_SHIFT);
    }

    fn append(&mut self, print: u32, known: u32) {
        let place = self.queues[usize::from(known & IN_MAIN != 0)].push(print);
        self.entries.set(print, known & !PLACE | place);
    }

    fn make_room(&mut self, rules: &Rules) {
        let slots = u64::from(self.slots) * u64::from(rules.room_permille) / 1000;
        let slots = slots.max(1) as u32;
        let room_pct = (rules.survivors_max_pct + 5).min(100);
        // So few slots are live that moving all of them is worthwhile.
        if self.used() >= slots
            && u64::from(self.entries.len) * 100 < u64::from(self.slots) * u64::from(room_pct)
        {
            self.compact();
        }
        let mut moved = 0;
        while self.used() >= slots {
            let Some(queue) = self.queue_to_serve(rules) else { return };
            moved += u32::from(self.give_way(rules, queue, moved <= slots / MOVES_MAX_ONE_IN));
        }
    }

    /// Frees the room of entries that are not live.
    fn compact(&mut self) {
        for queue in 0..2 {
            let old = &mut self.queues[queue];
            let prints: Vec<(u32, u32)> = core::iter::from_fn(|| old.pop()).collect();
            for (print, place) in prints {
                if let Some(known) = self.current(queue, print, place) {
                    self.append(print, known);
                }
            }
        }
    }

    /// Returns the state of a block if this is its current entry.
    fn current(&self, queue: usize, print: u32, place: u32) -> Option<u32> {
        let here = |known: &u32| known & PLACE == place && usize::from(known & IN_MAIN != 0) == queue;
        self.entries.get(print).filter(here)
    }

    /// Returns the state of the next victim of a queue.
    fn next(&self, queue: usize) -> Option<u32> {
        let lies = &self.queues[queue];
        lies.prints.front().and_then(|print| self.current(queue, *print, lies.first))
    }

    /// Returns the queue to evict from; a block is a segment of one.
    fn queue_to_serve(&self, rules: &Rules) -> Option<usize> {
        let len = [0, 1].map(|queue: usize| self.queues[queue].prints.len() as u64);
        match len {
            [0, 0] => None,
            [_, 0] => Some(PROBATION),
            [0, _] => Some(MAIN),
            _ => {
                let queue = rules.policy.queue_to_serve(len, self.ghosts.probation_share());
                let unclean = |queue| u32::from(self.next(queue).is_some_and(|known| known & DIRTY != 0));
                let spared =
                    queue == PROBATION && rules.policy.spares_probation([PROBATION, MAIN].map(unclean), 1);
                Some(if spared { MAIN } else { queue })
            }
        }
    }

    /// Evicts or moves the next block of a queue; returns true if it was moved.
    fn give_way(&mut self, rules: &Rules, queue: usize, may_move: bool) -> bool {
        let Some((print, place)) = self.queues[queue].pop() else { return false };
        let Some(known) = self.current(queue, print, place) else { return false };
        if self.group.0 == GROUP {
            self.group = (0, 0);
        }
        self.group.0 += 1;
        let second_chance =
            rules.policy.gives_second_chance(priority(known), known & HIT != 0, queue == MAIN);
        let in_budget = self.group.1 * 100 < GROUP * rules.survivors_max_pct;
        let survives = second_chance && in_budget;
        let dirty = known & DIRTY != 0 && !self.has_too_much_dirty(rules);
        if may_move && (dirty || survives) {
            self.group.1 += u32::from(!dirty);
            self.append(print, known & !HIT & !IN_MAIN | rules.queue_flag(true));
            return true;
        }
        self.entries.remove(print);
        self.has_evicted = true;
        rules.policy.evicted(&mut self.ghosts, Key(u64::from(print)), queue, self.slots.into());
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: u32 = 1000;

    fn rules(by_level: bool, dirty_max_permille: u32) -> Rules {
        Rules {
            policy: ReclaimPolicy::Fifo,
            survivors_max_pct: 75,
            room_permille: 1000,
            headers_permille: 0,
            by_level,
            dirty_max_permille,
            returns_survive: true,
            admission: Admission::Always,
            restraint: Restraint::None,
            priority: Priority::Normal,
        }
    }

    /// Returns a miniature with blocks from 1 on, written in sequence and written back by the real
    /// cache.
    fn written_back(blocks: u32, rules: &Rules) -> Miniature {
        let mut cache = Miniature::new(SLOTS);
        for print in 1..=blocks {
            cache.access(rules, print, Use::WriteBack);
        }
        for print in 1..=blocks {
            cache.cleaned(print, rules.by_level);
        }
        cache
    }

    fn dirty(cache: &Miniature, prints: core::ops::RangeInclusive<u32>) -> usize {
        prints.filter(|print| cache.entries.get(*print).is_some_and(|known| known & DIRTY != 0)).count()
    }

    #[test]
    fn age_based_destage_cleans_due_blocks() {
        let cache = written_back(400, &rules(false, 800));
        assert_eq!(dirty(&cache, 1..=400), 0);
    }

    #[test]
    fn level_based_destage_cleans_oldest_first() {
        let by_level = rules(true, 300);
        let mut cache = written_back(400, &by_level);
        assert_eq!(dirty(&cache, 1..=400), 400, "they are due");
        for _ in 0..100 {
            cache.access(&by_level, 1, Use::Read { wanted: true });
        }
        assert_eq!(dirty(&cache, 1..=100), 0);
        assert_eq!(dirty(&cache, 101..=400), 300);
        // A block that is written again is no longer due.
        cache.access(&by_level, 101, Use::WriteBack);
        let by_age = rules(false, 800);
        for _ in 0..100 {
            cache.access(&by_age, 1, Use::Read { wanted: true });
        }
        assert_eq!(dirty(&cache, 101..=101), 1);
        assert_eq!(dirty(&cache, 102..=400), 0, "destage goes by ages again");
    }

    #[test]
    fn due_blocks_are_bounded() {
        let by_level = rules(true, 1000);
        let mut cache = written_back(900, &by_level);
        assert_eq!(cache.due.len(), 500);
        assert_eq!(dirty(&cache, 1..=900), 500);
        cache.cleaned(900, true);
        assert_eq!(cache.due.len(), 500, "a block is due once");
    }

    #[test]
    fn headers_and_empty_segments_take_room() {
        let holds = |room_permille, headers_permille| {
            let rules = Rules { room_permille, headers_permille, ..rules(false, 800) };
            let mut cache = Miniature::new(SLOTS);
            for print in 1..=2 * SLOTS {
                cache.access(&rules, print, Use::Read { wanted: true });
            }
            cache.entries.len
        };
        assert_eq!(holds(1000, 0), 1000);
        assert_eq!(holds(900, 0), 900);
        assert!((905..915).contains(&holds(1000, 100)), "{}", holds(1000, 100));
    }
}

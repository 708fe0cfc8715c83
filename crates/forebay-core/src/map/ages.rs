//! Ages of dirty blocks, at low cost.
//!
//! A segment is filled front to back, so a few marks give the write time of every slot: "from this
//! slot on, blocks were written at this time". A mark is added when time has advanced by a quantum
//! (a quarter of a second), or by 1/32 of the time for which the segment has been filled, whichever
//! is more: so a segment that is filled for a week has some 300 marks and no age is off by more
//! than 3 %. A slot between two marks counts as old as the earlier one: ages are never understated.
//!
//! The age of a dirty block is the time since its present data was written. An overwrite resets it;
//! reclaim keeps it; blocks that are dirty when a cache is opened count from the opening, since the
//! log has no times.
//!
//! [`AgeHistogram`] counts the dirty blocks of a volume by the quantum of their write time. The
//! marks of a segment always return the quantum under which a slot was counted, because no mark
//! changes the time of a slot in use.

use crate::api::Nanos;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A quantum is 2^28 ns, about 268 ms; 32 bits of them last for 36 years.
const QUANTUM_SHIFT: u32 = 28;
/// A mark is added when the age of the segment has grown by one part in so many.
const PRECISION: u32 = 32;

/// Upper ends of the classes of [`crate::Engine::dirty_ages`]; the last class is open.
const CLASS_ENDS_NS: [Nanos; 6] =
    [1_000_000_000, 10_000_000_000, 60_000_000_000, 300_000_000_000, 900_000_000_000, 3_600_000_000_000];

/// A time in quanta.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct WriteTime(u32);

impl WriteTime {
    pub(crate) fn at(now: Nanos) -> Self {
        Self((now >> QUANTUM_SHIFT).min(u64::from(u32::MAX)) as u32)
    }

    /// Returns the age; the time counts as the start of its quantum.
    pub(crate) fn age(self, now: Nanos) -> Nanos {
        now.saturating_sub(u64::from(self.0) << QUANTUM_SHIFT)
    }
}

/// Write times of the slots of one segment.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// First slot and time, ascending by slot.
    marks: Vec<(u32, WriteTime)>,
    /// Slots before this one have a time.
    end: u32,
}

impl Marks {
    /// Records that `slot` was written at `time`, and returns the time that it counts as from now
    /// on.
    pub(crate) fn note(&mut self, slot: u32, time: WriteTime) -> WriteTime {
        if slot >= self.end {
            self.end = slot + 1;
            let first = self.marks.first().map_or(time, |(_, first)| *first);
            let stale = self.marks.last().is_none_or(|(_, last)| {
                // An older block (a survivor) among younger ones must not count as young.
                time < *last || time.0 - last.0 > time.0.saturating_sub(first.0) / PRECISION
            });
            if stale {
                self.marks.push((slot, time));
            }
        }
        self.of(slot)
    }

    /// Returns true if no slot was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.end == 0
    }

    /// Returns the time that a recorded slot counts as.
    pub(crate) fn of(&self, slot: u32) -> WriteTime {
        let after = self.marks.partition_point(|(first, _)| *first <= slot);
        self.marks.get(after.saturating_sub(1)).map_or(WriteTime::default(), |(_, time)| *time)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.marks.capacity() * size_of::<(u32, WriteTime)>()
    }
}

/// Dirty blocks of a volume by write time.
#[derive(Debug, Default)]
pub(crate) struct AgeHistogram {
    counts: BTreeMap<WriteTime, u32>,
}

impl AgeHistogram {
    pub(crate) fn add(&mut self, time: WriteTime) {
        self.add_many(time, 1);
    }

    pub(crate) fn add_many(&mut self, time: WriteTime, blocks: u32) {
        if blocks > 0 {
            *self.counts.entry(time).or_insert(0) += blocks;
        }
    }

    pub(crate) fn remove(&mut self, time: WriteTime) {
        let count = self.counts.get_mut(&time).expect("a dirty block was counted when it was written");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&time);
        }
    }

    pub(crate) fn oldest(&self) -> Option<WriteTime> {
        self.counts.first_key_value().map(|(time, _)| *time)
    }

    pub(crate) fn len(&self) -> u64 {
        self.counts.values().map(|count| u64::from(*count)).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.counts.len() * 12
    }

    /// Returns the number of blocks in each class of age.
    pub(crate) fn classes(&self, now: Nanos) -> [u64; 7] {
        let mut classes = [0; 7];
        for (time, count) in &self.counts {
            let age = time.age(now);
            classes[CLASS_ENDS_NS.partition_point(|end| *end <= age)] += u64::from(*count);
        }
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;

    #[test]
    fn slot_keeps_an_age_that_is_never_younger() {
        let mut marks = Marks::default();
        let mut given = Vec::new();
        for slot in 0..4000_u32 {
            // Faster and slower, and every tenth an old survivor.
            let written = WriteTime::at(u64::from(slot) * SECOND * if slot % 3 == 0 { 7 } else { 6 });
            let time = if slot % 10 == 9 { WriteTime(written.0 / 2) } else { written };
            let counted = marks.note(slot, time);
            assert!(counted <= time, "never younger");
            given.push((slot, counted));
        }
        for (slot, counted) in given {
            assert_eq!(marks.of(slot), counted);
        }
    }

    #[test]
    fn slowly_filled_segment_needs_few_marks() {
        let mut marks = Marks::default();
        let week = 7 * 24 * 3600;
        for slot in 0..4096_u32 {
            let now = u64::from(slot) * week * SECOND / 4096;
            let time = WriteTime::at(now);
            let error = time.0 - marks.note(slot, time).0;
            assert!(error <= time.0 / PRECISION, "slot {slot}: {error}");
        }
        assert!(marks.marks.len() < 400, "{} marks", marks.marks.len());
    }

    #[test]
    fn a_segment_filled_at_once_needs_one_mark() {
        let mut marks = Marks::default();
        (0..4096).for_each(|slot| assert_eq!(marks.note(slot, WriteTime(7)), WriteTime(7)));
        assert_eq!(marks.marks.len(), 1);
    }

    #[test]
    fn out_of_order_slot_keeps_neighbour_ages() {
        let mut marks = Marks::default();
        let first = marks.note(3, WriteTime(100));
        assert_eq!(marks.note(7, WriteTime(200)), WriteTime(200));
        assert_eq!(marks.note(5, WriteTime(300)), first);
        assert_eq!((marks.of(3), marks.of(7)), (WriteTime(100), WriteTime(200)));
    }

    #[test]
    fn classes_count_every_block_once() {
        let mut ages = AgeHistogram::default();
        let now = 10_000 * SECOND;
        for age in [0, 5, 30, 120, 600, 1800, 9000] {
            ages.add(WriteTime::at(now - age * SECOND));
        }
        assert_eq!(ages.classes(now), [1; 7]);
        assert_eq!(ages.len(), 7);
        assert!(ages.oldest().unwrap().age(now) >= 9000 * SECOND);
        ages.remove(WriteTime::at(now - 9000 * SECOND));
        assert_eq!(ages.classes(now)[6], 0);
    }
}

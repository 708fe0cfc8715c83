//! The durations of one path: the current counts, and slots of earlier ones.
//!
//! Durations are counted in three dense HDR histograms: this second, these ten seconds, and the
//! total. When a second is over, its counts are added to the other two and *packed* into a slot of
//! the ring of seconds; when ten seconds are over, they are packed into a slot of the ring of tens.
//! Slots are numbered by their time, so a gap of any length costs nothing: slots that are too old
//! are ignored.
//!
//! A packed slot lists the buckets that are not empty and has room for [`BUCKETS_MAX`]. Real
//! latencies are narrow and need fewer; if there are more, neighbours are merged, upwards, from 128
//! buckets for each power of two to 64, 32 or 16. So percentiles are too high by less than 1/128 as
//! a rule, and by less than 1/16 in the worst case. They are too low only beyond a minute.
//!
//! Memory: see the test `meter_memory_is_bounded`.

use super::window::{TEN, TENS, Window};
use forebay_core::Nanos;
use hdrhistogram::{Counter, Histogram};
use std::ops::Range;

/// Shortest duration that is distinguished from none.
const SHORTEST_NS: u64 = 1_000;
/// Longest duration; longer ones count as this long (the maximum is exact nevertheless).
const LONGEST_NS: u64 = 60_000_000_000;
/// Significant decimal digits of the histograms: 128 buckets for each power of two.
const DIGITS: u8 = 2;
/// Significant bits that two digits take (HDR rounds 2 * 10^2 up to a power of two).
const SIGNIFICANT_BITS: u32 = 8;
/// The histograms' unit is the power of two below [`SHORTEST_NS`]: 512 ns. Packed values are
/// counted in it.
const UNIT_BITS: u32 = SHORTEST_NS.ilog2();
/// Buckets in a packed slot.
const BUCKETS_MAX: usize = 512;
/// The number of a slot that was never used.
const NEVER: u64 = u64::MAX;

const _: () = assert!(LONGEST_NS >> UNIT_BITS <= u32::MAX as u64);

/// An empty histogram with the bounds of this module.
pub(super) fn histogram<T: Counter>() -> Histogram<T> {
    Histogram::new_with_bounds(SHORTEST_NS, LONGEST_NS, DIGITS).expect("constants that HDR accepts")
}

/// The exact numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    pub(super) count: u64,
    pub(super) bytes: u64,
    pub(super) sum_ns: u64,
    pub(super) max_ns: u64,
}

impl Totals {
    fn record(&mut self, took: Nanos, bytes: u64) {
        self.add(Self { count: 1, bytes, sum_ns: took, max_ns: took });
    }

    pub(super) fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// A bucket of a packed slot: everything up to `value` units, and above the bucket before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Bucket {
    value: u32,
    count: u32,
}

/// Durations that ended in one second, or in ten. A clone has only the memory that is in use.
#[derive(Clone, Debug)]
struct Slot {
    number: u64,
    totals: Totals,
    /// Never grows beyond its initial capacity.
    buckets: Vec<Bucket>,
    /// Significant bits given up to stay within it.
    coarse: u32,
}

impl Slot {
    fn new() -> Self {
        Self { number: NEVER, totals: Totals::default(), buckets: Vec::with_capacity(BUCKETS_MAX), coarse: 0 }
    }

    /// Replaces its content by the counts.
    fn pack(&mut self, number: u64, totals: Totals, counts: &Histogram<u32>) {
        (self.number, self.totals, self.coarse) = (number, totals, 0);
        self.buckets.clear();
        for bucket in counts.iter_recorded() {
            let units = (bucket.value_iterated_to() >> UNIT_BITS) as u32;
            self.push(units, bucket.count_at_value());
        }
    }

    /// Adds a bucket; values come in increasing order.
    fn push(&mut self, units: u32, count: u32) {
        loop {
            let value = coarser(units, self.coarse);
            if let Some(last) = self.buckets.last_mut().filter(|last| last.value == value) {
                last.count = last.count.saturating_add(count);
                return;
            }
            if self.buckets.len() < BUCKETS_MAX {
                self.buckets.push(Bucket { value, count });
                return;
            }
            self.make_room();
        }
    }

    /// Merges neighbouring buckets.
    fn make_room(&mut self) {
        self.coarse += 1;
        let coarse = self.coarse;
        self.buckets.dedup_by(|next, kept| {
            let value = coarser(kept.value, coarse);
            kept.value = value;
            let same = coarser(next.value, coarse) == value;
            if same {
                kept.count = kept.count.saturating_add(next.count);
            }
            same
        });
        if let Some(last) = self.buckets.last_mut() {
            last.value = coarser(last.value, coarse);
        }
    }

    fn add_to(&self, sum: &mut Sum) {
        sum.totals.add(self.totals);
        for bucket in &self.buckets {
            let ns = (u64::from(bucket.value) << UNIT_BITS) | ((1 << UNIT_BITS) - 1);
            sum.counts.saturating_record_n(ns, bucket.count.into());
        }
    }
}

/// The highest value that has the same leading `SIGNIFICANT_BITS - coarse` bits.
fn coarser(units: u32, coarse: u32) -> u32 {
    let bits = u32::BITS - units.leading_zeros();
    let shift = bits.saturating_sub(SIGNIFICANT_BITS - coarse.min(SIGNIFICANT_BITS - 1));
    units | ((1 << shift) - 1)
}

/// Durations of the current second, or of the current ten.
#[derive(Clone, Debug)]
struct Open {
    totals: Totals,
    counts: Histogram<u32>,
}

impl Open {
    fn new() -> Self {
        Self { totals: Totals::default(), counts: histogram() }
    }

    fn clear(&mut self) {
        self.totals = Totals::default();
        self.counts.reset();
    }

    fn add_to(&self, sum: &mut Sum) {
        sum.totals.add(self.totals);
        for bucket in self.counts.iter_recorded() {
            sum.counts.saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value().into());
        }
    }
}

/// The sum of several slots.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub(super) totals: Totals,
    pub(super) counts: Histogram<u64>,
}

impl Sum {
    pub(super) fn new() -> Self {
        Self { totals: Totals::default(), counts: histogram() }
    }

    pub(super) fn clear(&mut self) {
        self.totals = Totals::default();
        self.counts.reset();
    }
}

/// Durations of one path.
#[derive(Clone, Debug)]
pub(super) struct Series {
    /// Number of the second that `second` counts.
    number: u64,
    second: Open,
    /// Complete seconds of the current ten.
    ten: Open,
    /// Complete seconds since the start.
    total: Sum,
    seconds: Box<[Slot]>,
    tens: Box<[Slot]>,
}

impl Series {
    pub(super) fn new() -> Self {
        let ring = |slots: u64| (0..slots).map(|_| Slot::new()).collect();
        Self {
            number: 0,
            second: Open::new(),
            ten: Open::new(),
            total: Sum::new(),
            seconds: ring(TEN),
            tens: ring(TENS),
        }
    }

    #[inline]
    pub(super) fn record(&mut self, took: Nanos, bytes: u64, second: u64) {
        if second > self.number {
            self.roll(second);
        }
        self.second.totals.record(took, bytes);
        self.second.counts.saturating_record(took);
    }

    /// True if no duration was ever recorded.
    pub(super) fn is_empty(&self) -> bool {
        self.total.totals.count == 0 && self.second.totals.count == 0
    }

    /// Closes the current second, and the ten seconds if they are over too.
    #[cold]
    pub(super) fn roll(&mut self, second: u64) {
        if second <= self.number {
            return;
        }
        if self.second.totals.count > 0 {
            let slot = &mut self.seconds[(self.number % TEN) as usize];
            slot.pack(self.number, self.second.totals, &self.second.counts);
            self.ten.totals.add(self.second.totals);
            self.total.totals.add(self.second.totals);
            for bucket in self.second.counts.iter_recorded() {
                let (value, count) = (bucket.value_iterated_to(), bucket.count_at_value());
                self.ten.counts.saturating_record_n(value, count);
                self.total.counts.saturating_record_n(value, count.into());
            }
            self.second.clear();
        }
        let ten = self.number / TEN;
        if second / TEN > ten && self.ten.totals.count > 0 {
            let slot = &mut self.tens[(ten % TENS) as usize];
            slot.pack(ten, self.ten.totals, &self.ten.counts);
            self.ten.clear();
        }
        self.number = second;
    }

    /// Adds the slots of a window. The series must have been rolled to the second of `now`.
    pub(super) fn add_to(&self, sum: &mut Sum, window: Window, now: Nanos) {
        let seconds = window.seconds(now);
        match window {
            Window::Second | Window::TenSeconds => add_slots(&self.seconds, seconds, sum),
            Window::FiveMinutes => {
                add_slots(&self.tens, seconds.start / TEN..seconds.end / TEN, sum);
                self.ten.add_to(sum);
            }
            Window::Total => {
                sum.totals.add(self.total.totals);
                for bucket in self.total.counts.iter_recorded() {
                    sum.counts.saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value());
                }
                self.second.add_to(sum);
            }
        }
    }

    /// Memory used, in bytes.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        let slots = self.seconds.iter().chain(&self.tens);
        let packed: usize =
            slots.map(|slot| size_of::<Slot>() + slot.buckets.capacity() * size_of::<Bucket>()).sum();
        let dense = [&self.second.counts, &self.ten.counts].map(|counts| counts.distinct_values() * 4);
        let total = self.total.counts.distinct_values() * 8;
        size_of::<Self>() + packed + dense.iter().sum::<usize>() + total
    }
}

fn add_slots(slots: &[Slot], numbers: Range<u64>, sum: &mut Sum) {
    for slot in slots.iter().filter(|slot| slot.number != NEVER && numbers.contains(&slot.number)) {
        slot.add_to(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_slot_gets_coarser_and_loses_nothing() {
        let mut counts = histogram::<u32>();
        let mut value = 600.0;
        while value < 59e9 {
            counts.record(value as u64).unwrap();
            value *= 1.004;
        }
        let distinct = counts.iter_recorded().count();
        assert!(distinct > 2 * BUCKETS_MAX, "{distinct}");
        let mut slot = Slot::new();
        slot.pack(7, Totals { count: counts.len(), ..Totals::default() }, &counts);
        assert_eq!(slot.buckets.capacity(), BUCKETS_MAX);
        assert!((1..=4).contains(&slot.coarse), "{}", slot.coarse);
        assert_eq!(slot.buckets.iter().map(|bucket| u64::from(bucket.count)).sum::<u64>(), counts.len());
        assert!(slot.buckets.is_sorted_by(|a, b| a.value < b.value));
        let mut sum = Sum::new();
        slot.add_to(&mut sum);
        for quantile in [0.01, 0.5, 0.9, 0.999] {
            let (exact, packed) =
                (counts.value_at_quantile(quantile), sum.counts.value_at_quantile(quantile));
            assert!(
                packed >= exact && packed as f64 <= exact as f64 * (1.0 + 1.0 / 16.0),
                "{exact} {packed}"
            );
        }
    }

    #[test]
    fn histogram_and_slot_buckets_are_equal() {
        let mut counts = histogram::<u32>();
        for value in (0..200_000).map(|i| i * 911 % 100_000_000) {
            counts.record(value).unwrap();
        }
        for bucket in counts.iter_recorded() {
            let value = bucket.value_iterated_to();
            let units = (value >> UNIT_BITS) as u32;
            assert_eq!(coarser(units, 0), units, "{value}");
            assert_eq!(value & ((1 << UNIT_BITS) - 1), (1 << UNIT_BITS) - 1, "{value}");
        }
        assert_eq!([coarser(0b1111_0000, 4), coarser(3, 7), coarser(0, 9)], [0b1111_1111, 3, 0]);
    }
}

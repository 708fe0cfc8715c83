//! The pages that modifying operations of a device touch: finds operations that share a page with a
//! given one.
//!
//! Ranges are indexed by their length rounded down to a power of two, and within a length by their
//! first page. So a look-up touches little more than its results, for single blocks and for zeroing
//! a whole device.
//!
//! Invariant: an operation is in here at most once.

use std::collections::BTreeMap;

use crate::buffer::BUFFER_ALIGN;

/// First and last page of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pages {
    first: u64,
    last: u64,
}

impl Pages {
    /// The pages of a range in bytes; `None` if it is empty.
    pub(super) fn of(offset: u64, len: u64) -> Option<Pages> {
        let page = BUFFER_ALIGN as u64;
        let last = offset.checked_add(len.checked_sub(1)?)?;
        Some(Pages { first: offset / page, last: last / page })
    }

    /// The exponent of the largest power of two that is not above the number of pages.
    fn rank(self) -> u32 {
        (self.last - self.first + 1).ilog2()
    }
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct PagesInUse {
    /// By rank, first page and operation: the last page, and the place in the order of arrival.
    ranges: BTreeMap<(u32, u64, u32), (u64, u64)>,
    arrivals: u64,
}

impl PagesInUse {
    /// Inserts a starting operation; one that is already present keeps its place.
    pub(super) fn insert(&mut self, operation: u32, pages: Pages) {
        let arrival = self.arrivals;
        self.ranges.entry((pages.rank(), pages.first, operation)).or_insert((pages.last, arrival));
        self.arrivals += 1;
    }

    /// Removes an ended operation.
    pub(super) fn remove(&mut self, operation: u32, pages: Pages) {
        self.ranges.remove(&(pages.rank(), pages.first, operation));
    }

    pub(super) fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Arrival number of an operation in here.
    pub(super) fn arrival(&self, operation: u32, pages: Pages) -> Option<u64> {
        self.ranges.get(&(pages.rank(), pages.first, operation)).map(|&(_, arrival)| arrival)
    }

    /// Returns whether any operation that touches one of the pages satisfies the predicate, which
    /// gets the operation and its arrival.
    pub(super) fn any(&self, pages: Pages, mut fulfils: impl FnMut(u32, u64) -> bool) -> bool {
        let mut rank = 0;
        while let Some((&(next, ..), _)) = self.ranges.range((rank, 0, 0)..).next() {
            rank = next;
            // Ranges of this rank are no longer than this, so ranges that begin earlier end too
            // early.
            let longest = (2u64 << rank) - 1;
            let from = pages.first.saturating_sub(longest - 1);
            let near = self.ranges.range((rank, from, 0)..=(rank, pages.last, u32::MAX));
            for (&(_, _, operation), &(last, arrival)) in near {
                if last >= pages.first && fulfils(operation, arrival) {
                    return true;
                }
            }
            rank += 1;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_those_that_the_bytes_lie_in() {
        assert_eq!(Pages::of(5, 0), None);
        assert_eq!(Pages::of(u64::MAX, 2), None);
        assert_eq!(Pages::of(4095, 1), Some(Pages { first: 0, last: 0 }));
        assert_eq!(Pages::of(4095, 2), Some(Pages { first: 0, last: 1 }));
        assert_eq!(Pages::of(4096, 8192), Some(Pages { first: 1, last: 2 }));
    }

    #[test]
    fn page_ranges_are_found_by_own_pages_only() {
        let mut random = crate::random::Rng(7);
        let mut used = PagesInUse::default();
        let mut model: Vec<(u32, Pages)> = Vec::new();
        for operation in 0..4000 {
            let rank = random.below(22);
            let first = random.below(1 << 20);
            let pages = Pages { first, last: first + random.below(1 << rank) };
            let mut found = Vec::new();
            used.any(pages, |operation, arrival| {
                found.push((operation, arrival));
                false
            });
            found.sort_unstable();
            let shares = |other: &Pages| other.first <= pages.last && pages.first <= other.last;
            let expected: Vec<(u32, u64)> = model
                .iter()
                .filter(|(_, other)| shares(other))
                .map(|&(operation, _)| (operation, u64::from(operation)))
                .collect();
            assert_eq!(found, expected, "{pages:?}");
            used.insert(operation, pages);
            assert_eq!(used.arrival(operation, pages), Some(u64::from(operation)));
            model.push((operation, pages));
            if model.len() > 40 {
                let (operation, pages) = model.remove(random.below(40) as usize);
                used.remove(operation, pages);
            }
        }
    }
}

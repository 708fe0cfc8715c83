//! Ranges of a volume with their worth, in order and merged if adjacent.

use forebay_offline::salvage::Worth;

/// Sorted after [`Ranges::settle`].
#[derive(Debug, Default)]
pub(super) struct Ranges {
    all: Vec<(u64, u64, Worth)>,
}

impl Ranges {
    /// Adds a range; ranges must not overlap.
    pub(super) fn add(&mut self, offset: u64, len: u64, worth: Worth) {
        if let Some((first, bytes, last)) = self.all.last_mut()
            && *first + *bytes == offset
            && *last == worth
        {
            *bytes += len;
            return;
        }
        self.all.push((offset, len, worth));
    }

    /// Sorts and merges the ranges.
    pub(super) fn settle(&mut self) {
        let mut all = std::mem::take(&mut self.all);
        all.sort_unstable();
        for (offset, len, worth) in all {
            self.add(offset, len, worth);
        }
    }

    /// Returns offset, length, and worth of each range.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64, Worth)> + '_ {
        self.all.iter().copied()
    }

    /// Returns the bytes of one worth.
    pub(super) fn bytes(&self, worth: Worth) -> u64 {
        self.iter().filter(|range| range.2 == worth).map(|range| range.1).sum()
    }

    /// Returns the first byte after the last range.
    pub(super) fn end(&self) -> u64 {
        self.iter().map(|range| range.0 + range.1).max().unwrap_or(0)
    }

    /// Returns true if there are no ranges.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_sorted_and_merged() {
        let mut ranges = Ranges::default();
        for (offset, worth) in [(8, Worth::Dirty), (0, Worth::Dirty), (4, Worth::Dirty), (12, Worth::Lost)] {
            ranges.add(offset, 4, worth);
        }
        ranges.settle();
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 12, Worth::Dirty), (12, 4, Worth::Lost)]);
        assert_eq!((ranges.bytes(Worth::Dirty), ranges.bytes(Worth::Uncertain), ranges.end()), (12, 0, 16));
    }
}

//! Finds the kept changes that concern a range.

use std::collections::BTreeMap;

/// Longer ranges are few, and kept in a list.
const SHORT_BYTES_MAX: u64 = 1 << 20;

/// Ranges by number.
#[derive(Debug, Default)]
pub(super) struct RangeIndex {
    /// By first byte and number: the length.
    short: BTreeMap<(u64, u64), u64>,
    /// By number: first byte and length.
    long: BTreeMap<u64, (u64, u64)>,
}

impl RangeIndex {
    pub(super) fn insert(&mut self, seq: u64, offset: u64, len: u64) {
        if len > SHORT_BYTES_MAX {
            self.long.insert(seq, (offset, len));
        } else {
            self.short.insert((offset, seq), len);
        }
    }

    pub(super) fn remove(&mut self, seq: u64, offset: u64) {
        self.long.remove(&seq);
        self.short.remove(&(offset, seq));
    }

    /// Numbers of the ranges that share bytes with this one, in no order.
    pub(super) fn overlapping(&self, offset: u64, len: u64) -> impl Iterator<Item = u64> {
        let end = offset.saturating_add(len);
        let from = offset.saturating_sub(SHORT_BYTES_MAX);
        let short = self.short.range((from, 0)..(end, 0));
        let short = short.filter(move |((at, _), len)| at + *len > offset).map(|((_, seq), _)| *seq);
        let long = self.long.iter();
        let long = long.filter(move |(_, (at, len))| *at < end && at.saturating_add(*len) > offset);
        short.chain(long.map(|(seq, _)| *seq))
    }
}

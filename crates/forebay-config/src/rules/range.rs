//! Ranges of bytes in rules: `0..1GiB`, `64KiB..`, `..=4KiB`.
//!
//! Invariant: a range is never empty.

use std::fmt;

use forebay_admin::size::ByteSize;

/// Multiples of this are preferred as bounds when a range is printed.
const ROUND_BYTES: u64 = 512;

/// A range of byte offsets or of lengths, never empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    first: u64,
    /// Inclusive, so that the largest number stands for an open end.
    last: u64,
}

impl ByteRange {
    /// Every number.
    pub const ALL: Self = Self { first: 0, last: u64::MAX };

    /// Creates the range from `first` to `last`, both included; `None` if that is empty.
    pub fn new(first: u64, last: u64) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the first number in the range.
    pub fn first(self) -> u64 {
        self.first
    }

    /// Returns the last number in the range; `u64::MAX` if its end is open.
    pub fn last(self) -> u64 {
        self.last
    }

    /// Returns whether the number is in the range. One comparison.
    #[inline]
    pub fn contains(self, number: u64) -> bool {
        number.wrapping_sub(self.first) <= self.last.wrapping_sub(self.first)
    }

    /// Returns the intersection of both ranges.
    pub(super) fn intersection(self, other: Self) -> Option<Self> {
        Self::new(self.first.max(other.first), self.last.min(other.last))
    }

    /// Parses `A..B` (B not included), `A..=B`, `A..`, `..B`, `..=B` or `..`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let allowed = "write a range like 0..1GiB, 1GiB.. or ..=64KiB";
        let (first, end) = text.split_once("..").ok_or_else(|| format!("not a range; {allowed}"))?;
        let number = |text: &str| text.parse::<ByteSize>().map(ByteSize::bytes).map_err(|e| e.to_string());
        let first = if first.trim().is_empty() { 0 } else { number(first)? };
        let empty = || format!("the range is empty; {allowed}, the smaller end first");
        let last = match end.trim().strip_prefix('=') {
            Some(last) => number(last)?,
            None if end.trim().is_empty() => u64::MAX,
            None => number(end)?.checked_sub(1).ok_or_else(empty)?,
        };
        Self::new(first, last).ok_or_else(empty)
    }

    /// Like [`ByteRange::parse`]; a bare size is the range of that size alone.
    pub(super) fn parse_or_single(text: &str) -> Result<Self, String> {
        if text.contains("..") {
            return Self::parse(text);
        }
        let size = text.parse::<ByteSize>().map_err(|e| format!("{e}, or a range like ..64KiB"))?.bytes();
        Ok(Self { first: size, last: size })
    }
}

impl fmt::Display for ByteRange {
    /// Formats it so that it reads back as the same range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (0, u64::MAX) => return f.write_str(".."),
            (0, _) => f.write_str("0..")?,
            (first, _) => write!(f, "{}..", ByteSize(first))?,
        }
        match self.last.checked_add(1) {
            None => Ok(()),
            Some(end) if end.is_multiple_of(ROUND_BYTES) || !self.last.is_multiple_of(ROUND_BYTES) => {
                write!(f, "{}", ByteSize(end))
            }
            Some(_) => write!(f, "={}", ByteSize(self.last)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_read_and_printed() {
        for (text, first, last, printed) in [
            ("0..1GiB", 0, (1 << 30) - 1, "0..1GiB"),
            ("..64K", 0, 65535, "0..64KiB"),
            ("..=64K", 0, 65536, "0..=64KiB"),
            ("1M..", 1 << 20, u64::MAX, "1MiB.."),
            ("..", 0, u64::MAX, ".."),
            (" 4KiB .. 8KiB ", 4096, 8191, "4KiB..8KiB"),
            ("10..20", 10, 19, "10B..20B"),
            ("..=18446744073709551615", 0, u64::MAX, ".."),
        ] {
            let range = ByteRange::parse(text).unwrap();
            assert_eq!((range.first(), range.last()), (first, last), "{text}");
            assert_eq!(range.to_string(), printed, "{text}");
        }
        assert_eq!(ByteRange::parse_or_single("4KiB").unwrap().to_string(), "4KiB..=4KiB");
    }

    #[test]
    fn empty_and_malformed_ranges_are_refused() {
        for text in ["1G..1M", "5..5", "..0", "4K..=4095", "", "7", "a..b", "1..2..3", "-1..2", "1...2"] {
            assert!(ByteRange::parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn printed_range_reads_back(a: u64, b: u64) {
            let range = ByteRange::new(a.min(b), a.max(b)).unwrap();
            prop_assert_eq!(ByteRange::parse(&range.to_string()), Ok(range));
        }

        #[test]
        fn contains_matches_the_bounds(a in 0u64..20, b in 0u64..20, n in 0u64..25) {
            let range = ByteRange::new(a.min(b), a.max(b)).unwrap();
            prop_assert_eq!(range.contains(n), range.first() <= n && n <= range.last());
        }

        #[test]
        fn any_text_is_a_range_or_an_error(text in "[0-9.=KMGiB ]{0,12}|\\PC*") {
            let _ = ByteRange::parse_or_single(&text);
        }
    }
}

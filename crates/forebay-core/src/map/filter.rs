//! A set of keys with false positives: it always finds an added key, and about one of five hundred
//! others.
//!
//! A Bloom filter with all bits of a key in one word, so that a lookup costs one memory access
//! (Putze, Sanders, Singler: Cache-, hash- and space-efficient Bloom filters, 2007).

use alloc::vec;
use alloc::vec::Vec;

/// Keys per word: at least 32 bits a key, of which each sets three.
const WORD_KEYS: usize = 2;

#[derive(Debug)]
pub(super) struct KeyFilter {
    words: Vec<u64>,
    shift: u32,
}

/// Returns the bits of a key in its word, from the low bits of its hash, which do not select the
/// word.
fn bits(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63)
}

impl KeyFilter {
    /// Creates a set of the keys with these hashes.
    pub(super) fn new(hashes: impl ExactSizeIterator<Item = u64>) -> Self {
        // At least two: a shift by all bits would be no shift.
        let words = (hashes.len() / WORD_KEYS).next_power_of_two().max(2);
        let mut filter = Self { words: vec![0; words], shift: 64 - words.trailing_zeros() };
        for hash in hashes {
            filter.words[(hash >> filter.shift) as usize] |= bits(hash);
        }
        filter
    }

    /// Returns false if no key with this hash was added.
    #[inline]
    pub(super) fn may_hold(&self, hash: u64) -> bool {
        self.words[(hash >> self.shift) as usize] & bits(hash) == bits(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::index::hash;
    use crate::map::segment::Key;

    #[test]
    fn filter_finds_its_keys_and_few_others() {
        for count in [1, 3, 100, 60_000] {
            let filter = KeyFilter::new((0..count).map(|block| hash(Key(block as u64 * 3))));
            assert!((0..count as u64).all(|block| filter.may_hold(hash(Key(block * 3)))));
            let others = (0..100_000).filter(|block| filter.may_hold(hash(Key(block * 3 + 1)))).count();
            assert!(others < 600, "{others} of 100000 others are taken for one of {count}");
        }
    }
}

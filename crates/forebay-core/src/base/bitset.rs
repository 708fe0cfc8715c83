//! A sparse, ordered set of block numbers: the blocks that wait for destage.
//!
//! Two levels: leaves of 4096 bits that exist only where a bit is set, and a bit per leaf above
//! them. A completely random set costs at most one bit per block of the volume plus the leaf
//! pointers.

use alloc::boxed::Box;
use alloc::vec::Vec;

const LEAF_WORDS: usize = 64;
const LEAF_BITS: u64 = LEAF_WORDS as u64 * 64;

#[derive(Debug)]
struct Leaf {
    words: [u64; LEAF_WORDS],
    count: u32,
}

#[derive(Debug, Default)]
pub(crate) struct BlockSet {
    leaves: Vec<Option<Box<Leaf>>>,
    present: Vec<u64>,
    len: u64,
}

impl BlockSet {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let leaves = self.leaves.iter().flatten().count();
        leaves * size_of::<Leaf>() + self.leaves.capacity() * 8 + self.present.capacity() * 8
    }

    /// Returns the leaf with this number, creating it if needed.
    #[inline]
    fn leaf_mut(&mut self, index: usize) -> &mut Leaf {
        if index >= self.leaves.len() {
            self.leaves.resize_with(index + 1, || None);
            self.present.resize(index / 64 + 1, 0);
        }
        self.leaves[index].get_or_insert_with(|| Box::new(Leaf { words: [0; LEAF_WORDS], count: 0 }))
    }

    pub(crate) fn insert(&mut self, block: u64) {
        let index = (block / LEAF_BITS) as usize;
        let leaf = self.leaf_mut(index);
        let word = &mut leaf.words[(block % LEAF_BITS / 64) as usize];
        let bit = 1 << (block % 64);
        if *word & bit == 0 {
            *word |= bit;
            leaf.count += 1;
            self.len += 1;
            self.present[index / 64] |= 1 << (index % 64);
        }
    }

    /// Inserts `count` adjacent blocks.
    pub(crate) fn insert_run(&mut self, first: u64, count: u64) {
        let end = first + count;
        let mut at = first;
        while at < end {
            let index = (at / LEAF_BITS) as usize;
            let of_word = (64 - at % 64).min(end - at);
            let leaf = self.leaf_mut(index);
            let word = &mut leaf.words[(at % LEAF_BITS / 64) as usize];
            let new = u64::MAX >> (64 - of_word) << (at % 64) & !*word;
            *word |= new;
            leaf.count += new.count_ones();
            self.len += u64::from(new.count_ones());
            self.present[index / 64] |= 1 << (index % 64);
            at += of_word;
        }
    }

    pub(crate) fn remove(&mut self, block: u64) {
        let index = (block / LEAF_BITS) as usize;
        let Some(Some(leaf)) = self.leaves.get_mut(index) else { return };
        let word = &mut leaf.words[(block % LEAF_BITS / 64) as usize];
        let bit = 1 << (block % 64);
        if *word & bit != 0 {
            *word &= !bit;
            leaf.count -= 1;
            self.len -= 1;
            if leaf.count == 0 {
                self.leaves[index] = None;
                self.present[index / 64] &= !(1 << (index % 64));
            }
        }
    }

    pub(crate) fn contains(&self, block: u64) -> bool {
        let leaf = self.leaves.get((block / LEAF_BITS) as usize).and_then(Option::as_deref);
        leaf.is_some_and(|leaf| leaf.words[(block % LEAF_BITS / 64) as usize] >> (block % 64) & 1 == 1)
    }

    /// Returns the smallest member that is not below `from`.
    pub(crate) fn next_from(&self, from: u64) -> Option<u64> {
        let first = (from / LEAF_BITS) as usize;
        let within = self.leaves.get(first).and_then(Option::as_deref);
        if let Some(found) = within.and_then(|leaf| leaf.next_from(from % LEAF_BITS)) {
            return Some(first as u64 * LEAF_BITS + found);
        }
        let mut index = first + 1;
        while index < self.leaves.len() {
            let word = self.present[index / 64] >> (index % 64);
            if word == 0 {
                index = (index / 64 + 1) * 64;
                continue;
            }
            index += word.trailing_zeros() as usize;
            let leaf = self.leaves[index].as_deref().expect("a present bit has a leaf");
            return leaf.next_from(0).map(|found| index as u64 * LEAF_BITS + found);
        }
        None
    }
}

impl Leaf {
    fn next_from(&self, from: u64) -> Option<u64> {
        let mut index = (from / 64) as usize;
        let mut word = self.words[index] & (u64::MAX << (from % 64));
        loop {
            if word != 0 {
                return Some(index as u64 * 64 + u64::from(word.trailing_zeros()));
            }
            index += 1;
            word = *self.words.get(index)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn block_set_agrees_with_a_btree_set() {
        let mut set = BlockSet::default();
        let mut model = BTreeSet::new();
        let mut seed = 3_u64;
        for _ in 0..50_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let block = ((seed >> 40) % 3_000_000) & !((seed >> 36) & 0xff);
            if seed >> 57 == 0 {
                let count = (seed >> 10) % 200;
                set.insert_run(block, count);
                model.extend(block..block + count);
            } else if seed >> 63 == 0 {
                set.insert(block);
                model.insert(block);
            } else {
                set.remove(block);
                model.remove(&block);
            }
            let from = (seed >> 20) % 3_000_000;
            assert_eq!(set.next_from(from), model.range(from..).next().copied());
            assert_eq!(set.contains(block), model.contains(&block));
        }
        assert_eq!(set.len(), model.len() as u64);
    }
}

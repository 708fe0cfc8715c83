//! The hash index: key to slot.
//!
//! Entries are a 32-bit slot and an 8-bit tag in two arrays; the key itself is in the slot table, so that it is
//! stored once. The table is split into many small shards, each of which grows by a quarter when it is 7/8 full: no
//! growth step moves more than some thousand entries, and the mean load stays near 0.8 (about 6.3 bytes an entry).
//! Collisions are resolved by linear probing; removal shifts entries back, so there are no tombstones.

use crate::segment::Key;
use alloc::vec;
use alloc::vec::Vec;

const EMPTY: u32 = u32::MAX;
/// Entries that one shard is meant to hold when the cache is full.
const SHARD_ENTRIES: u32 = 4096;

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<u32>,
    tags: Vec<u8>,
    len: usize,
}

/// Key to slot. `key_of` arguments give the key stored for a slot.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
    shard_shift: u32,
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the key reaches every bit of the hash.
pub(crate) fn hash(key: Key) -> u64 {
    let mut x = key.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn home(hash: u64, capacity: usize) -> usize {
    // Multiply-shift range reduction (Lemire 2019) on the low half; the shard took the high bits.
    (((hash & 0xffff_ffff) * capacity as u64) >> 32) as usize
}

fn tag(hash: u64) -> u8 {
    (hash >> 32) as u8
}

impl Index {
    pub(crate) fn new(slot_count: u32) -> Self {
        let shards = (slot_count / SHARD_ENTRIES).max(1).next_power_of_two();
        let mut list = Vec::new();
        list.resize_with(shards as usize, Shard::default);
        Self { shards: list, shard_shift: 64 - shards.trailing_zeros() }
    }

    /// Makes room for about `entries` entries in all, so that filling the index does not grow it step by step.
    pub(crate) fn reserve(&mut self, entries: usize) {
        // Keys spread evenly over the shards; a little more than their share keeps most of them from growing.
        let share = entries / self.shards.len();
        let capacity = share + share / 4 + 16;
        for shard in self.shards.iter_mut().filter(|shard| shard.len == 0) {
            shard.slots = vec![EMPTY; capacity];
            shard.tags = vec![0; capacity];
        }
    }

    fn shard(&self, hash: u64) -> usize {
        hash.checked_shr(self.shard_shift).unwrap_or(0) as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len).sum()
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.slots.capacity() * 4 + shard.tags.capacity() + 56).sum()
    }

    pub(crate) fn get(&self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        let shard = &self.shards[self.shard(hash)];
        shard.find(key, hash, key_of).map(|at| shard.slots[at])
    }

    /// Maps `key` to `slot`; returns the slot it was mapped to before.
    pub(crate) fn insert(&mut self, key: Key, slot: u32, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        let index = self.shard(hash);
        let shard = &mut self.shards[index];
        if let Some(at) = shard.find(key, hash, &key_of) {
            return Some(core::mem::replace(&mut shard.slots[at], slot));
        }
        if (shard.len + 1) * 8 > shard.slots.len() * 7 {
            shard.grow(&key_of);
        }
        shard.place(slot, hash);
        shard.len += 1;
        None
    }

    /// Removes `key`; returns the slot it was mapped to.
    pub(crate) fn remove(&mut self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        let index = self.shard(hash);
        let shard = &mut self.shards[index];
        let at = shard.find(key, hash, &key_of)?;
        let slot = shard.slots[at];
        shard.take_out(at, key_of);
        shard.len -= 1;
        Some(slot)
    }
}

impl Shard {
    fn find(&self, key: Key, hash: u64, key_of: impl Fn(u32) -> Key) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let tag = tag(hash);
        let mut at = home(hash, self.slots.len());
        loop {
            let slot = self.slots[at];
            if slot == EMPTY {
                return None;
            }
            if self.tags[at] == tag && key_of(slot) == key {
                return Some(at);
            }
            at = self.next(at);
        }
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn place(&mut self, slot: u32, hash: u64) {
        let mut at = home(hash, self.slots.len());
        while self.slots[at] != EMPTY {
            at = self.next(at);
        }
        self.slots[at] = slot;
        self.tags[at] = tag(hash);
    }

    fn grow(&mut self, key_of: impl Fn(u32) -> Key) {
        let capacity = self.slots.len() + self.slots.len() / 4 + 16;
        let old = core::mem::replace(&mut self.slots, vec![EMPTY; capacity]);
        self.tags = vec![0; capacity];
        for slot in old.into_iter().filter(|slot| *slot != EMPTY) {
            self.place(slot, hash(key_of(slot)));
        }
    }

    /// Empties a place and moves back what was displaced past it.
    fn take_out(&mut self, mut hole: usize, key_of: impl Fn(u32) -> Key) {
        let capacity = self.slots.len();
        let mut at = hole;
        loop {
            at = self.next(at);
            let slot = self.slots[at];
            if slot == EMPTY {
                break;
            }
            let home = home(hash(key_of(slot)), capacity);
            let distance = |from: usize| (at + capacity - from) % capacity;
            // The entry may fill the hole only if the hole lies between its home and where it is now.
            if distance(home) >= distance(hole) {
                self.slots[hole] = slot;
                self.tags[hole] = self.tags[at];
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use forebay_format::VolumeId;

    #[test]
    fn agrees_with_a_btree_map_over_random_operations() {
        let mut index = Index::new(8192);
        let mut model: BTreeMap<Key, u32> = BTreeMap::new();
        let mut keys: Vec<Key> = Vec::new();
        let mut seed = 7_u64;
        for step in 0..200_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let key = Key::new(VolumeId((seed >> 60) as u16 % 3), (seed >> 33) % 5000);
            if step % 3 == 2 {
                assert_eq!(index.remove(key, |slot| keys[slot as usize]), model.remove(&key));
            } else {
                let slot = keys.len() as u32;
                keys.push(key);
                assert_eq!(index.insert(key, slot, |slot| keys[slot as usize]), model.insert(key, slot));
            }
            assert_eq!(index.len(), model.len());
        }
        for (key, slot) in &model {
            assert_eq!(index.get(*key, |slot| keys[slot as usize]), Some(*slot));
        }
    }

    #[test]
    fn an_entry_costs_less_than_seven_bytes_on_average_while_filling() {
        let mut index = Index::new(1 << 20);
        let keys: Vec<Key> = (0..900_000).map(|block| Key::new(VolumeId(0), block * 7)).collect();
        let mut sum = 0.0;
        for (slot, key) in keys.iter().enumerate() {
            index.insert(*key, slot as u32, |slot| keys[slot as usize]);
            if slot % 100_000 == 99_999 {
                sum += index.bytes() as f64 / (slot + 1) as f64;
            }
        }
        assert!(sum / 9.0 < 7.0, "{} bytes an entry", sum / 9.0);
    }
}

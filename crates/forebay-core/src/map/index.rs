//! The hash index: key to slot.
//!
//! An entry is one cell of 32 bits: the slot, and in the bits that slots do not need a tag of the
//! hash, which excludes most other keys without a look at the slot table. The key itself is stored
//! once, in the slot table. The table is split into many small shards, each of which grows by an
//! eighth of its final size: no growth step moves more than some thousand entries, and a full cache
//! has a load of 0.8, that is 5 bytes an entry. Collisions are resolved by linear probing; removal
//! shifts entries back, so there are no tombstones.
//!
//! **Loading.** Putting an entry into its cell costs a cache miss, and a start has many millions of
//! entries. So recovery only lists the slots, in one list for each *group* of a few shards. A group
//! gets its cells when one of its keys is needed ([`Index::expand`]), or when the engine is
//! otherwise idle. Until then it has only its list: [`Index::get`] searches it, slowly, and
//! [`Index::insert`] and [`Index::remove`] must not be called for its keys (I46).
//!
//! The keys that the log behind the checkpoint changes are known before the lists are filled. They
//! get cells at once, in a separate index ([`Early`]), with a few others that the filter cannot
//! distinguish from them. After replay they join the lists.

use crate::fault::{self, PlantedBug};
use crate::map::filter::KeyFilter;
use crate::map::segment::Key;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

/// An empty cell; slots are stored plus one.
const EMPTY: u32 = 0;
/// Target entries of one shard in a full cache.
const SHARD_ENTRIES: u32 = 4096;
/// Minimum of shards, if there are slots for them: a small cache is loaded group by group too, as a
/// large one is.
const SHARDS_MIN: u32 = 64;
/// Minimum of entries of a shard in a small cache.
const SMALL_SHARD_ENTRIES: u32 = 16;
/// Growth steps from nothing to the final size.
const STEPS: usize = 8;
/// Shards in a group, unless there would be more groups than [`GROUPS_MAX`]: some 16,000 entries
/// get their cells at once, in a fraction of a millisecond.
const GROUP_SHARDS_BITS: u32 = 2;
/// The second-level cache of a processor holds the ends of this many lists that are appended to in
/// turn.
const GROUPS_MAX: usize = 4096;
/// Slots that are appended to a list together: a cache line of the processor.
const CHUNK: usize = 16;

#[derive(Debug, Default)]
struct Shard {
    cells: Box<[u32]>,
    len: u32,
    /// Low bits of a cell that hold the slot.
    slot_bits: u8,
}

/// Maps keys to slots. `key_of` arguments return the key stored for a slot.
#[derive(Debug)]
pub(crate) struct Index {
    shards: Vec<Shard>,
    shard_shift: u32,
    /// Low bits that the cells of new shards need for slots.
    slot_bits: u8,
    /// Cells of one growth step.
    step: usize,
    len: usize,
    /// Slots that have no cells yet, by group; empty if all have cells.
    lists: Vec<Option<Vec<u32>>>,
    group_shift: u32,
    /// Groups with a list, and one more while there are `early` entries.
    listed: usize,
    early: Option<Box<Early>>,
    /// While lists are filled: the next slots of each, and their number. The lists span more pages
    /// than the TLB of a processor holds, so slots are appended chunk by chunk.
    chunks: Vec<Chunk>,
    chunks_used: Vec<u8>,
}

#[derive(Clone, Debug)]
#[repr(align(64))]
struct Chunk([u32; CHUNK]);

/// Entries of the keys that replay will change.
#[derive(Debug)]
struct Early {
    keys: KeyFilter,
    index: Index,
}

/// Finaliser of SplitMix64 (Steele, Lea, Flood 2014): every bit of the key reaches every bit of the
/// hash.
pub(crate) fn hash(key: Key) -> u64 {
    let mut x = key.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn home(hash: u64, capacity: usize) -> usize {
    // Multiply-shift range reduction (Lemire 2019) on the low half; tag and shard have bits of the
    // high half.
    (((hash & 0xffff_ffff) * capacity as u64) >> 32) as usize
}

/// Returns the mask of the low bits of a cell, which hold the slot.
fn slot_mask(slot_bits: u8) -> u32 {
    u32::MAX.checked_shr(32 - u32::from(slot_bits)).unwrap_or(0)
}

/// Returns the high bits of a cell.
fn tag(hash: u64, slot_bits: u8) -> u32 {
    ((hash >> 32) as u32).checked_shl(slot_bits.into()).unwrap_or(0)
}

/// Returns the high bits of a hash, all but the low `shift` bits, as a number.
fn high_bits(hash: u64, shift: u32) -> usize {
    hash.checked_shr(shift).unwrap_or(0) as usize
}

/// Returns the number of bits that hold every slot below `slot_count`, plus one.
fn bits_for(slot_count: u32) -> u8 {
    (32 - slot_count.leading_zeros()) as u8
}

fn step_for(slot_count: u32, shards: usize) -> usize {
    let share = slot_count as usize / shards;
    (share + share / 4) / STEPS + 2
}

impl Index {
    pub(crate) fn new(slot_count: u32) -> Self {
        let small = (slot_count / SMALL_SHARD_ENTRIES).clamp(1, SHARDS_MIN);
        let shards = (slot_count / SHARD_ENTRIES).max(small).next_power_of_two() as usize;
        let mut list = Vec::new();
        list.resize_with(shards, Shard::default);
        Self {
            shards: list,
            shard_shift: 64 - shards.trailing_zeros(),
            slot_bits: bits_for(slot_count),
            step: step_for(slot_count, shards),
            len: 0,
            lists: Vec::new(),
            group_shift: 64,
            listed: 0,
            early: None,
            chunks: Vec::new(),
            chunks_used: Vec::new(),
        }
    }

    /// Sets the number of slots. Each shard adapts at its next change.
    pub(crate) fn resize(&mut self, slot_count: u32) {
        self.slot_bits = self.slot_bits.max(bits_for(slot_count));
        self.step = step_for(slot_count, self.shards.len());
    }

    fn shard(&self, hash: u64) -> usize {
        high_bits(hash, self.shard_shift)
    }

    /// Returns the number of entries. A key that was loaded twice counts twice until its group is
    /// expanded.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        let cells: usize = self.shards.iter().map(|shard| shard.cells.len() * size_of::<u32>()).sum();
        let lists: usize = self.lists.iter().flatten().map(|list| list.capacity() * size_of::<u32>()).sum();
        let early = self.early.as_ref().map_or(0, |early| early.index.bytes());
        cells
            + lists
            + early
            + self.shards.len() * size_of::<Shard>()
            + self.lists.len() * size_of::<Vec<u32>>()
    }

    pub(crate) fn get(&self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        if self.listed > 0 {
            if let Some(early) = self.early_of(hash) {
                return early.index.get(key, &key_of as &dyn Fn(u32) -> Key);
            }
            if let Some(list) = self.list(hash) {
                // The last one is the one that remains when the group is expanded.
                return list.iter().rev().copied().find(|slot| key_of(*slot) == key);
            }
        }
        let shard = &self.shards[self.shard(hash)];
        shard.find(hash, |slot| key_of(slot) == key).map(|(_, slot)| slot)
    }

    /// Maps `key` to `slot`; returns the slot it was mapped to before.
    pub(crate) fn insert(&mut self, key: Key, slot: u32, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        if self.listed > 0
            && let Some(early) = self.early_to_change(hash)
        {
            let old = early.insert(key, slot, &key_of as &dyn Fn(u32) -> Key);
            self.len += usize::from(old.is_none());
            return old;
        }
        let index = self.shard(hash);
        let (step, slot_bits) = (self.step, self.slot_bits);
        assert!(slot < slot_mask(slot_bits), "slots have numbers below their count");
        let shard = &mut self.shards[index];
        if slot >= slot_mask(shard.slot_bits) {
            shard.rebuild(shard.cells.len(), slot_bits, &key_of);
        }
        if let Some((at, old)) = shard.find(hash, |slot| key_of(slot) == key) {
            shard.cells[at] = tag(hash, shard.slot_bits) | (slot + 1);
            return Some(old);
        }
        if (shard.len as usize + 1) * 8 > shard.cells.len() * 7 {
            shard.rebuild(shard.cells.len() + step, slot_bits, &key_of);
        }
        shard.place(slot, hash);
        shard.len += 1;
        self.len += 1;
        None
    }

    /// Removes `key`; returns the slot it was mapped to.
    pub(crate) fn remove(&mut self, key: Key, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        if self.listed > 0
            && let Some(early) = self.early_to_change(hash)
        {
            let old = early.remove(key, &key_of as &dyn Fn(u32) -> Key);
            self.len -= usize::from(old.is_some());
            return old;
        }
        let index = self.shard(hash);
        let shard = &mut self.shards[index];
        let (at, slot) = shard.find(hash, |slot| key_of(slot) == key)?;
        shard.take_out(at, key_of);
        shard.len -= 1;
        self.len -= 1;
        Some(slot)
    }

    // --- loading

    /// Begins loading into lists, of about `entries` entries in all; the keys in `early` get cells
    /// at once. The index is empty.
    pub(crate) fn begin_loading(&mut self, entries: usize, early: &[Key]) {
        assert!(self.len == 0, "only an empty index is loaded");
        let groups = (self.shards.len() >> GROUP_SHARDS_BITS).clamp(1, GROUPS_MAX);
        let share = entries / groups;
        // Keys spread evenly over the groups: with six standard deviations more hardly any list
        // grows.
        let room = share + 6 * share.isqrt() + CHUNK;
        self.lists.resize_with(groups, || Some(Vec::with_capacity(room)));
        self.chunks.resize(groups, Chunk([0; CHUNK]));
        self.chunks_used.resize(groups, 0);
        self.group_shift = 64 - groups.trailing_zeros();
        self.listed = groups;
        if !early.is_empty() {
            self.listed += 1;
            let keys = KeyFilter::new(early.iter().map(|key| hash(*key)));
            let index =
                Self { slot_bits: self.slot_bits, ..Self::new((early.len() as u32).saturating_mul(2)) };
            self.early = Some(Box::new(Early { keys, index }));
        }
    }

    fn list(&self, hash: u64) -> Option<&Vec<u32>> {
        self.lists.get(high_bits(hash, self.group_shift)).and_then(Option::as_ref)
    }

    /// Returns the separate index if replay might change the key.
    fn early_of(&self, hash: u64) -> Option<&Early> {
        self.early.as_deref().filter(|early| early.keys.may_hold(hash))
    }

    /// Returns the index for the entry of a key that replay changes. Other keys must have cells
    /// before they are changed.
    #[cold]
    fn early_to_change(&mut self, hash: u64) -> Option<&mut Self> {
        if self.early_of(hash).is_none() {
            assert!(self.list(hash).is_none(), "I46: the group was expanded");
            return None;
        }
        self.early.as_deref_mut().map(|early| &mut early.index)
    }

    /// Loads the mapping of `key` to `slot`. Returns the previous slot, if that is found at once.
    #[inline]
    pub(crate) fn load(&mut self, key: Key, slot: u32, key_of: impl Fn(u32) -> Key) -> Option<u32> {
        let hash = hash(key);
        if self.early_of(hash).is_some() && !fault::planted(PlantedBug::ListReplaced) {
            return self.insert(key, slot, key_of);
        }
        self.append(hash, slot);
        self.len += 1;
        None
    }

    #[inline]
    fn append(&mut self, hash: u64, slot: u32) {
        let group = high_bits(hash, self.group_shift);
        let (chunk, used) = (&mut self.chunks[group].0, &mut self.chunks_used[group]);
        chunk[usize::from(*used) % CHUNK] = slot;
        *used += 1;
        if usize::from(*used) == CHUNK {
            *used = 0;
            let list = self.lists[group].as_mut().expect("groups keep their lists while they are filled");
            list.extend_from_slice(chunk);
        }
    }

    /// Ends loading.
    pub(crate) fn end_loading(&mut self) {
        let chunks = core::mem::take(&mut self.chunks).into_iter();
        let chunks = chunks.zip(core::mem::take(&mut self.chunks_used));
        for (list, (chunk, used)) in self.lists.iter_mut().zip(chunks) {
            let list = list.as_mut().expect("groups keep their lists while they are filled");
            list.extend_from_slice(&chunk.0[..used.into()]);
        }
    }

    /// Moves the entries of the separate index to the others, after replay.
    pub(crate) fn end_early(&mut self, key_of: impl Fn(u32) -> Key) {
        let Some(early) = self.early.take() else { return };
        self.listed -= 1;
        self.len -= early.index.len;
        for slot in early.index.slots() {
            let key = key_of(slot);
            match self.lists.get_mut(high_bits(hash(key), self.group_shift)) {
                Some(Some(list)) => {
                    list.push(slot);
                    self.len += 1;
                }
                _ => drop(self.insert(key, slot, &key_of)),
            }
        }
        self.forget_lists();
    }

    fn forget_lists(&mut self) {
        if self.listed == 0 {
            self.lists = Vec::new();
        }
    }

    /// Returns the slots that have cells.
    fn slots(&self) -> impl Iterator<Item = u32> {
        self.shards.iter().flat_map(|shard| {
            let cells = shard.cells.iter().filter(|cell| **cell != EMPTY);
            cells.map(|cell| (cell & slot_mask(shard.slot_bits)) - 1)
        })
    }

    /// Returns true if the group of a key has no cells yet.
    pub(crate) fn is_listed(&self, key: Key) -> bool {
        let hash = hash(key);
        self.listed > 0 && self.list(hash).is_some() && self.early_of(hash).is_none()
    }

    /// Returns true if some groups have no cells yet.
    pub(crate) fn is_listing(&self) -> bool {
        self.listed > 0
    }

    /// Returns a group that has no cells yet.
    pub(crate) fn any_listed(&self) -> Option<usize> {
        if self.is_listing() { self.lists.iter().position(Option::is_some) } else { None }
    }

    /// Returns the group of a key.
    pub(crate) fn group(&self, key: Key) -> usize {
        high_bits(hash(key), self.group_shift)
    }

    /// Gives the entries of a group their cells. Returns slots that are no longer in the index
    /// because another one was loaded later for their key. Only damage of a device causes that,
    /// never an engine.
    pub(crate) fn expand(&mut self, group: usize, key_of: impl Fn(u32) -> Key) -> Vec<u32> {
        let Some(list) = self.lists.get_mut(group).and_then(Option::take) else { return Vec::new() };
        self.listed -= 1;
        self.len -= list.len();
        // All keys first: the processor overlaps independent fetches.
        let hashes: Vec<u64> = list.iter().map(|slot| hash(key_of(*slot))).collect();
        self.make_room(&hashes);
        let mut displaced = Vec::new();
        for (slot, of_key) in list.iter().zip(hashes) {
            let index = self.shard(of_key);
            let shard = &mut self.shards[index];
            // Different keys have different hashes.
            if let Some((at, old)) = shard.find(of_key, |slot| hash(key_of(slot)) == of_key) {
                shard.cells[at] = tag(of_key, shard.slot_bits) | (slot + 1);
                displaced.push(old);
                continue;
            }
            shard.place(*slot, of_key);
            shard.len += 1;
            self.len += 1;
        }
        self.forget_lists();
        displaced
    }

    /// Gives empty shards the size for entries of these hashes.
    fn make_room(&mut self, hashes: &[u64]) {
        let Some(first) = hashes.iter().map(|hash| self.shard(*hash)).min() else { return };
        let mut counts: Vec<usize> = Vec::new();
        for hash in hashes {
            let at = self.shard(*hash) - first;
            if at >= counts.len() {
                counts.resize(at + 1, 0);
            }
            counts[at] += 1;
        }
        for (shard, count) in self.shards[first..].iter_mut().zip(counts) {
            assert!(shard.len == 0, "a shard of a group with a list is empty");
            let steps = (count * 8 / 7 + 1).div_ceil(self.step);
            shard.cells = vec![EMPTY; steps * self.step].into();
            shard.slot_bits = self.slot_bits;
        }
    }
}

impl Shard {
    /// Returns the cell and the slot of the entry with this hash for whose slot `is_it` is true.
    fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<(usize, u32)> {
        if self.cells.is_empty() {
            return None;
        }
        let (tag, mask) = (tag(hash, self.slot_bits), slot_mask(self.slot_bits));
        let mut at = home(hash, self.cells.len());
        loop {
            let cell = self.cells[at];
            if cell == EMPTY {
                return None;
            }
            if cell & !mask == tag && is_it((cell & mask) - 1) {
                return Some((at, (cell & mask) - 1));
            }
            at = self.next(at);
        }
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.cells.len() { 0 } else { at + 1 }
    }

    fn place(&mut self, slot: u32, hash: u64) {
        let mut at = home(hash, self.cells.len());
        while self.cells[at] != EMPTY {
            at = self.next(at);
        }
        self.cells[at] = tag(hash, self.slot_bits) | (slot + 1);
    }

    /// Resizes the shard to `capacity` cells with `slot_bits` bits for slots.
    fn rebuild(&mut self, capacity: usize, slot_bits: u8, key_of: impl Fn(u32) -> Key) {
        let mask = slot_mask(self.slot_bits);
        let old = core::mem::replace(&mut self.cells, vec![EMPTY; capacity].into());
        self.slot_bits = slot_bits;
        for cell in old.into_iter().filter(|cell| *cell != EMPTY) {
            let slot = (cell & mask) - 1;
            self.place(slot, hash(key_of(slot)));
        }
    }

    /// Empties a cell and moves back the entries that were displaced past it.
    fn take_out(&mut self, mut hole: usize, key_of: impl Fn(u32) -> Key) {
        let capacity = self.cells.len();
        let mask = slot_mask(self.slot_bits);
        let mut at = hole;
        loop {
            at = self.next(at);
            let cell = self.cells[at];
            if cell == EMPTY {
                break;
            }
            let home = home(hash(key_of((cell & mask) - 1)), capacity);
            let distance = |from: usize| (at + capacity - from) % capacity;
            // The entry may fill the hole only if the hole lies between its home and its current
            // cell.
            if distance(home) >= distance(hole) {
                self.cells[hole] = cell;
                hole = at;
            }
        }
        self.cells[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeMap;
    use forebay_format::VolumeId;

    #[test]
    fn index_agrees_with_a_btree_map() {
        let mut index = Index::new(200_000);
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

    /// An entry needs less than six bytes from half of the slots on.
    #[test]
    fn full_index_needs_five_bytes_per_entry() {
        let slots = 1 << 20;
        let mut index = Index::new(slots);
        let keys: Vec<Key> = (0..u64::from(slots)).map(|block| Key::new(VolumeId(0), block * 7)).collect();
        for (slot, key) in keys.iter().enumerate() {
            index.insert(*key, slot as u32, |slot| keys[slot as usize]);
            if slot >= keys.len() / 2 && slot % 1000 == 0 {
                let bytes = index.bytes() as f64 / (slot + 1) as f64;
                assert!(bytes < 6.0, "{bytes} bytes an entry of {slot}");
            }
        }
        let bytes = index.bytes() as f64 / f64::from(slots);
        assert!(bytes < 5.1, "{bytes} bytes an entry");
    }

    #[test]
    fn loaded_keys_are_found_before_expansion() {
        let keys: Vec<Key> = (0..100_000).map(|block| Key::new(VolumeId(1), block * 3)).collect();
        let key_of = |slot: u32| keys[slot as usize % keys.len()];
        let mut index = Index::new(200_000);
        index.begin_loading(keys.len(), &[]);
        for (slot, key) in keys.iter().enumerate() {
            assert_eq!(index.load(*key, slot as u32, key_of), None);
        }
        // The same key again, in another slot.
        assert_eq!(index.load(keys[77], 100_077, key_of), None);
        index.end_loading();
        assert_eq!((index.len(), index.get(keys[77], key_of)), (100_001, Some(100_077)));
        for (slot, key) in keys.iter().enumerate().step_by(997) {
            assert!(index.is_listed(*key) || index.get(*key, key_of) == Some(slot as u32));
            let displaced = index.expand(index.group(*key), key_of);
            assert!(displaced.is_empty() || displaced == [77]);
            assert!(!index.is_listed(*key));
            assert_eq!(index.get(*key, key_of), Some(slot as u32));
        }
        while let Some(group) = index.any_listed() {
            index.expand(group, key_of);
        }
        assert_eq!((index.len(), index.get(keys[77], key_of)), (100_000, Some(100_077)));
        for (slot, key) in keys.iter().enumerate().filter(|(slot, _)| *slot != 77) {
            assert_eq!(index.get(*key, key_of), Some(slot as u32));
        }
    }

    #[test]
    fn replayed_changes_are_found_while_listing() {
        let keys: Vec<Key> = (0..50_000).map(|block| Key::new(VolumeId(2), block * 5)).collect();
        let key_of = |slot: u32| keys[slot as usize % keys.len()];
        let changed: Vec<Key> = keys.iter().copied().step_by(3).collect();
        let mut index = Index::new(200_000);
        index.begin_loading(keys.len(), &changed);
        for (slot, key) in keys.iter().enumerate() {
            assert_eq!(index.load(*key, slot as u32, key_of), None);
        }
        assert_eq!(index.load(keys[3], 50_003, key_of), Some(3), "what was loaded twice");
        index.end_loading();
        assert_eq!(index.len(), keys.len());
        assert!(changed.iter().all(|key| !index.is_listed(*key)));
        // Replay: each third key gets another slot, each sixth is removed afterwards.
        for (slot, key) in keys.iter().enumerate().step_by(3) {
            let before = if slot == 3 { 50_003 } else { slot as u32 };
            assert_eq!(index.insert(*key, slot as u32 + 100_000, key_of), Some(before));
            if slot % 2 == 0 {
                assert_eq!(index.remove(*key, key_of), Some(slot as u32 + 100_000));
            }
        }
        // A group that got its cells meanwhile.
        let other = *keys.iter().find(|key| index.is_listed(**key)).expect("most are listed");
        index.expand(index.group(other), key_of);
        index.end_early(key_of);
        assert!(index.is_listing() && !index.is_listed(other));
        let check = |index: &Index| {
            for (slot, key) in keys.iter().enumerate().step_by(7) {
                let expected = match slot % 6 {
                    0 => None,
                    3 => Some(slot as u32 + 100_000),
                    _ => Some(slot as u32),
                };
                assert_eq!(index.get(*key, key_of), expected);
            }
            assert_eq!(index.len(), keys.len() - keys.len().div_ceil(6));
        };
        check(&index);
        while let Some(group) = index.any_listed() {
            assert!(index.expand(group, key_of).is_empty());
        }
        check(&index);
    }

    #[test]
    fn a_cache_that_grows_gets_wider_slots() {
        let slots = 3_000_000_u32;
        let key_of = |slot: u32| Key::new(VolumeId(0), u64::from(slot) ^ 0x55);
        let mut index = Index::new(4096);
        for slot in 0..4000 {
            index.insert(key_of(slot), slot, key_of);
        }
        index.resize(slots);
        for slot in slots - 4000..slots {
            index.insert(key_of(slot), slot, key_of);
        }
        for slot in (0..4000).chain(slots - 4000..slots) {
            assert_eq!(index.get(key_of(slot), key_of), Some(slot));
        }
        let mut widest = Index::new(u32::MAX);
        assert_eq!(widest.insert(key_of(u32::MAX - 1), u32::MAX - 1, key_of), None);
        assert_eq!(widest.get(key_of(u32::MAX - 1), key_of), Some(u32::MAX - 1));
    }
}

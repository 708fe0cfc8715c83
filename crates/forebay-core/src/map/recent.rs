//! Recently missed or evicted blocks, in two bytes a block.
//!
//! A table of buckets of eight 16-bit fingerprints. A new one enters at the front of its bucket and
//! pushes out the last: so a bucket is a small queue, and the table forgets approximately in order
//! of age. It finds one of 8,000 unknown keys. The only effect is that a block is cached too early:
//! correctness does not depend on the table.

use crate::map::index::hash;
use crate::map::segment::Key;
use alloc::boxed::Box;
use alloc::vec;

const BUCKET: usize = 8;

/// The table.
#[derive(Debug)]
pub(crate) struct Recent {
    buckets: Box<[[u16; BUCKET]]>,
}

impl Recent {
    /// Creates a table that remembers about `keys` keys.
    pub(crate) fn new(keys: u64) -> Self {
        Self { buckets: vec![[0; BUCKET]; Self::buckets_for(keys)].into() }
    }

    fn buckets_for(keys: u64) -> usize {
        keys.div_ceil(BUCKET as u64).max(1) as usize
    }

    /// Returns the table in `place`, recreated if it does not have the size for `keys` keys.
    pub(crate) fn sized(place: &mut Option<Self>, keys: u64) -> &mut Self {
        if place.as_ref().is_some_and(|table| table.buckets.len() != Self::buckets_for(keys)) {
            *place = None;
        }
        place.get_or_insert_with(|| Self::new(keys))
    }

    /// Returns the bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.buckets.len() * BUCKET * 2
    }

    fn place(&self, key: Key) -> (usize, u16) {
        let hash = hash(key);
        let bucket = ((hash & 0xffff_ffff) * self.buckets.len() as u64) >> 32;
        (bucket as usize, ((hash >> 48) as u16).max(1))
    }

    /// Remembers a key as the most recent one.
    pub(crate) fn note(&mut self, key: Key) {
        let (bucket, print) = self.place(key);
        let bucket = &mut self.buckets[bucket];
        let end = bucket.iter().position(|other| *other == print).unwrap_or(BUCKET - 1);
        bucket.copy_within(0..end, 1);
        bucket[0] = print;
    }

    /// Returns true if the key is remembered.
    pub(crate) fn contains(&self, key: Key) -> bool {
        let (bucket, print) = self.place(key);
        self.buckets[bucket].contains(&print)
    }

    /// Forgets a key; returns true if it was remembered.
    pub(crate) fn take(&mut self, key: Key) -> bool {
        let (bucket, print) = self.place(key);
        let bucket = &mut self.buckets[bucket];
        let Some(at) = bucket.iter().position(|other| *other == print) else { return false };
        bucket.copy_within(at + 1.., at);
        bucket[BUCKET - 1] = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::VolumeId;

    fn key(block: u64) -> Key {
        Key::new(VolumeId(3), block)
    }

    #[test]
    fn noted_key_is_known_once() {
        let mut recent = Recent::new(1000);
        recent.note(key(5));
        recent.note(key(5));
        assert!(recent.take(key(5)));
        assert!(!recent.take(key(5)), "a second note of the same key is not a second entry");
        assert!(!recent.take(key(6)));
    }

    #[test]
    fn recent_forgets_roughly_in_order_of_age() {
        let mut recent = Recent::new(8000);
        (0..24_000).for_each(|block| recent.note(key(block)));
        let known =
            |recent: &mut Recent, from: u64| (from..from + 1000).filter(|b| recent.take(key(*b))).count();
        let (old, middle, new) =
            (known(&mut recent, 0), known(&mut recent, 16_000), known(&mut recent, 23_000));
        assert!(old < 20 && (300..800).contains(&middle) && new > 990, "{old} {middle} {new}");
    }

    #[test]
    fn unknown_keys_are_rarely_found() {
        let mut recent = Recent::new(8000);
        (0..8000).for_each(|block| recent.note(key(block)));
        let wrong = (1_000_000..1_100_000).filter(|block| recent.take(key(*block))).count();
        assert!(wrong < 40, "{wrong} of 100,000, about 12 are expected");
    }

    #[test]
    fn table_of_another_size_is_replaced() {
        let mut place = None;
        Recent::sized(&mut place, 800).note(key(1));
        assert!(Recent::sized(&mut place, 800).take(key(1)));
        assert_eq!(Recent::sized(&mut place, 1600).bytes(), 3200);
    }
}

//! Number of cached blocks of a volume in each stretch of its address space. The cost of a walk
//! over a long range thus depends on the cached blocks in it. A file system discards free space,
//! most of which was never cached.
//!
//! A two-level table: a chunk has the counts of neighbouring stretches, and is allocated when the
//! first block in it is cached. With stretches of 4 MiB a chunk covers 4 GiB and takes 2 KiB, so
//! the largest volume takes 0.5 MiB for each TiB that was ever cached in part.
//!
//! Invariant: the counts are those of the blocks in [`VolumeMap::cached`] (asserted by
//! [`CacheMap::check`]).
//!
//! [`VolumeMap::cached`]: super::VolumeMap
//! [`CacheMap::check`]: super::CacheMap::check

use crate::fault::{self, PlantedBug};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Stretches of a chunk.
const CHUNK: usize = 1024;
/// Largest stretch, in blocks: a count has 16 bits.
pub(crate) const STRETCH_BLOCKS_MAX: u64 = 1024;

#[derive(Debug)]
struct Chunk {
    blocks: u32,
    stretches: [u16; CHUNK],
}

/// Cached blocks of a volume by stretch.
#[derive(Debug, Default)]
pub(crate) struct Occupancy(Vec<Option<Box<Chunk>>>);

impl Occupancy {
    /// Counts `blocks` blocks (at least one) from `block` on as cached. Stretches have `2^shift`
    /// blocks.
    pub(crate) fn add(&mut self, shift: u32, block: u64, blocks: u64) {
        let (end, mut at) = (block + blocks, block);
        loop {
            let stretch = at >> shift;
            let next = ((stretch + 1) << shift).min(end);
            let (chunk, count) = self.count_mut(stretch);
            *chunk += (next - at) as u32;
            *count += (next - at) as u16;
            if next == end {
                return;
            }
            at = next;
        }
    }

    /// Counts a block as no longer cached.
    pub(crate) fn remove(&mut self, shift: u32, block: u64) {
        let (chunk, count) = self.count_mut(block >> shift);
        if fault::planted(PlantedBug::MiscountStretch) {
            *chunk -= u32::from(*count > 0);
            *count = 0;
            return;
        }
        *chunk -= 1;
        *count -= 1;
    }

    #[inline]
    fn count_mut(&mut self, stretch: u64) -> (&mut u32, &mut u16) {
        let (at, index) = ((stretch / CHUNK as u64) as usize, (stretch % CHUNK as u64) as usize);
        if self.0.get(at).is_none_or(Option::is_none) {
            self.allocate(at);
        }
        let chunk = self.0[at].as_mut().expect("it was allocated");
        (&mut chunk.blocks, &mut chunk.stretches[index])
    }

    #[cold]
    fn allocate(&mut self, at: usize) {
        if at >= self.0.len() {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(Box::new(Chunk { blocks: 0, stretches: [0; CHUNK] }));
    }

    /// Returns the number of cached blocks of a stretch.
    pub(crate) fn count(&self, stretch: u64) -> u16 {
        let chunk = self.0.get((stretch / CHUNK as u64) as usize).and_then(Option::as_ref);
        chunk.map_or(0, |chunk| chunk.stretches[(stretch % CHUNK as u64) as usize])
    }

    /// Returns the first stretch of `first..=last` with cached blocks.
    fn next(&self, first: u64, last: u64) -> Option<u64> {
        let (mut at, per_chunk) = (first, CHUNK as u64);
        while at <= last {
            let chunk = self.0.get((at / per_chunk) as usize)?;
            let base = at - at % per_chunk;
            if let Some(chunk) = chunk.as_ref().filter(|chunk| chunk.blocks > 0) {
                let to = (last - base).min(per_chunk - 1) as usize;
                let counts = &chunk.stretches[(at - base) as usize..=to];
                if let Some(found) = counts.iter().position(|count| *count > 0) {
                    return Some(at + found as u64);
                }
            }
            at = base + per_chunk;
        }
        None
    }

    /// Returns the parts of `first..=last` that lie in stretches with cached blocks, in ascending
    /// order, as their first and last blocks.
    pub(crate) fn parts(&self, shift: u32, first: u64, last: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = Some(first >> shift);
        core::iter::from_fn(move || {
            let stretch = self.next(at?, last >> shift);
            at = stretch.map(|stretch| stretch + 1);
            let stretch = stretch?;
            Some((first.max(stretch << shift), last.min(((stretch + 1) << shift) - 1)))
        })
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let chunks = self.0.iter().flatten().count();
        self.0.capacity() * size_of::<Option<Box<Chunk>>>() + chunks * size_of::<Chunk>()
    }

    /// Returns all counts that are not zero, by stretch: for [`super::CacheMap::check`].
    pub(crate) fn counts(&self) -> impl Iterator<Item = (u64, u16)> + '_ {
        let mut at = Some(0);
        core::iter::from_fn(move || {
            let stretch = self.next(at?, u64::MAX);
            at = stretch.map(|stretch| stretch + 1);
            stretch.map(|stretch| (stretch, self.count(stretch)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walk_visits_only_occupied_stretches() {
        let mut occupancy = Occupancy::default();
        occupancy.add(2, 5, 1);
        occupancy.add(2, 7, 6); // 7, 8..=11, 12
        occupancy.add(2, 1 << 30, 1);
        let parts = |occupancy: &Occupancy, first, last| occupancy.parts(2, first, last).collect::<Vec<_>>();
        assert_eq!(parts(&occupancy, 0, 100), [(4, 7), (8, 11), (12, 15)]);
        assert_eq!(parts(&occupancy, 6, 9), [(6, 7), (8, 9)]);
        assert_eq!(parts(&occupancy, 16, (1 << 30) - 1), []);
        assert_eq!(parts(&occupancy, 16, u64::MAX >> 1), [(1 << 30, (1 << 30) + 3)]);
        assert_eq!(occupancy.counts().collect::<Vec<_>>(), [(1, 2), (2, 4), (3, 1), (1 << 28, 1)]);
        for block in [5, 7] {
            occupancy.remove(2, block);
        }
        assert_eq!(parts(&occupancy, 0, 100), [(8, 11), (12, 15)]);
        assert_eq!(Occupancy::default().next(0, u64::MAX), None);
        assert_eq!(occupancy.next(3, (1 << 28) - 1), Some(3));
        assert_eq!(occupancy.next(4, (1 << 28) - 1), None);
        assert_eq!(occupancy.next(1 << 29, u64::MAX), None, "beyond the table");
    }
}

//! Memory from the system, in chunks that the kernel can register as a whole.
//!
//! A chunk is divided into blocks of whole pages. Rings register chunks: few registrations cover
//! all memory, and an operation with many vectors can use one registration if they lie in one
//! chunk. A block that is longer than a chunk has a chunk of its own.
//!
//! A registration pins the whole chunk. So a chunk is *whole*, and its full length counts, as long
//! as a ring might have it registered. Of any other chunk only allocated blocks count, and the rest
//! has no memory.
//!
//! Invariants:
//! - `held_bytes` never exceeds the limit that the caller passes. It bounds the memory of all
//!   chunks, except for memory that a ring still has registered after [`Arena::take_gone`] reported
//!   it.
//! - Memory of a whole chunk never returns to the system. So a ring that registers a chunk under
//!   its generation gets the same pages as all blocks allocated under that generation. A chunk that
//!   stops being whole gets another generation, and only *then* are its pages without a block
//!   released.
//! - Allocated blocks keep their pages in every state of the chunk: an operation that uses the
//!   old registration reads and writes the right memory.
//! - Generations are never reused, in any chunk.

use std::collections::BTreeSet;
use std::ptr::NonNull;

use super::{BUFFER_ALIGN, map_zeroed, unmap};

/// Bytes of a chunk. Larger: fewer operations have vectors in two chunks. Smaller: less memory is
/// pinned for a single buffer. `RLIMIT_MEMLOCK` is 8 MiB by default.
pub(super) const CHUNK_BYTES: usize = 4 << 20;
const PAGE: usize = BUFFER_ALIGN;
const WORD: usize = u64::BITS as usize;
const WORDS: usize = CHUNK_BYTES / PAGE / WORD;
/// A chunk becomes whole only if this part of the limit is left afterwards, so that the next buffer
/// does not break it up again.
const LEFT_PART: usize = 8;

/// A chunk as registered by rings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// Its number, reused when the chunk is gone.
    pub(crate) chunk: u32,
    /// Number of this state of the chunk: unique, and never 0.
    pub(crate) generation: u64,
    pub(crate) address: *mut u8,
    pub(crate) len: usize,
}

/// An allocated block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) memory: NonNull<u8>,
    pub(super) chunk: u32,
}

#[derive(Debug)]
struct Chunk {
    memory: NonNull<u8>,
    len: usize,
    /// Allocated pages; not used in a chunk with a single block.
    pages: Pages,
    taken_bytes: usize,
    whole: bool,
    generation: u64,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Arena {
    chunks: Vec<Option<Chunk>>,
    vacant: Vec<u32>,
    /// Chunks with free pages.
    open: BTreeSet<u32>,
    held_bytes: usize,
    generations: u64,
    /// Chunks and generations that ended since the last [`Arena::take_gone`].
    gone: Vec<(u32, u64)>,
}

impl Arena {
    /// Bytes that allocated blocks and rings may use.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Allocates a block of `size` bytes, a class of the pool; `None` if the limit does not allow
    /// it. Prefers whole chunks, which cost no memory.
    pub(super) fn take(&mut self, size: usize, limit_bytes: usize) -> Option<Block> {
        if size <= CHUNK_BYTES
            && let Some(block) = self.cut(size, true)
        {
            return Some(block);
        }
        if self.held_bytes + size > limit_bytes {
            return None;
        }
        let block = if size > CHUNK_BYTES {
            let chunk = self.add(size)?;
            let single = self.chunk_mut(chunk);
            (single.taken_bytes, single.whole) = (size, true);
            Block { memory: single.memory, chunk }
        } else if let Some(block) = self.cut(size, false) {
            block
        } else {
            let chunk = self.add(CHUNK_BYTES)?;
            self.open.insert(chunk);
            self.cut(size, false)?
        };
        self.held_bytes += size;
        Some(block)
    }

    /// Frees a block of `size` bytes, the size that it was allocated with.
    pub(super) fn give(&mut self, block: Block, size: usize) {
        let chunk = self.chunk_mut(block.chunk);
        chunk.taken_bytes -= size;
        let (len, whole, generation) = (chunk.len, chunk.whole, chunk.generation);
        if chunk.taken_bytes == 0 {
            unmap(chunk.memory, len);
            self.chunks[block.chunk as usize] = None;
            self.vacant.push(block.chunk);
            self.open.remove(&block.chunk);
            self.held_bytes -= if whole { len } else { size };
            if whole {
                self.gone.push((block.chunk, generation));
            }
            return;
        }
        let first = (block.memory.as_ptr() as usize - chunk.memory.as_ptr() as usize) / PAGE;
        chunk.pages.set(first, size / PAGE, false);
        self.open.insert(block.chunk);
        if !whole {
            drop_pages(block.memory, size);
            self.held_bytes -= size;
        }
    }

    /// Releases the memory between the blocks of the chunk that has most of it. Returns false if
    /// there is none: then all held memory is allocated.
    pub(super) fn break_up(&mut self) -> bool {
        let spare = |index: &u32| {
            let chunk = self.chunks[*index as usize].as_ref();
            chunk.filter(|chunk| chunk.whole).map_or(0, |chunk| chunk.len - chunk.taken_bytes)
        };
        let Some(index) = self.open.iter().copied().filter(|index| spare(index) > 0).max_by_key(spare) else {
            return false;
        };
        self.generations += 1;
        let generation = self.generations;
        let chunk = self.chunk_mut(index);
        let old = std::mem::replace(&mut chunk.generation, generation);
        chunk.whole = false;
        for (first, count) in chunk.pages.free_runs() {
            // SAFETY: the pages are inside the chunk.
            drop_pages(unsafe { chunk.memory.add(first * PAGE) }, count * PAGE);
        }
        let spare_bytes = chunk.len - chunk.taken_bytes;
        self.held_bytes -= spare_bytes;
        self.gone.push((index, old));
        true
    }

    /// Returns the chunk for rings to register, and makes it whole. Returns `None` if the limit
    /// does not leave enough memory to pin all of it.
    pub(super) fn mapping(&mut self, index: u32, limit_bytes: usize) -> Option<Mapping> {
        let chunk = self.chunks[index as usize].as_mut().expect("blocks of it are handed out");
        if !chunk.whole {
            let spare_bytes = chunk.len - chunk.taken_bytes;
            if self.held_bytes + spare_bytes > limit_bytes - limit_bytes / LEFT_PART {
                return None;
            }
            self.held_bytes += spare_bytes;
            chunk.whole = true;
        }
        let (address, len) = (chunk.memory.as_ptr(), chunk.len);
        Some(Mapping { chunk: index, generation: chunk.generation, address, len })
    }

    /// Returns the chunks that were freed or stopped being whole since the last call, each with the
    /// generation that a ring might have registered.
    pub(super) fn take_gone(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.gone)
    }

    fn chunk_mut(&mut self, index: u32) -> &mut Chunk {
        self.chunks[index as usize].as_mut().expect("a chunk with blocks stays")
    }

    /// Cuts a block out of the first chunk with room, among the whole chunks or among the others.
    fn cut(&mut self, size: usize, whole: bool) -> Option<Block> {
        for &index in &self.open {
            let chunk = self.chunks[index as usize].as_mut().expect("what is open is there");
            if chunk.whole != whole || chunk.len - chunk.taken_bytes < size {
                continue;
            }
            let Some(first) = chunk.pages.find(size / PAGE) else { continue };
            chunk.pages.set(first, size / PAGE, true);
            chunk.taken_bytes += size;
            // SAFETY: the pages are inside the chunk.
            let memory = unsafe { chunk.memory.add(first * PAGE) };
            if chunk.taken_bytes == chunk.len {
                self.open.remove(&index);
            }
            return Some(Block { memory, chunk: index });
        }
        None
    }

    /// Adds a chunk without blocks.
    fn add(&mut self, len: usize) -> Option<u32> {
        let index = match self.vacant.last() {
            Some(index) => *index,
            None => u32::try_from(self.chunks.len()).ok()?,
        };
        let memory = map_zeroed(len)?;
        self.generations += 1;
        let pages = Pages::default();
        let chunk = Chunk { memory, len, pages, taken_bytes: 0, whole: false, generation: self.generations };
        if self.vacant.pop().is_some() {
            self.chunks[index as usize] = Some(chunk);
        } else {
            self.chunks.push(Some(chunk));
        }
        Some(index)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for chunk in self.chunks.iter().flatten() {
            unmap(chunk.memory, chunk.len);
        }
    }
}

/// Releases pages to the system, also in a process that locks its memory (Linux 5.18). They read as
/// zeroes when used again. If it fails they only occupy memory.
fn drop_pages(memory: NonNull<u8>, len: usize) {
    for advice in [libc::MADV_DONTNEED_LOCKED, libc::MADV_DONTNEED] {
        // SAFETY: the pages belong to a chunk, and to no allocated block.
        if unsafe { libc::madvise(memory.as_ptr().cast(), len, advice) } == 0 {
            return;
        }
    }
}

/// The allocated pages of a chunk.
#[derive(Debug, Default)]
struct Pages([u64; WORDS]);

impl Pages {
    /// The first place with `count` free pages, at a multiple of that number (of a word, if it is
    /// not a power of two).
    fn find(&self, count: usize) -> Option<usize> {
        if count > WORD {
            let (words, rest) = (count / WORD, count % WORD);
            let step = if count.is_power_of_two() { words } else { 1 };
            let is_free = |first: &usize| {
                let last = first + words;
                last + usize::from(rest > 0) <= WORDS
                    && self.0[*first..last].iter().all(|word| *word == 0)
                    && (rest == 0 || self.0[last] & low(rest) == 0)
            };
            return (0..WORDS).step_by(step).find(is_free).map(|first| first * WORD);
        }
        let starts = u64::MAX / low(count);
        let place = |taken: &u64| {
            let mut free = !taken;
            let mut wide = 1;
            // Bits that start a free run of this length.
            while wide < count {
                free &= free >> wide;
                wide *= 2;
            }
            free & starts
        };
        let found = self.0.iter().map(place).enumerate().find(|(_, places)| *places != 0);
        found.map(|(word, places)| word * WORD + places.trailing_zeros() as usize)
    }

    fn set(&mut self, first: usize, count: usize, taken: bool) {
        let (mut at, end) = (first, first + count);
        while at < end {
            let here = (end - at).min(WORD - at % WORD);
            let bits = low(here) << (at % WORD);
            let word = &mut self.0[at / WORD];
            debug_assert_eq!(*word & bits, if taken { 0 } else { bits }, "pages are handed out once");
            *word = if taken { *word | bits } else { *word & !bits };
            at += here;
        }
    }

    /// First page and number of pages of each free run.
    fn free_runs(&self) -> impl Iterator<Item = (usize, usize)> {
        let is_free = |page: &usize| self.0[page / WORD] >> (page % WORD) & 1 == 0;
        let pages = WORDS * WORD;
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = (at..pages).find(is_free)?;
            at = (first..pages).find(|page| !is_free(page)).unwrap_or(pages);
            Some((first, at - first))
        })
    }
}

/// The lowest `count` bits, 1 to 64.
fn low(count: usize) -> u64 {
    u64::MAX >> (WORD - count)
}

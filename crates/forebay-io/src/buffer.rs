//! Pooled, page-aligned memory that the kernel reads and writes.
//!
//! Buffers come in a few sizes and are reused through free lists, so that a warm pool makes no
//! system call and no allocation. The pool belongs to the reactor: memory of an operation in flight
//! therefore lives at least as long as the operation.
//!
//! Invariants:
//! - Every buffer counts the kernel operations that read it (device writes, sends) and write it
//!   (device reads, receives). A buffer that is freed while a count is above zero goes back to the
//!   pool when the last one ends.
//! - No `&[u8]` to a buffer exists while the kernel may write it, and no `&mut [u8]` while the
//!   kernel may touch it at all: [`BufPool::bytes`] and [`BufPool::bytes_mut`] assert this.
//! - The span methods (`copy`, `copy_in`, `copy_out`, `fill_zero`, `change`, `crc32c_blocks`) work
//!   on raw memory and are allowed while *other parts* of the same buffer are in flight: one client
//!   buffer filled by several device reads is checked piece by piece as they complete. A caller
//!   that reads a span whose operation has not completed gets undefined contents, never a memory
//!   error.
//! - All memory was zeroed by the kernel once; a reused buffer holds whatever it held before.

use std::ptr::NonNull;

use crate::engine::registered::{Mapping, REGISTERED_BYTES_MAX};

/// Alignment of every buffer in bytes; enough for direct I/O on any device in use today.
pub const BUFFER_ALIGN: usize = 4096;

/// Buffer sizes in bytes. The largest holds a 32 MiB request (the customary limit of NBD clients)
/// with a page of room on either side for widening it to block boundaries; so do those for the
/// longest requests of FUSE, which must not need four times as much when they begin inside a block.
pub const CLASS_SIZES: [usize; 10] = [
    4 << 10,
    16 << 10,
    64 << 10,
    (64 << 10) + BUFFER_ALIGN,
    256 << 10,
    (256 << 10) + BUFFER_ALIGN,
    1 << 20,
    (1 << 20) + BUFFER_ALIGN,
    4 << 20,
    (32 << 20) + 2 * BUFFER_ALIGN,
];

/// Bytes covered by one checksum of [`BufPool::crc32c_blocks`].
pub const CRC_BLOCK_BYTES: usize = 4096;

/// A buffer of the pool. Valid from `alloc` to `free`; the number is used again afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufId(pub u32);

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buf: BufId,
    /// First byte within the buffer.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

impl Span {
    /// The part of `buf` that starts at `offset` and has `len` bytes.
    pub const fn new(buf: BufId, offset: u32, len: u32) -> Span {
        Span { buf, offset, len }
    }
}

/// What the pool holds, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes obtained from the system, in use or on free lists.
    pub allocated_bytes: usize,
    /// Bytes of buffers handed out (whole buffers, not the requested lengths).
    pub used_bytes: usize,
    /// Buffers handed out, those waiting for the kernel after `free` included.
    pub used_buffers: usize,
    /// Kernel operations on buffers at this moment, counted per span.
    pub pins: usize,
}

/// What the kernel does with a pinned span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelUse {
    /// The kernel reads the memory (device write, send).
    Reads,
    /// The kernel writes the memory (device read, receive).
    Writes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No memory: the entry can be given to a new buffer.
    Vacant,
    /// Memory on a free list.
    Free,
    /// Handed out.
    Used,
    /// Freed by the owner, still in use by the kernel.
    Dying,
    /// Put by ([`BufPool::put_by`]), and not lent.
    PutBy,
}

#[derive(Debug)]
struct Entry {
    memory: NonNull<u8>,
    /// Number of this mapping.
    mapping: u64,
    class: u8,
    state: State,
    kernel_reads: u32,
    kernel_writes: u32,
}

/// The pool; see the head of this file.
#[derive(Debug)]
pub struct BufPool {
    entries: Vec<Entry>,
    free: [Vec<u32>; CLASS_SIZES.len()],
    vacant: Vec<u32>,
    /// Mappings made so far.
    mappings: u64,
    /// Buffers that were unmapped since somebody asked, and the numbers of their mappings.
    unmapped: Vec<(u32, u64)>,
    limit_bytes: usize,
    /// The buffer that is put by.
    put_by: Option<u32>,
    stats: PoolStats,
}

// SAFETY: the pool is the only owner of its mappings; the pointers are not tied to a thread.
unsafe impl Send for BufPool {}

impl BufPool {
    /// A pool that never holds more than `limit_bytes` of memory.
    pub fn new(limit_bytes: usize) -> BufPool {
        BufPool {
            entries: Vec::new(),
            free: Default::default(),
            vacant: Vec::new(),
            mappings: 0,
            unmapped: Vec::new(),
            limit_bytes,
            put_by: None,
            stats: PoolStats::default(),
        }
    }

    /// A buffer of at least `len` bytes, or `None` when `len` is above the largest class or the
    /// limit is reached.
    ///
    /// The contents are undefined (never uninitialised). Free buffers of other sizes are given back
    /// to the system when that makes room.
    pub fn alloc(&mut self, len: usize) -> Option<BufId> {
        let class = CLASS_SIZES.iter().position(|&size| size >= len)?;
        let index = match self.free[class].pop() {
            Some(index) => index,
            None => self.map_new(class)?,
        };
        let entry = &mut self.entries[index as usize];
        debug_assert_eq!((entry.kernel_reads, entry.kernel_writes), (0, 0));
        entry.state = State::Used;
        self.stats.used_bytes += CLASS_SIZES[class];
        self.stats.used_buffers += 1;
        Some(BufId(index))
    }

    /// As [`BufPool::alloc`], but `None` also if less than this part of the limit would be left
    /// afterwards (8: an eighth): for whoever can wait or do without, so that those who cannot find
    /// something.
    pub fn alloc_leaving(&mut self, part: usize, len: usize) -> Option<BufId> {
        let class = CLASS_SIZES.iter().position(|&size| size >= len)?;
        let left = self.limit_bytes.saturating_sub(self.stats.used_bytes + CLASS_SIZES[class]);
        if left < self.limit_bytes / part.max(1) { None } else { self.alloc(len) }
    }

    /// Puts one buffer of at least `len` bytes by, for [`BufPool::borrow`]; false if there is no
    /// memory for it, or one is put by already. It counts as used from then on, lent or not.
    pub fn put_by(&mut self, len: usize) -> bool {
        if self.put_by.is_some() {
            return false;
        }
        let Some(buffer) = self.alloc(len) else { return false };
        self.put_by = Some(buffer.0);
        self.free(buffer);
        true
    }

    /// The buffer that was put by, if it is not lent. [`BufPool::free`] brings it back to where it
    /// was.
    pub fn borrow(&mut self) -> Option<BufId> {
        let index = self.put_by?;
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.state == State::PutBy)?;
        entry.state = State::Used;
        Some(BufId(index))
    }

    /// Gives a buffer back. While the kernel still uses it, the memory stays and is reused only
    /// when the last operation has completed; the caller must not use the id again in either case.
    ///
    /// Freeing twice is a bug of the caller: asserted in debug builds, ignored otherwise.
    pub fn free(&mut self, id: BufId) {
        let Some(entry) = self.entries.get_mut(id.0 as usize).filter(|e| e.state == State::Used) else {
            debug_assert!(false, "buffer {id:?} freed twice or never allocated");
            return;
        };
        entry.state = State::Dying;
        self.recycle_if_idle(id.0);
    }

    /// Bytes that a buffer for `len` bytes takes: its class; `len` itself if it is above the
    /// largest.
    pub fn bytes_for(len: usize) -> usize {
        CLASS_SIZES.into_iter().find(|&size| size >= len).unwrap_or(len)
    }

    /// Size of the buffer in bytes (its class, at least what was asked for).
    pub fn capacity(&self, id: BufId) -> usize {
        CLASS_SIZES[self.used(id).class as usize]
    }

    /// The whole buffer.
    ///
    /// # Panics
    /// When the id is not allocated, or the kernel may be writing the buffer: both are bugs of the
    /// caller.
    pub fn bytes(&self, id: BufId) -> &[u8] {
        let entry = self.used(id);
        assert_eq!(entry.kernel_writes, 0, "{id:?} is being filled by the kernel: use the span methods");
        // SAFETY: the mapping is that long and initialised, nobody writes it (checked), and it
        // cannot go away while the pool is borrowed.
        unsafe { std::slice::from_raw_parts(entry.memory.as_ptr(), CLASS_SIZES[entry.class as usize]) }
    }

    /// The whole buffer, writable.
    ///
    /// # Panics
    /// When the id is not allocated, or any kernel operation uses the buffer: both are bugs of the
    /// caller.
    pub fn bytes_mut(&mut self, id: BufId) -> &mut [u8] {
        let entry = self.used(id);
        assert_eq!(
            (entry.kernel_reads, entry.kernel_writes),
            (0, 0),
            "{id:?} is in use by the kernel: use the span methods"
        );
        // SAFETY: as in `bytes`; the kernel does not touch it (checked) and the pool is borrowed
        // mutably.
        unsafe { std::slice::from_raw_parts_mut(entry.memory.as_ptr(), CLASS_SIZES[entry.class as usize]) }
    }

    /// Is any kernel operation on this buffer in flight?
    pub fn is_busy(&self, id: BufId) -> bool {
        let entry = self.used(id);
        entry.kernel_reads + entry.kernel_writes > 0
    }

    /// Appends one CRC-32C per 4096 bytes of the span (the last may cover less) to `out`.
    ///
    /// # Panics
    /// When the span is not inside an allocated buffer.
    pub fn crc32c_blocks(&self, span: Span, out: &mut Vec<u32>) {
        let memory = self.locate(span);
        // SAFETY: `locate` checked the range. The span's own operation has completed (caller's
        // contract), so the kernel does not write these bytes.
        let bytes = unsafe { std::slice::from_raw_parts(memory, span.len as usize) };
        out.extend(bytes.chunks(CRC_BLOCK_BYTES).map(crc32c::crc32c));
    }

    /// Lets `change` work on the bytes of the span where they lie.
    ///
    /// # Panics
    /// When the span is not inside an allocated buffer.
    pub fn change(&mut self, span: Span, change: impl FnOnce(&mut [u8])) {
        let memory = self.locate(span);
        // SAFETY: `locate` checked the range. No operation on these bytes is under way (caller's
        // contract), so the kernel does not touch them, and nobody else can: the pool is borrowed
        // mutably.
        change(unsafe { std::slice::from_raw_parts_mut(memory, span.len as usize) });
    }

    /// Copies `from` to `to`; they must have the same length and may overlap.
    ///
    /// # Panics
    /// When a span is not inside an allocated buffer or the lengths differ.
    pub fn copy(&mut self, from: Span, to: Span) {
        assert_eq!(from.len, to.len, "spans to copy differ in length");
        let (source, target) = (self.locate(from), self.locate(to));
        // SAFETY: both ranges were checked; `copy` allows overlap; no slices to pool memory exist
        // (&mut self).
        unsafe { std::ptr::copy(source, target, from.len as usize) };
    }

    /// Zeroes the span.
    ///
    /// # Panics
    /// When the span is not inside an allocated buffer.
    pub fn fill_zero(&mut self, span: Span) {
        let memory = self.locate(span);
        // SAFETY: `locate` checked the range; no slices to pool memory exist (&mut self).
        unsafe { std::ptr::write_bytes(memory, 0, span.len as usize) };
    }

    /// Copies `bytes`, which has the span's length, into the span.
    ///
    /// # Panics
    /// When the span is not inside an allocated buffer or the lengths differ.
    pub fn copy_in(&mut self, span: Span, bytes: &[u8]) {
        assert_eq!(span.len as usize, bytes.len(), "span and slice differ in length");
        let memory = self.locate(span);
        // SAFETY: `locate` checked the range; `bytes` cannot lie in the pool, which is borrowed
        // mutably.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory, bytes.len()) };
    }

    /// Copies the span into `bytes`, which has the span's length.
    ///
    /// # Panics
    /// When the span is not inside an allocated buffer or the lengths differ.
    pub fn copy_out(&self, span: Span, bytes: &mut [u8]) {
        assert_eq!(span.len as usize, bytes.len(), "span and slice differ in length");
        let memory = self.locate(span);
        // SAFETY: `locate` checked the range; a `&mut` slice cannot overlap memory the pool shares.
        unsafe { std::ptr::copy_nonoverlapping(memory, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// What the pool holds at this moment.
    pub fn stats(&self) -> PoolStats {
        self.stats
    }

    /// Marks the span as used by the kernel and returns its address, or `None` when it is not
    /// inside a buffer.
    pub(crate) fn pin(&mut self, span: Span, kernel: KernelUse) -> Option<*mut u8> {
        let memory = self.find(span)?;
        let entry = &mut self.entries[span.buf.0 as usize];
        match kernel {
            KernelUse::Reads => entry.kernel_reads += 1,
            KernelUse::Writes => entry.kernel_writes += 1,
        }
        self.stats.pins += 1;
        Some(memory)
    }

    /// Ends one `pin`, and the life of the buffer if it was freed meanwhile.
    pub(crate) fn unpin(&mut self, id: BufId, kernel: KernelUse) {
        let entry = &mut self.entries[id.0 as usize];
        let count = match kernel {
            KernelUse::Reads => &mut entry.kernel_reads,
            KernelUse::Writes => &mut entry.kernel_writes,
        };
        assert!(*count > 0, "{id:?} unpinned more often than pinned");
        *count -= 1;
        self.stats.pins -= 1;
        self.recycle_if_idle(id.0);
    }

    /// Address of a pinned span; the buffer may have been freed by its owner meanwhile.
    pub(crate) fn address_of_pinned(&self, span: Span) -> *mut u8 {
        let entry = &self.entries[span.buf.0 as usize];
        debug_assert!(entry.kernel_reads + entry.kernel_writes > 0);
        debug_assert!(span.offset as usize + span.len as usize <= CLASS_SIZES[entry.class as usize]);
        // SAFETY: `pin` checked that the span lies inside the mapping, which lives while pinned.
        unsafe { entry.memory.as_ptr().add(span.offset as usize) }
    }

    /// The whole memory of a pinned buffer, if it is small enough to be registered with the kernel.
    pub(crate) fn mapping_of_pinned(&self, id: BufId) -> Option<Mapping> {
        let entry = &self.entries[id.0 as usize];
        let len = CLASS_SIZES[entry.class as usize];
        let mapping = Mapping { buffer: id.0, number: entry.mapping, address: entry.memory.as_ptr(), len };
        (len <= REGISTERED_BYTES_MAX).then_some(mapping)
    }

    /// Buffers unmapped since the last call, each with the number of the mapping that is gone: the
    /// buffer's own may be in use again already.
    pub(crate) fn take_unmapped(&mut self) -> Vec<(u32, u64)> {
        std::mem::take(&mut self.unmapped)
    }

    fn used(&self, id: BufId) -> &Entry {
        let entry = self.entries.get(id.0 as usize).filter(|e| e.state == State::Used);
        let Some(entry) = entry else { panic!("buffer {id:?} is not allocated") };
        entry
    }

    fn find(&self, span: Span) -> Option<*mut u8> {
        let entry = self.entries.get(span.buf.0 as usize).filter(|e| e.state == State::Used)?;
        let end = (span.offset as usize).checked_add(span.len as usize)?;
        if end > CLASS_SIZES[entry.class as usize] {
            return None;
        }
        // SAFETY: the offset is inside the mapping (just checked).
        Some(unsafe { entry.memory.as_ptr().add(span.offset as usize) })
    }

    fn locate(&self, span: Span) -> *mut u8 {
        let Some(memory) = self.find(span) else { panic!("{span:?} is not inside an allocated buffer") };
        memory
    }

    fn recycle_if_idle(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        if entry.state != State::Dying || entry.kernel_reads + entry.kernel_writes > 0 {
            return;
        }
        if self.put_by == Some(index) {
            entry.state = State::PutBy;
            return;
        }
        entry.state = State::Free;
        let class = entry.class as usize;
        self.free[class].push(index);
        self.stats.used_bytes -= CLASS_SIZES[class];
        self.stats.used_buffers -= 1;
    }

    /// Maps a new buffer of the class, after making room for it below the limit.
    fn map_new(&mut self, class: usize) -> Option<u32> {
        let size = CLASS_SIZES[class];
        self.trim_to(self.limit_bytes.checked_sub(size)?);
        if self.stats.allocated_bytes + size > self.limit_bytes {
            return None;
        }
        let memory = map_zeroed(size)?;
        self.stats.allocated_bytes += size;
        self.mappings += 1;
        let entry = Entry {
            memory,
            mapping: self.mappings,
            class: class as u8,
            state: State::Free,
            kernel_reads: 0,
            kernel_writes: 0,
        };
        if let Some(index) = self.vacant.pop() {
            self.entries[index as usize] = entry;
            return Some(index);
        }
        let index = u32::try_from(self.entries.len()).ok()?;
        self.entries.push(entry);
        Some(index)
    }

    /// Returns free buffers to the system, largest first, until at most `target_bytes` are held.
    fn trim_to(&mut self, target_bytes: usize) {
        for class in (0..CLASS_SIZES.len()).rev() {
            while self.stats.allocated_bytes > target_bytes {
                let Some(index) = self.free[class].pop() else { break };
                let entry = &mut self.entries[index as usize];
                entry.state = State::Vacant;
                unmap(entry.memory, CLASS_SIZES[class]);
                self.vacant.push(index);
                self.unmapped.push((index, entry.mapping));
                self.stats.allocated_bytes -= CLASS_SIZES[class];
            }
        }
    }
}

impl Drop for BufPool {
    fn drop(&mut self) {
        for entry in self.entries.iter().filter(|e| e.state != State::Vacant) {
            unmap(entry.memory, CLASS_SIZES[entry.class as usize]);
        }
    }
}

/// Zeroed, page-aligned memory from the system; pages are taken when first touched.
pub(crate) fn map_zeroed(len: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no existing
    // memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED { None } else { NonNull::new(memory.cast()) }
}

/// Gives a mapping of `map_zeroed` back.
pub(crate) fn unmap(memory: NonNull<u8>, len: usize) {
    // SAFETY: the mapping came from `map_zeroed` with this length, is not in use by the kernel, and
    // its owner forgets the pointer.
    unsafe { libc::munmap(memory.as_ptr().cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_by_is_lent_to_one_at_a_time_and_comes_back() {
        let mut pool = BufPool::new(8 << 20);
        assert!(!pool.put_by(32 << 20) && pool.borrow().is_none(), "there is no room for it");
        assert!(pool.put_by((4 << 20) - 5));
        assert!(!pool.put_by(4096), "there is one");
        assert_eq!(pool.stats().used_bytes, 4 << 20, "nobody else gets it");
        let all: Vec<BufId> = std::iter::from_fn(|| pool.alloc(1 << 20)).collect();
        assert_eq!(all.len(), 4);
        for _ in 0..3 {
            let lent = pool.borrow().unwrap();
            assert!(pool.capacity(lent) == 4 << 20 && pool.borrow().is_none());
            let span = Span::new(lent, 0, 4096);
            pool.pin(span, KernelUse::Reads).unwrap();
            pool.free(lent);
            assert!(pool.borrow().is_none(), "the kernel still reads it");
            pool.unpin(lent, KernelUse::Reads);
        }
        all.into_iter().for_each(|buffer| pool.free(buffer));
        assert_eq!(pool.stats().used_bytes, 4 << 20);
        assert!(pool.alloc(8 << 20).is_none() && pool.borrow().is_some(), "room is made of others only");
    }

    #[test]
    fn memory_is_reused_and_the_limit_holds() {
        let mut pool = BufPool::new(64 << 10);
        let a = pool.alloc(5000).unwrap();
        assert_eq!(pool.capacity(a), 16 << 10);
        assert_eq!(pool.bytes(a).as_ptr() as usize % BUFFER_ALIGN, 0);
        pool.free(a);
        assert_eq!(pool.alloc(16 << 10), Some(a), "the warm buffer comes back");
        pool.free(a);
        let big = pool.alloc(64 << 10).unwrap();
        assert_eq!(pool.stats().allocated_bytes, 64 << 10, "the idle small buffer made room");
        assert_eq!(pool.alloc(1), None, "the limit is reached");
        pool.free(big);
        assert_eq!(pool.alloc((33 << 20) + 1), None, "larger than any class");
        assert_eq!(pool.stats().used_bytes, 0);
    }

    #[test]
    fn the_patient_leave_something_for_the_others() {
        let mut pool = BufPool::new(1 << 20);
        let held: Vec<BufId> = std::iter::from_fn(|| pool.alloc_leaving(8, 60_000)).collect();
        assert_eq!(held.len(), 14, "seven eighths");
        assert!(pool.alloc_leaving(8, 1).is_none() && pool.alloc_leaving(16, 60_000).is_some());
        assert!(pool.alloc_leaving(16, 1).is_none() && pool.alloc(1).is_some());
        held.into_iter().for_each(|id| pool.free(id));
        assert!(pool.alloc_leaving(8, 60_000).is_some(), "what was given back can be had again");
        assert_eq!(pool.alloc_leaving(8, 1 << 20), None, "never the whole of it");
    }

    #[test]
    fn a_buffer_freed_while_the_kernel_uses_it_is_not_reused_until_then() {
        let mut pool = BufPool::new(1 << 20);
        let a = pool.alloc(4096).unwrap();
        let span = Span::new(a, 0, 512);
        assert!(pool.pin(span, KernelUse::Writes).is_some());
        pool.free(a);
        let b = pool.alloc(4096).unwrap();
        assert_ne!(a, b);
        assert_eq!(pool.pin(span, KernelUse::Writes), None, "a freed buffer takes no new operation");
        pool.unpin(a, KernelUse::Writes);
        assert_eq!(pool.alloc(4096), Some(a));
    }

    #[test]
    fn spans_are_checked_and_copied() {
        let mut pool = BufPool::new(1 << 20);
        let a = pool.alloc(16 << 10).unwrap();
        pool.copy_in(Span::new(a, 100, 3), b"abc");
        pool.copy(Span::new(a, 100, 3), Span::new(a, 101, 3));
        let mut out = [0; 4];
        pool.copy_out(Span::new(a, 100, 4), &mut out);
        assert_eq!(&out, b"aabc");
        pool.fill_zero(Span::new(a, 0, 16 << 10));
        let mut crcs = Vec::new();
        pool.crc32c_blocks(Span::new(a, 0, 4096 + 512), &mut crcs);
        assert_eq!(crcs, [crc32c::crc32c(&[0; 4096]), crc32c::crc32c(&[0; 512])]);
        assert_eq!(pool.pin(Span::new(a, 1, 16 << 10), KernelUse::Reads), None);
        assert_eq!(pool.pin(Span::new(a, u32::MAX, u32::MAX), KernelUse::Reads), None);
    }

    #[test]
    #[should_panic(expected = "being filled by the kernel")]
    fn bytes_of_a_buffer_the_kernel_fills_are_refused() {
        let mut pool = BufPool::new(1 << 20);
        let a = pool.alloc(4096).unwrap();
        pool.pin(Span::new(a, 0, 8), KernelUse::Writes);
        pool.bytes(a);
    }
}

//! Pooled, page-aligned memory that the kernel reads and writes.
//!
//! Buffers come in a few sizes and are reused through free lists, so that a warm pool makes no
//! system call and no allocation. They are cut out of chunks (`arena`), which rings register. Free
//! memory returns to the system when the limit requires it. The pool belongs to the reactor, so
//! memory of an operation in flight lives at least as long as the operation.
//!
//! Invariants:
//! - Every buffer counts the kernel operations that read it (device writes, sends) and write it
//!   (device reads, receives). A buffer that is freed while a count is above zero returns to the
//!   pool when the last operation ends.
//! - No `&[u8]` to a buffer exists while the kernel may write it, and no `&mut [u8]` while the
//!   kernel may touch it at all: [`BufPool::bytes`] and [`BufPool::bytes_mut`] assert this.
//! - The span methods (`copy`, `copy_in`, `copy_out`, `fill_zero`, `change`, `crc32c_blocks`) work
//!   on raw memory and are allowed while *other parts* of the same buffer are in flight: one client
//!   buffer filled by several device reads is checked piece by piece as they complete. A caller
//!   that reads a span whose operation has not completed gets undefined contents, never a memory
//!   error.
//! - All memory was zeroed by the kernel once; a reused buffer keeps its previous contents.
//! - An allocation succeeds whenever it fits below the limit together with the buffers in use,
//!   however small buffers are scattered: the limit counts memory, not addresses, and memory
//!   between buffers can be released.

mod arena;

use std::ptr::NonNull;

use arena::{Arena, Block};

pub(crate) use arena::Mapping;

/// Alignment of every buffer in bytes; enough for direct I/O on any device in use today.
pub const BUFFER_ALIGN: usize = 4096;

/// Buffer sizes in bytes: powers of two, so that few buffers are twice as large as needed. The
/// largest holds a 32 MiB request (the customary limit of NBD clients) with a page on either side
/// for widening it to block boundaries. The sizes for the longest FUSE requests have the same spare
/// pages, so that a request that begins inside a block does not need twice as much.
pub const CLASS_SIZES: [usize; 17] = [
    4 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    (64 << 10) + BUFFER_ALIGN,
    128 << 10,
    256 << 10,
    (256 << 10) + BUFFER_ALIGN,
    512 << 10,
    1 << 20,
    (1 << 20) + BUFFER_ALIGN,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
    (32 << 20) + 2 * BUFFER_ALIGN,
];

/// The class of the smallest buffers that hold `len` bytes.
fn class_for(len: usize) -> Option<usize> {
    let class = CLASS_SIZES.partition_point(|&size| size < len);
    (class < CLASS_SIZES.len()).then_some(class)
}

/// Bytes covered by one checksum of [`BufPool::crc32c_blocks`].
pub const CRC_BLOCK_BYTES: usize = 4096;

/// A buffer of the pool. Valid from `alloc` to `free`; the number is then reused.
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

/// Memory of the pool, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes obtained from the system: in use, on free lists, or between buffers in memory that
    /// rings register.
    pub allocated_bytes: usize,
    /// Bytes of allocated buffers (whole buffers, not the requested lengths).
    pub used_bytes: usize,
    /// Allocated buffers, including those that wait for the kernel after `free`.
    pub used_buffers: usize,
    /// Kernel operations on buffers, counted per span.
    pub pins: usize,
}

/// Use of a pinned span by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelUse {
    /// The kernel reads the memory (device write, send).
    Reads,
    /// The kernel writes the memory (device read, receive).
    Writes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No memory: the entry is free for a new buffer.
    Vacant,
    /// Memory on a free list.
    Free,
    /// Allocated.
    Used,
    /// Freed by the owner, still in use by the kernel.
    Dying,
    /// Reserved by [`BufPool::put_by`], and not lent.
    PutBy,
}

#[derive(Debug)]
struct Entry {
    block: Block,
    class: u8,
    state: State,
    kernel_reads: u32,
    kernel_writes: u32,
}

/// The pool; see the module documentation.
#[derive(Debug)]
pub struct BufPool {
    entries: Vec<Entry>,
    free: [Vec<u32>; CLASS_SIZES.len()],
    vacant: Vec<u32>,
    arena: Arena,
    limit_bytes: usize,
    /// The reserved buffer.
    put_by: Option<u32>,
    stats: PoolStats,
}

// SAFETY: the pool is the only owner of its memory; the pointers are not tied to a thread.
unsafe impl Send for BufPool {}

impl BufPool {
    /// Creates a pool that never holds more than `limit_bytes` of memory.
    pub fn new(limit_bytes: usize) -> BufPool {
        BufPool {
            entries: Vec::new(),
            free: Default::default(),
            vacant: Vec::new(),
            arena: Arena::default(),
            limit_bytes,
            put_by: None,
            stats: PoolStats::default(),
        }
    }

    /// Allocates a buffer of at least `len` bytes. Returns `None` when `len` is above the largest
    /// class or the limit is reached.
    ///
    /// The contents are undefined (never uninitialised). Releases free buffers of other sizes to
    /// the system if that makes room.
    pub fn alloc(&mut self, len: usize) -> Option<BufId> {
        let class = class_for(len)?;
        let index = match self.free[class].pop() {
            Some(index) => index,
            None => self.add(class)?,
        };
        let entry = &mut self.entries[index as usize];
        debug_assert_eq!((entry.kernel_reads, entry.kernel_writes), (0, 0));
        entry.state = State::Used;
        self.stats.used_bytes += CLASS_SIZES[class];
        self.stats.used_buffers += 1;
        Some(BufId(index))
    }

    /// Like [`BufPool::alloc`], but also returns `None` if less than this part of the limit would
    /// be left afterwards (8: an eighth). For callers that can wait or do without, so that memory
    /// remains for those that cannot.
    pub fn alloc_leaving(&mut self, part: usize, len: usize) -> Option<BufId> {
        let class = class_for(len)?;
        let left = self.limit_bytes.saturating_sub(self.stats.used_bytes + CLASS_SIZES[class]);
        if left < self.limit_bytes / part.max(1) { None } else { self.alloc(len) }
    }

    /// Reserves one buffer of at least `len` bytes for [`BufPool::borrow`]. Returns false if there
    /// is no memory for it, or one is already reserved. The buffer counts as used from then on,
    /// lent or not.
    pub fn put_by(&mut self, len: usize) -> bool {
        if self.put_by.is_some() {
            return false;
        }
        let Some(buffer) = self.alloc(len) else { return false };
        self.put_by = Some(buffer.0);
        self.free(buffer);
        true
    }

    /// Lends the reserved buffer, if it is not lent already. [`BufPool::free`] returns it to the
    /// reserve.
    pub fn borrow(&mut self) -> Option<BufId> {
        let index = self.put_by?;
        let entry = self.entries.get_mut(index as usize).filter(|entry| entry.state == State::PutBy)?;
        entry.state = State::Used;
        Some(BufId(index))
    }

    /// Frees a buffer. While the kernel still uses it, the memory stays and is reused only when the
    /// last operation has completed; the caller must not use the id again in either case.
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

    /// Bytes that a buffer for `len` bytes occupies: its class, or `len` itself above the largest.
    pub fn bytes_for(len: usize) -> usize {
        class_for(len).map_or(len, |class| CLASS_SIZES[class])
    }

    /// Size of the buffer in bytes (its class, at least the requested length).
    pub fn capacity(&self, id: BufId) -> usize {
        CLASS_SIZES[self.used(id).class as usize]
    }

    /// The whole buffer.
    ///
    /// # Panics
    /// When the id is not allocated, or the kernel might be writing the buffer: both are bugs of
    /// the caller.
    pub fn bytes(&self, id: BufId) -> &[u8] {
        let entry = self.used(id);
        assert_eq!(entry.kernel_writes, 0, "{id:?} is being filled by the kernel: use the span methods");
        // SAFETY: the block is that long and initialised, nothing writes it (checked), and it
        // cannot go away while the pool is borrowed.
        unsafe { std::slice::from_raw_parts(entry.memory(), CLASS_SIZES[entry.class as usize]) }
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
        unsafe { std::slice::from_raw_parts_mut(entry.memory(), CLASS_SIZES[entry.class as usize]) }
    }

    /// Returns whether any kernel operation on this buffer is in flight.
    pub fn is_busy(&self, id: BufId) -> bool {
        let entry = self.used(id);
        entry.kernel_reads + entry.kernel_writes > 0
    }

    /// Appends one CRC-32C per 4096 bytes of the span (the last can cover less) to `out`.
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

    /// Passes the bytes of pinned spans to `work`; no operation on them may be in flight.
    pub(crate) fn work_pinned<'a>(&'a self, spans: &'a [Span], work: impl FnOnce(Parts<'a>)) {
        work(Parts { pool: self, spans: spans.iter() });
    }

    /// Calls `change` on the bytes of the span in place.
    ///
    /// # Panics
    /// When the span is not inside an allocated buffer.
    pub fn change(&mut self, span: Span, change: impl FnOnce(&mut [u8])) {
        let memory = self.locate(span);
        // SAFETY: `locate` checked the range. No operation on these bytes is in flight (caller's
        // contract), so the kernel does not touch them, and no other code can: the pool is borrowed
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

    /// Memory of the pool.
    pub fn stats(&self) -> PoolStats {
        PoolStats { allocated_bytes: self.arena.held_bytes(), ..self.stats }
    }

    /// Marks the span as used by the kernel and returns its address; `None` when it is not inside a
    /// buffer.
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

    /// Ends one `pin`, and returns the buffer to the pool if it was freed meanwhile.
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

    /// Address of a pinned span; the buffer might have been freed by its owner meanwhile.
    pub(crate) fn address_of_pinned(&self, span: Span) -> *mut u8 {
        let entry = &self.entries[span.buf.0 as usize];
        debug_assert!(entry.kernel_reads + entry.kernel_writes > 0);
        debug_assert!(span.offset as usize + span.len as usize <= CLASS_SIZES[entry.class as usize]);
        // SAFETY: `pin` checked that the span lies inside the block, which lives while pinned.
        unsafe { entry.memory().add(span.offset as usize) }
    }

    /// The chunk that contains all these pinned spans, for a ring to register.
    pub(crate) fn mapping_of_pinned(&mut self, spans: &[Span]) -> Option<Mapping> {
        let chunk_of = |span: &Span| self.entries[span.buf.0 as usize].block.chunk;
        let (first, others) = spans.split_first()?;
        let chunk = chunk_of(first);
        if others.iter().any(|span| chunk_of(span) != chunk) {
            return None;
        }
        self.arena.mapping(chunk, self.limit_bytes)
    }

    /// Chunks that rings must unregister, each with the generation that they know.
    pub(crate) fn take_unmapped(&mut self) -> Vec<(u32, u64)> {
        self.arena.take_gone()
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
        // SAFETY: the offset is inside the block (just checked).
        Some(unsafe { entry.memory().add(span.offset as usize) })
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

    /// Adds a new buffer of the class, after making room for it below the limit.
    fn add(&mut self, class: usize) -> Option<u32> {
        let block = self.find_block(CLASS_SIZES[class])?;
        let entry =
            Entry { block, class: class as u8, state: State::Free, kernel_reads: 0, kernel_writes: 0 };
        if let Some(index) = self.vacant.pop() {
            self.entries[index as usize] = entry;
            return Some(index);
        }
        let index = u32::try_from(self.entries.len()).ok()?;
        self.entries.push(entry);
        Some(index)
    }

    /// Allocates memory: first free memory, then memory of free buffers, largest first, and
    /// last the memory between buffers.
    fn find_block(&mut self, size: usize) -> Option<Block> {
        if self.stats.used_bytes + size > self.limit_bytes {
            return None;
        }
        for class in (0..CLASS_SIZES.len()).rev() {
            if let Some(block) = self.arena.take(size, self.limit_bytes) {
                return Some(block);
            }
            while self.arena.held_bytes() + size > self.limit_bytes
                && let Some(index) = self.free[class].pop()
            {
                let entry = &mut self.entries[index as usize];
                entry.state = State::Vacant;
                self.arena.give(entry.block, CLASS_SIZES[class]);
                self.vacant.push(index);
            }
        }
        loop {
            if let Some(block) = self.arena.take(size, self.limit_bytes) {
                return Some(block);
            }
            if !self.arena.break_up() {
                return None;
            }
        }
    }
}

/// The bytes of pinned spans in order.
pub(crate) struct Parts<'a> {
    pool: &'a BufPool,
    spans: std::slice::Iter<'a, Span>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = &'a mut [u8];

    fn next(&mut self) -> Option<&'a mut [u8]> {
        let span = self.spans.next()?;
        let memory = self.pool.address_of_pinned(*span);
        // SAFETY: the span is pinned, hence inside live memory; its step is not at the engine, so
        // neither the kernel nor a thread uses it; spans of one operation do not overlap.
        Some(unsafe { std::slice::from_raw_parts_mut(memory, span.len as usize) })
    }
}

impl Entry {
    fn memory(&self) -> *mut u8 {
        self.block.memory.as_ptr()
    }
}

/// Zeroed, page-aligned memory from the system; pages are taken when first touched.
pub(crate) fn map_zeroed(len: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses touches no existing
    // memory.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED { None } else { NonNull::new(memory.cast()) }
}

/// Unmaps a mapping of `map_zeroed`.
pub(crate) fn unmap(memory: NonNull<u8>, len: usize) {
    // SAFETY: the mapping came from `map_zeroed` with this length, is not in use by the kernel, and
    // its owner forgets the pointer.
    unsafe { libc::munmap(memory.as_ptr().cast(), len) };
}

#[cfg(test)]
mod tests;

//! Registered memory: the kernel looks it up and pins it once, instead of for every transfer.
//!
//! The first transfer that uses memory of a chunk of the pool registers it; it stays registered
//! until the pool releases it. Without permission to pin memory (`RLIMIT_MEMLOCK`), or on an older
//! kernel, nothing is registered and every transfer uses unregistered memory.
//!
//! Each ring has its own table. A chunk has the same number in all of them.
//!
//! Invariants:
//! - A chunk is used as registered only if it was registered under its current generation: numbers
//!   and addresses are reused, generations are not.
//! - A released registration is dropped at the next turn; until then the kernel only keeps the old
//!   pages. A queued transfer that would have used it fails with `EFAULT` without any effect, and
//!   the reactor restarts it. The same holds for a transfer whose number now stands for another
//!   chunk's memory.

use io_uring::Submitter;

use crate::buffer::Mapping;

/// Most chunks that can be registered; the kernel allows 16,384.
const REGISTERED_MAX: u32 = 4096;

/// Registered generation of each chunk.
#[derive(Debug)]
pub(crate) struct Registered {
    /// By chunk; 0 for a chunk that is not registered. Empty if registration is not available.
    generations: Vec<u64>,
    /// Smallest length whose registration failed, most likely because of the limit on pinned
    /// memory. Chunks of at least that length are not tried again; existing registrations stay.
    refused_bytes: usize,
}

impl Registered {
    pub(crate) fn new(submitter: &Submitter<'_>) -> Registered {
        let works = submitter.register_buffers_sparse(REGISTERED_MAX).is_ok();
        let generations = if works { vec![0; REGISTERED_MAX as usize] } else { Vec::new() };
        Registered { generations, refused_bytes: usize::MAX }
    }

    /// Returns the ring's number of the memory; registers it if necessary.
    pub(crate) fn index_of(&mut self, submitter: &Submitter<'_>, mapping: Mapping) -> Option<u16> {
        let known = self.generations.get_mut(mapping.chunk as usize)?;
        if *known != mapping.generation {
            if mapping.len >= self.refused_bytes {
                return None;
            }
            let memory = libc::iovec { iov_base: mapping.address.cast(), iov_len: mapping.len };
            if !update(submitter, mapping.chunk, memory) {
                self.refused_bytes = mapping.len;
                return None;
            }
            *known = mapping.generation;
        }
        u16::try_from(mapping.chunk).ok()
    }

    /// Unregisters this generation of the chunk. Another registered generation stays: queued
    /// transfers can use it.
    pub(crate) fn forget(&mut self, submitter: &Submitter<'_>, chunk: u32, generation: u64) {
        let Some(known) = self.generations.get_mut(chunk as usize) else { return };
        if *known == generation {
            *known = 0;
            update(submitter, chunk, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        }
    }
}

fn update(submitter: &Submitter<'_>, chunk: u32, memory: libc::iovec) -> bool {
    // SAFETY: the kernel takes references to the pages of a live mapping of the pool; they stay
    // valid memory for it when the pool releases them. A transfer that uses them has its own blocks
    // there, which keep their pages (see the pool's arena).
    unsafe { submitter.register_buffers_update(chunk, &[memory], None) }.is_ok()
}

//! Memory that the ring knows: the kernel has looked it up and pinned it once, instead of for every
//! transfer.
//!
//! Chunks of the pool are registered when a transfer first uses memory of theirs, and until the
//! pool gives them up. Without permission to pin memory (`RLIMIT_MEMLOCK`), or on an older kernel,
//! nothing is registered and every transfer goes the common way.
//!
//! Each ring has a table of its own. A chunk has the same number in all of them.
//!
//! Invariants:
//! - A chunk is used as registered only if it was registered under the generation that it has now:
//!   numbers and addresses come back, generations do not.
//! - What is given up is dropped at the next turn; until then the kernel only keeps the old pages.
//!   A transfer in the queue that was to use it fails with `EFAULT`, having done nothing, and the
//!   reactor begins it anew. So does one whose number has another chunk's memory by now.

use io_uring::Submitter;

use crate::buffer::Mapping;

/// Chunks that can be registered; the kernel allows 16,384.
const REGISTERED_MAX: u32 = 4096;

/// Which generation of a chunk is registered.
#[derive(Debug)]
pub(crate) struct Registered {
    /// By chunk, 0 where nothing is. Empty if nothing can be registered.
    generations: Vec<u64>,
    /// So much at once was refused: most likely no more memory may be pinned. Nothing of that
    /// length is tried again, and what is registered stays.
    refused_bytes: usize,
}

impl Registered {
    pub(crate) fn new(submitter: &Submitter<'_>) -> Registered {
        let works = submitter.register_buffers_sparse(REGISTERED_MAX).is_ok();
        let generations = if works { vec![0; REGISTERED_MAX as usize] } else { Vec::new() };
        Registered { generations, refused_bytes: usize::MAX }
    }

    /// The number under which the ring knows the memory, after telling it if need be.
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

    /// This generation of the chunk is gone. If another one is registered by now, it stays:
    /// transfers may be queued that use it.
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
    // valid memory for it when the pool gives them back. A transfer that uses them has blocks of
    // its own there, which keep their pages (see the pool's arena).
    unsafe { submitter.register_buffers_update(chunk, &[memory], None) }.is_ok()
}

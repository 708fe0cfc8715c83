//! Buffers that the ring knows: memory that the kernel has looked up and pinned once, instead of
//! for every transfer.
//!
//! Small buffers are registered when they are first used for a transfer of their own, and for as
//! long as they are mapped; what they hold is the pool's business. Without permission to pin memory
//! (`RLIMIT_MEMLOCK`), or on an older kernel, nothing is registered and every transfer goes the
//! common way.
//!
//! Invariants:
//! - A buffer is used as registered only if the mapping that was registered under its number is the
//!   one it has now: mappings are told apart by a number of their own, addresses come back.
//! - What is no longer mapped is given up at the next turn; until then the kernel only keeps the
//!   old pages.

use crate::buffer::BUFFER_ALIGN;
use io_uring::Submitter;

/// Buffers that can be registered; the kernel allows 16,384.
const REGISTERED_MAX: u32 = 4096;
/// Larger buffers are not registered: looking up their pages is little beside copying them, and all
/// of it would be pinned, used or not.
pub(crate) const REGISTERED_BYTES_MAX: usize = (64 << 10) + BUFFER_ALIGN;

/// The memory of a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// Number of the buffer.
    pub(crate) buffer: u32,
    /// Number of the mapping: no two are alike, and none is 0.
    pub(crate) number: u64,
    pub(crate) address: *mut u8,
    pub(crate) len: usize,
}

/// Which mapping is registered for which buffer.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Numbers of mappings by buffer, 0 where there is none. Empty if nothing can be registered.
    mappings: Vec<u64>,
}

impl Registered {
    pub(crate) fn new(submitter: &Submitter<'_>) -> Registered {
        let works = submitter.register_buffers_sparse(REGISTERED_MAX).is_ok();
        Registered { mappings: if works { vec![0; REGISTERED_MAX as usize] } else { Vec::new() } }
    }

    /// The number under which the ring knows the memory, after telling it if need be.
    pub(crate) fn index_of(&mut self, submitter: &Submitter<'_>, mapping: Mapping) -> Option<u16> {
        let known = self.mappings.get_mut(mapping.buffer as usize)?;
        if *known != mapping.number {
            let memory = libc::iovec { iov_base: mapping.address.cast(), iov_len: mapping.len };
            if !update(submitter, mapping.buffer, memory) {
                // Most likely no more memory may be pinned: what is registered stays, nothing is
                // tried again.
                self.mappings.truncate(mapping.buffer as usize);
                return None;
            }
            *known = mapping.number;
        }
        u16::try_from(mapping.buffer).ok()
    }

    /// This mapping of the buffer is gone. If another one is registered by now, it stays: transfers
    /// may be queued that use it.
    pub(crate) fn forget(&mut self, submitter: &Submitter<'_>, buffer: u32, mapping: u64) {
        let Some(known) = self.mappings.get_mut(buffer as usize) else { return };
        if *known == mapping {
            *known = 0;
            update(submitter, buffer, libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        }
    }
}

fn update(submitter: &Submitter<'_>, buffer: u32, memory: libc::iovec) -> bool {
    // SAFETY: the kernel takes references to the pages of a live mapping of the pool; they stay
    // valid memory for it when the pool unmaps them, and no transfer uses them then (see the
    // invariants).
    unsafe { submitter.register_buffers_update(buffer, &[memory], None) }.is_ok()
}

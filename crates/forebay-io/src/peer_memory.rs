//! Memory of another process that stays readable when its owner truncates it.
//!
//! The process that owns a memory file can truncate it. An access to the truncated part then raises
//! a signal (`SIGBUS`) that would end this process. The handler here replaces the whole mapping
//! with empty anonymous memory and marks it as lost, as libwayland does
//! (`wl_shm_buffer_begin_access`).
//!
//! Invariants:
//! - The handler replaces only mappings that a [`PeerMemory`] owns. A mapping is unlisted before
//!   it is unmapped, so an address is never attributed to an older mapping.
//! - The handler makes one system call and touches atomics, nothing else. A signal at any other
//!   address goes to the previous handler.

use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

use crate::sys;

/// Most mappings at once, of all pools.
const MAPPINGS_MAX: usize = 8192;

/// A watched mapping; none if `start` is zero.
struct Entry {
    is_taken: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
    is_lost: AtomicBool,
}

static TABLE: [Entry; MAPPINGS_MAX] = [const {
    Entry {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        is_lost: AtomicBool::new(false),
    }
}; MAPPINGS_MAX];

/// The previous handler.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping of another process's memory.
#[derive(Debug)]
pub struct PeerMemory {
    region: Arc<GuestRegionMmap<()>>,
    at: usize,
}

impl PeerMemory {
    /// Watches a mapping that contains nothing else.
    ///
    /// # Errors
    /// There are too many, or the handler cannot be installed.
    pub fn new(region: GuestRegionMmap<()>) -> io::Result<PeerMemory> {
        install()?;
        let free = |entry: &Entry| !entry.is_taken.swap(true, Ordering::AcqRel);
        let at = TABLE.iter().position(free).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let start = region.as_ptr() as usize;
        TABLE[at].is_lost.store(false, Ordering::Release);
        TABLE[at].end.store(start + region.len() as usize, Ordering::Release);
        TABLE[at].start.store(start, Ordering::Release);
        Ok(PeerMemory { region: Arc::new(region), at })
    }

    /// The mapping. Keep `self` as long as the result is in use: afterwards the mapping is not
    /// watched.
    pub fn region(&self) -> &Arc<GuestRegionMmap<()>> {
        &self.region
    }

    /// Its owner has truncated it: reads return meaningless data, and writes are lost.
    pub fn is_lost(&self) -> bool {
        TABLE[self.at].is_lost.load(Ordering::Acquire)
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        TABLE[self.at].start.store(0, Ordering::Release);
        TABLE[self.at].is_taken.store(false, Ordering::Release);
    }
}

/// Installs the handler.
fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: sigaction is a plain struct for which all zeroes is a value.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action only queries the current one.
    sys::check(unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) })?;
    // Another thread in this function has found the same handler, or ours, which is not stored.
    let ours = on_bus_error as *const () as usize;
    if before.sa_sigaction != ours {
        let _ = BEFORE.set(before);
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = ours;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO requires, and makes only
    // async-signal-safe calls.
    sys::check(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) }).map(drop)
}

extern "C" fn on_bus_error(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes information about this signal, which has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in &TABLE {
        let (start, end) = (entry.start.load(Ordering::Acquire), entry.end.load(Ordering::Acquire));
        if start == 0 || !(start..end).contains(&address) {
            continue;
        }
        entry.is_lost.store(true, Ordering::Release);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: this thread has a pointer into the mapping, so its owner is alive; all access to
        // it is by copies and atomics that hold no references, and expect that bytes change.
        let mapped = unsafe { libc::mmap(start as *mut _, end - start, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            return;
        }
    }
    // Not ours: the access is repeated, and its signal goes to the previous handler.
    if let Some(before) = BEFORE.get() {
        // SAFETY: the action was given by the kernel.
        unsafe { libc::sigaction(libc::SIGBUS, before, null_mut()) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::fs::File;
    use vm_memory::{Bytes, FileOffset, GuestAddress, MemoryRegionAddress};

    #[test]
    fn only_truncated_foreign_memory_is_lost() {
        let mapped = |bytes: u64| {
            let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
            ftruncate(&file, bytes).unwrap();
            let place = FileOffset::new(file.try_clone().unwrap(), 0);
            let region = GuestRegionMmap::from_range(GuestAddress(0), bytes as usize, Some(place)).unwrap();
            (file, PeerMemory::new(region).unwrap())
        };
        let (cut, first) = mapped(64 << 10);
        let (_whole, second) = mapped(64 << 10);
        let at = MemoryRegionAddress(0x9000);
        first.region().write_obj(7u64, at).unwrap();
        second.region().write_obj(8u64, at).unwrap();
        ftruncate(&cut, 4096).unwrap();
        assert!(!first.is_lost(), "nobody has looked yet");
        let looked = std::thread::scope(|scope| {
            let look = || first.region().read_obj::<u64>(at).unwrap();
            [scope.spawn(look), scope.spawn(look)].map(|thread| thread.join().unwrap())
        });
        assert_eq!((looked, first.is_lost()), ([0, 0], true));
        first.region().write_obj(9u64, MemoryRegionAddress(0)).unwrap();
        assert_eq!((second.region().read_obj::<u64>(at).unwrap(), second.is_lost()), (8, false));
        drop(first);
        let (_file, third) = mapped(64 << 10);
        assert!(!third.is_lost(), "a new mapping begins anew");
    }
}

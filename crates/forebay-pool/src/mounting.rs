//! Mounting a volume as a file, for any owner of a reactor: a pool, or a substitute for one.
//!
//! In three steps, because only the second may wait for others: [`reserve`] allocates the memory,
//! [`Made::at`] calls file systems and the kernel (and belongs on a thread that may wait),
//! [`Made::serve`] begins to answer.

use crate::fuse_server::{
    BUFFER_BYTES_DEFAULT, FuseMemory, FuseOptions, FuseServer, RESERVED_BYTES, RingMemory,
};
use crate::may_wait::MayWait;
use crate::time_limit::drop_in_background;
use forebay_admin::size::ByteSize;
use forebay_config::mount_memory::{memory_for, mounts_max};
use forebay_config::rules::ClientCache;
use forebay_export::fuse::{Limits, Session, VolumeTree};
use forebay_io::fuse::{FuseMount, MountOptions, RingAccess, mount, volume_place};
use forebay_io::{BufPool, Reactor};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// This part of the memory is left to requests through other interfaces,
const FOR_OTHERS: usize = 6;
/// and a ring takes at most this part.
const RING_PART: usize = 8;

/// Allocates the memory for one mount in addition to the `mounts` existing ones.
///
/// # Errors
/// There is none: a message with a hint.
pub fn reserve(pool: &mut BufPool, mounts: usize, buffer_bytes: usize) -> Result<FuseMemory, String> {
    let (each, all) = (ByteSize(RESERVED_BYTES as u64), ByteSize(buffer_bytes as u64));
    if mounts >= mounts_max(buffer_bytes) {
        return Err(format!(
            "there is no memory for another FUSE file: {mounts} of them use {each} each, half of \
             buffer_memory ({all}): raise buffer_memory of the pool to {} and start the daemon again, or \
             export the volume over NBD",
            memory_for(mounts + 1)
        ));
    }
    FuseMemory::reserve(pool).ok_or_else(|| {
        format!(
            "there is no memory for another FUSE file now: requests use all of buffer_memory ({all}): try \
             again under less load, or raise buffer_memory of the pool and start the daemon again"
        )
    })
}

/// Memory for the ring of one mount in addition to the `mounts` existing ones: half of the memory
/// that neither existing and possible mounts nor other requests will need.
pub fn ring_bytes(pool: &BufPool, mounts: usize, buffer_bytes: usize) -> usize {
    let to_come = mounts_max(buffer_bytes).saturating_sub(mounts + 1) * RESERVED_BYTES;
    let kept = pool.stats().used_bytes + to_come + buffer_bytes / FOR_OTHERS;
    (buffer_bytes.saturating_sub(kept) / 2).min(BUFFER_BYTES_DEFAULT).min(buffer_bytes / RING_PART)
}

/// A mount that is not served yet: accesses to it wait.
#[derive(Debug)]
pub struct Made {
    mount: FuseMount,
    fd: OwnedFd,
    /// The file's name within the mount; `None` if the mount is the file.
    name: Option<OsString>,
    /// The access for serving it over the ring, or the reason why that is impossible.
    ring: Result<RingAccess, String>,
}

impl Made {
    /// Creates the mount by which a volume appears as the file `path`. May wait for others.
    ///
    /// # Errors
    /// The place is taken or not suitable, or FUSE is missing: a message.
    pub fn at(_: &MayWait, path: &Path) -> Result<Self, String> {
        let (place, name) = volume_place(path).map_err(|error| error.to_string())?;
        let (fd, mount) = mount(&place, MountOptions::default()).map_err(|error| error.to_string())?;
        let ring = mount.ring_access();
        Ok(Self { mount, fd, name, ring })
    }

    /// Begins to answer; over the ring, if that is possible with at most `ring_bytes` of memory.
    ///
    /// # Errors
    /// The kernel's descriptor cannot be used: a message; it is unmounted and the memory freed
    /// then.
    pub fn serve(
        self,
        reactor: &mut Reactor,
        size_bytes: u64,
        options: FuseOptions,
        memory: FuseMemory,
        ring_bytes: usize,
        clients: ClientCache,
    ) -> Result<(FuseServer, FuseMount), String> {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let tree = VolumeTree::new(self.name.as_deref(), size_bytes, owner, now_s);
        let ring = RingMemory::reserve(reactor, self.ring, ring_bytes);
        let ring_payload_bytes_max = ring.as_ref().map_or(0, RingMemory::payload_bytes);
        let session = Session::new(tree, Limits { ring_payload_bytes_max, ..Limits::default() });
        match FuseServer::new(reactor, self.fd, session, options, memory, ring, clients) {
            Ok(server) => Ok((server, self.mount)),
            Err(error) => {
                drop_in_background(self.mount); // unmounting can wait for others
                Err(format!("cannot serve the mount: {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse_server::RingPlan;

    #[test]
    fn default_memory_allows_64_mounts() {
        let defaults = forebay_io::Limits::default().buffer_bytes_max;
        assert!(mounts_max(defaults) >= 64, "{}", mounts_max(defaults));
        assert_eq!(mounts_max(192 << 20), 31, "the smallest buffer_memory");
        for mounts in [1, 16, 65, 100] {
            let enough = memory_for(mounts).0 as usize;
            assert!(mounts_max(enough) >= mounts && mounts_max(enough - (7 << 20)) < mounts);
        }
    }

    /// 192 MiB is the minimum that the configuration allows.
    #[test]
    fn minimum_memory_suffices_for_all_reserves() {
        let bytes = 192 << 20;
        let mut pool = BufPool::new(bytes);
        let scratch = pool.alloc(32 << 20);
        let engine = crate::engine_memory::Reserve::new(&mut pool);
        let bounce = pool.alloc((1 + forebay_format::batch::ENTRIES_MAX) * forebay_format::BLOCK_BYTES);
        assert!(scratch.is_some() && engine.is_some() && bounce.is_some());
        assert!(crate::server::reserve_request_buffer(&mut pool), "the longest request");
        for mounts in 0..mounts_max(bytes) {
            assert!(super::reserve(&mut pool, mounts, bytes).is_ok(), "mount {mounts}");
        }
        let heard = std::iter::from_fn(|| pool.alloc_leaving(16, 16 << 10)).count();
        assert!(heard >= 1000, "{heard} connections can be received from");
        assert!(pool.borrow().is_some());
    }

    /// Mounts that are served over the ring leave other mounts and connections their memory.
    #[test]
    fn rings_take_only_unreserved_memory() {
        for (bytes, at_least) in [(192 << 20, 0), (256 << 20, 1), (512 << 20, 3), (4 << 30, 5)] {
            let mut pool = BufPool::new(bytes);
            assert!(
                pool.alloc(32 << 20).is_some() && crate::engine_memory::Reserve::new(&mut pool).is_some()
            );
            assert!(
                pool.alloc((1 + forebay_format::batch::ENTRIES_MAX) * forebay_format::BLOCK_BYTES).is_some()
            );
            assert!(crate::server::reserve_request_buffer(&mut pool));
            let mut rings = 0;
            for mounts in 0..mounts_max(bytes) {
                assert!(super::reserve(&mut pool, mounts, bytes).is_ok(), "mount {mounts} of {bytes} bytes");
                let ring = ring_bytes(&pool, mounts, bytes);
                let Some(plan) = RingPlan::within(ring, 2) else { continue };
                let entry = plan.payload_bytes as usize + 4096;
                let entries = usize::from(plan.queues * plan.depth);
                assert!((0..entries).all(|_| pool.alloc(entry).is_some()), "the memory is there");
                rings += 1;
            }
            assert!(rings >= at_least, "{rings} rings of {bytes} bytes");
            let heard = std::iter::from_fn(|| pool.alloc_leaving(16, 16 << 10)).take(1000).count();
            assert!(heard >= 1000, "{heard} connections can be received from, with {bytes} bytes");
        }
    }

    #[test]
    fn mount_without_memory_is_refused() {
        let bytes = 12 << 20;
        let mut pool = BufPool::new(bytes);
        let first = reserve(&mut pool, 0, bytes).unwrap();
        let refused = reserve(&mut pool, 1, bytes).unwrap_err();
        assert!(refused.contains("raise buffer_memory of the pool to 13MiB"), "{refused}");
        first.give_back(&mut pool);
        assert_eq!(pool.stats().used_bytes, 0);
        let held = [4 << 20, 4 << 20, 1 << 20, 1 << 20].map(|len| pool.alloc(len).unwrap());
        let refused = reserve(&mut pool, 0, bytes).unwrap_err();
        assert!(refused.contains("use all of buffer_memory"), "{refused}");
        held.into_iter().for_each(|buffer| pool.free(buffer));
        assert_eq!(pool.stats().used_bytes, 0, "nothing is kept of what was not enough");
    }
}

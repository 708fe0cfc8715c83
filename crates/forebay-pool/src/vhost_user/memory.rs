//! The memory of a guest: files that its frontend has passed, mapped.
//!
//! Invariants
//! - Only memory files are mapped (tmpfs, which includes memfd, and hugetlbfs): a page of any other
//!   file could come from a disk or a server, and the pool would wait for it.
//! - A region had its full length when it was mapped. If its owner truncates it later it is lost,
//!   and the connection with it.

use crate::may_wait::MayWait;
use forebay_export::vhost_user::{REGIONS_MAX, Region};
use forebay_export::virtio::GuestMemory;
use forebay_io::PeerMemory;
use rustix::fs::fstatfs;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use vm_memory::{FileOffset, GuestAddress, GuestRegionMmap};

/// File systems whose files are memory (`statfs(2)`).
const TMPFS: u64 = 0x0102_1994;
const HUGETLBFS: u64 = 0x9584_58F6;

/// Maps a file.
fn map(_: &MayWait, region: &Region, file: OwnedFd) -> Result<PeerMemory, String> {
    let Region { guest_address, size_bytes, file_offset, .. } = *region;
    let failed = |what: &dyn std::fmt::Display| {
        format!("guest memory at {guest_address:#x} ({size_bytes} bytes) cannot be used: {what}")
    };
    let kind = fstatfs(&file).map_err(|error| failed(&error))?.f_type as u64;
    if ![TMPFS, HUGETLBFS].contains(&(kind & 0xFFFF_FFFF)) {
        return Err(failed(&"its file is not in memory; use memory-backend-memfd with share=on"));
    }
    let file = File::from(file);
    let there = file.metadata().map_err(|error| failed(&error))?.len();
    let end = file_offset.checked_add(size_bytes);
    if size_bytes == 0 || end.is_none_or(|end| end > there) {
        return Err(failed(&format!(
            "its file has {there} bytes, and the region begins at byte {file_offset}"
        )));
    }
    let size = usize::try_from(size_bytes).map_err(|error| failed(&error))?;
    let place = FileOffset::new(file, file_offset);
    let mapped = GuestRegionMmap::from_range(GuestAddress(guest_address), size, Some(place));
    PeerMemory::new(mapped.map_err(|error| failed(&error))?).map_err(|error| failed(&error))
}

/// Shared memory, and the watch for its loss. (The order matters: the memory is dropped before the
/// watch.)
#[derive(Debug)]
pub(crate) struct Mapped {
    pub(super) memory: Arc<GuestMemory>,
    watched: Vec<Arc<PeerMemory>>,
}

impl Mapped {
    /// None.
    pub(super) fn none() -> Self {
        Self { memory: Arc::new(GuestMemory::new()), watched: Vec::new() }
    }

    /// Maps the area that records the taken requests.
    ///
    /// # Errors
    /// As for a region.
    pub(super) fn area(
        may_wait: &MayWait,
        size_bytes: u64,
        file_offset: u64,
        file: OwnedFd,
    ) -> Result<Self, String> {
        let region = Region { guest_address: 0, size_bytes, user_address: 0, file_offset };
        Self::of(vec![Arc::new(map(may_wait, &region, file)?)])
    }

    fn of(watched: Vec<Arc<PeerMemory>>) -> Result<Self, String> {
        if watched.is_empty() {
            return Ok(Self::none());
        }
        let regions = watched.iter().map(|foreign| Arc::clone(foreign.region())).collect();
        let memory = GuestMemory::from_arc_regions(regions);
        let memory = memory.map_err(|error| format!("guest memory cannot be used: {error}"))?;
        Ok(Self { memory: Arc::new(memory), watched })
    }

    /// True if a part of it was taken away.
    pub(super) fn is_lost(&self) -> bool {
        self.watched.iter().any(|foreign| foreign.is_lost())
    }
}

/// All regions of a guest.
#[derive(Debug, Default)]
pub(super) struct Regions(Vec<(Region, Arc<PeerMemory>)>);

impl Regions {
    /// Maps these regions.
    pub(super) fn new(may_wait: &MayWait, regions: Vec<Region>, files: Vec<OwnedFd>) -> Result<Self, String> {
        let mut all = Self::default();
        for (region, file) in regions.into_iter().zip(files) {
            all.add(may_wait, region, file)?;
        }
        Ok(all)
    }

    /// Adds a region.
    pub(super) fn add(&mut self, may_wait: &MayWait, region: Region, file: OwnedFd) -> Result<(), String> {
        if self.0.len() >= REGIONS_MAX {
            return Err(format!("a guest has at most {REGIONS_MAX} regions of memory"));
        }
        if region.user_address.checked_add(region.size_bytes).is_none() {
            return Err(format!("guest memory at {:#x} ends outside of its frontend", region.guest_address));
        }
        self.0.push((region, Arc::new(map(may_wait, &region, file)?)));
        self.0.sort_by_key(|(region, _)| region.guest_address);
        Ok(())
    }

    /// Removes a region.
    pub(super) fn remove(&mut self, gone: &Region) -> Result<(), String> {
        let same = |(region, _): &(Region, _)| {
            (region.guest_address, region.user_address, region.size_bytes)
                == (gone.guest_address, gone.user_address, gone.size_bytes)
        };
        let at = self.0.iter().position(same);
        let at = at.ok_or_else(|| format!("there is no guest memory at {:#x}", gone.guest_address))?;
        self.0.remove(at);
        Ok(())
    }

    /// Maps all regions as one guest memory.
    ///
    /// # Errors
    /// Regions overlap.
    pub(super) fn memory(&self) -> Result<Mapped, String> {
        Mapped::of(self.0.iter().map(|(_, foreign)| Arc::clone(foreign)).collect())
    }

    /// The guest's address for a frontend's address.
    pub(super) fn translate(&self, user: u64) -> Option<u64> {
        self.0.iter().find_map(|(region, _)| {
            let inside = user.checked_sub(region.user_address)?;
            (inside < region.size_bytes).then(|| region.guest_address + inside)
        })
    }
}

//! The mark of a failed cache on its own device: its superblocks record the failure, where they can
//! still be written.
//!
//! The record in the state directory ([`crate::loss_record`]) prevents a failed cache from being
//! opened. The mark serves hosts without that record: another host, or this one after its state
//! directory is lost. A thread writes it, as the device can hang: when the cache fails, when the
//! rescue ends, and at each start without the cache. Nothing is written unless the device still has
//! a superblock of this cache.
//!
//! Of a mirrored cache only the current device is marked if the other one is noted as out. A mark
//! makes a superblock the newest: on a stale device, while the other one cannot be marked, it would
//! make `forebay salvage` use the stale one.

use crate::error::RunError;
use crate::loss_record::hex;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_format::superblock::{CacheState, Superblock};
use forebay_format::{CacheUuid, Geometry};
use forebay_io::{Device, DeviceError, DeviceOptions};
use forebay_offline::device::superblocks;
use std::path::{Path, PathBuf};

/// Hint for a cache with this mark.
pub(crate) const HINT: &str = "if the host where it failed still has its record \
    (failed-caches/CACHE-UUID.json in its state_dir), start the pool with that; `forebay salvage CACHE --to \
    FOLDER` extracts its dirty data; if nothing on it is needed, erase it: rm it, or for a device overwrite \
    its first 256 KiB with zeroes";

/// Checks the mark of a cache that will be opened.
///
/// # Errors
/// It has failed.
pub(crate) fn check(superblock: &Superblock, path: &Path) -> Result<(), RunError> {
    match superblock.state {
        CacheState::Failed => Err(refused(superblock, path)),
        CacheState::Clean | CacheState::Open => Ok(()),
    }
}

pub(crate) fn refused(superblock: &Superblock, path: &Path) -> RunError {
    RunError::failed(
        MessageId::CacheGivenUp,
        format!(
            "the cache {} on {} failed, and its volumes continued without it: its data is older than theirs",
            hex(&superblock.uuid.0),
            path.display()
        ),
        HINT,
    )
}

/// Marks the superblocks of a cache on one of its devices as failed; true if one of them is marked
/// durably.
///
/// # Errors
/// Neither could be written; false if the device has none of this cache.
pub(crate) fn mark(_: &MayWait, device: &Device, cache: CacheUuid) -> Result<bool, DeviceError> {
    let copies = superblocks(device).map(|copy| copy.ok().filter(|found| found.uuid == cache));
    let Some(best) = copies.iter().flatten().max_by_key(|found| found.generation) else { return Ok(false) };
    let marked = best.failed();
    let bytes = marked.encode();
    let (mut done, mut refused) = (false, None);
    // The older one first: if this is interrupted, one intact copy remains.
    let mut order = [0, 1];
    order.sort_by_key(|copy| copies[*copy].as_ref().map(|found| found.generation));
    for copy in order {
        let written = match copies[copy].as_ref() == Some(&marked) {
            true => device.flush(), // It was possibly written without a flush.
            false => device.write_at(Geometry::superblock_offset(copy), &bytes).and_then(|()| device.flush()),
        };
        match written {
            Ok(()) => done = true,
            Err(error) => refused = Some(error),
        }
    }
    refused.filter(|_| !done).map_or(Ok(done), Err)
}

/// Marks the first device of a closed cache that is not mirrored, in a thread. A device that cannot
/// be opened or written is unchanged.
pub fn mark_again(device: PathBuf, cache: CacheUuid) {
    let work = move |may_wait: &MayWait| {
        if let Ok(device) = Device::open_cache(&device, DeviceOptions::default()) {
            let _ = mark(may_wait, &device, cache);
        }
    };
    // A failure does no harm: there is the record.
    let _ = MayWait::spawn("mark", work);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::cache_device::new_params;

    /// A superblock of another cache is not marked.
    #[test]
    fn failed_mark_overrides_late_superblocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        std::fs::File::create(&path).unwrap().set_len(4 << 20).unwrap();
        let device = Device::open_cache(&path, DeviceOptions::default()).unwrap();
        let params = new_params(Geometry::for_device(4 << 20, None).unwrap()).unwrap();
        assert!(!mark(&MayWait::here(), &device, params.uuid).unwrap());
        for (offset, bytes) in forebay_core::format_cache(&params).unwrap() {
            device.write_at(offset, &bytes).unwrap();
        }
        assert!(!mark(&MayWait::here(), &device, CacheUuid([7; 16])).unwrap());
        let before = superblocks(&device)[0].clone().unwrap();
        assert!(check(&before, &path).is_ok());
        assert!(mark(&MayWait::here(), &device, params.uuid).unwrap());
        let marked = superblocks(&device);
        assert_eq!(marked, [Ok(before.failed()), Ok(before.failed())]);
        // A superblock write in flight completes late: the mark still decides, and is written
        // again.
        let late = Superblock { generation: before.generation + 2, ..before.clone() };
        device.write_at(Geometry::superblock_offset(0), &late.encode()).unwrap();
        let found = Superblock::choose(superblocks(&device)).unwrap();
        let refused = check(&found, &path).unwrap_err().to_string();
        assert!(refused.contains("failed, and its volumes continued without it"), "{refused}");
        assert!(mark(&MayWait::here(), &device, params.uuid).unwrap());
        assert_eq!(superblocks(&device), marked);
        // A truncated file is not extended.
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 20).unwrap();
        device.write_at(0, &[0]).unwrap_err();
        assert!(
            mark(&MayWait::here(), &device, params.uuid).is_ok() || path.metadata().unwrap().len() == 1 << 20
        );
    }
}

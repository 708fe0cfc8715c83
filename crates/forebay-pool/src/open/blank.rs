//! Whether a block device is blank: all sampled blocks are zeroes. And how a cache is erased from a
//! device, so that it is as good as new.
//!
//! A new flash device, or one that was discarded, reads as zeroes. It may be taken for a cache
//! without confirmation. The samples are 1 MiB at either end, where file systems, partition tables,
//! RAID and LVM have their signatures, and one block in each 256th of the rest. So data that fill a
//! 128th of the device in one piece are found. Scattered blocks that fill a hundredth of it are
//! missed with a probability of 8 %, a twentieth with one of 2 in a million. A file is never blank:
//! it can belong to a cache that was truncated and extended again.
//!
//! A device that is given up is zeroed at the sampled places, as far as the cache reached: the
//! space behind was never the cache's. So no mark of it remains. Data written to it afterwards is
//! found as on any other blank device. A file is truncated to nothing, and cannot contain anything.

use crate::cache_device::{device_error, waiting_for_lock};
use crate::error::RunError;
use crate::loss_record::hex;
use crate::may_wait::MayWait;
use forebay_admin::MessageId;
use forebay_format::geometry::CHECKPOINT_START_BLOCK;
use forebay_format::superblock::{CacheState, Superblock, being_made};
use forebay_io::{Device, DeviceError, DeviceKind, DeviceOptions, announce_change};
use forebay_offline::device::{BLANK_BYTES, superblocks};
use forebay_offline::members::read_copies;
use std::ops::Range;
use std::path::PathBuf;

const BLOCK_BYTES: u64 = 4096;
/// Sampled completely at either end.
const END_BYTES: u64 = 1 << 20;
/// Blocks sampled between the ends.
const SAMPLES: u64 = 256;

/// True if all samples are zeroes. Reads up to 3 MiB.
///
/// # Errors
/// It cannot be read.
pub fn is_blank(device: &Device) -> Result<bool, DeviceError> {
    if device.kind() != DeviceKind::Block {
        return Ok(false);
    }
    for (offset, bytes) in looked_at(device.size_bytes()) {
        if !is_zero(device, offset, bytes)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Erases the cache that used the first `used_bytes` of a device: a file is empty afterwards, and a
/// block device that was blank before is blank again. A file that cannot be truncated, such as a
/// volume of another daemon, is zeroed like a block device.
///
/// If this is interrupted, the device still belongs to the cache, or is marked as one on which a
/// cache is being created: such a device can be reused without confirmation.
///
/// # Errors
/// It cannot be written.
pub(crate) fn give_up(may_wait: &MayWait, device: &mut Device, used_bytes: u64) -> Result<(), DeviceError> {
    if device.kind() == DeviceKind::File && device.shorten(0).is_ok() {
        return device.flush();
    }
    forget(may_wait, device, used_bytes)
}

/// As [`give_up`], but a file keeps its length.
pub(super) fn forget(_: &MayWait, device: &Device, used_bytes: u64) -> Result<(), DeviceError> {
    let mut head = vec![0; (CHECKPOINT_START_BLOCK * BLOCK_BYTES).min(device.size_bytes()) as usize];
    let mark = being_made();
    let marked = mark.len().min(head.len());
    head[..marked].copy_from_slice(&mark[..marked]);
    device.write_at(0, &head)?;
    device.flush()?;
    let end = used_bytes.max(BLANK_BYTES as u64).min(device.size_bytes());
    zero(device, marked as u64..end)?; // the mark goes last
    device.flush()?;
    device.write_at(0, &vec![0; marked])?;
    device.flush()?;
    announce_change(device.path());
    Ok(())
}

/// Zeroes the samples in a range of a block device that a cache no longer uses: if the device was
/// blank before, it will be when the rest is given up too.
///
/// # Errors
/// It cannot be written.
pub(crate) fn give_back(_: &MayWait, device: &Device, bytes: Range<u64>) -> Result<(), DeviceError> {
    if device.kind() != DeviceKind::Block {
        return Ok(());
    }
    zero(device, bytes)?;
    device.flush()
}

/// Zeroes the samples in a range.
fn zero(device: &Device, bytes: Range<u64>) -> Result<(), DeviceError> {
    for (offset, count) in looked_at(device.size_bytes()) {
        let (from, until) = (offset.max(bytes.start), (offset + count).min(bytes.end));
        if from < until {
            device.write_at(from, &vec![0; (until - from) as usize])?;
        }
    }
    Ok(())
}

/// Erases a cache that no pool uses: on each device the bytes at the beginning that belong to the
/// cache. A device that no longer belongs to it is unchanged.
///
/// # Errors
/// A device cannot be opened, or the cache was used since it had this generation: nothing was
/// erased. Or a device cannot be written.
pub fn erase_cache(
    may_wait: &MayWait,
    parts: &[(PathBuf, u64)],
    cache: &str,
    generation: u64,
) -> Result<(), RunError> {
    let mut devices = Vec::new();
    for (path, used) in parts {
        let device = waiting_for_lock(|| Device::open_cache(path, DeviceOptions::default()))?;
        let is_its = |found: &Superblock| hex(&found.uuid.0) == cache && found.state != CacheState::Failed;
        let newest = superblocks(&device).into_iter().flatten().filter(is_its);
        if newest.map(|found| found.generation).max() > Some(generation) {
            return Err(RunError::failed(
                MessageId::CacheUsedSince,
                format!("the cache on {} was used since", path.display()),
                "if nothing on it is needed, erase it by hand",
            ));
        }
        devices.push((device, *used));
    }
    // The first device has the superblocks, which show that devices are left to erase.
    for (mut device, used) in devices.into_iter().rev().filter(|(device, _)| says_of(device, cache)) {
        give_up(may_wait, &mut device, used).map_err(device_error)?;
    }
    Ok(())
}

/// True if the device's metadata names this cache.
pub(crate) fn says_of(device: &Device, cache: &str) -> bool {
    superblocks(device).into_iter().flatten().any(|found| hex(&found.uuid.0) == cache)
        || read_copies(device).into_iter().flatten().any(|found| hex(&found.uuid.0) == cache)
}

/// The sampled pieces, as offset and length.
fn looked_at(size_bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let ends = [0, size_bytes.saturating_sub(END_BYTES) / BLOCK_BYTES * BLOCK_BYTES];
    let ends = ends.map(|offset| (offset, (size_bytes - offset).min(END_BYTES + BLOCK_BYTES)));
    ends.into_iter().chain(samples(size_bytes).map(|offset| (offset, BLOCK_BYTES)))
}

/// Offsets of the samples between the ends: one in each of [`SAMPLES`] equal parts, at a different
/// place of each, as the data can be regular itself.
fn samples(size_bytes: u64) -> impl Iterator<Item = u64> {
    let part = (size_bytes / SAMPLES).max(BLOCK_BYTES);
    let parts = size_bytes / part;
    // The golden ratio of 2^32 spreads the places evenly (Knuth, TAOCP 3, 6.4).
    let place = move |at: u64| at * part + (((at * 2_654_435_769) >> 16) % (1 << 16)) * part / (1 << 16);
    let places = (0..parts).map(move |at| place(at) / BLOCK_BYTES * BLOCK_BYTES);
    places.filter(move |offset| offset + BLOCK_BYTES <= size_bytes)
}

fn is_zero(device: &Device, offset: u64, bytes: u64) -> Result<bool, DeviceError> {
    let mut content = vec![0; bytes as usize];
    device.read_at(offset, &mut content)?;
    Ok(content.iter().all(|&byte| byte == 0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn samples_are_one_block_of_each_part() {
        for size in [4096, 8192, 1 << 20, 20 << 20, 3_000_000_512, 100 << 40] {
            let found: Vec<u64> = samples(size).collect();
            assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{size}");
            assert!(found.iter().all(|at| at % BLOCK_BYTES == 0 && at + BLOCK_BYTES <= size), "{size}");
        }
        let found: Vec<u64> = samples(1 << 40).collect();
        assert_eq!(found.len(), 256);
        assert!(found.iter().enumerate().all(|(at, offset)| offset >> 32 == at as u64), "one in each part");
    }

    #[test]
    fn unshrinkable_file_is_zeroed() {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        use std::io::Write as _;
        use std::os::fd::AsRawFd as _;
        let options = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
        let mut file = std::fs::File::from(memfd_create("cache", options).unwrap());
        file.write_all(&vec![7; 8 << 20]).unwrap();
        fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let options = DeviceOptions { lock: false, ..DeviceOptions::default() };
        let mut device = Device::open_cache(&path, options).unwrap();
        give_up(&MayWait::here(), &mut device, 8 << 20).unwrap();
        assert_eq!(device.size_bytes(), 8 << 20);
        assert!(looked_at(8 << 20).all(|(offset, bytes)| is_zero(&device, offset, bytes).unwrap()));
    }
}

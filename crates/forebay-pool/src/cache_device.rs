//! A single cache device: taking it, and the random values of a new cache.
//! `forebay_offline::device` identifies its content.

use crate::error::RunError;
use crate::may_wait::MayWait;
use crate::shell_word::quoted;
use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_core::FormatParams;
use forebay_format::superblock::being_made;
use forebay_format::{BLOCK_BYTES, CacheUuid, Geometry};
use forebay_io::{Device, DeviceError};
use forebay_offline::device::wait_for;
use forebay_offline::occupant::{recognise, where_it_belongs};
use forebay_offline::signature;
use std::io::Read as _;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The error for a cache device that holds something else.
pub(crate) fn foreign(device: &Device, why: &str) -> RunError {
    let path = device.path().display().to_string();
    let what = format!("{path} cannot be used as a cache: {why}");
    let word = quoted(device.path());
    // Even a damaged or a newer one: salvage can find dirty data on it.
    let is_cache = signature::find(|offset, bytes| read(device, offset, bytes));
    match recognise(device) {
        Some(what) => holds(&path, what),
        None if is_cache.is_ok_and(|found| found.is_some()) => RunError::failed(
            MessageId::CacheForeignData,
            what,
            format!(
                "nothing was changed; to look at its content: forebay check {word}, forebay salvage {word} \
                 --to FOLDER"
            ),
        ),
        None => RunError::failed(
            MessageId::CacheForeignData,
            what,
            format!(
                "look at its content (lsblk -f {word}, file --special-files {word}); if none of it is \
                 needed, erase it and try again: rm {word}, or for a device: blkdiscard {word}, or, where \
                 that does not make it blank: blkdiscard --zeroout {word}"
            ),
        ),
    }
}

fn read(device: &Device, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    let there = device.size_bytes().saturating_sub(offset).min(bytes.len() as u64) as usize;
    device.read_at(offset, &mut bytes[..there]).map_err(std::io::Error::other)?;
    Ok(there)
}

/// The error for a cache device with recognised content: no hint explains how to erase it.
pub(crate) fn holds(path: &str, what: &str) -> RunError {
    RunError::failed(
        MessageId::CacheForeignData,
        format!("{path} cannot be used as a cache: it has {what}"),
        where_it_belongs(path),
    )
}

/// The error for a device of a new cache that already holds one.
pub(crate) fn is_cache(path: &Path, which: &str) -> RunError {
    let path = path.display();
    RunError::failed(
        MessageId::CacheExists,
        format!("{path} cannot be used: it is {which}"),
        format!("to identify it and its dirty data: forebay inspect {path}; give a device without a cache"),
    )
}

/// The error if the two devices of a mirrored cache are the same.
pub(crate) fn same_device(a: &Path, b: &Path) -> RunError {
    RunError::failed(
        MessageId::CacheSameDevice,
        format!("{} and {} are the same device", a.display(), b.display()),
        "a mirrored cache needs two that do not fail together",
    )
}

/// True for an empty file: its daemon was killed before the new file got its size, or it was
/// erased.
pub(crate) fn is_cut_off(spec: &CacheSpec) -> bool {
    let Ok(file) = std::fs::metadata(&spec.path) else { return false };
    if file.is_file() && file.len() == 0 {
        return true;
    }
    let Some(size) = spec.size_bytes else { return false };
    let begun = || {
        let mut start = Vec::new();
        let read = std::fs::File::open(&spec.path).and_then(|mut file| file.read_to_end(&mut start));
        read.is_ok() && being_made().starts_with(&start)
    };
    file.is_file() && file.len() < size && file.len() <= BLOCK_BYTES as u64 && begun()
}

/// Removes a cache file that was just created, and is empty. If that fails, the next attempt
/// reports the file.
pub fn remove_made(path: &Path) {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let _ = std::fs::remove_file(real);
}

/// Marks an empty device as one on which a cache is being created: after a crash it can be reused
/// without confirmation.
///
/// # Errors
/// It cannot be written.
pub fn begin_on(_: &MayWait, device: &Device) -> Result<(), RunError> {
    let begun = device.write_at(Geometry::superblock_offset(0), &being_made());
    begun.and_then(|()| device.flush()).map_err(device_error)
}

/// True if both paths lead to the same file or device.
pub fn is_same(a: &Path, b: &Path) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b || same_inode(&a, &b),
        _ => false,
    }
}

fn same_inode(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (std::fs::metadata(a), std::fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino(), a.rdev()) == (b.dev(), b.ino(), b.rdev()),
        _ => false,
    }
}

pub(crate) fn waiting_for_lock(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, RunError> {
    wait_for(open).map_err(device_error)
}

/// A device error includes its hint.
pub fn device_error(error: DeviceError) -> RunError {
    RunError::failed(forebay_offline::message::of_device(&error), error, "")
}

/// Parameters of a new cache without volumes.
///
/// # Errors
/// No random numbers are available.
pub(crate) fn new_params(geometry: Geometry) -> Result<FormatParams, RunError> {
    Ok(FormatParams {
        geometry,
        uuid: CacheUuid(random_uuid()?),
        encryption: None,
        volumes: Vec::new(),
        members: forebay_format::Members::default(),
        created_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        written_by: concat!("forebay ", env!("CARGO_PKG_VERSION")).into(),
    })
}

/// Random bytes as a version 4 UUID.
///
/// # Errors
/// No random numbers are available.
pub fn random_uuid() -> Result<[u8; 16], RunError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        RunError::failed(MessageId::DaemonSystem, format!("no random numbers from the kernel: {error}"), "")
    })?;
    // Version 4, variant 1 (RFC 9562).
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// A random tag for a device that joins, never zero.
///
/// # Errors
/// No random numbers are available.
pub fn new_tag() -> Result<u64, RunError> {
    let random = random_uuid()?;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&random[8..]);
    Ok(u64::from_le_bytes(bytes) | 1)
}

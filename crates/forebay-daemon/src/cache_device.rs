//! A single cache device: what is on it, and whether it may be taken. Damage behind the superblocks is for the engine to find.

use crate::error::RunError;
use forebay_config::CacheSpec;
use forebay_core::FormatParams;
use forebay_format::geometry::CHECKPOINT_START_BLOCK;
use forebay_format::superblock::{Superblock, being_made};
use forebay_format::{BLOCK_BYTES, CacheUuid, FormatError, Geometry};
use forebay_io::{Device, DeviceError, DeviceOptions};
use std::io::Read as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a device that is in use is waited for, and how often it is tried.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Bytes at the start of a device that must be zero for it to be taken as unused.
pub(crate) const BLANK_BYTES: usize = 256 << 10;

/// From the first block to here a device that is being made or filled is empty.
const UNUSED_UNTIL: usize = CHECKPOINT_START_BLOCK as usize * BLOCK_BYTES;

/// What is on a cache device.
pub(crate) enum Found {
    Cache(Box<Superblock>),
    /// Its beginning is zero.
    Blank,
    /// A cache was being made on it, or it was being filled as one of a mirrored cache: nothing on it counts.
    Begun,
    Foreign(String),
}

/// What is on a cache device. Damage behind the superblocks is for the engine to find.
pub(crate) fn look(cache: &Device) -> Found {
    let mut start = vec![0; BLANK_BYTES.min(cache.size_bytes() as usize)];
    if let Err(error) = cache.read_at(0, &mut start) {
        return Found::Foreign(error.to_string());
    }
    let copies = [0, 1].map(|copy| {
        let offset = Geometry::superblock_offset(copy) as usize;
        let missing = FormatError::Magic { structure: "superblock" };
        start.get(offset..offset + BLOCK_BYTES).map_or(Err(missing), Superblock::decode)
    });
    // Between the two superblocks there is nothing, unless somebody else has put it there.
    let is_zero = |bytes: Option<&[u8]>| bytes.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    let begun = start.starts_with(&being_made()) && is_zero(start.get(BLOCK_BYTES..UNUSED_UNTIL));
    match Superblock::choose(copies) {
        Err(FormatError::Magic { .. }) if begun => Found::Begun,
        Ok(superblock) => Found::Cache(Box::new(superblock)),
        Err(FormatError::Magic { .. }) if start.iter().all(|byte| *byte == 0) => Found::Blank,
        Err(error) => Found::Foreign(error.to_string()),
    }
}

pub(crate) fn foreign(path: &Path, why: &str) -> RunError {
    RunError::failed(
        format!("{} cannot be used as a cache: {why}", path.display()),
        format!(
            "if nothing on it is needed, erase it and try again: rm {0}, or for a device: wipefs -a {0} && \
             dd if=/dev/zero of={0} bs=256K count=1",
            path.display()
        ),
    )
}

/// The two devices of a mirrored cache are one.
pub(crate) fn same_device(a: &Path, b: &Path) -> RunError {
    RunError::failed(
        format!("{} and {} are the same device", a.display(), b.display()),
        "a mirrored cache needs two that do not fail together",
    )
}

/// A file that was being made when its daemon was killed, and has not got its size yet. There is nothing in it.
pub(crate) fn is_cut_off(spec: &CacheSpec) -> bool {
    let (Ok(file), Some(size)) = (std::fs::symlink_metadata(&spec.path), spec.size_bytes) else {
        return false;
    };
    let begun = || {
        let mut start = Vec::new();
        let read = std::fs::File::open(&spec.path).and_then(|mut file| file.read_to_end(&mut start));
        read.is_ok() && being_made().starts_with(&start)
    };
    file.is_file() && file.len() < size && file.len() <= BLOCK_BYTES as u64 && begun()
}

/// Says on an empty device that it is going to be a cache: whoever finds it after a crash need not be asked for it again.
///
/// # Errors
/// It cannot be written.
pub(crate) fn begin_on(device: &Device) -> Result<(), RunError> {
    let begun = device.write_at(Geometry::superblock_offset(0), &being_made());
    begun.and_then(|()| device.flush()).map_err(device_error)
}

/// Makes a device that no pool uses forget that it was a cache.
///
/// # Errors
/// It cannot be opened or written.
pub(crate) fn erase_cache(path: &Path) -> Result<(), RunError> {
    let device = waiting_for_lock(|| Device::open_cache(path, DeviceOptions::default()))?;
    for copy in [0, 1] {
        device.write_at(Geometry::superblock_offset(copy), &[0; BLOCK_BYTES]).map_err(device_error)?;
    }
    device.flush().map_err(device_error)
}

/// True if both paths lead to the same file or device.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
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

/// Opens a device. One that is in use is tried again for a while: when a daemon was killed, the kernel still finishes the
/// operations that it had in flight, and holds its locks until then.
pub(crate) fn wait_for(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, DeviceError> {
    let timeout = Instant::now() + LOCK_TIMEOUT;
    loop {
        match open() {
            Err(DeviceError::InUse { .. }) if Instant::now() < timeout => std::thread::sleep(LOCK_PAUSE),
            other => return other,
        }
    }
}

pub(crate) fn waiting_for_lock(open: impl Fn() -> Result<Device, DeviceError>) -> Result<Device, RunError> {
    wait_for(open).map_err(device_error)
}

/// A device error says itself what to do.
pub(crate) fn device_error(error: DeviceError) -> RunError {
    RunError::failed(error, "")
}

/// A new cache without volumes.
///
/// # Errors
/// There are no random numbers.
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

pub(crate) fn random_uuid() -> Result<[u8; 16], RunError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| RunError::failed(format!("no random numbers from the kernel: {error}"), ""))?;
    // Version 4, variant 1 (RFC 9562).
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(bytes)
}

/// A tag for a device that joins: at random, never zero.
///
/// # Errors
/// There are no random numbers.
pub(crate) fn new_tag() -> Result<u64, RunError> {
    let random = random_uuid()?;
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&random[8..]);
    Ok(u64::from_le_bytes(bytes) | 1)
}

//! Creating a cache where there is none yet.
//!
//! A cache is created only in a file that did not exist, on a blank device, or, if the operator
//! confirms it, on one that begins with zeroes. Existing data is never overwritten. The records of
//! caches (`register`) are checked before a cache is created or opened.

use super::blank::is_blank;
use crate::cache_device::{device_error, holds, is_cut_off};
use crate::error::RunError;
use crate::register::{Consent, Permit};
use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_core::{CacheMark, FormatParams};
use forebay_crypt::CacheCipher;
use forebay_format::Geometry;
use forebay_format::superblock::{Superblock, being_made};
use forebay_io::{Device, DeviceError, announce_change};
use forebay_offline::Key;
use forebay_offline::occupant::recognise;
use std::path::Path;

/// A new cache file leaves this part of its file system free, unless the operator confirms
/// otherwise.
const LEAST_FREE: u64 = 10;

/// How to create a cache where there is none, and the key of an existing one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Making<'a> {
    /// Blocks of a segment; chosen by the size of the cache if `None`.
    pub segment_blocks: Option<u32>,
    /// Reserve the space of a new file.
    pub preallocate: bool,
    /// Keep dirty data on both of its two devices.
    pub mirror: bool,
    /// Key of an encrypted cache.
    pub key: Option<&'a Key>,
    /// The register, and the operator's permissions. Without it everything is allowed.
    pub permit: Option<Permit<'a>>,
}

impl Making<'_> {
    /// Checks that a cache may be created on these devices, which have none.
    ///
    /// # Errors
    /// One is recorded.
    pub(crate) fn check_make(&self, specs: &[CacheSpec]) -> Result<(), RunError> {
        self.permit.map_or(Ok(()), |permit| permit.make(specs))
    }

    /// True if an operator has just ordered a new cache, and can get messages about its devices.
    pub(super) fn is_asked_for(&self) -> bool {
        self.permit.is_some_and(|permit| permit.consent != Consent::None)
    }

    /// Checks that an existing device may be taken although it holds no cache: it is blank and the
    /// operator names it, or the operator has confirmed that nothing on it is needed.
    ///
    /// # Errors
    /// It is not blank and there is no confirmation, or it cannot be read.
    pub(super) fn check_empty(&self, device: &Device) -> Result<(), RunError> {
        let Some(permit) = self.permit else { return Ok(()) };
        let may_take =
            permit.may_take_any() || permit.may_take_blank() && is_blank(device).map_err(device_error)?;
        if may_take {
            return Ok(());
        }
        let path = device.path();
        Err(recognise(device)
            .map_or_else(|| permit.not_empty(path), |what| holds(&path.display().to_string(), what)))
    }

    /// Checks that a cache may be opened; returns the mark that it must have reached.
    ///
    /// # Errors
    /// The register objects.
    pub(crate) fn check_open(&self, found: &Superblock, specs: &[CacheSpec]) -> Result<CacheMark, RunError> {
        self.permit.map_or_else(|| Ok(CacheMark::default()), |permit| permit.open(found, specs))
    }
}

/// Creates a cache file.
///
/// # Errors
/// It has no size, or cannot be created.
pub(super) fn create_file(
    spec: &CacheSpec,
    making: Making<'_>,
    notes: &mut Vec<String>,
) -> Result<(), RunError> {
    let path = &spec.path;
    // The kernel creates the entries of `/dev`; a file there would be in memory, and gone at the
    // next start.
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Err(RunError::failed(
            MessageId::DeviceMissing,
            format!("there is no device {}", path.display()),
            "`lsblk` lists the block devices; a cache file lies in a folder of a file system, not below /dev",
        ));
    }
    let Some(size) = spec.size_bytes else {
        return Err(RunError::failed(
            MessageId::CacheMissing,
            format!("there is no cache file {}", path.display()),
            format!("to create one, give its size: {}:10GiB", path.display()),
        ));
    };
    geometry(size, making)?;
    // A link to an empty file keeps its target.
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let path = &real;
    notes.push(check_room(path, size, making)?);
    if is_cut_off(spec) {
        std::fs::remove_file(path).map_err(|error| {
            RunError::failed(MessageId::DeviceIo, format!("cannot remove {}: {error}", path.display()), "")
        })?;
    }
    match forebay_io::create_cache_file(path, size, making.preallocate, &being_made()) {
        Err(DeviceError::CannotPreallocate { .. }) => {
            notes.push(format!(
                "the file system of {} cannot reserve space: the cache file is sparse",
                path.display()
            ));
            forebay_io::create_cache_file(path, size, false, &being_made()).map_err(device_error)
        }
        other => other.map_err(device_error),
    }
}

/// Checks that a file of this size leaves room on its file system; returns a message about it.
///
/// # Errors
/// The file system would be nearly full, and no permit allows that.
fn check_room(path: &Path, size_bytes: u64, making: Making<'_>) -> Result<String, RunError> {
    let gib = |bytes: u64| match bytes >> 30 {
        0 => format!("{:.1} MiB", bytes as f64 / (1_u64 << 20) as f64),
        _ => format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64),
    };
    let mut what =
        format!("the cache file {} will have {size_bytes} bytes ({})", path.display(), gib(size_bytes));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // If the query fails, creating the file reports the error.
    let Ok(there) = rustix::fs::statvfs(folder) else { return Ok(what) };
    let (all, free) =
        (there.f_blocks.saturating_mul(there.f_frsize), there.f_bavail.saturating_mul(there.f_frsize));
    what += &format!("; its file system of {} has {} free", gib(all), gib(free));
    if leaves_room(size_bytes, free, all) {
        return Ok(what);
    }
    if !making.preallocate {
        return Ok(what + ": it is sparse, and writes to it fail when the file system is full");
    }
    match making.permit {
        Some(permit) if !permit.taking.fill => Err(RunError::failed(
            MessageId::CacheNoSpace,
            format!("{what}: less than a tenth of the file system would be left"),
            format!("give a smaller size, or allow it: {}", permit.again("--fill")),
        )),
        _ => Ok(what + ": it will be nearly full"),
    }
}

/// True if a file of `size_bytes` may be created without confirmation, where `free` of `all` bytes
/// are free: a tenth of the file system remains, or the file takes no more than a tenth of the free
/// space. The second is for a file system that is nearly full already: a small file makes no
/// difference to it.
fn leaves_room(size_bytes: u64, free: u64, all: u64) -> bool {
    free.saturating_sub(size_bytes) >= all / LEAST_FREE || size_bytes <= free / LEAST_FREE
}

pub(super) fn geometry(device_bytes: u64, making: Making<'_>) -> Result<Geometry, RunError> {
    Geometry::for_device(device_bytes, making.segment_blocks).map_err(|error| {
        RunError::failed(MessageId::CacheGeometry, error, "give the cache more space, or smaller segments")
    })
}

/// Geometry of a mirrored cache on two devices of this size each.
///
/// # Errors
/// They are too small.
pub(super) fn mirrored_geometry(bytes: u64, making: Making<'_>) -> Result<Geometry, RunError> {
    Geometry::mirrored(bytes, making.segment_blocks).map_err(|error| {
        RunError::failed(
            MessageId::CacheGeometry,
            error,
            "give larger devices, or make segment_size of the pool smaller",
        )
    })
}

/// Writes a new cache.
///
/// # Errors
/// It cannot be written: parts of it can exist.
pub(super) fn format(
    params: FormatParams,
    making: Making<'_>,
    cache: &Device,
) -> Result<Option<CacheCipher>, RunError> {
    let (cipher, encryption) = making.key.map(|key| key.of_cache(params.uuid)).unzip();
    let params = FormatParams { encryption, ..params };
    let writes = forebay_core::format_cache(&params)
        .map_err(|error| RunError::failed(MessageId::CacheGeometry, error, "choose another layout"))?;
    for (offset, mut bytes) in writes {
        if let Some(cipher) = &cipher {
            cipher.encrypt(offset, &mut bytes);
        }
        cache.write_at(offset, &bytes).and_then(|()| cache.flush()).map_err(device_error)?;
    }
    announce_change(cache.path());
    Ok(cipher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_file_fits_on_a_nearly_full_disk() {
        const GIB: u64 = 1 << 30;
        assert!(leaves_room(10 * GIB, 100 * GIB, 100 * GIB), "nine tenths are left");
        assert!(leaves_room(32 << 20, 17 * GIB, 252 * GIB), "it makes no difference");
        assert!(!leaves_room(2 * GIB, 17 * GIB, 252 * GIB), "more than a tenth of what is free");
        assert!(!leaves_room(91 * GIB, 100 * GIB, 100 * GIB), "less than a tenth is left");
        assert!(!leaves_room(1, 0, 252 * GIB), "nothing is free");
    }
}

//! Making a cache where there is none yet.
//!
//! A cache is made only in a file that did not exist, on a device that is blank, or, if the
//! operator says so, on one that begins with zeroes. Data that somebody put there is never written
//! over. The records of caches (`register`) are asked before one is made or opened.

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
use forebay_io::{Device, DeviceError};
use forebay_offline::Key;
use forebay_offline::occupant::recognise;
use std::path::Path;

/// A new cache file leaves one part in so many of its file system free, or the operator is asked.
const LEAST_FREE: u64 = 10;

/// How to make a cache where there is none, and the key of one that there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Making<'a> {
    /// Blocks of a segment; chosen by the size of the cache if `None`.
    pub segment_blocks: Option<u32>,
    /// Reserve the space of a new file.
    pub preallocate: bool,
    /// What only the cache has lies on both of its two devices.
    pub mirror: bool,
    /// The cache is encrypted with it.
    pub key: Option<&'a Key>,
    /// What is recorded of caches, and what the operator allows. Without it everything is allowed.
    pub permit: Option<Permit<'a>>,
}

impl Making<'_> {
    /// Whether a cache may be made on these devices, which have none.
    ///
    /// # Errors
    /// One is recorded.
    pub(crate) fn check_make(&self, specs: &[CacheSpec]) -> Result<(), RunError> {
        self.permit.map_or(Ok(()), |permit| permit.make(specs))
    }

    /// Somebody asks for a new cache just now, and can be told what is wrong with its devices.
    pub(super) fn is_asked_for(&self) -> bool {
        self.permit.is_some_and(|permit| permit.consent != Consent::None)
    }

    /// Whether a device that is there may be taken, although it is no cache: it is blank and the
    /// operator names it, or says that nothing on it is needed.
    ///
    /// # Errors
    /// Nobody has said so, or it cannot be read.
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

    /// Whether a cache may be opened; how far it must have come.
    ///
    /// # Errors
    /// What is recorded is against it.
    pub(crate) fn check_open(&self, found: &Superblock, specs: &[CacheSpec]) -> Result<CacheMark, RunError> {
        self.permit.map_or_else(|| Ok(CacheMark::default()), |permit| permit.open(found, specs))
    }
}

/// Makes a cache file.
///
/// # Errors
/// It has no size, or cannot be made.
pub(super) fn create_file(
    spec: &CacheSpec,
    making: Making<'_>,
    notes: &mut Vec<String>,
) -> Result<(), RunError> {
    let path = &spec.path;
    // The kernel makes what is there; a file among it would be one in memory, gone at the next
    // start.
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Err(RunError::failed(
            MessageId::DeviceMissing,
            format!("there is no device {}", path.display()),
            "`lsblk` lists the block devices that there are; a cache file lies in a folder of a file system, not below /dev",
        ));
    }
    let Some(size) = spec.size_bytes else {
        return Err(RunError::failed(
            MessageId::CacheMissing,
            format!("there is no cache file {}", path.display()),
            format!("to make one, give its size: {}:10GiB", path.display()),
        ));
    };
    geometry(size, making)?;
    // A name that leads to an empty file goes on leading there.
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

/// Whether a file of this size leaves room on its file system; says what was understood.
///
/// # Errors
/// The file system would be nearly full, and nobody has allowed that.
fn check_room(path: &Path, size_bytes: u64, making: Making<'_>) -> Result<String, RunError> {
    let gib = |bytes: u64| match bytes >> 30 {
        0 => format!("{:.1} MiB", bytes as f64 / (1_u64 << 20) as f64),
        _ => format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64),
    };
    let mut what =
        format!("the cache file {} is to have {size_bytes} bytes ({})", path.display(), gib(size_bytes));
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Who cannot be asked says so when the file is made.
    let Ok(there) = rustix::fs::statvfs(folder) else { return Ok(what) };
    let (all, free) =
        (there.f_blocks.saturating_mul(there.f_frsize), there.f_bavail.saturating_mul(there.f_frsize));
    what += &format!("; of {} on its file system {} are free", gib(all), gib(free));
    if leaves_room(size_bytes, free, all) {
        return Ok(what);
    }
    if !making.preallocate {
        return Ok(what + ": it is sparse, and fails when the file system is full");
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

/// Whether a file of `size_bytes` may be made without a question, where `free` of `all` bytes are
/// free: a tenth of the file system is left, or the file takes no more than a tenth of what is
/// free. The second is for a file system that is nearly full already: a small file makes no
/// difference to it.
fn leaves_room(size_bytes: u64, free: u64, all: u64) -> bool {
    free.saturating_sub(size_bytes) >= all / LEAST_FREE || size_bytes <= free / LEAST_FREE
}

pub(super) fn geometry(device_bytes: u64, making: Making<'_>) -> Result<Geometry, RunError> {
    Geometry::for_device(device_bytes, making.segment_blocks).map_err(|error| {
        RunError::failed(MessageId::CacheGeometry, error, "give the cache more space, or smaller segments")
    })
}

/// How a mirrored cache is divided on two devices of so many bytes each.
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
/// It cannot be written: some of it may be there.
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
    Ok(cipher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_may_be_made_on_a_file_system_that_is_nearly_full() {
        const GIB: u64 = 1 << 30;
        assert!(leaves_room(10 * GIB, 100 * GIB, 100 * GIB), "nine tenths are left");
        assert!(leaves_room(32 << 20, 17 * GIB, 252 * GIB), "it makes no difference");
        assert!(!leaves_room(2 * GIB, 17 * GIB, 252 * GIB), "more than a tenth of what is free");
        assert!(!leaves_room(91 * GIB, 100 * GIB, 100 * GIB), "less than a tenth is left");
        assert!(!leaves_room(1, 0, 252 * GIB), "nothing is free");
    }
}

//! The cache device: created if it is a new file, and marked, so that no foreign data is
//! overwritten.
//!
//! The first block marks the device as the model's, and as in use or clean. A device with any other
//! content is refused. One that is still marked as in use was not stopped in an orderly way: its
//! dirty data is lost, and the model reports that, because it does not recover.

use forebay_admin::MessageId;
use forebay_config::CacheSpec;
use forebay_io::{Device, DeviceError, DeviceModel, DeviceOptions, create_cache_file};
use forebay_pool::RunError;
use std::path::Path;

/// Marks of the first block.
const IN_USE: &[u8] = b"FlashCache model: in use\n";
const CLEAN: &[u8] = b"FlashCache model: clean\n";
/// Bytes at the start of a device that must be zero for it to count as unused.
const BLANK_BYTES: u64 = 256 << 10;
const MARK_BYTES: usize = 4096;

/// A cache device, opened.
#[derive(Debug)]
pub struct OpenCache {
    /// The device.
    pub device: Device,
    /// Its used part, in bytes.
    pub size_bytes: u64,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Opens a cache device, optionally behind a device model, or creates the file.
///
/// # Errors
/// Returns an error if it has other content, is in use, or cannot be created or modelled; nothing
/// was changed on it.
pub fn open_cache(spec: &CacheSpec, emulate: Option<DeviceModel>) -> Result<OpenCache, RunError> {
    let mut notes = Vec::new();
    if !spec.path.exists() {
        make(spec, &mut notes)?;
    }
    let options = DeviceOptions { emulate, ..DeviceOptions::default() };
    let device = Device::open_cache(&spec.path, options).map_err(failed)?;
    notes.extend(device.notes().iter().cloned());
    let size_bytes = spec.size_bytes.unwrap_or(device.size_bytes());
    if size_bytes > device.size_bytes() {
        return Err(RunError::Failed {
            id: MessageId::DeviceUnusable,
            what: format!("{} has {} bytes, not {size_bytes}", spec.path.display(), device.size_bytes()),
            hint: "remove it, or give its size".into(),
        });
    }
    if was_in_use(&device)? {
        notes.push(format!(
            "{} was not stopped in an orderly way: what was dirty in it is lost (the model does not recover)",
            spec.path.display()
        ));
    }
    Ok(OpenCache { device, size_bytes, notes })
}

impl OpenCache {
    /// Marks the device as in use, before any other write to it.
    ///
    /// # Errors
    /// Returns an error if it cannot be written.
    pub fn mark_in_use(&self) -> Result<(), RunError> {
        mark(&self.device, IN_USE)
    }
}

/// Marks a cache device that is no longer in use as clean: nothing on it is needed.
///
/// # Errors
/// Returns an error if it cannot be opened or written.
pub fn mark_clean(path: &Path) -> Result<(), RunError> {
    let device = Device::open_cache(path, DeviceOptions::default()).map_err(failed)?;
    mark(&device, CLEAN)
}

fn make(spec: &CacheSpec, notes: &mut Vec<String>) -> Result<(), RunError> {
    let path = &spec.path;
    let Some(size) = spec.size_bytes else {
        return Err(RunError::Failed {
            id: MessageId::CacheMissing,
            what: format!("there is no cache file {}", path.display()),
            hint: format!("to make one, give its size: --cache {}:10GiB", path.display()),
        });
    };
    match create_cache_file(path, size, true, &[]) {
        Err(DeviceError::CannotPreallocate { .. }) => {
            notes.push(format!(
                "the file system of {} cannot reserve space: the cache file is sparse",
                path.display()
            ));
            create_cache_file(path, size, false, &[]).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

/// Reads the beginning of a device. Returns true if it is the model's and in use, false if it is
/// the model's and clean, or unused.
fn was_in_use(device: &Device) -> Result<bool, RunError> {
    let mut start = vec![0; BLANK_BYTES.min(device.size_bytes()) as usize];
    device.read_at(0, &mut start).map_err(failed)?;
    if start.starts_with(IN_USE) {
        return Ok(true);
    }
    if start.starts_with(CLEAN) || start.iter().all(|byte| *byte == 0) {
        return Ok(false);
    }
    let path = device.path().display();
    Err(RunError::Failed {
        id: MessageId::CacheForeignData,
        what: format!("{path} cannot be used as a cache: there is something on it"),
        hint: format!("if nothing on it is needed: rm {path}, or dd if=/dev/zero of={path} bs=256K count=1"),
    })
}

fn mark(device: &Device, mark: &[u8]) -> Result<(), RunError> {
    let mut block = [0; MARK_BYTES];
    block[..mark.len()].copy_from_slice(mark);
    device.write_at(0, &block).and_then(|()| device.flush()).map_err(failed)
}

/// The text of a device error includes the next step.
fn failed(error: DeviceError) -> RunError {
    RunError::failed(MessageId::DeviceIo, error, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(folder: &tempfile::TempDir, size: Option<u64>) -> CacheSpec {
        CacheSpec { path: folder.path().join("cache"), size_bytes: size }
    }

    #[test]
    fn a_cache_is_made_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open_cache(&spec(&folder, None), None).is_err(), "no file, no size");
        let first = open_cache(&spec(&folder, Some(4 << 20)), None).unwrap();
        assert_eq!((first.size_bytes, first.notes.len()), (4 << 20, 0));
        first.mark_in_use().unwrap();
        drop(first);
        let killed = open_cache(&spec(&folder, None), None).unwrap();
        assert!(killed.notes[0].contains("lost"), "{:?}", killed.notes);
        drop(killed);
        mark_clean(&spec(&folder, None).path).unwrap();
        assert!(open_cache(&spec(&folder, Some(4 << 20)), None).unwrap().notes.is_empty());
        assert!(open_cache(&spec(&folder, Some(8 << 20)), None).is_err(), "it is smaller");
    }

    #[test]
    fn device_with_content_is_left_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let spec = spec(&folder, None);
        std::fs::write(&spec.path, [&[0; 8192][..], b"data", &[0; 8192]].concat()).unwrap();
        let before = std::fs::read(&spec.path).unwrap();
        assert!(open_cache(&spec, None).is_err());
        assert_eq!(std::fs::read(&spec.path).unwrap(), before);
    }
}

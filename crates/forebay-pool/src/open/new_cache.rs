//! Removing a cache that was just created, because its pool cannot be opened.
//!
//! The cache has acknowledged nothing, so nothing is lost. Afterwards its devices can be given to
//! another pool without confirmation, and no record of the daemon names the cache.

use super::blank::{forget, says_of};
use crate::cache_device::{device_error, remove_made, waiting_for_lock};
use crate::durable;
use crate::error::RunError;
use crate::loss_record::hex;
use crate::may_wait::MayWait;
use crate::mirror_notes::Notes;
use crate::register::record_path;
use forebay_admin::MessageId;
use forebay_admin::events::EventKind;
use forebay_config::CacheSpec;
use forebay_format::CacheUuid;
use forebay_io::{Device, DeviceOptions};
use std::path::{Path, PathBuf};

/// A cache that was just created, or is being created.
#[derive(Clone, Debug)]
pub struct NewCache {
    uuid: CacheUuid,
    /// Its devices, and those that will join it.
    devices: Vec<PathBuf>,
    /// Those of them that did not exist before.
    files: Vec<PathBuf>,
}

impl NewCache {
    /// Describes a cache before anything is written for it: `to_make` are the missing devices.
    pub(super) fn new(uuid: CacheUuid, specs: &[CacheSpec], to_make: Vec<PathBuf>) -> Self {
        Self { uuid, devices: specs.iter().map(|spec| spec.path.clone()).collect(), files: to_make }
    }

    /// Files created for it.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The first of its devices, for callers that wait for them.
    #[must_use]
    pub fn first(&self) -> &Path {
        self.devices.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// Removes all of it. No process has its devices open.
    ///
    /// # Errors
    /// A device cannot be written, or a file of the state directory cannot be removed. Everything
    /// else is removed.
    pub fn unmake(&self, may_wait: &MayWait, state_dir: &Path) -> Result<(), RunError> {
        // The first one identifies the cache: it goes last.
        let erase = |(at, path): (usize, &PathBuf)| self.erase(may_wait, path, at == 0);
        let devices = self.devices.iter().enumerate().rev().map(erase);
        let erased = devices.fold(Ok(()), Result::and);
        let record = record_path(state_dir, self.uuid);
        let files = [record.with_extension("lock"), record, Notes::path(state_dir, &hex(&self.uuid.0))];
        for path in files {
            durable::remove(may_wait, state_dir, &path).map_err(|error| {
                let what = format!("cannot remove {}: {error}", path.display());
                RunError::failed(MessageId::Event(EventKind::StateUnwritable), what, "remove it")
            })?;
        }
        erased
    }

    fn erase(&self, may_wait: &MayWait, path: &Path, is_first: bool) -> Result<(), RunError> {
        if self.files.iter().any(|file| file == path) {
            remove_made(path);
            return Ok(());
        }
        let device = match waiting_for_lock(|| Device::open_cache(path, DeviceOptions::default())) {
            Ok(device) => device,
            Err(error) if is_first => return Err(error),
            Err(_) => return Ok(()), // it can be the unusable one, and is empty then
        };
        if !says_of(&device, &hex(&self.uuid.0)) {
            return Ok(());
        }
        forget(may_wait, &device, device.size_bytes()).map_err(device_error)
    }
}
